// Remembers what was refused since memory last came back, so that a program at its limit does not
// pay for a search of everything at each further request.
//
//   a refuser   arm(), search everything, note(what was not found)      one at a time: under a lock
//   an asker    known_absent(what): no search is needed                 under that lock; otherwise
//                                                                       a hint
//   a giver     gives memory back, then memory_came_back()              any thread, any time
//
// Invariant: while armed_ is 1 no range that fits something noted has been given back since the
// search that did not find it. The giver publishes the range and then reads armed_; the refuser
// sets armed_ and then searches. All four are sequentially consistent. So either the giver reads 1,
// and clears the memo, or the search comes after the publication, and finds the range. A slow giver
// may clear a newer memo: that costs one search more.
//
// A thread may claim a range for a moment, to cut a piece off or to purge it, and then publish
// it again, maybe merged with what others have given meanwhile. That is no giving: a search
// counts the range as free because it waits for the claim's end (hold_registry.hpp). (A search
// that does not wait has a hint.)
//
// The memo has the smallest size for each alignment. A request is absent if one of no greater size
// and no greater alignment was not found.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"

namespace spanalloc {

/// Zero-initialisable.
class RefusalMemo {
 public:
  /// Before a search whose failure is to be noted.
  void arm() {
    if (armed_.load_relaxed() != 0) return;
    for (Atomic<std::uint32_t>& least : least_) least.store_relaxed(UINT32_MAX);
    armed_.store_seq_cst(1);
  }

  /// `count` units at a multiple of `alignment` units (a power of two below 2^32) were not found.
  /// Forgotten if memory has come back since arm().
  void note(std::size_t count, std::size_t alignment) {
    SPANALLOC_ASSERT(is_power_of_two(alignment) && log2_floor(alignment) < kAlignments);
    Atomic<std::uint32_t>& least = least_[log2_floor(alignment)];
    if (count < least.load_relaxed()) least.store_relaxed(static_cast<std::uint32_t>(count));
  }

  /// Whether such a range is known not to be free, but for ranges that calls still
  /// running have given back.
  bool known_absent(std::size_t count, std::size_t alignment) const {
    // This thread has seen every giving that it knows of
    if (armed_.load_relaxed() == 0) return false;
    for (unsigned bits = 0; bits <= log2_floor(alignment) && bits < kAlignments; ++bits) {
      if (least_[bits].load_relaxed() <= count) return true;
    }
    return false;
  }

  /// After a range has been given back, or added.
  SPANALLOC_INLINE void memory_came_back() {
    if (SPANALLOC_UNLIKELY(armed_.load_seq_cst() != 0)) armed_.store_relaxed(0);
  }

 private:
  // Shared: every giver reads it; a refuser writes it, and the first giver after that.
  Atomic<std::uint32_t> armed_{0};
  // By the logarithm of the alignment; meaningless while the memo is not armed.
  static constexpr unsigned kAlignments = 32;
  Atomic<std::uint32_t> least_[kAlignments];
};

}  // namespace spanalloc
