// The slow paths of free, for what the thread's map does not show.
//
//   deallocate                  hit: the map shows an own span or a remote batch: push and count
//     pass_event                the own span was used up or away, and is current now
//     look_after                the count is at its end: collect_own(), or the batch is flushed
//     deallocate_missed         else: caches a span of one block
//       deallocate_large        no room: older cached large spans go to the pool, or the span does
//       deallocate_others       another thread's span: the first free goes to it at once; the
//                               second begins a remote batch (RemoteBatches); the next ones are
//                               short
//         deallocate_by_record  all else (of no span's block: Misuse::free_unknown())
//           deallocate_own      the thread's own span, which the map did not show
//           deallocate_rare     a span of one block, a thread without a record
#pragma once

#include "standard/large_blocks.hpp"
#include "standard/location.hpp"
#include "standard/thread_life.hpp"

namespace spanalloc::standard {

/// `thread` is the thread cache of the calling thread. (All calls of what comes next are tail
/// calls, so no register need be saved.)
template <class Config>
struct FreeMiss {
  using Classes = SizeClasses<Config>;
  using Misuse = standard::Misuse<Config>;

  /// deallocate_missed() for an operator delete.
  template <OperatorDelete Caller>
  [[gnu::noinline]] static void leave_or_deallocate_missed(void* p, auto& thread) {
    if (SPANALLOC_UNLIKELY(Caller::leaves())) return Caller::free_elsewhere(p);
    deallocate_missed(p, thread);
  }

  /// Frees a block that the thread's map does not show. First the common case: a span of one block
  /// is cached for the next request, whichever thread had it before.
  [[gnu::noinline]] static void deallocate_missed(void* p, auto& thread) {
    const std::uintptr_t a = address_of(p);
    auto& pages = *thread.pages;
    const std::size_t number = pages.slice_of(a);
    auto* const cache = thread.cache;
    if (SPANALLOC_UNLIKELY(!pages.has_plain_slice(number) || cache == nullptr)) {
      return deallocate_by_record(p, thread);
    }
    const SpanRef span = pages.span(SpanNumber{static_cast<std::uint32_t>(number)});
    // (In a span of one block the class and the block's beginning do not change as long as the
    // caller's block is out; keep() finds out whether it is.)
    const ClassId c = span->shown_class();
    const bool is_large = c >= Classes::kFirstLarge && c < Classes::kHuge;
    if (!is_large || !span->begins_at(a) || pages.arena.is_short()) {
      return deallocate_others(p, thread, span);
    }
    if constexpr (kPoisons) {
      if (span->load_word() == kLargeInUse) {
        poison(p, LargeBlocks<Config>::block_bytes(pages, c, span));
      }
    }
    if (SPANALLOC_UNLIKELY(!cache->large_spans.keep(*span.record, Classes::info(c).slices))) {
      return deallocate_large(p, thread, span);
    }
    cache->timed_work.count_event(thread);
  }

  /// The free of p into `target`, which the map has shown, was an event. The first into a span
  /// without a free block makes that the current one of its class.
  [[gnu::noinline]] static void pass_event(void* p, auto& thread, FreeTarget* target) {
    if (SPANALLOC_UNLIKELY(!target->is_used_up())) return look_after(p, thread);
    Span& span = *static_cast<Span*>(target);
    FreeTarget*& current = thread.current[index_of(target->own_class())];
    FreeTarget* const last = current;
    current = target;
    if (SPANALLOC_UNLIKELY(span.has_others() || !span.expect_empty() ||
                           last->stock() != Stock::kUsedUp ||
                           !static_cast<Span*>(last)->is_queued())) {
      return pass_rare_event(thread, span, last);
    }
    auto& before = *static_cast<Span*>(last);
    if (SPANALLOC_UNLIKELY(!OwnedSpans<Config>::go_away(before)))
      return OwnedSpans<Config>::claim_own(thread, before);
    thread.cache->timed_work.count_event(thread);
  }
  /// The free of p was an event: a batch is full, or it is time to look at the own span.
  [[gnu::noinline]] static void look_after(void* p, auto& thread) {
    // Another thread may have claimed the span meanwhile. The record stays readable, and tells.
    const SpanRef span = thread.pages->span_of(thread.pages->any_slice_at(address_of(p)));
    if (!thread.cache->batches.flush_if_full(thread, span)) collect_own(thread, span);
  }

  /// Frees blocks of a span that this thread does not own, linked from the newest to the oldest.
  [[gnu::noinline]] static void free_to_span(auto& thread, SpanRef span, Block* newest,
                                             Block* oldest, std::uint32_t count) {
    const auto inside = thread.enter();  // before the span can be claimed
    auto& pages = *thread.pages;
    // (The only block of a span has no link, because its page may never have been touched.)
    const bool has_list = !Classes::has_one_block(span->class_id());
    const auto link = [&](BlockOffset list) {
      if (has_list) oldest->link_in_order(pages.first_of(span, list));
    };
    const BlockOffset first = pages.offset_of(span, newest);
    switch (thread.heap->protocol().free_remote(span, first, count, link)) {
      case Freed::kRefused:
        return Misuse::freed_twice(newest);
      case Freed::kEmptied:
        return thread.heap->put_in_pool(span, thread.shard());
      case Freed::kUncounted:
        return thread.heap->count_abandoned(span, thread.shard());
      case Freed::kDone:
        return;
    }
  }

  /// What only the program may have used of a block that is freed.
  static void poison_freed(Block* block, auto& pages) {
    if constexpr (kPoisons) {
      const SpanRef span = pages.span_of(pages.any_slice_at(address_of(block)));
      const std::size_t bytes = LargeBlocks<Config>::block_bytes(pages, span->class_id(), span);
      poison(block + 1, bytes - sizeof(Block));
    }
  }

 private:
  // The same where others had blocks of the span before, or this was its only block that was out,
  // or the span that was current is not used up, or not in the queue.
  [[gnu::noinline]] static void pass_rare_event(auto& thread, Span& span, FreeTarget* last) {
    if (span.has_others()) span.expect_few();
    thread.cache->owned.displace(thread, span, last);
    if (span.is_emptied()) return thread.cache->owned.look_at(thread, thread.pages->ref_of(span));
    thread.cache->timed_work.count_event(thread);
  }
  // Frees the only block of a span that was not cached: there is no room, or the span is not in
  // use. The older cached large spans go to the pool, which makes room for several frees; if the
  // span is too large even then, it goes there itself.
  [[gnu::noinline]] static void deallocate_large(void* p, auto& thread, SpanRef span) {
    const unsigned slices = Classes::info(span->class_id()).slices;
    auto& heap = *thread.heap;
    auto& large_spans = thread.cache->large_spans;
    // (Asked before others may have it: a span that is cached already would go to the pool as
    // well.)
    if (large_spans.has_room_for(slices) || span->load_word() != kLargeInUse) {
      return deallocate_others(p, thread, span);
    }
    const auto inside = thread.enter();
    heap.pool_older_large_spans(*thread.cache, thread.shard());
    if (SPANALLOC_LIKELY(large_spans.keep(*span.record, slices)))
      return (void)thread.pages->memory_return.purge_if_due(os::now_ms());
    if (SPANALLOC_UNLIKELY(!large_spans.claim_in_use(*span.record)))
      return deallocate_others(p, thread, span);
    heap.put_in_pool(span, thread.shard());
  }

  // Next: a block of another thread's span. deallocate_by_record() frees everything else.
  [[gnu::noinline]] static void deallocate_others(void* p, auto& thread, SpanRef slice) {
    const SpanRef span = thread.pages->span_of(slice);
    const SpanWord word = span->load_word();
    // (Of a span in use only, of several blocks. is_block() is exact, so it also tells whether this
    // is the block's span.)
    const bool others =
        word.state() != SpanState::kFree && !thread.is_mine(word) && !word.is_single();
    if (SPANALLOC_UNLIKELY(!others || !span->is_block(address_of(p))))
      return deallocate_by_record(p, thread);
    auto* const block = static_cast<Block*>(p);
    if (seems_freed(block, thread, span, word, true)) return deallocate_suspect(p, thread, span);
    if (word.is_abandoned() && !span->is_withdrawn() &&
        thread.cache->owned.is_to_adopt(thread, span->class_id(), word.outstanding()) &&
        adopt(thread, span)) {
      return thread.deallocate(p);
    }
    thread.cache->owned.lending().freed(span->class_id());
    if (thread.cache->batches.add(thread, span, word, block)) return;
    const bool is_seen =
        word.state() == SpanState::kOwned || span->abandoned_link.load_relaxed() != 0;
    if (SPANALLOC_LIKELY(is_seen &&
                         span->word.free_into_used(
                             word, thread.pages->offset_of(span, block), [&](BlockOffset list) {
                               block->link_to(thread.pages->first_of(span, list));
                             }))) {
      return;
    }
    free_to_span(thread, span, block, block, 1);
  }

  // The span of a block that is out, which nobody owns. False: another thread holds it, or has it.
  [[gnu::noinline]] static bool adopt(auto& thread, SpanRef span) {
    const auto inside = thread.enter();
    const auto hand = thread.take_in_hand();
    if (!span->word.hold().done) return false;
    const OwnedSpan owned = thread.heap->protocol().own_held(span, thread.cache->number);
    span->set_others(0);  // for all that is known the thread has allocated them
    thread.cache->owned.make_current(thread, span->class_id(), span);
    SpanBlocks<Config>::add_remotes(thread, span, owned.remotes);
    return true;
  }

  // The checks of a block that goes to a span which this thread does not own. True: it is to be
  // looked for on the lists. (The only block of a span has no link, and its page may never have
  // been touched.)
  SPANALLOC_INLINE static bool seems_freed(Block* block, auto& thread, SpanRef span, SpanWord word,
                                           bool has_link) {
    prefetch_to_write(block);  // one transfer between CPUs, not two: it is read, then written
    if (SPANALLOC_UNLIKELY(word.head() == thread.pages->offset_of(span, block)))
      Misuse::remotely_freed_twice(thread, span, block);
    if (has_link && Misuse::looks_free(block)) return true;
    poison_freed(block, *thread.pages);
    return false;
  }

  // Frees whatever p is, or null: another thread's block, a span of one block, or a block of the
  // thread's own whose entry in the map another of its spans has overwritten.
  [[gnu::noinline]] static void deallocate_by_record(void* p, auto& thread) {
    if (SPANALLOC_UNLIKELY(os::in_kernel_call())) return NestedBlocks::put_off(p);
    const Location at = Location::of(p, *thread.pages);
    if (SPANALLOC_UNLIKELY(!at.is_block)) return Misuse::free_unknown(p, thread, at.has_record());
    if (thread.is_mine(at.word)) return deallocate_own(p, thread, at.span);
    deallocate_rare(p, thread, at.span, at.word);
  }

  [[gnu::noinline]] static void deallocate_own(void* p, auto& thread, SpanRef span) {
    auto* block = static_cast<Block*>(p);
    Block* list = span->free_list().first();
    if (SPANALLOC_UNLIKELY(list == block) || Misuse::looks_free(block))
      return deallocate_suspect(p, thread, span);
    thread.miss_map(span, *span.record);
    poison_freed(block, *thread.pages);
    if (SPANALLOC_UNLIKELY(
            FreeTarget::push(span.record, block, address_of(list) ^ address_of(block)))) {
      collect_own(thread, span);
    }
  }

  // The block looks free. If it is on no list after all, it is freed like any other.
  SPANALLOC_COLD static void deallocate_suspect(void* p, auto& thread, SpanRef span) {
    Misuse::clear_suspect(thread, span, static_cast<Block*>(p));
    deallocate_by_record(p, thread);
  }

  // Frees a block of a span that this thread does not own: of one block, or as a thread without a
  // cache record. Nothing of that is batched: such a thread has no exit hook.
  SPANALLOC_INLINE static void deallocate_rare(void* p, auto& thread, SpanRef span, SpanWord word) {
    // The word is good enough to report misuse; the protocol looks again.
    if (SPANALLOC_UNLIKELY(word.state() == SpanState::kFree)) Misuse::free_of_no_block(p);
    auto* const block = static_cast<Block*>(p);
    const bool has_link = span->class_id() < Classes::kFirstLarge;
    if (seems_freed(block, thread, span, word, has_link))
      return deallocate_suspect(p, thread, span);
    // After that, because it may take a record: a report leaves the thread as it was.
    ThreadLife<Config>::count_lone_free(thread);
    if (thread.cache != nullptr && !word.is_single()) return deallocate_others(p, thread, span);
    free_to_span(thread, span, block, block, 1);
  }

  [[gnu::noinline]] static void collect_own(auto& thread, SpanRef span) {
    SPANALLOC_ASSERT(thread.cache != nullptr && thread.pages->is_mine(thread.cache->number));
    if (span->is_used_up()) return pass_event(nullptr, thread, span.record);
    thread.cache->owned.look_at(thread, span);
  }
};

}  // namespace spanalloc::standard
