// An arena: hands out ranges of slices from one address range. A coalescing manager
// (coalescing/manager.hpp) merges what is given back, so that memory freed at one size
// serves every other size.
//
//   take             lock-free, by the manager: from the free slices
//   take_growing     under the lock: recommits decommitted ranges with room, or else opens new
//                    addresses
//   give             by the manager: merges with free neighbours; the range is dirty until it is
//                    purged
//   resize_in_place  by the manager
//   move_out         makes the pages a mapping of their own, outside the arena
//   purge            gives pages of free slices back to the kernel, by decay or on demand
//   decommit_free    when memory is out: takes the charge off free ranges, too
//
// A range is a run of slices (the manager's units). Its parts, in arena/, depend downwards:
//
//   ArenaGrowth        opens addresses     -> MemoryLimit, ManagerTables, HugePageAdvice
//   MovedPages         pages that leave
//   DecommittedRanges  free ranges without charge -> GrownMappings
//   ArenaSlices        address range, manager, lock: whose each slice is
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/assert.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "base/inspection_access.hpp"
#include "os/os.hpp"
#include "pages/arena/decommitted_ranges.hpp"
#include "pages/arena/growth.hpp"
#include "pages/arena/moved_pages.hpp"
#include "pages/arena/slices.hpp"
#include "pages/config.hpp"
#include "pages/content_sample.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc {

/// Thread-safe but for start() and destroy(); constant-initialised. Neither reads nor sets errno.
/// `Calls`: the kernel; tests replace it to make it refuse.
template <unsigned kSliceBits, HugePages kHugePages, class Calls = PageCalls,
          std::size_t kMaxStep = PagesConfig::kMostStep>
class CoalescingArena {
  using Slices = ArenaSlices<kSliceBits, kHugePages, Calls, kMaxStep>;
  using Block = coalescing::Block;
  using Search = coalescing::Search;

 public:
  using Reuse = coalescing::Reuse;
  static constexpr std::size_t kSlice = Slices::kSlice;

  /// A range; first == 0: none. `zero`: all its bytes are zero.
  struct Taken {
    std::uint32_t first = 0;
    bool zero = false;
  };

  /// Claims address range and tables. False: no memory even for the tables. One
  /// caller at a time; repeatable.
  SPANALLOC_COLD bool start(std::size_t alignment) {
    slices_.note_process();
    return slices_.range.start(alignment) && growth_.tables.start();
  }

  /// Gives everything back to the kernel, for good, while nobody uses the
  /// arena or anything from it.
  void destroy() {
    SPANALLOC_ASSERT(books_add_up());
    decommitted_.grown.unmap();
    std::size_t end_of_lost = 0;
    slices_.range.destroy([&](std::size_t slice) {
      const Block block{slice, 1};
      // Opened, but never booked: nobody has had it, and the sets may have no row for it.
      if (slice >= limit()) return kSlice;
      if (slice >= end_of_lost && slices_.is_lost(block))
        end_of_lost = slice + max_of(count_of(static_cast<std::uint32_t>(slice)), 1);
      return slice < end_of_lost || decommitted_.contains(block) ? std::size_t{0} : kSlice;
    });
    growth_.tables.destroy();
  }

  HugePageUse huge_page_use() const { return slices_.range.huge_page_use(); }
  /// Where the starter of the arena places further tables, beside the arena's.
  TableRegion& table_region() { return growth_.tables.region(); }

  std::uintptr_t base() const { return slices_.range.base(); }
  std::size_t capacity() const { return slices_.range.capacity(); }
  /// Slices below this number have been opened or lost. The engine's side
  /// tables must reach this far.
  std::size_t limit() const { return slices_.manager.limit(); }

  /// Takes `count` free slices at a multiple of `alignment` slices (a power of two). first == 0: a
  /// quick search has found none. Lock-free.
  Taken take(std::size_t count, std::size_t alignment, Reuse reuse = Reuse::kDirtyFirst) {
    return as_taken(slices_.manager.try_allocate(count, alignment, reuse));
  }

  /// What take_growing() does when the kernel refuses to open more. kGrow: nothing. kSearch:
  /// searches all free blocks, then recommits all decommitted ranges. kDecommit: between the two
  /// decommits all that is free (decommit_free), so that the kernel may grant more.
  enum class Effort { kGrow, kSearch, kDecommit };

  /// To be called after take() has failed. Finds room or makes it, and takes it. Calls
  /// `before_use(end)` before slices up to `end` can be handed out for the first time; the answer
  /// says how far the caller's own table reaches (TableReach), and slices beyond cannot be handed
  /// out. first == 0: memory or address space is out; with Effort::kGrow: a quick search found
  /// nothing, and the kernel refused more.
  template <class BeforeUse>
  SPANALLOC_COLD Taken take_growing(std::size_t count, std::size_t alignment, BeforeUse before_use,
                                    Effort effort = Effort::kSearch) {
    if (count == 0 || count >= capacity() || alignment >= capacity()) return {};
    if (limit() == 0) return {};  // a start was refused half-way: there are no tables
    LockGuard guard(slices_.grow_lock);
    RefusalMemo& refused = slices_.refused;
    bool has_decommitted = false;
    DecommitPolicy::Case decommitting;
    std::size_t recommit_at_most = 1;
    for (;;) {
      // Other threads may have grown the arena or given memory back meanwhile. A search of every
      // block waits until the kernel has refused: among many too small blocks it takes long, and
      // all growing threads need this lock. The proof that nothing is free waits, too: it needs a
      // quiet moment, and while many threads take and give, growth would stop. A range known to be
      // absent is not searched for again.
      const bool absent = refused.known_absent(count, alignment);
      Taken taken = absent ? Taken{} : look_for(count, alignment, Search::kThorough);
      if (taken.first != 0) return taken;
      std::optional<bool> recommits;
      const auto may_recommit = [&] {
        if (!recommits) recommits = decommitted_.may_recommit();
        return *recommits;
      };
      // (A memo of no room only decides which memory is asked for first.)
      if (!slices_.no_room.known_absent(count, alignment) && may_recommit() &&
          decommitted_.recommit_run_for(count, alignment))
        continue;
      if (growth_.open_more(count, alignment, before_use)) {
        taken = as_taken(slices_.manager.try_allocate_last(count, alignment));
        if (taken.first != 0) return taken;
        continue;
      }
      if (effort == Effort::kGrow) return {};
      if (moved_.has_unmapped() && moved_.map_unmapped()) continue;
      if (!absent) taken = look_for(count, alignment, Search::kExhaustive);
      if (taken.first != 0) return taken;
      if (effort == Effort::kDecommit && !has_decommitted &&
          decommitting_may_help(decommitting, count, alignment)) {
        has_decommitted = true;
        if (decommitted_.decommit_free(growth_.has_space_behind(count, alignment)) != 0) {
          // Quicker than to look through all that is decommitted.
          growth_.open_more(count, alignment, before_use);
          continue;
        }
      }
      // Recommits the other ranges only now: they take memory that the new range needs. But
      // together they may be large enough; or a few of them make the mappings fewer, of which the
      // kernel allows only so many.
      if (may_recommit() && count <= decommitted_.count() + slices_.manager.free_units() &&
          decommitted_.recommit_runs(recommit_at_most)) {
        recommit_at_most *= 2;
        continue;
      }
      if (!refused.known_absent(count, alignment)) {
        refused.arm();
        taken = as_taken(slices_.manager.allocate(count, alignment));
        if (taken.first == 0) refused.note(count, alignment);
      }
      // It was the kernel's fault only with space behind the range.
      if (taken.first == 0 && has_decommitted)
        slices_.policy.note_vain(os::now_ms(), decommitting,
                                 growth_.has_space_behind(count, alignment));
      return taken;
    }
  }

  /// Whether a search of everything has found no such range, or no smaller one, since memory was
  /// last given back. A hint; take_growing() knows.
  bool was_refused(std::size_t count, std::size_t alignment) const {
    return alignment < capacity() && slices_.refused.known_absent(count, alignment);
  }

  /// Makes the last range, at `first`, `count` slices long by opening new address space behind it.
  /// False: it is not the last one, or the kernel refuses.
  template <class BeforeUse>
  SPANALLOC_COLD bool grow_at_end(std::uint32_t first, std::size_t count, BeforeUse before_use) {
    LockGuard guard(slices_.grow_lock);
    return growth_.grow_at_end(first, count, before_use);
  }

  /// Gives back a whole range, as take() returned it or resizing made it.
  /// `zero`: all its bytes are zero.
  void give(std::uint32_t first, bool zero = false) {
    if (SPANALLOC_UNLIKELY(is_at_limit())) return growth_.limit.decommit_or_free(first, zero);
    slices_.free(first, zero);
  }

  /// Slices that are held: taken, or free and dirty. Exact while no call is under way.
  std::size_t held() const {
    const std::size_t all = slices_.in_use_or_dirty();
    // In use for the manager alone. (Slice 0, too.)
    return all - min_of(decommitted_.count() + slices_.lost() + 1, all);
  }

  /// Of these the free ones, while the soft limit is watched: arena/slices.hpp.
  std::size_t dirty_free() const { return slices_.dirty_free(); }
  /// Counts these, if they were not counted yet. One caller at a time.
  SPANALLOC_COLD void count_dirty_free() {
    if (!slices_.has_counted_dirty()) slices_.count_dirty();
  }

  std::size_t count_of(std::uint32_t first) const { return slices_.manager.size_of(first); }

  /// Dirty slices of a range just taken, or of the slices that a range has just gained.
  std::size_t dirty_slices(std::size_t first, std::size_t count) const {
    return slices_.manager.dirty_units({first, count});
  }

  /// Makes the range at `first` `count` slices long in place. False: its neighbour
  /// is not free, or too small.
  bool resize_in_place(std::uint32_t first, std::size_t count) {
    if (!slices_.manager.grow(first, count)) return false;
    slices_.memory_came_back();  // if it was made shorter
    return true;
  }

  struct Ignore {
    void operator()(void*) const {}
  };
  /// Makes the pages of the taken range at `first` (`count` slices) a mapping of their own of
  /// `bytes` (more than the range has) at an address that the kernel chooses; the bytes behind the
  /// old ones are zero. Refuses while memory is locked: the fresh pages would be resident. At limit
  /// a fresh range would be decommitted as soon as the caller gives it back: none is made.
  /// Calls moved(to) when the pages are at `to`, before anybody can take the range that was theirs.
  template <class Moved = Ignore>
  SPANALLOC_COLD MovedOut move_out(std::uint32_t first, std::size_t count, std::size_t bytes,
                                   Moved moved = {}) {
    SPANALLOC_ASSERT(count_of(first) == count && bytes > count << kSliceBits);
    if (slices_.range.is_locked()) return {};
    return moved_.move_out({first, count}, bytes, !is_at_limit(), moved);
  }

  /// How much of a taken range of many slices holds anything: see ContentSample.
  SPANALLOC_COLD std::size_t sample_used(std::uint32_t first, std::size_t count,
                                         std::size_t enough) {
    return sample_.used(slices_.range.address(first), count, kSlice, enough);
  }

  // --- Returning memory --------------------------------------------------------------------------

  /// Purges a taken range: its bytes are zero then. False: refused; some of its bytes may stay.
  SPANALLOC_COLD bool purge_taken(std::uint32_t first, std::size_t count) {
    return slices_.purge_part({first, count}, slices_.range.address(first), count * kSlice);
  }
  /// Purges a taken range that nobody uses any more, whose owner is about to give it.
  SPANALLOC_COLD bool purge_unused(std::uint32_t first, std::size_t count) {
    slices_.range.begin_purging();
    return slices_.purge({first, count});
  }
  /// Purges pages of the range of `count` slices at `first`, which the caller has.
  /// True: they are zero now.
  bool purge_part(std::uint32_t first, std::size_t count, void* address, std::size_t bytes) {
    return slices_.purge_part({first, count}, address, bytes);
  }
  /// Purges dirty free slices, at most `at_most`; with `only_aged` only those that have been free
  /// since before the last age(). Returns how many slices it has purged.
  std::size_t purge(bool only_aged, std::size_t at_most = SIZE_MAX) {
    slices_.range.begin_purging();
    return slices_.manager.purge(only_aged, at_most);
  }
  /// Purges the largest free ranges first, whatever their age. Returns slices.
  std::size_t purge_largest(std::size_t at_most) {
    slices_.range.begin_purging();
    return slices_.manager.purge_largest(at_most);
  }
  /// Whether some thread holds a range just now, so that a purge may not find it.
  bool someone_holds() const { return slices_.manager.someone_holds(); }
  /// Begins a decay epoch. Returns how many slices are free and dirty.
  std::size_t age() {
    const std::size_t dirty = slices_.manager.age();
    if (slices_.shortage.is_watched() && !slices_.has_counted_dirty()) slices_.count_dirty();
    growth_.pass_epoch();
    return dirty;
  }

  /// Whether the process may have no more memory (arena/memory_limit.hpp). As long as this is so,
  /// the arena decommits what is given back.
  bool is_at_limit() const { return growth_.limit.is_at_limit(); }
  /// Whether for that or another reason (arena/shortage.hpp) callers should keep no free memory of
  /// their own.
  bool is_short() const { return slices_.shortage.is_any(); }
  Shortage& shortage() { return slices_.shortage; }
  /// To be called now and then. Under a limit decommits large free ranges before the
  /// limit refuses something.
  SPANALLOC_COLD void look_at_limit() {
    if (!growth_.limit.may_stand() && !moved_.has_unmapped()) return;
    LockGuard guard(slices_.grow_lock);
    growth_.limit.look();
    moved_.map_unmapped();
    growth_.limit.decommit_large();
  }

  /// When memory is out, for a table beside the arena or for others: decommits everything that
  /// is free. Under a limit the arena is at limit from then on. take_growing() recommits.
  /// Returns the bytes decommitted.
  SPANALLOC_COLD std::size_t decommit_free() {
    LockGuard guard(slices_.grow_lock);
    growth_.limit.blame_known_limit();
    return decommitted_.decommit_free(false) << kSliceBits;
  }

  /// Bytes of slices from `first` on that are in memory; 0 where the kernel does not tell. A system
  /// call that libc's malloc does not make.
  SPANALLOC_COLD std::size_t resident_bytes(std::size_t first, std::size_t count) const {
    return Calls::resident_pages(slices_.range.address(first), count * kSlice) * os::page_size();
  }

  // --- Walk and statistics -----------------------------------------------------------------------

  /// Calls visit(first, count, free) for ranges in use and free ones, in address order: not a
  /// snapshot (see CoalescingManager::walk). Leaves out decommitted and lost ranges.
  template <class Visit>
  void walk(Visit visit) const {
    slices_.manager.walk([&](Block block, coalescing::BlockState state, bool) {
      const bool free = state != coalescing::BlockState::kUsed;
      if (block.first == 0 || (!free && (slices_.is_lost(block) || decommitted_.contains(block))))
        return;
      visit(static_cast<std::uint32_t>(block.first), block.size, free);
    });
  }

  SPANALLOC_COLD ArenaStatistics statistics() {
    LockGuard guard(slices_.grow_lock);
    const std::size_t decommitted = decommitted_.count() << kSliceBits;
    const std::size_t opened = slices_.range.opened_bytes() - decommitted;
    ArenaStatistics out;
    out.reserved_bytes = slices_.range.reserved() ? slices_.range.reserved_bytes() : opened;
    out.opened_bytes = opened;
    out.lost_bytes = slices_.lost() << kSliceBits;
    out.decommitted_bytes = decommitted;
    out.table_bytes = growth_.tables.bytes_in_use();
    out.growths = growth_.steps();
    out.purges = slices_.purges.load_relaxed();
    out.purged_bytes = slices_.purged_bytes.load_relaxed();
    return out;
  }

  // --- Fork --------------------------------------------------------------------------------------
  //
  // A fork takes no lock. In the child the calling thread may first finish a call that the fork
  // interrupted. Until recover_lock() and, if another thread was inside, recover_in_child() have
  // run, it waits for nothing that vanished threads have claimed.

  /// Whether a vanished thread was inside the arena. (The calling thread is not.)
  bool someone_is_inside() const {
    return slices_.manager.someone_holds() || slices_.grow_lock.owner_died();
  }

  /// Repairs the lock and counts anew. A thread that opens address space records it only
  /// afterwards, and opening it once more does no harm. (In a placed range, memory mapped but not
  /// recorded looks like a foreign mapping, and is skipped.) A thread that decommits records that
  /// before: see recover_in_child().
  SPANALLOC_COLD void recover_lock() {
    slices_.note_process();
    decommitted_.recount();
    slices_.memory_came_back();
    if (slices_.grow_lock.owner_died()) slices_.grow_lock.reset();
  }

  /// Frees ranges that vanished threads had claimed but not taken, or half given back. What they
  /// had taken stays taken. Completes the decommit of a range that one of them was decommitting.
  SPANALLOC_COLD void recover_in_child() {
    decommitted_.recover_in_child();
    slices_.count_lost_anew();
    slices_.memory_came_back();
  }

 private:
  friend struct CoalescingArenaTestAccess;
  friend struct spanalloc::InspectionAccess;
  friend struct spanalloc::HeapsInspectionAccess;

  // The equation of arena/slices.hpp, at rest. (The manager's blocks tile what is opened:
  // mapper.hpp, (3).)
  bool books_add_up() const {
    std::size_t all = 0;
    std::size_t decommitted = 0;
    std::size_t lost = 0;
    slices_.manager.walk([&](Block block, coalescing::BlockState state, bool) {
      all += block.size;
      if (state != coalescing::BlockState::kUsed) return;
      if (slices_.is_lost(block)) {
        lost += block.size;
      } else if (decommitted_.contains(block)) {
        decommitted += block.size;
      }
    });
    return all == limit() && decommitted == decommitted_.count() && lost == slices_.lost() &&
           slices_.manager.held_units() == slices_.in_use_or_dirty() &&
           (!slices_.has_counted_dirty() ||
            slices_.manager.dirty_free_units() == slices_.dirty_free());
  }

  // Searches again, a few times, while other threads hold free blocks: one of them may be about to
  // publish the block that is wanted, and memory opened instead would stay unused.
  Taken look_for(std::size_t count, std::size_t alignment, Search search) {
    for (unsigned look = 0;; ++look) {
      const auto before = slices_.manager.holds();
      const Taken taken =
          as_taken(slices_.manager.try_allocate(count, alignment, Reuse::kDirtyFirst, search));
      if (taken.first != 0 || look == PagesConfig::kLooksAgain ||
          Slices::Manager::Registry::quiet_between(before, slices_.manager.holds()))
        return taken;
    }
  }
  Taken as_taken(const coalescing::Allocation& got) {
    // No page of this large object is touched yet, and the program may touch few of them.
    if (SPANALLOC_UNLIKELY(got.block.size > Slices::kHugePage) && got.zero)
      slices_.stop_advice(got.block);
    return {static_cast<std::uint32_t>(got.block.first), got.zero};
  }

  // Whether decommitting everything that is free could make room (decommit_policy.hpp).
  SPANALLOC_COLD bool decommitting_may_help(DecommitPolicy::Case& a_case, std::size_t count,
                                            std::size_t alignment) {
    DecommitPolicy& policy = slices_.policy;
    const bool behind = growth_.has_space_behind(count, alignment);
    const std::size_t end = growth_.place_behind(alignment) + count;
    a_case.needed = !behind ? count : end > limit() ? end - limit() : 1;
    const std::uint64_t now = os::now_ms();
    if (policy.is_denied(now, a_case.needed)) return false;
    policy.deny(now, a_case.needed);
    bool may_help = behind || decommitted_.count() != 0;
    if (may_help) {
      a_case.free = slices_.manager.free_units();
      const std::size_t decommits =
          a_case.free - (behind ? min_of(slices_.manager.free_tail(), a_case.free) : 0);
      may_help = (a_case.needed <= decommits ||
                  Calls::would_grant((a_case.needed - decommits) << kSliceBits)) &&
                 !(behind && policy.was_vain(now, a_case));
    }
    // Free blocks that other threads hold now may be enough: then nothing is denied.
    if (may_help || slices_.manager.someone_holds()) policy.allow();
    return may_help;
  }

  Slices slices_;
  DecommittedRanges<Slices> decommitted_{slices_};
  MovedPages<Slices> moved_{slices_, decommitted_};
  ArenaGrowth<Slices> growth_{slices_, decommitted_};
  ContentSample<Calls> sample_;
};

}  // namespace spanalloc
