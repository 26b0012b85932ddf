// Which purges of an address range map memory anew: over a kernel that grants everything, maps
// nothing and counts.
#include "pages/address_range.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "child.hpp"
#include "sanitizers.hpp"

namespace spanalloc {
namespace {

struct CountingCalls : PageCalls {
  static inline std::size_t purges = 0;
  static inline std::size_t renewals = 0;

  static void* reserve(std::size_t, std::size_t) { return nullptr; }
  static os::Placed reserve_at(void*, std::size_t) { return os::Placed::kYes; }
  static bool open(void*, std::size_t) { return true; }
  static bool release(void*, std::size_t) { return true; }
  static bool would_grant(std::size_t) { return true; }
  static bool purge(void*, std::size_t) { return ++purges, true; }
  static bool renew(void*, std::size_t) { return ++renewals, true; }
};

struct RenewedRanges : testing::Test {
  using Range =
      AddressRange<16, HugePages::kKernelDefault, 16 * kMiB, 1, Claim::kPlace, CountingCalls>;

  RenewedRanges() {
    CountingCalls::purges = CountingCalls::renewals = 0;
    EXPECT_TRUE(range.start(Range::kSlice));
    EXPECT_EQ(range.open_up_to(1 + 8 * kMiB / Range::kSlice), os::Placed::kYes);
  }
  /// Whether a purge of so much maps it anew.
  bool is_renewed(std::size_t bytes) {
    const std::size_t before = CountingCalls::renewals;
    const std::size_t all = before + CountingCalls::purges;
    EXPECT_TRUE(range.purge_unused(range.address(1), bytes));
    EXPECT_EQ(CountingCalls::renewals + CountingCalls::purges, all + 1);
    return CountingCalls::renewals != before;
  }
  Range range{};
};

TEST_F(RenewedRanges, MapsAnewWhatIsLargeEnough) {
  EXPECT_FALSE(is_renewed(kMiB - 1));
  EXPECT_TRUE(is_renewed(kMiB));
  EXPECT_TRUE(is_renewed(7 * kMiB));
}

// Whether it is locked is asked once for each round of purges, and only for what is large enough.
TEST_F(RenewedRanges, MapsNothingAnewWhereNewMemoryIsLocked) {
  if (test::kUnderAsan || test::kUnderTsan || test::kEmulated)
    GTEST_SKIP() << "the memory of a sanitizer or emulator cannot be locked";
  if (!test::may_lock(os::page_size())) GTEST_SKIP() << "nothing can be locked";
  test::in_fresh_process([this] {
    range.begin_purging();
    ASSERT_FALSE(is_renewed(kMiB - 1));
    ASSERT_EQ(mlockall(MCL_FUTURE), 0);
    EXPECT_FALSE(is_renewed(kMiB));
    ASSERT_EQ(munlockall(), 0);
    EXPECT_FALSE(is_renewed(kMiB)) << "the same round";
    range.begin_purging();
    EXPECT_TRUE(is_renewed(kMiB));
  });
}

}  // namespace
}  // namespace spanalloc
