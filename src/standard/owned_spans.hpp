// The spans that a thread owns: the current span of each class, which malloc takes from, and the
// used-up ones (used_up_spans.hpp). This decides how long it keeps them.
//
//   none -> current              a search has found one
//   current -> used up           it has no free block left, and another one is needed
//   used up -> current           enough of its blocks are free again
//   used up, current -> shared   there is no room for it; or the thread may be giving it up: most
//                                of it is free, or it has rested (current_ages.hpp)
//   current -> abandoned         the thread ends
//
// Nobody but its thread can give back anything of an owned span, and the thread may be about to
// wait for long. Shared, a span serves its thread as well, and others can take it with its last
// block, or purge its pages.
#pragma once

#include "standard/current_ages.hpp"
#include "standard/give_up_delay.hpp"
#include "standard/magazines.hpp"
#include "standard/span_blocks.hpp"
#include "standard/used_up_spans.hpp"

namespace spanalloc::standard {

/// Of one cache record. `thread`, its thread cache, is the only one who calls functions that take
/// it, and has a pointer to each current span, too. Zero-initialisable. The child of a fork finds
/// each owned span of a vanished thread in at least one place here, whatever step the thread was
/// at.
template <class Config>
class OwnedSpans {
  using Classes = SizeClasses<Config>;
  using Blocks = SpanBlocks<Config>;

 public:
  using UsedUp = UsedUpSpans<Config>;

  // --- Any thread may ask: a hint, but for the record's thread and a vanished thread's record ----

  /// kNone: the class has none.
  SpanNumber current(ClassId c) const { return current_[index_of(c)].load_relaxed(); }
  const UsedUp& used_up() const { return used_up_; }
  bool has(SpanNumber span, ClassId c) const { return current(c) == span || used_up_.has(span); }
  /// f(SpanNumber) for each place, kNone included; a span may be in two.
  template <class F>
  void for_each_place(F&& f) const {
    for (unsigned i = 0; i < UsedUp::kPlaces; ++i) f(used_up_.span(i));
    for (const Atomic<SpanNumber>& span : current_) f(span.load_relaxed());
  }
  bool are_none() const {
    bool none = true;
    for_each_place([&](SpanNumber span) { none = none && span == SpanNumber::kNone; });
    return none;
  }
  GiveUpDelay<Config>& give_up_delay() { return delay_; }

  // --- The current span --------------------------------------------------------------------------

  bool has_had(ClassId c) const { return (classes_[index_of(c) / 64] & bit_of(c)) != 0; }

  void make_current(auto& thread, ClassId c, SpanRef span) {
    // One current span a class
    SPANALLOC_ASSERT(current(c) == SpanNumber::kNone);
    SPANALLOC_ASSERT(thread.is_owned_here(span->load_word()));
    set_current(thread, c, span);
    classes_[index_of(c) / 64] |= bit_of(c);
    thread.pages->maps.show(*thread.map, span, *span.record);
  }

  /// A search has found the class's next span. `nearly_full`: half or more of its blocks are out.
  void note_found(auto& thread, ClassId c, bool nearly_full) {
    auto& magazines = thread.cache->magazines;
    if (c < magazines.kFirst && SPANALLOC_LIKELY(!nearly_full)) return;
    if (c < magazines.kFirst) return make_room(thread, c);
    magazines.note_refill(thread, c, nearly_full);
  }
  /// A round of the timed work ends: what there is no room for any more is shared.
  SPANALLOC_COLD void pass_round(auto& thread) {
    used_up_.lose_room();
    if (thread.pages->arena.is_short()) used_up_.lose_all_room();
    while (used_up_.is_beyond_room()) share_used_up(thread, used_up_.oldest());
  }

  /// The class needs another span.
  void note_search(ClassId c) {
    if (delay_.has_given_up(c)) delay_.needs_again(c, os::now_ms());
  }

  /// The current span becomes a used-up one, or is shared if there is no room for such large ones.
  void use_up(auto& thread, ClassId c, SpanRef span) {
    if (!UsedUp::fits_at_all(c) || thread.exited) return share_current(thread, c, span, 0);
    while (!used_up_.fits(c)) share_used_up(thread, used_up_.oldest());
    join_used_up(c, span);
    if (SPANALLOC_UNLIKELY(thread.cache->magazines.are_open())) show_alone(thread, c, {});
    leave_current(thread, c);
  }

  // --- Used-up spans, of which blocks are free again ---------------------------------------------

  /// If enough blocks of a used-up span are free again, it changes places with the current span, if
  /// there is one, which has nothing left for the class's empty list.
  SPANALLOC_INLINE bool take_ready(auto& thread, ClassId c) {
    if (SPANALLOC_LIKELY(!used_up_.has_ready())) return false;
    const unsigned place = used_up_.any_ready(c);
    if (place == UsedUp::kNoPlace) return false;
    const SpanRef span = thread.pages->span(used_up_.span(place));
    take_used_up(thread, c, place, span, is_nearly_full(span, c, Classes::info(c)));
    return true;
  }
  /// Makes a used-up span of the class current if other threads have freed enough of it.
  SPANALLOC_INLINE bool take_remotely_ready(auto& thread, ClassId c) {
    const unsigned place = used_up_.oldest_of(c);
    if (place == UsedUp::kNoPlace) return false;
    const SpanRef span = thread.pages->span(used_up_.span(place));
    const ClassInfo& info = Classes::info(c);
    const bool nearly_full = is_nearly_full(span, c, info);
    if (!span->free_list().is_empty() || !Blocks::take_remotes(thread, span, info.enough_free))
      return false;
    take_used_up(thread, c, place, span, nearly_full);
    return true;
  }
  /// When memory is out: makes a used-up span of the class current that has any free block.
  SPANALLOC_COLD bool take_any(auto& thread, ClassId c) {
    bool found = false;
    used_up_.for_each([&](unsigned i) {
      if (found || used_up_.class_of(i) != c) return;
      const SpanRef span = thread.pages->span(used_up_.span(i));
      found = !span->free_list().is_empty() || Blocks::take_remotes(thread, span, 1);
      if (found) take_used_up(thread, c, i, span, false);
    });
    return found;
  }

  // --- When spans are shared ---------------------------------------------------------------------

  /// The thread's free into an owned span was an event.
  void look_at(auto& thread, SpanRef span) {
    const unsigned place = used_up_.place_of(span);
    return place == UsedUp::kNoPlace ? look_at_current(thread, span)
                                     : look_at_used_up(thread, span, place);
  }

  /// Does a part of a round over the current spans. Shares one span at most, because that walks its
  /// list.
  [[gnu::noinline]] void share_unused(auto& thread, std::uint64_t now) {
    SPANALLOC_ASSERT(thread.has_nothing_in_hand());
    if (SPANALLOC_UNLIKELY(thread.exited) || !ages_.is_due(now)) return;
    for (unsigned looks = 0; looks < Config::kCurrentSpansPerLook;) {
      const ClassId c = ages_.next();
      if (c == ClassId::kNone) return;
      const SpanRef span = thread.current_span(c);
      if (!span) continue;
      ++looks;
      const auto hand = thread.hold();
      if (ages_.is_unused(c, *span.record))
        return share_current(thread, c, span, Blocks::join_and_count_free(thread, span));
    }
  }

  /// When memory is out: shares the owned spans that are empty. False: there was none.
  SPANALLOC_COLD bool share_empty(auto& thread) {
    bool any = false;
    for_each_current(thread, [&](ClassId c, SpanRef span) {
      const std::uint32_t free_blocks = Blocks::join_and_count_free(thread, span);
      if (span->load_word().outstanding() != free_blocks) return;
      share_current(thread, c, span, free_blocks);
      any = true;
    });
    used_up_.for_each([&](unsigned i) {
      const auto hand = thread.hold();
      const SpanRef span = thread.pages->span(used_up_.span(i));
      if (span->load_word().outstanding() != span->uncollected()) return;
      share_used_up(thread, i);
      any = true;
    });
    return any;
  }

  SPANALLOC_COLD void share_all(auto& thread) {
    for_each_current(thread, [&](ClassId c, SpanRef span) {
      share_current(thread, c, span, Blocks::join_and_count_free(thread, span));
    });
    share_all_used_up(thread);
  }

  // --- The thread's end --------------------------------------------------------------------------

  /// Shares all spans that have no free block, but for those that others have freed.
  void share_without_blocks(auto& thread) {
    for_each_current(thread, [&](ClassId c, SpanRef span) {
      if (span->free_list().is_empty() && Blocks::is_all_on_list(span))
        share_current(thread, c, span, 0);
    });
    share_all_used_up(thread);
  }
  /// Gives up the current spans, which are all that is left, to `abandon(span)`. The next thread of
  /// this record has other habits.
  template <class Abandon>
  void abandon_all(auto& thread, Abandon&& abandon) {
    for_each_current(thread, [&](ClassId c, SpanRef span) {
      leave_current(thread, c);
      abandon(span);
    });
    for (std::uint64_t& classes : classes_) classes = 0;
    used_up_.lose_all_room();
    delay_.forget();
  }

  /// For a record that no thread has: its spans have been seen to.
  void forget() {
    used_up_.forget();
    delay_.forget();
    ages_.forget();
    for (Atomic<SpanNumber>& span : current_) span.store_relaxed(SpanNumber::kNone);
    for (std::uint64_t& word : classes_) word = 0;
  }

 private:
  static std::uint64_t bit_of(ClassId c) { return std::uint64_t{1} << index_of(c) % 64; }

  template <class F>
  void for_each_current(auto& thread, F&& f) {
    for (unsigned word = 0; word < std::size(classes_); ++word) {
      for (std::uint64_t classes = classes_[word]; classes != 0; classes &= classes - 1) {
        const ClassId c{word * 64 + static_cast<unsigned>(std::countr_zero(classes))};
        const auto hand = thread.hold();
        if (const SpanRef span = thread.current_span(c)) f(c, span);
      }
    }
  }

  // Owned -> shared, or to the pool if it is empty: `free_blocks` of the span's blocks are on its
  // list or were never carved. leave(): takes it out of its place.
  template <class Leave>
  static void share(auto& thread, SpanRef span, std::uint32_t free_blocks, Leave&& leave) {
    SPANALLOC_ASSERT(thread.pages->is_mine(thread.cache->number) &&
                     thread.is_owned_here(span->load_word()));
    const Freed now =
        thread.heap->protocol().owned_to_shared(span, thread.cache->number, free_blocks);
    leave();  // first: this may end in a report
    if (now == Freed::kEmptied) thread.heap->put_in_pool(span, thread.shard());
    if (SPANALLOC_UNLIKELY(now == Freed::kRefused)) thread.pages->corrupted(span);
  }

  // In the record first, where a fork's child finds it.
  SPANALLOC_INLINE void set_current(auto& thread, ClassId c, SpanRef span) {
    current_[index_of(c)].store_release(span.number);
    thread.current[index_of(c)] = span.record;
  }
  // The class has no current span until the next make_current().
  void leave_current(auto& thread, ClassId c) {
    SPANALLOC_ASSERT(current(c) != SpanNumber::kNone);
    thread.current[index_of(c)] = &kNoTarget;
    // Release: a fork's child that finds no span here finds it used up, or shared.
    current_[index_of(c)].store_release(SpanNumber::kNone);
  }
  void share_current(auto& thread, ClassId c, SpanRef span, std::uint32_t free_blocks) {
    if (SPANALLOC_UNLIKELY(thread.cache->magazines.are_open())) show_alone(thread, c, {});
    leave_current(thread, c);
    share(thread, span, free_blocks, [] {});
  }

  // Whether half or more of a used-up span's blocks are out; only magazines ask.
  SPANALLOC_INLINE static bool is_nearly_full(SpanRef span, ClassId c, const ClassInfo& info) {
    if (c < Magazines<Config>::kFirst) return false;
    if (span->uncollected() * 2 > info.blocks) return false;  // mostly that much
    return (span->load_word().outstanding() - span->uncollected()) * 2 >= info.blocks;
  }
  [[gnu::noinline]] void take_used_up(auto& thread, ClassId c, unsigned place, SpanRef span,
                                      bool nearly_full) {
    SPANALLOC_ASSERT(thread.is_owned_here(span->load_word()) && !span->free_list().is_empty());
    auto& magazines = thread.cache->magazines;
    magazines.note_refill(thread, c, nearly_full);
    if (const SpanRef empty = thread.current_span(c)) join_used_up(c, empty);
    if (SPANALLOC_UNLIKELY(magazines.are_open())) show_alone(thread, c, span);
    set_current(thread, c, span);
    span->forget_watch();
    span->expect_first_clock();
    used_up_.leave(place);
  }
  // If the class has a magazine, frees are to find it: of the class's spans the map shows the
  // current one alone, `next` from now on.
  [[gnu::noinline]] static void show_alone(auto& thread, ClassId c, SpanRef next) {
    if (!thread.cache->magazines.is_open(c)) return;
    auto& maps = thread.pages->maps;
    if (const SpanRef span = thread.current_span(c)) maps.hide(*thread.map, span, *span.record);
    if (next) maps.show(*thread.map, next, *next.record);
  }
  // Where memory is short others may need what is free in the spans.
  SPANALLOC_COLD void make_room(auto& thread, ClassId c) {
    const std::size_t threads = max_of(thread.heap->live_caches.load_relaxed(), 1);
    const bool may_have = thread.pages->may_open_magazines && !thread.pages->arena.is_short();
    used_up_.make_room(c, may_have ? Config::kAllMoreUsedUpBytes / threads : 0,
                       thread.cache->searches);
  }
  // From here on the owner's frees into the span are counted: the one that makes it ready is an
  // event.
  SPANALLOC_INLINE void join_used_up(ClassId c, SpanRef span) {
    SPANALLOC_ASSERT(span->free_list().is_empty() && span->rest().is_empty());
    span->expect_frees(Classes::info(c).enough_free);
    used_up_.join(span, c);
  }
  void share_used_up(auto& thread, unsigned place) {
    const SpanRef span = thread.pages->span(used_up_.span(place));
    share(thread, span, span->uncollected(), [&] { used_up_.leave(place); });
  }
  void share_all_used_up(auto& thread) {
    while (!used_up_.is_empty()) share_used_up(thread, used_up_.oldest());
  }

  // So many blocks of a current span are free again that its thread may be giving it up. It shares
  // the span if at most half of the carved blocks are out. If more are out, it looks once or twice
  // more, after as many frees as would bring it there if no block were handed out meanwhile, and
  // then leaves the span alone.
  [[gnu::noinline]] void look_at_current(auto& thread, SpanRef span) {
    const ClassId c = span->class_id();
    if (span->is_for_clock()) return pass_clock(thread, c, span);
    const auto hand = thread.hold();
    const std::uint32_t looks = span->looks();
    span->expect_first_clock();
    if (current(c) != span.number || thread.exited) return;
    // (A thread that gives no spans up takes few other slow paths: it reads the clock here soon.)
    if (delay_.stays(c)) return span->expect_soon_clock();
    const auto inside = thread.enter();
    const std::uint32_t free_blocks = Blocks::join_and_count_free(thread, span);
    const std::uint32_t out = span->load_word().outstanding() - free_blocks;
    const std::uint32_t few = span->carved() / 2;
    if (out <= few) {
      delay_.gave_up(c, os::now_ms());
      share_current(thread, c, span, free_blocks);
    } else if (looks < Config::kLooksAtCurrent) {
      span->expect_emptying(out - few, looks + 1);
    }
  }

  // After the work the span may be another thread's: it is asked only if it is current still.
  static void pass_clock(auto& thread, ClassId c, SpanRef span) {
    span->expect_next_clock();
    const bool soon = thread.cache->timed_work.run(thread);
    if (soon && thread.cache->owned.current(c) == span.number) span->expect_soon_clock();
  }

  // An eighth of a used-up span's blocks are free again: it is ready. If the span has grown since
  // it was last shared or used up, or is one of more than threads always have, of a class that
  // makes such room, its thread may be giving it up: it looks again when three quarters are free,
  // and then shares the span. (Otherwise the count goes on below 0; uncollected() is right modulo
  // 2^32.)
  [[gnu::noinline]] void look_at_used_up(auto& thread, SpanRef span, unsigned place) {
    const auto hand = thread.hold();
    const ClassId c = span->class_id();
    const ClassInfo& info = Classes::info(c);
    const bool many = c < thread.cache->magazines.kFirst && used_up_.is_among_more();
    if (!span->has_grown() && !many) return used_up_.mark_ready(place);
    if (span->uncollected() == info.enough_free) {
      span->expect_more_frees(info.blocks * 5 / 8);
      return used_up_.mark_ready(place);
    }
    if (!many && delay_.stays(c)) return;
    const auto inside = thread.enter();
    if (!many) delay_.gave_up(c, os::now_ms());
    share_used_up(thread, place);
  }

  Atomic<SpanNumber> current_[Classes::kSmallClasses];
  std::uint64_t classes_[(Classes::kSmallClasses + 63) / 64] =
      {};  // bit c: c may have a current one
  UsedUp used_up_;
  GiveUpDelay<Config> delay_;
  CurrentAges<Config> ages_;
};

}  // namespace spanalloc::standard
