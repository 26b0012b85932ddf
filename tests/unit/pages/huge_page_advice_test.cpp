// What is advised for huge pages, by the policy alone and by an arena that asks the kernel.
#include "pages/huge_page_advice.hpp"

#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "environment.hpp"
#include "os_calls.hpp"
#include "pages/coalescing_arena_test_support.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc {
namespace {

using coalescing::Block;

/// Slices of which each is as dense as a test says.
struct FakeSlices {
  enum Set : unsigned { kDecommitted, kAdvised };
  struct Manager {
    std::size_t limit() const { return end; }
    std::size_t aligned(std::size_t slice, std::size_t to) const {
      return align_up(slice + skew, to) - skew;
    }
    std::size_t end = 1;
    std::size_t skew = 0;  // slices before the first, of the huge page that it lies in
  };
  static constexpr std::size_t kSlice = 64 * kKiB;
  static constexpr std::size_t kHugePage = 2 * kMiB / kSlice;

  bool may_advise() const { return true; }
  bool was_often_taken_back() const { return false; }
  bool has(Set set, Block block) const {
    return set == kAdvised && advised.count(block.first) != 0;
  }
  bool is_dense(Block) { return ++looks, dense; }
  void advise(Block block) { advised[block.first] = block; }

  Manager manager;
  WakingLock grow_lock;
  bool dense = true;
  unsigned looks = 0;
  std::map<std::size_t, Block> advised;
};
constexpr std::size_t kUnit = FakeSlices::kHugePage;
constexpr std::size_t kFirst = HugePageAdvice<FakeSlices>::kFirst;
constexpr std::size_t kStep = 8 * kUnit;

// --- What is opened ------------------------------------------------------------------------------

struct HugePageAdviceTest : testing::Test {
  /// What is advised of slices that were opened for a range of `count`, some time after the last.
  Block opened(Block block, std::size_t count = 1, std::uint64_t after = PagesConfig::kStaysMs) {
    test::advance_clock(after);
    slices.advised.clear();
    advice.note_opened(block, count);
    EXPECT_LE(slices.advised.size(), 1u);
    return slices.advised.empty() ? Block{} : slices.advised.begin()->second;
  }
  /// Steps of one slice each open what lies below 64 MiB, and leave a probe.
  void open_small() { ASSERT_FALSE(opened({1, kFirst - 1})); }
  FakeSlices slices;
  HugePageAdvice<FakeSlices> advice{slices};
};

TEST_F(HugePageAdviceTest, WhatWasDenseAndHasStayedIsFollowedByAdvice) {
  open_small();
  EXPECT_EQ(opened({kFirst, kStep}), (Block{kFirst + kUnit, kStep - kUnit}))
      << "all but the next probe";
  slices.dense = false;
  const Block next{kFirst + kStep, kStep};
  EXPECT_EQ(opened(next, 1, 0), next) << "the answer holds for a sixteenth";
}

TEST_F(HugePageAdviceTest, AnAnswerHoldsForASixteenthOfWhatIsOpen) {
  open_small();
  std::size_t unasked = 0;
  for (std::size_t at = kFirst; at < 64 * kFirst; at += kUnit) {
    const unsigned looks = slices.looks;
    opened({at, kUnit});
    unasked = slices.looks != looks ? 0 : unasked + kUnit;
    EXPECT_LE(unasked, at / 16 + kUnit) << at;
  }
  EXPECT_GT(slices.looks, 30u);
  EXPECT_LT(slices.looks, 200u) << "each is two mappings more";
}

TEST_F(HugePageAdviceTest, SparseMemoryIsFollowedByNone) {
  open_small();
  slices.dense = false;
  EXPECT_FALSE(opened({kFirst, kStep}));
  slices.dense = true;
  EXPECT_EQ(opened({kFirst + kStep, kStep}), (Block{kFirst + kStep + kUnit, kStep - kUnit}))
      << "until a later probe is dense";
}

TEST_F(HugePageAdviceTest, WhatIsYoungIsNotAskedAbout) {
  open_small();
  EXPECT_FALSE(opened({kFirst, kStep}, 1, PagesConfig::kStaysMs - 1));
  EXPECT_TRUE(opened({kFirst + kStep, kStep}, 1, 1)) << "the same probe, older";
}

TEST_F(HugePageAdviceTest, ASmallHeapHasNone) {
  for (std::size_t at = 1; at + kStep < kFirst; at += kStep) EXPECT_FALSE(opened({at, kStep}));
}

TEST_F(HugePageAdviceTest, WhatALargeObjectOpensIsNotAdvised) {
  open_small();
  EXPECT_FALSE(opened({kFirst, 100 * kUnit}, kUnit + 1));
}

TEST_F(HugePageAdviceTest, StepsTooShortForAProbeAreLeftAlone) {
  for (std::size_t at = 1; at < 2 * kFirst; ++at) EXPECT_FALSE(opened({at, 1}));
}

// --- What is open --------------------------------------------------------------------------------

TEST_F(HugePageAdviceTest, EpochsGoRoundAllThatHasStayed) {
  slices.manager.end = kFirst + 10 * kUnit;
  const auto pass = [&] {
    const unsigned looks = slices.looks;
    advice.pass_epoch();
    EXPECT_LE(slices.looks, looks + PagesConfig::kLooksAnEpoch);
  };
  pass();
  EXPECT_TRUE(slices.advised.empty()) << "nothing has stayed for an epoch yet";
  for (int i = 0; i < 20; ++i) pass();
  EXPECT_EQ(slices.advised.size(), slices.manager.end / kUnit - 1)
      << "all but the first, where slice 0 is";
  for (const auto& [first, unit] : slices.advised) {
    EXPECT_EQ(unit.size, kUnit);
    EXPECT_EQ(first % kUnit, 0u);
    EXPECT_LE(unit.end(), slices.manager.end);
  }
}

TEST_F(HugePageAdviceTest, HugePagesAreWholeWhereverTheArenaBegins) {
  for (const std::size_t skew : {std::size_t{1}, kUnit / 2 + 3, kUnit - 1}) {
    FakeSlices skewed;
    skewed.manager.skew = skew;
    skewed.manager.end = kFirst + 10 * kUnit;
    HugePageAdvice<FakeSlices> of_skewed{skewed};
    for (int i = 0; i < 21; ++i) of_skewed.pass_epoch();
    EXPECT_EQ(skewed.advised.size(), (skewed.manager.end + skew) / kUnit - 1) << skew;
    for (const auto& [first, unit] : skewed.advised) {
      EXPECT_EQ(unit.size, kUnit);
      EXPECT_EQ((first + skew) % kUnit, 0u) << skew;
    }
    skewed.advised.clear();
    of_skewed.note_opened({1, kFirst - 1}, 1);
    test::advance_clock(PagesConfig::kStaysMs);
    of_skewed.note_opened({kFirst, kStep}, 1);
    ASSERT_EQ(skewed.advised.size(), 1u);
    const Block block = skewed.advised.begin()->second;
    EXPECT_EQ((block.first + skew) % kUnit, 0u) << "behind a probe of one huge page";
    EXPECT_EQ(block.end(), kFirst + kStep);
  }
}

TEST_F(HugePageAdviceTest, EpochsAdviseWhatIsDenseOnly) {
  FakeSlices small;
  small.manager.end = kFirst - 1;
  HugePageAdvice<FakeSlices> of_small{small};
  slices.manager.end = 2 * kFirst;
  slices.dense = false;
  for (int i = 0; i < 100; ++i) {
    advice.pass_epoch();
    of_small.pass_epoch();
  }
  EXPECT_TRUE(slices.advised.empty() && small.advised.empty());
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
  void wait() { test::advance_clock(PagesConfig::kStaysMs); }
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

TEST_F(HugePagesOfAnArena, WhatIsMappedAnewToPurgeItIsAdvisedAsTheOptionSays) {
  for (const bool always : {true, false}) {
    const test::Variable word("SPANALLOC_THP", always ? "always" : "never");
    Arena own{};
    ASSERT_TRUE(own.start(kSlice));
    const std::uint32_t from = own.take_growing(40, 1, kAnyUse).first;
    ASSERT_NE(own.take_growing(1, 1, kAnyUse).first, 0u);
    own.give(from);
    const std::size_t renewals = Calls::renewals;
    const auto advised = Calls::during(always ? Calls::kPrefer : Calls::kForbid,
                                       [&] { EXPECT_EQ(own.purge(false), 40u); });
    EXPECT_EQ(Calls::renewals, renewals + 1);
    EXPECT_EQ(slices_of(advised), 40u);
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
    EXPECT_EQ(call.address % PagesConfig::kHugePage, 0u);
    EXPECT_EQ(call.bytes, PagesConfig::kHugePage);
  }
}

}  // namespace
}  // namespace spanalloc
