// The memory that heaps share: one arena, and beside it tables of span records, of
// caches, and of what heaps keep.
//
// There is one base address and one table, so that any pointer leads to its span's record by one
// subtraction and one comparison, whichever heap it belongs to; the record names the heap. Up to
// kMaxHeaps heaps share a page layer's memory: what one gives back serves all. A process has one
// page layer for its default heaps; tests own theirs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "engines/standard/cache_record.hpp"
#include "engines/standard/heap_storage.hpp"
#include "engines/standard/memory_return.hpp"
#include "engines/standard/numbers.hpp"
#include "engines/standard/partial_purge.hpp"
#include "engines/standard/size_classes.hpp"
#include "engines/standard/span.hpp"
#include "engines/standard/span_placement.hpp"
#include "os/os.hpp"
#include "pages/coalescing_arena.hpp"
#include "pages/growing_table.hpp"
#include "pages/large_objects.hpp"
#include "sync/spin_lock.hpp"
#include "thread/lifecycle.hpp"
#include "thread/record_registry.hpp"

namespace spanalloc::standard {

template <class Config>
class Heap;

/// All functions but destroy() are thread-safe. Zero-initialised but for the functions it is given.
template <class Config>
class PageLayer : public thread::ForkWatch {
 public:
  using Classes = SizeClasses<Config>;
  using CacheRecord = standard::CacheRecord<Config>;
  using Lists = SpanLists<Classes::kSmallClasses>;
  using Heap = standard::Heap<Config>;
  using Arena = CoalescingArena<Config::kSliceBits, Config::kHugePages>;

  static constexpr unsigned kMaxHeaps = 1024;
  /// A thread has one for each heap that it uses.
  static constexpr std::uint32_t kMaxCaches = 1u << 18;
  /// Threads beyond these find their own spans by the records alone, which takes longer.
  static constexpr std::size_t kMaxMaps = 1u << 14;

  /// A fork's child calls `put_right` first of all; a thread calls `at_misuse` before it reports a
  /// misuse; see fork_recovery.hpp. `background`: the body of the background thread, if there may
  /// be one: such a layer is never destroyed.
  constexpr explicit PageLayer(void (*put_right)(thread::ForkWatch*),
                               void (*at_misuse)(thread::ForkWatch*) = nullptr,
                               void (*background)() = nullptr)
      : thread::ForkWatch{put_right, at_misuse}, memory_return(*this, background) {}

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
    caches_.destroy();
    slots_.destroy();
    maps_.destroy();
    end_of_maps_ = 0;
    storages_.destroy();
    cache_registry_.destroy();
    end_of_caches_.store_relaxed(0);
    known_end_.store_relaxed(0);
    plain_end_.store_relaxed(0);
    first_heap_.store_relaxed(nullptr);
    more_heaps_.destroy();
    end_of_heaps_.store_relaxed(0);
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
    return span(SpanNumber{index_of(slice.number) & ~((1u << slice->order) - 1)});
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

  // --- Blocks outside the arena ------------------------------------------------------------------

  /// How many bytes a block outside gets that needs `bytes`: more, because a block that grows will
  /// grow again. The room takes no memory before it is used. At a limit others need it.
  std::size_t with_room(std::size_t bytes) const {
    return arena.is_at_limit() ? bytes : bytes + bytes / 4;
  }
  /// False: p is no such block, and nothing has changed.
  SPANALLOC_COLD bool free_outside(void* p) {
    const std::size_t bytes = outside.free(p);
    if (bytes == 0) return false;
    comes_back_from_outside(bytes);
    return true;
  }
  /// Notes, for a few decay epochs, that the program frees blocks outside of this size.
  void comes_back_from_outside(std::size_t bytes) {
    // Relaxed: a hint; a lower value may win.
    const std::size_t most = min_of(bytes, kMostThatComesBack);
    if (most > came_back_.load_relaxed()) came_back_.store_relaxed(most);
  }
  std::size_t came_back_from_outside() const { return came_back_.load_relaxed(); }
  void forget_some_that_came_back() {
    if (came_back_.load_relaxed() != 0) came_back_.store_relaxed(came_back_.load_relaxed() / 2);
  }
  /// Larger blocks do not count: for them memory matters more than time.
  static constexpr std::size_t kMostThatComesBack = 32 * kMiB;

  // --- What the protocol asks --------------------------------------------------------------------

  SPANALLOC_INLINE Lists& cache(CacheNumber number) { return caches_[index_of(number)]; }
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
    return count_purged(span->purged.load_relaxed(), info.block_size, span->carved.load_relaxed());
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
    if (SPANALLOC_LIKELY(span->purged.load_relaxed() == 0)) return remotes;
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
              arena.purge_part(index_of(span.number), std::size_t{1} << span->order, at, bytes);
          if (purged) memory_return.note_purged(bytes);
          return purged;
        });
  }
  [[noreturn]] void corrupted(SpanRef span) const {
    os::fatal("more blocks were freed than allocated (double free) in the span at",
              address(span.number));
  }
  bool is_mine(CacheNumber number) const {
    const CacheRecord& cache = caches_[index_of(number)];
    return cache.thread.load_relaxed() == address_of(os::thread_id()) &&
           cache.forks.load_relaxed() == forks;
  }
  /// The cache's thread has vanished in a fork, and nobody has taken its spans over yet; see
  /// fork_recovery.hpp. Acquire: sees the `forks` that the thread wrote when it took the cache.
  bool has_vanished(const CacheRecord& cache) const {
    return cache.thread.load_acquire() != 0 && cache.forks.load_relaxed() != forks;
  }
  bool is_torn(CacheNumber number) const { return caches_[index_of(number)].torn; }
  void set_torn(CacheNumber number, bool torn) { caches_[index_of(number)].torn = torn; }
  void note_repair() { lists_repaired = true; }

  // --- Maps of threads' own spans ----------------------------------------------------------------

  /// The map that a cache has; kNoMap: none yet.
  ThreadMap& map_of(CacheRecord& cache) {
    ThreadMap* map = cache.map.load_relaxed();
    return map != nullptr ? *map : kNoMap;
  }
  /// Makes the map of a cache, for its thread; it stays with the cache for ever. kNoMap: no memory
  /// or mapping for one, or memory is locked, so that all of the map would be resident at once.
  SPANALLOC_COLD ThreadMap& make_map(CacheRecord& cache) {
    if (os::memory_is_locked()) return kNoMap;
    LockGuard guard(heaps_lock_);
    if (!maps_.start(kMaxMaps, arena.table_region())) return kNoMap;
    TableReach reach;
    for (; end_of_maps_ < kMaxMaps; end_of_maps_ = reach.next) {
      reach = maps_.reach(end_of_maps_, end_of_maps_ + 1);
      if (reach.end != end_of_maps_) {
        MapPlace& place = maps_[end_of_maps_++];
        if (forbids_huge_maps()) os::forbid_huge_pages(&place, sizeof place);
        ThreadMap& map = place.map;
        cache.map.store_release(&map);  // release: pairs with has_left()
        return map;
      }
      // A foreign mapping in the way is stepped over. What is refused now may be
      // granted to a later thread.
      if (reach.next == end_of_maps_) {
        // Threads can do without maps; the heap needs its mappings to grow
        maps_.give_reservation_back();
        break;
      }
    }
    return kNoMap;
  }
  /// The thread that has the map: from now on its frees of the span's blocks find this target. For
  /// a span of its own that is the record; the thread sets it when it becomes the owner, and when
  /// it finds it overwritten.
  void show_in_map(ThreadMap& map, SpanRef span, FreeTarget& target) {
    if (SPANALLOC_UNLIKELY(&map == &kNoMap)) return;
    for_each_slice(span, [&](std::uintptr_t a) { map.set(a, target); });
  }
  void hide_in_map(ThreadMap& map, SpanRef span, FreeTarget& target) {
    for_each_slice(span, [&](std::uintptr_t a) { map.clear(a, target); });
  }
  /// The span was the cache's, and is nobody else's yet.
  void has_left(Lists& lists, SpanRef span) {
    ThreadMap* map =
        static_cast<CacheRecord&>(lists).map.load_acquire();  // acquire: the table is open so far
    if (map != nullptr) hide_in_map(*map, span, *span.record);
  }
  /// All spans have left the cache; its thread has vanished, or is done with the heap.
  SPANALLOC_COLD void clear_map(CacheRecord& cache) {
    ThreadMap* map = cache.map.load_relaxed();
    const bool whole_pages = sizeof(MapPlace) % os::page_size() == 0;
    if (map == nullptr || (whole_pages && os::purge(map, sizeof(MapPlace)))) return;
    for (Atomic<std::uint64_t>& entry : map->entries) {
      if (entry.load_relaxed() != 0) entry.store_relaxed(0);
    }
  }

  // --- Cache records -----------------------------------------------------------------------------

  /// A cache record of a heap, for the calling thread or an abandoned list; nullptr
  /// when there is none left.
  SPANALLOC_COLD CacheRecord* take_cache(HeapNumber heap) {
    SPANALLOC_ASSERT(is_started());
    CacheRecord* cache = cache_registry_.take([this](bool) { return make_cache(); });
    if (cache == nullptr) return nullptr;
    SPANALLOC_ASSERT(cache->thread.load_relaxed() == 0 && !cache->is_abandoned_list() &&
                     cache->has_no_owned_span());
    // A thread that steals from other caches looks under the lock whether a
    // cache still is its heap's.
    if (cache->heap.load_relaxed() != heap) {
      LockGuard guard(cache->lock);
      cache->heap.store_relaxed(heap);
    }
    return cache;
  }
  SPANALLOC_COLD void return_cache(CacheRecord* cache) {
    SPANALLOC_ASSERT(cache->has_no_owned_span());
    cache->inside.store_relaxed(0);
    cache->thread.store_relaxed(0);
    cache_registry_.give_back(cache);
  }
  CacheRecord& cache_at(CacheNumber number) { return caches_[index_of(number)]; }
  bool has_cache(CacheNumber number) const { return caches_.has(index_of(number)); }
  /// Records with lower numbers were used at some time, but for gaps. Acquire:
  /// the table is open so far.
  CacheNumber end_of_caches() const { return CacheNumber{end_of_caches_.load_acquire()}; }
  /// False for kNobody.
  bool was_used(CacheNumber number) const { return number < end_of_caches() && has_cache(number); }
  template <class F>
  void for_each_cache(F f) {
    const std::uint32_t end = index_of(end_of_caches());
    const bool all_are_there = caches_.is_without_gaps();  // gaps before `end` were noted before it
    for (std::uint32_t number = 0; number < end; ++number) {
      if (all_are_there || caches_.has(number)) f(caches_[number]);
    }
  }
  auto& cache_registry() { return cache_registry_; }

  /// Memory for what a cache's thread keeps for a heap that is not a default
  /// one. nullptr: there is none.
  static constexpr std::size_t kSlotBytes = 1024;
  void* slot_of(CacheNumber number) {
    LockGuard guard(heaps_lock_);
    const std::size_t n = index_of(number);
    if (!slots_.start(kMaxCaches, &arena.table_region()) || reach_place(slots_, n).end == n)
      return nullptr;
    return &slots_[n];
  }

  // --- Heaps -------------------------------------------------------------------------------------

  /// Gives the heap a number, by which records name it; one that it has stays. False:
  /// kMaxHeaps heaps, or no memory.
  bool enter(Heap* heap) {
    LockGuard guard(heaps_lock_);
    for (std::uint32_t n = 0; n < end_of_heaps_.load_relaxed(); ++n) {
      if (place_of(HeapNumber{static_cast<std::uint16_t>(n)}).load_relaxed() == heap) return true;
    }
    if (!storages_.start(kMaxHeaps, arena.table_region())) return false;
    for (std::uint16_t n = 0; n < kMaxHeaps; ++n) {
      // The first heap's place is a member.
      if (n != 0 && (!more_heaps_.start(kMaxHeaps, &arena.table_region()) ||
                     !more_heaps_.ensure(n + std::size_t{1}))) {
        return false;
      }
      Atomic<Heap*>& place = place_of(HeapNumber{n});
      if (place.load_relaxed() != nullptr) continue;
      const TableReach reach = reach_place(storages_, n);
      if (reach.end == n) {
        if (reach.next == n) return false;
        continue;  // a foreign mapping is in the way: this number is nobody's
      }
      heap->take_place(HeapNumber{n}, storages_[n]);
      // Release: the table is open so far. Before the heap is in its place: a
      // fork's child looks below it.
      if (n >= end_of_heaps_.load_relaxed()) end_of_heaps_.store_release(n + 1u);
      // Release: a thread that finds the heap finds it constructed, with its number
      place.store_release(heap);
      return true;
    }
    return false;
  }
  void leave(HeapNumber number) {
    storages_[index_of(number)].forget();  // for the next heap of this number
    place_of(number).store_release(nullptr);
  }
  /// Before a misuse is reported.
  void leave_locks() {
    for (WakingLock* lock : {&start_lock, &memory_return.purge_lock, &heaps_lock_})
      lock->unlock_if_mine();
  }
  /// A fork's child calls this first of all.
  void abandon_heaps_lock() { heaps_lock_.abandon_if_owner_died(); }
  Heap& heap_at(HeapNumber number) { return *place_of(number).load_relaxed(); }
  /// For a number that may be nobody's by now.
  Heap* heap_or_none(HeapNumber number) { return place_of(number).load_acquire(); }
  /// The heap that a span in use belongs to.
  Heap& heap_of(SpanRef span) { return heap_at(span->heap.load_relaxed()); }
  template <class F>
  void for_each_heap(F f) {
    for (std::uint32_t n = 0; n < end_of_heaps_.load_acquire(); ++n) {
      if (Heap* heap = place_of(HeapNumber{static_cast<std::uint16_t>(n)}).load_acquire();
          heap != nullptr) {
        f(*heap);
      }
    }
  }

  // --- Shared by the heaps -----------------------------------------------------------------------

  Arena arena;
  /// Blocks whose pages have left the arena; their owners are the heaps' numbers.
  LargeObjects<> outside;
  MemoryReturn<Config> memory_return;
  // For a fork's child; see fork_recovery.hpp.
  /// Calls that have entered a heap without a cache,
  Atomic<std::uint32_t> inside_without_cache{0};
  /// If they began in this SpinLock::generation() or later
  std::uint16_t counted_since = 0;
  /// Forks between the first process and this one. Written while there is one thread.
  std::uint32_t forks = 0;
  static constexpr std::uint32_t kRecoveryIsDue = 1;  ///< to be done while the child has one thread
  static constexpr std::uint32_t kAbandonIsDue = 2;   ///< may be done at any time
  /// Read by every slow path, written in a fork's child only
  Atomic<std::uint32_t> recovery_is_due{0};
  bool lists_repaired = false;  ///< in a child, before its recovery
  WakingLock start_lock;        ///< guards the start of the layer, and of each heap

 private:
  // Most maps are touched in few places only.
  bool forbids_huge_maps() const {
    const HugePageUse use = arena.huge_page_use();
    if (use == HugePageUse::kNever) return true;
    return use != HugePageUse::kSystem &&
           arena.limit() << Config::kSliceBits >= PagesConfig::kLeastAdvised;
  }
  SPANALLOC_COLD BlockOffset cut_lists_slow(SpanRef span, BlockOffset remotes) {
    return partial_purge_of(span).cut_lists(first_of(span, remotes))->is_end() ? BlockOffset::kNone
                                                                               : remotes;
  }
  PartialPurge partial_purge_of(SpanRef span) {
    return PartialPurge(*span.record, address(span.number), Classes::info(span->class_id()));
  }
  Atomic<Heap*>& place_of(HeapNumber number) {
    return index_of(number) == 0 ? first_heap_ : more_heaps_[index_of(number)];
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
    if (!caches_.start(kMaxCaches, &arena.table_region())) return false;
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

  // Makes place n of a table beside the arena. If it is refused memory, decommits the arena's
  // free memory and tries again.
  template <class Table>
  SPANALLOC_COLD TableReach reach_place(Table& table, std::size_t n) {
    const TableReach reach = table.reach(n, n + 1);
    const bool refused = reach.end == n && reach.next == n;
    return refused && memory_return.make_room_for_table() ? table.reach(n, n + 1) : reach;
  }

  template <class F>
  void for_each_slice(SpanRef span, F f) {
    const std::uintptr_t first = address_of(address(span.number));
    for (std::uintptr_t i = 0; i < (1u << span->order); ++i) f(first + (i << Config::kSliceBits));
  }

  // Under the registry's lock.
  CacheRecord* make_cache() {
    const std::uint32_t number = end_of_caches_.load_relaxed();  // the next one's
    if (number >= kMaxCaches) return nullptr;
    const TableReach reach = reach_place(caches_, number);
    if (reach.end == number) {
      if (reach.next == number) return nullptr;
      // A foreign mapping is in the way: these numbers are nobody's.
      end_of_caches_.store_release(static_cast<std::uint32_t>(reach.next));
      return make_cache();
    }
    CacheRecord& cache = caches_[number];
    cache.number = CacheNumber{number};
    cache.large_spans.start(cache.number);
    end_of_caches_.store_release(number + 1);  // release: pairs with end_of_caches()
    return &cache;
  }

  GrowingTable<Span> spans_;  // grown under the arena's lock
  GrowingTable<CacheRecord> caches_;
  struct alignas(kCacheLine) Slot {
    unsigned char bytes[kSlotBytes];
  };
  GrowingTable<Slot> slots_;  // grown under heaps_lock_
  // Whole pages, where a page has 4 KiB.
  struct alignas(4 * kKiB) MapPlace {
    ThreadMap map;
  };
  FrontedTable<MapPlace, 1> maps_;  // grown under heaps_lock_
  std::size_t end_of_maps_ = 0;     // changed under heaps_lock_
  thread::RecordRegistry<CacheRecord> cache_registry_;
  Atomic<std::uint32_t> end_of_caches_{0};  // written under the registry's lock
  Atomic<std::size_t> known_end_{0};        // written under the arena's lock: records end here
  Atomic<std::size_t> plain_end_{0};        // written under the arena's lock: their first gap
  Atomic<std::uint32_t> started_{0};
  Atomic<std::size_t> came_back_{0};  // bytes
  // Guards changes of what follows, and of slots_ and maps_
  WakingLock heaps_lock_;
  FrontedTable<HeapStorage<Config>, 1> storages_;  // by the heap's number
  Atomic<std::uint32_t> end_of_heaps_{0};
  Atomic<Heap*> first_heap_{nullptr};
  GrowingTable<Atomic<Heap*>> more_heaps_;
};

}  // namespace spanalloc::standard
