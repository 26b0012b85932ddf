// Decides whether to decommit everything that is free because memory is out. Decommitting costs two
// system calls for each free range, and the next use of its memory costs page faults.
//
// It makes room if it frees as much as is needed, with what the kernel would grant besides. The
// arena finds that out by a look at every block. So the answer "no" is kept for a while, for as
// many slices and more, unless memory comes back. deny() stands before the look and allow() after
// it: a thread that gives memory back during the look takes the "no" back, too (sequentially
// consistent accesses, as in refusal_memo.hpp). And kernels that do not count sums (heuristic
// overcommit judges each request alone) may promise in vain: after that the policy waits longer
// each time, unless clearly more is free.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "pages/config.hpp"

namespace spanalloc {

/// Under the arena's lock, but for memory_came_back(). Times in milliseconds, sizes in slices.
class DecommitPolicy {
 public:
  /// Why to decommit: what the kernel would have to grant, and what is free.
  struct Case {
    std::size_t needed = 0;
    std::size_t free = 0;
  };

  bool is_denied(std::uint64_t now, std::size_t needed) const {
    return now < denied_until_.load_relaxed() && needed >= denied_;
  }
  /// Before a look.
  void deny(std::uint64_t now, std::size_t needed) {
    denied_ = now < denied_until_.load_relaxed() ? min_of(denied_, needed) : needed;
    denied_until_.store_seq_cst(now + PagesConfig::kDeniedMs);
  }
  /// After a look that said yes, or did not see everything.
  void allow() { denied_until_.store_relaxed(0); }

  bool was_vain(std::uint64_t now, Case a_case) const {
    return now < vain_until_ && a_case.needed >= vain_.needed &&
           a_case.free <= vain_.free + a_case.needed / PagesConfig::kClearlyMorePart;
  }
  /// After decommitting in vain; by the kernel's fault, or because the range ends.
  void note_vain(std::uint64_t now, Case a_case, bool kernel_refused) {
    deny(now, a_case.needed);
    if (!kernel_refused) return;
    const bool again = now < vain_until_ + PagesConfig::kMostVainMs;
    vain_ms_ = again
                   ? min_of(max_of(vain_ms_ * 2, PagesConfig::kDeniedMs), PagesConfig::kMostVainMs)
                   : PagesConfig::kDeniedMs;
    vain_until_ = now + vain_ms_;
    vain_ = a_case;
  }

  /// After a range has been given back. Any thread.
  void memory_came_back() {
    if (denied_until_.load_seq_cst() != 0) denied_until_.store_relaxed(0);
  }

 private:
  Atomic<std::uint64_t> denied_until_{0};  // shared
  std::size_t denied_ = 0;
  Case vain_;
  std::uint64_t vain_until_ = 0;
  std::uint64_t vain_ms_ = 0;
};

}  // namespace spanalloc
