// A heap of the standard engine that a test owns, on a page layer of its own, gone with the test.
#pragma once

#include <atomic>
#include <utility>

#include "base/compiler.hpp"
#include "standard/engine.hpp"
#include "thread/lifecycle.hpp"

namespace spanalloc::test {

/// Any thread may use it at any time; thread::ExitKey finds the calling thread's cache. The
/// functions do what the engine's functions of their names do (engine/engine.hpp).
template <class Config = Standard>
class OwnedHeap {
  using ThreadCache = standard::ThreadCache<Config>;
  using ExitKey = thread::ExitKey;

 public:
  standard::PageLayer<Config> pages{heap, &standard::ForkRecovery<Config>::enter_child};
  standard::Heap<Config> heap{pages, &on_thread_exit};

  OwnedHeap() = default;
  OwnedHeap(const OwnedHeap&) = delete;
  OwnedHeap& operator=(const OwnedHeap&) = delete;
  /// With every block that is still out. No thread that has used the heap may be about to end.
  ~OwnedHeap() {
    heap.exit_key.remove();
    pages.destroy();
    for (Kept* kept = all_.load(); kept != nullptr;) delete std::exchange(kept, kept->next);
  }

  /// nullptr also when the process has no key left (PTHREAD_KEYS_MAX).
  void* allocate(std::size_t n) { return with_own(&ThreadCache::template allocate<ReturnNull>, n); }
  void* allocate_zeroed(std::size_t n) { return with_own(&ThreadCache::allocate_zeroed, n); }
  void deallocate(void* p) { with_any(&ThreadCache::template deallocate<>, p); }
  std::size_t usable_size(const void* p) { return with_any(&ThreadCache::usable_size, p); }
  Resized resize(void* p, std::size_t n) {
    return with_any(&ThreadCache::template resize<TakeAllBack>, p, n);
  }
  bool owns(const void* p) { return with_any(&ThreadCache::owns, p); }
  bool trim() { return with_any(&ThreadCache::trim); }
  EngineStatistics statistics() {
    ThreadCache guest(heap, pages);
    ThreadCache* const mine = found();
    return standard::Inventory<Config>(mine != nullptr ? *mine : guest).totals;
  }

  /// The calling thread's, made with its first use. nullptr: there is no memory for it, or the
  /// thread has left the heap at its end.
  ThreadCache* thread_cache() {
    if (ThreadCache* mine = found(); mine != nullptr) return mine;
    return ExitKey::has_left(heap.exit_key.find()) ? nullptr : make_thread_cache();
  }

 private:
  struct Kept {
    ThreadCache cache;
    Kept* next;
  };

  ThreadCache* found() const {
    void* kept = heap.exit_key.find();
    return ExitKey::has_left(kept) ? nullptr : static_cast<ThreadCache*>(kept);
  }
  ThreadCache* make_thread_cache() {
    ThreadCache guest(heap, pages);
    const auto inside = guest.enter();
    auto* record = heap.begin_cache();
    if (record == nullptr) return nullptr;
    auto* kept = new Kept{{heap, pages}, all_.load()};
    while (!all_.compare_exchange_weak(kept->next, kept)) {
    }
    if (kept->cache.begin_with(record)) return &kept->cache;
    kept->cache.detach();
    return nullptr;
  }
  // Calls f of the thread's own cache; of a guest's if the thread has left the heap.
  template <class F, class... A>
  void* with_own(F f, A... arguments) {
    if (ThreadCache* mine = thread_cache(); mine != nullptr) return (mine->*f)(arguments...);
    return ExitKey::has_left(heap.exit_key.find()) ? as_guest(f, arguments...) : nullptr;
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
    ThreadCache guest(heap, pages);
    guest.exited = true;
    return (guest.*f)(arguments...);
  }
  static void on_thread_exit(void* kept) {
    if (ExitKey::has_left(kept)) return ExitKey::stay_away(kept);
    auto& mine = *static_cast<ThreadCache*>(kept);
    if (mine.heap->exit_key.comes_again(kept, mine.exit_round)) return;
    mine.heap->exit_key.leave();
    mine.thread_exit();
  }

  std::atomic<Kept*> all_{nullptr};  // until the heap's end
};

}  // namespace spanalloc::test
