// Heaps and threads of the superblock engine.
#include <gtest/gtest.h>

#include <barrier>
#include <thread>
#include <vector>

#include "superblock_test_support.hpp"

namespace spanalloc {
namespace {

using superblock::Census;
using test::checked;
using test::superblock_of;

class SuperblockThreads : public test::SmallArenas {};

TEST_F(SuperblockThreads, EachHasAHeapOfItsOwn) {
  SPANALLOC_OWN_HEAP(OwnHeaps, SuperblockReport);
  using E = OwnHeapsEngine;
  void* mine = E::allocate(16);
  void* theirs = nullptr;
  std::thread([&] {
    theirs = E::allocate(16);
    EXPECT_EQ(E::statistics().live_labs, 2u);
  }).join();
  EXPECT_NE(superblock_of(mine), superblock_of(theirs));
  EXPECT_EQ(E::statistics().live_labs, 1u);
  E::deallocate(theirs);
  E::deallocate(mine);
  SPANALLOC_OWN_HEAP(OneHeap, Kheap);
  void* first = OneHeapEngine::allocate(16);
  std::thread([&] { EXPECT_EQ(superblock_of(OneHeapEngine::allocate(16)), superblock_of(first)); }).join();
}

TEST_F(SuperblockThreads, AnotherThreadsFreeGoesToTheOwnersHeap) {
  SPANALLOC_OWN_HEAP(RemoteFree, SuperblockReport);
  using E = RemoteFreeEngine;
  void* p = E::allocate(1000);
  void* wall = E::allocate(1000);
  std::thread([&] {
    E::deallocate(p);
    EXPECT_NE(superblock_of(E::allocate(1000)), superblock_of(p));
  }).join();
  EXPECT_EQ(E::allocate(1000), p);
  E::deallocate(wall);
  checked<E>();
}

TEST_F(SuperblockThreads, AHeapIsLeftToTheNextThread) {
  SPANALLOC_OWN_HEAP(Heritage, SuperblockReport);
  using E = HeritageEngine;
  std::vector<void*> left;
  for (int i = 0; i < 2000; ++i) {
    std::thread([&] {
      for (int k = 0; k < 20; ++k) E::deallocate(E::allocate(5000));
      left.push_back(E::allocate(16));
    }).join();
  }
  Census census = checked<E>();
  EXPECT_EQ(census.heap_records, 1u);
  EXPECT_EQ(census.live_blocks, 2000u);
  EXPECT_LE(census.superblocks + census.empty_superblocks, 2u);
  for (void* p : left) E::deallocate(p);  // into an idle heap: what becomes empty leaves it at once
  census = checked<E>();
  EXPECT_TRUE(census.all_returned());
}

template <class E>
std::size_t records_of_ten_threads() {
  std::vector<std::thread> threads;
  std::barrier all(10);
  for (int i = 0; i < 10; ++i) {
    threads.emplace_back([&] {
      void* p = E::allocate(16);
      all.arrive_and_wait();
      E::deallocate(p);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(checked<E>().all_returned());
  return checked<E>().heap_records;
}

TEST_F(SuperblockThreads, RecordsTakeUpASuperblockEachOrShareOne) {
  SPANALLOC_OWN_HEAP(OwnRecords, SuperblockReport);
  SPANALLOC_OWN_HEAP(SharedRecords, SuperblockSharedRecords);
  EXPECT_EQ(records_of_ten_threads<OwnRecordsEngine>(), 10u);
  EXPECT_EQ(records_of_ten_threads<SharedRecordsEngine>(), 1u);
}

}  // namespace
}  // namespace spanalloc
