// How spans of several blocks change hands. The words of span_word.hpp decide; there is no lock,
// and no list that must be true.
//
// A span is owned by a cache's thread, nobody's, or free. Nothing here puts a span into the pool: a
// call that makes a span free gives it to its caller.
//
// Invariants (the models check them, docs/concurrency.md argues them,
// tests/unit/assertions violates each):
// I1  The word of an owned span counts as out what the program holds and what is on the owner's
//     lists or not carved. So outstanding == 0 says that every block is on the remote list: no
//     block is live, and the owner's list is empty.
// I2  A span becomes free once a life: by the compare-and-swap that finds no block out. Nobody's
//     span: the free that brings the last block, or the holder that counts it. An owned one: its
//     owner, when it gives the span up; or, if the owner has it away (Stock::kAway), any thread
//     that finds outstanding == 0.
// I3  An owner makes a span that it has away current in two ways. By a free of its own: the freed
//     block still counts as out, so nobody can claim the span. Or after a change of its word, which
//     fails if somebody has claimed it, or has begun to (begin_claim()).
// I4  Nobody changes a span that nobody owns but by its word, or while the thread holds it
//     (AtomicSpanWord::hold).
//
// A caller that may be given a span has entered the heap (HeapCall) before the call: so a fork's
// child knows that a vanished thread may have had one.
#pragma once

#include <cstdint>

#include "base/assert.hpp"
#include "base/compiler.hpp"
#include "standard/span.hpp"
#include "standard/span_word.hpp"

namespace spanalloc::standard {

/// Free spans of their finder alone, linked through `next`: for the pool.
struct SpanChain {
  SpanNumber first = SpanNumber::kNone;
  /// The last span withdrawn on the way; reported at the end
  SpanNumber damaged = SpanNumber::kNone;

  bool has_nothing() const { return first == SpanNumber::kNone && damaged == SpanNumber::kNone; }
  void add(SpanRef span) {
    span->set_next(first);
    first = span.number;
  }
};

/// A span that the caller owns from now on; `remotes` is the first block of the remote list that
/// came with it. The blocks on its free_list and those never carved are the caller's as well.
struct OwnedSpan {
  SpanRef span;
  BlockOffset remotes = BlockOffset::kNone;
  explicit operator bool() const { return static_cast<bool>(span); }
};

/// What `Pages` must offer (page_layer.hpp; in models a few spans):
///   SpanRef span(SpanNumber)                             its record
///   std::uint32_t capacity(ClassId)                      blocks of a span of that class
///   BlockOffset cut_lists(SpanRef, BlockOffset)          PartialPurge::cut_lists()
///   Block* block_at_offset(SpanRef, BlockOffset)
///   void unlink_purged(SpanRef, BlockOffset)             PartialPurge; also of the remote list
///   std::uint32_t purged_blocks(SpanRef)                 how many are free and on no list
///   std::uint32_t list_length(SpanRef, Block*)           more than the span has: it is damaged
///   bool show_abandoned(SpanRef)                         abandoned_spans.hpp: show(), take(),
///   SpanRef take_abandoned(ClassId, CacheNumber),
///           take_any_abandoned()                         take_any()
///   void hide_from_owner(CacheNumber, SpanRef)           the span is no longer that cache's
template <class Pages>
class SpanProtocol {
 public:
  constexpr explicit SpanProtocol(Pages& pages) : pages_(pages) {}

  // --- Frees by threads that do not own the span -------------------------------------------------

  /// Frees a batch of `count` blocks, linked from the one at `newest`; link(head) writes the oldest
  /// one's link.
  template <class Link>
  SPANALLOC_INLINE Freed free_remote(SpanRef span, BlockOffset newest, std::uint32_t count,
                                     Link&& link) {
    const auto [freed, word] = span->word.free_batch(newest, count, link);
    // (By the word that our free has changed: the span may be anything by now.)
    if (word.owner() == kNobody) {
      if (freed == Freed::kDone && !span->is_withdrawn()) pages_.show_abandoned(span);
      return freed;
    }
    if (SPANALLOC_UNLIKELY(freed == Freed::kDone && word.state() == SpanState::kOwned &&
                           word.outstanding() == 0)) {
      return claim_away(span, word) ? Freed::kEmptied : Freed::kDone;
    }
    return freed;
  }
  /// Any thread: claims an owned span that has no block out, if its owner has it away (I2).
  SPANALLOC_COLD bool claim_if_away(SpanRef span) {
    const SpanWord word = span->word.load_acquire();
    return word.state() == SpanState::kOwned && word.outstanding() == 0 && claim_away(span, word);
  }

  // --- By the owner ------------------------------------------------------------------------------

  /// Owned -> nobody's: the thread gives the span up. `free_blocks` of its blocks are on the
  /// thread's lists or were never carved. kEmptied: the span is free, and the caller's. kRefused:
  /// more than are out; it is withdrawn.
  Freed owned_to_nobodys(SpanRef span, CacheNumber me, std::uint32_t free_blocks) {
    forget_as_owned(span, me);
    const std::uint32_t capacity = pages_.capacity(span->class_id());
    const auto [freed, word] = span->word.count_and_leave(free_blocks);
    if (SPANALLOC_UNLIKELY(freed == Freed::kRefused && free_blocks == 0 &&
                           word.is_being_claimed())) {
      // It is for the claimer; or, if that has looked for the last time, for a decay epoch.
      span->set_away();
      return Freed::kDone;
    }
    if (SPANALLOC_UNLIKELY(freed == Freed::kRefused)) {
      withdraw(span);
    } else if (freed == Freed::kDone && word.outstanding() < capacity) {
      pages_.show_abandoned(span);
    }
    return freed;
  }
  /// The same, when the thread of cache `me` ends, of a span that it leaves as it is: what is free
  /// there, on its lists or never carved, nobody has counted. There is some. Returns what a hint
  /// has led to that was in the way of the span's own, for the pool.
  SpanChain owned_to_uncounted(SpanRef span, CacheNumber me) {
    forget_as_owned(span, me);
    SpanChain seen;
    if (SPANALLOC_UNLIKELY(!span->word.leave_uncounted())) return span->set_away(), seen;
    if (pages_.show_abandoned(span)) return seen;
    // Its hint may be that of a former class. (One more is put right with each such span.)
    if (const SpanRef other = pages_.take_any_abandoned()) look_at_hint(other, seen);
    return seen;
  }
  /// The same of a span that the thread has away. kRefused: another thread has claimed it.
  Freed away_to_nobodys(SpanRef span, CacheNumber me) {
    pages_.hide_from_owner(me, span);
    const auto [freed, word] = span->word.leave_away(me);
    if (freed == Freed::kDone && word.head() != BlockOffset::kNone) pages_.show_abandoned(span);
    return freed;
  }

  // --- Spans that nobody owns --------------------------------------------------------------------

  /// Counts an abandoned span, if it still is one that nobody has counted. kEmptied: it is the
  /// caller's. kRefused: it is damaged, and withdrawn.
  SPANALLOC_COLD Freed count_abandoned(SpanRef span) {
    if (!span->load_word().is_uncounted()) return Freed::kDone;
    return with_abandoned(span, [](SpanWord) {});
  }
  /// Holds a span of the class that nobody owns and that has a free block; `before`: its word
  /// before. None: `hints` have been followed, or there are no more; or one has led to what is in
  /// `seen`: an empty span, which is the caller's, or a damaged one.
  SpanRef hold_shown(ClassId c, CacheNumber near, std::uint32_t& hints, SpanChain& seen,
                     SpanWord& before) {
    for (; hints != 0; --hints) {
      SpanRef span = pages_.take_abandoned(c, near);
      if (!span) {
        hints = 1;  // the last one: what another class's leads to may be of this class
        if (const SpanRef other = pages_.take_any_abandoned()) look_at_hint(other, seen);
        if (seen.has_nothing()) span = pages_.take_abandoned(c, near);
        if (!span) continue;
      }
      const auto held = span->word.hold();
      if (!held.done) continue;  // it was adopted, or emptied, or lives another life
      // But for frees the thread has it alone: its class stays.
      before = held.before;
      if (span->class_id() == c && serves(span, before)) return span;
      note(seen, span, count_and_let_go(span, before));
      if (!seen.has_nothing()) break;
    }
    return {};
  }
  /// Adoption: held -> owned.
  OwnedSpan own_held(SpanRef span, CacheNumber me) {
    const auto [before, after, taken] = span->word.own(me, pages_.capacity(span->class_id()));
    SPANALLOC_ASSERT(taken && before.is_held());
    span->begin_to_own();
    span->set_others(before.outstanding());
    return {span, pages_.cut_lists(span, before.head())};
  }
  /// Counts a held span, if nobody has (`before`: its word before it was held). False: it is
  /// damaged, and withdrawn.
  bool count_if_uncounted(SpanRef span, SpanWord before) {
    if (!before.is_uncounted()) return true;
    // (What others have freed, the word has counted.)
    if (span->word.count_held(count_free(span, BlockOffset::kNone))) return true;
    withdraw(span);
    return false;
  }
  /// Held -> nobody's again: its holder has taken `lent` of its free blocks. kEmptied: none is out,
  /// and the span is the caller's.
  Freed let_go(SpanRef span, std::uint32_t lent = 0) {
    // (Nobody else makes its blocks out.)
    const SpanWord word = span->load_word();
    const bool is_to_be_found = serves(span, word.with_outstanding(word.outstanding() + lent));
    const Freed freed = span->word.let_go(lent);
    if (freed == Freed::kDone && is_to_be_found) pages_.show_abandoned(span);
    return freed;
  }
  /// Calls f(word) for an abandoned span while the thread holds it; it is counted then. kEmptied:
  /// it is empty, and the caller's. kRefused: it is damaged, and withdrawn.
  template <class F>
  SPANALLOC_COLD Freed with_abandoned(SpanRef span, F&& f) {
    if (!span->load_word().is_abandoned()) return Freed::kDone;
    const auto held = span->word.hold();
    if (!held.done) return Freed::kDone;
    if (!count_if_uncounted(span, held.before)) return Freed::kRefused;
    if (!span->is_withdrawn()) f(span->word.load_acquire());
    return let_go(span);
  }

  // --- Spans that are not what they should be ----------------------------------------------------

  /// Stops the use of what is free in a damaged span of the thread's own. Its free blocks are not
  /// handed out any more, and it never becomes empty; frees into it still work. It still serves its
  /// thread with blocks never carved and blocks that come back.
  SPANALLOC_COLD void take_out_of_use(SpanRef span) {
    span->lose_free_blocks();
    span->word.retire(span->load_word().owner(), SpanState::kOwned,
                      pages_.capacity(span->class_id()));
  }
  /// Withdraws a damaged span that the thread owns, or holds, and that is in none of its places: it
  /// is nobody's, shown nowhere, never served from, and never empty.
  SPANALLOC_COLD void withdraw(SpanRef span) {
    span->lose_free_blocks();
    span->set_withdrawn(true);
    span->word.retire(kNobody, SpanState::kNobodys, pages_.capacity(span->class_id()));
  }
  /// In a fork's child, of an owned span of a vanished thread whose lists are damaged. It keeps
  /// them, because their blocks count as out; and a child that is forked on the way finds them as
  /// they were, and does all of this again.
  SPANALLOC_COLD void withdraw_of_vanished(SpanRef span) {
    span->set_withdrawn(true);
    span->word.hand_over();
  }
  /// Takes a damaged remote list out of use; it begins with `newest`, or another thread has taken
  /// it meanwhile. Its blocks count as out from here on, and others of the span with them, so that
  /// the span never becomes empty.
  SPANALLOC_COLD void discard_remotes(SpanRef span, BlockOffset newest) {
    span->word.drop_remotes(newest, [&] { return pages_.capacity(span->class_id()); });
  }

  // --- In a fork's child -------------------------------------------------------------------------

  /// It makes the stacks of abandoned spans anew. True: the span is one, and has been seen to. (One
  /// whose holder vanished may be empty, and says free by now.)
  SPANALLOC_COLD bool recover_abandoned(SpanRef span) {
    const SpanWord word = span->load_word();
    if (!word.is_abandoned() && !word.is_held()) return false;
    if (span->is_withdrawn()) {
      if (word.is_held()) withdraw(span);
      return true;
    }
    if (word.is_held()) {
      // Its holder may have counted it or not, or have been purging its pages.
      pages_.unlink_purged(span, word.head());
      const std::uint32_t capacity = pages_.capacity(span->class_id());
      const std::uint32_t free = count_free(span, word.head());
      if (free > capacity) return withdraw(span), true;  // the program has damaged it
      span->word.set(word.with_outstanding(capacity - free));
      if (let_go(span) == Freed::kEmptied) return false;
    } else if (serves(span, word)) {
      pages_.show_abandoned(span);
    }
    return true;
  }

 private:
  // `word`: a word of the span. Whether the span is away only the second look decides (I3): between
  // the first and begin_claim() it may have been current, and have got the same word again.
  bool claim_away(SpanRef span, SpanWord word) {
    for (;;) {
      if (!span->is_away() || !span->word.begin_claim(word)) return false;
      const bool is_away = span->is_away();
      if (!span->word.end_claim(word, is_away)) return false;
      if (is_away) break;
    }
    pages_.hide_from_owner(word.owner(), span);
    return true;
  }
  void forget_as_owned(SpanRef span, CacheNumber me) {
    SPANALLOC_ASSERT(span->load_word().is(me, SpanState::kOwned));
    pages_.hide_from_owner(me, span);
    span->set_not_ready();
  }

  // How many blocks are free in a span that the thread has alone: on these lists, on a remote list
  // that begins so, or never carved, or purged. More than it has: the program has damaged it.
  SPANALLOC_COLD std::uint32_t count_free(SpanRef span, BlockOffset remotes) const {
    std::uint32_t free = pages_.capacity(span->class_id()) - span->carved() +
                         pages_.purged_blocks(span) +
                         pages_.list_length(span, span->free_list().first());
    if (remotes != BlockOffset::kNone)
      free += pages_.list_length(span, pages_.block_at_offset(span, remotes));
    return free;
  }
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
  // Besides, kRefused: the program has damaged it.
  Freed count_and_let_go(SpanRef span, SpanWord before) {
    return count_if_uncounted(span, before) ? let_go(span) : Freed::kRefused;
  }
  void note(SpanChain& emptied, SpanRef span, Freed freed) {
    if (freed == Freed::kEmptied) emptied.add(span);
    if (SPANALLOC_UNLIKELY(freed == Freed::kRefused)) emptied.damaged = span.number;
  }

  Pages& pages_;
};

}  // namespace spanalloc::standard
