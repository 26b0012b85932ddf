#include "base/divisibility.hpp"

#include <gtest/gtest.h>

#include <random>

#include "seed_report.hpp"

namespace spanalloc {
namespace {

// Every block size a span of 64 KiB may have, every offset: exactly the blocks' starts pass.
TEST(Divisibility, MultiplicationAcceptsBlockStartsOnly) {
  constexpr std::uint64_t kSpan = 65536;
  for (std::uint64_t d = 16; d <= 8192; d += 16) {
    const std::uint64_t magic = divisibility_magic(d);
    const std::uint64_t count = kSpan / d;
    const std::uint64_t limit = multiple_limit(d, magic, count);
    for (std::uint64_t offset = 0; offset < kSpan; ++offset) {
      // Plain: there are 33 million of these.
      if ((offset * magic < limit) != (offset % d == 0 && offset / d < count))
        FAIL() << d << " at " << offset;
    }
  }
}

// Whatever two addresses below 2^48 it is the difference of.
TEST(Divisibility, MultiplicationRefusesAddressesOutsideOfTheSpan) {
  constexpr std::uint64_t kEnd = std::uint64_t{1} << 48;
  constexpr std::uint64_t kMostSpan = 256 * kKiB;
  std::mt19937_64 random(test::seed_of(11));
  for (std::uint64_t d = 16; d <= 32 * kKiB; d += 16) {
    const std::uint64_t magic = divisibility_magic(d);
    for (const std::uint64_t count : {std::uint64_t{1}, kMostSpan / d}) {
      const std::uint64_t limit = multiple_limit(d, magic, count);
      const auto passes = [&](std::uint64_t x) { return x * magic < limit; };
      EXPECT_FALSE(passes(count * d) || passes(0 - d) || passes((kEnd - 1) / d * d) ||
                   passes(0 - kEnd / d * d))
          << d;
      EXPECT_FALSE(passes(kEnd) || passes(0 - kEnd) || passes(kEnd - 1) || passes(1 - kEnd)) << d;
      for (int i = 0; i < 200; ++i) {
        const std::uint64_t distance = random() % kEnd >> random() % 40;
        if (distance >= count * d && passes(distance)) FAIL() << d << " at " << distance;
        if (distance != 0 && passes(0 - distance)) FAIL() << d << " at -" << distance;
        const std::uint64_t multiple = distance / d * d;
        if (multiple >= count * d && passes(multiple)) FAIL() << d << " at " << multiple;
        if (multiple != 0 && passes(0 - multiple)) FAIL() << d << " at -" << multiple;
      }
    }
  }
}

TEST(Divisibility, TheMagicIsExactForAllOffsetsOfASpan) {
  for (std::uint64_t d = 512; d <= 1024 * 1024; d += 512) {
    const std::uint64_t magic = divisibility_magic(d);
    for (std::uint64_t offset = 0; offset < 2 * 1024 * 1024; offset += 4096 - 16) {
      ASSERT_EQ(offset * magic < magic, offset % d == 0) << d << " at " << offset;
    }
  }
}

}  // namespace
}  // namespace spanalloc
