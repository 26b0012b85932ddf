// The engine's configs that make one choice otherwise: what is otherwise about each, and that all
// of them keep every invariant.
#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/bits.hpp"
#include "engine_configs.hpp"
#include "memory_pattern.hpp"
#include "papers/supermalloc/tests/test_support.hpp"
#include "random.hpp"
#include "sanitizers.hpp"
#include "simulated_cpus.hpp"
#include "threads.hpp"

namespace spanalloc {
namespace {

using supermalloc::BinNumber;
using supermalloc::FreeObject;
using supermalloc::ObjectList;
using test::checked;
using test::OwnHeap;

class SupermallocConfigs : public test::SupermallocTest {};

// --- No prefetch ---

// How often it was asked whether to prefetch, and the answer was yes.
int prefetches = 0;
struct CountedAnswer {
  bool answer;
  operator bool() const {
    if (answer) ++prefetches;
    return answer;
  }
};
template <class Config>
struct Counted : Config {
  static constexpr CountedAnswer kPrefetch{Config::kPrefetch};
};

// Each critical section by itself: of a CPU's cache, the folios, the large objects.
template <class Config>
std::vector<int> prefetches_by_section() {
  OwnHeap<Counted<Config>> heap;
  const BinNumber b = test::SupermallocBins::for_folios(64);
  heap->deallocate(heap->allocate(64));
  std::vector<int> counts;
  const auto count = [&](auto&& section) {
    prefetches = 0;
    section();
    counts.push_back(prefetches);
  };
  ObjectList list;
  count([&] { list = heap->folios().take(b, 3, heap->secret()); });
  count([&] { EXPECT_TRUE(heap->cpu_caches().put(b, list)); });
  count([&] { list = heap->cpu_caches().take(b); });
  count([&] { heap->folios().put(b, list, heap->secret()); });
  void* large = nullptr;
  count([&] { large = heap->allocate(100'000); });
  count([&] {
    heap->deallocate(large);
    heap->trim();
  });
  return counts;
}
TEST_F(SupermallocConfigs, NoPrefetchAsksForNothingBeforeALock) {
  const test::Variable locks("SPANALLOC_RSEQ", "0");  // a sequence has none
  for (const int count : prefetches_by_section<Supermalloc>()) EXPECT_GT(count, 0);
  for (const int count : prefetches_by_section<SupermallocNoPrefetch>()) EXPECT_EQ(count, 0);
}

// (First fit: folio_heap_test.cpp. No random offset: large_heap_test.cpp.)

// --- Powers of two ---

TEST_F(SupermallocConfigs, MediumSizesAreTheNextPowerOfTwo) {
  OwnHeap<SupermallocPowersOfTwo> heap;
  OwnHeap<> prime;
  std::size_t sum_of_powers = 0;
  std::size_t sum_of_primes = 0;
  for (std::size_t n = 321; n <= 8192; n += 1) {
    void* p = heap->allocate(n);
    std::size_t power = 512;
    while (power < n) power *= 2;
    ASSERT_EQ(heap->usable_size(p), power) << n;
    sum_of_powers += power;
    heap->deallocate(p);
    void* q = prime->allocate(n);
    ASSERT_FALSE(is_power_of_two(prime->usable_size(q))) << n;
    sum_of_primes += prime->usable_size(q);
    prime->deallocate(q);
  }
  EXPECT_LT(sum_of_primes, sum_of_powers);
  // Aligned requests have the same bins, and what is larger is a large object.
  void* aligned = heap->allocate_aligned(600, 1024);
  EXPECT_EQ(heap->usable_size(aligned), 1024u);
  heap->deallocate(aligned);
  void* large = heap->allocate(8193);
  EXPECT_EQ(checked(heap).large_objects, 1u);
  heap->deallocate(large);
}

// --- One level of caches less ---

// Puts lists of one object until the caches have enough; how many they took.
template <class Config>
std::size_t lists_put(OwnHeap<Config>& heap, BinNumber b, std::vector<void*>& objects) {
  std::size_t count = 0;
  for (void* p : objects) {
    auto* object = static_cast<FreeObject*>(p);
    object->push_on(&supermalloc::end_of_list, heap->secret());
    if (!heap->cpu_caches().put(b, {object, 1})) break;
    ++count;
  }
  return count;
}
template <class Config>
std::size_t lists_that_caches_take() {
  OwnHeap<Config> heap;
  const BinNumber b = test::SupermallocBins::for_folios(14'272);
  const std::size_t chain = test::SupermallocBins::of(b).chain_lists;
  std::vector<void*> objects = test::allocate_many(heap, 4 * chain, 14'272);
  heap->trim();
  const std::size_t count = lists_put(heap, b, objects);
  EXPECT_EQ(count % chain, 0u);
  std::size_t taken = 0;
  while (!heap->cpu_caches().take(b).is_empty()) ++taken;
  EXPECT_EQ(taken, count);
  for (void* p : objects) static_cast<FreeObject*>(p)->seal = 0;
  test::free_all(heap, objects);
  return count / chain;
}
TEST_F(SupermallocConfigs, NoGlobalCacheHoldsNoMoreThanTheCpus) {
  EXPECT_EQ(lists_that_caches_take<Supermalloc>(), 3u) << "two chains of the CPU, one of all";
  EXPECT_EQ(lists_that_caches_take<SupermallocNoGlobalCache>(), 2u);
}

// Puts a list on one CPU; whether a thread on another finds it.
template <class Config>
bool another_cpu_finds(unsigned one, unsigned other) {
  const auto run_on = [](unsigned cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    ASSERT_EQ(sched_setaffinity(0, sizeof set, &set), 0);
  };
  const test::SimulatedCpus cpus(2);
  OwnHeap<Config> heap;
  const BinNumber b = test::SupermallocBins::for_folios(64);
  std::vector<void*> objects;
  std::thread([&] {
    run_on(one);
    objects = test::allocate_many(heap, 1, 64);
    heap->trim();
    EXPECT_EQ(lists_put(heap, b, objects), 1u);
  }).join();
  bool is_found = false;
  std::thread([&] {
    run_on(other);
    is_found = !heap->cpu_caches().take(b).is_empty();
  }).join();
  static_cast<FreeObject*>(objects[0])->seal = 0;
  if (is_found) test::free_all(heap, objects);
  return is_found;
}
TEST_F(SupermallocConfigs, NoCpuCachesMeansOneForAllOfThem) {
  const std::vector<unsigned>& cpus = test::cpus_of_this_process();
  if (cpus.size() < 2) GTEST_SKIP() << "it takes two CPUs";
  EXPECT_FALSE(another_cpu_finds<Supermalloc>(cpus.front(), cpus.back()));
  EXPECT_TRUE(another_cpu_finds<SupermallocNoCpuCaches>(cpus.front(), cpus.back()));
}

// --- Small bins aligned to 8 bytes ---

TEST_F(SupermallocConfigs, SmallBinsAlignedToEightBytesAreThePapers) {
  OwnHeap<SupermallocAlignedTo8> heap;
  std::set<std::size_t> sizes;
  bool is_any_at_eight = false;
  std::vector<void*> objects;
  for (std::size_t n = 1; n <= 64; ++n) {
    for (int i = 0; i < 4; ++i) {
      void* p = heap->allocate(n);
      objects.push_back(p);
      EXPECT_EQ(address_of(p) % 8, 0u) << n;
      is_any_at_eight |= address_of(p) % 16 == 8;
      sizes.insert(heap->usable_size(p));
      ASSERT_EQ(heap->usable_size(p), max_of(align_up(n, 8), 16)) << n;
      test::fill_pattern(p, heap->usable_size(p), address_of(p));
    }
  }
  EXPECT_TRUE(is_any_at_eight);
  EXPECT_EQ(sizes, (std::set<std::size_t>{16, 24, 32, 40, 48, 56, 64}));
  // Who asks for 16 bytes' alignment gets it.
  for (std::size_t n = 1; n <= 64; ++n) {
    objects.push_back(heap->allocate_aligned(n, 16));
    EXPECT_EQ(address_of(objects.back()) % 16, 0u) << n;
    test::fill_pattern(objects.back(), heap->usable_size(objects.back()),
                       address_of(objects.back()));
  }
  checked(heap);
  for (void* p : objects) {
    EXPECT_EQ(test::first_mismatch(p, heap->usable_size(p), address_of(p)), heap->usable_size(p));
    heap->deallocate(p);
  }
  heap->trim();
  EXPECT_TRUE(checked(heap).all_returned());
}

// --- All of them ---

template <class Config>
class SupermallocEveryConfig : public test::SupermallocTest {};
TYPED_TEST_SUITE(SupermallocEveryConfig, test::configs::supermalloc);

// Threads that allocate what other threads free: of every kind, half of the small objects of sizes
// that only one of the configs has a bin for.
TYPED_TEST(SupermallocEveryConfig, KeepsEveryInvariant) {
  constexpr std::size_t kSlots = 512;
  constexpr int kSteps = test::kUnderTsan || test::kUnderAsan ? 3'000 : 20'000;
  OwnHeap<TypeParam> heap;
  std::atomic<void*> slots[kSlots] = {};
  for (unsigned round = 0; round < 3; ++round) {
    test::in_threads(3, [&](unsigned thread) {
      test::Random random(test::seed_of(round * 8 + thread));
      for (int i = 0; i < kSteps; ++i) {
        void* p = nullptr;
        if (!random.one_in(3)) {
          const std::size_t n = random.one_in(200) ? random.below(4 * kMiB)
                                                   : random.below(random.one_in(3) ? 20'000 : 64);
          p = random.one_in(16) ? heap->allocate_aligned(n, std::size_t{1} << random.below(13))
                                : heap->allocate(n);
          ASSERT_NE(p, nullptr);
          const std::size_t usable = min_of(heap->usable_size(p), 64);
          test::fill_pattern(p, usable, address_of(p));
        }
        void* q = slots[random.below(kSlots)].exchange(p);
        if (q == nullptr) continue;
        const std::size_t usable = min_of(heap->usable_size(q), 64);
        ASSERT_EQ(test::first_mismatch(q, usable, address_of(q)), usable);
        heap->deallocate(q);
      }
    });
    checked(heap);
  }
  for (auto& slot : slots) heap->deallocate(slot.exchange(nullptr));
  heap->trim();
  EXPECT_TRUE(checked(heap).all_returned());
}

}  // namespace
}  // namespace spanalloc
