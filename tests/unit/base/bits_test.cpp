#include "base/bits.hpp"

#include <gtest/gtest.h>

namespace spanalloc {
namespace {

TEST(Bits, RoundToPowersOfTwo) {
  EXPECT_EQ(align_up(0, 16), 0u);
  EXPECT_EQ(align_up(1, 16), 16u);
  EXPECT_EQ(align_up(16, 16), 16u);
  EXPECT_EQ(align_up(SIZE_MAX - 4095, 4096), SIZE_MAX - 4095)
      << "the largest that does not overflow";
  EXPECT_EQ(align_down(4095, 4096), 0u);
  EXPECT_EQ(align_down(SIZE_MAX, 4096), SIZE_MAX - 4095);
}

TEST(Bits, LogarithmsOfPowersAndTheirNeighbours) {
  EXPECT_EQ(log2_ceil(0), 0u);
  EXPECT_EQ(log2_floor(1), 0u);
  EXPECT_EQ(log2_ceil(1), 0u);
  EXPECT_FALSE(is_power_of_two(0));
  for (unsigned log = 2; log < 64; ++log) {
    const std::size_t power = std::size_t{1} << log;
    EXPECT_TRUE(is_power_of_two(power));
    EXPECT_FALSE(is_power_of_two(power - 1));
    EXPECT_FALSE(is_power_of_two(power + 1));
    EXPECT_EQ(log2_floor(power - 1), log - 1);
    EXPECT_EQ(log2_floor(power), log);
    EXPECT_EQ(log2_floor(power + 1), log);
    EXPECT_EQ(log2_ceil(power - 1), log);
    EXPECT_EQ(log2_ceil(power), log);
    EXPECT_EQ(log2_ceil(power + 1), log + 1);
  }
}

}  // namespace
}  // namespace spanalloc
