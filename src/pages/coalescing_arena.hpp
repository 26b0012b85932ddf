// An arena: hands out ranges of slices from one address range. A coalescing manager
// (coalescing/manager.hpp) merges what is given back, so that memory freed at one size
// serves every other size.
//
//   take             lock-free, by the manager: from the free slices
//   take_growing     under grow_lock_: recommits decommitted ranges with room, or else opens new
//                    addresses
//   give             by the manager: merges with free neighbours; the range is dirty until it is
//                    purged
//   resize_in_place  by the manager
//   move_out         makes the pages a mapping of their own, outside the arena
//   purge            gives pages of free slices back to the kernel, by decay or on demand
//   decommit_free    when memory is out: takes the charge off free ranges, too
//
// A range is a run of slices (the manager's units). Slice 0 is never handed
// out: number 0 means "none".
//
// The manager's tables (index, mapper and sets of units) grow with the arena, each in a place of
// its own (guarded_table.hpp). Where a foreign mapping is in a table's way, the slices whose
// entries would stand there are lost. They are one block in use, of which nobody touches more than
// the first entry and the last.
//
// At rest, in slices: opened = 1 + taken + free + decommitted + lost
//   taken        take() has handed them out, and they have not been given back
//   decommitted  in their set; in use for the manager; no memory and no charge
//   lost         first slice in its set; in use for the manager for ever: foreign mappings (also
//                over decommitted ranges), slices without metadata (a gap), a range that is just
//                being moved out
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
/// `Calls`: the kernel; tests replace it to make it refuse.
template <unsigned kSliceBits, HugePages kHugePages, class Calls = PageCalls,
          std::size_t kMaxStep = 16 * kMiB>
class CoalescingArena {
  using Range = AddressRange<kSliceBits, kHugePages, kMaxStep, 1, Claim::kPlace, Calls>;
  struct Environment {
    CoalescingArena* arena;
    bool pause() {
      os::sleep_briefly();  // a yield is not enough: the other thread may have a lower priority
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
  // Sets of slices. kDecommitted is changed under grow_lock_. kLost: the first slice of each
  // lost block. kHuge: slices for which this arena has advised huge pages, see stop_advice().
  enum Set : unsigned { kDecommitted, kLost, kHuge, kExtraSets };
  using Manager = coalescing::CoalescingManager<Environment, 16, 6, kExtraSets>;
  using Tables = typename Manager::Tables;
  using Advice = HugePageAdvice<kSliceBits>;
  using Decommitted = DecommittedRanges<Range, Manager, Books, Calls, kDecommitted>;

 public:
  using Reuse = coalescing::Reuse;
  static constexpr std::size_t kSlice = Range::kSlice;

  /// A range; first == 0: none. `zero`: all its bytes are zero.
  struct Taken {
    std::uint32_t first = 0;
    bool zero = false;
  };

  /// Claims address range and tables. False: no memory even for the tables. One
  /// caller at a time; repeatable.
  SPANALLOC_COLD bool start(std::size_t alignment) {
    generation_ = SpinLock::generation();
    if (!range_.start(alignment) || !start_tables()) return false;
    if (limit() != 0) return true;
    return tables_reach(1).end == 1 && manager_.extend_used(1);
  }

  /// Gives everything back to the kernel, for good, while nobody uses the
  /// arena or anything from it.
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

  HugePageUse huge_page_use() const { return range_.huge_page_use(); }
  /// Where the starter of the arena places further tables, beside the arena's.
  TableRegion& table_region() { return region_; }

  std::uintptr_t base() const { return range_.base(); }
  std::size_t capacity() const { return range_.capacity(); }
  /// Slices below this number have been opened or lost. The engine's side
  /// tables must reach this far.
  std::size_t limit() const { return manager_.limit(); }

  /// Takes `count` free slices at a multiple of `alignment` slices (a power of two). first == 0: a
  /// quick search has found none. Lock-free.
  Taken take(std::size_t count, std::size_t alignment, Reuse reuse = Reuse::kDirtyFirst) {
    return as_taken(manager_.try_allocate(count, alignment, reuse));
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
    LockGuard guard(grow_lock_);
    bool has_decommitted = false;
    DecommitPolicy::Case decommitting;
    std::size_t recommit_at_most = 1;
    for (;;) {
      // Other threads may have grown the arena or given memory back meanwhile. A search of every
      // block waits until the kernel has refused: among many too small blocks it takes long, and
      // all growing threads need this lock. The proof that nothing is free waits, too: it needs a
      // quiet moment, and while many threads take and give, growth would stop. A range known to be
      // absent is not searched for again.
      const bool absent = refused_.known_absent(count, alignment);
      Taken taken = absent ? Taken{} : look_for(count, alignment, coalescing::Search::kThorough);
      if (taken.first != 0) return taken;
      enum { kNotAsked, kMayRecommit, kRefuses } kernel = kNotAsked;
      const auto may_recommit = [&] {
        if (kernel == kNotAsked) kernel = decommitted_.may_recommit() ? kMayRecommit : kRefuses;
        return kernel == kMayRecommit;
      };
      const bool no_decommitted_room = decommitted_.known_without_room(count, alignment);
      if (!no_decommitted_room && may_recommit() && decommitted_.recommit_run_for(count, alignment))
        continue;
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
          // Quicker than to look through all that is decommitted.
          open_more(count, alignment, before_use);
          continue;
        }
      }
      // Recommits the other ranges only now: they take memory that the new range needs. But
      // together they may be large enough; or a few of them make the mappings fewer, of which the
      // kernel allows only so many.
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

  /// Whether a search of everything has found no such range, or no smaller one, since memory was
  /// last given back. A hint; take_growing() knows.
  bool was_refused(std::size_t count, std::size_t alignment) const {
    return alignment < capacity() && refused_.known_absent(count, alignment);
  }

  /// Makes the last range, at `first`, `count` slices long by opening new address space behind it.
  /// False: it is not the last one, or the kernel refuses.
  template <class BeforeUse>
  SPANALLOC_COLD bool grow_at_end(std::uint32_t first, std::size_t count, BeforeUse before_use) {
    LockGuard guard(grow_lock_);
    const std::size_t old = count_of(first);
    if (count <= old || count >= capacity()) return false;
    for (;;) {
      const std::size_t behind = manager_.free_tail();
      if (first + old + behind != limit()) return false;
      if (behind >= count - old) return static_cast<bool>(manager_.grow(first, count));
      if (!open_more(count - old, 1, before_use, count)) return false;  // true: maybe a part
    }
  }

  /// Gives back a whole range, as take() returned it or resizing made it.
  /// `zero`: all its bytes are zero.
  void give(std::uint32_t first, bool zero = false) {
    const std::size_t count = SPANALLOC_UNLIKELY(is_at_limit()) ? count_of(first) : 0;
    if (count >= kWorthDecommitting && decommit_used({first, count})) return memory_came_back();
    manager_.free(first, zero);
    memory_came_back();
    if (SPANALLOC_UNLIKELY(count != 0)) decommit_what_came_back(count);
  }

  std::size_t count_of(std::uint32_t first) const { return manager_.size_of(first); }

  /// Dirty slices of a range just taken, or of the slices that a range has just gained.
  std::size_t dirty_slices(std::size_t first, std::size_t count) const {
    return manager_.dirty_units({first, count});
  }

  /// Makes the range at `first` `count` slices long in place. False: its neighbour
  /// is not free, or too small.
  bool resize_in_place(std::uint32_t first, std::size_t count) {
    if (!manager_.grow(first, count)) return false;
    memory_came_back();  // if it was made shorter
    return true;
  }

  /// What move_out() has done. `to`: where the pages are now; nullptr: refused, nothing has
  /// changed. `left_a_range`: the range still belongs to the caller, who has to give it back, and
  /// its bytes are zero; otherwise the range is nobody's already.
  struct MovedOut {
    void* to = nullptr;
    bool left_a_range = false;
  };
  /// Makes the pages of the taken range at `first` (`count` slices) a mapping of their own of
  /// `bytes` (more than the range has) at an address that the kernel chooses; the bytes behind the
  /// old ones are zero. Then maps fresh memory in the old place. Between the two steps nothing is
  /// mapped there, and the kernel may give the place to anybody: the range counts as lost from
  /// before the move until the kernel has confirmed that the place is ours again. Refuses while
  /// memory is locked: the fresh pages would be resident.
  SPANALLOC_COLD MovedOut move_out(std::uint32_t first, std::size_t count, std::size_t bytes) {
    const coalescing::Block block{first, count};
    SPANALLOC_ASSERT(count_of(first) == count && bytes > count << kSliceBits);
    if (range_.is_locked()) return {};
    void* const to = take_out(block, bytes);
    if (to == nullptr) return {};
    huge_set().erase(block);
    // At limit a fresh range would be decommitted as soon as the caller gives it back.
    os::Placed placed = os::Placed::kRefused;
    if (range_.reserved() || !is_at_limit()) placed = range_.map_anew(first, count);
    if (placed == os::Placed::kYes) return find_again(block), MovedOut{to, true};
    if (placed == os::Placed::kRefused) note_unmapped(block);
    return {to, false};
  }

  /// Samples pages of a taken range of many slices, spread over it, other ones at each call.
  /// Returns how many 256ths of the sample hold bytes other than zero, but at most `enough`. 0
  /// proves nothing: the program may have written zeroes. Only time and memory depend on the
  /// answer. (No system call that libc's malloc makes, too, tells which pages are in memory. So a
  /// few pages are read: where one was never written, the kernel shows its page of zeroes, which
  /// takes no memory; a page that is swapped out comes back.)
  SPANALLOC_COLD std::size_t sample_used(std::uint32_t first, std::size_t count,
                                         std::size_t enough) {
    constexpr std::size_t kLooks = 16;  // one in each sixteenth, not in address order
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
  /// Purges a taken range: its bytes are zero then. False: refused; nothing has changed.
  SPANALLOC_COLD bool purge_taken(std::uint32_t first, std::size_t count) {
    return purge_run({first, count});
  }

  // --- Returning memory --------------------------------------------------------------------------

  /// Purges dirty free slices, at most `at_most`; with `only_aged` only those that have been free
  /// since before the last age(). Returns how many slices it has purged.
  std::size_t purge(bool only_aged, std::size_t at_most = SIZE_MAX) {
    return manager_.purge(only_aged, at_most);
  }
  /// Purges the largest free ranges first, whatever their age. Returns slices.
  std::size_t purge_largest(std::size_t at_most) { return manager_.purge_largest(at_most); }
  /// Purges pages of the range of `count` slices at `first`, which the caller has.
  /// True: they are zero now.
  bool purge_part(std::uint32_t first, std::size_t count, void* address, std::size_t bytes) {
    stop_advice({first, count});
    return Calls::purge(address, bytes);
  }
  /// Begins a decay epoch. Returns how many slices are free and dirty.
  std::size_t age() {
    const std::size_t dirty = manager_.age();
    advise_what_stays();
    return dirty;
  }

  /// Whether the process may have no more memory: a limit has refused what was asked for, or would
  /// refuse addresses for sixteen times what is open here (1 GiB at most), or a sixteenth of the
  /// limit that stood at the start is open; and look_at_limit() has not found since that it is
  /// gone. As long as this is so, the arena decommits what is given back: ranges of 1 MiB and more
  /// at once, others each time that an eighth of what is open has come back. The program has other
  /// uses for the memory (threads' stacks, mappings of its own). Callers that keep free memory of
  /// their own should then keep none.
  bool is_at_limit() const { return at_limit_.load_relaxed() != 0; }
  /// To be called now and then. Under a limit decommits large free ranges before the
  /// limit refuses something.
  SPANALLOC_COLD void look_at_limit() {
    if (!is_at_limit() && !os::has_memory_limit() && !has_unmapped()) return;
    LockGuard guard(grow_lock_);
    if (is_at_limit() && !limit_still_stands()) forget_limit();
    map_unmapped();
    if (!is_at_limit() && !os::has_memory_limit()) return;
    decommitted_.decommit_free(false, max_of(least_worth_decommitting(), kWorthDecommitting));
  }

  /// When memory is out, for a table beside the arena or for others: decommits everything that
  /// is free. Under a limit the arena is at limit from then on. take_growing() recommits.
  /// Returns the bytes decommitted.
  SPANALLOC_COLD std::size_t decommit_free() {
    LockGuard guard(grow_lock_);
    if (os::has_memory_limit()) at_limit_.store_relaxed(1);
    return decommitted_.decommit_free(false) << kSliceBits;
  }

  // --- Walk and statistics -----------------------------------------------------------------------

  /// Calls visit(first, count, free) for ranges in use and free ones, in address order: not a
  /// snapshot (see CoalescingManager::walk). Leaves out decommitted and lost ranges.
  template <class Visit>
  void walk(Visit visit) const {
    manager_.walk([&](coalescing::Block block, coalescing::BlockState state, bool) {
      const bool used = state == coalescing::BlockState::kUsed;
      if (block.first == 0 || (used && (is_lost(block) || decommitted_.contains(block)))) return;
      visit(static_cast<std::uint32_t>(block.first), block.size,
            state != coalescing::BlockState::kUsed);
    });
  }

  SPANALLOC_COLD ArenaStatistics statistics() {
    LockGuard guard(grow_lock_);
    const std::size_t decommitted = decommitted_.count() << kSliceBits;
    return {range_.reserved() ? range_.reserved_bytes() : range_.opened_bytes() - decommitted,
            range_.opened_bytes() - decommitted, lost_count_.load_relaxed() << kSliceBits};
  }

  // --- Fork --------------------------------------------------------------------------------------
  //
  // A fork takes no lock. In the child the calling thread may first finish a call that the fork
  // interrupted. Until recover_lock() and, if another thread was inside, recover_in_child() have
  // run, it waits for nothing that vanished threads have claimed.

  /// Whether a vanished thread was inside the arena. (The calling thread is not.)
  bool someone_is_inside() const { return manager_.someone_holds() || grow_lock_.owner_died(); }

  /// Repairs the lock and counts anew. A thread that opens address space records it only
  /// afterwards, and opening it once more does no harm. (In a placed range, memory mapped but not
  /// recorded looks like a foreign mapping, and is skipped.) A thread that decommits records that
  /// before: see recover_in_child().
  SPANALLOC_COLD void recover_lock() {
    generation_ = SpinLock::generation();
    decommitted_.recount();
    memory_came_back();
    if (grow_lock_.owner_died()) grow_lock_.reset();
  }

  /// Frees ranges that vanished threads had claimed but not taken, or half given back. What they
  /// had taken stays taken. Completes the decommit of a range that one of them was decommitting.
  SPANALLOC_COLD void recover_in_child() {
    grown_count_ = 0;  // what is decommitted again is unmapped: others may map there
    manager_.recover_after_fork(
        [&](coalescing::Block block) { return decommitted_.decommit_again(block); });
    decommitted_.recover_in_child();
    std::size_t lost = 0;  // a vanished thread may have changed the set and not the count
    manager_.walk([&](coalescing::Block block, coalescing::BlockState state, bool) {
      if (state == coalescing::BlockState::kUsed && is_lost(block)) lost += block.size;
    });
    lost_count_.store_relaxed(lost);
    memory_came_back();
  }

 private:
  friend struct CoalescingArenaTestAccess;

  // The equation of this file's head, at rest. (The manager's blocks tile what is
  // opened: mapper.hpp, (3).)
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
    return all == limit() && decommitted == decommitted_.count() &&
           lost == lost_count_.load_relaxed();
  }

  coalescing::UnitSet& lost_set() { return manager_.extra_set(kLost); }
  const coalescing::UnitSet& lost_set() const { return manager_.extra_set(kLost); }
  coalescing::UnitSet& huge_set() { return manager_.extra_set(kHuge); }

  void memory_came_back() {
    refused_.memory_came_back();
    decommitted_.memory_came_back();
    policy_.memory_came_back();
  }

  // Searches again, a few times, while other threads hold free blocks: one of them may be about to
  // publish the block that is wanted, and memory opened instead would stay unused.
  Taken look_for(std::size_t count, std::size_t alignment, coalescing::Search search) {
    for (unsigned look = 0;; ++look) {
      const auto before = manager_.holds();
      const Taken taken =
          as_taken(manager_.try_allocate(count, alignment, Reuse::kDirtyFirst, search));
      if (taken.first != 0 || look == kLooksAgain) return taken;
      if (Manager::Registry::quiet_between(before, manager_.holds())) return taken;
    }
  }
  Taken as_taken(const coalescing::Allocation& got) {
    // No page of this large object is touched yet, and the program may touch few of them.
    if (SPANALLOC_UNLIKELY(got.block.size > Advice::kUnit) && got.zero) stop_advice(got.block);
    return {static_cast<std::uint32_t>(got.block.first), got.zero};
  }

  SPANALLOC_COLD bool start_tables() {
    if (capacity_is_set()) return true;
    region_.choose<Calls>();
    void* places[Tables::kCount] = {};
    for (unsigned t = 0; t < Tables::kCount; ++t) {
      const std::size_t bytes = Tables::bytes(t, capacity(), capacity());
      if (bytes == 0) continue;  // so small a range needs fewer levels
      if (!tables_[t].started() && !tables_[t].start(region_.place_for(bytes), bytes)) return false;
      places[t] = tables_[t].base();
    }
    // Last: by the capacity a fork's child knows that the rest is done.
    manager_.attach_tables(places, capacity(), range_.base() >> kSliceBits);
    return true;
  }
  bool capacity_is_set() const { return manager_.capacity() != 0; }

  // Under grow_lock_: where a range that needs new address space begins. Slices that are
  // free at the end already need not be opened. If other threads take them meanwhile, the
  // next round opens the rest.
  std::size_t place_behind(std::size_t alignment) const {
    const std::size_t end = manager_.limit();
    return manager_.aligned(end - min_of(manager_.free_tail(), end - 1), alignment);
  }
  bool has_space_behind(std::size_t count, std::size_t alignment) const {
    const std::size_t start = place_behind(alignment);
    return start < capacity() && count <= capacity() - start;
  }

  // Limits; all under grow_lock_. The limit that stood at the start is known. Another limit shows
  // by a refusal: of addresses, which look_for_limit() asks for (at most kMostLookedFor; the
  // question takes only time), or of memory that the arena really needed, and then it may be a
  // limit on charged memory.
  //
  // The slices that a limit has refused, plus those that were open here then; 0: none.
  struct Refused {
    std::size_t slices = 0;
    bool as_addresses = false;
  };
  static bool has_addresses(std::size_t slices) {
    return Calls::reserve_at(nullptr, slices << kSliceBits) != os::Placed::kRefused;
  }
  // The last refusal that no limit explained: slices open then, slices asked
  // for. Not examined twice.
  struct NoneFound {
    std::size_t open = 0;
    std::size_t count = 0;
  };
  // (Under heuristic overcommit the kernel charges nothing for the question: it
  // judges each request alone.)
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
  // After the kernel has refused to open `count` slices. (At the limit on mappings it refuses even
  // a page, and decommitting makes more. Where new memory is locked it refuses all but addresses.)
  void look_for_limit_that_refused(std::size_t count) {
    if (is_at_limit()) return;
    if (os::has_memory_limit()) return at_limit_.store_relaxed(1);
    const std::size_t open = open_slices();
    if (open == none_found_.open && count >= none_found_.count) return;
    none_found_ = {open, count};
    // is_locked() first: where new memory is locked, has_memory() would make all of it resident.
    if (range_.is_locked() || has_memory(count) || !Calls::would_grant(os::page_size())) return;
    none_found_ = {};
    note_limit({open + count, !has_addresses(count)});
  }
  // After growth. Looks for a limit each time that an eighth more is open.
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
  // Asks for more than the limit can grant beside what is open now: for what it has refused (with
  // what was open then), or for a slice more than it allows in all. Memory given back here since
  // makes no difference. A refused question takes nothing.
  bool limit_still_stands() const {
    const std::size_t limit = os::memory_limit();
    const std::size_t open = open_slices();
    if (limit_.slices == 0 && limit == SIZE_MAX) return false;
    std::size_t asked = limit_.slices - min_of(open, limit_.slices);
    bool as_addresses = limit_.as_addresses;
    if (limit_.slices == 0) {
      const std::size_t allowed = (limit >> kSliceBits) + 1;
      // Some of it is not even mapped
      const std::size_t lost = min_of(lost_count_.load_relaxed(), open);
      asked = allowed - min_of(open - lost, allowed);
      as_addresses = limit == os::address_space_limit();
    }
    if (asked == 0) return false;
    // Where new memory is locked nothing is asked: all that the kernel grants
    // would be resident at once.
    return range_.is_locked() || !(as_addresses ? has_addresses(asked) : has_memory(asked));
  }

  // Under grow_lock_: opens address space for `count` slices. True: something has changed, try
  // again. `of_range`: how long the range is whose end they become, if there is one.
  template <class BeforeUse>
  SPANALLOC_COLD bool open_more(std::size_t count, std::size_t alignment, BeforeUse before_use,
                                std::size_t of_range = 0) {
    if (manager_.limit() == range_.opened()) {
      const std::size_t old_end = range_.opened();
      const std::size_t start = place_behind(alignment);
      if (!has_space_behind(count, alignment)) return false;
      const auto opened = range_.open_up_to(max_of(start + count, old_end + 1));
      if (const std::size_t ahead = range_.take_refused_step()) look_for_limit_that_refused(ahead);
      if (opened == os::Placed::kRefused) {
        // A refusal of more than could ever be granted shows no limit.
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

  // Not after slices were lost: the advice would also reach a foreign
  // mapping that lies between ours.
  bool may_advise() const {
    return range_.is_advised_by_owner() && !is_at_limit() && lost_count_.load_relaxed() == 0;
  }
  bool was_often_taken_back() const { return times_taken_back_.load_relaxed() >= 4096; }
  // Slices from the last place before the arena where a huge page can begin
  // to the arena's beginning.
  std::size_t huge_page_skew() const { return (range_.base() >> kSliceBits) % Advice::kUnit; }
  coalescing::Block without_skew(coalescing::Block block) const {
    return {block.first - huge_page_skew(), block.size};
  }
  bool is_dense(coalescing::Block block) const {
    const std::size_t bytes = block.size << kSliceBits;
    const std::size_t resident =
        Calls::resident_pages(range_.address(block.first), bytes) * os::page_size();
    return resident * 1000 >= bytes * Advice::kDensePermille &&
           range_.kernel_tells_resident_pages();
  }
  // Under grow_lock_. The set first: a thread that takes advice back meanwhile finds the
  // block there. If it does so before the kernel is told, the advice comes too late: that
  // costs a chance, or some memory.
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
    if (!may_advise() || was_often_taken_back() || limit() < Advice::kFirst ||
        !grow_lock_.try_lock())
      return;
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

  // By the block's owner. Takes advice back for each huge page that the block has a part of: the
  // kernel shall make none any more, nor from the rest of those pages. Each call can make two
  // mappings more, and a process may have 65,530. So after many calls each takes back more at a
  // time, and decay epochs advise no more.
  void stop_advice(coalescing::Block block) {
    if (SPANALLOC_LIKELY(!huge_set().any(block))) return;
    const std::size_t unit = was_often_taken_back() ? Advice::kUnit * 32 : Advice::kUnit;
    const std::size_t skew = huge_page_skew();
    std::size_t first = max_of(align_down(block.first + skew, unit), skew + 1) - skew;
    std::size_t end = min_of(align_up(block.end() + skew, unit) - skew, limit());
    for (unsigned i = 0; i < gaps_; ++i) {  // gaps have no metadata
      if (gap_[i].end() <= block.first) first = max_of(first, gap_[i].end());
      if (gap_[i].first >= block.end()) end = min_of(end, gap_[i].first);
    }
    times_taken_back_.fetch_add_relaxed(1);  // relaxed: the bound need not be exact
    const coalescing::Block all{first, end - first};
    for (coalescing::Block run; (run = huge_set().next_run(all, first)).size != 0;) {
      huge_set().erase(run);
      range_.forbid_huge_pages(range_.address(run.first), run.size << kSliceBits);
    }
  }

  // Gives the manager what the range has opened or skipped, as far as the tables reach. Where a
  // foreign mapping stops a table, slices without entries are lost. False: no memory for the
  // tables; try again later.
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
      lost_set().erase({limit, 1});  // a vanished thread may have been about to lose it
      if (!manager_.extend(end - limit, true)) return false;
      refused_.memory_came_back();
      return true;
    }
    // lose() first: a fork's child that finds this half done may lose more, but
    // never uses a foreign mapping.
    lose({limit, end - limit});
    if (!manager_.extend_used(end - limit)) return false;
    booked_skipped_ += end - limit;
    return true;
  }

  // Makes one lost block of the slices from the limit up to `next`: they have no entries in
  // some table. Its first slice has entries (tables_reach() keeps one in hand); its last slice
  // must have one in the mapper.
  SPANALLOC_COLD bool book_gap(std::size_t next) {
    const std::size_t limit = manager_.limit();
    if (next <= limit || gaps_ == kMaxGaps) return false;
    LockedMemory sparing{range_};
    for (std::size_t row = next;;) {
      const TableReach reach = table_reach(Tables::kRows, row, row + 1, sparing);
      if (reach.end == row + 1) break;
      if (reach.next <= row + 1) return false;
      row = next = reach.next;
    }
    const std::size_t opened = range_.opened();
    const bool was_skipped = range_.skipped() != booked_skipped_;
    if (!range_.skip_to(next + 1)) return false;
    // Slices opened there are of no use. (If the kernel refuses to decommit them,
    // that costs addresses only.)
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

  // Makes slices nobody's for ever. They are in the set before anybody can see them in use.
  SPANALLOC_COLD void lose(coalescing::Block block) {
    lost_set().insert({block.first, 1});
    lost_count_.fetch_add_relaxed(block.size);
  }
  // Undoes lose() for the block's owner, while nobody else knows of it.
  void find_again(coalescing::Block block) {
    lost_set().erase({block.first, 1});
    lost_count_.fetch_sub_relaxed(block.size);
  }
  // Moves the pages of a block in use out of the arena; the block counts as lost then.
  // nullptr: refused. (Holds no lock: a function that watches mremap may wait for
  // other threads that allocate.)
  void* take_out(coalescing::Block block, std::size_t bytes) {
    // The kernel could grow the mapping in place, over decommitted or lost slices behind it. Then
    // it would be hard to tell whose those addresses are.
    const coalescing::Block behind{block.end(), 1};
    if (block.end() < limit() && (decommitted_.contains(behind) || is_lost(behind))) return nullptr;
    void* const from = range_.address(block.first);
    const std::size_t old = block.size << kSliceBits;
    const std::uintptr_t end = address_of(from) + old;
    if (!may_grow_over({end, bytes - old})) return nullptr;
    lose(block);  // before the move: a fork's child must neither use the range nor give it back
    void* const to = Calls::remap(from, old, bytes);
    // The kernel may have grown it in place: over slices decommitted since, or at the arena's end.
    const bool has_grown = to == from && !Calls::release(pointer_to(end), bytes - old);
    complete_growth(end, has_grown);
    if (to != nullptr && to != from) return to;
    find_again(block);
    return nullptr;
  }
  // Where a mapping may grow in place, over slices decommitted at that moment. If the kernel
  // refuses to unmap the new end, it must go before those slices are recommitted. (Beyond the
  // limit it looks foreign.)
  struct Grown {
    std::uintptr_t address = 0;
    std::size_t bytes = 0;
    bool is_complete = false;
  };
  // False: there are kMostGrown already.
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
  // Makes a lost block where nothing is mapped decommitted, which is as good. In this order: a
  // fork's child that finds it in both sets takes it for lost. It stays lost in a reserved range
  // (decommitted slices are mapped there) and where no more ranges may be decommitted, until it is
  // mapped; for good, if kMostUnmapped blocks wait for that already.
  SPANALLOC_COLD void note_unmapped(coalescing::Block block) {
    LockGuard guard(grow_lock_);
    if (!range_.reserved() && decommitted_.add_unmapped(block)) return find_again(block);
    const unsigned count = unmapped_count_.load_relaxed();
    if (count == kMostUnmapped) return;
    unmapped_[count] = block;
    unmapped_count_.store_relaxed(count + 1);
  }
  bool has_unmapped() const { return unmapped_count_.load_relaxed() != 0; }
  // Under grow_lock_. True: some of the unmapped blocks are mapped now, and free.
  SPANALLOC_COLD bool map_unmapped() {
    unsigned left = 0;
    bool some = false;
    for (unsigned i = 0; i < unmapped_count_.load_relaxed(); ++i) {
      const coalescing::Block block = unmapped_[i];
      const os::Placed placed = range_.map_anew(block.first, block.size);
      if (placed == os::Placed::kRefused) unmapped_[left++] = block;
      if (placed != os::Placed::kYes) continue;  // kTaken: a foreign mapping stands there
      find_again(block);
      manager_.free(block.first, true);
      some = true;
    }
    unmapped_count_.store_relaxed(left);
    if (some) memory_came_back();
    return some;
  }
  // Whether a block in use is lost.
  bool is_lost(coalescing::Block block) const { return lost_set().any({block.first, 1}); }
  std::size_t count_of_used(std::size_t first) const { return max_of(manager_.size_of(first), 1); }

  // Whether the process's memory is locked: takes several system calls, and is
  // asked once for all tables.
  struct LockedMemory {
    Range& range;
    bool asked = false;
    bool locked = false;
    bool is_asked_for() {
      if (!asked) locked = range.is_locked();
      asked = true;
      return locked;
    }
  };

  // Opens the manager's tables for `end` slices, and tells how far all
  // reach: at least to the limit.
  SPANALLOC_COLD TableReach tables_reach(std::size_t end) {
    TableReach all{end, end};
    LockedMemory sparing{range_};
    for (unsigned t = 0; t < Tables::kCount; ++t) {
      const TableReach reach = table_reach(t, manager_.limit(), end, sparing);
      if (reach.end < all.end) all = reach;
    }
    return all;
  }
  SPANALLOC_COLD TableReach table_reach(unsigned table, std::size_t from, std::size_t end,
                                        LockedMemory& sparing) {
    const std::size_t capacity = this->capacity();
    // Rows for one slice more: a gap would begin there.
    const std::size_t in_hand = table == Tables::kRows ? 1 : 0;
    const auto bytes = [&](std::size_t units) {
      return Tables::bytes(table, capacity, min_of(units + in_hand, capacity));
    };
    if (tables_[table].is_open_up_to(bytes(end))) return {end, end};
    const TableReach reach =
        tables_[table].open_up_to(bytes(from), bytes(end), sparing.is_asked_for());
    if (reach.end == bytes(end)) return {end, end};
    std::size_t units = Tables::units_within(table, capacity, reach.end);
    units = max_of(units - min_of(units, in_hand), from);
    const bool gap = reach.next != reach.end;
    return {units, gap ? Tables::units_behind(table, capacity, reach.end, reach.next) : units};
  }

  // Whether the caller's page is zero (or protected by the program). Sanitizers do not look.
  [[gnu::no_sanitize_address, gnu::no_sanitize_thread]] static bool is_zero(const char* page) {
    if (!Calls::can_be_read(reinterpret_cast<const std::uint32_t*>(page))) return true;
    const auto* words = reinterpret_cast<const volatile std::uint64_t*>(page);
    for (std::size_t i = 0; i < os::page_size() / sizeof *words; ++i) {
      if (words[i] != 0) return false;
    }
    return true;
  }

  // For the manager: purges a run of free slices that it holds. Or for the owner of a range in use.
  bool purge_run(coalescing::Block run) {
    void* address = range_.address(run.first);
    const std::size_t bytes = run.size << kSliceBits;
    stop_advice(run);
    return Calls::purge(address, bytes);
  }

  // Decommits a range that its owner gives back. False: the caller has to free it.
  SPANALLOC_COLD bool decommit_used(coalescing::Block block) {
    if (!grow_lock_.try_lock()) return false;
    const bool decommitted = decommitted_.decommit_used(block);
    grow_lock_.unlock();
    return decommitted;
  }
  SPANALLOC_COLD void decommit_what_came_back(std::size_t count) {
    const std::size_t enough = max_of(open_slices() / 8, kWorthDecommitting);
    if (came_back_.fetch_add_relaxed(count) + count < enough) return;
    if (!grow_lock_.try_lock()) return;  // its owner may be decommitting
    came_back_.store_relaxed(0);
    decommitted_.decommit_free(false, least_worth_decommitting());
    grow_lock_.unlock();
  }
  // Each decommitted range is a hole that cuts a mapping in two: at most about a thousand are made.
  std::size_t least_worth_decommitting() const { return max_of(open_slices() / 1024, 1); }
  std::size_t open_slices() const { return limit() - min_of(decommitted_.count(), limit()); }

  // Under grow_lock_. Whether decommitting everything that is free could make
  // room (decommit_policy.hpp).
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
      const std::size_t decommits =
          a_case.free - (behind ? min_of(manager_.free_tail(), a_case.free) : 0);
      may_help = a_case.needed <= decommits ||
                 Calls::would_grant((a_case.needed - decommits) << kSliceBits);
      may_help = may_help && !(behind && policy_.was_vain(now, a_case));
    }
    // Free blocks that other threads hold now may be enough: then nothing is denied.
    if (may_help || manager_.someone_holds()) policy_.allow();
    return may_help;
  }
  // Under grow_lock_, after vain decommitting. It was the kernel's fault only
  // with space behind the range.
  SPANALLOC_COLD void note_vain_decommit(DecommitPolicy::Case a_case, bool kernel_refused) {
    const std::uint64_t now = os::now_ms();
    policy_.deny(now, a_case.needed);
    if (kernel_refused) policy_.note_vain(now, a_case);
  }

  Range range_;  // base and capacity: constant after start(); the rest under grow_lock_
  Environment environment_{this};
  Manager manager_{environment_};
  Decommitted decommitted_{range_, manager_, Books{this}};  // changed under grow_lock_
  TableRegion region_;                                      // changed under grow_lock_

  WakingLock grow_lock_;  // for opening and decommitting; guards what follows, up to kLooksAgain
  GuardedTable<Calls> tables_[Tables::kCount];
  std::size_t booked_skipped_ = 0;
  static constexpr unsigned kMaxGaps = 64;
  unsigned gaps_ = 0;  // written before the limit passes the gap
  coalescing::Block gap_[kMaxGaps];
  static constexpr unsigned kMostUnmapped = 8;
  Atomic<unsigned> unmapped_count_{0};  // relaxed: a hint for readers without the lock
  coalescing::Block unmapped_[kMostUnmapped];
  static constexpr unsigned kMostGrown = 8;
  unsigned grown_count_ = 0;
  Grown grown_[kMostGrown];
  DecommitPolicy policy_;
  Advice advice_;
  Atomic<std::uint32_t> times_taken_back_{0};  // advice for huge pages; relaxed

  static constexpr unsigned kLooksAgain = 3;
  Atomic<std::size_t> looks_{0};
  RefusalMemo refused_;                // written under grow_lock_, but for memory_came_back()
  Atomic<std::size_t> lost_count_{0};  // slices
  static constexpr std::size_t kWorthDecommitting = max_of(kMiB / kSlice, 1);
  static constexpr std::size_t kReasonable = 64 * kMiB / kSlice;
  static constexpr std::size_t kFirstLookForLimit = max_of(4 * kMiB / kSlice, 1);
  static constexpr std::size_t kMostLookedFor = kGiB / kSlice;
  Atomic<std::uint32_t> at_limit_{0};    // relaxed: a hint
  Refused limit_;                        // by a limit met later than the start; under grow_lock_
  NoneFound none_found_;                 // under grow_lock_
  std::size_t next_look_for_limit_ = 0;  // when so many slices are open; under grow_lock_
  Atomic<std::size_t> came_back_{0};     // slices given back since the last decommit
  std::uint16_t generation_ = 0;         // of the process that it was repaired in
};

}  // namespace spanalloc
