// The memory of a heap: the arena with its records, and tables of caches and maps.
//
// A process has one page layer for each engine's default heap; tests own theirs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "os/os.hpp"
#include "standard/blocks_outside.hpp"
#include "standard/cache_table.hpp"
#include "standard/heap_storage.hpp"
#include "standard/map_table.hpp"
#include "standard/memory_return.hpp"
#include "standard/partial_purge.hpp"
#include "standard/span_table.hpp"
#include "thread/lifecycle.hpp"

namespace spanalloc::standard {

/// All functions but destroy() are thread-safe. Constant-initialised.
template <class Config>
class PageLayer : public thread::ForkWatch, public SpanTable<Config> {
 public:
  using Classes = SizeClasses<Config>;
  using CacheRecord = standard::CacheRecord<Config>;
  using Heap = standard::Heap<Config>;
  using Spans = SpanTable<Config>;
  using Spans::address, Spans::arena, Spans::first_of, Spans::slices_of;
  using typename Spans::Arena;

  /// A fork's child calls `put_right` first of all; a thread calls `at_misuse` before it reports a
  /// misuse; see fork_recovery.hpp. `background`: the body of the background thread, if there may
  /// be one: such a layer is never destroyed. `tell`: see description.hpp.
  constexpr PageLayer(Heap& its_heap, void (*put_right)(thread::ForkWatch*),
                      void (*at_misuse)(thread::ForkWatch*) = nullptr,
                      void (*background)() = nullptr,
                      bool (*tell)(thread::ForkWatch*, const void*, os::AddressFacts&) = nullptr)
      : thread::ForkWatch{put_right, at_misuse, tell},
        heap(its_heap),
        memory_return(*this, background),
        caches(*this),
        maps(*this) {}

  // --- Start and end -----------------------------------------------------------------------------

  /// Finds places for the arena and the tables, and begins the heap; idempotent. False: no address
  /// space, or no memory.
  bool start() {
    if (SPANALLOC_LIKELY(is_started())) return true;
    return start_slow();
  }
  // Acquire: the tables' addresses
  bool is_started() const { return started_.load_acquire() != 0; }

  /// Gives all memory back, with every block that is still out. Nobody uses the heap or a block of
  /// it, now or later, and no thread that has used it is about to end.
  void destroy() {
    thread::unwatch_forks(*this);
    Spans::destroy();
    outside.destroy();
    caches.destroy();
    maps.destroy();
    storage_.destroy();
    started_.store_relaxed(0);
  }

  void give(SpanRef span, bool zero = false) {
    forget_pages_gone(span);
    const std::uint32_t first = index_of(span.number);
    if (!Classes::has_one_block(span->class_id())) return arena.give(first, zero);
    const SliceCount slices = slices_of(span);
    memory_return.note_idle_given(span);
    arena.give(first, zero);
    memory_return.dirty_bound.given(slices.count, zero);  // when a purge can find it
  }

  /// Of a free span that is about to be something else: all its pages count again.
  void forget_pages_gone(SpanRef span) {
    if (SPANALLOC_UNLIKELY(span->gone != 0)) memory_return.forget_gone(*span.record);
    if (SPANALLOC_UNLIKELY(span->purged() != 0)) memory_return.forget_purged(*span.record);
  }

  // --- What the protocol asks --------------------------------------------------------------------

  static std::uint32_t capacity(ClassId c) { return Classes::info(c).blocks; }
  std::uint32_t purged_blocks(SpanRef span) const {
    const ClassInfo& info = Classes::info(span->class_id());
    return count_purged(span->purged(), info, span->carved());
  }
  PartialPurge partial_purge_of(SpanRef span) {
    return PartialPurge(*span.record, address(span.number), Classes::info(span->class_id()));
  }
  /// In a fork's child, of an abandoned span.
  SPANALLOC_COLD void unlink_purged(SpanRef span, BlockOffset remotes) {
    partial_purge_of(span).unlink_purged(first_of(span, remotes));
  }
  /// In a fork's child, of a current span of a vanished thread.
  SPANALLOC_COLD void clear_links_of_purged(SpanRef span) {
    partial_purge_of(span).clear_links_of_purged();
  }
  /// For the new owner of a span: ends its lists before the first purged block.
  /// Returns the remote list.
  SPANALLOC_INLINE BlockOffset cut_lists(SpanRef span, BlockOffset remotes) {
    if (SPANALLOC_LIKELY(span->purged() == 0)) return remotes;
    return cut_lists_slow(span, remotes);
  }
  /// How many blocks a list of an abandoned span has; more than the span has: the list is damaged.
  std::uint32_t list_length(SpanRef span, Block* list) {
    const ClassInfo& info = Classes::info(span->class_id());
    if (SPANALLOC_UNLIKELY(span->purged() != 0))
      return partial_purge_of(span).length(list, info.blocks);
    const ListLength length = length_of(list, info.virtual_span, info.blocks);
    return length.whole ? length.blocks : info.blocks + 1;
  }
  [[noreturn]] void corrupted(SpanRef span) const {
    os::fatal_of_range("more blocks were freed than allocated (double free) in the span at",
                       address(span.number));
  }
  /// The free blocks that its thread has left are not as they were left.
  [[noreturn]] void damaged(SpanRef span) const {
    os::fatal_of_range("free list overwritten (write after free, or double free) at",
                       address(span.number));
  }
  bool is_mine(CacheNumber number) { return caches.is_mine(caches[number]); }
  void hide_from_owner(CacheNumber owner, SpanRef span) {
    maps.hide_from_owner(caches[owner], span);
  }
  /// In a fork's child: no span is shown, or in a queue.
  SPANALLOC_COLD void forget_marks() {
    for (std::uint32_t n = 1; n < index_of(this->end_of_spans()); ++n) {
      if (!this->has_record(SpanNumber{n})) continue;
      const SpanRef span = this->span(SpanNumber{n});
      if (span->abandoned_link.load_relaxed() != 0) heap.abandoned.forget(span);
      if (span->away_link.load_relaxed() != 0) span->away_link.store_relaxed(0);
      if (span->is_queued()) span->set_queued(false);
    }
  }
  bool show_abandoned(SpanRef span) { return heap.abandoned.show(span); }
  SpanRef take_abandoned(ClassId c, CacheNumber me) { return heap.abandoned.take(c, index_of(me)); }
  SpanRef take_any_abandoned() { return heap.abandoned.take_any(); }

  /// Makes place n of a table beside the arena. If it is refused memory, decommits the arena's free
  /// memory and tries again.
  template <class Table>
  SPANALLOC_COLD TableReach reach_place(Table& table, std::size_t n) {
    const TableReach reach = table.reach(n, n + 1);
    const bool refused = reach.end == n && reach.next == n;
    return refused && memory_return.make_room_for_table() ? table.reach(n, n + 1) : reach;
  }

  // --- What it consists of -----------------------------------------------------------------------

  Heap& heap;
  BlocksOutside<Config> outside;
  MemoryReturn<Config> memory_return;
  CacheTable<Config> caches;
  MapTable<Config> maps;
  // For a fork's child; see fork_recovery.hpp.
  /// Calls that have entered a heap without a cache,
  Atomic<std::uint32_t> inside_without_cache{0};
  /// If they began in this SpinLock::generation() or later
  std::uint16_t counted_since = 0;
  static constexpr std::uint32_t kRecoveryIsDue = 1;  ///< to be done while the child has one thread
  static constexpr std::uint32_t kAbandonIsDue = 2;   ///< may be done at any time
  /// Read by every slow path, written in a fork's child only
  Atomic<std::uint32_t> recovery_is_due{0};
  WakingLock start_lock;   ///< guards the start of the layer, and the heap's first cache
  WakingLock tables_lock;  ///< guards changes of `maps`

 private:
  SPANALLOC_COLD BlockOffset cut_lists_slow(SpanRef span, BlockOffset remotes) {
    return partial_purge_of(span).cut_lists(first_of(span, remotes))->is_end() ? BlockOffset::kNone
                                                                               : remotes;
  }
  SPANALLOC_COLD bool start_slow() {
    // First, because a fork may find another thread in the middle of this. Here rather
    // than in the library's constructor, because a static library, or an engine in a test,
    // has none and forks, too.
    thread::watch_forks(*this);
    LockGuard guard(start_lock);
    if (started_.load_relaxed() != 0) return true;
    link_key.choose(os::random_bits());
    if (!Spans::start() || !caches.start() || !begin_heap()) return false;
    memory_return.start();
    started_.store_release(1);  // release: pairs with is_started()
    return true;
  }

  SPANALLOC_COLD bool begin_heap() {
    // The second place is for a foreign mapping in the first one.
    if (!storage_.start(kPlaces, arena.table_region())) return false;
    TableReach reach;
    for (std::size_t n = 0; n < kPlaces; n = reach.next) {
      reach = storage_.reach(n, n + 1);
      if (reach.end != n) {
        heap.begin(storage_[n]);
        return true;
      }
      if (reach.next == n) break;
    }
    return false;
  }

  static constexpr std::size_t kPlaces = 2;
  FrontedTable<HeapStorage<Config>, 1> storage_;  // grown under start_lock
  Atomic<std::uint32_t> started_{0};
};

}  // namespace spanalloc::standard
