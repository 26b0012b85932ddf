// The coalescing manager used by several threads at once.
#include "coalescing_test_support.hpp"

namespace spanalloc::coalescing {
namespace {

std::vector<std::size_t> take_every_unit(Manager& manager, std::size_t units) {
  std::vector<std::size_t> taken;
  for (std::size_t i = 0; i < units; ++i) taken.push_back(manager.allocate(1).block.first);
  return taken;
}

// The paper's Figure 8: one block must remain, every time.
void expect_one_block_remains(unsigned threads, std::size_t each, unsigned times) {
  Region region(threads * each);
  std::atomic<bool> all_freed{true};
  unsigned held = 0;
  free_everything_at_once(
      threads, each, times, [&] { return take_every_unit(region.manager, threads * each); },
      [&](std::size_t unit) {
        if (!region.manager.free(unit)) all_freed = false;
      },
      [&](unsigned round) {
        const bool one = region.blocks().size() == 1;
        EXPECT_TRUE(one) << region.blocks().size() << " blocks after round " << round;
        ++held;
        return one && all_freed;
      });
  EXPECT_TRUE(all_freed);
  EXPECT_EQ(held, times);
}
TEST(CoalescingThreads, OneBlockRemainsWhenTwoFreeEverythingAtOnce) {
  expect_one_block_remains(2, 8, rounds(20'000));
  expect_one_block_remains(2, 100, rounds(4000));
}
TEST(CoalescingThreads, OneBlockRemainsWhenManyFreeEverythingAtOnce) {
  expect_one_block_remains(4, 32, rounds(6000));
  expect_one_block_remains(8, 64, rounds(1000));
}

// Each thread needs no more than its share, so nobody may ever be refused, although others keep splitting and
// merging.
TEST(CoalescingThreads, NobodyIsRefusedItsShare) {
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
TEST(CoalescingThreads, NobodyIsRefusedTheLastUnits) {
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

// Tenants do all that can be done to a range, one thread purges and is refused at times, one makes the range
// grow. Each tenant finds in its units what it wrote there, and at the end the books are right.
void expect_tenants_live_together(unsigned tenants, std::size_t units, std::size_t capacity,
                                  std::size_t most) {
  Region region(units, capacity);
  region.kernel.refuses = [](std::size_t call) { return call % 5 == 4; };
  std::vector<std::unique_ptr<Tenant>> all;
  for (unsigned t = 0; t < tenants; ++t) {
    all.push_back(std::make_unique<Tenant>(region, static_cast<unsigned char>(t + 1), t));
  }
  std::atomic<unsigned> working{tenants};
  std::vector<std::thread> threads;
  for (const auto& tenant : all) {
    threads.emplace_back([&] {
      const Interruptions interruptions;
      for (unsigned i = 0; i < rounds(60'000); ++i) tenant->step(most);
      --working;
    });
  }
  threads.emplace_back([&] {
    for (unsigned i = 0; working != 0; ++i) {
      region.manager.purge(i % 2 == 0);
      std::this_thread::yield();
    }
  });
  threads.emplace_back([&] {
    std::mt19937 random(7);
    while (region.manager.limit() < region.manager.capacity()) {
      const std::size_t left = region.manager.capacity() - region.manager.limit();
      EXPECT_FALSE(region.manager.extend(left + 1, true));
      EXPECT_TRUE(region.manager.extend(min_of(left, 1 + random() % 7), true));
      for (unsigned i = 0; i < 20 && working != 0; ++i) std::this_thread::yield();
    }
  });
  // A walk is no snapshot, but it never leaves the range nor goes back.
  threads.emplace_back([&] {
    while (working != 0) {
      std::size_t at = 0;
      region.manager.walk([&](Block block, BlockState, bool) {
        EXPECT_TRUE(block && block.first >= at) << block.first << " after " << at;
        at = block.end();
      });
      EXPECT_LE(at, region.manager.capacity());
      std::this_thread::yield();
    }
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(region.kernel.purges(), 5u) << "nothing was refused";
  Live live;
  for (const auto& tenant : all) {
    for (const auto& [first, size] : tenant->live()) ASSERT_TRUE(live.emplace(first, size).second) << first;
  }
  expect_census(region, live);
  for (const auto& tenant : all) tenant->free_all();
  EXPECT_EQ(region.blocks().size(), 1u);
  EXPECT_EQ(region.manager.limit(), region.manager.capacity());
}
TEST(CoalescingThreads, TenantsOfASmallRange) {
  expect_tenants_live_together(3, 10, 70, 6);
}
TEST(CoalescingThreads, TenantsOfALargeRange) {
  expect_tenants_live_together(4, 3000, 9000, 200);
}

}  // namespace
}  // namespace spanalloc::coalescing
