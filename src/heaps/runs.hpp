// The memory of all heaps: an arena of slices, handed out in runs, with a record for each slice.
//
// From any address one subtraction, one comparison and two records lead to the run that it lies in,
// to the shard that has it, and to the heap. No record lies in a run: nothing that the program
// writes to its blocks can damage one.
//
// A record's owner is the one word that says whose a run is. Lists of runs can be made anew from
// the records (for_runs_of).
//
//   a run is free                      the arena's
//   taken, on its way to a shard       owner is null; the thread that has it is inside (Inside)
//   a shard's                          owner is set, under the shard's lock
//   on its way back                    owner is null again; the thread is inside
//
// A fork takes no lock (sync/spin_lock.hpp). If another thread was inside, the child gives back the
// runs that are nobody's, and those of heaps that were being destroyed.
//
// What is given back stays dirty for the next heap, up to a bound (pages/dirty_bound.hpp), so that
// short heaps, one after the other, find pages in memory. What is beyond is purged at once; what
// was free for an epoch, when the next heap ends.
//
// The records are also the list of heaps: a run that says that its heap stands in itself is a home.
// Statistics read homes while other threads destroy heaps. So homes_lock is held from before a
// home's record is looked at until its heap was read, and while a heap lets go of its home, or of
// another shard's: what was read was memory. It is the last of all locks: who holds it takes no
// other one, makes no system call, and calls nobody. (A visitor of sp_heap_visit, which holds a
// shard's lock, may ask for statistics.)
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "base/inspection_access.hpp"
#include "base/intrusive_list.hpp"
#include "heaps/config.hpp"
#include "os/os.hpp"
#include "pages/coalescing_arena.hpp"
#include "pages/dirty_bound.hpp"
#include "pages/growing_table.hpp"
#include "pages/program_heaps.hpp"
#include "sync/spin_lock.hpp"
#include "thread/lifecycle.hpp"

namespace spanalloc::heaps {

/// Number of a slice; of a run: of its first one. 0: none.
using Slice = std::uint32_t;

struct Run {
  /// A shard's address, 16-aligned, and what kind of run it is; 0: nobody's.
  Atomic<std::uint64_t> owner;
  Atomic<Slice> first;          // the run that the slice was last part of
  Atomic<std::uint32_t> count;  // of the first slice: slices of the run
  Atomic<Slice> heap;           // of the first slice: where its heap is
  Slice next;                   // the shard's list; under its lock
  Slice previous;

  /// One block has it for itself.
  static constexpr std::uint64_t kLarge = 1;
  /// Its blocks may be freed, but their memory is used again only when the heap ends.
  static constexpr std::uint64_t kRetired = 2;
  static constexpr std::uint64_t kKinds = kLarge | kRetired;
};

/// How many calls of the calling thread are inside. Relaxed: the thread and its signal handlers are
/// the only ones that read it, and they see their own stores in order.
SPANALLOC_TLS inline constinit thread_local Atomic<std::uint32_t> calls_inside{0};

/// One for each process. Constant-initialised; all functions are thread-safe.
class Runs : thread::ForkWatch {
 public:
  using Arena = CoalescingArena<HeapsConfig::kSliceBits, HugePages::kAsked>;
  static constexpr std::size_t kSlice = Arena::kSlice;

  constexpr Runs() : thread::ForkWatch{&enter_child, &let_go} {}

  /// Finds places for arena and records. False: no address space, or no memory.
  SPANALLOC_COLD bool start() {
    if (SPANALLOC_LIKELY(started_.load_acquire() != 0))
      return true;               // acquire: all that start makes
    thread::watch_forks(*this);  // first: a fork may find this half done
    LockGuard guard(start_lock_);
    if (started_.load_relaxed() != 0) return true;
    if (!arena_.start(kSlice) || !table_.start(arena_.capacity(), &arena_.table_region()) ||
        !table_.ensure(1))
      return false;
    first_number_ = os::random_bits();
    started_.store_release(1);
    return true;
  }
  std::uintptr_t base() const { return arena_.base(); }
  std::size_t bytes() const { return arena_.capacity() * kSlice; }

  // --- From addresses to records -----------------------------------------------------------------

  SPANALLOC_INLINE std::size_t slice_of(const void* p) const {
    return (address_of(p) - arena_.base()) >> HeapsConfig::kSliceBits;  // below: a huge number
  }
  /// Whether the address lies where runs may be. Relaxed: who has a block or a heap got it after
  /// its record was made.
  SPANALLOC_INLINE bool contains(const void* p) const {
    const std::size_t slice = slice_of(p);
    return SPANALLOC_LIKELY(slice < plain_end_.load_relaxed()) || is_behind_gap(slice);
  }
  Run& operator[](Slice slice) { return table_[slice]; }
  void* address(std::size_t slice) const {
    return pointer_to(arena_.base() + (slice << HeapsConfig::kSliceBits));
  }
  std::size_t bytes_of(Slice run) { return std::size_t{table_[run].count.load_relaxed()} * kSlice; }

  /// The run of a shard that the address lies in; 0: none.
  SPANALLOC_INLINE Slice run_at(const void* p) {
    if (!contains(p)) return 0;
    const std::size_t slice = slice_of(p);
    const Slice first = table_[slice].first.load_relaxed();
    const Run& run = table_[first];
    return run.owner.load_relaxed() != 0 && slice - first < run.count.load_relaxed() ? first : 0;
  }

  /// Links of a list of runs.
  struct Links {
    Runs& runs;
    Slice& next(Slice run) const { return runs[run].next; }
    Slice& previous(Slice run) const { return runs[run].previous; }
  };
  Links links() { return {*this}; }

  // --- Runs --------------------------------------------------------------------------------------

  /// By a thread that takes runs or gives them back: from before a run is nobody's until after. May
  /// be nested.
  void enter() {
    // First: a handler's fork leaves the recovery to this call from here on.
    const std::uint32_t outer = calls_inside.load_relaxed();
    calls_inside.store_relaxed(outer + 1);
    // Relaxed: a run becomes nobody's by clear_owner(), which is a release, or under the arena's
    // lock, by which the child knows that somebody was inside.
    inside_.fetch_add_relaxed(1);
  }
  void leave() {
    // Release: a fork's child that finds the call gone finds what became of its runs.
    inside_.fetch_sub_acq_rel(1);
    const std::uint32_t outer = calls_inside.load_relaxed() - 1;
    calls_inside.store_relaxed(outer);
    // Behind that: a handler that forks in between recovers itself, because no call is inside.
    if (outer == 0 && SPANALLOC_UNLIKELY(recovery_is_due_.load_relaxed())) recover();
  }

  struct Taken {
    Slice first = 0;    ///< 0: memory is out
    bool zero = false;  ///< all its bytes are zero
  };
  /// A run of so many slices at a multiple of `alignment` slices (a power of two): nobody's. In a
  /// kernel call (os.hpp) there is none, because the thread may hold the arena's lock.
  SPANALLOC_COLD Taken take(std::size_t count, std::size_t alignment) {
    SPANALLOC_ASSERT(calls_inside.load_relaxed() != 0);
    if (count >= arena_.capacity() || alignment >= arena_.capacity() || os::in_kernel_call())
      return {};
    Arena::Taken taken = arena_.take(count, alignment);
    if (taken.first == 0) {
      const auto reach = [this](std::size_t end) { return make_records(end); };
      taken = arena_.take_growing(count, alignment, reach, Arena::Effort::kDecommit);
    }
    if (taken.first == 0) return {};
    bound_.taken(count, taken.zero ? 0 : arena_.dirty_slices(taken.first, count));
    note_slices(taken.first, 0, count);
    return {taken.first, taken.zero};
  }
  /// The run is the shard's from here on. Under the shard's lock. (Release: a fork's child that
  /// finds an owner finds the rest.)
  void set_owner(Slice run, Slice heap, std::uint64_t owner) {
    table_[run].heap.store_relaxed(heap);
    table_[run].owner.store_release(owner);
  }
  /// It is nobody's. Under the shard's lock, by a thread that is inside and gives it back.
  void clear_owner(Slice run) {
    table_[run].owner.store_release(0);
    table_[run].heap.store_relaxed(0);
  }
  /// Whether a heap stands in the run that begins with that slice, or stood there just now.
  bool is_home(Slice slice) { return slice != 0 && table_[slice].heap.load_relaxed() == slice; }
  /// Held by who reads a heap that others may destroy meanwhile. The thread is inside: a fork's
  /// child in a handler that has interrupted it recovers when it has left.
  SpinLock& homes_lock() { return homes_lock_; }
  /// Under that lock: whether a heap stands in the run, and can be read. (Acquire: all that it was
  /// when it got its home.)
  bool has_heap(Slice run) { return is_home(run) && table_[run].owner.load_acquire() != 0; }
  /// As clear_owner(), of a heap's home.
  SPANALLOC_COLD void clear_home(Slice home) {
    LockGuard guard(homes_lock_);
    clear_owner(home);
  }
  /// Gives back a run that is nobody's.
  SPANALLOC_COLD void give(Slice run) {
    bound_.given(table_[run].count.load_relaxed(), false);
    arena_.give(run);
  }
  /// After one or more of these.
  SPANALLOC_COLD void keep_bound() {
    if (os::in_kernel_call()) return;
    // A fork by a signal handler leaves what a purge holds to this call.
    enter();
    if (purge_lock_.try_lock()) {
      purge_beyond_bound();
      purge_lock_.unlock();
    }
    leave();
  }

  /// Makes the caller's run shorter or longer where it stands. False: what is behind it is not
  /// free.
  SPANALLOC_COLD bool resize(Slice run, std::size_t count) {
    const std::size_t old = table_[run].count.load_relaxed();
    if (count < old) {
      // First: nobody finds the run by the slices that it loses.
      table_[run].count.store_relaxed(static_cast<std::uint32_t>(count));
      if (!arena_.resize_in_place(run, count)) {
        table_[run].count.store_relaxed(static_cast<std::uint32_t>(old));
        return false;
      }
      bound_.given(old - count, false);
      return true;
    }
    if (!arena_.resize_in_place(run, count)) return false;
    bound_.taken(count - old, arena_.dirty_slices(run + old, count - old));
    note_slices(run, old, count);
    return true;
  }

  /// Gives all free memory back to the kernel. True: there was any.
  SPANALLOC_COLD bool trim() {
    if (started_.load_acquire() == 0 || os::in_kernel_call()) return false;
    enter();  // as in keep_bound()
    (void)purge_lock_.lock();
    const bool any = arena_.purge(false) != 0;
    bound_.dirty_is(0);
    arena_.look_at_limit();
    purge_lock_.unlock();
    leave();
    return any;
  }

  /// Calls visit(run, owner) for the runs of a shard, by the records alone. Takes time in
  /// proportion to all runs.
  template <class Visit>
  SPANALLOC_COLD void for_runs(Visit visit) {
    walk([](void* to, Slice run, std::uint64_t owner) { (*static_cast<Visit*>(to))(run, owner); },
         &visit);
  }

  /// A number for a heap's name: another one than those of the 65,535 heaps before.
  std::uint64_t next_number() { return first_number_ + made_.fetch_add_relaxed(1); }

  SPANALLOC_COLD ProgramHeaps::Figures figures() {
    ProgramHeaps::Figures all;
    for_runs([&](Slice run, std::uint64_t) {
      all.taken_bytes += bytes_of(run);
      if (is_home(run)) ++all.heaps;
    });
    const std::size_t held = arena_.held() * kSlice;  // taken, or free and dirty
    all.kept_bytes = held - min_of(all.taken_bytes, held);
    return all;
  }
  SPANALLOC_COLD ArenaStatistics statistics() { return arena_.statistics(); }

 private:
  friend struct RunsTestAccess;  // defined by unit tests only
  friend struct spanalloc::HeapsInspectionAccess;

  // One function for all visitors: the arena's walk is long, and each of these is seldom.
  SPANALLOC_COLD void walk(void (*visit)(void* to, Slice run, std::uint64_t owner), void* to) {
    arena_.walk([&](std::uint32_t first, std::size_t count, bool free) {
      if (free || first + count > known_end_.load_relaxed()) return;
      // (A range that was just taken may still have the records of others.)
      if (table_[first].first.load_relaxed() == first)
        visit(to, first, table_[first].owner.load_relaxed());
    });
  }

  /// The first word of a heap, which is 0 while the heap is being destroyed (heap.hpp).
  bool is_being_destroyed(Slice heap) {
    if (heap == 0) return true;  // clear_owner() was under way
    return reinterpret_cast<Atomic<std::uint64_t>*>(address(heap))->load_relaxed() == 0;
  }

  // Slices [from, count) of the run are its own now.
  void note_slices(Slice run, std::size_t from, std::size_t count) {
    for (std::size_t i = from; i < count; ++i) table_[run + i].first.store_relaxed(run);
    table_[run].count.store_relaxed(static_cast<std::uint32_t>(count));
  }
  SPANALLOC_COLD bool is_behind_gap(std::size_t slice) const {
    return slice < known_end_.load_acquire() && table_.has(slice);
  }
  // Under the arena's lock. As SpanTable's of the engine `standard`: release, because the table is
  // open so far.
  SPANALLOC_COLD TableReach make_records(std::size_t end) {
    const std::size_t from = max_of(known_end_.load_relaxed(), arena_.limit());
    const TableReach reach = table_.reach(from, end);
    if (reach.end <= from) return reach;
    if (table_.is_without_gaps()) plain_end_.store_release(reach.end);
    known_end_.store_release(reach.end);
    return reach;
  }

  // Under purge_lock_.
  SPANALLOC_COLD void purge_beyond_bound() {
    if (const std::size_t excess = bound_.excess(); excess != 0) {
      // And more, so that the next heaps' ends need not: at the bound, where a heap takes a slice
      // that was purged and leaves it dirty, each end would purge one.
      const std::size_t wanted = excess + HeapsConfig::kPurgedBeyond;
      const std::size_t purged = arena_.purge_largest(wanted);
      bound_.purged_for_bound(purged);
      if (purged < wanted) bound_.dirty_is(0);  // there is no more
    }
    if (const std::uint64_t now = os::now_ms(); now - epoch_began_ >= HeapsConfig::kEpochMs) {
      epoch_began_ = now;
      bound_.purged(arena_.purge(true));
      bound_.pass_epoch(arena_.age());
      arena_.look_at_limit();
    }
  }

  // --- Fork --------------------------------------------------------------------------------------

  SPANALLOC_COLD static void enter_child(thread::ForkWatch* watch) {
    Runs& runs = static_cast<Runs&>(*watch);
    runs.start_lock_.abandon_if_owner_died();
    runs.purge_lock_.abandon_if_owner_died();
    runs.homes_lock_.abandon_if_owner_died();  // it guards no change that could be half made
    if (runs.started_.load_relaxed() == 0) return;
    // Relaxed: the call that finds it is this thread's. (A handler that forks starts no threads.)
    runs.recovery_is_due_.store_relaxed(true);
    // A call of this thread that a signal handler has interrupted does it at its end.
    if (calls_inside.load_relaxed() == 0) runs.recover();
  }
  SPANALLOC_COLD static void let_go(thread::ForkWatch* watch) {
    Runs& runs = static_cast<Runs&>(*watch);
    runs.start_lock_.unlock_if_mine();
    runs.purge_lock_.unlock_if_mine();
    runs.homes_lock_.unlock_if_mine();
    runs.inside_.fetch_sub_relaxed(calls_inside.load_relaxed());
    calls_inside.store_relaxed(0);
  }
  // The calling thread is inside nothing. If there are other threads already, they were started by
  // the child.
  SPANALLOC_COLD void recover() {
    // If a signal handler forks meanwhile, its child's recovery is left to this one, which goes on
    // in that child: there was no second thread that could vanish.
    while (recovery_is_due_.load_relaxed()) {
      recovery_is_due_.store_relaxed(false);
      calls_inside.store_relaxed(1);
      put_right();
      inside_.fetch_sub_relaxed(1);
      calls_inside.store_relaxed(0);
    }
  }
  SPANALLOC_COLD void put_right() {
    // They guard nothing that can be half changed and matters: a start is made again, memory
    // purged.
    for (WakingLock* lock : {&start_lock_, &purge_lock_}) {
      if (lock->owner_died()) lock->reset();
    }
    const bool were_inside = inside_.load_relaxed() != 0 || arena_.someone_is_inside();
    inside_.store_relaxed(1);  // this call
    arena_.recover_lock();
    if (!were_inside) return;
    arena_.recover_in_child();
    // Homes last: they tell whether their heaps are being destroyed, and at a memory limit what is
    // given back can be read no more.
    for (const bool homes : {false, true}) {
      arena_.walk([&](std::uint32_t first, std::size_t count, bool free) {
        if (free || first + count > known_end_.load_relaxed()) return;
        Run& run = table_[first];
        // (Taken, and not yet recorded: then the record may be anybody's.)
        const bool is_owned = run.first.load_relaxed() == first && run.owner.load_relaxed() != 0;
        const Slice heap = run.heap.load_relaxed();
        if (is_owned && ((heap == first) != homes || !is_being_destroyed(heap))) return;
        clear_home(first);
        arena_.give(first);
      });
    }
  }

  Arena arena_;
  GrowingTable<Run> table_;           // grown under the arena's lock
  Atomic<std::size_t> plain_end_{0};  // records without gaps end here; written under that lock
  Atomic<std::size_t> known_end_{0};  // records end here
  DirtyBound<kSlice> bound_;
  Atomic<std::uint32_t> started_{0};
  Atomic<std::uint32_t> inside_{0};  // calls of all threads that are inside
  Atomic<std::uint64_t> made_{0};
  std::uint64_t first_number_ = 0;       // constant after start()
  std::uint64_t epoch_began_ = 0;        // under purge_lock_
  Atomic<bool> recovery_is_due_{false};  // set in a fork's child only
  WakingLock start_lock_;
  WakingLock purge_lock_;  // held to purge or to age memory
  SpinLock homes_lock_;
};

inline constinit Runs runs{};

class [[nodiscard]] Inside {
 public:
  Inside() { runs.enter(); }
  ~Inside() { runs.leave(); }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

}  // namespace spanalloc::heaps
