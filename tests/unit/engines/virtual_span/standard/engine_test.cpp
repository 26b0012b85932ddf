// The standard engine from outside: where spans go, what memory is reused, what is never lost. Interleavings
// are the models' and stress tests' affair; here each step is made at the moment it matters.
#include "engines/virtual_span/standard/engine.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "engines/virtual_span/standard/test_support.hpp"
#include "sanitizers.hpp"
#include "threads.hpp"

namespace spanalloc {
namespace {

using large::Classes;
using large::E;
using large::expect_nothing_out;
using large::free_all;

std::vector<void*> allocate_many(std::size_t count, std::size_t size) {
  std::vector<void*> blocks(count);
  for (void*& p : blocks) {
    p = E::allocate(size);
    EXPECT_NE(p, nullptr);
  }
  return blocks;
}

std::size_t blocks_a_span(std::size_t size) {
  return Classes::info(Classes::of(size)).blocks;
}

// Spans that are neither in the pool nor back in the arena.
std::size_t spans_out() {
  const SpanCensus census = E::census();
  return census.carved - census.in_pool;
}

class StandardEngineTest : public testing::Test {
 protected:
  void SetUp() override { expect_nothing_out(); }
  void TearDown() override { expect_nothing_out(); }
};

TEST_F(StandardEngineTest, ReusesTheBlockFreedLast) {
  for (std::size_t size : std::initializer_list<std::size_t>{16, 100, 448, 500, 3000, 30000}) {
    void* p = E::allocate(size);
    E::deallocate(p);
    void* q = E::allocate(size);
    EXPECT_EQ(p, q) << size;
    E::deallocate(q);
  }
}

TEST_F(StandardEngineTest, BlocksOfAFreshSpanLieInAddressOrder) {
  test::on_another_thread([] {  // a thread of its own: a fresh LAB
    auto blocks = allocate_many(100, 48);
    int steps = 0;
    for (std::size_t i = 1; i < blocks.size(); ++i) {
      if (static_cast<char*>(blocks[i]) - static_cast<char*>(blocks[i - 1]) == 48) ++steps;
    }
    EXPECT_GE(steps, 98);
    free_all(blocks);
  });
}

TEST_F(StandardEngineTest, TheLastLocalFreeReturnsAParkedSpan) {
  const std::size_t size = 2048;
  auto blocks = allocate_many(3 * blocks_a_span(size), size);
  const std::size_t out = spans_out();
  free_all(blocks);
  EXPECT_LE(spans_out() + 2, out) << "all but the hot span";
}

TEST_F(StandardEngineTest, TheLastRemoteFreeReturnsAParkedSpanWithoutItsOwner) {
  const std::size_t size = 2048;
  auto blocks = allocate_many(3 * blocks_a_span(size), size);
  const std::size_t out = spans_out();
  test::on_another_thread([&] { free_all(blocks); });
  EXPECT_LE(spans_out() + 2, out);
}

TEST_F(StandardEngineTest, MixedFreesReturnAParkedSpanAtTheLastWhoeverMakesIt) {
  const std::size_t size = 1024;
  const std::size_t n = blocks_a_span(size);
  for (const bool local_last : {false, true}) {
    auto blocks = allocate_many(3 * n, size);
    std::vector<void*> local;
    std::vector<void*> remote;
    for (std::size_t i = 0; i < blocks.size(); ++i) (i % 2 != 0 ? local : remote).push_back(blocks[i]);
    const std::size_t out = spans_out();
    if (local_last) test::on_another_thread([&] { free_all(remote); });
    free_all(local);
    if (!local_last) test::on_another_thread([&] { free_all(remote); });
    EXPECT_LE(spans_out() + 2, out) << "local last: " << local_last;
  }
}

// Few blocks a span: one free makes it reusable and empty at once.
TEST_F(StandardEngineTest, ASpanThatBecomesReusableAndEmptyAtOnceIsReturned) {
  const std::size_t size = 32 * kKiB;
  const std::size_t n = blocks_a_span(size);
  ASSERT_EQ(n, 8u);
  auto blocks = allocate_many(2 * n, size);
  test::on_another_thread([&] { free_all(blocks); });
}

TEST_F(StandardEngineTest, RemoteFreesIntoAHotSpanAreUsedAgain) {
  const std::size_t size = 512;
  test::on_another_thread([&] {
    auto blocks = allocate_many(blocks_a_span(size), size);  // the whole hot span is out
    test::on_another_thread([&] { free_all(blocks); });
    auto again = allocate_many(blocks_a_span(size), size);
    EXPECT_EQ(E::census().floating, 0u) << "the hot span served again; nothing was left behind";
    free_all(again);
  });
}

TEST_F(StandardEngineTest, RemoteFreesBelowTheRefillThresholdAreNotLost) {
  const std::size_t size = 512;
  test::on_another_thread([&] {
    auto blocks = allocate_many(blocks_a_span(size), size);
    test::on_another_thread([&] {
      E::deallocate(blocks.back());
      blocks.pop_back();
    });
    void* next = E::allocate(size);  // too few remote frees: hot -> floating, another span
    free_all(blocks);                // the last local free must see the early remote one
    E::deallocate(next);
  });
}

TEST_F(StandardEngineTest, AThreadThatEndsWithEmptyHotSpansLeavesNone) {
  test::on_another_thread([] {
    for (std::size_t size = 16; size <= 32 * kKiB; size += size / 4 + 16) E::deallocate(E::allocate(size));
  });
  const SpanCensus census = E::census();
  EXPECT_TRUE(census.all_returned());
}

TEST_F(StandardEngineTest, OrphansServeTheNextThreadBeforeFreshSpans) {
  std::vector<void*> left;
  const std::size_t carved = E::census().carved;
  for (int i = 0; i < 1000; ++i) test::on_another_thread([&] { left.push_back(E::allocate(64)); });
  EXPECT_LE(E::census().carved, carved + 2) << "a thousand threads' objects share their spans";
  EXPECT_LE(E::statistics().live_labs, 1u);
  free_all(left);
}

TEST_F(StandardEngineTest, OrphansAreReturnedByWhoeverFreesTheLastBlock) {
  std::vector<void*> left;
  test::on_another_thread([&] { left = allocate_many(3 * blocks_a_span(256), 256); });
  test::on_another_thread([&] { free_all(left); });
  EXPECT_TRUE(E::census().all_returned());
}

TEST_F(StandardEngineTest, FreedSmallSpansServeLargeOnesWithoutNewAddressSpace) {
  auto small = allocate_many(32 * kMiB / 64, 64);
  free_all(small);
  E::trim();
  const std::size_t opened = E::statistics().opened_bytes;
  std::vector<void*> large = allocate_many(24, 1000 * kKiB);
  EXPECT_LE(E::statistics().opened_bytes, opened + 4 * kMiB);
  free_all(large);
}

// A granule inside a larger span must not be taken for the small span that it once was.
TEST_F(StandardEngineTest, GranulesOfMergedSpansForgetTheirPast) {
  auto small = allocate_many(16 * kMiB / 64, 64);
  free_all(small);
  E::trim();
  auto large = allocate_many(256, 32 * kKiB);  // every second block starts at a granule
  test::on_another_thread([&] {
    for (std::size_t i = 0; i < large.size(); i += 2) E::deallocate(large[i]);
  });
  for (std::size_t i = 1; i < large.size(); i += 2) E::deallocate(large[i]);
}

// Each round splits a large span for small ones; without merging, each round opens new address space.
TEST_F(StandardEngineTest, AlternatingSizesDoNotUseUpTheArena) {
  const std::size_t opened = E::statistics().opened_bytes;
  for (int round = 0; round < 400; ++round) {
    void* large = E::allocate(900 * kKiB);
    E::deallocate(large);
    auto small = allocate_many(3000, 64);
    free_all(small);
  }
  EXPECT_LE(E::statistics().opened_bytes, opened + 16 * kMiB);
}

TEST_F(StandardEngineTest, TrimmedMemoryReadsAsZeroAndLargeCallocsDoNotTouchIt) {
  void* p = E::allocate(900 * kKiB);
  std::memset(p, 0xab, 900 * kKiB);
  E::deallocate(p);
  EXPECT_TRUE(E::trim());
  auto* q = static_cast<unsigned char*>(E::allocate_zeroed(900 * kKiB));
  for (std::size_t i = 0; i < 900 * kKiB; ++i) ASSERT_EQ(q[i], 0) << i;
  E::deallocate(q);
}

TEST_F(StandardEngineTest, DirtyMemoryIsZeroedForCalloc) {
  for (std::size_t size : std::initializer_list<std::size_t>{16, 448, 2000, 30000, 50000, 1000000, 3000000}) {
    void* p = E::allocate(size);
    std::memset(p, 0xff, size);
    E::deallocate(p);
    auto* q = static_cast<unsigned char*>(E::allocate_zeroed(size));
    for (std::size_t i = 0; i < size; ++i) ASSERT_EQ(q[i], 0) << size << " at " << i;
    E::deallocate(q);
  }
}

// After the exit hook a thread has nobody who would give a gathered run back.
TEST_F(StandardEngineTest, AThreadPastItsExitHookGathersNothing) {
  const std::size_t n = blocks_a_span(2048);
  auto blocks = allocate_many(2 * n, 2048);
  test::on_another_thread([&] {
    E::deallocate(E::allocate(16));
    for (int i = 0; i < 3; ++i) {  // the run's span
      E::deallocate(blocks.back());
      blocks.pop_back();
    }
    E::frontend.thread_exit();
    free_all(blocks);
  });
}

// A thread that goes on in a span of which others have freed one block begins with a list of that one. Frees
// and allocations in turn would find the list empty with each free, and one block on it with each allocation.
TEST_F(StandardEngineTest, AListIsToppedUpFromItsSpanBeforeItIsEmpty) {
  for (const std::size_t size : std::initializer_list<std::size_t>{16, 64, 400, 1280, 2000}) {
    const standard::ClassId c = Classes::of(size);
    const auto is_empty = [c] {
      const unsigned i = index_of(c);
      constexpr unsigned kLists = standard::ThreadState<Standard>::kLists;
      return standard::is_end(i < kLists ? E::frontend.head[i] : E::frontend.lab->head[i - kLists]);
    };
    std::vector<void*> blocks;
    // All but the span's last blocks: when these have been carved there is nothing to top it up with.
    const std::size_t page = 4096 / size + 1;
    for (std::size_t i = 0; i + page < blocks_a_span(size); ++i) {
      blocks.push_back(E::allocate(size));
      ASSERT_FALSE(is_empty()) << size << " after " << i;
    }
    free_all(blocks);
    E::trim();
  }
}

using StandardEngineDeathTest = StandardEngineTest;

// An empty hot list begins with kNoBlock: what lies near it, in whatever is linked beside the allocator, must
// not pass for a block of the list.
TEST_F(StandardEngineDeathTest, WhatLiesBesideTheEndOfListsIsNoBlock) {
  const auto empty = [] { return E::frontend.head[1] == standard::no_block(); };
  // A span of this class for every low byte of a page's number, and then an empty list.
  std::vector<void*> blocks = allocate_many(260 * blocks_a_span(16), 16);
  while (!empty()) blocks.push_back(E::allocate(16));
  EXPECT_DEATH(E::deallocate(pointer_to(align_up(address_of(standard::no_block()), 16) + 16)),
               "did not return");
  free_all(blocks);
}

// Behind the last block there may be room for a part of another: its offset is a multiple of the block size.
TEST_F(StandardEngineDeathTest, TheTailOfASpanIsNoBlock) {
  for (std::size_t size : std::initializer_list<std::size_t>{48, 400, 2000, 5000, 7000}) {
    const standard::ClassInfo& k = Classes::info(Classes::of(size));
    if (k.payload() == k.virtual_span) continue;
    auto* p = static_cast<char*>(E::allocate(size));
    char* start =
        reinterpret_cast<char*>(reinterpret_cast<std::uintptr_t>(p) & ~(std::uintptr_t{k.virtual_span} - 1));
    EXPECT_DEATH(E::deallocate(start + k.payload()), "not the start of a block") << size;
    EXPECT_DEATH(test::on_another_thread([&] { E::deallocate(start + k.payload()); }),
                 "not the start of a block")
        << size;
    E::deallocate(p);
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The first allocation looks up limits, the last ones are refused; neither may be a cancellation point: no
// destructor would release the locks.
TEST_F(StandardEngineDeathTest, ACancelledThreadHoldsNoLock) {
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  const auto scenario = [] {
    rlimit limit{};
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = std::size_t{1} << 47;
    setrlimit(RLIMIT_AS, &limit);
    alarm(30);
    pthread_t thread{};
    const auto body = [](void*) -> void* {
      pthread_cancel(pthread_self());
      for (int i = 0; i < 100000; ++i) {
        if (E::allocate(100000) == nullptr) break;
      }
      return nullptr;
    };
    pthread_create(&thread, nullptr, body, nullptr);
    void* result = nullptr;
    pthread_join(thread, &result);
    E::deallocate(E::allocate(16));
    std::_Exit(result == nullptr ? 0 : 1);
  };
  EXPECT_EXIT(scenario(), testing::ExitedWithCode(0), "");
}
#endif

TEST_F(StandardEngineTest, StatisticsMayBeAskedWhileOthersRun) {
  std::atomic<bool> stop{false};
  std::thread asker([&] {
    while (!stop) {
      const EngineStatistics s = E::statistics();
      EXPECT_LE(s.small_bytes_carved + s.pooled_bytes, s.opened_bytes);
    }
  });
  test::on_another_thread([] {
    for (int round = 0; round < 30; ++round) {
      std::vector<void*> blocks;
      for (int i = 0; i < 500; ++i) blocks.push_back(E::allocate(static_cast<std::size_t>(i) * 997 % 100000));
      free_all(blocks);
    }
  });
  stop = true;
  asker.join();
}

// Everything at once, from several threads, contents checked, threads ending in between; then the census.
TEST_F(StandardEngineTest, MillionsOfRandomLocalAndRemoteFreesLoseNothing) {
  struct Item {
    unsigned char* p;
    std::size_t n;
  };
  constexpr int kThreads = 4;
  std::vector<std::vector<Item>> passed(kThreads);
  for (unsigned round = 0; round < 6; ++round) {
    std::vector<std::vector<Item>> next(kThreads);
    test::in_threads(kThreads, [&](unsigned t) {
      std::mt19937 random(round * 97 + t);
      std::vector<Item> mine = std::move(passed[t]);
      for (int i = 0; i < 60000; ++i) {
        if (mine.size() < 200 || (random() % 2 != 0 && mine.size() < 5000)) {
          const std::size_t n = 1 + random() % (random() % 50 == 0 ? 60000 : 600);
          auto* p = static_cast<unsigned char*>(E::allocate(n));
          ASSERT_NE(p, nullptr);
          p[0] = p[n - 1] = static_cast<unsigned char>(n);
          mine.push_back({p, n});
        } else {
          const std::size_t j = random() % mine.size();
          ASSERT_EQ(mine[j].p[0], static_cast<unsigned char>(mine[j].n));
          ASSERT_EQ(mine[j].p[mine[j].n - 1], static_cast<unsigned char>(mine[j].n));
          E::deallocate(mine[j].p);
          mine[j] = mine.back();
          mine.pop_back();
        }
      }
      next[(t + 1) % kThreads] = std::move(mine);
    });
    passed = std::move(next);
    ASSERT_TRUE(E::census().consistent());
  }
  for (auto& items : passed) {
    for (const Item& item : items) E::deallocate(item.p);
  }
}

}  // namespace
}  // namespace spanalloc
