// The records of an arena's slices, where memory for them is refused.
#include "standard/span_table.hpp"

#include <gtest/gtest.h>

#include "address_limit.hpp"
#include "child.hpp"
#include "sanitizers.hpp"
#include "standard/config.hpp"

namespace spanalloc {
namespace {

// The slices of the gap are lost because another table has no entries for them. Then the records
// behind it are refused.
TEST(StandardSpanTable, RecordsThatAreRefusedBehindAGapOfAnotherTableAreNotThere) {
  if (test::kUnderAsan || test::kUnderTsan || test::kEmulated) {
    GTEST_SKIP() << "limits addresses";
  }
  test::in_child([] {
    static standard::SpanTable<Standard> spans;
    ASSERT_TRUE(spans.start());
    static constexpr TableReach kGap{1000, 100'000};
    const auto reach_around_gap = [](std::size_t end) {
      return end <= kGap.end || spans.arena.limit() >= kGap.next ? TableReach{end, end} : kGap;
    };
    ASSERT_EQ(spans.records_reach()(kGap.end).end, kGap.end);
    while (spans.arena.limit() < kGap.next) {
      ASSERT_NE(spans.arena.take_growing(50, 1, reach_around_gap).first, 0u);
    }
    ASSERT_TRUE(test::leave_address_space(0));
    const std::size_t wanted = spans.arena.limit() + 50;
    const TableReach reach = spans.records_reach()(wanted);
    ASSERT_LT(reach.end, wanted) << "nothing was refused";
    EXPECT_EQ(reach.end, reach.next);
    const std::size_t end = index_of(spans.end_of_spans());
    EXPECT_GE(end, kGap.end);
    for (std::size_t i = 1; i < end; ++i) {
      const standard::SpanNumber number{static_cast<std::uint32_t>(i)};
      if (!spans.has_record(number)) continue;
      EXPECT_EQ(spans.span(number)->gone, 0u);  // can be read
    }
    // With memory again the records go on behind the gap.
    ASSERT_TRUE(test::leave_address_space(kTiB));
    EXPECT_EQ(spans.records_reach()(wanted).end, wanted);
    EXPECT_EQ(spans.span(standard::SpanNumber{static_cast<std::uint32_t>(wanted - 1)})->gone, 0u);
  });
}

}  // namespace
}  // namespace spanalloc
