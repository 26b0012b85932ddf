// Which blocks a mask of pages means, in the spans of every class.
#include "standard/purged_pages.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "random.hpp"

namespace spanalloc::standard {
namespace {

using Classes = SizeClasses<Standard>;

// Byte by byte.
bool touches(const SizeClass& span, std::uint32_t i, std::uint64_t mask) {
  for (std::uint32_t at = span.offset_of(i); at < span.offset_of(i + 1); ++at) {
    if ((mask >> at / PageMask::kBytes & 1) != 0) return true;
  }
  return false;
}

TEST(StandardPurgedPages, AreTheBlocksThatTouchThem) {
  test::Random random(38);
  for (unsigned c = 1; c < Classes::kSmallClasses; ++c) {
    const SizeClass& span = Classes::kTable[c];
    const std::uint32_t pages = span.real_span / PageMask::kBytes;
    for (int round = 0; round < 12; ++round) {
      std::uint64_t mask = random.next() & random.next() & PageMask::range(0, pages - 1);
      if (round == 0) mask = 1;
      if (round == 1) mask = PageMask::range(0, pages - 1);
      const auto carved = static_cast<std::uint32_t>(1 + random.next() % span.blocks);
      std::vector<std::uint32_t> expected;
      for (std::uint32_t i = 0; i < carved; ++i) {
        EXPECT_EQ((PageMask::of_block(i, span) & mask) != 0, touches(span, i, mask));
        if (touches(span, i, mask)) expected.push_back(i);
      }
      std::vector<std::uint32_t> found;
      for_each_purged(mask, span, carved, [&](std::uint32_t i) { found.push_back(i); });
      EXPECT_EQ(found, expected) << span.block_size << " bytes, mask " << mask;
      EXPECT_EQ(count_purged(mask, span, carved), expected.size());
    }
  }
}

}  // namespace
}  // namespace spanalloc::standard
