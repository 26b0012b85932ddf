// Slow paths of Frontend; see frontend.hpp for the call tree.
#pragma once

#include <bit>

#include "engines/virtual_span/standard/frontend.hpp"

namespace spanalloc::standard {

// --- Allocation -------------------------------------------------------------------------------------------

[[gnu::noinline]] inline void* Frontend::allocate_slow(std::size_t n) {
  if (SPANALLOC_UNLIKELY(n > kMaxBlock)) return allocate_large(n, kQuantum, as_it_is);
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
  return allocate_class(c);
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
  if (n > SIZE_MAX / 2 || alignment > SIZE_MAX / 2 || !Heap::start()) return nullptr;
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
  lab->hot[c].store_relaxed(0);
}

// --- Freeing ----------------------------------------------------------------------------------------------

inline bool Frontend::is_start(std::uintptr_t a, std::uint32_t number, unsigned c) {
  const ClassInfo& info = kClassTable[c];
  const std::uint64_t offset = a - address_of(Heap::address(number));
  if (info.blocks == 1) return offset == 0;
  const std::uint64_t carved = Heap::span(number).carved.load_relaxed();
  return offset * info.magic < info.magic && offset < carved * info.block_size;
}

SPANALLOC_INLINE void Frontend::push_hot(Block*& head, Block* block, unsigned c) {
  if (SPANALLOC_UNLIKELY(head == block)) return freed_twice(block);
  link_to(block, head);
  head = block;
  poison(block + 1, kClassTable[c].block_size - sizeof(Block));
}

// The common cases after the hot lists of the thread: one's own hot and parked spans, and another thread's
// span, of one granule. Everything unusual (null, foreign, no block's start, several granules) fails a
// comparison and is looked at from the beginning.
[[gnu::noinline]] inline void Frontend::deallocate_elsewhere(void* p) {
  const std::uintptr_t a = address_of(p);
  std::size_t granule = 0;
  if (SPANALLOC_UNLIKELY(!Heap::granule_of(a, granule))) return deallocate_by_record(p);
  const auto number = static_cast<std::uint32_t>(granule);
  Span& span = Heap::span(number);
  // Relaxed: as long as the caller's block is out, what is read here (owner me or not me, class) stands
  // still.
  const SpanWord word{span.word.load_relaxed()};
  const auto offset = static_cast<std::uint32_t>(a & (kGranule - 1));
  if (SPANALLOC_UNLIKELY(offset * span.start_magic >= span.start_limit.load_relaxed()))
    return deallocate_by_record(p);
  const ThreadState& t = thread_state;
  Block* block = static_cast<Block*>(p);
  if (word.identity() == t.hot_identity)
    return push_hot(head_of(t.lab, span.size_class), block, span.size_class);
  if (word.identity() != t.parked_identity) return deallocate_remote(span, number, p);
  if (SPANALLOC_UNLIKELY(span.free_list.load_relaxed() == block)) return freed_twice(p);
  poison(block + 1, kClassTable[span.size_class].block_size - sizeof(Block));
  Protocol::free_parked(span, number, word, block);
}

// Another thread's block. The first free into a span is one compare-and-swap; frees that go on hitting the
// same span are gathered into runs.
[[gnu::noinline]] inline void Frontend::deallocate_remote(Span& span, std::uint32_t number, void* p) {
  Block* block = static_cast<Block*>(p);
  const SpanWord word{
      span.word.load_relaxed()};  // to name mistakes and see the end; the protocol looks again
  if (SPANALLOC_UNLIKELY(word.state() == SpanState::kFree)) bad_pointer(p, Deed::kFree);
  const auto offset = address_of(p) - address_of(Heap::address(number));
  if (SPANALLOC_UNLIKELY(word.head() == block_mark(offset))) freed_twice(p);
  poison(block + 1, block_bytes(span.size_class, number) - sizeof(Block));
  // The only block of its span: no list, so no link, whose page may never have been touched.
  if (word.owner() == kNobody) {
    if (SPANALLOC_UNLIKELY(!Protocol::free_remote(number, block_mark(0), [](std::uint32_t) {})))
      freed_twice(p);
    return;
  }
  ThreadState& t = thread_state;
  if (t.run.number == number) return gather(number, word, block);
  if (SPANALLOC_UNLIKELY(t.run.count != 0)) flush_run();
  // A thread without a LAB has no exit hook that would give a run back: it never gathers.
  t.run.number = t.lab != nullptr ? number : 0;
  publish_run(number, block, block, 1);
}

// A run is given back when it holds all that is still out (so the span's last free is noticed), when it is
// long enough, when another span's turn comes, and by this thread's next miss, trim and end.
inline void Frontend::gather(std::uint32_t number, SpanWord word, Block* block) {
  RemoteRun& run = thread_state.run;
  if (run.count == 0) {
    run.oldest = block;
  } else {
    if (SPANALLOC_UNLIKELY(run.newest == block)) freed_twice(block);
    link_to(block, run.newest);
  }
  run.newest = block;
  ++run.count;
  const std::uint32_t unpublished = Heap::span(number).unpublished.load_relaxed();  // a hint, as `word` is
  if (run.count == kMaxRun || word.outstanding() <= run.count + unpublished) flush_run();
}

[[gnu::noinline]] inline void Frontend::flush_run() {
  RemoteRun& run = thread_state.run;
  const std::uint32_t count = run.count;
  if (count == 0) return;
  run.count = 0;
  publish_run(run.number, run.newest, run.oldest, count);
}

SPANALLOC_INLINE void Frontend::publish_run(std::uint32_t number, Block* newest, Block* oldest,
                                            std::uint32_t count) {
  char* start = Heap::address(number);
  const bool freed = Protocol::free_remote(
      number, block_mark(address_of(newest) - address_of(start)),
      [&](std::uint32_t head) {
        link_to(oldest, head == 0 ? no_block() : reinterpret_cast<Block*>(start + offset_of_mark(head)));
      },
      count);
  if (SPANALLOC_UNLIKELY(!freed)) freed_twice(newest);
}

[[gnu::noinline]] inline void Frontend::deallocate_by_record(void* p) {
  const std::uintptr_t a = address_of(p);
  std::size_t granule = 0;
  if (SPANALLOC_UNLIKELY(!Heap::granule_of(a, granule))) return deallocate_outside_spans(p);
  std::uint32_t number = 0;
  Span& span = Heap::span_of_granule(granule, number);
  const SpanWord word{span.word.load_relaxed()};  // relaxed: as in deallocate_elsewhere
  const unsigned c = span.size_class;
  if (SPANALLOC_UNLIKELY(word.state() == SpanState::kFree || !is_start(a, number, c))) {
    bad_pointer(p, Deed::kFree);
  }
  const ThreadState& t = thread_state;
  if (word.identity() != t.parked_identity && word.identity() != t.hot_identity) {
    return deallocate_remote(span, number, p);
  }
  Block* block = static_cast<Block*>(p);
  if (word.state() == SpanState::kHot) return push_hot(head_of(t.lab, c), block, c);
  if (SPANALLOC_UNLIKELY(span.free_list.load_relaxed() == block)) return freed_twice(p);
  poison(block + 1, kClassTable[c].block_size - sizeof(Block));
  Protocol::free_parked(span, number, word, block);
}

SPANALLOC_COLD inline void Frontend::deallocate_outside_spans(void* p) {
  if (p != nullptr) os::fatal("free of a pointer that this allocator did not return:", p);
}

// What to say of an address whose record knows no such block. A record speaks for its own granule only if
// the span has several blocks: in which other block the address lies is found in the arena.
SPANALLOC_COLD inline void Frontend::bad_pointer(const void* p, Deed deed) {
  static constexpr const char* kSentences[][2] = {
      {"free of a pointer that is not the start of a block:",
       "size asked of a pointer that is not the start of a block:"},
      {"free of memory that was never handed out:", "size asked of memory that was never handed out:"},
      {"free of memory that is free already (double free):", "size asked of memory that is free:"},
      {"free of memory that is free (double free, or never handed out):",
       "size asked of memory that is free, or was never handed out:"},
      {"free of an address that lies in no block:", "size asked of an address that lies in no block:"},
  };
  os::fatal(kSentences[static_cast<int>(place_of(address_of(p)))][static_cast<int>(deed)], p);
}

// In a block of a live span that nobody has had yet.
inline bool Frontend::is_untouched(std::uintptr_t a, std::uint32_t number, const Span& span) {
  const ClassInfo& info = kClassTable[span.size_class];
  const std::uint64_t offset = a - address_of(Heap::address(number));
  return info.blocks != 1 && offset >= std::uint64_t{span.carved.load_relaxed()} * info.block_size &&
         offset < info.payload();
}

SPANALLOC_COLD inline Frontend::Place Frontend::place_of(std::uintptr_t a) {
  std::size_t granule = 0;
  if (!Heap::granule_of(a, granule)) return Place::kNoMemory;
  Place place = Place::kNoMemory;
  Heap::walk_ranges([&](std::uint32_t number, std::size_t granules, bool free) {
    if (granule - number >= granules) return;  // also where it is before the range
    const Span& span = Heap::span(number);
    const bool live = !free && SpanWord{span.word.load_relaxed()}.state() != SpanState::kFree;
    // The start of a live block: it has become one since the caller looked, in other hands.
    place = !live                                  ? Place::kFreeMemory
            : is_start(a, number, span.size_class) ? Place::kFreeMemory
            : is_untouched(a, number, span)        ? Place::kUntouched
                                                   : Place::kInsideBlock;
  });
  std::uint32_t first = 0;
  const bool was_span = Heap::span_of_granule(granule, first).shown_class.load_relaxed() != 0;
  return place == Place::kFreeMemory && was_span ? Place::kFreedBlock : place;
}

// --- Everything else --------------------------------------------------------------------------------------

inline void* Frontend::allocate_aligned(std::size_t n, std::size_t alignment) {
  // As common as unaligned ones: the same short path (see multiples_are_aligned).
  const std::size_t multiple = align_up(max_of(n, 1), alignment);  // 0 where it overflows
  if (SPANALLOC_LIKELY(multiple - 1 < kMaxListed)) {
    return allocate_or(multiple, [](std::size_t size) { return allocate_slow(size); });
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
    void* p = allocate_or(n, [](std::size_t size) { return allocate_slow(size); });
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
  void* p = n < kPageForTail || lab == nullptr ? allocate_or(
                                                     n, [](std::size_t size) { return allocate_slow(size); })
                                               : allocate_listed_page(lab, class_of(n), zero);
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

inline std::size_t Frontend::usable_size(const void* p) {
  const std::uintptr_t a = address_of(p);
  std::size_t granule = 0;
  if (!Heap::granule_of(a, granule)) {
    if (p == nullptr) return 0;
    os::fatal("size asked of a pointer that this allocator did not return:", p);
  }
  std::uint32_t number = 0;
  const Span& span = Heap::span_of_granule(granule, number);
  const SpanWord word{span.word.load_relaxed()};  // the caller's block keeps the span as it is
  if (SPANALLOC_UNLIKELY(word.state() == SpanState::kFree || !is_start(a, number, span.size_class))) {
    bad_pointer(p, Deed::kAskSize);
  }
  if (SPANALLOC_UNLIKELY(is_newest_free(p, number, word))) os::fatal("size asked of memory that is free:", p);
  return block_bytes(span.size_class, number);
}

// Whether the block is the first of a list of free ones. (Of the others it is not known without a search.)
inline bool Frontend::is_newest_free(const void* p, std::uint32_t number, SpanWord word) {
  const Span& span = Heap::span(number);
  const ThreadState& t = thread_state;
  if (word.head() == block_mark(address_of(p) - address_of(Heap::address(number)))) return true;
  if (t.run.count != 0 && t.run.newest == p) return true;
  if (word.identity() == t.hot_identity && head_of(t.lab, span.size_class) == p) return true;
  const bool mine = word.identity() == t.hot_identity || word.identity() == t.parked_identity;
  return mine && span.free_list.load_relaxed() == p;
}

inline void* Frontend::resize(void* p, std::size_t n) {
  const std::uintptr_t a = address_of(p);
  std::size_t granule = 0;
  if (n == 0 || n > SIZE_MAX / 2 || !Heap::granule_of(a, granule)) return nullptr;
  std::uint32_t number = 0;
  const Span& span = Heap::span_of_granule(granule, number);
  const unsigned c = span.size_class;
  if (kClassTable[c].blocks == 1) return n > kMaxListed ? resize_single(number, n) : nullptr;
  return n <= kMaxListed && class_of(n) == c ? p : nullptr;
}

// A block of its own takes or gives granules behind it, or its pages move to a larger place.
inline void* Frontend::resize_single(std::uint32_t number, std::size_t n) {
  const InsideHeap inside;
  const std::size_t old_granules = Heap::granules_of(number);
  const std::size_t granules = granules_for(n);
  const unsigned c = n > kMaxBlock ? kLargeClass : class_of(n);
  if (granules == old_granules || Heap::resize_in_place(number, granules)) {
    Span& span = Heap::span(number);
    span.size_class = static_cast<std::uint8_t>(c);
    span.shown_class.store_relaxed(static_cast<std::uint8_t>(c));
  } else {
    if (n <= kMoveAtLeast || old_granules << kGranuleBits < kMoveAtLeast) return nullptr;
    number = Heap::move_large(number, granules);
    if (number == 0) return nullptr;
  }
  unpoison(Heap::address(number), block_bytes(c, number));
  return Heap::address(number);
}

inline bool Frontend::owns(const void* p) {
  std::size_t granule = 0;
  if (!Heap::granule_of(address_of(p), granule)) return false;
  std::uint32_t number = 0;
  const Span& span = Heap::span_of_granule(granule, number);
  // A free granule's record may lead to a span before it that has no such granule.
  return granule - number < (std::size_t{1} << span.order) &&
         SpanWord{span.word.load_relaxed()}.state() != SpanState::kFree;
}

// --- Threads ----------------------------------------------------------------------------------------------

SPANALLOC_COLD inline Lab* Frontend::attach() {
  Lab* lab = Heap::take_lab();
  if (lab == nullptr) return nullptr;
  ThreadState& t = thread_state;
  t.parked_identity = SpanWord::identity_of(lab->number, SpanState::kParked);
  t.hot_identity = SpanWord::identity_of(lab->number, SpanState::kHot);
  t.lab = lab;  // before the hook: registering it may call malloc
  if (!t.exited && !exit_hook_.watch_this_thread(&thread_exit)) t.exited = true;
  return lab;
}

inline void Frontend::thread_exit() {
  const InsideHeap inside;
  thread_state.exited = true;
  if (thread_state.lab != nullptr) detach(thread_state.lab);
}

// Ends a LAB: hot spans park with what is free in them, parked spans go to an orphanage, empty ones to the
// pool.
inline void Frontend::detach(Lab* lab) {
  ThreadState& t = thread_state;
  // For signal handlers that fork while the thread has given its LAB up and is still busy with it.
  const std::uint32_t outer = t.inside_without_lab.load_relaxed();
  t.inside_without_lab.store_relaxed(1);
  flush_run();
  thread_state.run.number = 0;  // without a LAB nothing is gathered
  for (std::uint64_t& classes : lab->hot_classes) {
    for (; classes != 0; classes &= classes - 1) {
      const auto c = static_cast<unsigned>((&classes - lab->hot_classes) * 64 + std::countr_zero(classes));
      const std::uint32_t number = lab->hot[c].load_relaxed();
      if (number == 0) continue;
      const std::uint32_t free_blocks = gather_free_blocks(lab, c, Heap::span(number));
      leave_hot(lab, c);
      Protocol::hot_to_parked(number, lab->number, free_blocks);
    }
  }
  Protocol::orphan_all(lab->number);
  t.parked_identity = t.hot_identity = ~std::uint64_t{0};
  t.lab = nullptr;
  Heap::return_lab(lab);
  t.inside_without_lab.store_release(outer);
}

// Moves the hot list in front of the span's reserve and counts both and what was never carved.
inline std::uint32_t Frontend::gather_free_blocks(Lab* lab, unsigned c, Span& span) {
  const ClassInfo& info = kClassTable[c];
  Block*& head = head_of(lab, c);
  std::uint32_t count = info.blocks - span.carved.load_relaxed();
  const auto walk = [&](Block* block) {
    Block* last = nullptr;
    for (; block != no_block(); block = next_of(block)) {
      check_listed(block->link, block, c);
      if (++count > info.blocks) os::fatal("more free blocks than the span has (double free) at", block);
      last = block;
    }
    return last;
  };
  Block* last = walk(head);
  walk(span.free_list.load_relaxed());
  if (last != nullptr) {
    link_to(last, span.free_list.load_relaxed());
    span.free_list.store_relaxed(head);
    head = no_block();
  }
  return count;
}

inline void Frontend::check_listed(std::uint64_t link, const Block* block, unsigned c) {
  if (link - 1 < kClassTable[c].virtual_span - std::uint64_t{1}) return;
  if ((link ^ address_of(block)) == address_of(no_block())) return;
  os::fatal("free list overwritten (write after free?) at", block);
}

// A hot span with no block out has no use for anybody else as long as it is hot.
inline bool Frontend::retire_hot_if_empty(Lab* lab, unsigned c) {
  const std::uint32_t number = lab->hot[c].load_relaxed();
  if (number == 0) return false;
  Span& span = Heap::span(number);
  const std::uint32_t free_blocks = gather_free_blocks(lab, c, span);
  if (SpanWord{span.word.load_relaxed()}.outstanding() != free_blocks) return false;
  leave_hot(lab, c);
  Protocol::hot_to_parked(number, lab->number, free_blocks);
  return true;
}

inline bool Frontend::trim() {
  if (!Heap::started()) return false;
  const InsideHeap inside;
  flush_run();
  if (Lab* lab = thread_state.lab; lab != nullptr) {
    Protocol::settle_attention(lab->number);
    for (unsigned c = 1; c < kFirstSingle; ++c) retire_hot_if_empty(lab, c);
  }
  Heap::steal_from_sleeping_labs(UINT32_MAX);
  return Heap::purge_all_free() != 0;
}

}  // namespace spanalloc::standard
