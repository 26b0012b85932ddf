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
  FreshSpan take_span(ClassId c, unsigned shard) {
    if (const FreshSpan fresh = take_pooled(c, shard)) return fresh;
    const FreshSpan fresh = take_from_arena(c, shard);
    return Classes::has_one_block(c) && !fresh.is_pooled ? counted(fresh, Classes::info(c).slices)
                                                         : fresh;
  }
  /// A span of kHuge for `slices` at a multiple of `alignment` slices; none: out of memory.
  FreshSpan take_large(SliceCount slices, std::size_t alignment, Reuse reuse) {
    purge_by_decay(os::now_ms());
    if (!pages_.arena.was_refused(slices.count, alignment)) {
      const auto take = [&](Reuse how) {
        return as_fresh(pages_, pages_.arena.take(slices.count, alignment, how));
      };
      if (reuse == Reuse::kDirtyFirst) {
        if (const FreshSpan fresh = take(Reuse::kDirtyOnly)) return counted(fresh, slices.count);
        // Before clean memory is touched: what threads and the pool keep for other sizes.
        take_all_large_spans(0, kCachesAMiss);
        if (drain_for(slices, 0, kDrainedForLarge * slices.count)) {
          if (const FreshSpan fresh = take(Reuse::kDirtyOnly)) return counted(fresh, slices.count);
        }
      }
      if (const FreshSpan fresh = take(reuse)) return counted(fresh, slices.count);
    }
    return counted(take_anyhow(slices, alignment), slices.count);
  }

  /// For calloc: makes a large span that was just taken read as zero without touching it, if that
  /// is cheaper than to clear it. False: clear it.
  /// To clear pages that are not in memory would bring them there.
  SPANALLOC_COLD bool zero_by_purging(const FreshSpan& fresh, SliceCount slices) {
    if (slices.count < kLookAtLeast) return false;
    const std::uint32_t first = index_of(fresh.span.number);
    LargeHabits& habits = pages_.large_habits;
    if (!habits.wants_look_to_clear(slices.count))
      return pages_.arena.purge_taken(first, slices.count);
    const std::size_t used = pages_.arena.sample_used(first, slices.count, LargeHabits::kUsed);
    return habits.clears_by_purging(slices.count, used) &&
           pages_.arena.purge_taken(first, slices.count);
  }

  /// In a span of one block, looks at the memory around the `bytes` of the block. If that is
  /// more than a quarter of them, it is counted as idle, or purged if much is counted already.
  /// The caller has the span.
  /// A span of 64 KiB slices may be almost twice as large as its block. In clean memory that costs
  /// nothing. In memory that others had used, the part around the block would stay for as long as the
  /// block. To purge it takes as long as to write to a page, and the next block of the span must do
  /// without those pages: so it happens only where there is much of it.
  [[gnu::noinline]] void give_slack_back(SpanRef span, const char* block, std::size_t bytes,
                                         bool all_is_dirty) {
    Arena& arena = pages_.arena;
    const std::uint32_t first = index_of(span.number);
    const std::size_t slices = pages_.slices_of(span).count;
    const std::uintptr_t begin = address_of(pages_.address(span.number));
    const std::uintptr_t end = begin + (slices << Config::kSliceBits);
    const std::uintptr_t head_end = align_down(address_of(block), os::page_size());
    const std::uintptr_t tail = align_up(address_of(block) + bytes, os::page_size());
    std::size_t before = head_end - begin;
    std::size_t behind = end - tail;
    // What was never used, or is purged, is not in memory.
    if (!all_is_dirty && arena.dirty_slices(first, 1) == 0) before = 0;
    if (!all_is_dirty && arena.dirty_slices(first + slices - 1, 1) == 0) behind = 0;
    std::size_t idle = before + behind;
    if (idle * 4 <= bytes) {
      idle = 0;
    } else if (const std::size_t live = pages_.dirty_bound.live() << Config::kSliceBits;
               !pages_.slack_bound.has_room(live) &&
               pages_.slack_bound.pays(idle, live, os::now_ms())) {
      for (const auto& [at, size] : {std::pair{begin, before}, std::pair{tail, behind}}) {
        if (size != 0 && arena.purge_part(first, slices, pointer_to(at), size)) idle -= size;
      }
    }
    pages_.count_idle(span, min_of(idle / SlackBound::kPage, SlackBound::kMostOfASpan));
  }
  /// Begins a life: writes the record of a span that was just taken, at last its word; from there
  /// on the span is in use. It is owned and none of its blocks is carved, or it is shared and its
  /// one block is out. Blocks begin at `offset` in the span.
  void begin_life(const FreshSpan& fresh, ClassId c, SpanWord word, std::size_t offset = 0) {
    const ClassInfo& info = Classes::info(c);
    const SpanRef span = fresh.span;
    SPANALLOC_ASSERT(span && span.number < pages_.end_of_spans());
    SPANALLOC_ASSERT(span->load_word().state() == SpanState::kFree);
    SPANALLOC_ASSERT(index_of(span.number) % alignment_of(c) == 0);
    for (std::uint32_t i = 0; i < (1u << info.order); ++i) {
      pages_.span(SpanNumber{index_of(span.number) + i})->order = info.order;
    }
    const bool single = info.blocks <= 1;
    SPANALLOC_ASSERT(offset == 0 || single);
    span->blocks.set(address_of(pages_.address(span.number)) + offset, single ? 1 : info.magic,
                     single ? 1 : 0);
    span->shown.set(span->blocks);
    change_class(span, c);
    span->heap.store_relaxed(number_);
    span->zero = fresh.zero;
    if (!single) pages_.count_idle(span, 0);
    span->asked = 0;
    span->carved.store_relaxed(0);
    span->free_list.clear();
    span->rest.clear();
    span->purged.store_relaxed(0);
    span->uncounted = false;
    span->retired = false;
    span->expect_frees_while_owned();
    span->list = ListId::kNone;
    // Release: a late freer of an earlier life may look at the record under a lock.
    span->word.store_release(word.bits);
  }
  /// begin_life() of an owned span; one whose last life was in the same class keeps its lists.
  OwnedSpan begin_owned_life(const FreshSpan& fresh, ClassId c, CacheNumber owner) {
    const SpanWord owned = SpanWord::make(owner, SpanState::kOwned, Classes::info(c).blocks);
    if (!fresh.has_blocks) {
      begin_life(fresh, c, owned);
      return {fresh.span};
    }
    SPANALLOC_ASSERT(has(fresh.span) && fresh.span->class_id() == c &&
                     fresh.span->list == ListId::kNone);
    const SpanWord was = fresh.span->load_word();
    SPANALLOC_ASSERT(was.state() == SpanState::kFree);
    fresh.span->expect_frees_while_owned();
    fresh.span->word.store_release(owned.bits);  // release: as in begin_life()
    return {fresh.span, pages_.cut_lists(fresh.span, was.head())};
  }
  /// begin_life() of a span of one block. Freeing the block sets the word to free.
  /// Nothing else changes in the record of a span of the same class: while the block is out, only a
  /// change of its class writes there (change_class).
  void begin_single_life(const FreshSpan& fresh, ClassId c, std::size_t offset) {
    SPANALLOC_ASSERT(Classes::has_one_block(c));
    if (!fresh.same_class) return begin_life(fresh, c, kSingleInUse, offset);
    SPANALLOC_ASSERT(fresh.span->class_id() == c && fresh.span->list == ListId::kNone);
    fresh.span->shown.base.store_relaxed(address_of(pages_.address(fresh.span.number)) + offset);
    set_room(fresh.span, c);
    begin_same_life(fresh.span);
  }
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
  SPANALLOC_COLD void* move_out(SpanRef span, SliceCount old, std::size_t n) {
    const std::size_t offset = span->shown.base.load_relaxed() % Classes::kSlice;
    const std::size_t least = align_up(offset + n, os::page_size());
    if (is_better_copied(old, {least >> Config::kSliceBits})) return nullptr;
    if (!pages_.outside.promise(kMostOutside)) return nullptr;
    const std::uint32_t first = index_of(span.number);
    std::size_t bytes = align_up(pages_.with_room(least), os::page_size());
    auto moved = pages_.arena.move_out(first, old.count, bytes);
    if (moved.to == nullptr && bytes != least) {
      bytes = least;
      moved = pages_.arena.move_out(first, old.count, bytes);
    }
    if (moved.to == nullptr) {
      pages_.outside.give_promise_back();
      return nullptr;
    }
    pages_.outside.fill(moved.to, bytes, offset, index_of(number_));
    poison(pages_.address(span.number), old.count << Config::kSliceBits);
    span->word.store_release(SpanWord::make(kNobody, SpanState::kFree, 0).bits);
    if (moved.left_a_range) {
      pages_.give(span, true);
    } else {
      pages_.has_no_range(span, old);
    }
    return static_cast<char*>(moved.to) + offset;
  }

  // --- Returning spans ---------------------------------------------------------------------------

  /// Puts a span whose word says free, and which the caller has alone, on the stack of `shard`.
  [[gnu::noinline]] void put_in_pool(SpanRef span, unsigned shard) {
    if (const InUse block = pool_or_retire(span, shard); SPANALLOC_UNLIKELY(block != nullptr))
      block_in_use(block);
    purge_by_decay(os::now_ms());
  }
  // A handler may leave a report by a jump: reports come when the caller holds nothing any more.
  void put_in_pool(SpanChain chain, unsigned shard) {
    if (chain.has_nothing()) return;
    InUse in_use = nullptr;
    for (SpanNumber number = chain.first; number != SpanNumber::kNone;) {
      const SpanRef span = pages_.span(number);
      number = span->next;
      if (const InUse block = pool_or_retire(span, shard); SPANALLOC_UNLIKELY(block != nullptr))
        in_use = block;
    }
    if (SPANALLOC_UNLIKELY(in_use != nullptr)) block_in_use(in_use);
    if (SPANALLOC_UNLIKELY(chain.damaged != SpanNumber::kNone))
      pages_.corrupted(pages_.span(chain.damaged));
    purge_by_decay(os::now_ms());
  }
  /// Purges all dirty free memory. False: there was none.
  SPANALLOC_COLD bool purge_all_free() {
    LockGuard guard(pages_.purge_lock);
    pages_.purge_cursor = 0;
    const std::size_t before = pages_.given_back.load_relaxed();
    purge_shared(PurgeWhich::kAll, SIZE_MAX);
    drain_all_pools();
    const bool purged =
        pages_.arena.purge(false) != 0 || pages_.given_back.load_relaxed() != before;
    pages_.dirty_bound.dirty_is(0);
    pages_.arena.look_at_limit();
    return purged;
  }
  /// Purges if it is time. True: the decay epoch has more to do.
  bool pass_by_clock(std::uint64_t now) {
    purge_by_decay(now);
    return now >= pages_.next_purge.load_relaxed();
  }
  /// Pools empty spans whose owners have not noticed it, from up to `at_most`
  /// caches. Returns how many.
  /// Passes by a bounded number of abandoned lists and other heaps' caches.
  SPANALLOC_COLD std::uint32_t claim_empty_of_others(std::uint32_t at_most, unsigned shard) {
    if (!is_started()) return 0;
    const std::size_t count = index_of(pages_.end_of_caches());
    const std::size_t steps = min_of(count, std::size_t{at_most} + AbandonedLists::kMost);
    std::uint32_t victim =
        next_cache_.fetch_add_relaxed(static_cast<std::uint32_t>(min_of(count, at_most)));
    std::uint32_t stolen = 0;
    std::uint32_t looked_at = 0;
    for (std::size_t i = 0; i < steps && looked_at < at_most; ++i, ++victim) {
      const CacheNumber number{static_cast<std::uint32_t>(victim % count)};
      if (!pages_.has_cache(number)) continue;
      CacheRecord& other = pages_.cache_at(number);
      // Abandoned lists have no thread.
      if (other.heap.load_relaxed() != number_ || other.thread.load_relaxed() == 0) continue;
      ++looked_at;
      const SpanChain chain = protocol_.claim_unnoticed_empties(
          other.number, [&] { return other.heap.load_relaxed() == number_; });
      put_in_pool(chain, shard);
      stolen += chain.count;
    }
    return stolen;
  }

  /// Takes a loan: the remote list of a span of class c that another cache owns, if it has so many
  /// blocks as `at_least` says. Looks at some caches, in turn.
  struct Borrowed {
    SpanRef span;
    BlockOffset first = BlockOffset::kNone;
    explicit operator bool() const { return static_cast<bool>(span); }
  };
  [[gnu::noinline]] Borrowed borrow(ClassId c, CacheRecord& borrower, std::uint32_t at_least) {
    const std::size_t count = index_of(pages_.end_of_caches());
    const std::size_t steps = min_of(count, std::size_t{kLendersAMiss} + AbandonedLists::kMost);
    std::uint32_t looked_at = 0;
    for (std::size_t i = 0; i < steps && looked_at < kLendersAMiss; ++i) {
      const CacheNumber number{static_cast<std::uint32_t>(borrower.next_lender++ % count)};
      if (!pages_.has_cache(number)) continue;
      CacheRecord& lender = pages_.cache_at(number);
      if (lender.heap.load_relaxed() != number_ || lender.thread.load_relaxed() == 0 ||
          &lender == &borrower) {
        continue;
      }
      ++looked_at;
      // The lender may have other spans by now: the protocol looks again.
      const auto borrowed_from = [&](SpanNumber owned) -> Borrowed {
        if (owned == SpanNumber::kNone) return {};
        const SpanRef span = pages_.span(owned);
        if (span->shown_class.load_relaxed() != index_of(c)) return {};
        const RemoteList list =
            protocol_.borrow(span, number, c, at_least, [&] { return has(span); });
        return list.first == BlockOffset::kNone ? Borrowed{} : Borrowed{span, list.first};
      };
      if (const Borrowed got = borrowed_from(lender.current[index_of(c)].load_relaxed()))
        return got;
      for (unsigned place = 0; place < lender.used_up.kPlaces; ++place) {
        if (const Borrowed got = borrowed_from(lender.used_up.span(place))) return got;
      }
    }
    return {};
  }
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
  /// Spans of one row that follow each other go into the pool in one step.
  [[gnu::noinline]] void pool_older_large_spans(CacheRecord& cache, unsigned shard) {
    SpanNumber first = SpanNumber::kNone;
    SpanNumber last = SpanNumber::kNone;
    std::uint32_t count = 0;
    const ClassInfo* of = nullptr;
    auto links = pages_.pool_links();
    const auto put_all = [&] {
      if (count == 0 || pool().put_chain_bounded(young_stack(of->pool_row), shard, first, last,
                                                 count, most_young(*of, shard), links)) {
        count = 0;
        return;
      }
      for (; count != 0; --count) {
        const SpanNumber number = first;
        first = Pool::next_of(number, links);
        pool_single(pages_.span(number), shard);
      }
    };
    const auto slices_of = [](const Span& span) {
      return unsigned{Classes::kTable[span.shown_class.load_relaxed()].slices};
    };
    cache.large_spans.let_go_of_older(slices_of, [&](Span& record) {
      const SpanRef span = cached_of_record(record);
      const ClassInfo& info = Classes::info(span->class_id());
      if (pages_.slices_of(span).count != info.slices) return pool_single(span, shard);
      if (count != 0 && of->pool_row != info.pool_row) put_all();
      of = &info;
      if (count++ == 0) last = span.number;
      links(span.number).store_relaxed(count == 1 ? 0 : index_of(first));
      first = span.number;
    });
    put_all();
  }
  /// A span for class `c` of one block, from the shard's own stacks only. The calling
  /// thread's cache gets more spans of that class at once, up to half of what it may have.
  /// None: the stacks are empty.
  FreshSpan take_pooled_singles(ClassId c, CacheRecord& cache, unsigned shard) {
    const ClassInfo& info = Classes::info(c);
    SPANALLOC_ASSERT(Classes::has_one_block(c));
    FreshSpan first;
    do {
      const SpanNumber number = get_local(info.pool_row, shard);
      if (number == SpanNumber::kNone) return first;
      const SpanRef span = pages_.span(number);
      if (!first) {
        first = as_pooled(number, c);
      } else if (span->class_id() != c || !cache.large_spans.add(*span.record, info.slices)) {
        // No decay epoch, which may end in a report: the caller already has `first`.
        if (const InUse block = pool_or_retire(span, shard); SPANALLOC_UNLIKELY(block != nullptr)) {
          pool_single(first.span, shard);
          block_in_use(block);
        }
        return first;
      }
    } while (first.same_class && cache.large_spans.has_half());
    return first;
  }
  /// take_large_spans() of all caches, or of `at_most` of them in turn, except
  /// those of thread `but_of`.
  SPANALLOC_COLD void take_all_large_spans(unsigned shard, std::uint32_t at_most = UINT32_MAX,
                                           const void* but_of = nullptr) {
    if (!is_started()) return;
    const std::size_t count = index_of(pages_.end_of_caches());
    const std::size_t steps = min_of(count, at_most);
    std::uint32_t next = next_cache_.fetch_add_relaxed(static_cast<std::uint32_t>(steps));
    for (std::size_t i = 0; i < steps; ++i, ++next) {
      const CacheNumber number{static_cast<std::uint32_t>(next % count)};
      if (!pages_.has_cache(number)) continue;
      CacheRecord& cache = pages_.cache_at(number);
      if (but_of == nullptr || cache.thread.load_relaxed() != address_of(but_of))
        take_large_spans(cache, shard);
    }
  }

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

  SPANALLOC_COLD bool start_slow() {
    if (!pages_.start()) return false;
    LockGuard guard(pages_.start_lock);
    if (started_.load_relaxed() != 0) return true;
    if (!pages_.enter(this)) return false;
    abandoned_lists_.of_class = storage_->abandoned;
    pool().set_shards(os::cpu_count());
    started_.store_release(1);  // release: pairs with is_started()
    return true;
  }
  void leave() {
    storage_->forget();  // for the next heap of this number
    pages_.leave(number_);
  }
  // With the first cache rather than with the heap: a process that never allocates
  // writes to no cache record.
  SPANALLOC_COLD bool make_abandoned_lists() {
    LockGuard guard(pages_.start_lock);
    if (has_abandoned_lists_.load_relaxed() != 0) return true;
    // As many as threads can end at once on this machine, so that they do not wait for each other.
    // Those that were made before a refusal serve the next try.
    const std::uint32_t wanted =
        1u << min_of(log2_ceil(max_of(os::cpu_count(), 1)), log2_floor(AbandonedLists::kMost));
    for (; abandoned_lists_made_ < wanted; ++abandoned_lists_made_) {
      CacheRecord* cache = pages_.take_cache(number_);
      if (cache == nullptr) return false;
      {
        LockGuard cache_guard(cache->lock);
        cache->abandoned_of_class = storage_->abandoned;
        cache->abandoned_list = abandoned_lists_made_ + 1;
      }
      abandoned_lists_.numbers[abandoned_lists_made_] = cache->number;
    }
    abandoned_lists_.mask = wanted - 1;
    has_abandoned_lists_.store_release(1);  // release: pairs with begin_cache()
    return true;
  }
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
  FreshSpan take_pooled(ClassId c, unsigned shard) {
    const unsigned row = Classes::info(c).pool_row;
    SpanNumber number = get_local(row, shard);
    for (const unsigned stack : {young_stack(row), old_stack(row)}) {
      if (number != SpanNumber::kNone) break;
      number = pool().get_from_other_shard(stack, shard, pages_.pool_links());
    }
    if (number == SpanNumber::kNone) return {};
    return as_pooled(number, c);
  }
  // A span that was just taken out of the pool for class c. A damaged one is retired and told first
  // of all, and counts as what it was.
  FreshSpan as_pooled(SpanNumber number, ClassId c) {
    FreshSpan fresh{pages_.span(number)};
    fresh.is_pooled = true;
    const ClassId was = fresh.span->class_id();
    fresh.same_class = was == c;
    fresh.has_blocks = fresh.same_class && !Classes::has_one_block(c);
    if (!fresh.same_class) forget_blocks(fresh.span);
    if (SPANALLOC_UNLIKELY(Classes::has_one_block(was) != Classes::has_one_block(c))) {
      pages_.dirty_bound.changed(Classes::info(c).slices, Classes::has_one_block(c));
    }
    return fresh;
  }
  FreshSpan take_open(ClassId c, Reuse reuse) {
    return as_fresh(pages_, pages_.arena.take(Classes::info(c).slices, alignment_of(c), reuse));
  }
  FreshSpan take_dirty_or_open(ClassId c, unsigned shard) {
    if (const FreshSpan fresh = take_open(c, Reuse::kDirtyOnly)) return fresh;
    // Before clean memory is touched: what other threads keep that have freed such blocks, and may
    // not run for long; and what the pool keeps for other sizes.
    if (Classes::has_one_block(c)) {
      take_all_large_spans(shard, kCachesAMiss, os::thread_id());
      if (const FreshSpan fresh = take_pooled(c, shard)) return fresh;
    }
    if (const SliceCount wanted{Classes::info(c).slices};
        drain_for(wanted, shard, kDrainedAMiss * wanted.count)) {
      if (const FreshSpan fresh = take_open(c, Reuse::kDirtyOnly)) return fresh;
    }
    if (claim_empty_of_others(kCachesAMiss, shard) != 0) {
      if (const FreshSpan fresh = take_pooled(c, shard)) return fresh;
    }
    return take_open(c, Reuse::kDirtyFirst);
  }
  // For when the arena has no range of this size at hand. Drains the pools into it and takes more
  // memory from the system; if that is refused, tries everything else. That second time no other
  // thread may drain, purge or decommit: what it holds would be missing.
  SPANALLOC_COLD FreshSpan take_anyhow(SliceCount slices, std::size_t alignment) {
    Arena& arena = pages_.arena;
    typename Arena::Taken taken;
    if (!arena.was_refused(slices.count, alignment)) {
      if (pages_.purge_lock.try_lock()) {
        drain_all_pools();
        pages_.purge_lock.unlock();
      }
      taken =
          arena.take_growing(slices.count, alignment, pages_.records_reach(), Arena::Effort::kGrow);
    }
    if (taken.first == 0 && slices.count < arena.capacity() && alignment < arena.capacity()) {
      LockGuard guard(pages_.purge_lock);
      pages_.for_each_heap([](Heap& heap) {
        heap.claim_empty_of_others(UINT32_MAX, 0);
        heap.take_all_large_spans(0);
        heap.drain_pool();
      });
      taken = arena.take_growing(slices.count, alignment, pages_.records_reach(),
                                 Arena::Effort::kDecommit);
    }
    return as_fresh(pages_, taken);
  }
  // Whether to copy a growing block rather than to move its pages out. A block that grows by a
  // quarter or more is copied a few times in all. Into dirty memory that costs less than the
  // page faults behind moved pages. (Into clean memory it does not pay: such a copy dirties as
  // much as it leaves behind.) Copying is also better if a block of this size came back from
  // outside: memory outside goes back to the kernel when it is freed, and the next block would
  // have all the page faults again.
  bool is_better_copied(SliceCount old, SliceCount slices) {
    if (slices.count <= old.count + old.count / 4) return false;
    if (slices.count << Config::kSliceBits <= pages_.came_back_from_outside()) return true;
    const auto dirty = pages_.arena.take(slices.count, 1, Reuse::kDirtyOnly);
    if (dirty.first == 0) return false;
    pages_.arena.give(dirty.first);
    return true;
  }
  FreshSpan take_from_arena(ClassId c, unsigned shard) {
    purge_by_decay(os::now_ms());
    const SliceCount slices{Classes::info(c).slices};
    if (!pages_.arena.was_refused(slices.count, alignment_of(c))) {
      if (const FreshSpan fresh = take_dirty_or_open(c, shard)) return fresh;
    }
    return take_anyhow(slices, alignment_of(c));
  }
  SPANALLOC_COLD void give_large(SpanRef span, SliceCount slices) {
    pages_.give(span, comes_back_sparse(span, slices) &&
                          pages_.arena.purge_taken(index_of(span.number), slices.count));
    keep_dirty_bound(slices.count);
  }
  // True: give it back as clean memory, after purging it.
  bool comes_back_sparse(SpanRef span, SliceCount slices) {
    if (slices.count < kLookAtLeast || !pages_.large_habits.wants_look(slices.count)) return false;
    const std::size_t used =
        pages_.arena.sample_used(index_of(span.number), slices.count, LargeHabits::kUsed);
    return pages_.large_habits.gives_back(slices.count, used);
  }
  // After a free of so many slices. Twice as much can be purged, so that the bound is reached
  // even while it sinks with the live memory; and one free takes no longer than the kernel
  // would to take the block back.
  void keep_dirty_bound(std::size_t slices) {
    const std::size_t excess = pages_.dirty_bound.excess();
    if (SPANALLOC_LIKELY(excess == 0) || !pages_.purge_lock.try_lock()) return;
    const std::size_t wanted = min_of(excess, slices * 2 + kPurgedAFree);
    const std::size_t purged = pages_.arena.purge_largest(wanted);
    pages_.dirty_bound.purged_for_bound(purged);
    if (purged < wanted) pages_.dirty_bound.dirty_is(0);  // there is no more
    pages_.purge_lock.unlock();
  }
  void drain_pool() {
    if (is_started()) give_pool_back();
  }
  // In a span that counts as empty: a block that is on no list. nullptr: all are free.
  using InUse = const char*;
  InUse pool_or_retire(SpanRef span, unsigned shard) {
    SPANALLOC_ASSERT(span->load_word().state() == SpanState::kFree && span->list == ListId::kNone);
    SPANALLOC_ASSERT(has(span) && shard < pool().shards());  // no other stack is ever looked at
    const ClassId c = span->class_id();
    const ClassInfo& info = Classes::info(c);
    if (const CacheNumber owner = span->load_word().owner(); owner != kNobody) {
      pages_.has_left(pages_.cache(owner), span);
    }
    // (Only for spans of one block: to ask for the size of others costs the
    // common case 15 instructions.)
    const auto slices = [&] { return pages_.slices_of(span).count; };
    // Spans of kHuge have no row; nor has a span that a vanished thread was resizing at the fork.
    const bool odd = info.blocks == 1 && slices() != info.slices;
    if (odd || pages_.arena.is_at_limit() ||
        !pool().put_bounded(young_stack(info.pool_row), shard, span.number, most_young(info, shard),
                            pages_.pool_links())) {
      if (const InUse block = forget_blocks_or_retire(span); SPANALLOC_UNLIKELY(block != nullptr))
        return block;
      if (c == Classes::kHuge) {
        give_large(span, pages_.slices_of(span));
      } else {
        pages_.give(span);
        if (info.blocks == 1) keep_dirty_bound(info.slices);
      }
    }
    return nullptr;
  }
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
  // A span that was emptied leaves its class. (Nothing is ever carved in a span of one block; where
  // one block was carved, it is clear that it is back.)
  InUse forget_blocks_or_retire(SpanRef span) {
    if (span->carved.load_relaxed() > 1) {
      if (const InUse block = look_for_use(span); SPANALLOC_UNLIKELY(block != nullptr)) {
        retire(span);
        return block;
      }
    }
    if constexpr (kPoisons) {
      poison(pages_.address(span.number), pages_.slices_of(span).count << Config::kSliceBits);
    }
    return nullptr;
  }
  // Of a span that counts as empty. If a block was freed twice, and that was not noticed because
  // its link was overwritten or because it went on two lists, it counts twice: another block,
  // without a link, may be out.
  [[gnu::noinline]] InUse look_for_use(SpanRef span) {
    const ClassInfo& info = Classes::info(span->class_id());
    if (SPANALLOC_UNLIKELY(span->purged.load_relaxed() != 0)) return look_for_use_but_purged(span);
    return find_without_link(pages_.address(span.number), info.block_size,
                             span->carved.load_relaxed(), info.virtual_span);
  }
  // look_for_use() where blocks on purged pages have no link; only a wrong program uses those.
  SPANALLOC_COLD InUse look_for_use_but_purged(SpanRef span) {
    const ClassInfo& info = Classes::info(span->class_id());
    const std::uint64_t purged = span->purged.load_relaxed();
    for (std::uint32_t i = 0; i < span->carved.load_relaxed(); ++i) {
      if ((PageMask::of_block(i, info.block_size) & purged) != 0) continue;
      const char* at = pages_.address(span.number) + std::size_t{i} * info.block_size;
      const auto* block = reinterpret_cast<const Block*>(at);
      if (SPANALLOC_UNLIKELY(!block->has_link(info.virtual_span))) return at;
    }
    return nullptr;
  }
  // Retires a span that the caller has alone: the program may still free the block in use. The
  // span becomes what a fork may leave behind, too: owned by an abandoned list, on no list, never
  // served from, never empty.
  SPANALLOC_COLD void retire(SpanRef span) {
    const SpanWord lost = SpanWord::make(abandoned_lists_.numbers[0], SpanState::kShared,
                                         pages_.capacity(span->class_id()));
    span->free_list.clear();
    span->rest.clear();
    span->expect_frees(1);
    span->retired = true;
    // Release: a thread that frees into it finds it so
    span->word.store_release(lost.with_delayed(true).bits);
  }
  SPANALLOC_COLD [[noreturn]] static void block_in_use(InUse block) {
    os::fatal(
        "a span was given back with a block in use (double free of another), or written to after "
        "free:",
        block);
  }
  SPANALLOC_COLD void give_pool_back() {
    for (unsigned stack = 0; stack < Classes::kPoolStacks; ++stack) {
      for (unsigned shard = 0; shard < pool().shards(); ++shard) give_stack_back(stack, shard);
    }
  }
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
  void give_stack_back(unsigned stack, unsigned shard) {
    // (One at a time: a handler may leave a report by a jump.) As many as the stack holds, or more;
    // spans that others put there meanwhile need not be waited for.
    for (std::uint32_t left = pool().count_hint(stack, shard); left != 0; --left) {
      const SpanNumber number = pool().get_local(stack, shard, pages_.pool_links());
      if (number == SpanNumber::kNone) return;
      forget_blocks(pages_.span(number));
      pages_.give(pages_.span(number));
    }
  }
  // Gives back a bounded part of one stack. Returns the cost: 1 for 64 blocks looked
  // at or a call of the arena.
  std::size_t give_some_back(unsigned stack, unsigned shard, std::size_t at_most) {
    std::size_t cost = 0;
    while (cost < at_most) {
      const SpanNumber number = pool().get_local(stack, shard, pages_.pool_links());
      if (number == SpanNumber::kNone) break;
      const SpanRef span = pages_.span(number);
      cost += 1 + span->carved.load_relaxed() / 64;
      forget_blocks(span);
      pages_.give(span);
    }
    return cost;
  }
  // Gives back some of what was in the pool when this decay epoch began.
  SPANALLOC_COLD std::size_t give_some_old_back(std::size_t at_most) {
    if (!is_started()) return 0;
    std::size_t cost = 0;
    for (unsigned row = 0; row < Classes::kPoolRows; ++row) {
      for (unsigned shard = 0; shard < pool().shards() && cost < at_most; ++shard) {
        cost += give_some_back(old_stack(row), shard, at_most - cost);
      }
    }
    return cost;
  }
  // Drains `units` of the first shard, from `shard` on, with kWorthDraining and
  // what is wanted. False: none.
  SPANALLOC_COLD bool drain_for(SliceCount wanted, unsigned shard, std::size_t units) {
    if (!is_started()) return false;
    const unsigned shards = pool().shards();
    const unsigned looked_at = static_cast<unsigned>(min_of(shards, kShardsAMiss));
    for (unsigned i = 0; i < looked_at; ++i, shard = shard + 1 == shards ? 0 : shard + 1) {
      std::size_t slices = 0;
      for (unsigned stack = 0; stack < Classes::kPoolStacks; ++stack) {
        slices +=
            pool().count_hint(stack, shard) * Classes::slices_of_row(Classes::row_of_stack(stack));
      }
      if (slices << Config::kSliceBits < kWorthDraining || slices < wanted.count) continue;
      std::size_t left = units;
      for (const auto stack_of : {&Heap::old_stack, &Heap::young_stack}) {
        for (unsigned row = 0; row < Classes::kPoolRows && left != 0; ++row) {
          left -= min_of(give_some_back((this->*stack_of)(row), shard, left), left);
        }
      }
      return true;
    }
    return false;
  }
  enum class PurgeWhich { kAged, kAll };
  // Purges pages of shared spans on which no block is out: of all shared spans, or of those in which
  // nothing was freed since the last epoch. Goes on from the cursor until the cost reaches `at_most`.
  // True: it came to the end. Goes through the records of all heaps, because lists change while
  // nobody holds their locks.
  //
  // Under purge_lock: so no heap's destroy() begins meanwhile, and a heap whose destroy() has begun
  // is not started. A record says who owns its span; that is asked again under the owner's lock.
  SPANALLOC_COLD bool purge_shared(PurgeWhich which, std::size_t at_most) {
    const std::size_t end = index_of(pages_.end_of_spans());
    std::size_t cost = 0;
    for (std::size_t next = 0; pages_.purge_cursor < end; pages_.purge_cursor = next) {
      if (cost >= at_most) return false;
      cost += kCostOfRecord;
      const SpanNumber number{static_cast<std::uint32_t>(pages_.purge_cursor)};
      // A range in use is one span: its other slices' records do not matter. (Count 0: a free range,
      // which is gone through, or one that was just given back.)
      next = pages_.purge_cursor + max_of(pages_.arena.count_of(index_of(number)), 1);
      if (!pages_.has_record(number)) continue;
      const SpanRef span = pages_.span(number);
      protocol_.with_shared(span, which == PurgeWhich::kAll, [&](auto& cache, SpanWord word) {
        const Heap* owner = pages_.heap_or_none(span->heap.load_relaxed());
        if (owner == nullptr || !owner->is_started()) return;
        // The number of blocks out only falls while the span is shared.
        // (`uncounted`: by others' frees only.)
        const std::uint32_t out = word.outstanding() - span->uncollected();
        const std::uint32_t seen = Watch::seen(out);
        const bool purged_parts = span->watched == Watch::purged(out);
        if (which == PurgeWhich::kAged && span->watched != seen) {
          if (!purged_parts) span->watched = seen;
          return;
        }
        if (purged_parts) return;
        span->watched = Watch::purged(out);
        cost += pages_.purge_pages(span, cache, word);
      });
    }
    return true;
  }
  SPANALLOC_COLD void drain_all_pools() {
    pages_.for_each_heap([](Heap& heap) { heap.drain_pool(); });
  }
  void purge_by_decay(std::uint64_t now) {
    if (SPANALLOC_UNLIKELY(now >= pages_.next_purge.load_relaxed())) purge_now(now);
  }
  // One step of the decay clock; an epoch is half the decay time. In each epoch the pools' older
  // spans go down to the arena, what was free there in the last epoch and still is gets purged, and
  // what is free now will be old in the next one. So dirty memory that nobody wants is purged after
  // half the decay time at least and the whole of it at most, if threads come by. One call does a
  // bounded part, and the next one goes on. An epoch ends for certain: spans that come into the pools
  // meanwhile go onto the other stacks, which are the next epoch's. (But for a span that a thread was
  // just about to put onto an old one.)
  SPANALLOC_COLD void purge_now(std::uint64_t now) {
    // Another thread is at it: another free will see to the rest
    if (!pages_.purge_lock.try_lock()) return;
    if (now >= pages_.next_purge.load_relaxed()) {
      if (!pages_.in_epoch) {
        pages_.in_epoch = true;
        pages_.purge_cursor = 0;
        pages_.for_each_heap([&](Heap& heap) {
          heap.take_all_large_spans(0, kEmptiedAnEpoch);
          if (heap.has_uncounted_abandoned()) heap.count_abandoned_due.store_relaxed(1);
        });
        pages_.arena.look_at_limit();
        // What is in the pools now is old from here on.
        pages_.pool_epoch.store_relaxed(pages_.pool_epoch.load_relaxed() ^ 1);
      }
      std::size_t cost = 0;
      pages_.for_each_heap([&](Heap& heap) {
        cost += heap.give_some_old_back(kDrainedAnEpoch - min_of(cost, kDrainedAnEpoch));
      });
      const bool drained = cost < kDrainedAnEpoch;
      const std::size_t slices = pages_.arena.purge(pages_.decay_ms != 0, kPurgedARound);
      pages_.given_back.fetch_add_relaxed(slices << Config::kSliceBits);
      pages_.dirty_bound.purged(slices);
      const bool purged = slices < kPurgedARound;
      const bool purged_parts = purge_shared(PurgeWhich::kAged, kPartsPurgedAnEpoch);
      if (drained && purged && purged_parts) {
        pages_.dirty_bound.pass_epoch(pages_.arena.age());
        pages_.forget_some_that_came_back();
        pages_.in_epoch = false;
      }
      // If there is more to do, the next thread that comes here goes on.
      pages_.next_purge.store_relaxed(pages_.in_epoch ? now : now + pages_.decay_ms / 2 + 1);
    }
    pages_.purge_lock.unlock();
  }

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
