// What a fork leaves behind in thread caches' lists, and putting it right.
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
///   CacheNumber end_of_caches(), SpanNumber end_of_spans()   numbers below these have records, if
///   bool has_cache(CacheNumber), bool has_record(SpanNumber)  nothing foreign stands in their place
///   void set_torn(CacheNumber, bool), bool is_torn(CacheNumber)
///   void note_repair()                                   lists were made anew
///   bool is_mine(CacheNumber)                              of the calling thread
///   Block* block_at_offset(SpanRef, BlockOffset)
///   void unlink_purged(SpanRef, BlockOffset)              PartialPurge, of its remote list, too
///   std::uint32_t purged_blocks(SpanRef)                how many are free and on no list
///   std::uint32_t list_length(SpanRef, Block*)           of a parked one; more than its blocks: damaged
///   [[noreturn]] void corrupted(SpanRef)                 more blocks were freed than allocated
///   void has_left(const Lists&, SpanRef)                 the span is no longer that thread cache's
template <class Pages>
class SpanRepair : public SpanPlacement<Pages> {
  using Base = SpanPlacement<Pages>;

 protected:
  using Base::pages_;

 public:
  using Base::Base, Base::place, Base::push_delayed, Base::unlink;
  using typename Base::Lists;

  /// Holds a thread cache's lock; its lists are whole.
  class [[nodiscard]] CacheGuard {
   public:
    CacheGuard(SpanRepair& repair, CacheNumber number)
        : repair_(repair), cache_(repair.pages_.cache(number)) {
      repair.lock_cache(number);
    }
    ~CacheGuard() { repair_.unlock_cache(cache_); }
    CacheGuard(const CacheGuard&) = delete;
    CacheGuard& operator=(const CacheGuard&) = delete;

   private:
    SpanRepair& repair_;
    Lists& cache_;
  };

  void lock_cache(CacheNumber number) {
    if (pages_.cache(number).lock.lock() == Locked::kOwnerDied) remake_lists(number);
  }
  void unlock_cache(Lists& cache) {
    SPANALLOC_ASSERT(Base::abandoned_are_shown(cache));  // I5
    cache.lock.unlock();
  }

  /// A damaged span of thread cache `cache`, whose lock the caller has, parked or hot with the calling
  /// thread. What is free in it is handed out no more, and it never becomes empty; frees into it go on to
  /// work. A parked one is lost: on no list, in forks' children, too. From a hot one its thread goes on to
  /// allocate what was never carved, and what comes back. Or it is free as a whole: then it is who claimed it
  /// that has it, and looks at its blocks.
  SPANALLOC_COLD void take_out_of_use(Lists& cache, SpanRef span) {
    end_lists(cache, span,
              span->load_word().state() == SpanState::kOwned ? SpanState::kOwned : SpanState::kShared);
  }
  /// The same of one that, if it is hot, stands in no place of its thread's any more: it is lost in any case.
  SPANALLOC_COLD void lose(Lists& cache, SpanRef span) { end_lists(cache, span, SpanState::kShared); }
  /// A damaged list of what others have freed of a span, whoever has that; `newest` begins it, or somebody
  /// has taken it since. Its blocks count as out from here on, as much else of the span as needed with them:
  /// it never becomes empty. What its owner has freed itself stays the owner's, who may be in the middle of a
  /// free.
  SPANALLOC_COLD void lose_remotes(SpanRef span, BlockOffset newest) {
    for (CacheNumber owner = span->load_word().owner(); owner != kNobody;) {
      const CacheGuard guard(*this, owner);
      SpanWord before{span->word.load_acquire()};
      SpanWord after{};
      do {
        // Claimed: its claimer waits for this lock, or has had it.
        if (before.state() == SpanState::kFree || before.head() != newest) return;
        after = before.with_outstanding(pages_.capacity(span->class_id())).with_head(BlockOffset::kNone);
      } while (before.owner() == owner &&
               !span->word.compare_exchange_weak_acq_rel(before.bits, after.bits));  // as in take_remotes()
      if (before.owner() != owner) {
        owner = before.owner();
        continue;
      }
      // Where it stood followed from its fill.
      if (after.state() != SpanState::kShared || span->list == ListId::kNone) return;
      Lists& cache = pages_.cache(owner);
      unlink(cache, span);
      return cache.is_abandoned_list() ? place(span, after) : push_delayed(cache, span);
    }
  }

  // --- The calling thread is alone, and none of its own calls is in the middle of the thread cache concerned
  // --

  /// Takes every span that is free off thread cache `owner`'s lists: their claimers did not come along.
  SPANALLOC_COLD void unlink_claimed(CacheNumber owner) {
    Lists& cache = pages_.cache(owner);
    const auto unlink_if_free = [&](SpanRef span) {
      if (SpanWord{span->word.load_acquire()}.state() == SpanState::kFree) unlink(cache, span);
    };
    CacheGuard guard(*this, owner);
    Base::for_each_on(cache.delayed, unlink_if_free);
    Base::for_each_on(cache.full, unlink_if_free);
    for (const auto& list : cache.nearly_full) Base::for_each_on(list, unlink_if_free);
    for (const auto& list : cache.partial) Base::for_each_on(list, unlink_if_free);
  }

  /// With the lock of thread cache `owner`, whose last holder vanished: makes its lists anew, and those of
  /// all others whose lock's owner did, in one pass over the records; these locks it lets go of.
  SPANALLOC_COLD void remake_lists(CacheNumber owner) {
    for (std::uint32_t n = 0; n < index_of(pages_.end_of_caches()); ++n) {
      if (!pages_.has_cache(CacheNumber{n})) continue;
      Lists& cache = pages_.cache(CacheNumber{n});
      const bool torn = CacheNumber{n} == owner || cache.lock.owner_died();
      pages_.set_torn(CacheNumber{n}, torn);
      if (torn) cache.forget();
    }
    for (std::uint32_t n = 1; n < index_of(pages_.end_of_spans()); ++n) {
      // Most records have never been used. Spans of one block have no thread cache. Free ones still name the
      // thread cache that they were in: whoever has claimed one and waits for this lock must not find it on
      // the lists as they were.
      if (!pages_.has_record(SpanNumber{n})) continue;
      const SpanRef span = pages_.span(SpanNumber{n});
      const SpanWord word = span->load_word();
      if (word.bits != 0 && word.owner() != kNobody && pages_.is_torn(word.owner())) relist(span);
    }
    for (std::uint32_t n = 0; n < index_of(pages_.end_of_caches()); ++n) {
      if (!pages_.has_cache(CacheNumber{n})) continue;
      if (pages_.is_torn(CacheNumber{n}) && CacheNumber{n} != owner)
        pages_.cache(CacheNumber{n}).lock.reset();
    }
    pages_.note_repair();
  }

 private:
  static constexpr std::uint32_t kNeverLooked = UINT32_MAX / 2;

  // A damaged span, which is in this state from here on, unless it is free. What is not hot is lost.
  SPANALLOC_COLD void end_lists(Lists& cache, SpanRef span, SpanState state) {
    span->free_list.store_release(no_block());
    span->rest.store_release(no_block());
    if (state != SpanState::kOwned) {
      if (span->list != ListId::kNone) unlink(cache, span);
      span->lost = true;
    }
    SpanWord before = span->load_word();
    SpanWord after{};
    do {
      if (before.state() == SpanState::kFree) {  // its claimer waits for this lock
        span->lost = false;
        return;
      }
      after = before.with_outstanding(pages_.capacity(span->class_id())).with_head(BlockOffset::kNone);
      after = after.with_state(state).with_delayed(true);  // nobody points it out
      // Release: as in collect_and_place().
    } while (!span->word.compare_exchange_weak_acq_rel(before.bits, after.bits));
    span->expect_frees(kNeverLooked);
  }

  // For every span of a thread cache whose lists were forgotten, the free ones too: links it up if it belongs
  // there. What is free in it is counted from its lists: if its owner vanished with the lock, a fold that was
  // cut short has changed the word and not the count, or neither. An empty one becomes free, on no list; of a
  // lost one nothing is known. Of the calling thread's own spans word and count are right, as it was somebody
  // else who had the lock.
  SPANALLOC_COLD void relist(SpanRef span) {
    const SpanWord word = span->load_word();
    const CacheNumber owner = word.owner();
    span->list = ListId::kNone;
    if (word.state() != SpanState::kShared || span->lost) return;
    // Where it stood follows from the event that was set for it, which is not to be touched: its owner may be
    // in the middle of a free. It will settle the span.
    pages_.unlink_purged(span, word.head());  // whoever had the lock was thinning it, perhaps
    if (pages_.is_mine(owner)) return push_delayed(pages_.cache(owner), span);
    const std::uint32_t capacity = pages_.capacity(span->class_id());
    std::uint32_t free = capacity - span->carved.load_relaxed() + pages_.purged_blocks(span) +
                         pages_.list_length(span, span->free_list.load_relaxed()) +
                         pages_.list_length(span, span->rest.load_relaxed());
    if (word.head() != BlockOffset::kNone) {
      free += pages_.list_length(span, pages_.block_at_offset(span, word.head()));
    }
    span->uncounted = false;
    // Its program has damaged it. Nobody is told: the other lists are not whole yet, and whoever came for the
    // lock may have a span in its hands.
    if (free > capacity) return lose(pages_.cache(owner), span);
    SpanWord after = word.with_outstanding(capacity - free).with_delayed(false);
    if (after.outstanding() == 0) after = after.with_state(SpanState::kFree);
    span->word.store_relaxed(after.bits);
    if (after.state() != SpanState::kFree) place(span, after);
  }
};

}  // namespace spanalloc::standard
