// Each named invariant of the a2alloc engine (DESIGN.md beside it) is violated here, and
// its assertion seen to fire.
#include <gtest/gtest.h>

#include <cstddef>

#include "base/assert.hpp"
#include "papers/a2alloc/engine/allocator.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc {
namespace {

using a2alloc::Block;
using a2alloc::Kind;
using TheAllocator = a2alloc::Allocator<A2allocReport>;
using TheHeap = a2alloc::Heap<A2allocReport>;
using Piece = a2alloc::Superblock<A2allocReport>;

// Blocks side by side from the first one of a superblock on, all live; behind them the free rest.
class A2allocAssertionDeathTest : public testing::Test {
 protected:
  void SetUp() override {
    for (void*& p : blocks_) p = allocator_.allocate(200);
    piece_ = allocator_.piece_of(blocks_[0]);
    heap_ = piece_->heap.load_relaxed();
    ASSERT_EQ(address_of(Block::of(blocks_[0])), piece_->start);
    ASSERT_EQ(Block::of(blocks_[0])->right(), Block::of(blocks_[1]));
  }
  void TearDown() override { allocator_.destroy(); }

  void free_all() {
    for (void* p : blocks_) allocator_.deallocate(p);
  }
  // Runs of three pieces side by side.
  void allocate_runs() {
    for (void*& p : runs_) p = allocator_.allocate(3 * a2alloc::kSuperblockBytes<A2allocReport>);
    ASSERT_EQ(run(0) + 3, run(1));
    ASSERT_EQ(run(1) + 3, run(2));
  }
  Piece* run(int i) { return allocator_.piece_of(runs_[i]); }

  TheAllocator allocator_;
  void* blocks_[4] = {};
  void* runs_[4] = {};
  Piece* piece_ = nullptr;
  TheHeap* heap_ = nullptr;
};

TEST_F(A2allocAssertionDeathTest, S1_NeighboursKnowEachOthersSize) {
  const auto free_in_front_of_one_that_knows_better = [&] {
    Block* next = Block::of(blocks_[1]);
    next->write(next->size(), next->left_size + 16, false);
    allocator_.deallocate(blocks_[0]);
  };
  EXPECT_DEATH(free_in_front_of_one_that_knows_better(), "right->left_size == size");
  const auto grow_there = [&] {
    Block* next = Block::of(blocks_[1]);
    next->write(next->size(), next->left_size + 16, false);
    allocator_.resize(blocks_[0], 300);
  };
  EXPECT_DEATH(grow_there(), "right->left_size == block->size\\(\\)");
  const auto free_behind_one_that_is_longer = [&] {
    Block* block = Block::of(blocks_[0]);
    block->write(block->size() + 16, block->left_size, false);
    allocator_.deallocate(blocks_[1]);
  };
  EXPECT_DEATH(free_behind_one_that_is_longer(), "left->size\\(\\) == left_size");
}

TEST_F(A2allocAssertionDeathTest, S2_FreeBlocksAreNoNeighbours) {
  const auto merge_and_find_another_free_one = [&] {
    allocator_.deallocate(blocks_[1]);
    Block* unlisted = Block::of(blocks_[2]);
    unlisted->write(unlisted->size(), unlisted->left_size, true);
    allocator_.deallocate(blocks_[0]);
  };
  EXPECT_DEATH(merge_and_find_another_free_one(), "!block->right\\(\\)->is_free\\(\\)");
}

TEST_F(A2allocAssertionDeathTest, S3_UsedAndLiveAreWhatIsOut) {
  EXPECT_DEATH((piece_->used = 16, allocator_.deallocate(blocks_[0])), "live != 0 && used >= size");
  EXPECT_DEATH((piece_->live = 0, allocator_.deallocate(blocks_[0])), "live != 0 && used >= size");
  EXPECT_DEATH((piece_->live = 1, allocator_.deallocate(blocks_[0])), "books_may_be_right\\(\\)");
  EXPECT_DEATH((piece_->live = 3000, (void)allocator_.allocate(100)), "books_may_be_right\\(\\)");
}

TEST_F(A2allocAssertionDeathTest, S4_NoFreeBlockExceedsTheBound) {
  EXPECT_DEATH((piece_->bound = 0, allocator_.deallocate(blocks_[3])),
               "block->size\\(\\) <= bound");
}

TEST_F(A2allocAssertionDeathTest, H1_UsedIsWhatTheSuperblocksUse) {
  const auto use_less_than_the_superblocks = [&] {
    {
      const LockGuard guard(heap_->lock);
      heap_->change(piece_, [](Piece* piece) {
        piece->used -= 64;
        return 0;
      });
    }
    piece_->used += 64;
    allocator_.deallocate(blocks_[0]);
  };
  EXPECT_DEATH(use_less_than_the_superblocks(), "books_may_be_right\\(\\*piece\\)");
}

TEST_F(A2allocAssertionDeathTest, H2_WhatIsEvictedWasCounted) {
  free_all();
  const auto evict_uncounted = [&] {
    const LockGuard guard(heap_->lock);
    heap_->forget_all();
    heap_->evict(piece_);
  };
  EXPECT_DEATH(evict_uncounted(), "superblocks_ != 0");
}

TEST_F(A2allocAssertionDeathTest, H3_ASuperblockIsInItsGroupsList) {
  EXPECT_DEATH((piece_->group = 1, allocator_.deallocate(blocks_[0])), "is_mine\\(\\*piece\\)");
  free_all();
  const auto evict_unlinked = [&] {
    const LockGuard guard(heap_->lock);
    piece_->previous = piece_;
    heap_->evict(piece_);
  };
  EXPECT_DEATH(evict_unlinked(), "previous");
}

TEST_F(A2allocAssertionDeathTest, H4_ASuperblockNamesItsHeap) {
  TheAllocator other;
  void* p = other.allocate(200);
  TheHeap* other_heap = other.piece_of(p)->heap.load_relaxed();
  const auto put_into_another = [&] {
    const LockGuard guard(other_heap->lock);
    other_heap->put(piece_, Block::of(blocks_[0]));
  };
  EXPECT_DEATH(put_into_another(), "is_mine\\(\\*piece\\)");
  const auto take_anothers = [&] {
    const LockGuard guard(other_heap->lock);
    other_heap->take_back(piece_);
  };
  EXPECT_DEATH(take_anothers(), "piece->heap.load_relaxed\\(\\) == this");
  other.destroy();
}

TEST_F(A2allocAssertionDeathTest, G1_FreeRunsAreNoNeighbours) {
  allocate_runs();
  allocator_.deallocate(runs_[1]);
  EXPECT_DEATH((run(2)->kind.store_relaxed(Kind::kFree), allocator_.deallocate(runs_[0])),
               "is_free_end");
}

TEST_F(A2allocAssertionDeathTest, G2_TheListHasFreeRunsOnly) {
  allocate_runs();
  allocator_.deallocate(runs_[1]);
  const auto allocate_what_is_listed_and_not_free = [&] {
    run(1)->kind.store_relaxed(Kind::kLarge);
    (void)allocator_.allocate(2 * a2alloc::kSuperblockBytes<A2allocReport>);
  };
  EXPECT_DEATH(allocate_what_is_listed_and_not_free(),
               "run->kind.load_relaxed\\(\\) == Kind::kFree");
}

TEST_F(A2allocAssertionDeathTest, G3_TheCountsAddUp) {
  allocate_runs();
  EXPECT_DEATH((run(1)->count = 100, allocator_.deallocate(runs_[1])),
               "counts_.of\\(kind\\) >= run->count");
  a2alloc::PieceCounts counts{.known = 3, .free = 1, .superblocks = 2};
  EXPECT_TRUE(counts.add_up());
  counts.known = 4;
  EXPECT_FALSE(counts.add_up());
}

TEST_F(A2allocAssertionDeathTest, G4_ARunsDirtyPiecesAreCounted) {
  allocate_runs();
  allocator_.deallocate(runs_[1]);
  EXPECT_DEATH((run(1)->dirty = 100, allocator_.deallocate(runs_[0]),
                (void)allocator_.allocate(3 * a2alloc::kSuperblockBytes<A2allocReport>)),
               "counts_.dirty >= run->dirty");
}

TEST_F(A2allocAssertionDeathTest, NothingChangesWithoutItsLock) {
  EXPECT_DEATH(piece_->find(16), "is_guarded\\(\\)");
  EXPECT_DEATH(piece_->put(Block::of(blocks_[0])), "is_guarded\\(\\)");
  EXPECT_DEATH(heap_->take(32, a2alloc::kAnySize), "lock.is_mine\\(\\)");
  EXPECT_DEATH(heap_->put(piece_, Block::of(blocks_[0])), "is_mine\\(\\*piece\\)");
  EXPECT_DEATH(heap_->evict_empty([](Piece*) {}), "lock.is_mine\\(\\)");
}

TEST_F(A2allocAssertionDeathTest, APieceGoesFromKindToKindInOrder) {
  allocate_runs();
  a2alloc::GlobalHeap<A2allocReport>& global = allocator_.global_heap();
  EXPECT_DEATH(global.put(piece_), "run->heap.load_relaxed\\(\\) == nullptr");
  EXPECT_DEATH(global.put(run(0) + 1), "kind == Kind::kSuperblock || kind == Kind::kLarge");
  EXPECT_DEATH(global.lose(run(0)), "kind.load_relaxed\\(\\) == Kind::kSuperblock");
  EXPECT_DEATH(global.take(Kind::kFree, 1), "is_in_use\\(kind\\)");
  const auto add = [&](Piece* piece) {
    const LockGuard guard(heap_->lock);
    heap_->add(piece, a2alloc::kAnySize);
  };
  EXPECT_DEATH(add(piece_), "heap.load_relaxed\\(\\) == nullptr");
  EXPECT_DEATH(add(run(0)), "kind.load_relaxed\\(\\) == Kind::kSuperblock");
}

TEST_F(A2allocAssertionDeathTest, OnlyEmptySuperblocksAreEvicted) {
  const auto evict = [&] {
    const LockGuard guard(heap_->lock);
    heap_->evict(piece_);
  };
  EXPECT_DEATH(evict(), "piece->is_empty\\(\\)");
}

TEST_F(A2allocAssertionDeathTest, TheDefaultInstanceIsNeverDestroyed) {
  EXPECT_DEATH(TheAllocator::default_instance.destroy(), "!is_default\\(\\)");
}

}  // namespace
}  // namespace spanalloc
