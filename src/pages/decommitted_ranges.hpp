// The ranges of an arena that are decommitted: when memory is out, what is free loses its charge, and in a
// range of addresses that is not reserved its addresses, until it is opened again.
//
//   decommit_free      the manager's free blocks: in use for it from then on, and in the set of decommitted
//   slices recommit_run_for  for one request: a run of decommitted ranges in which, with its free neighbours,
//   there is room recommit_runs     any, a few at a time: together they may do; or they make the mappings
//   fewer may_recommit      would the kernel let us? A few ranges speak for all
//
// Changed under the arena's lock only. Read without it: the set, by who walks the arena, and what is known to
// have no room is forgotten by whoever gives memory back.
//
// Who decommits a block counts it, says so in the set, and then decommits it; who opens one does so first. A
// fork's child may find either half done, also in the middle of the set's words: recover_in_child(). Until
// then the count is never too low.
#pragma once

#include <cstddef>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "os/os.hpp"
#include "pages/coalescing/mapper.hpp"
#include "pages/coalescing/unit_set.hpp"
#include "pages/refusal_memo.hpp"

namespace spanalloc {

/// `Books`, the arena's: lose(block): it is nobody's for ever; is_lost(block), is_gap(block);
/// decommitted(block): its pages are gone; memory_came_back(); gap_behind(unit): the next units that have no
/// metadata, no block where there are none; has_grown_over(block), unmap_grown(): what is ours where a block
/// is decommitted. `kSet`: which of the manager's sets of units tells what is decommitted.
template <class Range, class Manager, class Books, class Calls, unsigned kSet>
class DecommittedRanges {
  using Block = coalescing::Block;

 public:
  constexpr DecommittedRanges(Range& range, Manager& manager, Books books)
      : range_(range), manager_(manager), books_(books) {}

  /// Slices. Any thread.
  std::size_t count() const { return count_.load_relaxed(); }
  bool contains(Block block) const { return set().any(block); }

  /// Closes every free block that it finds; with `keep_end` not the one at the range's end: what is opened
  /// behind it joins it. Slices decommitted.
  /// None smaller than `least`, and no more ranges than a process can have holes between its mappings.
  SPANALLOC_COLD std::size_t decommit_free(bool keep_end, std::size_t least = 1) {
    std::size_t decommitted = 0;
    manager_.take_all([&](Block block) {
      if (keep_end && block.end() == manager_.limit()) return false;
      if (block.size < least || !decommit_used(block)) return false;
      decommitted += block.size;
      return true;
    });
    return decommitted;
  }
  /// Closes a block that is in use and the caller's; it is this set's from then on. False: there are as many
  /// as may be, or the kernel refuses, and the block is the caller's.
  SPANALLOC_COLD bool decommit_used(Block block) {
    if (ranges_ >= kMostRanges) return false;
    const bool least_is_known = count() == 0 || static_cast<bool>(least_);
    if (count() == 0) least_ = {};
    // First of all: in a fork's child nobody must take it for memory. Release, here and below: a child that
    // finds it decommitting decommits it, and one that does not finds all done, or nothing.
    decommitting_.store_release(block.first);
    count_.fetch_add_relaxed(block.size);
    set().insert(block);
    const bool decommitted = range_.decommit(block.first, block.size);
    decommitting_.store_release(0);
    if (!decommitted) {
      ++ranges_;  // remove() takes one off
      remove(block);
      return false;
    }
    books_.decommitted(block);
    ++ranges_;
    note_decommitted(block, least_is_known);
    return true;
  }
  /// The same of a block where nothing is mapped any more, in a range of addresses that is not reserved. Who
  /// has the block has said so otherwise, until this is done.
  SPANALLOC_COLD bool add_unmapped(Block block) {
    if (ranges_ >= kMostRanges) return false;
    const bool least_is_known = count() == 0 || static_cast<bool>(least_);
    if (count() == 0) least_ = {};
    count_.fetch_add_relaxed(block.size);
    set().insert(block);
    ++ranges_;
    note_decommitted(block, least_is_known);
    return true;
  }

  /// False: nothing is decommitted, or the kernel refuses what speaks for the rest: the smallest decommitted
  /// range, and both ends of the lowest run. In a reserved range they are really asked for: at the limit on
  /// the number of mappings one elsewhere is refused, but to open what borders on something open makes no
  /// more of them, as the ends of a run mostly do, and the smallest range may not. (Not where nothing is
  /// reserved: in a fork's child a range that is mapped and booked as decommitted would be in its own way.)
  SPANALLOC_COLD bool may_recommit() {
    if (count() == 0) return false;
    if (!is_whole(least_)) return true;
    if (!range_.reserved()) {
      return Calls::would_grant(min_of(least_.size, kWorthOpening) * Range::kSlice);
    }
    Block first{};
    Block last{};
    for_ranges(next_run(0), [&](Block range) {
      if (!first) first = range;
      last = range;
      return true;
    });
    return could_recommit(least_) || could_recommit(first) || could_recommit(last);
  }

  /// Whether no run of decommitted ranges and its free neighbours is known to have room. A hint: nothing
  /// hangs on it but which memory is asked for first.
  bool known_without_room(std::size_t count, std::size_t alignment) const {
    return no_room_.known_absent(count, alignment);
  }
  /// After memory was given back or opened again. Any thread.
  void memory_came_back() { no_room_.memory_came_back(); }

  /// Opens a run of decommitted ranges again in which, or in which together with its free neighbours, there
  /// is room; or a part of it. False: none, or the kernel refuses.
  SPANALLOC_COLD bool recommit_run_for(std::size_t count, std::size_t alignment) {
    no_room_.arm();
    bool has_room = false;
    bool recommitted = false;
    std::size_t refused = SIZE_MAX;  // when the kernel has refused a range it is only asked for smaller ones
    for_runs([&](Block run) {
      const Block room = manager_.with_free_neighbours(run);
      if (!has_room_for(room, count, alignment)) return true;
      const std::size_t start = manager_.aligned(room.first, alignment);
      bool enough = false;  // what is open is charged
      for_ranges(run, [&](Block range) {
        range = end_with_room(range, count, alignment);
        const os::Placed placed = range.size < refused ? recommit(range) : os::Placed::kRefused;
        enough = placed == os::Placed::kYes &&
                 (has_room_for(range, count, alignment) || !set().any({start, count}));
        if (placed == os::Placed::kRefused) refused = min_of(refused, range.size);
        has_room = has_room || placed != os::Placed::kTaken;
        recommitted = recommitted || placed == os::Placed::kYes;
        return !enough;
      });
      return !recommitted;
    });
    if (!has_room) no_room_.note(count, alignment);
    return recommitted;
  }
  /// Any runs of decommitted ranges, in whole or in part, `most` at most. False: we can have none of them.
  /// Then the smallest is known.
  SPANALLOC_COLD bool recommit_runs(std::size_t most) {
    std::size_t recommitted = 0;
    least_ = {};
    Block least{};
    const bool to_the_end = for_runs([&](Block run) {
      bool some = false;
      for_ranges(run, [&](Block range) {
        const os::Placed placed = recommit(range);
        some = some || placed == os::Placed::kYes;
        if (placed != os::Placed::kYes && is_whole(range) && (!least || range.size < least.size))
          least = range;
        return true;
      });
      recommitted += some;
      return recommitted < most;
    });
    if (to_the_end) least_ = least;
    return recommitted != 0;
  }

  // --- In a fork's child -----------------------------------------------------------------------------------

  /// Before anything else: the count, as the set says.
  SPANALLOC_COLD void recount() {
    std::size_t decommitted = 0;
    ranges_ = 0;
    for_runs([&](Block run) {
      decommitted += run.size;
      for_ranges(run, [&](Block) { return ++ranges_, true; });
      return true;
    });
    count_.store_relaxed(decommitted);
    least_ = {};
  }
  /// A block that a vanished thread had claimed. True: it was being decommitted, and is now.
  SPANALLOC_COLD bool decommit_again(Block block) {
    if (!contains(block)) return false;
    set().insert(block);  // all of it
    if (range_.decommit(block.first, block.size)) return true;
    books_.lose(block);
    set().erase(block);
    return true;
  }
  /// After the manager: what a vanished thread had opened and was taking out of the set is free; but what it
  /// took out because it was lost is somebody else's mapping.
  SPANALLOC_COLD void recover_in_child() {
    if (const std::size_t first = decommitting_.load_relaxed(); first != 0) {
      decommit_again({first, manager_.size_of(first)});
      decommitting_.store_relaxed(0);
    }
    manager_.walk([&](Block block, coalescing::BlockState state, bool) {
      if (state != coalescing::BlockState::kUsed || books_.is_gap(block) || !contains(block)) return;
      const bool lost = books_.is_lost(block);
      if (!lost && set().next_run(block, block.first) == block) return;
      set().erase(block);
      if (!lost) manager_.free(block.first);
    });
    recount();
  }

 private:
  coalescing::UnitSet& set() { return manager_.extra_set(kSet); }
  const coalescing::UnitSet& set() const { return manager_.extra_set(kSet); }

  // There is one, it is decommitted, and not, in a fork's child that is not put right yet, half decommitted.
  bool is_whole(Block decommitted) const {
    return decommitted && set().any({decommitted.first, 1}) &&
           manager_.size_of(decommitted.first) == decommitted.size;
  }
  bool could_recommit(Block decommitted) {
    if (!is_whole(decommitted) || range_.recommit(decommitted.first, decommitted.size) != os::Placed::kYes)
      return false;
    if (!range_.decommit(decommitted.first, decommitted.size)) book_recommitted(decommitted);
    return true;
  }
  // What somebody else has mapped over a small one meanwhile is not waited for: it would be asked for each
  // time.
  os::Placed recommit(Block decommitted) {
    os::Placed placed = range_.recommit(decommitted.first, decommitted.size);
    if (placed == os::Placed::kTaken && books_.has_grown_over(decommitted)) {
      books_.unmap_grown();
      const bool is_clear = !books_.has_grown_over(decommitted);
      placed = is_clear ? range_.recommit(decommitted.first, decommitted.size) : os::Placed::kRefused;
    }
    if (placed == os::Placed::kYes) book_recommitted(decommitted);
    if (placed == os::Placed::kTaken && decommitted.size <= kLostIfTaken) lose(decommitted);
    return placed;
  }
  void book_recommitted(Block block) {
    remove(block);
    manager_.free(block.first, true);
    books_.memory_came_back();
  }
  bool has_room_for(Block range, std::size_t count, std::size_t alignment) const {
    const std::size_t start = manager_.aligned(range.first, alignment);
    return start < range.end() && range.end() - start >= count;
  }
  // A range in which there is room alone is opened from its end on, as far as that is worth the call.
  Block end_with_room(Block range, std::size_t count, std::size_t alignment) {
    const std::size_t wanted = max_of(count, kWorthOpening);
    if (range.size <= wanted) return range;
    // Alignments count from elsewhere: the last aligned unit is less than an alignment before the end.
    const std::size_t latest = range.end() - wanted;
    const std::size_t start = manager_.aligned(latest - min_of(latest, alignment - 1), alignment);
    if (start <= range.first || start > latest || !manager_.split(range.first, start - range.first)) {
      return range;
    }
    ++ranges_;
    return {start, range.end() - start};
  }
  void note_decommitted(Block block, bool least_is_known) {
    if (least_is_known && (!least_ || block.size < least_.size)) least_ = block;
    no_room_.memory_came_back();
  }
  void lose(Block block) {
    books_.lose(block);
    remove(block);
  }
  void remove(Block block) {
    SPANALLOC_ASSERT(contains(block) && count() >= block.size);
    set().erase(block);
    count_.fetch_sub_relaxed(block.size);
    ranges_ -= ranges_ != 0;
  }

  // visit(run) until it returns false. True: for all.
  template <class Visit>
  bool for_runs(Visit visit) {
    for (Block run = next_run(0); run; run = next_run(run.end())) {
      if (!visit(run)) return false;
    }
    return true;
  }
  // From `from` on; what has no metadata is passed by.
  Block next_run(std::size_t from) const {
    for (;;) {
      const std::size_t limit = manager_.limit();
      const Block gap = books_.gap_behind(from);
      const std::size_t end = gap ? min_of(gap.first, limit) : limit;
      if (from < end) {
        if (const Block run = set().next_run({from, end - from}, from)) return run;
      }
      if (end == limit) return {};
      from = gap.end();
    }
  }
  // Neighbours were decommitted one by one. visit(range) until it returns false.
  template <class Visit>
  void for_ranges(Block run, Visit visit) {
    std::size_t size = 0;
    for (std::size_t first = run.first; first < run.end(); first += size) {
      size = manager_.size_of(first);
      if (size == 0) return;  // in a fork's child that is not put right yet: half decommitted
      if (!visit(Block{first, size})) return;
    }
  }

  static constexpr std::size_t kWorthOpening = kMiB / Range::kSlice;
  static constexpr std::size_t kLostIfTaken = 16 * kMiB / Range::kSlice;

  Range& range_;
  Manager& manager_;
  Books books_;
  Block least_{};                 // no decommitted range is smaller; none: not known
  Atomic<std::size_t> count_{0};  // slices
  // Of the 65,530 mappings that a process may have.
  static constexpr std::size_t kMostRanges = 16384;
  std::size_t ranges_ = 0;               // decommitted; under the arena's lock
  Atomic<std::size_t> decommitting_{0};  // where the range begins that is just being decommitted
  RefusalMemo no_room_;
};

}  // namespace spanalloc
