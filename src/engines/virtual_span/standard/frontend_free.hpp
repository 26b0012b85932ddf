// What free does after a miss of the thread's hot list: one's own spans, other threads' spans, and runs of
// remote frees; see frontend.hpp for the call tree.
#pragma once

#include "engines/virtual_span/standard/frontend.hpp"

namespace spanalloc::standard {

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
  deallocate_in_span(span, number, word, p);
}

// p is the start of one of the span's blocks; `word` was read while the block was still out.
SPANALLOC_INLINE void Frontend::deallocate_in_span(Span& span, std::uint32_t number, SpanWord word, void* p) {
  const ThreadState& t = thread_state;
  const unsigned c = span.size_class;
  Block* block = static_cast<Block*>(p);
  if (word.identity() == t.hot_identity) return push_hot(head_of(t.lab, c), block, c);
  if (word.identity() != t.parked_identity) return deallocate_remote(span, number, p);
  if (SPANALLOC_UNLIKELY(span.free_list.load_relaxed() == block)) return freed_twice(p);
  poison(block + 1, kClassTable[c].block_size - sizeof(Block));
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
  SPANALLOC_ASSERT(run.number == number && run.count < kMaxRun);
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
  deallocate_in_span(span, number, word, p);
}

}  // namespace spanalloc::standard
