// The arena as a coalescing manager over an address range: what becomes free at one size serves every other.
//
//   take ---- the manager (lock-free), from what is open
//   grow ---- under grow_lock_: what was decommitted is opened again if it is large enough, else new address
//   space give ---- the manager: merged with its neighbours, warm until it is purged resize -- in place (the
//   manager); move_out -- the pages become a mapping of their own, outside purge --- by decay or on demand;
//   decommit_free -- when memory is out: free ranges lose their charge, too
//
// A range is a run of slices (the manager's units); number 0 means "none": slice 0 is never handed out.
// The manager's tables (index, mapper and sets of units) grow with the arena, each in a place of its own
// (guarded_table.hpp). Where something foreign is in a table's way the slices that would have their entries
// there are lost: they are one block in use, of which nobody touches more than the first entry and the last.
//
// Who holds what, as equations at rest, in slices:
//   opened = 1 + taken + free + decommitted + lost        taken: handed out by take() and not given back
//   decommitted: in its set, in use for the manager, no memory and no charge
//   lost:   its first slice in its set, in use for the manager for ever: foreign mappings (of decommitted
//           ranges, too), what has no metadata (a gap); what is just being moved out
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "os/os.hpp"
#include "pages/address_range.hpp"
#include "pages/coalescing/manager.hpp"
#include "pages/decommit_policy.hpp"
#include "pages/decommitted_ranges.hpp"
#include "pages/guarded_table.hpp"
#include "pages/huge_page_advice.hpp"
#include "pages/refusal_memo.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc {

struct CoalescingArenaTestAccess;  // defined by unit tests only

/// Thread-safe but for start() and destroy(); zero-initialisable. Neither reads nor sets errno.
/// `Calls`: the kernel; tests make it refuse.
template <unsigned kSliceBits, HugePages kHugePages, class Calls = PageCalls,
          std::size_t kMaxStep = 16 * kMiB>
class CoalescingArena {
  using Range = AddressRange<kSliceBits, kHugePages, kMaxStep, 1, Claim::kPlace, Calls>;
  struct Environment {
    CoalescingArena* arena;
    bool pause() {
      os::sleep_briefly();  // not only yields: the other may have a lower priority
      SpinLock::look_for_fork();
      return arena->generation_ == SpinLock::generation();
    }
    bool purge(coalescing::Block run) { return arena->purge_run(run); }
  };
  struct Books {
    CoalescingArena* arena;
    void lose(coalescing::Block block) { arena->lose(block); }
    bool is_lost(coalescing::Block block) const { return arena->is_lost(block); }
    bool is_gap(coalescing::Block block) const { return arena->gap_behind(block.first) == block; }
    coalescing::Block gap_behind(std::size_t unit) const { return arena->gap_behind(unit); }
    void decommitted(coalescing::Block block) { arena->huge_set().erase(block); }
    void memory_came_back() { arena->memory_came_back(); }
    bool has_grown_over(coalescing::Block block) const { return arena->has_grown_over(block); }
    void unmap_grown() { arena->unmap_grown(); }
  };
  // Sets of slices. decommitted: changed under grow_lock_; lost: where what is lost begins; seams: see
  // move_out(); huge: of what this arena has advised huge pages for, see stop_advice().
  enum Set : unsigned { kDecommitted, kLost, kSeams, kHuge, kExtraSets };
  using Manager = coalescing::CoalescingManager<Environment, 16, 6, kExtraSets>;
  using Tables = typename Manager::Tables;
  using Advice = HugePageAdvice<kSliceBits>;
  using Decommitted = DecommittedRanges<Range, Manager, Books, Calls, kDecommitted>;

 public:
  using Reuse = coalescing::Reuse;
  static constexpr std::size_t kSlice = Range::kSlice;

  /// A range; first == 0: none. `zero`: all of it reads as zero.
  struct Taken {
    std::uint32_t first = 0;
    bool zero = false;
  };

  /// Claims the range and its tables. False: not even tables could be had. One caller at a time, repeatable.
  SPANALLOC_COLD bool start(std::size_t alignment) {
    generation_ = SpinLock::generation();
    if (!range_.start(alignment) || !start_tables()) return false;
    if (limit() != 0) return true;
    return tables_reach(1).end == 1 && manager_.extend_used(1);
  }

  /// Gives everything back to the kernel, while nobody uses the arena or anything from it; not started again.
  void destroy() {
    if (limit() == 0) {
      range_.destroy();
    } else {
      SPANALLOC_ASSERT(books_add_up());
      unmap_grown();
      std::size_t end_of_lost = 0;
      range_.destroy([&](std::size_t slice) {
        const coalescing::Block block{slice, 1};
        if (slice >= end_of_lost && is_lost(block)) end_of_lost = slice + count_of_used(slice);
        return slice < end_of_lost || decommitted_.contains(block) ? std::size_t{0} : kSlice;
      });
    }
    for (auto& table : tables_) table.destroy();
    region_.forget();
  }

  /// What SPANALLOC_THP says.
  HugePageUse huge_page_use() const { return range_.huge_page_use(); }
  /// Where the tables beside the arena's have their places, too. For who starts the arena.
  TableRegion& table_region() { return region_; }

  std::uintptr_t base() const { return range_.base(); }
  std::size_t capacity() const { return range_.capacity(); }
  /// Slices below this number have been opened or lost. Where the engine's side tables must reach.
  std::size_t limit() const { return manager_.limit(); }

  /// `count` slices at a multiple of `alignment` slices (a power of two), from what is open. first == 0:
  /// a quick look has found none. Lock-free.
  Taken take(std::size_t count, std::size_t alignment, Reuse reuse = Reuse::kDirtyFirst) {
    return as_taken(manager_.try_allocate(count, alignment, reuse));
  }

  /// What take_growing() does when the kernel refuses to open more: nothing; searches everything that is open
  /// and opens again everything that is decommitted; or decommits everything that is free (decommit_free), so
  /// that the kernel may grant more, before that.
  enum class Effort { kGrow, kSearch, kDecommit };

  /// After a failed take(): makes room, or finds that there is room again, and takes. `before_use(end)` is
  /// called before slices up to `end` can be handed out for the first time, and says how far the caller's
  /// own table reaches (TableReach): those behind it cannot be. first == 0: memory or address space is out;
  /// with Effort::kGrow, out of what is quickly found.
  template <class BeforeUse>
  SPANALLOC_COLD Taken take_growing(std::size_t count, std::size_t alignment, BeforeUse before_use,
                                    Effort effort = Effort::kSearch) {
    if (count == 0 || count >= capacity() || alignment >= capacity()) return {};
    if (limit() == 0) return {};  // a start was refused half-way: there are no tables
    LockGuard guard(grow_lock_);
    bool has_decommitted = false;
    DecommitPolicy::Case decommitting;
    std::size_t recommit_at_most = 1;
    for (;;) {
      // Others may have grown or given meanwhile. Every block is looked at only once the kernel has refused:
      // among many that are too small that would take long, under the lock that all growing threads need. And
      // that nothing is free is proved only then: to wait for a quiet moment each time would stop the growth
      // while many threads take and give. What was not there a moment ago is not looked for again.
      const bool absent = refused_.known_absent(count, alignment);
      Taken taken = absent ? Taken{} : look_for(count, alignment, coalescing::Search::kThorough);
      if (taken.first != 0) return taken;
      enum { kNotAsked, kMayRecommit, kRefuses } kernel = kNotAsked;
      const auto may_recommit = [&] {
        if (kernel == kNotAsked) kernel = decommitted_.may_recommit() ? kMayRecommit : kRefuses;
        return kernel == kMayRecommit;
      };
      const bool no_decommitted_room = decommitted_.known_without_room(count, alignment);
      if (!no_decommitted_room && may_recommit() && decommitted_.recommit_run_for(count, alignment)) continue;
      if (open_more(count, alignment, before_use)) {
        taken = as_taken(manager_.try_allocate_last(count, alignment));
        if (taken.first != 0) return taken;
        continue;
      }
      if (effort == Effort::kGrow) return {};
      if (has_unmapped() && map_unmapped()) continue;
      if (!absent) taken = look_for(count, alignment, coalescing::Search::kExhaustive);
      if (taken.first != 0) return taken;
      if (effort == Effort::kDecommit && !has_decommitted &&
          decommitting_may_help(decommitting, count, alignment)) {
        has_decommitted = true;
        if (decommitted_.decommit_free(has_space_behind(count, alignment)) != 0) {
          open_more(count, alignment,
                    before_use);  // sooner done than to look through all that is decommitted
          continue;
        }
      }
      // All the others only now: they take the memory that the new range needs. But together they may do; or
      // a few of them make the mappings fewer, of which the kernel allows only so many.
      const auto could_do = [&] { return count <= decommitted_.count() + manager_.free_units(); };
      if (may_recommit() && could_do() && decommitted_.recommit_runs(recommit_at_most)) {
        recommit_at_most *= 2;
        continue;
      }
      if (!refused_.known_absent(count, alignment)) {
        refused_.arm();
        taken = as_taken(manager_.allocate(count, alignment));
        if (taken.first == 0) refused_.note(count, alignment);
      }
      if (taken.first == 0 && has_decommitted)
        note_vain_decommit(decommitting, has_space_behind(count, alignment));
      return taken;
    }
  }

  /// Whether a search of everything has failed to find such a range, or a smaller one, since memory was last
  /// given back. A hint: take_growing() knows.
  bool was_refused(std::size_t count, std::size_t alignment) const {
    return alignment < capacity() && refused_.known_absent(count, alignment);
  }

  /// Makes the range at `first` `count` slices long by opening new space behind it, if it is the last one.
  /// False: it is not, or the kernel refuses.
  template <class BeforeUse>
  SPANALLOC_COLD bool grow_at_end(std::uint32_t first, std::size_t count, BeforeUse before_use) {
    LockGuard guard(grow_lock_);
    const std::size_t old = count_of(first);
    if (count <= old || count >= capacity()) return false;
    for (;;) {
      const std::size_t behind = manager_.free_tail();
      if (first + old + behind != limit()) return false;
      if (behind >= count - old) return manager_.grow(first, count).done;
      if (!open_more(count - old, 1, before_use, count)) return false;  // or it has opened a part of that
    }
  }

  /// Gives a range back. `zero`: all of it reads as zero. The whole range that take() returned (or resizing
  /// made of it).
  void give(std::uint32_t first, bool zero = false) {
    const std::size_t count = SPANALLOC_UNLIKELY(is_at_limit()) ? count_of(first) : 0;
    if (count >= kWorthDecommitting && decommit_used({first, count})) return memory_came_back();
    manager_.free(first, zero);
    memory_came_back();
    if (SPANALLOC_UNLIKELY(count != 0)) decommit_what_came_back(count);
  }

  /// Slices of the range taken at `first`.
  std::size_t count_of(std::uint32_t first) const { return manager_.size_of(first); }

  /// Of a range just taken, or of what it has just gained.
  std::size_t dirty_slices(std::size_t first, std::size_t count) const {
    return manager_.dirty_units({first, count});
  }

  /// Makes the range at `first` `count` slices long where it stands. False: its neighbour is not free.
  bool resize_in_place(std::uint32_t first, std::size_t count) {
    if (!manager_.grow(first, count)) return false;
    memory_came_back();  // if it was made shorter
    return true;
  }

  /// What became of move_out(): where the pages are now, nullptr: refused, nothing has changed; and whether
  /// the range is the caller's, and reads as zero, to be given back. Else it is nobody's already.
  struct MovedOut {
    void* to = nullptr;
    bool left_a_range = false;
  };
  /// Makes the pages of the taken range at `first` (`count` slices) a mapping of its own of `bytes`, no
  /// less than the range has, at an address that the kernel chooses; what is behind them there reads as zero.
  /// Fresh memory takes their place. Between the two nothing is mapped there, and anybody may be given the
  /// place: so it counts as lost from before until the kernel has answered that it is ours again. Locked
  /// memory stays: the fresh pages would be resident at once.
  SPANALLOC_COLD MovedOut move_out(std::uint32_t first, std::size_t count, std::size_t bytes) {
    const coalescing::Block block{first, count};
    SPANALLOC_ASSERT(count_of(first) == count && bytes > count << kSliceBits);
    if (!has_room_for_seams() || range_.is_locked()) return {};
    void* const to = take_out(block, bytes);
    if (to == nullptr) return {};
    note_seams(block);
    huge_set().erase(block);
    // Under a limit it would lose its charge as soon as it is given back.
    os::Placed placed = os::Placed::kRefused;
    if (range_.reserved() || !is_at_limit()) placed = range_.map_anew(first, count);
    if (placed == os::Placed::kYes) return find_again(block), MovedOut{to, true};
    if (placed == os::Placed::kRefused) note_unmapped(block);
    return {to, false};
  }

  /// How many 256ths of a sample, spread over a taken range of many slices, hold anything but zeroes, other
  /// ones each time; or `enough`, if it is more. 0 tells nothing: zeroes may have been written, too. Of no
  /// consequence but time and memory. (What is in memory no system call tells that libc's malloc makes, too.
  /// So a few pages are read: of one that was never written the kernel shows its page of zeroes, which takes
  /// no memory; one that is swapped out comes back.)
  SPANALLOC_COLD std::size_t sample_used(std::uint32_t first, std::size_t count, std::size_t enough) {
    constexpr std::size_t kLooks = 16;  // one in each sixteenth, but not one behind the other
    const std::size_t look = looks_.fetch_add_relaxed(1);
    const std::size_t pages = min_of(kSlice / os::page_size(), 4);  // of a slice
    std::size_t used = 0;
    for (std::size_t i = 0; i < kLooks && used < enough; ++i) {
      const std::size_t sixteenth = i * 5 % kLooks;
      const std::size_t from = count * sixteenth / kLooks;
      const std::size_t among = max_of(count * (sixteenth + 1) / kLooks - from, 1);
      const std::size_t any = (look * 0x9E3779B1u + i * 0x85EBCA77u) >> 8;
      const auto* at = static_cast<const char*>(range_.address(first + from + any % among));
      for (std::size_t p = 0; p < pages; ++p, at += kSlice / pages) {
        if (!is_zero(at)) used += 256 / kLooks / pages;
      }
    }
    return min_of(used, enough);
  }
  /// Has a taken range read as zero, its pages given back. False: refused; nothing has changed.
  SPANALLOC_COLD bool purge_taken(std::uint32_t first, std::size_t count) {
    return purge_run({first, count});
  }

  // --- Returning memory ------------------------------------------------------------------------------------

  /// Gives the pages of dirty free slices back, at most `at_most` of them; with `only_aged` of those that
  /// have been free since before the last age(). Returns slices.
  std::size_t purge(bool only_aged, std::size_t at_most = SIZE_MAX) {
    return manager_.purge(only_aged, at_most);
  }
  /// The same with the largest free ranges first.
  std::size_t purge_largest(std::size_t at_most) { return manager_.purge_largest(at_most); }
  /// The pages at `address`, of the range of `count` slices at `first`, which the caller has: true if they
  /// read as zero now.
  bool purge_part(std::uint32_t first, std::size_t count, void* address, std::size_t bytes) {
    stop_advice({first, count});
    return Calls::purge(address, bytes);
  }
  /// A tick of the decay clock. Returns how many slices are free and dirty.
  std::size_t age() {
    const std::size_t dirty = manager_.age();
    advise_what_stays();
    return dirty;
  }

  /// A limit has refused what was asked for, or would refuse what is little beside what is open here, or a
  /// sixteenth of the one that stood at the start is open; and it still stood when look_at_limit() last
  /// looked. While it does, what is given back loses its charge: at once in ranges of 1 MiB and more, else
  /// soon, an eighth of what is open at a time. The program has other uses for it (threads' stacks, mappings
  /// of its own). Who keeps free memory elsewhere should not.
  bool is_at_limit() const { return at_limit_.load_relaxed() != 0; }
  /// Now and then. Under a limit what is free loses its charge before that refuses something.
  SPANALLOC_COLD void look_at_limit() {
    if (!is_at_limit() && !os::has_memory_limit() && !has_unmapped()) return;
    LockGuard guard(grow_lock_);
    if (is_at_limit() && !limit_still_stands()) forget_limit();
    map_unmapped();
    if (!is_at_limit() && !os::has_memory_limit()) return;
    decommitted_.decommit_free(false, max_of(least_worth_decommitting(), kWorthDecommitting));
  }

  /// Memory is out, for a table beside the arena or for others: takes the charge off everything free, under a
  /// limit off what becomes free, too (is_at_limit()); take_growing() opens it again. Bytes decommitted.
  SPANALLOC_COLD std::size_t decommit_free() {
    LockGuard guard(grow_lock_);
    if (os::has_memory_limit()) at_limit_.store_relaxed(1);
    return decommitted_.decommit_free(false) << kSliceBits;
  }

  // --- Books -----------------------------------------------------------------------------------------------

  /// visit(first, count, free): the ranges in use and the free ones in address order; not a snapshot (see
  /// CoalescingManager::walk). Decommitted and lost ranges are left out.
  template <class Visit>
  void walk(Visit visit) const {
    manager_.walk([&](coalescing::Block block, coalescing::BlockState state, bool) {
      const bool used = state == coalescing::BlockState::kUsed;
      if (block.first == 0 || (used && (is_lost(block) || decommitted_.contains(block)))) return;
      visit(static_cast<std::uint32_t>(block.first), block.size, state != coalescing::BlockState::kUsed);
    });
  }

  SPANALLOC_COLD ArenaStatistics statistics() {
    LockGuard guard(grow_lock_);
    const std::size_t decommitted = decommitted_.count() << kSliceBits;
    return {range_.reserved() ? range_.reserved_bytes() : range_.opened_bytes() - decommitted,
            range_.opened_bytes() - decommitted, lost_count_.load_relaxed() << kSliceBits};
  }

  // --- Fork ------------------------------------------------------------------------------------------------
  //
  // A fork takes no lock. In the child, until recover_lock() and, if someone was inside, recover_in_child()
  // the calling thread may finish a call that the fork interrupted: nothing that vanished threads have
  // claimed is waited for.

  /// Whether a vanished thread was inside the arena. (The calling one is not.)
  bool someone_is_inside() const { return manager_.someone_holds() || grow_lock_.owner_died(); }

  /// Who opens address space books it only when it is open, and opening again what is open does no harm (of
  /// a placed range: what was mapped and not booked looks like a foreign mapping, and is stepped over).
  /// Who decommits says so before: see recover_in_child().
  SPANALLOC_COLD void recover_lock() {
    generation_ = SpinLock::generation();
    decommitted_.recount();
    memory_came_back();
    if (grow_lock_.owner_died()) grow_lock_.reset();
  }

  /// Ranges that vanished threads had claimed but not taken, or half given back, are free again. What they
  /// had taken is still taken. A range that was being decommitted is decommitted.
  SPANALLOC_COLD void recover_in_child() {
    grown_count_ = 0;  // what is decommitted again is unmapped, and may be somebody else's soon
    manager_.recover_after_fork([&](coalescing::Block block) { return decommitted_.decommit_again(block); });
    decommitted_.recover_in_child();
    std::size_t lost = 0;  // a thread that vanished may have been between the set and the count
    manager_.walk([&](coalescing::Block block, coalescing::BlockState state, bool) {
      if (state == coalescing::BlockState::kUsed && is_lost(block)) lost += block.size;
    });
    lost_count_.store_relaxed(lost);
    memory_came_back();
  }

 private:
  friend struct CoalescingArenaTestAccess;

  // The equation above, at rest. (The manager's blocks tile what is opened: mapper.hpp, (3).)
  bool books_add_up() const {
    std::size_t all = 0;
    std::size_t decommitted = 0;
    std::size_t lost = 0;
    manager_.walk([&](coalescing::Block block, coalescing::BlockState state, bool) {
      all += block.size;
      const bool used = state == coalescing::BlockState::kUsed;
      if (!used) return;
      if (is_lost(block)) {
        lost += block.size;
      } else if (decommitted_.contains(block)) {
        decommitted += block.size;
      }
    });
    return all == limit() && decommitted == decommitted_.count() && lost == lost_count_.load_relaxed();
  }

  coalescing::UnitSet& lost_set() { return manager_.extra_set(kLost); }
  const coalescing::UnitSet& lost_set() const { return manager_.extra_set(kLost); }
  coalescing::UnitSet& huge_set() { return manager_.extra_set(kHuge); }
  coalescing::UnitSet& seams_set() { return manager_.extra_set(kSeams); }

  void memory_came_back() {
    refused_.memory_came_back();
    decommitted_.memory_came_back();
    policy_.memory_came_back();
  }

  // A few times while others hold free blocks: they may be about to put back just what is wanted, and what is
  // opened instead is not used before that.
  Taken look_for(std::size_t count, std::size_t alignment, coalescing::Search search) {
    for (unsigned look = 0;; ++look) {
      const auto before = manager_.holds();
      const Taken taken = as_taken(manager_.try_allocate(count, alignment, Reuse::kDirtyFirst, search));
      if (taken.first != 0 || look == kLooksAgain) return taken;
      if (Manager::Registry::quiet_between(before, manager_.holds())) return taken;
    }
  }
  Taken as_taken(const coalescing::Allocation& got) {
    // A large object of which nothing is touched yet: the program may touch little of it.
    if (SPANALLOC_UNLIKELY(got.block.size > Advice::kUnit) && got.zero) stop_advice(got.block);
    return {static_cast<std::uint32_t>(got.block.first), got.zero};
  }

  SPANALLOC_COLD bool start_tables() {
    if (capacity_is_set()) return true;
    region_.choose<Calls>();
    void* places[Tables::kCount] = {};
    for (unsigned t = 0; t < Tables::kCount; ++t) {
      const std::size_t bytes = Tables::bytes(t, capacity(), capacity());
      if (bytes == 0) continue;  // a range that needs fewer levels
      if (!tables_[t].started() && !tables_[t].start(region_.place_for(bytes), bytes)) return false;
      places[t] = tables_[t].base();
    }
    // Last: in a fork's child it says that the rest is done.
    manager_.attach_tables(places, capacity(), range_.base() >> kSliceBits);
    return true;
  }
  bool capacity_is_set() const { return manager_.capacity() != 0; }

  // Under grow_lock_: where a range that needs new address space begins. What is free at the end already need
  // not be opened again. It may be gone by the time it is needed: then the next round opens the rest.
  std::size_t place_behind(std::size_t alignment) const {
    const std::size_t end = manager_.limit();
    return manager_.aligned(end - min_of(manager_.free_tail(), end - 1), alignment);
  }
  bool has_space_behind(std::size_t count, std::size_t alignment) const {
    const std::size_t start = place_behind(alignment);
    return start < capacity() && count <= capacity() - start;
  }

  // Limits, all under grow_lock_. The one that stood at the start is known. Another one is met by being
  // refused: addresses, of which a look takes none but for its own time, and no more than kMostLookedFor; or
  // what was really asked for, and then it may be a limit on what is charged.
  //
  // Slices, with what is open here, that were refused; 0: none.
  struct Refused {
    std::size_t slices = 0;
    bool as_addresses = false;
  };
  static bool has_addresses(std::size_t slices) {
    return Calls::reserve_at(nullptr, slices << kSliceBits) != os::Placed::kRefused;
  }
  // What was refused last, with what was open, and for no limit's sake: the same tells nothing new.
  struct NoneFound {
    std::size_t open = 0;
    std::size_t count = 0;
  };
  // (Not charged where overcommitting is left to the kernel's judgement, which looks at one request alone.)
  static bool has_memory(std::size_t slices) {
    return Calls::open_at(nullptr, slices << kSliceBits) != os::Placed::kRefused;
  }
  void note_limit(Refused refused) {
    limit_ = refused;
    at_limit_.store_relaxed(1);
    range_.set_limited(true);
  }
  void forget_limit() {
    if (limit_.slices == 0) os::forget_memory_limit();
    limit_ = {};
    at_limit_.store_relaxed(0);
    range_.set_limited(false);
    next_look_for_limit_ = 0;
  }
  // After `count` slices were really refused. (A page is refused, too, at the limit on the number of
  // mappings, of which to close makes more; and all but addresses where all new memory is locked.)
  void look_for_limit_that_refused(std::size_t count) {
    if (is_at_limit()) return;
    if (os::has_memory_limit()) return at_limit_.store_relaxed(1);
    const std::size_t open = open_slices();
    if (open == none_found_.open && count >= none_found_.count) return;
    none_found_ = {open, count};
    // In this order: where new memory is locked a question about it would make all of it resident.
    if (range_.is_locked() || has_memory(count) || !Calls::would_grant(os::page_size())) return;
    none_found_ = {};
    note_limit({open + count, !has_addresses(count)});
  }
  // After growth. Looks each time that an eighth more is open.
  void look_for_limit() {
    const std::size_t open = open_slices();
    if (limit_.slices != 0) {
      if (open > limit_.slices) forget_limit();
    } else if (os::has_memory_limit()) {
      if (open >= (os::memory_limit() >> kSliceBits) / 16) at_limit_.store_relaxed(1);
    } else if (open >= next_look_for_limit_) {
      next_look_for_limit_ = max_of(open + open / 8, kFirstLookForLimit);
      const std::size_t looked_for = min_of(open * 16, kMostLookedFor);
      if (open < kFirstLookForLimit || has_addresses(looked_for) || range_.is_locked()) return;
      note_limit({open + looked_for, true});
    }
  }
  // What it has refused, with what was open then, or what it allows in all, is more than it can allow beside
  // what is open now, whatever was given back here since. Refused, the question takes nothing.
  bool limit_still_stands() const {
    const std::size_t limit = os::memory_limit();
    const std::size_t open = open_slices();
    if (limit_.slices == 0 && limit == SIZE_MAX) return false;
    std::size_t asked = limit_.slices - min_of(open, limit_.slices);
    bool as_addresses = limit_.as_addresses;
    if (limit_.slices == 0) {
      const std::size_t allowed = (limit >> kSliceBits) + 1;
      const std::size_t lost = min_of(lost_count_.load_relaxed(), open);  // some of it is not even mapped
      asked = allowed - min_of(open - lost, allowed);
      as_addresses = limit == os::address_space_limit();
    }
    if (asked == 0) return false;
    // Nothing is asked where new memory is locked: all that the kernel grants would be resident at once.
    return range_.is_locked() || !(as_addresses ? has_addresses(asked) : has_memory(asked));
  }

  // Under grow_lock_. New address space for `count` slices; true: try again, something has changed.
  // `of_range`: slices of the range that they become the end of, if there is one.
  template <class BeforeUse>
  SPANALLOC_COLD bool open_more(std::size_t count, std::size_t alignment, BeforeUse before_use,
                                std::size_t of_range = 0) {
    if (manager_.limit() == range_.opened()) {
      const std::size_t old_end = range_.opened();
      const std::size_t start = place_behind(alignment);
      if (!has_space_behind(count, alignment)) return false;
      const auto opened = range_.open_up_to(max_of(start + count, old_end + 1));
      if (const std::size_t ahead = range_.take_refused_step()) look_for_limit_that_refused(ahead);
      if (opened == Range::OpenResult::kRefused) {
        // Not for what could never have been granted.
        if (count <= old_end + kReasonable) look_for_limit_that_refused(count);
        return false;
      }
      look_for_limit();
    }
    const std::size_t old_limit = limit();
    if (!book_opened(before_use)) return false;
    advise_what_is_opened({old_limit, limit() - old_limit}, max_of(count, of_range));
    return true;
  }

  // Not where something foreign lies in between: it would be advised, too.
  bool may_advise() const {
    return range_.is_advised_by_owner() && !is_at_limit() && lost_count_.load_relaxed() == 0;
  }
  bool was_often_taken_back() const { return times_taken_back_.load_relaxed() >= 4096; }
  // Slices from where the last huge page before the arena can begin.
  std::size_t huge_page_skew() const { return (range_.base() >> kSliceBits) % Advice::kUnit; }
  coalescing::Block without_skew(coalescing::Block block) const {
    return {block.first - huge_page_skew(), block.size};
  }
  bool is_dense(coalescing::Block block) const {
    const std::size_t bytes = block.size << kSliceBits;
    const std::size_t resident = Calls::resident_pages(range_.address(block.first), bytes) * os::page_size();
    return resident * 1000 >= bytes * Advice::kDensePermille && range_.kernel_tells_resident_pages();
  }
  // Under grow_lock_. In this order: whoever takes advice back meanwhile finds it here, or it is given too
  // late, which costs a chance, or some memory.
  void advise(coalescing::Block block) {
    huge_set().insert(block);
    range_.prefer_huge_pages(range_.address(block.first), block.size << kSliceBits);
  }
  void advise_what_is_opened(coalescing::Block opened, std::size_t count) {
    if (!may_advise()) return;
    opened.first += huge_page_skew();
    const coalescing::Block part =
        advice_.opened(opened, count, os::now_ms(),
                       [this](coalescing::Block probe) { return is_dense(without_skew(probe)); });
    if (part.size != 0) advise(without_skew(part));
  }
  void advise_what_stays() {
    if (!may_advise() || was_often_taken_back() || limit() < Advice::kFirst || !grow_lock_.try_lock()) return;
    advice_.pass_epoch(
        limit() + huge_page_skew(),
        [this](coalescing::Block unit) {
          unit = without_skew(unit);
          return huge_set().any(unit) || decommitted_.contains(unit);
        },
        [this](coalescing::Block unit) { return is_dense(without_skew(unit)); },
        [this](coalescing::Block unit) { advise(without_skew(unit)); });
    grow_lock_.unlock();
  }

  // By the owner of the block: of the huge pages that it has a part of none shall be made any more, not from
  // what is left of them either. Each time can make two mappings more, of which a process may have 65,530:
  // once it was often, it is done for more at a time, and ticks advise no more.
  void stop_advice(coalescing::Block block) {
    if (SPANALLOC_LIKELY(!huge_set().any(block))) return;
    const std::size_t unit = was_often_taken_back() ? Advice::kUnit * 32 : Advice::kUnit;
    const std::size_t skew = huge_page_skew();
    std::size_t first = max_of(align_down(block.first + skew, unit), skew + 1) - skew;
    std::size_t end = min_of(align_up(block.end() + skew, unit) - skew, limit());
    for (unsigned i = 0; i < gaps_; ++i) {  // which have no metadata
      if (gap_[i].end() <= block.first) first = max_of(first, gap_[i].end());
      if (gap_[i].first >= block.end()) end = min_of(end, gap_[i].first);
    }
    times_taken_back_.fetch_add_relaxed(1);  // relaxed: a bound, not an exact one
    const coalescing::Block all{first, end - first};
    for (coalescing::Block run; (run = huge_set().next_run(all, first)).size != 0;) {
      huge_set().erase(run);
      range_.forbid_huge_pages(range_.address(run.first), run.size << kSliceBits);
    }
  }

  // What the range has opened or skipped becomes the manager's, as far as the tables reach; where they do not
  // for somebody else's mapping, what they cannot have is lost. False: no memory for the tables; it stays
  // behind for the next time.
  template <class BeforeUse>
  SPANALLOC_COLD bool book_opened(BeforeUse before_use) {
    SPANALLOC_ASSERT(grow_lock_.is_mine() && range_.opened() >= manager_.limit());
    const std::size_t limit = manager_.limit();
    std::size_t end = range_.opened();
    std::size_t next = limit;
    const TableReach reaches[] = {tables_reach(end), before_use(end)};
    for (const TableReach& reach : reaches) {
      end = min_of(end, reach.end);
      if (reach.end <= limit) next = max_of(next, reach.next);
    }
    if (end <= limit) return book_gap(next);
    const std::size_t skipped = range_.skipped() - booked_skipped_;
    if (skipped == 0) {
      lost_set().erase({limit, 1});  // in a fork's child: somebody may have been about to lose it
      if (!manager_.extend(end - limit, true)) return false;
      refused_.memory_came_back();
      return true;
    }
    // In this order: a fork's child that finds it half done may lose more, but takes no foreign mapping for
    // its own.
    lose({limit, end - limit});
    if (!manager_.extend_used(end - limit)) return false;
    booked_skipped_ += end - limit;
    return true;
  }

  // Slices from the limit up to `next` have no entries in some table: one lost block. Of its first slice
  // they are there (tables_reach() keeps one in hand), of its last one the mapper's must be.
  SPANALLOC_COLD bool book_gap(std::size_t next) {
    const std::size_t limit = manager_.limit();
    if (next <= limit || gaps_ == kMaxGaps) return false;
    Sparing sparing{range_};
    for (std::size_t row = next;;) {
      const TableReach reach = table_reach(Tables::kRows, row, row + 1, sparing);
      if (reach.end == row + 1) break;
      if (reach.next <= row + 1) return false;
      row = next = reach.next;
    }
    const std::size_t opened = range_.opened();
    const bool was_skipped = range_.skipped() != booked_skipped_;
    if (!range_.skip_to(next + 1)) return false;
    // What had been opened there is of no use. (Refused: it costs addresses only.)
    const std::size_t unused = min_of(next + 1, opened) - limit;
    if (was_skipped) {
      booked_skipped_ += unused;
    } else if (unused != 0) {
      range_.decommit_for_ever(limit, unused);
    }
    booked_skipped_ += range_.opened() - opened;
    const coalescing::Block gap{limit, next + 1 - limit};
    gap_[gaps_++] = gap;
    lose(gap);
    return manager_.extend_used(gap.size);
  }
  // The first gap whose end is behind `unit`.
  coalescing::Block gap_behind(std::size_t unit) const {
    for (unsigned i = 0; i < gaps_; ++i) {
      if (gap_[i].end() > unit) return gap_[i];
    }
    return {};
  }

  // Slices that are nobody's for ever. In the set before anybody can see them in use.
  SPANALLOC_COLD void lose(coalescing::Block block) {
    lost_set().insert({block.first, 1});
    lost_count_.fetch_add_relaxed(block.size);
  }
  // What its owner has lost, and nobody else knows of.
  void find_again(coalescing::Block block) {
    lost_set().erase({block.first, 1});
    lost_count_.fetch_sub_relaxed(block.size);
  }
  // The pages of a block in use, which counts as lost then. nullptr: refused. (No lock is held: whoever
  // watches what is moved may wait for others that allocate.)
  void* take_out(coalescing::Block block, std::size_t bytes) {
    // What is decommitted behind it would be room to grow where it stands, and whose that is hard to tell
    // then.
    const coalescing::Block behind{block.end(), 1};
    if (block.end() < limit() && (decommitted_.contains(behind) || is_lost(behind))) return nullptr;
    void* const from = range_.address(block.first);
    const std::size_t old = block.size << kSliceBits;
    const std::uintptr_t end = address_of(from) + old;
    if (!may_grow_over({end, bytes - old})) return nullptr;
    lose(block);  // before: a fork's child must not take it for memory, or for somebody's to give back
    void* const to = Calls::remap(from, old, bytes);
    // There may be room behind it: decommitted since, or at the arena's end.
    const bool has_grown = to == from && !Calls::release(pointer_to(end), bytes - old);
    complete_growth(end, has_grown);
    if (to != nullptr && to != from) return to;
    find_again(block);
    return nullptr;
  }
  // Where a block may grow instead of moving, over what is decommitted behind it just then. If the kernel
  // will not unmap its new end, that must go before what is decommitted there is opened again. (Beyond the
  // limit it looks foreign from then on.)
  struct Grown {
    std::uintptr_t address = 0;
    std::size_t bytes = 0;
    bool is_complete = false;
  };
  // False: there are as many as may be.
  SPANALLOC_COLD bool may_grow_over(Grown grown) {
    LockGuard guard(grow_lock_);
    if (grown_count_ == kMostGrown) return false;
    grown_[grown_count_++] = grown;
    return true;
  }
  SPANALLOC_COLD void complete_growth(std::uintptr_t address, bool has_grown) {
    LockGuard guard(grow_lock_);
    for (unsigned i = 0; i < grown_count_; ++i) {
      if (grown_[i].address != address || grown_[i].is_complete) continue;
      grown_[i].is_complete = true;
      if (!has_grown) grown_[i] = grown_[--grown_count_];
      return;
    }
  }
  bool has_grown_over(coalescing::Block decommitted) const {
    const std::uintptr_t first = address_of(range_.address(decommitted.first));
    const std::uintptr_t end = address_of(range_.address(decommitted.end()));
    for (unsigned i = 0; i < grown_count_; ++i) {
      if (grown_[i].address < end && grown_[i].address + grown_[i].bytes > first) return true;
    }
    return false;
  }
  SPANALLOC_COLD void unmap_grown() {
    unsigned left = 0;
    for (unsigned i = 0; i < grown_count_; ++i) {
      const Grown& grown = grown_[i];
      if (!grown.is_complete || !Calls::release(pointer_to(grown.address), grown.bytes))
        grown_[left++] = grown;
    }
    grown_count_ = left;
  }
  // Of a lost block where nothing is mapped: it is as good as decommitted. In this order: a fork's child that
  // finds both takes it for lost. In a reserved range, where what is decommitted is mapped, and where as much
  // is decommitted as may be, it stays lost until it can be mapped; for ever, if there are more than a few.
  SPANALLOC_COLD void note_unmapped(coalescing::Block block) {
    LockGuard guard(grow_lock_);
    if (!range_.reserved() && decommitted_.add_unmapped(block)) return find_again(block);
    const unsigned count = unmapped_count_.load_relaxed();
    if (count == kMostUnmapped) return;
    unmapped_[count] = block;
    unmapped_count_.store_relaxed(count + 1);
  }
  bool has_unmapped() const { return unmapped_count_.load_relaxed() != 0; }
  // Under grow_lock_. True: some of it is mapped, and free.
  SPANALLOC_COLD bool map_unmapped() {
    unsigned left = 0;
    bool some = false;
    for (unsigned i = 0; i < unmapped_count_.load_relaxed(); ++i) {
      const coalescing::Block block = unmapped_[i];
      const os::Placed placed = range_.map_anew(block.first, block.size);
      if (placed == os::Placed::kRefused) unmapped_[left++] = block;
      if (placed != os::Placed::kYes) continue;  // taken: it is somebody else's
      find_again(block);
      manager_.free(block.first, true);
      some = true;
    }
    unmapped_count_.store_relaxed(left);
    if (some) memory_came_back();
    return some;
  }
  // Of a block in use.
  bool is_lost(coalescing::Block block) const { return lost_set().any({block.first, 1}); }
  std::size_t count_of_used(std::size_t first) const { return max_of(manager_.size_of(first), 1); }

  // Whether the process's memory is locked: several system calls, and one answer for all tables.
  struct Sparing {
    Range& range;
    bool asked = false;
    bool locked = false;
    bool is_asked_for() {
      if (!asked) locked = range.is_locked();
      asked = true;
      return locked;
    }
  };

  // How far all tables of the manager reach for `end` slices; those below the limit have entries.
  SPANALLOC_COLD TableReach tables_reach(std::size_t end) {
    TableReach all{end, end};
    Sparing sparing{range_};
    for (unsigned t = 0; t < Tables::kCount; ++t) {
      const TableReach reach = table_reach(t, manager_.limit(), end, sparing);
      if (reach.end < all.end) all = reach;
    }
    return all;
  }
  SPANALLOC_COLD TableReach table_reach(unsigned table, std::size_t from, std::size_t end, Sparing& sparing) {
    const std::size_t capacity = this->capacity();
    // A row more than there are slices: what is lost begins there.
    const std::size_t in_hand = table == Tables::kRows ? 1 : 0;
    const auto bytes = [&](std::size_t units) {
      return Tables::bytes(table, capacity, min_of(units + in_hand, capacity));
    };
    if (tables_[table].is_open_up_to(bytes(end))) return {end, end};
    const TableReach reach = tables_[table].open_up_to(bytes(from), bytes(end), sparing.is_asked_for());
    if (reach.end == bytes(end)) return {end, end};
    std::size_t units = Tables::units_within(table, capacity, reach.end);
    units = max_of(units - min_of(units, in_hand), from);
    const bool gap = reach.next != reach.end;
    return {units, gap ? Tables::units_behind(table, capacity, reach.end, reach.next) : units};
  }

  // Of a page that is the caller's. (What a sanitizer knows of it is of no interest. And the program may have
  // protected it, and forgotten that.)
  [[gnu::no_sanitize_address, gnu::no_sanitize_thread]] static bool is_zero(const char* page) {
    if (!Calls::can_be_read(reinterpret_cast<const std::uint32_t*>(page))) return true;
    const auto* words = reinterpret_cast<const volatile std::uint64_t*>(page);
    for (std::size_t i = 0; i < os::page_size() / sizeof *words; ++i) {
      if (words[i] != 0) return false;
    }
    return true;
  }

  // The manager's, for a run of free slices that it holds; or of a range in use, for its owner.
  bool purge_run(coalescing::Block run) {
    void* address = range_.address(run.first);
    const std::size_t bytes = run.size << kSliceBits;
    stop_advice(run);
    return Calls::purge(address, bytes);
  }

  // Fresh pages in the place of those that were moved out join their neighbours' mapping; but not those that
  // a fork has handed down. So in a child each move may leave two mappings more, and it moves no more once it
  // has seen so many places where one may end. (Never fewer: another move at the same place makes none.)
  bool has_room_for_seams() const {
    return !os::is_forks_child() || seam_count_.load_relaxed() + 2 <= kMaxSeams;  // relaxed: a bound
  }
  void note_seams(coalescing::Block block) {
    if (!os::is_forks_child()) return;
    std::size_t made = seams_set().count_changed({block.first, 1}, true);
    if (block.end() < limit()) made += seams_set().count_changed({block.end(), 1}, true);
    seam_count_.fetch_add_relaxed(made);
  }

  // A range that its owner gives back. False: it is only to be freed.
  SPANALLOC_COLD bool decommit_used(coalescing::Block block) {
    if (!grow_lock_.try_lock()) return false;
    const bool decommitted = decommitted_.decommit_used(block);
    grow_lock_.unlock();
    return decommitted;
  }
  SPANALLOC_COLD void decommit_what_came_back(std::size_t count) {
    const std::size_t enough = max_of(open_slices() / 8, kWorthDecommitting);
    if (came_back_.fetch_add_relaxed(count) + count < enough) return;
    if (!grow_lock_.try_lock()) return;  // who has it may be decommitting
    came_back_.store_relaxed(0);
    decommitted_.decommit_free(false, least_worth_decommitting());
    grow_lock_.unlock();
  }
  // Each decommitted range is a hole, and cuts a mapping in two: at most about a thousand of them.
  std::size_t least_worth_decommitting() const { return max_of(open_slices() / 1024, 1); }
  std::size_t open_slices() const { return limit() - min_of(decommitted_.count(), limit()); }

  // Under grow_lock_. Whether decommitting everything that is free could make room (closing_policy.hpp).
  SPANALLOC_COLD bool decommitting_may_help(DecommitPolicy::Case& a_case, std::size_t count,
                                            std::size_t alignment) {
    const bool behind = has_space_behind(count, alignment);
    const std::size_t end = place_behind(alignment) + count;
    a_case.needed = !behind ? count : end > limit() ? end - limit() : 1;
    const std::uint64_t now = os::now_ms();
    if (policy_.is_denied(now, a_case.needed)) return false;
    policy_.deny(now, a_case.needed);
    bool may_help = behind || decommitted_.count() != 0;
    if (may_help) {
      a_case.free = manager_.free_units();
      const std::size_t decommits = a_case.free - (behind ? min_of(manager_.free_tail(), a_case.free) : 0);
      may_help = a_case.needed <= decommits || Calls::would_grant((a_case.needed - decommits) << kSliceBits);
      may_help = may_help && !(behind && policy_.was_vain(now, a_case));
    }
    // (Others may hold free blocks now that would be enough.)
    if (may_help || manager_.someone_holds()) policy_.allow();
    return may_help;
  }
  // Under grow_lock_. Only where there was space behind the range was it the kernel that did not do its part.
  SPANALLOC_COLD void note_vain_decommit(DecommitPolicy::Case a_case, bool kernel_refused) {
    const std::uint64_t now = os::now_ms();
    policy_.deny(now, a_case.needed);
    if (kernel_refused) policy_.note_vain(now, a_case);
  }

  Range range_;  // base and capacity: constant after start(); the rest under grow_lock_
  Environment environment_{this};
  Manager manager_{environment_};
  Decommitted decommitted_{range_, manager_, Books{this}};  // changed under grow_lock_
  TableRegion region_;                                      // "

  WakingLock grow_lock_;  // opening and decommitting; gives access to what follows, up to the next constant
  GuardedTable<Calls> tables_[Tables::kCount];
  std::size_t booked_skipped_ = 0;
  static constexpr unsigned kMaxGaps = 64;
  unsigned gaps_ = 0;  // written before the limit is behind them
  coalescing::Block gap_[kMaxGaps];
  static constexpr unsigned kMostUnmapped = 8;
  Atomic<unsigned> unmapped_count_{0};  // relaxed: a hint for who has not the lock
  coalescing::Block unmapped_[kMostUnmapped];
  static constexpr unsigned kMostGrown = 8;
  unsigned grown_count_ = 0;
  Grown grown_[kMostGrown];
  DecommitPolicy policy_;
  Advice advice_;
  Atomic<std::uint32_t> times_taken_back_{0};  // advice for huge pages

  static constexpr unsigned kLooksAgain = 3;
  Atomic<std::size_t> looks_{0};
  RefusalMemo refused_;                            // written under grow_lock_, but for memory_came_back()
  Atomic<std::size_t> lost_count_{0};              // slices
  static constexpr std::size_t kMaxSeams = 16384;  // of the 65,530 mappings that a process may have
  Atomic<std::size_t> seam_count_{0};
  static constexpr std::size_t kWorthDecommitting = max_of(kMiB / kSlice, 1);
  static constexpr std::size_t kReasonable = 64 * kMiB / kSlice;
  static constexpr std::size_t kFirstLookForLimit = max_of(4 * kMiB / kSlice, 1);
  static constexpr std::size_t kMostLookedFor = kGiB / kSlice;
  Atomic<std::uint32_t> at_limit_{0};    // relaxed: a hint
  Refused limit_;                        // by the limit that was met; under grow_lock_
  NoneFound none_found_;                 // under grow_lock_
  std::size_t next_look_for_limit_ = 0;  // slices that are open then; under grow_lock_
  Atomic<std::size_t> came_back_{0};     // slices given back since anything was decommitted
  std::uint16_t generation_ = 0;         // of the process that it has been put right in
};

}  // namespace spanalloc
