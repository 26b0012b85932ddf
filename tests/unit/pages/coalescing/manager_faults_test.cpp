// The kernel refuses: a purge at any point, in part, or more address space.
// Contents and books stay right.
#include <string>

#include "child.hpp"
#include "pages/coalescing/test_support.hpp"

namespace spanalloc::coalescing {
namespace {

constexpr std::size_t kUnits = 40;

// Leaves free blocks of every kind and a live one between them: dirty ones, one that is dirty at
// both ends and clean in its middle, one that was cleaned before and is dirty in part.
class Scene {
 public:
  Scene() : region(kUnits), tenant(region, 1, 1) {
    // 28 units; the rest was never handed out
    const std::size_t sizes[] = {3, 2, 4, 2, 3, 5, 1, 6, 2};
    std::size_t first[std::size(sizes)];
    std::size_t next = 0;
    for (std::size_t i = 0; i < std::size(sizes); ++i) {
      first[i] = next;
      next += sizes[i];
      EXPECT_TRUE(tenant.allocate(sizes[i]));
    }
    EXPECT_EQ(tenant.live().rbegin()->first, first[8]) << "clean units are handed out in order";
    tenant.free(first[1]);
    tenant.free(first[5]);
    EXPECT_EQ(region.manager.purge(false), 7u);
    tenant.free(first[0]);  // dirty, clean
    tenant.free(first[2]);  // dirty, clean, dirty
    tenant.free(first[4]);  // dirty, clean
    tenant.free(first[6]);  // dirty, clean, dirty
    tenant.free(first[8]);  // beside what was never handed out
    calls_before_ = region.kernel.purges();
  }
  std::size_t calls() const { return region.kernel.purges() - calls_before_; }
  /// Numbers of the calls from here on: the first one is 0.
  void refuse(std::function<bool(std::size_t)> refused) {
    region.kernel.refuses = [this, refused](std::size_t call) {
      return refused(call - calls_before_);
    };
  }
  // The census, what the live blocks hold, and that whatever is called zero is
  // zero (the tenant looks).
  void expect_intact() {
    expect_census(region, tenant.live());
    tenant.free_all();
    EXPECT_EQ(region.blocks().size(), 1u);
    EXPECT_TRUE(tenant.allocate(kUnits));
    tenant.free_all();
  }

  static constexpr std::size_t kDirty = 3 + 4 + 3 + 1 + 2;
  Region region;
  Tenant tenant;

 private:
  std::size_t calls_before_ = 0;
};

TEST(CoalescingFaults, NothingIsRefused) {
  Scene scene;
  const std::size_t before = scene.region.kernel.asked_units();
  EXPECT_EQ(scene.region.manager.purge(false), Scene::kDirty);
  EXPECT_EQ(scene.region.kernel.asked_units(), before + Scene::kDirty)
      << "clean units are left alone";
  EXPECT_GE(scene.calls(), 5u) << "too few calls to refuse";
  EXPECT_EQ(scene.region.manager.purge(false), 0u);
  scene.expect_intact();
}

TEST(CoalescingFaults, EachCallOfAPurgeIsRefused) {
  Scene whole;
  EXPECT_EQ(whole.region.manager.purge(false), Scene::kDirty);
  for (std::size_t k = 0; k < whole.calls(); ++k) {
    for (const char* which : {"only", "from", "up to"}) {
      SCOPED_TRACE(std::string(which) + " call " + std::to_string(k));
      Scene scene;
      scene.refuse([&](std::size_t call) {
        return which[0] == 'o' ? call == k : which[0] == 'f' ? call >= k : call <= k;
      });
      const std::size_t purged = scene.region.manager.purge(false);
      EXPECT_LT(purged, Scene::kDirty);
      EXPECT_EQ(scene.calls(), whole.calls()) << "a refusal is no reason to stop";
      // What was refused is still known to be dirty, and nothing else.
      scene.refuse([](std::size_t) { return false; });
      EXPECT_EQ(scene.region.manager.purge(false), Scene::kDirty - purged);
      scene.expect_intact();
    }
  }
}

TEST(CoalescingFaults, EachCallOfAPurgeOfWhatIsOldIsRefused) {
  Scene whole;
  whole.region.manager.age();
  EXPECT_EQ(whole.region.manager.purge(true), Scene::kDirty);
  for (std::size_t k = 0; k < whole.calls(); ++k) {
    SCOPED_TRACE("call " + std::to_string(k));
    Scene scene;
    scene.refuse([&](std::size_t call) { return call == k; });
    scene.region.manager.age();
    const std::size_t purged = scene.region.manager.purge(true);
    EXPECT_LT(purged, Scene::kDirty);
    // Refused once is not refused for ever: the next tick but one asks again.
    std::size_t later = 0;
    for (int tick = 0; tick < 3; ++tick) {
      scene.region.manager.age();
      later += scene.region.manager.purge(true);
    }
    EXPECT_EQ(purged + later, Scene::kDirty);
    scene.expect_intact();
  }
}

TEST(CoalescingFaults, WhatWasRefusedIsHandedOutAsItIs) {
  Scene scene;
  scene.refuse([](std::size_t) { return true; });
  EXPECT_EQ(scene.region.manager.purge(false), 0u);
  // The tenant finds every unit zero that he is told is zero; half of each run
  // is, and none is said to be.
  scene.expect_intact();
}

TEST(CoalescingFaults, MoreThanThereCanBeIsRefused) {
  Region region(10, 20);
  Tenant tenant(region, 1, 1);
  EXPECT_TRUE(tenant.allocate(10));
  for (const std::size_t more : {std::size_t{11}, std::size_t{64}, SIZE_MAX - 9, SIZE_MAX}) {
    EXPECT_FALSE(region.manager.extend(more, true)) << more;
    EXPECT_EQ(region.manager.limit(), 10u);
  }
  EXPECT_FALSE(tenant.allocate(1));
  expect_census(region, tenant.live());
  EXPECT_TRUE(region.manager.extend(10, true)) << "the refusals have used nothing up";
  EXPECT_FALSE(region.manager.extend(1, true));
  EXPECT_TRUE(tenant.allocate(10));
  expect_census(region, tenant.live());
}

// A process forks while another thread holds a block, whose neighbours are given back meanwhile.
TEST(CoalescingFaults, AForkInTheMiddleOfACallLeavesEverythingInPlace) {
  for (int neighbours = 0; neighbours < 4; ++neighbours) {
    Region region(kUnits);
    Tenant tenant(region, 1, 1);
    // 17 units
    for (const std::size_t size : {3u, 4u, 2u, 5u, 3u}) ASSERT_TRUE(tenant.allocate(size));
    tenant.free(7);
    bool forked = false;
    region.kernel.refuses = [&](std::size_t) {
      if (forked) return false;
      forked = true;
      if ((neighbours & 1) != 0) tenant.free(3);
      if ((neighbours & 2) != 0) tenant.free(9);
      test::in_child([&] {
        region.manager.recover_after_fork();
        region.kernel.refuses = nullptr;
        expect_census(region, tenant.live());
        tenant.free_all();
        EXPECT_EQ(region.blocks().size(), 1u);
      });
      return false;
    };
    region.manager.purge(false);
    EXPECT_TRUE(forked);
    region.kernel.refuses = nullptr;
    expect_census(region, tenant.live());
  }
}

}  // namespace
}  // namespace spanalloc::coalescing
