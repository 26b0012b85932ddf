// What the oopsla15 unit tests share: a config that lets a test act inside the slow paths, and a look inside.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "engines/virtual_span/oopsla15/engine.hpp"

namespace spanalloc {

/// A heap of its own for each tag, with one armed hook that fires once.
template <int kTag>
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
  template <class Config>
  static oopsla15::Lab* lab() {
    return Oopsla15Engine<Config>::frontend().own_lab;
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
class OwnHeap {
 public:
  using Heap = oopsla15::Heap<Config>;

  OwnHeap() = default;
  ~OwnHeap() { heap_.destroy(); }
  OwnHeap(const OwnHeap&) = delete;
  OwnHeap& operator=(const OwnHeap&) = delete;
  Heap& operator*() { return heap_; }
  Heap* operator->() { return &heap_; }

 private:
  Heap heap_;
};

/// How many threads the heap has ever had to keep something for at once.
template <class Config>
std::size_t records_of(const oopsla15::Heap<Config>& heap) {
  return Oopsla15TestAccess::records(heap);
}

inline oopsla15::Span* span_of(const void* p) {
  return Oopsla15TestAccess::span_of(p);
}

template <class F>
void on_another_thread(F&& f) {
  std::thread(std::forward<F>(f)).join();
}

/// Fills one span of a class exactly, then makes another one hot, so that the first floats. The first
/// `blocks` entries are all of the floating span, the last one is the other span's.
template <class E>
std::vector<void*> make_floating_span(std::size_t size) {
  std::vector<void*> blocks;
  const oopsla15::Span* first = nullptr;
  for (;;) {
    void* p = E::allocate(size);
    blocks.push_back(p);
    if (first == nullptr) {
      first = span_of(p);
    } else if (span_of(p) != first) {
      break;
    }
  }
  EXPECT_EQ(blocks.size() - 1, oopsla15::kSizeClasses[oopsla15::class_of(size)].blocks);
  EXPECT_EQ(first->load_word().state(), oopsla15::State::kFloating);
  return blocks;
}

template <class E>
void expect_nothing_held() {
  E::trim();
  const oopsla15::Census census = E::census();
  EXPECT_TRUE(census.nothing_held()) << "carved " << census.carved << " pooled " << census.pooled << " lost "
                                     << census.lost << " hot " << census.hot << " empty_hot "
                                     << census.empty_hot << " floating " << census.floating << " suspect "
                                     << census.suspect << " reusable " << census.reusable << " empty "
                                     << census.empty_idle;
}

}  // namespace spanalloc
