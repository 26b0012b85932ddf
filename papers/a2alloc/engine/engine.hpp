// The a2alloc engine: the allocator of A. Jakop and M. Le Hoang's report (CSC469, 2016) after
// Hoard. Read DESIGN.md beside this file first; then block.hpp, superblock.hpp, heap.hpp,
// global_heap.hpp, thread_heaps.hpp and allocator.hpp, in that order. This file makes the engine of
// them that a library has: static functions over one allocator.
#pragma once

#include <cstddef>

#include "engine/engine.hpp"
#include "os/os.hpp"
#include "papers/a2alloc/engine/allocator.hpp"
#include "papers/a2alloc/engine/census.hpp"
#include "papers/a2alloc/engine/config.hpp"

namespace spanalloc {

template <class Config = A2alloc>
class A2allocEngine {
 public:
  static constexpr const char* kName = Config::kName;

  template <OutOfMemory Policy = ReturnNull>
  static void* allocate(std::size_t n) {
    return heap().template allocate<Policy>(n);
  }
  static void* allocate_aligned(std::size_t n, std::size_t alignment) {
    return heap().allocate_aligned(n, alignment);
  }
  static void* allocate_zeroed(std::size_t n) { return heap().allocate_zeroed(n); }
  static void* allocate_copy(std::size_t n, const void* from, std::size_t bytes) {
    return heap().allocate_copy(n, from, bytes);
  }
  template <class Caller = NoOperator>
  static void deallocate(void* p) {
    // Each free takes a lock: here operator delete just asks.
    if constexpr (OperatorDelete<Caller>) {
      if (SPANALLOC_UNLIKELY(Caller::leaves())) return Caller::free_elsewhere(p);
    }
    heap().deallocate(p);
  }
  static std::size_t usable_size(const void* p) { return heap().usable_size(p); }
  template <LeavesAlone Policy = TakeAllBack>
  static Resized resize(void* p, std::size_t n) {
    return heap().template resize<Policy>(p, n);
  }
  static bool owns(const void* p) { return heap().owns(p); }
  static bool trim() { return heap().trim(); }
  static EngineStatistics statistics() { return heap().statistics(); }
  static a2alloc::Census census() { return heap().census(); }
  static void process_start() { heap().process_start(); }
  /// Around what may be another library's code in the middle of a call (os/kernel_call.hpp): every
  /// call here asks for itself whether it is made there.
  static void hide_thread(os::HiddenThread&) {}
  static void show_thread(const os::HiddenThread&) {}
  /// Of a live block, which is not freed meanwhile.
  static std::size_t size_without_lock(const void* p) { return heap().size_without_lock(p); }

 private:
  static a2alloc::Allocator<Config>& heap() { return a2alloc::Allocator<Config>::default_instance; }
};

}  // namespace spanalloc
