// What is advised for huge pages, by the policy alone and by an arena that asks the kernel.
#include "pages/huge_page_advice.hpp"

#include <cstring>
#include <set>
#include <vector>

#include "environment.hpp"
#include "os_calls.hpp"
#include "pages/coalescing_arena_test_support.hpp"

namespace spanalloc {
namespace {

using Advice = HugePageAdvice<16>;
using coalescing::Block;
constexpr std::size_t kUnit = Advice::kUnit;
constexpr std::size_t kFirst = Advice::kFirst;
constexpr std::size_t kStep = 8 * kUnit;
constexpr auto kDense = [](Block) { return true; };
constexpr auto kSparse = [](Block) { return false; };
const Block kNothing{};

// --- What is opened ------------------------------------------------------------------------------

struct HugePageAdviceTest : testing::Test {
  /// Steps of one slice each open what lies below 64 MiB, and leave a probe.
  void open_small() { ASSERT_EQ(advice.opened({1, kFirst - 1}, 1, 0, kDense), kNothing); }
  Advice advice{};
};

TEST_F(HugePageAdviceTest, WhatWasDenseAndHasStayedIsFollowedByAdvice) {
  open_small();
  const Block first{kFirst, kStep};
  EXPECT_EQ(advice.opened(first, 1, Advice::kStaysMs, kDense),
            (Block{kFirst + kUnit, kStep - kUnit}))
      << "all but the next probe";
  const Block next{kFirst + kStep, kStep};
  EXPECT_EQ(advice.opened(next, 1, Advice::kStaysMs, kSparse), next)
      << "the answer holds for a sixteenth";
}

TEST_F(HugePageAdviceTest, AnAnswerHoldsForASixteenthOfWhatIsOpen) {
  open_small();
  std::size_t unasked = 0;
  unsigned asked = 0;
  std::uint64_t now = 0;
  for (std::size_t at = kFirst; at < 64 * kFirst; at += kUnit) {
    bool was_asked = false;
    advice.opened({at, kUnit}, 1, now += Advice::kStaysMs, [&](Block) { return was_asked = true; });
    asked += was_asked;
    unasked = was_asked ? 0 : unasked + kUnit;
    EXPECT_LE(unasked, at / 16 + kUnit) << at;
  }
  EXPECT_GT(asked, 30u);
  EXPECT_LT(asked, 200u) << "each is two mappings more";
}

TEST_F(HugePageAdviceTest, SparseMemoryIsFollowedByNone) {
  open_small();
  EXPECT_EQ(advice.opened({kFirst, kStep}, 1, Advice::kStaysMs, kSparse), kNothing);
  EXPECT_EQ(advice.opened({kFirst + kStep, kStep}, 1, 3 * Advice::kStaysMs, kDense),
            (Block{kFirst + kStep + kUnit, kStep - kUnit}))
      << "until a later probe is dense";
}

TEST_F(HugePageAdviceTest, WhatIsYoungIsNotAskedAbout) {
  open_small();
  EXPECT_EQ(advice.opened({kFirst, kStep}, 1, Advice::kStaysMs - 1, kDense), kNothing);
  EXPECT_NE(advice.opened({kFirst + kStep, kStep}, 1, Advice::kStaysMs, kDense), kNothing)
      << "the same probe, older";
}

TEST_F(HugePageAdviceTest, ASmallHeapHasNone) {
  for (std::size_t at = 1; at + kStep < kFirst; at += kStep) {
    EXPECT_EQ(advice.opened({at, kStep}, 1, at * 1000, kDense), kNothing);
  }
}

TEST_F(HugePageAdviceTest, WhatALargeObjectOpensIsNotAdvised) {
  open_small();
  EXPECT_EQ(advice.opened({kFirst, 100 * kUnit}, kUnit + 1, Advice::kStaysMs, kDense), kNothing);
}

TEST_F(HugePageAdviceTest, StepsTooShortForAProbeAreLeftAlone) {
  for (std::size_t at = 1; at < 2 * kFirst; ++at) {
    EXPECT_EQ(advice.opened({at, 1}, 1, at * 1000, kDense), kNothing);
  }
}

// --- What is open --------------------------------------------------------------------------------

TEST_F(HugePageAdviceTest, TicksGoRoundAllThatHasStayed) {
  constexpr std::size_t kLimit = kFirst + 10 * kUnit;
  std::set<std::size_t> advised;
  const auto tick = [&](std::size_t limit) {
    unsigned looks = 0;
    advice.pass_epoch(
        limit, [&](Block unit) { return advised.count(unit.first) != 0; },
        [&](Block) {
          ++looks;
          return true;
        },
        [&](Block unit) {
          EXPECT_EQ(unit.size, kUnit);
          EXPECT_EQ(unit.first % kUnit, 0u);
          EXPECT_LE(unit.end(), kLimit);
          advised.insert(unit.first);
        });
    EXPECT_LE(looks, Advice::kLooksAnEpoch);
  };
  tick(kLimit);
  EXPECT_TRUE(advised.empty()) << "nothing has stayed for a tick yet";
  for (int i = 0; i < 20; ++i) tick(kLimit);
  EXPECT_EQ(advised.size(), kLimit / kUnit - 1) << "all but the first, where slice 0 is";
}

TEST_F(HugePageAdviceTest, TicksAdviseWhatIsDenseOnly) {
  unsigned advised = 0;
  constexpr auto kAny = [](Block) { return false; };
  Advice small{};
  for (int i = 0; i < 100; ++i) {
    advice.pass_epoch(2 * kFirst, kAny, kSparse, [&](Block) { ++advised; });
    small.pass_epoch(kFirst - 1, kAny, kDense, [&](Block) { ++advised; });
  }
  EXPECT_EQ(advised, 0u);
}

// --- An arena ------------------------------------------------------------------------------------

struct HugePagesOfAnArena : testing::Test {
  using Calls = FaultyCalls;
  using Arena = CoalescingArena<16, HugePages::kAsked, Calls>;

  void SetUp() override { Calls::reset(); }
  void TearDown() override {
    Calls::reset();
    Calls::release_all();
  }
  void start() {
    ASSERT_TRUE(arena.start(kSlice));  // anywhere, seen from a huge page
  }
  std::uint32_t take(std::size_t count) { return arena.take_growing(count, 1, kAnyUse).first; }
  void write(std::uint32_t first, std::size_t count) {
    std::memset(pointer_to(arena.base() + first * kSlice), 1, count * kSlice);
  }
  /// Slices that these calls are about.
  static std::size_t slices_of(const std::vector<Calls::Call>& calls) {
    std::size_t sum = 0;
    for (const Calls::Call& call : calls) sum += call.bytes / kSlice;
    return sum;
  }
  /// 34 MiB in single slices.
  void grow(bool dense) {
    for (std::size_t i = 0; i < kFirst + kUnit; ++i) {
      const std::uint32_t first = take(1);
      ASSERT_NE(first, 0u);
      if (dense) write(first, 1);
    }
  }
  void wait() { test::advance_clock(Advice::kStaysMs); }
  /// Opens two steps more.
  void grow_on() {
    const std::size_t limit = arena.limit();
    while (arena.limit() <= limit + 16 * kMiB / kSlice) ASSERT_NE(take(1), 0u);
  }

  const test::Variable usual{"SPANALLOC_THP", "auto"};
  Arena arena{};
};

TEST_F(HugePagesOfAnArena, AreAdvisedForAllOrNoneAsTheOptionSays) {
  for (const bool always : {true, false}) {
    const test::Variable option("SPANALLOC_THP", always ? "always" : "never");
    Arena own{};
    Calls::reset();
    const auto kind = always ? Calls::kPrefer : Calls::kForbid;
    const auto advised = Calls::during(kind, [&] {  // (what is reserved is advised at once)
      ASSERT_TRUE(own.start(kSlice));
      ASSERT_NE(own.take_growing(100, 1, kAnyUse).first, 0u);
    });
    EXPECT_GE(slices_of(advised), 100u);
    EXPECT_EQ(Calls::count[always ? Calls::kForbid : Calls::kPrefer], 0u);
    const auto purged = Calls::during(always ? Calls::kForbid : Calls::kPrefer, [&] {
      own.give(1);
      own.purge(false);
    });
    EXPECT_TRUE(purged.empty());
    own.destroy();
  }
}

TEST_F(HugePagesOfAnArena, FollowDenseMemoryThatHasStayed) {
  if (test::kUnderAsan || test::kUnderTsan) GTEST_SKIP() << "a sanitizer's shadow is in the way";
  start();
  grow(true);
  wait();
  const auto advised = Calls::during(Calls::kPrefer, [&] { grow_on(); });
  EXPECT_GE(slices_of(advised), 4 * kUnit);
  // What is given back to the kernel loses the advice, whole huge pages at a time.
  const std::size_t first = (advised.front().address - arena.base()) / kSlice;
  const auto undone = Calls::during(Calls::kForbid, [&] {
    arena.give(static_cast<std::uint32_t>(first + kUnit));
    arena.purge(false);
  });
  EXPECT_EQ(slices_of(undone), kUnit);
  const auto again = Calls::during(Calls::kForbid, [&] {
    arena.give(static_cast<std::uint32_t>(first + kUnit + 1));
    arena.purge(false);
  });
  EXPECT_TRUE(again.empty()) << "once";
}

TEST_F(HugePagesOfAnArena, ALargeObjectIsHandedOutWithout) {
  if (test::kUnderAsan || test::kUnderTsan) GTEST_SKIP() << "a sanitizer's shadow is in the way";
  start();
  grow(true);
  wait();
  const auto advised = Calls::during(Calls::kPrefer, [&] { grow_on(); });
  ASSERT_FALSE(advised.empty());
  const auto undone = Calls::during(Calls::kForbid, [&] { ASSERT_NE(take(2 * kUnit), 0u); });
  EXPECT_GE(slices_of(undone), kUnit);
}

TEST_F(HugePagesOfAnArena, DoNotFollowMemoryThatIsHardlyTouched) {
  start();
  grow(false);
  wait();
  EXPECT_TRUE(Calls::during(Calls::kPrefer, [&] {
                grow_on();
                for (int i = 0; i < 30; ++i) arena.age();
              }).empty());
}

// gVisor's mincore() is such a one.
TEST_F(HugePagesOfAnArena, AreNotAdvisedWhereAllIsCalledResident) {
  start();
  grow(false);
  wait();
  Calls::all_is_resident = true;
  EXPECT_TRUE(Calls::during(Calls::kPrefer, [&] {
                grow_on();
                for (int i = 0; i < 30; ++i) arena.age();
              }).empty());
}

TEST_F(HugePagesOfAnArena, PagesInThePlaceOfThoseThatMoveOutAreAdvisedAsTheOptionSays) {
  for (const bool always : {true, false}) {
    const test::Variable word("SPANALLOC_THP", always ? "always" : "never");
    Arena own{};
    ASSERT_TRUE(own.start(kSlice));
    const std::uint32_t from = own.take_growing(4, 1, kAnyUse).first;
    ASSERT_NE(own.take_growing(1, 1, kAnyUse).first, 0u);
    void* to = nullptr;
    const auto advised = Calls::during(always ? Calls::kPrefer : Calls::kForbid,
                                       [&] { to = own.move_out(from, 4, 8 * kSlice).to; });
    ASSERT_NE(to, nullptr);
    os::release(to, 8 * kSlice);
    EXPECT_EQ(slices_of(advised), 4u);
    own.destroy();
  }
}

TEST_F(HugePagesOfAnArena, AreAdvisedByTicksForWhatIsDense) {
  start();
  grow(true);
  arena.age();
  const auto advised = Calls::during(Calls::kPrefer, [&] {
    for (int i = 0; i < 30; ++i) arena.age();
  });
  EXPECT_GE(slices_of(advised), kFirst / 2);
  std::set<std::uintptr_t> places;
  for (const Calls::Call& call : advised) {
    EXPECT_TRUE(places.insert(call.address).second) << "each once";
    EXPECT_EQ(call.address % Advice::kHugePage, 0u);
    EXPECT_EQ(call.bytes, Advice::kHugePage);
  }
}

}  // namespace
}  // namespace spanalloc
