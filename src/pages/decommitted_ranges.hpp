// The decommitted ranges of an arena: when memory is out, free ranges lose their charge, and in a
// placed range their addresses, until they are recommitted.
//
//   decommit_free     the manager's free blocks: from then on in use for the manager, and in this
//                     set
//   recommit_run_for  for one request: a run of decommitted ranges that has room with its free
//                     neighbours
//   recommit_runs     any runs, a few at a time: together they may have room, or make the mappings
//                     fewer
//   may_recommit      whether the kernel would grant it: a few ranges speak for all
//
// Changed under the arena's lock only. Without the lock, walkers of the arena read the set, and
// threads that give memory back call memory_came_back().
//
// A block is counted first, then put into the set, then decommitted; it is recommitted before it
// leaves both. A fork's child may find either half done, even the set's words half written: see
// recover_in_child(). Until then the count is never too low.
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

/// `Books`: what the arena does and knows. lose(block): it is nobody's for ever; is_lost(block),
/// is_gap(block); decommitted(block): its pages are gone; memory_came_back(); gap_behind(unit):
/// the next units without metadata, or no block; has_grown_over(block), unmap_grown(): mappings
/// of ours where a block is decommitted. `kSet`: the one of the manager's sets of units that
/// tells what is decommitted.
template <class Range, class Manager, class Books, class Calls, unsigned kSet>
class DecommittedRanges {
  using Block = coalescing::Block;

 public:
  constexpr DecommittedRanges(Range& range, Manager& manager, Books books)
      : range_(range), manager_(manager), books_(books) {}

  /// Slices. Any thread.
  std::size_t count() const { return count_.load_relaxed(); }
  bool contains(Block block) const { return set().any(block); }

  /// Decommits every free block of at least `least` slices, up to kMostRanges in all;
  /// with `keep_end` not the one at the range's end, which will merge with memory
  /// opened next. Returns slices.
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
  /// Decommits a block in use, which belongs to the caller, and to this set from then on. False:
  /// kMostRanges are decommitted, or the kernel refuses; the block stays the caller's.
  SPANALLOC_COLD bool decommit_used(Block block) {
    if (ranges_ >= kMostRanges) return false;
    const bool least_is_known = count() == 0 || static_cast<bool>(least_);
    if (count() == 0) least_ = {};
    // First of all: a fork's child must not use the block as memory. Release, here and
    // below: a child that finds it in decommitting_ decommits it; a child that does not
    // finds all done, or nothing.
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
  /// Adds a block where nothing is mapped any more, in a placed range. Its owner has recorded it
  /// otherwise, until this is done. False: kMostRanges are decommitted.
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

  /// False: nothing is decommitted, or the kernel refuses the ranges that speak for all: the
  /// smallest, and both ends of the lowest run. In a reserved range they are really recommitted: at
  /// the limit on the number of mappings the kernel refuses a range that makes one more. A range
  /// that borders on open memory, as the ends of a run mostly do, makes none; the smallest may make
  /// one. (In a placed range the kernel is only asked: in a fork's child a range that is mapped and
  /// recorded as decommitted could not be mapped again.)
  SPANALLOC_COLD bool may_recommit() {
    if (count() == 0) return false;
    if (!is_whole(least_)) return true;
    if (!range_.reserved()) {
      return Calls::would_grant(min_of(least_.size, kWorthRecommitting) * Range::kSlice);
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

  /// Whether no run of decommitted ranges is known to have room with its free neighbours. A hint:
  /// it only decides which memory is asked for first.
  bool known_without_room(std::size_t count, std::size_t alignment) const {
    return no_room_.known_absent(count, alignment);
  }
  /// After memory was given back or recommitted. Any thread.
  void memory_came_back() { no_room_.memory_came_back(); }

  /// Recommits a run of decommitted ranges that has room with its free neighbours, or a part of it.
  /// False: there is none, or the kernel refuses.
  SPANALLOC_COLD bool recommit_run_for(std::size_t count, std::size_t alignment) {
    no_room_.arm();
    bool has_room = false;
    bool recommitted = false;
    std::size_t refused = SIZE_MAX;  // slices that the kernel has refused: only fewer are asked for
    for_runs([&](Block run) {
      const Block room = manager_.with_free_neighbours(run);
      if (!has_room_for(room, count, alignment)) return true;
      const std::size_t start = manager_.aligned(room.first, alignment);
      bool enough = false;  // no more than that: open memory is charged
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
  /// Recommits at most `most` runs of decommitted ranges, in whole or in part. False: the kernel
  /// grants none; then the smallest range is known.
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

  // --- In a fork's child -------------------------------------------------------------------------

  /// Before anything else: counts what the set holds.
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
  /// Completes the decommit of a block that a vanished thread had claimed. False: that thread
  /// was not decommitting it.
  SPANALLOC_COLD bool decommit_again(Block block) {
    if (!contains(block)) return false;
    set().insert(block);  // all of it
    if (range_.decommit(block.first, block.size)) return true;
    books_.lose(block);
    set().erase(block);
    return true;
  }
  /// After the manager has recovered. Frees blocks that a vanished thread had recommitted and was
  /// taking out of the set. Blocks that it was taking out because they are lost stay lost:
  /// foreign mappings stand there.
  SPANALLOC_COLD void recover_in_child() {
    if (const std::size_t first = decommitting_.load_relaxed(); first != 0) {
      decommit_again({first, manager_.size_of(first)});
      decommitting_.store_relaxed(0);
    }
    manager_.walk([&](Block block, coalescing::BlockState state, bool) {
      if (state != coalescing::BlockState::kUsed || books_.is_gap(block) || !contains(block))
        return;
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

  // Whether it is a block, decommitted, and not half decommitted (in a
  // fork's child before recovery).
  bool is_whole(Block decommitted) const {
    return decommitted && set().any({decommitted.first, 1}) &&
           manager_.size_of(decommitted.first) == decommitted.size;
  }
  bool could_recommit(Block decommitted) {
    if (!is_whole(decommitted) ||
        range_.recommit(decommitted.first, decommitted.size) != os::Placed::kYes)
      return false;
    if (!range_.decommit(decommitted.first, decommitted.size)) book_recommitted(decommitted);
    return true;
  }
  // A small range under a foreign mapping is lost at once: else the kernel would
  // be asked for it each time.
  os::Placed recommit(Block decommitted) {
    os::Placed placed = range_.recommit(decommitted.first, decommitted.size);
    if (placed == os::Placed::kTaken && books_.has_grown_over(decommitted)) {
      books_.unmap_grown();
      const bool is_clear = !books_.has_grown_over(decommitted);
      placed =
          is_clear ? range_.recommit(decommitted.first, decommitted.size) : os::Placed::kRefused;
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
  // If one range alone has room, only its end is recommitted, as much as is worth the call.
  Block end_with_room(Block range, std::size_t count, std::size_t alignment) {
    const std::size_t wanted = max_of(count, kWorthRecommitting);
    if (range.size <= wanted) return range;
    // Alignments do not count from slice 0: the last aligned unit is less than an
    // alignment before the end.
    const std::size_t latest = range.end() - wanted;
    const std::size_t start = manager_.aligned(latest - min_of(latest, alignment - 1), alignment);
    if (start <= range.first || start > latest ||
        !manager_.split(range.first, start - range.first)) {
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

  // visit(run) until it returns false. True: it never did.
  template <class Visit>
  bool for_runs(Visit visit) {
    for (Block run = next_run(0); run; run = next_run(run.end())) {
      if (!visit(run)) return false;
    }
    return true;
  }
  // The next run from `from` on. Units without metadata are passed by.
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
  // A run's ranges were decommitted one by one. visit(range) until it returns false.
  template <class Visit>
  void for_ranges(Block run, Visit visit) {
    std::size_t size = 0;
    for (std::size_t first = run.first; first < run.end(); first += size) {
      size = manager_.size_of(first);
      if (size == 0) return;  // half decommitted, in a fork's child before recovery
      if (!visit(Block{first, size})) return;
    }
  }

  static constexpr std::size_t kWorthRecommitting = kMiB / Range::kSlice;
  static constexpr std::size_t kLostIfTaken = 16 * kMiB / Range::kSlice;

  Range& range_;
  Manager& manager_;
  Books books_;
  Block least_{};                 // no decommitted range is smaller; no block: not known
  Atomic<std::size_t> count_{0};  // slices
  // A process may have 65,530 mappings.
  static constexpr std::size_t kMostRanges = 16384;
  std::size_t ranges_ = 0;               // decommitted; under the arena's lock
  Atomic<std::size_t> decommitting_{0};  // first slice of the range being decommitted; 0: none
  RefusalMemo no_room_;
};

}  // namespace spanalloc
