#include "base/size_class_generator.hpp"

#include <gtest/gtest.h>

namespace spanalloc {
namespace {

// Every block size a span of 64 KiB may have, every offset: exactly the blocks' starts pass.
TEST(SizeClassGenerator, MultiplicationAcceptsBlockStartsOnly) {
  constexpr std::uint32_t kSpan = 65536;
  for (std::uint32_t d = 16; d <= 8192; d += 16) {
    const std::uint32_t magic = divisibility_magic32(d);
    const std::uint32_t count = kSpan / d;
    const std::uint32_t limit = multiple_limit32(d, count);
    for (std::uint32_t offset = 0; offset < kSpan; ++offset) {
      // Plain: there are 33 million of these.
      if ((offset * magic < limit) != (offset % d == 0 && offset / d < count))
        FAIL() << d << " at " << offset;
    }
  }
}

TEST(SizeClassGenerator, TheLargeMagicIsExactForAllOffsetsOfASpan) {
  for (std::uint64_t d = 512; d <= 1024 * 1024; d += 512) {
    const std::uint64_t magic = divisibility_magic64(d);
    for (std::uint64_t offset = 0; offset < 2 * 1024 * 1024; offset += 4096 - 16) {
      ASSERT_EQ(offset * magic < magic, offset % d == 0) << d << " at " << offset;
    }
  }
}

}  // namespace
}  // namespace spanalloc
