// When a thread that is lent blocks has earned a span of its own.
#include "standard/lending.hpp"

#include <gtest/gtest.h>

#include <cstdint>

#include "standard/test_support.hpp"

namespace spanalloc::large {
namespace {

using standard::ClassId;

using Lending = standard::Lending<Standard>;

constexpr ClassId kClass{5};

// How many batches a thread is lent until it has earned a span, if it frees before each of them or
// not, and so much time passes between two; at most 1000.
unsigned batches_to_own(bool frees, std::uint64_t ms_between, bool few = true) {
  Lending lending;
  unsigned batches = 0;
  for (std::uint64_t now = 100'000; !lending.has_earned_span(kClass) && batches != 1000;
       now += ms_between) {
    if (frees) lending.freed(kClass);
    lending.lent(kClass, now, few);
    ++batches;
  }
  return batches;
}

TEST(StandardLending, WhoFreesAndAllocatesInTurnSoonOwnsASpan) {
  EXPECT_LE(batches_to_own(true, 0), 5u);
  EXPECT_LE(batches_to_own(true, 3), 5u);
}

// Where most threads wait, a burst does not tell that its thread goes on.
TEST(StandardLending, WhereThreadsWaitTurnsCountOnlyWithTime) {
  EXPECT_GT(batches_to_own(true, 0, false), 30u);
  EXPECT_LE(batches_to_own(true, 3, false), 5u);
  EXPECT_EQ(batches_to_own(true, 50, false), 1000u);
}

TEST(StandardLending, WhoOnlyAllocatesOwnsOneLater) {
  EXPECT_GT(batches_to_own(false, 0), 30u);
  EXPECT_LE(batches_to_own(false, 0), 64u);
}

TEST(StandardLending, WhoRestsInBetweenOwnsNone) {
  EXPECT_EQ(batches_to_own(true, 50), 1000u);
  EXPECT_EQ(batches_to_own(false, 50), 1000u);
}

// What is lent in other classes is no rest; and each class is earned by itself.
TEST(StandardLending, OtherClassesTellThatTheThreadGoesOnAndNoMore) {
  Lending lending;
  std::uint64_t now = 1;
  for (unsigned i = 0; i != 200; ++i) {
    lending.freed(kClass);
    lending.lent(kClass, now, true);
    if (lending.has_earned_span(kClass)) break;
    lending.lent(ClassId{6}, now += 15, true);
    now += 15;
  }
  EXPECT_TRUE(lending.has_earned_span(kClass));
  EXPECT_FALSE(lending.has_earned_span(ClassId{6}));
}

// A class of a span that has begun another life meanwhile.
TEST(StandardLending, FreesOfAnyClassAreTaken) {
  Lending lending;
  for (unsigned c = 0; c != 256; ++c) lending.freed(ClassId{c});
  for (unsigned c = 1; c != Classes::kSmallClasses; ++c)
    EXPECT_FALSE(lending.has_earned_span(ClassId{c}));
}

// Frees of before a rest are not those of a thread that goes on.
TEST(StandardLending, ARestForgetsFrees) {
  Lending lending;
  std::uint64_t now = 1;
  for (unsigned i = 0; i != 200; ++i) {
    for (unsigned batch = 0; batch != 3; ++batch) lending.lent(kClass, now, true);
    lending.freed(kClass);
    now += 1000;
    ASSERT_FALSE(lending.has_earned_span(kClass)) << i;
  }
}

}  // namespace
}  // namespace spanalloc::large
