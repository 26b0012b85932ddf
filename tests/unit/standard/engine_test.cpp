// The standard engine from outside: where spans go, what memory is reused, what is never
// lost. Interleavings are the models' and stress tests' affair; here each step is made
// at the moment it matters.
#include "standard/engine.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <latch>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "address_limit.hpp"
#include "heap_walk.hpp"
#include "memory_return_access.hpp"
#include "memory_use.hpp"
#include "owned_heap.hpp"
#include "sanitizers.hpp"
#include "seed_report.hpp"
#include "span_access.hpp"
#include "standard/test_support.hpp"
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
  const test::HeapWalk walk = test::walk_heap<E>();
  return walk.carved - walk.in_pool;
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

// What is freed comes back before untouched memory: a program that has one block at a time goes
// round in no more than a page of them.
TEST_F(StandardEngineTest, ReusesFreedBlocksBeforeUntouchedOnes) {
  test::on_another_thread([] {  // a thread of its own: fresh spans
    for (std::size_t size : std::initializer_list<std::size_t>{16, 100, 448, 500, 3000, 30000}) {
      std::set<void*> seen;
      for (int i = 0; i < 10'000; ++i) {
        void* p = E::allocate(size);
        seen.insert(p);
        E::deallocate(p);
      }
      EXPECT_LE(seen.size(), 4096 / size + 2) << size;
    }
  });
}

TEST_F(StandardEngineTest, BlocksOfAFreshSpanLieInAddressOrder) {
  test::on_another_thread([] {  // a thread of its own: a fresh thread cache
    auto blocks = allocate_many(100, 48);
    int steps = 0;
    for (std::size_t i = 1; i < blocks.size(); ++i) {
      if (static_cast<char*>(blocks[i]) - static_cast<char*>(blocks[i - 1]) == 48) ++steps;
    }
    EXPECT_GE(steps, 98);
    free_all(blocks);
  });
}

// Spans that stay with their thread: ready ones, the current one, and the one before.
constexpr std::size_t kWarm = (Standard::kReadyBytes >> Standard::kSliceBits) + 3;

TEST_F(StandardEngineTest, TheLastLocalFreeReturnsAParkedSpan) {
  const std::size_t size = 2048;
  auto blocks = allocate_many((kWarm + 5) * blocks_a_span(size), size);
  const std::size_t out = spans_out();
  free_all(blocks);
  EXPECT_LE(spans_out() + 4, out) << "all but the owned spans";
}

TEST_F(StandardEngineTest, TheLastRemoteFreeReturnsAParkedSpanWithoutItsOwner) {
  const std::size_t size = 2048;
  auto blocks = allocate_many((kWarm + 5) * blocks_a_span(size), size);
  const std::size_t out = spans_out();
  test::on_another_thread([&] { free_all(blocks); });
  EXPECT_LE(spans_out() + 4, out);
}

// Made by its owner it is noticed at once unless others have freed since the owner last looked;
// then at its next slow path, or when anybody misses memory.
TEST_F(StandardEngineTest, MixedFreesReturnAParkedSpan) {
  const std::size_t size = 1024;
  const std::size_t n = blocks_a_span(size);
  for (const bool local_last : {false, true}) {
    auto blocks = allocate_many((kWarm + 5) * n, size);
    std::vector<void*> local;
    std::vector<void*> remote;
    for (std::size_t i = 0; i < blocks.size(); ++i)
      (i % 2 != 0 ? local : remote).push_back(blocks[i]);
    const std::size_t out = spans_out();
    if (local_last) test::on_another_thread([&] { free_all(remote); });
    free_all(local);
    // (What a thread has ready it gives up when it looks at what rests, or trims.)
    if (!local_last) {
      test::on_another_thread([&] { free_all(remote); });
      E::trim();
    }
    // A class of which there is no current span
    if (local_last) E::deallocate(E::allocate(30'000));
    EXPECT_LE(spans_out() + 3, out) << "local last: " << local_last;
  }
}

// The spans that a program goes through in turn stay with the thread, hot:
// no list, no lock, no pool.
TEST_F(StandardEngineTest, AThreadGoesRoundInTheSpansThatItHasUsedUp) {
  test::on_another_thread([] {
    for (const std::size_t size :
         std::initializer_list<std::size_t>{64, 1024, 2000, 8000, 20'000, 32'768}) {
      const std::size_t slices = Classes::info(Classes::of(size)).slices;
      const std::size_t count = blocks_a_span(size) * (1 + kWarm / slices);
      std::set<const standard::Span*> spans;
      for (int round = 0; round < 10; ++round) {
        auto blocks = allocate_many(count, size);
        for (void* p : blocks) {
          const standard::SpanRef span = E::pages.span_of(E::pages.any_slice_at(address_of(p)));
          ASSERT_EQ(span->load_word().state(), standard::SpanState::kOwned) << size;
          spans.insert(span.record);
        }
        free_all(blocks);
      }
      EXPECT_LE(spans.size(), 1 + kWarm / slices + 1) << size;
    }
    EXPECT_EQ(test::walk_heap<E>().broken, 0u);
  });
}

// Frees into a current span are counted, too, down from a number that no program notices.
TEST_F(StandardEngineTest, TheCountOfAHotSpanStartsAnew) {
  auto blocks = allocate_many(3 * blocks_a_span(2048), 2048);  // one current span, two warm ones
  for (const bool used_up : {false, true}) {
    void* p = used_up ? blocks.front() : blocks.back();
    const standard::SpanRef span = E::pages.span_of(E::pages.any_slice_at(address_of(p)));
    ASSERT_EQ(span->load_word().state(), standard::SpanState::kOwned);
    standard::SpanTestAccess::left(*span.record).store_relaxed(1);
    E::deallocate(p);
    EXPECT_NE(standard::SpanTestAccess::left(*span.record).load_relaxed(), 1u);
    (used_up ? blocks.front() : blocks.back()) = E::allocate(2048);
  }
  free_all(blocks);
}

// A warm span with a block of its own on its list, and others' frees besides: none of them is lost.
TEST_F(StandardEngineTest, AWarmSpanKeepsItsListWhenOthersHaveFreedIntoIt) {
  test::on_another_thread([] {
    for (const std::size_t size : std::initializer_list<std::size_t>{512, 2048, 8000, 30'000}) {
      const std::size_t n = blocks_a_span(size);
      for (std::size_t own = 0; own < n; own += n / 4) {
        // Whichever span was there before, the next two are whole
        auto blocks = allocate_many(2 * n, size);
        auto more = allocate_many(n, size);
        const auto span_of = [](void* p) {
          return E::pages.span_of(E::pages.any_slice_at(address_of(p))).record;
        };
        const auto* span = span_of(blocks[n]);
        std::vector<void*> of_span;
        std::vector<void*> others;
        for (void* p : blocks) (span_of(p) == span ? of_span : others).push_back(p);
        for (std::size_t i = 0; i < own && !of_span.empty(); ++i) {
          E::deallocate(of_span.back());
          of_span.pop_back();
        }
        test::on_another_thread([&] { free_all(of_span); });
        auto again = allocate_many(4 * n, size);
        free_all(again);
        free_all(others);
        free_all(more);
        EXPECT_EQ(test::leftovers<E>(), "") << size << " " << own;
      }
    }
  });
}

// When memory is out, the empty spans from which the thread takes other sizes serve the request.
TEST_F(StandardEngineTest, WhatIsEmptyServesOtherSizesWhenMemoryIsOut) {
  if (test::kUnderAsan || test::kUnderTsan) GTEST_SKIP() << "sanitizers need address space";
  if (test::kEmulated) GTEST_SKIP() << test::kNoLimits;
  large::in_fresh_process([] {
    const std::array<std::size_t, 4> sizes{48, 400, 1000, 3000};
    for (const std::size_t size : sizes) {
      E::deallocate(E::allocate(size));
      ASSERT_TRUE(E::thread_cache.current_span(Classes::of(size))) << size;
    }
    ASSERT_TRUE(test::leave_address_space(64 * kMiB));
    while (E::allocate(40'000) != nullptr) {
    }
    for (const std::size_t size : sizes)
      EXPECT_FALSE(E::thread_cache.current_span(Classes::of(size))) << size;
  });
}

// A tick ends, however many spans come into the pool meanwhile: a program that only frees does not
// keep memory from going back to the kernel.
TEST_F(StandardEngineTest, WhatIsFreedIsPurgedWhileMoreIsFreed) {
  if (test::kUnderAsan || test::kUnderTsan || test::kEmulated)
    GTEST_SKIP() << "too slow, or other pages";
  large::in_fresh_process([] {
    constexpr std::size_t kSize = 48;
    const auto blocks = allocate_many((256 * kMiB) / kSize, kSize);
    const std::size_t first = blocks.size() / 4;
    for (std::size_t i = 0; i < first; ++i) E::deallocate(blocks[i]);
    for (std::size_t i = first; i < blocks.size(); ++i) {
      // Time for the next tick, as soon as one has ended.
      if (i % 1000 == 0)
        standard::MemoryReturnTestAccess::next_purge(E::pages.memory_return).store_relaxed(0);
      E::deallocate(blocks[i]);
    }
    std::size_t pages = 0;
    std::size_t resident = 0;
    for (std::size_t i = 0; i < first; i += 1000) {
      ++pages;
      resident += test::resident_pages(blocks[i], os::page_size());
    }
    EXPECT_LT(resident, pages / 2) << "of " << pages;
  });
}

// An object with a span of its own that is freed serves the next request for such a one. (In
// processes in which no tick of the decay clock takes it away.)
TEST_F(StandardEngineTest, AFreedSpanOfOneBlockServesTheNextRequest) {
  large::in_fresh_process([] {
    for (std::size_t size = Standard::kMaxSmall + 1; size <= Standard::kMaxBlock;
         size += size / 3) {
      std::set<void*> seen;
      for (int i = 0; i < 20; ++i) {
        void* p = i % 2 == 0 ? E::allocate(size) : E::allocate_zeroed(size);
        seen.insert(p);
        std::memset(p, i, size);
        E::deallocate(p);
      }
      EXPECT_EQ(seen.size(), 1u) << size;
      unsigned kept = 0;
      E::thread_cache.cache->large_spans.for_each(
          [&](standard::Span& span) { kept += span.first_block() == address_of(*seen.begin()); });
      EXPECT_EQ(kept, 1u) << size;
      E::trim();  // so that there is room for the next one
    }
  });
}

// One that another thread has taken, and that has come back, has its former place, too.
TEST_F(StandardEngineTest, ACachedSpanIsSeenOnce) {
  large::in_fresh_process([] {
    std::vector<void*> blocks;
    for (const std::size_t size : {40'000, 70'000, 100'000}) blocks.push_back(E::allocate(size));
    free_all(blocks);
    auto& cached = E::thread_cache.cache->large_spans;
    standard::Span* first = nullptr;
    cached.for_each([&](standard::Span& span) { first = first == nullptr ? &span : first; });
    ASSERT_NE(first, nullptr);
    ASSERT_TRUE(cached.take_away(*first));
    ASSERT_TRUE(cached.add(*first, 1));
    unsigned seen = 0;
    cached.for_each_once([&](standard::Span& span) { seen += &span == first; });
    EXPECT_EQ(seen, 1u);
    E::trim();
    EXPECT_LE(spans_out(), 3u);
  });
}

// A bounded number of bytes; and memory that is asked back is given back by whoever has it.
TEST_F(StandardEngineTest, FreedSpansOfOneBlockAreKeptInBoundsAndGivenBackByTrim) {
  large::in_fresh_process([] {
    const std::size_t before = spans_out();
    for (int round = 0; round < 3; ++round) {
      std::vector<void*> blocks;
      for (int i = 0; i < 100; ++i)
        blocks.push_back(E::allocate(40'000 + 9'000 * static_cast<std::size_t>(i)));
      free_all(blocks);
      std::size_t slices = 0;
      E::thread_cache.cache->large_spans.for_each([&](standard::Span& span) {
        slices += Classes::kTable[index_of(span.class_id())].slices;
      });
      EXPECT_LE(slices << Standard::kSliceBits, Standard::kCachedLargeBytes);
      EXPECT_GT(slices, 0u);
    }
    test::on_another_thread([] { E::trim(); });
    std::size_t left = 0;
    E::thread_cache.cache->large_spans.for_each([&](standard::Span&) { ++left; });
    EXPECT_EQ(left, 0u);
    void* p = E::allocate(50'000);
    E::deallocate(p);
    EXPECT_EQ(E::allocate(50'000), p);
    E::deallocate(p);
    EXPECT_LE(spans_out(), before + 3);
  });
}

// Of a span of one block, when it is a spare and there is no room for another: it is named, and the
// pool gets the span once.
TEST_F(StandardEngineTest, ASpareThatIsFreedAgainWithoutRoomIsRefused) {
  const auto free_again = [] {
    std::vector<void*> blocks;
    for (std::size_t i = 0; i <= Standard::kCachedLargeBytes / Classes::kSlice; ++i) {
      blocks.push_back(E::allocate(40'000));
    }
    for (std::size_t i = 0; i + 1 < blocks.size(); ++i) E::deallocate(blocks[i]);
    EXPECT_FALSE(E::thread_cache.cache->large_spans.has_room_for(1));
    E::deallocate(blocks[0]);
  };
  EXPECT_DEATH(free_again(), "not the start of a live block");
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
    auto blocks = allocate_many(blocks_a_span(size), size);  // the whole current span is out
    test::on_another_thread([&] { free_all(blocks); });
    auto again = allocate_many(blocks_a_span(size), size);
    EXPECT_EQ(test::walk_heap<E>().abandoned, 0u)
        << "the owned span served again; nothing was left behind";
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
    void* next = E::allocate(size);  // too few remote frees: hot -> nearly full, another span
    free_all(blocks);                // the last local free must see the early remote one
    E::deallocate(next);
  });
}

TEST_F(StandardEngineTest, AThreadThatEndsWithEmptyHotSpansLeavesNone) {
  test::on_another_thread([] {
    for (std::size_t size = 16; size <= 32 * kKiB; size += size / 4 + 16)
      E::deallocate(E::allocate(size));
  });
  const test::HeapWalk walk = test::walk_heap<E>();
  EXPECT_TRUE(walk.all_returned());
}

TEST_F(StandardEngineTest, AbandonedSpansServeTheNextThreadBeforeFreshSpans) {
  std::vector<void*> left;
  {
    test::OwnedHeap<> own;
    for (int i = 0; i < 1000; ++i)
      test::on_another_thread([&] { left.push_back(own.allocate(64)); });
    EXPECT_LE(standard::HeapWalker<Standard>(own.pages).walk().carved, 2u)
        << "a thousand threads' objects share their spans";
    EXPECT_LE(own.statistics().live_threads, 1u);
    for (void* p : left) own.deallocate(p);
  }
}

TEST_F(StandardEngineTest, AbandonedSpansAreReturnedByWhoeverFreesTheLastBlock) {
  std::vector<void*> left;
  test::on_another_thread([&] { left = allocate_many(3 * blocks_a_span(256), 256); });
  test::on_another_thread([&] { free_all(left); });
  EXPECT_TRUE(test::walk_heap<E>().all_returned());
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

// A slice inside a larger span must not be taken for the small span that it once was.
TEST_F(StandardEngineTest, SlicesOfMergedSpansForgetTheirPast) {
  auto small = allocate_many(16 * kMiB / 64, 64);
  free_all(small);
  E::trim();
  auto large = allocate_many(256, 32 * kKiB);  // every second block starts at a slice
  test::on_another_thread([&] {
    for (std::size_t i = 0; i < large.size(); i += 2) E::deallocate(large[i]);
  });
  for (std::size_t i = 1; i < large.size(); i += 2) E::deallocate(large[i]);
}

// Each round splits a large span for small ones; without merging, each round
// opens new address space.
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

// All of a used block's bytes, and none of its neighbours'.
TEST_F(StandardEngineTest, SmallBlocksAreZeroedToTheirEndAndNotBeyond) {
  for (std::size_t n = 0; n <= 1300; ++n) {
    unsigned char* all[3];
    for (unsigned char*& p : all) {
      p = static_cast<unsigned char*>(E::allocate(n));
      std::memset(p, 0xa5, E::usable_size(p));
    }
    E::deallocate(all[1]);
    auto* const zeroed = static_cast<unsigned char*>(E::allocate_zeroed(n));
    ASSERT_EQ(zeroed, all[1]) << n;
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(zeroed[i], 0) << n << " " << i;
    for (unsigned char* p : {all[0], all[2]}) {
      for (std::size_t i = 0; i < E::usable_size(p); ++i) ASSERT_EQ(p[i], 0xa5) << n << " " << i;
    }
    for (unsigned char* p : all) E::deallocate(p);
  }
}

TEST_F(StandardEngineTest, DirtyMemoryIsZeroedForCalloc) {
  for (std::size_t size :
       std::initializer_list<std::size_t>{16, 448, 2000, 30000, 50000, 1000000, 3000000}) {
    void* p = E::allocate(size);
    std::memset(p, 0xff, size);
    E::deallocate(p);
    auto* q = static_cast<unsigned char*>(E::allocate_zeroed(size));
    for (std::size_t i = 0; i < size; ++i) ASSERT_EQ(q[i], 0) << size << " at " << i;
    E::deallocate(q);
  }
}

// After the exit hook a thread has nobody who would give a batched run back.
TEST_F(StandardEngineTest, AThreadPastItsExitHookGathersNothing) {
  const std::size_t n = blocks_a_span(2048);
  auto blocks = allocate_many(2 * n, 2048);
  test::on_another_thread([&] {
    E::deallocate(E::allocate(16));
    for (int i = 0; i < 3; ++i) {  // the run's span
      E::deallocate(blocks.back());
      blocks.pop_back();
    }
    E::thread_cache.thread_exit();
    free_all(blocks);
  });
}

// A thread that goes on in a span of which others have freed one block begins with a list of that
// one. Frees and allocations in turn would find the list empty with each free, and one block on
// it with each allocation.
TEST_F(StandardEngineTest, AListIsToppedUpFromItsSpanBeforeItIsEmpty) {
  for (const std::size_t size : std::initializer_list<std::size_t>{16, 64, 400, 1280, 2000}) {
    const standard::ClassId c = Classes::of(size);
    const auto is_empty = [c] {
      return E::thread_cache.current[index_of(c)]->free_list().is_empty();
    };
    std::vector<void*> blocks;
    // All but the span's last blocks: when these have been carved there is
    // nothing to top it up with.
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

TEST_F(StandardEngineDeathTest, ABlockThatWaitsInALoanIsRefused) {
  const std::size_t size = 512;
  auto blocks = allocate_many(40, size);
  auto twice = blocks;
  test::on_another_thread([&] {
    free_all(blocks);
    E::deallocate(E::allocate(size));
    EXPECT_DEATH(for (void* p : twice) E::deallocate(p), "double free|free list overwritten");
  });
}

TEST_F(StandardEngineDeathTest, AFreedSpanOfOneBlockIsRefused) {
  for (std::size_t size = Standard::kMaxSmall + 1; size <= Standard::kMaxBlock; size += size / 3) {
    void* p = E::allocate(size);
    E::deallocate(p);
    EXPECT_DEATH(E::deallocate(p), "not the start of a live block") << size;
    EXPECT_DEATH(test::on_another_thread([&] { E::deallocate(p); }),
                 "not the start of a live block")
        << size;
  }
}

// An empty hot list begins with no_block(): what lies near it, in whatever is linked beside the
// allocator, must not pass for a block of the list.
TEST_F(StandardEngineDeathTest, WhatLiesBesideTheEndOfListsIsNoBlock) {
  const auto empty = [] { return E::thread_cache.current[1]->free_list().is_empty(); };
  // A span of this class for every low byte of a page's number, and then an empty list.
  std::vector<void*> blocks = allocate_many(260 * blocks_a_span(16), 16);
  while (!empty()) blocks.push_back(E::allocate(16));
  EXPECT_DEATH(E::deallocate(pointer_to(align_up(address_of(standard::no_block()), 16) + 16)),
               "did not return");
  free_all(blocks);
}

// Behind the last block there may be room for a part of another: its offset is a
// multiple of the block size.
TEST_F(StandardEngineDeathTest, TheTailOfASpanIsNoBlock) {
  for (std::size_t size : std::initializer_list<std::size_t>{48, 400, 2000, 5000, 7000}) {
    const standard::ClassInfo& k = Classes::info(Classes::of(size));
    if (k.offset_of(k.blocks) == k.virtual_span) continue;
    auto* p = static_cast<char*>(E::allocate(size));
    char* start = reinterpret_cast<char*>(reinterpret_cast<std::uintptr_t>(p) &
                                          ~(std::uintptr_t{k.virtual_span} - 1));
    EXPECT_DEATH(E::deallocate(start + k.offset_of(k.blocks)), "not the start of a live block")
        << size;
    EXPECT_DEATH(test::on_another_thread([&] { E::deallocate(start + k.offset_of(k.blocks)); }),
                 "not the start of a live block")
        << size;
    E::deallocate(p);
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The first allocation looks up limits, the last ones are refused; neither may be a cancellation
// point: no destructor would release the locks.
TEST_F(StandardEngineDeathTest, ACancelledThreadHoldsNoLock) {
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  const auto scenario = [] {
    rlimit limit{};
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = std::size_t{1} << 47;
    setrlimit(RLIMIT_AS, &limit);
    alarm(540);
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
  test::Progress asked;
  std::thread asker([&] {
    for (; !stop; asked.step()) {
      const EngineStatistics s = E::statistics();
      EXPECT_LE(s.small_bytes_carved + s.pooled_bytes + s.large_bytes, s.opened_bytes);
    }
  });
  test::on_another_thread([&] {
    for (std::size_t round = 0; round < 30; ++round) {
      asked.wait_for_more(1);
      std::vector<void*> blocks;
      for (std::size_t i = 0; i < 500; ++i) blocks.push_back(E::allocate(i * 997 % 100000));
      blocks.push_back(E::allocate(2 * kMiB + round * 100'000));
      free_all(blocks);
      // Slices come back as others: not from the pool.
      if (round % 3 == 0) E::trim();
    }
  });
  stop = true;
  asker.join();
}

// Everything at once, from several threads, contents checked, threads ending
// in between; then the walk.
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
      std::mt19937 random(test::seed_of(round * 97 + t));
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
    ASSERT_TRUE(test::walk_heap<E>().consistent());
  }
  for (auto& items : passed) {
    for (const Item& item : items) E::deallocate(item.p);
  }
}

}  // namespace
}  // namespace spanalloc
