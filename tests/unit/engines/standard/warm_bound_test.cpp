// How much large blocks may leave warm: counts, without any memory.
#include "engines/standard/warm_bound.hpp"

#include <gtest/gtest.h>

namespace spanalloc::standard {
namespace {

using Bound = WarmBound<64 * kKiB>;

TEST(WarmBound, AQuarterOfWhatIsLiveMayStay) {
  Bound bound;
  bound.taken(4000, 0);
  EXPECT_EQ(bound.excess(), 0u);
  bound.given(1000, false);
  EXPECT_EQ(bound.excess(), 0u) << "512 + 3000 / 4";
  bound.given(1000, false);
  EXPECT_EQ(bound.excess(), 2000 - (512 + 500));
  bound.given(2000, true);
  EXPECT_EQ(bound.excess(), 2000 - 512u) << "what is zero is not dirty, nor is it live";
  bound.purged_for_bound(1488);
  EXPECT_EQ(bound.excess(), 0u);
}

TEST(WarmBound, WhatIsPurgedInVainMayStayTheNextTime) {
  Bound bound;
  for (int i = 0; i < 3; ++i) {
    bound.taken(1600, i == 0 ? 0 : i == 1 ? 512 : 1600);
    bound.given(1600, false);
    EXPECT_EQ(bound.excess(), i == 0 ? 1088u : 0u) << i;
    bound.purged_for_bound(bound.excess());
  }
  std::size_t last = 0;
  for (int i = 0; i < 60; ++i) {
    bound.tick(1600);
    EXPECT_GE(bound.excess(), last);
    last = bound.excess();
  }
  EXPECT_EQ(last, 1088u) << "forgotten";
}

TEST(WarmBound, RegretIsBounded) {
  Bound bound;
  bound.purged_for_bound(100000);
  bound.taken(100000, 0);
  bound.given(100000, false);
  bound.dirty_is(100000);
  EXPECT_EQ(bound.excess(), 100000 - Bound::kAlways - Bound::kMostRegretted);
  bound.tick(100000);
  bound.taken(0, 0);
  EXPECT_EQ(bound.excess(), 100000 - Bound::kAlways - Bound::kMostRegretted * 7 / 8);
}

TEST(WarmBound, CountsThatAreTooSmallAreNone) {
  Bound bound;
  bound.taken(10, 700);
  bound.given(5000, true);
  EXPECT_EQ(bound.excess(), 0u);
  bound.dirty_is(600);
  EXPECT_EQ(bound.excess(), 600 - Bound::kAlways);
}

}  // namespace
}  // namespace spanalloc::standard
