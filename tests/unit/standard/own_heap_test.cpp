// Heaps as objects: several on one page layer, page layers beside each other, other configs, and
// what is left when they are gone.
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <iterator>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "address_limit.hpp"
#include "child.hpp"
#include "engine_configs.hpp"
#include "environment.hpp"
#include "heap_walk.hpp"
#include "memory_pattern.hpp"
#include "os_calls.hpp"
#include "owned_heap.hpp"
#include "sanitizers.hpp"
#include "simulated_cpus.hpp"
#include "threads.hpp"

namespace spanalloc {
namespace {

using test::mapped_by_calls;
using test::OwnedHeap;
using Own = standard::OwnHeap<Standard>;
using Pages = standard::PageLayer<Standard>;

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

void expect_empty(Own& heap) {
  heap.trim();
  const test::HeapWalk walk = test::walk_heap(heap);
  EXPECT_TRUE(walk.consistent());
  EXPECT_TRUE(walk.all_returned()) << "carved " << walk.carved << ", in the pool " << walk.in_pool;
}

TEST(StandardHeaps, AHeapOfOnesOwnServesAllSizes) {
  OwnedHeap own;
  Blocks blocks;
  blocks.fill(own.heap, 50, 1);
  EXPECT_TRUE(own.heap.owns(blocks.all.front().first));
  EXPECT_FALSE(StandardEngine::owns(blocks.all.front().first));
  blocks.check_and_free(own.heap);
  expect_empty(own.heap);
}

TEST(StandardHeaps, ShareAPageLayerAndNothingElse) {
  Pages pages{&standard::ForkRecovery<Standard>::enter_child};
  Own first(pages);
  Own second(pages);
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
  second.destroy();
  first.destroy();
  pages.destroy();
}

// What one heap frees is memory for the other: the page layer is one.
TEST(StandardHeaps, MemoryOfOneServesTheOther) {
  Pages pages{&standard::ForkRecovery<Standard>::enter_child};
  Own first(pages);
  Own second(pages);
  std::vector<void*> blocks(2000);
  for (void*& p : blocks) p = first.allocate(16 * kKiB);
  for (void* p : blocks) first.deallocate(p);
  const std::size_t opened = first.statistics().opened_bytes;
  for (void*& p : blocks) p = second.allocate(16 * kKiB);
  EXPECT_LE(second.statistics().opened_bytes, opened + opened / 8);
  for (void* p : blocks) second.deallocate(p);
  second.destroy();
  first.destroy();
  pages.destroy();
}

// What others put into the pool while a thread drains it need not be waited for.
TEST(StandardHeaps, DrainingAPoolTakesNoMoreThanItHolds) {
  Pages pages{&standard::ForkRecovery<Standard>::enter_child};
  Own heap(pages);
  std::vector<void*> blocks(400);
  for (void*& p : blocks) p = heap.allocate(16 * kKiB);
  for (void* p : blocks) heap.deallocate(p);
  heap.trim();  // the thread's spans are in the pool now, or drained already
  for (void*& p : blocks) p = heap.allocate(16 * kKiB);
  for (void* p : blocks) heap.deallocate(p);
  auto& pool = heap.heap().pool();
  unsigned drained = 0;
  pool.drain([&](standard::SpanRef span) {
    // Another thread puts an empty span on the same stack.
    using Classes = standard::SizeClasses<Standard>;
    EXPECT_TRUE(pool.put(span.number, Classes::info(span->class_id()), 0));
    ++drained;
  });
  EXPECT_GT(drained, 0U);
  EXPECT_LE(drained, 400U);
  heap.destroy();
  pages.destroy();
}

// A record names its heap: any heap of the page layer takes the block back, where it belongs.
TEST(StandardHeaps, BlocksAreFreedThroughAnyHeapOfThePageLayer) {
  Pages pages{&standard::ForkRecovery<Standard>::enter_child};
  Own first(pages);
  Own second(pages);
  Blocks blocks;
  blocks.fill(first, 20, 1);
  for (const auto& [p, size] : blocks.all) EXPECT_GE(second.usable_size(p), size);
  blocks.check_and_free(second);
  expect_empty(first);
  expect_empty(second);
  first.destroy();
  second.destroy();
  pages.destroy();
}

TEST(StandardHeaps, ThreadsFreeEachOthersBlocksAndEnd) {
  OwnedHeap own;
  for (int round = 0; round < 5; ++round) {
    std::vector<Blocks> of_thread(4);
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] { of_thread[t].fill(own.heap, 30, t * 50); });
    }
    for (std::thread& thread : threads) thread.join();
    threads.clear();
    EXPECT_EQ(own.heap.statistics().live_threads, 0u) << "threads that have ended leave no LAB";
    for (unsigned t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] { of_thread[(t + 1) % 4].check_and_free(own.heap); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  expect_empty(own.heap);
}

TEST(StandardHeaps, DestroyGivesBackWhatIsStillOut) {
  Pages pages{&standard::ForkRecovery<Standard>::enter_child};
  Own kept(pages);
  Blocks stays;
  stays.fill(kept, 10, 7);
  std::size_t opened = 0;
  const int rounds = test::kUnderTsan ? 15 : 50;
  for (int round = 0; round < rounds; ++round) {
    Own gone(pages);
    Blocks lost;
    lost.fill(gone, 10, 1);
    std::thread([&] { Blocks().fill(gone, 5, 3); }).join();
    if (round == 2) opened = kept.statistics().opened_bytes;
    gone.destroy();
  }
  EXPECT_LE(kept.statistics().opened_bytes, 2 * opened)
      << "memory of destroyed heaps is used again";
  stays.check_and_free(kept);
  expect_empty(kept);
  kept.destroy();
  pages.destroy();
}

// Blocks whose pages have left the arena, too.
TEST(StandardHeaps, BlocksOutsideTheArenaBelongToTheirHeap) {
  Pages pages{&standard::ForkRecovery<Standard>::enter_child};
  Own first(pages);
  Own second(pages);
  std::vector<void*> walls;
  const auto outside = [&](Own& heap) {
    auto* p = static_cast<unsigned char*>(heap.allocate(2 * kMiB));
    walls.push_back(heap.allocate(2 * kMiB));
    std::memset(p, 7, 2 * kMiB);
    auto* q = static_cast<unsigned char*>(heap.resize(p, 2 * kMiB + kMiB / 4).block);
    EXPECT_TRUE(q != nullptr && q != p);
    return q;
  };
  unsigned char* a = outside(first);
  unsigned char* b = outside(second);
  unsigned char* lost = outside(second);
  ASSERT_TRUE(a != nullptr && b != nullptr && lost != nullptr);
  EXPECT_TRUE(first.owns(a) && second.owns(b));
  EXPECT_FALSE(first.owns(b) || second.owns(a));
  for (void* wall : walls) first.deallocate(wall);
  EXPECT_EQ(first.statistics().large_objects, 1u);
  EXPECT_EQ(second.statistics().large_objects, 2u);
  EXPECT_GE(second.usable_size(a), 2 * kMiB + kMiB / 4);
  second.deallocate(a);
  EXPECT_EQ(first.statistics().large_objects, 0u);
  b = static_cast<unsigned char*>(first.resize(b, 20 * kMiB).block);
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b[0] + b[2 * kMiB - 1], 14);
  EXPECT_TRUE(second.owns(b)) << "whoever resizes it";
  second.destroy();
  EXPECT_FALSE(first.owns(b) || first.owns(lost));
  EXPECT_EQ(pages.outside.statistics().objects, 0u);
  expect_empty(first);
  first.destroy();
  pages.destroy();
}

// Others' threads take and give memory of the page layer all the while.
TEST(StandardHeaps, HeapsAreDestroyedBesideOthersInUse) {
  Pages pages{&standard::ForkRecovery<Standard>::enter_child};
  Own kept(pages);
  std::atomic<bool> stop{false};
  std::vector<std::thread> users;
  for (unsigned t = 0; t < 2; ++t) {
    users.emplace_back([&] {
      while (!stop) {
        // Large ones are cleared before their record says that they are in use.
        std::vector<unsigned char*> blocks;
        for (int i = 0; i < 20; ++i) {
          const std::size_t size = 70'000 + static_cast<std::size_t>(i) * 100'000;
          auto* p = static_cast<unsigned char*>(kept.allocate_zeroed(size));
          ASSERT_NE(p, nullptr);
          ASSERT_EQ(p[0] | p[size / 2] | p[size - 1], 0);
          p[0] = p[size / 2] = p[size - 1] = 1;
          blocks.push_back(p);
        }
        Blocks small;
        small.fill(kept, 3, 1);
        small.check_and_free(kept);
        for (unsigned char* p : blocks) kept.deallocate(p);
        kept.trim();
      }
    });
  }
  const int rounds = test::kUnderTsan ? 50 : 300;  // it makes them ten times slower
  for (int round = 0; round < rounds; ++round) {
    Own gone(pages);
    Blocks lost;
    lost.fill(gone, 5, 1);
    for (std::size_t i = 0; i < lost.all.size(); i += 2) gone.deallocate(lost.all[i].first);
    if (round % 2 == 0) gone.trim();
    gone.destroy();
  }
  stop = true;
  for (std::thread& user : users) user.join();
  expect_empty(kept);
  kept.destroy();
  pages.destroy();
}

// The arena hands its ranges to whoever comes: what a heap has just given back is another's at
// once, and its records still name the heap that is being destroyed.
TEST(StandardHeaps, DestroyLeavesWhatOthersHaveJustTaken) {
  constexpr std::size_t kSize = 40'000;
  Pages pages{&standard::ForkRecovery<Standard>::enter_child};
  Own kept(pages);
  const auto take_and_free = [](Own& heap) {
    std::vector<char*> blocks(300);
    for (char*& p : blocks) {
      p = static_cast<char*>(heap.allocate(kSize));
      ASSERT_NE(p, nullptr);
      p[0] = p[kSize - 1] = 1;
    }
    test::advance_clock(300);
    for (char* p : blocks) {
      ASSERT_EQ(p[0] + p[kSize - 1], 2);
      heap.deallocate(p);
    }
  };
  std::atomic<bool> stop{false};
  std::latch begun(3);
  std::vector<std::thread> users;
  for (int t = 0; t < 3; ++t) {
    users.emplace_back([&] {
      take_and_free(kept);
      begun.count_down();
      while (!stop) take_and_free(kept);
    });
  }
  begun.wait();
  for (int round = 0; round < (test::kUnderTsan ? 30 : 300); ++round) {
    Own gone(pages);
    take_and_free(gone);
    gone.destroy();
  }
  stop = true;
  for (std::thread& user : users) user.join();
  expect_empty(kept);
  kept.destroy();
  pages.destroy();
}

// Destructors of other keys use the heap in every round, also after the heap's own last one.
Own* used_by_destructors = nullptr;
pthread_key_t late_key;
TEST(StandardHeaps, AThreadPastItsExitHasALabForACallOnly) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer takes the last round for after the thread's end";
  OwnedHeap own;
  used_by_destructors = &own.heap;
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
      own.heap.deallocate(own.heap.allocate(100));
      pthread_setspecific(late_key, &own);
    }).join();
    EXPECT_EQ(own.heap.statistics().live_threads, 0u);
  }
  pthread_key_delete(late_key);
  expect_empty(own.heap);
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
          blocks.fill(own.heap, 1, 1);
          blocks.check_and_free(own.heap);
        }).join();
      }
    });
  }
  for (std::thread& spawner : spawners) spawner.join();
  EXPECT_EQ(own.heap.statistics().live_threads, 0u);
  expect_empty(own.heap);
}

TEST(StandardHeaps, AStartWritesToNoLab) {
  OwnedHeap own;
  ASSERT_TRUE(own.heap.heap().start());
  EXPECT_EQ(own.pages.caches.end(), standard::CacheNumber{0}) << "what never allocates needs none";
  own.heap.deallocate(own.heap.allocate(100));
  const std::uint32_t abandoned_lists = own.heap.heap().abandoned_lists().mask + 1;
  EXPECT_EQ(own.pages.caches.end(), standard::CacheNumber{1 + abandoned_lists});
}

// A heap for which memory was out half way through its first use leaves nothing of
// itself with the page layer.
TEST(StandardHeaps, AHeapWhoseStartIsRefusedIsDestroyedAsWell) {
  if (test::kUnderAsan || test::kUnderTsan) GTEST_SKIP() << "sanitizers need more address space";
  if (test::kEmulated) GTEST_SKIP() << "the emulator takes from the limit, too";
  test::in_fresh_process([] {
    ASSERT_TRUE(test::leave_address_space(280 * kMiB));
    unsigned half_made = 0;
    // A heap needs a thread cache and its abandoned_lists: some number of thread caches taken in
    // advance leaves the last one half way.
    for (std::uint32_t in_advance = 0; in_advance < 3; ++in_advance) {
      Pages pages{&standard::ForkRecovery<Standard>::enter_child};
      Own first(pages);
      ASSERT_NE(first.allocate(100), nullptr);
      std::vector<standard::CacheRecord<Standard>*> labs(in_advance);
      for (auto*& cache : labs)
        ASSERT_NE(cache = pages.caches.take(first.heap().number()), nullptr);
      std::vector<std::unique_ptr<Own>> others;
      do {
        others.push_back(std::make_unique<Own>(pages));
      } while (others.back()->allocate(100) != nullptr);
      EXPECT_LT(others.size(), 900u) << "out of LABs, not out of keys";
      unsigned abandoned_lists = 0;
      pages.caches.for_each([&](auto& cache) {
        abandoned_lists += cache.is_abandoned_list() &&
                           cache.heap.load_relaxed() == others.back()->heap().number();
      });
      half_made += abandoned_lists != 0;
      for (auto& other : others) other->destroy();
      others.clear();
      std::size_t heaps = 0;
      pages.heaps.for_each([&](auto&) { ++heaps; });
      EXPECT_EQ(heaps, 1u);
      for (auto* cache : labs) pages.caches.give_back(cache);
      // All thread caches that they had are there again.
      for (int again = 0; again < 100; ++again) {
        Own another(pages);
        EXPECT_NE(another.allocate(100), nullptr);
        another.destroy();
      }
      first.trim();
      first.destroy();
      pages.destroy();
    }
    EXPECT_GT(half_made, 0u);
  });
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
    ASSERT_NE(one.heap.allocate(64), nullptr);
    ASSERT_TRUE(two.pages.start());
    signal(SIGUSR1, &test::fork_and_go_on_as_the_child);
    {
      standard::ThreadCache<Standard> guest(two.heap.heap(), two.pages);
      const auto inside = guest.enter();
      raise(SIGUSR1);  // the child goes on here
      EXPECT_EQ(one.pages.recovery_is_due.load_relaxed(), 0u);
      EXPECT_EQ(two.pages.recovery_is_due.load_relaxed(), 1u);
      // Somebody else's call, on the same page layer, in the middle of ours.
      OwnedHeap three;
      EXPECT_NE(three.heap.allocate(64), nullptr);
      EXPECT_EQ(two.pages.recovery_is_due.load_relaxed(), 1u);
    }
    EXPECT_EQ(two.pages.recovery_is_due.load_relaxed(), 0u) << "the interrupted call's end";
    EXPECT_EQ(one.heap.statistics().live_threads, 1u);
    EXPECT_NE(two.heap.allocate(64), nullptr);
  });
}

TEST(StandardHeaps, APageLayerLeavesNoAddressSpaceBehind) {
  if (test::kEmulated) GTEST_SKIP() << "the emulator keeps mappings in a way of its own";
  {
    OwnedHeap warm_up;
    warm_up.heap.deallocate(warm_up.heap.allocate(100));
  }
  const std::size_t before = mapped_by_calls();
  for (int round = 0; round < 20; ++round) {
    OwnedHeap own;
    Blocks blocks;
    blocks.fill(own.heap, 3, 1);
  }
  EXPECT_EQ(mapped_by_calls(), before);
}

// As many as the process has keys for; then they are refused, and nothing else is. (Under a
// sanitizer hundreds of heaps for 64 cores take minutes: there others have most of the keys.)
TEST(StandardHeaps, MoreHeapsThanKeysAreRefused) {
  constexpr bool kFew = test::kUnderAsan || test::kUnderTsan;
  std::vector<pthread_key_t> others;
  for (pthread_key_t key = 0; kFew && pthread_key_create(&key, nullptr) == 0;)
    others.push_back(key);
  for (int i = 0; i < 40 && !others.empty(); ++i, others.pop_back())
    pthread_key_delete(others.back());
  Pages pages{&standard::ForkRecovery<Standard>::enter_child};
  std::vector<std::unique_ptr<Own>> heaps;
  void* p = nullptr;
  do {
    heaps.push_back(std::make_unique<Own>(pages));
    p = heaps.back()->allocate(100);
  } while (p != nullptr && heaps.size() < 2000);
  EXPECT_EQ(p, nullptr);
  EXPECT_GT(heaps.size(), kFew ? 20u : 500u);
  EXPECT_NE(heaps.front()->allocate(100), nullptr);
  for (auto& heap : heaps) heap->destroy();
  Own again(pages);
  EXPECT_NE(again.allocate(100), nullptr);
  again.destroy();
  pages.destroy();
  for (const pthread_key_t key : others) pthread_key_delete(key);
}

TEST(StandardHeaps, AHeapWalkLeavesOtherHeapsAsTheyAre) {
  OwnedHeap own;
  Own second(own.pages);
  for (Own* heap : {&own.heap, &second}) heap->deallocate(heap->allocate(70'000));  // a spare
  for (int round = 0; round < 3; ++round) {
    EXPECT_TRUE(test::walk_heap(own.heap).consistent());
    EXPECT_TRUE(test::walk_heap(second).consistent());
  }
  second.destroy();
}

TEST(StandardHeaps, AForksChildGoesOnInAllOfThem) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kUnderAsan) GTEST_SKIP() << "the sanitizer's own malloc may be locked in the child";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  OwnedHeap own;
  Own second(own.pages);
  std::atomic<bool> stop{false};
  std::vector<std::thread> others;
  std::latch begun(2);
  for (Own* heap : {&own.heap, &second}) {
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
  mine.fill(own.heap, 10, 9);
  begun.wait();
  for (int round = 0; round < 30; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(540);
      if (!test::walk_heap(own.heap).consistent() || !test::walk_heap(second).consistent())
        _exit(3);
      mine.check_and_free(own.heap);
      std::thread([&] {
        Blocks blocks;
        blocks.fill(second, 10, 1);
        blocks.check_and_free(second);
      }).join();
      _exit(test::walk_heap(own.heap).consistent() && test::walk_heap(second).consistent() ? 0 : 4);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "round " << round;
  }
  stop = true;
  for (std::thread& other : others) other.join();
  mine.check_and_free(own.heap);
  expect_empty(own.heap);
  expect_empty(second);
  second.destroy();
}

// The child of a fork beside a destroy() finds the heap whole or gone, whatever step that was at:
// no span of another heap on a list of the dying one, no range lost.
TEST(StandardHeaps, AForkBesideADestroyFindsTheHeapWholeOrGone) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kUnderAsan) GTEST_SKIP() << "the sanitizer's own malloc may be locked in the child";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  OwnedHeap own;
  Own& kept = own.heap;
  // Ranges that the arena has handed out and that are no span of the kept heap's.
  const auto strangers = [&] {
    std::size_t found = 0;
    own.pages.arena.walk([&](std::uint32_t number, std::size_t, bool free) {
      const standard::SpanRef span = own.pages.span(standard::SpanNumber{number});
      const bool in_use = span->load_word().state() != standard::SpanState::kFree;
      if (!free && !(in_use && kept.heap().has(span))) ++found;
    });
    return found;
  };
  for (int round = 0; round < 24; ++round) {
    std::atomic<bool> ready{false};
    Own dying(own.pages);
    // The forking thread has something in the dying heap, too, which its end in
    // the child must cope with.
    std::thread([&] {
      dying.deallocate(dying.allocate(100));
      auto destroyer = std::make_unique<std::thread>([&] {
        // First what its thread cache has on lists; then so many spans of one block that to give
        // them all back takes long.
        std::vector<void*> blocks(6000);
        for (void*& p : blocks) p = dying.allocate(1024);
        for (std::size_t i = 0; i < blocks.size(); i += 2) dying.deallocate(blocks[i]);
        for (int i = 0; i < 30000; ++i) EXPECT_NE(dying.allocate(40000), nullptr);
        ready = true;
        dying.destroy();
      });
      while (!ready || (round % 4 != 0 && dying.heap().is_started())) {
      }
      // What the dying heap has given back is this one's at once.
      std::vector<unsigned char*> mine;
      for (int i = 0; i < round * 50; ++i) {
        mine.push_back(static_cast<unsigned char*>(kept.allocate(1024)));
        std::memset(mine.back(), 7, 1024);
        test::advance_clock(10);
      }
      for (std::size_t i = 0; i < mine.size(); i += 2) kept.deallocate(mine[i]);
      const pid_t child = fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        alarm(540);
        if (!test::walk_heap(kept).consistent()) _exit(3);
        Blocks blocks;
        blocks.fill(kept, 30, 1);
        for (std::size_t i = 1; i < mine.size(); i += 2) {
          for (int k = 0; k < 1024; ++k) {
            if (mine[i][k] != 7) _exit(4);
          }
          kept.deallocate(mine[i]);
        }
        blocks.check_and_free(kept);
        kept.trim();
        const test::HeapWalk walk = test::walk_heap(kept);
        if (!walk.consistent()) _exit(5);
        if (!dying.heap().is_started() && strangers() != 0) _exit(6);
        if (testing::Test::HasFailure()) _exit(7);
        if (round % 2 == 0) _exit(0);
        (void)destroyer.release();  // it is not there
        return;                     // with the last thread's end libc calls exit(0)
      }
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0) << "round " << round;
      destroyer->join();
      for (std::size_t i = 1; i < mine.size(); i += 2) kept.deallocate(mine[i]);
    }).join();
    expect_empty(kept);
  }
}

// One that has come no further is not in the way, in the child neither.
TEST(StandardHeaps, AForkInTheMiddleOfAStartLeavesTheOthersWhole) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  OwnedHeap own;
  Own starting(own.pages);
  Blocks blocks;
  blocks.fill(own.heap, 10, 1);
  ASSERT_TRUE(own.pages.heaps.enter(&starting.heap()));
  // The child of a process without others is told of nothing
  const test::RestingThread left_behind;
  test::in_child([&] {
    blocks.check_and_free(own.heap);
    blocks.fill(starting, 10, 2);
    blocks.check_and_free(starting);
    EXPECT_EQ(own.heap.statistics().live_threads, 1u);
    expect_empty(own.heap);
    expect_empty(starting);
    starting.destroy();
    std::size_t heaps = 0;
    own.pages.heaps.for_each([&](auto&) { ++heaps; });
    EXPECT_EQ(heaps, 1u);
  });
  blocks.check_and_free(own.heap);
  starting.destroy();
}

// A heap's pool has a stack a CPU; who frees through another heap may have another number of them.
TEST(StandardHeaps, ASpanEmptiedThroughAnotherHeapGoesToAStackOfItsOwn) {
  OwnedHeap wide;
  Own narrow(wide.pages);
  {
    const test::SimulatedCpus cpus(2);
    wide.heap.deallocate(wide.heap.allocate(100));
  }
  {
    const test::SimulatedCpus cpus(1);
    narrow.deallocate(narrow.allocate(100));
  }
  std::vector<void*> blocks(200);
  for (void*& p : blocks) p = narrow.allocate(60000);
  const auto free_half = [&](std::size_t first) {
    // A thread cache, and so a core of the wide heap's
    wide.heap.deallocate(wide.heap.allocate(64));
    for (std::size_t i = first; i < first + 100; ++i) wide.heap.deallocate(blocks[i]);
  };
  std::thread([&] {
    free_half(0);
    std::thread([&] { free_half(100); }).join();
  }).join();
  expect_empty(narrow);
  narrow.destroy();
}

// It takes no part in what another heap's blocks need.
TEST(StandardHeaps, AHeapWithoutStorageFreesOthersBlocks) {
  if (test::kUnderAsan || test::kUnderTsan) GTEST_SKIP() << "sanitizers need more address space";
  if (test::kEmulated) GTEST_SKIP() << "the emulator takes from the limit, too";
  OwnedHeap own;
  void* small = own.heap.allocate(40000);
  void* large = own.heap.allocate(2 * kMiB);
  test::in_child([&] {
    const rlimit none{1, RLIM_INFINITY};
    ASSERT_TRUE(test::limit_address_space(none));
    Own empty(own.pages);
    EXPECT_EQ(empty.allocate(10), nullptr);
    EXPECT_EQ(empty.usable_size(large), 2 * kMiB);
    empty.deallocate(small);
    empty.deallocate(large);
    empty.destroy();
    EXPECT_TRUE(test::walk_heap(own.heap).all_returned());
  });
  own.heap.deallocate(small);
  own.heap.deallocate(large);
}

// A config is a few lines; each is an engine of its own kind.
template <class Config>
class StandardConfigs : public testing::Test {};
TYPED_TEST_SUITE(StandardConfigs, test::configs::standard);

TYPED_TEST(StandardConfigs, Work) {
  static_assert(Engine<StandardEngineOf<TypeParam>>);
  OwnedHeap<TypeParam> own;
  Blocks blocks;
  blocks.fill(own.heap, 20, 1);
  std::thread([&] { blocks.check_and_free(own.heap); }).join();
  own.heap.trim();
  EXPECT_TRUE(test::walk_heap(own.heap).all_returned());
}

// In a fork's child a thread of another heap puts away what a vanished one has left in this heap,
// which is destroyed meanwhile: not before that is done.
TEST(StandardHeaps, ADestroyWaitsForTheBurialOfAVanishedThread) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kUnderAsan) GTEST_SKIP() << "the sanitizer's own malloc may be locked in the child";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  OwnedHeap owned;
  Own other(owned.pages);
  Own dying(owned.pages);
  std::latch has_allocated(1);
  std::latch done(1);
  standard::CacheNumber number{};
  std::thread vanishes([&] {
    for (int i = 0; i < 1000; ++i) ASSERT_NE(dying.allocate(5000), nullptr);
    number = dying.thread_cache()->cache->number;
    has_allocated.count_down();
    done.wait();
  });
  has_allocated.wait();
  const int code = test::run_in_child([&] {
    alarm(540);  // a deadlock ends the test
    // The burial comes to a halt in the middle.
    (void)owned.pages.cache(number).lock.lock();
    const std::size_t yields = test::yields();
    std::thread buries([&] { other.deallocate(other.allocate(5000)); });
    while (test::yields() == yields) usleep(100);
    if (owned.pages.memory_return.purge_lock.try_lock()) return 1;  // a destroy would not wait
    owned.pages.cache(number).lock.unlock();
    dying.destroy();
    buries.join();
    if (other.allocate(100) == nullptr || !test::walk_heap(other).consistent()) return 2;
    other.destroy();
    return 0;
  });
  EXPECT_EQ(code, 0);
  done.count_down();
  vanishes.join();
  dying.destroy();
  other.destroy();
}

}  // namespace
}  // namespace spanalloc
