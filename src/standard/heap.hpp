// A heap: the spans of its threads' caches, and the pool where empty spans wait, on a page layer.
//
//   thread cache (one a thread)
//     -> span_protocol.hpp: says which spans are empty, and whose they are
//     -> Heap::take_span / put_in_pool -> pool (lock-free) -> page layer's arena (lock-free)
//
// A pool is a bounded cache of spans, by size and shard, whose memory is dirty. Spans that it has
// no room for go down to the arena. The arena merges them with their neighbours, so that memory
// freed at one size serves every other. A request that the pool cannot serve looks for dirty memory
// first: in the arena, in large spans that other threads keep, in the pool for other sizes. Then it
// takes clean memory that needs no system call, then drains the pool, and only then takes new
// address space. Memory that nobody wanted for the decay time is purged by any thread that runs a
// slow path (or by a background thread, if the user asks for it).
//
// Objects above the largest class come from the arena directly. One that grows without room behind
// it may move out; it is a mapping of its own from then on (PageLayer::outside).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/poison.hpp"
#include "standard/abandoned_spans.hpp"
#include "standard/page_layer.hpp"
#include "standard/pool_rows.hpp"
#include "standard/span_protocol.hpp"
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

/// Thread-safe. Callers have entered the heap (HeapCall), but for what only reads.
template <class Config>
class Heap {
 public:
  using Classes = SizeClasses<Config>;
  using Pages = PageLayer<Config>;
  using CacheRecord = standard::CacheRecord<Config>;
  using Protocol = SpanProtocol<Pages>;
  using Reuse = typename Pages::Arena::Reuse;
  using Arena = typename Pages::Arena;
  using Pool = PoolRows<Config>;

  /// `thread_exit`: the destructor of what a thread keeps for this heap (thread::ExitKey).
  constexpr Heap(Pages& pages, void (*thread_exit)(void*))
      : on_thread_exit(thread_exit),
        abandoned(pages),
        pages_(pages),
        protocol_(pages),
        pool_(pages) {}

  /// Called by the page layer, before it is started. May be called again.
  void begin(HeapStorage<Config>& storage) {
    pool_.start(storage.pool);
    pool_.stacks().set_shards(os::cpu_count());
    abandoned.start(storage.abandoned);
  }

  Protocol& protocol() { return protocol_; }
  Pool& pool() { return pool_; }

  // --- Taking spans ------------------------------------------------------------------------------

  /// A span for class `c`; none: out of memory. The stacks of `shard` are tried first.
  FreshSpan take_span(ClassId c, unsigned shard) {
    if (const FreshSpan fresh = take_pooled(c, shard)) return fresh;
    const SliceCount slices{Classes::info(c).slices};
    const FreshSpan fresh = take_from_arena(slices, alignment_of(c),
                                            [&] { return take_without_growing(c, slices, shard); });
    return Classes::has_one_block(c) && !fresh.is_pooled ? note_live(fresh, slices) : fresh;
  }
  /// A span of kHuge for `slices` at a multiple of `alignment` slices; none: out of memory.
  FreshSpan take_own_span(SliceCount slices, std::size_t alignment, Reuse reuse) {
    const auto take = [&](Reuse how) { return take_at_hand(slices, alignment, how); };
    const FreshSpan fresh = take_from_arena(slices, alignment, [&] {
      if (reuse == Reuse::kDirtyFirst) {
        if (const FreshSpan dirty = take(Reuse::kDirtyOnly)) return dirty;
        // Before clean memory is touched: what threads and the pool keep for other sizes.
        pool_large_spans(0, Config::kCachesPerMiss);
        if (drain_for(slices, 0, Config::kDrainedPerHugeSlice)) {
          if (const FreshSpan dirty = take(Reuse::kDirtyOnly)) return dirty;
        }
      }
      return take(reuse);
    });
    return note_live(fresh, slices);
  }

  /// Begins a life: writes the record of a span that was just taken, at last its word; from there
  /// on the span is in use. It is owned or held and none of its blocks is carved, or its one block
  /// is out. Blocks begin at `offset` in the span.
  void begin_life(const FreshSpan& fresh, ClassId c, SpanWord word, std::size_t offset = 0) {
    const ClassInfo& info = Classes::info(c);
    const SpanRef span = fresh.span;
    SPANALLOC_ASSERT(span && span.number < pages_.end_of_spans());
    SPANALLOC_ASSERT(span->load_word().state() == SpanState::kFree);
    SPANALLOC_ASSERT(index_of(span.number) % alignment_of(c) == 0);
    for (std::uint32_t i = 0; i < (1u << info.order); ++i) {
      pages_.span(SpanNumber{index_of(span.number) + i})->set_order(info.order);
    }
    SPANALLOC_ASSERT(offset == 0 || info.blocks <= 1);
    if (info.blocks > 1) pages_.memory_return.count_idle(span, 0);
    span->begin_life(info, c, address_of(pages_.address(span.number)) + info.lead + offset,
                     fresh.zero, word);
  }
  /// begin_life() of an owned span; one whose last life was in the same class keeps its lists.
  OwnedSpan begin_owned_life(const FreshSpan& fresh, ClassId c, CacheNumber owner) {
    const SpanWord owned = SpanWord::make(owner, SpanState::kOwned, Classes::info(c).blocks);
    if (!fresh.has_blocks) {
      begin_life(fresh, c, owned);
      return {fresh.span};
    }
    SPANALLOC_ASSERT(fresh.span->class_id() == c);
    const SpanWord was = fresh.span->load_word();
    SPANALLOC_ASSERT(was.state() == SpanState::kFree);
    fresh.span->set_others(0);
    fresh.span->go_on(owned);
    return {fresh.span, pages_.cut_lists(fresh.span, was.head())};
  }
  /// The same of a span that begins as nobody's, and that the thread holds.
  SpanRef begin_held_life(const FreshSpan& fresh, ClassId c) {
    if (!fresh.has_blocks) {
      begin_life(fresh, c, kNewHeld);
      return fresh.span;
    }
    const BlockOffset head = pages_.cut_lists(fresh.span, fresh.span->load_word().head());
    fresh.span->set_others(0);
    fresh.span->go_on(kNewHeld.with_head(head));
    return fresh.span;
  }
  /// begin_life() of a span of one block. Freeing the block sets the word to free.
  /// Nothing else changes in the record of a span of the same class: while the block is out, only a
  /// change of its class writes there (Span::change_class).
  void begin_single_life(const FreshSpan& fresh, ClassId c, std::size_t offset) {
    SPANALLOC_ASSERT(Classes::has_one_block(c));
    if (!fresh.same_class) return begin_life(fresh, c, kLargeInUse, offset);
    SPANALLOC_ASSERT(fresh.span->class_id() == c);
    fresh.span->move_block(address_of(pages_.address(fresh.span.number)) + offset,
                           Classes::info(c));
    begin_same_life(fresh.span);
  }
  /// begin_single_life() of a span whose record says all of that already.
  void begin_same_life(SpanRef span) {
    SPANALLOC_ASSERT(span->load_word().state() == SpanState::kFree);
    span->word.set(kLargeInUse);
  }

  /// Makes a span of one block, of `old` slices, fit `slices` in its place.
  /// False: nothing has changed.
  bool resize_in_place(SpanRef span, SliceCount old, SliceCount slices) {
    const std::uint32_t first = index_of(span.number);
    if (slices > old) pages_.memory_return.before_taking({slices.count - old.count});
    const bool done =
        pages_.arena.resize_in_place(first, slices.count) ||
        (slices > old && pages_.arena.grow_at_end(first, slices.count, pages_.records_reach()));
    auto& bound = pages_.memory_return;
    if (done && slices > old) {
      bound.note_taken(first + old.count, {slices.count - old.count});
      bound.after_taking();
    }
    if (done && slices < old) {
      bound.dirty_bound.given(old.count - slices.count, false);
      bound.after_giving({old.count - slices.count});
    }
    return done;
  }
  /// Moves the block of a span of one block, of `old` slices, out of the arena, by moving its
  /// pages, so that it has n bytes or more (the span has fewer), and frees the span. nullptr:
  /// refused, or a copy is cheaper.
  SPANALLOC_COLD void* move_out(SpanRef span, SliceCount old, std::size_t n) {
    const std::size_t offset = span->first_block() % Classes::kSlice;
    const std::size_t least = align_up(offset + n, os::page_size());
    if (is_better_copied(old, {least >> Config::kSliceBits})) return nullptr;
    pages_.memory_return.before_taking({(least >> Config::kSliceBits) - old.count});
    if (!pages_.outside.promise(Config::kMostOutside)) return nullptr;
    const std::uint32_t first = index_of(span.number);
    std::size_t bytes =
        align_up(pages_.outside.with_room(least, pages_.arena.is_short()), os::page_size());
    // The span's life ends before the arena has its range, which anybody may take from there on.
    const auto end_life = [&](void* to) {
      pages_.outside.fill(to, bytes, offset);
      poison(pages_.address(span.number), old.count << Config::kSliceBits);
      span->word.set(SpanWord::make(kNobody, SpanState::kFree, 0));
      pages_.forget_pages_gone(span);
      pages_.memory_return.note_idle_given(span);
    };
    auto moved = pages_.arena.move_out(first, old.count, bytes, end_life);
    if (moved.to == nullptr && bytes != least) {
      bytes = least;
      moved = pages_.arena.move_out(first, old.count, bytes, end_life);
    }
    if (moved.to == nullptr) {
      pages_.outside.give_promise_back();
      return nullptr;
    }
    if (moved.left_a_range) pages_.arena.give(first, true);
    pages_.memory_return.dirty_bound.given(old.count, true);
    return static_cast<char*>(moved.to) + offset;
  }

  // --- Returning spans ---------------------------------------------------------------------------

  /// Puts a span whose word says free, and which the caller has alone, on the stack of `shard`.
  [[gnu::noinline]] void put_in_pool(SpanRef span, unsigned shard) {
    if (const InUse block = pool_or_retire(span, shard); SPANALLOC_UNLIKELY(block != nullptr))
      block_in_use(block);
    pages_.memory_return.purge_if_due(os::now_ms());
  }
  // A handler may leave a report by a jump: reports come when the caller holds nothing any more.
  void put_in_pool(SpanChain chain, unsigned shard) {
    if (chain.has_nothing()) return;
    InUse in_use = nullptr;
    for (SpanNumber number = chain.first; number != SpanNumber::kNone;) {
      const SpanRef span = pages_.span(number);
      number = span->next();
      if (const InUse block = pool_or_retire(span, shard); SPANALLOC_UNLIKELY(block != nullptr))
        in_use = block;
    }
    if (SPANALLOC_UNLIKELY(in_use != nullptr)) block_in_use(in_use);
    if (SPANALLOC_UNLIKELY(chain.damaged != SpanNumber::kNone))
      pages_.corrupted(pages_.span(chain.damaged));
    pages_.memory_return.purge_if_due(os::now_ms());
  }
  /// Counts an abandoned span that nobody has counted; an empty one goes to the pool.
  SPANALLOC_COLD void count_abandoned(SpanRef span, unsigned shard) {
    const Freed now = protocol_.count_abandoned(span);
    if (now == Freed::kEmptied) put_in_pool(span, shard);
    if (SPANALLOC_UNLIKELY(now == Freed::kRefused)) pages_.damaged(span);
  }
  /// The same of all that were abandoned since it was last called. False: none was. (It goes
  /// through all spans, and claims away ones that are empty.)
  SPANALLOC_COLD bool count_all_abandoned(unsigned shard) {
    // Acquire: the words of the spans that were noted before. A later note stays for the next call.
    if (has_uncounted_.load_relaxed() == 0 || has_uncounted_.exchange_acq_rel(0) == 0) return false;
    pages_.arena.walk([&](std::uint32_t number, std::size_t slices, bool free) {
      if (free || number + slices > index_of(pages_.end_of_spans())) return;
      const SpanRef span = pages_.span(SpanNumber{number});
      if (protocol_.claim_if_away(span)) return put_in_pool(span, shard);
      count_abandoned(span, shard);
    });
    return true;
  }
  /// A thread has abandoned a span as it was. Release: who takes the note sees the span's word.
  void note_uncounted() { has_uncounted_.store_release(1); }
  /// Puts the cached large spans of a cache into the pool.
  void pool_large_spans_of(CacheRecord& cache, unsigned shard) {
    cache.large_spans.for_each([&](Span& span) {
      if (cache.large_spans.take_away(span)) put_in_pool(cached_of_record(span), shard);
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
      if (count == 0 || pool_.put_chain(first, last, count, *of, shard)) {
        count = 0;
        return;
      }
      for (; count != 0; --count) {
        const SpanNumber number = first;
        first = Pool::Stacks::next_of(number, links);
        pool_intact(pages_.span(number), shard);
      }
    };
    const auto slices_of = [](const Span& span) {
      return unsigned{Classes::kTable[index_of(span.shown_class())].slices};
    };
    cache.large_spans.let_go_of_older(slices_of, [&](Span& record) {
      const SpanRef span = cached_of_record(record);
      const ClassInfo& info = Classes::info(span->class_id());
      if (pages_.slices_of(span).count != info.slices) return pool_intact(span, shard);
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
  FreshSpan take_pooled_large(ClassId c, CacheRecord& cache, unsigned shard) {
    const ClassInfo& info = Classes::info(c);
    SPANALLOC_ASSERT(Classes::has_one_block(c));
    FreshSpan first;
    do {
      const SpanNumber number = pool_.take_local(info.pool_row, shard);
      if (number == SpanNumber::kNone) return first;
      const SpanRef span = pages_.span(number);
      if (!first) {
        first = as_pooled(number, c);
      } else if (span->class_id() != c || !cache.large_spans.add(*span.record, info.slices)) {
        // No decay epoch, which may end in a report: the caller already has `first`.
        if (const InUse block = pool_or_retire(span, shard); SPANALLOC_UNLIKELY(block != nullptr)) {
          pool_intact(first.span, shard);
          block_in_use(block);
        }
        return first;
      }
    } while (first.same_class && cache.large_spans.has_half());
    return first;
  }
  /// pool_large_spans_of() all caches, or `at_most` of them in turn, except those of thread
  /// `but_of`.
  SPANALLOC_COLD void pool_large_spans(unsigned shard, std::uint32_t at_most = UINT32_MAX,
                                       const void* but_of = nullptr) {
    const std::size_t count = index_of(pages_.caches.end());
    const std::size_t steps = min_of(count, at_most);
    std::uint32_t next = next_cache_.fetch_add_relaxed(static_cast<std::uint32_t>(steps));
    for (std::size_t i = 0; i < steps; ++i, ++next) {
      const CacheNumber number{static_cast<std::uint32_t>(next % count)};
      if (!pages_.caches.has(number)) continue;
      CacheRecord& cache = pages_.caches[number];
      if (but_of == nullptr || cache.thread.load_relaxed() != address_of(but_of))
        pool_large_spans_of(cache, shard);
    }
  }

  // --- What MemoryReturn asks for, under its lock ------------------------------------------------

  /// What is in the pool now is the last epoch's from here on; so are some of the spans that
  /// threads keep.
  void begin_epoch() {
    pool_large_spans(0, Config::kCachesPerEpoch);
    pool_.begin_epoch();
  }
  /// Gives to the arena some of what was in the pool when the epoch began. Returns the cost.
  SPANALLOC_COLD std::size_t drain_last_epochs(std::size_t at_most) {
    return pool_.drain_last_epochs(at_most, give_to_arena());
  }
  /// Gives the pool to the arena. Returns the cost.
  SPANALLOC_COLD std::size_t drain(std::size_t at_most = SIZE_MAX) {
    return pool_.drain(give_to_arena(), at_most);
  }
  /// Gives an empty span of the caller's to the arena.
  SPANALLOC_COLD void give_back(SpanRef span) {
    check_all_back(span);
    pages_.give(span);
  }
  /// Puts into the pool what threads keep and do not use.
  void pool_all_unused(unsigned shard) { pool_large_spans(shard); }

  /// The shard of the thread that has `cache` (nullptr: of a thread without one).
  SPANALLOC_INLINE unsigned shard_of(const CacheRecord* cache) const {
    return pool_.stacks().shard_of(cache == nullptr ? 0 : index_of(cache->number));
  }

  // --- Caches ------------------------------------------------------------------------------------

  /// A cache for the calling thread; nullptr when there is none left.
  CacheRecord* begin_cache() {
    if (!pages_.start()) return nullptr;
    // The starting thread gets the first record: so a process with one thread writes to few pages.
    CacheRecord* cache = pages_.caches.take();
    if (cache == nullptr) return nullptr;
    cache->forks.store_relaxed(pages_.caches.forks);
    cache->thread.store_release(address_of(os::thread_id()));  // release: pairs with has_vanished()
    live_caches.fetch_add_relaxed(1);
    return cache;
  }
  void end_cache(CacheRecord* cache) {
    SPANALLOC_ASSERT(pages_.caches.is_mine(*cache));
    pages_.caches.give_back(cache);
    live_caches.fetch_sub_relaxed(1);
  }

  thread::ExitKey exit_key;
  void (*const on_thread_exit)(void*);
  Atomic<std::size_t> live_caches{0};
  Atomic<std::size_t> lost_to_fork{0};  ///< spans
  AbandonedSpans<Pages, Classes::kSmallClasses> abandoned;

 private:
  FreshSpan as_fresh(const typename Arena::Taken& taken) {
    if (taken.first == 0) return {};
    SPANALLOC_ASSERT(SpanNumber{taken.first} < pages_.end_of_spans());
    return {pages_.span(SpanNumber{taken.first}), taken.zero};
  }
  // Of a span of one block: counted as live.
  FreshSpan note_live(const FreshSpan& fresh, SliceCount slices) {
    if (fresh) pages_.memory_return.note_taken(index_of(fresh.span.number), slices);
    return fresh;
  }
  static std::size_t alignment_of(ClassId c) { return std::size_t{1} << Classes::info(c).order; }
  // The span of one block that this record belongs to.
  SpanRef cached_of_record(const Span& span) {
    const std::size_t number = pages_.slice_of(span.first_block());
    return pages_.span(SpanNumber{static_cast<std::uint32_t>(number)});
  }
  FreshSpan take_pooled(ClassId c, unsigned shard) {
    const SpanNumber number = pool_.take(Classes::info(c).pool_row, shard);
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
    if (!fresh.same_class) {
      check_all_back(fresh.span);
      pages_.forget_pages_gone(fresh.span);
    }
    if (SPANALLOC_UNLIKELY(Classes::has_one_block(was) != Classes::has_one_block(c))) {
      pages_.memory_return.dirty_bound.changed(Classes::info(c).slices, Classes::has_one_block(c));
    }
    return fresh;
  }
  FreshSpan take_at_hand(SliceCount slices, std::size_t alignment, Reuse reuse) {
    return as_fresh(pages_.arena.take(slices.count, alignment, reuse));
  }
  FreshSpan take_without_growing(ClassId c, SliceCount slices, unsigned shard) {
    const auto take = [&](Reuse how) { return take_at_hand(slices, alignment_of(c), how); };
    if (const FreshSpan fresh = take(Reuse::kDirtyOnly)) return fresh;
    // Before clean memory is touched: what other threads keep that have freed such blocks, and may
    // not run for long; and what the pool keeps for other sizes.
    if (Classes::has_one_block(c)) {
      pool_large_spans(shard, Config::kCachesPerMiss, os::thread_id());
      if (const FreshSpan fresh = take_pooled(c, shard)) return fresh;
    }
    if (drain_for(slices, shard, Config::kDrainedPerSlice)) {
      if (const FreshSpan fresh = take(Reuse::kDirtyOnly)) return fresh;
    }
    return take(Reuse::kDirtyFirst);
  }
  template <class AtHand>
  FreshSpan take_from_arena(SliceCount slices, std::size_t alignment, AtHand at_hand) {
    pages_.memory_return.before_taking(slices);
    pages_.memory_return.purge_if_due(os::now_ms());
    if (!pages_.arena.was_refused(slices.count, alignment)) {
      if (const FreshSpan fresh = at_hand()) {
        pages_.memory_return.after_taking();
        return fresh;
      }
    }
    const FreshSpan fresh = as_fresh(pages_.memory_return.take_anyhow(slices, alignment));
    pages_.memory_return.after_taking();
    return fresh;
  }
  bool drain_for(SliceCount wanted, unsigned shard, std::size_t cost_of_slice) {
    return pool_.drain_for(wanted, shard, cost_of_slice * wanted.count, give_to_arena());
  }
  auto give_to_arena() {
    return [this](SpanRef span) { give_back(span); };
  }
  // Whether to copy a growing block rather than to move its pages out. A block that grows by a
  // quarter or more is copied a few times in all. Into dirty memory that costs less than the
  // page faults behind moved pages. (Into clean memory it does not pay: such a copy dirties as
  // much as it leaves behind.) Copying is also better if a block of this size came back from
  // outside: memory outside goes back to the kernel when it is freed, and the next block would
  // have all the page faults again.
  bool is_better_copied(SliceCount old, SliceCount slices) {
    if (slices.count <= old.count + old.count / 4) return false;
    if (slices.count << Config::kSliceBits <= pages_.outside.came_back()) return true;
    const auto dirty = pages_.arena.take(slices.count, 1, Reuse::kDirtyOnly);
    if (dirty.first == 0) return false;
    pages_.arena.give(dirty.first);
    return true;
  }
  // In a span that counts as empty: a block that is on no list. nullptr: all are free.
  using InUse = const char*;
  InUse pool_or_retire(SpanRef span, unsigned shard) {
    SPANALLOC_ASSERT(span->load_word().state() == SpanState::kFree);
    SPANALLOC_ASSERT(shard < pool_.shards());  // no other stack is ever looked at
    const ClassId c = span->class_id();
    const ClassInfo& info = Classes::info(c);
    if (const CacheNumber owner = span->load_word().owner(); owner != kNobody) {
      pages_.maps.hide_from_owner(pages_.caches[owner], span);
    }
    // (Only for spans of one block: to ask for the size of others costs the
    // common case 15 instructions.)
    const auto slices = [&] { return pages_.slices_of(span).count; };
    // Spans of kHuge have no row; nor has a span that a vanished thread was resizing at the fork.
    const bool odd = info.blocks == 1 && slices() != info.slices;
    if (odd || pages_.arena.is_short() || !pool_.put(span.number, info, shard)) {
      if (const InUse block = check_all_back_or_retire(span); SPANALLOC_UNLIKELY(block != nullptr))
        return block;
      auto& bound = pages_.memory_return;
      const SliceCount all = odd ? SliceCount{slices()} : SliceCount{info.slices};
      if (c == Classes::kHuge) {
        pages_.give(span, bound.purge_if_sparse(span, all));
        bound.keep_dirty_bound(all);
      } else {
        pages_.give(span);
        if (info.blocks == 1) bound.keep_dirty_bound({info.slices});
      }
      bound.after_giving(all);
    }
    return nullptr;
  }
  // For an intact span of one block, when the caller must not come to a decay epoch.
  void pool_intact(SpanRef span, unsigned shard) {
    const InUse none = pool_or_retire(span, shard);
    SPANALLOC_ASSERT(none == nullptr);
    (void)none;
  }
  void check_all_back(SpanRef span) {
    if (const InUse block = check_all_back_or_retire(span); SPANALLOC_UNLIKELY(block != nullptr)) {
      block_in_use(block);
    }
  }
  // A span that was emptied leaves its class. (Nothing is ever carved in a span of one block; where
  // one block was carved, it is clear that it is back.)
  InUse check_all_back_or_retire(SpanRef span) {
    if (span->carved() > 1) {
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
    if (SPANALLOC_UNLIKELY(span->purged() != 0)) return look_for_use_but_purged(span);
    return find_without_link(pages_.address(span.number) + info.lead, info.block_size,
                             span->carved(), info.virtual_span);
  }
  // look_for_use() where blocks on purged pages have no link; only a wrong program uses those.
  SPANALLOC_COLD InUse look_for_use_but_purged(SpanRef span) {
    const ClassInfo& info = Classes::info(span->class_id());
    const std::uint64_t purged = span->purged();
    for (std::uint32_t i = 0; i < span->carved(); ++i) {
      if ((PageMask::of_block(i, info) & purged) != 0) continue;
      const char* at = pages_.address(span.number) + info.offset_of(i);
      const auto* block = reinterpret_cast<const Block*>(at);
      if (SPANALLOC_UNLIKELY(!block->has_link(info.virtual_span))) return at;
    }
    return nullptr;
  }
  // Retires a span that the caller has alone: the program may still free the block in use. The
  // span becomes what a fork may leave behind, too: an abandoned span that is shown nowhere, never
  // served from, and never empty.
  SPANALLOC_COLD void retire(SpanRef span) {
    const SpanWord lost =
        SpanWord::make(kNobody, SpanState::kNobodys, pages_.capacity(span->class_id()));
    span->lose_free_blocks();
    span->set_withdrawn(true);
    span->word.set(lost.with_mark(true));
  }
  SPANALLOC_COLD [[noreturn]] static void block_in_use(InUse block) {
    os::fatal(
        "a span was given back with a block in use (double free of another), or written to after "
        "free:",
        block);
  }

  Pages& pages_;
  Protocol protocol_;
  Pool pool_;
  // The cache to look at next for what it does not need. In a line of its own, because each pool
  // miss changes it, with what changes when a thread ends.
  alignas(kCacheLine) Atomic<std::uint32_t> next_cache_{0};
  Atomic<std::uint32_t> has_uncounted_{0};
};

}  // namespace spanalloc::standard
