// Which used-up spans a thread keeps, and how it finds one of a class.
#include "engines/standard/used_up_spans.hpp"

#include <gtest/gtest.h>

#include <memory>

namespace spanalloc::standard {
namespace {

using UsedUp = UsedUpSpans<Standard>;

constexpr ClassId kOneSlice{5}, kFourSlices{80};

class StandardUsedUpSpans : public testing::Test {
 protected:
  SpanRef span(unsigned i) { return {&records_[i], SpanNumber{i + 1}}; }

  UsedUp used_up_;
  std::unique_ptr<Span[]> records_ = std::make_unique<Span[]>(100);
};

TEST_F(StandardUsedUpSpans, AreFoundByPlaceAndByClass) {
  for (unsigned i = 0; i < 8; ++i) used_up_.join(span(i), i % 2 == 0 ? kOneSlice : kFourSlices);
  for (unsigned i = 0; i < 8; ++i) {
    const unsigned place = used_up_.place_of(span(i));
    ASSERT_NE(place, UsedUp::kNoPlace);
    EXPECT_EQ(used_up_.span(place), span(i).number);
    EXPECT_EQ(used_up_.class_of(place), i % 2 == 0 ? kOneSlice : kFourSlices);
    EXPECT_TRUE(used_up_.has(span(i).number));
  }
  EXPECT_EQ(used_up_.place_of(span(8)), UsedUp::kNoPlace) << "its record says 0, as another's";
  EXPECT_EQ(used_up_.any_ready(kFourSlices), UsedUp::kNoPlace);
  used_up_.mark_ready(used_up_.place_of(span(7)));
  EXPECT_EQ(used_up_.any_ready(kFourSlices), used_up_.place_of(span(7)));
  EXPECT_EQ(used_up_.any_ready(kOneSlice), UsedUp::kNoPlace);
  used_up_.leave(used_up_.place_of(span(7)));
  EXPECT_FALSE(used_up_.has_ready());
  EXPECT_EQ(used_up_.place_of(span(7)), UsedUp::kNoPlace);
}

TEST_F(StandardUsedUpSpans, TheOldestOfAClassComesRoundFirst) {
  for (unsigned i = 0; i < UsedUp::kPlaces; ++i) used_up_.join(span(i), kOneSlice);
  for (unsigned i = 0; i < 7; ++i) {
    const unsigned oldest = used_up_.oldest_of(kOneSlice);
    EXPECT_EQ(used_up_.span(oldest), span(i).number);
    EXPECT_EQ(used_up_.oldest(), oldest);
    used_up_.leave(oldest);
    used_up_.join(span(UsedUp::kPlaces + i), kOneSlice);
  }
  EXPECT_EQ(used_up_.oldest_of(kFourSlices), UsedUp::kNoPlace);
}

TEST_F(StandardUsedUpSpans, AreABoundedNumberOfBytes) {
  std::size_t bytes = 0;
  for (unsigned i = 0; used_up_.fits(kFourSlices); ++i) {
    used_up_.join(span(i), kFourSlices);
    bytes += 256 * kKiB;
  }
  EXPECT_EQ(bytes, Standard::kUsedUpBytes);
  EXPECT_FALSE(used_up_.fits(kOneSlice));
}

}  // namespace
}  // namespace spanalloc::standard
