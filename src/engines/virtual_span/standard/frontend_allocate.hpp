// What malloc, calloc and aligned requests do after a miss of the thread's hot list; see frontend.hpp for the
// call tree.
#pragma once

#include "engines/virtual_span/standard/frontend.hpp"

namespace spanalloc::standard {

template <class Policy>
[[gnu::noinline]] inline void* Frontend::allocate_slow(std::size_t n) {
  if (SPANALLOC_UNLIKELY(n > kMaxBlock)) {
    void* p = allocate_large(n, kQuantum, as_it_is);
    return SPANALLOC_LIKELY(p != nullptr) ? p : Policy::out_of_memory(n);
  }
  const unsigned c = class_of(n == 0 ? 1 : n);
  Lab* lab = thread_state.lab;
  if (SPANALLOC_LIKELY(c < kFirstSingle && lab != nullptr)) {
    Block*& head = head_of(lab, c);
    Block* block = head;
    const std::uint64_t link = block->link;
    if (SPANALLOC_LIKELY(link - 1 < kClassTable[c].virtual_span - std::uint64_t{1})) {
      head = pointer_to<Block>(address_of(block) ^ link);
      unpoison(block, kClassTable[c].block_size);
      return block;
    }
  }
  void* p = allocate_class(c);
  return SPANALLOC_LIKELY(p != nullptr) ? p : Policy::out_of_memory(n);
}

inline void* Frontend::allocate_class(unsigned c) {
  const InsideHeap inside;
  if (thread_state.run.count != 0) flush_run();
  Lab* lab = lab_of_thread();
  // No LAB left (there is room for 262,144 living threads), or no memory for one.
  if (SPANALLOC_UNLIKELY(lab == nullptr))
    return allocate_large(kClassTable[c].block_size, kQuantum, as_it_is);
  void* p =
      c < kFirstSingle ? allocate_listed(lab, c) : allocate_single(c, Heap::core_of(lab->number), as_it_is);
  if (SPANALLOC_UNLIKELY(thread_state.exited)) detach(lab);
  return p;
}

// An object with a span of its own, of any size and alignment.
template <class Fill>
SPANALLOC_COLD inline void* Frontend::allocate_large(std::size_t n, std::size_t alignment, Fill fill) {
  const InsideHeap inside;
  if (thread_state.run.count != 0) flush_run();
  if (n > kMaxRequest || alignment > kMaxRequest || !Heap::start()) return nullptr;
  const std::size_t granules = granules_for(max_of(n, 1));
  const std::uint32_t number = Heap::take_large(granules, granules_for(alignment), Heap::Reuse::kDirtyFirst);
  return number == 0 ? nullptr : hand_out(number, kLargeClass, granules << kGranuleBits, fill);
}

inline void* Frontend::allocate_listed(Lab* lab, unsigned c) {
  Block*& head = head_of(lab, c);
  const ClassInfo& info = kClassTable[c];
  for (;;) {
    Block* block = head;
    if (SPANALLOC_LIKELY(block != no_block())) {
      Block* next = next_of(block);
      if (SPANALLOC_UNLIKELY(block->link - 1 >= info.virtual_span - std::uint64_t{1}) && next != no_block()) {
        os::fatal("free list overwritten (write after free?) at", block);
      }
      head = next;
      unpoison(block, info.block_size);
      return block;
    }
    bool zero = false;
    if (!refill(lab, c, zero)) return nullptr;
  }
}

// One block a span: it is never hot.
template <class Fill>
inline void* Frontend::allocate_single(unsigned c, unsigned core, Fill fill) {
  const std::uint32_t number = Heap::take_span(c, core);
  return number == 0 ? nullptr : hand_out(number, c, kClassTable[c].block_size, fill);
}

// The record says "in use" at the very last: the child of a fork before that has the memory back.
template <class Fill>
inline void* Frontend::hand_out(std::uint32_t number, unsigned c, std::size_t bytes, Fill fill) {
  char* p = Heap::address(number);
  unpoison(p, bytes);
  fill(p, Heap::span(number).zero);
  Heap::make_single(number, c);
  return p;
}

// Puts blocks on the class's empty hot list; `zero`: they read as zero but for their links. False: out of
// memory.
inline bool Frontend::refill(Lab* lab, unsigned c, bool& zero) {
  Block*& head = head_of(lab, c);
  const ClassInfo& info = kClassTable[c];
  SPANALLOC_ASSERT(lab == thread_state.lab && c >= 1 && c < kFirstSingle);
  while (head == no_block()) {
    const std::uint32_t number = lab->hot[c].load_relaxed();
    if (number == 0) {
      const std::uint32_t found = find_span(lab, c, head);
      if (found == 0) return false;
      make_hot(lab, c, found);
      continue;
    }
    Span& span = Heap::span(number);
    if (Block* reserve = span.free_list.load_relaxed(); reserve != no_block()) {
      span.free_list.store_relaxed(no_block());
      head = reserve;
    } else if (span.carved.load_relaxed() < info.blocks) {
      carve(span, number, c, head);
      zero = span.zero;
    } else {
      const SpanWord word{span.word.load_relaxed()};  // a stale look only delays the choice
      std::uint32_t count = info.blocks - word.outstanding();
      if (count >= info.refill_remotes) {
        head = Heap::block_of_mark(number, take_remotes(span.word, info.blocks, count));
      } else {
        leave_hot(lab, c);
        Protocol::hot_to_parked(number, lab->number, 0);
      }
    }
  }
  return true;
}

// Links up the untouched blocks that start in the next page (at least one), in address order.
inline void Frontend::carve(Span& span, std::uint32_t number, unsigned c, Block*& head) {
  const ClassInfo& info = kClassTable[c];
  const std::uint32_t carved = span.carved.load_relaxed();
  SPANALLOC_ASSERT(carved < info.blocks && head == no_block());
  const std::size_t offset = std::size_t{carved} * info.block_size;
  const std::size_t page_end = align_down(offset, kPageForTail) + kPageForTail;
  std::uint32_t count =
      static_cast<std::uint32_t>((page_end - offset + info.block_size - 1) / info.block_size);
  count = static_cast<std::uint32_t>(min_of(count, info.blocks - carved));
  // Past its exit hook a thread gives the span back after each call, and what is free in it must be counted.
  if (SPANALLOC_UNLIKELY(thread_state.exited)) count = 1;
  char* first = Heap::address(number) + offset;
  char* at = first;
  for (std::uint32_t i = 1; i < count; ++i, at += info.block_size) {
    unpoison(at, sizeof(Block));
    link_to(reinterpret_cast<Block*>(at), reinterpret_cast<Block*>(at + info.block_size));
  }
  unpoison(at, sizeof(Block));
  link_to(reinterpret_cast<Block*>(at), no_block());
  span.carved.store_relaxed(carved + count);
  let_carved_blocks_pass(span, c);
  head = reinterpret_cast<Block*>(first);
}

// A span for class c, word already hot for this LAB; blocks that came with it are on `head` and its
// free_list.
inline std::uint32_t Frontend::find_span(Lab* lab, unsigned c, Block*& head) {
  const std::uint32_t me = lab->number;
  std::uint32_t remote_head = 0;
  Protocol::settle_attention(me);
  std::uint32_t number = Protocol::reusable_to_hot(c, me, remote_head);
  if (number == 0) number = Protocol::orphan_to_hot(c, me, remote_head);
  const std::uint32_t fresh = number != 0 ? 0 : Heap::take_span(c, Heap::core_of(me));
  if (fresh == 0) {
    if (number == 0) number = Protocol::orphan_to_hot(c, me, remote_head, true);
    if (number == 0) number = Protocol::floating_to_hot(c, me, remote_head);
    if (number != 0 && remote_head != 0) head = Heap::block_of_mark(number, remote_head);
    return number;
  }
  number = fresh;
  Span& span = Heap::span(number);
  SPANALLOC_ASSERT(SpanWord{span.word.load_relaxed()}.state() == SpanState::kFree);
  span.size_class = static_cast<std::uint8_t>(c);
  span.shown_class.store_relaxed(static_cast<std::uint8_t>(c));
  const ClassInfo& info = kClassTable[c];
  span.start_magic = info.order == 0 ? divisibility_magic32(info.block_size) : 0;
  span.start_limit.store_relaxed(0);
  span.carved.store_relaxed(0);
  span.free_list.store_relaxed(no_block());
  span.unpublished.store_relaxed(0);
  span.list = ListId::kNone;
  // Release: a stale freer of an earlier life may look at the record under a lock.
  span.word.store_release(SpanWord::make(me, SpanState::kHot, kClassTable[c].blocks).bits);
  return number;
}

// Blocks that were never carved are nobody's to free: the checks for a block's start refuse them, too.
inline void Frontend::let_carved_blocks_pass(Span& span, unsigned c) {
  const ClassInfo& info = kClassTable[c];
  if (info.order != 0) return;  // is_start() looks at `carved` itself
  const std::uint32_t limit = multiple_limit32(info.block_size, span.carved.load_relaxed());
  // Relaxed: whoever is handed a block by another thread has been given this limit with it.
  span.start_limit.store_relaxed(limit);
  if (c <= kThreadClasses) thread_state.start[c].limit = limit;
}

inline void Frontend::make_hot(Lab* lab, unsigned c, std::uint32_t number) {
  SPANALLOC_ASSERT(lab->hot[c].load_relaxed() == 0);  // one hot span a class
  SPANALLOC_ASSERT(SpanWord{Heap::span(number).word.load_relaxed()}.identity() == thread_state.hot_identity);
  lab->hot[c].store_relaxed(number);
  lab->hot_classes[c / 64] |= std::uint64_t{1} << c % 64;
  if (c > kThreadClasses) return;
  let_carved_blocks_pass(Heap::span(number), c);
  const std::uintptr_t page = address_of(Heap::address(number)) >> kGranuleBits;
  // An empty list begins with kNoBlock. What shares that granule is nobody's block: its hint stays class 0,
  // where no address is a block's start.
  if (((page ^ (address_of(no_block()) >> kGranuleBits)) & 0xff) == 0) return;
  thread_state.hint[page & 0xff] = static_cast<std::uint8_t>(c);
}

// Its list is empty: what frees and allocations of the class find is nothing, until the next span is hot.
inline void Frontend::leave_hot(Lab* lab, unsigned c) {
  SPANALLOC_ASSERT(lab->hot[c].load_relaxed() != 0 && head_of(lab, c) == no_block());
  lab->hot[c].store_relaxed(0);
}

inline void* Frontend::allocate_aligned(std::size_t n, std::size_t alignment) {
  // As common as unaligned ones: the same short path (see multiples_are_aligned).
  const std::size_t multiple = align_up(max_of(n, 1), alignment);  // 0 where it overflows
  if (SPANALLOC_LIKELY(multiple - 1 < kMaxListed)) {
    return allocate(multiple);
  }
  const unsigned c = class_of_aligned(n, alignment);
  if (c == 0) return allocate_large(n, alignment, as_it_is);
  return allocate_class(c);
}

inline void* Frontend::allocate_zeroed(std::size_t n) {
  return allocate_filled(n, [n](void* p, bool zero) {
    if (!zero) memset(p, 0, n);
  });
}

inline void* Frontend::allocate_copy(std::size_t n, const void* from, std::size_t bytes) {
  return allocate_filled(n, [from, bytes](void* p, bool) { memcpy(p, from, bytes); });
}

template <class Fill>
SPANALLOC_INLINE void* Frontend::allocate_filled(std::size_t n, Fill fill) {
  if (SPANALLOC_LIKELY(n <= kMaxInThread)) {
    void* p = allocate(n);
    if (SPANALLOC_LIKELY(p != nullptr)) fill(p, false);
    return p;
  }
  if (n > kMaxBlock) return allocate_large(n, kQuantum, fill);
  Lab* lab = thread_state.lab;
  if (n > kMaxListed) {
    const InsideHeap inside;
    if (thread_state.run.count != 0) flush_run();
    if (!Heap::start()) return nullptr;
    return allocate_single(class_of(n), Heap::core_of(lab == nullptr ? 0 : lab->number), fill);
  }
  bool zero = false;
  void* p = n < kPageForTail || lab == nullptr ? allocate(n) : allocate_listed_page(lab, class_of(n), zero);
  if (p != nullptr) fill(p, zero);
  return p;
}

// A block of a page or more is carved alone: when the list was empty, the one that refill() brings is it.
inline void* Frontend::allocate_listed_page(Lab* lab, unsigned c, bool& zero) {
  if (head_of(lab, c) == no_block()) {
    const InsideHeap inside;
    if (thread_state.run.count != 0) flush_run();
    if (!refill(lab, c, zero)) return nullptr;
  }
  void* p = allocate_listed(lab, c);
  return zero ? memset(p, 0, sizeof(Block)) : p;
}

}  // namespace spanalloc::standard
