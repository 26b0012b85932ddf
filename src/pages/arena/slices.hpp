// The slices of an arena: where they are, and whose.
//
// At rest: opened = 1 + taken + free + decommitted + lost
//   taken        handed out, and not given back
//   free         the manager's
//   decommitted  in their set; in use for the manager; no memory and no charge
//                (decommitted_ranges.hpp)
//   lost         first slice in its set; in use for the manager for ever: foreign mappings (also
//                over decommitted ranges), slices without metadata (a gap), a range that is just
//                being moved out
// Slice 0 is never handed out: number 0 means "none".
//
// Of these are *held*, because they may be in memory: what is taken, and what is free and dirty.
// The manager counts them as they come and go, with all that is in use for it. While the soft limit
// is watched, those that are free and dirty are counted by themselves, too.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "base/inspection_access.hpp"
#include "os/os.hpp"
#include "pages/address_range.hpp"
#include "pages/arena/decommit_policy.hpp"
#include "pages/arena/refusal_memo.hpp"
#include "pages/arena/shortage.hpp"
#include "pages/coalescing/manager.hpp"
#include "pages/config.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc {

struct CoalescingArenaTestAccess;  // defined by unit tests only

template <unsigned kSliceBits, HugePages kHugePages, class Kernel, std::size_t kMaxStep>
class ArenaSlices {
 public:
  using Block = coalescing::Block;
  using Calls = Kernel;
  using Range = AddressRange<kSliceBits, kHugePages, kMaxStep, 1, Claim::kPlace, Calls>;
  // Sets beside the manager's. kDecommitted is changed under the lock. kAdvised: slices for which
  // this arena has advised huge pages.
  enum Set : unsigned { kDecommitted, kLost, kAdvised, kSets };
  using Manager = coalescing::CoalescingManager<ArenaSlices, 16, 6, kSets>;
  static constexpr std::size_t kSlice = Range::kSlice;
  static constexpr std::size_t kHugePage = max_of(PagesConfig::kHugePage / kSlice, 1);

  Range range;  // base and capacity: constant after start(); the rest under the lock
  Manager manager{*this};
  // For opening and decommitting. On a line of its own: growing threads spin on it while others
  // take and give.
  alignas(kCacheLine) WakingLock grow_lock;
  // What was refused since memory last came back. Written under the lock, but for
  // memory_came_back(). refused: by a search of everything; no_room: by one of the runs of
  // decommitted ranges.
  alignas(kCacheLine) RefusalMemo refused;
  RefusalMemo no_room;
  DecommitPolicy policy;
  /// Calls that have given pages back, and how much in all. Relaxed: for statistics only.
  Atomic<std::size_t> purges{0};
  Atomic<std::size_t> purged_bytes{0};
  Shortage shortage;

  /// In the process that runs now: what the manager waits for will come.
  void note_process() { generation_ = SpinLock::generation(); }

  /// Whether any of a block's slices is in a set.
  bool has(Set set, Block block) const { return manager.extra_set(set).any(block); }

  // --- For the manager ---

  bool pause() {
    os::sleep_briefly();  // a yield is not enough: the other thread may have a lower priority
    SpinLock::look_for_fork();
    return generation_ == SpinLock::generation();
  }
  /// Of units that nobody uses; for the owner of a range that it is about to give, too.
  bool purge(Block run) {
    stop_advice(run);
    const std::size_t bytes = run.size * kSlice;
    return note_purged(bytes, range.purge_unused(range.address(run.first), bytes));
  }
  /// Of pages in a range that somebody has.
  bool purge_part(Block of, void* address, std::size_t bytes) {
    stop_advice(of);
    return note_purged(bytes, Calls::purge(address, bytes));
  }

  void now_held(std::size_t slices) { in_use_or_dirty_.fetch_add_relaxed(slices); }
  void now_clean(std::size_t slices) { in_use_or_dirty_.fetch_sub_relaxed(slices); }
  void held_is(std::size_t slices) { in_use_or_dirty_.store_relaxed(slices); }
  void dirty_is_free(std::size_t slices) {
    if (SPANALLOC_UNLIKELY(shortage.is_watched())) dirty_free_.fetch_add_relaxed(slices);
  }
  void dirty_has_left(std::size_t slices) {
    if (SPANALLOC_UNLIKELY(shortage.is_watched())) dirty_free_.fetch_sub_relaxed(slices);
  }
  void dirty_free_is(std::size_t slices) { dirty_free_.store_relaxed(slices); }

  /// Slices that are in use for the manager, or free and dirty. Relaxed: nothing is read by the
  /// count. It never falls below 0, because a slice ceases to count after whoever made it count
  /// handed it on, which orders the two.
  std::size_t in_use_or_dirty() const { return in_use_or_dirty_.load_relaxed(); }

  /// While the soft limit is watched: slices that are free and dirty. Before the first count has
  /// succeeded an estimate.
  std::size_t dirty_free() const {
    const std::size_t count = dirty_free_.load_relaxed();
    return static_cast<std::ptrdiff_t>(count) < 0 ? 0 : count;
  }
  /// Counts the slices that are free and dirty, after the flag was set that has them counted as
  /// they come and go. Takes time in proportion to the arena's blocks. It has succeeded if nobody
  /// frees or takes any meanwhile; who calls is one at a time, and tries again later.
  SPANALLOC_COLD void count_dirty() {
    const auto before = manager.holds();
    const std::size_t counted = dirty_free_.load_relaxed();
    const std::size_t dirty = manager.dirty_free_units();
    // A difference: what others have changed since then stays counted.
    dirty_free_.fetch_add_relaxed(dirty - counted);
    has_counted_dirty_ = Manager::Registry::quiet_between(before, manager.holds());
  }
  bool has_counted_dirty() const { return has_counted_dirty_; }

  // --- What comes back ---

  void free(std::size_t first, bool zero = false) {
    manager.free(first, zero);
    memory_came_back();
  }
  /// After a range has been given back or recommitted.
  void memory_came_back() {
    refused.memory_came_back();
    no_room.memory_came_back();
    policy.memory_came_back();
  }

  // --- What is lost ---

  std::size_t lost() const { return lost_.load_relaxed(); }
  bool is_lost(Block used) const { return has(kLost, {used.first, 1}); }
  /// Makes slices nobody's for ever. They are in the set before anybody can see them in use.
  SPANALLOC_COLD void mark_lost(Block block) {
    manager.extra_set(kLost).insert({block.first, 1});
    lost_.fetch_add_relaxed(block.size);
  }
  /// Undoes mark_lost() for the block's owner, while nobody else knows of it.
  void unmark_lost(Block block) {
    forget_lost_mark(block.first);
    lost_.fetch_sub_relaxed(block.size);
  }
  /// A vanished thread may have been about to lose what begins there.
  void forget_lost_mark(std::size_t first) { manager.extra_set(kLost).erase({first, 1}); }
  /// In a fork's child: a vanished thread may have changed the set and not the count.
  SPANALLOC_COLD void count_lost_anew() {
    std::size_t lost = 0;
    for_used([&](Block block) { lost += is_lost(block) ? block.size : 0; });
    lost_.store_relaxed(lost);
  }
  template <class Visit>
  void for_used(Visit visit) const {
    manager.walk([&](Block block, coalescing::BlockState state, bool) {
      if (state == coalescing::BlockState::kUsed) visit(block);
    });
  }

  bool has_room_for_gap() const { return gaps_ != PagesConfig::kMostGaps; }
  /// Adds slices without metadata behind the last ones.
  bool add_gap(Block gap) {
    gap_[gaps_++] = gap;
    mark_lost(gap);
    return manager.extend_used(gap.size);
  }
  /// The first gap whose end is behind `slice`.
  Block gap_behind(std::size_t slice) const {
    for (unsigned i = 0; i < gaps_; ++i) {
      if (gap_[i].end() > slice) return gap_[i];
    }
    return {};
  }

  // --- Huge pages ---

  /// Not after slices were lost: the advice would also reach a foreign mapping that lies between
  /// ours.
  bool may_advise() const { return range.is_advised_by_owner() && lost() == 0; }
  /// Whether nearly all of an open block is in memory.
  bool is_dense(Block block) const {
    const std::size_t bytes = block.size * kSlice;
    return Calls::resident_pages(range.address(block.first), bytes) * os::page_size() * 1000 >=
               bytes * PagesConfig::kDensePermille &&
           range.kernel_tells_resident_pages();
  }
  /// Under the lock. The set first: a thread that takes advice back meanwhile finds the block
  /// there. If it does so before the kernel is told, the advice comes too late: that costs a
  /// chance, or some memory.
  void advise(Block block) {
    manager.extra_set(kAdvised).insert(block);
    range.prefer_huge_pages(range.address(block.first), block.size * kSlice);
  }
  /// What is there now is as the kernel likes it.
  void forget_advice(Block block) { manager.extra_set(kAdvised).erase(block); }
  bool was_often_taken_back() const {
    return times_taken_back_.load_relaxed() >= PagesConfig::kOftenTakenBack;
  }
  /// By the block's owner. Takes advice back for each huge page that the block has a part of: the
  /// kernel shall make none any more, nor from the rest of those pages. After many calls each takes
  /// back more at a time, and decay epochs advise no more. (Pieces count from address 0, as huge
  /// pages do, so each has whole ones; the arena may begin within.)
  void stop_advice(Block block) {
    if (SPANALLOC_LIKELY(!has(kAdvised, block))) return;
    const std::size_t unit =
        was_often_taken_back() ? kHugePage * PagesConfig::kTakenBackAtOnce : kHugePage;
    std::size_t first = max_of(manager.aligned(block.first + 1, unit), unit + 1) - unit;
    std::size_t end = min_of(manager.aligned(block.end(), unit), manager.limit());
    for (unsigned i = 0; i < gaps_; ++i) {  // gaps have no metadata
      if (gap_[i].end() <= block.first) first = max_of(first, gap_[i].end());
      if (gap_[i].first >= block.end()) end = min_of(end, gap_[i].first);
    }
    times_taken_back_.fetch_add_relaxed(1);  // relaxed: the bound need not be exact
    const Block all{first, end - first};
    for (Block run; (run = manager.extra_set(kAdvised).next_run(all, first)).size != 0;) {
      forget_advice(run);
      range.forbid_huge_pages(range.address(run.first), run.size * kSlice);
    }
  }

 private:
  friend struct CoalescingArenaTestAccess;
  friend struct spanalloc::HeapsInspectionAccess;

  bool note_purged(std::size_t bytes, bool purged) {
    if (!purged) return false;
    purges.fetch_add_relaxed(1);
    purged_bytes.fetch_add_relaxed(bytes);
    return true;
  }

  Atomic<std::size_t> in_use_or_dirty_{0};
  Atomic<std::size_t> dirty_free_{0};
  bool has_counted_dirty_ = false;
  Atomic<std::size_t> lost_{0};
  unsigned gaps_ = 0;                  // under the lock; written before the limit passes the gap
  Block gap_[PagesConfig::kMostGaps];  // ascending
  Atomic<std::uint32_t> times_taken_back_{0};
  std::uint16_t generation_ = 0;  // of the process that it was repaired in
};

}  // namespace spanalloc
