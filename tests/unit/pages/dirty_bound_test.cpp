// How much large blocks may leave warm: counts, without any memory.
#include "pages/dirty_bound.hpp"

#include <gtest/gtest.h>

namespace spanalloc {
namespace {

using Bound = DirtyBound<64 * kKiB>;

TEST(DirtyBound, AQuarterOfWhatIsLiveMayStay) {
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

// Small blocks take dirty memory without saying so.
TEST(DirtyBound, APurgeThatFindsLessCorrectsTheCountButNotWhatCameMeanwhile) {
  Bound bound;
  bound.given(2000, false);
  const std::size_t counted = bound.dirty();
  bound.given(700, false);
  bound.purged_for_bound(300);
  bound.found_all_of(counted - 300);
  EXPECT_EQ(bound.dirty(), 700u);
  bound.taken(700, 700);
  bound.found_all_of(100);
  EXPECT_EQ(bound.dirty(), 0u);
  bound.given(600, false);
  EXPECT_EQ(bound.dirty(), 600u) << "never below none";
}

TEST(DirtyBound, WhatIsPurgedInVainMayStayTheNextTime) {
  Bound bound;
  for (int i = 0; i < 3; ++i) {
    bound.taken(1600, i == 0 ? 0 : i == 1 ? 512 : 1600);
    bound.given(1600, false);
    EXPECT_EQ(bound.excess(), i == 0 ? 1088u : 0u) << i;
    bound.purged_for_bound(bound.excess());
  }
  std::size_t last = 0;
  for (int i = 0; i < 60; ++i) {
    bound.pass_epoch(1600);
    EXPECT_GE(bound.excess(), last);
    last = bound.excess();
  }
  EXPECT_EQ(last, 1088u) << "forgotten";
}

TEST(DirtyBound, RegretIsBounded) {
  Bound bound;
  bound.purged_for_bound(100000);
  bound.taken(100000, 0);
  bound.given(100000, false);
  bound.dirty_is(100000);
  EXPECT_EQ(bound.excess(), 100000 - Bound::kAlways - Bound::kMostRegretted);
  bound.pass_epoch(100000);
  bound.taken(0, 0);
  EXPECT_EQ(bound.excess(), 100000 - Bound::kAlways - Bound::kMostRegretted * 7 / 8);
}

// However much was purged in vain.
TEST(DirtyBound, TwiceOfWhatWasLiveMayStay) {
  Bound bound;
  const auto take_and_give = [&](std::size_t slices) {
    bound.taken(slices, 0);
    bound.given(slices, false);
    bound.purged_for_bound(bound.excess());
  };
  const auto stays = [&] {
    bound.dirty_is(100000);
    return 100000 - bound.excess();
  };
  for (int i = 0; i < 20; ++i) take_and_give(1600);
  EXPECT_EQ(stays(), 3200u);
  bound.taken(1000, 0);
  EXPECT_EQ(stays(), 2200u) << "with what is live";
  bound.given(1000, false);
  take_and_give(2000);
  EXPECT_EQ(stays(), 4000u) << "a higher one counts at once";
  for (int i = 0; i < 100; ++i) take_and_give(800);
  EXPECT_LT(stays(), 1700u) << "and is forgotten";
  EXPECT_GE(stays(), 1600u);
}

// It need not have sunk since.
TEST(DirtyBound, WhatIsLiveNowCountsAsTheHeight) {
  Bound bound;
  bound.purged_for_bound(8000);
  bound.taken(8000, 0);
  bound.dirty_is(100000);
  EXPECT_EQ(100000 - bound.excess(), Bound::kAlways + 2000 + Bound::kMostRegretted);
  bound.given(7000, false);
  bound.taken(9000, 0);
  bound.dirty_is(100000);
  EXPECT_EQ(100000 - bound.excess(), Bound::kAlways + 2500 + Bound::kMostRegretted);
}

// What the bound allows in any case tells nothing of what is live at a time.
TEST(DirtyBound, AfterSmallFallsTheHeightIsTheSame) {
  Bound bound;
  bound.purged_for_bound(8000);
  bound.taken(8000, 0);
  bound.given(4000, false);
  for (int i = 0; i < 200; ++i) {
    bound.given(500, false);
    bound.taken(500, 500);
  }
  bound.dirty_is(100000);
  EXPECT_EQ(100000 - bound.excess(), Bound::kAlways + 1000 + Bound::kMostRegretted);
}

TEST(DirtyBound, CountsThatAreTooSmallAreNone) {
  Bound bound;
  bound.taken(10, 700);
  bound.given(5000, true);
  EXPECT_EQ(bound.excess(), 0u);
  bound.dirty_is(600);
  EXPECT_EQ(bound.excess(), 600 - Bound::kAlways);
}

}  // namespace
}  // namespace spanalloc
