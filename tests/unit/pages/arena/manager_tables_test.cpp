#include "pages/arena/manager_tables.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "child.hpp"
#include "pages/coalescing/manager.hpp"
#include "pages/config.hpp"
#include "pages/page_calls.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc {
namespace {

using coalescing::Block;

/// Slices of a range that opens what it is told to, counts questions, and notes gaps.
template <class Kernel = PageCalls>
struct FakeSlices {
  using Calls = Kernel;
  using Manager = coalescing::CoalescingManager<FakeSlices>;
  static constexpr std::size_t kSlice = 64 * kKiB;
  struct Range {
    std::size_t capacity() const { return std::size_t{1} << 24; }
    std::uintptr_t base() const { return capacity() * kSlice; }
    std::size_t opened() const { return end; }
    bool has_skipped_behind(std::size_t) const { return false; }
    bool is_locked() { return ++questions, false; }
    bool skip_to(std::size_t to) { return end = max_of(end, to), true; }
    void decommit_for_ever(Block) {}
    std::size_t end = 1;
    unsigned questions = 0;
  };
  struct Memo {
    void memory_came_back() {}
  };

  bool pause() { return true; }
  bool purge(Block) { return true; }
  void mark_lost(Block) {}
  void forget_lost_mark(std::size_t) {}
  bool has_room_for_gap() const { return true; }
  bool add_gap(Block gap) {
    gaps.push_back(gap);
    return manager.extend_used(gap.size);
  }

  Range range;
  Manager manager{*this};
  WakingLock grow_lock;
  Memo refused;
  std::vector<Block> gaps;
};

TEST(ManagerTables, AskOnceWhetherMemoryIsLockedAndOnlyToOpen) {
  FakeSlices<> slices;
  ManagerTables<FakeSlices<>> tables(slices);
  ASSERT_TRUE(tables.start());
  EXPECT_EQ(slices.range.questions, 1u) << "for all tables";
  LockGuard guard(slices.grow_lock);
  const auto reaches = [](std::size_t end) { return TableReach{end, end}; };
  slices.range.end = 2;
  ASSERT_TRUE(tables.book_opened(reaches));
  EXPECT_EQ(slices.range.questions, 1u) << "they are open that far";
  // Something is in the way of the caller's own table.
  slices.range.end = 3;
  ASSERT_TRUE(tables.book_opened([](std::size_t) { return TableReach{2, 4}; }));
  EXPECT_EQ(slices.manager.limit(), 5u);
  EXPECT_EQ(slices.range.questions, 1u) << "the row of the gap's end is there";
  slices.range.end = slices.range.capacity();
  ASSERT_TRUE(tables.book_opened(reaches));
  EXPECT_EQ(slices.manager.limit(), slices.range.capacity());
  EXPECT_EQ(slices.range.questions, 2u);
  tables.destroy();
}

/// A kernel with foreign mappings, which are told by address. Notes where tables are.
struct ForeignMappings : PageCalls {
  static inline std::vector<Interval> foreign;
  static inline std::vector<std::uintptr_t> places;
  static os::Placed reserve_at(void* place, std::size_t bytes) {
    const std::uintptr_t at = address_of(place);
    for (const Interval& other : foreign) {
      if (at < other.end && other.first < at + bytes) return os::Placed::kTaken;
    }
    if (bytes > 2 * os::page_size()) places.push_back(at + os::page_size());
    return PageCalls::reserve_at(place, bytes);
  }
};

class ManagerTablesGaps : public testing::Test {
 protected:
  using Slices = FakeSlices<ForeignMappings>;
  using Tables = Slices::Manager::Tables;
  static constexpr std::size_t kUnitsOfFirst = 64 * 64;  // that share an entry of level 1

  void SetUp() override {
    if (test::kUnderTsan) GTEST_SKIP() << "a sanitizer's shadow is where tables would be";
  }
  // Books slices until all that is foreign lies behind. Of those behind each gap all can be had.
  // Returns the gaps. `rows_of`: slices whose rows would stand where something foreign is.
  static std::vector<Block> gaps_with(std::size_t upper_offset, Block rows_of) {
    ForeignMappings::foreign.clear();
    ForeignMappings::places.clear();
    Slices slices;
    ManagerTables<Slices> tables(slices);
    EXPECT_TRUE(tables.start());
    const auto& places = ForeignMappings::places;
    EXPECT_EQ(places.size(), std::size_t{Tables::kCount});
    const auto add = [&](unsigned table, std::size_t first, std::size_t end) {
      const std::uintptr_t base = places[table];
      ForeignMappings::foreign.push_back({base + first, base + end});
    };
    const std::size_t page = os::page_size();
    add(Tables::kUpper, upper_offset, upper_offset + page);
    const auto row = [&](std::size_t slice) {
      return Tables::bytes(Tables::kRows, slices.range.capacity(), align_down(slice, 64));
    };
    if (rows_of.size != 0)
      add(Tables::kRows, align_up(row(rows_of.first), page), align_up(row(rows_of.end()), page));
    LockGuard guard(slices.grow_lock);
    const auto reaches = [](std::size_t end) { return TableReach{end, end}; };
    while (slices.manager.limit() < slices.range.capacity() / 2) {
      slices.range.end = slices.manager.limit() + 500;
      EXPECT_TRUE(tables.book_opened(reaches));
      const coalescing::Allocation got = slices.manager.allocate(1);
      EXPECT_NE(got.block.size, 0u);
    }
    tables.destroy();
    return slices.gaps;
  }
};

// The entries of some slices are missing in both tables. The gap ends where those behind it have
// all that they share with its last slice: not only its row.
TEST_F(ManagerTablesGaps, EndWhereEveryTableGoesOn) {
  constexpr std::size_t kUpperOffset = 2 * kMiB;
  const std::vector<Block> alone = gaps_with(kUpperOffset, {0, 0});
  ASSERT_EQ(alone.size(), 1u);
  const std::size_t first = alone[0].first;
  const std::size_t end = alone[0].end();
  test::in_child([&] {
    // From before the gap to the last entry that is missing.
    const auto both =
        gaps_with(kUpperOffset, {first - 1000, end - kUnitsOfFirst / 2 - first + 1000});
    ASSERT_FALSE(both.empty());
    EXPECT_LT(both[0].first, first);
    EXPECT_GE(both.back().end(), end);
  });
}

}  // namespace
}  // namespace spanalloc
