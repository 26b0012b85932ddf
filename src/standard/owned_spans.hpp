// The spans that a thread owns, and which of them malloc takes from.
//
// Of each class one span is *current*: malloc takes from its list. The block that a thread frees
// last is the next one of its class that it gets, whichever of its spans it lies in, as soon as its
// spans are full: the first free into a span without a free block makes that span the current one.
// So a program that replaces its blocks at random gets each new block where an old one was: the
// block is in the cache, and the order in which blocks lie in memory stays.
//
//   current   malloc takes from it. Used up, it has no free block left
//   away      it has no free block but what others have freed, and is not current. In the thread's
//             queue (away_spans.hpp)
//   ready     it has a free block, and is not current: in the list of its class, or next_
//
//   none -> current             a search has found one (Refill::find_span); or a free into one that
//                               was nobody's has adopted it (FreeMiss::adopt)
//   current -> away             it is used up, and another span becomes current
//   away -> current             the thread frees into it; or it looks through its queue, and others
//                               have freed enough of it
//   current -> ready            the thread frees into an away span, which becomes current
//   ready -> current            the current one is used up: first next_ comes again, which malloc
//                               took from before such frees; then the one that has been ready for
//                               the longest, because it may have the most free blocks
//   current, ready -> nobody's  it rests (current_ages.hpp), or is nearly empty; or there are too
//                               many ready ones: then it may have more blocks out
//   away -> nobody's            others have freed into it, and the thread looks; or it has too many
//   away -> free                nothing of it is out: any thread claims it
//   any -> nobody's             the thread ends
//
// A thread that has allocated little in a class, and is not the only one, has no span there: it is
// lent blocks of a span that is nobody's and stays so (Refill::take_lent). So many threads that
// allocate some blocks of each size, and then wait, do not each keep a span of each size.
//
// Only its thread can give back anything of a current or ready span, and the thread may be about to
// wait for long. So ready spans beyond some bytes are given up when few of their blocks are out,
// unless the class has needed spans soon after such (give_up_delay.hpp), or with time. An away span
// any thread may claim that frees its last block.
#pragma once

#include "standard/away_spans.hpp"
#include "standard/current_ages.hpp"
#include "standard/give_up_delay.hpp"
#include "standard/lending.hpp"
#include "standard/span_blocks.hpp"

namespace spanalloc::standard {

/// Of one cache record. `thread`, its thread cache, is the only one who calls functions that take
/// it; it has the pointers to the current spans (ThreadState::current). Zero-initialisable. The
/// child of a fork finds a vanished thread's spans by their words.
template <class Config>
class OwnedSpans {
  using Classes = SizeClasses<Config>;
  using Blocks = SpanBlocks<Config>;

 public:
  GiveUpDelay<Config>& give_up_delay() { return delay_; }
  Lending<Config>& lending() { return lending_; }
  bool are_none() const { return of_currents_ == 0; }
  /// Whether a span of the thread's own is in one of its places.
  bool has(auto& thread, SpanRef span) const {
    const ClassId c = span->own_class();
    return thread.current[index_of(c)] == span.record || next_[index_of(c)] == span.record ||
           span->is_ready() || span->stock() == Stock::kAway;
  }

  // --- What malloc goes on with ------------------------------------------------------------------

  /// The span is the thread's, from now on; the class has no current one that has blocks.
  void make_current(auto& thread, ClassId c, SpanRef span) {
    SPANALLOC_ASSERT(thread.is_owned_here(span->load_word()));
    if (!has_had(c)) {
      of_currents_ += Classes::info(c).slices;
      look_at_parts(thread);
    }
    classes_[index_of(c) / 64] |= bit_of(c);
    thread.pages->maps.show(*thread.map, span, *span.record);
    // If the span has had another owner, nobody knows yet how many blocks the thread takes. (Else
    // this is set again with each page of blocks.)
    const std::size_t frees = Config::kLittleForCurrent / Classes::info(c).block_size;
    span->expect_emptying(static_cast<std::uint32_t>(max_of(frees, 1)), 0);
    go_on_with(thread, c, *span.record);
  }
  /// Whether the thread is to allocate from spans of its own in the class: it has had one, or has
  /// earned one; or each thread may have such a span beside what this one has.
  SPANALLOC_INLINE bool is_to_own(auto& thread, ClassId c) {
    if (SPANALLOC_LIKELY(has_had(c)) || lending_.has_earned_span(c)) return true;
    return (of_currents_ + Classes::info(c).slices) * thread.heap->live_caches.load_relaxed() <=
           Config::kAllOwnedBytes >> Config::kSliceBits;
  }
  /// Whether a free into a span that is nobody's, of which `out` blocks are out, is to make it the
  /// thread's: hardly a block of it is free; and the thread allocates from spans of its own in the
  /// class, and has no free block there.
  bool is_to_adopt(auto& thread, ClassId c, std::uint32_t out) const {
    const ClassInfo& info = Classes::info(c);
    return has_had(c) && out > info.blocks - info.enough_free &&
           thread.current[index_of(c)]->is_used_up() && next_[index_of(c)] == nullptr &&
           newest_[index_of(c)] == SpanNumber::kNone;
  }
  /// A search begins.
  void note_search(ClassId c) {
    if (delay_.has_given_up(c)) delay_.needs_again(c, os::now_ms());
  }
  /// Makes a ready span current. The class has none, or one that is used up. False: none is ready.
  [[gnu::noinline]] bool take_ready(auto& thread, ClassId c) {
    if (Span* const next = next_[index_of(c)]; next != nullptr) {
      next_[index_of(c)] = nullptr;
      go_on_with(thread, c, *next);
      return true;
    }
    const SpanNumber oldest = oldest_[index_of(c)];
    if (oldest == SpanNumber::kNone) return false;
    const SpanRef span = thread.pages->span(oldest);
    leave_ready(thread, c, span);
    go_on_with(thread, c, *span.record);
    return true;
  }
  /// Looks at some away spans of the class, in turn: makes one current of which others have freed
  /// `at_least` blocks.
  [[gnu::noinline]] bool take_away(auto& thread, ClassId c, std::uint32_t at_least,
                                   std::uint32_t looks) {
    auto& pages = *thread.pages;
    SpanRef first;
    for (; looks != 0; --looks) {
      const SpanRef span = away_.take_first(pages, index_of(c));
      if (!span) return false;
      if (!is_away(thread, c, span)) {
        leave_entry(thread, c, span);
        continue;
      }
      if (Blocks::take_remotes(thread, span, at_least)) {
        drop(c, span);
        span->set_stock(Stock::kNone);
        span->expect_first_clock();
        go_on_with(thread, c, *span.record);
        return true;
      }
      away_.put_back(pages, index_of(c), span);
      if (!first) {
        first = span;
      } else if (span == first) {
        return false;
      }
    }
    return false;
  }

  // --- The thread's frees ------------------------------------------------------------------------

  /// Its free into `span`, which was used up or away, has made that current in the place of `last`,
  /// which is used up.
  SPANALLOC_INLINE void put_away(auto& thread, FreeTarget* last) {
    Span& span = *static_cast<Span*>(last);
    SPANALLOC_ASSERT(span.stock() == Stock::kUsedUp && span.free_list().is_empty());
    // First: from set_away() on the span may be another thread's.
    if (SPANALLOC_UNLIKELY(!span.is_queued()) && !queue_away(thread, span)) {
      span.set_away();
      return leave_away(thread, thread.pages->ref_of(span));
    }
    if (SPANALLOC_UNLIKELY(!go_away(span))) claim_own(thread, span);
  }
  /// The same of a span that is in the thread's queue. False: others have freed all of it before
  /// they could see that it is away; claim_own() is to follow. (Another thread's last free may not
  /// see that yet, and this load not yet that free. Then a decay epoch claims the span.)
  SPANALLOC_INLINE static bool go_away(Span& span) {
    SPANALLOC_ASSERT(span.away_link.load_relaxed() != 0);
    span.set_away();
    return span.load_word().outstanding() != 0;
  }
  SPANALLOC_COLD static void claim_own(auto& thread, Span& record) {
    const auto inside = thread.enter();
    const SpanRef span = thread.pages->ref_of(record);
    if (thread.heap->protocol().claim_if_away(span)) thread.heap->put_in_pool(span, thread.shard());
  }
  /// `span` has become current in the place of `last`, which may be used up or not, or none.
  [[gnu::noinline]] void displace(auto& thread, Span& span, FreeTarget* last) {
    if (last == &span || last->stock() == Stock::kAway || last->stock() == Stock::kBatch) return;
    if (last->stock() == Stock::kUsedUp) return put_away(thread, last);
    const ClassId c = span.own_class();
    if (next_[index_of(c)] == nullptr) {
      next_[index_of(c)] = static_cast<Span*>(last);
    } else {
      make_ready(thread, c, thread.pages->ref_of(*static_cast<Span*>(last)));
    }
  }
  /// Its free into another owned span was an event: time to look at the clock, or whether the span
  /// is empty.
  [[gnu::noinline]] void look_at(auto& thread, SpanRef span) {
    const ClassId c = span->own_class();
    if (span->is_for_clock()) {
      span->expect_next_clock();
      // (The work may give the span up.)
      if (thread.cache->timed_work.run(thread) && thread.current_span(c) == span)
        span->expect_soon_clock();
      return;
    }
    const std::uint32_t looks = span->looks();
    span->expect_first_clock();
    if (may_stay(thread) && delay_.stays(c)) return thread.cache->timed_work.count_stay(thread);
    const auto hand = thread.take_in_hand();
    const auto inside = thread.enter();
    const std::uint32_t free_blocks = Blocks::count_free(thread, span);
    const std::uint32_t out = span->own_out(span->load_word().outstanding() - free_blocks);
    const std::uint32_t all = span->own_out(span->carved());
    const std::uint32_t few = all < 4 ? 1 : all / 4;
    if (out <= few) {
      delay_.gave_up(c, os::now_ms());
      give_up(thread, c, span, free_blocks);
    } else if (looks < Config::kLooksAtCurrent) {
      span->expect_emptying(out - few, looks + 1);
    }
  }

  // --- When spans are given up -------------------------------------------------------------------

  /// Does a part of a round over the classes. Gives up one span at most, because that walks its
  /// list; or some of too many ready ones, as long as there are any to be given up in this round.
  [[gnu::noinline]] void give_up_unused(auto& thread, std::uint64_t now) {
    SPANALLOC_ASSERT(thread.has_nothing_in_hand());
    look_at_parts(thread);
    if (ages_.begins(now)) surplus_to_go_ = surplus() / Config::kRoundsOfSurplus + 1;
    if (SPANALLOC_UNLIKELY(has_too_many_ready()) &&
        (surplus_to_go_ != 0 || thread.pages->arena.is_short())) {
      return give_up_ready(thread);
    }
    if (!ages_.goes_on()) return;
    for (unsigned looks = 0; looks < Config::kCurrentSpansPerLook;) {
      const ClassId c = ages_.next();
      if (c == ClassId::kNone) return;
      if (!has_had(c)) continue;
      ++looks;
      leave_freed_into(thread, c, Config::kAwayPerSearch);
      const auto hand = thread.take_in_hand();
      SpanRef span = thread.current_span(c);
      if (!span || !ages_.is_unused(c, *span.record)) span = oldest_ready(thread, c);
      if (span) return give_up(thread, c, span);
    }
  }
  /// When memory is out: gives up the spans that are empty. False: there was none.
  SPANALLOC_COLD bool give_up_empty(auto& thread) {
    bool any = false;
    for_each(thread, [&](ClassId c, SpanRef span) {
      const std::uint32_t free_blocks = count_free(thread, span);
      if (span->load_word().outstanding() != free_blocks) return;
      give_up(thread, c, span, free_blocks);
      any = true;
    });
    return any;
  }
  /// Gives up all spans that have a free block.
  SPANALLOC_COLD void give_all_up(auto& thread) {
    for_each(thread, [&](ClassId c, SpanRef span) { give_up(thread, c, span); });
    for_each_class([&](ClassId c) { leave_freed_into(thread, c, UINT32_MAX); });
  }
  /// A thread that is not alone has a bounded part of what all have away: for each span that it
  /// gets, the ones that went away first become nobody's.
  void bound_away(auto& thread, ClassId c) {
    for (unsigned i = 0; i < Config::kLeftPerSearch && away_slices_ > most_away_; ++i) {
      const SpanRef span = away_.take_first(*thread.pages, index_of(c));
      if (!span) return;
      leave_entry(thread, c, span);
    }
  }

  /// The thread ends. Gives current spans that have free blocks to `abandon(span)`, as they are.
  /// The next thread of this record has other habits.
  template <class Abandon>
  void end(auto& thread, Abandon&& abandon) {
    for_each_class([&](ClassId c) {
      for (SpanRef span; (span = away_.take_first(*thread.pages, index_of(c)));)
        leave_entry(thread, c, span);
    });
    for_each(thread, [&](ClassId c, SpanRef span) {
      if (span->is_used_up() || thread.current[index_of(c)] != span.record)
        return give_up(thread, c, span);
      leave_current(thread, c);
      abandon(span);
    });
    forget_habits();
  }
  /// For a record that no thread has: its spans have been seen to.
  void forget() {
    away_.forget();
    for (Span*& next : next_) next = nullptr;
    for (SpanNumber& newest : newest_) newest = SpanNumber::kNone;
    for (SpanNumber& oldest : oldest_) oldest = SpanNumber::kNone;
    ready_slices_ = away_slices_ = surplus_to_go_ = 0;
    ages_.forget();
    forget_habits();
  }
  // --- In a fork's child -------------------------------------------------------------------------

  /// No span has a mark: the queue of the thread that is there is made anew.
  void forget_away() {
    away_.forget();
    away_slices_ = 0;
  }
  void recover_away(auto& pages, CacheNumber number, SpanRef span) {
    away_.push(pages, index_of(span->own_class()), span, number);
    span->set_queued(true);
    away_slices_ += Classes::info(span->own_class()).slices;
  }
  /// Of a vanished thread: its queue is whole, or was forgotten.
  void drop_away(auto& pages) {
    for_each_class([&](ClassId c) {
      for (SpanRef span; (span = away_.take_first(pages, index_of(c)));)
        AwaySpans<Classes::kSmallClasses>::drop(span);
    });
  }

 private:
  static std::uint64_t bit_of(ClassId c) { return std::uint64_t{1} << index_of(c) % 64; }
  void forget_habits() {
    for (std::uint64_t& word : classes_) word = 0;
    lending_.forget();
    of_currents_ = 0;
    delay_.forget();
  }
  bool has_had(ClassId c) const { return (classes_[index_of(c) / 64] & bit_of(c)) != 0; }

  template <class F>
  void for_each_class(F&& f) {
    for (unsigned word = 0; word < std::size(classes_); ++word) {
      for (std::uint64_t classes = classes_[word]; classes != 0; classes &= classes - 1)
        f(ClassId{word * 64 + static_cast<unsigned>(std::countr_zero(classes))});
    }
  }
  /// f(ClassId, SpanRef) for each current and ready span, which may leave; the thread has it in
  /// hand.
  template <class F>
  void for_each(auto& thread, F&& f) {
    for_each_class([&](ClassId c) {
      const auto visit = [&](SpanRef span) {
        const auto hand = thread.take_in_hand();
        f(c, span);
      };
      for (SpanNumber number = newest_[index_of(c)]; number != SpanNumber::kNone;) {
        const SpanRef span = thread.pages->span(number);
        number = span->next();
        visit(span);
      }
      if (Span* const next = next_[index_of(c)]; next != nullptr)
        visit(thread.pages->ref_of(*next));
      if (const SpanRef span = thread.current_span(c)) visit(span);
    });
  }

  // --- Ready spans -------------------------------------------------------------------------------

  // It was current, has a free block, and is in no place.
  SPANALLOC_INLINE void make_ready(auto& thread, ClassId c, SpanRef span) {
    const SpanNumber older = newest_[index_of(c)];
    if (older == SpanNumber::kNone) {
      oldest_[index_of(c)] = span.number;
    } else {
      thread.pages->span(older)->set_ready(span.number);
    }
    span->set_next(older);
    span->set_ready(SpanNumber::kNone);
    newest_[index_of(c)] = span.number;
    ready_slices_ += Classes::info(c).slices;
    if (SPANALLOC_UNLIKELY(has_too_many_ready())) bound_ready(thread, c, span);
  }
  // In slices.
  std::size_t surplus() const {
    const std::size_t most = of_currents_ + most_ready_;
    return ready_slices_ - min_of(ready_slices_, most);
  }
  bool has_too_many_ready() const { return ready_slices_ > of_currents_ + most_ready_; }
  // Whether a span that the class needs soon may stay, even if it is empty.
  bool may_stay(auto& thread) const {
    return !has_too_many_ready() ||
           (ready_slices_ <= of_currents_ + most_staying_ && !thread.pages->arena.is_short());
  }
  // `newest` is one of too many. As long as the thread goes on freeing, its frees into its own
  // spans are short: the span stays until few of its blocks are out, if it counts its frees, or a
  // round comes to it; or longer, if the class needs it soon.
  [[gnu::noinline]] void bound_ready(auto& thread, ClassId c, SpanRef newest) {
    const bool waits = ready_slices_ <= most_away_ && !thread.pages->arena.is_short();
    if (waits && newest->expect_few_out(Classes::info(c).blocks / 8)) return;
    if (may_stay(thread) && delay_.stays(c)) return;
    const auto inside = thread.enter();
    const auto hand = thread.take_in_hand();
    if (waits) delay_.gave_up(c, os::now_ms());
    give_up(thread, c, waits ? newest : oldest_ready(thread, c));
  }
  // Gives up ready spans, but for the newest of each class, while there are too many.
  [[gnu::noinline]] void give_up_ready(auto& thread) {
    std::uint32_t cost = 0;
    for_each_class([&](ClassId c) {
      while (cost < Config::kReadyPerLook && has_too_many_ready()) {
        const SpanNumber oldest = oldest_[index_of(c)];
        if (oldest == newest_[index_of(c)]) return;
        cost += Config::kCostOfGivingUp + Classes::info(c).blocks;
        surplus_to_go_ -= min_of(surplus_to_go_, Classes::info(c).slices);
        const auto hand = thread.take_in_hand();
        give_up(thread, c, thread.pages->span(oldest));
      }
    });
  }
  SpanRef oldest_ready(auto& thread, ClassId c) {
    if (const SpanNumber oldest = oldest_[index_of(c)]; oldest != SpanNumber::kNone)
      return thread.pages->span(oldest);
    Span* const next = next_[index_of(c)];
    return next == nullptr ? SpanRef{} : thread.pages->ref_of(*next);
  }
  void leave_ready(auto& thread, ClassId c, SpanRef span) {
    SPANALLOC_ASSERT(span->is_ready());
    const SpanNumber newer = span->newer();
    const SpanNumber older = span->next();
    if (newer == SpanNumber::kNone) {
      SPANALLOC_ASSERT(newest_[index_of(c)] == span.number);
      newest_[index_of(c)] = older;
    } else {
      thread.pages->span(newer)->set_next(older);
    }
    if (older == SpanNumber::kNone) {
      oldest_[index_of(c)] = newer;
    } else {
      thread.pages->span(older)->set_ready(newer);
    }
    span->set_not_ready();
    ready_slices_ -= Classes::info(c).slices;
  }
  // The thread's parts of what all threads may have, in slices. They are divisions: so this is done
  // now and then only. A thread that is alone may have all that it wants.
  void look_at_parts(auto& thread) {
    const std::size_t threads = max_of(thread.heap->live_caches.load_relaxed(), 1);
    const std::size_t part = Config::kAllReadyBytes / threads;
    most_ready_ = min_of(part, Config::kReadyBytes) >> Config::kSliceBits;
    most_staying_ = part >> Config::kSliceBits;
    most_away_ = threads == 1 ? SIZE_MAX : Config::kAllAwayBytes / threads >> Config::kSliceBits;
  }

  // --- Away spans --------------------------------------------------------------------------------

  // Of an entry of the queue: whether it is a span of the thread's that is away; and of the class.
  // (Another thread may claim it meanwhile, and begin its next life.)
  bool is_own_away(auto& thread, SpanRef span) const {
    return thread.is_owned_here(span->word.load_acquire()) && span->stock() == Stock::kAway;
  }
  bool is_away(auto& thread, ClassId c, SpanRef span) const {
    return is_own_away(thread, span) && span->shown_class() == c;
  }
  // Looks at up to so many away spans of the class: those into which others have freed become
  // nobody's.
  [[gnu::noinline]] void leave_freed_into(auto& thread, ClassId c, std::uint32_t looks) {
    auto& pages = *thread.pages;
    SpanRef first;
    for (; looks != 0; --looks) {
      const SpanRef span = away_.take_first(pages, index_of(c));
      if (!span) return;
      if (first && span == first) return away_.put_back(pages, index_of(c), span);
      if (!is_away(thread, c, span)) {
        leave_entry(thread, c, span);
      } else if (span->load_word().outstanding() == Classes::info(c).blocks) {
        away_.put_back(pages, index_of(c), span);
        if (!first) first = span;
      } else {
        drop(c, span);
        leave_away(thread, span);
      }
    }
  }
  // Takes an entry out of the queue for good.
  void drop(ClassId c, SpanRef span) {
    away_slices_ -= Classes::info(c).slices;
    AwaySpans<Classes::kSmallClasses>::drop(span);
  }
  // A span has left that may be an entry still: another thread that had it could not queue it. Some
  // such in front leave the queue.
  [[gnu::noinline]] void drop_stale(auto& thread, ClassId c) {
    for (unsigned i = 0; i < Config::kStalePerLook; ++i) {
      const SpanRef span = away_.first(*thread.pages, index_of(c));
      if (!span || is_away(thread, c, span)) return;
      leave_entry(thread, c, away_.take_first(*thread.pages, index_of(c)));
    }
  }
  // False: another thread has it as an entry still, from an earlier life. Then it becomes nobody's
  // instead: what is away is in its thread's queue.
  [[gnu::noinline]] bool queue_away(auto& thread, Span& record) {
    const CacheNumber me = thread.cache->number;
    const ClassId c = record.shown_class();
    const auto inside = thread.enter();  // first: a fork's child makes queues anew
    const bool is_entry = record.away_link.load_relaxed() != 0;
    if (SPANALLOC_UNLIKELY(is_entry && record.queuer() != me)) return false;
    record.set_queued(true);
    if (is_entry) return true;
    away_.push(*thread.pages, index_of(c), thread.pages->ref_of(record), me);
    away_slices_ += Classes::info(c).slices;
    return true;
  }
  // Of an entry that has been taken off the queue of class c: the span leaves, of whatever class.
  void leave_entry(auto& thread, ClassId c, SpanRef span) {
    drop(c, span);
    if (is_own_away(thread, span)) leave_away(thread, span);
  }
  static void leave_away(auto& thread, SpanRef span) {
    const auto inside = thread.enter();
    if (thread.heap->protocol().away_to_nobodys(span, thread.cache->number) == Freed::kEmptied)
      thread.heap->put_in_pool(span, thread.shard());
  }

  // --- Transitions -------------------------------------------------------------------------------

  static void leave_current(auto& thread, ClassId c) { thread.current[index_of(c)] = &kNoTarget; }
  // The current span, if there is one, is used up.
  SPANALLOC_INLINE void go_on_with(auto& thread, ClassId c, Span& next) {
    FreeTarget* const last = thread.current[index_of(c)];
    SPANALLOC_ASSERT(last->is_used_up() || last->stock() == Stock::kBatch);
    thread.current[index_of(c)] = &next;
    if (last->stock() == Stock::kUsedUp) put_away(thread, last);
  }
  static std::uint32_t count_free(auto& thread, SpanRef span) {
    return span->is_used_up() ? 0 : Blocks::count_free(thread, span);
  }
  void give_up(auto& thread, ClassId c, SpanRef span) {
    give_up(thread, c, span, count_free(thread, span));
  }
  // `free_blocks` of the span's blocks are on its lists or were never carved.
  void give_up(auto& thread, ClassId c, SpanRef span, std::uint32_t free_blocks) {
    if (span->is_ready()) leave_ready(thread, c, span);
    if (thread.current[index_of(c)] == span.record) leave_current(thread, c);
    if (next_[index_of(c)] == span.record) next_[index_of(c)] = nullptr;
    SPANALLOC_ASSERT(thread.pages->is_mine(thread.cache->number) &&
                     thread.is_owned_here(span->load_word()));
    const Freed now =
        thread.heap->protocol().owned_to_nobodys(span, thread.cache->number, free_blocks);
    if (now == Freed::kEmptied) thread.heap->put_in_pool(span, thread.shard());
    if (SPANALLOC_UNLIKELY(now == Freed::kRefused)) thread.pages->corrupted(span);
    drop_stale(thread, c);
  }

  AwaySpans<Classes::kSmallClasses> away_;
  Span* next_[Classes::kSmallClasses] = {};         // ready, and next
  SpanNumber newest_[Classes::kSmallClasses] = {};  // of the ready ones
  SpanNumber oldest_[Classes::kSmallClasses] = {};
  std::size_t ready_slices_ = 0;
  std::size_t most_staying_ = 0;   // beside of_currents_
  std::size_t most_ready_ = 0;     // the same
  std::size_t surplus_to_go_ = 0;  // of ready spans, in this round
  std::size_t away_slices_ = 0;    // of what is in the queue
  std::size_t most_away_ = 0;
  std::size_t of_currents_ = 0;  // slices of a span of each class that the thread has had
  std::uint64_t classes_[(Classes::kSmallClasses + 63) / 64] = {};  // bit c: the thread has had c
  GiveUpDelay<Config> delay_;
  Lending<Config> lending_;
  CurrentAges<Config> ages_;
};

}  // namespace spanalloc::standard
