// The coalescing manager against a sequential oracle, and the paper's experiment on failed coalescing.
#include "pages/coalescing/manager.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace spanalloc::coalescing {
namespace {

struct Environment {
  void pause() { std::this_thread::yield(); }
  bool purge(Block) { return purges; }
  bool purges = true;
};
using Manager = CoalescingManager<Environment>;

// A manager over `units` free, clean units.
struct Region {
  explicit Region(std::size_t units)
      : metadata(std::make_unique<std::uint64_t[]>(Manager::metadata_bytes(units) / 8 + 1)) {
    manager.attach(metadata.get(), units);
    EXPECT_TRUE(manager.extend(units, true));
  }
  std::vector<std::pair<Block, BlockState>> blocks() const {
    std::vector<std::pair<Block, BlockState>> found;
    manager.walk([&](Block block, BlockState state, bool) { found.emplace_back(block, state); });
    return found;
  }
  Environment environment;
  std::unique_ptr<std::uint64_t[]> metadata;
  Manager manager{environment};
};

// Knows which units are handed out, and nothing else.
class Oracle {
 public:
  Oracle(Region& region, std::uint64_t seed) : region_(region), random_(seed) {}

  void step() {
    const std::size_t units = region_.manager.limit();
    if (live_.empty() || random_() % 2 == 0) {
      allocate(1 + random_() % (units < 100 ? units : units / 20), std::size_t{1} << random_() % 3);
      return;
    }
    auto at = live_.lower_bound(random_() % units);
    if (at == live_.end()) at = live_.begin();
    switch (random_() % 4) {
      case 0:
        return grow(at, at->second + 1 + random_() % 4);
      case 1:
        return shrink(at, 1 + random_() % at->second);
      default:
        return free(at);
    }
  }
  void free_all() {
    while (!live_.empty()) free(live_.begin());
  }
  // Blocks tile the range, are free exactly where nothing is handed out, and no two free ones touch.
  void check() const {
    std::size_t at = 0;
    bool free_before = false;
    for (const auto& [block, state] : region_.blocks()) {
      ASSERT_EQ(block.first, at);
      at = block.end();
      const auto used = live_.find(block.first);
      if (used != live_.end()) {
        ASSERT_EQ(state, BlockState::kUsed);
        ASSERT_EQ(used->second, block.size);
      } else {
        ASSERT_EQ(state, BlockState::kFree);
        ASSERT_FALSE(free_before) << "free neighbours at " << block.first;
      }
      free_before = used == live_.end();
    }
    ASSERT_EQ(at, region_.manager.limit());
  }
  std::size_t refused() const { return refused_; }

 private:
  using Live = std::map<std::size_t, std::size_t>;  // first unit -> size

  void allocate(std::size_t size, std::size_t alignment) {
    const Allocation got = region_.manager.allocate(size, alignment);
    if (!got) {
      ++refused_;
      ASSERT_FALSE(has_room(size, alignment)) << size << " units at multiples of " << alignment;
      return;
    }
    ASSERT_EQ(got.block.size, size);
    ASSERT_EQ(got.block.first % alignment, 0u);
    ASSERT_FALSE(overlaps(got.block));
    live_[got.block.first] = size;
  }
  void free(Live::iterator at) {
    ASSERT_TRUE(region_.manager.free(at->first));
    ASSERT_FALSE(region_.manager.free(at->first)) << "a second free was taken";
    live_.erase(at);
  }
  void grow(Live::iterator at, std::size_t size) {
    const auto next = std::next(at);
    const std::size_t end = next == live_.end() ? region_.manager.limit() : next->first;
    ASSERT_EQ(region_.manager.grow(at->first, size), at->first + size <= end);
    if (at->first + size <= end) at->second = size;
  }
  void shrink(Live::iterator at, std::size_t size) {
    ASSERT_TRUE(region_.manager.shrink(at->first, size));
    at->second = size;
  }
  bool overlaps(Block block) const {
    const auto behind = live_.lower_bound(block.first);
    if (behind != live_.end() && behind->first < block.end()) return true;
    if (behind == live_.begin()) return false;
    const auto before = std::prev(behind);
    return before->first + before->second > block.first;
  }
  bool has_room(std::size_t size, std::size_t alignment) const {
    std::size_t from = 0;
    const auto fits = [&](std::size_t end) {
      const std::size_t start = align_up(from, alignment);
      return start < end && end - start >= size;
    };
    for (const auto& [first, units] : live_) {
      if (fits(first)) return true;
      from = first + units;
    }
    return fits(region_.manager.limit());
  }

  Region& region_;
  std::mt19937_64 random_;
  Live live_;
  std::size_t refused_ = 0;
};

class CoalescingOracle : public ::testing::TestWithParam<std::size_t> {};

TEST_P(CoalescingOracle, EveryAnswerIsRight) {
  Region region(GetParam());
  Oracle oracle(region, GetParam());
  for (int i = 0; i < 40'000; ++i) {
    oracle.step();
    if (i % 500 == 0) {
      region.manager.purge(i % 1000 == 0);
      oracle.check();
    }
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(oracle.refused(), 0u) << "the region never was full: nothing was shown";
  oracle.free_all();
  ASSERT_EQ(region.blocks().size(), 1u);
}
// 64 units to a word and a level: one below, at and above the borders of one and of two levels.
INSTANTIATE_TEST_SUITE_P(Sizes, CoalescingOracle,
                         ::testing::Values(1, 7, 63, 64, 65, 4095, 4096, 4097, 100'000));

TEST(CoalescingManager, RefusesWhatIsNoBlock) {
  Region region(16);
  EXPECT_FALSE(region.manager.allocate(0));
  EXPECT_FALSE(region.manager.allocate(17));
  EXPECT_FALSE(region.manager.allocate(1, 3));
  const Allocation got = region.manager.allocate(4);
  EXPECT_FALSE(region.manager.free(got.block.first + 1));
  EXPECT_FALSE(region.manager.free(16));
  EXPECT_FALSE(region.manager.free(SIZE_MAX));
  EXPECT_FALSE(region.manager.grow(got.block.first + 1, 5));
  EXPECT_FALSE(region.manager.shrink(got.block.first, 5));
  EXPECT_FALSE(region.manager.shrink(got.block.first, 0));
  EXPECT_EQ(region.manager.size_of(got.block.first), 4u);
}

TEST(CoalescingManager, KnowsWhichMemoryIsZero) {
  Region region(16);
  const Allocation fresh = region.manager.allocate(8);
  EXPECT_TRUE(fresh.zero);
  EXPECT_TRUE(region.manager.free(fresh.block.first));
  const Allocation warm = region.manager.allocate(4);
  EXPECT_EQ(warm.block.first, 0u) << "dirty memory first";
  EXPECT_FALSE(warm.zero);
  bool zero = true;
  EXPECT_TRUE(region.manager.grow(warm.block.first, 6, &zero));
  EXPECT_FALSE(zero);
  EXPECT_TRUE(region.manager.free(warm.block.first));
  EXPECT_EQ(region.manager.purge(false), 8u);
  EXPECT_TRUE(region.manager.allocate(16).zero);
}

TEST(CoalescingManager, WhatTheKernelDoesNotPurgeStaysDirty) {
  Region region(4);
  region.environment.purges = false;
  EXPECT_TRUE(region.manager.free(region.manager.allocate(4).block.first));
  EXPECT_EQ(region.manager.purge(false), 0u);
  EXPECT_FALSE(region.manager.allocate(4).zero);
}

TEST(CoalescingManager, PurgesOnlyWhatLayUnusedBetweenTwoTicks) {
  Region region(8);
  EXPECT_TRUE(region.manager.free(region.manager.allocate(8).block.first));
  EXPECT_EQ(region.manager.purge(true), 0u) << "the first tick only marks";
  EXPECT_TRUE(region.manager.free(region.manager.allocate(2).block.first));  // in use meanwhile
  EXPECT_EQ(region.manager.purge(true), 0u);
  EXPECT_EQ(region.manager.purge(true), 8u);
}

TEST(CoalescingManager, GrowsBehindItsLastUnit) {
  auto metadata = std::make_unique<std::uint64_t[]>(Manager::metadata_bytes(100) / 8 + 1);
  Environment environment;
  Manager manager(environment);
  manager.attach(metadata.get(), 100);
  EXPECT_FALSE(manager.allocate(1));
  EXPECT_TRUE(manager.extend(10, true));
  EXPECT_TRUE(manager.allocate(8));
  EXPECT_FALSE(manager.allocate(8));
  EXPECT_TRUE(manager.extend(6, true));
  EXPECT_EQ(manager.allocate(8).block.first, 8u) << "joined with the last free units";
  EXPECT_FALSE(manager.extend(85, true));
  EXPECT_TRUE(manager.extend(84, false));
  EXPECT_FALSE(manager.allocate(84).zero);
}

// Leite & Rocha, ISMM'19, Figure 8: all threads free everything at once; one block must remain.
TEST(CoalescingManager, OneBlockRemainsWhenAllIsFreedAtOnce) {
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kBlocks = 32;
  for (unsigned round = 0; round < 400; ++round) {
    Region region(kThreads * kBlocks);
    std::vector<std::size_t> blocks;
    for (std::size_t i = 0; i < kThreads * kBlocks; ++i)
      blocks.push_back(region.manager.allocate(1).block.first);
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937(round));
    std::atomic<std::size_t> ready{0};
    std::atomic<bool> all_freed{true};
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        ++ready;
        while (ready < kThreads) std::this_thread::yield();
        for (std::size_t i = 0; i < kBlocks; ++i) {
          if (!region.manager.free(blocks[t * kBlocks + i])) all_freed = false;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_TRUE(all_freed);
    ASSERT_EQ(region.blocks().size(), 1u) << "round " << round;
    ASSERT_TRUE(region.manager.allocate(kThreads * kBlocks));
  }
}

// Each thread needs no more than its share, so nobody may ever be refused, although others keep splitting and
// merging.
TEST(CoalescingManager, NobodyIsRefusedItsShare) {
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kShare = 8;
  Region region(kThreads * kShare);
  std::atomic<int> refused{0};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      // One unit at a time: any free unit fits, so fragmentation is no excuse.
      std::vector<std::size_t> mine;
      for (int i = 0; i < 4000; ++i) {
        while (mine.size() < kShare) {
          const Allocation got = region.manager.allocate(1);
          if (!got) {
            ++refused;
            break;
          }
          mine.push_back(got.block.first);
        }
        while (!mine.empty()) {
          region.manager.free(mine.back());
          mine.pop_back();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(refused, 0);
  EXPECT_EQ(region.blocks().size(), 1u);
}

// Exactly as much room as all threads together need, page by page over several levels of the index: while one
// thread tidies the index up, what others enter must stay findable.
TEST(CoalescingManager, NobodyIsRefusedTheLastUnits) {
  constexpr std::size_t kEach = 10'000;
  for (int round = 0; round < 8; ++round) {
    Region region(2 * kEach);
    std::atomic<int> refused{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 2; ++t) {
      threads.emplace_back([&] {
        for (std::size_t i = 0; i < kEach; ++i) {
          if (!region.manager.allocate(1)) ++refused;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(refused, 0) << "round " << round;
  }
}

}  // namespace
}  // namespace spanalloc::coalescing
