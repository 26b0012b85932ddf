// Which used-up spans a thread keeps, and how it finds one of a class.
#include "engines/standard/used_up_spans.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "engines/standard/engine.hpp"
#include "os_calls.hpp"
#include "random.hpp"
#include "threads.hpp"

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

TEST_F(StandardUsedUpSpans, HaveMoreRoomAfterSeveralNearlyFullOnes) {
  constexpr std::size_t kLeast = Standard::kUsedUpBytes;
  for (unsigned i = 0; i < Standard::kRefillsToKeep; ++i) used_up_.make_room(kOneSlice, SIZE_MAX);
  EXPECT_EQ(used_up_.room(), kLeast);
  used_up_.make_room(kOneSlice, SIZE_MAX);
  EXPECT_EQ(used_up_.room(), kLeast + 64 * kKiB);
  used_up_.make_room(kFourSlices, SIZE_MAX);
  EXPECT_EQ(used_up_.room(), kLeast + 320 * kKiB);
  used_up_.make_room(kFourSlices, 128 * kKiB);
  EXPECT_EQ(used_up_.room(), kLeast + 128 * kKiB) << "there are more threads by now";
  for (unsigned i = 0; i < 100; ++i) used_up_.make_room(kOneSlice, SIZE_MAX);
  EXPECT_EQ(used_up_.room(), kLeast + Standard::kMoreUsedUpBytes);
  used_up_.lose_room();
  EXPECT_EQ(used_up_.room(), kLeast + 45 * 64 * kKiB) << "of 52 slices";
  used_up_.make_room(kOneSlice, SIZE_MAX);
  EXPECT_LT(used_up_.room(), kLeast + Standard::kMoreUsedUpBytes) << "the first of its round";
  for (unsigned i = 0; i < 30; ++i) used_up_.lose_room();
  EXPECT_EQ(used_up_.room(), kLeast);
}

// On a thread of its own, which begins as any.
template <class F>
void replacing_at_random(std::size_t size, F&& f) {
  test::on_another_thread([&] {
    test::Random random(7);
    std::vector<void*> blocks(2 * kMiB / size);
    for (void*& p : blocks) p = StandardEngine::allocate(size);
    for (int i = 0; i < 30000; ++i) {
      void*& p = blocks[random.below(blocks.size())];
      StandardEngine::deallocate(p);
      p = StandardEngine::allocate(size);
    }
    f(StandardEngine::thread_cache.cache->owned.used_up());
    for (void* p : blocks) StandardEngine::deallocate(p);
    // Batches, for some time: each goes on with spans that are free as a whole.
    for (int round = 0; round < 60; ++round) {
      test::advance_clock(250);
      for (void*& p : blocks) p = StandardEngine::allocate(size);
      for (void* p : blocks) StandardEngine::deallocate(p);
    }
    EXPECT_EQ(StandardEngine::thread_cache.cache->owned.used_up().room(), Standard::kUsedUpBytes);
  });
}

TEST(StandardUsedUpSpansOfAThread, StayWhereItReplacesSmallBlocksAtRandom) {
  for (const std::size_t size : {100, 500, 1000, 1152}) {
    replacing_at_random(size, [&](const UsedUp& used_up) {
      EXPECT_GT(used_up.room(), 3 * kMiB / 2) << size;
      std::size_t bytes = 0;
      used_up.for_each(
          [&](unsigned i) { bytes += SizeClasses<Standard>::info(used_up.class_of(i)).real_span; });
      EXPECT_GT(bytes, 3 * kMiB / 2) << size;
    });
  }
  replacing_at_random(3000, [](const UsedUp& used_up) {
    EXPECT_EQ(used_up.room(), Standard::kUsedUpBytes) << "magazines serve such blocks";
  });
}

}  // namespace
}  // namespace spanalloc::standard
