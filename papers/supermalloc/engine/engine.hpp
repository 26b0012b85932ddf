// The engine of SuperMalloc (B. C. Kuszmaul, ISMM 2015), with locks. Read DESIGN.md beside this
// file first; then bins.hpp, chunk_table.hpp, folios.hpp, folio_heap.hpp, object_list.hpp,
// thread_cache.hpp, cpu_slots.hpp, cpu_sequences.hpp, cpu_caches.hpp, giving_back.hpp and
// allocator.hpp, in that order. This file makes the engine of them that a library has: static
// functions over one allocator.
#pragma once

#include <cstddef>

#include "base/compiler.hpp"
#include "engine/engine.hpp"
#include "os/os.hpp"
#include "papers/supermalloc/engine/allocator.hpp"
#include "papers/supermalloc/engine/census.hpp"
#include "papers/supermalloc/engine/config.hpp"
#include "papers/supermalloc/engine/thread_caches.hpp"

namespace spanalloc {

template <class Config = Supermalloc>
class SupermallocEngine {
 public:
  static constexpr const char* kName = Config::kName;

  template <OutOfMemory Policy = ReturnNull>
  SPANALLOC_INLINE static void* allocate(std::size_t n) {
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
  SPANALLOC_INLINE static void deallocate(void* p) {
    heap().template deallocate<Caller>(p);
  }
  static std::size_t usable_size(const void* p) { return heap().usable_size(p); }
  template <LeavesAlone Policy = TakeAllBack>
  static Resized resize(void* p, std::size_t n) {
    return heap().template resize<Policy>(p, n);
  }
  static bool owns(const void* p) { return heap().owns(p); }
  static bool trim() { return heap().trim(); }
  static EngineStatistics statistics() { return heap().statistics(); }
  static supermalloc::Census census() { return heap().census(); }
  template <class F, class G>
  static void describe(F&& f, G&& g) {
    heap().describe(f, g);
  }
  static void process_start() { heap().process_start(); }
  /// Around what may be another library's code in the middle of a call; see os/kernel_call.hpp.
  static void hide_thread(os::HiddenThread& room) { supermalloc::ThreadCaches<Config>::hide(room); }
  static void show_thread(const os::HiddenThread& room) {
    supermalloc::ThreadCaches<Config>::show(room);
  }

 private:
  static supermalloc::Allocator<Config>& heap() {
    return supermalloc::Allocator<Config>::default_instance;
  }
};

}  // namespace spanalloc
