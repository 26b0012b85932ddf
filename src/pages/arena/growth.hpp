// Opens address space for an arena, books it with the manager, and sees what that tells of limits
// and of huge pages.
#pragma once

#include <cstddef>

#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "os/os.hpp"
#include "pages/arena/decommitted_ranges.hpp"
#include "pages/arena/manager_tables.hpp"
#include "pages/arena/memory_limit.hpp"
#include "pages/config.hpp"
#include "pages/huge_page_advice.hpp"

namespace spanalloc {

/// Under the arena's lock, but for pass_epoch().
template <class Slices>
class ArenaGrowth {
 public:
  constexpr ArenaGrowth(Slices& slices, DecommittedRanges<Slices>& decommitted)
      : limit(slices, decommitted), tables(slices), slices_(slices), advice_(slices) {}

  MemoryLimit<Slices> limit;
  ManagerTables<Slices> tables;

  /// Where a range that needs new address space begins. Slices that are free at the end already
  /// need not be opened. If other threads take them meanwhile, the next round opens the rest.
  std::size_t place_behind(std::size_t alignment) const {
    const std::size_t end = slices_.manager.limit();
    return slices_.manager.aligned(end - min_of(slices_.manager.free_tail(), end - 1), alignment);
  }
  bool has_space_behind(std::size_t count, std::size_t alignment) const {
    const std::size_t start = place_behind(alignment);
    const std::size_t capacity = slices_.range.capacity();
    return start < capacity && count <= capacity - start;
  }

  /// Opens address space for `count` slices. True: something has changed, try again. `of_range`:
  /// how long the range is whose end they become, if there is one.
  template <class BeforeUse>
  SPANALLOC_COLD bool open_more(std::size_t count, std::size_t alignment, BeforeUse before_use,
                                std::size_t of_range = 0) {
    const std::size_t first = slices_.manager.limit();
    if (first == slices_.range.opened()) {
      if (!has_space_behind(count, alignment)) return false;
      const std::size_t end = max_of(place_behind(alignment) + count, first + 1);
      const os::Placed opened = slices_.range.open_up_to(end);
      if (const std::size_t ahead = slices_.range.take_refused_step()) limit.note_refusal(ahead);
      if (opened == os::Placed::kRefused) {
        // A refusal of more than could ever be granted shows no limit.
        if (count <= first + PagesConfig::kReasonable / Slices::kSlice) limit.note_refusal(count);
        return false;
      }
      ++steps_;
      limit.note_growth();
    }
    if (!tables.book_opened(before_use)) return false;
    if (!limit.is_at_limit())
      advice_.note_opened({first, slices_.manager.limit() - first}, max_of(count, of_range));
    return true;
  }

  /// See CoalescingArena.
  template <class BeforeUse>
  SPANALLOC_COLD bool grow_at_end(std::size_t first, std::size_t count, BeforeUse before_use) {
    const std::size_t old = slices_.manager.size_of(first);
    if (count <= old || count >= slices_.range.capacity()) return false;
    for (;;) {
      const std::size_t behind = slices_.manager.free_tail();
      if (first + old + behind != slices_.manager.limit()) return false;
      if (behind >= count - old) return static_cast<bool>(slices_.manager.grow(first, count));
      if (!open_more(count - old, 1, before_use, count)) return false;  // true: maybe a part
    }
  }

  /// How often address space was opened, or stepped over.
  std::size_t steps() const { return steps_; }

  void pass_epoch() {
    if (!limit.is_at_limit()) advice_.pass_epoch();
  }

 private:
  Slices& slices_;
  HugePageAdvice<Slices> advice_;
  std::size_t steps_ = 0;
};

}  // namespace spanalloc
