// Blocks of the superblock engine and their neighbours: they tile their superblock, split, merge, grow and
// shrink.
#include <gtest/gtest.h>

#include <vector>

#include "superblock_test_support.hpp"

namespace spanalloc {
namespace {

using test::checked;
using test::kHalf;
using test::kPiece;
using test::superblock_of;

class SuperblockBlocks : public test::SmallArenas {};

template <class E>
void churn_and_walk() {
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
        E::deallocate(p);
        p = E::allocate_aligned(n, std::size_t{1} << random(15));
        break;
      case 1:
        if (p != nullptr && E::resize(p, n) == p) {
          ASSERT_GE(E::usable_size(p), n);
        }
        break;
      case 2:
        E::deallocate(p);
        p = E::allocate(n);
        break;
      default:
        E::deallocate(p);
        p = nullptr;
    }
    if (step % 50 == 0) {
      ASSERT_TRUE(checked<E>().consistent());
    }
  }
  for (void* p : blocks) E::deallocate(p);
  E::trim();
  EXPECT_TRUE(checked<E>().all_returned());
  EXPECT_EQ(checked<E>().live_blocks, 0u);
}

TEST_F(SuperblockBlocks, TileTheirSuperblockWhateverHappens) {
  SPANALLOC_OWN_HEAP(Tiling, SuperblockReport);
  SPANALLOC_OWN_HEAP(TilingClasses, SuperblockClasses);
  SPANALLOC_OWN_HEAP(TilingKheap, Kheap);
  churn_and_walk<TilingEngine>();
  churn_and_walk<TilingClassesEngine>();
  churn_and_walk<TilingKheapEngine>();
}

TEST_F(SuperblockBlocks, TheFirstInTheFreeListThatIsLargeEnoughServes) {
  SPANALLOC_OWN_HEAP(FirstFit, SuperblockReport);
  using E = FirstFitEngine;
  void* holes[3];
  void* walls[3];
  const std::size_t sizes[] = {200, 1000, 400};
  for (int i = 0; i < 3; ++i) {
    holes[i] = E::allocate(sizes[i]);
    walls[i] = E::allocate(16);
  }
  for (void* hole : holes) E::deallocate(hole);
  // The list, front to back: 400, 1000, 200, the rest of the superblock. The best fit for 150 would be the
  // 200.
  EXPECT_EQ(E::allocate(150), holes[2]);
  EXPECT_EQ(E::allocate(900), holes[1]);
  EXPECT_EQ(E::allocate(180), pointer_to(address_of(holes[2]) + 160 + 16));
  for (void* wall : walls) E::deallocate(wall);
  checked<E>();
}

TEST_F(SuperblockBlocks, FreeNeighboursMergeInEveryOrder) {
  SPANALLOC_OWN_HEAP(Merging, SuperblockReport);
  using E = MergingEngine;
  const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  for (const auto& order : orders) {
    // Half a superblock in three pieces, then one block of just that size.
    void* parts[3] = {E::allocate(10000), E::allocate(12000), E::allocate(kHalf - 22000 - 2 * 16)};
    void* rest = E::allocate(kHalf);
    ASSERT_EQ(superblock_of(rest), superblock_of(parts[0]));
    for (int i : order) {
      E::deallocate(parts[i]);
      checked<E>();
    }
    void* whole = E::allocate(kHalf);
    EXPECT_EQ(whole, parts[0]);
    EXPECT_EQ(checked<E>().superblocks, 1u);
    E::deallocate(whole);
    E::deallocate(rest);
  }
}

TEST_F(SuperblockBlocks, OneBetweenFreeNeighboursMergesWithBoth) {
  SPANALLOC_OWN_HEAP(Three, SuperblockReport);
  using E = ThreeEngine;
  void* blocks[5];
  for (void*& p : blocks) p = E::allocate(1000);
  E::deallocate(blocks[1]);
  E::deallocate(blocks[3]);
  void* far = E::allocate(1500);  // in neither hole
  EXPECT_GT(address_of(far), address_of(blocks[4]));
  E::deallocate(blocks[2]);
  EXPECT_EQ(E::allocate(3 * 1024 - 16), blocks[1]);
  E::deallocate(blocks[0]);
  E::deallocate(blocks[4]);
  E::deallocate(far);
  checked<E>();
}

TEST_F(SuperblockBlocks, AreSplitAndWhatIsLeftOverServesOthers) {
  SPANALLOC_OWN_HEAP(Splitting, SuperblockReport);
  using E = SplittingEngine;
  void* hole = E::allocate(1000);
  void* wall = E::allocate(16);
  E::deallocate(hole);
  void* front = E::allocate(400);
  EXPECT_EQ(front, hole);
  EXPECT_EQ(E::usable_size(front), 400u);
  void* back = E::allocate(500);
  EXPECT_EQ(address_of(back), address_of(hole) + 400 + 16);
  // 80 bytes are left over, header included: just a block for 60.
  void* last = E::allocate(60);
  EXPECT_EQ(address_of(last), address_of(back) + 512 + 16);
  EXPECT_EQ(E::usable_size(last) + 16, address_of(wall) - address_of(last));
  for (void* p : {front, back, last, wall}) E::deallocate(p);
  checked<E>();
}

TEST_F(SuperblockBlocks, AreSplitOnlyWhereABlockIsLeftOver) {
  SPANALLOC_OWN_HEAP(Threshold, SuperblockReport);
  using E = ThresholdEngine;
  constexpr std::size_t kHeader = sizeof(superblock::Block);
  static_assert(superblock::kLeastBlock == 32);
  for (const std::size_t left_over : {0u, 16u, 32u, 48u}) {
    SCOPED_TRACE(left_over);
    const bool is_block = left_over >= superblock::kLeastBlock;
    // By malloc: a hole of 400, header included.
    void* hole = E::allocate(400 - kHeader);
    void* wall = E::allocate(16);
    E::deallocate(hole);
    void* p = E::allocate(400 - left_over - kHeader);
    ASSERT_EQ(p, hole);
    EXPECT_EQ(E::usable_size(p), 400 - kHeader - (is_block ? left_over : 0));
    checked<E>();
    E::deallocate(p);
    // By realloc, down from 400.
    p = E::allocate(400 - kHeader);
    ASSERT_EQ(p, hole);
    EXPECT_EQ(E::resize(p, 400 - left_over - kHeader), p);
    EXPECT_EQ(E::usable_size(p), 400 - kHeader - (is_block ? left_over : 0));
    checked<E>();
    // By realloc, up to what is left of a free neighbour.
    E::deallocate(p);
    p = E::allocate(100 - kHeader);
    ASSERT_EQ(p, hole);
    EXPECT_EQ(E::resize(p, 400 - left_over - kHeader), p);
    EXPECT_EQ(E::usable_size(p), 400 - kHeader - (is_block ? left_over : 0));
    checked<E>();
    E::deallocate(p);
    E::deallocate(wall);
  }
}

TEST_F(SuperblockBlocks, GrowAndShrinkInPlace) {
  SPANALLOC_OWN_HEAP(Resizing, SuperblockReport);
  using E = ResizingEngine;
  void* p = E::allocate(100);
  void* next = E::allocate(1000);
  EXPECT_EQ(E::resize(p, 500), nullptr);  // the neighbour is not free
  E::deallocate(next);
  EXPECT_EQ(E::resize(p, 500), p);
  EXPECT_EQ(E::usable_size(p), 512u);
  EXPECT_EQ(E::allocate(16), pointer_to(address_of(p) + E::usable_size(p) + 16));
  EXPECT_EQ(E::resize(p, 50), p);
  EXPECT_EQ(E::usable_size(p), 64u);
  EXPECT_EQ(E::resize(p, 20000), nullptr);
  EXPECT_EQ(E::usable_size(p), 64u);
  EXPECT_EQ(checked<E>().live_blocks, 2u);
}

TEST_F(SuperblockBlocks, AlignedOnesHaveHeadersOfTheirOwn) {
  SPANALLOC_OWN_HEAP(Aligning, SuperblockReport);
  using E = AligningEngine;
  std::vector<void*> blocks;
  for (std::size_t alignment = 32; alignment <= kPiece / 4; alignment *= 2) {
    for (std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{100}, alignment, std::size_t{20000}}) {
      blocks.push_back(E::allocate_aligned(n, alignment));
      ASSERT_EQ(address_of(blocks.back()) % alignment, 0u);
      ASSERT_GE(E::usable_size(blocks.back()), n);
      ASSERT_LT(E::usable_size(blocks.back()), n + 64);  // what alignment cost was given back
      ASSERT_TRUE(checked<E>().consistent());
    }
  }
  for (void* p : blocks) E::deallocate(p);
  E::trim();
  EXPECT_TRUE(checked<E>().all_returned());
}

}  // namespace
}  // namespace spanalloc
