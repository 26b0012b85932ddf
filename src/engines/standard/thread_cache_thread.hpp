// How a thread cache begins and ends, and gives back what it holds without need.
#pragma once

#include <bit>

#include "engines/standard/thread_cache.hpp"

namespace spanalloc::standard {

template <class Config>
SPANALLOC_COLD inline bool ThreadCache<Config>::attach() {
  CacheRecord* fresh = heap->begin_cache();
  if (fresh == nullptr) return false;
  if (!adopt(fresh)) exited = true;
  return true;
}

template <class Config>
inline bool ThreadCache<Config>::adopt(CacheRecord* fresh) {
  SPANALLOC_ASSERT(cache == nullptr && fresh->batches.are_empty() && fresh->loans.are_none() &&
                   pages->is_mine(fresh->number));
  owned_identity = SpanWord::identity_of(fresh->number, SpanState::kOwned);
  map = &pages->maps.of(*fresh);
  misses = 0;
  cache = fresh;  // before the key's value: setting it may call malloc
  return exited || heap->exit_key.watch_this_thread(this, heap->on_thread_exit);
}

template <class Config>
inline void ThreadCache<Config>::on_thread_exit(void* state) {
  auto* self = static_cast<ThreadCache*>(state);
  if (!self->heap->exit_key.comes_again(state, self->exit_round)) self->thread_exit();
}

template <class Config>
inline void ThreadCache<Config>::thread_exit() {
  const Inside inside(*this);
  exited = true;
  if (cache != nullptr) detach();
}

// Gives the cache record back: spans with blocks out go to an abandoned
// list, empty ones to the pool.
template <class Config>
inline void ThreadCache<Config>::detach() {
  SPANALLOC_ASSERT(pages->is_mine(cache->number));
  // For signal handlers that fork when the thread has given its record up
  // and is still busy with it.
  const void* outer = inside_without_cache.load_relaxed();
  inside_without_cache.store_relaxed(pages);
  cache->batches.flush_all(*this);
  if (SPANALLOC_UNLIKELY(!cache->loans.are_none())) cache->loans.end_all(*this);
  const CacheNumber new_owner = heap->abandoned_lists().home_of(cache->number);
  for_each_current_class([&](ClassId c) {
    if (is_used_up(c)) leave_current_and_share(c);
  });
  while (!cache->used_up.is_empty()) share_used_up(cache->used_up.oldest());
  if (!cache->large_spans.is_empty()) {
    heap->pool_large_spans_of(*cache, shard());
    cache->large_spans.forget();
  }
  if (heap->protocol().may_have_shared(cache->number)) {
    heap->put_in_pool(heap->protocol().abandon_all(cache->number, new_owner), shard());
  }
  // The current spans last: they are uncounted, and those are looked for at the front of the list.
  {
    const typename Heap::Protocol::CacheGuard guard(heap->protocol(), cache->number);
    for_each_current_class([&](ClassId c) { abandon_current(c, new_owner); });
  }
  for (std::uint64_t& classes : cache->current_classes) classes = 0;
  // The next thread of this record has other habits.
  cache->patience.forget();
  owned_identity = State::kNoIdentity;
  CacheRecord* mine = cache;
  cache = nullptr;
  map = &kNoMap;
  heap->end_cache(mine);
  inside_without_cache.store_release(outer);
}

template <class Config>
template <class F>
inline void ThreadCache<Config>::for_each_current_class(F f) {
  for (unsigned word = 0; word < std::size(cache->current_classes); ++word) {
    for (std::uint64_t classes = cache->current_classes[word]; classes != 0;
         classes &= classes - 1) {
      const ClassId c{word * 64 + static_cast<unsigned>(std::countr_zero(classes))};
      if (cache->current[index_of(c)].load_relaxed() != SpanNumber::kNone) f(c);
    }
  }
}

// Whether the class's current span has no free block, but for those that others have freed.
template <class Config>
inline bool ThreadCache<Config>::is_used_up(ClassId c) {
  const SpanRef span = current_span(c);
  return span->free_list.is_empty() && is_all_on_list(span, Classes::info(c));
}
template <class Config>
inline void ThreadCache<Config>::leave_current_and_share(ClassId c) {
  const SpanRef span = current_span(c);
  leave_current(c);
  share(span, 0);
}

// Abandons a current span with its lists as they are: the next thread here is likely to adopt it,
// and then needs no count of its free blocks.
template <class Config>
inline void ThreadCache<Config>::abandon_current(ClassId c, CacheNumber new_owner) {
  const SpanRef span = current_span(c);
  leave_current(c);
  heap->protocol().owned_to_abandoned(span, cache->number, new_owner);
}

// Counts the free blocks of abandoned spans that no thread has adopted for long, or that are needed
// because memory is out. Counted spans stay abandoned; empty ones go to the pool. Counts at most
// `at_most` spans, each found among the first `look_at` of its class. False: there was none.
template <class Config>
SPANALLOC_COLD inline bool ThreadCache<Config>::count_abandoned(std::uint32_t at_most,
                                                                std::uint32_t look_at) {
  heap->count_abandoned_due.store_relaxed(0);
  if (!heap->has_uncounted_abandoned()) return false;
  const AbandonedLists& abandoned_lists = heap->abandoned_lists();
  std::uint32_t counted = 0;
  for (unsigned c = 1; c < Classes::kSmallClasses; ++c) {
    for (std::uint64_t bits = abandoned_lists.of_class[c].load_relaxed(); bits != 0;
         bits &= bits - 1) {
      const CacheNumber from = abandoned_lists.numbers[std::countr_zero(bits)];
      for (;;) {
        if (counted == at_most) {
          heap->count_abandoned_due.store_relaxed(1);
          return true;
        }
        const OwnedSpan found =
            heap->protocol().uncounted_to_owned(from, ClassId{c}, cache->number, look_at);
        if (!found) break;
        ++counted;
        if (found.remotes != BlockOffset::kNone) add_list(found.span, found.remotes);
        const std::uint32_t free_blocks = merge_lists(found.span);
        if (heap->protocol().counted_to_abandoned(found.span, cache->number, from, free_blocks)) {
          heap->put_in_pool(found.span, shard());
        }
      }
    }
  }
  return counted != 0;
}

// Joins a current span's two lists, and counts what is free in it, but for what
// other threads have freed.
template <class Config>
inline std::uint32_t ThreadCache<Config>::merge_lists(SpanRef span) {
  // So that nobody borrows what others have freed while this looks at it.
  const typename Heap::Protocol::CacheGuard guard(heap->protocol(), cache->number);
  const ClassInfo& info = Classes::info(span->class_id());
  const std::uint32_t carved = span->carved.load_relaxed();
  std::uint32_t count =
      info.blocks - carved + count_purged(span->purged.load_relaxed(), info.block_size, carved);
  Block* const list = span->free_list.first();
  Block* const rest = span->rest.first();
  const auto last_of = [&](Block* first) -> Block* {
    if (first->is_end()) return nullptr;
    const ListLength length = Misuse::length_of_own_list(
        first, info, info.blocks - count, [&] { Misuse::retire_lists(*this, span); });
    count += length.blocks;
    return length.last;
  };
  Block* const last = last_of(list);
  Block* const last_of_rest = last_of(rest);
  // A block that was freed once into each of two lists has joined them: from there on they are one.
  // Others may go on freeing: the list behind the head that is read here stays as it is.
  const SpanWord word = span->word.load_acquire();
  Block* last_of_remotes = nullptr;
  if (SPANALLOC_UNLIKELY(word.head() != BlockOffset::kNone)) {
    last_of_remotes = Misuse::check_length(*this, span, pages->block_at_offset(span, word.head()),
                                           info.blocks - word.outstanding());
  }
  const bool joined = last != nullptr && (last == last_of_rest || last == last_of_remotes);
  if (joined || (last_of_rest != nullptr && last_of_rest == last_of_remotes)) {
    Misuse::retire_lists(*this, span);
    Misuse::freed_twice(joined ? last : last_of_rest);
  }
  SPANALLOC_ASSERT(count <= info.blocks);
  if (last_of_rest != nullptr) {
    // In this order a fork's child finds each list once, or not at all.
    span->rest.clear();
    span->free_list.prepend(rest, last_of_rest);
  }
  return count;
}

template <class Config>
[[gnu::noinline]] inline bool ThreadCache<Config>::read_clock() {
  return read_clock(ClassId::kNone);
}
template <class Config>
[[gnu::noinline]] inline bool ThreadCache<Config>::read_clock(ClassId busy) {
  const Inside inside(*this);
  const std::uint64_t now = os::now_ms();
  const bool has_more = pages->memory_return.purge_if_due(now);
  if (has_more) cache->events |= 63;  // this thread goes on with its next event
  count_abandoned_if_due();
  share_unused(now, busy);
  const bool seldom = now - cache->clock_read_ms >= kSeldomMs;
  cache->clock_read_ms = now;
  return has_more || seldom;
}

// Does a part of a round over the current spans (current_ages.hpp). Shares one span at most,
// because that walks its list. The caller holds nothing of a current span but that of class `busy`.
template <class Config>
[[gnu::noinline]] inline void ThreadCache<Config>::share_unused(std::uint64_t now, ClassId busy) {
  if (SPANALLOC_UNLIKELY(exited) || !cache->ages.is_due(now)) return;
  for (unsigned looks = 0; looks < kCurrentSpansALook;) {
    const ClassId c = cache->ages.next();
    if (c == ClassId::kNone) return;
    const SpanRef span = current_span(c);
    if (!span) continue;
    ++looks;
    if (cache->ages.is_unused(c, *span.record) && c != busy) return share_current(c);
  }
}

template <class Config>
SPANALLOC_COLD inline void ThreadCache<Config>::share_current(ClassId c) {
  const SpanRef span = current_span(c);
  if (!span) return;
  const std::uint32_t free_blocks = merge_lists(span);
  leave_current(c);
  share(span, free_blocks);
}

template <class Config>
SPANALLOC_COLD inline bool ThreadCache<Config>::pass_epochs() {
  const Inside inside(*this);
  return pages->memory_return.finish_epoch();
}

template <class Config>
SPANALLOC_COLD inline bool ThreadCache<Config>::trim() {
  if (!heap->is_started()) return false;
  const Inside inside(*this);
  // To count them with
  if (cache == nullptr && heap->has_uncounted_abandoned()) record_of_thread();
  if (cache != nullptr) {
    cache->batches.flush_all(*this);
    cache->loans.return_all(*this);
    heap->put_in_pool(heap->protocol().collect_delayed(cache->number), shard());
    // Shared, the thread's spans serve it as well, and their free pages can be purged.
    for (unsigned c = 1; c < Classes::kSmallClasses; ++c) share_current(ClassId{c});
    while (!cache->used_up.is_empty()) share_used_up(cache->used_up.oldest());
    count_abandoned(UINT32_MAX, UINT32_MAX);
  }
  heap->pool_all_unused(shard());
  detach_if_exited();
  return pages->memory_return.trim();
}

}  // namespace spanalloc::standard
