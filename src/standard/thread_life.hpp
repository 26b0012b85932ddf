// How a thread cache begins and ends, and gives back what it holds without need.
#pragma once

#include "standard/fork_recovery.hpp"
#include "standard/refill.hpp"

namespace spanalloc::standard {

/// `thread` is the thread cache of the calling thread.
template <class Config>
struct ThreadLife {
  // --- The thread's beginning --------------------------------------------------------------------

  /// Takes a cache record. False: there is none, or no memory for it, or the thread has ended.
  SPANALLOC_COLD static bool attach(auto& thread) {
    CacheRecord<Config>* fresh = thread.exited ? nullptr : thread.heap->begin_cache();
    if (fresh == nullptr) return false;
    if (begin_with(thread, fresh)) return true;
    thread_exit(thread);
    return false;
  }

  /// Begins with a cache record that was taken already. False: the thread's end cannot be watched.
  static bool begin_with(auto& thread, CacheRecord<Config>* fresh) {
    SPANALLOC_ASSERT(thread.cache == nullptr && fresh->batches.are_empty() &&
                     thread.pages->is_mine(fresh->number));
    thread.owned_identity = SpanWord::identity_of(fresh->number, SpanState::kOwned);
    thread.set_map(thread.pages->maps.of(*fresh));
    thread.map_misses = 0;
    thread.set_cache(fresh);  // before the key's value: setting it may call malloc
    return thread.heap->exit_key.watch_this_thread(&thread, thread.heap->on_thread_exit);
  }

  /// A thread that only frees takes a cache record, too, for its batches, once it has freed enough
  /// of others' blocks. (Once: if there is no cache record to be had, it does without.)
  SPANALLOC_INLINE static void count_lone_free(auto& thread) {
    if (SPANALLOC_LIKELY(thread.cache != nullptr || thread.exited) ||
        thread.lone_frees == Config::kFreesForCache) {
      return;
    }
    ++thread.lone_frees;
    if (thread.lone_frees != Config::kFreesForCache) return;
    const auto inside = thread.enter();
    attach(thread);
  }

  // --- The thread's end --------------------------------------------------------------------------

  static void thread_exit(auto& thread) {
    const auto inside = thread.enter();
    thread.exited = true;
    if (thread.cache != nullptr) detach(thread);
  }

  /// Gives the cache record back: spans with blocks out are nobody's, empty ones go to the pool,
  /// but for current ones, which nobody counts.
  static void detach(auto& thread) {
    auto& cache = *thread.cache;
    auto& heap = *thread.heap;
    SPANALLOC_ASSERT(thread.pages->is_mine(cache.number) && thread.has_nothing_in_hand());
    // For signal handlers that fork when the thread has given its record up and is still busy with
    // it.
    const void* outer = inside_without_cache.load_relaxed();
    inside_without_cache.store_relaxed(thread.pages);
    cache.batches.flush_all(thread);
    if (!cache.large_spans.is_empty()) {
      heap.pool_large_spans_of(cache, thread.shard());
      cache.large_spans.forget();
    }
    // Current spans are left as they are, for the next thread here to adopt.
    cache.owned.end(thread, [&](SpanRef span) {
      const SpanChain seen = heap.protocol().owned_to_uncounted(span, cache.number);
      heap.note_uncounted();  // after it: who looks for such spans forgets the note first
      heap.put_in_pool(seen, thread.shard());
    });
    thread.owned_identity = thread.kNoIdentity;
    thread.set_cache(nullptr);
    thread.set_map(kNoMap);
    heap.end_cache(&cache);
    inside_without_cache.store_release(outer);
  }

  // --- Giving back -------------------------------------------------------------------------------

  /// Gives back what this thread and the pool hold without need. False: there was nothing.
  SPANALLOC_COLD static bool trim(auto& thread) {
    auto& heap = *thread.heap;
    if (!thread.pages->is_started()) return false;
    SPANALLOC_ASSERT(thread.has_nothing_in_hand());
    const auto inside = thread.enter();
    if (thread.cache != nullptr) {
      auto& cache = *thread.cache;
      cache.batches.flush_all(thread);
      // Nobody's, the spans serve the thread as well, and their free pages can be purged.
      cache.owned.give_all_up(thread);
    }
    heap.pool_all_unused(thread.shard());
    return thread.pages->memory_return.trim();
  }

  /// Does all the work of a decay epoch that is due. False: there was nothing to give back.
  SPANALLOC_COLD static bool pass_epochs(auto& thread) {
    const auto inside = thread.enter();
    return thread.pages->memory_return.finish_epoch();
  }
};

}  // namespace spanalloc::standard
