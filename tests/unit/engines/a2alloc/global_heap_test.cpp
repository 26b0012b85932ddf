// The global heap of the a2alloc engine: runs of superblocks, large objects.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "address_limit.hpp"
#include "engines/a2alloc/test_support.hpp"
#include "sanitizers.hpp"

namespace spanalloc {
namespace {

using test::checked;
using test::kHalf;
using test::kPiece;

class A2allocGlobalHeap : public test::SmallArenas {};

TEST_F(A2allocGlobalHeap, LargeObjectsAreWholeSuperblocks) {
  test::OwnHeap<A2allocReport> heap;
  EXPECT_LT(heap->usable_size(heap->allocate(kPiece / 2)), kPiece);
  for (std::size_t n : {kPiece / 2 + 1, kPiece, kPiece + 1, 10 * kPiece, 10 * kPiece + 1}) {
    void* p = heap->allocate(n);
    EXPECT_EQ(address_of(p) % kPiece, 0u);
    EXPECT_EQ(heap->usable_size(p), align_up(n, kPiece));
    EXPECT_EQ(checked(heap).large, align_up(n, kPiece) / kPiece);
    heap->deallocate(p);
  }
  EXPECT_EQ(heap->statistics().large_objects, 0u);
}

TEST_F(A2allocGlobalHeap, WhatIsOverHalfASuperblockIsLarge) {
  test::OwnHeap<A2allocReport> heap;
  constexpr std::size_t kLargestSmall = kPiece / 2;
  // realloc does not leave an object on the wrong side, though there would be room.
  void* growing = heap->allocate(100);
  EXPECT_EQ(heap->resize(growing, kLargestSmall).block, growing);
  EXPECT_EQ(heap->resize(growing, kLargestSmall + 1).block, nullptr);
  void* small[] = {heap->allocate(kLargestSmall), heap->allocate_zeroed(kLargestSmall),
                   heap->allocate_aligned(kLargestSmall, 64)};
  EXPECT_EQ(heap->statistics().large_objects, 0u);
  void* large[] = {heap->allocate(kLargestSmall + 1), heap->allocate_zeroed(kLargestSmall + 1),
                   heap->allocate_aligned(kLargestSmall + 1, 64)};
  EXPECT_EQ(heap->statistics().large_objects, 3u);
  EXPECT_EQ(heap->resize(large[0], kLargestSmall + 1).block, large[0]);
  EXPECT_EQ(heap->resize(large[0], kLargestSmall).block, nullptr);
  for (void* p : small) heap->deallocate(p);
  for (void* p : large) heap->deallocate(p);
  heap->deallocate(growing);
  checked(heap);
}

TEST_F(A2allocGlobalHeap, TheFirstRunThatIsLongEnoughServes) {
  test::OwnHeap<A2allocReport> heap;
  char* runs[3];
  void* walls[3];
  const std::size_t counts[] = {2, 6, 4};
  for (int i = 0; i < 3; ++i) {
    runs[i] = static_cast<char*>(heap->allocate(counts[i] * kPiece));
    walls[i] = heap->allocate(kPiece);
  }
  for (char* run : runs) heap->deallocate(run);
  // The list, front to back: 4, 6, 2. The best fit for 2 would be the last.
  EXPECT_EQ(heap->allocate(2 * kPiece), runs[2]);
  EXPECT_EQ(heap->allocate(5 * kPiece), runs[1]);
  // What was left over is at the front, the youngest first: 1 of 6, 2 of 4, then the 2.
  EXPECT_EQ(heap->allocate(2 * kPiece), runs[2] + 2 * kPiece);
  EXPECT_EQ(heap->allocate(kPiece), runs[1] + 5 * kPiece);
  EXPECT_EQ(heap->allocate(kPiece), runs[0]);
  for (void* wall : walls) heap->deallocate(wall);
  checked(heap);
}

TEST_F(A2allocGlobalHeap, FreedLargeObjectsMergeAndServeEverything) {
  test::OwnHeap<A2allocReport> heap;
  void* small = heap->allocate(16);  // the heap and its superblock come first
  void* parts[4];
  for (void*& p : parts) p = heap->allocate(3 * kPiece);
  for (int i : {2, 0, 3, 1}) {
    heap->deallocate(parts[i]);
    checked(heap);
  }
  const std::size_t known = checked(heap).known;
  void* whole = heap->allocate(12 * kPiece);
  EXPECT_EQ(whole, parts[0]);
  heap->deallocate(whole);
  std::vector<void*> halves(24);
  for (void*& p : halves) p = heap->allocate(kHalf);
  EXPECT_EQ(checked(heap).known, known);  // all out of what came back
  for (void* p : halves) heap->deallocate(p);
  heap->deallocate(small);
}

TEST_F(A2allocGlobalHeap, LargeObjectsGrowAndShrinkInPlace) {
  test::OwnHeap<A2allocReport> heap;
  void* p = heap->allocate(4 * kPiece);
  void* next = heap->allocate(4 * kPiece);
  EXPECT_EQ(heap->resize(p, 5 * kPiece).block, nullptr);
  EXPECT_EQ(heap->resize(p, kPiece + 1).block, p);
  EXPECT_EQ(heap->usable_size(p), 2 * kPiece);
  EXPECT_EQ(checked(heap).free, 2u);
  heap->deallocate(next);
  EXPECT_EQ(heap->resize(p, 7 * kPiece).block, p);
  std::memset(p, 1, heap->usable_size(p));
  EXPECT_EQ(heap->usable_size(p), 7 * kPiece);
  EXPECT_EQ(checked(heap).free, 1u);
  EXPECT_EQ(heap->resize(p, 9 * kPiece).block, nullptr);
  EXPECT_EQ(heap->resize(p, 100).block, nullptr);  // that is for a superblock
  heap->deallocate(p);
  EXPECT_TRUE(checked(heap).all_returned());
}

TEST_F(A2allocGlobalHeap, AlignmentBeyondASuperblock) {
  test::OwnHeap<A2allocReport> heap;
  std::vector<void*> blocks;
  for (std::size_t alignment = kPiece; alignment <= 8 * kMiB; alignment *= 2) {
    blocks.push_back(heap->allocate_aligned(100, alignment));
    ASSERT_EQ(address_of(blocks.back()) % alignment, 0u);
    ASSERT_EQ(heap->usable_size(blocks.back()), kPiece);
    checked(heap);
  }
  for (void* p : blocks) heap->deallocate(p);
  EXPECT_TRUE(checked(heap).all_returned());
}

TEST_F(A2allocGlobalHeap, ZeroedLargeObjectsAfterDirtyOnes) {
  test::OwnHeap<A2allocReport> heap;
  auto* p = static_cast<unsigned char*>(heap->allocate(5 * kPiece));
  std::memset(p, 0xA5, 5 * kPiece);
  heap->deallocate(p);
  for (int round = 0; round < 2; ++round) {  // dirty, then purged
    auto* q = static_cast<unsigned char*>(heap->allocate_zeroed(5 * kPiece));
    ASSERT_EQ(q, p);
    for (std::size_t i = 0; i < 5 * kPiece; ++i) ASSERT_EQ(q[i], 0);
    std::memset(q, 0xA5, 5 * kPiece);
    heap->deallocate(q);
    EXPECT_TRUE(heap->trim());
    EXPECT_FALSE(heap->trim());
  }
}

// In a process with a limit on its address space, of which this heap has had nothing yet.
[[noreturn]] void expect_room_after_a_refusal() {
  test::OwnHeap<A2allocReport> heap;
  if (!test::leave_address_space(350 * kMiB)) _exit(3);
  int objects = 0;
  while (heap->allocate(100 * kMiB) != nullptr) ++objects;
  if (objects != 3 || !heap->census().consistent()) _exit(4);
  void* rest = mmap(nullptr, 30 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  _exit(rest == MAP_FAILED ? 5 : 0);
}

TEST_F(A2allocGlobalHeap, WhatIsRefusedTakesNothing) {
  if (test::kUnderAsan || test::kUnderTsan) GTEST_SKIP() << "a sanitizer's shadow exceeds any limit";
  if (test::kEmulated) GTEST_SKIP() << test::kNoLimits;
  EXPECT_EXIT(expect_room_after_a_refusal(), ::testing::ExitedWithCode(0), "");
}

TEST_F(A2allocGlobalHeap, HugeObjectsAreMappingsOfTheirOwn) {
  if (test::kUnderTsan) GTEST_SKIP() << "thread sanitizer shadows every mapping of this size";
  test::OwnHeap<A2allocReport> heap;
  heap->deallocate(heap->allocate(16));
  const std::size_t known = checked(heap).known;
  void* p = heap->allocate(a2alloc::kLargestInGlobalHeap + 1);
  ASSERT_NE(p, nullptr);
  EXPECT_TRUE(heap->owns(p));
  EXPECT_EQ(heap->statistics().large_objects, 1u);
  EXPECT_EQ(checked(heap).known, known);
  void* moved = heap->resize(p, 2 * a2alloc::kLargestInGlobalHeap).block;
  ASSERT_NE(moved, nullptr);
  EXPECT_EQ(heap->resize(moved, kPiece).block, nullptr);
  heap->deallocate(moved);
  EXPECT_EQ(heap->statistics().large_objects, 0u);
}

}  // namespace
}  // namespace spanalloc
