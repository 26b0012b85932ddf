// A heap: the spans of its threads' caches, and the pool where empty spans wait, on a page layer.
//
//   thread cache (one a thread)
//     -> span_protocol.hpp (lists under a lock, one a cache): says which spans are empty
//     -> Heap::take_span / put_in_pool -> pool (lock-free) -> page layer's arena (lock-free)
//
// A pool is a bounded cache of spans, by size and shard, whose memory is dirty. Spans that it has
// no room for go down to the arena. The arena merges them with their neighbours, so that memory
// freed at one size, in one heap, serves every other. A request that the pool cannot serve looks
// for dirty memory first: in the arena, in large spans that other threads keep, in this heap's pool
// for other sizes, in spans whose owners have not noticed that they are empty. Then it takes clean
// memory that needs no system call, then drains the pools of all heaps, and only then takes new
// address space. Memory that nobody wanted for the decay time is purged by any thread that runs a
// slow path (or by a background thread, if the user asks for it).
//
// Objects above the largest class come from the arena directly. One that grows without room behind
// it may move out; it is a mapping of its own from then on (PageLayer::outside).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "base/poison.hpp"
#include "engines/engine.hpp"
#include "engines/standard/heap_storage.hpp"
#include "engines/standard/page_layer.hpp"
#include "engines/standard/span_protocol.hpp"
#include "os/os.hpp"
#include "sync/spin_lock.hpp"
#include "thread/lifecycle.hpp"

namespace spanalloc::standard {

/// A free span that the caller has alone. Its record is that of an earlier life until begin_life().
struct FreshSpan {
  SpanRef span;
  bool zero = false;        ///< all its memory reads as zero
  bool is_pooled = false;   ///< it comes from the pool
  bool same_class = false;  ///< its last life was in the class asked for
  bool has_blocks = false;  ///< and its blocks are on its lists
  explicit operator bool() const { return static_cast<bool>(span); }
};

/// Thread-safe. Callers have entered the heap (HeapCall), but for the first
/// two groups of functions.
template <class Config>
class Heap {
 public:
  using Classes = SizeClasses<Config>;
  using Pages = PageLayer<Config>;
  using CacheRecord = standard::CacheRecord<Config>;
  using Protocol = SpanProtocol<Pages>;
  using Reuse = typename Pages::Arena::Reuse;
  using Arena = typename Pages::Arena;
  using Storage = HeapStorage<Config>;
  using Pool = typename Storage::Pool;

  /// `thread_exit`: the destructor of what a thread keeps for this heap (thread::ExitKey).
  constexpr Heap(Pages& pages, void (*thread_exit)(void*))
      : on_thread_exit(thread_exit), pages_(pages), protocol_(pages) {}

  // --- Start and end -----------------------------------------------------------------------------

  /// Idempotent. False: the page layer has no room for another heap, or there is no memory at all.
  bool start() {
    if (SPANALLOC_LIKELY(is_started())) return true;
    return start_slow();
  }
  // Acquire: sees what start() wrote
  bool is_started() const { return started_.load_acquire() != 0; }

  /// Gives all spans of the heap back to the page layer, with every block that is still
  /// out, and its caches. Nobody uses the heap or a block of it, now or later. (Other heaps
  /// may be in use.) The caller has entered the heap (HeapCall): a fork's child finds it
  /// whole, or completes its end.
  void destroy() {
    if (!is_started()) return;
    take_all_large_spans(0);
    {
      // Other heaps' threads come here only under this lock: to drain the pool,
      // or steal from idle caches.
      LockGuard guard(pages_.purge_lock);
      // First: from here on a fork's child goes on with it.
      started_.store_release(0);
      give_pool_back();
    }
    // Before the spans go to other heaps, because a fork's child takes the lists for true.
    pages_.for_each_cache([this](CacheRecord& cache) { forget_lists(cache); });
    // Spans in use are told by their words. (A free span's record may be another heap's by
    // now.) The word is read first, with acquire: a heap that begins to use a record writes its
    // number there before the word.
    pages_.arena.walk([this](std::uint32_t first, std::size_t slices, bool free) {
      const SpanRef span = pages_.span(SpanNumber{first});
      if (free || first + slices > index_of(pages_.end_of_spans())) return;
      if (SpanWord{span->word.load_acquire()}.state() == SpanState::kFree || !has(span)) return;
      span->word.store_relaxed(0);
      poison(pages_.address(span.number), slices << Config::kSliceBits);
      pages_.give(span);
    });
    pages_.outside.free_all_of(index_of(number_));
    // After the spans: while a span names a cache, nobody else may have the cache.
    return_caches();
    exit_key.remove();
    LockGuard guard(pages_.purge_lock);
    leave();
  }
  /// In a fork's child, when none of the heap's spans is in use: completes the destroy() of a
  /// vanished thread, or undoes a start, which is made anew.
  void leave_if_not_started() {
    if (is_started()) return;
    pages_.for_each_cache([this](CacheRecord& cache) { forget_lists(cache); });
    pages_.outside.free_all_of(index_of(number_));
    return_caches();
    exit_key.remove();
    leave();
  }
  /// Called by the page layer, before anybody finds the heap there.
  void take_place(HeapNumber number, Storage& storage) {
    number_ = number;
    storage_ = &storage;
  }

  constexpr Pages& pages() { return pages_; }
  Protocol& protocol() { return protocol_; }
  Pool& pool() { return storage_->pool; }
  /// In a fork's child.
  void forget_pool() { storage_->forget_pool(); }
  const AbandonedLists& abandoned_lists() const { return abandoned_lists_; }
  /// A hint. (Without a cache nothing was ever abandoned.)
  bool has_uncounted_abandoned() {
    if (has_abandoned_lists_.load_acquire() == 0) return false;
    for (std::uint32_t i = 0; i <= abandoned_lists_.mask; ++i) {
      if (pages_.cache(abandoned_lists_.numbers[i]).uncounted.load_relaxed() != 0) return true;
    }
    return false;
  }
  HeapNumber number() const { return number_; }
  bool has(SpanRef span) const { return owns_record(*span.record); }
  bool owns_record(const Span& span) const { return span.heap.load_relaxed() == number_; }

  /// Of this heap, but for free memory, which is the page layer's and shown by each of its heaps.
  /// An estimate: the walk over all span records stops nobody.
  EngineStatistics statistics() {
    EngineStatistics out;
    out.live_labs = live_caches.load_relaxed();
    out.spans_lost_to_fork = lost_to_fork.load_relaxed();
    if (!pages_.is_started()) return out;
    pages_.arena.walk([&](std::uint32_t number, std::size_t slices, bool free) {
      // A range that is just being taken: its record is not its own yet, or says free.
      if (!free && number + slices > index_of(pages_.end_of_spans())) return;
      const SpanRef span = pages_.span(SpanNumber{number});
      const std::size_t bytes = slices << Config::kSliceBits;
      if (free || SpanWord{span->word.load_acquire()}.state() == SpanState::kFree) {
        out.pooled_bytes += bytes;
        return;
      }
      if (!has(span)) return;
      // After the word, which says that the life with this class has begun. That may be
      // another life than that of the range which the walk has seen: no more than this
      // range is counted for it.
      const ClassId c{span->shown_class.load_relaxed()};
      if (c == Classes::kHuge) {
        out.large_bytes += bytes;
        ++out.large_objects;
      } else {
        out.small_bytes_carved += min_of(Classes::info(c).real_span, bytes);
      }
    });
    const LargeObjectStatistics mine = pages_.outside.statistics_of(index_of(number_));
    out.large_bytes += mine.bytes;
    out.large_objects += mine.objects;
    const ArenaStatistics arena = pages_.arena.statistics();
    const std::size_t outside = pages_.outside.statistics().bytes;
    out.reserved_bytes = arena.reserved_bytes + outside;
    out.opened_bytes = arena.opened_bytes + outside;
    return out;
  }

  // --- Taking spans ------------------------------------------------------------------------------

  /// A span for class `c`; none: out of memory. The stacks of `shard` are tried first.
  FreshSpan take_span(ClassId c, unsigned shard);
  /// A span of kHuge for `slices` at a multiple of `alignment` slices; none: out of memory.
  FreshSpan take_large(SliceCount slices, std::size_t alignment, Reuse reuse);

  /// For calloc: makes a large span that was just taken read as zero without touching it, if that
  /// is cheaper than to clear it. False: clear it.
  bool zero_by_purging(const FreshSpan& fresh, SliceCount slices);

  /// In a span of one block, looks at the memory around the `bytes` of the block. If that is
  /// more than a quarter of them, it is counted as idle, or purged if much is counted already.
  /// The caller has the span.
  void give_slack_back(SpanRef span, const char* block, std::size_t bytes, bool all_is_dirty);
  /// Begins a life: writes the record of a span that was just taken, at last its word; from there
  /// on the span is in use. It is owned and none of its blocks is carved, or it is shared and its
  /// one block is out. Blocks begin at `offset` in the span.
  void begin_life(const FreshSpan& fresh, ClassId c, SpanWord word, std::size_t offset = 0);
  /// begin_life() of an owned span; one whose last life was in the same class keeps its lists.
  OwnedSpan begin_owned_life(const FreshSpan& fresh, ClassId c, CacheNumber owner);
  /// begin_life() of a span of one block. Freeing the block sets the word to free.
  void begin_single_life(const FreshSpan& fresh, ClassId c, std::size_t offset);
  /// begin_single_life() of a span whose record says all of that already.
  void begin_same_life(SpanRef span) {
    SPANALLOC_ASSERT(has(span) && span->load_word().state() == SpanState::kFree);
    span->word.store_release(kSingleInUse.bits);  // release: as in begin_life()
  }

  /// Makes a span of one block, of `old` slices, fit `slices` in its place.
  /// False: nothing has changed.
  bool resize_in_place(SpanRef span, SliceCount old, SliceCount slices) {
    const std::uint32_t first = index_of(span.number);
    const bool done =
        pages_.arena.resize_in_place(first, slices.count) ||
        (slices > old && pages_.arena.grow_at_end(first, slices.count, pages_.records_reach()));
    if (done && slices > old) count_taken(first + old.count, slices.count - old.count);
    if (done && slices < old) pages_.dirty_bound.given(old.count - slices.count, false);
    return done;
  }
  /// Another class for a span of one block that is in use; only its record changes.
  static void change_class(SpanRef span, ClassId c) {
    set_room(span, c);
    span->size_class = static_cast<std::uint8_t>(index_of(c));
    span->shown_class.store_relaxed(static_cast<std::uint8_t>(index_of(c)));
  }
  static void set_room(SpanRef span, ClassId c) {
    span->room = static_cast<std::uint32_t>(Classes::info(c).virtual_span -
                                            span->shown.base.load_relaxed() % Classes::kSlice);
  }
  /// Moves the block of a span of one block, of `old` slices, out of the arena, by moving its
  /// pages, so that it has n bytes or more (the span has fewer), and frees the span. nullptr:
  /// refused, or a copy is cheaper.
  void* move_out(SpanRef span, SliceCount old, std::size_t n);

  // --- Returning spans ---------------------------------------------------------------------------

  /// Puts a span whose word says free, and which the caller has alone, on the stack of `shard`.
  void put_in_pool(SpanRef span, unsigned shard);
  void put_in_pool(SpanChain chain, unsigned shard);
  /// Purges all dirty free memory. False: there was none.
  bool purge_all_free();
  /// Purges if it is time. True: the decay epoch has more to do.
  bool pass_by_clock(std::uint64_t now) {
    purge_by_decay(now);
    return now >= pages_.next_purge.load_relaxed();
  }
  /// Pools empty spans whose owners have not noticed it, from up to `at_most`
  /// caches. Returns how many.
  std::uint32_t claim_empty_of_others(std::uint32_t at_most, unsigned shard);

  /// Takes a loan: the remote list of a span of class c that another cache owns, if it has so many
  /// blocks as `at_least` says. Looks at some caches, in turn.
  struct Borrowed {
    SpanRef span;
    BlockOffset first = BlockOffset::kNone;
    explicit operator bool() const { return static_cast<bool>(span); }
  };
  Borrowed borrow(ClassId c, CacheRecord& borrower, std::uint32_t at_least);
  /// False: there never were two threads at a time.
  bool may_have_lenders() {
    return index_of(pages_.end_of_caches()) > std::size_t{abandoned_lists_.mask} + 2;
  }
  /// A hint, from the nearest shards only.
  bool looks_out_of_spans(ClassId c, unsigned shard) const {
    const unsigned row = Classes::info(c).pool_row;
    const unsigned shards = storage_->pool.shards();
    for (unsigned step = 0; step < shards && step < kShardsALook; ++step) {
      const unsigned other = (shard + step) % shards;
      for (const unsigned stack : {young_stack(row), old_stack(row)}) {
        if (!storage_->pool.looks_empty(stack, other)) return false;
      }
    }
    return true;
  }

  /// Puts the cached large spans of a cache, if they are this heap's, into the pool.
  void take_large_spans(CacheRecord& cache, unsigned shard) {
    cache.large_spans.for_each([&](Span& span) {
      if (owns_record(span) && cache.large_spans.take_away(span))
        put_in_pool(cached_of_record(span), shard);
    });
  }
  /// Puts the older half of the calling thread's cached large spans into the pool.
  void pool_older_large_spans(CacheRecord& cache, unsigned shard);
  /// A span for class `c` of one block, from the shard's own stacks only. The calling
  /// thread's cache gets more spans of that class at once, up to half of what it may have.
  /// None: the stacks are empty.
  FreshSpan take_pooled_singles(ClassId c, CacheRecord& cache, unsigned shard);
  /// take_large_spans() of all caches, or of `at_most` of them in turn, except
  /// those of thread `but_of`.
  void take_all_large_spans(unsigned shard, std::uint32_t at_most = UINT32_MAX,
                            const void* but_of = nullptr);

  /// The shard of the thread that has `cache` (nullptr: of a thread without one).
  unsigned shard_of(const CacheRecord* cache) const {
    return storage_->pool.shard_of(cache == nullptr ? 0 : index_of(cache->number));
  }

  // --- Caches ------------------------------------------------------------------------------------

  /// A cache of this heap for the calling thread; nullptr when there is none left.
  CacheRecord* begin_cache() {
    if (!start()) return nullptr;
    // The starting thread gets the first record: so a process with one thread writes to few pages.
    CacheRecord* cache = pages_.take_cache(number_);
    if (cache == nullptr) return nullptr;
    // Acquire: the abandoned lists' numbers, for all that this cache's thread does.
    if (has_abandoned_lists_.load_acquire() == 0 && !make_abandoned_lists()) {
      pages_.return_cache(cache);
      return nullptr;
    }
    cache->forks.store_relaxed(pages_.forks);
    cache->thread.store_release(address_of(os::thread_id()));  // release: pairs with has_vanished()
    live_caches.fetch_add_relaxed(1);
    return cache;
  }
  void end_cache(CacheRecord* cache) {
    SPANALLOC_ASSERT(cache->heap.load_relaxed() == number_ && pages_.is_mine(cache->number));
    pages_.return_cache(cache);
    live_caches.fetch_sub_relaxed(1);
  }

  thread::ExitKey exit_key;
  void (*const on_thread_exit)(void*);
  Atomic<std::size_t> live_caches{0};
  Atomic<std::size_t> lost_to_fork{0};  ///< spans
  /// Slow paths are to count some abandoned spans, which nobody may have adopted for long.
  Atomic<std::uint32_t> count_abandoned_due{0};

 private:
  // Caches that a pool miss looks at: a thousand idle threads must not make
  // each fresh span expensive.
  static constexpr std::uint32_t kCachesAMiss = 16;
  // Caches whose owned spans a miss looks at for a loan; bounded like kCachesAMiss.
  static constexpr std::uint32_t kLendersAMiss = 16;
  static constexpr unsigned kShardsALook = 4;
  // Caches whose cached large spans a decay epoch takes; bounded like kCachesAMiss.
  static constexpr std::uint32_t kEmptiedAnEpoch = 64;
  // Shards whose stacks a miss looks at, to drain them; bounded like kCachesAMiss.
  static constexpr unsigned kShardsAMiss = 4;
  // What a shard's stacks must hold before they are drained for another size.
  static constexpr std::size_t kWorthDraining = 2 * kMiB;
  // What a decay epoch drains at a time, in units of give_some_back() of some 250
  // instructions; bounded, too.
  static constexpr std::size_t kDrainedAnEpoch = 16;
  // What a miss drains for each slice that it wants; more for large objects, whose
  // slices must lie in a row.
  static constexpr std::size_t kDrainedAMiss = 12;
  static constexpr std::size_t kDrainedForLarge = 32;
  // In PartialPurge's units: a record, and the arena's word for it, that are in no CPU cache.
  static constexpr std::size_t kCostOfRecord = 8;
  // In PartialPurge's units: what one call spends on the pages of shared spans; half a millisecond.
  static constexpr std::size_t kPartsPurgedAnEpoch = 1u << 16;
  // Blocks outside the arena: each is one of the 65,530 mappings that a process may have.
  static constexpr std::size_t kMostOutside = 16384;
  // From this size on large blocks are looked at: is little of them in
  // memory? (That takes some 2 us.)
  static constexpr std::size_t kLookAtLeast = 8 * kMiB / Classes::kSlice;
  // What exceeds the bound on dirty memory is purged by the frees that follow, at
  // least so much at a time.
  static constexpr std::size_t kPurgedAFree = 4 * kMiB / Classes::kSlice;
  // Slices that one free may purge: a bound on its time.
  static constexpr std::size_t kPurgedARound = 64 * kMiB / Classes::kSlice;

  bool start_slow();
  void leave() {
    storage_->forget();  // for the next heap of this number
    pages_.leave(number_);
  }
  bool make_abandoned_lists();
  // At the heap's end, under the cache's lock. An idle cache may become another heap's at any time.
  bool is_of_this_heap(const CacheRecord& cache) const {
    return cache.heap.load_relaxed() == number_ &&
           (cache.thread.load_relaxed() != 0 || cache.is_abandoned_list());
  }
  // Asked without the lock: true is certain. (There may be many such caches.
  // This heap's stay its own.)
  bool is_of_another_heap(const CacheRecord& cache) const {
    return cache.heap.load_relaxed() != number_;
  }
  void forget_lists(CacheRecord& cache) {
    if (is_of_another_heap(cache)) return;
    LockGuard guard(cache.lock);
    if (!is_of_this_heap(cache)) return;
    cache.forget();
    cache.forget_current_spans();
    cache.large_spans.forget();
  }
  void return_caches() {
    pages_.for_each_cache([this](CacheRecord& cache) {
      if (is_of_another_heap(cache)) return;
      {
        LockGuard guard(cache.lock);
        if (!is_of_this_heap(cache)) return;
        cache.abandoned_list = 0;
      }
      pages_.clear_map(cache);
      pages_.return_cache(&cache);  // it was not idle, and so ours until here
    });
  }
  static FreshSpan as_fresh(Pages& pages, const typename Arena::Taken& taken) {
    if (taken.first == 0) return {};
    SPANALLOC_ASSERT(SpanNumber{taken.first} < pages.end_of_spans());
    return {pages.span(SpanNumber{taken.first}), taken.zero};
  }
  // Of a span of one block: counted as live.
  FreshSpan counted(const FreshSpan& fresh, std::size_t slices) {
    if (fresh) count_taken(index_of(fresh.span.number), slices);
    return fresh;
  }
  void count_taken(std::size_t first, std::size_t slices) {
    pages_.dirty_bound.taken(slices, pages_.arena.dirty_slices(first, slices));
  }
  static std::size_t alignment_of(ClassId c) { return std::size_t{1} << Classes::info(c).order; }
  // The span of one block that this record, one of this heap, belongs to.
  SpanRef cached_of_record(const Span& span) {
    const std::size_t number = pages_.slice_of(span.shown.base.load_relaxed());
    return pages_.span(SpanNumber{static_cast<std::uint32_t>(number)});
  }
  FreshSpan take_pooled(ClassId c, unsigned shard);
  FreshSpan as_pooled(SpanNumber number, ClassId c);
  FreshSpan take_open(ClassId c, Reuse reuse);
  FreshSpan take_dirty_or_open(ClassId c, unsigned shard);
  FreshSpan take_anyhow(SliceCount slices, std::size_t alignment);
  bool is_better_copied(SliceCount old, SliceCount slices);
  FreshSpan take_from_arena(ClassId c, unsigned shard);
  void give_large(SpanRef span, SliceCount slices);
  bool comes_back_sparse(SpanRef span, SliceCount slices);
  void keep_dirty_bound(std::size_t slices);
  void drain_pool() {
    if (is_started()) give_pool_back();
  }
  // In a span that counts as empty: a block that is on no list. nullptr: all are free.
  using InUse = const char*;
  InUse pool_or_retire(SpanRef span, unsigned shard);
  // For an intact span of one block, when the caller must not come to a decay epoch.
  void pool_single(SpanRef span, unsigned shard) {
    const InUse none = pool_or_retire(span, shard);
    SPANALLOC_ASSERT(none == nullptr);
    (void)none;
  }
  void forget_blocks(SpanRef span) {
    if (const InUse block = forget_blocks_or_retire(span); SPANALLOC_UNLIKELY(block != nullptr)) {
      block_in_use(block);
    }
  }
  InUse forget_blocks_or_retire(SpanRef span);
  InUse look_for_use(SpanRef span);
  InUse look_for_use_but_purged(SpanRef span);
  void retire(SpanRef span);
  [[noreturn]] static void block_in_use(InUse block);
  void give_pool_back();
  // The stacks of a row of the pool: for spans put there in this decay
  // epoch, and in the one before.
  unsigned young_stack(unsigned row) const { return 2 * row + pages_.pool_epoch.load_relaxed(); }
  unsigned old_stack(unsigned row) const {
    return 2 * row + (pages_.pool_epoch.load_relaxed() ^ 1);
  }
  SpanNumber get_local(unsigned row, unsigned shard) {
    const SpanNumber young = pool().get_local(young_stack(row), shard, pages_.pool_links());
    if (young != SpanNumber::kNone) return young;
    return pool().get_local(old_stack(row), shard, pages_.pool_links());
  }
  // The room that both stacks together have under the bound. (A hint, as the counts are.)
  std::uint32_t most_young(const ClassInfo& info, unsigned shard) {
    const std::uint32_t old = pool().count_hint(old_stack(info.pool_row), shard);
    return old < info.pool_most ? info.pool_most - old : 0;
  }
  void give_stack_back(unsigned stack, unsigned shard);
  std::size_t give_some_back(unsigned stack, unsigned shard, std::size_t at_most);
  std::size_t give_some_old_back(std::size_t at_most);
  bool drain_for(SliceCount wanted, unsigned shard, std::size_t units);
  enum class PurgeWhich { kAged, kAll };
  bool purge_shared(PurgeWhich which, std::size_t at_most);
  SPANALLOC_COLD void drain_all_pools() {
    pages_.for_each_heap([](Heap& heap) { heap.drain_pool(); });
  }
  void purge_by_decay(std::uint64_t now) {
    if (SPANALLOC_UNLIKELY(now >= pages_.next_purge.load_relaxed())) purge_now(now);
  }
  void purge_now(std::uint64_t now);

  Pages& pages_;
  Protocol protocol_;
  Storage* storage_ = nullptr;  // constant after start
  HeapNumber number_{};         // constant after start
  Atomic<std::uint32_t> started_{0};
  // Under the page layer's start lock: how many are made so far, if memory was too short for all.
  std::uint32_t abandoned_lists_made_ = 0;
  AbandonedLists abandoned_lists_;  // constant once there is a cache
  Atomic<std::uint32_t> has_abandoned_lists_{0};
  // Which cache is the next to be stolen from. Alone in its line: each pool miss changes it.
  alignas(kCacheLine) Atomic<std::uint32_t> next_cache_{0};
};

}  // namespace spanalloc::standard

#include "engines/standard/heap_spans.hpp"
