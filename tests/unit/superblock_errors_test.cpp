// Headers of the superblock engine that are no longer what they were, and pointers that lead to none: named.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>
#include <cstring>

#include "superblock_test_support.hpp"

namespace spanalloc {
namespace {

using test::kPiece;
using test::superblock_of;

class SuperblockDeathTest : public test::SmallArenas {};

#define EXPECT_NAMED(statement, text) EXPECT_EXIT(statement, ::testing::KilledBySignal(SIGABRT), text)

TEST_F(SuperblockDeathTest, OverwrittenHeadersAreNamed) {
  SPANALLOC_OWN_HEAP(Overflow, SuperblockReport);
  using E = OverflowEngine;
  auto* p = static_cast<char*>(E::allocate(40));
  void* q = E::allocate(40);
  const std::size_t usable = E::usable_size(p);
  for (std::size_t bytes : {1u, 4u, 8u, 9u, 16u, 17u}) {
    EXPECT_NAMED((std::memset(p + usable, 'A', bytes), E::deallocate(q)), "^spanalloc: header overwritten");
    EXPECT_NAMED((std::memset(p + usable, 'A', bytes), E::deallocate(p)), "^spanalloc: header overwritten");
    EXPECT_NAMED((std::memset(p + usable, 'A', bytes), E::usable_size(q)), "^spanalloc: header overwritten");
    EXPECT_NAMED((std::memset(p + usable, 'A', bytes), E::resize(p, 500)), "^spanalloc: header overwritten");
  }
  E::deallocate(p);
  E::deallocate(q);
}

TEST_F(SuperblockDeathTest, ClobberedNeighboursAreNamedByWhoeverLooksAtThem) {
  SPANALLOC_OWN_HEAP(Neighbours, SuperblockReport);
  using E = NeighboursEngine;
  char* blocks[6];
  for (char*& p : blocks) p = static_cast<char*>(E::allocate(200));
  const std::size_t usable = E::usable_size(blocks[0]);
  const auto overrun = [&](int i) { std::memset(blocks[i] + usable, 'A', 16); };
  // The header in front of block 1; block 2 is freed and looks to its left.
  EXPECT_NAMED((overrun(0), E::deallocate(blocks[2])), "^spanalloc: header overwritten");
  // That of block 4; block 2 is freed, merges with the free block 3, and would tell 4 of it.
  E::deallocate(blocks[3]);
  EXPECT_NAMED((overrun(3), E::deallocate(blocks[2])), "^spanalloc: header overwritten");
  // That of the free block 3, which malloc passes in its search.
  EXPECT_NAMED((overrun(2), E::allocate(1000)), "^spanalloc: header overwritten");
  // The address named is that of the object whose header it was.
  char text[64];
  std::snprintf(text, sizeof text, "header overwritten.*%zx",
                static_cast<std::size_t>(address_of(blocks[1])));
  EXPECT_NAMED((overrun(0), E::deallocate(blocks[1])), text);
}

TEST_F(SuperblockDeathTest, WritesToFreedMemoryAreNamedBeforeItIsHandedOut) {
  SPANALLOC_OWN_HEAP(Freed, SuperblockReport);
  using E = FreedEngine;
  char* blocks[6];
  for (char*& p : blocks) p = static_cast<char*>(E::allocate(200));
  E::deallocate(blocks[0]);
  E::deallocate(blocks[2]);
  // The links lie in its first 16 bytes.
  const auto write = [&](int i, std::size_t offset) { std::memset(blocks[i] + offset, 'A', 8); };
  EXPECT_NAMED((write(2, 0), E::allocate(200)), "^spanalloc: free list corrupted");
  EXPECT_NAMED((write(2, 8), E::allocate(200)), "^spanalloc: free list corrupted");
  EXPECT_NAMED((write(0, 0), E::deallocate(blocks[1])), "^spanalloc: free list corrupted");
  // Zeros are no link, nor a list's end.
  EXPECT_NAMED((std::memset(blocks[2], 0, 16), E::allocate(200)), "^spanalloc: free list corrupted");
  EXPECT_NAMED((std::memset(blocks[0], 0, 16), E::deallocate(blocks[1])), "^spanalloc: free list corrupted");
  // A link that leads to another free block of the superblock, whose way back is not from here.
  E::deallocate(blocks[4]);
  void* elsewhere = superblock::Block::of(blocks[0]);
  EXPECT_NAMED((std::memcpy(blocks[4], &elsewhere, sizeof elsewhere), E::allocate(1000)),
               "^spanalloc: free list corrupted");
}

TEST_F(SuperblockDeathTest, ACopiedHeaderIsNone) {
  SPANALLOC_OWN_HEAP(Copied, SuperblockReport);
  using E = CopiedEngine;
  auto* p = static_cast<char*>(E::allocate(200));
  std::memcpy(p + 64, p - sizeof(superblock::Block), sizeof(superblock::Block));
  EXPECT_NAMED(E::deallocate(p + 64 + sizeof(superblock::Block)), "not the start of an object");
  E::deallocate(p);
}

TEST_F(SuperblockDeathTest, WhatWasMergedIsKnownToBeFree) {
  SPANALLOC_OWN_HEAP(Merged, SuperblockReport);
  using E = MergedEngine;
  void* blocks[4];
  for (void*& p : blocks) p = E::allocate(100);
  for (int i = 0; i < 3; ++i) E::deallocate(blocks[i]);
  for (int i = 0; i < 3; ++i) EXPECT_NAMED(E::deallocate(blocks[i]), "free already");
  E::deallocate(blocks[3]);
}

TEST_F(SuperblockDeathTest, BadPointersIntoEveryKindOfPiece) {
  SPANALLOC_OWN_HEAP(Pointers, SuperblockReport);
  using E = PointersEngine;
  auto* small = static_cast<char*>(E::allocate(100));
  auto* large = static_cast<char*>(E::allocate(3 * kPiece));
  auto* gone = static_cast<char*>(E::allocate(3 * kPiece));
  E::deallocate(gone);
  for (std::ptrdiff_t offset : {1, 8, 16, 96}) {
    EXPECT_NAMED(E::deallocate(small + offset), "not the start of an object");
  }
  EXPECT_NAMED(E::deallocate(pointer_to(superblock_of(small))), "not the start of an object");
  EXPECT_NAMED(E::deallocate(large + 16), "not the start of an object");
  EXPECT_NAMED(E::deallocate(large + kPiece), "not the start of an object");
  EXPECT_NAMED(E::deallocate(large - 16), "");
  EXPECT_NAMED(E::deallocate(gone), "free already");
  EXPECT_NAMED(E::usable_size(gone + 100), "free already");
  EXPECT_NAMED(E::deallocate(gone + 2 * kPiece), "free already");
  EXPECT_NAMED(E::resize(&small, 10), "none of this heap's");
  E::deallocate(small);
  E::deallocate(large);
}

}  // namespace
}  // namespace spanalloc
