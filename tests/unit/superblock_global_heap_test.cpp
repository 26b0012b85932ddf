// The global heap of the superblock engine: runs of superblocks, large objects.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "address_limit.hpp"
#include "sanitizers.hpp"
#include "superblock_test_support.hpp"

namespace spanalloc {
namespace {

using test::checked;
using test::kHalf;
using test::kPiece;

class SuperblockGlobalHeap : public test::SmallArenas {};

TEST_F(SuperblockGlobalHeap, LargeObjectsAreWholeSuperblocks) {
  SPANALLOC_OWN_HEAP(Large, SuperblockReport);
  using E = LargeEngine;
  EXPECT_LT(E::usable_size(E::allocate(kPiece / 2)), kPiece);
  for (std::size_t n : {kPiece / 2 + 1, kPiece, kPiece + 1, 10 * kPiece, 10 * kPiece + 1}) {
    void* p = E::allocate(n);
    EXPECT_EQ(address_of(p) % kPiece, 0u);
    EXPECT_EQ(E::usable_size(p), align_up(n, kPiece));
    EXPECT_EQ(checked<E>().large, align_up(n, kPiece) / kPiece);
    E::deallocate(p);
  }
  EXPECT_EQ(E::statistics().large_objects, 0u);
}

TEST_F(SuperblockGlobalHeap, WhatIsOverHalfASuperblockIsLarge) {
  SPANALLOC_OWN_HEAP(Half, SuperblockReport);
  using E = HalfEngine;
  constexpr std::size_t kLargestSmall = kPiece / 2;
  // realloc does not leave an object on the wrong side, though there would be room.
  void* growing = E::allocate(100);
  EXPECT_EQ(E::resize(growing, kLargestSmall), growing);
  EXPECT_EQ(E::resize(growing, kLargestSmall + 1), nullptr);
  void* small[] = {E::allocate(kLargestSmall), E::allocate_zeroed(kLargestSmall),
                   E::allocate_aligned(kLargestSmall, 64)};
  EXPECT_EQ(E::statistics().large_objects, 0u);
  void* large[] = {E::allocate(kLargestSmall + 1), E::allocate_zeroed(kLargestSmall + 1),
                   E::allocate_aligned(kLargestSmall + 1, 64)};
  EXPECT_EQ(E::statistics().large_objects, 3u);
  EXPECT_EQ(E::resize(large[0], kLargestSmall + 1), large[0]);
  EXPECT_EQ(E::resize(large[0], kLargestSmall), nullptr);
  for (void* p : small) E::deallocate(p);
  for (void* p : large) E::deallocate(p);
  E::deallocate(growing);
  checked<E>();
}

TEST_F(SuperblockGlobalHeap, TheFirstRunThatIsLongEnoughServes) {
  SPANALLOC_OWN_HEAP(FirstRun, SuperblockReport);
  using E = FirstRunEngine;
  char* runs[3];
  void* walls[3];
  const std::size_t counts[] = {2, 6, 4};
  for (int i = 0; i < 3; ++i) {
    runs[i] = static_cast<char*>(E::allocate(counts[i] * kPiece));
    walls[i] = E::allocate(kPiece);
  }
  for (char* run : runs) E::deallocate(run);
  // The list, front to back: 4, 6, 2. The best fit for 2 would be the last.
  EXPECT_EQ(E::allocate(2 * kPiece), runs[2]);
  EXPECT_EQ(E::allocate(5 * kPiece), runs[1]);
  // What was left over is at the front, the youngest first: 1 of 6, 2 of 4, then the 2.
  EXPECT_EQ(E::allocate(2 * kPiece), runs[2] + 2 * kPiece);
  EXPECT_EQ(E::allocate(kPiece), runs[1] + 5 * kPiece);
  EXPECT_EQ(E::allocate(kPiece), runs[0]);
  for (void* wall : walls) E::deallocate(wall);
  checked<E>();
}

TEST_F(SuperblockGlobalHeap, FreedLargeObjectsMergeAndServeEverything) {
  SPANALLOC_OWN_HEAP(Runs, SuperblockReport);
  using E = RunsEngine;
  void* small = E::allocate(16);  // the heap and its superblock come first
  void* parts[4];
  for (void*& p : parts) p = E::allocate(3 * kPiece);
  for (int i : {2, 0, 3, 1}) {
    E::deallocate(parts[i]);
    checked<E>();
  }
  const std::size_t known = checked<E>().known;
  void* whole = E::allocate(12 * kPiece);
  EXPECT_EQ(whole, parts[0]);
  E::deallocate(whole);
  std::vector<void*> halves(24);
  for (void*& p : halves) p = E::allocate(kHalf);
  EXPECT_EQ(checked<E>().known, known);  // all out of what came back
  for (void* p : halves) E::deallocate(p);
  E::deallocate(small);
}

TEST_F(SuperblockGlobalHeap, LargeObjectsGrowAndShrinkInPlace) {
  SPANALLOC_OWN_HEAP(LargeResize, SuperblockReport);
  using E = LargeResizeEngine;
  void* p = E::allocate(4 * kPiece);
  void* next = E::allocate(4 * kPiece);
  EXPECT_EQ(E::resize(p, 5 * kPiece), nullptr);
  EXPECT_EQ(E::resize(p, kPiece + 1), p);
  EXPECT_EQ(E::usable_size(p), 2 * kPiece);
  EXPECT_EQ(checked<E>().free, 2u);
  E::deallocate(next);
  EXPECT_EQ(E::resize(p, 7 * kPiece), p);
  std::memset(p, 1, E::usable_size(p));
  EXPECT_EQ(E::usable_size(p), 7 * kPiece);
  EXPECT_EQ(checked<E>().free, 1u);
  EXPECT_EQ(E::resize(p, 9 * kPiece), nullptr);
  EXPECT_EQ(E::resize(p, 100), nullptr);  // that is for a superblock
  E::deallocate(p);
  EXPECT_TRUE(checked<E>().all_returned());
}

TEST_F(SuperblockGlobalHeap, AlignmentBeyondASuperblock) {
  SPANALLOC_OWN_HEAP(LargeAligned, SuperblockReport);
  using E = LargeAlignedEngine;
  std::vector<void*> blocks;
  for (std::size_t alignment = kPiece; alignment <= 8 * kMiB; alignment *= 2) {
    blocks.push_back(E::allocate_aligned(100, alignment));
    ASSERT_EQ(address_of(blocks.back()) % alignment, 0u);
    ASSERT_EQ(E::usable_size(blocks.back()), kPiece);
    checked<E>();
  }
  for (void* p : blocks) E::deallocate(p);
  EXPECT_TRUE(checked<E>().all_returned());
}

TEST_F(SuperblockGlobalHeap, ZeroedLargeObjectsAfterDirtyOnes) {
  SPANALLOC_OWN_HEAP(LargeZero, SuperblockReport);
  using E = LargeZeroEngine;
  auto* p = static_cast<unsigned char*>(E::allocate(5 * kPiece));
  std::memset(p, 0xA5, 5 * kPiece);
  E::deallocate(p);
  for (int round = 0; round < 2; ++round) {  // dirty, then purged
    auto* q = static_cast<unsigned char*>(E::allocate_zeroed(5 * kPiece));
    ASSERT_EQ(q, p);
    for (std::size_t i = 0; i < 5 * kPiece; ++i) ASSERT_EQ(q[i], 0);
    std::memset(q, 0xA5, 5 * kPiece);
    E::deallocate(q);
    EXPECT_TRUE(E::trim());
    EXPECT_FALSE(E::trim());
  }
}

// In a process with a limit on its address space, of which this heap has had nothing yet.
template <class E>
[[noreturn]] void expect_room_after_a_refusal() {
  if (!test::leave_address_space(350 * kMiB)) _exit(3);
  int objects = 0;
  while (E::allocate(100 * kMiB) != nullptr) ++objects;
  if (objects != 3 || !E::census().consistent()) _exit(4);
  void* rest = mmap(nullptr, 30 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  _exit(rest == MAP_FAILED ? 5 : 0);
}

TEST_F(SuperblockGlobalHeap, WhatIsRefusedTakesNothing) {
  if (test::kUnderAsan || test::kUnderTsan) GTEST_SKIP() << "a sanitizer's shadow exceeds any limit";
  if (test::kEmulated) GTEST_SKIP() << test::kNoLimits;
  SPANALLOC_OWN_HEAP(Refused, SuperblockReport);
  EXPECT_EXIT(expect_room_after_a_refusal<RefusedEngine>(), ::testing::ExitedWithCode(0), "");
}

TEST_F(SuperblockGlobalHeap, HugeObjectsAreMappingsOfTheirOwn) {
  if (test::kUnderTsan) GTEST_SKIP() << "thread sanitizer shadows every mapping of this size";
  SPANALLOC_OWN_HEAP(Huge, SuperblockReport);
  using E = HugeEngine;
  E::deallocate(E::allocate(16));
  const std::size_t known = checked<E>().known;
  void* p = E::allocate(superblock::kLargestInGlobalHeap + 1);
  ASSERT_NE(p, nullptr);
  EXPECT_TRUE(E::owns(p));
  EXPECT_EQ(E::statistics().large_objects, 1u);
  EXPECT_EQ(checked<E>().known, known);
  void* moved = E::resize(p, 2 * superblock::kLargestInGlobalHeap);
  ASSERT_NE(moved, nullptr);
  EXPECT_EQ(E::resize(moved, kPiece), nullptr);
  E::deallocate(moved);
  EXPECT_EQ(E::statistics().large_objects, 0u);
}

}  // namespace
}  // namespace spanalloc
