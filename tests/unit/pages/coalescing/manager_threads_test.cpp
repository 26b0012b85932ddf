// The coalescing manager used by several threads at once.
#include <cstdio>

#include "block_history.hpp"
#include "pages/coalescing/test_support.hpp"
#include "seed_report.hpp"
#include "threads.hpp"

namespace spanalloc::coalescing {
namespace {

using test::Call;
using test::Operation;

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

// Each thread needs no more than its share, so nobody may ever be refused, although others
// keep splitting and merging.
TEST(CoalescingThreads, NobodyIsRefusedItsShare) {
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kShare = 8;
  Region region(kThreads * kShare);
  std::atomic<int> refused{0};
  test::in_threads(kThreads, [&](unsigned) {
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
  EXPECT_EQ(refused, 0);
  EXPECT_EQ(region.blocks().size(), 1u);
}

// Exactly as much room as all threads together need, page by page over several levels of the index:
// while one thread tidies the index up, what others enter must stay findable.
TEST(CoalescingThreads, NobodyIsRefusedTheLastUnits) {
  constexpr std::size_t kEach = 10'000;
  for (int round = 0; round < 8; ++round) {
    Region region(2 * kEach);
    std::atomic<int> refused{0};
    test::in_threads(2, [&](unsigned) {
      for (std::size_t i = 0; i < kEach; ++i) {
        if (!region.manager.allocate(1)) ++refused;
      }
    });
    ASSERT_EQ(refused, 0) << "round " << round;
  }
}

// Purging holds free memory, and what is given back beside it meanwhile cannot be joined with it at
// once. The only one who takes memory is never refused what he gave back before.
TEST(CoalescingThreads, PurgingMakesNobodyWaitForHisOwnMemory) {
  constexpr std::size_t kUnits = 12;
  Region region(kUnits);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) region.manager.purge(false);
  });
  unsigned refused = 0;
  for (unsigned i = 0; region.kernel.purges() < 300; ++i) {
    if (i % 64 == 0) std::this_thread::yield();
    const Allocation all = region.manager.allocate(kUnits);
    refused += !all;
    if (!all) continue;
    region.manager.shrink(all.block.first, 8);
    region.manager.shrink(all.block.first, 3);
    region.manager.free(all.block.first);
  }
  stop = true;
  other.join();
  EXPECT_EQ(refused, 0u);
}

// Tenants do all that can be done to a range, one thread purges and is refused at times,
// one makes the range grow. Each tenant finds in its units what it wrote there, and at the
// end the books are right.
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
      // And on until some purges have been refused: on a busy machine nobody
      // may have come to it yet.
      for (unsigned i = 0; i < rounds(60'000) || region.kernel.purges() <= 5; ++i)
        tenant->step(most);
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
    std::mt19937 random(test::seed_of(7));
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
  Live live;
  for (const auto& tenant : all) {
    for (const auto& [first, size] : tenant->live())
      ASSERT_TRUE(live.emplace(first, size).second) << first;
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

// Histories of a few calls as the machine makes them, each checked for an order that explains it.
class Historian {
 public:
  Historian(Region& region, std::atomic<std::uint64_t>& clock, std::uint64_t seed)
      : region_(region), clock_(clock), random_(test::seed_of(seed)) {}

  void step(bool may_extend) {
    if (random_() % 12 == 0) return purge();
    if (may_extend && random_() % 3 == 0) return extend();
    if (live_.empty() || random_() % 2 == 0) return allocate();
    const auto at = std::next(live_.begin(), static_cast<std::ptrdiff_t>(random_() % live_.size()));
    switch (random_() % 4) {
      case 0:
        return grow(at);
      case 1:
        return shrink(at);
      default:
        return free(at);
    }
  }
  void free_all() {
    while (!live_.empty()) free(live_.begin());
  }
  const std::vector<Operation>& history() const { return history_; }

 private:
  template <class Do>
  Operation& record(Operation op, Do&& call) {
    op.began = clock_.fetch_add(1);
    call(op);
    op.ended = clock_.fetch_add(1);
    return history_.emplace_back(op);
  }
  void allocate() {
    const Operation& op =
        record({.call = Call::allocate, .size = 1 + random_() % 4, .alignment = 1 + random_() % 2},
               [&](Operation& call) {
                 const Allocation got = region_.manager.allocate(call.size, call.alignment);
                 call.done = static_cast<bool>(got);
                 call.first = got.block.first;
               });
    if (op.done) live_[op.first] = op.size;
  }
  void free(Live::iterator at) {
    record({.call = Call::free, .first = at->first, .had = at->second},
           [&](Operation& call) { call.done = region_.manager.free(call.first); });
    live_.erase(at);
  }
  void grow(Live::iterator at) {
    const Operation& op =
        record({.call = Call::grow,
                .first = at->first,
                .size = at->second + 1 + random_() % 2,
                .had = at->second},
               [&](Operation& call) {
                 call.done = static_cast<bool>(region_.manager.grow(call.first, call.size));
               });
    if (op.done) at->second = op.size;
  }
  void shrink(Live::iterator at) {
    if (at->second == 1) return;
    record({.call = Call::shrink, .first = at->first, .size = at->second - 1, .had = at->second},
           [&](Operation& call) { call.done = region_.manager.shrink(call.first, call.size); });
    --at->second;
  }
  void purge() {
    record({.call = Call::purge, .done = true}, [&](Operation&) { region_.manager.purge(false); });
  }
  void extend() {
    record({.call = Call::extend, .first = region_.manager.limit(), .size = 2},
           [&](Operation& call) { call.done = region_.manager.extend(call.size, true); });
  }

  Region& region_;
  std::atomic<std::uint64_t>& clock_;
  std::mt19937_64 random_;
  Live live_;
  std::vector<Operation> history_;
};

TEST(CoalescingThreads, HistoriesAreLinearizable) {
  constexpr unsigned kThreads = 2;
  constexpr std::size_t kUnits = 6;
  constexpr std::size_t kCapacity = 12;
  const unsigned times = rounds(12'000);
  // Calls that overlapped with another one: without any, nothing is shown. Not purges, which change
  // nothing, and let the other thread have the processor in their middle.
  const std::size_t wanted = times / 20;
  const auto overlap = [](const Operation& a, const Operation& b) {
    if (a.call == Call::purge || b.call == Call::purge) return false;
    return &a != &b && a.began < b.ended && b.began < a.ended;
  };
  Rounds meeting(kThreads);
  std::atomic<std::uint64_t> clock{1};
  std::unique_ptr<Region> region;
  std::vector<std::unique_ptr<Historian>> historians(kThreads);
  std::size_t overlapping = 0;
  std::atomic<bool> go_on{true};
  const auto make_history = [&](unsigned thread, unsigned round) {
    // The region and all historians are new in each round; thread 0 makes them.
    if (thread == 0) {
      region = std::make_unique<Region>(kUnits, kCapacity);
      for (unsigned t = 0; t < kThreads; ++t)
        historians[t] = std::make_unique<Historian>(*region, clock, round * kThreads + t);
    }
    meeting.meet();
    for (unsigned i = 0; i < 8; ++i) historians[thread]->step(thread == 0);
    historians[thread]->free_all();
    meeting.meet();
  };
  std::vector<std::thread> others;
  for (unsigned t = 1; t < kThreads; ++t) {
    others.emplace_back([&, t] {
      const Interruptions interruptions;
      for (unsigned round = 0;; ++round) {
        meeting.meet();
        if (!go_on) return;
        make_history(t, round);
      }
    });
  }
  const Interruptions interruptions;
  for (unsigned round = 0; round < times || overlapping <= wanted; ++round) {
    meeting.meet();
    make_history(0, round);
    std::vector<Operation> history;
    for (const auto& historian : historians) {
      history.insert(history.end(), historian->history().begin(), historian->history().end());
    }
    // At rest everything is there again.
    const std::size_t limit = region->manager.limit();
    const std::uint64_t now = clock.fetch_add(2);
    history.push_back({.call = Call::allocate, .size = limit, .began = now, .ended = now + 1});
    const Allocation all = region->manager.allocate(limit);
    history.back().done = static_cast<bool>(all);
    test::LinearizabilityCheck check(history, kUnits, kCapacity);
    EXPECT_TRUE(check.holds()) << "round " << round << ": " << check.explain();
    for (const Operation& op : history) {
      overlapping += static_cast<std::size_t>(
          std::any_of(history.begin(), history.end(),
                      [&](const Operation& other) { return overlap(op, other); }));
    }
  }
  go_on = false;
  meeting.meet();
  for (std::thread& thread : others) thread.join();
  std::printf("  %zu calls overlapped with another one\n", overlapping);
}

}  // namespace
}  // namespace spanalloc::coalescing
