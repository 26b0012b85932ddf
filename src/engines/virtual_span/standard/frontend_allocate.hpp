// What malloc, calloc and aligned requests do after a miss of the thread's hot list; see engine.hpp for the
// call tree.
#pragma once

#include "engines/virtual_span/standard/engine.hpp"

namespace spanalloc::standard {

template <class Config>
template <class Policy>
SPANALLOC_INLINE void* Frontend<Config>::allocate_slow(std::size_t n) {
  void* p = nullptr;
  if (SPANALLOC_UNLIKELY(n > Config::kMaxBlock)) {
    p = allocate_large(n, kQuantum, LeaveUnfilled{});
  } else {
    const ClassId c = Classes::of(n == 0 ? 1 : n);
    if (SPANALLOC_LIKELY(c < Classes::kFirstSingle && lab != nullptr)) {
      Block*& list = head_of(c);
      Block* block = list;
      const std::uint64_t link = link_of(block);
      if (SPANALLOC_LIKELY(leads_to_block(link, Classes::info(c).virtual_span))) {
        list = block_behind(block, link);
        clear_link(block);
        unpoison(block, Classes::info(c).block_size);
        return block;
      }
    }
    p = allocate_class(c);
  }
  return SPANALLOC_LIKELY(p != nullptr) ? p : Policy::out_of_memory(n);
}

template <class Config>
inline void* Frontend<Config>::allocate_class(ClassId c) {
  const Inside inside(*this);
  flush_run_if_any();
  // No LAB left (there is room for 262,144 living threads), or no memory for one.
  if (SPANALLOC_UNLIKELY(lab_of_thread() == nullptr)) {
    return allocate_large(Classes::info(c).block_size, kQuantum, LeaveUnfilled{});
  }
  void* p = c < Classes::kFirstSingle ? allocate_listed(c) : allocate_single(c, LeaveUnfilled{});
  detach_if_exited();
  return p;
}

// An object with a span of its own, of any size and alignment.
template <class Config>
template <class Fill>
SPANALLOC_COLD inline void* Frontend<Config>::allocate_large(std::size_t n, std::size_t alignment,
                                                             Fill fill) {
  const Inside inside(*this);
  flush_run_if_any();
  if (n > kMaxRequest || alignment > kMaxRequest || !heap->start()) return nullptr;
  const GranuleCount granules = granules_for(max_of(n, 1));
  const FreshSpan fresh = heap->take_large(granules, granules_for(alignment).count, Reuse::kDirtyFirst);
  return fresh ? hand_out(fresh, Classes::kLarge, granules.count << Config::kGranuleBits, fill) : nullptr;
}

template <class Config>
inline void* Frontend<Config>::allocate_listed(ClassId c) {
  Block*& list = head_of(c);
  const ClassInfo& info = Classes::info(c);
  for (;;) {
    if (SPANALLOC_LIKELY(!is_end(list))) {
      Block* block = pop(list, info);
      if (is_end(list) && SPANALLOC_LIKELY(!exited)) top_up(c);
      return block;
    }
    if (refill(c) == Refilled::kNothing) return nullptr;
  }
}

// The last block has left the hot list: what the hot span still has comes at once. A program that now frees
// and allocates in turn would else find the list empty with each free, and one block on it with each malloc.
// (Not blocks of a page and more: of these it is to be known whether they are zero.)
template <class Config>
[[gnu::noinline]] inline void Frontend<Config>::top_up(ClassId c) {
  const SpanNumber number = lab->hot[index_of(c)].load_relaxed();
  if (number == SpanNumber::kNone || Classes::info(c).block_size >= kPageForTail) return;
  take_own_blocks(c, pages->span(number));
}

// Of its hot span, for the class's empty list: the reserve, or the next untouched blocks.
template <class Config>
SPANALLOC_INLINE typename Frontend<Config>::Refilled Frontend<Config>::take_own_blocks(ClassId c,
                                                                                       SpanRef span) {
  Block*& list = head_of(c);
  SPANALLOC_ASSERT(is_end(list));
  if (Block* reserve = span->free_list.load_relaxed(); !is_end(reserve)) {
    span->free_list.store_relaxed(pages->end_of(span));
    list = reserve;
    return Refilled::kBlocks;
  }
  if (span->carved.load_relaxed() == Classes::info(c).blocks) return Refilled::kNothing;
  list = carve(span, c);
  return span->zero ? Refilled::kZeroBlocks : Refilled::kBlocks;
}

// The first block of a list that is not empty.
template <class Config>
SPANALLOC_INLINE Block* Frontend<Config>::pop(Block*& list, const ClassInfo& info) {
  Block* block = list;
  const std::uint64_t link = link_of(block);
  if (SPANALLOC_UNLIKELY(!is_link(block, link, info.virtual_span, end_behind(block, info))))
    broken_list(block);
  Block* const next = block_behind(block, link);
  list = is_end(next) ? no_block() : next;
  clear_link(block);
  unpoison(block, info.block_size);
  return block;
}

// One block a span: it is never hot.
template <class Config>
template <class Fill>
inline void* Frontend<Config>::allocate_single(ClassId c, Fill fill) {
  const FreshSpan fresh = heap->take_span(c, core());
  return fresh ? hand_out(fresh, c, Classes::info(c).block_size, fill) : nullptr;
}

// The record says "in use" at the very last: the child of a fork before that has the memory back.
template <class Config>
template <class Fill>
inline void* Frontend<Config>::hand_out(const FreshSpan& fresh, ClassId c, std::size_t bytes, Fill fill) {
  char* p = pages->address(fresh.span.number);
  SPANALLOC_ASSERT(bytes <= pages->granules_of(fresh.span).count << Config::kGranuleBits);
  unpoison(p, bytes);
  fill(p, fresh.zero);
  heap->begin_single_life(fresh, c);
  return p;
}

// Puts blocks on the class's empty hot list, or finds that memory is out. Zero: but for their links.
template <class Config>
inline typename Frontend<Config>::Refilled Frontend<Config>::refill(ClassId c) {
  Block*& list = head_of(c);
  const ClassInfo& info = Classes::info(c);
  SPANALLOC_ASSERT(c != ClassId::kNone && c < Classes::kFirstSingle);
  SPANALLOC_ASSERT(pages->is_mine(lab->number));
  while (is_end(list)) {
    const SpanNumber number = lab->hot[index_of(c)].load_relaxed();
    if (number == SpanNumber::kNone) {
      const HotSpan found = find_span(c);
      if (!found) return Refilled::kNothing;
      if (found.remotes != BlockMark::kNone) list = pages->block_of_mark(found.span, found.remotes);
      make_hot(c, found.span);
      continue;
    }
    const SpanRef span = pages->span(number);
    if (const Refilled own = take_own_blocks(c, span); own != Refilled::kNothing) return own;
    // A stale look only delays the choice.
    if (info.blocks - span->load_word().outstanding() >= info.refill_remotes) {
      const RemoteList remotes = take_remotes(span->word, info.blocks);
      list = pages->block_of_mark(span, remotes.first);
      // span_word.hpp's equation: of a hot span no frees are published. (To count them always costs a walk
      // over blocks that lie in another core's cache. A block that is here for the second time has no link:
      // pop().)
      SPANALLOC_ASSERT(length_of(list, info.virtual_span, pages->end_of(span), info.blocks).blocks ==
                       remotes.count);
    } else {
      leave_hot(c);
      park(span, 0);
    }
  }
  return Refilled::kBlocks;
}

// Links up the untouched blocks that start in the next page (at least one), in address order.
template <class Config>
inline Block* Frontend<Config>::carve(SpanRef span, ClassId c) {
  const ClassInfo& info = Classes::info(c);
  const std::uint32_t carved = span->carved.load_relaxed();
  SPANALLOC_ASSERT(carved < info.blocks && is_hot_here(span->load_word()));
  const std::size_t offset = std::size_t{carved} * info.block_size;
  const std::size_t page_end = align_down(offset, kPageForTail) + kPageForTail;
  auto count = static_cast<std::uint32_t>((page_end - offset + info.block_size - 1) / info.block_size);
  count = static_cast<std::uint32_t>(min_of(count, info.blocks - carved));
  // Past its exit hook a thread gives the span back after each call, and what is free in it must be counted.
  if (SPANALLOC_UNLIKELY(exited)) count = 1;
  char* first = pages->address(span.number) + offset;
  char* at = first;
  for (std::uint32_t i = 1; i < count; ++i, at += info.block_size) {
    unpoison(at, sizeof(Block));
    link_to(reinterpret_cast<Block*>(at), reinterpret_cast<Block*>(at + info.block_size));
  }
  unpoison(at, sizeof(Block));
  link_to(reinterpret_cast<Block*>(at), pages->end_of(span));
  span->carved.store_relaxed(carved + count);
  let_carved_blocks_pass(span, c);
  return reinterpret_cast<Block*>(first);
}

// A span for class c, word already hot for this LAB.
template <class Config>
SPANALLOC_INLINE HotSpan Frontend<Config>::find_span(ClassId c) {
  auto& protocol = heap->protocol();
  const LabNumber me = lab->number;
  heap->put_in_pool(protocol.settle_attention(me), core());
  if (const HotSpan mine = protocol.reusable_to_hot(c, me)) return mine;
  if (const HotSpan orphan = protocol.orphan_to_hot(heap->orphanages(), c, me)) return orphan;
  if (const FreshSpan fresh = heap->take_span(c, core())) {
    heap->begin_hot_life(fresh, c, me);
    return {fresh.span};
  }
  if (const HotSpan orphan = protocol.orphan_to_hot(heap->orphanages(), c, me, true)) return orphan;
  return protocol.floating_to_hot(c, me);
}

// Blocks that were never carved are nobody's to free: the checks for a block's start refuse them, too.
template <class Config>
inline void Frontend<Config>::let_carved_blocks_pass(SpanRef span, ClassId c) {
  const ClassInfo& info = Classes::info(c);
  if (info.order != 0) return;  // is_start() looks at `carved` itself
  const std::uint32_t limit = multiple_limit32(info.block_size, span->carved.load_relaxed());
  // Relaxed: whoever is handed a block by another thread has been given this limit with it.
  span->start_limit.store_relaxed(limit);
  if (index_of(c) < State::kLists) start[index_of(c)].limit = limit;
}

template <class Config>
inline void Frontend<Config>::make_hot(ClassId c, SpanRef span) {
  const std::uint32_t i = index_of(c);
  SPANALLOC_ASSERT(lab->hot[i].load_relaxed() == SpanNumber::kNone);  // one hot span a class
  SPANALLOC_ASSERT(is_hot_here(span->load_word()) && heap->has(span));
  lab->hot[i].store_relaxed(span.number);
  lab->hot_classes[i / 64] |= std::uint64_t{1} << i % 64;
  if (i >= State::kLists) return;
  let_carved_blocks_pass(span, c);
  const std::uintptr_t page = address_of(pages->address(span.number)) >> Config::kGranuleBits;
  // An empty list begins with no_block(). What shares that granule is nobody's block: its hint stays class 0,
  // where no address is a block's start.
  if (((page ^ (address_of(no_block()) >> Config::kGranuleBits)) & 0xff) == 0) return;
  hint[page & 0xff] = static_cast<std::uint8_t>(i);
}

// Its list is empty: what frees and allocations of the class find is nothing, until the next span is hot.
template <class Config>
inline void Frontend<Config>::leave_hot(ClassId c) {
  SPANALLOC_ASSERT(lab->hot[index_of(c)].load_relaxed() != SpanNumber::kNone && is_end(head_of(c)));
  lab->hot[index_of(c)].store_relaxed(SpanNumber::kNone);
}

template <class Config>
inline void Frontend<Config>::park(SpanRef span, std::uint32_t free_blocks) {
  SPANALLOC_ASSERT(pages->is_mine(lab->number) && heap->has(span) && is_hot_here(span->load_word()));
  if (heap->protocol().hot_to_parked(span, lab->number, free_blocks)) heap->put_in_pool(span, core());
}

template <class Config>
inline void* Frontend<Config>::allocate_aligned(std::size_t n, std::size_t alignment) {
  // As common as unaligned ones: the same short path (see SizeClasses::multiples_are_aligned).
  const std::size_t multiple = align_up(max_of(n, 1), alignment);  // 0 where it overflows
  if (SPANALLOC_LIKELY(multiple - 1 < Config::kMaxListed)) return allocate(multiple);
  const ClassId c = Classes::of_aligned(n, alignment);
  if (c == ClassId::kNone) return allocate_large(n, alignment, LeaveUnfilled{});
  return allocate_class(c);
}

template <class Config>
inline void* Frontend<Config>::allocate_zeroed(std::size_t n) {
  return allocate_filled(n, [n](void* p, bool zero) {
    if (!zero) std::memset(p, 0, n);
  });
}

template <class Config>
inline void* Frontend<Config>::allocate_copy(std::size_t n, const void* from, std::size_t bytes) {
  return allocate_filled(n, [from, bytes](void* p, bool) { std::memcpy(p, from, bytes); });
}

template <class Config>
template <class Fill>
SPANALLOC_INLINE void* Frontend<Config>::allocate_filled(std::size_t n, Fill fill) {
  if (SPANALLOC_LIKELY(n <= kMaxInThread<Config>)) {
    void* p = allocate(n);
    if (SPANALLOC_LIKELY(p != nullptr)) fill(p, false);
    return p;
  }
  if (n > Config::kMaxBlock) return allocate_large(n, kQuantum, fill);
  if (n > Config::kMaxListed) {
    const Inside inside(*this);
    flush_run_if_any();
    return heap->start() ? allocate_single(Classes::of(n), fill) : nullptr;
  }
  const MaybeZero got = n < kPageForTail || lab == nullptr ? MaybeZero{allocate(n), false}
                                                           : allocate_listed_page(Classes::of(n));
  if (got.block != nullptr) fill(got.block, got.zero);
  return got.block;
}

// A block of a page or more is carved alone: when the list was empty, the one that refill() brings is it.
template <class Config>
inline typename Frontend<Config>::MaybeZero Frontend<Config>::allocate_listed_page(ClassId c) {
  Refilled refilled = Refilled::kBlocks;
  if (is_end(head_of(c))) {
    const Inside inside(*this);
    flush_run_if_any();
    refilled = refill(c);
    if (refilled == Refilled::kNothing) return {nullptr, false};
  }
  void* p = allocate_listed(c);
  if (refilled != Refilled::kZeroBlocks) return {p, false};
  return {p, true};
}

}  // namespace spanalloc::standard
