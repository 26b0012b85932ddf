// Repairs caches' lists after a fork, and takes damaged spans out of use.
//
// In a fork's child all threads but one have vanished, each at any step of
// span_protocol.hpp (docs/concurrency.md). The spans' words are always true. A list is true
// only while its lock's holder lives: the next thread that takes a vanished holder's lock
// makes the list anew from the words.
#pragma once

#include <cstdint>

#include "base/assert.hpp"
#include "base/compiler.hpp"
#include "standard/span_lists.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc::standard {

/// What `Pages` must offer besides:
///   CacheNumber end_of_caches(), SpanNumber end_of_spans()    numbers below these have records,
///                                                             unless
///   bool has_cache(CacheNumber), bool has_record(SpanNumber)  a foreign mapping is in their place
///   void set_torn(CacheNumber, bool), bool is_torn(CacheNumber)
///   void note_repair()                                 lists were made anew
///   bool is_mine(CacheNumber)                          the calling thread's
///   Block* block_at_offset(SpanRef, BlockOffset)
///   void unlink_purged(SpanRef, BlockOffset)           PartialPurge; also of the remote list
///   std::uint32_t purged_blocks(SpanRef)               how many are free and on no list
///   std::uint32_t list_length(SpanRef, Block*)         of a shared span; more than it has: damaged
///   [[noreturn]] void corrupted(SpanRef)               more blocks were freed than allocated
///   bool show_abandoned(SpanRef)                       abandoned_spans.hpp: show(), take(),
///   SpanRef take_abandoned(ClassId, CacheNumber),
///           take_any_abandoned()                       take_any()
///   void hide_from_owner(const Lists&, SpanRef)        the span is no longer that cache's
template <class Pages>
class SpanRepair : public SpanPlacement<Pages> {
  using Base = SpanPlacement<Pages>;

 protected:
  using Base::pages_;

 public:
  using Base::Base, Base::place, Base::push_delayed, Base::unlink;
  using typename Base::Lists;

  /// Holds the lock of a cache, whose lists are whole.
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
  void unlock_cache(Lists& cache) { cache.lock.unlock(); }

  /// Stops the use of what is free in a damaged span. The caller holds the lock of `cache`,
  /// which shares the span, or which is the calling thread's and owns it. The span's free blocks
  /// are not handed out any more, and it never becomes empty; frees into it still work. A shared
  /// span is retired: it is on no list, in forks' children, too. An owned one still serves its
  /// thread with blocks never carved and blocks that come back. A free span is left to its
  /// claimer, who checks its blocks.
  SPANALLOC_COLD void take_out_of_use(Lists& cache, SpanRef span) {
    const bool owned = span->load_word().state() == SpanState::kOwned;
    end_lists(cache, span, owned ? SpanState::kOwned : SpanState::kShared);
  }
  /// Retires a damaged span in any case, also an owned one; that is in none of its
  /// thread's places any more.
  SPANALLOC_COLD void retire(Lists& cache, SpanRef span) {
    end_lists(cache, span, SpanState::kShared);
  }
  /// Retires an owned span of a vanished thread, which was about to take or leave it, or whose
  /// lists the program has damaged. Nobody owns it from here on. It keeps its lists, whose blocks
  /// count as out, so it never becomes empty; and a child that is forked on the way finds them as
  /// they were, and does all of this again. (Others may free into the span at any moment. They may
  /// borrow what was freed, but that happens under the lock of its owner.)
  SPANALLOC_COLD void retire_for_vanished(SpanRef span) {
    const CacheGuard guard(*this, span->load_word().owner());
    span->forget_list();
    span->set_withdrawn(true);
    span->expect_frees(1);  // before others find the span shared, of which only its owner sets it
    span->word.hand_over(kNobody);
  }
  /// Takes a damaged remote list out of use; it begins with `newest`, or another thread has
  /// taken it meanwhile. Its blocks count as out from here on, and others of the span with
  /// them, so that the span never becomes empty. What its owner freed stays the owner's, who
  /// may be in the middle of a free.
  SPANALLOC_COLD void discard_remotes(SpanRef span, BlockOffset newest) {
    const auto capacity = [&] { return pages_.capacity(span->class_id()); };
    for (CacheNumber owner = span->load_word().owner();;) {
      if (owner == kNobody) return (void)span->word.drop_remotes(owner, newest, capacity);
      const CacheGuard guard(*this, owner);
      const auto [before, after, dropped] = span->word.drop_remotes(owner, newest, capacity);
      if (!dropped && before.owner() != owner) {
        owner = before.owner();
        continue;
      }
      // Claimed: its claimer waits for this lock, or has had it. Or another thread has the list.
      if (!dropped) return;
      // Its list followed from its number of free blocks.
      if (after.state() != SpanState::kShared || span->list() == ListId::kNone) return;
      Lists& cache = pages_.cache(owner);
      unlink(cache, span);
      return push_delayed(cache, span);
    }
  }

  // --- The calling thread is alone, and none of its own calls is in the middle of this cache -----

  /// Takes every free span off the lists of cache `owner`: the threads that
  /// claimed them have vanished.
  SPANALLOC_COLD void unlink_claimed(CacheNumber owner) {
    Lists& cache = pages_.cache(owner);
    CacheGuard guard(*this, owner);
    Base::for_each_listed(cache, [&](SpanRef span) {
      if (span->word.load_acquire().state() == SpanState::kFree) unlink(cache, span);
    });
  }

  /// The caller holds the lock of `owner`, whose last holder vanished. Makes the lists of
  /// `owner` anew, and of all others whose lock's holder vanished, in one pass over the records.
  /// Frees the others' locks.
  SPANALLOC_COLD void remake_lists(CacheNumber owner) {
    for (std::uint32_t n = 0; n < index_of(pages_.end_of_caches()); ++n) {
      if (!pages_.has_cache(CacheNumber{n})) continue;
      Lists& cache = pages_.cache(CacheNumber{n});
      const bool torn = CacheNumber{n} == owner || cache.lock.owner_died();
      pages_.set_torn(CacheNumber{n}, torn);
      if (torn) cache.forget();
    }
    for (std::uint32_t n = 1; n < index_of(pages_.end_of_spans()); ++n) {
      // Most records have never been used. Spans of one block have no cache. A free span
      // still names the cache that it was in: a claimer that waits for this lock must not
      // find it on the old lists.
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

 protected:
  // How many blocks are free in a span whose lists nobody changes: on these, on a remote list that
  // begins so, or never carved, or purged. More than it has: the program has damaged it.
  SPANALLOC_COLD std::uint32_t count_free(SpanRef span, BlockOffset remotes) const {
    std::uint32_t free = pages_.capacity(span->class_id()) - span->carved() +
                         pages_.purged_blocks(span) +
                         pages_.list_length(span, span->free_list().first()) +
                         pages_.list_length(span, span->rest().first());
    if (remotes != BlockOffset::kNone)
      free += pages_.list_length(span, pages_.block_at_offset(span, remotes));
    return free;
  }

 private:
  static constexpr std::uint32_t kNeverLooked = UINT32_MAX / 2;

  // Ends a damaged span's lists and gives it this state, unless it is free.
  // Not owned, it is retired.
  SPANALLOC_COLD void end_lists(Lists& cache, SpanRef span, SpanState state) {
    span->free_list().clear();
    span->rest().clear();
    if (state != SpanState::kOwned) {
      if (span->list() != ListId::kNone) unlink(cache, span);
      span->set_withdrawn(true);
    }
    const CacheNumber owner = span->load_word().owner();
    if (span->word.retire(owner, state, pages_.capacity(span->class_id()))) {
      span->expect_frees(kNeverLooked);
    } else {
      span->set_withdrawn(false);  // its claimer waits for this lock
    }
  }

  // For every span of a cache whose lists were forgotten, free ones too: puts it on its list, if it
  // belongs on one. Counts its free blocks from its lists: if its owner vanished with the lock, an
  // interrupted collection has changed the word and not yet the count, or neither. An empty span
  // becomes free and is on no list; of a retired one nothing is known. The calling thread's own
  // spans have the right word and count, because another thread held the lock.
  SPANALLOC_COLD void relist(SpanRef span) {
    const SpanWord word = span->load_word();
    const CacheNumber owner = word.owner();
    span->forget_list();
    if (word.state() != SpanState::kShared || span->is_withdrawn()) return;
    // Its list followed from the event that was set for the span. That must stay, because the owner
    // may be in the middle of a free. The owner will collect the span. The lock's last holder may
    // have been purging its pages
    pages_.unlink_purged(span, word.head());
    if (pages_.is_mine(owner)) return push_delayed(pages_.cache(owner), span);
    const std::uint32_t capacity = pages_.capacity(span->class_id());
    const std::uint32_t free = count_free(span, word.head());
    // The program has damaged the span. There is no report, because the other lists are not whole
    // yet, and the caller may have a span in its hands.
    if (free > capacity) return retire(pages_.cache(owner), span);
    SpanWord after = word.with_outstanding(capacity - free).with_delayed(false);
    if (after.outstanding() == 0) after = after.with_state(SpanState::kFree);
    span->word.set(after);
    if (after.state() != SpanState::kFree) place(span, after);
  }
};

}  // namespace spanalloc::standard
