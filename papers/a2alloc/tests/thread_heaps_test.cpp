// Heaps and threads of the a2alloc engine.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <semaphore>
#include <thread>
#include <vector>

#include "os_calls.hpp"
#include "papers/a2alloc/tests/test_support.hpp"

namespace spanalloc {
namespace {

using a2alloc::Census;
using test::checked;
using test::superblock_of;

class A2allocThreads : public test::SmallArenas {};

TEST_F(A2allocThreads, EachHasAHeapOfItsOwn) {
  test::OwnHeap<A2allocReport> heap;
  void* mine = heap->allocate(16);
  void* theirs = nullptr;
  std::thread([&] {
    theirs = heap->allocate(16);
    EXPECT_EQ(heap->statistics().live_threads, 2u);
  }).join();
  EXPECT_NE(superblock_of(mine), superblock_of(theirs));
  EXPECT_EQ(heap->statistics().live_threads, 1u);
  heap->deallocate(theirs);
  heap->deallocate(mine);
  test::OwnHeap<Kheap> one;
  void* first = one->allocate(16);
  std::thread([&] { EXPECT_EQ(superblock_of(one->allocate(16)), superblock_of(first)); }).join();
}

TEST_F(A2allocThreads, AnotherThreadsFreeGoesToTheOwnersHeap) {
  test::OwnHeap<A2allocReport> heap;
  void* p = heap->allocate(1000);
  void* wall = heap->allocate(1000);
  std::thread([&] {
    heap->deallocate(p);
    EXPECT_NE(superblock_of(heap->allocate(1000)), superblock_of(p));
  }).join();
  EXPECT_EQ(heap->allocate(1000), p);
  heap->deallocate(wall);
  checked(heap);
}

TEST_F(A2allocThreads, AHeapIsLeftToTheNextThread) {
  test::OwnHeap<A2allocReport> heap;
  std::vector<void*> left;
  for (int i = 0; i < 2000; ++i) {
    std::thread([&] {
      for (int k = 0; k < 20; ++k) heap->deallocate(heap->allocate(5000));
      left.push_back(heap->allocate(16));
    }).join();
  }
  Census census = checked(heap);
  EXPECT_EQ(census.heap_records, 1u);
  EXPECT_EQ(census.live_blocks, 2000u);
  EXPECT_LE(census.superblocks + census.empty_superblocks, 2u);
  // Into an idle heap: what becomes empty leaves it at once
  for (void* p : left) heap->deallocate(p);
  census = checked(heap);
  EXPECT_TRUE(census.all_returned());
}

template <class Config>
std::size_t records_of_ten_threads() {
  test::OwnHeap<Config> heap;
  std::vector<std::thread> threads;
  std::barrier all(10);
  for (int i = 0; i < 10; ++i) {
    threads.emplace_back([&] {
      void* p = heap->allocate(16);
      all.arrive_and_wait();
      heap->deallocate(p);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(checked(heap).all_returned());
  return checked(heap).heap_records;
}

TEST_F(A2allocThreads, RecordsTakeUpASuperblockEachOrShareOne) {
  EXPECT_EQ(records_of_ten_threads<A2allocReport>(), 10u);
  EXPECT_EQ(records_of_ten_threads<A2allocSharedRecords>(), 1u);
}

// A thread has taken an empty superblock out of a heap, and stands there until another one waits
// for that heap's lock.
struct StandsAsItEvicts : a2alloc::NoObserver {
  static inline std::atomic<bool> stands{true};
  static inline std::atomic<bool> may_go_on{false};
  static void evicts_superblock() {
    if (stands.exchange(true)) return;
    const std::size_t before = test::yields();
    while (test::yields() == before && !may_go_on) std::this_thread::yield();
  }
};
struct EvictConfig : A2allocReport {
  using Observer = StandsAsItEvicts;
};

// That one has found no memory, and evicts nothing itself. What it has waited for serves it.
TEST_F(A2allocThreads, OneWithoutMemoryIsServedByWhatAnotherEvicts) {
  test::Variable smallest{"SPANALLOC_ARENA_BITS", "30"};
  for (const std::size_t size : {test::kHalf, 2 * test::kHalf}) {
    SCOPED_TRACE(size);
    test::OwnHeap<EvictConfig> heap;
    void* const last = heap->allocate(16);
    std::binary_semaphore is_full{0};
    std::binary_semaphore memory_is_out{0};
    std::thread without_memory([&] {
      for (int i = 0; i < 2; ++i) EXPECT_NE(heap->allocate(test::kHalf), nullptr);
      is_full.release();
      memory_is_out.acquire();
      EXPECT_NE(heap->allocate(size), nullptr);
      StandsAsItEvicts::may_go_on = true;
    });
    is_full.acquire();
    for (std::size_t n = 256 * kMiB; n >= test::kPiece; n /= 2) {
      while (heap->allocate(n) != nullptr) {
      }
    }
    heap->deallocate(last);
    StandsAsItEvicts::stands = StandsAsItEvicts::may_go_on = false;
    std::thread evicts([&] { heap->trim(); });
    while (!StandsAsItEvicts::stands) std::this_thread::yield();
    memory_is_out.release();
    without_memory.join();
    evicts.join();
    checked(heap);
  }
}

}  // namespace
}  // namespace spanalloc
