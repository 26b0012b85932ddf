// Heaps of the supermalloc engine as objects: any number of them, each with its threads and an end.
#include "papers/supermalloc/engine/allocator.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <barrier>
#include <cstring>
#include <thread>
#include <type_traits>
#include <vector>

#include "memory_pattern.hpp"
#include "os_calls.hpp"
#include "papers/supermalloc/engine/engine.hpp"
#include "papers/supermalloc/tests/test_support.hpp"
#include "random.hpp"
#include "sanitizers.hpp"
#include "threads.hpp"

namespace spanalloc {
namespace {

using supermalloc::Census;
using supermalloc::kChunk;
using test::allocate_many;
using test::checked;
using test::fill_pattern;
using test::first_mismatch;
using test::first_nonzero;
using test::free_all;
using test::mapped_by_calls;
using test::OwnHeap;
using Bins = test::SupermallocBins;

class SupermallocInstances : public test::SupermallocTest {};

static_assert(Engine<SupermallocEngine<>>);
// A library's heap is never taken apart, at the process's end neither.
static_assert(std::is_trivially_destructible_v<supermalloc::Allocator<Supermalloc>>);

// Shorter lists and chains than any bin's objects.
struct LeastCaches : Supermalloc {
  static constexpr std::size_t kThreadListBytes = 1;
  static constexpr std::size_t kChainBytes = 1;
};

// Some of everything, each byte written to; freed by the caller.
template <class Config>
std::vector<void*> some_of_everything(OwnHeap<Config>& heap) {
  std::vector<void*> objects;
  for (const std::size_t n :
       {std::size_t{1}, std::size_t{40}, std::size_t{5000}, 100 * kKiB, 3 * kMiB}) {
    objects.push_back(heap->allocate(n));
    std::memset(objects.back(), 0xA5, n);
    objects.push_back(heap->allocate_aligned(n, 4096));
    EXPECT_EQ(address_of(objects.back()) % 4096, 0u);
    objects.push_back(heap->allocate_zeroed(n));
    EXPECT_EQ(first_nonzero(objects.back(), n), n);
    objects.push_back(heap->allocate_copy(n, objects[objects.size() - 3], n));
    EXPECT_EQ(std::memcmp(objects.back(), objects[objects.size() - 4], n), 0);
  }
  return objects;
}

TEST_F(SupermallocInstances, AnswerBeforeTheirFirstObject) {
  OwnHeap<> heap;
  EXPECT_FALSE(heap->trim());
  EXPECT_FALSE(heap->owns(&heap));
  EXPECT_EQ(heap->statistics().reserved_bytes, 0u);
  EXPECT_EQ(heap->statistics().live_threads, 0u);
  EXPECT_EQ(checked(heap).chunks, 0u);
  heap->describe([](std::size_t, std::size_t, std::size_t, std::size_t) { FAIL(); },
                 [](std::size_t, std::size_t) { FAIL(); });
  heap->deallocate(nullptr);
}

TEST_F(SupermallocInstances, OfOneConfigKnowNothingOfEachOther) {
  OwnHeap<> one;
  OwnHeap<> other;
  void* in_one = one->allocate(100);
  EXPECT_EQ(checked(other).chunks, 0u);
  void* in_other = other->allocate(100);
  EXPECT_TRUE(one->owns(in_one) && other->owns(in_other));
  EXPECT_FALSE(one->owns(in_other) || other->owns(in_one));
  EXPECT_EQ(checked(one).live_objects, 1u);
  one->deallocate(in_one);
  EXPECT_EQ(checked(one).live_objects, 0u);
  EXPECT_EQ(checked(other).live_objects, 1u);
  using Default = SupermallocEngine<>;
  void* in_default = Default::allocate(100);
  EXPECT_TRUE(Default::owns(in_default));
  EXPECT_FALSE(Default::owns(in_other) || other->owns(in_default));
  Default::deallocate(in_default);
  other->deallocate(in_other);
}

TEST_F(SupermallocInstances, OfSeveralConfigsServeOneThread) {
  OwnHeap<> usual;
  OwnHeap<SupermallocNoPrefetch> without_prefetch;
  OwnHeap<SupermallocFirstFit> first_fit;
  OwnHeap<LeastCaches> least_caches;
  const auto use = [](auto& heap) {
    for (void* p : some_of_everything(heap)) {
      EXPECT_TRUE(heap->owns(p));
      checked(heap);
      heap->deallocate(p);
    }
    heap->trim();
    EXPECT_TRUE(checked(heap).all_returned());
    EXPECT_EQ(heap->statistics().live_threads, 1u);
  };
  for (int round = 0; round < 3; ++round) {
    use(usual);
    use(without_prefetch);
    use(first_fit);
    use(least_caches);
  }
}

TEST_F(SupermallocInstances, EachThreadHasACacheInEachOfThem) {
  constexpr unsigned kThreads = 4;
  OwnHeap<> heaps[3];
  std::barrier all(kThreads);
  test::in_threads(kThreads, [&](unsigned) {
    std::vector<void*> objects;
    for (std::size_t i = 0; i < 3000; ++i) {
      for (auto& heap : heaps) {
        void* p = heap->allocate(i % 300);
        *static_cast<char*>(p) = 1;
        objects.push_back(p);
      }
      if (objects.size() < 300) continue;
      for (std::size_t k = 0; k < objects.size(); ++k) heaps[k % 3]->deallocate(objects[k]);
      objects.clear();
    }
    all.arrive_and_wait();
    for (auto& heap : heaps) EXPECT_EQ(heap->statistics().live_threads, kThreads);
    all.arrive_and_wait();
  });
  for (auto& heap : heaps) {
    EXPECT_EQ(heap->statistics().live_threads, 0u);
    EXPECT_TRUE(checked(heap).all_returned());
  }
}

TEST_F(SupermallocInstances, GiveAllAddressSpaceBack) {
  supermalloc::Allocator<Supermalloc> heap;
  const std::size_t before = mapped_by_calls();
  for (int round = 0; round < 20; ++round) {
    std::thread([&] { (void)heap.allocate(100); }).join();
    for (const std::size_t n : {std::size_t{100}, 3 * kMiB, supermalloc::HugeHeap::kLargest + 1}) {
      void* p = heap.allocate(n);
      if (p != nullptr) *static_cast<char*>(p) = 1;
    }
    // The CPU's caches are in use, of more bins than one block of chains serves.
    std::vector<void*> objects;
    for (std::size_t n = 16; n <= Bins::kLargest; n += n / 8) {
      for (int i = 0; i < 3; ++i) {
        const bool large = n > Bins::kLargestWithFolios;
        const std::size_t list = large ? 1 : Bins::of(Bins::for_folios(n)).list_objects;
        for (std::size_t k = 0; k < list; ++k) objects.push_back(heap.allocate(n));
      }
    }
    for (void* p : objects) heap.deallocate(p);
    EXPECT_GT(heap.statistics().reserved_bytes, kGiB);
    EXPECT_GT(mapped_by_calls(), before + kGiB);
    heap.destroy();
    EXPECT_EQ(heap.statistics().reserved_bytes, 0u);
    EXPECT_EQ(heap.census().chunks, 0u);
    EXPECT_EQ(mapped_by_calls(), before);
  }
}

// Sums are estimates then, but of what there is: no cache counts more than it can hold.
TEST_F(SupermallocInstances, StatisticsAreToldWhileThreadsWork) {
  OwnHeap<> heap;
  std::atomic<bool> stop{false};
  std::atomic<unsigned> at_work{0};
  std::vector<std::jthread> threads;
  for (unsigned t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      test::Random random(test::seed_of(t));
      void* objects[200] = {};
      for (unsigned i = 0; !stop; ++i) {
        void*& p = objects[random.below(200)];
        heap->deallocate(p);
        p = heap->allocate(random.one_in(50) ? random.below(4 * kMiB) : random.below(5000));
        if (i == 1000) ++at_work;
        if (i % 1000 == 0) heap->trim();
      }
      for (void* p : objects) heap->deallocate(p);
    });
  }
  while (at_work != 3) std::this_thread::yield();
  for (int i = 0; i < 300; ++i) {
    const EngineStatistics statistics = heap->statistics();
    EXPECT_LE(statistics.live_threads, 3u);
    EXPECT_LE(statistics.small_bytes_carved, statistics.opened_bytes);
    EXPECT_LE(statistics.pooled_bytes, statistics.opened_bytes);
    EXPECT_LE(statistics.large_objects, 600u);
    heap->describe(
        [&](std::size_t, std::size_t, std::size_t committed, std::size_t cached) {
          EXPECT_LE(committed, statistics.opened_bytes + kGiB);
          EXPECT_LE(cached, kMiB);
        },
        [&](std::size_t, std::size_t folios) { EXPECT_LE(folios, kMiB); });
  }
  stop = true;
  threads.clear();
  heap->trim();
  EXPECT_TRUE(checked(heap).all_returned());
}

// A key each, given back: there are 1024 in a process.
TEST_F(SupermallocInstances, ThousandsComeAndGo) {
  if (test::kEmulated) GTEST_SKIP() << "an emulator records every reserved page";
  for (int i = 0; i < 3000; ++i) {
    OwnHeap<> heap;
    void* p = heap->allocate(100);
    ASSERT_NE(p, nullptr);
    ASSERT_EQ(heap->statistics().live_threads, 1u) << i;  // it is not without a cache
  }
}

TEST_F(SupermallocInstances, OneThatWasDestroyedIsFresh) {
  supermalloc::Allocator<Supermalloc> heap;
  for (int round = 0; round < 3; ++round) {
    void* p = heap.allocate(100);
    ASSERT_NE(p, nullptr);
    EXPECT_EQ(heap.census().folio_chunks, 1u);
    std::thread([&] { heap.deallocate(p); }).join();
    heap.destroy();
    EXPECT_FALSE(heap.owns(p));
    EXPECT_FALSE(heap.trim());
  }
}

TEST_F(SupermallocInstances, AMillionThreadsWouldLeaveNoCache) {
  OwnHeap<> heap;
  std::vector<void*> left;
  for (int i = 0; i < 2000; ++i) {
    std::thread([&] {
      for (int k = 0; k < 20; ++k) heap->deallocate(heap->allocate(5000));
      left.push_back(heap->allocate(16));
    }).join();
  }
  std::size_t caches = 0;
  heap->thread_caches().for_each([&](const auto&) { ++caches; });
  EXPECT_EQ(caches, 1u);
  const Census census = checked(heap);
  EXPECT_EQ(census.live_objects, 2000u);
  EXPECT_LE(census.folio_chunks, 2u);
  EXPECT_LE(heap->statistics().small_bytes_carved, 2000 * 16 + 2 * kMiB);
  free_all(heap, left);
  EXPECT_TRUE(checked(heap).all_returned());
}

// Sizes and alignments by chance, on several threads that free each other's objects: what was
// written stays, what was asked for is there.
TEST_F(SupermallocInstances, KeepWhatThreadsWrite) {
  OwnHeap<LeastCaches> least;
  OwnHeap<> usual;
  const auto use = [](auto& heap) {
    constexpr std::size_t kSlots = 200;
    struct Object {
      unsigned char* p;
      std::size_t n;
    };
    std::vector<std::atomic<Object*>> slots(kSlots);
    const auto free = [&](Object* object) {
      if (object == nullptr) return;
      ASSERT_EQ(first_mismatch(object->p, object->n, object->n), object->n);
      heap->deallocate(object->p);
      delete object;
    };
    const int steps = test::kUnderTsan ? 1000 : 10'000;
    test::in_threads(4, [&](unsigned thread) {
      test::Random random(test::seed_of(thread));
      for (int i = 0; i < steps && !testing::Test::HasFailure(); ++i) {
        const std::size_t n = random.one_in(200) ? random.below(3 * kMiB)
                                                 : random.below(std::size_t{1} << random.below(16));
        const std::size_t alignment = std::size_t{1} << random.below(14);
        void* p = nullptr;
        switch (random.below(3)) {
          case 0:
            p = heap->allocate_aligned(n, alignment);
            ASSERT_EQ(address_of(p) % alignment, 0u);
            break;
          case 1:
            p = heap->allocate_zeroed(n);
            ASSERT_EQ(first_nonzero(p, n), n);
            break;
          default:
            p = heap->allocate(n);
        }
        ASSERT_NE(p, nullptr);
        ASSERT_EQ(address_of(p) % 16, 0u);
        ASSERT_GE(heap->usable_size(p), n);
        fill_pattern(p, n, n);
        free(slots[random.below(kSlots)].exchange(new Object{static_cast<unsigned char*>(p), n}));
        if (random.one_in(1000)) heap->trim();
      }
    });
    for (auto& slot : slots) free(slot.exchange(nullptr));
    heap->trim();
    EXPECT_TRUE(checked(heap).all_returned());
    EXPECT_EQ(heap->statistics().small_bytes_carved, 0u);
  };
  use(least);
  use(usual);
}

TEST_F(SupermallocInstances, ResizeLeavesWhatFitsAndRefusesTheRest) {
  OwnHeap<> heap;
  void* p = heap->allocate(1000);  // of 1,024 bytes? Those are for aligned requests: it has 1,088
  ASSERT_EQ(heap->usable_size(p), 1088u);
  for (const std::size_t n : {1088u, 600u, 545u}) {
    EXPECT_EQ(heap->resize(p, n).block, p) << n;
    EXPECT_EQ(heap->resize(p, n).usable, 1088u);
  }
  for (const std::size_t n :
       {std::size_t{544}, std::size_t{1}, std::size_t{1089}, kMaxRequest, SIZE_MAX}) {
    EXPECT_EQ(heap->resize(p, n).block, nullptr) << n;
    EXPECT_EQ(heap->resize(p, n).usable, 1088u);
  }
  heap->deallocate(p);
  p = heap->allocate_aligned(20'000, 4096);  // 32 KiB
  EXPECT_EQ(heap->resize(p, 32 * kKiB).block, p);
  EXPECT_EQ(heap->resize(p, 16 * kKiB + 1).block, p);
  EXPECT_EQ(heap->resize(p, 16 * kKiB).block, nullptr);
  EXPECT_EQ(heap->resize(p, 32 * kKiB + 1).block, nullptr);
  heap->deallocate(p);
}

TEST_F(SupermallocInstances, RequestsThatNobodyCanHaveAreRefused) {
  OwnHeap<> heap;
  for (const std::size_t n :
       {SIZE_MAX, SIZE_MAX - 4095, kMaxRequest + 1, kMaxRequest, kMaxRequest / 2}) {
    EXPECT_EQ(heap->allocate(n), nullptr) << n;
    EXPECT_EQ(heap->allocate_zeroed(n), nullptr) << n;
    EXPECT_EQ(heap->allocate_aligned(n, 4096), nullptr) << n;
    EXPECT_EQ(heap->allocate_aligned(n, 1 * kMiB), nullptr) << n;
  }
  EXPECT_EQ(heap->allocate_aligned(1, std::size_t{1} << 62), nullptr);
  checked(heap);
  heap->deallocate(heap->allocate(1));
}

}  // namespace
}  // namespace spanalloc
