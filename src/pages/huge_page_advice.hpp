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

#include "os/os.hpp"
#include "pages/coalescing/mapper.hpp"
#include "pages/config.hpp"

namespace spanalloc {

enum class HugePageUse : unsigned { kSystem, kAuto, kAlways, kNever };

/// What SPANALLOC_THP says.
inline HugePageUse huge_page_use() {
  static constexpr const char* kChoices[] = {"system", "auto", "always", "never"};
  return static_cast<HugePageUse>(
      os::option_choice("THP", kChoices, 4, 0, "system, auto, always or never"));
}

/// Under the arena's lock, but for pass_epoch(). `Slices`: the arena's (arena/slices.hpp). Huge
/// pages begin where `aligned` says; the arena may begin within one, of which no part is advised.
/// Amounts that are open count from the arena's first slice.
template <class Slices>
class HugePageAdvice {
  using Block = coalescing::Block;
  static constexpr std::size_t kUnit = Slices::kHugePage;

 public:
  static constexpr std::size_t kFirst = PagesConfig::kLeastAdvised / Slices::kSlice;

  constexpr explicit HugePageAdvice(Slices& slices) : slices_(slices) {}

  /// Slices have been opened for a range of `count`.
  void note_opened(Block opened, std::size_t count) {
    if (!slices_.may_advise() || count > kUnit) return;
    if (opened.first >= answer_ends_) {
      const Block unit{slices_.manager.aligned(opened.first, kUnit), kUnit};
      if (unit.end() > opened.end()) return;
      const std::uint64_t now = os::now_ms();
      if (probe_ && (opened.first < kFirst || now - probed_at_ms_ < PagesConfig::kStaysMs)) return;
      const bool dense = probe_ && slices_.is_dense(probe_);
      probe_ = unit;
      probed_at_ms_ = now;
      if (!dense) return;
      answer_ends_ = opened.end() + opened.first / PagesConfig::kAnswerPart;
      opened = {unit.end(), opened.end() - unit.end()};
    }
    if (opened) slices_.advise(opened);
  }

  /// Begins a decay epoch: advises what is dense and has stayed.
  void pass_epoch() {
    const std::size_t limit = slices_.manager.limit();
    if (!slices_.may_advise() || slices_.was_often_taken_back() || limit < kFirst ||
        !slices_.grow_lock.try_lock())
      return;
    for (unsigned look = 0; look < PagesConfig::kLooksAnEpoch; ++look) {
      const Block unit{slices_.manager.aligned(looked_ + 1, kUnit), kUnit};
      looked_ = unit.end() + kUnit <= limit_at_epoch_ ? unit.end() - 1 : 0;
      if (unit.end() <= limit_at_epoch_ && unit != probe_ && !slices_.has(Slices::kAdvised, unit) &&
          !slices_.has(Slices::kDecommitted, unit) && slices_.is_dense(unit))
        slices_.advise(unit);
    }
    limit_at_epoch_ = limit;
    slices_.grow_lock.unlock();
  }

 private:
  Slices& slices_;
  Block probe_{};                   // the last probe; empty: none
  std::uint64_t probed_at_ms_ = 0;  // when it was opened
  std::size_t answer_ends_ = 0;     // memory opened below this slice is advised
  std::size_t limit_at_epoch_ = 0;  // when the last one began
  std::size_t looked_ = 0;          // the last slice of the last look
};

}  // namespace spanalloc
