// A heap's slow paths: where spans come from, where they go, and when free memory
// is purged; see heap.hpp.
#pragma once

#include "engines/standard/heap.hpp"

namespace spanalloc::standard {

// --- Start ---------------------------------------------------------------------------------------

template <class Config>
SPANALLOC_COLD inline bool Heap<Config>::start_slow() {
  if (!pages_.start()) return false;
  LockGuard guard(pages_.start_lock);
  if (started_.load_relaxed() != 0) return true;
  if (!pages_.enter(this)) return false;
  abandoned_lists_.of_class = storage_->abandoned;
  pool().set_shards(os::cpu_count());
  started_.store_release(1);  // release: pairs with is_started()
  return true;
}

// With the first cache rather than with the heap: a process that never allocates
// writes to no cache record.
template <class Config>
SPANALLOC_COLD inline bool Heap<Config>::make_abandoned_lists() {
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

// --- Taking spans --------------------------------------------------------------------------------

template <class Config>
inline FreshSpan Heap<Config>::take_pooled(ClassId c, unsigned shard) {
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
template <class Config>
inline FreshSpan Heap<Config>::as_pooled(SpanNumber number, ClassId c) {
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

template <class Config>
inline FreshSpan Heap<Config>::take_pooled_singles(ClassId c, CacheRecord& cache, unsigned shard) {
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

// A span that was emptied leaves its class. (Nothing is ever carved in a span of one block; where
// one block was carved, it is clear that it is back.)
template <class Config>
inline typename Heap<Config>::InUse Heap<Config>::forget_blocks_or_retire(SpanRef span) {
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

template <class Config>
inline FreshSpan Heap<Config>::take_open(ClassId c, Reuse reuse) {
  return as_fresh(pages_, pages_.arena.take(Classes::info(c).slices, alignment_of(c), reuse));
}

template <class Config>
inline FreshSpan Heap<Config>::take_dirty_or_open(ClassId c, unsigned shard) {
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

template <class Config>
inline FreshSpan Heap<Config>::take_span(ClassId c, unsigned shard) {
  if (const FreshSpan fresh = take_pooled(c, shard)) return fresh;
  const FreshSpan fresh = take_from_arena(c, shard);
  return Classes::has_one_block(c) && !fresh.is_pooled ? counted(fresh, Classes::info(c).slices)
                                                       : fresh;
}
template <class Config>
inline FreshSpan Heap<Config>::take_from_arena(ClassId c, unsigned shard) {
  purge_by_decay(os::now_ms());
  const SliceCount slices{Classes::info(c).slices};
  if (!pages_.arena.was_refused(slices.count, alignment_of(c))) {
    if (const FreshSpan fresh = take_dirty_or_open(c, shard)) return fresh;
  }
  return take_anyhow(slices, alignment_of(c));
}

template <class Config>
inline FreshSpan Heap<Config>::take_large(SliceCount slices, std::size_t alignment, Reuse reuse) {
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

// For when the arena has no range of this size at hand. Drains the pools into it and takes more
// memory from the system; if that is refused, tries everything else. That second time no other
// thread may drain, purge or decommit: what it holds would be missing.
template <class Config>
SPANALLOC_COLD inline FreshSpan Heap<Config>::take_anyhow(SliceCount slices,
                                                          std::size_t alignment) {
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

// To clear pages that are not in memory would bring them there.
template <class Config>
SPANALLOC_COLD inline bool Heap<Config>::zero_by_purging(const FreshSpan& fresh,
                                                         SliceCount slices) {
  if (slices.count < kLookAtLeast) return false;
  const std::uint32_t first = index_of(fresh.span.number);
  LargeHabits& habits = pages_.large_habits;
  if (!habits.wants_look_to_clear(slices.count))
    return pages_.arena.purge_taken(first, slices.count);
  const std::size_t used = pages_.arena.sample_used(first, slices.count, LargeHabits::kUsed);
  return habits.clears_by_purging(slices.count, used) &&
         pages_.arena.purge_taken(first, slices.count);
}

// A span of 64 KiB slices may be almost twice as large as its block. In clean memory that costs
// nothing. In memory that others had used, the part around the block would stay for as long as the
// block. To purge it takes as long as to write to a page, and the next block of the span must do
// without those pages: so it happens only where there is much of it.
template <class Config>
[[gnu::noinline]] inline void Heap<Config>::give_slack_back(SpanRef span, const char* block,
                                                            std::size_t bytes, bool all_is_dirty) {
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

template <class Config>
inline void Heap<Config>::begin_life(const FreshSpan& fresh, ClassId c, SpanWord word,
                                     std::size_t offset) {
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
  span->free_list.store_relaxed(no_block());
  span->rest.store_relaxed(no_block());
  span->purged.store_relaxed(0);
  span->uncounted = false;
  span->retired = false;
  span->expect_frees_while_owned();
  span->list = ListId::kNone;
  // Release: a late freer of an earlier life may look at the record under a lock.
  span->word.store_release(word.bits);
}

// Nothing else changes in the record of a span of the same class: while the block is out, only a
// change of its class writes there (change_class).
template <class Config>
inline void Heap<Config>::begin_single_life(const FreshSpan& fresh, ClassId c, std::size_t offset) {
  SPANALLOC_ASSERT(Classes::has_one_block(c));
  if (!fresh.same_class) return begin_life(fresh, c, kSingleInUse, offset);
  SPANALLOC_ASSERT(fresh.span->class_id() == c && fresh.span->list == ListId::kNone);
  fresh.span->shown.base.store_relaxed(address_of(pages_.address(fresh.span.number)) + offset);
  set_room(fresh.span, c);
  begin_same_life(fresh.span);
}

template <class Config>
inline OwnedSpan Heap<Config>::begin_owned_life(const FreshSpan& fresh, ClassId c,
                                                CacheNumber owner) {
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

// Whether to copy a growing block rather than to move its pages out. A block that grows by a
// quarter or more is copied a few times in all. Into dirty memory that costs less than the
// page faults behind moved pages. (Into clean memory it does not pay: such a copy dirties as
// much as it leaves behind.) Copying is also better if a block of this size came back from
// outside: memory outside goes back to the kernel when it is freed, and the next block would
// have all the page faults again.
template <class Config>
inline bool Heap<Config>::is_better_copied(SliceCount old, SliceCount slices) {
  if (slices.count <= old.count + old.count / 4) return false;
  if (slices.count << Config::kSliceBits <= pages_.came_back_from_outside()) return true;
  const auto dirty = pages_.arena.take(slices.count, 1, Reuse::kDirtyOnly);
  if (dirty.first == 0) return false;
  pages_.arena.give(dirty.first);
  return true;
}

template <class Config>
SPANALLOC_COLD inline void* Heap<Config>::move_out(SpanRef span, SliceCount old, std::size_t n) {
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

// --- Returning spans -----------------------------------------------------------------------------

template <class Config>
[[gnu::noinline]] inline void Heap<Config>::put_in_pool(SpanRef span, unsigned shard) {
  if (const InUse block = pool_or_retire(span, shard); SPANALLOC_UNLIKELY(block != nullptr))
    block_in_use(block);
  purge_by_decay(os::now_ms());
}
// A handler may leave a report by a jump: reports come when the caller holds nothing any more.
template <class Config>
inline void Heap<Config>::put_in_pool(SpanChain chain, unsigned shard) {
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

template <class Config>
inline typename Heap<Config>::InUse Heap<Config>::pool_or_retire(SpanRef span, unsigned shard) {
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

// Spans of one row that follow each other go into the pool in one step.
template <class Config>
[[gnu::noinline]] inline void Heap<Config>::pool_older_large_spans(CacheRecord& cache,
                                                                   unsigned shard) {
  SpanNumber first = SpanNumber::kNone;
  SpanNumber last = SpanNumber::kNone;
  std::uint32_t count = 0;
  const ClassInfo* of = nullptr;
  auto links = pages_.pool_links();
  const auto put_all = [&] {
    if (count == 0 || pool().put_chain_bounded(young_stack(of->pool_row), shard, first, last, count,
                                               most_young(*of, shard), links)) {
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

template <class Config>
SPANALLOC_COLD inline void Heap<Config>::give_large(SpanRef span, SliceCount slices) {
  pages_.give(span, comes_back_sparse(span, slices) &&
                        pages_.arena.purge_taken(index_of(span.number), slices.count));
  keep_dirty_bound(slices.count);
}

// True: give it back as clean memory, after purging it.
template <class Config>
inline bool Heap<Config>::comes_back_sparse(SpanRef span, SliceCount slices) {
  if (slices.count < kLookAtLeast || !pages_.large_habits.wants_look(slices.count)) return false;
  const std::size_t used =
      pages_.arena.sample_used(index_of(span.number), slices.count, LargeHabits::kUsed);
  return pages_.large_habits.gives_back(slices.count, used);
}

// After a free of so many slices. Twice as much can be purged, so that the bound is reached
// even while it sinks with the live memory; and one free takes no longer than the kernel
// would to take the block back.
template <class Config>
inline void Heap<Config>::keep_dirty_bound(std::size_t slices) {
  const std::size_t excess = pages_.dirty_bound.excess();
  if (SPANALLOC_LIKELY(excess == 0) || !pages_.purge_lock.try_lock()) return;
  const std::size_t wanted = min_of(excess, slices * 2 + kPurgedAFree);
  const std::size_t purged = pages_.arena.purge_largest(wanted);
  pages_.dirty_bound.purged_for_bound(purged);
  if (purged < wanted) pages_.dirty_bound.dirty_is(0);  // there is no more
  pages_.purge_lock.unlock();
}

// Of a span that counts as empty. If a block was freed twice, and that was not noticed because
// its link was overwritten or because it went on two lists, it counts twice: another block,
// without a link, may be out.
template <class Config>
[[gnu::noinline]] inline typename Heap<Config>::InUse Heap<Config>::look_for_use(SpanRef span) {
  const std::size_t size = Classes::info(span->class_id()).block_size;
  const char* block = pages_.address(span.number);
  const std::size_t span_bytes = Classes::info(span->class_id()).virtual_span;
  const auto link_at = [](const char* at) { return link_of(reinterpret_cast<const Block*>(at)); };
  std::uint32_t left = span->carved.load_relaxed();
  if (SPANALLOC_UNLIKELY(span->purged.load_relaxed() != 0)) return look_for_use_but_purged(span);
  // Most blocks are right: one test serves four.
  for (; left != 0; --left, block += size) {
    for (; left >= 4; left -= 4, block += 4 * size) {
      const std::uint64_t all = link_at(block) | link_at(block + size) | link_at(block + 2 * size) |
                                link_at(block + 3 * size);
      if (SPANALLOC_UNLIKELY(!leads_to_block(all, span_bytes))) break;
    }
    if (left == 0) break;
    const auto* at = reinterpret_cast<const Block*>(block);
    if (SPANALLOC_UNLIKELY(!is_link(at, link_of(at), span_bytes))) return block;
  }
  return nullptr;
}

// look_for_use() where blocks on purged pages have no link; only a wrong program uses those.
template <class Config>
SPANALLOC_COLD inline typename Heap<Config>::InUse Heap<Config>::look_for_use_but_purged(
    SpanRef span) {
  const ClassInfo& info = Classes::info(span->class_id());
  const std::uint64_t purged = span->purged.load_relaxed();
  for (std::uint32_t i = 0; i < span->carved.load_relaxed(); ++i) {
    if ((PageMask::of_block(i, info.block_size) & purged) != 0) continue;
    const char* at = pages_.address(span.number) + std::size_t{i} * info.block_size;
    const auto* block = reinterpret_cast<const Block*>(at);
    if (SPANALLOC_UNLIKELY(!is_link(block, link_of(block), info.virtual_span))) return at;
  }
  return nullptr;
}

// Retires a span that the caller has alone: the program may still free the block in use. The
// span becomes what a fork may leave behind, too: owned by an abandoned list, on no list, never
// served from, never empty.
template <class Config>
SPANALLOC_COLD inline void Heap<Config>::retire(SpanRef span) {
  const SpanWord lost = SpanWord::make(abandoned_lists_.numbers[0], SpanState::kShared,
                                       pages_.capacity(span->class_id()));
  span->free_list.store_relaxed(no_block());
  span->rest.store_relaxed(no_block());
  span->expect_frees(1);
  span->retired = true;
  // Release: a thread that frees into it finds it so
  span->word.store_release(lost.with_delayed(true).bits);
}
template <class Config>
SPANALLOC_COLD [[noreturn]] inline void Heap<Config>::block_in_use(InUse block) {
  os::fatal(
      "a span was given back with a block in use (double free of another), or written to after "
      "free:",
      block);
}

template <class Config>
SPANALLOC_COLD inline void Heap<Config>::give_pool_back() {
  for (unsigned stack = 0; stack < Classes::kPoolStacks; ++stack) {
    for (unsigned shard = 0; shard < pool().shards(); ++shard) give_stack_back(stack, shard);
  }
}
template <class Config>
inline void Heap<Config>::give_stack_back(unsigned stack, unsigned shard) {
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
template <class Config>
inline std::size_t Heap<Config>::give_some_back(unsigned stack, unsigned shard,
                                                std::size_t at_most) {
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
template <class Config>
SPANALLOC_COLD inline std::size_t Heap<Config>::give_some_old_back(std::size_t at_most) {
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
template <class Config>
SPANALLOC_COLD inline bool Heap<Config>::drain_for(SliceCount wanted, unsigned shard,
                                                   std::size_t units) {
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

template <class Config>
SPANALLOC_COLD inline bool Heap<Config>::purge_all_free() {
  LockGuard guard(pages_.purge_lock);
  pages_.purge_cursor = 0;
  const std::size_t before = pages_.given_back.load_relaxed();
  purge_shared(PurgeWhich::kAll, SIZE_MAX);
  drain_all_pools();
  const bool purged = pages_.arena.purge(false) != 0 || pages_.given_back.load_relaxed() != before;
  pages_.dirty_bound.dirty_is(0);
  pages_.arena.look_at_limit();
  return purged;
}

// One step of the decay clock; an epoch is half the decay time. In each epoch the pools' older
// spans go down to the arena, what was free there in the last epoch and still is gets purged, and
// what is free now will be old in the next one. So dirty memory that nobody wants is purged after
// half the decay time at least and the whole of it at most, if threads come by. One call does a
// bounded part, and the next one goes on. An epoch ends for certain: spans that come into the pools
// meanwhile go onto the other stacks, which are the next epoch's. (But for a span that a thread was
// just about to put onto an old one.)
template <class Config>
SPANALLOC_COLD inline void Heap<Config>::purge_now(std::uint64_t now) {
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

// Purges pages of shared spans on which no block is out: of all shared spans, or of those in which
// nothing was freed since the last epoch. Goes on from the cursor until the cost reaches `at_most`.
// True: it came to the end. Goes through the records of all heaps, because lists change while
// nobody holds their locks.
//
// Under purge_lock: so no heap's destroy() begins meanwhile, and a heap whose destroy() has begun
// is not started. A record says who owns its span; that is asked again under the owner's lock.
template <class Config>
SPANALLOC_COLD inline bool Heap<Config>::purge_shared(PurgeWhich which, std::size_t at_most) {
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

template <class Config>
SPANALLOC_COLD inline void Heap<Config>::take_all_large_spans(unsigned shard, std::uint32_t at_most,
                                                              const void* but_of) {
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

// Passes by a bounded number of abandoned lists and other heaps' caches.
template <class Config>
SPANALLOC_COLD inline std::uint32_t Heap<Config>::claim_empty_of_others(std::uint32_t at_most,
                                                                        unsigned shard) {
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

template <class Config>
[[gnu::noinline]] inline typename Heap<Config>::Borrowed Heap<Config>::borrow(
    ClassId c, CacheRecord& borrower, std::uint32_t at_least) {
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
    if (const Borrowed got = borrowed_from(lender.current[index_of(c)].load_relaxed())) return got;
    for (unsigned place = 0; place < lender.used_up.kPlaces; ++place) {
      if (const Borrowed got = borrowed_from(lender.used_up.span(place))) return got;
    }
  }
  return {};
}

}  // namespace spanalloc::standard
