// Blocks of the a2alloc engine and their neighbours: they tile their superblock,
// split, merge, grow and shrink.
#include <gtest/gtest.h>

#include <vector>

#include "papers/a2alloc/tests/test_support.hpp"

namespace spanalloc {
namespace {

using test::checked;
using test::kHalf;
using test::kPiece;
using test::superblock_of;

class A2allocBlocks : public test::SmallArenas {};

template <class Config>
void churn_and_walk() {
  test::OwnHeap<Config> heap;
  std::vector<void*> blocks(400);
  std::uint64_t seed = 1;
  const auto random = [&](std::size_t bound) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::size_t>(seed >> 33) % bound;
  };
  for (int step = 0; step < 40000; ++step) {
    void*& p = blocks[random(blocks.size())];
    const std::size_t n = random(8) == 0 ? random(40000) : random(600);
    switch (random(4)) {
      case 0:
        heap->deallocate(p);
        p = heap->allocate_aligned(n, std::size_t{1} << random(15));
        break;
      case 1:
        if (p != nullptr && heap->resize(p, n).block == p) {
          ASSERT_GE(heap->usable_size(p), n);
        }
        break;
      case 2:
        heap->deallocate(p);
        p = heap->allocate(n);
        break;
      default:
        heap->deallocate(p);
        p = nullptr;
    }
    if (step % 50 == 0) {
      ASSERT_TRUE(checked(heap).consistent());
    }
  }
  for (void* p : blocks) heap->deallocate(p);
  heap->trim();
  EXPECT_TRUE(checked(heap).all_returned());
  EXPECT_EQ(checked(heap).live_blocks, 0u);
}

TEST_F(A2allocBlocks, TileTheirSuperblockWhateverHappens) {
  churn_and_walk<A2allocReport>();
  churn_and_walk<A2allocClasses>();
  churn_and_walk<Kheap>();
}

TEST_F(A2allocBlocks, TheFirstInTheFreeListThatIsLargeEnoughServes) {
  test::OwnHeap<A2allocReport> heap;
  void* holes[3];
  void* walls[3];
  const std::size_t sizes[] = {200, 1000, 400};
  for (int i = 0; i < 3; ++i) {
    holes[i] = heap->allocate(sizes[i]);
    walls[i] = heap->allocate(16);
  }
  for (void* hole : holes) heap->deallocate(hole);
  // The list, front to back: 400, 1000, 200, the rest of the superblock. The best fit
  // for 150 would be the 200.
  EXPECT_EQ(heap->allocate(150), holes[2]);
  EXPECT_EQ(heap->allocate(900), holes[1]);
  EXPECT_EQ(heap->allocate(180), pointer_to(address_of(holes[2]) + 160 + 16));
  for (void* wall : walls) heap->deallocate(wall);
  checked(heap);
}

TEST_F(A2allocBlocks, FreeNeighboursMergeInEveryOrder) {
  test::OwnHeap<A2allocReport> heap;
  const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  for (const auto& order : orders) {
    // Half a superblock in three pieces, then one block of just that size.
    void* parts[3] = {heap->allocate(10000), heap->allocate(12000),
                      heap->allocate(kHalf - 22000 - 2 * 16)};
    void* rest = heap->allocate(kHalf);
    ASSERT_EQ(superblock_of(rest), superblock_of(parts[0]));
    for (int i : order) {
      heap->deallocate(parts[i]);
      checked(heap);
    }
    void* whole = heap->allocate(kHalf);
    EXPECT_EQ(whole, parts[0]);
    EXPECT_EQ(checked(heap).superblocks, 1u);
    heap->deallocate(whole);
    heap->deallocate(rest);
  }
}

TEST_F(A2allocBlocks, OneBetweenFreeNeighboursMergesWithBoth) {
  test::OwnHeap<A2allocReport> heap;
  void* blocks[5];
  for (void*& p : blocks) p = heap->allocate(1000);
  heap->deallocate(blocks[1]);
  heap->deallocate(blocks[3]);
  void* far = heap->allocate(1500);  // in neither hole
  EXPECT_GT(address_of(far), address_of(blocks[4]));
  heap->deallocate(blocks[2]);
  EXPECT_EQ(heap->allocate(3 * 1024 - 16), blocks[1]);
  heap->deallocate(blocks[0]);
  heap->deallocate(blocks[4]);
  heap->deallocate(far);
  checked(heap);
}

TEST_F(A2allocBlocks, AreSplitAndWhatIsLeftOverServesOthers) {
  test::OwnHeap<A2allocReport> heap;
  void* hole = heap->allocate(1000);
  void* wall = heap->allocate(16);
  heap->deallocate(hole);
  void* front = heap->allocate(400);
  EXPECT_EQ(front, hole);
  EXPECT_EQ(heap->usable_size(front), 400u);
  void* back = heap->allocate(500);
  EXPECT_EQ(address_of(back), address_of(hole) + 400 + 16);
  // 80 bytes are left over, header included: just a block for 60.
  void* last = heap->allocate(60);
  EXPECT_EQ(address_of(last), address_of(back) + 512 + 16);
  EXPECT_EQ(heap->usable_size(last) + 16, address_of(wall) - address_of(last));
  for (void* p : {front, back, last, wall}) heap->deallocate(p);
  checked(heap);
}

TEST_F(A2allocBlocks, AreSplitOnlyWhereABlockIsLeftOver) {
  test::OwnHeap<A2allocReport> heap;
  constexpr std::size_t kHeader = sizeof(a2alloc::Block);
  static_assert(a2alloc::kLeastBlock == 32);
  for (const std::size_t left_over : {0u, 16u, 32u, 48u}) {
    SCOPED_TRACE(left_over);
    const bool is_block = left_over >= a2alloc::kLeastBlock;
    // By malloc: a hole of 400, header included.
    void* hole = heap->allocate(400 - kHeader);
    void* wall = heap->allocate(16);
    heap->deallocate(hole);
    void* p = heap->allocate(400 - left_over - kHeader);
    ASSERT_EQ(p, hole);
    EXPECT_EQ(heap->usable_size(p), 400 - kHeader - (is_block ? left_over : 0));
    checked(heap);
    heap->deallocate(p);
    // By realloc, down from 400.
    p = heap->allocate(400 - kHeader);
    ASSERT_EQ(p, hole);
    EXPECT_EQ(heap->resize(p, 400 - left_over - kHeader).block, p);
    EXPECT_EQ(heap->usable_size(p), 400 - kHeader - (is_block ? left_over : 0));
    checked(heap);
    // By realloc, up to what is left of a free neighbour.
    heap->deallocate(p);
    p = heap->allocate(100 - kHeader);
    ASSERT_EQ(p, hole);
    EXPECT_EQ(heap->resize(p, 400 - left_over - kHeader).block, p);
    EXPECT_EQ(heap->usable_size(p), 400 - kHeader - (is_block ? left_over : 0));
    checked(heap);
    heap->deallocate(p);
    heap->deallocate(wall);
  }
}

TEST_F(A2allocBlocks, GrowAndShrinkInPlace) {
  test::OwnHeap<A2allocReport> heap;
  void* p = heap->allocate(100);
  void* next = heap->allocate(1000);
  EXPECT_EQ(heap->resize(p, 500).block, nullptr);  // the neighbour is not free
  heap->deallocate(next);
  EXPECT_EQ(heap->resize(p, 500).block, p);
  EXPECT_EQ(heap->usable_size(p), 512u);
  EXPECT_EQ(heap->allocate(16), pointer_to(address_of(p) + heap->usable_size(p) + 16));
  EXPECT_EQ(heap->resize(p, 50).block, p);
  EXPECT_EQ(heap->usable_size(p), 64u);
  EXPECT_EQ(heap->resize(p, 20000).block, nullptr);
  EXPECT_EQ(heap->usable_size(p), 64u);
  EXPECT_EQ(checked(heap).live_blocks, 2u);
}

TEST_F(A2allocBlocks, AlignedOnesHaveHeadersOfTheirOwn) {
  test::OwnHeap<A2allocReport> heap;
  std::vector<void*> blocks;
  for (std::size_t alignment = 32; alignment <= kPiece / 4; alignment *= 2) {
    for (std::size_t n :
         {std::size_t{0}, std::size_t{1}, std::size_t{100}, alignment, std::size_t{20000}}) {
      blocks.push_back(heap->allocate_aligned(n, alignment));
      ASSERT_EQ(address_of(blocks.back()) % alignment, 0u);
      ASSERT_GE(heap->usable_size(blocks.back()), n);
      ASSERT_LT(heap->usable_size(blocks.back()), n + 64);  // what alignment cost was given back
      ASSERT_TRUE(checked(heap).consistent());
    }
  }
  for (void* p : blocks) heap->deallocate(p);
  heap->trim();
  EXPECT_TRUE(checked(heap).all_returned());
}

}  // namespace
}  // namespace spanalloc
