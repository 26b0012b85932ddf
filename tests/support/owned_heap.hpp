// A heap of the standard engine that a test owns, on a page layer of its own, gone with the test.
#pragma once

#include "standard/own_heap.hpp"

namespace spanalloc::test {

template <class Config = Standard>
struct OwnedHeap {
  standard::PageLayer<Config> pages{&standard::ForkRecovery<Config>::enter_child};
  standard::OwnHeap<Config> heap{pages};

  OwnedHeap() = default;
  OwnedHeap(const OwnedHeap&) = delete;
  OwnedHeap& operator=(const OwnedHeap&) = delete;
  ~OwnedHeap() {
    heap.destroy();
    pages.destroy();
  }
};

}  // namespace spanalloc::test
