// Whether to close everything that is free because memory is out: it costs two calls of the kernel a free
// range, and what was warm is gone.
//
// Closing makes room if what it sets free, with what the kernel would grant besides, is as much as is needed;
// the arena finds that out, at the cost of a look at every block. So the answer "no" is kept for a while, for
// this many slices and more, unless memory comes back: it is given before the look and taken back after it,
// so that who gives memory back meanwhile takes it back, too (as in refusal_memo.hpp). And kernels that do
// not count in sums (heuristic overcommit looks at one request at a time) may have been believed in vain:
// after that it waits longer each time, unless clearly more is free.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"

namespace spanalloc {

/// Under the arena's lock, but for memory_came_back(). Times in milliseconds, sizes in slices.
class DecommitPolicy {
 public:
  /// What decommitting is thought of for: what the kernel would have to grant, and what is free.
  struct Case {
    std::size_t needed = 0;
    std::size_t free = 0;
  };

  bool is_denied(std::uint64_t now, std::size_t needed) const {
    return now < denied_until_.load_relaxed() && needed >= denied_;
  }
  /// Before a look, and after a decommitting that was no use.
  void deny(std::uint64_t now, std::size_t needed) {
    denied_ = now < denied_until_.load_relaxed() ? min_of(denied_, needed) : needed;
    denied_until_.store_seq_cst(now + kDeniedMs);
  }
  /// After a look that said yes, or did not see everything.
  void allow() { denied_until_.store_relaxed(0); }

  bool was_vain(std::uint64_t now, Case a_case) const {
    return now < vain_until_ && a_case.needed >= vain_.needed &&
           a_case.free <= vain_.free + a_case.needed / 8;
  }
  void note_vain(std::uint64_t now, Case a_case) {
    const bool again = now < vain_until_ + kMostVainMs;
    vain_ms_ = again ? min_of(max_of(vain_ms_ * 2, kDeniedMs), kMostVainMs) : kDeniedMs;
    vain_until_ = now + vain_ms_;
    vain_ = a_case;
  }

  /// After a range has been given back. Any thread.
  void memory_came_back() {
    if (denied_until_.load_seq_cst() != 0) denied_until_.store_relaxed(0);
  }

 private:
  static constexpr std::uint64_t kDeniedMs = 100;
  static constexpr std::uint64_t kMostVainMs = 6400;

  Atomic<std::uint64_t> denied_until_{0};  // shared
  std::size_t denied_ = 0;
  Case vain_;
  std::uint64_t vain_until_ = 0;
  std::uint64_t vain_ms_ = 0;
};

}  // namespace spanalloc
