// Which of an arena's memory the kernel is asked to back by huge pages: SPANALLOC_THP.
//
//   system   (unless told otherwise) no call is made, the kernel's own switch decides
//   never    none
//   always   all
//   auto     what is dense and stays, found out as follows
//
// (Not by itself: these are calls that libc's malloc does not make, and a filter of system calls may end the
// process for one. docs/tuning.md says what they gain.)
//
// A huge page takes all of its memory at once, and saves most of what translating its addresses costs; at the
// first touch 511 page faults, too. It pays where all of the memory is used, and for long: a fresh one has to
// be found, and zeroed whole. An arena's books do not tell: a thousand idle threads have thousands of spans
// in use, hardly touched. But the kernel knows what is resident.
//
//   what is open    Each tick of the decay clock looks at a few huge pages' worth of what was open a tick
//                   ago. Where nearly all is resident huge pages are advised, which the kernel then makes in
//                   the background, of memory that is there already: it takes none for them.
//   what is opened  is advised before its first touch if memory opened before has been used up, and has
//                   stayed. To know that, a huge page's worth of what is opened is left without advice now
//                   and then, as a probe. If nearly all of the probe is resident after kStaysMs, the answer
//                   holds for what opens next, and for a sixteenth of what is open then: so much can turn out
//                   sparse, at most.
//
// Not advised is what a single large object opens or grows by, of which the program may write anything or
// nothing (what has become dense of it a tick finds like any other); and nothing while less than 64 MiB are
// open. The arena takes advice back where pages go back to the kernel, and where a large object is handed
// out: what comes next may be sparse.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bits.hpp"
#include "os/os.hpp"
#include "pages/coalescing/mapper.hpp"

namespace spanalloc {

enum class HugePageUse : unsigned { kSystem, kAuto, kAlways, kNever };

/// A heap with less open is given no advice by "auto".
inline constexpr std::size_t kLeastAdvised = 64 * kMiB;

/// What SPANALLOC_THP says.
inline HugePageUse huge_page_use() {
  static constexpr const char* kChoices[] = {"system", "auto", "always", "never"};
  return static_cast<HugePageUse>(os::option_choice("THP", kChoices, 4, 0, "system, auto, always or never"));
}

/// Under the lock of who opens memory. Zero-initialisable. Counts in slices from a place where a huge page
/// can begin, the first of which is never open. In both functions `is_dense(block)` tells of open memory
/// whether nearly all of it is resident.
template <unsigned kSliceBits>
class HugePageAdvice {
 public:
  /// Of x86-64, and of 64-bit Arm with pages of 4 KiB.
  static constexpr std::size_t kHugePage = 2 * kMiB;
  static constexpr std::size_t kUnit = max_of(kHugePage >> kSliceBits, 1);
  static constexpr std::size_t kFirst = kLeastAdvised >> kSliceBits;
  static constexpr std::size_t kDensePermille = 950;
  static constexpr std::uint64_t kStaysMs = 500;
  static constexpr unsigned kLooksAnEpoch = 4;

  /// Memory has been opened for a range of `count` slices. The part of it to be advised; an empty one:
  /// none.
  template <class IsDense>
  coalescing::Block opened(coalescing::Block block, std::size_t count, std::uint64_t now_ms,
                           IsDense&& is_dense) {
    if (count > kUnit) return {};
    if (block.first < answer_ends_) return block;
    const coalescing::Block unit{align_up(block.first, kUnit), kUnit};
    if (unit.end() > block.end()) return {};
    const bool has_probe = probe_.size != 0;
    if (has_probe && (block.first < kFirst || now_ms - probed_at_ms_ < kStaysMs)) return {};
    const bool dense = has_probe && is_dense(probe_);
    probe_ = unit;
    probed_at_ms_ = now_ms;
    if (!dense) return {};
    answer_ends_ = block.end() + block.first / 16;
    return {unit.end(), block.end() - unit.end()};
  }

  /// A tick of the decay clock, while slices below `limit` are open. advise(block): huge pages' worth that
  /// is dense and has stayed. `is_out(block)`: has been advised, or is not to be.
  template <class IsOut, class IsDense, class Advise>
  void pass_epoch(std::size_t limit, IsOut&& is_out, IsDense&& is_dense, Advise&& advise) {
    const std::size_t stayed = limit_at_epoch_;
    limit_at_epoch_ = limit;
    if (stayed < kFirst) return;
    for (unsigned look = 0; look < kLooksAnEpoch; ++look) {
      const coalescing::Block unit{next_, kUnit};
      next_ = unit.end() + kUnit <= stayed ? unit.end() : kUnit;
      if (unit.end() > stayed || unit.first == 0 || unit == probe_ || is_out(unit)) continue;
      if (is_dense(unit)) advise(unit);
    }
  }

 private:
  coalescing::Block probe_{};       // the last one; empty: none
  std::uint64_t probed_at_ms_ = 0;  // when it was opened
  std::size_t answer_ends_ = 0;     // what opens before is as the last probe was
  std::size_t limit_at_epoch_ = 0;
  std::size_t next_ = 0;  // that a tick looks at
};

}  // namespace spanalloc
