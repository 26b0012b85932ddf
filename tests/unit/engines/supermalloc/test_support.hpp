// What the tests of the supermalloc engine share: a heap of a test's own, in a small arena, and the walker
// after each step.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "base/bits.hpp"
#include "engines/supermalloc/allocator.hpp"
#include "environment.hpp"
#include "owned.hpp"

namespace spanalloc::test {

using SupermallocBins = supermalloc::Bins<Supermalloc>;

/// A heap, which gives back what it has at its end.
template <class Config = Supermalloc>
using OwnHeap = Owned<supermalloc::Allocator<Config>>;

/// The walker's findings; a failure unless every invariant holds.
template <class Config>
supermalloc::Census checked(OwnHeap<Config>& heap) {
  const supermalloc::Census census = heap->census();
  EXPECT_TRUE(census.consistent()) << (census.broken == 0 ? "chunks do not add up" : census.first_problem)
                                   << " at " << std::hex << census.at;
  return census;
}

/// The calling thread's cache of a heap that it has used.
template <class Config>
supermalloc::ThreadCache<Config>& own_cache(OwnHeap<Config>& heap) {
  using Caches = supermalloc::ThreadCaches<Config>;
  auto& cache = const_cast<Caches&>(heap->thread_caches()).known();
  EXPECT_NE(&cache, &Caches::none());
  return cache;
}

template <class Config>
std::vector<void*> allocate_many(OwnHeap<Config>& heap, std::size_t count, std::size_t n) {
  std::vector<void*> objects(count);
  for (void*& p : objects) {
    p = heap->allocate(n);
    EXPECT_NE(p, nullptr);
  }
  return objects;
}
template <class Config>
void free_all(OwnHeap<Config>& heap, std::vector<void*>& objects) {
  for (void* p : objects) heap->deallocate(p);
  objects.clear();
}

/// Many heaps in one process: small arenas. One CPU, so that a test knows which caches it meets.
class SupermallocTest : public ::testing::Test {
  Variable bits_{"SPANALLOC_ARENA_BITS", "32"};
  Variable cpus_{"SPANALLOC_CPUS", "1"};
};

}  // namespace spanalloc::test
