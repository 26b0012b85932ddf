// What a free needs to know of the span that a block goes back to, and nothing else: one test of the address,
// one list, one count.
#pragma once

#include <cstdint>

#include "base/atomic.hpp"
#include "base/compiler.hpp"
#include "engines/standard/block.hpp"

namespace spanalloc::standard {

/// Tells the starts of a span's blocks from all other addresses: (a - base) * magic < limit, modulo 2^64.
/// That is exact for every address (multiple_limit), so it also tells whether `a` lies in the span, whatever
/// led here. Zero-initialised: nobody's block passes.
struct BlockTest {
  OwnersWord base;   ///< address of the span; of a span of one block, in Span::shown alone, of the block
  OwnersWord magic;  ///< divisibility_magic of the block size; of a span of one block 1
  OwnersWord limit;  ///< multiple_limit of the blocks that were ever handed out, or are about to be

  bool is_block(std::uintptr_t a) const {
    return (a - base.load_relaxed()) * magic.load_relaxed() < limit.load_relaxed();
  }
  void set(std::uint64_t new_base, std::uint64_t new_magic, std::uint64_t new_limit) {
    base.store_relaxed(new_base);
    magic.store_relaxed(new_magic);
    limit.store_relaxed(new_limit);
  }
  void set(const BlockTest& other) {
    set(other.base.load_relaxed(), other.magic.load_relaxed(), other.limit.load_relaxed());
  }
};

/// Takes in freed blocks of one span, by one thread at a time.
struct FreeTarget {
  BlockTest blocks;
  Atomic<Block*> free_list;    ///< freed blocks; if there is none no_block()
  Atomic<std::uint32_t> left;  ///< the free that brings it to 0 is an event
};

/// The owner frees `block`, one of the span's that is out, with `link` to the list as it is. No lock and no
/// read-modify-write. True: an event, to be looked at. From here on, if the span is parked, it may be claimed
/// by another thread and is the owner's only if the protocol says so. `Pointer`: to an FreeTarget.
template <class Pointer>
SPANALLOC_INLINE bool push_freed(Pointer& target, Block* block, std::uint64_t link) {
  set_link(block, link);
  // Release: a fork's child that counts the list finds the link.
  target->free_list.store_release(block);
  // Release: who finds the span empty by this count hands its memory on, after all that we did to it.
  return target->left.count_down_release();
}

}  // namespace spanalloc::standard
