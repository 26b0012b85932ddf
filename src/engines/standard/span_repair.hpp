// What a fork leaves behind in LABs' lists, and putting it right.
//
// A child finds every thread but one vanished at any step of span_protocol.hpp (docs/concurrency.md). Words
// are the truth about spans; a list is only believed while its lock's owner lives, and is made anew from the
// words by the next one who takes the lock of a dead one.
#pragma once

#include <cstdint>

#include "base/assert.hpp"
#include "base/compiler.hpp"
#include "engines/standard/span_placement.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc::standard {

/// `Pages` besides:
///   LabNumber end_of_labs(), SpanNumber end_of_spans()   numbers below these have records, if
///   bool has_lab(LabNumber), bool has_record(SpanNumber)  nothing foreign stands in their place
///   void set_torn(LabNumber, bool), bool is_torn(LabNumber)
///   void note_repair()                                   lists were made anew
///   bool is_mine(LabNumber)                              of the calling thread
///   Block* block_of_mark(SpanRef, BlockMark)
///   void unlink_dropped(SpanRef, BlockMark)              SpanThinning, of its remote list, too
///   std::uint32_t dropped_blocks(SpanRef)                how many are free and on no list
///   std::uint32_t list_length(SpanRef, Block*)           of a parked one; more than its blocks: damaged
///   [[noreturn]] void corrupted(SpanRef)                 more blocks were freed than allocated
///   void has_left(const Lists&, SpanRef)                 the span is no longer that LAB's
template <class Pages>
class SpanRepair : public SpanPlacement<Pages> {
  using Base = SpanPlacement<Pages>;

 protected:
  using Base::pages_;

 public:
  using Base::Base, Base::place, Base::push_attention, Base::unlink;
  using typename Base::Lists;

  /// Holds a LAB's lock; its lists are whole.
  class [[nodiscard]] LabGuard {
   public:
    LabGuard(SpanRepair& repair, LabNumber number) : repair_(repair), lab_(repair.pages_.lab(number)) {
      repair.lock_lab(number);
    }
    ~LabGuard() { repair_.unlock_lab(lab_); }
    LabGuard(const LabGuard&) = delete;
    LabGuard& operator=(const LabGuard&) = delete;

   private:
    SpanRepair& repair_;
    Lists& lab_;
  };

  void lock_lab(LabNumber number) {
    if (pages_.lab(number).lock.lock() == Locked::kOwnerDied) remake_lists(number);
  }
  void unlock_lab(Lists& lab) {
    SPANALLOC_ASSERT(Base::orphans_are_shown(lab));  // I5
    lab.lock.unlock();
  }

  /// A damaged span of LAB `lab`, whose lock the caller has, parked or hot with the calling thread. What is
  /// free in it is handed out no more, and it never becomes empty; frees into it go on to work. A parked one
  /// is lost: on no list, in forks' children, too. From a hot one its thread goes on to allocate what was
  /// never carved, and what comes back. Or it is free as a whole: then it is who claimed it that has it, and
  /// looks at its blocks.
  SPANALLOC_COLD void take_out_of_use(Lists& lab, SpanRef span) {
    end_lists(lab, span, span->load_word().state() == SpanState::kHot ? SpanState::kHot : SpanState::kParked);
  }
  /// The same of one that, if it is hot, stands in no place of its thread's any more: it is lost in any case.
  SPANALLOC_COLD void lose(Lists& lab, SpanRef span) { end_lists(lab, span, SpanState::kParked); }
  /// A damaged list of what others have freed of a span, whoever has that; `newest` begins it, or somebody
  /// has taken it since. Its blocks count as out from here on, as much else of the span as needed with them:
  /// it never becomes empty. What its owner has freed itself stays the owner's, who may be in the middle of a
  /// free.
  SPANALLOC_COLD void lose_remotes(SpanRef span, BlockMark newest) {
    for (LabNumber owner = span->load_word().owner(); owner != kNobody;) {
      const LabGuard guard(*this, owner);
      SpanWord before{span->word.load_acquire()};
      SpanWord after{};
      do {
        // Claimed: its claimer waits for this lock, or has had it.
        if (before.state() == SpanState::kFree || before.head() != newest) return;
        after = before.with_outstanding(pages_.capacity(span->class_id())).with_head(BlockMark::kNone);
      } while (before.owner() == owner &&
               !span->word.compare_exchange_weak_acq_rel(before.bits, after.bits));  // as in take_remotes()
      if (before.owner() != owner) {
        owner = before.owner();
        continue;
      }
      // Where it stood followed from its fill.
      if (after.state() != SpanState::kParked || span->list == ListId::kNone) return;
      Lists& lab = pages_.lab(owner);
      unlink(lab, span);
      return lab.is_orphanage() ? place(span, after) : push_attention(lab, span);
    }
  }

  // --- The calling thread is alone, and none of its own calls is in the middle of the LAB concerned     --

  /// Takes every span that is free off LAB `owner`'s lists: their claimers did not come along.
  SPANALLOC_COLD void unlink_claimed(LabNumber owner) {
    Lists& lab = pages_.lab(owner);
    const auto unlink_if_free = [&](SpanRef span) {
      if (SpanWord{span->word.load_acquire()}.state() == SpanState::kFree) unlink(lab, span);
    };
    LabGuard guard(*this, owner);
    Base::for_each_on(lab.attention, unlink_if_free);
    Base::for_each_on(lab.full, unlink_if_free);
    for (const auto& list : lab.floating) Base::for_each_on(list, unlink_if_free);
    for (const auto& list : lab.reusable) Base::for_each_on(list, unlink_if_free);
  }

  /// With the lock of LAB `owner`, whose last holder vanished: makes its lists anew, and those of all others
  /// whose lock's owner did, in one pass over the records; these locks it lets go of.
  SPANALLOC_COLD void remake_lists(LabNumber owner) {
    for (std::uint32_t n = 0; n < index_of(pages_.end_of_labs()); ++n) {
      if (!pages_.has_lab(LabNumber{n})) continue;
      Lists& lab = pages_.lab(LabNumber{n});
      const bool torn = LabNumber{n} == owner || lab.lock.owner_died();
      pages_.set_torn(LabNumber{n}, torn);
      if (torn) lab.forget();
    }
    for (std::uint32_t n = 1; n < index_of(pages_.end_of_spans()); ++n) {
      // Most records have never been used. Spans of one block have no LAB. Free ones still name the LAB that
      // they were in: whoever has claimed one and waits for this lock must not find it on the lists as they
      // were.
      if (!pages_.has_record(SpanNumber{n})) continue;
      const SpanRef span = pages_.span(SpanNumber{n});
      const SpanWord word = span->load_word();
      if (word.bits != 0 && word.owner() != kNobody && pages_.is_torn(word.owner())) relist(span);
    }
    for (std::uint32_t n = 0; n < index_of(pages_.end_of_labs()); ++n) {
      if (!pages_.has_lab(LabNumber{n})) continue;
      if (pages_.is_torn(LabNumber{n}) && LabNumber{n} != owner) pages_.lab(LabNumber{n}).lock.reset();
    }
    pages_.note_repair();
  }

 private:
  static constexpr std::uint32_t kNeverLooked = UINT32_MAX / 2;

  // A damaged span, which is in this state from here on, unless it is free. What is not hot is lost.
  SPANALLOC_COLD void end_lists(Lists& lab, SpanRef span, SpanState state) {
    span->free_list.store_release(no_block());
    span->rest.store_release(no_block());
    if (state != SpanState::kHot) {
      if (span->list != ListId::kNone) unlink(lab, span);
      span->lost = true;
    }
    SpanWord before = span->load_word();
    SpanWord after{};
    do {
      if (before.state() == SpanState::kFree) {  // its claimer waits for this lock
        span->lost = false;
        return;
      }
      after = before.with_outstanding(pages_.capacity(span->class_id())).with_head(BlockMark::kNone);
      after = after.with_state(state).with_listed(true);  // nobody points it out
      // Release: as in fold_and_place().
    } while (!span->word.compare_exchange_weak_acq_rel(before.bits, after.bits));
    span->expect_frees(kNeverLooked);
  }

  // For every span of a LAB whose lists were forgotten, the free ones too: links it up if it belongs there.
  // What is free in it is counted from its lists: if its owner vanished with the lock, a fold that was cut
  // short has changed the word and not the count, or neither. An empty one becomes free, on no list; of a
  // lost one nothing is known. Of the calling thread's own spans word and count are right, as it was somebody
  // else who had the lock.
  SPANALLOC_COLD void relist(SpanRef span) {
    const SpanWord word = span->load_word();
    const LabNumber owner = word.owner();
    span->list = ListId::kNone;
    if (word.state() != SpanState::kParked || span->lost) return;
    // Where it stood follows from the event that was set for it, which is not to be touched: its owner may be
    // in the middle of a free. It will settle the span.
    pages_.unlink_dropped(span, word.head());  // whoever had the lock was thinning it, perhaps
    if (pages_.is_mine(owner)) return push_attention(pages_.lab(owner), span);
    const std::uint32_t capacity = pages_.capacity(span->class_id());
    std::uint32_t free = capacity - span->carved.load_relaxed() + pages_.dropped_blocks(span) +
                         pages_.list_length(span, span->free_list.load_relaxed()) +
                         pages_.list_length(span, span->rest.load_relaxed());
    if (word.head() != BlockMark::kNone) {
      free += pages_.list_length(span, pages_.block_of_mark(span, word.head()));
    }
    span->uncounted = false;
    // Its program has damaged it. Nobody is told: the other lists are not whole yet, and whoever came for the
    // lock may have a span in its hands.
    if (free > capacity) return lose(pages_.lab(owner), span);
    SpanWord after = word.with_outstanding(capacity - free).with_listed(false);
    if (after.outstanding() == 0) after = after.with_state(SpanState::kFree);
    span->word.store_relaxed(after.bits);
    if (after.state() != SpanState::kFree) place(span, after);
  }
};

}  // namespace spanalloc::standard
