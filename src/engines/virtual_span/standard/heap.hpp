// The process-wide half of the engine: arena, span records, LABs, span-pool, and what moves between them.
//
//   frontend.hpp (per thread)  ->  span_protocol.hpp (per LAB, locks)  ->  Heap::take_span / put_in_pool
//                                                                            -> pool (lock-free) -> BumpArena
//
// Memory of a free span is dirty (it was used, it is warm, reusing it costs nothing) or zero (fresh or
// purged). A miss looks for dirty memory first: same size at this core, at other cores, then larger spans,
// which it splits; then for zero memory in the same order; then in the arena. Dirty spans that nobody wanted
// for the decay time are purged by whoever passes by a slow path (there is no background thread).
//
// Split spans are merged again (buddies, as in a binary buddy system) before the arena is asked: not at every
// free, but once enough has been taken fresh to pay for a walk over the pool, and always before memory is
// reported to be out. So memory freed at one size serves larger ones, warm as it is, and large requests
// cannot drain the arena into small spans.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/poison.hpp"
#include "engines/virtual_span/span_pool.hpp"
#include "engines/virtual_span/standard/config.hpp"
#include "engines/virtual_span/standard/page_layer.hpp"
#include "engines/virtual_span/standard/span.hpp"
#include "engines/virtual_span/standard/span_protocol.hpp"
#include "engines/virtual_span/standard/thread_state.hpp"
#include "os/os.hpp"
#include "pages/growing_table.hpp"
#include "sync/spin_lock.hpp"
#include "thread/lifecycle.hpp"

namespace spanalloc::standard {

/// A local allocation buffer: what one thread allocates from. Its hot lists of small classes stand in the
/// thread's own memory (frontend.hpp). Lives in a table for ever; its number is what spans call their owner.
struct Lab : LabLists<kClasses> {
  std::uint32_t number = 0;                 ///< constant
  std::uint32_t next_free = 0;              ///< registry lock, while unused
  Atomic<std::uint32_t> alive{0};           ///< written by the owner
  Atomic<std::uint32_t> hot[kFirstSingle];  ///< written by the owner: hot span of each class, 0: none
  Block* head[kLabClasses] = {};            ///< owner: hot lists of classes above kThreadClasses
};

class Heap {
 public:
  using Lists = LabLists<kClasses>;
  using Protocol = SpanProtocol<Heap>;

  // --- World of the protocol ----------------------------------------------------------------------------
  static Span& span(std::uint32_t number) { return spans_[number]; }
  static Lists& lab(std::uint32_t number) { return labs_[number]; }
  static std::uint32_t capacity(unsigned size_class) { return kClassTable[size_class].blocks; }
  static std::uint32_t reuse_outstanding(unsigned c) { return kClassTable[c].reuse_outstanding; }
  [[noreturn]] static void corrupted(std::uint32_t number) {
    os::fatal("more blocks were freed than allocated (double free) in the span at", address(number));
  }
  /// A claimed span (word: free) goes to this thread's core's stack.
  static void put_in_pool(std::uint32_t number);

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
  /// The record of the span that holds address `a`; its first granule's number in `number`.
  static Span& span_of_granule(std::size_t granule, std::uint32_t& number) {
    number = first_granule(granule);
    return spans_[number];
  }
  /// The first granule of the span that holds granule `number`.
  static std::uint32_t first_granule(std::size_t number) {
    return static_cast<std::uint32_t>(number & ~((std::size_t{1} << spans_[number].order) - 1));
  }

  /// A free span of 2^order granules for the caller alone; 0: out of memory. `core`: whose stack to try
  /// first.
  static std::uint32_t take_span(unsigned order, unsigned core);

  /// Memory is out: gives up what free spans hold, their address space's charge included.
  static void close_free_spans();

  // --- LABs ---------------------------------------------------------------------------------------------
  /// An unused LAB, marked alive; nullptr when there is none left.
  static Lab* take_lab();
  static void return_lab(Lab* lab);
  static Lab& lab_at(std::uint32_t number) { return labs_[number]; }
  /// LABs ever used are 1 .. lab_count(). For walks; takes the registry lock.
  static std::uint32_t lab_count() {
    LockGuard guard(registry_lock_);
    return labs_used_;
  }
  static unsigned core_of(std::uint32_t lab_number) { return dirty_.core_of(lab_number); }

  // --- Returning memory ---------------------------------------------------------------------------------
  /// Purges every dirty free span. Returns bytes purged.
  static std::size_t purge_all_free();
  /// Purges what has been free for the decay time; a bounded part of it at a call, at most once per half
  /// decay time unless there is more.
  static void purge_by_decay(std::uint64_t now);
  /// Claims what other LABs' owners have not noticed to be empty; looks at up to `at_most` LABs, in turn.
  static std::uint32_t steal_from_sleeping_labs(std::uint32_t at_most);

  // --- Fork ---------------------------------------------------------------------------------------------
  static void lock_for_fork();
  static void unlock_in_parent();
  /// `survivor`: the calling thread's LAB number or 0. Other LABs' threads are gone.
  static void recover_in_child(std::uint32_t survivor);

  static LargeSource& large() { return large_; }
  static std::size_t spans_lost_to_fork() { return lost_to_fork_.load_relaxed(); }
  static std::size_t live_labs() { return live_labs_.load_relaxed(); }

 private:
  friend struct Census;
  using Pool = SpanPool<kOrders>;

  static constexpr std::uint8_t kMarkHeld = 128;  // Span::mark of a span that merge_free_spans holds

  // LABs that a pool miss looks at: a thousand sleeping threads must not make every fresh span expensive.
  static constexpr std::uint32_t kVictimsAMiss = 16;
  // Spans that one free may purge: a bound on its time.
  static constexpr std::size_t kPurgesARound = 256;

  static bool start_slow();
  static bool start_locked();
  static auto links() {
    return [](std::uint32_t number) -> Atomic<std::uint32_t>& { return spans_[number].pool_link; };
  }
  template <class Visit>
  static void for_each_stack(Visit&& visit) {
    for (unsigned order = 0; order < kOrders; ++order) {
      for (unsigned core = 0; core < dirty_.cores(); ++core) {
        visit(dirty_, order, core);
        visit(zero_, order, core);
      }
    }
  }
  static std::uint32_t take_exact(Pool& pool, unsigned order, unsigned core);
  static std::uint32_t take_larger(Pool& pool, unsigned order, unsigned core);
  static bool may_hold_larger(const Pool& pool, unsigned order);
  static std::uint32_t reopened(std::uint32_t number, unsigned order, unsigned core);
  static std::uint32_t take_pooled(unsigned order, unsigned core);
  static std::uint32_t take_merged(unsigned order, unsigned core);
  static void split(Pool& pool, std::uint32_t number, unsigned from, unsigned to, unsigned core);
  static std::uint32_t take_fresh(unsigned order);
  static void set_order(std::uint32_t number, unsigned order);
  static bool purge_span(std::uint32_t number);
  static std::size_t purge_stack(unsigned order, unsigned core, std::uint64_t deadline, std::size_t& budget);
  static std::size_t purge_free_before(std::uint64_t deadline, std::size_t& budget);
  static void merge_free_spans();
  static std::uint32_t merge_buddies(std::uint32_t list, unsigned order, std::uint32_t& kept);

  static inline constinit SpanSource arena_;
  static inline constinit GrowingTable<Span> spans_;
  static inline constinit GrowingTable<Lab> labs_;
  static inline constinit Pool dirty_;
  static inline constinit Pool zero_;
  static inline constinit LargeSource large_;

  static inline constinit SpinLock registry_lock_;  // start, LAB numbers, and growth of the tables
  // Whoever takes stacks apart or changes a span's order: splitting, merging, purging, closing. So a fork
  // finds each free span in a stack or in the hands of a thread that was just taking or putting it.
  static inline constinit SpinLock walk_lock_;
  static inline constinit bool single_threaded_at_fork_ = false;      // registry lock
  static inline constinit Atomic<std::size_t> merge_pays_after_{16};  // fresh granules
  static inline constinit Atomic<std::size_t> fresh_since_merge_{0};  // granules
  static inline constinit Atomic<std::uint32_t> next_victim_{0};
  static inline constinit std::uint32_t labs_used_ = 0;
  static inline constinit std::uint32_t lab_capacity_ = 0;
  static inline constinit std::uint32_t free_lab_ = 0;
  static inline constinit Atomic<std::size_t> known_end_{0};  // written under the registry lock
  static inline constinit Atomic<std::uint32_t> started_{0};
  static inline constinit Atomic<std::size_t> live_labs_{0};
  static inline constinit Atomic<std::size_t> lost_to_fork_{0};
  static inline constinit Atomic<std::uint64_t> next_purge_{0};
  static inline constinit std::uint64_t decay_ms_ = 0;  // constant after start
};

}  // namespace spanalloc::standard

#include "engines/virtual_span/standard/heap_impl.hpp"
