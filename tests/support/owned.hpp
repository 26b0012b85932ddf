// A heap that a test owns, which gives back what it has at its end.
#pragma once

namespace spanalloc::test {

template <class H>
class Owned {
 public:
  using Heap = H;

  Owned() = default;
  ~Owned() { heap_.destroy(); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Heap& operator*() { return heap_; }
  Heap* operator->() { return &heap_; }

 private:
  Heap heap_;
};

}  // namespace spanalloc::test
