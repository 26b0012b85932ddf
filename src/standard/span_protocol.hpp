// How a span moves between the lists of caches, its owners and its heap. The words of span_word.hpp
// decide; this file adds the lists (span_lists.hpp), which the lock of the owning cache guards.
//
// Nothing here puts a span into the pool. A call that makes a span free gives it
// to its caller, on no list.
//
// Invariants (the models check them, docs/concurrency.md argues them,
// tests/unit/assertions violates each):
// I1  A span whose word says shared and that has several blocks is on exactly one list of the cache
//     that the word names, or the thread that moves it holds that cache's lock. The change owned ->
//     shared and the linking are one critical section; so are the unlinking and shared -> owned.
// I2  A span changes shared -> free once: by the compare-and-swap that brings `outstanding` to 0,
//     or by one under the cache's lock that finds outstanding == uncollected. The thread that
//     succeeds has claimed the span: it takes the lock, unlinks the span if it is still linked, and
//     puts it into the pool. Other threads leave a free span on a list alone, because its claimer
//     is on the way.
// I3  While a span stays shared its owner changes only under the locks of both owners (the cache's
//     is taken before the abandoned list's).
// I4  A shared span can be empty but unclaimed (outstanding == uncollected > 0), if both last
//     freers looked too early. Then its delayed bit was set since its owner last collected: it is
//     on the delayed list, or the freer that set the bit is about to put it there. The owner's next
//     slow path collects that list.
//     In a fork's child there is one case more: the owner vanished between its last free and
//     collect_after_free(). No call was under way, so the span is found when the child abandons
//     that owner's spans.
// I5  A thread that leaves an abandoned list's lock leaves the list's bit in
//     AbandonedLists::of_class of a class set, if the list has a partial span of that class.
//
// A caller that may be given a span has entered the heap (HeapCall) before the call: so a fork's
// child knows that a vanished thread may have had one.
#pragma once

#include <bit>
#include <cstdint>

#include "base/assert.hpp"
#include "base/compiler.hpp"
#include "standard/span.hpp"
#include "standard/span_lists.hpp"
#include "standard/span_repair.hpp"
#include "standard/span_word.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc::standard {

/// A span that the caller owns from now on; `remotes` is the first block of the remote list that
/// came with it. The blocks on its free_list and those never carved are the caller's as well.
struct OwnedSpan {
  SpanRef span;
  BlockOffset remotes = BlockOffset::kNone;
  bool is_nearly_full = false;  ///< half or more of its blocks were out
  explicit operator bool() const { return static_cast<bool>(span); }
};

template <class Pages>
class SpanProtocol : public SpanRepair<Pages> {
  using Base = SpanRepair<Pages>;
  using Base::pages_, Base::for_each_on, Base::push, Base::chain;

 public:
  using Base::Base, Base::place, Base::push_delayed, Base::unlink;
  using typename Base::CacheGuard;
  using typename Base::Lists;

  /// A thread that does not own the span frees a batch of `count` blocks, linked from the one
  /// at `newest`; link(head) writes the oldest one's link.
  template <class Link>
  SPANALLOC_INLINE Freed free_remote(SpanRef span, BlockOffset newest, std::uint32_t count,
                                     Link&& link) {
    const auto [freed, word] = span->word.free_batch(newest, count, link);
    if (freed == Freed::kEmptied) take_off_lists(span, word.owner());
    if (freed == Freed::kDelayed ||
        // A hint, confirmed under the lock. Acquire: pairs with the owner's release store. After
        // our free the span may be anything already, but the record stays readable.
        (freed == Freed::kDone && word.state() == SpanState::kShared &&
         word.outstanding() == span->uncollected_acquire())) {
      return note_delayed(span, word.owner());
    }
    return freed;
  }

  /// The owner's call after a free that was an event (FreeTarget::push). True: the span is
  /// empty, and the caller's.
  bool collect_after_free(SpanRef span, CacheNumber me) {
    CacheGuard guard(*this, me);
    // Our own free may have let another thread claim the span; then we must not touch it any more.
    if (!span->word.load_acquire().is(me, SpanState::kShared)) return false;
    const Freed freed = collect(pages_.cache(me), span);
    if (SPANALLOC_UNLIKELY(freed == Freed::kRefused)) pages_.corrupted(span);
    return freed == Freed::kEmptied;
  }

  /// Owner, on a slow path: collects every span on its delayed list. Cheap when there is none.
  SpanChain collect_delayed(CacheNumber me) {
    Lists& cache = pages_.cache(me);
    SpanChain emptied;
    if (cache.has_delayed.load_relaxed() == 0) return emptied;  // a later slow path will see it
    CacheGuard guard(*this, me);
    cache.has_delayed.store_relaxed(0);  // set again only under the lock
    for_each_on(cache.delayed, [&](SpanRef span) { note(emptied, span, collect(cache, span)); });
    return emptied;
  }

  /// Any thread, on a pool miss or in malloc_trim: claims the spans on a cache's delayed list that
  /// are empty already, because their owner may not run for long. Does not wait for a busy lock.
  SpanChain claim_unnoticed_empties(CacheNumber owner) {
    Lists& cache = pages_.cache(owner);
    SpanChain emptied;
    if (cache.has_delayed.load_relaxed() == 0 || !cache.lock.try_lock()) return emptied;
    for_each_on(cache.delayed, [&](SpanRef span) {
      if (!claim_if_empty(span)) return;
      unlink(cache, span);
      chain(emptied, span);
    });
    Base::unlock_cache(cache);
    return emptied;
  }

  /// Owner: owned -> shared. `free_blocks` of its blocks are on the owner's
  /// list or were never carved.
  Freed owned_to_shared(SpanRef span, CacheNumber me, std::uint32_t free_blocks) {
    CacheGuard guard(*this, me);
    return share(pages_.cache(me), span, free_blocks, me, me);
  }

  /// Any thread but the owner: takes the remote list of a span that cache `owner` owns, if the span
  /// is of class c and the list has at least so many blocks, which go on counting as out. Does not
  /// wait for a busy lock.
  RemoteList borrow(SpanRef span, CacheNumber owner, ClassId c, std::uint32_t at_least) {
    Lists& cache = pages_.cache(owner);
    const std::uint32_t capacity = pages_.capacity(c);
    const auto is_worth_it = [&](SpanWord word) {
      return word.is(owner, SpanState::kOwned) && word.outstanding() + at_least <= capacity;
    };
    if (!is_worth_it(span->load_word()) || !cache.lock.try_lock()) return {};
    RemoteList list;
    // Acquire: the class was written before the word said owned. It stays while the word says so,
    // since the owner gives up a current span only under this lock.
    if (is_worth_it(span->word.load_acquire()) && span->class_id() == c) {
      list = span->word.take_remotes(capacity);
    }
    Base::unlock_cache(cache);
    return list;
  }

  /// Owned -> shared, into abandoned list `new_owner`, under the lock of cache `me`,
  /// when its thread ends. The blocks that are free in the span, on its lists or never
  /// carved, are not counted.
  void owned_to_abandoned(SpanRef span, CacheNumber me, CacheNumber new_owner) {
    abandon(span, me, new_owner, 0, true);
  }
  /// The change of owned_to_abandoned() for a span whose free blocks were counted: there are
  /// `free_blocks`. True: the span is empty, and the caller's.
  bool counted_to_abandoned(SpanRef span, CacheNumber me, CacheNumber new_owner,
                            std::uint32_t free_blocks) {
    CacheGuard guard(*this, me);
    return abandon(span, me, new_owner, free_blocks, false);
  }

  /// The caller becomes owner of a partial span of abandoned list `from` whose free blocks nobody
  /// has counted; one of the first `look_at` of its class.
  OwnedSpan uncounted_to_owned(CacheNumber from, ClassId c, CacheNumber me, std::uint32_t look_at) {
    Lists& cache = pages_.cache(from);
    if (cache.uncounted.load_relaxed() == 0 || cache.partial[index_of(c)].is_empty()) return {};
    CacheGuard guard(*this, from);
    return first_owned(cache.partial[index_of(c)], look_at, [&](SpanRef span) {
      return span->is_uncounted() ? shared_to_owned(cache, span, c, me) : OwnedSpan{};
    });
  }

  /// Makes the caller owner of a partial span on its own cache's list of the class.
  OwnedSpan partial_to_owned(ClassId c, CacheNumber me) {
    Lists& cache = pages_.cache(me);
    // Our own list: nobody else puts a span there
    if (cache.partial[index_of(c)].is_empty()) return {};
    CacheGuard guard(*this, me);
    return take_partial(cache, c, me);
  }

  /// Adoption: makes the caller owner of a partial span of the class on an abandoned list. The
  /// caller's own abandoned list comes first, and threads that begin and end all the time get on
  /// with it alone. A busy one of the others is skipped unless `wait`, since the pool may have a
  /// span, too. Spans abandoned meanwhile serve the next call.
  OwnedSpan abandoned_to_owned(const AbandonedLists& abandoned_lists, ClassId c, CacheNumber me,
                               bool wait = false) {
    // No abandoned list shows a partial span (I5).
    if (abandoned_lists.of_class[index_of(c)].load_relaxed() == 0) return {};
    const CacheNumber home = abandoned_lists.home_of(me);
    if (!pages_.cache(home).partial[index_of(c)].is_empty()) {
      CacheGuard guard(*this, home);
      if (const OwnedSpan owned = take_partial(pages_.cache(home), c, me)) return owned;
    }
    // The bit of its own list is left to others: the next thread that ends here would set it again.
    const unsigned home_bit = pages_.cache(home).abandoned.number();
    std::uint64_t holders = abandoned_lists.of_class[index_of(c)].load_relaxed();
    if (!wait) holders &= ~(std::uint64_t{1} << home_bit);
    for (holders = std::rotr(holders, static_cast<int>(home_bit)); holders != 0;
         holders &= holders - 1) {
      const unsigned bit = (home_bit + static_cast<unsigned>(std::countr_zero(holders))) % 64;
      const CacheNumber from = abandoned_lists.numbers[bit];
      Lists& abandoned_list = pages_.cache(from);
      if (wait) {
        Base::lock_cache(from);
      } else if (!abandoned_list.lock.try_lock()) {
        continue;
      }
      const OwnedSpan owned = take_partial(abandoned_list, c, me);
      if (abandoned_list.partial[index_of(c)].is_empty()) abandoned_list.abandoned.hide(c);
      Base::unlock_cache(abandoned_list);
      if (owned) return owned;
    }
    return {};
  }

  /// When memory is out: makes the caller owner of any span of its nearly full list with a free
  /// block, however few. Spans without one move to the full list, so that the next search does not
  /// meet them again. The first block that is freed into such a span brings it back: the owner's
  /// free is the event that is set here, another thread's puts the span on the delayed list.
  OwnedSpan nearly_full_to_owned(ClassId c, CacheNumber me) {
    Lists& cache = pages_.cache(me);
    CacheGuard guard(*this, me);
    const std::uint32_t capacity = pages_.capacity(c);
    return first_owned(cache.nearly_full[index_of(c)], UINT32_MAX, [&](SpanRef span) {
      if (span->load_word().outstanding() - span->uncollected() < capacity) {
        return shared_to_owned(cache, span, c, me);
      }
      unlink(cache, span);
      span->expect_frees(1);
      push(cache, span, ListId::kFull);
      return OwnedSpan{};
    });
  }

  /// Asked by the owner. False: cache `me` has no shared span, and gets none meanwhile. (Only
  /// its owner makes a span shared there, and notes its class until abandon_all(). A fork's
  /// child lists them as delayed.)
  bool may_have_shared(CacheNumber me) {
    Lists& cache = pages_.cache(me);
    bool any = cache.has_delayed.load_relaxed() != 0;
    for (const std::uint64_t classes : cache.classes) any = any || classes != 0;
    return any;
  }
  /// When the owner ends: gives the shared spans of cache `me` to `new_owner`, and
  /// empty ones to the caller.
  SpanChain abandon_all(CacheNumber me, CacheNumber new_owner) {
    Lists& cache = pages_.cache(me);
    // I3
    SPANALLOC_ASSERT(!cache.is_abandoned_list() && pages_.cache(new_owner).is_abandoned_list());
    SpanChain emptied;
    CacheGuard guard(*this, me);
    CacheGuard abandoned_guard(*this, new_owner);
    cache.has_delayed.store_relaxed(0);
    const auto abandon_one = [&](SpanRef span) {
      pages_.hide_from_owner(cache, span);
      note(emptied, span, collect_into(new_owner, cache, span, span->uncollected()));
    };
    for_each_on(cache.delayed, abandon_one);
    for_each_on(cache.full, abandon_one);
    for (unsigned word = 0; word < Lists::kWords; ++word) {
      for (std::uint64_t bits = cache.classes[word]; bits != 0; bits &= bits - 1) {
        const unsigned c = word * 64 + static_cast<unsigned>(std::countr_zero(bits));
        for_each_on(cache.nearly_full[c], abandon_one);
        for_each_on(cache.partial[c], abandon_one);
      }
      cache.classes[word] = 0;
    }
    SPANALLOC_ASSERT(only_claimed_are_left(cache));
    return emptied;
  }

  /// Any thread: calls f(lists, word) under the lock of the cache that has the shared span, if the
  /// span is on one of its lists. Without `wait` not if the lock is busy. Nobody becomes the span's
  /// owner until f returns. The span may be claimed (I2), but its claimer waits for the lock.
  template <class F>
  SPANALLOC_COLD void with_shared(SpanRef span, bool wait, F&& f) {
    const SpanWord word = span->load_word();
    if (word.state() != SpanState::kShared || word.owner() == kNobody) return;
    Lists& cache = pages_.cache(word.owner());
    if (wait) {
      Base::lock_cache(word.owner());
    } else if (!cache.lock.try_lock()) {
      return;
    }
    const SpanWord now = span->word.load_acquire();
    if (now.is(word.owner(), SpanState::kShared) && span->list() != ListId::kNone) f(cache, now);
    Base::unlock_cache(cache);
  }

  /// The thread that claimed the span (I2) takes it off its last owner's lists.
  [[gnu::noinline]] void take_off_lists(SpanRef span, CacheNumber owner) {
    // I2: nobody else may claim it
    SPANALLOC_ASSERT(span->load_word().state() == SpanState::kFree);
    // A span of one block is never on a list. We may still read the class, because
    // we have claimed the span.
    if (pages_.capacity(span->class_id()) == 1) return;
    CacheGuard guard(*this, owner);
    if (span->list() != ListId::kNone) unlink(pages_.cache(owner), span);
  }

  /// In a fork's child, of a span on a list with the delayed bit: the thread that set the bit may
  /// have vanished before it put the span on the delayed list (I4). True: the span was empty, and
  /// is the caller's. If it is the calling thread's own, it only goes on the delayed list: the
  /// thread may be in the middle of collect_after_free(), and no other step may come between.
  SPANALLOC_COLD bool collect_on_list(SpanRef span) {
    const CacheNumber owner = span->load_word().owner();
    Lists& cache = pages_.cache(owner);
    CacheGuard guard(*this, owner);
    // (A damaged span is retired without a report: the child's recovery is not complete yet.)
    if (!pages_.is_mine(owner)) return collect(cache, span) == Freed::kEmptied;
    unlink(cache, span);
    push_delayed(cache, span);
    return false;
  }

 private:
  // Whether the lists of a cache whose thread has ended hold only spans that wait
  // for their claimers (I2).
  bool only_claimed_are_left(Lists& cache) {
    bool all = true;
    Base::for_each_listed(
        cache, [&](SpanRef span) { all = all && span->load_word().state() == SpanState::kFree; });
    return all;
  }

  // After a remote free into a shared span: puts it on its owner's delayed list, or
  // claims it if it is empty.
  [[gnu::noinline]] Freed note_delayed(SpanRef span, CacheNumber owner) {
    Lists& cache = pages_.cache(owner);
    CacheGuard guard(*this, owner);
    // We hold no block of the span any more, so anything may have become of it. If its word says
    // shared, and names this cache, then it is on one of this cache's lists (I1), because we hold
    // the lock. It may live another life by now; then the delayed list does no harm.
    const SpanWord now = span->word.load_acquire();
    if (!now.is(owner, SpanState::kShared) || span->list() == ListId::kNone) return Freed::kDone;
    if (cache.is_abandoned_list()) {
      unlink(cache, span);
      place(span, now);
      return Freed::kDone;
    }
    if (!claim_if_empty(span)) {
      if (span->list() != ListId::kDelayed) unlink(cache, span);
      push_delayed(cache, span);
      return Freed::kDone;
    }
    unlink(cache, span);
    return Freed::kEmptied;
  }

  // Under the owner's lock: outstanding == uncollected means that no block is out. It
  // stays so, because only frees of blocks that are out and the owner's steps under this
  // lock change either number.
  static bool claim_if_empty(SpanRef span) {
    SPANALLOC_ASSERT(span->list() != ListId::kNone);
    // Acquire: sees the owner's last free
    return span->word.claim_if_empty([&] { return span->uncollected_acquire(); });
  }

  // The first OwnedSpan that f(SpanRef) gives for one of the first `look_at` spans on a list.
  template <class List, class F>
  SPANALLOC_INLINE OwnedSpan first_owned(const List& list, std::uint32_t look_at, F&& f) {
    for (SpanNumber number = list.first(); number != SpanNumber::kNone && look_at != 0; --look_at) {
      const SpanRef span = pages_.span(number);
      number = span->next();
      if (const OwnedSpan owned = f(span)) return owned;
    }
    return {};
  }

  // Under the lock of `cache`.
  OwnedSpan take_partial(Lists& cache, ClassId c, CacheNumber me) {
    return first_owned(cache.partial[index_of(c)], UINT32_MAX,
                       [&](SpanRef span) { return shared_to_owned(cache, span, c, me); });
  }

  // Under the lock of the cache that has the span on its lists. None: another
  // thread has claimed the span.
  [[gnu::noinline]] OwnedSpan shared_to_owned(Lists& cache, SpanRef span, ClassId c,
                                              CacheNumber me) {
    const auto [before, after, taken] = span->word.own(me, pages_.capacity(c));
    if (!taken) return {};  // its claimer waits for this lock to unlink it (I2)
    SPANALLOC_ASSERT(before.state() == SpanState::kShared && span->class_id() == c);  // I1
    SPANALLOC_ASSERT(is_empty_only_if_delayed(*span.record, before));                 // I4
    const bool is_nearly_full =
        !span->is_uncounted() &&
        (before.outstanding() - span->uncollected()) * 2 >= pages_.capacity(c);
    unlink(cache, span);
    span->expect_first_clock();
    forget_uncounted(cache, span);
    return {span, pages_.cut_lists(span, before.head()), is_nearly_full};
  }

  // I4, checked under the cache's lock, for a span on another list than the delayed list. (A
  // signal handler may have forked in the middle of an owner's free, just before that free would
  // have collected the span.)
  static bool is_empty_only_if_delayed(const Span& span, SpanWord word) {
    return word.outstanding() != span.uncollected() || word.is_delayed() ||
           SpinLock::generation() != 0;
  }

  // Under the locks of `from`, which has the span, and of cache `to`: counts what its owner has
  // freed, and puts the span on the list of `to` that its free blocks ask for. kEmptied: it is on
  // no list, and the caller's. kRefused: it is retired; the caller reports it when it holds nothing
  // else.
  SPANALLOC_INLINE Freed collect_into(CacheNumber to, Lists& from, SpanRef span,
                                      std::uint32_t count) {
    SPANALLOC_ASSERT(Base::may_change(from) && Base::may_change(pages_.cache(to)));  // I3
    SPANALLOC_ASSERT(span->load_word().state() != SpanState::kShared ||
                     span->list() != ListId::kNone);  // I1
    const auto [freed, word] = span->word.collect(count, to);
    if (SPANALLOC_UNLIKELY(freed == Freed::kRefused)) {
      Base::retire(from, span);
    } else if (freed == Freed::kEmptied || word.state() != SpanState::kFree) {
      if (span->list() != ListId::kNone) unlink(from, span);
      if (freed == Freed::kDone) place(span, word);
    }  // else its claimer waits for this lock
    return freed;
  }
  Freed collect(Lists& cache, SpanRef span) {
    return collect_into(span->load_word().owner(), cache, span, span->uncollected());
  }
  // Owned by `me` -> shared by `to`, under the locks of both.
  SPANALLOC_INLINE Freed share(Lists& mine, SpanRef span, std::uint32_t free_blocks, CacheNumber me,
                               CacheNumber to) {
    SPANALLOC_ASSERT(span->load_word().is(me, SpanState::kOwned));
    SPANALLOC_ASSERT(free_blocks <= pages_.capacity(span->class_id()));
    span->forget_list();
    span->forget_watch();
    return collect_into(to, mine, span, free_blocks);
  }
  void note(SpanChain& emptied, SpanRef span, Freed freed) {
    if (freed == Freed::kEmptied) chain(emptied, span);
    if (SPANALLOC_UNLIKELY(freed == Freed::kRefused)) emptied.damaged = span.number;
  }

  bool abandon(SpanRef span, CacheNumber me, CacheNumber new_owner, std::uint32_t free_blocks,
               bool uncounted) {
    Lists& mine = pages_.cache(me);
    Lists& abandoned_list = pages_.cache(new_owner);
    SPANALLOC_ASSERT(abandoned_list.is_abandoned_list());  // I3
    pages_.hide_from_owner(mine, span);
    CacheGuard guard(*this, new_owner);
    span->set_uncounted(uncounted);
    const Freed freed = share(mine, span, free_blocks, me, new_owner);
    if (SPANALLOC_UNLIKELY(freed == Freed::kRefused)) pages_.corrupted(span);
    if (freed == Freed::kEmptied) return true;
    if (uncounted)
      abandoned_list.uncounted.store_relaxed(abandoned_list.uncounted.load_relaxed() + 1);
    return false;
  }

  // Under the lock of the cache that shared the span.
  static void forget_uncounted(Lists& cache, SpanRef span) {
    if (!span->is_uncounted()) return;
    span->set_uncounted(false);
    cache.uncounted.store_relaxed(cache.uncounted.load_relaxed() - 1);
  }
};

}  // namespace spanalloc::standard
