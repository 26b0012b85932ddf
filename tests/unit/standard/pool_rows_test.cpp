// In which of a row's stacks the spans of a pool are, and which of them leave it.
#include "standard/pool_rows.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "owned_heap.hpp"

namespace spanalloc::standard {
namespace {

using Classes = SizeClasses<Standard>;

class StandardPoolRows : public testing::Test {
 protected:
  StandardPoolRows() {
    EXPECT_TRUE(owned_.pages.start());
    stacks_->set_shards(2);
    rows_.start(*stacks_);
  }
  // A span that nobody has put into a pool.
  SpanNumber fresh() { return owned_.heap.take_span(kClass, 0).span.number; }
  auto collect(std::vector<SpanNumber>& into) {
    return [&into](SpanRef span) { into.push_back(span.number); };
  }

  static constexpr ClassId kClass{5};
  const ClassInfo& info_ = Classes::info(kClass);
  test::OwnedHeap<> owned_;
  std::unique_ptr<PoolRows<Standard>::Stacks> stacks_ =
      std::make_unique<PoolRows<Standard>::Stacks>();
  PoolRows<Standard> rows_{owned_.pages};
};

TEST_F(StandardPoolRows, WhatComesInDuringAnEpochStaysThroughIt) {
  const SpanNumber old = fresh();
  const SpanNumber young = fresh();
  ASSERT_TRUE(rows_.put(old, info_, 0));
  rows_.begin_epoch();
  ASSERT_TRUE(rows_.put(young, info_, 0));
  std::vector<SpanNumber> given;
  EXPECT_GT(rows_.drain_last_epochs(100, collect(given)), 0u);
  EXPECT_EQ(given, std::vector{old});
  EXPECT_EQ(rows_.take(info_.pool_row, 0), young);
  EXPECT_EQ(rows_.take(info_.pool_row, 0), SpanNumber::kNone);
}

TEST_F(StandardPoolRows, TheEpochsPartIsBounded) {
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(rows_.put(fresh(), info_, i % 2));
  rows_.begin_epoch();
  std::vector<SpanNumber> given;
  EXPECT_EQ(rows_.drain_last_epochs(4, collect(given)), 4u);
  EXPECT_EQ(given.size(), 4u);
  rows_.drain(collect(given));
  EXPECT_EQ(given.size(), 10u);
}

TEST_F(StandardPoolRows, TheBoundIsOnBothStacksTogether) {
  ClassInfo info = info_;
  info.pool_most = 3;
  ASSERT_TRUE(rows_.put(fresh(), info, 0));
  ASSERT_TRUE(rows_.put(fresh(), info, 0));
  rows_.begin_epoch();
  ASSERT_TRUE(rows_.put(fresh(), info, 0));
  EXPECT_FALSE(rows_.put(fresh(), info, 0)) << "three are there";
  EXPECT_TRUE(rows_.put(fresh(), info, 1)) << "of another shard";
}

TEST_F(StandardPoolRows, ASpanIsFoundFromAnotherShard) {
  const SpanNumber span = fresh();
  ASSERT_TRUE(rows_.put(span, info_, 1));
  EXPECT_EQ(rows_.take_local(info_.pool_row, 0), SpanNumber::kNone);
  rows_.begin_epoch();
  EXPECT_EQ(rows_.take(info_.pool_row, 0), span);
  EXPECT_EQ(rows_.take(info_.pool_row, 0), SpanNumber::kNone);
}

TEST_F(StandardPoolRows, OnlyAShardThatHasEnoughIsDrainedForAnotherSize) {
  std::vector<SpanNumber> given;
  ASSERT_TRUE(rows_.put(fresh(), info_, 0));
  EXPECT_FALSE(rows_.drain_for({1}, 0, 100, collect(given))) << "not worth it";
  const std::size_t worth = Standard::kWorthDraining / info_.real_span + 1;
  for (std::size_t i = 0; i < worth; ++i) ASSERT_TRUE(rows_.put(fresh(), info_, 1));
  EXPECT_TRUE(rows_.drain_for({1}, 0, 3, collect(given)));
  EXPECT_EQ(given.size(), 3u);
}

}  // namespace
}  // namespace spanalloc::standard
