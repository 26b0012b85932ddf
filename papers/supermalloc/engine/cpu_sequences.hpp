// How a thread changes a chain of its CPU's without that CPU's lock: by a restartable sequence
// (os/rseq.hpp), where the process has them and wants them. They stand for the paper's hardware
// transactions (section 8).
//
// A sequence looks whether it runs on the chain's CPU, and whether the chain, which is one word, is
// what its thread has seen; it moves one list's head, and ends with an atomic compare-and-swap of
// that word. What the thread has seen is from before the sequence, and may have been away and come
// back: only of what the sequence finds itself is it known what others may have done since. Of
// threads of that CPU none comes in between, so the chain does not change and change back, and no
// two of them write to one head. Threads of other CPUs do come in between. They take the CPU's lock
// and close its chains, which is an atomic change of the same word: what a sequence has found is
// not there any more, and it fails. All that they do then is to take lists off.
//
//  (S1) of an open chain the heads behind its count are written only by sequences of its CPU;
//  (S2) a chain becomes longer, or another one, only by a thread that was on its CPU after it had
//  closed the
//       chain, or by a sequence there: whatever sequence had found the chain before is over, or
//       begins anew. One that begins later finds the chain closed, or what it has become.
//
// docs/concurrency.md says why that is enough, and why the compare-and-swap must be atomic:
// without help of the kernel, which sandboxes refuse, no other thread could tell whether a
// plain store is still to come.
#pragma once

#include <cstdint>

#include "base/bits.hpp"
#include "os/os.hpp"
#include "os/rseq.hpp"
#include "papers/supermalloc/engine/object_list.hpp"

namespace spanalloc::supermalloc {

/// Zero-initialisable: not used before start().
class CpuSequences {
 public:
  /// Whether they are used where SPANALLOC_RSEQ is not set.
  static constexpr bool kByDefault = false;

  void start() { used_ = are_wanted() && os::has_sequences(); }
  static bool are_wanted() { return os::option_switch("RSEQ", kByDefault); }
  /// Constant once started.
  bool are_used() const { return os::kHasSequences && used_; }

  /// In the calling thread, whose area it is: if it runs on `cpu`, whose chain this is, and it
  /// still is what was seen, an open one with room: takes the list in. False: it was left alone.
  static bool push(volatile os::SequenceArea& area, unsigned cpu, ChainPlace& place, Chain seen,
                   ObjectList list) {
    return os::write_and_swap(area, cpu, place.word(), seen.word(), seen.longer().word(),
                              &seen.heads()[seen.count()], {address_of(list.first), list.count});
  }
  /// The same of an open one that is not empty: its last list, or an empty one.
  static ObjectList pop(volatile os::SequenceArea& area, unsigned cpu, ChainPlace& place,
                        Chain seen) {
    os::TwoWords head{};
    if (!os::read_and_swap(area, cpu, place.word(), seen.word(), seen.shorter().word(),
                           &seen.heads()[seen.count() - 1], head)) {
      return {};
    }
    return {pointer_to<FreeObject>(head.first), static_cast<std::uint32_t>(head.second)};
  }

 private:
  static_assert(sizeof(ObjectList) == sizeof(os::TwoWords));

  bool used_ = false;
};

}  // namespace spanalloc::supermalloc
