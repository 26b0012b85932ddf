// Which superblock of its heap serves an allocation: the report's order, and those of the other configs.
#include <gtest/gtest.h>

#include <vector>

#include "superblock_test_support.hpp"

namespace spanalloc {
namespace {

using test::checked;
using test::kHalf;
using test::kPiece;
using test::superblock_of;

class SuperblockHeap : public test::SmallArenas {};

TEST_F(SuperblockHeap, TheOneLastUsedIsSearchedFirst) {
  SPANALLOC_OWN_HEAP(Front, SuperblockReport);
  using E = FrontEngine;
  void* a1 = E::allocate(kHalf);
  void* a2 = E::allocate(kHalf);
  void* b = E::allocate(kHalf);
  ASSERT_NE(superblock_of(a1), superblock_of(b));
  // Both have room for small blocks now; the newer superblock was used last.
  E::deallocate(a2);
  void* small = E::allocate(100);
  EXPECT_EQ(superblock_of(small), superblock_of(b));
  // Only the older one has room for this: it moves to the front.
  void* big = E::allocate(kHalf);
  ASSERT_EQ(superblock_of(big), superblock_of(a1));
  E::deallocate(big);
  void* after = E::allocate(100);
  EXPECT_EQ(superblock_of(after), superblock_of(a1));
  for (void* p : {a1, b, small, after}) E::deallocate(p);
  checked<E>();
}

TEST_F(SuperblockHeap, KheapSearchesInTheSameOrderAlways) {
  SPANALLOC_OWN_HEAP(KheapOrder, Kheap);
  using E = KheapOrderEngine;
  void* a1 = E::allocate(kHalf);
  void* a2 = E::allocate(kHalf);
  void* b = E::allocate(kHalf);
  E::deallocate(a2);
  void* small = E::allocate(100);
  void* big = E::allocate(kHalf);
  ASSERT_EQ(superblock_of(big), superblock_of(a1));
  E::deallocate(big);
  void* after = E::allocate(100);
  EXPECT_EQ(superblock_of(after), superblock_of(b));
  for (void* p : {a1, b, small, after}) E::deallocate(p);
  checked<E>();
}

TEST_F(SuperblockHeap, FullestFirst) {
  SPANALLOC_OWN_HEAP(Fullest, SuperblockFullestFirst);
  using E = FullestEngine;
  // Three superblocks: full, three quarters full, one quarter full.
  constexpr std::size_t kQuarter = kPiece / 4 - sizeof(superblock::Block);
  std::vector<void*> blocks(12);
  for (void*& p : blocks) p = E::allocate(kQuarter);
  ASSERT_EQ(checked<E>().superblocks, 3u);
  for (std::size_t i : {5u, 9u, 10u, 11u}) E::deallocate(blocks[i]);
  void* p = E::allocate(100);
  EXPECT_EQ(superblock_of(p), superblock_of(blocks[4]));
  void* last_quarter = E::allocate(kQuarter);  // only the emptiest has that much
  EXPECT_EQ(superblock_of(last_quarter), superblock_of(blocks[8]));
  void* q = E::allocate(100);
  EXPECT_EQ(superblock_of(q), superblock_of(blocks[4]));
  checked<E>();
}

TEST_F(SuperblockHeap, SizeClassesDoNotShareSuperblocks) {
  SPANALLOC_OWN_HEAP(Classes, SuperblockClasses);
  using E = ClassesEngine;
  void* small[2] = {E::allocate(20), E::allocate(30)};
  void* other = E::allocate(100);
  EXPECT_EQ(superblock_of(small[0]), superblock_of(small[1]));
  EXPECT_NE(superblock_of(small[0]), superblock_of(other));
  EXPECT_EQ(E::usable_size(small[0]), 32u);
  EXPECT_EQ(E::usable_size(other), 112u);
  // Above the classes, and aligned beyond 16: blocks of any size, which merge.
  void* any = E::allocate(10000);
  EXPECT_EQ(superblock_of(any), superblock_of(E::allocate_aligned(100, 256)));
  checked<E>();
}

TEST_F(SuperblockHeap, ClassesHoldWhatTheyShouldAndWasteLittle) {
  unsigned last = 0;
  for (std::size_t n = 0; n <= superblock::kLargestClassBytes<SuperblockClasses>; ++n) {
    const unsigned c = superblock::class_of<SuperblockClasses>(n);
    ASSERT_TRUE(c == last || c == last + 1) << n;
    ASSERT_LT(c, superblock::kClassCount<SuperblockClasses>);
    ASSERT_GE(superblock::class_bytes(c), n);
    ASSERT_LE(superblock::class_bytes(c), max_of(n + n / 4, n + 16)) << n;
    ASSERT_EQ(superblock::class_bytes(c) % 16, 0u);
    last = c;
  }
  EXPECT_EQ(last + 1, superblock::kClassCount<SuperblockClasses>);
  EXPECT_EQ(superblock::class_of<SuperblockClasses>(4097), superblock::kAnySize);
  EXPECT_EQ(superblock::class_of<SuperblockReport>(20), superblock::kAnySize);
}

}  // namespace
}  // namespace spanalloc
