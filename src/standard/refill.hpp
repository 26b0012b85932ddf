// What a miss of malloc does for a class of several blocks: it refills the list of the class's
// current span, or makes another span current.
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
    if (thread.list_of(c).is_empty()) {
      if (info.block_size < kSmallPage || thread.cache == nullptr) return nullptr;
      const SpanRef span = thread.current_span(c);
      if (SPANALLOC_UNLIKELY(!span)) return nullptr;
      Block* block = Blocks::carve_one(span, info);
      if (block != nullptr && !span->is_zero()) Blocks::refill_from_span(thread, span);
      return block;
    }
    Block* block = Blocks::pop(thread.list_of(c), info);
    if (SPANALLOC_UNLIKELY(thread.exited) || !thread.list_of(c).is_empty()) {
      return block;
    }
    const SpanRef span = thread.current_span(c);
    if (SPANALLOC_UNLIKELY(!span)) return block;  // the block is the last one of a loan
    if (Blocks::is_all_on_list(span)) {
      // (The block counts as out.)
      if (thread.cache->owned.take_ready(thread, c)) thread.cache->timed_work.count_event(thread);
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
    return Blocks::pop(thread.list_of(c), Classes::info(c));
  }

  /// Refills the class's empty list. kNothing: memory is out.
  static Refilled refill(auto& thread, ClassId c) {
    SPANALLOC_ASSERT(c != ClassId::kNone && c < Classes::kFirstLarge);
    SPANALLOC_ASSERT(thread.pages->is_mine(thread.cache->number));
    auto& owned = thread.cache->owned;
    while (thread.list_of(c).is_empty()) {
      const SpanRef span = thread.current_span(c);
      if (!span) {
        const OwnedSpan found = find_span(thread, c);
        if (!found && !thread.list_of(c).is_empty()) continue;  // blocks were borrowed
        if (!found) return owned.take_any(thread, c) ? Refilled::kBlocks : Refilled::kNothing;
        const auto hand = thread.hold();
        owned.note_found(thread, c, found.is_nearly_full);
        owned.make_current(thread, c, found.span);  // first: add_remotes() may report damage
        Blocks::add_remotes(thread, found.span, found.remotes);
        continue;
      }
      const auto hand = thread.hold();
      if (const Refilled own = Blocks::refill_from_span(thread, span); own != Refilled::kNothing)
        return own;
      if (Blocks::take_remotes(thread, span, Classes::info(c).enough_free) ||
          owned.take_ready(thread, c)) {
        continue;
      }
      if (!owned.take_remotely_ready(thread, c)) owned.use_up(thread, c, span);
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
    bool any = thread.heap->count_all_abandoned(thread.shard());
    any = thread.cache->loans.return_all(thread) || any;
    any = thread.cache->magazines.give_all_back(thread) || any;
    return thread.cache->owned.share_empty(thread) || any;
  }

 private:
  // A span for class c, which this thread owns now. None: the list has borrowed blocks, or memory
  // is out.
  [[gnu::noinline]] static OwnedSpan find_span(auto& thread, ClassId c) {
    auto& heap = *thread.heap;
    auto& protocol = heap.protocol();
    auto& cache = *thread.cache;
    const CacheNumber me = cache.number;
    cache.owned.note_search(c);
    // Delayed spans may wait while there are partial ones: where threads free into many spans at
    // random, each gets more blocks back meanwhile. (Not for ever: an empty one may be among them.)
    if (++cache.searches % Config::kSearchesPerCollection != 0) {
      if (const OwnedSpan mine = protocol.partial_to_owned(c, me)) return mine;
    }
    heap.put_in_pool(protocol.collect_delayed(me), thread.shard());
    if (const OwnedSpan mine = protocol.partial_to_owned(c, me)) return mine;
    if (const OwnedSpan adopted = adopt(thread, c, Config::kHintsPerSearch)) return adopted;
    if (cache.loans.borrow(thread, c)) return {};
    if (const FreshSpan fresh = take_span(thread, c)) return heap.begin_owned_life(fresh, c, me);
    if (const OwnedSpan adopted = adopt(thread, c, UINT32_MAX)) return adopted;
    return protocol.nearly_full_to_owned(c, me);
  }
  // Of the first so many hints at spans that nobody owns.
  static OwnedSpan adopt(auto& thread, ClassId c, std::uint32_t hints) {
    auto& heap = *thread.heap;
    if (SPANALLOC_LIKELY(heap.abandoned.are_none())) return {};
    for (;;) {
      SpanChain seen;
      const OwnedSpan adopted =
          heap.protocol().abandoned_to_owned(c, thread.cache->number, hints, seen);
      if (adopted || seen.has_nothing()) return adopted;
      heap.put_in_pool(seen, thread.shard());  // with no span in hand: it may report
    }
  }
};

}  // namespace spanalloc::standard
