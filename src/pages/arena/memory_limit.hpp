// Whether the process may have no more memory: the arena is at limit then, and decommits what is
// given back. The program has other uses for the memory (threads' stacks, mappings of its own).
//
// At limit: a limit has refused what was asked for, or would refuse addresses for sixteen times
// what is open here (1 GiB at most), or a sixteenth of the limit that stood at the start is open;
// and nobody has found since that the limit is gone.
//
// The limit that stood at the start is known. Another limit shows by a refusal: of addresses, which
// are asked for (the question takes only time), or of memory that the arena really needed, and then
// it may be a limit on charged memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "os/os.hpp"
#include "pages/arena/decommitted_ranges.hpp"
#include "pages/arena/shortage.hpp"
#include "pages/config.hpp"

namespace spanalloc {

/// Under the arena's lock, but for is_at_limit(), may_stand() and decommit_or_free().
template <class Slices>
class MemoryLimit {
  using Calls = typename Slices::Calls;

 public:
  constexpr MemoryLimit(Slices& slices, DecommittedRanges<Slices>& decommitted)
      : slices_(slices), decommitted_(decommitted) {}

  bool is_at_limit() const { return slices_.shortage.is(Shortage::kHardLimit); }
  bool may_stand() const { return is_at_limit() || os::has_memory_limit(); }

  /// Memory is out, or something was refused: the limit that is known, if there is one, explains
  /// it.
  void blame_known_limit() {
    if (os::has_memory_limit()) set_at_limit(true);
  }
  /// After the kernel has refused to open `count` slices. (At the limit on mappings it refuses even
  /// a page, and decommitting makes more. Where new memory is locked it refuses all but addresses.)
  void note_refusal(std::size_t count) {
    blame_known_limit();
    if (is_at_limit()) return;
    const std::size_t open = decommitted_.open_slices();
    if (open == none_found_.open && count >= none_found_.count) return;
    none_found_ = {open, count};
    // is_locked() first: where new memory is locked, the question would make all of it resident.
    if (slices_.range.is_locked() || grants(count, false) || !Calls::would_grant(os::page_size()))
      return;
    none_found_ = {};
    note_limit({open + count, !grants(count, true)});
  }
  /// After growth. Looks for a limit each time that an eighth more is open.
  void note_growth() {
    constexpr std::size_t kFirst = max_of(PagesConfig::kFirstLookForLimit / Slices::kSlice, 1);
    const std::size_t open = decommitted_.open_slices();
    if (refused_.slices_with_open != 0) {
      if (open > refused_.slices_with_open) forget();
    } else if (os::has_memory_limit()) {
      if (open >= os::memory_limit() / Slices::kSlice / PagesConfig::kLookAhead) set_at_limit(true);
    } else if (open >= next_look_) {
      next_look_ = max_of(open + open / PagesConfig::kLookPart, kFirst);
      const std::size_t more =
          min_of(open * PagesConfig::kLookAhead, PagesConfig::kMostLookedFor / Slices::kSlice);
      if (open < kFirst || grants(more, true) || slices_.range.is_locked()) return;
      note_limit({open + more, true});
    }
  }
  /// Finds out that the limit is gone.
  void look() {
    if (is_at_limit() && !still_stands()) forget();
  }
  /// Decommits large free ranges before the limit refuses something.
  void decommit_large() {
    if (may_stand()) decommitted_.decommit_free(false, max_of(least_worth(), kWorthDecommitting));
  }

  /// A whole range comes back at limit: it is decommitted at once if it is large; others are each
  /// time that an eighth of what is open has come back.
  SPANALLOC_COLD void decommit_or_free(std::uint32_t first, bool zero) {
    const std::size_t count = slices_.manager.size_of(first);
    if (count >= kWorthDecommitting && slices_.grow_lock.try_lock()) {
      const bool decommitted = decommitted_.decommit_used({first, count});
      slices_.grow_lock.unlock();
      if (decommitted) return slices_.memory_came_back();
    }
    slices_.free(first, zero);
    const std::size_t enough =
        max_of(decommitted_.open_slices() / PagesConfig::kComeBackPart, kWorthDecommitting);
    if (came_back_.fetch_add_relaxed(count) + count < enough) return;
    if (!slices_.grow_lock.try_lock()) return;  // its owner may be decommitting
    came_back_.store_relaxed(0);
    decommitted_.decommit_free(false, least_worth());
    slices_.grow_lock.unlock();
  }

 private:
  static constexpr std::size_t kWorthDecommitting =
      max_of(PagesConfig::kWorthDecommitting / Slices::kSlice, 1);
  // A refusal by a limit that did not stand at the start: the slices that it has refused, plus
  // those that were open then; 0: none.
  struct Refused {
    std::size_t slices_with_open = 0;
    bool as_addresses = false;
  };
  // The last refusal that no limit explained: slices open then, slices asked for. Not examined
  // twice.
  struct NoneFound {
    std::size_t open = 0;
    std::size_t count = 0;
  };

  void set_at_limit(bool value) { slices_.shortage.set(Shortage::kHardLimit, value); }
  // Each decommitted range is a hole that cuts a mapping in two: not too many are made.
  std::size_t least_worth() const {
    return max_of(decommitted_.open_slices() / PagesConfig::kHoles, 1);
  }
  // Whether the kernel would grant so much, as addresses or as memory. (Under heuristic overcommit
  // it charges nothing for the question: it judges each request alone.)
  static bool grants(std::size_t slices, bool as_addresses) {
    const std::size_t bytes = slices * Slices::kSlice;
    return (as_addresses ? Calls::reserve_at(nullptr, bytes) : Calls::open_at(nullptr, bytes)) !=
           os::Placed::kRefused;
  }
  void note_limit(Refused refused) {
    refused_ = refused;
    set_at_limit(true);
    slices_.range.set_limited(true);
  }
  void forget() {
    if (refused_.slices_with_open == 0) os::forget_memory_limit();
    refused_ = {};
    set_at_limit(false);
    slices_.range.set_limited(false);
    next_look_ = 0;
  }
  // Asks for more than the limit can grant beside what is open now: for what it has refused (with
  // what was open then), or for a slice more than it allows in all. Memory given back here since
  // makes no difference. A refused question takes nothing.
  bool still_stands() const {
    const std::size_t limit = os::memory_limit();
    std::size_t open = decommitted_.open_slices();
    Refused most = refused_;
    if (most.slices_with_open == 0) {
      if (limit == SIZE_MAX) return false;
      most = {limit / Slices::kSlice + 1, limit == os::address_space_limit()};
      open -= min_of(slices_.lost(), open);  // some of it is not even mapped
    }
    if (open >= most.slices_with_open) return false;
    // Where new memory is locked nothing is asked: all that the kernel grants would be resident at
    // once.
    return slices_.range.is_locked() || !grants(most.slices_with_open - open, most.as_addresses);
  }

  Slices& slices_;
  DecommittedRanges<Slices>& decommitted_;
  Refused refused_;
  NoneFound none_found_;
  std::size_t next_look_ = 0;         // when so many slices are open
  Atomic<std::size_t> came_back_{0};  // slices given back since the last decommit
};

}  // namespace spanalloc
