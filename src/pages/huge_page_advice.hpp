// Decides for which memory of an arena huge pages are advised: SPANALLOC_THP.
//
//   system   (the default) for none; no call is made, the kernel's own switch decides
//   never    for none; the kernel is told so
//   always   for all
//   auto     for memory that is dense and stays, found out as below
//
// (The default makes no call because libc's malloc makes none, and a filter of system calls may end
// the process for one. docs/tuning.md says what the others gain.)
//
// A huge page takes all of its memory at once. It saves most of what translating its addresses
// costs, and 511 page faults at the first touch. It pays where all of the memory is used, and
// for long: the kernel has to find one, and to zero all of it. The arena cannot tell: a
// thousand idle threads have thousands of spans in use, hardly touched. But the kernel knows
// which pages are resident.
//
//   open memory    Each decay epoch looks at a few huge pages' worth of what was open an epoch ago.
//                  If nearly all of one is resident it advises a huge page, which the kernel then
//                  makes in the background from pages that are there already: this takes no memory.
//   fresh memory   is advised before its first touch if memory opened earlier was used up and has
//                  stayed. To know that, now and then a huge page's worth of fresh memory is left
//                  without advice, as a probe. If nearly all of the probe is resident after
//                  kStaysMs, the answer holds for what opens next, up to a sixteenth of what is
//                  open then: at most so much can turn out sparse.
//
// Memory that a single large object opens or grows by is not advised, for the program may write
// any part of it. (If it becomes dense, an epoch finds it.) Nothing is advised while less than
// 64 MiB are open. The arena takes advice back where pages go back to the kernel, and where it
// hands out a large object.
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
  return static_cast<HugePageUse>(
      os::option_choice("THP", kChoices, 4, 0, "system, auto, always or never"));
}

/// Under the lock for opening memory. Zero-initialisable. Counts in slices from a place where a
/// huge page can begin, and the first of these slices is never open. In both functions
/// `is_dense(block)` tells whether nearly all of the open memory is resident.
template <unsigned kSliceBits>
class HugePageAdvice {
 public:
  /// On x86-64, and on 64-bit Arm with pages of 4 KiB.
  static constexpr std::size_t kHugePage = 2 * kMiB;
  static constexpr std::size_t kUnit = max_of(kHugePage >> kSliceBits, 1);
  static constexpr std::size_t kFirst = kLeastAdvised >> kSliceBits;
  static constexpr std::size_t kDensePermille = 950;
  static constexpr std::uint64_t kStaysMs = 500;
  static constexpr unsigned kLooksAnEpoch = 4;

  /// Memory has been opened for a range of `count` slices. Returns the part of it to
  /// be advised; none: empty.
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

  /// Begins a decay epoch, while slices below `limit` are open. advise(block): huge pages'
  /// worth that is dense and has stayed. `is_excluded(block)`: it has been advised
  /// already, or must not be.
  template <class IsOut, class IsDense, class Advise>
  void pass_epoch(std::size_t limit, IsOut&& is_excluded, IsDense&& is_dense, Advise&& advise) {
    const std::size_t stayed = limit_at_epoch_;
    limit_at_epoch_ = limit;
    if (stayed < kFirst) return;
    for (unsigned look = 0; look < kLooksAnEpoch; ++look) {
      const coalescing::Block unit{next_, kUnit};
      next_ = unit.end() + kUnit <= stayed ? unit.end() : kUnit;
      if (unit.end() > stayed || unit.first == 0 || unit == probe_ || is_excluded(unit)) continue;
      if (is_dense(unit)) advise(unit);
    }
  }

 private:
  coalescing::Block probe_{};       // the last probe; empty: none
  std::uint64_t probed_at_ms_ = 0;  // when it was opened
  std::size_t answer_ends_ = 0;     // memory opened below this slice is advised
  std::size_t limit_at_epoch_ = 0;
  std::size_t next_ = 0;  // the slice that the next look begins at
};

}  // namespace spanalloc
