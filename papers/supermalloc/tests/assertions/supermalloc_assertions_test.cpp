// Each invariant of the supermalloc engine that an assertion looks at is violated here, and its
// assertion seen to fire. (F3, L1, C1 and T1 only the census checks: census_test.cpp.)
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>

#include "base/assert.hpp"
#include "papers/supermalloc/engine/allocator.hpp"

namespace spanalloc {
namespace {

using supermalloc::Bin;
using supermalloc::BinNumber;
using supermalloc::Chain;
using supermalloc::ChunkEntry;
using supermalloc::ChunkNumber;
using supermalloc::FolioCell;
using supermalloc::FolioChunk;
using supermalloc::FreeObject;
using supermalloc::HugeHeap;
using supermalloc::kChunk;
using supermalloc::ObjectList;
using Bins = supermalloc::Bins<Supermalloc>;
using TheAllocator = supermalloc::Allocator<Supermalloc>;

// Two folios of 64-byte objects: one is full, of the other one ten are out.
class SupermallocAssertionDeathTest : public testing::Test {
 protected:
  void SetUp() override {
    allocator_.deallocate(allocator_.allocate(1));
    take(64);
    take(10);
  }
  void TearDown() override { allocator_.destroy(); }

  ObjectList take(std::uint32_t most) {
    return allocator_.folios().take(b_, most, allocator_.secret());
  }
  FolioCell* full() { return allocator_.folios().head_of(b_, 0); }
  FolioCell* partial() { return allocator_.folios().head_of(b_, 54); }

  const BinNumber b_ = Bins::for_folios(64);
  TheAllocator allocator_;
};

TEST_F(SupermallocAssertionDeathTest, F1_ACellCountsItsFoliosBits) {
  EXPECT_DEATH((--partial()->out, take(1)), "cell->out == chunk.count_out\\(folio\\)");
  EXPECT_DEATH((++partial()->out, take(1)), "cell->out == chunk.count_out\\(folio\\)");
}

TEST_F(SupermallocAssertionDeathTest, F2_AUsedFolioIsInOneListAndInTheRightOne) {
  FolioCell* heads[65] = {};
  auto& lists = allocator_.folios().lists(b_);
  EXPECT_DEATH(lists.add(heads, partial(), 54), "cell->state != FolioState::kListed");
  EXPECT_DEATH(lists.remove(heads, partial(), 54), "heads\\[free\\] == cell");
  const auto remove_twice = [&] {
    FolioCell cell{};
    lists.add(heads, &cell, 7);
    lists.remove(heads, &cell, 7);
    lists.remove(heads, &cell, 7);
  };
  EXPECT_DEATH(remove_twice(), "cell->state == FolioState::kListed");
  const auto use_what_is_no_wilderness = [&] {
    take(64);
    const Bin& bin = Bins::of(b_);
    const FolioChunk chunk = FolioChunk::of(full(), bin);
    chunk.cell(chunk.head()->used_folios)->out = 1;
    take(64);
  };
  EXPECT_DEATH(use_what_is_no_wilderness(), "cell->state == FolioState::kWild");
}

TEST_F(SupermallocAssertionDeathTest, AChainHoldsWholeListsAndNoMoreThanItHasRoomFor) {
  const auto room = std::make_unique<Chain::Room>();
  supermalloc::ChainPlace place;
  FreeObject object{};
  EXPECT_DEATH(place.push({&object, 1}), "!before.is_none\\(\\)");
  place.set(Chain(room.get()));
  EXPECT_DEATH(place.pop(), "!before.is_empty\\(\\)");
  EXPECT_DEATH(place.push({}), "!list.is_empty\\(\\)");
  const auto push_too_many = [&] {
    for (std::uint32_t i = 0; i <= Chain::kMostLists; ++i) place.push({&object, 1});
  };
  EXPECT_DEATH(push_too_many(), "before.count\\(\\) < Chain::kMostLists");
}

TEST_F(SupermallocAssertionDeathTest, AThreadsListChangesPlaceOnlyWithAnEmptyOne) {
  const auto cache = std::make_unique<supermalloc::ThreadCache<Supermalloc>>(&allocator_);
  FreeObject object{};
  EXPECT_DEATH(cache->set_first(b_, {&object, cache->most(b_) + 1}), "list.count <= most\\(b\\)");
  cache->set_first(b_, {&object, 1});
  EXPECT_DEATH(cache->set_first(b_, {&object, 1}), "is_empty\\(b\\)");
  EXPECT_DEATH(cache->use_spare(b_), "is_empty\\(b\\)");
}

TEST_F(SupermallocAssertionDeathTest, WhatComesBackToALargeBinIsAnObject) {
  void* p = allocator_.allocate_aligned(100'000, 4096);
  const BinNumber b = allocator_.chunks().at(p).bin();
  auto* inside = reinterpret_cast<FreeObject*>(static_cast<char*>(p) + 4096);
  inside->push_on(&supermalloc::end_of_list, allocator_.secret());
  EXPECT_DEATH(allocator_.large().put(b, inside, allocator_.secret()), "object < bin.objects");
}

TEST_F(SupermallocAssertionDeathTest, HugeRangesInListsAreFree) {
  EXPECT_DEATH(allocator_.huge().allocate(HugeHeap::kLargest + 1, 1), "n <= kLargest");
  EXPECT_DEATH(allocator_.huge().allocate(1, 2 * HugeHeap::kLargest), "alignment <= kLargest");
  void* p = allocator_.allocate(4 * kChunk);
  const ChunkNumber first = allocator_.chunks().number_of(p);
  allocator_.deallocate(p);
  EXPECT_DEATH(
      (allocator_.chunks().set(first, ChunkEntry::nothing()), allocator_.allocate(4 * kChunk)),
      "entry.is_free\\(\\)");
  // Its second half is somebody's.
  const auto halve_what_is_in_use = [&] {
    allocator_.chunks().set(first + 2, ChunkEntry::of_huge(1));
    allocator_.allocate_aligned(kChunk, 4 * kChunk);
  };
  EXPECT_DEATH(halve_what_is_in_use(), "chunks_.entry\\(first\\).word\\(\\) == 0");
}

TEST_F(SupermallocAssertionDeathTest, TheDefaultInstanceIsNeverDestroyed) {
  EXPECT_DEATH(TheAllocator::default_instance.destroy(), "!is_default\\(\\)");
}

}  // namespace
}  // namespace spanalloc
