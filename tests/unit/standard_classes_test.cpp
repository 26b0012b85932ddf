// The class table of `standard`, checked by brute force against its promises.
#include <gtest/gtest.h>

#include "engines/virtual_span/standard/config.hpp"

namespace spanalloc::standard {
namespace {

TEST(StandardClasses, EveryRequestGetsTheSmallestClassThatHoldsIt) {
  for (std::size_t n = 1; n <= kMaxBlock; ++n) {
    const unsigned c = class_of(n);
    ASSERT_GE(kClassTable[c].block_size, n);
    if (c > 1) {
      ASSERT_LT(kClassTable[c - 1].block_size, n);
    }
  }
}

TEST(StandardClasses, WasteAboveA128ByteRequestIsAtMostAnEighth) {
  for (std::size_t n = 129; n <= kMaxBlock; ++n) {
    ASSERT_LE((kClassTable[class_of(n)].block_size - n) * 8, n) << n;
  }
}

TEST(StandardClasses, AlignedRequestsGetNaturallyAlignedBlocks) {
  for (std::size_t alignment = 1; alignment <= kMaxBlock; alignment *= 2) {
    for (std::size_t n :
         {std::size_t{1}, alignment / 2 + 1, alignment, alignment + 1, 3 * alignment, std::size_t{100000}}) {
      const unsigned c = class_of_aligned(n, alignment);
      if (n > kMaxBlock) {
        EXPECT_EQ(c, 0u);
        continue;
      }
      if (c == 0) continue;  // served outside spans
      EXPECT_GE(kClassTable[c].block_size, n);
      // Spans start at multiples of a granule, blocks in them at multiples of their size.
      EXPECT_LE(alignment, kGranule);
      EXPECT_TRUE(kClassTable[c].block_size % alignment == 0 || kClassTable[c].blocks == 1);
    }
  }
}

TEST(StandardClasses, AlignedClassesAreTheSmallestThatDo) {
  for (std::size_t alignment = 1; alignment <= 2 * kMaxBlock; alignment *= 2) {
    for (unsigned around = 1; around < kClasses; ++around) {
      for (const std::size_t n : {kClassTable[around].block_size - 1, kClassTable[around].block_size}) {
        unsigned smallest = 0;
        for (unsigned c = kClasses - 1; c > 0 && kClassTable[c].block_size >= n; --c) {
          const bool dense = kClassTable[c].block_size % alignment == 0;
          if (alignment <= kGranule && (dense || kClassTable[c].blocks == 1)) smallest = c;
        }
        ASSERT_EQ(class_of_aligned(n, alignment), smallest) << n << " bytes at multiples of " << alignment;
      }
    }
  }
}

TEST(StandardClasses, MultiplicationTellsBlockStarts) {
  for (unsigned c = 1; c < kClasses; ++c) {
    const ClassInfo& k = kClassTable[c];
    const std::size_t step = c <= kThreadClasses ? 1 : 8;
    for (std::size_t offset = 0; offset < k.virtual_span; offset += step) {
      const bool start = offset % k.block_size == 0;
      if (c <= kThreadClasses) {
        const std::uint32_t magic = divisibility_magic32(k.block_size);
        ASSERT_EQ(static_cast<std::uint32_t>(offset) * magic < magic, start) << c << " " << offset;
      }
      ASSERT_EQ(offset * k.magic < k.magic, start) << c << " " << offset;
    }
  }
}

}  // namespace
}  // namespace spanalloc::standard
