// The free lists inside blocks: each free block has a link in its first word.
// What a link must look like.
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
// word from elsewhere: so the block is looked for on the lists. docs/security.md says which
// misuse that finds, and when.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "engines/standard/numbers.hpp"

namespace spanalloc::standard {

/// A free block. Only link_of() reads `stored`.
struct Block {
  std::uint64_t stored;
};

/// A bit that is set in the addresses where lists end, and in no block's address.
inline constexpr std::uintptr_t kEndBit = kQuantum / 2;

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
/// Whether a list that begins here is empty.
SPANALLOC_INLINE bool is_end(const Block* b) {
  return (address_of(b) & kEndBit) != 0;
}

/// The key that links are stored under. The first start of a page layer chooses it, before there is
/// a block; constant from then on. (A thread that has not seen the choice has no block, and
/// kNoBlock's word is no link under either key.) Alone in its cache line, which nobody else writes.
struct alignas(kCacheLine) LinkKey : SetOnce {
  // With bit 0 clear kNoBlock's word is odd under every key. No key is 0.
  void choose(std::uint64_t random) { set((random & ~std::uint64_t{1}) | 2); }
};
inline constinit LinkKey link_key{};

SPANALLOC_INLINE std::uint64_t link_of(const Block* b) {
  return b->stored ^ link_key.read();
}
SPANALLOC_INLINE void set_link(Block* b, std::uint64_t link) {
  b->stored = link ^ link_key.read();
}
/// For a block that leaves its list.
SPANALLOC_INLINE void clear_link(Block* b) {
  b->stored = 0;
}
/// For a block that is off its list already: a fork's child finds it with its link, or on no list.
SPANALLOC_INLINE void release_link(Block* b) {
  store_in_order(b->stored, 0);
}

/// Whether the link leads to a block of the same span of `span` bytes (a power of two). (A link to
/// the block itself passes: it is found cleared when the block comes up again.)
SPANALLOC_INLINE constexpr bool leads_to_block(std::uint64_t link, std::size_t span) {
  return (link & ~std::uint64_t{span - kQuantum}) == 0;
}
/// The largest span of several blocks: the bound of links where the class is not known.
inline constexpr std::size_t kMostSpan = 256 * kKiB;

/// Whether this is a good link, which a block that is on no list has only by a tiny chance.
SPANALLOC_INLINE bool is_link(const Block* b, std::uint64_t link, std::size_t span) {
  return leads_to_block(link, span) || link == (address_of(b) ^ address_of(no_block()));
}

SPANALLOC_INLINE Block* block_behind(Block* b, std::uint64_t link) {
  return pointer_to<Block>(address_of(b) ^ link);
}
/// The next block of a list, or its end. `b` has a good link.
SPANALLOC_INLINE Block* next_of(Block* b) {
  return block_behind(b, link_of(b));
}
/// `next`: a block of the same span, or no_block().
SPANALLOC_INLINE void link_to(Block* b, const Block* next) {
  set_link(b, address_of(b) ^ address_of(next));
}

/// What a list in a span of `span` bytes holds, up to the first bad link.
struct ListLength {
  std::uint32_t blocks = 0;
  Block* last = nullptr;  ///< nullptr: the list is empty
  bool whole = true;      ///< false: a link is bad, or the list does not end within `most` blocks
};
inline ListLength length_of(Block* block, std::size_t span, std::uint32_t most) {
  ListLength length;
  while (!is_end(block)) {
    const std::uint64_t link = link_of(block);
    length.last = block;
    length.whole = is_link(block, link, span) && length.blocks < most;
    if (!length.whole) break;
    ++length.blocks;
    block = block_behind(block, link);
  }
  return length;
}
/// Whether `wanted` is one of the first `most` blocks of a list.
inline bool list_has(Block* block, const Block* wanted, std::size_t span, std::uint32_t most) {
  for (; !is_end(block) && most != 0; --most) {
    if (block == wanted) return true;
    const std::uint64_t link = link_of(block);
    if (!is_link(block, link, span)) return false;
    block = block_behind(block, link);
  }
  return false;
}

}  // namespace spanalloc::standard
