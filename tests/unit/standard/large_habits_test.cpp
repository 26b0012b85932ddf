// Which large blocks stay in memory, and which are cleared by giving their pages back.
#include "standard/large_habits.hpp"

#include <gtest/gtest.h>

#include "base/bits.hpp"
#include "standard/config.hpp"

namespace spanalloc::standard {
namespace {

using Habits = LargeHabits<Standard>;
constexpr std::size_t kGiant = Standard::kGiant >> Standard::kSliceBits;
constexpr std::size_t kUsed = Habits::kUsed;

// A block in memory, in 256ths, that is freed and taken again.
struct Life {
  Habits& habits;
  std::size_t slices;
  std::size_t in_memory = 0;
  unsigned looks = 0;
  unsigned purges = 0;

  void free() {
    if (!habits.wants_look(slices)) return;
    ++looks;
    if (!habits.gives_back(slices, min_of(in_memory, kUsed))) return;
    ++purges;
    in_memory = 0;
  }
};

TEST(StandardLargeHabits, WhatIsWrittenToTheSamePlacesStays) {
  for (const unsigned slices : {128u, 200u, 511u}) {
    for (const unsigned part : {0u, 1u, 5u, 26u, 63u, 64u, 256u}) {
      Habits habits;
      Life life{habits, slices};
      for (unsigned i = 0; i < 3200; ++i) {
        life.in_memory = max_of(life.in_memory, part);
        life.free();
      }
      EXPECT_EQ(life.purges, 0u) << slices << " " << part;
      if (part < kUsed) {
        EXPECT_LT(life.looks, 3200u / 25) << slices << " " << part;
      }
    }
  }
}

// Elsewhere each time: never a quarter, and in the end hardly more than is written at a time.
TEST(StandardLargeHabits, WhatIsWrittenToOtherPlacesDoesNotAddUp) {
  for (const unsigned part : {1u, 2u, 3u, 4u, 8u, 16u, 32u, 60u}) {
    Habits habits;
    Life life{habits, 384};
    std::size_t peak = 0;
    double sum = 0;
    constexpr unsigned kRounds = 3000;
    for (unsigned i = 0; i < kRounds; ++i) {
      life.in_memory += part;
      peak = max_of(peak, life.in_memory);
      sum += static_cast<double>(life.in_memory);
      life.free();
    }
    EXPECT_LE(peak, part < 32 ? kUsed : 2 * part) << part;
    EXPECT_LT(sum / kRounds, static_cast<double>(part) * 1.25 + 2) << part;
  }
}

// The pages of one go, since nobody knows yet that the program has come to use all.
TEST(StandardLargeHabits, WhereSomeAreUsedAllStaySoon) {
  Habits habits;
  Life life{habits, 384};
  for (unsigned i = 0; i < 1000; ++i) {
    life.in_memory = max_of(life.in_memory, i % 2 == 0 ? 20 : 256);
    life.free();
  }
  EXPECT_LE(life.purges, 3u);
}

// Cleared, it is in memory whole, however little the program has written.
TEST(StandardLargeHabits, WhatClearingBringsToMemoryStays) {
  Habits habits;
  Life life{habits, 384};
  unsigned purged_to_clear = 0;
  for (unsigned i = 0; i < 1000; ++i) {
    if (habits.clears_by_purging(384, min_of(life.in_memory, kUsed))) {
      ++purged_to_clear;
      life.in_memory = 0;
    } else {
      life.in_memory = 256;
    }
    life.in_memory = max_of(life.in_memory, 26);
    life.free();
  }
  EXPECT_EQ(life.purges, 0u);
  EXPECT_LE(purged_to_clear, 5u);
}

TEST(StandardLargeHabits, AGiantOneStaysOnlyIfItWasUsed) {
  Habits habits;
  for (unsigned i = 0; i < 100; ++i) {
    ASSERT_TRUE(habits.wants_look(kGiant));
    EXPECT_TRUE(habits.gives_back(kGiant, 0));
    EXPECT_TRUE(habits.gives_back(kGiant, kUsed - 1));
    EXPECT_FALSE(habits.gives_back(kGiant, kUsed));
  }
}

// Zeroes may have been written.
TEST(StandardLargeHabits, GiantOnesOfNothingButZeroesStayAfterAWhile) {
  Habits habits;
  for (unsigned round = 0; round < 3; ++round) {
    unsigned looks = 0;
    unsigned purges = 0;
    for (unsigned i = 0; i < 320; ++i) {
      if (!habits.wants_look(kGiant)) continue;
      ++looks;
      purges += habits.gives_back(kGiant, 0) ? 1 : 0;
    }
    EXPECT_EQ(purges, 8u);
    EXPECT_LE(looks, 8u + 320 / 32);
    while (!habits.wants_look(kGiant)) {
    }
    EXPECT_TRUE(habits.gives_back(kGiant, 4)) << "something else in it";
  }
}

TEST(StandardLargeHabits, ClearingIsGivenUpWhereLittleIsWritten) {
  for (const std::size_t slices : {std::size_t{384}, kGiant}) {
    Habits habits;
    unsigned cleared = 0;
    std::size_t in_memory = 256;
    for (unsigned i = 0; i < 1000; ++i) {
      const bool purges = habits.clears_by_purging(slices, min_of(in_memory, kUsed));
      cleared += purges ? 0 : 1;
      in_memory = purges ? 1 : 256;
    }
    EXPECT_LT(cleared, slices < kGiant ? 64u : 16u);
  }
}

// Those that a program begins to fill are looked at again with the first one that it frees.
TEST(StandardLargeHabits, AFilledGiantOneEndsClearingUnseen) {
  Habits habits;
  const auto clear_until_unseen = [&] {
    unsigned looks = 0;
    while (habits.wants_look_to_clear(kGiant)) {
      ++looks;
      EXPECT_TRUE(habits.clears_by_purging(kGiant, 0));
    }
    return looks;
  };
  EXPECT_GE(clear_until_unseen(), 8u);
  EXPECT_FALSE(habits.wants_look_to_clear(kGiant));
  EXPECT_FALSE(habits.gives_back(kGiant, kUsed));
  ASSERT_TRUE(habits.wants_look_to_clear(kGiant));
  EXPECT_FALSE(habits.clears_by_purging(kGiant, kUsed)) << "cleared where it stands";
  EXPECT_GE(clear_until_unseen(), 8u);
  EXPECT_TRUE(habits.gives_back(kGiant, 0));
  EXPECT_FALSE(habits.wants_look_to_clear(kGiant)) << "one of zeroes tells nothing";
}

TEST(StandardLargeHabits, ClearingInVainByPurgingIsTriedSeldom) {
  Habits habits;
  for (const unsigned part : {26u, 256u}) {
    unsigned purged = 0;
    std::size_t in_memory = 256;
    for (unsigned i = 0; i < 10'000; ++i) {
      const bool purges = habits.clears_by_purging(384, min_of(in_memory, kUsed));
      purged += purges ? 1 : 0;
      in_memory = purges ? part : 256;
    }
    EXPECT_LE(purged, 14u);
    EXPECT_GE(purged, 9u) << "a program may change";
  }
}

// Blocks whose sizes share a word, and threads that overwrite each other's: whatever came before,
// those that stay are looked at again, and memory in which there is nothing is not cleared.
TEST(StandardLargeHabits, AnyOrderOfLooksIsTaken) {
  Habits habits;
  std::uint64_t random = 1;
  unsigned unseen = 0;
  for (unsigned i = 0; i < 100'000; ++i) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    const std::size_t slices = 128 + (random >> 40) % 100;
    const std::size_t look = (random >> 20) % (kUsed + 1);
    unseen = habits.wants_look(slices) ? 0 : unseen + 1;
    if (unseen == 0) habits.gives_back(slices, look);
    ASSERT_LE(unseen, 16u * 31u);
    ASSERT_TRUE(habits.clears_by_purging(slices, look % 10));
  }
}

}  // namespace
}  // namespace spanalloc::standard
