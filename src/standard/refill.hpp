// What a miss of malloc does for a class of several blocks: it refills the list of the class's
// current span, makes another span current, or has blocks lent of a span that nobody owns.
#pragma once

#include "standard/heap.hpp"

namespace spanalloc::standard {

/// `thread` is the thread cache of the calling thread.
template <class Config>
struct Refill {
  using Classes = SizeClasses<Config>;
  using Blocks = SpanBlocks<Config>;

  /// Pops the last block of the current span's list, which the short path leaves, and refills the
  /// list at once: a program that frees and allocates in turn would else find one block with each
  /// malloc, and none with the next. nullptr: there is none. (Blocks of a page and more are carved
  /// one by one as long as none is freed, because it must be known which are zero, and untouched
  /// pages are best left so; in memory that was used before, a few at a time.)
  [[gnu::noinline]] static Block* take_last(auto& thread, ClassId c) {
    const ClassInfo& info = Classes::info(c);
    if (thread.cache == nullptr) return nullptr;
    if (thread.list_of(c).is_empty()) {
      if (const SpanRef span = thread.current_span(c)) {
        if (info.block_size >= kSmallPage) {
          Block* block = Blocks::carve_one(span, info);
          if (block != nullptr && !span->is_zero()) Blocks::refill_from_span(thread, span);
          if (block != nullptr) return block;
        }
        if (!Blocks::is_all_on_list(span)) return nullptr;
        span->use_up();
      }
      if (!thread.cache->owned.take_ready(thread, c)) return nullptr;
      if (thread.list_of(c).is_empty()) return nullptr;
    }
    Block* block = Blocks::pop(thread.list_of(c), info);
    if (!thread.list_of(c).is_empty()) return block;
    const SpanRef span = thread.current_span(c);
    if (SPANALLOC_UNLIKELY(!span)) {
      thread.cache->batches.end_used_up(thread, c);
    } else if (Blocks::is_all_on_list(span)) {
      span->use_up();
    } else {
      Blocks::refill_from_span(thread, span);
    }
    return block;
  }

  /// Any block of class c; nullptr: memory is out. The caller is inside, with a cache record.
  static Block* take(auto& thread, ClassId c) {
    while (thread.list_of(c).is_empty()) {
      if (refill(thread, c) == Refilled::kNothing) return nullptr;
    }
    Block* const block = Blocks::pop(thread.list_of(c), Classes::info(c));
    if (thread.list_of(c).is_empty()) thread.cache->batches.end_used_up(thread, c);
    return block;
  }
  /// The same without a cache record.
  SPANALLOC_COLD static Block* take_alone(auto& thread, ClassId c) {
    Block* const block = lend(thread, c, 1).chain.first;
    if (block == nullptr) return nullptr;
    unpoison(block, Classes::info(c).block_size);
    block->clear_link();
    return block;
  }

  /// Refills the class's empty list. kNothing: memory is out.
  static Refilled refill(auto& thread, ClassId c) {
    SPANALLOC_ASSERT(c != ClassId::kNone && c < Classes::kFirstLarge);
    SPANALLOC_ASSERT(thread.pages->is_mine(thread.cache->number));
    auto& owned = thread.cache->owned;
    if (!owned.is_to_own(thread, c))
      return take_lent(thread, c) ? Refilled::kBlocks : Refilled::kNothing;
    const std::uint32_t enough = Classes::info(c).enough_free;
    while (thread.list_of(c).is_empty()) {
      if (const SpanRef span = thread.current_span(c)) {
        const auto hand = thread.take_in_hand();
        if (const Refilled own = Blocks::refill_from_span(thread, span); own != Refilled::kNothing)
          return own;
        if (Blocks::take_remotes(thread, span, enough)) {
          span->set_stock(Stock::kNone);
          span->expect_first_clock();
          continue;
        }
        span->use_up();
      }
      if (owned.take_ready(thread, c) || owned.take_away(thread, c, enough, Config::kAwayPerSearch))
        continue;
      const OwnedSpan found = find_span(thread, c);
      if (!found) return take_any(thread, c) ? Refilled::kBlocks : Refilled::kNothing;
      const auto hand = thread.take_in_hand();
      owned.make_current(thread, c, found.span);  // first: add_remotes() may report damage
      Blocks::add_remotes(thread, found.span, found.remotes);
    }
    return Refilled::kBlocks;
  }

  /// A free span for class c; none: memory is out.
  SPANALLOC_INLINE static FreshSpan take_span(auto& thread, ClassId c) {
    const FreshSpan fresh = thread.heap->take_span(c, thread.shard());
    if (SPANALLOC_LIKELY(static_cast<bool>(fresh)) || !give_back_unused(thread)) return fresh;
    return thread.heap->take_span(c, thread.shard());
  }

  /// When memory is out: gives back what this thread holds without need. False: nothing.
  SPANALLOC_COLD static bool give_back_unused(auto& thread) {
    if (thread.cache == nullptr) return false;
    SPANALLOC_ASSERT(thread.has_nothing_in_hand());
    const bool any = thread.heap->count_all_abandoned(thread.shard());
    return thread.cache->owned.give_up_empty(thread) || any;
  }

 private:
  // A span for class c, which this thread owns now. None: memory is out.
  [[gnu::noinline]] static OwnedSpan find_span(auto& thread, ClassId c) {
    thread.cache->owned.note_search(c);
    thread.cache->owned.bound_away(thread, c);
    if (const OwnedSpan adopted = adopt(thread, c, Config::kHintsPerSearch)) return adopted;
    if (const FreshSpan fresh = take_span(thread, c))
      return thread.heap->begin_owned_life(fresh, c, thread.cache->number);
    return adopt(thread, c, UINT32_MAX);
  }
  // When memory is out: any block that others have freed into a span of the thread's.
  SPANALLOC_COLD static bool take_any(auto& thread, ClassId c) {
    if (const SpanRef span = thread.current_span(c);
        span && Blocks::take_remotes(thread, span, 1)) {
      span->set_stock(Stock::kNone);
      return true;
    }
    return thread.cache->owned.take_away(thread, c, 1, Config::kAwayWithoutMemory);
  }
  // Of the first so many hints at spans that nobody owns.
  static OwnedSpan adopt(auto& thread, ClassId c, std::uint32_t hints) {
    const Held held = hold_shown(thread, c, hints);
    return held.span ? thread.heap->protocol().own_held(held.span, thread.cache->number)
                     : OwnedSpan{};
  }
  struct Held {
    SpanRef span;
    SpanWord before;
  };
  static Held hold_shown(auto& thread, ClassId c, std::uint32_t hints) {
    auto& heap = *thread.heap;
    Held held;
    if (SPANALLOC_LIKELY(heap.abandoned.are_none())) return held;
    for (;;) {
      SpanChain seen;
      held.span =
          heap.protocol().hold_shown(c, CacheNumber{thread.shard()}, hints, seen, held.before);
      if (held.span || seen.has_nothing()) return held;
      heap.put_in_pool(seen, thread.shard());  // with no span in hand: it may report
    }
  }

  // --- Blocks of spans that nobody owns ----------------------------------------------------------

  struct Lent {
    SpanRef span;
    BlockChain chain;
  };
  // A batch of blocks becomes what malloc takes from. False: memory is out.
  [[gnu::noinline]] static bool take_lent(auto& thread, ClassId c) {
    auto& cache = *thread.cache;
    const Lent lent = lend(thread, c, cache.batches.most_lent(thread, c));
    if (lent.chain.count == 0) return false;
    const bool few = thread.heap->live_caches.load_relaxed() <= 2 * os::cpu_count();
    cache.owned.lending().lent(c, os::now_ms(), few);
    cache.batches.begin_lent(thread, c, lent.span, lent.chain);
    return true;
  }
  // Up to `most` blocks, which are out from here on. None: memory is out.
  static Lent lend(auto& thread, ClassId c, std::uint32_t most) {
    auto& heap = *thread.heap;
    const SpanRef span = hold_counted(thread, c);
    if (!span) return {};
    const BlockChain chain = Blocks::take_held(thread, span, most);
    if (SPANALLOC_UNLIKELY(chain.count == 0)) {
      heap.protocol().withdraw(span);
      thread.pages->damaged(span);
    }
    heap.protocol().let_go(span, chain.count);
    return {span, chain};
  }
  // Whose word says how many blocks are free, and that some are. (One that its thread has left
  // uncounted may have none.)
  static SpanRef hold_counted(auto& thread, ClassId c) {
    auto& protocol = thread.heap->protocol();
    for (;;) {
      const Held held = hold_any(thread, c);
      if (!held.span) return {};
      if (SPANALLOC_UNLIKELY(!protocol.count_if_uncounted(held.span, held.before)))
        thread.pages->damaged(held.span);
      if (SPANALLOC_LIKELY(held.span->load_word().outstanding() < Classes::info(c).blocks))
        return held.span;
      if (protocol.let_go(held.span) == Freed::kEmptied)
        thread.heap->put_in_pool(held.span, thread.shard());
    }
  }
  static Held hold_any(auto& thread, ClassId c) {
    const Held held = hold_shown(thread, c, Config::kHintsPerSearch);
    if (held.span) return held;
    if (const FreshSpan fresh = take_span(thread, c))
      return {thread.heap->begin_held_life(fresh, c), kNewHeld};
    return hold_shown(thread, c, UINT32_MAX);
  }
};

}  // namespace spanalloc::standard
