// What a range that was reserved does when a limit shows.
#include "pages/address_range.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "child.hpp"
#include "environment.hpp"
#include "pages/coalescing_arena_test_support.hpp"

namespace spanalloc {

struct AddressRangeTestAccess {
  /// As in a fork's child that has what was noted of the range, and not where it begins.
  template <class Range>
  static void forget_base(Range& range) {
    range.base_.store_relaxed(0);
  }
};

namespace {

using Calls = FaultyCalls;
using Range = AddressRange<16, HugePages::kForbid, 16 * kMiB, 1, Claim::kReserve, Calls>;

class AddressRangeTest : public testing::Test {
 protected:
  void SetUp() override {
    if (test::kUnderAsan || test::kUnderTsan)
      GTEST_SKIP() << "a sanitizer's shadow is where the range would be";
    Calls::reset();
    ASSERT_TRUE(range.start(kSlice));
    ASSERT_TRUE(range.reserved());
    open_all(10);
    Calls::reset();
  }
  void TearDown() override {
    Calls::reset();
    if (range.started()) range.destroy();
    Calls::release_all();
  }
  void open_all(std::size_t slices) {
    for (const std::size_t end = in_use_ += slices; range.opened() < end;) {
      const std::size_t first = range.opened();
      const os::Placed placed = range.open_up_to(end);
      ASSERT_NE(placed, os::Placed::kRefused);
      if (placed == os::Placed::kYes)
        std::memset(range.address(first), 1, (range.opened() - first) * kSlice);
    }
  }
  // A question, and not a step: it names no address.
  static bool is_question(const Calls::Call& call) {
    return call.kind == Calls::kOpenAt && call.address == 0;
  }
  static bool cuts_the_reservation(const Calls::Call& call) {
    return call.kind == Calls::kRelease && call.bytes > kGiB;
  }

  std::size_t in_use_ = 1;
  test::Variable bits{"SPANALLOC_ARENA_BITS", "33"};
  Range range;
};

TEST_F(AddressRangeTest, AsksAtEachStepAndKeepsWhatItHas) {
  const auto questions = Calls::during(Calls::kOpenAt, [&] {
    for (int i = 0; i < 1024; ++i) open_all(1);
  });
  EXPECT_TRUE(range.reserved());
  EXPECT_GE(questions.size(), 2u);
  EXPECT_LE(questions.size(), 16u) << "one a step, and steps double";
  for (const Calls::Call& question : questions) EXPECT_TRUE(is_question(question));
}

TEST_F(AddressRangeTest, GivesItsReservationBackWhenALimitIsNear) {
  Calls::refuses = [](const Calls::Call& call, std::size_t) { return is_question(call); };
  open_all(100);
  EXPECT_FALSE(range.reserved());
  EXPECT_EQ(range.reserved_bytes(), range.opened_bytes());
  EXPECT_EQ(range.skipped(), 0u);
  EXPECT_EQ(Calls::count[Calls::kForbid], 0u) << "a filter may not know the call";
  // Behind it others find room, and it goes around them.
  void* const theirs = range.address(range.opened() + 4);
  EXPECT_EQ(os::open_at(theirs, kSlice), os::Placed::kYes);
  std::memset(theirs, 7, kSlice);
  const std::size_t behind = range.opened() + 10;
  Calls::refuses = [](const Calls::Call& call, std::size_t) {
    return call.kind == Calls::kReserveAt && call.bytes == 2 * os::page_size();
  };
  while (range.open_up_to(behind) == os::Placed::kYes && range.opened() < behind) {
  }
  EXPECT_EQ(range.skipped(), 0u) << "what is refused tells nothing of what is there";
  Calls::refuses = nullptr;
  open_all(100);
  EXPECT_GE(range.skipped(), 1u);
  EXPECT_LE(range.skipped(), 3u) << "theirs, and one on each side, where no guard page finds room";
  range.destroy();
  for (std::size_t i = 0; i < kSlice; i += 64) ASSERT_EQ(static_cast<char*>(theirs)[i], 7);
  os::release(theirs, kSlice);
}

// The kernel refuses each mapping then, as at a limit on addresses, and also what cuts one in two.
TEST_F(AddressRangeTest, KeepsItWhereMappingsAreTooMany) {
  Calls::refuses = [](const Calls::Call& call, std::size_t) {
    return is_question(call) || cuts_the_reservation(call);
  };
  open_all(100);
  EXPECT_TRUE(range.reserved());
  EXPECT_FALSE(range.heed_limit());
  EXPECT_EQ(range.skipped(), 0u);
}

// In the child the range still has what another thread of its parent was giving back. It must not
// touch that: some of it may be gone.
// A child that another thread forks before the call has the reservation; later it has not.
TEST_F(AddressRangeTest, AChildOfThatMomentFindsOutWhatIsLeft) {
  const auto expect_growth = [&](bool reserved) {
    test::in_child([&] {
      Calls::refuses = [](const Calls::Call& call, std::size_t) {
        return call.kind == Calls::kReserveAt;  // the limit stands here, too
      };
      range.recover_in_child();
      EXPECT_EQ(range.reserved(), reserved);
      Calls::refuses = nullptr;
      const std::size_t opened = range.opened();
      EXPECT_EQ(range.open_up_to(opened + 1), os::Placed::kYes);
      EXPECT_GT(range.opened(), opened);
    });
  };
  unsigned forks = 0;
  Calls::refuses = [&](const Calls::Call& call, std::size_t) {
    const bool cuts = cuts_the_reservation(call);
    const bool is_last_page = call.kind == Calls::kRelease && call.bytes == os::page_size();
    if (!cuts && !is_last_page) return is_question(call);
    ++forks;
    expect_growth(cuts);
    return false;
  };
  open_all(100);
  EXPECT_FALSE(range.reserved());
  EXPECT_EQ(forks, 2u);
}

// It asks by mapping a page, and forks, too, before it has unmapped that.
TEST_F(AddressRangeTest, AChildsChildAsksForAnotherPage) {
  unsigned forks = 0;
  Calls::refuses = [&](const Calls::Call& call, std::size_t) {
    if (call.kind != Calls::kRelease || call.bytes != os::page_size()) return is_question(call);
    ++forks;
    test::in_child([this] {
      int ended = -1;
      Calls::refuses.may([&](const Calls::Call& inner, std::size_t) {
        if (inner.kind != Calls::kRelease) return false;
        ended = test::run_in_child([this] {
          Calls::refuses = nullptr;
          range.recover_in_child();
          return range.reserved() ? 1 : 0;
        });
        return false;
      });
      range.recover_in_child();
      EXPECT_FALSE(range.reserved());
      EXPECT_EQ(ended, 0);
    });
    return false;
  };
  open_all(100);
  EXPECT_EQ(forks, 1u);
}

// A child begins a range anew that it does not find begun, whatever else it finds.
TEST_F(AddressRangeTest, IsBegunWithoutWhatWasSkippedBefore) {
  ASSERT_TRUE(range.skip_to(range.opened() + 5));
  ASSERT_EQ(range.skipped(), 5u);
  AddressRangeTestAccess::forget_base(range);
  ASSERT_TRUE(range.start(kSlice));
  EXPECT_EQ(range.skipped(), 0u);
  EXPECT_FALSE(range.has_skipped_behind(1));
}

}  // namespace
}  // namespace spanalloc
