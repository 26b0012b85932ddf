// What papers/a2alloc/TOUR.md says of one malloc and one free, sentence by sentence.
#include <gtest/gtest.h>

#include "papers/a2alloc/tests/test_support.hpp"

namespace spanalloc {
namespace {

using a2alloc::Block;
using a2alloc::Census;
using a2alloc::FreeBlock;
using test::checked;
using test::kPiece;
using test::superblock_of;

class A2allocTour : public test::SmallArenas {};

TEST_F(A2allocTour, OneMallocAndOneFree) {
  test::OwnHeap<A2allocReport> heap;
  ASSERT_EQ(checked(heap).known, 0u);

  // One malloc.
  EXPECT_EQ(sizeof(Block), 16u);
  EXPECT_EQ(a2alloc::block_size_for(100), 128u);
  void* first = heap->allocate(100);
  Census census = checked(heap);
  EXPECT_EQ(census.known, 2u);  // pieces 1 and 2
  EXPECT_EQ(census.heap_records, 1u);
  EXPECT_EQ(census.superblocks, 1u);
  EXPECT_EQ(address_of(first), superblock_of(first) + 16);
  EXPECT_EQ(heap->usable_size(first), 112u);
  Block* header = Block::of(first);
  EXPECT_EQ(header->size(), 128u);
  EXPECT_EQ(header->left_size, 0u);
  EXPECT_TRUE(header->right()->is_free());
  EXPECT_EQ(header->right()->size(), 65408u);
  FreeBlock* const list_end = a2alloc::Superblock<A2allocReport>::list_end();
  EXPECT_EQ(static_cast<FreeBlock*>(header->right())->next, list_end);  // the only one in the list

  void* second = heap->allocate(100);
  EXPECT_EQ(address_of(second), address_of(first) + 128);
  // Piece 3: so the superblock is piece 2, the heap's record piece 1
  void* behind = heap->allocate(kPiece);
  EXPECT_EQ(address_of(behind), superblock_of(first) + kPiece);
  heap->deallocate(behind);

  // One free.
  heap->deallocate(first);
  EXPECT_TRUE(header->is_free());
  EXPECT_TRUE(header->is_sealed());
  EXPECT_EQ(header->size(), 128u);  // nothing merged
  EXPECT_EQ(heap->allocate(100), first);
  heap->deallocate(first);
  census = checked(heap);
  EXPECT_EQ(census.superblocks, 1u);

  heap->deallocate(second);
  EXPECT_EQ(header->size(), kPiece);
  EXPECT_TRUE(header->is_free());
  census = checked(heap);
  EXPECT_EQ(census.superblocks, 0u);
  EXPECT_EQ(census.empty_superblocks, 1u);
  EXPECT_EQ(A2allocReport::kKeep, 8u);
}

}  // namespace
}  // namespace spanalloc
