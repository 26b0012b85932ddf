// OwnHeap: a heap that a program makes beside the default one. It runs the same code, on the
// same page layer or another one. Any thread may use it at any time; thread::ExitKey finds the
// calling thread's cache for it.
//
// A block may also be freed, resized and asked for its size through any other heap of the page
// layer, because its span's record names the heap.
#pragma once

#include <cstddef>
#include <new>

#include "base/compiler.hpp"
#include "engine/engine.hpp"
#include "standard/engine.hpp"

namespace spanalloc::standard {

/// The functions do what the engine's functions of their names do (engine/engine.hpp).
template <class Config>
class OwnHeap {
  using ThreadCache = standard::ThreadCache<Config>;
  using Heap = standard::Heap<Config>;
  using Pages = PageLayer<Config>;
  static_assert(sizeof(ThreadCache) <= CacheTable<Config>::kSlotBytes);

 public:
  /// The page layer must outlive the heap. The heap takes memory with its first use.
  explicit OwnHeap(Pages& pages) : pages_(pages), heap_(pages, &on_thread_exit) {}
  OwnHeap(const OwnHeap&) = delete;
  OwnHeap& operator=(const OwnHeap&) = delete;
  /// Gives back all memory, with every block that is still out. Nobody may use the heap any more,
  /// and no thread that has used it may be about to end.
  void destroy() {
    ThreadCache guest(heap_, pages_);
    const auto inside = guest.enter();
    heap_.destroy();
  }

  /// nullptr also when the process has no key left (PTHREAD_KEYS_MAX) for another heap.
  void* allocate(std::size_t n) { return with_own(&ThreadCache::template allocate<ReturnNull>, n); }
  void* allocate_aligned(std::size_t n, std::size_t alignment) {
    return with_own(&ThreadCache::allocate_aligned, n, alignment);
  }
  void* allocate_zeroed(std::size_t n) { return with_own(&ThreadCache::allocate_zeroed, n); }
  void* allocate_copy(std::size_t n, const void* from, std::size_t bytes) {
    return with_own(&ThreadCache::allocate_copy, n, from, bytes);
  }
  void deallocate(void* p) { with_any(&ThreadCache::template deallocate<>, p); }
  std::size_t usable_size(const void* p) { return with_any(&ThreadCache::usable_size, p); }
  template <LeavesAlone Policy = TakeAllBack>
  Resized resize(void* p, std::size_t n) {
    return with_any(&ThreadCache::template resize<Policy>, p, n);
  }
  // (A heap has a number of its own only from its first use to its end.)
  bool owns(const void* p) { return heap_.is_started() && with_any(&ThreadCache::owns, p); }
  bool trim() { return with_any(&ThreadCache::trim); }
  /// Of this heap, but for free memory and books, which are the page layer's.
  EngineStatistics statistics() {
    if (ThreadCache* mine = found(); mine != nullptr) return Inventory<Config>(*mine).totals;
    ThreadCache guest(heap_, pages_);
    return Inventory<Config>(guest).totals;
  }

  Heap& heap() { return heap_; }
  /// The calling thread's cache for the heap, made with its first use. nullptr: there is no memory
  /// for it, or the thread has left the heap at its end.
  ThreadCache* thread_cache() {
    if (ThreadCache* mine = found(); SPANALLOC_LIKELY(mine != nullptr)) return mine;
    return thread::ExitKey::has_left(heap_.exit_key.find()) ? nullptr : make_thread_cache();
  }

 private:
  ThreadCache* found() const {
    void* kept = heap_.exit_key.find();
    return thread::ExitKey::has_left(kept) ? nullptr : static_cast<ThreadCache*>(kept);
  }
  SPANALLOC_COLD ThreadCache* make_thread_cache() {
    ThreadCache guest(heap_, pages_);
    const auto inside = guest.enter();
    auto* cache = heap_.begin_cache();
    if (cache == nullptr) return nullptr;
    void* slot = pages_.caches.slot_of(cache->number);
    if (slot == nullptr) {
      heap_.end_cache(cache);
      return nullptr;
    }
    auto* mine = new (slot) ThreadCache(heap_, pages_);
    if (mine->begin_with(cache)) return mine;
    mine->detach();
    return nullptr;
  }
  // Calls f of the thread's own cache; of a guest's if the thread has left the heap.
  template <class F, class... A>
  void* with_own(F f, A... arguments) {
    if (ThreadCache* mine = thread_cache(); SPANALLOC_LIKELY(mine != nullptr))
      return (mine->*f)(arguments...);
    return thread::ExitKey::has_left(heap_.exit_key.find()) ? as_guest(f, arguments...) : nullptr;
  }
  // For calls that need no cache of the thread's own: a thread without one makes them as a guest.
  template <class F, class... A>
  auto with_any(F f, A... arguments) {
    ThreadCache* mine = found();
    return mine != nullptr ? (mine->*f)(arguments...) : as_guest(f, arguments...);
  }
  // With a thread cache for one call: what the thread allocates from is given back at the call's
  // end.
  template <class F, class... A>
  auto as_guest(F f, A... arguments) {
    ThreadCache guest(heap_, pages_);
    guest.exited = true;
    return (guest.*f)(arguments...);
  }
  static void on_thread_exit(void* kept) {
    if (thread::ExitKey::has_left(kept)) return thread::ExitKey::stay_away(kept);
    auto* mine = static_cast<ThreadCache*>(kept);
    Heap& heap = *mine->heap;
    if (heap.exit_key.comes_again(kept, mine->exit_round)) return;
    // A copy, because the memory may be another thread's as soon as the cache record is given back.
    ThreadCache last = *mine;
    heap.exit_key.leave();
    last.thread_exit();
  }

  Pages& pages_;
  Heap heap_;
};

}  // namespace spanalloc::standard
