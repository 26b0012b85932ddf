// A thread's beginning and end, and giving back what it holds without need.
#pragma once

#include <bit>

#include "engines/virtual_span/standard/frontend.hpp"

namespace spanalloc::standard {

SPANALLOC_COLD inline Lab* Frontend::attach() {
  Lab* lab = Heap::take_lab();
  if (lab == nullptr) return nullptr;
  ThreadState& t = thread_state;
  SPANALLOC_ASSERT(t.lab == nullptr && t.run.count == 0);
  t.parked_identity = SpanWord::identity_of(lab->number, SpanState::kParked);
  t.hot_identity = SpanWord::identity_of(lab->number, SpanState::kHot);
  t.lab = lab;  // before the hook: registering it may call malloc
  if (!t.exited && !exit_key_.watch_this_thread(&t, &on_thread_exit)) t.exited = true;
  return lab;
}

inline void Frontend::on_thread_exit(void* state) {
  if (!exit_key_.comes_again(state, thread_state.exit_round)) thread_exit();
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
  SPANALLOC_ASSERT(lab == t.lab);
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
