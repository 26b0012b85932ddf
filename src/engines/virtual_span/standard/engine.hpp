// The product's engine, as engines/engine.hpp wants it.
#pragma once

#include <cstddef>

#include "engines/engine.hpp"
#include "engines/virtual_span/standard/census.hpp"
#include "engines/virtual_span/standard/frontend.hpp"
#include "engines/virtual_span/standard/heap.hpp"

namespace spanalloc {

struct StandardEngine {
  static constexpr const char* kName = "standard";

  template <OutOfMemory Policy = ReturnNull>
  SPANALLOC_INLINE static void* allocate(std::size_t n) {
    return standard::Frontend::allocate<Policy>(n);
  }
  static void* allocate_aligned(std::size_t n, std::size_t alignment) {
    return standard::Frontend::allocate_aligned(n, alignment);
  }
  static void* allocate_zeroed(std::size_t n) { return standard::Frontend::allocate_zeroed(n); }
  static void* allocate_copy(std::size_t n, const void* from, std::size_t bytes) {
    return standard::Frontend::allocate_copy(n, from, bytes);
  }
  SPANALLOC_INLINE static void deallocate(void* p) { standard::Frontend::deallocate(p); }
  static std::size_t usable_size(const void* p) { return standard::Frontend::usable_size(p); }
  static void* resize(void* p, std::size_t n) { return standard::Frontend::resize(p, n); }
  static bool owns(const void* p) { return standard::Frontend::owns(p); }
  static bool trim() { return standard::Frontend::trim(); }
  static EngineStatistics statistics() { return standard::Census::statistics(); }
  static SpanCensus census() { return standard::Census::take(); }

  static void process_start() {
    standard::Frontend::prepare_thread_exits();
    standard::Heap::start();
  }
};
static_assert(Engine<StandardEngine>);

}  // namespace spanalloc
