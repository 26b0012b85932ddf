// A thread's beginning and end, and giving back what it holds without need.
#pragma once

#include <bit>

#include "engines/standard/engine.hpp"

namespace spanalloc::standard {

template <class Config>
SPANALLOC_COLD inline bool Frontend<Config>::attach() {
  Lab* fresh = heap->begin_lab();
  if (fresh == nullptr) return false;
  if (!adopt(fresh)) exited = true;
  return true;
}

template <class Config>
inline bool Frontend<Config>::adopt(Lab* fresh) {
  SPANALLOC_ASSERT(lab == nullptr && fresh->runs.holding == 0 && fresh->loans.are_none() &&
                   pages->is_mine(fresh->number));
  hot_identity = SpanWord::identity_of(fresh->number, SpanState::kHot);
  map = &pages->map_of(*fresh);
  misses = 0;
  lab = fresh;  // before the key's value: setting it may call malloc
  return exited || heap->exit_key.watch_this_thread(this, heap->on_thread_exit);
}

template <class Config>
inline void Frontend<Config>::on_thread_exit(void* state) {
  auto* self = static_cast<Frontend*>(state);
  if (!self->heap->exit_key.comes_again(state, self->exit_round)) self->thread_exit();
}

template <class Config>
inline void Frontend<Config>::thread_exit() {
  const Inside inside(*this);
  exited = true;
  if (lab != nullptr) detach();
}

// Ends a LAB: hot spans and parked ones go to an orphanage, empty ones to the pool.
template <class Config>
inline void Frontend<Config>::detach() {
  SPANALLOC_ASSERT(pages->is_mine(lab->number));
  // For signal handlers that fork while the thread has given its LAB up and is still busy with it.
  const void* outer = inside_without_lab.load_relaxed();
  inside_without_lab.store_relaxed(pages);
  flush_all_runs();
  if (SPANALLOC_UNLIKELY(!lab->loans.are_none())) end_loans();
  const LabNumber heir = heap->orphanages().home_of(lab->number);
  for_each_hot_class([&](ClassId c) {
    if (is_used_up(c)) leave_hot_and_park(c);
  });
  while (!lab->warm.is_empty()) park_warm(lab->warm.oldest());
  if (!lab->spares.is_empty()) {
    heap->take_spares(*lab, core());
    lab->spares.forget();
  }
  if (heap->protocol().may_have_parked(lab->number)) {
    heap->put_in_pool(heap->protocol().orphan_all(lab->number, heir), core());
  }
  // After those: uncounted ones are found at the front.
  {
    const typename Heap::Protocol::LabGuard guard(heap->protocol(), lab->number);
    for_each_hot_class([&](ClassId c) { orphan_hot(c, heir); });
  }
  for (std::uint64_t& classes : lab->hot_classes) classes = 0;
  // The next thread's habits are its own.
  lab->patience.forget();
  hot_identity = State::kNoIdentity;
  Lab* mine = lab;
  lab = nullptr;
  map = &kNoMap;
  heap->end_lab(mine);
  inside_without_lab.store_release(outer);
}

template <class Config>
template <class F>
inline void Frontend<Config>::for_each_hot_class(F f) {
  for (unsigned word = 0; word < std::size(lab->hot_classes); ++word) {
    for (std::uint64_t classes = lab->hot_classes[word]; classes != 0; classes &= classes - 1) {
      const ClassId c{word * 64 + static_cast<unsigned>(std::countr_zero(classes))};
      if (lab->hot[index_of(c)].load_relaxed() != SpanNumber::kNone) f(c);
    }
  }
}

// But for what others have freed, which is not looked at.
template <class Config>
inline bool Frontend<Config>::is_used_up(ClassId c) {
  const SpanRef span = hot_span(c);
  return is_end(span->free_list.load_relaxed()) && is_all_on_list(span, Classes::info(c));
}
template <class Config>
inline void Frontend<Config>::leave_hot_and_park(ClassId c) {
  const SpanRef span = hot_span(c);
  leave_hot(c);
  park(span, 0);
}

// A hot span becomes an orphan with its lists as they are: the next thread here is likely to adopt it, and
// needs no count.
template <class Config>
inline void Frontend<Config>::orphan_hot(ClassId c, LabNumber heir) {
  const SpanRef span = hot_span(c);
  leave_hot(c);
  heap->protocol().hot_to_orphan(span, lab->number, heir);
}

// Orphans that nobody has adopted for long, or that are looked for when memory is out, are counted, and stay
// orphans; empty ones go to the pool. At most so many, each found among the first `look_at` of its class.
// False: there was none.
template <class Config>
SPANALLOC_COLD inline bool Frontend<Config>::count_orphans(std::uint32_t at_most, std::uint32_t look_at) {
  heap->count_orphans_due.store_relaxed(0);
  if (!heap->has_uncounted_orphans()) return false;
  const Orphanages& orphanages = heap->orphanages();
  std::uint32_t counted = 0;
  for (unsigned c = 1; c < Classes::kListed; ++c) {
    for (std::uint64_t bits = orphanages.of_class[c].load_relaxed(); bits != 0; bits &= bits - 1) {
      const LabNumber from = orphanages.numbers[std::countr_zero(bits)];
      for (;;) {
        if (counted == at_most) {
          heap->count_orphans_due.store_relaxed(1);
          return true;
        }
        const HotSpan found = heap->protocol().uncounted_to_hot(from, ClassId{c}, lab->number, look_at);
        if (!found) break;
        ++counted;
        if (found.remotes != BlockMark::kNone) add_list(found.span, found.remotes);
        const std::uint32_t free_blocks = merge_lists(found.span);
        if (heap->protocol().counted_to_orphan(found.span, lab->number, from, free_blocks)) {
          heap->put_in_pool(found.span, core());
        }
      }
    }
  }
  return counted != 0;
}

// Makes one list of a hot span's two, and counts what is free in it, but for what other threads have freed.
template <class Config>
inline std::uint32_t Frontend<Config>::merge_lists(SpanRef span) {
  // So that nobody borrows what others have freed, while it is looked at.
  const typename Heap::Protocol::LabGuard guard(heap->protocol(), lab->number);
  const ClassInfo& info = Classes::info(span->class_id());
  const std::uint32_t carved = span->carved.load_relaxed();
  std::uint32_t count =
      info.blocks - carved + count_dropped(span->dropped.load_relaxed(), info.block_size, carved);
  Block* const list = span->free_list.load_relaxed();
  Block* const rest = span->rest.load_relaxed();
  const auto last_of = [&](Block* first) -> Block* {
    if (is_end(first)) return nullptr;
    const ListLength length = length_of_own_list(first, info, info.blocks - count, [&] { lose_lists(span); });
    count += length.blocks;
    return length.last;
  };
  Block* const last = last_of(list);
  Block* const last_of_rest = last_of(rest);
  // What was freed once into each of two lists has made one of them, from there on. Others may go on freeing:
  // what stands behind the head that is read here stays as it is.
  const SpanWord word{span->word.load_acquire()};
  Block* last_of_remotes = nullptr;
  if (SPANALLOC_UNLIKELY(word.head() != BlockMark::kNone)) {
    last_of_remotes =
        check_length(span, pages->block_of_mark(span, word.head()), info, info.blocks - word.outstanding());
  }
  const bool joined = last != nullptr && (last == last_of_rest || last == last_of_remotes);
  if (joined || (last_of_rest != nullptr && last_of_rest == last_of_remotes)) {
    lose_lists(span);
    freed_twice(joined ? last : last_of_rest);
  }
  SPANALLOC_ASSERT(count <= info.blocks);
  if (last_of_rest != nullptr) {
    // In this order: a fork's child finds a list once, or not at all.
    span->rest.store_release(no_block());
    link_to(last_of_rest, list);
    span->free_list.store_release(rest);
  }
  return count;
}

template <class Config>
[[gnu::noinline]] inline bool Frontend<Config>::read_clock() {
  return read_clock(ClassId::kNone);
}
template <class Config>
[[gnu::noinline]] inline bool Frontend<Config>::read_clock(ClassId busy) {
  const Inside inside(*this);
  const std::uint64_t now = os::now_ms();
  const bool has_more = heap->pass_by_clock(now);
  if (has_more) lab->events |= 63;  // this thread goes on with its next event
  count_orphans_if_due();
  park_rested(now, busy);
  const bool seldom = now - lab->clock_read_ms >= kSeldomMs;
  lab->clock_read_ms = now;
  return has_more || seldom;
}

// A part of a round over the hot spans; see hot_ages.hpp. At most one is parked, which walks its list. The
// caller holds on to nothing of a hot span, but of class `busy`.
template <class Config>
[[gnu::noinline]] inline void Frontend<Config>::park_rested(std::uint64_t now, ClassId busy) {
  if (SPANALLOC_UNLIKELY(exited) || !lab->ages.is_due(now)) return;
  for (unsigned looks = 0; looks < kHotSpansALook;) {
    const ClassId c = lab->ages.next();
    if (c == ClassId::kNone) return;
    const SpanRef span = hot_span(c);
    if (!span) continue;
    ++looks;
    if (lab->ages.has_rested(c, *span.record) && c != busy) return retire_hot(c);
  }
}

template <class Config>
SPANALLOC_COLD inline void Frontend<Config>::retire_hot(ClassId c) {
  const SpanRef span = hot_span(c);
  if (!span) return;
  const std::uint32_t free_blocks = merge_lists(span);
  leave_hot(c);
  park(span, free_blocks);
}

template <class Config>
SPANALLOC_COLD inline bool Frontend<Config>::make_ticks() {
  const Inside inside(*this);
  const std::size_t before = pages->given_back.load_relaxed();
  // (Somebody else may be at it.)
  for (unsigned i = 0; heap->pass_by_clock(os::now_ms()) && i < kMostPartsOfATick; ++i) {
  }
  return pages->given_back.load_relaxed() != before;
}

template <class Config>
SPANALLOC_COLD inline bool Frontend<Config>::trim() {
  if (!heap->is_started()) return false;
  const Inside inside(*this);
  if (lab == nullptr && heap->has_uncounted_orphans()) lab_of_thread();  // to count them with
  if (lab != nullptr) {
    flush_all_runs();
    return_loans();
    heap->put_in_pool(heap->protocol().settle_attention(lab->number), core());
    // Parked they are as good, and what is free in them can be given back.
    for (unsigned c = 1; c < Classes::kListed; ++c) retire_hot(ClassId{c});
    while (!lab->warm.is_empty()) park_warm(lab->warm.oldest());
    count_orphans(UINT32_MAX, UINT32_MAX);
  }
  heap->steal_from_sleeping_labs(UINT32_MAX, core());
  heap->take_all_spares(core());
  detach_if_exited();
  return heap->purge_all_free();
}

}  // namespace spanalloc::standard
