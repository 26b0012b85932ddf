// The process-wide half of the engine: arena, span records, LABs, span-pool, and what moves between them.
//
//   frontend.hpp (per thread)  ->  span_protocol.hpp (per LAB, locks)  ->  Heap::take_span / put_in_pool
//                                                              -> pool (lock-free) -> CoalescingArena
//                                                              (lock-free)
//
// The pool is a bounded cache of warm spans, by size and core; what does not fit goes down to the arena,
// which merges it with its neighbours, so that memory freed at one size serves every other. A miss looks for
// warm memory first: in the pool, in the arena's dirty ranges, in what sleeping threads have not noticed to
// be free; then for clean memory that is open; then the pool is drained, and only then new address space
// opened. What nobody wanted for the decay time is purged by whoever passes by a slow path (there is no
// background thread). Objects above the largest class come from the arena directly.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/poison.hpp"
#include "engines/virtual_span/span_pool.hpp"
#include "engines/virtual_span/standard/page_layer.hpp"
#include "engines/virtual_span/standard/size_classes.hpp"
#include "engines/virtual_span/standard/span.hpp"
#include "engines/virtual_span/standard/span_protocol.hpp"
#include "engines/virtual_span/standard/thread_state.hpp"
#include "os/os.hpp"
#include "pages/growing_table.hpp"
#include "sync/spin_lock.hpp"
#include "thread/lifecycle.hpp"

namespace spanalloc::standard {

static_assert(sizeof(Span) == kRecordBytes, "what size classes count as overhead");

/// A local allocation buffer: what one thread allocates from. Its hot lists of small classes stand in the
/// thread's own memory (frontend.hpp). Lives in a table for ever; its number is what spans call their owner.
struct alignas(kCacheLine) Lab : LabLists<kClasses> {
  std::uint32_t number = 0;                 ///< constant; unused in orphanages
  std::uint32_t next_free = 0;              ///< registry lock, while unused
  bool torn = false;                        ///< only while a fork's child puts lists right
  Atomic<std::uint32_t> alive{0};           ///< written by the owner
  Atomic<std::uint32_t> inside{0};          ///< written by the owner; see InsideHeap
  Atomic<std::uint32_t> hot[kFirstSingle];  ///< written by the owner: hot span of each class, 0: none
  std::uint64_t hot_classes[(kFirstSingle + 63) / 64] = {};  ///< owner: bit c: class c may have one
  Block* head[kLabClasses] = {};  ///< owner: hot lists of classes above kThreadClasses

  bool has_no_hot_span() const {
    for (const Atomic<std::uint32_t>& span : hot) {
      if (span.load_relaxed() != 0) return false;
    }
    return true;
  }
};

// No two LABs share a cache line: each one's lock stands at its beginning.
static_assert(alignof(Lab) == kCacheLine && sizeof(Lab) % kCacheLine == 0);

/// While it lives, the calling thread may have a span that stands nowhere else, hold a lock, or be anywhere
/// in the arena's books. Two things follow for a fork's child: what vanished threads were inside of is looked
/// for (Heap::recover_in_child); and a thread that forks from a signal handler, and was interrupted inside,
/// first comes out of it before anything is put right.
class [[nodiscard]] InsideHeap {
 public:
  SPANALLOC_INLINE InsideHeap();
  SPANALLOC_INLINE ~InsideHeap();
  InsideHeap(const InsideHeap&) = delete;
  InsideHeap& operator=(const InsideHeap&) = delete;

 private:
  Lab* lab_;
  std::uint32_t outer_;
};

/// Apart from what others read all the time: every thread that misses the pool turns it.
struct alignas(kCacheLine) Turn {
  Atomic<std::uint32_t> next{0};
};

/// Apart for the same reason: threads that begin and end change them. See SpanProtocol, I5.
struct alignas(kCacheLine) Orphans {
  Atomic<std::uint64_t> of_class[kClasses];
};

class Heap {
 public:
  using Lists = LabLists<kClasses>;
  using Reuse = Arena::Reuse;
  using Inside = InsideHeap;
  using Protocol = SpanProtocol<Heap>;

  // --- World of the protocol ----------------------------------------------------------------------------
  static Span& span(std::uint32_t number) { return spans_[number]; }
  static Lists& lab(std::uint32_t number) { return labs_[number]; }
  static std::uint32_t capacity(unsigned size_class) { return kClassTable[size_class].blocks; }
  static std::uint32_t reuse_outstanding(unsigned c) { return kClassTable[c].reuse_outstanding; }
  static bool is_orphanage(std::uint32_t number) { return number < orphanages_; }
  static std::uint32_t orphanage_of(std::uint32_t number) { return number & (orphanages_ - 1); }
  static Atomic<std::uint64_t>& orphans(unsigned size_class) { return orphans_.of_class[size_class]; }
  [[noreturn]] static void corrupted(std::uint32_t number) {
    os::fatal("more blocks were freed than allocated (double free) in the span at", address(number));
  }
  static Block* block_of_mark(std::uint32_t number, std::uint32_t mark) {
    return reinterpret_cast<Block*>(address(number) + offset_of_mark(mark));
  }
  static bool is_mine(std::uint32_t number) {
    return thread_state.lab != nullptr && thread_state.lab == &labs_[number];
  }
  /// A claimed span (word: free) goes to this thread's core's stack.
  static void put_in_pool(std::uint32_t number);
  /// In a fork's child that has one thread yet, with the lock of LAB `owner`, whose last holder vanished:
  /// makes its lists anew, and those of all LABs like it.
  static void repair_lists(std::uint32_t owner);

  // --- Start --------------------------------------------------------------------------------------------
  /// Reserves everything; idempotent. False: not even tables could be had.
  static bool start() {
    if (SPANALLOC_LIKELY(started_.load_acquire() != 0)) return true;  // acquire: the tables' addresses
    return start_slow();
  }
  static bool started() { return started_.load_acquire() != 0; }

  // --- Spans --------------------------------------------------------------------------------------------
  static char* address(std::uint32_t number) {
    return pointer_to<char>(arena_.base() + (std::size_t{number} << kGranuleBits));
  }
  /// True and the granule's number if `a` lies in a granule that has a record: the arena's, up to where it is
  /// handed out. (Granule 0 is never handed out; its record says free.)
  SPANALLOC_INLINE static bool granule_of(std::uintptr_t a, std::size_t& number) {
    number = (a - arena_.base()) >> kGranuleBits;  // below the base: wraps to a huge number
    return number < known_end_.load_relaxed();     // relaxed: who holds a live block got it after the record
  }
  /// Granules 0 .. known_granules() - 1 have records.
  static std::size_t known_granules() { return known_end_.load_acquire(); }
  /// The record of the span that granule `granule` belongs to; its first granule's number in `number`.
  static Span& span_of_granule(std::size_t granule, std::uint32_t& number) {
    number = first_granule(granule);
    return spans_[number];
  }
  /// The first granule of the span that holds granule `number`.
  static std::uint32_t first_granule(std::size_t number) {
    return static_cast<std::uint32_t>(number & ~((std::size_t{1} << spans_[number].order) - 1));
  }

  /// visit(number, granules, free): every range of the arena, see CoalescingArena::walk.
  template <class Visit>
  static void walk_ranges(Visit visit) {
    arena_.walk(visit);
  }

  /// A free span for class `c` for the caller alone, its record's `zero` and `order` set; 0: out of memory.
  /// `core`: whose stack to try first.
  static std::uint32_t take_span(unsigned c, unsigned core);

  /// A span of kLargeClass for `granules` at a multiple of `alignment` granules; 0: out of memory.
  static std::uint32_t take_large(std::size_t granules, std::size_t alignment, Reuse reuse);

  /// Makes a span that was just taken one of class c with its one block out. The word says parked and owned
  /// by nobody: whoever frees the block brings it to free and gives the span back.
  static void make_single(std::uint32_t number, unsigned c);

  /// The granules of a span of one block, and making it fit `granules` where it stands.
  static std::size_t granules_of(std::uint32_t number) { return arena_.count_of(number); }
  static bool resize_in_place(std::uint32_t number, std::size_t granules) {
    return arena_.resize_in_place(number, granules) ||
           (granules > granules_of(number) && arena_.grow_at_end(number, granules, records_reach));
  }
  /// Moves the pages of a span of one block to a new one of `granules` granules (more than it has), and frees
  /// the old one. Returns the new one, its record that of a span of kLargeClass in use; 0: refused, or
  /// copying is cheaper; then nothing has changed.
  static std::uint32_t move_large(std::uint32_t number, std::size_t granules);

  // --- LABs ---------------------------------------------------------------------------------------------
  /// An unused LAB, marked alive; nullptr when there is none left.
  static Lab* take_lab();
  static void return_lab(Lab* lab);
  static Lab& lab_at(std::uint32_t number) { return labs_[number]; }
  /// Owns, on no list, what a fork has cut off from its owner.
  static constexpr std::uint32_t kOrphanageOfForks = 0;
  /// LABs below are the orphanages (as many as CPUs, to the next power of two, 64 at most).
  static std::uint32_t first_lab() { return orphanages_; }
  /// LABs ever used by threads are first_lab() .. end_of_labs() - 1. Acquire: the table is open so far.
  static std::uint32_t end_of_labs() { return end_of_labs_.load_acquire(); }
  static unsigned core_of(std::uint32_t lab_number) { return pool_.core_of(lab_number); }

  // --- Returning memory ---------------------------------------------------------------------------------
  /// Purges all dirty free memory. Returns granules purged.
  static std::size_t purge_all_free();
  /// Purges what has been free for half the decay time at least; a bounded part of it at a call, at most once
  /// per half decay time unless there is more.
  static void purge_by_decay(std::uint64_t now);
  /// Claims what other LABs' owners have not noticed to be empty; looks at up to `at_most` LABs, in turn.
  static std::uint32_t steal_from_sleeping_labs(std::uint32_t at_most);

  // --- Fork ---------------------------------------------------------------------------------------------
  /// In the child, first of all. Puts the heap right, or leaves that to the end of the call that the fork has
  /// interrupted.
  static void enter_child();

  static std::size_t spans_lost_to_fork() { return lost_to_fork_.load_relaxed(); }
  static std::size_t live_labs() { return live_labs_.load_relaxed(); }

 private:
  friend struct Census;
  friend class InsideHeap;
  using Pool = SpanPool<kPoolRows, 256, true>;

  // LABs that a pool miss looks at: a thousand sleeping threads must not make every fresh span expensive.
  static constexpr std::uint32_t kVictimsAMiss = 16;
  // Granules that one free may purge: a bound on its time.
  static constexpr std::size_t kPurgedARound = 64 * kMiB / kGranule;

  static bool start_slow();
  static bool start_locked();
  static auto links() {
    return [](std::uint32_t number) -> Atomic<std::uint32_t>& { return spans_[number].pool_link; };
  }
  static std::uint32_t take_pooled(unsigned c, unsigned core);
  static std::size_t alignment_of(unsigned c) { return std::size_t{1} << kClassTable[c].order; }
  static std::uint32_t take_open(unsigned c, Reuse reuse);
  static std::uint32_t take_warm_or_open(unsigned c, unsigned core);
  static std::uint32_t take_anyhow(std::size_t granules, std::size_t alignment, bool& zero);
  static std::uint32_t as_span(unsigned c, std::uint32_t number, bool zero);
  static void set_order(std::uint32_t number, unsigned order);
  static bool records_reach(std::size_t end);
  static void drain_pool();
  static void recover_in_child();
  static void put_right();
  static bool vanished_threads_were_inside(std::uint32_t survivor);
  static void find_what_vanished_threads_had(std::uint32_t survivor);
  static void bury_vanished_thread(Lab& lab);
  static void lose_hot_span(std::uint32_t number);

  static inline constinit Arena arena_;
  static inline constinit GrowingTable<Span> spans_;  // grown under the arena's lock
  static inline constinit GrowingTable<Lab> labs_;
  static inline constinit Pool pool_;

  static inline constinit SpinLock registry_lock_;        // start, LAB numbers, growth of the table of LABs
  static inline constinit SpinLock purge_lock_;           // whoever purges or ages
  static inline constinit std::uint32_t orphanages_ = 1;  // constant after start
  static inline constinit Atomic<std::uint32_t> end_of_labs_{0};  // written under the registry lock
  static inline constinit std::uint32_t lab_capacity_ = 0;
  static inline constinit std::uint32_t free_lab_ = 0;
  static inline constinit Atomic<std::size_t> known_end_{0};  // written under the arena's lock
  static inline constinit Atomic<std::uint32_t> started_{0};
  static inline constinit Atomic<std::size_t> live_labs_{0};
  static inline constinit Atomic<std::size_t> lost_to_fork_{0};
  static inline constinit Atomic<std::uint32_t> inside_without_lab_{0};
  // Read by every slow path, written in a fork's child only.
  static inline constinit Atomic<std::uint32_t> recovery_is_due_{0};
  static inline constinit bool lists_repaired_ = false;  // in a child, before its recovery
  static inline constinit Atomic<std::uint64_t> next_purge_{0};
  static inline constinit std::uint64_t decay_ms_ = 0;  // constant after start
  static inline constinit Turn victims_;
  static inline constinit Orphans orphans_;
};

}  // namespace spanalloc::standard

#include "engines/virtual_span/standard/heap_impl.hpp"
