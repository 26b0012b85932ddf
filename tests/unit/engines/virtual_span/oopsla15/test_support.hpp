// What the oopsla15 unit tests share: a config that lets a test act inside the slow paths, and a look inside.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

#include "census_check.hpp"
#include "engines/virtual_span/oopsla15/engine.hpp"
#include "owned.hpp"
#include "threads.hpp"

namespace spanalloc {

/// With one armed hook, which fires once. A heap of its own for each tag where a test needs an engine; others
/// own their heap.
template <int kTag = 0>
struct HookedConfig : Oopsla15 {
  static inline oopsla15::Step armed_step{};
  static inline std::function<void(oopsla15::Span*)> armed;

  static void arm(oopsla15::Step step, std::function<void(oopsla15::Span*)> action) {
    armed_step = step;
    armed = std::move(action);
  }
  static bool fired() { return armed == nullptr; }
  static void at(oopsla15::Step step, oopsla15::Span* span) {
    if (armed == nullptr || step != armed_step) return;
    const auto action = std::exchange(armed, nullptr);  // what the action does must not fire it again
    action(span);
  }
};

struct Oopsla15TestAccess {
  template <class Config>
  static void push_local_unseen(void* p) {
    oopsla15::SpanProtocol<Config>::push_local(span_of(p), p);
  }
  template <class Config>
  static void leave_thread() {
    Oopsla15Engine<Config>::frontend().leave();
  }
  /// Of the calling thread; nullptr: it has none.
  template <class Config>
  static auto* thread(const oopsla15::Heap<Config>& heap) {
    return heap.find_thread_(heap);
  }
  template <class Config>
  static oopsla15::Lab* lab(const oopsla15::Heap<Config>& heap) {
    return thread(heap) == nullptr ? nullptr : thread(heap)->own_lab;
  }
  template <class Config>
  static std::size_t records(const oopsla15::Heap<Config>& heap) {
    std::size_t count = 0;
    heap.threads_.for_each([&](const auto&) { ++count; });
    return count;
  }
  static oopsla15::Span* span_of(const void* p) {
    return pointer_to<oopsla15::Span>(align_down(address_of(p), oopsla15::kVirtualSpan));
  }
};

/// A heap of the test's own, given back at its end.
template <class Config>
using OwnHeap = test::Owned<oopsla15::Heap<Config>>;

/// How many threads the heap has ever had to keep something for at once.
template <class Config>
std::size_t records_of(const oopsla15::Heap<Config>& heap) {
  return Oopsla15TestAccess::records(heap);
}

inline oopsla15::Span* span_of(const void* p) {
  return Oopsla15TestAccess::span_of(p);
}

using test::on_another_thread;

/// Fills one span of a class exactly, then makes another one hot, so that the first floats. The first
/// `blocks` entries are all of the floating span, the last one is the other span's.
template <class H>
std::vector<void*> make_floating_span(H& heap, std::size_t size) {
  std::vector<void*> blocks;
  const oopsla15::Span* first = nullptr;
  for (;;) {
    void* p = heap.allocate(size);
    blocks.push_back(p);
    if (first == nullptr) {
      first = span_of(p);
    } else if (span_of(p) != first) {
      break;
    }
  }
  EXPECT_EQ(blocks.size() - 1, oopsla15::info(oopsla15::class_of(size)).blocks);
  EXPECT_EQ(first->load_word().state(), oopsla15::State::kFloating);
  return blocks;
}
template <class E>
std::vector<void*> make_floating_span(std::size_t size) {
  E engine;
  return make_floating_span(engine, size);
}

template <class E>
void expect_nothing_held() {
  EXPECT_EQ(test::leftovers<E>(), "");
}

}  // namespace spanalloc
