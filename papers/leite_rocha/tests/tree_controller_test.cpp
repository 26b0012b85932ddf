// The paper's tree controller: against a set, under threads, and its memory.
#include "papers/leite_rocha/manager/tree_controller.hpp"
#include "seed_report.hpp"
#include "threads.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <vector>

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
  std::mt19937_64 random(test::seed_of(7));
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
  test::in_threads(kThreads, [&](unsigned t) {
    std::mt19937_64 random(test::seed_of(t));
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
  // How many threads need depends on how long the scheduler keeps one of them inside an operation;
  // but all are reused afterwards.
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

// What a thread that stops in the middle of an operation costs, as docs/concurrency.md states it:
// two nodes for each block added meanwhile, none of them lost; the pool's size is the end of it.
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

}  // namespace
}  // namespace spanalloc::coalescing
