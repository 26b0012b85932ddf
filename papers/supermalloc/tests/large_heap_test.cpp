// Large objects: where in their first page they begin, what becomes of their pages,
// which pointers are good.
#include "papers/supermalloc/engine/large_heap.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include "memory_pattern.hpp"
#include "memory_use.hpp"
#include "papers/supermalloc/tests/test_support.hpp"
#include "random.hpp"
#include "sanitizers.hpp"

namespace spanalloc {
namespace {

using supermalloc::Bin;
using supermalloc::BinNumber;
using supermalloc::kPage;
using test::checked;
using test::fill_pattern;
using test::first_mismatch;
using test::first_nonzero;
using test::OwnHeap;
using test::resident_pages;
using Bins = test::SupermallocBins;

class SupermallocLarge : public test::SupermallocTest {};
using SupermallocLargeDeathTest = SupermallocLarge;

TEST_F(SupermallocLarge, BeginAtARandomLineOfTheirFirstPage) {
  OwnHeap<> heap;
  for (BinNumber b = Bins::kFirstLarge; b < Bins::kCount; ++b) {
    // With a page to spare each line does.
    const std::size_t n = max_of(Bins::of(b).size - kPage, Bins::kLargestWithFolios + 1);
    std::set<std::size_t> lines;
    std::vector<void*> objects;
    for (int i = 0; i < 100; ++i) {
      void* p = heap->allocate(n);
      ASSERT_NE(p, nullptr);
      objects.push_back(p);
      const std::size_t offset = address_of(p) % kPage;
      EXPECT_EQ(offset % kCacheLine, 0u);
      lines.insert(offset / kCacheLine);
      const Bin& bin = Bins::of(heap->chunks().at(p).bin());
      // What it has ends where the object that it lies in ends.
      EXPECT_EQ(heap->usable_size(p), bin.size - offset);
      EXPECT_GE(heap->usable_size(p), n);
      // The last byte is its own.
      fill_pattern(p, heap->usable_size(p), address_of(p));
    }
    // Of 64 lines 100 draws miss a quarter, once in ten thousand runs half.
    EXPECT_GT(lines.size(), 32u) << n;
    for (void* p : objects) {
      EXPECT_EQ(first_mismatch(p, heap->usable_size(p), address_of(p)), heap->usable_size(p));
      heap->deallocate(p);
    }
  }
  checked(heap);
}

// The largest of all have no room for a line, those a little smaller for a few.
TEST_F(SupermallocLarge, TheLineNeverMakesAnObjectHuge) {
  OwnHeap<> heap;
  for (std::size_t below = 0; below <= 2 * kPage; below += 60) {
    void* p = heap->allocate(Bins::kLargest - below);
    ASSERT_TRUE(heap->chunks().at(p).is_bin()) << below;
    EXPECT_LE(address_of(p) % kPage, below);
    EXPECT_GE(heap->usable_size(p), Bins::kLargest - below);
    heap->deallocate(p);
  }
  void* huge = heap->allocate(Bins::kLargest + 1);
  EXPECT_TRUE(heap->chunks().at(huge).is_huge());
  heap->deallocate(huge);
}

TEST_F(SupermallocLarge, AlignedOnesBeginWithTheirPage) {
  OwnHeap<> heap;
  std::vector<void*> objects;
  for (BinNumber b = Bins::kFirstLarge; b < Bins::kCount; ++b) {
    for (int i = 0; i < 20; ++i) {
      void* p = heap->allocate_aligned(Bins::of(b).size, kPage);
      EXPECT_EQ(address_of(p) % kPage, 0u);
      EXPECT_EQ(heap->usable_size(p), Bins::of(b).size);
      objects.push_back(p);
    }
  }
  for (void* p : objects) heap->deallocate(p);
  checked(heap);
}

TEST_F(SupermallocLarge, BeginWithTheirPageWhereTheConfigSaysSo) {
  OwnHeap<SupermallocNoOffset> heap;
  for (int i = 0; i < 50; ++i) EXPECT_EQ(address_of(heap->allocate(100'000)) % kPage, 0u);
}

TEST_F(SupermallocLarge, EveryObjectOfAChunkIsUsedAndNoOther) {
  for (BinNumber b = Bins::kFirstLarge; b < Bins::kCount; ++b) {
    OwnHeap<> heap;
    const Bin& bin = Bins::of(b);
    std::set<std::uintptr_t> starts;
    std::vector<void*> objects;
    for (std::uint32_t i = 0; i < bin.objects; ++i) {
      objects.push_back(heap->allocate_aligned(bin.size, kPage));
      starts.insert(address_of(objects.back()));
    }
    EXPECT_EQ(starts.size(), bin.objects);
    EXPECT_EQ(checked(heap).large_chunks, 1u) << bin.size;
    EXPECT_GE(*starts.begin() % supermalloc::kChunk, bin.origin);
    EXPECT_LE(*starts.rbegin() % supermalloc::kChunk + bin.size, supermalloc::kChunk);
    objects.push_back(heap->allocate_aligned(bin.size, kPage));
    EXPECT_EQ(checked(heap).large_chunks, 2u) << bin.size;
    EXPECT_EQ(checked(heap).large_objects, bin.objects + 1);
    EXPECT_EQ(heap->large().out(b), bin.objects + 1);
    for (void* p : objects) heap->deallocate(p);
    heap->trim();
    EXPECT_EQ(heap->large().out(b), 0u);
    EXPECT_TRUE(checked(heap).all_returned());
    EXPECT_EQ(checked(heap).large_chunks, 2u) << "chunks stay what they are";
  }
}

TEST_F(SupermallocLarge, PagesGoBackOnceNoCacheHoldsTheObject) {
  OwnHeap<> heap;
  for (BinNumber b = Bins::kFirstLarge; b < Bins::kCount; ++b) {
    const std::size_t n = Bins::of(b).size;
    if (n % os::page_size() != 0) continue;
    void* p = heap->allocate_aligned(n, kPage);
    std::memset(p, 0xA5, n);
    EXPECT_EQ(resident_pages(p, n), n / os::page_size());
    heap->deallocate(p);
    EXPECT_EQ(resident_pages(p, n), n / os::page_size()) << "a cache holds it";
    EXPECT_EQ(checked(heap).cached_objects, 1u);
    EXPECT_EQ(checked(heap).large_objects, 0u);
    EXPECT_TRUE(heap->trim());
    EXPECT_EQ(resident_pages(p, n), 0u) << n;
    EXPECT_EQ(checked(heap).cached_objects, 0u);
    EXPECT_FALSE(heap->trim());
  }
}

// A page that is locked makes the kernel refuse. (The system call itself:
// sanitizers make nothing of mlock.)
TEST_F(SupermallocLarge, ATrimOffersAgainWhatTheKernelRefused) {
  OwnHeap<> heap;
  const BinNumber b = Bins::kFirstLarge + 2;
  const std::size_t n = Bins::of(b).size;
  void* objects[3];
  for (void*& p : objects) std::memset(p = heap->allocate_aligned(n, kPage), 0xA5, n);
  void* locked = objects[1];
  if (syscall(SYS_mlock, locked, os::page_size()) != 0)
    GTEST_SKIP() << "no memory may be locked here";
  heap->deallocate(locked);
  EXPECT_FALSE(heap->trim()) << "the kernel has taken nothing";
  EXPECT_EQ(heap->large().kept(b), 1u);
  EXPECT_EQ(heap->statistics().large_bytes, 2 * n);
  EXPECT_EQ(heap->statistics().pooled_bytes, n);
  EXPECT_EQ(resident_pages(locked, n), n / os::page_size());
  // Beside one that is zero, in the same list.
  heap->deallocate(objects[0]);
  EXPECT_TRUE(heap->trim());
  EXPECT_EQ(heap->large().kept(b), 1u);
  EXPECT_FALSE(heap->trim());
  EXPECT_EQ(checked(heap).large_objects, 1u);
  EXPECT_EQ(syscall(SYS_munlock, locked, os::page_size()), 0);
  EXPECT_TRUE(heap->trim());
  EXPECT_EQ(heap->large().kept(b), 0u);
  EXPECT_EQ(heap->statistics().pooled_bytes, 0u);
  EXPECT_EQ(resident_pages(locked, n), 0u);
  EXPECT_EQ(checked(heap).large_objects, 1u);
  EXPECT_FALSE(heap->trim());
  // What was refused counts as in use again when it is handed out.
  heap->deallocate(objects[2]);
  heap->trim();
  std::set<void*> again;
  for (int i = 0; i < 3; ++i) again.insert(heap->allocate_aligned(n, kPage));
  EXPECT_EQ(again, (std::set<void*>{objects[0], objects[1], objects[2]}));
  checked(heap);
}

TEST_F(SupermallocLarge, WhatCachesDoNotTakeGoesBackAtOnce) {
  OwnHeap<> heap;
  const BinNumber b = Bins::kCount - 1;
  const std::size_t n = Bins::of(b).size;
  // One object is a list, and one list a chain: two of the CPU's and one of all.
  ASSERT_EQ(Bins::of(b).chain_lists, 1u);
  void* objects[5];
  for (void*& p : objects) {
    p = heap->allocate_aligned(n, kPage);
    std::memset(p, 0xA5, n);
  }
  for (void* p : objects) heap->deallocate(p);
  EXPECT_EQ(checked(heap).cached_objects, 3u);
  std::size_t gone = 0;
  for (void* p : objects) gone += resident_pages(p, n) == 0;
  EXPECT_EQ(gone, 2u);
  EXPECT_EQ(heap->large().out(b), 3u);
}

TEST_F(SupermallocLarge, ZeroedOnesAreZeroWhereverTheyComeFrom) {
  OwnHeap<> heap;
  constexpr std::size_t kN = 100'000;
  const auto expect_zero = [&](void* p) {
    ASSERT_NE(p, nullptr);
    EXPECT_EQ(first_nonzero(p, kN), kN);
    std::memset(p, 0xA5, heap->usable_size(p));
  };
  void* p = heap->allocate_zeroed(kN);  // fresh
  expect_zero(p);
  heap->deallocate(p);
  p = heap->allocate_zeroed(kN);  // out of a cache
  expect_zero(p);
  heap->deallocate(p);
  heap->trim();
  p = heap->allocate_zeroed(kN);  // after its pages went back
  expect_zero(p);
  heap->deallocate(p);
  // After the kernel has refused to take them. (The system call itself:
  // sanitizers make nothing of mlock.)
  void* page = pointer_to(align_down(address_of(p), kPage));
  if (syscall(SYS_mlock, page, os::page_size()) != 0)
    GTEST_SKIP() << "no memory may be locked here";
  heap->trim();
  EXPECT_EQ(checked(heap).cached_objects, 0u);
  EXPECT_EQ(syscall(SYS_munlock, page, os::page_size()), 0);
  void* again = heap->allocate_zeroed(kN);
  EXPECT_EQ(align_down(address_of(again), kPage), address_of(page));
  expect_zero(again);
  heap->deallocate(again);
}

// Allocations and frees by chance; each object's bytes are its own.
TEST_F(SupermallocLarge, KeepWhatIsWritten) {
  OwnHeap<> heap;
  test::Random random(test::seed_of(1));
  struct Object {
    unsigned char* p;
    std::size_t n;
  };
  std::vector<Object> objects;
  for (int step = 0; step < 2000; ++step) {
    if (objects.size() < 30 && random.one_in(2)) {
      const std::size_t n =
          Bins::kLargestWithFolios + 1 + random.below(Bins::kLargest - Bins::kLargestWithFolios);
      auto* p = static_cast<unsigned char*>(random.one_in(3) ? heap->allocate_aligned(n, kPage)
                                                             : heap->allocate(n));
      ASSERT_NE(p, nullptr);
      // Both ends: what lies between is not theirs to mix up.
      fill_pattern(p, 64, n);
      fill_pattern(p + n - 64, 64, n);
      objects.push_back({p, n});
    } else if (!objects.empty()) {
      std::swap(objects[random.below(objects.size())], objects.back());
      const Object object = objects.back();
      objects.pop_back();
      ASSERT_EQ(first_mismatch(object.p, 64, object.n), 64u);
      ASSERT_EQ(first_mismatch(object.p + object.n - 64, 64, object.n), 64u);
      heap->deallocate(object.p);
    }
    if (step % 100 == 0) {
      EXPECT_EQ(checked(heap).large_objects, objects.size());
    }
    if (step % 300 == 0) heap->trim();
  }
  for (const Object& object : objects) heap->deallocate(object.p);
  heap->trim();
  EXPECT_TRUE(checked(heap).all_returned());
}

#define EXPECT_NAMED(statement, text) \
  EXPECT_EXIT(statement, ::testing::KilledBySignal(SIGABRT), text)

TEST_F(SupermallocLargeDeathTest, OnlyThePointerThatWasHandedOutIsGood) {
  OwnHeap<> heap;
  char* p = nullptr;
  // One whose line is neither the first nor the last one.
  for (std::size_t offset = 0; offset == 0 || offset == kPage - kCacheLine;) {
    p = static_cast<char*>(heap->allocate(50'000));
    offset = address_of(p) % kPage;
  }
  auto* aligned = static_cast<char*>(heap->allocate_aligned(50'000, kPage));
  char* start = p - address_of(p) % kPage;
  for (char* wrong : {start, p - kCacheLine, p + kCacheLine, p + 1, p + kPage, p + 49'999,
                      aligned + kCacheLine, aligned + kPage}) {
    EXPECT_NAMED(heap->deallocate(wrong), "^spanalloc: pointer is not the start of an object");
    EXPECT_NAMED(heap->usable_size(wrong), "^spanalloc: pointer is not the start of an object");
    EXPECT_NAMED(heap->resize(wrong, 10), "^spanalloc: pointer is not the start of an object");
  }
  heap->deallocate(p);
  heap->deallocate(aligned);
  checked(heap);
}

TEST_F(SupermallocLargeDeathTest, ASecondFreeIsNamed) {
  OwnHeap<> heap;
  void* p = heap->allocate(200'000);
  heap->deallocate(p);
  // In a cache.
  EXPECT_NAMED(heap->deallocate(p), "^spanalloc: memory is free already");
  EXPECT_NAMED(heap->usable_size(p), "^spanalloc: memory is free already");
  heap->trim();
  // In the list of free ones, its pages gone.
  EXPECT_NAMED(heap->deallocate(p), "^spanalloc: pointer is no object in use");
  EXPECT_NAMED(heap->deallocate(static_cast<char*>(p) - kCacheLine), "no object in use");
  // Where no object has ever been: behind the last one that was used, and in the bookkeeping.
  EXPECT_NAMED(heap->deallocate(static_cast<char*>(p) + 300'000), "no object in use");
  EXPECT_NAMED(heap->deallocate(pointer_to(align_down(address_of(p), supermalloc::kChunk) + 64)),
               "no object in use");
}

TEST_F(SupermallocLargeDeathTest, WritesAfterFreeAreNamed) {
  OwnHeap<> heap;
  void* p = heap->allocate_aligned(200'000, kPage);
  heap->deallocate(p);
  EXPECT_NAMED((std::memset(p, 'A', 8), heap->allocate_aligned(200'000, kPage)),
               "^spanalloc: free object overwritten");
  EXPECT_NAMED((std::memset(p, 0, 16), heap->allocate_aligned(200'000, kPage)),
               "^spanalloc: free object overwritten");
}

// They are seen where the seal is: at the beginning of the object's first page, which is not where
// it was handed out, as a rule.
TEST_F(SupermallocLargeDeathTest, WritesAfterFreeAreNamedWhereTheSealIs) {
  OwnHeap<> heap;
  char* p = nullptr;
  do {
    p = static_cast<char*>(heap->allocate(200'000));
  } while (address_of(p) % kPage == 0);
  char* start = static_cast<char*>(pointer_to(align_down(address_of(p), kPage)));
  heap->deallocate(p);
  EXPECT_NAMED((std::memset(start, 'A', 8), heap->trim()), "^spanalloc: free object overwritten");
  if (test::kUnderAsan) return;  // it reports the write itself
  std::memset(p, 'A', 16);
  heap->trim();
  checked(heap);
}

// An object that is written over when it is free looks used, and is taken for that when it is freed
// again: it waits in a cache twice then. It must not get into its bin twice, whose list would lead
// to itself and hand it out for ever.
TEST_F(SupermallocLargeDeathTest, WhatWaitsTwiceDoesNotComeHomeTwice) {
  if (test::kUnderAsan)
    GTEST_SKIP() << "what has come home is poisoned: the sanitizer sees it come again";
  OwnHeap<> heap;
  for (void* p : {heap->allocate(200'000), heap->allocate_aligned(200'000, kPage)}) {
    auto* start = static_cast<char*>(pointer_to(align_down(address_of(p), kPage)));
    const auto free_twice = [&] {
      heap->deallocate(p);
      std::memset(start, 0, 16);
      heap->deallocate(p);
    };
    EXPECT_NAMED((free_twice(), heap->trim()), "^spanalloc: free object overwritten");
    // Written to, and no more.
    EXPECT_NAMED((heap->deallocate(p), std::memset(start, 'A', 16), heap->trim()),
                 "^spanalloc: free object overwritten");
    // Where the kernel does not take its pages it is as it was left: sealed. (The system call
    // itself: sanitizers make nothing of mlock.)
    if (syscall(SYS_mlock, start, os::page_size()) != 0) continue;
    EXPECT_EQ(syscall(SYS_munlock, start, os::page_size()), 0);
    const auto free_twice_locked = [&] {
      free_twice();
      syscall(SYS_mlock, start, os::page_size());
      heap->trim();
    };
    EXPECT_NAMED(free_twice_locked(), "^spanalloc: memory is free already");
  }
}

// Two threads that free one object at once may both find it in use, and no room for it in any
// cache. (Here one comes after the other: what is asked is the same.)
TEST_F(SupermallocLargeDeathTest, WhatIsFreedByTwoThreadsAtOnceDoesNotComeHomeTwice) {
  OwnHeap<> heap;
  void* p = heap->allocate_aligned(200'000, kPage);
  const BinNumber b = heap->chunks().at(p).bin();
  auto* object = static_cast<supermalloc::FreeObject*>(p);
  object->push_on(&supermalloc::end_of_list, heap->secret());
  heap->large().put(b, object, heap->secret());
  checked(heap);
  const auto put_again = [&] {
    unpoison(object, sizeof *object);
    object->push_on(&supermalloc::end_of_list, heap->secret());
    heap->large().put(b, object, heap->secret());
  };
  EXPECT_NAMED(put_again(), "^spanalloc: memory is free already");
  // The one that comes first has let the pages go.
  EXPECT_NAMED((unpoison(object, sizeof *object), heap->large().put(b, object, heap->secret())),
               "^spanalloc: free object overwritten");
  // It is there once.
  void* again = heap->allocate_aligned(200'000, kPage);
  EXPECT_EQ(again, p);
  EXPECT_NE(heap->allocate_aligned(200'000, kPage), p);
  checked(heap);
}

}  // namespace
}  // namespace spanalloc
