// Which superblock of its heap serves an allocation: the report's order, and
// those of the other configs.
#include <gtest/gtest.h>

#include <vector>

#include "papers/a2alloc/tests/test_support.hpp"

namespace spanalloc {
namespace {

using test::checked;
using test::kHalf;
using test::kPiece;
using test::superblock_of;

class A2allocHeap : public test::SmallArenas {};

TEST_F(A2allocHeap, TheOneLastUsedIsSearchedFirst) {
  test::OwnHeap<A2allocReport> heap;
  void* a1 = heap->allocate(kHalf);
  void* a2 = heap->allocate(kHalf);
  void* b = heap->allocate(kHalf);
  ASSERT_NE(superblock_of(a1), superblock_of(b));
  // Both have room for small blocks now; the newer superblock was used last.
  heap->deallocate(a2);
  void* small = heap->allocate(100);
  EXPECT_EQ(superblock_of(small), superblock_of(b));
  // Only the older one has room for this: it moves to the front.
  void* big = heap->allocate(kHalf);
  ASSERT_EQ(superblock_of(big), superblock_of(a1));
  heap->deallocate(big);
  void* after = heap->allocate(100);
  EXPECT_EQ(superblock_of(after), superblock_of(a1));
  for (void* p : {a1, b, small, after}) heap->deallocate(p);
  checked(heap);
}

TEST_F(A2allocHeap, KheapSearchesInTheSameOrderAlways) {
  test::OwnHeap<Kheap> heap;
  void* a1 = heap->allocate(kHalf);
  void* a2 = heap->allocate(kHalf);
  void* b = heap->allocate(kHalf);
  heap->deallocate(a2);
  void* small = heap->allocate(100);
  void* big = heap->allocate(kHalf);
  ASSERT_EQ(superblock_of(big), superblock_of(a1));
  heap->deallocate(big);
  void* after = heap->allocate(100);
  EXPECT_EQ(superblock_of(after), superblock_of(b));
  for (void* p : {a1, b, small, after}) heap->deallocate(p);
  checked(heap);
}

TEST_F(A2allocHeap, FullestFirst) {
  test::OwnHeap<A2allocFullestFirst> heap;
  // Three superblocks: full, three quarters full, one quarter full.
  constexpr std::size_t kQuarter = kPiece / 4 - sizeof(a2alloc::Block);
  std::vector<void*> blocks(12);
  for (void*& p : blocks) p = heap->allocate(kQuarter);
  ASSERT_EQ(checked(heap).superblocks, 3u);
  for (std::size_t i : {5u, 9u, 10u, 11u}) heap->deallocate(blocks[i]);
  void* p = heap->allocate(100);
  EXPECT_EQ(superblock_of(p), superblock_of(blocks[4]));
  void* last_quarter = heap->allocate(kQuarter);  // only the emptiest has that much
  EXPECT_EQ(superblock_of(last_quarter), superblock_of(blocks[8]));
  void* q = heap->allocate(100);
  EXPECT_EQ(superblock_of(q), superblock_of(blocks[4]));
  checked(heap);
}

TEST_F(A2allocHeap, SizeClassesDoNotShareSuperblocks) {
  test::OwnHeap<A2allocClasses> heap;
  void* small[2] = {heap->allocate(20), heap->allocate(30)};
  void* other = heap->allocate(100);
  EXPECT_EQ(superblock_of(small[0]), superblock_of(small[1]));
  EXPECT_NE(superblock_of(small[0]), superblock_of(other));
  EXPECT_EQ(heap->usable_size(small[0]), 32u);
  EXPECT_EQ(heap->usable_size(other), 112u);
  // Above the classes, and aligned beyond 16: blocks of any size, which merge.
  void* any = heap->allocate(10000);
  EXPECT_EQ(superblock_of(any), superblock_of(heap->allocate_aligned(100, 256)));
  checked(heap);
}

TEST_F(A2allocHeap, ClassesHoldWhatTheyShouldAndWasteLittle) {
  unsigned last = 0;
  for (std::size_t n = 0; n <= a2alloc::kLargestClassBytes<A2allocClasses>; ++n) {
    const a2alloc::SizeClass c = a2alloc::class_of<A2allocClasses>(n);
    ASSERT_TRUE(c.number == last || c.number == last + 1) << n;
    ASSERT_LT(c.number, a2alloc::kClassCount<A2allocClasses>);
    ASSERT_GE(c.bytes(), n);
    ASSERT_LE(c.bytes(), max_of(n + n / 4, n + 16)) << n;
    ASSERT_EQ(c.bytes() % 16, 0u);
    last = c.number;
  }
  EXPECT_EQ(last + 1, a2alloc::kClassCount<A2allocClasses>);
  EXPECT_EQ(a2alloc::class_of<A2allocClasses>(4097), a2alloc::kAnySize);
  EXPECT_EQ(a2alloc::class_of<A2allocReport>(20), a2alloc::kAnySize);
}

}  // namespace
}  // namespace spanalloc
