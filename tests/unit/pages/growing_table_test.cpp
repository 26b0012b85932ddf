#include "pages/growing_table.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <vector>

#include "address_limit.hpp"
#include "child.hpp"
#include "sanitizers.hpp"

namespace spanalloc {
namespace {

TEST(GrowingTableTest, OpensZeroedRecordsThatNeverMove) {
  struct Record {
    std::uint64_t word[8];
  };
  static constinit GrowingTable<Record> table;
  ASSERT_TRUE(table.start(1 << 20));
  ASSERT_TRUE(table.ensure(1));
  Record* first = &table[0];
  first->word[3] = 5;
  ASSERT_TRUE(table.ensure(100000));
  EXPECT_EQ(&table[0], first);
  EXPECT_EQ(table[0].word[3], 5u);
  EXPECT_EQ(table[99999].word[7], 0u);
  EXPECT_FALSE(table.ensure((1 << 20) + 1)) << "beyond the reservation";
  EXPECT_EQ(table.number_of(&table[77]), 77u);
}

constexpr std::size_t kPage = 4 * kKiB;
struct alignas(kPage) PageRecord {
  std::uint64_t number;
};
constexpr std::size_t kFront = 64;  // pages: of 16 each are opened at once
using Fronted = FrontedTable<PageRecord, kFront>;
template <class Table>
bool has_first(Table& table) {
  return table.reach(0, 1).end == 1;
}

class FrontedTableTest : public testing::Test {
 protected:
  void SetUp() override {
    if (test::kUnderTsan) GTEST_SKIP() << "a sanitizer's shadow is where tables would be";
  }
  void choose() {
    region.choose<PageCalls>();
    ASSERT_NE(region.place_in_front(kPage).address, 0u);
  }
  // Of somebody else's: from that record of the front on.
  void map_foreign(std::size_t record, std::size_t pages) {
    void* at = &table[0] + record;
    void* p = mmap(at, pages * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
                   -1, 0);
    ASSERT_EQ(p, at);
  }
  // Asks for one record after another, up to `end`; which there are.
  std::vector<std::size_t> make(std::size_t end) {
    std::vector<std::size_t> made;
    for (std::size_t number = 0; number < end;) {
      const TableReach reach = table.reach(number, number + 1);
      if (reach.end != number + 1) {
        EXPECT_EQ(reach.end, number);
        if (reach.next <= number) break;  // refused
        number = reach.next;
        continue;
      }
      EXPECT_TRUE(table.has(number));
      EXPECT_EQ(table[number].number, 0u);
      table[number].number = number;
      made.push_back(number++);
    }
    for (const std::size_t number : made) EXPECT_EQ(table[number].number, number);
    return made;
  }

  TableRegion region;
  Fronted table;
};

TEST_F(FrontedTableTest, GoesOnElsewhereBehindItsFront) {
  choose();
  ASSERT_TRUE(table.start(1000, region));
  ASSERT_TRUE(table.start(1000, region)) << "again";
  EXPECT_EQ(make(100).size(), 100u);
  EXPECT_EQ(&table[kFront - 1] - &table[0], std::ptrdiff_t{kFront} - 1);
  EXPECT_NE(&table[kFront] - &table[0], std::ptrdiff_t{kFront});
  EXPECT_EQ(&table[99] - &table[kFront], 99 - std::ptrdiff_t{kFront});
  EXPECT_TRUE(table.is_without_gaps());
  EXPECT_EQ(table.reach(1000, 1001).end, 1000u) << "beyond the capacity";
  EXPECT_EQ(table.reach(0, 1000).end, 1000u) << "both parts at once";
  table.destroy();
}

// One page of a page table is for all of them, and no mapping but each one's
// and a guard between two.
TEST_F(FrontedTableTest, FrontsStandSideBySideBeforeTheFirstTable) {
  region.choose<PageCalls>();
  FrontedTable<PageRecord, 40> second;
  const std::uintptr_t behind = region.place_for(kMiB).address;
  if (behind == 0) GTEST_SKIP() << "no place is free: tables are reserved";
  ASSERT_TRUE(table.start(1000, region));
  ASSERT_TRUE(second.start(1000, region));
  ASSERT_TRUE(has_first(table) && has_first(second));
  EXPECT_EQ(address_of(&table[0]) + (kFront + 2) * kPage, behind);
  EXPECT_EQ(address_of(&second[0]) + (40 + 2) * kPage, address_of(&table[0]));
  EXPECT_EQ(address_of(&second[0]) / (2 * kMiB), behind / (2 * kMiB));
  table.destroy();
  second.destroy();
}

TEST_F(FrontedTableTest, WhatIsTooLargeForAFrontStandsElsewhere) {
  choose();
  const TablePlace place = region.place_in_front(2 * kMiB);
  EXPECT_NE(place.address, 0u);
  EXPECT_EQ(place.address % (64 * kKiB), 0u) << "as other tables";
}

// Under a limit only what is opened is mapped, and somebody else may map what comes next.
TEST_F(FrontedTableTest, GoesOnBehindAForeignMappingInItsFront) {
  test::in_child([this] {
    ASSERT_TRUE(test::leave_address_space(kGiB));
    choose();
    ASSERT_TRUE(table.start(1000, region));
    ASSERT_TRUE(has_first(table));
    map_foreign(30, 1);
    const std::vector<std::size_t> made = make(100);
    EXPECT_EQ(made.size(), 100u - 3) << "the page, and a guard before and behind it";
    for (std::size_t number = 0; number < 100; ++number) {
      EXPECT_EQ(table.has(number), number < 29 || number > 31) << number;
    }
    EXPECT_FALSE(table.is_without_gaps());
    table.destroy();
  });
}

TEST_F(FrontedTableTest, GoesOnElsewhereWhereItsFrontHasNoEnd) {
  test::in_child([this] {
    ASSERT_TRUE(test::leave_address_space(kGiB));
    choose();
    ASSERT_TRUE(table.start(1000, region));
    ASSERT_TRUE(has_first(table));
    map_foreign(30, kFront - 30);
    EXPECT_EQ(make(100).size(), 100u - (kFront - 29)) << "a guard is before it";
    for (std::size_t number = 0; number < 100; ++number) {
      EXPECT_EQ(table.has(number), number < 29 || number >= kFront) << number;
    }
    EXPECT_FALSE(table.is_without_gaps());
    EXPECT_EQ(table.reach(29, 30).next, kFront) << "it is told again";
    table.destroy();
    EXPECT_TRUE(table.start(1000, region));
    EXPECT_TRUE(table.is_without_gaps()) << "a new one";
  });
}

TEST_F(FrontedTableTest, ARefusalIsNoGap) {
  test::in_child([this] {
    ASSERT_TRUE(test::leave_address_space(kGiB));
    choose();
    ASSERT_TRUE(table.start(1'000'000, region));
    ASSERT_TRUE(has_first(table));
    for (const std::size_t left : {5 * kPage, 40 * kPage}) {
      ASSERT_TRUE(test::leave_address_space(left));
      const std::size_t made = make(1000).size();
      EXPECT_LT(made, 100u);
      EXPECT_TRUE(table.is_without_gaps());
      ASSERT_TRUE(test::leave_address_space(kGiB));
      EXPECT_EQ(table.reach(0, made + 1).end, made + 1) << "later there is memory again";
      for (std::size_t number = 0; number <= made; ++number) table[number].number = 0;
    }
    EXPECT_EQ(make(1000).size(), 1000u);
    table.destroy();
  });
}

}  // namespace
}  // namespace spanalloc
