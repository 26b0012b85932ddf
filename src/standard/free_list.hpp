// The free lists inside blocks: each free block has a link in its first word. Nothing else knows
// what a link looks like.
//
// A link is the next block's address xor the block's own. Within a span that is a multiple of the
// quantum and smaller than the span, in either direction. So one comparison tells a good link from
// a bad one, and no list can lead out of its span. The word holds the link xor the process's
// secret key: without the key nobody can write a good one. The last block's link leads to
// no_block(), an address where no block is; an empty list begins there, so that a block is linked
// to an empty list as to any other.
//
//   on a list     the word is a link
//   handed out    the word was cleared when the block left its list, and is the program's
//
// Two things follow. A block without a link that is taken off a list is on it a second time, or
// the program wrote to it after its free: it is not handed out. A block with a link that is freed
// is on a list already, except by a chance of 2^-48 at most, or in a program that has copied the
// word from elsewhere: so the slow paths look for the block on the lists (the short path of free
// compares it with the list's first block only). docs/security.md says which misuse that finds, and
// when.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "base/poison.hpp"
#include "engine/operators.hpp"
#include "standard/numbers.hpp"

namespace spanalloc::standard {

/// The bits that no link within a span of `span` bytes (a power of two) has set. (A link to the
/// block itself passes: it is found cleared when the block comes up again.)
constexpr std::uint64_t no_link_bits(std::size_t span) {
  return ~std::uint64_t{span - kQuantum};
}
SPANALLOC_INLINE constexpr bool leads_to_block(std::uint64_t link, std::size_t span) {
  return (link & no_link_bits(span)) == 0;
}
/// The largest span of several blocks: the bound of links where the class is not known.
inline constexpr std::size_t kMostSpan = 256 * kKiB;

/// Chosen by the first start of a page layer. (A thread that has not seen the choice has no block,
/// and no_block()'s word, which is odd under every key, is no link under any.)
inline constinit LinkKey link_key{};

/// A bit that is set in the addresses where lists end, and in no block's address.
inline constexpr std::uintptr_t kEndBit = kQuantum / 2;
class Block;
constexpr Block* no_block();

/// A free block.
class Block {
 public:
  constexpr Block() = default;
  constexpr explicit Block(std::uint64_t stored) : stored_(stored) {}

  /// Whether a list that begins here is empty.
  SPANALLOC_INLINE bool is_end() const { return (address_of(this) & kEndBit) != 0; }
  template <class Caller = NoOperator>
  SPANALLOC_INLINE std::uint64_t link() const {
    return stored_ ^ link_key.read_by<Caller>();
  }
  /// Whether this would be a good link, which a block that is on no list has only by a tiny chance.
  SPANALLOC_INLINE bool is_link(std::uint64_t link, std::size_t span) const {
    return leads_to_block(link, span) || link == (address_of(this) ^ address_of(no_block()));
  }
  SPANALLOC_INLINE bool has_link(std::size_t span) const { return is_link(link(), span); }
  SPANALLOC_INLINE Block* behind(std::uint64_t link) {
    return pointer_to<Block>(address_of(this) ^ link);
  }
  /// The next block of the list, or its end. The block has a good link.
  SPANALLOC_INLINE Block* next() { return behind(link()); }

  SPANALLOC_INLINE void set_link(std::uint64_t link) { stored_ = link ^ link_key.read(); }
  /// `next`: a block of the same span, or no_block().
  SPANALLOC_INLINE void link_to(const Block* next) {
    set_link(address_of(this) ^ address_of(next));
  }
  /// The same after all stores before: a fork's child that finds this link finds no batch that
  /// ends with the block.
  SPANALLOC_INLINE void link_in_order(const Block* next) {
    store_in_order(stored_, address_of(this) ^ address_of(next) ^ link_key.read());
  }
  /// For a block that leaves its list.
  SPANALLOC_INLINE void clear_link() { stored_ = 0; }
  /// For a block that is off its list already: a fork's child finds it with its link, or on no
  /// list.
  SPANALLOC_INLINE void release_link() { store_in_order(stored_, 0); }

 private:
  std::uint64_t stored_;
};

/// No block: every list ends here, and an empty one begins here. It is read like a block, so that
/// the short path needs no test; the word that it holds is no link under any key. Never written,
/// because no block is pushed at its address.
struct NoBlock {
  alignas(kQuantum) std::uint64_t before{0};
  Block block{~std::uint64_t{0}};
};
static_assert(offsetof(NoBlock, block) == kEndBit);
inline constexpr NoBlock kNoBlock{};
constexpr Block* no_block() {
  return const_cast<Block*>(&kNoBlock.block);
}

/// What a list in a span of `span` bytes holds, up to the first bad link.
struct ListLength {
  std::uint32_t blocks = 0;
  Block* last = nullptr;  ///< nullptr: the list is empty
  bool whole = true;      ///< false: a link is bad, or the list does not end within `most` blocks
};
inline ListLength length_of(Block* block, std::size_t span, std::uint32_t most) {
  ListLength length;
  while (!block->is_end()) {
    length.last = block;
    length.whole = block->has_link(span) && length.blocks < most;
    if (!length.whole) break;
    ++length.blocks;
    block = block->next();
  }
  return length;
}
/// Whether `wanted` is one of the first `most` blocks of a list.
inline bool list_has(Block* block, const Block* wanted, std::size_t span, std::uint32_t most) {
  for (; !block->is_end() && most != 0; --most) {
    if (block == wanted) return true;
    if (!block->has_link(span)) return false;
    block = block->next();
  }
  return false;
}
/// Links up `count` blocks of `size` bytes in address order, at least one.
inline Block* link_up(char* first, std::size_t size, std::uint32_t count) {
  for (char* at = first;; at += size) {
    auto* block = reinterpret_cast<Block*>(at);
    unpoison(block, sizeof(Block));
    if (--count == 0) {
      block->link_to(no_block());
      return reinterpret_cast<Block*>(first);
    }
    block->link_to(reinterpret_cast<Block*>(at + size));
  }
}
/// The first of `count` blocks of `size` bytes, one after the other, that has no link; nullptr: all
/// have one.
inline const char* find_without_link(const char* block, std::size_t size, std::uint32_t count,
                                     std::size_t span) {
  const auto at = [&](std::size_t i) { return reinterpret_cast<const Block*>(block + i * size); };
  for (; count != 0; --count, block += size) {
    // Most blocks are right: one test serves four.
    for (; count >= 4; count -= 4, block += 4 * size) {
      const std::uint64_t all = at(0)->link() | at(1)->link() | at(2)->link() | at(3)->link();
      if (SPANALLOC_UNLIKELY(!leads_to_block(all, span))) break;
    }
    if (count == 0) break;
    if (SPANALLOC_UNLIKELY(!at(0)->has_link(span))) return block;
  }
  return nullptr;
}

/// A list of free blocks of one span. One thread at a time takes blocks off and pushes others.
/// Each change stores links first and where the list begins after them, with release: other threads
/// that find the beginning, and a fork's child, find the links behind it.
class FreeList {
 public:
  constexpr FreeList() = default;
  constexpr explicit FreeList(Block* first) : first_(first) {}

  Block* first() const { return first_.load_relaxed(); }
  /// For another thread than the one that pushes: it sees the links behind it.
  Block* first_acquire() const { return first_.load_acquire(); }
  bool is_empty() const { return first()->is_end(); }

  void set(Block* first) { first_.store_release(first); }
  void clear() { set(no_block()); }
  Block* take_all() {
    Block* all = first();
    clear();
    return all;
  }
  /// Puts a list in front, whose last block is `last`.
  void prepend(Block* first, Block* last) {
    last->link_in_order(this->first());
    set(first);
  }
  /// `link` leads from the block to where the list begins.
  SPANALLOC_INLINE void push(Block* block, std::uint64_t link) {
    block->set_link(link);
    set(block);
  }
  /// Takes the first block off a list that is not empty. nullptr: the list is damaged.
  SPANALLOC_INLINE Block* pop(std::size_t span) {
    Block* block = first();
    const std::uint64_t link = block->link();
    if (SPANALLOC_UNLIKELY(!block->is_link(link, span))) return nullptr;
    return take_off(block, link);
  }
  /// Takes the first block off, whose link this is. Relaxed: what is behind the block was there
  /// before. The link goes last.
  SPANALLOC_INLINE Block* take_off(Block* block, std::uint64_t link) {
    first_.store_relaxed(block->behind(link));
    block->release_link();
    return block;
  }

 private:
  Atomic<Block*> first_;
};

}  // namespace spanalloc::standard
