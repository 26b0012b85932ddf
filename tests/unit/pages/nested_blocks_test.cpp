// Blocks of calls within kernel calls, from inside. (The whole with its libraries:
// integration.*.nested_calls.)
#include "pages/nested_blocks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "base/bits.hpp"
#include "os/kernel_call.hpp"

namespace spanalloc {
namespace {

constexpr std::size_t kSizes[] = {0, 1, 24, 32, 33, 552, 4096, 8192, 8193, 40000, 70000, 1000000};

TEST(NestedBlocks, HaveTheirSizeAndAlignmentAndNoNeighboursBytes) {
  std::vector<std::pair<unsigned char*, std::size_t>> blocks;
  for (unsigned round = 0; round < 40; ++round) {
    for (const std::size_t n : kSizes) {
      const std::size_t alignment = std::size_t{1} << round % 17;
      auto* p = static_cast<unsigned char*>(NestedBlocks::allocate(n, alignment));
      ASSERT_NE(p, nullptr);
      EXPECT_EQ(address_of(p) % alignment, 0u);
      EXPECT_GE(NestedBlocks::usable_size(p), std::max<std::size_t>(n, 1));
      std::memset(p, static_cast<int>(blocks.size()), n);
      blocks.emplace_back(p, n);
    }
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto [p, n] = blocks[i];
    EXPECT_TRUE(
        std::all_of(p, p + n, [&](unsigned char c) { return c == static_cast<unsigned char>(i); }));
    EXPECT_TRUE(NestedBlocks::free(p));
    EXPECT_EQ(NestedBlocks::usable_size(p), 0u);
  }
}

TEST(NestedBlocks, AreAlignedAsTheirSizeIs) {
  for (std::size_t n = 16; n <= 4096; n += 16) {
    void* p = NestedBlocks::allocate(n, 1);
    ASSERT_NE(p, nullptr);
    EXPECT_EQ(address_of(p) % (n & (0 - n)), 0u) << n;
    EXPECT_TRUE(NestedBlocks::free(p));
  }
}

TEST(NestedBlocks, RefuseWhatCannotBe) {
  EXPECT_EQ(NestedBlocks::allocate(SIZE_MAX, 1), nullptr);
  EXPECT_EQ(NestedBlocks::allocate(SIZE_MAX / 8, 1), nullptr);
  EXPECT_EQ(NestedBlocks::allocate(1, SIZE_MAX / 2 + 1), nullptr);
}

TEST(NestedBlocks, LeaveForeignPointersAlone) {
  int local = 0;
  EXPECT_EQ(NestedBlocks::usable_size(&local), 0u);
  EXPECT_FALSE(NestedBlocks::free(&local));
  EXPECT_EQ(NestedBlocks::usable_size(nullptr), 0u);
  EXPECT_FALSE(NestedBlocks::free(nullptr));
  auto* large = static_cast<char*>(NestedBlocks::allocate(100000, 1));
  EXPECT_FALSE(NestedBlocks::free(large + 2));
  EXPECT_FALSE(NestedBlocks::free(large + 4096));
  EXPECT_TRUE(NestedBlocks::free(large));
  EXPECT_FALSE(NestedBlocks::free(large));
}

TEST(NestedBlocksDeathTest, NamesSecondFreesAndPointersIntoBlocks) {
  auto* p = static_cast<char*>(NestedBlocks::allocate(100, 1));
  EXPECT_DEATH((void)NestedBlocks::free(p + 16), "not the start of a block");
  EXPECT_TRUE(NestedBlocks::free(p));
  EXPECT_DEATH((void)NestedBlocks::free(p), "double free of");
}

TEST(NestedBlocks, KeepsMappingsThatAreFreedInKernelCalls) {
  void* p = NestedBlocks::allocate(300000, 1);
  {
    const os::KernelCall call;
    EXPECT_TRUE(NestedBlocks::free(p));
    // Nor at the address with which its slot says so.
    for (char* in = static_cast<char*>(p); in <= static_cast<char*>(p) + 4; ++in) {
      EXPECT_EQ(NestedBlocks::usable_size(in), 0u);
      EXPECT_FALSE(NestedBlocks::free(in));
    }
    EXPECT_EQ(NestedBlocks::allocate(290000, 1), p);
    EXPECT_TRUE(NestedBlocks::free(p));
  }
  EXPECT_TRUE(NestedBlocks::give_back_kept());
  EXPECT_FALSE(NestedBlocks::give_back_kept());
}

TEST(NestedBlocks, FreesOutsideWhatWasPutOff) {
  int blocks[3] = {};
  std::vector<void*> freed;
  const auto free = [&](void* p) { freed.push_back(p); };
  {
    const os::KernelCall call;
    for (int& block : blocks) NestedBlocks::put_off(&block);
    NestedBlocks::put_off(nullptr);
    NestedBlocks::free_put_off(free);
    EXPECT_TRUE(freed.empty());
  }
  NestedBlocks::free_put_off(free);
  EXPECT_EQ(freed, (std::vector<void*>{&blocks[2], &blocks[1], &blocks[0]}));
  NestedBlocks::free_put_off(free);
  EXPECT_EQ(freed.size(), 3u);
}

// For malloc_trim: however many there are; but not what is put off meanwhile, which
// may never come to an end.
TEST(NestedBlocks, FreesAllThatWasPutOff) {
  std::vector<int> blocks(1000);
  std::size_t freed = 0;
  const auto put_off = [](int& block) {
    const os::KernelCall call;
    NestedBlocks::put_off(&block);
  };
  for (int& block : blocks) put_off(block);
  NestedBlocks::free_put_off([&](void*) { ++freed; });
  EXPECT_LT(freed, blocks.size()) << "malloc itself frees some at a time";
  NestedBlocks::free_all_put_off([&](void*) { ++freed; });
  EXPECT_EQ(freed, blocks.size());
  NestedBlocks::free_all_put_off([](void*) { FAIL() << "there was one more"; });

  int later = 0;
  for (int& block : blocks) put_off(block);
  freed = 0;
  NestedBlocks::free_all_put_off([&](void*) { ++freed, put_off(later); });
  EXPECT_EQ(freed, blocks.size());
  NestedBlocks::free_all_put_off([&](void*) { ++freed; });
  EXPECT_EQ(freed, 2 * blocks.size());
}

TEST(NestedBlocks, GiveEachThreadItsOwn) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 2000;
  std::vector<std::atomic<int>> frees(kThreads * kRounds);
  std::vector<std::thread> threads;
  const auto count = [&](void* p) { ++*static_cast<std::atomic<int>*>(p); };
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRounds; ++i) {
        const std::size_t n = kSizes[static_cast<std::size_t>(i + t) % std::size(kSizes)] + 1;
        auto* p = static_cast<unsigned char*>(NestedBlocks::allocate(n, 1));
        ASSERT_NE(p, nullptr);
        p[0] = p[n - 1] = static_cast<unsigned char>(t);
        {
          const os::KernelCall call;
          NestedBlocks::put_off(&frees[static_cast<std::size_t>(t * kRounds + i)]);
          ASSERT_EQ(p[0], t);
          ASSERT_EQ(p[n - 1], t);
          if (i % 2 == 0) NestedBlocks::put_off(p);
        }
        if (i % 2 != 0) {
          ASSERT_TRUE(NestedBlocks::free(p));
        }
        NestedBlocks::free_put_off(count);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kThreads * kRounds; ++i) NestedBlocks::free_put_off(count);
  for (const std::atomic<int>& times : frees) EXPECT_EQ(times.load(), 1);
  NestedBlocks::give_back_kept();
}

}  // namespace
}  // namespace spanalloc
