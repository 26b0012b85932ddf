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
// Changed under the arena's lock only. Without the lock, walkers of the arena read the set.
//
// A block is counted first, then put into the set, then decommitted; it is recommitted before it
// leaves both. A fork's child may find either half done, even the set's words half written: see
// recover_in_child(). Until then the count is never too low.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "base/inspection_access.hpp"
#include "base/poison.hpp"
#include "os/os.hpp"
#include "pages/arena/grown_mappings.hpp"
#include "pages/coalescing/mapper.hpp"
#include "pages/coalescing/unit_set.hpp"
#include "pages/config.hpp"

namespace spanalloc {

template <class Slices>
class DecommittedRanges {
  using Block = coalescing::Block;
  using Calls = typename Slices::Calls;
  using enum os::Placed;

 public:
  constexpr explicit DecommittedRanges(Slices& slices) : slices_(slices) {}

  /// Mappings of ours where ranges may be decommitted.
  GrownMappings<Calls> grown;

  /// Slices. Any thread.
  std::size_t count() const { return count_.load_relaxed(); }
  bool contains(Block block) const { return slices_.has(Slices::kDecommitted, block); }
  std::size_t open_slices() const {
    return slices_.manager.limit() - min_of(count(), slices_.manager.limit());
  }

  /// Decommits every free block of at least `least` slices, up to kMostDecommitted in all;
  /// with `keep_end` not the one at the range's end, which will merge with memory
  /// opened next. Returns slices.
  SPANALLOC_COLD std::size_t decommit_free(bool keep_end, std::size_t least = 1) {
    std::size_t decommitted = 0;
    slices_.manager.take_all([&](Block block) {
      if (keep_end && block.end() == slices_.manager.limit()) return false;
      if (block.size < least || !decommit_used(block)) return false;
      decommitted += block.size;
      return true;
    });
    return decommitted;
  }
  /// Decommits a block in use, which belongs to the caller, and to this set from then on. False:
  /// kMostDecommitted are decommitted, the kernel refuses, or it is a fork's child in which the
  /// recovery has to decommit another one first; the block stays the caller's.
  SPANALLOC_COLD bool decommit_used(Block block) { return add(block, true); }
  /// Adds a block where nothing is mapped any more, in a placed range. Its owner has recorded it
  /// otherwise, until this is done. False: kMostDecommitted are decommitted.
  SPANALLOC_COLD bool add_unmapped(Block block) { return add(block, false); }

  /// False: nothing is decommitted, or the kernel refuses the ranges that speak for all: the
  /// smallest, and both ends of the lowest run. In a reserved range they are really recommitted: at
  /// the limit on the number of mappings the kernel refuses a range that makes one more. A range
  /// that borders on open memory, as the ends of a run mostly do, makes none; the smallest may make
  /// one. (In a placed range the kernel is only asked: in a fork's child a range that is mapped and
  /// recorded as decommitted could not be mapped again.)
  SPANALLOC_COLD bool may_recommit() {
    if (count() == 0) return false;
    if (!is_whole(least_)) return true;
    if (!slices_.range.reserved())
      return Calls::would_grant(min_of(least_.size, kWorthRecommitting) * Slices::kSlice);
    Block first{};
    Block last{};
    for_ranges(next_run(0), [&](Block range) {
      if (!first) first = range;
      last = range;
      return true;
    });
    return could_recommit(least_) || could_recommit(first) || could_recommit(last);
  }

  /// Recommits a run of decommitted ranges that has room with its free neighbours, or a part of it.
  /// False: there is none, or the kernel refuses.
  SPANALLOC_COLD bool recommit_run_for(std::size_t count, std::size_t alignment) {
    slices_.no_room.arm();
    bool has_room = false;
    bool recommitted = false;
    std::size_t refused = SIZE_MAX;  // slices that the kernel has refused: only fewer are asked for
    for_runs([&](Block run) {
      const Block room = slices_.manager.with_free_neighbours(run);
      if (!slices_.manager.fits(room, count, alignment)) return true;
      const std::size_t start = slices_.manager.aligned(room.first, alignment);
      bool enough = false;  // no more than that: open memory is charged
      for_ranges(run, [&](Block range) {
        if (is_half_decommitted(range)) return has_room = true;
        range = end_with_room(range, count, alignment);
        const os::Placed placed = range.size < refused ? recommit(range) : kRefused;
        enough = placed == kYes &&
                 (slices_.manager.fits(range, count, alignment) || !set().any({start, count}));
        if (placed == kRefused) refused = min_of(refused, range.size);
        has_room = has_room || placed != kTaken;
        recommitted = recommitted || placed == kYes;
        return !enough;
      });
      return !recommitted;
    });
    if (!has_room) slices_.no_room.note(count, alignment);
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
        if (is_half_decommitted(range)) return true;
        const os::Placed placed = recommit(range);
        some = some || placed == kYes;
        if (placed != kYes && is_whole(range) && (!least || range.size < least.size)) least = range;
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
    set().insert(block);                                           // all of it
    if (decommitting_.load_relaxed() != block.first) return true;  // it is decommitted
    if (is_still_mapped(block) && !slices_.range.decommit(block)) {
      slices_.mark_lost(block);
      set().erase(block);
    }
    decommitting_.store_release(0);
    return true;
  }
  /// Completes what vanished threads were doing, the manager's part first. Frees blocks that one
  /// had recommitted and was taking out of the set. Blocks that it was taking out because they are
  /// lost stay lost: foreign mappings stand there.
  SPANALLOC_COLD void recover_in_child() {
    grown.forget();  // what is decommitted again is unmapped: others may map there
    slices_.manager.recover_after_fork([this](Block block) { return decommit_again(block); });
    if (const std::size_t first = decommitting_.load_relaxed(); first != 0) {
      const Block block{first, slices_.manager.size_of(first)};
      if (!decommit_again(block)) unmark(block);
      decommitting_.store_relaxed(0);
    }
    slices_.for_used([this](Block block) {
      if (slices_.gap_behind(block.first) == block || !contains(block)) return;
      const bool lost = slices_.is_lost(block);
      if (!lost && set().next_run(block, block.first) == block) return;
      set().erase(block);
      if (!lost) slices_.free(block.first);
    });
    recount();
  }

 private:
  friend struct spanalloc::HeapsInspectionAccess;

  coalescing::UnitSet& set() const { return slices_.manager.extra_set(Slices::kDecommitted); }

  // In a placed range a block that is unmapped is anybody's: a fork's child in which its thread
  // vanished must know whether it was, and unmap it no second time. So a mark is written into it
  // first, before the set has it. Only if that can still be read the block is ours.
  std::uint64_t* mark_in(Block block) const {
    return static_cast<std::uint64_t*>(slices_.range.address(block.first));
  }
  static std::uint64_t mark_at(const std::uint64_t* place) {
    return address_of(place) * 0x9E3779B97F4A7C15u + 1;
  }
  void mark(Block block) const {
    if (slices_.range.reserved()) return;
    std::uint64_t* const place = mark_in(block);
    unpoison(place, sizeof *place);
    *place = mark_at(place);
  }
  // (The block may be one that reads as zero.)
  void unmark(Block block) const {
    if (!slices_.range.reserved()) *mark_in(block) = 0;
  }
  bool is_still_mapped(Block block) const {
    if (slices_.range.reserved()) return true;
    const std::uint64_t* const place = mark_in(block);
    return Calls::can_be_read(reinterpret_cast<const std::uint32_t*>(place)) &&
           *place == mark_at(place);
  }

  // Adds a block, decommitted here if it `is_mapped`. Release, twice: a fork's child that finds it
  // in decommitting_ decommits it; a child that does not finds all done, or nothing.
  bool add(Block block, bool is_mapped) {
    if (ranges_ >= PagesConfig::kMostDecommitted) return false;
    // In a fork's child before recovery, which needs the word: a thread of the parent's was
    // decommitting the block that it names.
    if (is_mapped && decommitting_.load_relaxed() != 0) return false;
    if (count() == 0) least_ = {};
    const bool least_is_known = count() == 0 || least_;
    // First of all: a fork's child must not use the block as memory.
    if (is_mapped) decommitting_.store_release(block.first);
    count_.fetch_add_relaxed(block.size);
    if (is_mapped) mark(block);
    set().insert(block);
    ++ranges_;
    if (is_mapped) {
      const bool decommitted = slices_.range.decommit(block);
      // While the set has a block that is mapped the word names it, and the mark is in it.
      if (!decommitted) {
        remove(block);
        unmark(block);
      }
      decommitting_.store_release(0);
      if (!decommitted) return false;
      slices_.forget_advice(block);
    }
    if (least_is_known && (!least_ || block.size < least_.size)) least_ = block;
    slices_.no_room.memory_came_back();
    return true;
  }

  // Whether it is a block, decommitted, and not half decommitted (in a fork's child before
  // recovery).
  bool is_whole(Block decommitted) const {
    return decommitted && set().any({decommitted.first, 1}) &&
           slices_.manager.size_of(decommitted.first) == decommitted.size;
  }
  // In a fork's child whose interrupted call goes on, before recovery: a thread of the parent was
  // decommitting it, and whether it is mapped the recovery finds out.
  bool is_half_decommitted(Block decommitted) const {
    return decommitting_.load_relaxed() == decommitted.first;
  }
  bool could_recommit(Block decommitted) {
    if (!is_whole(decommitted) || is_half_decommitted(decommitted) ||
        slices_.range.recommit(decommitted) != kYes)
      return false;
    if (!slices_.range.decommit(decommitted)) book_recommitted(decommitted);
    return true;
  }
  // A small range under a foreign mapping is lost at once: else the kernel would
  // be asked for it each time.
  os::Placed recommit(Block decommitted) {
    os::Placed placed = slices_.range.recommit(decommitted);
    if (placed == kTaken && has_grown_over(decommitted)) {
      grown.unmap();
      placed = has_grown_over(decommitted) ? kRefused : slices_.range.recommit(decommitted);
    }
    if (placed == kYes) book_recommitted(decommitted);
    if (placed == kTaken && decommitted.size <= PagesConfig::kLostIfTaken / Slices::kSlice) {
      slices_.mark_lost(decommitted);
      remove(decommitted);
    }
    return placed;
  }
  bool has_grown_over(Block block) const {
    return grown.overlap(address_of(slices_.range.address(block.first)),
                         address_of(slices_.range.address(block.end())));
  }
  void book_recommitted(Block block) {
    remove(block);
    slices_.free(block.first, true);
  }
  // If one range alone has room, only its end is recommitted, as much as is worth the call.
  Block end_with_room(Block range, std::size_t count, std::size_t alignment) {
    const std::size_t wanted = max_of(count, kWorthRecommitting);
    if (range.size <= wanted) return range;
    // Alignments do not count from slice 0: the last aligned unit is less than an
    // alignment before the end.
    const std::size_t latest = range.end() - wanted;
    const std::size_t start =
        slices_.manager.aligned(latest - min_of(latest, alignment - 1), alignment);
    if (start <= range.first || start > latest ||
        !slices_.manager.split(range.first, start - range.first)) {
      return range;
    }
    ++ranges_;
    return {start, range.end() - start};
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
      const std::size_t limit = slices_.manager.limit();
      const Block gap = slices_.gap_behind(from);
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
      size = slices_.manager.size_of(first);
      if (size == 0) return;  // half decommitted, in a fork's child before recovery
      if (!visit(Block{first, size})) return;
    }
  }

  static constexpr std::size_t kWorthRecommitting =
      PagesConfig::kWorthDecommitting / Slices::kSlice;

  Slices& slices_;
  Block least_{};                        // no decommitted range is smaller; no block: not known
  Atomic<std::size_t> count_{0};         // slices
  std::size_t ranges_ = 0;               // under the arena's lock
  Atomic<std::size_t> decommitting_{0};  // first slice of the range being decommitted; 0: none
};

}  // namespace spanalloc
