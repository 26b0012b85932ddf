// The global heap of the a2alloc engine: runs of superblocks, large objects.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

#include "address_limit.hpp"
#include "child.hpp"
#include "memory_use.hpp"
#include "os_calls.hpp"
#include "papers/a2alloc/tests/test_support.hpp"
#include "random.hpp"
#include "sanitizers.hpp"

namespace spanalloc {

namespace a2alloc {
struct GlobalHeapTestAccess {
  template <class Config>
  static WakingLock& lock(GlobalHeap<Config>& heap) {
    return heap.lock_;
  }
};
}  // namespace a2alloc

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

// The thread that was making the first piece known has vanished.
TEST_F(A2allocGlobalHeap, IsRepairedBeforeAnyPieceIsKnown) {
  if (test::kUnderTsan) GTEST_SKIP() << "thread sanitizer allows no threads in a child";
  test::in_child([] {
    a2alloc::GlobalHeap<A2allocReport> heap;
    ASSERT_TRUE(heap.start());
    std::thread([&] { (void)a2alloc::GlobalHeapTestAccess::lock(heap).lock(); }).join();
    SpinLock::enter_child();
    heap.enter_child();
    EXPECT_EQ(heap.counts().known, 0u);
    const auto run = heap.take(a2alloc::Kind::kLarge, 3);
    ASSERT_NE(run.first, nullptr);
    EXPECT_EQ(heap.counts().large, 3u);
    EXPECT_EQ(heap.large_size(run.first, pointer_to(run.first->start)), 3 * kPiece);
    heap.destroy();
  });
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

// --- What is free and in memory is bounded
// -------------------------------------------------------------------------------------------------

using A2allocHeap = test::OwnHeap<A2alloc>;

constexpr std::size_t kMiBPieces = kMiB / kPiece;
// What the bound leaves in any case, and what is given back with more only.
constexpr std::size_t kAlwaysDirty = 33 * kMiBPieces;

// All of the object is in memory then.
void* allocate_written(A2allocHeap& heap, std::size_t bytes) {
  auto* p = static_cast<char*>(heap->allocate(bytes));
  for (std::size_t at = 0; at < heap->usable_size(p); at += os::page_size()) p[at] = 1;
  return p;
}

std::size_t pages_in(std::size_t pieces) {
  return pieces * kPiece / os::page_size();
}

// Only what is touched is in memory, whatever the machine's switch for huge pages says.
class A2allocBound : public test::SmallArenas {
 protected:
  A2allocBound() { prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); }
  ~A2allocBound() override { prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0); }
};

// Of everything that is free so many pages are in memory as the books say.
void expect_books_are_exact(A2allocHeap& heap) {
  checked(heap);
  std::size_t resident = 0;
  heap->global_heap().for_each_free([&](a2alloc::Superblock<A2alloc>* run) {
    const std::size_t in_run = test::resident_pages(pointer_to(run->start), run->count * kPiece);
    EXPECT_EQ(in_run, pages_in(run->dirty)) << run->count;
    resident += in_run;
  });
  EXPECT_EQ(resident, pages_in(heap->global_heap().counts().dirty));
}

TEST_F(A2allocBound, WhatIsDirtyIsInMemoryAndNothingElse) {
  A2allocHeap heap;
  test::Random random(test::seed_of(1));
  void* objects[24] = {};
  bool any_clean = false;
  for (int step = 0; step < 600; ++step) {
    void*& p = objects[random.below(24)];
    if (step % 150 == 100) {
      heap->deallocate(allocate_written(heap, 90 * kMiB));  // more than the bound leaves
    } else if (p == nullptr) {
      p = random.one_in(8) ? allocate_written(heap, 8 * kMiB + random.below(16 * kMiB))
                           : allocate_written(heap, kPiece / 2 + 1 + random.below(kMiB));
    } else if (const std::size_t usable = heap->usable_size(p);
               usable > kPiece && random.one_in(4)) {
      EXPECT_EQ(heap->resize(p, usable / 2).block, p);
    } else {
      heap->deallocate(p);
      p = nullptr;
    }
    if (random.one_in(50)) test::advance_clock(300);
    if (random.one_in(200)) heap->trim();
    const a2alloc::PieceCounts counts = heap->global_heap().counts();
    any_clean = any_clean || (counts.dirty != 0 && counts.dirty < counts.free);
    if (step % 10 == 0) expect_books_are_exact(heap);
    if (HasFailure()) return;
  }
  EXPECT_TRUE(any_clean) << "nothing was given back";
  for (void* p : objects) heap->deallocate(p);
  expect_books_are_exact(heap);
  EXPECT_TRUE(heap->trim());
  EXPECT_EQ(heap->global_heap().counts().dirty, 0u);
  expect_books_are_exact(heap);
}

TEST_F(A2allocBound, APeakLeavesABoundedPart) {
  A2allocHeap heap;
  void* objects[8];
  for (void*& p : objects) p = allocate_written(heap, 25 * kMiB);
  for (void* p : objects) heap->deallocate(p);
  EXPECT_LE(heap->global_heap().counts().dirty, kAlwaysDirty);
  expect_books_are_exact(heap);
}

// Small objects do, too, as their superblocks are evicted.
TEST_F(A2allocBound, APeakOfSmallObjectsLeavesABoundedPart) {
  A2allocHeap heap;
  std::vector<void*> objects(120 * kMiB / kHalf);
  for (void*& p : objects) p = allocate_written(heap, kHalf);
  for (void* p : objects) heap->deallocate(p);
  // What the thread's heap keeps is in use for the global one.
  const a2alloc::PieceCounts counts = heap->global_heap().counts();
  EXPECT_LE(counts.superblocks, objects.size() / 2 / 4 + 1);
  EXPECT_LE(counts.dirty, kAlwaysDirty + counts.superblocks / 4);
  checked(heap);
}

// Buffers of sizes that differ, one after the other, leave no more than twice the largest.
TEST_F(A2allocBound, BuffersOfManySizesLeaveABoundedPart) {
  constexpr std::size_t kMost = 60 * kMiB;
  A2allocHeap heap;
  test::Random random(test::seed_of(1));
  for (int i = 0; i < 60; ++i) {
    void* p = allocate_written(heap, kMiB + random.below(kMost - kMiB));
    void* small = heap->allocate(1000);  // in the way
    heap->deallocate(p);
    EXPECT_LE(heap->global_heap().counts().dirty, 2 * kMost / kPiece + 4 * kMiBPieces);
    if (i % 10 != 0) heap->deallocate(small);
  }
  checked(heap);
}

// From the third time on: no page of it is touched anew.
TEST_F(A2allocBound, WhatIsTakenAgainAndAgainStays) {
  A2allocHeap heap;
  for (int i = 0; i < 10; ++i) {
    void* p = heap->allocate(100 * kMiB);
    const std::size_t resident = test::resident_pages(p, 100 * kMiB);
    EXPECT_TRUE(i < 2 || resident == pages_in(100 * kMiBPieces)) << i << ": " << resident;
    heap->deallocate(p);
    heap->deallocate(allocate_written(heap, 100 * kMiB));
  }
  checked(heap);
}

// Where as much is dirty as may be, a smaller object that comes and goes finds
// its memory as it left it.
TEST_F(A2allocBound, WhatComesAndGoesAtTheBoundStays) {
  A2allocHeap heap;
  void* peak = allocate_written(heap, 100 * kMiB);
  heap->deallocate(peak);
  EXPECT_GE(heap->global_heap().counts().dirty, 30 * kMiBPieces);
  for (int i = 0; i < 100; ++i) {
    void* p = heap->allocate(kMiB);
    EXPECT_EQ(test::resident_pages(p, kMiB), pages_in(kMiBPieces)) << i;
    heap->deallocate(p);
  }
  EXPECT_GE(heap->global_heap().counts().dirty, 30 * kMiBPieces);
  expect_books_are_exact(heap);
}

// Somebody passes by.
TEST_F(A2allocBound, WhatNobodyWantsGoesBackAfterTheDecayTime) {
  A2allocHeap heap;
  const auto pass_by = [&] { heap->deallocate(allocate_written(heap, kPiece)); };
  heap->deallocate(allocate_written(heap, 20 * kMiB));
  const std::size_t dirty = heap->global_heap().counts().dirty;
  EXPECT_EQ(dirty, 20 * kMiBPieces);
  for (int i = 0; i < 20; ++i) pass_by();
  EXPECT_EQ(heap->global_heap().counts().dirty, dirty) << "no time has passed";
  for (int tick = 0; tick < 3; ++tick) {
    test::advance_clock(300);
    for (int i = 0; i < 20; ++i) pass_by();
  }
  EXPECT_LE(heap->global_heap().counts().dirty, 1u);
  expect_books_are_exact(heap);
}

// What is used within each tick is wanted.
TEST_F(A2allocBound, WhatComesAndGoesWithinTheDecayTimeStays) {
  A2allocHeap heap;
  heap->deallocate(allocate_written(heap, 20 * kMiB));
  for (int tick = 0; tick < 10; ++tick) {
    test::advance_clock(300);
    void* p = heap->allocate(20 * kMiB);
    EXPECT_EQ(test::resident_pages(p, 20 * kMiB), pages_in(20 * kMiBPieces));
    heap->deallocate(p);
  }
  EXPECT_EQ(heap->global_heap().counts().dirty, 20 * kMiBPieces);
}

// The report's own allocator gives nothing back by itself.
TEST_F(A2allocBound, TheReportsConfigHasNone) {
  test::OwnHeap<A2allocReport> heap;
  void* p = heap->allocate(100 * kMiB);
  heap->deallocate(p);
  test::advance_clock(300);
  heap->deallocate(heap->allocate(100 * kMiB));
  EXPECT_EQ(heap->global_heap().counts().dirty, 100 * kMiBPieces);
  EXPECT_TRUE(heap->trim());
  EXPECT_EQ(heap->global_heap().counts().dirty, 0u);
}

// What the kernel does not take (it is locked, and nothing can be mapped in its place) stays, and
// is dirty.
TEST_F(A2allocBound, WhatTheKernelRefusesStaysDirty) {
  if (test::kUnderAsan || test::kUnderTsan)
    GTEST_SKIP() << "sanitizers do not pass mlock on to the kernel";
  os::start();
  if (!os::may_renew()) GTEST_SKIP() << "nothing is mapped anew here";
  A2allocHeap heap;
  void* p = allocate_written(heap, 40 * kMiB);
  if (mlock(p, 40 * kMiB) != 0) GTEST_SKIP() << "so much cannot be locked";
  {
    const test::NothingIsMappedOver refused(test::NothingIsMappedOver::kKeeps);
    heap->deallocate(p);
    EXPECT_NE(refused.refused(), 0u);
  }
  EXPECT_EQ(heap->global_heap().counts().dirty, 40 * kMiBPieces);
  expect_books_are_exact(heap);
  auto* again = static_cast<unsigned char*>(heap->allocate_zeroed(40 * kMiB));
  ASSERT_EQ(again, p);
  for (std::size_t at = 0; at < 40 * kMiB; at += os::page_size()) ASSERT_EQ(again[at], 0);
  heap->deallocate(again);
  munlock(p, 40 * kMiB);
  EXPECT_TRUE(heap->trim());
  expect_books_are_exact(heap);
}

// But what is locked can be mapped anew.
TEST_F(A2allocBound, LockedMemoryGoesBack) {
  if (test::kUnderAsan || test::kUnderTsan)
    GTEST_SKIP() << "sanitizers do not pass mlock on to the kernel";
  os::start();
  if (!os::may_renew()) GTEST_SKIP() << "nothing is mapped anew here";
  A2allocHeap heap;
  void* p = allocate_written(heap, 40 * kMiB);
  if (mlock(p, 40 * kMiB) != 0) GTEST_SKIP() << "so much cannot be locked";
  heap->deallocate(p);
  EXPECT_LE(heap->global_heap().counts().dirty, kAlwaysDirty);
  EXPECT_TRUE(heap->trim());
  EXPECT_EQ(heap->global_heap().counts().dirty, 0u);
  expect_books_are_exact(heap);
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
  if (test::kUnderAsan || test::kUnderTsan)
    GTEST_SKIP() << "a sanitizer's shadow exceeds any limit";
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
