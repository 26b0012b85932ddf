// The walker of the a2alloc engine must itself notice what is broken.
#include <gtest/gtest.h>

#include "papers/a2alloc/tests/test_support.hpp"

namespace spanalloc {
namespace {

using a2alloc::Census;
using test::checked;
using test::kPiece;

class A2allocWalker : public test::SmallArenas {};

TEST_F(A2allocWalker, NoticesWhatIsBroken) {
  test::OwnHeap<A2allocReport> heap;
  void* blocks[3];
  for (void*& p : blocks) p = heap->allocate(40);
  auto* header = a2alloc::Block::of(blocks[1]);
  const a2alloc::Block good = *header;

  header->size_and_free += 16;  // overwritten
  EXPECT_FALSE(heap->census().consistent());
  header->write(good.size() + 16, good.left_size, false);  // sealed, but leads astray
  EXPECT_FALSE(heap->census().consistent());
  header->write(good.size(), good.left_size + 16, false);  // does not know its left neighbour
  EXPECT_FALSE(heap->census().consistent());
  header->write(good.size(), good.left_size, true);  // free, but in no list and not in the books
  EXPECT_FALSE(heap->census().consistent());
  header->write(16, good.left_size, false);  // too small for a block
  EXPECT_FALSE(heap->census().consistent());
  header->write(kPiece, good.left_size, false);  // out of the superblock
  EXPECT_FALSE(heap->census().consistent());
  *header = good;
  EXPECT_TRUE(checked(heap).consistent());
  for (void* p : blocks) heap->deallocate(p);
}

// The census after `harm`, which must be undone by what it returns.
template <class Harm>
void expect_noticed(test::OwnHeap<A2allocReport>& heap, const char* what, Harm harm) {
  ASSERT_TRUE(checked(heap).consistent());
  auto undo = harm();
  const Census census = heap->census();
  EXPECT_FALSE(census.consistent()) << what;
  EXPECT_STREQ(census.first_problem, what);
  undo();
  ASSERT_TRUE(checked(heap).consistent());
}

TEST_F(A2allocWalker, NamesWhatIsBroken) {
  test::OwnHeap<A2allocReport> heap;
  using a2alloc::Block;
  using a2alloc::FreeBlock;
  void* blocks[6];
  for (void*& p : blocks) p = heap->allocate(100);
  heap->deallocate(blocks[1]);
  heap->deallocate(blocks[3]);
  auto* hole = static_cast<FreeBlock*>(Block::of(blocks[3]));
  // Blocks that tile, but not as they were made: the last two are one.
  expect_noticed(heap, "a superblock's accounting is wrong", [&] {
    Block* fourth = Block::of(blocks[4]);
    const Block before = *fourth;
    Block* after = Block::of(blocks[5])->right();
    const Block before_after = *after;
    fourth->write(fourth->size() + Block::of(blocks[5])->size(), fourth->left_size, false);
    after->write(after->size(), fourth->size(), after->is_free());
    return [=] {
      *fourth = before;
      *after = before_after;
    };
  });
  expect_noticed(heap, "two free blocks are neighbours", [&] {
    Block* live = Block::of(blocks[2]);
    live->write(live->size(), live->left_size, true);
    return [=] { live->write(live->size(), live->left_size, false); };
  });
  expect_noticed(heap, "the free list is broken", [&] {
    FreeBlock* before = hole->previous;
    hole->previous = hole;
    return [=] { hole->previous = before; };
  });
  expect_noticed(heap, "a free block is not in the list", [&] {
    FreeBlock* next = hole->next;
    hole->next = a2alloc::Superblock<A2allocReport>::list_end();
    return [=] { hole->next = next; };
  });
  expect_noticed(heap, "the free list is broken", [&] {
    FreeBlock* next = hole->next;
    hole->next = nullptr;
    return [=] { hole->next = next; };
  });
  expect_noticed(heap, "a header is overwritten", [&] {
    Block* live = Block::of(blocks[0]);
    live->seal ^= 1;
    return [=] { live->seal ^= 1; };
  });
  for (int i : {0, 2, 4, 5}) heap->deallocate(blocks[i]);
}

}  // namespace
}  // namespace spanalloc
