// What has been refused since memory last came back, so that a program at its limit does not pay for a search
// of everything at each further request.
//
//   who refuses:  arm(), search everything, note(what was not found)        one at a time: under a lock
//   who asks:     known_absent(what): the search can be left out            under that lock; else a hint
//   who gives:    gives it, then memory_came_back()                         any thread, any time
//
// Invariant: while armed_ is 1 no range that fits something noted has been given back since the search that
// did not find it. Who gives publishes the range and then reads armed_; who refuses sets armed_ and then
// searches. All four are sequentially consistent, so either the giver reads 1, and takes the memo away, or
// the search comes after the publication, and finds the range. A giver that is slow to take the memo away may
// hit a newer one: that costs a search.
//
// A range that somebody has claimed for a moment, to cut a piece off or to purge it, and then publishes
// again, maybe merged with what others have given meanwhile, was no larger before: who searches counts it as
// free by waiting for the claim's end (hold_registry.hpp), so only giving counts. (Who does not wait has a
// hint.)
//
// Ranges noted: for each alignment the smallest size. A request is absent if a smaller one at a smaller
// alignment was.
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

  /// `count` units at a multiple of `alignment` units (a power of two below 2^32) were not to be found.
  /// Forgotten if memory has come back since arm().
  void note(std::size_t count, std::size_t alignment) {
    SPANALLOC_ASSERT(is_power_of_two(alignment) && log2_floor(alignment) < kAlignments);
    Atomic<std::uint32_t>& least = least_[log2_floor(alignment)];
    if (count < least.load_relaxed()) least.store_relaxed(static_cast<std::uint32_t>(count));
  }

  /// Whether such a range is known not to be free, but for what was given back by calls that have not ended.
  bool known_absent(std::size_t count, std::size_t alignment) const {
    if (armed_.load_relaxed() == 0) return false;  // our own giving, and what we have heard of, came before
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
  // Shared; read by whoever gives, written by who refuses and by the first who gives after that.
  Atomic<std::uint32_t> armed_{0};
  // By the logarithm of the alignment; meaningless while the memo is not armed.
  static constexpr unsigned kAlignments = 32;
  Atomic<std::uint32_t> least_[kAlignments];
};

}  // namespace spanalloc
