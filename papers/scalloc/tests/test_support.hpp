// What the scalloc unit tests share: a config that lets a test act inside the slow
// paths, and a look inside.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

#include "census_check.hpp"
#include "owned.hpp"
#include "papers/scalloc/engine/engine.hpp"
#include "threads.hpp"

namespace spanalloc {

/// With one armed hook, which fires once. A heap of its own for each tag where a test needs an
/// engine; others own their heap.
template <int kTag = 0>
struct HookedConfig : Scalloc {
  static inline scalloc::Step armed_step{};
  static inline std::function<void(scalloc::Span*)> armed;

  static void arm(scalloc::Step step, std::function<void(scalloc::Span*)> action) {
    armed_step = step;
    armed = std::move(action);
  }
  static bool fired() { return armed == nullptr; }
  static void at(scalloc::Step step, scalloc::Span* span) {
    if (armed == nullptr || step != armed_step) return;
    // What the action does must not fire it again
    const auto action = std::exchange(armed, nullptr);
    action(span);
  }
};

struct ScallocTestAccess {
  template <class Config>
  static void push_local_unseen(void* p) {
    scalloc::Backend<Config> none(nullptr);
    scalloc::SpanProtocol<Config>(none).push_local(span_of(p), p);
  }
  template <class Config>
  static void leave_thread() {
    ScallocEngine<Config>::frontend().leave().report_if_any();
  }
  /// Of the calling thread; nullptr: it has none.
  template <class Config>
  static auto* thread(const scalloc::Heap<Config>& heap) {
    return heap.find_thread_(heap);
  }
  template <class Config>
  static scalloc::Lab* lab(const scalloc::Heap<Config>& heap) {
    return thread(heap) == nullptr ? nullptr : thread(heap)->own_lab;
  }
  /// By the calling thread, for its LAB.
  template <class Config>
  static scalloc::Span* take_idle(scalloc::Heap<Config>& heap, scalloc::Span* span,
                                  scalloc::ClassId size_class) {
    auto& protocol = heap.protocol_;
    return protocol.take_idle(*lab(heap), span, size_class, thread(heap)->self()).span;
  }
  template <class Config>
  static std::size_t records(const scalloc::Heap<Config>& heap) {
    std::size_t count = 0;
    heap.threads_.for_each([&](const auto&) { ++count; });
    return count;
  }
  /// Held by who starts the heap, or carves a span.
  template <class Config>
  static WakingLock& carve_lock(scalloc::Heap<Config>& heap) {
    return heap.backend_.carve_lock_;
  }
  /// As far as start() comes before it opens the first shared LAB.
  template <class Config>
  static scalloc::Lab& begin_start(scalloc::Heap<Config>& heap) {
    using Room = std::remove_pointer_t<decltype(heap.room_)>;
    const std::size_t bytes = align_up(sizeof(Room), os::page_size());
    heap.room_ = static_cast<Room*>(os::map(bytes, os::page_size()));
    heap.shared_count_.store_relaxed(1);
    return heap.shared_lab(0);
  }
  /// As a call does that comes to the set.
  template <class Config>
  static void lock_set(scalloc::Heap<Config>& heap, scalloc::Lab& lab, scalloc::ClassId c) {
    const typename scalloc::SpanProtocol<Config>::SetGuard set(heap.protocol_, lab, c);
  }
  static scalloc::Span* span_of(const void* p) {
    return pointer_to<scalloc::Span>(align_down(address_of(p), scalloc::kVirtualSpan));
  }
};

/// A heap of the test's own, given back at its end.
template <class Config>
using OwnHeap = test::Owned<scalloc::Heap<Config>>;

/// How many threads the heap has ever had to keep something for at once.
template <class Config>
std::size_t records_of(const scalloc::Heap<Config>& heap) {
  return ScallocTestAccess::records(heap);
}

inline scalloc::Span* span_of(const void* p) {
  return ScallocTestAccess::span_of(p);
}

using test::on_another_thread;

/// Fills one span of a class exactly, then makes another one hot, so that the first floats. The
/// first `blocks` entries are all of the floating span, the last one is the other span's.
template <class H>
std::vector<void*> make_floating_span(H& heap, std::size_t size) {
  std::vector<void*> blocks;
  const scalloc::Span* first = nullptr;
  for (;;) {
    void* p = heap.allocate(size);
    blocks.push_back(p);
    if (first == nullptr) {
      first = span_of(p);
    } else if (span_of(p) != first) {
      break;
    }
  }
  EXPECT_EQ(blocks.size() - 1, scalloc::info(scalloc::class_of(size)).blocks);
  EXPECT_EQ(first->load_word().state(), scalloc::State::kFloating);
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
