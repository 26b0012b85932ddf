// The paper's tree controller and manager: the tree against a set, under threads, and its memory.
#include "pages/coalescing/ismm19/paper_manager.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "coalescing_test_support.hpp"

namespace spanalloc::coalescing {
namespace {

struct Chunks {
  static void* map(std::size_t bytes) {
    if (stall.exchange(false)) {
      stalled = true;
      while (stalled) std::this_thread::yield();
    }
    return refuse ? nullptr : std::calloc(1, bytes);
  }
  static void unmap(void* chunk, std::size_t) { std::free(chunk); }
  static inline std::atomic<bool> refuse{false};
  static inline std::atomic<bool> stall{false};    // the next caller stays here
  static inline std::atomic<bool> stalled{false};  // until this is false again
};
using Controller = TreeController<Chunks, 64, 4096>;
// A pool of nodes keeps its memory for ever, as part of an allocator; here it ends with the test.
struct Tree : Controller {
  ~Tree() { release(); }
};

std::vector<Block> blocks_in(Tree& tree) {
  std::vector<Block> found;
  tree.for_each([&](Block block) { found.push_back(block); });
  return found;
}

TEST(CoalescingTree, IsASetOrderedBySizeThenAddress) {
  auto tree = std::make_unique<Tree>();
  ASSERT_TRUE(tree->start());
  std::set<std::pair<std::size_t, std::size_t>> oracle;  // size, first
  std::mt19937_64 random(7);
  for (int i = 0; i < 100'000; ++i) {
    const Block block{random() % 64, 1 + random() % 32};
    switch (random() % 3) {
      case 0:
        // A block is added only when it is not in the tree.
        if (oracle.emplace(block.size, block.first).second) {
          ASSERT_TRUE(tree->add(block));
        }
        break;
      case 1:
        ASSERT_EQ(tree->remove(block), oracle.erase({block.size, block.first}) == 1);
        break;
      default: {
        const auto best = oracle.lower_bound({block.size, 0});
        const Block got = tree->take(block.size);
        ASSERT_EQ(static_cast<bool>(got), best != oracle.end());
        if (got) {
          ASSERT_EQ(got, (Block{best->second, best->first}));
          oracle.erase(best);
        }
      }
    }
  }
  std::vector<Block> expected;
  for (const auto& [size, first] : oracle) expected.push_back({first, size});
  EXPECT_EQ(blocks_in(*tree), expected);
  EXPECT_LT(tree->nodes(), 64u * 32 * 2 + 64) << "nodes are reused";
}

// Every block is added once and removed or taken once, whoever does it.
TEST(CoalescingTree, LosesAndDoublesNothingUnderThreads) {
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kBlocks = 3000;
  auto tree = std::make_unique<Tree>();
  ASSERT_TRUE(tree->start());
  std::vector<std::atomic<int>> taken(kThreads * kBlocks);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      for (std::size_t i = 0; i < kBlocks; ++i) {
        const std::size_t first = t * kBlocks + i;
        EXPECT_TRUE(tree->add({first, 1 + first % 7}));
        if (random() % 4 == 0) {
          const std::size_t other = random() % (kThreads * kBlocks);
          if (tree->remove({other, 1 + other % 7})) ++taken[other];
        } else if (random() % 2 == 0) {
          const std::size_t least = 1 + random() % 7;
          const Block got = tree->take(least);
          if (got) {
            EXPECT_GE(got.size, least);
            EXPECT_EQ(got.size, 1 + got.first % 7);
            ++taken[got.first];
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Block& block : blocks_in(*tree)) ++taken[block.first];
  for (const auto& times : taken) ASSERT_EQ(times, 1);
}

TEST(CoalescingTree, ReusesNodes) {
  auto tree = std::make_unique<Tree>();
  ASSERT_TRUE(tree->start());
  const auto churn = [&tree](std::size_t first, std::size_t times) {
    for (std::size_t i = 0; i < times; ++i) {
      ASSERT_TRUE(tree->add({first, 1 + i % 16}));
      ASSERT_TRUE(tree->remove({first, 1 + i % 16}));
    }
  };
  churn(0, 10'000);
  EXPECT_LE(tree->nodes(), 64u) << "of 20,000 that were used";
  // How many threads need depends on how long the scheduler keeps one of them inside an operation; but all
  // are reused afterwards.
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) threads.emplace_back([&churn, t] { churn(t, 10'000); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(blocks_in(*tree).empty());
  const std::size_t nodes = tree->nodes();
  churn(0, 100'000);
  EXPECT_LE(tree->nodes(), nodes + 64);
}

TEST(CoalescingTree, SaysWhenItsNodesAreOut) {
  auto tree = std::make_unique<Tree>();
  ASSERT_TRUE(tree->start());
  Chunks::refuse = true;
  std::size_t added = 0;
  while (added < 1000 && tree->add({added, 1})) ++added;
  Chunks::refuse = false;
  EXPECT_EQ(added, (64u - 5) / 2) << "a chunk of 64, less the empty tree's five, two a block";
  EXPECT_TRUE(tree->add({added, 1}));
  EXPECT_EQ(blocks_in(*tree).size(), added + 1);
}

// What a thread that stops in the middle of an operation costs, as docs/concurrency.md states it: two nodes
// for each block added meanwhile, none of them lost; the pool's size is the end of it.
TEST(CoalescingTree, AStalledThreadKeepsWhatIsRetiredMeanwhile) {
  auto tree = std::make_unique<Tree>();
  ASSERT_TRUE(tree->start());
  const auto churn = [&tree](std::size_t times) {
    for (std::size_t i = 0; i < times; ++i) {
      ASSERT_TRUE(tree->add({0, 1 + i % 16}));
      ASSERT_TRUE(tree->remove({0, 1 + i % 16}));
    }
  };
  churn(1000);
  ASSERT_LE(tree->nodes(), 64u) << "one chunk does for one thread";
  // Takes what is left of the chunk, and then asks for the next one, inside an operation.
  Chunks::stall = true;
  std::thread stalls([&tree] {
    for (std::size_t i = 0; i < 64; ++i) EXPECT_TRUE(tree->add({100 + i, 40}));
  });
  while (!Chunks::stalled) std::this_thread::yield();
  const std::size_t before = tree->nodes();
  constexpr std::size_t kTimes = 5000;
  churn(kTimes);
  const std::size_t kept = tree->nodes() - before;
  EXPECT_GE(kept, 2 * kTimes - 64);
  EXPECT_LE(kept, 2 * kTimes + 64);
  Chunks::stalled = false;
  stalls.join();
  churn(kTimes);
  EXPECT_LE(tree->nodes(), before + kept + 128) << "what was kept serves again";
  EXPECT_EQ(blocks_in(*tree).size(), 64u);
}

template <bool kRecursive>
struct PaperRegion {
  using Manager = PaperManager<Controller, kRecursive>;
  explicit PaperRegion(std::size_t units)
      : metadata(std::make_unique<std::uint64_t[]>(Manager::metadata_bytes(units) / 8)),
        manager(std::make_unique<Manager>()) {
    EXPECT_TRUE(manager->attach(metadata.get(), units));
    EXPECT_TRUE(manager->extend(units));
  }
  ~PaperRegion() { manager->release_nodes(); }
  std::size_t free_blocks() {
    std::size_t count = 0;
    manager->for_each_free([&](Block) { ++count; });
    return count;
  }
  std::unique_ptr<std::uint64_t[]> metadata;
  std::unique_ptr<Manager> manager;
};

TEST(PaperManager, CoalescesEverythingForOneThread) {
  PaperRegion<false> region(1000);
  std::mt19937_64 random(3);
  std::map<std::size_t, std::size_t> live;
  for (int i = 0; i < 50'000; ++i) {
    if (random() % 2 == 0 || live.empty()) {
      const std::size_t size = 1 + random() % 50;
      const Block got = region.manager->allocate(size);
      if (!got) continue;
      ASSERT_EQ(got.size, size);
      const auto behind = live.lower_bound(got.first);
      ASSERT_TRUE(behind == live.end() || got.end() <= behind->first);
      ASSERT_TRUE(behind == live.begin() ||
                  std::prev(behind)->first + std::prev(behind)->second <= got.first);
      live[got.first] = size;
    } else {
      auto at = live.lower_bound(random() % 1000);
      if (at == live.end()) at = live.begin();
      ASSERT_TRUE(region.manager->free(at->first));
      ASSERT_FALSE(region.manager->free(at->first));
      live.erase(at);
    }
  }
  for (const auto& [first, size] : live) ASSERT_TRUE(region.manager->free(first));
  EXPECT_EQ(region.free_blocks(), 1u);
  EXPECT_EQ(region.manager->allocate(1000).size, 1000u);
}

template <bool kRecursive>
void expect_no_unit_is_lost_under_threads() {
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kUnits = 4096;
  PaperRegion<kRecursive> region(kUnits);
  std::vector<std::atomic<int>> owner(kUnits);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      std::vector<Block> mine;
      const auto free = [&](Block block) {
        for (std::size_t u = block.first; u < block.end(); ++u) owner[u] = 0;
        EXPECT_TRUE(region.manager->free(block.first));
      };
      for (int i = 0; i < 20'000; ++i) {
        if (mine.size() < 32 && random() % 2 == 0) {
          const Block got = region.manager->allocate(1 + random() % 16);
          for (std::size_t u = got.first; u < got.end(); ++u) EXPECT_EQ(owner[u].exchange(1), 0);
          if (got) mine.push_back(got);
        } else if (!mine.empty()) {
          const Block block = mine.back();
          mine.pop_back();
          free(block);
        }
      }
      for (const Block& block : mine) free(block);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::size_t units = 0;
  region.manager->for_each_free([&](Block block) { units += block.size; });
  EXPECT_EQ(units, kUnits);
  EXPECT_EQ(region.manager->lost_units(), 0u);
}
// Leite & Rocha, ISMM'19, Figure 8. The paper promises no more than that failures are rare, so their rate is
// measured here and not judged (`spanalloc bench figure coalescing-8` plots it); but no unit may be lost.
template <bool kRecursive>
void measure_failures_to_coalesce() {
  constexpr unsigned kThreads = 2;
  constexpr std::size_t kEach = 100;
  const unsigned times = rounds(4000);
  PaperRegion<kRecursive> region(kThreads * kEach);
  unsigned failed = 0;
  std::size_t left = 0;
  free_everything_at_once(
      kThreads, kEach, times,
      [&] {
        std::vector<std::size_t> units;
        while (const Block got = region.manager->allocate(1)) units.push_back(got.first);
        EXPECT_EQ(units.size(), kThreads * kEach) << "units were lost";
        return units;
      },
      [&](std::size_t unit) { region.manager->free(unit); },
      [&](unsigned) {
        const std::size_t blocks = region.free_blocks();
        failed += blocks > 1;
        left += blocks - 1;
        return !::testing::Test::HasFailure();
      });
  std::printf("  coalescing failed in %u of %u rounds, %zu blocks too many\n", failed, times, left);
  ::testing::Test::RecordProperty("failed_rounds", static_cast<int>(failed));
  EXPECT_EQ(region.manager->lost_units(), 0u);
}
TEST(PaperManager, FailuresToCoalesceAreMeasured) {
  measure_failures_to_coalesce<false>();
}
TEST(PaperManager, FailuresToCoalesceAreMeasuredWhenRecursive) {
  measure_failures_to_coalesce<true>();
}

TEST(PaperManager, LosesNoUnitUnderThreads) {
  expect_no_unit_is_lost_under_threads<false>();
}
TEST(PaperManager, LosesNoUnitUnderThreadsWhenRecursive) {
  expect_no_unit_is_lost_under_threads<true>();
}

}  // namespace
}  // namespace spanalloc::coalescing
