// How a span moves between its LAB's lists, its owners and its heap. The words in span_word.hpp decide; this
// file adds the lists (span_placement.hpp), which are guarded by the owning LAB's lock.
//
// Nothing here puts a span into the pool: a call that has made one free says so, and it is the caller's,
// whole and on no list.
//
// Invariants (checked by the models, argued in docs/concurrency.md; tests/unit/assertions violates each):
//  I1  word.state == parked and capacity > 1: the span stands on exactly one list of LAB word.owner, or the
//      thread that is moving it holds that LAB's lock. The change hot -> parked and the linking are one
//      critical section, and so are unlinking and parked -> hot.
//  I2  parked -> free happens once: by the compare-and-swap that brings `outstanding` to 0, or, under the
//      LAB's lock, by one that finds outstanding == unpublished. Whoever succeeded claims the span: it takes
//      the lock, unlinks the span if somebody had it linked, and gives it to the pool. Others leave a free
//      span on a list alone: its claimer is on the way.
//  I3  While a span stays parked its owner changes only under the locks of both LABs (old before orphanage).
//  I4  A parked span that is empty but unclaimed (outstanding == unpublished > 0, both last freers looked too
//      early) has been listed since its owner last settled it, so it stands on the attention list, or the
//      freer that set the listed bit is about to put it there. The owner's next slow path settles that list.
//  I5  Whoever leaves an orphanage's lock leaves its bit in Orphanages::of_class of a class set, if it has a
//      reusable span of that class.
//
// A caller that may be given a span is inside the heap, for a fork's child (InsideHeap), from before the
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
enum class Settled : std::uint8_t {
  kPlaced,   ///< it is on the list that its fill asks for; or it is free, and its claimer waits for the lock
  kEmpty,    ///< it is free, and the caller's
  kDamaged,  ///< more was freed than had been out: it is lost, which the caller tells, with nothing in its
             ///< hands
};

/// A span that has become the caller's hot one; `remotes`: the first block of the remote list that came with
/// it. The blocks on its free_list and those never carved are the caller's as well.
struct HotSpan {
  SpanRef span;
  BlockMark remotes = BlockMark::kNone;
  explicit operator bool() const { return static_cast<bool>(span); }
};

template <class Pages>
class SpanProtocol : public SpanRepair<Pages> {
  using Base = SpanRepair<Pages>;
  using Base::pages_, Base::for_each_on, Base::push, Base::chain;

 public:
  using Base::Base, Base::place, Base::push_attention, Base::unlink;
  using typename Base::LabGuard;
  using typename Base::Lists;

  /// A thread that does not own the span frees a run of `count` blocks, linked up from the one marked
  /// `newest`; link(head) writes the oldest one's link.
  template <class Link>
  SPANALLOC_INLINE Freed free_remote(SpanRef span, BlockMark newest, std::uint32_t count, Link&& link) {
    const RemotelyFreed freed = free_remotely(span->word, newest, count, link);
    switch (freed.result) {
      case RemoteFree::kBadFree:
        return Freed::kRefused;
      case RemoteFree::kEmptied:
        take_off_lists(span, freed.after.owner());
        return Freed::kEmptied;
      case RemoteFree::kListed:
        return raise_attention(span, freed.after.owner());
      case RemoteFree::kDone:
        // Acquire: with the owner's release store; a hint, confirmed under the lock. After our free the span
        // may be anything already: the record stays readable.
        if (freed.after.state() == SpanState::kParked &&
            freed.after.outstanding() == span->unpublished_acquire()) {
          return raise_attention(span, freed.after.owner());
        }
        return Freed::kDone;
    }
    return Freed::kDone;
  }

  /// After a free of the owner's that was an event (Intake::take_in). True: the span is empty, and the
  /// caller's.
  bool settle_after_local_free(SpanRef span, LabNumber me) {
    LabGuard guard(*this, me);
    // Our own free may have let another thread claim the span: then it is no longer ours to look at.
    const SpanWord now{span->word.load_acquire()};
    if (!now.is(me, SpanState::kParked)) return false;
    const Settled settled = fold_and_place(pages_.lab(me), span, span->unpublished());
    if (SPANALLOC_UNLIKELY(settled == Settled::kDamaged)) pages_.corrupted(span);
    return settled == Settled::kEmpty;
  }

  /// Owner's slow path: settles every span that other threads pointed out. Cheap when there is none.
  SpanChain settle_attention(LabNumber me) {
    Lists& lab = pages_.lab(me);
    SpanChain emptied;
    if (lab.attention_waiting.load_relaxed() == 0) return emptied;  // a later slow path will see it
    LabGuard guard(*this, me);
    lab.attention_waiting.store_relaxed(0);  // set again only under the lock
    for_each_on(lab.attention, [&](SpanRef span) {
      const Settled settled = fold_and_place(lab, span, span->unpublished());
      if (settled == Settled::kEmpty) chain(emptied, span);
      if (SPANALLOC_UNLIKELY(settled == Settled::kDamaged)) emptied.damaged = span.number;
    });
    return emptied;
  }

  /// Any thread, on a pool miss or trim: claims the spans on a LAB's attention list that are empty already.
  /// Their owner may be asleep. Does not wait for a busy lock. `may_steal` is asked under it: a LAB may have
  /// become another heap's.
  template <class MaySteal>
  SpanChain steal_hidden_empties(LabNumber owner, MaySteal&& may_steal) {
    Lists& lab = pages_.lab(owner);
    SpanChain emptied;
    if (lab.attention_waiting.load_relaxed() == 0 || !lab.lock.try_lock()) return emptied;
    if (may_steal()) {
      for_each_on(lab.attention, [&](SpanRef span) {
        if (!claim_if_hidden_empty(span)) return;
        unlink(lab, span);
        chain(emptied, span);
      });
    }
    Base::unlock_lab(lab);
    return emptied;
  }

  /// Owner: hot -> parked. `free_blocks` of the span are on the owner's list or were never carved.
  Settled hot_to_parked(SpanRef span, LabNumber me, std::uint32_t free_blocks) {
    LabGuard guard(*this, me);
    SPANALLOC_ASSERT(span->load_word().is(me, SpanState::kHot));
    SPANALLOC_ASSERT(free_blocks <= pages_.capacity(span->class_id()));
    span->list = ListId::kNone;
    span->watched = 0;
    return fold_and_place(pages_.lab(me), span, free_blocks);
  }

  /// Any thread but the owner: takes what others have freed of a span that is hot with LAB `owner`, if that
  /// is of class c and holds so much, as blocks that are out. Does not wait for a busy lock. `may_borrow` is
  /// asked under it.
  template <class MayBorrow>
  RemoteList borrow(SpanRef span, LabNumber owner, ClassId c, std::uint32_t at_least,
                    MayBorrow&& may_borrow) {
    Lists& lab = pages_.lab(owner);
    const std::uint32_t capacity = pages_.capacity(c);
    const auto is_worth_it = [&](SpanWord word) {
      return word.is(owner, SpanState::kHot) && word.outstanding() + at_least <= capacity;
    };
    if (!is_worth_it(span->load_word()) || !lab.lock.try_lock()) return {};
    RemoteList list;
    // Acquire: the class that was written before the word said hot. It stays as long as that is so, since the
    // owner gives up a hot span only under this lock.
    if (is_worth_it(SpanWord{span->word.load_acquire()}) && span->class_id() == c && may_borrow()) {
      list = take_remotes(span->word, capacity);
    }
    Base::unlock_lab(lab);
    return list;
  }

  /// Hot -> parked, with orphanage `heir`, under the lock of LAB `me`. At the owner's end: what is free in
  /// the span, on its lists or never carved, is not counted.
  void hot_to_orphan(SpanRef span, LabNumber me, LabNumber heir) {
    give_to_orphanage(span, me, heir, 0, true);
  }
  /// Where that was counted later: `free_blocks` of it are. True: the span is empty, and the caller's.
  bool counted_to_orphan(SpanRef span, LabNumber me, LabNumber heir, std::uint32_t free_blocks) {
    LabGuard guard(*this, me);
    return give_to_orphanage(span, me, heir, free_blocks, false);
  }

  /// A reusable span of orphanage `from` whose free blocks nobody has counted becomes the caller's hot one;
  /// one of the first `look_at` of its class.
  HotSpan uncounted_to_hot(LabNumber from, ClassId c, LabNumber me, std::uint32_t look_at) {
    Lists& lab = pages_.lab(from);
    if (lab.uncounted.load_relaxed() == 0 || lab.reusable[index_of(c)].is_empty()) return {};
    LabGuard guard(*this, from);
    for (SpanNumber number = lab.reusable[index_of(c)].first(); number != SpanNumber::kNone && look_at != 0;
         --look_at) {
      const SpanRef span = pages_.span(number);
      number = span->next;
      if (!span->uncounted) continue;
      if (const HotSpan hot = parked_to_hot(lab, span, c, me)) return hot;
    }
    return {};
  }

  /// Takes a reusable span of a class off the owner's list and makes it hot for it.
  HotSpan reusable_to_hot(ClassId c, LabNumber me) {
    Lists& lab = pages_.lab(me);
    if (lab.reusable[index_of(c)].is_empty()) return {};  // our own: nobody else puts one there
    LabGuard guard(*this, me);
    return take_reusable(lab, c, me);
  }

  /// The same from the orphanages: adoption. Threads that begin and end all the time keep to the orphanage of
  /// their own, and to a busy one of the others they come back when they need it (`wait`): nobody waits there
  /// for a span that the pool may have. What becomes an orphan meanwhile serves the next call.
  HotSpan orphan_to_hot(const Orphanages& orphanages, ClassId c, LabNumber me, bool wait = false) {
    // No orphanage shows any (I5).
    if (orphanages.of_class[index_of(c)].load_relaxed() == 0) return {};
    const LabNumber home = orphanages.home_of(me);
    if (!pages_.lab(home).reusable[index_of(c)].is_empty()) {
      LabGuard guard(*this, home);
      if (const HotSpan hot = take_reusable(pages_.lab(home), c, me)) return hot;
    }
    // The home's own bit is left to the others: the next thread to end here would only set it again.
    const auto home_bit = static_cast<unsigned>(pages_.lab(home).orphanage - 1);
    Atomic<std::uint64_t>& orphans = orphanages.of_class[index_of(c)];
    std::uint64_t holders = orphans.load_relaxed();
    if (!wait) holders &= ~(std::uint64_t{1} << home_bit);
    for (holders = std::rotr(holders, static_cast<int>(home_bit)); holders != 0; holders &= holders - 1) {
      const unsigned bit = (home_bit + static_cast<unsigned>(std::countr_zero(holders))) % 64;
      const LabNumber from = orphanages.numbers[bit];
      Lists& orphanage = pages_.lab(from);
      if (wait) {
        Base::lock_lab(from);
      } else if (!orphanage.lock.try_lock()) {
        continue;
      }
      const HotSpan hot = take_reusable(orphanage, c, me);
      if (orphanage.reusable[index_of(c)].is_empty()) {
        // Relaxed: as where it is set.
        orphans.fetch_and_relaxed(~(std::uint64_t{1} << bit));
      }
      Base::unlock_lab(orphanage);
      if (hot) return hot;
    }
    return {};
  }

  /// The same when memory is out: any span of the owner's with a free block, however few. Those without step
  /// aside, so that the next search does not meet them again: the first block that is freed into one brings
  /// it back, freed by the owner as the event that is set here, by another thread over the attention list.
  HotSpan floating_to_hot(ClassId c, LabNumber me) {
    Lists& lab = pages_.lab(me);
    LabGuard guard(*this, me);
    const std::uint32_t capacity = pages_.capacity(c);
    for (SpanNumber number = lab.floating[index_of(c)].first(); number != SpanNumber::kNone;) {
      const SpanRef span = pages_.span(number);
      number = span->next;
      if (span->load_word().outstanding() - span->unpublished() >= capacity) {
        unlink(lab, span);
        span->expect_frees(1);
        push(lab, span, ListId::kFull);
      } else if (const HotSpan hot = parked_to_hot(lab, span, c, me)) {
        return hot;
      }
    }
    return {};
  }

  /// Owner: false: no span is parked with LAB `me`, and none can come to be meanwhile. (Only its owner parks
  /// one there, which notes the class until orphan_all(); what a fork's child lists anew waits for
  /// attention.)
  bool may_have_parked(LabNumber me) {
    Lists& lab = pages_.lab(me);
    bool any = lab.attention_waiting.load_relaxed() != 0;
    for (const std::uint64_t classes : lab.classes) any = any || classes != 0;
    return any;
  }
  /// Owner's end: gives every parked span of LAB `me` to orphanage `heir`. Empty ones are the caller's.
  SpanChain orphan_all(LabNumber me, LabNumber heir) {
    Lists& lab = pages_.lab(me);
    SPANALLOC_ASSERT(!lab.is_orphanage() && pages_.lab(heir).is_orphanage());  // I3
    SpanChain emptied;
    LabGuard guard(*this, me);
    LabGuard orphan_guard(*this, heir);
    lab.attention_waiting.store_relaxed(0);
    const auto orphan = [&](SpanRef span) { orphan_span(lab, heir, span, emptied); };
    for_each_on(lab.attention, orphan);
    for_each_on(lab.full, orphan);
    for (unsigned word = 0; word < Lists::kWords; ++word) {
      for (std::uint64_t bits = lab.classes[word]; bits != 0; bits &= bits - 1) {
        const unsigned c = word * 64 + static_cast<unsigned>(std::countr_zero(bits));
        for_each_on(lab.floating[c], orphan);
        for_each_on(lab.reusable[c], orphan);
      }
      lab.classes[word] = 0;
    }
    SPANALLOC_ASSERT(only_claimed_are_left(lab));
    return emptied;
  }

  /// Any thread: f(lists, word) with the lock of the LAB that the span is parked with, if it is on one of its
  /// lists. Without `wait` not if that is busy. Until f returns nobody makes the span hot; it may be claimed
  /// (I2), but its claimer waits for the lock.
  template <class F>
  SPANALLOC_COLD void with_parked(SpanRef span, bool wait, F&& f) {
    const SpanWord word = span->load_word();
    if (word.state() != SpanState::kParked || word.owner() == kNobody) return;
    Lists& lab = pages_.lab(word.owner());
    if (wait) {
      Base::lock_lab(word.owner());
    } else if (!lab.lock.try_lock()) {
      return;
    }
    const SpanWord now{span->word.load_acquire()};
    if (now.is(word.owner(), SpanState::kParked) && span->list != ListId::kNone) f(lab, now);
    Base::unlock_lab(lab);
  }

  /// Who claimed the span (I2) takes it off its last owner's lists.
  [[gnu::noinline]] void take_off_lists(SpanRef span, LabNumber owner) {
    SPANALLOC_ASSERT(span->load_word().state() == SpanState::kFree);  // I2: nobody else may claim it
    // A span of one block is never on a list. The class is still ours to read: the span is claimed.
    if (pages_.capacity(span->class_id()) == 1) return;
    LabGuard guard(*this, owner);
    if (span->list != ListId::kNone) unlink(pages_.lab(owner), span);
  }

  /// In a fork's child: a span on a list, with the `listed` bit, whose freer may not have come as far as the
  /// attention list (I4). True: it was empty, and is the caller's. One of the calling thread's own is only
  /// pointed out to it: it may be in the middle of settle_after_local_free(), which nobody else's steps may
  /// come between.
  SPANALLOC_COLD bool settle_listed(SpanRef span) {
    const LabNumber owner = span->load_word().owner();
    Lists& lab = pages_.lab(owner);
    LabGuard guard(*this, owner);
    // (A damaged one is lost without a word: the child is not whole yet.)
    if (!pages_.is_mine(owner)) {
      return fold_and_place(lab, span, span->unpublished()) == Settled::kEmpty;
    }
    unlink(lab, span);
    push_attention(lab, span);
    return false;
  }

 private:
  // Of what an ended LAB had only spans that wait for their claimers are still on its lists (I2).
  bool only_claimed_are_left(const Lists& lab) {
    bool all = true;
    const auto check = [&](SpanRef span) { all = all && span->load_word().state() == SpanState::kFree; };
    for_each_on(lab.attention, check);
    for_each_on(lab.full, check);
    for (const auto& list : lab.floating) for_each_on(list, check);
    for (const auto& list : lab.reusable) for_each_on(list, check);
    return all;
  }

  // Puts a span that a remote free was first to touch before its owner's eyes; or claims it, if it is empty.
  [[gnu::noinline]] Freed raise_attention(SpanRef span, LabNumber owner) {
    Lists& lab = pages_.lab(owner);
    LabGuard guard(*this, owner);
    // We no longer hold a block of it: it may have gone anywhere. If it says that it is parked with this LAB
    // then, under this LAB's lock, it is on its lists (I1), in this life or another: both are served.
    const SpanWord now{span->word.load_acquire()};
    if (!now.is(owner, SpanState::kParked) || span->list == ListId::kNone) return Freed::kDone;
    if (lab.is_orphanage()) {
      unlink(lab, span);
      place(span, now);
      return Freed::kDone;
    }
    if (!claim_if_hidden_empty(span)) {
      if (span->list != ListId::kAttention) unlink(lab, span);
      push_attention(lab, span);
      return Freed::kDone;
    }
    unlink(lab, span);
    return Freed::kEmptied;
  }

  // Under the owner's lock: outstanding == unpublished means that no block is out, and that stays so: only
  // frees of blocks that are out, and owner's steps under this lock, change either.
  static bool claim_if_hidden_empty(SpanRef span) {
    SPANALLOC_ASSERT(span->list != ListId::kNone);
    SpanWord now{span->word.load_acquire()};
    while (now.state() == SpanState::kParked && now.outstanding() != 0 &&
           now.outstanding() == span->unpublished_acquire()) {  // acquire: after the owner's last free
      const SpanWord after = now.with_outstanding(0).with_state(SpanState::kFree);
      if (span->word.compare_exchange_weak_acq_rel(now.bits, after.bits)) return true;
    }
    return false;
  }

  // Under the LAB's lock.
  HotSpan take_reusable(Lists& lab, ClassId c, LabNumber me) {
    for (SpanNumber number = lab.reusable[index_of(c)].first(); number != SpanNumber::kNone;) {
      const SpanRef span = pages_.span(number);
      number = span->next;
      if (const HotSpan hot = parked_to_hot(lab, span, c, me)) return hot;
    }
    return {};
  }

  // Under the lock of the LAB on whose lists the span stands. None: it is claimed already.
  [[gnu::noinline]] HotSpan parked_to_hot(Lists& lab, SpanRef span, ClassId c, LabNumber me) {
    SpanWord before = span->load_word();
    const SpanWord after = SpanWord::make(me, SpanState::kHot, pages_.capacity(c));
    bool taken = false;
    while (before.state() != SpanState::kFree && !taken) {
      // Acquire: links and contents of remotely freed blocks, and what a former owner did to the record.
      taken = span->word.compare_exchange_weak_acq_rel(before.bits, after.bits);
    }
    if (!taken) return {};  // its claimer waits for this lock to unlink it (I2)
    SPANALLOC_ASSERT(before.state() == SpanState::kParked && span->class_id() == c);  // I1
    SPANALLOC_ASSERT(is_empty_only_if_listed(*span.record, before));                  // I4
    unlink(lab, span);
    span->expect_frees_while_hot();
    forget_uncounted(lab, span);
    return {span, pages_.cut_lists(span, before.head())};
  }

  // I4, by a thread that has the LAB's lock, of a span on another list than the attention list. (A handler
  // that forked in the middle of an owner's free finds what that free was about to settle.)
  static bool is_empty_only_if_listed(const Span& span, SpanWord word) {
    return word.outstanding() != span.unpublished() || word.listed() || SpinLock::generation() != 0;
  }

  // Owner, under its lock: folds its unpublished frees into the word; hot becomes parked on the way. Then the
  // span goes onto the list that its fill asks for. An empty one is claimed and unlinked.
  Settled fold_and_place(Lists& lab, SpanRef span, std::uint32_t unpublished) {
    SpanWord before = span->load_word();
    SpanWord after{};
    do {
      if (before.state() == SpanState::kFree) return Settled::kPlaced;  // its claimer waits for this lock
      if (SPANALLOC_UNLIKELY(unpublished > before.outstanding())) {
        Base::lose(lab, span);
        return Settled::kDamaged;
      }
      SPANALLOC_ASSERT(before.state() == SpanState::kHot || span->list != ListId::kNone);  // I1
      after = before.with_outstanding(before.outstanding() - unpublished).with_state(SpanState::kParked);
      after = after.with_listed(false);
      if (after.outstanding() == 0) after = after.with_state(SpanState::kFree);
      // Release: a later claimer or adopter sees our lists and record. Acquire: we may be that claimer.
    } while (!span->word.compare_exchange_weak_acq_rel(before.bits, after.bits));
    if (span->list != ListId::kNone) unlink(lab, span);
    if (after.state() == SpanState::kFree) return Settled::kEmpty;
    place(span, after);
    return Settled::kPlaced;
  }

  bool give_to_orphanage(SpanRef span, LabNumber me, LabNumber heir, std::uint32_t free_blocks,
                         bool uncounted) {
    Lists& orphanage = pages_.lab(heir);
    SPANALLOC_ASSERT(orphanage.is_orphanage() && Base::may_change(pages_.lab(me)));  // I3
    pages_.has_left(pages_.lab(me), span);
    LabGuard guard(*this, heir);
    SPANALLOC_ASSERT(span->load_word().is(me, SpanState::kHot));
    SpanWord before = span->load_word();
    SpanWord after{};
    do {
      if (SPANALLOC_UNLIKELY(free_blocks > before.outstanding())) {
        Base::lose(pages_.lab(me), span);
        pages_.corrupted(span);
      }
      after = before.with_outstanding(before.outstanding() - free_blocks).with_owner(heir).with_listed(false);
      after = after.with_state(after.outstanding() == 0 ? SpanState::kFree : SpanState::kParked);
      // Release: who adopts or claims it sees our lists and record. Acquire: we may be that claimer.
    } while (!span->word.compare_exchange_weak_acq_rel(before.bits, after.bits));
    span->list = ListId::kNone;
    if (after.state() == SpanState::kFree) return true;
    span->watched = 0;
    span->uncounted = uncounted;
    if (uncounted) orphanage.uncounted.store_relaxed(orphanage.uncounted.load_relaxed() + 1);
    place(span, after);
    return false;
  }

  // Under the lock of the LAB that the span was parked with.
  static void forget_uncounted(Lists& lab, SpanRef span) {
    if (!span->uncounted) return;
    span->uncounted = false;
    lab.uncounted.store_relaxed(lab.uncounted.load_relaxed() - 1);
  }

  // Under both LABs' locks.
  void orphan_span(Lists& lab, LabNumber heir, SpanRef span, SpanChain& emptied) {
    SPANALLOC_ASSERT(Base::may_change(lab) && Base::may_change(pages_.lab(heir)));  // I3
    const std::uint32_t unpublished = span->unpublished();
    SpanWord before = span->load_word();
    SpanWord after{};
    do {
      if (before.state() == SpanState::kFree) return;  // its claimer will unlink it from this LAB's list
      if (SPANALLOC_UNLIKELY(unpublished > before.outstanding())) {
        Base::lose(lab, span);
        emptied.damaged = span.number;
        return;
      }
      after = before.with_outstanding(before.outstanding() - unpublished).with_owner(heir);
      after = after.with_listed(false);
      if (after.outstanding() == 0) after = after.with_state(SpanState::kFree);
    } while (!span->word.compare_exchange_weak_acq_rel(before.bits, after.bits));
    unlink(lab, span);
    pages_.has_left(lab, span);
    if (after.state() == SpanState::kFree) return chain(emptied, span);
    place(span, after);
  }
};

}  // namespace spanalloc::standard
