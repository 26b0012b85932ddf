// How a span moves between the lists of caches, its owners and its heap. The words of span_word.hpp
// decide; this file adds the lists (span_lists.hpp), which the lock of the owning cache guards.
//
// Nothing here puts a span into the pool. A call that makes a span free gives it
// to its caller, on no list.
//
// Invariants (the models check them, docs/concurrency.md argues them,
// tests/unit/assertions violates each):
// I1  A span whose word says shared and names a cache is on exactly one list of that cache, or the
//     thread that moves it holds that cache's lock. The change owned -> shared and the linking are
//     one critical section; so are the unlinking and shared -> owned. A span that nobody owns is on
//     no list.
// I2  A span changes shared -> free once: by the compare-and-swap that brings `outstanding` to 0,
//     or by one under the cache's lock that finds outstanding == uncollected. The thread that
//     succeeds has claimed the span: if the word named a cache it takes the lock and unlinks the
//     span if it is still linked; then it puts it into the pool. Other threads leave a free span on
//     a list alone, because its claimer is on the way.
// I3  While a span stays shared its owner changes once, to nobody, when its thread ends: under the
//     lock of the owner that was. From then on no free of it is uncounted.
// I4  A shared span can be empty but unclaimed (outstanding == uncollected > 0), if both last
//     freers looked too early. Then its delayed bit was set since its owner last collected: it is
//     on the delayed list, or the freer that set the bit is about to put it there. The owner's next
//     slow path collects that list.
//     In a fork's child there is one case more: the owner vanished between its last free and
//     collect_after_free(). No call was under way, so the span is found when the child abandons
//     that owner's spans.
// I5  Nobody changes a span of several blocks that nobody owns but by its word, or while the thread
//     holds it (AtomicSpanWord::hold).
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
    if (word.owner() == kNobody) {
      // An abandoned span with a free block. (By the word that our free has changed: the span may
      // be anything by now.)
      if (freed == Freed::kDone && !span->is_withdrawn()) pages_.show_abandoned(span);
      return freed;
    }
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
    return share(pages_.cache(me), span, free_blocks, me);
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

  /// Owned -> abandoned, as it is, when the thread of cache `me` ends: what is free in the span, on
  /// its lists or never initialised, nobody has counted. There is some. Returns what a hint has led
  /// to that was in the way of the span's own, for the pool.
  SpanChain owned_to_abandoned(SpanRef span, CacheNumber me) {
    pages_.hide_from_owner(pages_.cache(me), span);
    {
      const CacheGuard guard(*this, me);  // nobody borrows from it meanwhile
      forget_as_owned(span, me, 0);
      span->expect_frees(1);  // none will be uncollected
      span->word.leave_uncounted();
    }
    SpanChain seen;
    if (pages_.show_abandoned(span)) return seen;
    // Its hint may be that of a former class. (One more is put right with each such span.)
    if (const SpanRef other = pages_.take_any_abandoned()) look_at_hint(other, seen);
    return seen;
  }
  /// Counts an abandoned span, if it still is one that nobody has counted. kEmptied: it is the
  /// caller's. kRefused: it is damaged, and withdrawn.
  SPANALLOC_COLD Freed count_abandoned(SpanRef span) {
    if (!span->load_word().is_uncounted()) return Freed::kDone;
    return with_abandoned(span, [](SpanWord, bool) {});
  }
  /// Adoption: makes the caller owner of a span of the class that nobody owns and that has a free
  /// block. None: `hints` have been followed, or there are no more; or one has led to what is in
  /// `seen`: an empty span, which is the caller's, or a damaged one.
  OwnedSpan abandoned_to_owned(ClassId c, CacheNumber me, std::uint32_t& hints, SpanChain& seen) {
    for (; hints != 0; --hints) {
      SpanRef span = pages_.take_abandoned(c, me);
      if (!span) {
        hints = 1;  // the last one: what another class's leads to may be of this class
        if (const SpanRef other = pages_.take_any_abandoned()) look_at_hint(other, seen);
        if (seen.has_nothing()) span = pages_.take_abandoned(c, me);
        if (!span) continue;
      }
      const auto held = span->word.hold();
      if (!held.done) continue;  // it was adopted, or emptied, or lives another life
      // But for frees the thread has it alone: its class stays.
      if (span->class_id() == c && serves(span, held.before)) {
        const auto [before, after, taken] = span->word.own(me, pages_.capacity(c));
        SPANALLOC_ASSERT(taken && before.is_held());
        span->expect_first_clock();
        return {span, pages_.cut_lists(span, before.head())};
      }
      note(seen, span, count_and_let_go(span, held.before));
      if (!seen.has_nothing()) break;
    }
    return {};
  }

  /// Makes the caller owner of a partial span on its own cache's list of the class.
  OwnedSpan partial_to_owned(ClassId c, CacheNumber me) {
    Lists& cache = pages_.cache(me);
    // Our own list: nobody else puts a span there
    if (cache.partial[index_of(c)].is_empty()) return {};
    CacheGuard guard(*this, me);
    return take_partial(cache, c, me);
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
  /// When the owner ends: abandons the shared spans of cache `me`. Empty ones are the caller's.
  SpanChain abandon_all(CacheNumber me) {
    Lists& cache = pages_.cache(me);
    SpanChain emptied;
    CacheGuard guard(*this, me);
    cache.has_delayed.store_relaxed(0);
    const auto abandon_one = [&](SpanRef span) {
      pages_.hide_from_owner(cache, span);
      note(emptied, span, abandon(cache, span, span->uncollected()));
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

  /// Any thread: calls f(word, is_abandoned) for a shared span, under the lock of the cache that
  /// has it on one of its lists, or while the thread holds the abandoned one, which is counted
  /// then. Without `wait` not if the lock is busy. Nobody becomes the span's owner until f returns.
  /// (A cache's may be claimed (I2), but its claimer waits for the lock.) kEmptied: the span was
  /// abandoned, is empty, and the caller's. kRefused: it was, is damaged, and withdrawn.
  template <class F>
  SPANALLOC_COLD Freed with_shared(SpanRef span, bool wait, F&& f) {
    const SpanWord word = span->load_word();
    if (word.is_abandoned()) return with_abandoned(span, f);
    if (word.state() != SpanState::kShared || word.owner() == kNobody) return Freed::kDone;
    Lists& cache = pages_.cache(word.owner());
    if (wait) {
      Base::lock_cache(word.owner());
    } else if (!cache.lock.try_lock()) {
      return Freed::kDone;
    }
    const SpanWord now = span->word.load_acquire();
    if (now.is(word.owner(), SpanState::kShared) && span->list() != ListId::kNone) f(now, false);
    Base::unlock_cache(cache);
    return Freed::kDone;
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

  /// In a fork's child that makes the stacks of abandoned spans anew. True: the span is one, and
  /// has been seen to. (One whose holder vanished may be empty, and says free by now.)
  SPANALLOC_COLD bool recover_abandoned(SpanRef span) {
    const SpanWord word = span->load_word();
    if (!word.is_abandoned() && !word.is_held()) return false;
    if (span->is_withdrawn()) {
      if (word.is_held()) withdraw_held(span);
      return true;
    }
    if (word.is_held()) {
      // Its holder may have counted it or not, or have been purging its pages.
      pages_.unlink_purged(span, word.head());
      const std::uint32_t capacity = pages_.capacity(span->class_id());
      const std::uint32_t free = Base::count_free(span, word.head());
      if (free > capacity) return withdraw_held(span), true;  // the program has damaged it
      span->word.set(word.with_outstanding(capacity - free));
      if (let_go(span) == Freed::kEmptied) return false;
    } else if (serves(span, word)) {
      pages_.show_abandoned(span);
    }
    return true;
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
        (before.outstanding() - span->uncollected()) * 2 >= pages_.capacity(c);
    unlink(cache, span);
    span->expect_first_clock();
    return {span, pages_.cut_lists(span, before.head()), is_nearly_full};
  }

  // I4, checked under the cache's lock, for a span on another list than the delayed list. (A
  // signal handler may have forked in the middle of an owner's free, just before that free would
  // have collected the span.)
  static bool is_empty_only_if_delayed(const Span& span, SpanWord word) {
    return word.outstanding() != span.uncollected() || word.is_delayed() ||
           SpinLock::generation() != 0;
  }

  // Under the lock of `cache`, which has the span: counts what its owner has freed, and puts the
  // span on the list that its free blocks ask for. kEmptied: it is on no list, and the caller's.
  // kRefused: it is retired; the caller reports it when it holds nothing else.
  SPANALLOC_INLINE Freed collect_into(CacheNumber owner, Lists& cache, SpanRef span,
                                      std::uint32_t count) {
    SPANALLOC_ASSERT(Base::may_change(cache));
    SPANALLOC_ASSERT(span->load_word().state() != SpanState::kShared ||
                     span->list() != ListId::kNone);  // I1
    const auto [freed, word] = span->word.collect(count, owner);
    if (SPANALLOC_UNLIKELY(freed == Freed::kRefused)) {
      Base::retire(cache, span);
    } else if (freed == Freed::kEmptied || word.state() != SpanState::kFree) {
      if (span->list() != ListId::kNone) unlink(cache, span);
      if (freed == Freed::kDone) place(span, word);
    }  // else its claimer waits for this lock
    return freed;
  }
  Freed collect(Lists& cache, SpanRef span) {
    return collect_into(span->load_word().owner(), cache, span, span->uncollected());
  }
  // Owned by `me` -> shared by it, under its lock.
  SPANALLOC_INLINE Freed share(Lists& mine, SpanRef span, std::uint32_t free_blocks,
                               CacheNumber me) {
    forget_as_owned(span, me, free_blocks);
    return collect_into(me, mine, span, free_blocks);
  }
  void forget_as_owned(SpanRef span, CacheNumber me, std::uint32_t free_blocks) {
    SPANALLOC_ASSERT(span->load_word().is(me, SpanState::kOwned));
    SPANALLOC_ASSERT(free_blocks <= pages_.capacity(span->class_id()));
    span->forget_list();
    span->forget_watch();
  }
  // Owned or shared by `cache` -> nobody's, under its lock: as collect_into(), but that the span is
  // on no list afterwards. (From its word on another thread may adopt it.)
  Freed abandon(Lists& cache, SpanRef span, std::uint32_t free_blocks) {
    SPANALLOC_ASSERT(Base::may_change(cache));  // I3
    const bool is_listed = span->list() != ListId::kNone;
    span->expect_frees(1);  // none is uncounted
    if (is_listed && span->load_word().state() != SpanState::kFree) unlink(cache, span);
    const std::uint32_t capacity = pages_.capacity(span->class_id());
    const auto [freed, word] = span->word.collect(free_blocks, kNobody);
    if (SPANALLOC_UNLIKELY(freed == Freed::kRefused)) Base::retire(cache, span);
    if (freed == Freed::kDone && word.is_abandoned() && word.outstanding() < capacity)
      pages_.show_abandoned(span);
    return freed;
  }

  // --- Of an abandoned span that the thread holds ------------------------------------------------

  // Shows the span of a hint that was taken, if it is an abandoned one, where it belongs.
  void look_at_hint(SpanRef span, SpanChain& seen) {
    if (const auto held = span->word.hold(); held.done)
      note(seen, span, count_and_let_go(span, held.before));
  }
  // `word`: before it was held.
  bool serves(SpanRef span, SpanWord word) const {
    return !span->is_withdrawn() &&
           (word.is_uncounted() || word.outstanding() < pages_.capacity(span->class_id()));
  }
  // kEmptied: it is the caller's.
  Freed let_go(SpanRef span) {
    const bool is_to_be_found = serves(span, span->load_word());
    const Freed freed = span->word.let_go();
    if (freed == Freed::kDone && is_to_be_found) pages_.show_abandoned(span);
    return freed;
  }
  // Besides, kRefused: the program has damaged it.
  Freed count_and_let_go(SpanRef span, SpanWord before) {
    return count_if_uncounted(span, before) ? let_go(span) : Freed::kRefused;
  }
  bool count_if_uncounted(SpanRef span, SpanWord before) {
    if (!before.is_uncounted()) return true;
    // (What others have freed, the word has counted.)
    if (span->word.count_held(Base::count_free(span, BlockOffset::kNone))) return true;
    withdraw_held(span);
    return false;
  }
  SPANALLOC_COLD void withdraw_held(SpanRef span) {
    span->free_list().clear();
    span->rest().clear();
    span->set_withdrawn(true);
    span->word.retire(kNobody, SpanState::kShared, pages_.capacity(span->class_id()));
  }
  template <class F>
  Freed with_abandoned(SpanRef span, F&& f) {
    const auto held = span->word.hold();
    if (!held.done) return Freed::kDone;
    if (!count_if_uncounted(span, held.before)) return Freed::kRefused;
    if (!span->is_withdrawn()) f(span->word.load_acquire(), true);
    return let_go(span);
  }

  void note(SpanChain& emptied, SpanRef span, Freed freed) {
    if (freed == Freed::kEmptied) chain(emptied, span);
    if (SPANALLOC_UNLIKELY(freed == Freed::kRefused)) emptied.damaged = span.number;
  }
};

}  // namespace spanalloc::standard
