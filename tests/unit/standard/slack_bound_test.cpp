// How much is given back around blocks that have a span of their own.
#include "standard/slack_bound.hpp"

#include <gtest/gtest.h>

#include "standard/config.hpp"

namespace spanalloc::standard {
namespace {

TEST(StandardSlackBound, AProgramThatGrowsMayGiveBackAsMuchAsItGrows) {
  SlackBound<Standard> bound;
  EXPECT_TRUE(bound.pays(100 * kMiB, 256 * kMiB, 1000));
  EXPECT_TRUE(bound.pays(150 * kMiB, 256 * kMiB, 1000));
  EXPECT_FALSE(bound.pays(60 * kMiB, 256 * kMiB, 1000));
  EXPECT_TRUE(bound.pays(60 * kMiB, 320 * kMiB, 1000));
}

// The same memory used by blocks of one size and another, in turn: it is not given back each time.
TEST(StandardSlackBound, WhatComesAndGoesPaysByTime) {
  SlackBound<Standard> bound;
  std::size_t given = 0;
  for (std::uint64_t ms = 1000; ms < 3000; ++ms) {
    for (std::size_t i = 0; i < 100; ++i)
      given += bound.pays(24 * kKiB, (i % 2) * 16 * kMiB, ms) ? 24 * kKiB : 0;
  }
  EXPECT_GT(given, 64 * kMiB);
  EXPECT_LT(given, 2 * 32 * kMiB * 2 + 32 * kMiB);
}

TEST(StandardSlackBound, CreditByTimeIsBounded) {
  SlackBound<Standard> bound;
  EXPECT_FALSE(bound.pays(33 * kMiB, 0, 1'000'000'000));
  EXPECT_TRUE(bound.pays(32 * kMiB, 0, 1'000'000'000));
  EXPECT_FALSE(bound.pays(1, 0, 1'000'000'000));
}

// Threads read the clock one after the other, and come here in another order.
TEST(StandardSlackBound, ATimeThatGoesBackEarnsNothing) {
  SlackBound<Standard> bound;
  EXPECT_TRUE(bound.pays(32 * kMiB, 0, 1'000'000));
  EXPECT_FALSE(bound.pays(1, 0, 999'990));
  EXPECT_TRUE(bound.pays(32 * kKiB, 0, 1'000'001));
  EXPECT_FALSE(bound.pays(1, 0, 1'000'001));
}

}  // namespace
}  // namespace spanalloc::standard
