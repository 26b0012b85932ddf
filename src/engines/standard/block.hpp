// The free lists inside blocks: one link in the first word of each free block, and what it must look like.
//
// A link is the next block's address, xor the block's own: within a span that is a multiple of the quantum,
// and smaller than the span, whichever way it leads. So one comparison tells a good link from another, and no
// list can lead out of its span. It is stored xor the process's secret key: who does not know that cannot
// write a good one. The last block's link leads to no_block(), which is no block's place; an empty list
// begins there, so that a block is linked to it like to any other.
//
//   on a list     the word is a link
//   handed out    the word was cleared when the block left its list, and is the program's
//
// Hence two things. A block that is taken off a list and has no link there is on it a second time, or was
// written to after its free: it is not handed out. And one that is given back and has a link there is on a
// list already, but for a chance of 2^-48 at most, or a program that has copied the word from elsewhere: to
// be looked for. What that catches, and when, is docs/security.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "engines/standard/numbers.hpp"

namespace spanalloc::standard {

/// A free block. Nobody reads `stored` but through link_of().
struct Block {
  std::uint64_t stored;
};

/// Of the addresses where lists end, and of no block's.
inline constexpr std::uintptr_t kEndBit = kQuantum / 2;

/// No block: where every list ends, and an empty one begins. It is read as a block is, so that the short path
/// need not ask, and what it holds is no link under any key. Never written: no block is ever pushed at its
/// address.
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

/// What links are stored under: chosen by the first start of a page layer, before there is a block, and
/// constant from then on. (A thread that has not seen the choice has no block, and what it reads of kNoBlock
/// is no link under either key.) Alone in its cache line, which nobody writes.
struct alignas(kCacheLine) LinkKey : SetOnce {
  // With bit 0 clear kNoBlock's word is odd under every key; and no key is 0.
  void choose(std::uint64_t random) { set((random & ~std::uint64_t{1}) | 2); }
};
inline constinit LinkKey link_key{};

SPANALLOC_INLINE std::uint64_t link_of(const Block* b) {
  return b->stored ^ link_key.read();
}
SPANALLOC_INLINE void set_link(Block* b, std::uint64_t link) {
  b->stored = link ^ link_key.read();
}
/// When it leaves its list.
SPANALLOC_INLINE void clear_link(Block* b) {
  b->stored = 0;
}
/// The same after the list was changed: a fork's child finds the block on its list with its link, or on none.
SPANALLOC_INLINE void release_link(Block* b) {
  store_in_order(b->stored, 0);
}

/// A link to another block of the same span of `span` bytes (a power of two). (To itself, too: whoever takes
/// that block finds it cleared when it comes again.)
SPANALLOC_INLINE constexpr bool leads_to_block(std::uint64_t link, std::size_t span) {
  return (link & ~std::uint64_t{span - kQuantum}) == 0;
}
/// What a link may span where the class is not known.
inline constexpr std::size_t kMostSpan = 256 * kKiB;

/// Whether a block that is not on any list would hardly ever have this link.
SPANALLOC_INLINE bool is_link(const Block* b, std::uint64_t link, std::size_t span) {
  return leads_to_block(link, span) || link == (address_of(b) ^ address_of(no_block()));
}

SPANALLOC_INLINE Block* block_behind(Block* b, std::uint64_t link) {
  return pointer_to<Block>(address_of(b) ^ link);
}
/// The next block of a list, or its end. Of a block with a good link.
SPANALLOC_INLINE Block* next_of(Block* b) {
  return block_behind(b, link_of(b));
}
/// `next`: a block of the same span, or no_block().
SPANALLOC_INLINE void link_to(Block* b, const Block* next) {
  set_link(b, address_of(b) ^ address_of(next));
}

/// What a list of a span of `span` bytes holds, as far as its links are good.
struct ListLength {
  std::uint32_t blocks = 0;
  Block* last = nullptr;  ///< nullptr: the list is empty
  bool whole = true;      ///< false: it does not end within `most` blocks, or not with an end
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
