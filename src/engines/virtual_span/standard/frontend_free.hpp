// What free does after a miss of the thread's hot list: one's own spans, other threads' spans, and runs of
// remote frees; see engine.hpp for the call tree.
#pragma once

#include "engines/virtual_span/standard/engine.hpp"

namespace spanalloc::standard {

template <class Config>
inline bool Frontend<Config>::is_start(std::uintptr_t a, SpanRef span) {
  const ClassInfo& info = Classes::info(span->class_id());
  const std::uint64_t offset = a - address_of(pages->address(span.number));
  if (info.blocks == 1) return offset == 0;
  const std::uint64_t carved = span->carved.load_relaxed();
  return offset * info.magic < info.magic && offset < carved * info.block_size;
}

template <class Config>
SPANALLOC_INLINE typename Frontend<Config>::Location Frontend<Config>::locate(const void* p) {
  const SpanRef granule = pages->any_granule_at(address_of(p));
  if (SPANALLOC_UNLIKELY(granule.record == nullptr)) return {};
  const SpanRef span = pages->span_of(granule);
  const SpanWord word = span->load_word();
  // A free granule's record may lead to a span before it that has no such granule.
  const bool in_span = word.state() != SpanState::kFree &&
                       index_of(granule.number) - index_of(span.number) < (1u << span->order);
  return {span, word, in_span, in_span && is_start(address_of(p), span)};
}

// A block of one's own hot span, whose list is empty, or stands in the LAB, or whose hint was lost.
template <class Config>
SPANALLOC_INLINE void Frontend<Config>::push_hot(SpanRef span, Block* block) {
  const ClassId c = span->class_id();
  Block*& list = head_of(c);
  if (SPANALLOC_UNLIKELY(list == block) || looks_free(block)) return deallocate_suspect(block, *this, span);
  link_to(block, is_end(list) ? pages->end_of(span) : list);
  list = block;
  poison(block + 1, Classes::info(c).block_size - sizeof(Block));
}

// The common case after the hot lists of the thread: one's own parked span, of one granule. Everything else
// fails a comparison.
template <class Config>
SPANALLOC_INLINE void Frontend<Config>::deallocate_elsewhere(void* p, Frontend& self) {
  const std::size_t number = self.pages->granule_of(address_of(p));
  if (SPANALLOC_UNLIKELY(!self.pages->has_plain_granule(number))) return deallocate_by_record(p, self);
  const SpanRef span = self.pages->span(SpanNumber{static_cast<std::uint32_t>(number)});
  const SpanWord word = span->load_word();  // relaxed: see Location
  const auto offset = static_cast<std::uint32_t>(address_of(p) & (kGranule - 1));
  if (SPANALLOC_UNLIKELY(offset * span->start_magic >= span->start_limit.load_relaxed())) {
    return deallocate_by_record(p, self);  // no block's start, or a span of several granules
  }
  if (SPANALLOC_LIKELY(self.is_parked_here(word))) return deallocate_parked(p, self, span, word);
  deallocate_unparked(p, self, span, word);
}

// Whatever p is, null included.
template <class Config>
[[gnu::noinline]] inline void Frontend<Config>::deallocate_by_record(void* p, Frontend& self) {
  const Location at = self.locate(p);
  if (SPANALLOC_UNLIKELY(!at.has_record())) return deallocate_outside_spans(p);
  if (SPANALLOC_UNLIKELY(!at.is_block)) self.bad_pointer(p, Misuse::kFree);
  if (self.is_parked_here(at.word)) return deallocate_parked(p, self, at.span, at.word);
  deallocate_unparked(p, self, at.span, at.word);
}

// p is the start of one of the span's blocks; `word` was read while the block was still out.
template <class Config>
SPANALLOC_INLINE void Frontend<Config>::deallocate_parked(void* p, Frontend& self, SpanRef span,
                                                          SpanWord word) {
  Block* block = static_cast<Block*>(p);
  Block* list = span->free_list.load_relaxed();
  if (SPANALLOC_UNLIKELY(list == block) || looks_free(block)) return deallocate_suspect(p, self, span);
  poison(block + 1, Classes::info(span->class_id()).block_size - sizeof(Block));
  if (SPANALLOC_UNLIKELY(Heap::Protocol::free_parked(*span.record, word, list, block))) {
    settle_parked(p, self, span);
  }
}

// An own free, of p, has brought a parked span to its floor.
template <class Config>
[[gnu::noinline]] inline void Frontend<Config>::settle_parked(void*, Frontend& self, SpanRef span) {
  SPANALLOC_ASSERT(self.lab != nullptr && self.pages->is_mine(self.lab->number));
  const Inside inside(self);
  if (self.heap->protocol().settle_after_local_free(span, self.lab->number)) {
    self.heap->put_in_pool(span, self.core());
  }
}

template <class Config>
[[gnu::noinline]] inline void Frontend<Config>::deallocate_unparked(void* p, Frontend& self, SpanRef span,
                                                                    SpanWord word) {
  if (self.is_hot_here(word)) return self.push_hot(span, static_cast<Block*>(p));
  self.deallocate_remote(span, word, p);
}

// A block of a span that this thread does not own: another thread's, or one of another heap's. The first free
// into a span is one compare-and-swap; frees that go on hitting the same span are gathered into runs. Not of
// another heap's spans: it may be destroyed meanwhile.
template <class Config>
SPANALLOC_INLINE void Frontend<Config>::deallocate_remote(SpanRef span, SpanWord word, void* p) {
  Block* block = static_cast<Block*>(p);
  prefetch_to_write(block);  // it is read, and then written: one transfer between cores, not two
  // The word is good enough to name mistakes and see the end; the protocol looks again.
  if (SPANALLOC_UNLIKELY(word.state() == SpanState::kFree)) bad_pointer(p, Misuse::kFree);
  if (SPANALLOC_UNLIKELY(word.head() == mark_of_offset(offset_in(span, p)))) freed_twice(p);
  // (The only block of its span has no link, and its page may never have been touched.)
  if (span->class_id() < Classes::kFirstSingle && looks_free(block)) {
    return deallocate_suspect(p, *this, span);
  }
  if constexpr (kPoisons) poison(block + 1, block_bytes(span->class_id(), span) - sizeof(Block));
  // A thread without a LAB has no exit hook that would give a run back: it never gathers. Nor is there
  // anything to gather of a span of one block.
  if (word.owner() != kNobody && lab != nullptr && SPANALLOC_LIKELY(heap->has(span))) {
    if (run.number == span.number) return gather(span, word, block);
    if (SPANALLOC_UNLIKELY(run.count != 0)) flush_run();
    run.number = span.number;
  }
  publish_run(span, block, block, 1);
}

// A run is given back when it holds all that is still out (so the span's last free is noticed), when it is
// long enough, when another span's turn comes, and by this thread's next miss, trim and end.
template <class Config>
inline void Frontend<Config>::gather(SpanRef span, SpanWord word, Block* block) {
  SPANALLOC_ASSERT(run.number == span.number && run.count < Config::kMaxRun && lab != nullptr);
  if (SPANALLOC_UNLIKELY(run.count != 0 && run.newest == block)) freed_twice(block);
  // (The oldest one's link is written anew when the run is given back.)
  link_to(block, run.count == 0 ? pages->end_of(span) : run.newest);
  if (run.count == 0) run.oldest = block;
  run.newest = block;
  ++run.count;
  const std::uint32_t unpublished = span->unpublished.load_relaxed();  // a hint, as `word` is
  if (run.count == Config::kMaxRun || word.outstanding() <= run.count + unpublished) flush_run();
}

template <class Config>
[[gnu::noinline]] inline void Frontend<Config>::flush_run() {
  const std::uint32_t count = run.count;
  if (count == 0) return;
  run.count = 0;
  publish_run(pages->span(run.number), run.newest, run.oldest, count);
}

// The only block of its span has no link: its page may never have been touched.
template <class Config>
SPANALLOC_INLINE void Frontend<Config>::publish_run(SpanRef span, Block* newest, Block* oldest,
                                                    std::uint32_t count) {
  const Inside inside(*this);  // from before the span can be claimed
  const BlockMark mark = mark_of_offset(offset_in(span, newest));
  const bool has_list = !Classes::is_single(span->class_id());
  const auto link = [&](BlockMark list) {
    if (!has_list) return;
    link_to(oldest, list == BlockMark::kNone ? pages->end_of(span) : pages->block_of_mark(span, list));
  };
  switch (heap->protocol().free_remote(span, mark, count, link)) {
    case Freed::kRefused:
      return freed_twice(newest);
    case Freed::kEmptied: {
      // The record names the heap until somebody takes the span out of its pool. (Not core(): that is of this
      // heap's pool.)
      Heap& home = pages->heap_of(span);
      return home.put_in_pool(span, home.core_of(lab));
    }
    case Freed::kDone:
      return;
  }
}

}  // namespace spanalloc::standard
