// The memory that heaps share: one arena, and beside it tables of span records, of
// caches, and of what heaps keep.
//
// There is one base address and one table, so that any pointer leads to its span's record by one
// subtraction and one comparison, whichever heap it belongs to; the record names the heap. Up to
// kMostHeaps heaps share a page layer's memory: what one gives back serves all. A process has one
// page layer for its default heaps; tests own theirs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engines/standard/blocks_outside.hpp"
#include "engines/standard/cache_table.hpp"
#include "engines/standard/heap_table.hpp"
#include "engines/standard/map_table.hpp"
#include "engines/standard/memory_return.hpp"
#include "engines/standard/partial_purge.hpp"
#include "os/os.hpp"
#include "pages/coalescing_arena.hpp"
#include "thread/lifecycle.hpp"

namespace spanalloc::standard {

/// All functions but destroy() are thread-safe. Zero-initialised but for the functions it is given.
template <class Config>
class PageLayer : public thread::ForkWatch {
 public:
  using Classes = SizeClasses<Config>;
  using CacheRecord = standard::CacheRecord<Config>;
  using Lists = SpanLists<Classes::kSmallClasses>;
  using Heap = standard::Heap<Config>;
  using Arena = CoalescingArena<Config::kSliceBits, Config::kHugePages>;

  /// A fork's child calls `put_right` first of all; a thread calls `at_misuse` before it reports a
  /// misuse; see fork_recovery.hpp. `background`: the body of the background thread, if there may
  /// be one: such a layer is never destroyed.
  constexpr explicit PageLayer(void (*put_right)(thread::ForkWatch*),
                               void (*at_misuse)(thread::ForkWatch*) = nullptr,
                               void (*background)() = nullptr)
      : thread::ForkWatch{put_right, at_misuse},
        memory_return(*this, background),
        caches(*this),
        heaps(*this),
        maps(*this) {}

  // --- Start and end -----------------------------------------------------------------------------

  /// Finds places for the arena and the tables; idempotent. False: no address space, or no memory.
  bool start() {
    if (SPANALLOC_LIKELY(is_started())) return true;
    return start_slow();
  }
  // Acquire: the tables' addresses
  bool is_started() const { return started_.load_acquire() != 0; }

  /// Gives all memory back. Its heaps have been destroyed, and nobody uses it.
  void destroy() {
    thread::unwatch_forks(*this);
    arena.destroy();
    outside.destroy();
    spans_.destroy();
    caches.destroy();
    maps.destroy();
    heaps.destroy();
    known_end_.store_relaxed(0);
    plain_end_.store_relaxed(0);
    started_.store_relaxed(0);
  }

  // --- Records -----------------------------------------------------------------------------------

  SPANALLOC_INLINE SpanRef span(SpanNumber number) { return {&spans_[index_of(number)], number}; }
  SPANALLOC_INLINE char* address(SpanNumber number) const {
    return pointer_to<char>(arena.base() + (std::size_t{index_of(number)} << Config::kSliceBits));
  }
  /// Which slice of the arena `a` lies in. An address outside gives a number that no slice has.
  SPANALLOC_INLINE std::size_t slice_of(std::uintptr_t a) const {
    return (a - arena.base()) >> Config::kSliceBits;  // below the base: wraps to a huge number
  }
  /// Whether the slice has a record. Records reach to where the arena has handed slices out, or to
  /// the first gap among them. (Slice 0 is never handed out; its record says so.) Relaxed: a thread
  /// that holds a live block got it after the record was made.
  SPANALLOC_INLINE bool has_plain_slice(std::size_t number) const {
    return SPANALLOC_LIKELY(number < plain_end_.load_relaxed());
  }
  /// The record of the slice that `a` lies in, if it has one; also behind gaps,
  /// where foreign mappings are.
  SpanRef any_slice_at(std::uintptr_t a) {
    const std::size_t number = slice_of(a);
    if (number >= known_end_.load_relaxed()) return {};
    const SpanNumber slice{static_cast<std::uint32_t>(number)};
    return has_record(slice) ? span(slice) : SpanRef{};
  }
  /// The record of the span that a slice belongs to.
  SpanRef span_of(SpanRef slice) {
    return span(SpanNumber{index_of(slice.number) & ~((1u << slice->order()) - 1)});
  }
  /// Slices below this have records, but for gaps. Acquire: the table is open so far.
  SpanNumber end_of_spans() const {
    return SpanNumber{static_cast<std::uint32_t>(known_end_.load_acquire())};
  }
  /// Asked of a number below end_of_spans(). False: a foreign mapping is in the record's place.
  bool has_record(SpanNumber number) const { return spans_.has(index_of(number)); }
  /// The arena calls it under its lock before it hands out slices below `end`: makes their records.
  auto records_reach() {
    return [this](std::size_t end) { return make_records(end); };
  }
  /// The link from a free span to the next one in its stack of a pool.
  auto pool_links() {
    return [this](SpanNumber number) -> Atomic<std::uint32_t>& { return span(number)->pool_link; };
  }

  SliceCount slices_of(SpanRef span) const { return {arena.count_of(index_of(span.number))}; }
  void give(SpanRef span, bool zero = false) {
    if (Classes::has_one_block(span->class_id()))
      memory_return.note_given(span, slices_of(span), zero);
    arena.give(index_of(span.number), zero);
  }

  // --- What the protocol asks --------------------------------------------------------------------

  SPANALLOC_INLINE Lists& cache(CacheNumber number) { return caches[number]; }
  static std::uint32_t capacity(ClassId c) { return Classes::info(c).blocks; }
  static std::uint32_t partial_outstanding(ClassId c) {
    return Classes::info(c).partial_outstanding;
  }
  Block* block_at_offset(SpanRef span, BlockOffset mark) const {
    return reinterpret_cast<Block*>(address(span.number) + offset_of_block(mark));
  }
  BlockOffset offset_of(SpanRef span, const void* block) const {
    return as_block_offset(address_of(block) - address_of(address(span.number)));
  }
  /// Where a list of the span begins, or no_block().
  Block* first_of(SpanRef span, BlockOffset list) const {
    return list == BlockOffset::kNone ? no_block() : block_at_offset(span, list);
  }
  std::uint32_t purged_blocks(SpanRef span) const {
    const ClassInfo& info = Classes::info(span->class_id());
    return count_purged(span->purged(), info.block_size, span->carved());
  }
  /// In a fork's child, under the lock of the span's owner.
  SPANALLOC_COLD void unlink_purged(SpanRef span, BlockOffset remotes) {
    partial_purge_of(span).unlink_purged(first_of(span, remotes),
                                         !is_mine(span->load_word().owner()));
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
  /// How many blocks a list of a shared span has; more than the span has: the list is damaged.
  std::uint32_t list_length(SpanRef span, Block* list) {
    return partial_purge_of(span).length(list, Classes::info(span->class_id()).blocks);
  }
  /// Purges what it can of a shared span's pages, under the lock of its owner
  /// `cache`. Returns the cost.
  SPANALLOC_COLD std::uint32_t purge_pages(SpanRef span, const Lists& cache, SpanWord word) {
    const bool still = cache.is_abandoned_list() || is_mine(word.owner());
    Block* const remotes = first_of(span, word.head());
    return partial_purge_of(span).purge_pages(
        remotes, still, os::page_size(), [&](char* at, std::size_t bytes) {
          const bool purged =
              arena.purge_part(index_of(span.number), std::size_t{1} << span->order(), at, bytes);
          if (purged) memory_return.note_purged(bytes);
          return purged;
        });
  }
  [[noreturn]] void corrupted(SpanRef span) const {
    os::fatal("more blocks were freed than allocated (double free) in the span at",
              address(span.number));
  }
  bool is_mine(CacheNumber number) { return caches.is_mine(caches[number]); }
  CacheNumber end_of_caches() const { return caches.end(); }
  bool has_cache(CacheNumber number) const { return caches.has(number); }
  void hide_from_owner(Lists& cache, SpanRef span) {
    maps.hide_from_owner(static_cast<CacheRecord&>(cache), span);
  }
  bool is_torn(CacheNumber number) { return caches[number].torn; }
  void set_torn(CacheNumber number, bool torn) { caches[number].torn = torn; }
  void note_repair() { lists_repaired = true; }

  /// The heap that a span in use belongs to.
  Heap& heap_of(SpanRef span) { return heaps[span->heap()]; }
  /// Makes place n of a table beside the arena. If it is refused memory, decommits the arena's free
  /// memory and tries again.
  template <class Table>
  SPANALLOC_COLD TableReach reach_place(Table& table, std::size_t n) {
    const TableReach reach = table.reach(n, n + 1);
    const bool refused = reach.end == n && reach.next == n;
    return refused && memory_return.make_room_for_table() ? table.reach(n, n + 1) : reach;
  }

  // --- Shared by the heaps -----------------------------------------------------------------------

  Arena arena;
  BlocksOutside<Config> outside;
  MemoryReturn<Config> memory_return;
  CacheTable<Config> caches;
  HeapTable<Config> heaps;
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
  bool lists_repaired = false;  ///< in a child, before its recovery
  WakingLock start_lock;        ///< guards the start of the layer, and of each heap
  WakingLock tables_lock;       ///< guards changes of `heaps` and `maps`, and slots of `caches`

 private:
  SPANALLOC_COLD BlockOffset cut_lists_slow(SpanRef span, BlockOffset remotes) {
    return partial_purge_of(span).cut_lists(first_of(span, remotes))->is_end() ? BlockOffset::kNone
                                                                               : remotes;
  }
  PartialPurge partial_purge_of(SpanRef span) {
    return PartialPurge(*span.record, address(span.number), Classes::info(span->class_id()));
  }
  SPANALLOC_COLD bool start_slow() {
    // First, because a fork may find another thread in the middle of this. Here rather
    // than in the library's constructor, because a static library, or an engine in a test,
    // has none and forks, too.
    thread::watch_forks(*this);
    LockGuard guard(start_lock);
    if (started_.load_relaxed() != 0) return true;
    link_key.choose(os::random_bits());
    // The arena must be aligned like the spans of several blocks, whatever the page size.
    if (!arena.start(Classes::kSlice << Config::kMaxOrder)) return false;
    if (!spans_.start(arena.capacity(), &arena.table_region()) || !spans_.ensure(1)) return false;
    if (!caches.start()) return false;
    memory_return.start();
    started_.store_release(1);  // release: pairs with is_started()
    return true;
  }

  SPANALLOC_COLD TableReach make_records(std::size_t end) {
    // The arena's limit may lie behind `known`: the arena skips slices whose
    // records could not be made.
    const std::size_t known = known_end_.load_relaxed();
    const TableReach reach = spans_.reach(max_of(known, arena.limit()), end);
    if (reach.end <= known) return reach;
    // Release: the table is open so far
    if (spans_.is_without_gaps()) plain_end_.store_release(reach.end);
    // Release: the table is open so far
    known_end_.store_release(reach.end);
    return reach;
  }

  GrowingTable<Span> spans_;          // grown under the arena's lock
  Atomic<std::size_t> known_end_{0};  // written under the arena's lock: records end here
  Atomic<std::size_t> plain_end_{0};  // written under the arena's lock: their first gap
  Atomic<std::uint32_t> started_{0};
};

}  // namespace spanalloc::standard
