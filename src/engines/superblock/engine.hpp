// The superblock engine: the allocator of A. Jakop and M. Le Hoang's report (CSC469, 2016) after Hoard. Read
// DESIGN.md beside this file first; then block.hpp, superblock.hpp, heap.hpp, global_heap.hpp,
// thread_heaps.hpp and allocator.hpp, in that order. This file makes the engine of them that a library has:
// static functions over one allocator.
#pragma once

#include <cstddef>

#include "engines/engine.hpp"
#include "engines/superblock/allocator.hpp"
#include "engines/superblock/census.hpp"
#include "engines/superblock/config.hpp"

namespace spanalloc {

template <class Config = SuperblockReport>
class SuperblockEngine {
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
  static void deallocate(void* p) { heap().deallocate(p); }
  static std::size_t usable_size(const void* p) { return heap().usable_size(p); }
  template <LeavesAlone Policy = TakeAllBack>
  static Resized resize(void* p, std::size_t n) {
    return heap().template resize<Policy>(p, n);
  }
  static bool owns(const void* p) { return heap().owns(p); }
  static bool trim() { return heap().trim(); }
  static EngineStatistics statistics() { return heap().statistics(); }
  static superblock::Census census() { return heap().census(); }
  static void process_start() { heap().process_start(); }

 private:
  static superblock::Allocator<Config>& heap() { return superblock::Allocator<Config>::default_instance; }
};

}  // namespace spanalloc
