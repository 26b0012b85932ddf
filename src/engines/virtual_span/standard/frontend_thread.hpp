// A thread's beginning and end, and giving back what it holds without need.
#pragma once

#include <bit>

#include "engines/virtual_span/standard/engine.hpp"

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
  SPANALLOC_ASSERT(lab == nullptr && run.count == 0 && pages->is_mine(fresh->number));
  hot_identity = SpanWord::identity_of(fresh->number, SpanState::kHot);
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

// Ends a LAB: hot spans park with what is free in them, parked spans go to an orphanage, empty ones to the
// pool.
template <class Config>
inline void Frontend<Config>::detach() {
  SPANALLOC_ASSERT(pages->is_mine(lab->number));
  // For signal handlers that fork while the thread has given its LAB up and is still busy with it.
  const void* outer = inside_without_lab.load_relaxed();
  inside_without_lab.store_relaxed(pages);
  flush_run();
  run.number = SpanNumber::kNone;  // without a LAB nothing is gathered
  for (std::uint64_t& classes : lab->hot_classes) {
    for (; classes != 0; classes &= classes - 1) {
      const auto i = static_cast<unsigned>((&classes - lab->hot_classes) * 64 + std::countr_zero(classes));
      const SpanNumber number = lab->hot[i].load_relaxed();
      if (number == SpanNumber::kNone) continue;
      const SpanRef span = pages->span(number);
      const std::uint32_t free_blocks = gather_free_blocks(ClassId{i}, span);
      leave_hot(ClassId{i});
      park(span, free_blocks);
    }
  }
  const LabNumber heir = heap->orphanages().home_of(lab->number);
  heap->put_in_pool(heap->protocol().orphan_all(lab->number, heir), core());
  hot_identity = State::kNoIdentity;
  Lab* mine = lab;
  lab = nullptr;
  heap->end_lab(mine);
  inside_without_lab.store_release(outer);
}

// Moves the hot list in front of the span's reserve and counts both and what was never carved.
template <class Config>
inline std::uint32_t Frontend<Config>::gather_free_blocks(ClassId c, SpanRef span) {
  const ClassInfo& info = Classes::info(c);
  Block*& list = head_of(c);
  std::uint32_t count = info.blocks - span->carved.load_relaxed();
  const auto add = [&](Block* first) -> Block* {
    if (is_end(first)) return nullptr;
    const ListLength length = length_of_own_list(first, info, info.blocks - count);
    count += length.blocks;
    return length.last;
  };
  Block* last = add(list);
  Block* last_of_reserve = add(span->free_list.load_relaxed());
  // What was freed once into each of two lists has made one of them, from there on. Others may go on freeing:
  // what stands behind the head that is read here stays as it is.
  const SpanWord word{span->word.load_acquire()};
  Block* last_of_remotes = nullptr;
  if (SPANALLOC_UNLIKELY(word.head() != BlockMark::kNone)) {
    Block* remotes = pages->block_of_mark(span, word.head());
    last_of_remotes = check_length(remotes, info, info.blocks - word.outstanding());
  }
  if (last != nullptr && (last == last_of_reserve || last == last_of_remotes)) freed_twice(last);
  SPANALLOC_ASSERT(count <= info.blocks);
  if (last != nullptr) {
    link_to(last, span->free_list.load_relaxed());
    span->free_list.store_relaxed(list);
    list = no_block();
  }
  return count;
}

// A hot span with no block out has no use for anybody else as long as it is hot.
template <class Config>
SPANALLOC_COLD inline bool Frontend<Config>::retire_hot_if_empty(ClassId c) {
  const SpanNumber number = lab->hot[index_of(c)].load_relaxed();
  if (number == SpanNumber::kNone) return false;
  const SpanRef span = pages->span(number);
  const std::uint32_t free_blocks = gather_free_blocks(c, span);
  if (span->load_word().outstanding() != free_blocks) return false;
  leave_hot(c);
  park(span, free_blocks);
  return true;
}

template <class Config>
SPANALLOC_COLD inline bool Frontend<Config>::trim() {
  if (!heap->is_started()) return false;
  const Inside inside(*this);
  flush_run();
  if (lab != nullptr) {
    heap->put_in_pool(heap->protocol().settle_attention(lab->number), core());
    for (unsigned c = 1; c < Classes::kListed; ++c) retire_hot_if_empty(ClassId{c});
  }
  heap->steal_from_sleeping_labs(UINT32_MAX, core());
  return heap->purge_all_free() != 0;
}

}  // namespace spanalloc::standard
