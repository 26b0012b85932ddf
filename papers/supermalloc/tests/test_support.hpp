// What the tests of the supermalloc engine share: a heap of a test's own, in a small arena, and
// the walker after each step.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>

#include <cstdint>
#include <string>
#include <vector>

#include "environment.hpp"
#include "owned.hpp"
#include "papers/supermalloc/engine/allocator.hpp"
#include "simulated_cpus.hpp"

namespace spanalloc::test {

using SupermallocBins = supermalloc::Bins<Supermalloc>;

/// A heap, which gives back what it has at its end.
template <class Config = Supermalloc>
using OwnHeap = Owned<supermalloc::Allocator<Config>>;

/// The walker's findings; a failure unless every invariant holds.
template <class Config>
supermalloc::Census checked(OwnHeap<Config>& heap) {
  const supermalloc::Census census = heap->census();
  EXPECT_TRUE(census.consistent())
      << (census.broken == 0 ? "chunks do not add up" : census.first_problem) << " at " << std::hex
      << census.at;
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

/// The CPUs that this process may run on when it is first asked.
inline const std::vector<unsigned>& cpus_of_this_process() {
  static const std::vector<unsigned> cpus = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    EXPECT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
    std::vector<unsigned> found;
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) found.push_back(cpu);
    }
    return found;
  }();
  return cpus;
}
inline void run_on(const std::vector<unsigned>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const unsigned cpu : cpus) CPU_SET(cpu, &set);
  ASSERT_EQ(sched_setaffinity(0, sizeof set, &set), 0);
}
/// For as long as it lives the calling thread, and those that it starts, are on one CPU if caches
/// are changed by restartable sequences: then each CPU has one of its own.
class OneCpuForSequences {
 public:
  OneCpuForSequences() {
    if (!supermalloc::CpuSequences::are_wanted() || !os::has_sequences()) return;
    run_on({cpus_of_this_process().front()});
    is_bound_ = true;
  }
  ~OneCpuForSequences() {
    if (is_bound_) run_on(cpus_of_this_process());
  }
  OneCpuForSequences(const OneCpuForSequences&) = delete;
  OneCpuForSequences& operator=(const OneCpuForSequences&) = delete;

 private:
  bool is_bound_ = false;
};

/// Many heaps in one process: small arenas. One CPU, so that a test knows which caches it meets.
class SupermallocTest : public ::testing::Test {
  Variable bits_{"SPANALLOC_ARENA_BITS", "32"};
  SimulatedCpus cpus_{1};
  OneCpuForSequences bound_;
};

}  // namespace spanalloc::test
