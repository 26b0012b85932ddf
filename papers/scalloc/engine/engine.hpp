// The engine of scalloc (M. Aigner, C. M. Kirsch, M. Lippautz, A. Sokolova, OOPSLA 2015),
// paper-faithful. DESIGN.md beside this file tells how it works and where it deviates.
//
// The engine is one heap, the default one of its Config. Further heaps are objects: scalloc::Heap.
#pragma once

#include <cstddef>
#include <new>

#include "base/compiler.hpp"
#include "engine/engine.hpp"
#include "os/os.hpp"
#include "papers/scalloc/engine/config.hpp"
#include "papers/scalloc/engine/frontend.hpp"
#include "papers/scalloc/engine/frontend_allocate.hpp"
#include "papers/scalloc/engine/frontend_free.hpp"
#include "papers/scalloc/engine/frontend_thread.hpp"
#include "papers/scalloc/engine/heap.hpp"
#include "papers/scalloc/engine/heap_fork.hpp"
#include "papers/scalloc/engine/thread_frontends.hpp"

namespace spanalloc {

template <class Config = Scalloc>
class ScallocEngine {
 public:
  using Heap = scalloc::Heap<Config>;
  using Frontend = scalloc::Frontend<Config>;

  static constexpr const char* kName = Config::kName;

  template <OutOfMemory Policy = ReturnNull>
  SPANALLOC_INLINE static void* allocate(std::size_t size) {
    return thread_.template allocate<Policy>(size);
  }
  template <class Caller = NoOperator>
  SPANALLOC_INLINE static void deallocate(void* p) {
    thread_.template deallocate<Caller>(p);
  }
  static void* allocate_zeroed(std::size_t size) { return thread_.allocate_zeroed(size); }
  static void* allocate_aligned(std::size_t size, std::size_t alignment) {
    return thread_.allocate_aligned(size, alignment);
  }
  static void* allocate_copy(std::size_t size, const void* from, std::size_t bytes) {
    return thread_.allocate_copy(size, from, bytes);
  }
  static std::size_t usable_size(const void* p) { return thread_.usable_size(p); }
  template <LeavesAlone Policy = TakeAllBack>
  static Resized resize(void* p, std::size_t size) {
    return thread_.template resize<Policy>(p, size);
  }
  static bool owns(const void* p) { return heap_.owns(p); }
  static bool trim() { return thread_.trim(); }
  static typename Heap::Figures take_inventory() { return heap_.take_inventory(); }
  static EngineStatistics statistics() { return heap_.statistics(); }
  /// Where every span is; exact while no other thread uses the heap.
  static scalloc::Census census() { return heap_.census(); }
  static void process_start() { heap_.process_start(); }
  /// Around what may be another library's code in the middle of a call; see os/kernel_call.hpp.
  static void hide_thread(os::HiddenThread& room) { thread_.hide(*new (room.room) Hidden); }
  static void show_thread(const os::HiddenThread& room) {
    thread_.show(*reinterpret_cast<const Hidden*>(room.room));
  }

  static Heap& heap() { return heap_; }
  /// The calling thread's.
  static Frontend& frontend() { return thread_; }

 private:
  friend struct ScallocTestAccess;

  using Hidden = scalloc::ThreadState::Hidden;
  static_assert(sizeof(Hidden) <= sizeof(os::HiddenThread));

  static Frontend* find_thread(const Heap&) { return &thread_; }

  // In .bss, which the heap is too small to miss
  static inline constinit typename Heap::Room room_{};
  static inline constinit Heap heap_{room_, &find_thread};
  SPANALLOC_TLS static inline constinit thread_local Frontend thread_{heap_};
};

}  // namespace spanalloc
