// Mappings that may have grown over decommitted slices go before those are recommitted.
#include "pages/arena/grown_mappings.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace spanalloc {
namespace {

struct Calls {
  static inline bool refuses = false;
  static inline std::vector<Interval> released;
  static bool release(void* address, std::size_t bytes) {
    if (!refuses) released.push_back({address_of(address), address_of(address) + bytes});
    return !refuses;
  }
};

struct GrownMappingsTest : testing::Test {
  GrownMappingsTest() {
    Calls::refuses = false;
    Calls::released.clear();
  }
  GrownMappings<Calls> grown;
};

TEST_F(GrownMappingsTest, WhatIsBeingMovedCountsAsGrownAndIsNotUnmapped) {
  ASSERT_TRUE(grown.begin({1000, 2000}));
  EXPECT_TRUE(grown.overlap(1999, 3000));
  EXPECT_TRUE(grown.overlap(500, 1001));
  EXPECT_FALSE(grown.overlap(2000, 3000));
  EXPECT_FALSE(grown.overlap(500, 1000));
  grown.unmap();
  EXPECT_TRUE(Calls::released.empty() && grown.overlap(1000, 2000));
  grown.complete(1000, false);
  EXPECT_FALSE(grown.overlap(1000, 2000)) << "it has not grown";
}

TEST_F(GrownMappingsTest, WhatHasGrownStaysUntilTheKernelUnmapsIt) {
  ASSERT_TRUE(grown.begin({1000, 2000}) && grown.begin({5000, 6000}));
  grown.complete(1000, true);
  Calls::refuses = true;
  grown.unmap();
  EXPECT_TRUE(grown.overlap(1000, 2000));
  Calls::refuses = false;
  grown.unmap();
  ASSERT_EQ(Calls::released.size(), 1u);
  EXPECT_EQ(Calls::released[0].first, 1000u);
  EXPECT_EQ(Calls::released[0].end, 2000u);
  EXPECT_FALSE(grown.overlap(1000, 2000));
  EXPECT_TRUE(grown.overlap(5000, 6000)) << "that move is still under way";
}

TEST_F(GrownMappingsTest, OnlySoManyAreRemembered) {
  for (unsigned i = 0; i < PagesConfig::kMostGrown; ++i)
    ASSERT_TRUE(grown.begin({i * 10, i * 10 + 5}));
  EXPECT_FALSE(grown.begin({1000, 2000}));
  grown.complete(10, false);
  EXPECT_TRUE(grown.begin({1000, 2000}));
  grown.forget();
  EXPECT_FALSE(grown.overlap(0, 10000));
}

}  // namespace
}  // namespace spanalloc
