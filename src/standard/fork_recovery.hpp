// What a fork's child does about the threads that vanished: it ends their caches, finds or retires
// the spans that they were working on, and counts these.
//
// A fork takes no lock and waits for nobody (sync/spin_lock.hpp), so every other thread may
// vanish at any step. Then their caches are like those of threads that rest, and may stay so: the
// first call of any thread that comes into a slow path gives back what they had cached, for
// themselves or for others. Their spans stay theirs until a decay epoch, or a trim, goes through
// all records (MemoryReturn::purge_abandoned). A child that executes another program, or ends,
// does neither, because the kernel must copy each page that the child writes to. So nothing is
// written to these caches; instead the calling thread's own say that their thread is still there
// (CacheTable::forks). If a thread was in a call, there is a walk over the records at once, for
// what stood in no place.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "standard/heap.hpp"
#include "standard/page_layer.hpp"
#include "sync/spin_lock.hpp"
#include "thread/lifecycle.hpp"

namespace spanalloc::standard {

/// The page layer in whose heap the calling thread is in a call without a cache; its signal
/// handlers read it, too. Of nested calls the innermost counts: a libc function called there may
/// use another page layer's heap (pthread_setspecific may allocate), and a handler that forks in
/// there recovers the outer layer at once. That does no harm: the outer call works on no span then.
SPANALLOC_TLS inline constinit thread_local Atomic<const void*> inside_without_cache{nullptr};

template <class Config>
class ForkRecovery {
  using Pages = PageLayer<Config>;
  using CacheRecord = standard::CacheRecord<Config>;
  using Heap = standard::Heap<Config>;

 public:
  /// In the child, first of all. Puts the heap right, or leaves that to the end
  /// of the interrupted call.
  SPANALLOC_COLD static void enter_child(thread::ForkWatch* watch) {
    Pages& pages = static_cast<Pages&>(*watch);
    pages.start_lock.abandon_if_owner_died();
    pages.caches.enter_child();
    pages.tables_lock.abandon_if_owner_died();
    pages.outside.enter_child();
    pages.memory_return.enter_child();
    if (!pages.is_started()) return count_calls_anew(pages);
    pages.recovery_is_due.store_relaxed(Pages::kRecoveryIsDue);
    recover_if_outside(pages);
  }

  /// Before a misuse is reported: counts the calling thread as outside, wherever it is. Such is
  /// found only where what locks guard is whole. (A call without a cache stays counted: the next
  /// child looks for its work.)
  SPANALLOC_COLD static void let_go(thread::ForkWatch* watch) {
    Pages& pages = static_cast<Pages&>(*watch);
    for (WakingLock* lock :
         {&pages.start_lock, &pages.memory_return.purge_lock, &pages.tables_lock})
      lock->unlock_if_mine();
    if (!pages.is_started()) return;
    if (inside_without_cache.load_relaxed() == &pages) inside_without_cache.store_relaxed(nullptr);
    bool any_vanished = false;
    pages.caches.for_each([&](CacheRecord& cache) {
      if (pages.caches.is_mine(cache)) {
        cache.leave_work();
        cache.inside.store_release(0);
      }
      any_vanished = any_vanished || pages.caches.has_vanished(cache);
    });
    // This thread may have been abandoning vanished threads' spans. (If another thread is at it,
    // the next waits at each cache.)
    std::uint32_t nothing = 0;
    if (any_vanished)
      pages.recovery_is_due.compare_exchange_strong_acq_rel(nothing, Pages::kAbandonIsDue);
  }

  /// Does nothing while a call of the calling thread is interrupted; that call does it at its end.
  SPANALLOC_COLD static void recover_if_outside(Pages& pages) {
    bool inside = inside_without_cache.load_relaxed() == &pages;
    pages.caches.for_each([&](CacheRecord& cache) {
      inside = inside || (cache.inside.load_relaxed() != 0 && pages.caches.is_mine(cache));
    });
    if (!inside) recover(pages);
  }

  /// The caller has entered the heap and holds no lock. If another thread is at it, the caller does
  /// not wait: the caches that are left are like those of threads that rest. Their spans are taken
  /// over later, because to find them all records are gone through.
  SPANALLOC_COLD static void abandon_for_vanished_threads(Pages& pages) {
    // One thread at a time. If it forks meanwhile, the child finds one inside,
    // and puts all right at once.
    std::uint32_t due = Pages::kAbandonIsDue;
    if (!pages.recovery_is_due.compare_exchange_strong_acq_rel(due, 0)) return;
    pages.caches.for_each([&](CacheRecord& cache) {
      // One thread a record: after a report (let_go) there may be a second one at it.
      const LockGuard guard(pages.memory_return.purge_lock);
      if (pages.caches.has_vanished(cache)) empty_vanished(pages, cache);
    });
    pages.memory_return.begin_to_take_over();
  }
  /// Makes a span nobody's if a vanished thread owns it. Under purge_lock. Returns how many blocks
  /// it may have gone through.
  SPANALLOC_COLD static std::uint32_t take_over(Pages& pages, SpanRef span) {
    const SpanWord word = span->load_word();
    if (word.state() != SpanState::kOwned || !pages.caches.was_used(word.owner())) return 0;
    CacheRecord& cache = pages.caches[word.owner()];
    if (!pages.caches.has_vanished(cache)) return 0;
    const std::uint32_t blocks = Pages::capacity(span->class_id());
    const bool is_away = span->stock() == Stock::kAway && span->free_list().is_empty();
    // If the span is still its thread's, all of this was. (Of spans that have a free block nobody
    // else can claim one.)
    if (!span->word.load_acquire().is(cache.number, SpanState::kOwned)) return 0;
    if (!is_away) {
      share_current_span(pages, cache, span);
    } else if (pages.heap.protocol().away_to_nobodys(span, cache.number) == Freed::kEmptied) {
      pages.heap.put_in_pool(span, 0);
    }
    return blocks;
  }
  /// When all spans of such threads have been taken over: their records are the next
  /// threads'. Under purge_lock.
  SPANALLOC_COLD static void give_vanished_back(Pages& pages) {
    pages.caches.for_each([&](CacheRecord& cache) {
      if (!pages.caches.has_vanished(cache)) return;
      cache.owned.drop_away(pages);
      cache.forget_thread();
      pages.maps.clear(cache);
      pages.caches.give_back(&cache);
    });
  }

 private:
  // The calling thread is alone and in no call of its own.
  SPANALLOC_COLD static void recover(Pages& pages) {
    const void* outer = inside_without_cache.load_relaxed();
    // If a signal handler forks meanwhile, its child's recovery is left to this one, which goes on
    // in that child: there was no second thread that could vanish.
    while (pages.recovery_is_due.load_relaxed() == Pages::kRecoveryIsDue) {
      inside_without_cache.store_relaxed(&pages);
      pages.recovery_is_due.store_relaxed(0);
      put_right(pages);
      inside_without_cache.store_release(outer);
    }
  }

  SPANALLOC_COLD static void put_right(Pages& pages) {
    const bool were_inside = vanished_threads_were_inside(pages);
    // These two locks guard nothing that can be half changed and matter: a start is made
    // again, the arena purges.
    for (WakingLock* lock : {&pages.start_lock, &pages.memory_return.purge_lock}) {
      if (lock->owner_died()) lock->reset();
    }
    pages.arena.recover_lock();
    if (were_inside) find_what_vanished_threads_had(pages);
    pages.heap.live_caches.store_relaxed(0);
    // A thread that the child starts may have the same id as a vanished one.
    pages.caches.for_each([&](CacheRecord& cache) {
      if (cache.thread.load_relaxed() == 0 || !pages.caches.is_mine(cache)) return;
      pages.heap.live_caches.fetch_add_relaxed(1);
      cache.forks.store_relaxed(pages.caches.forks + 1);
    });
    ++pages.caches.forks;
    pages.caches.recover_in_child(
        [](const CacheRecord& cache) { return cache.thread.load_relaxed() == 0; });
    bool any_vanished = false;
    pages.caches.for_each([&](const CacheRecord& cache) {
      any_vanished = any_vanished || pages.caches.has_vanished(cache);
    });
    // (A former child's threads are among them: what goes through the records begins anew.)
    pages.memory_return.stop_taking_over();
    // If a signal handler has forked meanwhile, that stays due, and all of this is done once more.
    std::uint32_t nothing = 0;
    if (any_vanished)
      pages.recovery_is_due.compare_exchange_strong_acq_rel(nothing, Pages::kAbandonIsDue);
  }

  static void count_calls_anew(Pages& pages) {
    pages.inside_without_cache.store_relaxed(0);
    pages.counted_since = SpinLock::generation();
  }

  SPANALLOC_COLD static bool vanished_threads_were_inside(Pages& pages) {
    bool inside = pages.inside_without_cache.load_relaxed() != 0 || pages.arena.someone_is_inside();
    count_calls_anew(pages);
    pages.caches.for_each([&](CacheRecord& cache) {
      inside = inside || (cache.inside.load_relaxed() != 0 && !pages.caches.is_mine(cache));
      if (cache.inside.load_relaxed() != 0) cache.inside.store_relaxed(0);
    });
    return inside;
  }

  // Spans that vanished threads were
  // working on are in no stack of the pool; so the pool is emptied, and ranges whose record
  // says "free" are the arena's.
  SPANALLOC_COLD static void find_what_vanished_threads_had(Pages& pages) {
    // A signal handler that frees meanwhile, which it must not do, would drain the pool into the
    // arena, had a decay epoch ended: under this lock it does not.
    const LockGuard guard(pages.memory_return.purge_lock);
    SpanProtocol<Pages> protocol(pages);
    pages.heap.pool().stacks().forget_all();
    pages.arena.recover_in_child();
    // Once more if the pool has spans again: only such a handler frees meanwhile.
    // What it put there the walk has given to the arena, or has seen as used.
    do give_what_is_in_no_place(pages, protocol);
    while (pages.heap.pool().stacks().forget_all());
  }
  SPANALLOC_COLD static void give_what_is_in_no_place(Pages& pages, SpanProtocol<Pages>& protocol) {
    // A thread may have vanished with a hint in its hands.
    pages.heap.abandoned.forget_all();
    pages.forget_marks();
    pages.caches.for_each([&](CacheRecord& cache) { cache.owned.forget_away(); });
    pages.arena.walk([&](std::uint32_t number, std::size_t slices, bool free) {
      // A thread took the range and vanished before it had a record.
      if (free || number + slices > index_of(pages.end_of_spans())) return;
      const SpanRef span = pages.span(SpanNumber{number});
      if (protocol.recover_abandoned(span)) return;
      const SpanWord word = span->load_word();
      if (word.state() == SpanState::kOwned) {
        span->word.forget_claim();
        if (!pages.is_mine(word.owner())) return;
        // (If it is current still, it may be about to go away, and have seemed to be queued.)
        if (span->is_used_up())
          pages.caches[word.owner()].owned.recover_away(pages, word.owner(), span);
      } else if (word.state() == SpanState::kFree) {
        // (A record that was never used names cache 0. That may not exist yet: its first thread may
        // have vanished while it made the cache.)
        if (pages.caches.was_used(word.owner())) pages.hide_from_owner(word.owner(), span);
        // (A cached large span is the arena's now, too, whatever place may still name it.)
        span->word.set(kLargeFree);
        pages.give(span);
      }
    });
  }

  // Retires a span that is in no place: its thread was about to take or leave it. It never
  // becomes empty, whatever is on its lists. Frees into it still work: it is an abandoned span that
  // is shown nowhere.
  SPANALLOC_COLD static void retire_current_span(Pages& pages, SpanRef span) {
    Heap& heap = pages.heap;
    heap.protocol().withdraw_of_vanished(span);
    heap.lost_to_fork.fetch_add_relaxed(1);
  }

  // The span's lists hold all its free blocks: a block gets its link before it is
  // listed, and loses it after.
  SPANALLOC_COLD static void share_current_span(Pages& pages, CacheRecord& cache, SpanRef span) {
    Heap& heap = pages.heap;
    const ClassInfo& info = Pages::Classes::info(span->class_id());
    pages.clear_links_of_purged(span);
    const ListLength length = length_of(span->free_list().first(), info.virtual_span, info.blocks);
    if (!length.whole) return retire_current_span(pages, span);  // the program has damaged it
    const std::uint32_t free = span->count_unlisted(info) + length.blocks;
    if (free > span->load_word().outstanding()) return retire_current_span(pages, span);
    const Freed freed = heap.protocol().owned_to_nobodys(span, cache.number, free);
    if (freed == Freed::kEmptied) heap.put_in_pool(span, 0);
    if (freed == Freed::kRefused) heap.lost_to_fork.fetch_add_relaxed(1);
  }

  // Does to what other threads may reach only what the thread would do at its end. If a fork
  // interrupts this, the child does it again; steps that were done need not be done twice.
  SPANALLOC_COLD static void empty_vanished(Pages& pages, CacheRecord& cache) {
    Heap& heap = pages.heap;
    cache.batches.take_all(pages, [&](SpanRef span, const BlockChain& chain) {
      const auto link = [&](BlockOffset list) { chain.last->link_to(pages.first_of(span, list)); };
      const Freed freed =
          heap.protocol().free_remote(span, pages.offset_of(span, chain.first), chain.count, link);
      if (freed == Freed::kEmptied) heap.put_in_pool(span, 0);
      if (freed == Freed::kUncounted) heap.count_abandoned(span, 0);
    });
    heap.pool_large_spans_of(cache, 0);
    cache.large_spans.forget();
  }
};

}  // namespace spanalloc::standard
