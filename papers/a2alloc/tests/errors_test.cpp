// Headers of the a2alloc engine that are no longer what they were, and pointers
// that lead to none: named.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>
#include <cstring>

#include "papers/a2alloc/tests/test_support.hpp"

namespace spanalloc {
namespace {

using test::kPiece;
using test::superblock_of;

class A2allocDeathTest : public test::SmallArenas {};

#define EXPECT_NAMED(statement, text) \
  EXPECT_EXIT(statement, ::testing::KilledBySignal(SIGABRT), text)

TEST_F(A2allocDeathTest, OverwrittenHeadersAreNamed) {
  test::OwnHeap<A2allocReport> heap;
  auto* p = static_cast<char*>(heap->allocate(40));
  void* q = heap->allocate(40);
  const std::size_t usable = heap->usable_size(p);
  for (std::size_t bytes : {1u, 4u, 8u, 9u, 16u, 17u}) {
    EXPECT_NAMED((std::memset(p + usable, 'A', bytes), heap->deallocate(q)),
                 "^spanalloc: header overwritten");
    EXPECT_NAMED((std::memset(p + usable, 'A', bytes), heap->deallocate(p)),
                 "^spanalloc: header overwritten");
    EXPECT_NAMED((std::memset(p + usable, 'A', bytes), heap->usable_size(q)),
                 "^spanalloc: header overwritten");
    EXPECT_NAMED((std::memset(p + usable, 'A', bytes), heap->resize(p, 500)),
                 "^spanalloc: header overwritten");
  }
  heap->deallocate(p);
  heap->deallocate(q);
}

TEST_F(A2allocDeathTest, ClobberedNeighboursAreNamedByWhoeverLooksAtThem) {
  test::OwnHeap<A2allocReport> heap;
  char* blocks[6];
  for (char*& p : blocks) p = static_cast<char*>(heap->allocate(200));
  const std::size_t usable = heap->usable_size(blocks[0]);
  const auto overrun = [&](int i) { std::memset(blocks[i] + usable, 'A', 16); };
  // The header in front of block 1; block 2 is freed and looks to its left.
  EXPECT_NAMED((overrun(0), heap->deallocate(blocks[2])), "^spanalloc: header overwritten");
  // That of block 4; block 2 is freed, merges with the free block 3, and would tell 4 of it.
  heap->deallocate(blocks[3]);
  EXPECT_NAMED((overrun(3), heap->deallocate(blocks[2])), "^spanalloc: header overwritten");
  // That of the free block 3, which malloc passes in its search.
  EXPECT_NAMED((overrun(2), heap->allocate(1000)), "^spanalloc: header overwritten");
  // The address named is that of the object whose header it was.
  char text[64];
  std::snprintf(text, sizeof text, "header overwritten.*%zx",
                static_cast<std::size_t>(address_of(blocks[1])));
  EXPECT_NAMED((overrun(0), heap->deallocate(blocks[1])), text);
}

TEST_F(A2allocDeathTest, WritesToFreedMemoryAreNamedBeforeItIsHandedOut) {
  test::OwnHeap<A2allocReport> heap;
  char* blocks[6];
  for (char*& p : blocks) p = static_cast<char*>(heap->allocate(200));
  heap->deallocate(blocks[0]);
  heap->deallocate(blocks[2]);
  // The links lie in its first 16 bytes.
  const auto write = [&](int i, std::size_t offset) { std::memset(blocks[i] + offset, 'A', 8); };
  EXPECT_NAMED((write(2, 0), heap->allocate(200)), "^spanalloc: free list corrupted");
  EXPECT_NAMED((write(2, 8), heap->allocate(200)), "^spanalloc: free list corrupted");
  EXPECT_NAMED((write(0, 0), heap->deallocate(blocks[1])), "^spanalloc: free list corrupted");
  // Zeros are no link, nor a list's end.
  EXPECT_NAMED((std::memset(blocks[2], 0, 16), heap->allocate(200)),
               "^spanalloc: free list corrupted");
  EXPECT_NAMED((std::memset(blocks[0], 0, 16), heap->deallocate(blocks[1])),
               "^spanalloc: free list corrupted");
  // A link that leads to another free block of the superblock, whose way back is not from here.
  heap->deallocate(blocks[4]);
  void* elsewhere = a2alloc::Block::of(blocks[0]);
  EXPECT_NAMED((std::memcpy(blocks[4], &elsewhere, sizeof elsewhere), heap->allocate(1000)),
               "^spanalloc: free list corrupted");
}

TEST_F(A2allocDeathTest, ACopiedHeaderIsNone) {
  test::OwnHeap<A2allocReport> heap;
  auto* p = static_cast<char*>(heap->allocate(200));
  std::memcpy(p + 64, p - sizeof(a2alloc::Block), sizeof(a2alloc::Block));
  EXPECT_NAMED(heap->deallocate(p + 64 + sizeof(a2alloc::Block)), "not the start of an object");
  heap->deallocate(p);
}

TEST_F(A2allocDeathTest, WhatWasMergedIsKnownToBeFree) {
  test::OwnHeap<A2allocReport> heap;
  void* blocks[4];
  for (void*& p : blocks) p = heap->allocate(100);
  for (int i = 0; i < 3; ++i) heap->deallocate(blocks[i]);
  for (int i = 0; i < 3; ++i) EXPECT_NAMED(heap->deallocate(blocks[i]), "free already");
  heap->deallocate(blocks[3]);
}

TEST_F(A2allocDeathTest, BadPointersIntoEveryKindOfPiece) {
  test::OwnHeap<A2allocReport> heap;
  auto* small = static_cast<char*>(heap->allocate(100));
  auto* large = static_cast<char*>(heap->allocate(3 * kPiece));
  auto* gone = static_cast<char*>(heap->allocate(3 * kPiece));
  heap->deallocate(gone);
  for (std::ptrdiff_t offset : {1, 8, 16, 96}) {
    EXPECT_NAMED(heap->deallocate(small + offset), "not the start of an object");
  }
  EXPECT_NAMED(heap->deallocate(pointer_to(superblock_of(small))), "not the start of an object");
  EXPECT_NAMED(heap->deallocate(large + 16), "not the start of an object");
  EXPECT_NAMED(heap->deallocate(large + kPiece), "not the start of an object");
  EXPECT_NAMED(heap->deallocate(large - 16), "");
  EXPECT_NAMED(heap->deallocate(gone), "free already");
  EXPECT_NAMED(heap->usable_size(gone + 100), "free already");
  EXPECT_NAMED(heap->deallocate(gone + 2 * kPiece), "free already");
  EXPECT_NAMED(heap->resize(&small, 10), "none of this heap's");
  heap->deallocate(small);
  heap->deallocate(large);
}

}  // namespace
}  // namespace spanalloc
