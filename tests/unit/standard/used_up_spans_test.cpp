// Which used-up spans a thread keeps, and how it finds one of a class.
#include "standard/used_up_spans.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "os_calls.hpp"
#include "random.hpp"
#include "standard/engine.hpp"
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
  std::uint32_t search = 5;
  const auto make_room = [&](ClassId c, std::size_t at_most = SIZE_MAX) {
    used_up_.make_room(c, at_most, search++);
  };
  for (unsigned i = 0; i < Standard::kRefillsToKeep; ++i) make_room(kOneSlice);
  EXPECT_EQ(used_up_.room(), kLeast);
  make_room(kOneSlice);
  EXPECT_EQ(used_up_.room(), kLeast + 64 * kKiB);
  make_room(kFourSlices);
  EXPECT_EQ(used_up_.room(), kLeast + 320 * kKiB);
  make_room(kFourSlices, 128 * kKiB);
  EXPECT_EQ(used_up_.room(), kLeast + 128 * kKiB) << "there are more threads by now";
  for (unsigned i = 0; i < 200; ++i) make_room(kOneSlice);
  EXPECT_EQ(used_up_.room(), kLeast + Standard::kMoreUsedUpBytes);
  used_up_.lose_room();
  EXPECT_EQ(used_up_.room(), kLeast + 45 * 64 * kKiB) << "of 52 slices";
  for (unsigned i = 0; i < 30; ++i) used_up_.lose_room();
  EXPECT_EQ(used_up_.room(), kLeast);
}

TEST_F(StandardUsedUpSpans, HaveNoMoreRoomWhereFewOfThemAreNearlyFull) {
  std::uint32_t search = 0;
  for (unsigned i = 0; i < 1000; ++i) used_up_.make_room(kOneSlice, SIZE_MAX, search += 3);
  EXPECT_EQ(used_up_.room(), Standard::kUsedUpBytes);
}

using Engine = StandardEngine;

const UsedUp& used_up_of_thread() {
  return Engine::thread_cache.cache->owned.used_up();
}
std::size_t bytes_of(const UsedUp& used_up) {
  std::size_t bytes = 0;
  used_up.for_each([&](unsigned i) {
    bytes += SizeClasses<Standard>::info(used_up.class_of(i)).slices * 64 * kKiB;
  });
  return bytes;
}

// 2 MiB of blocks, of which one after the other is replaced; then f(), and all are freed.
template <class F>
void replace_at_random(std::size_t size, F&& f) {
  test::Random random(7);
  std::vector<void*> blocks(2 * kMiB / size);
  for (void*& p : blocks) p = Engine::allocate(size);
  for (int i = 0; i < 30000; ++i) {
    void*& p = blocks[random.below(blocks.size())];
    Engine::deallocate(p);
    p = Engine::allocate(size);
  }
  f();
  for (void* p : blocks) Engine::deallocate(p);
}

TEST(StandardUsedUpSpansOfAThread, AreMoreWhereItReplacesSmallBlocksAtRandom) {
  for (const std::size_t size : {100, 500, 1000, 1152}) {
    test::on_another_thread([&] {
      replace_at_random(size, [&] {
        EXPECT_GT(used_up_of_thread().room(), 3 * kMiB / 2) << size;
        EXPECT_GT(bytes_of(used_up_of_thread()), 3 * kMiB / 2) << size;
      });
      EXPECT_LE(bytes_of(used_up_of_thread()), Standard::kUsedUpBytes) << "empty ones are shared";
    });
    test::on_another_thread([&] {
      Engine::deallocate(Engine::allocate(size));
      EXPECT_EQ(used_up_of_thread().room(), Standard::kUsedUpBytes) << "in the same record";
    });
  }
  test::on_another_thread([] {
    replace_at_random(3000, [] {
      EXPECT_EQ(used_up_of_thread().room(), Standard::kUsedUpBytes) << "magazines serve such";
    });
  });
}

TEST(StandardUsedUpSpansOfAThread, AreSharedByAndByWhenTheyAreNotNeededAnyMore) {
  test::on_another_thread([] {
    replace_at_random(500, [] {
      const std::size_t before = bytes_of(used_up_of_thread());
      for (int round = 0; round < 60; ++round) {
        test::advance_clock(250);
        for (int i = 0; i < 200; ++i) Engine::deallocate(Engine::allocate(40000));
        EXPECT_LE(bytes_of(used_up_of_thread()), used_up_of_thread().room());
      }
      EXPECT_EQ(used_up_of_thread().room(), Standard::kUsedUpBytes);
      EXPECT_LT(bytes_of(used_up_of_thread()), before);
    });
  });
}

}  // namespace
}  // namespace spanalloc::standard
