#include "pages/arena/refusal_memo.hpp"

#include <gtest/gtest.h>

namespace spanalloc {
namespace {

TEST(RefusalMemoTest, LargerRequestsAreAbsentToo) {
  RefusalMemo memo;
  EXPECT_FALSE(memo.known_absent(1, 1));
  memo.note(1, 1);
  EXPECT_FALSE(memo.known_absent(1, 1)) << "it was not armed";
  memo.arm();
  memo.note(10, 4);
  EXPECT_TRUE(memo.known_absent(10, 4));
  EXPECT_TRUE(memo.known_absent(11, 8));
  EXPECT_FALSE(memo.known_absent(9, 8));
  EXPECT_FALSE(memo.known_absent(100, 2));
  memo.note(20, 1);
  EXPECT_TRUE(memo.known_absent(20, std::size_t{1} << 28));
  EXPECT_FALSE(memo.known_absent(19, 2));
  EXPECT_FALSE(memo.known_absent(9, std::size_t{1} << 60));
  memo.memory_came_back();
  EXPECT_FALSE(memo.known_absent(1000, 64));
  memo.arm();
  EXPECT_FALSE(memo.known_absent(1000, 64)) << "what was noted before is forgotten";
}

}  // namespace
}  // namespace spanalloc
