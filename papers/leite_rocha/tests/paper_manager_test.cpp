// The paper's manager over its tree: what it coalesces, and that threads lose no unit.
#include "papers/leite_rocha/manager/paper_manager.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "pages/coalescing/test_support.hpp"
#include "seed_report.hpp"
#include "threads.hpp"

namespace spanalloc::coalescing {
namespace {

struct Chunks {
  static void* map(std::size_t bytes) { return std::calloc(1, bytes); }
  static void unmap(void* chunk, std::size_t) { std::free(chunk); }
};

template <bool kRecursive>
struct PaperRegion {
  using Manager = PaperManager<TreeController<Chunks, 64, 4096>, kRecursive>;
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
  std::mt19937_64 random(test::seed_of(3));
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
  test::in_threads(kThreads, [&](unsigned t) {
    std::mt19937_64 random(test::seed_of(t));
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
  std::size_t units = 0;
  region.manager->for_each_free([&](Block block) { units += block.size; });
  EXPECT_EQ(units, kUnits);
  EXPECT_EQ(region.manager->lost_units(), 0u);
}
// Leite & Rocha, ISMM'19, Figure 8. The paper promises no more than that failures are rare, so
// their rate is measured here and not judged (`spanalloc bench figure coalescing-8` plots it);
// but no unit may be lost.
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
