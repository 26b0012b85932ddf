// Heaps as objects: heaps beside each other, other configs, and what is left when they are gone.
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <iterator>
#include <latch>
#include <thread>
#include <vector>

#include "child.hpp"
#include "engine_configs.hpp"
#include "heap_walk.hpp"
#include "os_calls.hpp"
#include "owned_heap.hpp"
#include "sanitizers.hpp"
#include "threads.hpp"

namespace spanalloc {
namespace {

using test::mapped_by_calls;
using test::OwnedHeap;

constexpr std::size_t kSizes[] = {1,    16,        100,       1280, 1281,
                                  5000, 32 * kKiB, 40 * kKiB, kMiB, 3 * kMiB};

// Lets time pass as it allocates and frees: the clock stands still otherwise, and no tick of the
// decay, one of which is due after half of 500 ms, would come between operations.
struct Blocks {
  std::vector<std::pair<unsigned char*, std::size_t>> all;

  template <class Heap>
  void fill(Heap& heap, int rounds, unsigned seed) {
    for (int i = 0; i < rounds; ++i) {
      test::advance_clock(kStepMs);
      for (const std::size_t size : kSizes) {
        auto* p = static_cast<unsigned char*>(heap.allocate(size));
        ASSERT_NE(p, nullptr);
        ASSERT_GE(heap.usable_size(p), size);
        std::memset(p, static_cast<int>(seed + all.size()), size);
        all.emplace_back(p, size);
      }
    }
    mark = seed;
  }
  template <class Heap>
  void check_and_free(Heap& heap) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (i % std::size(kSizes) == 0) test::advance_clock(kStepMs);
      const auto [p, size] = all[i];
      const auto byte = static_cast<unsigned char>(mark + i);
      ASSERT_EQ(p[0], byte);
      ASSERT_EQ(p[size - 1], byte);
      heap.deallocate(p);
    }
    all.clear();
  }
  static constexpr unsigned kStepMs = 100;
  unsigned mark = 0;
};

void expect_empty(OwnedHeap<>& heap) {
  heap.trim();
  const test::HeapWalk walk = test::walk_heap(heap);
  EXPECT_TRUE(walk.consistent());
  EXPECT_TRUE(walk.all_returned()) << "carved " << walk.carved << ", in the pool " << walk.in_pool;
}

TEST(StandardHeaps, AHeapOfOnesOwnServesAllSizes) {
  OwnedHeap own;
  Blocks blocks;
  blocks.fill(own, 50, 1);
  EXPECT_TRUE(own.owns(blocks.all.front().first));
  EXPECT_FALSE(StandardEngine::owns(blocks.all.front().first));
  blocks.check_and_free(own);
  expect_empty(own);
}

TEST(StandardHeaps, ShareNothing) {
  OwnedHeap first;
  OwnedHeap second;
  Blocks in_first;
  Blocks in_second;
  in_first.fill(first, 20, 1);
  in_second.fill(second, 20, 101);
  for (const auto& [p, size] : in_first.all) {
    EXPECT_TRUE(first.owns(p));
    EXPECT_FALSE(second.owns(p));
  }
  EXPECT_TRUE(test::walk_heap(first).consistent());
  EXPECT_TRUE(test::walk_heap(second).consistent());
  in_first.check_and_free(first);
  in_second.check_and_free(second);
  expect_empty(first);
  expect_empty(second);
}

// What others put into the pool while a thread drains it need not be waited for.
TEST(StandardHeaps, DrainingAPoolTakesNoMoreThanItHolds) {
  OwnedHeap own;
  std::vector<void*> blocks(400);
  for (void*& p : blocks) p = own.allocate(16 * kKiB);
  for (void* p : blocks) own.deallocate(p);
  own.trim();  // the thread's spans are in the pool now, or drained already
  for (void*& p : blocks) p = own.allocate(16 * kKiB);
  for (void* p : blocks) own.deallocate(p);
  auto& pool = own.heap.pool();
  unsigned drained = 0;
  pool.drain([&](standard::SpanRef span) {
    // Another thread puts an empty span on the same stack.
    using Classes = standard::SizeClasses<Standard>;
    EXPECT_TRUE(pool.put(span.number, Classes::info(span->class_id()), 0));
    ++drained;
  });
  EXPECT_GT(drained, 0U);
  EXPECT_LE(drained, 400U);
}

TEST(StandardHeaps, ThreadsFreeEachOthersBlocksAndEnd) {
  OwnedHeap own;
  for (int round = 0; round < 5; ++round) {
    std::vector<Blocks> of_thread(4);
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] { of_thread[t].fill(own, 30, t * 50); });
    }
    for (std::thread& thread : threads) thread.join();
    threads.clear();
    EXPECT_EQ(own.statistics().live_threads, 0u) << "threads that have ended leave no LAB";
    for (unsigned t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] { of_thread[(t + 1) % 4].check_and_free(own); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  expect_empty(own);
}

// Blocks whose pages have left the arena, too.
TEST(StandardHeaps, BlocksOutsideTheArenaBelongToTheirHeap) {
  OwnedHeap first;
  OwnedHeap second;
  const auto outside = [](OwnedHeap<>& heap) {
    auto* p = static_cast<unsigned char*>(heap.allocate(2 * kMiB));
    void* wall = heap.allocate(2 * kMiB);
    std::memset(p, 7, 2 * kMiB);
    auto* q = static_cast<unsigned char*>(heap.resize(p, 2 * kMiB + kMiB / 4).block);
    heap.deallocate(wall);
    EXPECT_TRUE(q != nullptr && q != p);
    return q;
  };
  unsigned char* a = outside(first);
  unsigned char* b = outside(second);
  ASSERT_TRUE(a != nullptr && b != nullptr);
  EXPECT_TRUE(first.owns(a) && second.owns(b));
  EXPECT_FALSE(first.owns(b) || second.owns(a));
  EXPECT_EQ(first.statistics().large_objects, 1u);
  EXPECT_GE(first.usable_size(a), 2 * kMiB + kMiB / 4);
  first.deallocate(a);
  EXPECT_EQ(first.statistics().large_objects, 0u);
  b = static_cast<unsigned char*>(second.resize(b, 20 * kMiB).block);
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b[0] + b[2 * kMiB - 1], 14);
  EXPECT_TRUE(second.owns(b));
  EXPECT_EQ(second.pages.outside.statistics().objects, 1u);
}

// Destructors of other keys use the heap in every round, also after the heap's own last one.
OwnedHeap<>* used_by_destructors = nullptr;
pthread_key_t late_key;
TEST(StandardHeaps, AThreadPastItsExitHasALabForACallOnly) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer takes the last round for after the thread's end";
  OwnedHeap own;
  used_by_destructors = &own;
  ASSERT_EQ(pthread_key_create(&late_key,
                               [](void* value) {
                                 pthread_setspecific(late_key, value);
                                 Blocks blocks;
                                 blocks.fill(*used_by_destructors, 2, 1);
                                 blocks.check_and_free(*used_by_destructors);
                               }),
            0);
  for (int round = 0; round < 5; ++round) {
    std::thread([&] {
      own.deallocate(own.allocate(100));
      pthread_setspecific(late_key, &own);
    }).join();
    EXPECT_EQ(own.statistics().live_threads, 0u);
  }
  pthread_key_delete(late_key);
  expect_empty(own);
}

// Threads begin and end at the same time: what one has given back another takes.
TEST(StandardHeaps, ThreadsBeginAndEndAllTheTime) {
  OwnedHeap own;
  std::vector<std::thread> spawners;
  for (int t = 0; t < 4; ++t) {
    spawners.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        std::thread([&] {
          Blocks blocks;
          blocks.fill(own, 1, 1);
          blocks.check_and_free(own);
        }).join();
      }
    });
  }
  for (std::thread& spawner : spawners) spawner.join();
  EXPECT_EQ(own.statistics().live_threads, 0u);
  expect_empty(own);
}

TEST(StandardHeaps, AStartWritesToNoLab) {
  OwnedHeap own;
  ASSERT_TRUE(own.pages.start());
  EXPECT_EQ(own.pages.caches.end(), standard::CacheNumber{0}) << "what never allocates needs none";
  own.deallocate(own.allocate(100));
  EXPECT_EQ(own.pages.caches.end(), standard::CacheNumber{1});
}

// A handler's fork interrupts the first use of a heap on one page layer: another page layer is put
// right at once, not by whoever comes to it first, and maybe not alone.
TEST(StandardHeaps, AForkInsideOnePageLayerLeavesTheOtherWhole) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  test::in_fresh_process([] {
    OwnedHeap one;
    OwnedHeap two;
    ASSERT_NE(one.allocate(64), nullptr);
    ASSERT_TRUE(two.pages.start());
    signal(SIGUSR1, &test::fork_and_go_on_as_the_child);
    {
      standard::ThreadCache<Standard> guest(two.heap, two.pages);
      const auto inside = guest.enter();
      raise(SIGUSR1);  // the child goes on here
      EXPECT_EQ(one.pages.recovery_is_due.load_relaxed(), 0u);
      EXPECT_EQ(two.pages.recovery_is_due.load_relaxed(), 1u);
      // Somebody else's call, on the same page layer, in the middle of ours.
      OwnedHeap three;
      EXPECT_NE(three.allocate(64), nullptr);
      EXPECT_EQ(two.pages.recovery_is_due.load_relaxed(), 1u);
    }
    EXPECT_EQ(two.pages.recovery_is_due.load_relaxed(), 0u) << "the interrupted call's end";
    EXPECT_EQ(one.statistics().live_threads, 1u);
    EXPECT_NE(two.allocate(64), nullptr);
  });
}

TEST(StandardHeaps, APageLayerLeavesNoAddressSpaceBehind) {
  if (test::kEmulated) GTEST_SKIP() << "the emulator keeps mappings in a way of its own";
  {
    OwnedHeap warm_up;
    warm_up.deallocate(warm_up.allocate(100));
  }
  const std::size_t before = mapped_by_calls();
  for (int round = 0; round < 20; ++round) {
    OwnedHeap own;
    Blocks blocks;
    blocks.fill(own, 3, 1);
    std::thread([&] { Blocks().fill(own, 3, 1); }).join();
  }
  EXPECT_EQ(mapped_by_calls(), before);
}

TEST(StandardHeaps, AForksChildGoesOnInAllOfThem) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kUnderAsan) GTEST_SKIP() << "the sanitizer's own malloc may be locked in the child";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  OwnedHeap own;
  OwnedHeap second;
  std::atomic<bool> stop{false};
  std::vector<std::thread> others;
  std::latch begun(2);
  for (OwnedHeap<>* heap : {&own, &second}) {
    others.emplace_back([&stop, &begun, heap] {
      begun.count_down();
      while (!stop) {
        Blocks blocks;
        blocks.fill(*heap, 5, 1);
        blocks.check_and_free(*heap);
      }
    });
  }
  Blocks mine;
  mine.fill(own, 10, 9);
  begun.wait();
  for (int round = 0; round < 30; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(540);
      if (!test::walk_heap(own).consistent() || !test::walk_heap(second).consistent()) _exit(3);
      mine.check_and_free(own);
      std::thread([&] {
        Blocks blocks;
        blocks.fill(second, 10, 1);
        blocks.check_and_free(second);
      }).join();
      _exit(test::walk_heap(own).consistent() && test::walk_heap(second).consistent() ? 0 : 4);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "round " << round;
  }
  stop = true;
  for (std::thread& other : others) other.join();
  mine.check_and_free(own);
  expect_empty(own);
  expect_empty(second);
}

// A config is a few lines; each is an engine of its own kind.
template <class Config>
class StandardConfigs : public testing::Test {};
TYPED_TEST_SUITE(StandardConfigs, test::configs::standard);

TYPED_TEST(StandardConfigs, Work) {
  static_assert(Engine<StandardEngineOf<TypeParam>>);
  OwnedHeap<TypeParam> own;
  Blocks blocks;
  blocks.fill(own, 20, 1);
  std::thread([&] { blocks.check_and_free(own); }).join();
  own.trim();
  EXPECT_TRUE(test::walk_heap(own).all_returned());
}

}  // namespace
}  // namespace spanalloc
