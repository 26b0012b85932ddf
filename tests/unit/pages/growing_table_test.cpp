#include "pages/growing_table.hpp"

#include <gtest/gtest.h>

#include <cstdint>

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

}  // namespace
}  // namespace spanalloc
