// The slow paths of free, for what the thread's map does not show; thread_cache.hpp has their call tree.
#pragma once

#include "engines/standard/thread_cache.hpp"

namespace spanalloc::standard {

template <class Config>
[[gnu::noinline]] inline typename ThreadCache<Config>::Location ThreadCache<Config>::locate(
    const void* p) {
  const std::size_t number = pages->slice_of(address_of(p));
  const SpanRef slice = pages->has_plain_slice(number)
                            ? pages->span(SpanNumber{static_cast<std::uint32_t>(number)})
                            : pages->any_slice_at(address_of(p));
  if (SPANALLOC_UNLIKELY(slice.record == nullptr)) return {};
  const SpanRef span = pages->span_of(slice);
  const SpanWord word = span->load_word();
  // The record of a free slice may lead to a span before it that does not have this slice.
  const bool in_span = word.state() != SpanState::kFree &&
                       index_of(slice.number) - index_of(span.number) < (1u << span->order);
  return {span, word, in_span, in_span && span->shown.is_block(address_of(p))};
}

// The block is on no list after all, if the call returns: it is freed like any other.
template <class Config>
SPANALLOC_COLD inline void ThreadCache<Config>::deallocate_suspect(void* p, ThreadCache& self,
                                                                   SpanRef span) {
  Misuse::clear_suspect(self, span, static_cast<Block*>(p));
  deallocate_by_record(p, self);
}

// Frees a block that the thread's map does not show. First the common case: a span of one block is
// cached for the next request, whichever thread had it before. (All calls are tail calls, so no
// register need be saved.)
template <class Config>
void ThreadCache<Config>::deallocate_missed(void* p, ThreadCache& self) {
  const std::uintptr_t a = address_of(p);
  const std::size_t number = self.pages->slice_of(a);
  CacheRecord* const cache = self.cache;
  if (SPANALLOC_UNLIKELY(!self.pages->has_plain_slice(number) || cache == nullptr)) {
    return deallocate_by_record(p, self);
  }
  const SpanRef span = self.pages->span(SpanNumber{static_cast<std::uint32_t>(number)});
  // (In a span of one block the class and the block's beginning do not change as long as the
  // caller's block is out; keep() finds out whether it is.)
  const ClassId c{span->shown_class.load_relaxed()};
  const bool has_one_block = c >= Classes::kFirstLarge && c < Classes::kHuge;
  if (!has_one_block || span->shown.base.read_own() != a || self.pages->arena.is_at_limit() ||
      !self.heap->has(span)) {
    return deallocate_others(p, self, span);
  }
  const ClassInfo& info = Classes::info(c);
  if constexpr (kPoisons) {
    if (span->load_word() == kSingleInUse) poison(p, self.block_bytes(c, span));
  }
  if (SPANALLOC_UNLIKELY(!cache->large_spans.keep(*span.record, info.slices))) {
    return deallocate_single(p, self, span);
  }
  self.pass_by_clock(*cache);
}

// Frees the only block of a span that was not cached: there is no room, or the span is not in use.
// The older cached large spans go to the pool, which makes room for several frees; if the span is
// too large even then, it goes there itself.
template <class Config>
[[gnu::noinline]] inline void ThreadCache<Config>::deallocate_single(void* p, ThreadCache& self,
                                                                     SpanRef span) {
  const unsigned slices = Classes::info(span->class_id()).slices;
  auto& large_spans = self.cache->large_spans;
  // (Asked before others may have it: a span that is cached already would go to the pool as well.)
  if (large_spans.has_room_for(slices) || span->load_word() != kSingleInUse) {
    return deallocate_others(p, self, span);
  }
  const Inside inside(self);
  self.heap->pool_older_large_spans(*self.cache, self.shard());
  if (SPANALLOC_LIKELY(large_spans.keep(*span.record, slices)))
    return (void)self.pages->memory_return.purge_if_due(os::now_ms());
  if (SPANALLOC_UNLIKELY(!large_spans.give_up(*span.record)))
    return deallocate_others(p, self, span);
  self.heap->put_in_pool(span, self.shard());
}

// Next: a block of another thread's span. deallocate_by_record() frees everything else.
template <class Config>
[[gnu::noinline]] inline void ThreadCache<Config>::deallocate_others(void* p, ThreadCache& self,
                                                                     SpanRef slice) {
  const std::uintptr_t a = address_of(p);
  const SpanRef span = self.pages->span_of(slice);
  const SpanWord word = span->load_word();
  // (Of a span in use only. is_block() is exact, so it also tells whether
  // this is the block's span.)
  const bool others =
      word.state() != SpanState::kFree && word.owner() != kNobody && !self.is_mine(word);
  if (SPANALLOC_UNLIKELY(!others || !span->shown.is_block(a) || !self.heap->has(span))) {
    return deallocate_by_record(p, self);
  }
  self.free_into_others(span, word, static_cast<Block*>(p));
}

template <class Config>
SPANALLOC_INLINE void ThreadCache<Config>::free_into_others(SpanRef span, SpanWord word,
                                                            Block* block) {
  prefetch_to_write(block);  // one transfer between CPUs, not two: it is read, then written
  const BlockOffset mark = pages->offset_of(span, block);
  if (SPANALLOC_UNLIKELY(word.head() == mark)) Misuse::remotely_freed_twice(*this, span, block);
  if (Misuse::looks_free(block)) return deallocate_suspect(block, *this, span);
  poison(block + 1, Classes::info(span->class_id()).block_size - sizeof(Block));
  if (cache->batches.add(*this, span, word, block)) return;
  if (word.state() == SpanState::kOwned &&
      SPANALLOC_LIKELY(span->word.free_into_owned(
          word, mark, [&](BlockOffset list) { block->link_to(pages->first_of(span, list)); }))) {
    return;
  }
  free_to_span(span, block, block, 1);
}

// Frees whatever p is, or null: another thread's block, a span of one block, or a block of the
// thread's own whose entry in the map another of its spans has overwritten.
template <class Config>
[[gnu::noinline]] inline void ThreadCache<Config>::deallocate_by_record(void* p,
                                                                        ThreadCache& self) {
  if (SPANALLOC_UNLIKELY(os::in_kernel_call())) return NestedBlocks::put_off(p);
  const Location at = self.locate(p);
  if (SPANALLOC_UNLIKELY(!at.is_block)) return Misuse::free_outside_spans(p, self, at.has_record());
  if (self.is_mine(at.word)) return deallocate_own(p, self, at.span);
  self.deallocate_remote(at.span, at.word, p);
}

template <class Config>
[[gnu::noinline]] inline void ThreadCache<Config>::deallocate_own(void* p, ThreadCache& self,
                                                                  SpanRef span) {
  auto* block = static_cast<Block*>(p);
  Block* list = span->free_list.first();
  if (SPANALLOC_UNLIKELY(list == block) || Misuse::looks_free(block))
    return deallocate_suspect(p, self, span);
  self.miss_map();
  self.pages->maps.show(*self.map, span, *span.record);
  poison(block + 1, Classes::info(span->class_id()).block_size - sizeof(Block));
  if (SPANALLOC_UNLIKELY(push_freed(span.record, block, address_of(list) ^ address_of(block)))) {
    self.collect_own(span);
  }
}

// The free of p was an event: a batch is full, or an own span may have become
// ready, partial or empty.
template <class Config>
[[gnu::noinline]] inline void ThreadCache<Config>::look_after(void* p, ThreadCache& self) {
  // Another thread may have claimed the span meanwhile. The record stays readable, and tells.
  const SpanRef span = self.pages->span_of(self.pages->any_slice_at(address_of(p)));
  if (!self.cache->batches.flush_if_full(self, span)) self.collect_own(span);
}

template <class Config>
[[gnu::noinline]] inline void ThreadCache<Config>::collect_own(SpanRef span) {
  SPANALLOC_ASSERT(cache != nullptr && pages->is_mine(cache->number));
  if (is_owned_here(span->load_word())) {
    const unsigned place = cache->used_up.place_of(span.number);
    return place == cache->used_up.kNoPlace ? look_at_current(span) : collect_used_up(span, place);
  }
  const Inside inside(*this);
  if (heap->protocol().collect_after_free(span, cache->number)) {
    heap->put_in_pool(span, shard());
    count_abandoned_if_due();
  }
}

// So many blocks of a current span are free again that its thread may be giving it up. Nobody
// but its thread can give back anything of a current span, and the thread may be about to wait
// for long. So it shares the span if at most half of the carved blocks are out: others then take
// the span with its last block, or purge its pages. If more are out, it looks once or twice
// more, after as many frees as would bring it there if no block were handed out meanwhile, and
// then leaves the span alone.
template <class Config>
[[gnu::noinline]] inline void ThreadCache<Config>::look_at_current(SpanRef span) {
  const std::uint32_t looks = span->quota.load_relaxed();
  if (looks >= standard::Span::kForClock) {
    const std::uint32_t frees = 2 * (looks - standard::Span::kForClock);
    const bool has_more = read_clock(span->class_id());
    return span->expect_clock(has_more                             ? standard::Span::kSoonClock
                              : frees < standard::Span::kMostClock ? frees
                                                                   : standard::Span::kMostClock);
  }
  span->expect_frees_while_owned();
  const ClassId c = span->class_id();
  if (current_span(c) != span || exited) return;
  // (A thread that gives no spans up takes few other slow paths: it reads the clock here soon.)
  if (cache->patience.stays(c)) return span->expect_clock(standard::Span::kSoonClock);
  const Inside inside(*this);
  const std::uint32_t free_blocks = merge_lists(span);
  const std::uint32_t out = span->load_word().outstanding() - free_blocks;
  const std::uint32_t few = span->carved.load_relaxed() / 2;
  if (out <= few) {
    cache->patience.gave_up(c, os::now_ms());
    leave_current(c);
    share(span, free_blocks);
  } else if (looks < kLooksAtCurrent) {
    span->expect_emptying(out - few, looks + 1);
  }
}

// An eighth of a used-up span's blocks are free again: it is ready. If the span has grown since
// it was last shared or used up, its thread may be giving it up: it looks again when three
// quarters are free, and then shares the span. (Otherwise the count goes on below 0;
// uncollected() is right modulo 2^32.)
template <class Config>
[[gnu::noinline]] inline void ThreadCache<Config>::collect_used_up(SpanRef span, unsigned place) {
  const ClassInfo& info = Classes::info(span->class_id());
  if (span->watched != Watch::kGrown) return cache->used_up.mark_ready(place);
  if (span->uncollected() == info.refill_remotes) {
    const std::uint32_t more = info.blocks * 5 / 8;
    span->left.store_relaxed(more);
    span->quota.store_relaxed(info.refill_remotes + more);
    return cache->used_up.mark_ready(place);
  }
  if (cache->patience.stays(span->class_id())) return;
  const Inside inside(*this);
  cache->patience.gave_up(span->class_id(), os::now_ms());
  share_used_up(place);
}

// Frees a block of a span that this thread does not own: another thread's, or one of another
// heap. The first free into a span is one compare-and-swap; the second one in a row, as far
// as the span's batch remembers, begins the batch. Blocks of another heap are not batched: it
// may be destroyed meanwhile.
template <class Config>
SPANALLOC_INLINE void ThreadCache<Config>::deallocate_remote(SpanRef span, SpanWord word, void* p) {
  Block* block = static_cast<Block*>(p);
  prefetch_to_write(block);  // one transfer between CPUs, not two: it is read, then written
  // The word is good enough to report misuse; the protocol looks again.
  if (SPANALLOC_UNLIKELY(word.state() == SpanState::kFree)) Misuse::free_of_no_block(p);
  if (SPANALLOC_UNLIKELY(word.head() == pages->offset_of(span, p)))
    Misuse::remotely_freed_twice(*this, span, block);
  // (The only block of a span has no link, and its page may never have been touched.)
  if (span->class_id() < Classes::kFirstLarge && Misuse::looks_free(block)) {
    return deallocate_suspect(p, *this, span);
  }
  if constexpr (kPoisons) poison(block + 1, block_bytes(span->class_id(), span) - sizeof(Block));
  // (Once: if there is no cache record to be had, the thread does without.)
  if (SPANALLOC_UNLIKELY(cache == nullptr && !exited && lone_frees < State::kFreesForCache)) {
    ++lone_frees;
    if (lone_frees == State::kFreesForCache) {
      const Inside inside(*this);
      attach();
      detach_if_exited();
    }
  }
  // A thread without a cache record has no exit hook to flush a batch, so it never has one.
  if (cache != nullptr && word.owner() != kNobody && heap->has(span) &&
      cache->batches.add(*this, span, word, block))
    return;
  free_to_span(span, block, block, 1);
}

// (The only block of a span has no link, because its page may never have been touched.)
template <class Config>
[[gnu::noinline]] inline void ThreadCache<Config>::free_to_span(SpanRef span, Block* newest,
                                                                Block* oldest,
                                                                std::uint32_t count) {
  const Inside inside(*this);  // before the span can be claimed
  const BlockOffset mark = pages->offset_of(span, newest);
  const bool has_list = !Classes::has_one_block(span->class_id());
  const auto link = [&](BlockOffset list) {
    if (!has_list) return;
    oldest->link_to(pages->first_of(span, list));
  };
  switch (heap->protocol().free_remote(span, mark, count, link)) {
    case Freed::kRefused:
      return Misuse::freed_twice(newest);
    case Freed::kEmptied: {
      // The record names the span's heap until somebody takes the span out of that heap's pool.
      // (Not shard(): it is this heap's.)
      Heap& home = pages->heap_of(span);
      return home.put_in_pool(span, home.shard_of(cache));
    }
    case Freed::kDelayed:
    case Freed::kDone:
      return;
  }
}

}  // namespace spanalloc::standard
