// Heaps of the a2alloc engine as objects: any number of them, each with its
// threads, its forks and an end.
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <cstring>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "os_calls.hpp"
#include "papers/a2alloc/engine/engine.hpp"
#include "papers/a2alloc/tests/test_support.hpp"
#include "sanitizers.hpp"
#include "threads.hpp"

namespace spanalloc {
namespace {

using a2alloc::Census;
using test::checked;
using test::kPiece;
using test::mapped_by_calls;
using test::OwnHeap;
using test::superblock_of;

class A2allocInstances : public test::SmallArenas {};

static_assert(Engine<A2allocEngine<A2allocReport>>);
// A library's heap is never taken apart, at the process's end neither.
static_assert(std::is_trivially_destructible_v<a2alloc::Allocator<A2allocReport>>);

// Some of everything, each byte written to; freed by the caller.
template <class Config>
std::vector<void*> some_of_everything(OwnHeap<Config>& heap) {
  std::vector<void*> blocks;
  for (const std::size_t n :
       {std::size_t{1}, std::size_t{40}, std::size_t{5000}, kPiece / 2, 3 * kPiece}) {
    blocks.push_back(heap->allocate(n));
    std::memset(blocks.back(), 0xA5, n);
    blocks.push_back(heap->allocate_aligned(n, 4096));
    EXPECT_EQ(address_of(blocks.back()) % 4096, 0u);
    blocks.push_back(heap->allocate_zeroed(n));
    EXPECT_EQ(static_cast<char*>(blocks.back())[n - 1], 0);
  }
  return blocks;
}

TEST_F(A2allocInstances, OfOneConfigKnowNothingOfEachOther) {
  OwnHeap<A2allocReport> one;
  OwnHeap<A2allocReport> other;
  void* in_one = one->allocate(100);
  EXPECT_EQ(checked(other).known, 0u);
  void* in_other = other->allocate(100);
  EXPECT_TRUE(one->owns(in_one) && other->owns(in_other));
  EXPECT_FALSE(one->owns(in_other) || other->owns(in_one));
  EXPECT_EQ(checked(one).live_blocks, 1u);
  one->deallocate(in_one);
  EXPECT_EQ(checked(one).live_blocks, 0u);
  EXPECT_EQ(checked(other).live_blocks, 1u);
  using Default = A2allocEngine<A2allocReport>;
  void* in_default = Default::allocate(100);
  EXPECT_TRUE(Default::owns(in_default));
  EXPECT_FALSE(Default::owns(in_other) || other->owns(in_default));
  Default::deallocate(in_default);
  other->deallocate(in_other);
}

TEST_F(A2allocInstances, OfSeveralConfigsServeOneThread) {
  OwnHeap<A2allocReport> report;
  OwnHeap<A2allocClasses> classes;
  OwnHeap<Kheap> kheap;
  const auto use = [](auto& heap) {
    for (void* p : some_of_everything(heap)) {
      EXPECT_TRUE(heap->owns(p));
      checked(heap);
      heap->deallocate(p);
    }
    heap->trim();
    EXPECT_TRUE(checked(heap).all_returned());
  };
  for (int round = 0; round < 3; ++round) {
    use(report);
    use(classes);
    use(kheap);
  }
  EXPECT_EQ(checked(report).heap_records, 1u);
  EXPECT_EQ(checked(kheap).heap_records, 0u);
}

TEST_F(A2allocInstances, APointerOfAnotherOneIsForeign) {
  OwnHeap<A2allocReport> one;
  OwnHeap<A2allocReport> other;
  void* p = one->allocate(100);
  EXPECT_EXIT(other->deallocate(p), ::testing::KilledBySignal(SIGABRT), "none of this heap's");
  one->deallocate(p);
}

TEST_F(A2allocInstances, EachThreadHasAHeapInEachOfThem) {
  constexpr int kThreads = 4;
  OwnHeap<A2allocReport> heaps[3];
  std::vector<std::thread> threads;
  std::barrier all(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      std::vector<void*> blocks;
      for (int i = 0; i < 3000; ++i) {
        for (auto& heap : heaps) {
          void* p = heap->allocate(static_cast<std::size_t>(i % 300));
          *static_cast<char*>(p) = 1;
          blocks.push_back(p);
        }
        if (blocks.size() < 300) continue;
        for (std::size_t k = 0; k < blocks.size(); ++k) heaps[k % 3]->deallocate(blocks[k]);
        blocks.clear();
      }
      for (auto& heap : heaps) EXPECT_EQ(superblock_of(heap->allocate(16)) % kPiece, 0u);
      all.arrive_and_wait();
      for (auto& heap : heaps) EXPECT_EQ(heap->statistics().live_threads, unsigned{kThreads});
      all.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& heap : heaps) {
    EXPECT_EQ(heap->statistics().live_threads, 0u);
    const Census census = checked(heap);
    EXPECT_EQ(census.live_blocks, unsigned{kThreads});
    EXPECT_EQ(census.heap_records, unsigned{kThreads});
  }
}

TEST_F(A2allocInstances, OneWithOneHeapServesAllThreads) {
  OwnHeap<Kheap> heap;
  std::atomic<void*> left{nullptr};
  std::thread([&] { left = heap->allocate(16); }).join();
  EXPECT_EQ(superblock_of(heap->allocate(16)), superblock_of(left));
  heap->deallocate(left);
  EXPECT_EQ(checked(heap).live_blocks, 1u);
}

// What others' destructors do at a thread's end comes after that end was told: it is served by the
// common heap, and leaves no heap taken.
TEST_F(A2allocInstances, AreUsableInTheLastDestructors) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer is gone from the thread by the last round";
  static OwnHeap<A2allocReport>* used;
  static std::atomic<int> rounds;
  static pthread_key_t key;
  OwnHeap<A2allocReport> heap;
  used = &heap;
  rounds = 0;
  ASSERT_EQ(pthread_key_create(&key,
                               [](void* value) {
                                 void* p = (*used)->allocate(100);
                                 ASSERT_NE(p, nullptr);
                                 (*used)->deallocate(p);
                                 if (++rounds < PTHREAD_DESTRUCTOR_ITERATIONS)
                                   pthread_setspecific(key, value);
                               }),
            0);
  for (int i = 0; i < 10; ++i) {
    std::thread([&] {
      heap->deallocate(heap->allocate(16));
      rounds = 0;
      pthread_setspecific(key, &heap);
    }).join();
    EXPECT_EQ(rounds, PTHREAD_DESTRUCTOR_ITERATIONS);
  }
  pthread_key_delete(key);
  EXPECT_EQ(heap->statistics().live_threads, 0u);
  EXPECT_EQ(checked(heap).heap_records, 1u);
  EXPECT_TRUE(checked(heap).all_returned());
}

TEST_F(A2allocInstances, AThreadsEndLeavesItsHeapToTheNext) {
  OwnHeap<A2allocReport> heap;
  std::vector<void*> left;
  for (int i = 0; i < 200; ++i) {
    std::thread([&] { left.push_back(heap->allocate(100)); }).join();
  }
  EXPECT_EQ(checked(heap).heap_records, 1u);
  for (void* p : left) heap->deallocate(p);
  EXPECT_TRUE(checked(heap).all_returned());
}

TEST_F(A2allocInstances, GiveAllAddressSpaceBack) {
  a2alloc::Allocator<A2allocClasses> heap;
  const std::size_t before = mapped_by_calls();
  const auto use_up = [&] {
    std::thread([&] { (void)heap.allocate(100); }).join();
    for (const std::size_t n : {std::size_t{100}, 3 * kPiece, a2alloc::kLargestInGlobalHeap + 1}) {
      void* p = heap.allocate(n);
      ASSERT_NE(p, nullptr);
      *static_cast<char*>(p) = 1;
    }
    EXPECT_GT(heap.statistics().reserved_bytes, kGiB);
    EXPECT_GT(mapped_by_calls(), before + kGiB);
    heap.destroy();
  };
  for (int round = 0; round < 20; ++round) {
    use_up();
    EXPECT_EQ(heap.statistics().reserved_bytes, 0u);
    EXPECT_EQ(heap.census().known, 0u);
    EXPECT_EQ(mapped_by_calls(), before);
  }
}

// A key each, given back: there are 1024 in a process.
TEST_F(A2allocInstances, ThousandsComeAndGo) {
  if (test::kEmulated) GTEST_SKIP() << "an emulator records every reserved page";
  for (int i = 0; i < 3000; ++i) {
    OwnHeap<A2allocReport> heap;
    void* p = heap->allocate(100);
    ASSERT_NE(p, nullptr);
    ASSERT_EQ(heap->statistics().live_threads, 1u) << i;  // it is not the common heap
  }
}

TEST_F(A2allocInstances, OneThatWasDestroyedIsFresh) {
  a2alloc::Allocator<A2allocReport> heap;
  for (int round = 0; round < 3; ++round) {
    void* p = heap.allocate(100);
    ASSERT_NE(p, nullptr);
    EXPECT_EQ(heap.census().known, 2u);
    EXPECT_EQ(heap.census().heap_records, 1u);
    std::thread([&] { heap.deallocate(p); }).join();
    heap.destroy();
    EXPECT_FALSE(heap.owns(p));
    EXPECT_FALSE(heap.trim());
  }
}

// Threads of the parent vanish in the middle of what they do in both heaps.
TEST_F(A2allocInstances, AForksChildHasThemWhole) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kUnderAsan) GTEST_SKIP() << "the sanitizer's own malloc may be locked in the child";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  constexpr unsigned kWorkers = 3;
  OwnHeap<A2allocReport> one;
  OwnHeap<A2allocClasses> other;
  std::atomic<bool> stop{false};
  std::atomic<unsigned> started{0};
  std::vector<std::thread> workers;
  for (unsigned t = 0; t < kWorkers; ++t) {
    workers.emplace_back([&, seed = t]() mutable {
      void* in_one[50] = {};
      void* in_other[50] = {};
      for (unsigned i = 0; !stop; ++i) {
        seed = seed * 1664525 + 1013904223;
        const unsigned slot = (seed >> 8) % 50;
        const std::size_t n = (seed >> 16) % 32 == 0 ? 100000 : (seed >> 20) % 2000;
        one->deallocate(std::exchange(in_one[slot], one->allocate(n)));
        other->deallocate(std::exchange(in_other[slot], other->allocate(n)));
        if (i == 0) ++started;
      }
      for (void* p : in_one) one->deallocate(p);
      for (void* p : in_other) other->deallocate(p);
    });
  }
  while (started < kWorkers) std::this_thread::yield();
  void* mine = one->allocate(100);
  for (int round = 0; round < 20 && !HasFailure(); ++round) {
    alarm(540);  // a deadlock ends the test
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(540);
      const Census before = one->census();
      if (!before.consistent() || !other->census().consistent()) _exit(3);
      one->deallocate(mine);
      if (one->allocate(100) != mine) _exit(4);  // this thread's heap is still its own
      // The vanished threads' heaps go to new ones.
      test::in_threads(kWorkers, [&](unsigned) {
        one->deallocate(one->allocate(100));
        other->deallocate(other->allocate(100));
      });
      const Census after = one->census();
      if (!after.consistent() || after.heap_records > before.heap_records) _exit(5);
      other->destroy();
      if (other->allocate(100) == nullptr || !other->census().consistent()) _exit(6);
      _exit(0);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status << " in round " << round;
  }
  alarm(0);
  stop = true;
  for (std::thread& worker : workers) worker.join();
  one->deallocate(mine);
  one->trim();
  other->trim();
  EXPECT_TRUE(checked(one).all_returned());
  EXPECT_TRUE(checked(other).all_returned());
}

}  // namespace
}  // namespace spanalloc
