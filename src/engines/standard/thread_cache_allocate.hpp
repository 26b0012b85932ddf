// What malloc, calloc and aligned requests do after a miss of the current span's list; see engine.hpp for the
// call tree.
#pragma once

#include "engines/standard/engine.hpp"

namespace spanalloc::standard {

// The short path again, for classes that are not looked up by the byte.
template <class Config>
template <class Policy>
void* ThreadCache<Config>::allocate_larger(std::size_t n, ThreadCache& self) {
  if (SPANALLOC_UNLIKELY(n > Config::kMaxSmall)) return allocate_single_or_large<Policy>(n, self);
  const std::size_t c = kClassOfSteps<Config>[(n + kStepOfLarger - 1) / kStepOfLarger];
  FreeTarget& target = *self.current[c];
  Block* block = target.free_list.load_relaxed();
  keep_in_result_register(block);
  const std::uint64_t link = link_of(block);
  if (SPANALLOC_UNLIKELY((link & kNoLinkBits<Config>[c]) != 0)) return allocate_missed<Policy>(n, self);
  target.free_list.store_relaxed(block_behind(block, link));
  release_link(block);
  unpoison(block, Classes::kTable[c].block_size);
  return block;
}

// A block with a span of its own: the one that the thread has freed last, if that is of the same class.
template <class Config>
template <class Policy>
void* ThreadCache<Config>::allocate_single_or_large(std::size_t n, ThreadCache& self) {
  if (SPANALLOC_UNLIKELY(n > Config::kMaxBlock || self.cache == nullptr))
    return allocate_missed<Policy>(n, self);
  const ClassId c{kClassOfSingle<Config>[(n + kStepOfSingles - 1) / kStepOfSingles]};
  Span* large = self.cache->large_spans.take_youngest(c);
  if (SPANALLOC_UNLIKELY(large == nullptr)) return allocate_missed<Policy>(n, self);
  if (SPANALLOC_UNLIKELY(static_cast<std::uint32_t>(n) > large->room))
    return fit_cached(n, self, large, kQuantum);
  return self.as_block(*large, c);
}

// A spare that is in use again, whose block began where the request would not fit, or would not be aligned.
// (Nobody looks at that: no block of it is out. It begins in the same slice as before.)
template <class Config>
void* ThreadCache<Config>::fit_cached(std::size_t n, ThreadCache& self, Span* large, std::size_t alignment) {
  const ClassId c{large->shown_class.load_relaxed()};
  const std::uintptr_t first = align_down(large->shown.base.load_relaxed(), kSlice);
  const SpanRef span{large, SpanNumber{static_cast<std::uint32_t>(self.pages->slice_of(first))}};
  const std::size_t offset = Singles::offset(span.number, Classes::info(c).virtual_span, {n, alignment});
  span->shown.base.store_relaxed(first + offset);
  Heap::set_room(span, c);
  return self.as_block(*large, c);
}

// Of a spare that is in use again.
template <class Config>
SPANALLOC_INLINE void* ThreadCache<Config>::as_block(const Span& large, ClassId c) {
  void* p = pointer_to(large.shown.base.load_relaxed());
  unpoison(p, min_of(std::size_t{large.room}, std::size_t{Classes::info(c).block_size}));
  return p;
}

// Any one that it has freed.
template <class Config>
[[gnu::noinline]] inline void* ThreadCache<Config>::take_cached(ClassId c, Request request) {
  if (SPANALLOC_UNLIKELY(cache == nullptr)) return nullptr;
  Span* large = cache->large_spans.take(c, slices_of_cached);
  if (large == nullptr) return nullptr;
  if (request.bytes > large->room || !Singles::is_aligned(large->shown.base.load_relaxed(), request)) {
    return fit_cached(request.bytes, *this, large, request.alignment);
  }
  return as_block(*large, c);
}

template <class Config>
template <class Policy>
void* ThreadCache<Config>::allocate_missed(std::size_t n, ThreadCache& self) {
  void* p = nullptr;
  if (SPANALLOC_UNLIKELY(n > Config::kMaxBlock)) {
    p = self.allocate_large({n}, Fill{});
  } else {
    const ClassId c = Classes::of(n == 0 ? 1 : n);
    if (SPANALLOC_LIKELY(c < Classes::kFirstLarge)) {
      if (Block* last = self.allocate_last(c); SPANALLOC_LIKELY(last != nullptr)) return last;
    }
    p = self.allocate_class(c, {n});
  }
  return SPANALLOC_LIKELY(p != nullptr) ? p : Policy::out_of_memory(n);
}

// The last block leaves the current span's list. What comes next is seen to at once: a program that now frees
// and allocates in turn would else find one block on the list with each malloc, and none with the next.
// nullptr: the list is empty. (Blocks of a page and more, of which it is to be known whether they are zero,
// and whose pages are best left untouched, are carved one by one as long as none is freed; in memory that was
// used before, a few at a time.)
template <class Config>
[[gnu::noinline]] inline Block* ThreadCache<Config>::allocate_last(ClassId c) {
  const ClassInfo& info = Classes::info(c);
  if (is_end(list_of(c).load_relaxed())) {
    Block* block = info.block_size >= kPageForTail ? carve_one(c) : nullptr;
    if (block != nullptr && !current_span(c)->zero) take_own_blocks(c, current_span(c));
    return block;
  }
  Block* block = pop(list_of(c), info);
  if (SPANALLOC_UNLIKELY(exited) || !is_end(list_of(c).load_relaxed())) return block;
  const SpanRef span = current_span(c);
  if (SPANALLOC_UNLIKELY(!span)) return block;  // a loan's last one
  if (is_all_on_list(span, info)) {
    take_ready(c);
  } else {
    take_own_blocks(c, span);
  }
  return block;
}

// The next untouched block of the current span; nullptr: it has none.
template <class Config>
SPANALLOC_INLINE Block* ThreadCache<Config>::carve_one(ClassId c) {
  if (SPANALLOC_UNLIKELY(cache == nullptr)) return nullptr;
  const ClassInfo& info = Classes::info(c);
  const SpanRef span = current_span(c);
  if (SPANALLOC_UNLIKELY(!span) || span->carved.load_relaxed() == info.blocks) return nullptr;
  if (SPANALLOC_UNLIKELY(!is_end(span->rest.load_relaxed()))) return nullptr;
  auto* block = pointer_to<Block>(span->blocks.base.read_own() +
                                  std::size_t{span->carved.load_relaxed()} * info.block_size);
  count_carved(span, info, 1);
  unpoison(block, info.block_size);
  clear_link(block);
  return block;
}

template <class Config>
SPANALLOC_INLINE void ThreadCache<Config>::count_carved(SpanRef span, const ClassInfo& info,
                                                        std::uint32_t count) {
  const std::uint32_t before = span->carved.load_relaxed();
  const std::uint32_t carved = before + count;
  span->carved.store_relaxed(carved);
  // What was never carved is nobody's to free. (Whoever is handed a block by another thread has been given
  // this limit with it.)
  const std::uint64_t limit = multiple_limit(info.block_size, info.magic, carved);
  span->blocks.limit.store_relaxed(limit);
  span->shown.limit.store_relaxed(limit);
  expect_emptying(span, info, before == 0 ? 1 : before);
}

// A current span whose list has just ended: `out` of its blocks may be. When half as many have come back it
// is looked at whether the thread is giving the span up; see collect_current(). Each time its list goes on
// with blocks that were not on it before, and not again until then: a program that goes on in the span pays
// nothing. Not where it is little: what leaves a thread that works on costs more than it gives.
template <class Config>
SPANALLOC_INLINE void ThreadCache<Config>::expect_emptying(SpanRef span, const ClassInfo& info,
                                                           std::uint32_t out) {
  span->watched = Watch::kGrown;
  if (span->carved.load_relaxed() * info.block_size <= kLittleForCurrent) return;
  span->expect_emptying(out - out / 2, 0);
}

// In a kernel call. Blocks of several in a span have the alignment of their size, which is not told.
template <class Config>
SPANALLOC_COLD inline void* ThreadCache<Config>::allocate_nested(Request request, ClassId c) {
  if (c >= Classes::kFirstLarge) return NestedBlocks::allocate(request.bytes, request.alignment);
  const std::size_t bytes = Classes::info(c).block_size;
  return NestedBlocks::allocate(bytes, bytes & (0 - bytes));
}
template <class Config>
SPANALLOC_COLD inline void* ThreadCache<Config>::allocate_nested(Request request, const Fill& fill) {
  if (request.bytes > kMaxRequest || request.alignment > kMaxRequest) return nullptr;
  void* p = NestedBlocks::allocate(request.bytes, request.alignment);
  if (p != nullptr) fill.write(p, false);
  return p;
}

template <class Config>
inline void* ThreadCache<Config>::allocate_class(ClassId c, Request request) {
  if (SPANALLOC_UNLIKELY(os::in_kernel_call())) return allocate_nested(request, c);
  NestedBlocks::free_put_off([this](void* p) { deallocate(p); });
  pages->want_background();
  const Inside inside(*this);
  flush_one_batch();
  // No thread cache left (there is room for 262,144 living threads), or no memory for one.
  if (SPANALLOC_UNLIKELY(record_of_thread() == nullptr)) {
    // Blocks of several in a span are aligned as their sizes are.
    if (c < Classes::kFirstLarge) return allocate_large({Classes::info(c).block_size, kSlice}, Fill{});
    return allocate_large(request, Fill{});
  }
  if (SPANALLOC_UNLIKELY(++cache->misses % kMissesALook == 0)) share_rested(os::now_ms(), c);
  void* p = c < Classes::kFirstLarge ? allocate_small(c) : allocate_single(c, request, Fill{});
  detach_if_exited();
  return p;
}

// An object with a span of its own, of any size and alignment.
template <class Config>
SPANALLOC_COLD inline void* ThreadCache<Config>::allocate_large(Request request, const Fill& fill) {
  if (SPANALLOC_UNLIKELY(os::in_kernel_call())) return allocate_nested(request, fill);
  NestedBlocks::free_put_off([this](void* p) { deallocate(p); });
  pages->want_background();
  const Inside inside(*this);
  flush_one_batch();
  if (request.bytes > kMaxRequest || request.alignment > kMaxRequest || !heap->start()) return nullptr;
  const SliceCount slices = slices_for(max_of(request.bytes, 1));
  const std::size_t multiple = slices_for(request.alignment).count;
  FreshSpan fresh = heap->take_large(slices, multiple, Reuse::kDirtyFirst);
  if (SPANALLOC_UNLIKELY(!fresh) && give_back_unused()) {
    fresh = heap->take_large(slices, multiple, Reuse::kDirtyFirst);
  }
  if (!fresh) return nullptr;
  if (fill.is_zero() && !fresh.zero) fresh.zero = heap->zero_by_purging(fresh, slices);
  return hand_out(fresh, Classes::kHuge, request, fill);
}

template <class Config>
inline void* ThreadCache<Config>::allocate_small(ClassId c) {
  while (is_end(list_of(c).load_relaxed())) {
    if (refill(c) == Refilled::kNothing) return nullptr;
  }
  return pop(list_of(c), Classes::info(c));
}

// For the current span's empty list: its second list, or the next untouched blocks.
template <class Config>
[[gnu::noinline]] inline typename ThreadCache<Config>::Refilled ThreadCache<Config>::take_own_blocks(
    ClassId c, SpanRef span) {
  SPANALLOC_ASSERT(is_end(span->free_list.load_relaxed()) && is_current_here(span->load_word()));
  if (Block* rest = span->rest.load_relaxed(); SPANALLOC_UNLIKELY(!is_end(rest))) {
    // In this order: a fork's child finds a list once, or not at all.
    span->rest.store_release(no_block());
    span->free_list.store_release(rest);
    return Refilled::kBlocks;
  }
  if (SPANALLOC_UNLIKELY(span->purged.load_relaxed() != 0)) {
    span->free_list.store_release(take_purged(span, c));
    return Refilled::kBlocks;
  }
  if (span->carved.load_relaxed() == Classes::info(c).blocks) return Refilled::kNothing;
  span->free_list.store_release(carve(span, c));
  return span->zero ? Refilled::kZeroBlocks : Refilled::kBlocks;
}

// The first block of a list that is not empty.
template <class Config>
SPANALLOC_INLINE Block* ThreadCache<Config>::pop(Atomic<Block*>& list, const ClassInfo& info) {
  Block* block = list.load_relaxed();
  const std::uint64_t link = link_of(block);
  if (SPANALLOC_UNLIKELY(!is_link(block, link, info.virtual_span))) lose_list(list);
  list.store_relaxed(block_behind(block, link));
  release_link(block);
  unpoison(block, info.block_size);
  return block;
}

// One block a span: it is never hot.
template <class Config>
inline void* ThreadCache<Config>::allocate_single(ClassId c, Request request, const Fill& fill) {
  if (void* p = take_cached(c, request); p != nullptr) {
    fill.write(p, false);
    return p;
  }
  FreshSpan fresh;
  if (SPANALLOC_LIKELY(cache != nullptr)) fresh = heap->take_pooled_singles(c, *cache, shard());
  if (!fresh) fresh = take_span(c);
  return fresh ? hand_out(fresh, c, request, fill) : nullptr;
}

// The record says "in use" at the very last: the child of a fork before that has the memory back.
template <class Config>
inline void* ThreadCache<Config>::hand_out(const FreshSpan& fresh, ClassId c, Request request,
                                           const Fill& fill) {
  const SpanRef span = fresh.span;
  const std::uintptr_t last = span->shown.base.load_relaxed();
  if (fresh.same_class && request.bytes <= span->room && Singles::is_aligned(last, request)) {
    void* p = as_block(*span.record, c);
    fill.write(p, fresh.zero);
    heap->begin_same_life(span);
    return p;
  }
  const std::size_t span_bytes = slices_of_single(c, span).count * kSlice;
  SPANALLOC_ASSERT(span_bytes == pages->slices_of(span).count * kSlice);
  // In memory that was used before the pages that the last block had are touched again, if it will do.
  const bool stays = !fresh.zero && Classes::has_one_block(ClassId{span->shown_class.load_relaxed()}) &&
                     Singles::fits(last, span_bytes, request);
  const std::size_t offset =
      stays ? Singles::offset_of(last) : Singles::offset(span.number, span_bytes, request);
  SPANALLOC_ASSERT(request.bytes <= span_bytes - offset);
  char* p = pages->address(span.number) + offset;
  unpoison(p, Singles::bytes(address_of(p), c, span_bytes));
  if (!fresh.zero && !fresh.same_class) heap->give_slack_back(span, p, request.bytes, fresh.is_pooled);
  fill.write(p, fresh.zero);
  heap->begin_single_life(fresh, c, offset);
  return p;
}

// Has the class's list, which is empty, hold blocks, or finds that memory is out. Zero: but for their links.
template <class Config>
inline typename ThreadCache<Config>::Refilled ThreadCache<Config>::refill(ClassId c) {
  SPANALLOC_ASSERT(c != ClassId::kNone && c < Classes::kFirstLarge);
  SPANALLOC_ASSERT(pages->is_mine(cache->number));
  while (is_end(list_of(c).load_relaxed())) {
    const SpanRef span = current_span(c);
    if (!span) {
      const OwnedSpan found = find_span(c);
      if (!found && !is_end(list_of(c).load_relaxed())) continue;  // borrowed
      if (!found) return take_any_used_up(c) ? Refilled::kBlocks : Refilled::kNothing;
      make_current(c, found.span);  // first: what is wrong with its lists may be told then
      if (found.remotes != BlockOffset::kNone) add_list(found.span, found.remotes);
      continue;
    }
    if (const Refilled own = take_own_blocks(c, span); own != Refilled::kNothing) return own;
    if (take_remote_blocks(span, Classes::info(c).refill_remotes) || take_ready(c)) continue;
    if (!take_remotely_ready(c)) leave_used_up(c, span);
  }
  return Refilled::kBlocks;
}

// What other threads have freed of a current span whose list is empty.
template <class Config>
SPANALLOC_INLINE bool ThreadCache<Config>::take_remote_blocks(SpanRef span, std::uint32_t at_least) {
  const ClassInfo& info = Classes::info(span->class_id());
  SPANALLOC_ASSERT(is_end(span->free_list.load_relaxed()));
  // A stale look only delays the choice.
  if (info.blocks - span->load_word().outstanding() < at_least) return false;
  const RemoteList remotes = take_remotes(span->word, info.blocks);
  // Another thread has borrowed the list since the look.
  if (SPANALLOC_UNLIKELY(remotes.first == BlockOffset::kNone)) return false;
  Block* const list = pages->block_at_offset(span, remotes.first);
  // span_word.hpp's equation: of a current span no frees are published. (To count them always costs a walk
  // over blocks that lie in another core's cache. A block that is here for the second time has no link:
  // pop().)
  SPANALLOC_ASSERT(length_of(list, info.virtual_span, info.blocks).blocks == remotes.count);
  span->free_list.store_release(list);
  return true;
}

// The remote list that came with a span which has become hot. (It has a second list already if its last owner
// ended soon after it had adopted it.)
template <class Config>
inline void ThreadCache<Config>::add_list(SpanRef span, BlockOffset remotes) {
  Block* const list = pages->block_at_offset(span, remotes);
  Block* const rest = span->rest.load_relaxed();
  if (is_end(span->free_list.load_relaxed())) {
    span->free_list.store_release(list);
  } else if (is_end(rest)) {
    span->rest.store_release(list);
  } else {
    const ClassInfo& info = Classes::info(span->class_id());
    link_to(length_of_own_list(list, info, info.blocks, [&] { lose_lists(span); }).last, rest);
    span->rest.store_release(list);
  }
}

// The current span, if there is one, has nothing left for the class's empty list. If enough blocks of a warm
// one are back they change places.
template <class Config>
SPANALLOC_INLINE bool ThreadCache<Config>::take_ready(ClassId c) {
  if (SPANALLOC_LIKELY(!cache->used_up.has_ready())) return false;
  const unsigned i = cache->used_up.any_ready(c);
  return i != cache->used_up.kNoPlace && take_used_up(c, i);
}
// The same with what others have freed, of one of them.
template <class Config>
SPANALLOC_INLINE bool ThreadCache<Config>::take_remotely_ready(ClassId c) {
  const unsigned i = cache->used_up.any(c);
  if (i == cache->used_up.kNoPlace) return false;
  const SpanRef span = pages->span(cache->used_up.span(i));
  return is_end(span->free_list.load_relaxed()) &&
         take_remote_blocks(span, Classes::info(c).refill_remotes) && take_used_up(c, i);
}
// The same when memory is out: any block will do.
template <class Config>
SPANALLOC_COLD inline bool ThreadCache<Config>::take_any_used_up(ClassId c) {
  bool found = false;
  cache->used_up.for_each([&](unsigned i) {
    if (found || cache->used_up.class_of(i) != c) return;
    const SpanRef span = pages->span(cache->used_up.span(i));
    found = (!is_end(span->free_list.load_relaxed()) || take_remote_blocks(span, 1)) && take_used_up(c, i);
  });
  return found;
}
template <class Config>
inline bool ThreadCache<Config>::take_used_up(ClassId c, unsigned place) {
  const SpanRef span = pages->span(cache->used_up.span(place));
  SPANALLOC_ASSERT(is_current_here(span->load_word()) && !is_end(span->free_list.load_relaxed()));
  if (const SpanRef used_up = current_span(c)) join_used_up(c, used_up);
  set_current(c, span);
  span->watched = 0;
  span->expect_frees_while_owned();
  cache->used_up.leave(place, Classes::info(c).slices);
  if (SPANALLOC_UNLIKELY(++cache->events % 64 == 0)) read_clock(c);
  return true;
}

// When memory is out: what this thread, and abandoned spans, hold without need. False: nothing.
template <class Config>
SPANALLOC_COLD inline bool ThreadCache<Config>::give_back_unused() {
  if (cache == nullptr) return false;
  bool any = count_abandoned(UINT32_MAX, UINT32_MAX);
  any = return_loans() || any;
  return share_empty_used_up() || any;
}

// Of what this thread keeps warm what is empty. False: nothing.
template <class Config>
SPANALLOC_COLD inline bool ThreadCache<Config>::share_empty_used_up() {
  bool any = false;
  cache->used_up.for_each([&](unsigned i) {
    const SpanRef span = pages->span(cache->used_up.span(i));
    if (span->load_word().outstanding() != span->uncollected()) return;
    share_used_up(i);
    any = true;
  });
  return any;
}

// The current span becomes a warm one, or is parked where there is no room for such large ones.
template <class Config>
inline void ThreadCache<Config>::leave_used_up(ClassId c, SpanRef span) {
  auto& used_up = cache->used_up;
  const unsigned slices = Classes::info(c).slices;
  const bool stays = used_up.fits_at_all(slices) && !exited;
  while (stays && !used_up.fits(slices)) share_used_up(used_up.oldest());
  if (stays) join_used_up(c, span);
  leave_current(c);
  if (!stays) share(span, 0);
}

// From here on its owner's frees into it are counted; when enough have come that is an event.
template <class Config>
SPANALLOC_INLINE void ThreadCache<Config>::join_used_up(ClassId c, SpanRef span) {
  SPANALLOC_ASSERT(is_end(span->free_list.load_relaxed()) && is_end(span->rest.load_relaxed()));
  const ClassInfo& info = Classes::info(c);
  span->expect_frees(info.refill_remotes);
  cache->used_up.join(span.number, c, info.slices);
}

template <class Config>
inline void ThreadCache<Config>::share_used_up(unsigned i) {
  const SpanRef span = pages->span(cache->used_up.span(i));
  const unsigned slices = Classes::info(cache->used_up.class_of(i)).slices;
  const Collected collected = owned_to_shared(span, span->uncollected());
  cache->used_up.leave(i, slices);
  pool_or_tell(span, collected);
}

// Links up the untouched blocks that start in the next page (at least one), in address order. Of larger ones
// some more, where the memory was used before: it is there, most of it.
template <class Config>
inline Block* ThreadCache<Config>::carve(SpanRef span, ClassId c) {
  const ClassInfo& info = Classes::info(c);
  const std::uint32_t carved = span->carved.load_relaxed();
  SPANALLOC_ASSERT(carved < info.blocks && is_current_here(span->load_word()));
  const std::size_t offset = std::size_t{carved} * info.block_size;
  const std::size_t page_end = align_down(offset, kPageForTail) + kPageForTail;
  auto count = static_cast<std::uint32_t>((page_end - offset + info.block_size - 1) / info.block_size);
  if (count == 1 && !span->zero) count = kCarvedWhereUsed;
  count = static_cast<std::uint32_t>(min_of(count, info.blocks - carved));
  // Past its exit hook a thread gives the span back after each call: a page of blocks would be carved for
  // one.
  if (SPANALLOC_UNLIKELY(exited)) count = 1;
  char* first = pages->address(span.number) + offset;
  char* at = first;
  for (std::uint32_t i = 1; i < count; ++i, at += info.block_size) {
    unpoison(at, sizeof(Block));
    link_to(reinterpret_cast<Block*>(at), reinterpret_cast<Block*>(at + info.block_size));
  }
  unpoison(at, sizeof(Block));
  link_to(reinterpret_cast<Block*>(at), no_block());
  count_carved(span, info, count);
  return reinterpret_cast<Block*>(first);
}

// Links up the dropped blocks of the next dropped page, or pages, if a block touches several: at least one.
template <class Config>
SPANALLOC_COLD inline Block* ThreadCache<Config>::take_purged(SpanRef span, ClassId c) {
  const ClassInfo& info = Classes::info(c);
  std::uint64_t purged = span->purged.load_relaxed();
  SPANALLOC_ASSERT(purged != 0 && is_current_here(span->load_word()));
  Block* first = no_block();
  Block* last = nullptr;
  do {
    const std::uint64_t page = purged & -purged;
    purged &= ~page;
    for_each_purged(page, info.block_size, span->carved.load_relaxed(), [&](std::uint32_t i) {
      if ((PageMask::of_block(i, info.block_size) & purged) != 0) return;
      auto* block = reinterpret_cast<Block*>(pages->address(span.number) + std::size_t{i} * info.block_size);
      unpoison(block, sizeof(Block));
      // It has no link, unless it was freed a second time.
      if (SPANALLOC_UNLIKELY(is_link(block, link_of(block), info.virtual_span))) {
        span->purged.store_release(0);  // they are lost
        freed_twice(block);
      }
      if (last != nullptr) {
        link_to(last, block);
      } else {
        first = block;
      }
      last = block;
    });
  } while (last == nullptr);
  link_to(last, no_block());
  // Before they are on a list: to a fork's child they are out.
  span->purged.store_release(purged);
  expect_emptying(span, info, span->carved.load_relaxed());
  return first;
}

template <class Config>
SPANALLOC_INLINE FreshSpan ThreadCache<Config>::take_span(ClassId c) {
  const FreshSpan fresh = heap->take_span(c, shard());
  if (SPANALLOC_LIKELY(static_cast<bool>(fresh)) || !give_back_unused()) return fresh;
  return heap->take_span(c, shard());
}

// A span for class c, word already hot for this thread cache. None: there are blocks in the class's list now,
// which are borrowed, or memory is out.
template <class Config>
[[gnu::noinline]] inline OwnedSpan ThreadCache<Config>::find_span(ClassId c) {
  auto& protocol = heap->protocol();
  const CacheNumber me = cache->number;
  if (cache->patience.has_given_up(c)) cache->patience.needs_again(c, os::now_ms());
  // What others point out may wait while there are reusable spans: where many are freed into at random, each
  // has got more blocks back by then. (Not for ever: an empty one may be among them.)
  if (++cache->searches % kSearchesASettling != 0) {
    if (const OwnedSpan mine = protocol.partial_to_owned(c, me)) return mine;
  }
  heap->put_in_pool(protocol.collect_delayed(me), shard());
  count_abandoned_if_due();
  if (const OwnedSpan mine = protocol.partial_to_owned(c, me)) return mine;
  if (const OwnedSpan adopted = protocol.abandoned_to_owned(heap->abandoned_lists(), c, me)) return adopted;
  if (borrow(c)) return {};
  if (const FreshSpan fresh = take_span(c)) return heap->begin_owned_life(fresh, c, me);
  if (const OwnedSpan adopted = protocol.abandoned_to_owned(heap->abandoned_lists(), c, me, true))
    return adopted;
  return protocol.nearly_full_to_owned(c, me);
}

// In the thread cache first: a fork's child finds it there.
template <class Config>
SPANALLOC_INLINE void ThreadCache<Config>::set_current(ClassId c, SpanRef span) {
  cache->current[index_of(c)].store_release(span.number);
  current[index_of(c)] = span.record;
}

template <class Config>
inline void ThreadCache<Config>::make_current(ClassId c, SpanRef span) {
  const std::uint32_t i = index_of(c);
  SPANALLOC_ASSERT(cache->current[i].load_relaxed() == SpanNumber::kNone);  // one current span a class
  SPANALLOC_ASSERT(is_current_here(span->load_word()) && heap->has(span));
  set_current(c, span);
  cache->current_classes[i / 64] |= std::uint64_t{1} << i % 64;
  pages->show_in_map(*map, span, *span.record);
}

// What allocations of the class find is nothing, until the next span is hot.
template <class Config>
inline void ThreadCache<Config>::leave_current(ClassId c) {
  SPANALLOC_ASSERT(cache->current[index_of(c)].load_relaxed() != SpanNumber::kNone);
  current[index_of(c)] = &kNoTarget;
  // release: a fork's child has seen the span among the warm ones, or parked, before it sees it here no more.
  cache->current[index_of(c)].store_release(SpanNumber::kNone);
}

template <class Config>
inline void ThreadCache<Config>::share(SpanRef span, std::uint32_t free_blocks) {
  pool_or_tell(span, owned_to_shared(span, free_blocks));
}
template <class Config>
inline Collected ThreadCache<Config>::owned_to_shared(SpanRef span, std::uint32_t free_blocks) {
  SPANALLOC_ASSERT(pages->is_mine(cache->number) && heap->has(span) && is_current_here(span->load_word()));
  return heap->protocol().owned_to_shared(span, cache->number, free_blocks);
}
// It has left its place: what comes now may end in a report.
template <class Config>
inline void ThreadCache<Config>::pool_or_tell(SpanRef span, Collected collected) {
  if (collected == Collected::kEmpty) heap->put_in_pool(span, shard());
  if (SPANALLOC_UNLIKELY(collected == Collected::kDamaged)) pages->corrupted(span);
}

// As common as unaligned ones: the same short path (see SizeClasses::multiples_are_aligned).
template <class Config>
SPANALLOC_INLINE void* ThreadCache<Config>::allocate_aligned(std::size_t n, std::size_t alignment) {
  const std::size_t multiple = align_up(n, alignment);  // 0 of nothing, and where it overflows
  if (SPANALLOC_UNLIKELY(multiple - 1 >= kMaxSmallest<Config>)) return allocate_larger_aligned(n, alignment);
  return allocate(multiple);
}
template <class Config>
[[gnu::noinline]] inline void* ThreadCache<Config>::allocate_larger_aligned(std::size_t n,
                                                                            std::size_t alignment) {
  const std::size_t multiple = align_up(n, alignment);
  if (SPANALLOC_UNLIKELY(multiple - 1 >= Config::kMaxSmall)) return allocate_by_alignment(n, alignment);
  return allocate_larger<ReturnNull>(multiple, *this);
}
template <class Config>
[[gnu::noinline]] inline void* ThreadCache<Config>::allocate_by_alignment(std::size_t n,
                                                                          std::size_t alignment) {
  if (SPANALLOC_UNLIKELY(n == 0)) return allocate_aligned(1, alignment);
  const ClassId c = Classes::of_aligned(n, alignment);
  if (c == ClassId::kNone) return allocate_large({n, alignment}, Fill{});
  return allocate_class(c, {n, alignment});
}

template <class Config>
SPANALLOC_INLINE void* ThreadCache<Config>::allocate_zeroed(std::size_t n) {
  if (SPANALLOC_UNLIKELY(n > kMaxSmallest<Config>)) return allocate_larger_filled(n, Fill{nullptr, n});
  void* p = allocate(n);
  if (SPANALLOC_LIKELY(p != nullptr)) clear(p, n);
  return p;
}

template <class Config>
inline void* ThreadCache<Config>::allocate_copy(std::size_t n, const void* from, std::size_t bytes) {
  if (SPANALLOC_UNLIKELY(n > kMaxSmallest<Config>)) return allocate_larger_filled(n, Fill{from, bytes});
  void* p = allocate(n);
  if (SPANALLOC_LIKELY(p != nullptr)) std::memcpy(p, from, bytes);
  return p;
}

// Blocks are multiples of 16 bytes. Of the most common ones a call of memset would take as many instructions
// as malloc itself.
template <class Config>
SPANALLOC_INLINE void ThreadCache<Config>::clear(void* p, std::size_t bytes) {
  static_assert(kQuantum == 16);
  if (SPANALLOC_UNLIKELY(bytes > 8 * kQuantum)) {
    std::memset(p, 0, bytes);
    return;
  }
  // From both ends, which overlap. (A block of no bytes has 16.)
  auto* const first = static_cast<char*>(p);
  char* const last = first + ((bytes - (bytes != 0)) & ~(kQuantum - 1));
  std::memset(first, 0, kQuantum);
  std::memset(last, 0, kQuantum);
  if (bytes <= 2 * kQuantum) return;
  std::memset(first + kQuantum, 0, kQuantum);
  std::memset(last - kQuantum, 0, kQuantum);
  if (bytes <= 4 * kQuantum) return;
  std::memset(first + 2 * kQuantum, 0, 2 * kQuantum);
  std::memset(last - 3 * kQuantum, 0, 2 * kQuantum);
}

template <class Config>
[[gnu::noinline]] inline void* ThreadCache<Config>::allocate_larger_filled(std::size_t n, const Fill& fill) {
  if (n > Config::kMaxBlock) return allocate_large({n}, fill);
  if (n > Config::kMaxSmall) {
    if (SPANALLOC_UNLIKELY(os::in_kernel_call())) return allocate_nested({n}, fill);
    const Inside inside(*this);
    flush_one_batch();
    return heap->start() ? allocate_single(Classes::of(n), {n}, fill) : nullptr;
  }
  const MaybeZero got = n < kPageForTail || cache == nullptr ? MaybeZero{allocate(n), false}
                                                             : allocate_small_page(Classes::of(n));
  if (got.block != nullptr) fill.write(got.block, got.zero);
  return got.block;
}

// A block of a page or more is carved alone: when the list was empty, the one that refill() brings is it.
template <class Config>
inline typename ThreadCache<Config>::MaybeZero ThreadCache<Config>::allocate_small_page(ClassId c) {
  Refilled refilled = Refilled::kBlocks;
  if (is_end(list_of(c).load_relaxed())) {
    const Inside inside(*this);
    flush_one_batch();
    refilled = refill(c);
    if (refilled == Refilled::kNothing) return {nullptr, false};
  }
  void* p = allocate_small(c);
  if (refilled != Refilled::kZeroBlocks) return {p, false};
  return {p, true};
}

}  // namespace spanalloc::standard
