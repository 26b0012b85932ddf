// How a span moves between its thread cache's lists, its owners and its heap. The words in span_word.hpp
// decide; this file adds the lists (span_placement.hpp), which are guarded by the owning thread cache's lock.
//
// Nothing here puts a span into the pool: a call that has made one free says so, and it is the caller's,
// whole and on no list.
//
// Invariants (checked by the models, argued in docs/concurrency.md; tests/unit/assertions violates each):
//  I1  word.state == parked and capacity > 1: the span stands on exactly one list of thread cache word.owner,
//  or the
//      thread that is moving it holds that thread cache's lock. The change hot -> parked and the linking are
//      one critical section, and so are unlinking and parked -> hot.
//  I2  parked -> free happens once: by the compare-and-swap that brings `outstanding` to 0, or, under the
//      thread cache's lock, by one that finds outstanding == uncollected. Whoever succeeded claims the span:
//      it takes the lock, unlinks the span if somebody had it linked, and gives it to the pool. Others leave
//      a free span on a list alone: its claimer is on the way.
//  I3  While a span stays parked its owner changes only under the locks of both thread caches (old before
//  abandoned list). I4  A parked span that is empty but unclaimed (outstanding == uncollected > 0, both last
//  freers looked too
//      early) has been listed since its owner last settled it, so it stands on the delayed list, or the
//      freer that set the listed bit is about to put it there. The owner's next slow path settles that list.
//  I5  Whoever leaves an abandoned list's lock leaves its bit in AbandonedLists::of_class of a class set, if
//  it has a
//      reusable span of that class.
//
// A caller that may be given a span is inside the heap, for a fork's child (HeapCall), from before the
// call.
#pragma once

#include <bit>
#include <cstdint>

#include "base/assert.hpp"
#include "base/compiler.hpp"
#include "engines/standard/span.hpp"
#include "engines/standard/span_placement.hpp"
#include "engines/standard/span_repair.hpp"
#include "engines/standard/span_word.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc::standard {

/// What has become of a free of somebody else's block.
enum class Freed : std::uint8_t {
  kDone,
  kEmptied,  ///< and the span is the caller's now, to be put into the pool
  kRefused,  ///< nothing has changed: the span says that the blocks cannot all be out
};

/// What has become of a span whose owner has counted its own frees into the word.
enum class Collected : std::uint8_t {
  kPlaced,   ///< it is on the list that its fill asks for; or it is free, and its claimer waits for the lock
  kEmpty,    ///< it is free, and the caller's
  kDamaged,  ///< more was freed than had been out: it is lost, which the caller tells, with nothing in its
             ///< hands
};

/// A span that has become the caller's hot one; `remotes`: the first block of the remote list that came with
/// it. The blocks on its free_list and those never carved are the caller's as well.
struct OwnedSpan {
  SpanRef span;
  BlockOffset remotes = BlockOffset::kNone;
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

  /// A thread that does not own the span frees a run of `count` blocks, linked up from the one marked
  /// `newest`; link(head) writes the oldest one's link.
  template <class Link>
  SPANALLOC_INLINE Freed free_remote(SpanRef span, BlockOffset newest, std::uint32_t count, Link&& link) {
    const RemotelyFreed freed = free_remotely(span->word, newest, count, link);
    switch (freed.result) {
      case RemoteFree::kBadFree:
        return Freed::kRefused;
      case RemoteFree::kEmptied:
        take_off_lists(span, freed.after.owner());
        return Freed::kEmptied;
      case RemoteFree::kDelayed:
        return note_delayed(span, freed.after.owner());
      case RemoteFree::kDone:
        // Acquire: with the owner's release store; a hint, confirmed under the lock. After our free the span
        // may be anything already: the record stays readable.
        if (freed.after.state() == SpanState::kShared &&
            freed.after.outstanding() == span->uncollected_acquire()) {
          return note_delayed(span, freed.after.owner());
        }
        return Freed::kDone;
    }
    return Freed::kDone;
  }

  /// After a free of the owner's that was an event (FreeTarget::push_freed). True: the span is empty, and the
  /// caller's.
  bool collect_after_free(SpanRef span, CacheNumber me) {
    CacheGuard guard(*this, me);
    // Our own free may have let another thread claim the span: then it is no longer ours to look at.
    const SpanWord now{span->word.load_acquire()};
    if (!now.is(me, SpanState::kShared)) return false;
    const Collected collected = collect_and_place(pages_.cache(me), span, span->uncollected());
    if (SPANALLOC_UNLIKELY(collected == Collected::kDamaged)) pages_.corrupted(span);
    return collected == Collected::kEmpty;
  }

  /// Owner's slow path: settles every span that other threads pointed out. Cheap when there is none.
  SpanChain collect_delayed(CacheNumber me) {
    Lists& cache = pages_.cache(me);
    SpanChain emptied;
    if (cache.has_delayed.load_relaxed() == 0) return emptied;  // a later slow path will see it
    CacheGuard guard(*this, me);
    cache.has_delayed.store_relaxed(0);  // set again only under the lock
    for_each_on(cache.delayed, [&](SpanRef span) {
      const Collected collected = collect_and_place(cache, span, span->uncollected());
      if (collected == Collected::kEmpty) chain(emptied, span);
      if (SPANALLOC_UNLIKELY(collected == Collected::kDamaged)) emptied.damaged = span.number;
    });
    return emptied;
  }

  /// Any thread, on a pool miss or trim: claims the spans on a thread cache's delayed list that are empty
  /// already. Their owner may be asleep. Does not wait for a busy lock. `may_steal` is asked under it: a
  /// thread cache may have become another heap's.
  template <class MaySteal>
  SpanChain claim_hidden_empties(CacheNumber owner, MaySteal&& may_steal) {
    Lists& cache = pages_.cache(owner);
    SpanChain emptied;
    if (cache.has_delayed.load_relaxed() == 0 || !cache.lock.try_lock()) return emptied;
    if (may_steal()) {
      for_each_on(cache.delayed, [&](SpanRef span) {
        if (!claim_if_hidden_empty(span)) return;
        unlink(cache, span);
        chain(emptied, span);
      });
    }
    Base::unlock_cache(cache);
    return emptied;
  }

  /// Owner: hot -> parked. `free_blocks` of the span are on the owner's list or were never carved.
  Collected owned_to_shared(SpanRef span, CacheNumber me, std::uint32_t free_blocks) {
    CacheGuard guard(*this, me);
    SPANALLOC_ASSERT(span->load_word().is(me, SpanState::kOwned));
    SPANALLOC_ASSERT(free_blocks <= pages_.capacity(span->class_id()));
    span->list = ListId::kNone;
    span->watched = 0;
    return collect_and_place(pages_.cache(me), span, free_blocks);
  }

  /// Any thread but the owner: takes what others have freed of a span that is hot with thread cache `owner`,
  /// if that is of class c and holds so much, as blocks that are out. Does not wait for a busy lock.
  /// `may_borrow` is asked under it.
  template <class MayBorrow>
  RemoteList borrow(SpanRef span, CacheNumber owner, ClassId c, std::uint32_t at_least,
                    MayBorrow&& may_borrow) {
    Lists& cache = pages_.cache(owner);
    const std::uint32_t capacity = pages_.capacity(c);
    const auto is_worth_it = [&](SpanWord word) {
      return word.is(owner, SpanState::kOwned) && word.outstanding() + at_least <= capacity;
    };
    if (!is_worth_it(span->load_word()) || !cache.lock.try_lock()) return {};
    RemoteList list;
    // Acquire: the class that was written before the word said hot. It stays as long as that is so, since the
    // owner gives up a current span only under this lock.
    if (is_worth_it(SpanWord{span->word.load_acquire()}) && span->class_id() == c && may_borrow()) {
      list = take_remotes(span->word, capacity);
    }
    Base::unlock_cache(cache);
    return list;
  }

  /// Hot -> parked, with abandoned list `new_owner`, under the lock of thread cache `me`. At the owner's end:
  /// what is free in the span, on its lists or never carved, is not counted.
  void owned_to_abandoned(SpanRef span, CacheNumber me, CacheNumber new_owner) {
    give_to_abandoned_list(span, me, new_owner, 0, true);
  }
  /// Where that was counted later: `free_blocks` of it are. True: the span is empty, and the caller's.
  bool counted_to_abandoned(SpanRef span, CacheNumber me, CacheNumber new_owner, std::uint32_t free_blocks) {
    CacheGuard guard(*this, me);
    return give_to_abandoned_list(span, me, new_owner, free_blocks, false);
  }

  /// A reusable span of abandoned list `from` whose free blocks nobody has counted becomes the caller's hot
  /// one; one of the first `look_at` of its class.
  OwnedSpan uncounted_to_owned(CacheNumber from, ClassId c, CacheNumber me, std::uint32_t look_at) {
    Lists& cache = pages_.cache(from);
    if (cache.uncounted.load_relaxed() == 0 || cache.partial[index_of(c)].is_empty()) return {};
    CacheGuard guard(*this, from);
    for (SpanNumber number = cache.partial[index_of(c)].first(); number != SpanNumber::kNone && look_at != 0;
         --look_at) {
      const SpanRef span = pages_.span(number);
      number = span->next;
      if (!span->uncounted) continue;
      if (const OwnedSpan owned = shared_to_owned(cache, span, c, me)) return owned;
    }
    return {};
  }

  /// Takes a reusable span of a class off the owner's list and makes it hot for it.
  OwnedSpan partial_to_owned(ClassId c, CacheNumber me) {
    Lists& cache = pages_.cache(me);
    if (cache.partial[index_of(c)].is_empty()) return {};  // our own: nobody else puts one there
    CacheGuard guard(*this, me);
    return take_partial(cache, c, me);
  }

  /// The same from the abandoned_lists: adoption. Threads that begin and end all the time keep to the
  /// abandoned list of their own, and to a busy one of the others they come back when they need it (`wait`):
  /// nobody waits there for a span that the pool may have. What becomes an orphan meanwhile serves the next
  /// call.
  OwnedSpan abandoned_to_owned(const AbandonedLists& abandoned_lists, ClassId c, CacheNumber me,
                               bool wait = false) {
    // No abandoned list shows any (I5).
    if (abandoned_lists.of_class[index_of(c)].load_relaxed() == 0) return {};
    const CacheNumber home = abandoned_lists.home_of(me);
    if (!pages_.cache(home).partial[index_of(c)].is_empty()) {
      CacheGuard guard(*this, home);
      if (const OwnedSpan owned = take_partial(pages_.cache(home), c, me)) return owned;
    }
    // The home's own bit is left to the others: the next thread to end here would only set it again.
    const auto home_bit = static_cast<unsigned>(pages_.cache(home).abandoned_list - 1);
    Atomic<std::uint64_t>& abandoned = abandoned_lists.of_class[index_of(c)];
    std::uint64_t holders = abandoned.load_relaxed();
    if (!wait) holders &= ~(std::uint64_t{1} << home_bit);
    for (holders = std::rotr(holders, static_cast<int>(home_bit)); holders != 0; holders &= holders - 1) {
      const unsigned bit = (home_bit + static_cast<unsigned>(std::countr_zero(holders))) % 64;
      const CacheNumber from = abandoned_lists.numbers[bit];
      Lists& abandoned_list = pages_.cache(from);
      if (wait) {
        Base::lock_cache(from);
      } else if (!abandoned_list.lock.try_lock()) {
        continue;
      }
      const OwnedSpan owned = take_partial(abandoned_list, c, me);
      if (abandoned_list.partial[index_of(c)].is_empty()) {
        // Relaxed: as where it is set.
        abandoned.fetch_and_relaxed(~(std::uint64_t{1} << bit));
      }
      Base::unlock_cache(abandoned_list);
      if (owned) return owned;
    }
    return {};
  }

  /// The same when memory is out: any span of the owner's with a free block, however few. Those without step
  /// aside, so that the next search does not meet them again: the first block that is freed into one brings
  /// it back, freed by the owner as the event that is set here, by another thread over the delayed list.
  OwnedSpan nearly_full_to_owned(ClassId c, CacheNumber me) {
    Lists& cache = pages_.cache(me);
    CacheGuard guard(*this, me);
    const std::uint32_t capacity = pages_.capacity(c);
    for (SpanNumber number = cache.nearly_full[index_of(c)].first(); number != SpanNumber::kNone;) {
      const SpanRef span = pages_.span(number);
      number = span->next;
      if (span->load_word().outstanding() - span->uncollected() >= capacity) {
        unlink(cache, span);
        span->expect_frees(1);
        push(cache, span, ListId::kFull);
      } else if (const OwnedSpan owned = shared_to_owned(cache, span, c, me)) {
        return owned;
      }
    }
    return {};
  }

  /// Owner: false: no span is parked with thread cache `me`, and none can come to be meanwhile. (Only its
  /// owner parks one there, which notes the class until abandon_all(); what a fork's child lists anew waits
  /// for delayed.)
  bool may_have_shared(CacheNumber me) {
    Lists& cache = pages_.cache(me);
    bool any = cache.has_delayed.load_relaxed() != 0;
    for (const std::uint64_t classes : cache.classes) any = any || classes != 0;
    return any;
  }
  /// Owner's end: gives every parked span of thread cache `me` to abandoned list `new_owner`. Empty ones are
  /// the caller's.
  SpanChain abandon_all(CacheNumber me, CacheNumber new_owner) {
    Lists& cache = pages_.cache(me);
    SPANALLOC_ASSERT(!cache.is_abandoned_list() && pages_.cache(new_owner).is_abandoned_list());  // I3
    SpanChain emptied;
    CacheGuard guard(*this, me);
    CacheGuard abandoned_guard(*this, new_owner);
    cache.has_delayed.store_relaxed(0);
    const auto abandon_one = [&](SpanRef span) { abandon_span(cache, new_owner, span, emptied); };
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

  /// Any thread: f(lists, word) with the lock of the thread cache that the span is parked with, if it is on
  /// one of its lists. Without `wait` not if that is busy. Until f returns nobody makes the span hot; it may
  /// be claimed (I2), but its claimer waits for the lock.
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
    const SpanWord now{span->word.load_acquire()};
    if (now.is(word.owner(), SpanState::kShared) && span->list != ListId::kNone) f(cache, now);
    Base::unlock_cache(cache);
  }

  /// Who claimed the span (I2) takes it off its last owner's lists.
  [[gnu::noinline]] void take_off_lists(SpanRef span, CacheNumber owner) {
    SPANALLOC_ASSERT(span->load_word().state() == SpanState::kFree);  // I2: nobody else may claim it
    // A span of one block is never on a list. The class is still ours to read: the span is claimed.
    if (pages_.capacity(span->class_id()) == 1) return;
    CacheGuard guard(*this, owner);
    if (span->list != ListId::kNone) unlink(pages_.cache(owner), span);
  }

  /// In a fork's child: a span on a list, with the `listed` bit, whose freer may not have come as far as the
  /// delayed list (I4). True: it was empty, and is the caller's. One of the calling thread's own is only
  /// pointed out to it: it may be in the middle of collect_after_free(), which nobody else's steps may
  /// come between.
  SPANALLOC_COLD bool collect_on_list(SpanRef span) {
    const CacheNumber owner = span->load_word().owner();
    Lists& cache = pages_.cache(owner);
    CacheGuard guard(*this, owner);
    // (A damaged one is lost without a word: the child is not whole yet.)
    if (!pages_.is_mine(owner)) {
      return collect_and_place(cache, span, span->uncollected()) == Collected::kEmpty;
    }
    unlink(cache, span);
    push_delayed(cache, span);
    return false;
  }

 private:
  // Of what an ended thread cache had only spans that wait for their claimers are still on its lists (I2).
  bool only_claimed_are_left(const Lists& cache) {
    bool all = true;
    const auto check = [&](SpanRef span) { all = all && span->load_word().state() == SpanState::kFree; };
    for_each_on(cache.delayed, check);
    for_each_on(cache.full, check);
    for (const auto& list : cache.nearly_full) for_each_on(list, check);
    for (const auto& list : cache.partial) for_each_on(list, check);
    return all;
  }

  // Puts a span that a remote free was first to touch before its owner's eyes; or claims it, if it is empty.
  [[gnu::noinline]] Freed note_delayed(SpanRef span, CacheNumber owner) {
    Lists& cache = pages_.cache(owner);
    CacheGuard guard(*this, owner);
    // We no longer hold a block of it: it may have gone anywhere. If it says that it is parked with this
    // thread cache then, under this thread cache's lock, it is on its lists (I1), in this life or another:
    // both are served.
    const SpanWord now{span->word.load_acquire()};
    if (!now.is(owner, SpanState::kShared) || span->list == ListId::kNone) return Freed::kDone;
    if (cache.is_abandoned_list()) {
      unlink(cache, span);
      place(span, now);
      return Freed::kDone;
    }
    if (!claim_if_hidden_empty(span)) {
      if (span->list != ListId::kDelayed) unlink(cache, span);
      push_delayed(cache, span);
      return Freed::kDone;
    }
    unlink(cache, span);
    return Freed::kEmptied;
  }

  // Under the owner's lock: outstanding == uncollected means that no block is out, and that stays so: only
  // frees of blocks that are out, and owner's steps under this lock, change either.
  static bool claim_if_hidden_empty(SpanRef span) {
    SPANALLOC_ASSERT(span->list != ListId::kNone);
    SpanWord now{span->word.load_acquire()};
    while (now.state() == SpanState::kShared && now.outstanding() != 0 &&
           now.outstanding() == span->uncollected_acquire()) {  // acquire: after the owner's last free
      const SpanWord after = now.with_outstanding(0).with_state(SpanState::kFree);
      if (span->word.compare_exchange_weak_acq_rel(now.bits, after.bits)) return true;
    }
    return false;
  }

  // Under the thread cache's lock.
  OwnedSpan take_partial(Lists& cache, ClassId c, CacheNumber me) {
    for (SpanNumber number = cache.partial[index_of(c)].first(); number != SpanNumber::kNone;) {
      const SpanRef span = pages_.span(number);
      number = span->next;
      if (const OwnedSpan owned = shared_to_owned(cache, span, c, me)) return owned;
    }
    return {};
  }

  // Under the lock of the thread cache on whose lists the span stands. None: it is claimed already.
  [[gnu::noinline]] OwnedSpan shared_to_owned(Lists& cache, SpanRef span, ClassId c, CacheNumber me) {
    SpanWord before = span->load_word();
    const SpanWord after = SpanWord::make(me, SpanState::kOwned, pages_.capacity(c));
    bool taken = false;
    while (before.state() != SpanState::kFree && !taken) {
      // Acquire: links and contents of remotely freed blocks, and what a former owner did to the record.
      taken = span->word.compare_exchange_weak_acq_rel(before.bits, after.bits);
    }
    if (!taken) return {};  // its claimer waits for this lock to unlink it (I2)
    SPANALLOC_ASSERT(before.state() == SpanState::kShared && span->class_id() == c);  // I1
    SPANALLOC_ASSERT(is_empty_only_if_delayed(*span.record, before));                 // I4
    unlink(cache, span);
    span->expect_frees_while_owned();
    forget_uncounted(cache, span);
    return {span, pages_.cut_lists(span, before.head())};
  }

  // I4, by a thread that has the thread cache's lock, of a span on another list than the delayed list. (A
  // handler that forked in the middle of an owner's free finds what that free was about to settle.)
  static bool is_empty_only_if_delayed(const Span& span, SpanWord word) {
    return word.outstanding() != span.uncollected() || word.is_delayed() || SpinLock::generation() != 0;
  }

  // Owner, under its lock: folds its uncollected frees into the word; hot becomes parked on the way. Then the
  // span goes onto the list that its fill asks for. An empty one is claimed and unlinked.
  Collected collect_and_place(Lists& cache, SpanRef span, std::uint32_t uncollected) {
    SpanWord before = span->load_word();
    SpanWord after{};
    do {
      if (before.state() == SpanState::kFree) return Collected::kPlaced;  // its claimer waits for this lock
      if (SPANALLOC_UNLIKELY(uncollected > before.outstanding())) {
        Base::lose(cache, span);
        return Collected::kDamaged;
      }
      SPANALLOC_ASSERT(before.state() == SpanState::kOwned || span->list != ListId::kNone);  // I1
      after = before.with_outstanding(before.outstanding() - uncollected).with_state(SpanState::kShared);
      after = after.with_delayed(false);
      if (after.outstanding() == 0) after = after.with_state(SpanState::kFree);
      // Release: a later claimer or adopter sees our lists and record. Acquire: we may be that claimer.
    } while (!span->word.compare_exchange_weak_acq_rel(before.bits, after.bits));
    if (span->list != ListId::kNone) unlink(cache, span);
    if (after.state() == SpanState::kFree) return Collected::kEmpty;
    place(span, after);
    return Collected::kPlaced;
  }

  bool give_to_abandoned_list(SpanRef span, CacheNumber me, CacheNumber new_owner, std::uint32_t free_blocks,
                              bool uncounted) {
    Lists& abandoned_list = pages_.cache(new_owner);
    SPANALLOC_ASSERT(abandoned_list.is_abandoned_list() && Base::may_change(pages_.cache(me)));  // I3
    pages_.has_left(pages_.cache(me), span);
    CacheGuard guard(*this, new_owner);
    SPANALLOC_ASSERT(span->load_word().is(me, SpanState::kOwned));
    SpanWord before = span->load_word();
    SpanWord after{};
    do {
      if (SPANALLOC_UNLIKELY(free_blocks > before.outstanding())) {
        Base::lose(pages_.cache(me), span);
        pages_.corrupted(span);
      }
      after = before.with_outstanding(before.outstanding() - free_blocks)
                  .with_owner(new_owner)
                  .with_delayed(false);
      after = after.with_state(after.outstanding() == 0 ? SpanState::kFree : SpanState::kShared);
      // Release: who adopts or claims it sees our lists and record. Acquire: we may be that claimer.
    } while (!span->word.compare_exchange_weak_acq_rel(before.bits, after.bits));
    span->list = ListId::kNone;
    if (after.state() == SpanState::kFree) return true;
    span->watched = 0;
    span->uncounted = uncounted;
    if (uncounted) abandoned_list.uncounted.store_relaxed(abandoned_list.uncounted.load_relaxed() + 1);
    place(span, after);
    return false;
  }

  // Under the lock of the thread cache that the span was parked with.
  static void forget_uncounted(Lists& cache, SpanRef span) {
    if (!span->uncounted) return;
    span->uncounted = false;
    cache.uncounted.store_relaxed(cache.uncounted.load_relaxed() - 1);
  }

  // Under both thread caches' locks.
  void abandon_span(Lists& cache, CacheNumber new_owner, SpanRef span, SpanChain& emptied) {
    SPANALLOC_ASSERT(Base::may_change(cache) && Base::may_change(pages_.cache(new_owner)));  // I3
    const std::uint32_t uncollected = span->uncollected();
    SpanWord before = span->load_word();
    SpanWord after{};
    do {
      if (before.state() == SpanState::kFree)
        return;  // its claimer will unlink it from this thread cache's list
      if (SPANALLOC_UNLIKELY(uncollected > before.outstanding())) {
        Base::lose(cache, span);
        emptied.damaged = span.number;
        return;
      }
      after = before.with_outstanding(before.outstanding() - uncollected).with_owner(new_owner);
      after = after.with_delayed(false);
      if (after.outstanding() == 0) after = after.with_state(SpanState::kFree);
    } while (!span->word.compare_exchange_weak_acq_rel(before.bits, after.bits));
    unlink(cache, span);
    pages_.has_left(cache, span);
    if (after.state() == SpanState::kFree) return chain(emptied, span);
    place(span, after);
  }
};

}  // namespace spanalloc::standard
