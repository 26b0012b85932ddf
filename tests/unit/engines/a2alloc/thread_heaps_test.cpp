// Heaps and threads of the a2alloc engine.
#include <gtest/gtest.h>

#include <barrier>
#include <thread>
#include <vector>

#include "engines/a2alloc/test_support.hpp"

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
    EXPECT_EQ(heap->statistics().live_labs, 2u);
  }).join();
  EXPECT_NE(superblock_of(mine), superblock_of(theirs));
  EXPECT_EQ(heap->statistics().live_labs, 1u);
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

}  // namespace
}  // namespace spanalloc
