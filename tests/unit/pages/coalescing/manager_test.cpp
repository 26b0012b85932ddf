// The coalescing manager used by one thread, against an oracle that knows what is handed out.
#include "pages/coalescing/test_support.hpp"

namespace spanalloc::coalescing {
namespace {

// For one thread every answer is determined but for the address.
class Oracle {
 public:
  Oracle(std::size_t units, std::size_t capacity, std::uint64_t seed)
      : region(units, capacity), tenant_(region, 1, seed) {}

  void step() {
    const std::size_t units = region.manager.limit();
    const Live& live = tenant_.live();
    if (live.empty() || tenant_.draw() % 2 == 0) {
      return allocate(1 + tenant_.draw() % (units < 100 ? units : units / 20),
                      std::size_t{1} << tenant_.draw() % 3);
    }
    auto at = live.lower_bound(tenant_.draw() % units);
    if (at == live.end()) at = live.begin();
    switch (tenant_.draw() % 4) {
      case 0:
        return grow(at, at->second + 1 + tenant_.draw() % 4);
      case 1:
        return tenant_.shrink(at->first, 1 + tenant_.draw() % at->second);
      default: {
        const std::size_t first = at->first;
        tenant_.free(first);
        ASSERT_FALSE(region.manager.free(first)) << "a second free was taken";
      }
    }
  }
  void extend() {
    const std::size_t limit = region.manager.limit();
    const std::size_t more = 1 + tenant_.draw() % 9;
    const bool fits = limit + more <= region.manager.capacity();
    ASSERT_EQ(region.manager.extend(more, true), fits);
    ASSERT_EQ(region.manager.limit(), fits ? limit + more : limit);
  }
  void free_all() { tenant_.free_all(); }
  void check() { expect_census(region, tenant_.live()); }
  std::size_t refused() const { return tenant_.refused(); }

  Region region;

 private:
  void allocate(std::size_t size, std::size_t alignment) {
    const bool room = has_room(size, alignment);
    ASSERT_EQ(tenant_.allocate(size, alignment), room)
        << size << " units at multiples of " << alignment;
  }
  void grow(Live::const_iterator at, std::size_t size) {
    const auto next = std::next(at);
    const std::size_t end = next == tenant_.live().end() ? region.manager.limit() : next->first;
    const bool room = at->first + size <= end;
    ASSERT_EQ(tenant_.grow(at->first, size), room);
  }
  bool has_room(std::size_t size, std::size_t alignment) const {
    std::size_t from = 0;
    const auto fits = [&](std::size_t end) {
      const std::size_t start = align_up(from, alignment);
      return start < end && end - start >= size;
    };
    for (const auto& [first, units] : tenant_.live()) {
      if (fits(first)) return true;
      from = first + units;
    }
    return fits(region.manager.limit());
  }

  Tenant tenant_;
};

class CoalescingOracle : public ::testing::TestWithParam<std::size_t> {};

TEST_P(CoalescingOracle, EveryAnswerIsRight) {
  Oracle oracle(GetParam(), GetParam() + GetParam() / 4, GetParam());
  // Every third purge is refused, after half of it was done.
  oracle.region.kernel.refuses = [](std::size_t call) { return call % 3 == 2; };
  for (int i = 0; i < 40'000; ++i) {
    oracle.step();
    if (i % 500 == 0) {
      oracle.region.manager.purge(i % 1000 == 0);
      oracle.check();
      oracle.extend();
    }
    ASSERT_FALSE(HasFailure()) << "step " << i;
  }
  EXPECT_GT(oracle.refused(), 0u) << "the region never was full: nothing was shown";
  oracle.free_all();
  ASSERT_EQ(oracle.region.blocks().size(), 1u);
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
  const auto grown = region.manager.grow(warm.block.first, 6);
  EXPECT_TRUE(grown);
  EXPECT_FALSE(grown.zero);
  EXPECT_TRUE(region.manager.free(warm.block.first));
  EXPECT_EQ(region.manager.purge(false), 8u);
  EXPECT_TRUE(region.manager.allocate(16).zero);
}

TEST(CoalescingManager, WhatTheKernelDoesNotPurgeStaysDirty) {
  Region region(4);
  region.kernel.refuses = [](std::size_t) { return true; };
  EXPECT_TRUE(region.manager.free(region.manager.allocate(4).block.first));
  EXPECT_EQ(region.manager.purge(false), 0u);
  EXPECT_FALSE(region.manager.allocate(4).zero);
}

TEST(CoalescingManager, PurgesOnlyWhatLayUnusedSinceTheLastTick) {
  Region region(8);
  EXPECT_TRUE(region.manager.free(region.manager.allocate(8).block.first));
  EXPECT_EQ(region.manager.purge(true), 0u) << "no tick yet";
  region.manager.age();
  EXPECT_TRUE(region.manager.free(region.manager.allocate(2).block.first));  // in use meanwhile
  EXPECT_EQ(region.manager.purge(true), 6u) << "the age is the units', not the block's";
  EXPECT_EQ(region.manager.purge(true), 0u);
  region.manager.age();
  EXPECT_EQ(region.manager.purge(true), 2u);
}

TEST(CoalescingManager, PurgesAsMuchAsItIsAllowed) {
  Region region(64);
  std::vector<std::size_t> held;
  for (int i = 0; i < 16; ++i) held.push_back(region.manager.allocate(4).block.first);
  for (std::size_t i = 0; i < held.size(); i += 2) EXPECT_TRUE(region.manager.free(held[i]));
  EXPECT_EQ(region.manager.purge(false, 10), 10u);
  EXPECT_EQ(region.manager.purge(false), 22u);
}

TEST(CoalescingManager, PurgesTheLargestBlocksFirst) {
  Region region(64);
  std::vector<std::size_t> held;
  for (const std::size_t size : {3u, 1u, 20u, 1u, 9u, 1u, 2u, 1u, 26u}) {
    held.push_back(region.manager.allocate(size).block.first);
  }
  for (std::size_t i = 0; i < held.size() - 1; i += 2) EXPECT_TRUE(region.manager.free(held[i]));
  EXPECT_EQ(region.manager.purge_largest(12), 12u);
  EXPECT_TRUE(region.manager.allocate(9, 1, Reuse::kDirtyOnly).block);
  EXPECT_EQ(region.manager.purge_largest(100), 8u + 3 + 2);
  EXPECT_EQ(region.manager.purge_largest(100), 0u);
  EXPECT_EQ(region.manager.age(), 0u);
}

// A thread in age() owns nothing: what it has seen dirty may be clean when it writes that down.
TEST(CoalescingManager, PurgesAgedUnitsOnlyWhileTheyAreDirty) {
  Region region(64);
  const std::size_t clean = region.manager.allocate(8).block.first;
  const std::size_t dirty = region.manager.allocate(8).block.first;
  EXPECT_TRUE(region.manager.free(clean, true));
  EXPECT_TRUE(region.manager.free(dirty));  // one block: clean, dirty, clean
  char* rows = reinterpret_cast<char*>(region.metadata.data());
  for (unsigned table = 0; table < Manager::Tables::kRows; ++table)
    rows += Manager::Tables::bytes(table, 64, 64);
  UnitSet aged;
  aged.attach(rows, Manager::Tables::kRowWords, 1);
  ASSERT_EQ(region.manager.age(), 8u);
  ASSERT_EQ(aged.count({0, 64}), 8u) << "this is the manager's set";
  aged.insert({0, 64});
  EXPECT_EQ(region.manager.purge(true), 8u);
  EXPECT_EQ(region.kernel.asked_units(), 8u);
  EXPECT_EQ(region.manager.purge(true), 0u);
  EXPECT_EQ(region.kernel.asked_units(), 8u);
}

TEST(CoalescingManager, TakesTheKindOfMemoryThatIsAskedFor) {
  Region region(16);
  const std::size_t dirty = region.manager.allocate(4).block.first;
  ASSERT_EQ(region.manager.allocate(2).block.first, 4u) << "a wall between the two kinds";
  EXPECT_TRUE(region.manager.free(dirty));
  EXPECT_FALSE(region.manager.allocate(5, 1, Reuse::kDirtyOnly).block) << "there are 10 clean ones";
  EXPECT_EQ(region.manager.allocate(2, 1, Reuse::kCleanFirst).block.first, 6u);
  EXPECT_EQ(region.manager.allocate(2, 1, Reuse::kDirtyOnly).block.first, dirty);
  EXPECT_EQ(region.manager.allocate(2).block.first, dirty + 2) << "dirty memory first";
  EXPECT_TRUE(region.manager.free(dirty, true));
  EXPECT_TRUE(region.manager.allocate(2, 1, Reuse::kCleanFirst).zero);
}

// A free block may be clean and dirty by turns: the dirty units in it are reused first, too.
TEST(CoalescingManager, ReusesTheDirtyUnitsOfABlockFirst) {
  Region region(256);
  std::vector<std::size_t> held;
  for (int i = 0; i < 4; ++i) held.push_back(region.manager.allocate(64).block.first);
  for (const std::size_t i : {0u, 1u, 3u}) EXPECT_TRUE(region.manager.free(held[i], true));
  EXPECT_TRUE(region.manager.free(held[2]));  // one block: 128 clean, 64 dirty, 64 clean
  const Allocation aligned = region.manager.allocate(40, 32);
  EXPECT_EQ(aligned.block.first, held[2]);
  EXPECT_FALSE(aligned.zero);
  const Allocation small = region.manager.allocate(1);
  EXPECT_EQ(small.block.first, held[2] + 40) << "before the clean 128 units below";
  const Allocation clean = region.manager.allocate(100);
  EXPECT_EQ(clean.block.first, 0u);
  EXPECT_TRUE(clean.zero);
  for (const Allocation& got : {aligned, small, clean})
    EXPECT_TRUE(region.manager.free(got.block.first));
  // The place is aligned, the dirty units in it need not be.
  EXPECT_EQ(region.manager.purge(false), 100u + 64u);
  held.clear();
  for (int i = 0; i < 3; ++i) held.push_back(region.manager.allocate(i == 1 ? 1 : 33).block.first);
  for (const std::size_t i : {0u, 2u}) EXPECT_TRUE(region.manager.free(held[i], true));
  EXPECT_TRUE(region.manager.free(held[1]));  // unit 33
  EXPECT_FALSE(region.manager.allocate(8, 8).zero) << "units 32 to 39";
  EXPECT_TRUE(region.manager.free(32));
  // Not at the cost of a fit: the dirty units are too near the end of the block.
  EXPECT_EQ(region.manager.purge(false), 8u);
  EXPECT_TRUE(region.manager.free(region.manager.allocate(256).block.first, true));
  const std::size_t wall = region.manager.allocate(250).block.first;
  EXPECT_TRUE(region.manager.free(region.manager.allocate(6).block.first));
  EXPECT_TRUE(region.manager.free(wall, true));
  EXPECT_EQ(region.manager.allocate(8).block.first, 248u);
}

// Alignments are counted from the origin, not from the first unit.
TEST(CoalescingManager, AlignsToItsOrigin) {
  std::vector<std::uint64_t> metadata(Manager::metadata_bytes(64) / 8);
  Kernel kernel(64);
  Manager manager(kernel);
  manager.attach(metadata.data(), 64, 5);
  EXPECT_TRUE(manager.extend(64, true));
  for (const std::size_t alignment : {2u, 4u, 8u, 16u, 32u}) {
    const auto got = manager.allocate(1, alignment);
    ASSERT_TRUE(got.block) << alignment;
    EXPECT_EQ((got.block.first + 5) % alignment, 0u) << alignment;
  }
}

TEST(CoalescingManager, GrowsBehindItsLastUnit) {
  Region region(0, 100);
  Manager& manager = region.manager;
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

}  // namespace
}  // namespace spanalloc::coalescing
