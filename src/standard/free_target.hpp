// All that a free must know of the span or batch that takes the block: one address
// test, one list, one count.
#pragma once

#include <cstdint>

#include "base/atomic.hpp"
#include "base/compiler.hpp"
#include "base/inspection_access.hpp"
#include "standard/free_list.hpp"

namespace spanalloc::standard {

/// Tells the starts of a span's blocks from all other addresses: (a - base) * magic < limit, modulo
/// 2^64. The test is exact for every address (multiple_limit): it also tells whether `a` lies in
/// the span at all. Zero-initialised, it accepts no address.
struct BlockTest {
  /// Where the span's first block begins (in Span::shown_ for a span of one block)
  OwnersWord base;
  OwnersWord magic;  ///< divisibility_magic of the block size; 1 for a span of one block
  OwnersWord limit;  ///< multiple_limit of the blocks that were ever handed out, or are about to be

  SPANALLOC_INLINE bool is_block(std::uintptr_t a) const {
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

/// Takes in freed blocks of one span, from one thread at a time. `Pointer`: to a FreeTarget.
class FreeTarget {
 public:
  constexpr FreeTarget() = default;
  constexpr explicit FreeTarget(Block* first) : free_list_(first) {}

  FreeList& free_list() { return free_list_; }
  const FreeList& free_list() const { return free_list_; }

  /// Asked by the thread that frees: whether a block of the span begins at `a`.
  template <class Pointer>
  SPANALLOC_INLINE static bool accepts(Pointer& target, std::uintptr_t a) {
    return (a - target->blocks_.base.read_own()) * target->blocks_.magic.read_own() <
           target->blocks_.limit.read_own();
  }
  /// The owner frees `block`, a block of the span that is out; `link` leads to the list as it is.
  /// No lock, no read-modify-write. True: an event, for the caller to look at. From here on
  /// another thread may claim a shared span; the owner has it only if the protocol says so.
  template <class Pointer>
  SPANALLOC_INLINE static bool push(Pointer& target, Block* block, std::uint64_t link) {
    target->free_list().push(block, link);
    // Release: a thread that finds the span empty by this count passes its memory
    // on, after all that we did.
    return target->left_.count_down_release();
  }

 protected:
  friend struct spanalloc::InspectionAccess;

  BlockTest blocks_;
  FreeList free_list_;          // the freed blocks
  Atomic<std::uint32_t> left_;  // the free that brings it to 0 is an event
};

/// Stands for the current span where a class has none: it has no block. Never written.
inline constinit FreeTarget kNoTarget{no_block()};

}  // namespace spanalloc::standard
