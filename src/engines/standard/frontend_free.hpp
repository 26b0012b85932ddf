// What free does after a miss of the thread's map: one's own spans, other threads' spans, and runs of
// remote frees; see engine.hpp for the call tree.
#pragma once

#include "engines/standard/engine.hpp"

namespace spanalloc::standard {

template <class Config>
[[gnu::noinline]] inline typename Frontend<Config>::Location Frontend<Config>::locate(const void* p) {
  const std::size_t number = pages->granule_of(address_of(p));
  const SpanRef granule = pages->has_plain_granule(number)
                              ? pages->span(SpanNumber{static_cast<std::uint32_t>(number)})
                              : pages->any_granule_at(address_of(p));
  if (SPANALLOC_UNLIKELY(granule.record == nullptr)) return {};
  const SpanRef span = pages->span_of(granule);
  const SpanWord word = span->load_word();
  // A free granule's record may lead to a span before it that has no such granule.
  const bool in_span = word.state() != SpanState::kFree &&
                       index_of(granule.number) - index_of(span.number) < (1u << span->order);
  return {span, word, in_span, in_span && span->shown.is_block(address_of(p))};
}

// What the thread's map does not show, and is common nevertheless. First: spans of one block, whoever had
// them, are kept for the next request. (Calls at the end only: so nothing need be saved.)
template <class Config>
void Frontend<Config>::deallocate_missed(void* p, Frontend& self) {
  const std::uintptr_t a = address_of(p);
  const std::size_t number = self.pages->granule_of(a);
  Lab* const lab = self.lab;
  if (SPANALLOC_UNLIKELY(!self.pages->has_plain_granule(number) || lab == nullptr)) {
    return deallocate_by_record(p, self);
  }
  const SpanRef span = self.pages->span(SpanNumber{static_cast<std::uint32_t>(number)});
  // (This is so as long as the caller's block is out, if it is a span of one: keep() finds out. Nor does what
  // the record says of its beginning change.)
  const ClassId c{span->shown_class.load_relaxed()};
  const bool is_single = c >= Classes::kFirstSingle && c < Classes::kLarge;
  if (!is_single || span->shown.base.read_own() != a || self.pages->arena.is_tight() ||
      !self.heap->has(span)) {
    return deallocate_others(p, self, span);
  }
  const ClassInfo& info = Classes::info(c);
  if constexpr (kPoisons) {
    if (span->load_word() == kSingleInUse) poison(p, self.block_bytes(c, span));
  }
  if (SPANALLOC_UNLIKELY(!lab->spares.keep(*span.record, info.granules))) {
    return deallocate_single(p, self, span);
  }
  self.pass_by_clock(*lab);
}

// The only block of its span, which was not made a spare: there is no room, or the span is not in use. The
// older spares go to the pool, which makes room for several frees; or, if the span is too large even then, it
// goes there itself.
template <class Config>
[[gnu::noinline]] inline void Frontend<Config>::deallocate_single(void* p, Frontend& self, SpanRef span) {
  const unsigned granules = Classes::info(span->class_id()).granules;
  auto& spares = self.lab->spares;
  // (Before others may have it: were it a spare already it would go to the pool as well.)
  if (spares.has_room_for(granules) || span->load_word() != kSingleInUse) {
    return deallocate_others(p, self, span);
  }
  const Inside inside(self);
  self.heap->pool_older_spares(*self.lab, self.core());
  if (SPANALLOC_LIKELY(spares.keep(*span.record, granules)))
    return (void)self.heap->pass_by_clock(os::now_ms());
  if (SPANALLOC_UNLIKELY(!spares.give_up(*span.record))) return deallocate_others(p, self, span);
  self.heap->put_in_pool(span, self.core());
}

// Then: a block of another thread's span begins a run, or goes to it alone. All else is left to
// deallocate_by_record().
template <class Config>
[[gnu::noinline]] inline void Frontend<Config>::deallocate_others(void* p, Frontend& self, SpanRef granule) {
  const std::uintptr_t a = address_of(p);
  const SpanRef span = self.pages->span_of(granule);
  const SpanWord word = span->load_word();
  // (Only of a span in use, and only of its blocks, which tells the span, too: is_block() is exact.)
  const bool others = word.state() != SpanState::kFree && word.owner() != kNobody && !self.is_mine(word);
  if (SPANALLOC_UNLIKELY(!others || !span->shown.is_block(a) || !self.heap->has(span))) {
    return deallocate_by_record(p, self);
  }
  self.free_into_others(span, word, static_cast<Block*>(p));
}

template <class Config>
SPANALLOC_INLINE void Frontend<Config>::free_into_others(SpanRef span, SpanWord word, Block* block) {
  prefetch_to_write(block);  // it is read, and then written: one transfer between cores, not two
  const BlockMark mark = mark_of_offset(offset_in(span, block));
  if (SPANALLOC_UNLIKELY(word.head() == mark)) remotely_freed_twice(span, block);
  if (looks_free(block)) return deallocate_suspect(block, *this, span);
  poison(block + 1, Classes::info(span->class_id()).block_size - sizeof(Block));
  if (gathered(span, word, block)) return;
  if (word.state() == SpanState::kHot &&
      SPANALLOC_LIKELY(free_into_hot(span->word, word, mark, [&](BlockMark list) {
        link_to(block, list == BlockMark::kNone ? no_block() : pages->block_of_mark(span, list));
      }))) {
    return;
  }
  publish_run(span, block, block, 1);
}

// Whatever p is, null included: another thread's block, a span of one block, or one's own behind an entry
// that another of one's own has overwritten.
template <class Config>
[[gnu::noinline]] inline void Frontend<Config>::deallocate_by_record(void* p, Frontend& self) {
  if (SPANALLOC_UNLIKELY(os::in_kernel_call())) return NestedBlocks::put_off(p);
  const Location at = self.locate(p);
  if (SPANALLOC_UNLIKELY(!at.is_block)) return deallocate_outside_spans(p, self, at.has_record());
  if (self.is_mine(at.word)) return deallocate_own(p, self, at.span);
  self.deallocate_remote(at.span, at.word, p);
}

template <class Config>
[[gnu::noinline]] inline void Frontend<Config>::deallocate_own(void* p, Frontend& self, SpanRef span) {
  auto* block = static_cast<Block*>(p);
  Block* list = span->free_list.load_relaxed();
  if (SPANALLOC_UNLIKELY(list == block) || looks_free(block)) return deallocate_suspect(p, self, span);
  self.miss_map();
  self.pages->show_in_map(*self.map, span, *span.record);
  poison(block + 1, Classes::info(span->class_id()).block_size - sizeof(Block));
  if (SPANALLOC_UNLIKELY(take_in(span.record, block, address_of(list) ^ address_of(block)))) {
    self.settle_own(span);
  }
}

// The free of p was an event: a run is full, or one's own span may be reusable or empty now.
template <class Config>
[[gnu::noinline]] inline void Frontend<Config>::look_after(void* p, Frontend& self) {
  // Another thread may have claimed the span meanwhile: the record stays readable, and tells.
  const SpanRef span = self.pages->span_of(self.pages->any_granule_at(address_of(p)));
  RemoteRun& run = self.lab->runs.of(span.number);
  if (run.holds(span.number) && run.left.load_relaxed() == 0) return self.flush_run(run);
  self.settle_own(span);
}

template <class Config>
[[gnu::noinline]] inline void Frontend<Config>::settle_own(SpanRef span) {
  SPANALLOC_ASSERT(lab != nullptr && pages->is_mine(lab->number));
  if (is_hot_here(span->load_word())) {
    const unsigned place = lab->warm.place_of(span.number);
    return place == lab->warm.kNoPlace ? settle_hot(span) : settle_warm(span, place);
  }
  const Inside inside(*this);
  if (heap->protocol().settle_after_local_free(span, lab->number)) {
    heap->put_in_pool(span, core());
    count_orphans_if_due();
  }
}

// So many blocks of a hot span have come back that it may be of no use any more. Of a hot span nobody but its
// thread can give anything back, and the thread may be about to sleep: so it is parked where hardly a block
// is out. Others return it then with its last block, or give back its pages. Where more are out it is looked
// at once or twice more, when that would be so if none was handed out meanwhile, and then left alone.
template <class Config>
[[gnu::noinline]] inline void Frontend<Config>::settle_hot(SpanRef span) {
  const std::uint32_t looks = span->quota.load_relaxed();
  if (looks >= standard::Span::kForClock) {
    const std::uint32_t frees = 2 * (looks - standard::Span::kForClock);
    const bool has_more = read_clock(span->class_id());
    return span->expect_clock(has_more                             ? standard::Span::kSoonClock
                              : frees < standard::Span::kMostClock ? frees
                                                                   : standard::Span::kMostClock);
  }
  span->expect_frees_while_hot();
  const ClassId c = span->class_id();
  if (hot_span(c) != span || exited) return;
  // (Who gives no spans up comes to few other slow paths.)
  if (lab->patience.stays(c)) return span->expect_clock(standard::Span::kSoonClock);
  const Inside inside(*this);
  const std::uint32_t free_blocks = merge_lists(span);
  const std::uint32_t out = span->load_word().outstanding() - free_blocks;
  const std::uint32_t few = span->carved.load_relaxed() / 2;
  if (out <= few) {
    lab->patience.gave_up(c, os::now_ms());
    leave_hot(c);
    park(span, free_blocks);
  } else if (looks < kLooksAtHot) {
    span->expect_emptying(out - few, looks + 1);
  }
}

// An eighth of a warm span's blocks are back. If it has grown since it was parked or warm before, the thread
// may be giving it up: then it is looked at again when three quarters are back, and parked. (The count goes
// on below 0 otherwise: unpublished() is right modulo 2^32.)
template <class Config>
[[gnu::noinline]] inline void Frontend<Config>::settle_warm(SpanRef span, unsigned place) {
  const ClassInfo& info = Classes::info(span->class_id());
  if (span->watched != Watch::kGrown) return lab->warm.mark_ready(place);
  if (span->unpublished() == info.refill_remotes) {
    const std::uint32_t more = info.blocks * 5 / 8;
    span->left.store_relaxed(more);
    span->quota.store_relaxed(info.refill_remotes + more);
    return lab->warm.mark_ready(place);
  }
  if (lab->patience.stays(span->class_id())) return;
  const Inside inside(*this);
  lab->patience.gave_up(span->class_id(), os::now_ms());
  park_warm(place);
}

// A block of a span that this thread does not own: another thread's, or one of another heap's. The first free
// into a span is one compare-and-swap; the second one in a row, as far as the span's run remembers, begins a
// run. Not of another heap's spans: it may be destroyed meanwhile.
template <class Config>
SPANALLOC_INLINE void Frontend<Config>::deallocate_remote(SpanRef span, SpanWord word, void* p) {
  Block* block = static_cast<Block*>(p);
  prefetch_to_write(block);  // it is read, and then written: one transfer between cores, not two
  // The word is good enough to name mistakes and see the end; the protocol looks again.
  if (SPANALLOC_UNLIKELY(word.state() == SpanState::kFree)) bad_pointer(p, Misuse::kFree);
  if (SPANALLOC_UNLIKELY(word.head() == mark_of_offset(offset_in(span, p))))
    remotely_freed_twice(span, block);
  // (The only block of its span has no link, and its page may never have been touched.)
  if (span->class_id() < Classes::kFirstSingle && looks_free(block)) {
    return deallocate_suspect(p, *this, span);
  }
  if constexpr (kPoisons) poison(block + 1, block_bytes(span->class_id(), span) - sizeof(Block));
  // (Once: if there is no LAB to be had, the thread does without.)
  if (SPANALLOC_UNLIKELY(lab == nullptr && !exited && lone_frees < State::kFreesForLab)) {
    ++lone_frees;
    if (lone_frees == State::kFreesForLab) {
      const Inside inside(*this);
      attach();
      detach_if_exited();
    }
  }
  // A thread without a LAB has no exit hook that would give a run back: it never gathers.
  if (lab != nullptr && word.owner() != kNobody && heap->has(span) && gathered(span, word, block)) return;
  publish_run(span, block, block, 1);
}

// The second block in a row of a span, as far as its run remembers, and those that follow. False: it is the
// first one, and the caller gives it back.
template <class Config>
SPANALLOC_INLINE bool Frontend<Config>::gathered(SpanRef span, SpanWord word, Block* block) {
  if (RemoteRun& run = lab->runs.of(span.number); run.number == span.number) {
    gather(run, span, word, block);
    return true;
  }
  RemoteRun& run = lab->runs.take_turn(span.number);
  if (SPANALLOC_UNLIKELY(run.quota != 0)) flush_run(run);
  run.number = span.number;
  return false;
}

// A run is given back when it holds all that is still out, as far as that is known where it begins (so the
// span's last free is noticed), when it is long enough, when another span needs its place, and, in turn with
// the others, by this thread's next misses, trim and end.
template <class Config>
[[gnu::noinline]] inline void Frontend<Config>::gather(RemoteRun& run, SpanRef span, SpanWord word,
                                                       Block* block) {
  SPANALLOC_ASSERT(run.number == span.number && lab != nullptr);
  if (SPANALLOC_UNLIKELY(run.quota != 0)) {
    // It is not in the map any more, or was carved after the run had begun.
    Block* newest = run.free_list.load_relaxed();
    if (SPANALLOC_UNLIKELY(newest == block)) lose_and_report(span, block);
    RemoteRun* const the_run = &run;
    const bool full = take_in(the_run, block, address_of(newest) ^ address_of(block));
    run.blocks.limit.store_relaxed(span->shown.limit.load_relaxed());
    miss_map();
    pages->show_in_map(*map, span, run);
    if (full) flush_run(run);
    return;
  }
  // (Hints, as `word` is. Of a hot span others may free whatever its owner does.)
  const std::uint32_t unpublished = word.state() == SpanState::kParked ? span->unpublished() : 0;
  const std::uint32_t out = word.outstanding() > unpublished ? word.outstanding() - unpublished : 0;
  const std::size_t size = Classes::info(span->class_id()).block_size;
  auto most = static_cast<std::uint32_t>(min_of(out, Config::kMaxRun));
  // A thread's part is the smaller the more threads there are: each may fall asleep on what it has gathered.
  const std::size_t threads = heap->live_labs.load_relaxed();
  if (SPANALLOC_UNLIKELY((lab->runs.bytes + most * size) * threads > Config::kMostGathered)) {
    flush_next_run();
    const std::size_t part = Config::kMostGathered / threads;
    most = static_cast<std::uint32_t>(min_of(most, (part - min_of(lab->runs.bytes, part)) / size));
  }
  if (most <= 1) return publish_run(span, block, block, 1);
  link_to(block, no_block());
  run.blocks.set(span->shown);
  run.free_list.store_relaxed(block);
  run.oldest = block;
  run.left.store_relaxed(most - 1);
  lab->runs.begin(run, most, size);
  pages->show_in_map(*map, span, run);
}

// As many links lead from a run's newest block to its oldest as it has counted. Those of a block that came
// twice lead in a circle, or past blocks that nobody would find again: the span would count them as free for
// ever.
template <class Config>
inline void Frontend<Config>::check_run(SpanRef span, const RemoteRun& run, std::uint32_t count) {
  const std::size_t most = Classes::info(span->class_id()).virtual_span;
  Block* block = run.free_list.load_relaxed();
  std::uint32_t behind = count - 1;
  for (; block != run.oldest && behind != 0; --behind) {
    const std::uint64_t link = link_of(block);
    if (SPANALLOC_UNLIKELY(!leads_to_block(link, most))) broken_list(block);
    block = block_behind(block, link);
  }
  if (SPANALLOC_UNLIKELY(block != run.oldest || behind != 0)) miscounted(run.free_list.load_relaxed());
}

template <class Config>
[[gnu::noinline]] inline void Frontend<Config>::flush_run(RemoteRun& run) {
  const std::uint32_t count = run.count();
  SPANALLOC_ASSERT(count != 0 && lab->runs.holding != 0);
  const SpanRef span = pages->span(run.number);
  lab->runs.end(run, Classes::info(span->class_id()).block_size);
  pages->hide_in_map(*map, span, run);
  check_run(span, run, count);  // if it is damaged it is nobody's now
  publish_run(span, run.free_list.load_relaxed(), run.oldest, count);
}

template <class Config>
SPANALLOC_COLD inline void Frontend<Config>::flush_runs() {
  for (RemoteRun& run : lab->runs.runs) {
    if (run.quota != 0) flush_run(run);
  }
}

template <class Config>
[[gnu::noinline]] inline void Frontend<Config>::flush_next_run() {
  RemoteRuns& runs = lab->runs;
  RemoteRun& run = runs.runs[runs.next++ % RemoteRuns::kRuns];
  if (run.quota != 0) flush_run(run);
}

// The only block of its span has no link: its page may never have been touched.
template <class Config>
[[gnu::noinline]] inline void Frontend<Config>::publish_run(SpanRef span, Block* newest, Block* oldest,
                                                            std::uint32_t count) {
  const Inside inside(*this);  // from before the span can be claimed
  const BlockMark mark = mark_of_offset(offset_in(span, newest));
  const bool has_list = !Classes::is_single(span->class_id());
  const auto link = [&](BlockMark list) {
    if (!has_list) return;
    link_to(oldest, list == BlockMark::kNone ? no_block() : pages->block_of_mark(span, list));
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
