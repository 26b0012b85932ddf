// The slow paths of malloc, calloc and aligned requests; thread_cache.hpp has their call tree.
#pragma once

#include "engines/standard/thread_cache.hpp"

namespace spanalloc::standard {

// The short path once more, for classes that are not looked up by the byte.
template <class Config>
template <class Policy>
void* ThreadCache<Config>::allocate_larger(std::size_t n, ThreadCache& self) {
  if (SPANALLOC_UNLIKELY(n > Config::kMaxSmall)) return allocate_single_or_large<Policy>(n, self);
  const std::size_t c = kClassOfSteps<Config>[(n + kStepOfLarger - 1) / kStepOfLarger];
  FreeTarget& target = *self.current[c];
  Block* block = target.free_list.pop_if_not_last(kNoLinkBits<Config>[c]);
  if (SPANALLOC_UNLIKELY(block == nullptr)) return allocate_missed<Policy>(n, self);
  unpoison(block, Classes::kTable[c].block_size);
  return block;
}

// A block with a span of its own: the cached large span that the thread has freed
// last, if its class fits.
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

// Moves the block of a cached large span, which is in use again: the request would not fit behind
// its beginning, or would not be aligned there. (No other thread looks at that, because no block of
// the span is out. It still begins in its first slice.)
template <class Config>
void* ThreadCache<Config>::fit_cached(std::size_t n, ThreadCache& self, Span* large,
                                      std::size_t alignment) {
  const ClassId c{large->shown_class.load_relaxed()};
  const std::uintptr_t first = align_down(large->shown.base.load_relaxed(), kSlice);
  const SpanRef span{large, SpanNumber{static_cast<std::uint32_t>(self.pages->slice_of(first))}};
  const std::size_t offset =
      Singles::offset(span.number, Classes::info(c).virtual_span, {n, alignment});
  span->shown.base.store_relaxed(first + offset);
  Heap::set_room(span, c);
  return self.as_block(*large, c);
}

// The block of a cached large span, which is in use again.
template <class Config>
SPANALLOC_INLINE void* ThreadCache<Config>::as_block(const Span& large, ClassId c) {
  void* p = pointer_to(large.shown.base.load_relaxed());
  unpoison(p, min_of(std::size_t{large.room}, std::size_t{Classes::info(c).block_size}));
  return p;
}

// A block from any of the thread's cached large spans of the class; nullptr: there is none.
template <class Config>
[[gnu::noinline]] inline void* ThreadCache<Config>::take_cached(ClassId c, Request request) {
  if (SPANALLOC_UNLIKELY(cache == nullptr)) return nullptr;
  Span* large = cache->large_spans.take(c, slices_of_cached);
  if (large == nullptr) return nullptr;
  if (request.bytes > large->room ||
      !Singles::is_aligned(large->shown.base.load_relaxed(), request)) {
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

// Hands out the last block of the current span's list, and refills the list at once: a program that
// frees and allocates in turn would else find one block with each malloc, and none with the next.
// nullptr: there is none. (Blocks of a page and more are carved one by one as long as none is
// freed, because it must be known which are zero, and untouched pages are best left so; in memory
// that was used before, a few at a time.)
template <class Config>
[[gnu::noinline]] inline Block* ThreadCache<Config>::allocate_last(ClassId c) {
  const ClassInfo& info = Classes::info(c);
  if (list_of(c).is_empty()) {
    Block* block = info.block_size >= kPageForTail ? carve_one(c) : nullptr;
    if (block != nullptr && !current_span(c)->zero) take_own_blocks(c, current_span(c));
    return block;
  }
  Block* block = pop(list_of(c), info);
  if (SPANALLOC_UNLIKELY(exited) || !list_of(c).is_empty()) return block;
  const SpanRef span = current_span(c);
  if (SPANALLOC_UNLIKELY(!span)) return block;  // the block is the last one of a loan
  if (is_all_on_list(span, info)) {
    take_ready(c);
  } else {
    take_own_blocks(c, span);
  }
  return block;
}

// Carves the next block of the current span; nullptr: there is none.
template <class Config>
SPANALLOC_INLINE Block* ThreadCache<Config>::carve_one(ClassId c) {
  if (SPANALLOC_UNLIKELY(cache == nullptr)) return nullptr;
  const ClassInfo& info = Classes::info(c);
  const SpanRef span = current_span(c);
  if (SPANALLOC_UNLIKELY(!span) || span->carved.load_relaxed() == info.blocks) return nullptr;
  if (SPANALLOC_UNLIKELY(!span->rest.is_empty())) return nullptr;
  auto* block = pointer_to<Block>(span->blocks.base.read_own() +
                                  std::size_t{span->carved.load_relaxed()} * info.block_size);
  count_carved(span, info, 1);
  unpoison(block, info.block_size);
  block->clear_link();
  return block;
}

template <class Config>
SPANALLOC_INLINE void ThreadCache<Config>::count_carved(SpanRef span, const ClassInfo& info,
                                                        std::uint32_t count) {
  const std::uint32_t before = span->carved.load_relaxed();
  const std::uint32_t carved = before + count;
  span->carved.store_relaxed(carved);
  // The limit says which blocks may be freed: those that were carved. (A thread that gets a block
  // from another thread has been given this limit with it.)
  const std::uint64_t limit = multiple_limit(info.block_size, info.magic, carved);
  span->blocks.limit.store_relaxed(limit);
  span->shown.limit.store_relaxed(limit);
  expect_emptying(span, info, before == 0 ? 1 : before);
}

// The list of a current span has just ended, so `out` of its blocks may be out. When half of these
// are free again, the owner looks whether it is giving the span up (look_at_current()). This is set
// each time the list goes on with blocks that were not on it before: a program that goes on in the
// span pays nothing. It is not set for a span that has carved little: giving it up costs a busy
// thread more than it gains.
template <class Config>
SPANALLOC_INLINE void ThreadCache<Config>::expect_emptying(SpanRef span, const ClassInfo& info,
                                                           std::uint32_t out) {
  span->watched = Watch::kGrown;
  if (span->carved.load_relaxed() * info.block_size <= kLittleForCurrent) return;
  span->expect_emptying(out - out / 2, 0);
}

// Within a kernel call. Small blocks are aligned as their size is: the request does not tell more.
template <class Config>
SPANALLOC_COLD inline void* ThreadCache<Config>::allocate_nested(Request request, ClassId c) {
  if (c >= Classes::kFirstLarge) return NestedBlocks::allocate(request.bytes, request.alignment);
  const std::size_t bytes = Classes::info(c).block_size;
  return NestedBlocks::allocate(bytes, bytes & (0 - bytes));
}
template <class Config>
SPANALLOC_COLD inline void* ThreadCache<Config>::allocate_nested(Request request,
                                                                 const Fill& fill) {
  if (request.bytes > kMaxRequest || request.alignment > kMaxRequest) return nullptr;
  void* p = NestedBlocks::allocate(request.bytes, request.alignment);
  if (p != nullptr) fill.write(p, false);
  return p;
}

template <class Config>
inline void* ThreadCache<Config>::allocate_class(ClassId c, Request request) {
  if (SPANALLOC_UNLIKELY(os::in_kernel_call())) return allocate_nested(request, c);
  NestedBlocks::free_put_off([this](void* p) { deallocate(p); });
  pages->memory_return.want_background();
  const Inside inside(*this);
  flush_one_batch();
  // There is no cache record left (there is room for 262,144 living threads), or no memory for one.
  if (SPANALLOC_UNLIKELY(record_of_thread() == nullptr)) {
    // Small blocks are aligned as their size is.
    if (c < Classes::kFirstLarge)
      return allocate_large({Classes::info(c).block_size, kSlice}, Fill{});
    return allocate_large(request, Fill{});
  }
  if (SPANALLOC_UNLIKELY(++cache->misses % kMissesALook == 0)) share_unused(os::now_ms(), c);
  void* p = c < Classes::kFirstLarge ? allocate_small(c) : allocate_single(c, request, Fill{});
  detach_if_exited();
  return p;
}

// An object with a span of its own, of any size and alignment.
template <class Config>
SPANALLOC_COLD inline void* ThreadCache<Config>::allocate_large(Request request, const Fill& fill) {
  if (SPANALLOC_UNLIKELY(os::in_kernel_call())) return allocate_nested(request, fill);
  NestedBlocks::free_put_off([this](void* p) { deallocate(p); });
  pages->memory_return.want_background();
  const Inside inside(*this);
  flush_one_batch();
  if (request.bytes > kMaxRequest || request.alignment > kMaxRequest || !heap->start())
    return nullptr;
  const SliceCount slices = slices_for(max_of(request.bytes, 1));
  const std::size_t multiple = slices_for(request.alignment).count;
  FreshSpan fresh = heap->take_huge(slices, multiple, Reuse::kDirtyFirst);
  if (SPANALLOC_UNLIKELY(!fresh) && give_back_unused()) {
    fresh = heap->take_huge(slices, multiple, Reuse::kDirtyFirst);
  }
  if (!fresh) return nullptr;
  if (fill.is_zero() && !fresh.zero)
    fresh.zero = pages->memory_return.zero_by_purging(fresh.span, slices);
  return hand_out(fresh, Classes::kHuge, request, fill);
}

template <class Config>
inline void* ThreadCache<Config>::allocate_small(ClassId c) {
  while (list_of(c).is_empty()) {
    if (refill(c) == Refilled::kNothing) return nullptr;
  }
  return pop(list_of(c), Classes::info(c));
}

// Refills the current span's empty list: with its second list, purged blocks, or
// the next untouched ones.
template <class Config>
[[gnu::noinline]] inline typename ThreadCache<Config>::Refilled
ThreadCache<Config>::take_own_blocks(ClassId c, SpanRef span) {
  SPANALLOC_ASSERT(span->free_list.is_empty() && is_owned_here(span->load_word()));
  if (SPANALLOC_UNLIKELY(!span->rest.is_empty())) {
    // In this order a fork's child finds the list once, or not at all.
    span->free_list.set(span->rest.take_all());
    return Refilled::kBlocks;
  }
  if (SPANALLOC_UNLIKELY(span->purged.load_relaxed() != 0)) {
    span->free_list.set(take_purged(span, c));
    return Refilled::kBlocks;
  }
  if (span->carved.load_relaxed() == Classes::info(c).blocks) return Refilled::kNothing;
  span->free_list.set(carve(span, c));
  return span->zero ? Refilled::kZeroBlocks : Refilled::kBlocks;
}

// Takes the first block off a list that is not empty.
template <class Config>
SPANALLOC_INLINE Block* ThreadCache<Config>::pop(FreeList& list, const ClassInfo& info) {
  Block* block = list.pop(info.virtual_span);
  if (SPANALLOC_UNLIKELY(block == nullptr)) Misuse::retire_list(list);
  unpoison(block, info.block_size);
  return block;
}

// A block with a span of its own. No thread owns such a span.
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

// The span's record says "in use" last of all: until then a fork's child finds the memory free.
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
  // In used memory the block begins where the last one did, if that will do:
  // those pages are in memory.
  const bool stays = !fresh.zero &&
                     Classes::has_one_block(ClassId{span->shown_class.load_relaxed()}) &&
                     Singles::fits(last, span_bytes, request);
  const std::size_t offset =
      stays ? Singles::offset_of(last) : Singles::offset(span.number, span_bytes, request);
  SPANALLOC_ASSERT(request.bytes <= span_bytes - offset);
  char* p = pages->address(span.number) + offset;
  unpoison(p, Singles::bytes(address_of(p), c, span_bytes));
  if (!fresh.zero && !fresh.same_class)
    pages->memory_return.purge_slack(span, p, request.bytes, fresh.is_pooled);
  fill.write(p, fresh.zero);
  heap->begin_single_life(fresh, c, offset);
  return p;
}

// Refills the class's empty list. kNothing: memory is out. kZeroBlocks: they are
// zero but for their links.
template <class Config>
inline typename ThreadCache<Config>::Refilled ThreadCache<Config>::refill(ClassId c) {
  SPANALLOC_ASSERT(c != ClassId::kNone && c < Classes::kFirstLarge);
  SPANALLOC_ASSERT(pages->is_mine(cache->number));
  while (list_of(c).is_empty()) {
    const SpanRef span = current_span(c);
    if (!span) {
      const OwnedSpan found = find_span(c);
      if (!found && !list_of(c).is_empty()) continue;  // blocks were borrowed
      if (!found) return take_any_used_up(c) ? Refilled::kBlocks : Refilled::kNothing;
      make_current(c, found.span);  // first: add_list() may report damage
      if (found.remotes != BlockOffset::kNone) add_list(found.span, found.remotes);
      continue;
    }
    if (const Refilled own = take_own_blocks(c, span); own != Refilled::kNothing) return own;
    if (take_remote_blocks(span, Classes::info(c).refill_remotes) || take_ready(c)) continue;
    if (!take_remotely_ready(c)) current_to_used_up(c, span);
  }
  return Refilled::kBlocks;
}

// Refills an owned span's empty list with what other threads have freed of it, if that is enough.
template <class Config>
SPANALLOC_INLINE bool ThreadCache<Config>::take_remote_blocks(SpanRef span,
                                                              std::uint32_t at_least) {
  const ClassInfo& info = Classes::info(span->class_id());
  SPANALLOC_ASSERT(span->free_list.is_empty());
  // An old value only delays the choice.
  if (info.blocks - span->load_word().outstanding() < at_least) return false;
  const RemoteList remotes = span->word.take_remotes(info.blocks);
  // Another thread has borrowed the list since that look.
  if (SPANALLOC_UNLIKELY(remotes.first == BlockOffset::kNone)) return false;
  Block* const list = pages->block_at_offset(span, remotes.first);
  // span_word.hpp's equation: of an owned span the word counts no other frees. (Only the assertion
  // counts the list, because that is a walk over blocks in another CPU's cache. pop() finds a block
  // that is here a second time: it has no link.)
  SPANALLOC_ASSERT(length_of(list, info.virtual_span, info.blocks).blocks == remotes.count);
  span->free_list.set(list);
  return true;
}

// Adds the remote list of a span that has become owned. (It has a second list already if its last
// owner ended soon after adopting it.)
template <class Config>
inline void ThreadCache<Config>::add_list(SpanRef span, BlockOffset remotes) {
  Block* const list = pages->block_at_offset(span, remotes);
  if (span->free_list.is_empty()) {
    span->free_list.set(list);
  } else if (span->rest.is_empty()) {
    span->rest.set(list);
  } else {
    const ClassInfo& info = Classes::info(span->class_id());
    span->rest.prepend(list, Misuse::length_of_own_list(list, info, info.blocks, [&] {
                               Misuse::retire_lists(*this, span);
                             }).last);
  }
}

// If enough blocks of a used-up span are free again, it changes places with the current span, if
// there is one, which has nothing left for the class's empty list.
template <class Config>
SPANALLOC_INLINE bool ThreadCache<Config>::take_ready(ClassId c) {
  if (SPANALLOC_LIKELY(!cache->used_up.has_ready())) return false;
  const unsigned i = cache->used_up.any_ready(c);
  return i != cache->used_up.kNoPlace && take_used_up(c, i);
}
// Makes a used-up span of the class current if other threads have freed enough of it.
template <class Config>
SPANALLOC_INLINE bool ThreadCache<Config>::take_remotely_ready(ClassId c) {
  const unsigned i = cache->used_up.any(c);
  if (i == cache->used_up.kNoPlace) return false;
  const SpanRef span = pages->span(cache->used_up.span(i));
  return span->free_list.is_empty() && take_remote_blocks(span, Classes::info(c).refill_remotes) &&
         take_used_up(c, i);
}
// When memory is out: makes a used-up span of the class current that has any free block.
template <class Config>
SPANALLOC_COLD inline bool ThreadCache<Config>::take_any_used_up(ClassId c) {
  bool found = false;
  cache->used_up.for_each([&](unsigned i) {
    if (found || cache->used_up.class_of(i) != c) return;
    const SpanRef span = pages->span(cache->used_up.span(i));
    found = (!span->free_list.is_empty() || take_remote_blocks(span, 1)) && take_used_up(c, i);
  });
  return found;
}
template <class Config>
inline bool ThreadCache<Config>::take_used_up(ClassId c, unsigned place) {
  const SpanRef span = pages->span(cache->used_up.span(place));
  SPANALLOC_ASSERT(is_owned_here(span->load_word()) && !span->free_list.is_empty());
  if (const SpanRef used_up = current_span(c)) join_used_up(c, used_up);
  set_current(c, span);
  span->watched = 0;
  span->expect_frees_while_owned();
  cache->used_up.leave(place, Classes::info(c).slices);
  if (SPANALLOC_UNLIKELY(++cache->events % 64 == 0)) read_clock(c);
  return true;
}

// When memory is out: gives back what this thread and abandoned spans hold
// without need. False: nothing.
template <class Config>
SPANALLOC_COLD inline bool ThreadCache<Config>::give_back_unused() {
  if (cache == nullptr) return false;
  bool any = count_abandoned(UINT32_MAX, UINT32_MAX);
  any = cache->loans.return_all(*this) || any;
  return share_empty_used_up() || any;
}

// Shares this thread's used-up spans that are empty. False: there was none.
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

// The current span becomes a used-up one, or is shared if there is no room for such large ones.
template <class Config>
inline void ThreadCache<Config>::current_to_used_up(ClassId c, SpanRef span) {
  auto& used_up = cache->used_up;
  const unsigned slices = Classes::info(c).slices;
  const bool stays = used_up.fits_at_all(slices) && !exited;
  while (stays && !used_up.fits(slices)) share_used_up(used_up.oldest());
  if (stays) join_used_up(c, span);
  leave_current(c);
  if (!stays) share(span, 0);
}

// From here on the owner's frees into the span are counted: the one that
// makes it ready is an event.
template <class Config>
SPANALLOC_INLINE void ThreadCache<Config>::join_used_up(ClassId c, SpanRef span) {
  SPANALLOC_ASSERT(span->free_list.is_empty() && span->rest.is_empty());
  const ClassInfo& info = Classes::info(c);
  span->expect_frees(info.refill_remotes);
  cache->used_up.join(span.number, c, info.slices);
}

template <class Config>
inline void ThreadCache<Config>::share_used_up(unsigned i) {
  const SpanRef span = pages->span(cache->used_up.span(i));
  const unsigned slices = Classes::info(cache->used_up.class_of(i)).slices;
  const Freed collected = owned_to_shared(span, span->uncollected());
  cache->used_up.leave(i, slices);
  pool_or_tell(span, collected);
}

// Carves the blocks that start in the next page (at least one), in address order, and
// links them up. Of larger blocks it carves some more where the memory was used before:
// most of their pages are there.
template <class Config>
inline Block* ThreadCache<Config>::carve(SpanRef span, ClassId c) {
  const ClassInfo& info = Classes::info(c);
  const std::uint32_t carved = span->carved.load_relaxed();
  SPANALLOC_ASSERT(carved < info.blocks && is_owned_here(span->load_word()));
  const std::size_t offset = std::size_t{carved} * info.block_size;
  const std::size_t page_end = align_down(offset, kPageForTail) + kPageForTail;
  auto count =
      static_cast<std::uint32_t>((page_end - offset + info.block_size - 1) / info.block_size);
  if (count == 1 && !span->zero) count = kCarvedWhereUsed;
  count = static_cast<std::uint32_t>(min_of(count, info.blocks - carved));
  // After its exit hook a thread gives the span back with each call: one block is enough.
  if (SPANALLOC_UNLIKELY(exited)) count = 1;
  Block* const first = link_up(pages->address(span.number) + offset, info.block_size, count);
  count_carved(span, info, count);
  return first;
}

// Links up the purged blocks of the next purged page, or pages, if a block
// touches several: at least one.
template <class Config>
SPANALLOC_COLD inline Block* ThreadCache<Config>::take_purged(SpanRef span, ClassId c) {
  const ClassInfo& info = Classes::info(c);
  std::uint64_t purged = span->purged.load_relaxed();
  SPANALLOC_ASSERT(purged != 0 && is_owned_here(span->load_word()));
  Block* first = no_block();
  Block* last = nullptr;
  do {
    const std::uint64_t page = purged & -purged;
    purged &= ~page;
    for_each_purged(page, info.block_size, span->carved.load_relaxed(), [&](std::uint32_t i) {
      if ((PageMask::of_block(i, info.block_size) & purged) != 0) return;
      auto* block =
          reinterpret_cast<Block*>(pages->address(span.number) + std::size_t{i} * info.block_size);
      unpoison(block, sizeof(Block));
      // It has no link, unless it was freed a second time.
      if (SPANALLOC_UNLIKELY(block->has_link(info.virtual_span))) {
        span->purged.store_release(0);  // they are lost
        Misuse::freed_twice(block);
      }
      if (last != nullptr) {
        last->link_to(block);
      } else {
        first = block;
      }
      last = block;
    });
  } while (last == nullptr);
  last->link_to(no_block());
  // Before they are on a list: a fork's child takes them as out.
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

// A span for class c, which this thread owns now. None: the list has borrowed
// blocks, or memory is out.
template <class Config>
[[gnu::noinline]] inline OwnedSpan ThreadCache<Config>::find_span(ClassId c) {
  auto& protocol = heap->protocol();
  const CacheNumber me = cache->number;
  if (cache->patience.has_given_up(c)) cache->patience.needs_again(c, os::now_ms());
  // Delayed spans may wait while there are partial ones: where threads free into many spans at
  // random, each gets more blocks back meanwhile. (Not for ever: an empty one may be among them.)
  if (++cache->searches % kSearchesACollection != 0) {
    if (const OwnedSpan mine = protocol.partial_to_owned(c, me)) return mine;
  }
  heap->put_in_pool(protocol.collect_delayed(me), shard());
  count_abandoned_if_due();
  if (const OwnedSpan mine = protocol.partial_to_owned(c, me)) return mine;
  if (const OwnedSpan adopted = protocol.abandoned_to_owned(heap->abandoned_lists(), c, me))
    return adopted;
  if (cache->loans.borrow(*this, c)) return {};
  if (const FreshSpan fresh = take_span(c)) return heap->begin_owned_life(fresh, c, me);
  if (const OwnedSpan adopted = protocol.abandoned_to_owned(heap->abandoned_lists(), c, me, true))
    return adopted;
  return protocol.nearly_full_to_owned(c, me);
}

// In the record first, where a fork's child finds it.
template <class Config>
SPANALLOC_INLINE void ThreadCache<Config>::set_current(ClassId c, SpanRef span) {
  cache->current[index_of(c)].store_release(span.number);
  current[index_of(c)] = span.record;
}

template <class Config>
inline void ThreadCache<Config>::make_current(ClassId c, SpanRef span) {
  const std::uint32_t i = index_of(c);
  // One current span a class
  SPANALLOC_ASSERT(cache->current[i].load_relaxed() == SpanNumber::kNone);
  SPANALLOC_ASSERT(is_owned_here(span->load_word()) && heap->has(span));
  set_current(c, span);
  cache->current_classes[i / 64] |= std::uint64_t{1} << i % 64;
  pages->maps.show(*map, span, *span.record);
}

// The class has no current span until the next make_current().
template <class Config>
inline void ThreadCache<Config>::leave_current(ClassId c) {
  SPANALLOC_ASSERT(cache->current[index_of(c)].load_relaxed() != SpanNumber::kNone);
  current[index_of(c)] = &kNoTarget;
  // Release: a fork's child that finds no span here finds it used up, or shared.
  cache->current[index_of(c)].store_release(SpanNumber::kNone);
}

template <class Config>
inline void ThreadCache<Config>::share(SpanRef span, std::uint32_t free_blocks) {
  pool_or_tell(span, owned_to_shared(span, free_blocks));
}
template <class Config>
inline Freed ThreadCache<Config>::owned_to_shared(SpanRef span, std::uint32_t free_blocks) {
  SPANALLOC_ASSERT(pages->is_mine(cache->number) && heap->has(span) &&
                   is_owned_here(span->load_word()));
  return heap->protocol().owned_to_shared(span, cache->number, free_blocks);
}
// The span has left its place already, because this may end in a report.
template <class Config>
inline void ThreadCache<Config>::pool_or_tell(SpanRef span, Freed collected) {
  if (collected == Freed::kEmptied) heap->put_in_pool(span, shard());
  if (SPANALLOC_UNLIKELY(collected == Freed::kRefused)) pages->corrupted(span);
}

// Aligned requests are common, and take the same short path (see
// SizeClasses::multiples_are_aligned).
template <class Config>
SPANALLOC_INLINE void* ThreadCache<Config>::allocate_aligned(std::size_t n, std::size_t alignment) {
  const std::size_t multiple = align_up(n, alignment);  // 0 if n is 0, or where it overflows
  if (SPANALLOC_UNLIKELY(multiple - 1 >= kMaxSmallest<Config>))
    return allocate_larger_aligned(n, alignment);
  return allocate(multiple);
}
template <class Config>
[[gnu::noinline]] inline void* ThreadCache<Config>::allocate_larger_aligned(std::size_t n,
                                                                            std::size_t alignment) {
  const std::size_t multiple = align_up(n, alignment);
  if (SPANALLOC_UNLIKELY(multiple - 1 >= Config::kMaxSmall))
    return allocate_by_alignment(n, alignment);
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
  if (SPANALLOC_UNLIKELY(n > kMaxSmallest<Config>))
    return allocate_larger_filled(n, Fill{nullptr, n});
  void* p = allocate(n);
  if (SPANALLOC_LIKELY(p != nullptr)) clear(p, n);
  return p;
}

template <class Config>
inline void* ThreadCache<Config>::allocate_copy(std::size_t n, const void* from,
                                                std::size_t bytes) {
  if (SPANALLOC_UNLIKELY(n > kMaxSmallest<Config>))
    return allocate_larger_filled(n, Fill{from, bytes});
  void* p = allocate(n);
  if (SPANALLOC_LIKELY(p != nullptr)) std::memcpy(p, from, bytes);
  return p;
}

// Blocks are multiples of 16 bytes. For the most common ones a call of memset would take as many
// instructions as malloc itself.
template <class Config>
SPANALLOC_INLINE void ThreadCache<Config>::clear(void* p, std::size_t bytes) {
  static_assert(kQuantum == 16);
  if (SPANALLOC_UNLIKELY(bytes > 8 * kQuantum)) {
    std::memset(p, 0, bytes);
    return;
  }
  // From both ends, which overlap. (A block for 0 bytes has 16.)
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
[[gnu::noinline]] inline void* ThreadCache<Config>::allocate_larger_filled(std::size_t n,
                                                                           const Fill& fill) {
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

// A block of a page or more is carved alone: into an empty list refill() brings just that one.
template <class Config>
inline typename ThreadCache<Config>::MaybeZero ThreadCache<Config>::allocate_small_page(ClassId c) {
  Refilled refilled = Refilled::kBlocks;
  if (list_of(c).is_empty()) {
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
