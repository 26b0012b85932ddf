// When what is held is near a limit, and how often that is a reason to look for more: counts,
// without any memory.
#include "pages/soft_limit.hpp"

#include <gtest/gtest.h>

#include <cstddef>

namespace spanalloc {
namespace {

using Came = SoftLimit::Came;
constexpr std::size_t kLimit = 64 * kMiB;  // a margin of 8 MiB, steps of 1 MiB

class SoftLimitTest : public testing::Test {
 protected:
  SoftLimitTest() { soft.set(kLimit, kLimit / SoftLimit::kMarginPart, kMiB); }
  SoftLimit soft;
};

TEST_F(SoftLimitTest, WithoutALimitNothingIsEverDueOrNear) {
  SoftLimit none;
  for (const bool set : {false, true}) {
    if (set) none.set(0, 0, 0);
    EXPECT_FALSE(none.is_due(SIZE_MAX));
    EXPECT_EQ(none.look(SIZE_MAX / 2), Came::kNowhere);
    none.looked(SIZE_MAX / 2);
    EXPECT_FALSE(none.is_near());
    EXPECT_FALSE(none.is_due(SIZE_MAX));
  }
}

TEST_F(SoftLimitTest, ItIsNearFromSevenEighthsOnUntilItIsThreeQuarters) {
  EXPECT_FALSE(soft.is_due(56 * kMiB));
  EXPECT_TRUE(soft.is_due(56 * kMiB + 1));
  EXPECT_EQ(soft.look(56 * kMiB), Came::kNowhere);
  EXPECT_EQ(soft.look(56 * kMiB + 1), Came::kNear);
  EXPECT_EQ(soft.look(200 * kMiB), Came::kNowhere) << "beyond the limit is no nearer";
  EXPECT_EQ(soft.look(48 * kMiB + 1), Came::kNowhere);
  EXPECT_TRUE(soft.is_near());
  EXPECT_EQ(soft.look(48 * kMiB), Came::kFar);
  EXPECT_FALSE(soft.is_near());
  EXPECT_EQ(soft.look(56 * kMiB), Came::kNowhere);
  EXPECT_EQ(soft.look(57 * kMiB), Came::kNear) << "and again";
}

// However little it finds.
TEST_F(SoftLimitTest, ALookIsDueOnceForEachStep) {
  std::size_t looks = 0;
  for (std::size_t held = 0; held <= 100 * kMiB; held += 64 * kKiB) {
    if (!soft.is_due(held)) continue;
    ++looks;
    soft.look(held);
    soft.looked(held);
  }
  EXPECT_EQ(looks, 42u) << "the first beyond 56 MiB, then with each MiB and a slice";
}

TEST_F(SoftLimitTest, WhatWasPurgedMakesTheNextLookComeEarlier) {
  soft.look(70 * kMiB);
  soft.looked(70 * kMiB);
  EXPECT_FALSE(soft.is_due(71 * kMiB));
  soft.look(60 * kMiB);
  EXPECT_TRUE(soft.is_due(61 * kMiB + 1));
  EXPECT_FALSE(soft.is_due(61 * kMiB));
  soft.look(40 * kMiB);
  EXPECT_TRUE(soft.is_due(56 * kMiB + 1)) << "it comes near as if for the first time";
}

TEST_F(SoftLimitTest, WhatIsFreedIsLookedAtAStepAtATime) {
  soft.look(60 * kMiB);
  unsigned looks = 0;
  for (unsigned i = 0; i < 160; ++i) looks += soft.note_free(64 * kKiB);
  EXPECT_EQ(looks, 10u);
  EXPECT_TRUE(soft.note_free(5 * kMiB)) << "a large one at once";
}

// A step of which, used again, makes an eighth of a step more that is held a reason to look.
TEST_F(SoftLimitTest, WhatIsUsedAgainMakesTheNextLookComeEarlier) {
  soft.look(60 * kMiB);
  soft.looked(60 * kMiB);
  for (unsigned i = 0; i < kMiB / 4096; ++i) {
    EXPECT_FALSE(soft.is_due(61 * kMiB)) << i;
    soft.note_miss();
  }
  EXPECT_FALSE(soft.is_due(60 * kMiB + kMiB / 8));
  EXPECT_TRUE(soft.is_due(60 * kMiB + kMiB / 8 + 1));
  soft.looked(60 * kMiB + 1);
  EXPECT_FALSE(soft.is_due(61 * kMiB + 1)) << "that counts from here on";
  // Where it goes up and down by less than a step, from the highest.
  soft.looked(60 * kMiB - kMiB / 2);
  for (unsigned i = 0; i < kMiB / 4096; ++i) soft.note_miss();
  EXPECT_FALSE(soft.is_due(60 * kMiB + kMiB / 8 + 1));
  // Not below where it is near.
  soft.look(50 * kMiB);
  soft.looked(50 * kMiB);
  for (unsigned i = 0; i < kMiB / 4096; ++i) soft.note_miss();
  EXPECT_FALSE(soft.is_due(56 * kMiB));
  EXPECT_TRUE(soft.is_due(56 * kMiB + 1));
}

TEST_F(SoftLimitTest, WhatIsFreeMayStayUpToAStepBelowTheLimit) {
  EXPECT_EQ(soft.excess(0, 0), 0u);
  EXPECT_EQ(soft.excess(63 * kMiB, 0), 0u);
  EXPECT_EQ(soft.excess(63 * kMiB + 1, 0), 1u);
  EXPECT_EQ(soft.excess(100 * kMiB, 0), 37 * kMiB);
  EXPECT_EQ(soft.excess(100 * kMiB, 62 * kMiB), 37 * kMiB);
  EXPECT_EQ(soft.excess(100 * kMiB, 80 * kMiB), 19 * kMiB) << "a step stays beyond it";
  SoftLimit none;
  EXPECT_EQ(none.excess(SIZE_MAX, 0), 0u);
  none.set(1, 0, 0);
  EXPECT_EQ(none.excess(5, 0), 4u);
  // What the kernel has refused is tried again with a step more, or when time has passed.
  soft.could_not_purge(70 * kMiB);
  EXPECT_EQ(soft.excess(71 * kMiB, 0), 0u);
  EXPECT_EQ(soft.excess(71 * kMiB + 5, 0), 5u);
  soft.may_purge();
  EXPECT_EQ(soft.excess(71 * kMiB, 0), 8 * kMiB);
  soft.could_not_purge(70 * kMiB);
  soft.set(kLimit, kLimit / 8, kMiB);
  EXPECT_EQ(soft.excess(64 * kMiB, 0), 0u) << "as when a group is read again";
  soft.forget_looks();
  EXPECT_EQ(soft.excess(64 * kMiB, 0), kMiB) << "a limit that is set counts at once";
}

TEST_F(SoftLimitTest, ANewLimitCountsAtOnce) {
  soft.look(60 * kMiB);
  soft.looked(60 * kMiB);
  soft.set(2 * kLimit, 2 * kLimit / 8, kMiB);
  EXPECT_EQ(soft.limit(), 2 * kLimit);
  EXPECT_EQ(soft.look(60 * kMiB), Came::kFar);
  soft.set(kLimit / 2, kLimit / 16, kMiB);
  EXPECT_TRUE(soft.is_due(60 * kMiB));
  EXPECT_EQ(soft.look(60 * kMiB), Came::kNear);
  soft.set(0, 0, 0);
  EXPECT_EQ(soft.look(60 * kMiB), Came::kFar);
}

// In a group that others fill, the margin is more than what is left of it.
TEST_F(SoftLimitTest, TheMarginMayBeMoreThanTheLimit) {
  soft.set(kMiB, 8 * kMiB, 4 * kMiB);
  EXPECT_EQ(soft.look(1), Came::kNear);
  EXPECT_EQ(soft.look(0), Came::kFar);
  SoftLimit tiny;
  tiny.set(1, 0, 0);
  EXPECT_EQ(tiny.look(2), Came::kNear);
  tiny.looked(2);
  EXPECT_TRUE(tiny.is_due(4));
}

}  // namespace
}  // namespace spanalloc
