// A heap of its owner's, beside the default one: the same code, on the same page layer or another one. Any
// thread uses it at any time; what a thread keeps for it is found by thread and heap (thread::ExitKey).
//
// A block may also be freed, resized and asked for its size through any other heap of the page layer: its
// span's record names the heap.
#pragma once

#include <cstddef>
#include <new>

#include "base/compiler.hpp"
#include "engines/engine.hpp"
#include "engines/standard/engine.hpp"

namespace spanalloc::standard {

/// Functions: as the engine's of the same names (engines/engine.hpp).
template <class Config>
class OwnHeap {
  using Frontend = standard::Frontend<Config>;
  using Heap = standard::Heap<Config>;
  using Pages = PageLayer<Config>;
  static_assert(sizeof(Frontend) <= Pages::kSlotBytes);

 public:
  /// The page layer outlives the heap. It takes memory with its first use.
  explicit OwnHeap(Pages& pages) : pages_(pages), heap_(pages, &on_thread_exit) {}
  OwnHeap(const OwnHeap&) = delete;
  OwnHeap& operator=(const OwnHeap&) = delete;
  /// Gives back everything, every block that is still out included. Nobody uses the heap any more, and no
  /// thread that has used it is about to end.
  void destroy() {
    Frontend guest(heap_, pages_);
    const InsideHeap<Config> inside(guest);
    heap_.destroy();
  }

  /// nullptr also when the process has no key left (PTHREAD_KEYS_MAX) for another heap.
  void* allocate(std::size_t n) {
    return with_frontend([n](Frontend& mine) { return mine.template allocate<ReturnNull>(n); });
  }
  void* allocate_aligned(std::size_t n, std::size_t alignment) {
    return with_frontend([n, alignment](Frontend& mine) { return mine.allocate_aligned(n, alignment); });
  }
  void* allocate_zeroed(std::size_t n) {
    return with_frontend([n](Frontend& mine) { return mine.allocate_zeroed(n); });
  }
  void* allocate_copy(std::size_t n, const void* from, std::size_t bytes) {
    return with_frontend([=](Frontend& mine) { return mine.allocate_copy(n, from, bytes); });
  }
  void deallocate(void* p) {
    with_any_frontend([p](Frontend& mine) { mine.deallocate(p); });
  }
  std::size_t usable_size(const void* p) {
    return with_any_frontend([p](Frontend& mine) { return mine.usable_size(p); });
  }
  template <LeavesAlone Policy = TakeAllBack>
  Resized resize(void* p, std::size_t n) {
    return with_any_frontend([p, n](Frontend& mine) { return mine.template resize<Policy>(p, n); });
  }
  bool owns(const void* p) {
    // (Before its first use and after its end a heap has no number of its own.)
    return heap_.is_started() && with_any_frontend([p](Frontend& mine) { return mine.owns(p); });
  }
  bool trim() {
    return with_any_frontend([](Frontend& mine) { return mine.trim(); });
  }
  EngineStatistics statistics() { return heap_.statistics(); }

  Heap& heap() { return heap_; }
  /// What the calling thread keeps for the heap, made with its first use; nullptr: no memory for it, or the
  /// thread has left the heap at its end.
  Frontend* frontend() {
    if (Frontend* mine = found(); SPANALLOC_LIKELY(mine != nullptr)) return mine;
    return thread::ExitKey::has_left(heap_.exit_key.find()) ? nullptr : make_frontend();
  }

 private:
  Frontend* found() const {
    void* kept = heap_.exit_key.find();
    return thread::ExitKey::has_left(kept) ? nullptr : static_cast<Frontend*>(kept);
  }
  SPANALLOC_COLD Frontend* make_frontend() {
    Frontend guest(heap_, pages_);
    const InsideHeap<Config> inside(guest);
    auto* lab = heap_.begin_lab();
    if (lab == nullptr) return nullptr;
    void* slot = pages_.slot_of(lab->number);
    if (slot == nullptr) {
      heap_.end_lab(lab);
      return nullptr;
    }
    auto* mine = new (slot) Frontend(heap_, pages_);
    if (mine->adopt(lab)) return mine;
    mine->detach();
    return nullptr;
  }
  template <class F>
  void* with_frontend(F f) {
    if (Frontend* mine = frontend(); SPANALLOC_LIKELY(mine != nullptr)) return f(*mine);
    return thread::ExitKey::has_left(heap_.exit_key.find()) ? as_guest(f) : nullptr;
  }
  // A thread that has nothing in the heap does as well without.
  template <class F>
  auto with_any_frontend(F f) {
    Frontend* mine = found();
    return mine != nullptr ? f(*mine) : as_guest(f);
  }
  // For one call: what the thread allocates from is given back at its end.
  template <class F>
  auto as_guest(F f) {
    Frontend guest(heap_, pages_);
    guest.exited = true;
    return f(guest);
  }
  static void on_thread_exit(void* kept) {
    if (thread::ExitKey::has_left(kept)) return thread::ExitKey::stay_away(kept);
    auto* mine = static_cast<Frontend*>(kept);
    Heap& heap = *mine->heap;
    if (heap.exit_key.comes_again(kept, mine->exit_round)) return;
    // When its LAB is given back its memory may be another thread's.
    Frontend last = *mine;
    heap.exit_key.leave();
    last.thread_exit();
  }

  Pages& pages_;
  Heap heap_;
};

}  // namespace spanalloc::standard
