// The superblock engine from inside: blocks and their neighbours, eviction's three conditions, heaps and
// threads, runs in the global heap. The engine's own walker checks every invariant after each step.
#include <gtest/gtest.h>
#include <signal.h>

#include <barrier>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/bits.hpp"
#include "engines/superblock/engine.hpp"
#include "sanitizers.hpp"

namespace spanalloc {
namespace {

using superblock::Census;

constexpr std::size_t kPiece = superblock::kSuperblockBytes<SuperblockReport>;
// Two such blocks fill a superblock to the last byte.
constexpr std::size_t kHalf = kPiece / 2 - sizeof(superblock::Block);

template <class E>
Census checked() {
  const Census census = E::census();
  EXPECT_TRUE(census.consistent()) << census.first_problem << " at " << std::hex << census.at;
  return census;
}

std::uintptr_t superblock_of(const void* p) {
  return align_down(address_of(p), kPiece);
}

// Each test has heaps of its own: a config that is one type.
template <class Base, class Tag>
struct Own : Base {};
#define HEAP(Name, Base) \
  struct Name {};        \
  using Name##Engine = SuperblockEngine<Own<Base, Name>>

// Many heaps in one process: small arenas.
class SmallArenas : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* set = getenv(kOption);
    before_ = set == nullptr ? "" : set;
    setenv(kOption, "32", 1);
  }
  void TearDown() override {
    if (before_.empty()) {
      unsetenv(kOption);
    } else {
      setenv(kOption, before_.c_str(), 1);
    }
  }

 private:
  static constexpr const char* kOption = "SPANALLOC_ARENA_BITS";
  std::string before_;
};
class SuperblockBlocks : public SmallArenas {};
class SuperblockWalker : public SmallArenas {};
class SuperblockHeap : public SmallArenas {};
class SuperblockEviction : public SmallArenas {};
class SuperblockThreads : public SmallArenas {};
class SuperblockGlobalHeap : public SmallArenas {};
class SuperblockDeathTest : public SmallArenas {};

// --- Blocks.

TEST_F(SuperblockBlocks, TileTheirSuperblockWhateverHappens) {
  HEAP(Tiling, SuperblockReport);
  using E = TilingEngine;
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

TEST_F(SuperblockBlocks, FreeNeighboursMergeInEveryOrder) {
  HEAP(Merging, SuperblockReport);
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

TEST_F(SuperblockBlocks, AreSplitAndWhatIsLeftOverServesOthers) {
  HEAP(Splitting, SuperblockReport);
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

TEST_F(SuperblockBlocks, GrowAndShrinkInPlace) {
  HEAP(Resizing, SuperblockReport);
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
  HEAP(Aligning, SuperblockReport);
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

// --- The walker itself must notice.

TEST_F(SuperblockWalker, NoticesWhatIsBroken) {
  HEAP(Broken, SuperblockReport);
  using E = BrokenEngine;
  void* blocks[3];
  for (void*& p : blocks) p = E::allocate(40);
  auto* header = superblock::Block::of(blocks[1]);
  const superblock::Block good = *header;

  header->size_and_free += 16;  // overwritten
  EXPECT_FALSE(E::census().consistent());
  header->write(good.size() + 16, good.left_size, false);  // sealed, but leads astray
  EXPECT_FALSE(E::census().consistent());
  header->write(good.size(), good.left_size + 16, false);  // does not know its left neighbour
  EXPECT_FALSE(E::census().consistent());
  header->write(good.size(), good.left_size, true);  // free, but in no list and not in the books
  EXPECT_FALSE(E::census().consistent());
  *header = good;
  EXPECT_TRUE(checked<E>().consistent());
  for (void* p : blocks) E::deallocate(p);
}

// --- Which superblock serves.

TEST_F(SuperblockHeap, TheOneLastUsedIsSearchedFirst) {
  HEAP(Front, SuperblockReport);
  using E = FrontEngine;
  void* a1 = E::allocate(kHalf);
  void* a2 = E::allocate(kHalf);
  void* b = E::allocate(kHalf);
  ASSERT_NE(superblock_of(a1), superblock_of(b));
  // Both have room for small blocks now; the newer superblock was used last.
  E::deallocate(a2);
  void* small = E::allocate(100);
  EXPECT_EQ(superblock_of(small), superblock_of(b));
  // Only the older one has room for this: it moves to the front.
  void* big = E::allocate(kHalf);
  ASSERT_EQ(superblock_of(big), superblock_of(a1));
  E::deallocate(big);
  void* after = E::allocate(100);
  EXPECT_EQ(superblock_of(after), superblock_of(a1));
  for (void* p : {a1, b, small, after}) E::deallocate(p);
  checked<E>();
}

TEST_F(SuperblockHeap, KheapSearchesInTheSameOrderAlways) {
  HEAP(KheapOrder, Kheap);
  using E = KheapOrderEngine;
  void* a1 = E::allocate(kHalf);
  void* a2 = E::allocate(kHalf);
  void* b = E::allocate(kHalf);
  E::deallocate(a2);
  void* small = E::allocate(100);
  void* big = E::allocate(kHalf);
  ASSERT_EQ(superblock_of(big), superblock_of(a1));
  E::deallocate(big);
  void* after = E::allocate(100);
  EXPECT_EQ(superblock_of(after), superblock_of(b));
  for (void* p : {a1, b, small, after}) E::deallocate(p);
  checked<E>();
}

TEST_F(SuperblockHeap, FullestFirst) {
  HEAP(Fullest, SuperblockFullestFirst);
  using E = FullestEngine;
  // Three superblocks: full, three quarters full, one quarter full.
  constexpr std::size_t kQuarter = kPiece / 4 - sizeof(superblock::Block);
  std::vector<void*> blocks(12);
  for (void*& p : blocks) p = E::allocate(kQuarter);
  ASSERT_EQ(checked<E>().superblocks, 3u);
  for (std::size_t i : {5u, 9u, 10u, 11u}) E::deallocate(blocks[i]);
  void* p = E::allocate(100);
  EXPECT_EQ(superblock_of(p), superblock_of(blocks[4]));
  void* last_quarter = E::allocate(kQuarter);  // only the emptiest has that much
  EXPECT_EQ(superblock_of(last_quarter), superblock_of(blocks[8]));
  void* q = E::allocate(100);
  EXPECT_EQ(superblock_of(q), superblock_of(blocks[4]));
  checked<E>();
}

TEST_F(SuperblockHeap, SizeClassesDoNotShareSuperblocks) {
  HEAP(Classes, SuperblockClasses);
  using E = ClassesEngine;
  void* small[2] = {E::allocate(20), E::allocate(30)};
  void* other = E::allocate(100);
  EXPECT_EQ(superblock_of(small[0]), superblock_of(small[1]));
  EXPECT_NE(superblock_of(small[0]), superblock_of(other));
  EXPECT_EQ(E::usable_size(small[0]), 32u);
  EXPECT_EQ(E::usable_size(other), 112u);
  // Above the classes, and aligned beyond 16: blocks of any size, which merge.
  void* any = E::allocate(10000);
  EXPECT_EQ(superblock_of(any), superblock_of(E::allocate_aligned(100, 256)));
  checked<E>();
}

TEST_F(SuperblockHeap, ClassesHoldWhatTheyShouldAndWasteLittle) {
  unsigned last = 0;
  for (std::size_t n = 0; n <= superblock::kLargestClassBytes<SuperblockClasses>; ++n) {
    const unsigned c = superblock::class_of<SuperblockClasses>(n);
    ASSERT_TRUE(c == last || c == last + 1) << n;
    ASSERT_LT(c, superblock::kClassCount<SuperblockClasses>);
    ASSERT_GE(superblock::class_bytes(c), n);
    ASSERT_LE(superblock::class_bytes(c), max_of(n + n / 4, n + 16)) << n;
    ASSERT_EQ(superblock::class_bytes(c) % 16, 0u);
    last = c;
  }
  EXPECT_EQ(last + 1, superblock::kClassCount<SuperblockClasses>);
  EXPECT_EQ(superblock::class_of<SuperblockClasses>(4097), superblock::kAnySize);
  EXPECT_EQ(superblock::class_of<SuperblockReport>(20), superblock::kAnySize);
}

// --- Eviction: the superblock is empty, the heap has more than K, used over free is below F. Each condition
// is tested with the other two true.

struct EvictAlways : SuperblockReport {
  static constexpr std::size_t kKeep = 0;
  static constexpr std::size_t kUsedOverFreePercent = 1000000;
};

struct EvictAboveTwo : EvictAlways {
  static constexpr std::size_t kKeep = 2;
};
struct EvictBelowEvenUse : EvictAlways {
  static constexpr std::size_t kUsedOverFreePercent = 100;
};

TEST_F(SuperblockEviction, OnlyEmptyOnes) {
  HEAP(FirstCondition, EvictAlways);
  using E = FirstConditionEngine;
  void* keep = E::allocate(16);
  void* other = E::allocate(16);
  E::deallocate(other);
  Census census = checked<E>();
  EXPECT_EQ(census.superblocks, 1u);
  EXPECT_EQ(census.free, 0u);
  E::deallocate(keep);
  census = checked<E>();
  EXPECT_EQ(census.superblocks + census.empty_superblocks, 0u);
  EXPECT_EQ(census.free, 1u);
  // It may serve anybody now, large objects too.
  EXPECT_EQ(address_of(E::allocate(kPiece)), superblock_of(keep));
}

TEST_F(SuperblockEviction, OnlyFromHeapsOfMoreThanK) {
  using E = SuperblockEngine<EvictAboveTwo>;
  void* blocks[4][2];
  for (auto& pair : blocks) {
    for (void*& p : pair) p = E::allocate(kHalf);
  }
  ASSERT_EQ(checked<E>().superblocks, 4u);
  const std::size_t left[] = {3, 2, 2, 2};
  for (int i = 0; i < 4; ++i) {
    for (void* p : blocks[i]) E::deallocate(p);
    const Census census = checked<E>();
    EXPECT_EQ(census.superblocks + census.empty_superblocks, left[i]) << i;
  }
}

TEST_F(SuperblockEviction, OnlyFromHeapsWhoseUsedOverFreeIsBelowF) {
  using E = SuperblockEngine<EvictBelowEvenUse>;
  void* blocks[4][2];
  for (auto& pair : blocks) {
    for (void*& p : pair) p = E::allocate(kHalf);
  }
  // Used over free: 3/1, then 2/2, both not below 1; 1/3 is, and takes one of the empty ones.
  const std::size_t left[] = {4, 4, 3};
  for (int i = 0; i < 3; ++i) {
    for (void* p : blocks[i]) E::deallocate(p);
    const Census census = checked<E>();
    EXPECT_EQ(census.superblocks + census.empty_superblocks, left[i]) << i;
  }
}

TEST_F(SuperblockEviction, KheapKeepsAllUntilItIsTrimmed) {
  HEAP(KheapKeeps, Kheap);
  using E = KheapKeepsEngine;
  std::vector<void*> blocks(100);
  for (void*& p : blocks) p = E::allocate(kHalf);
  for (void* p : blocks) E::deallocate(p);
  EXPECT_EQ(checked<E>().empty_superblocks, 50u);
  E::trim();
  EXPECT_EQ(checked<E>().empty_superblocks, 0u);
  EXPECT_TRUE(checked<E>().all_returned());
}

// --- Threads.

TEST_F(SuperblockThreads, EachHasAHeapOfItsOwn) {
  HEAP(OwnHeaps, SuperblockReport);
  using E = OwnHeapsEngine;
  void* mine = E::allocate(16);
  void* theirs = nullptr;
  std::thread([&] {
    theirs = E::allocate(16);
    EXPECT_EQ(E::statistics().live_labs, 2u);
  }).join();
  EXPECT_NE(superblock_of(mine), superblock_of(theirs));
  EXPECT_EQ(E::statistics().live_labs, 1u);
  E::deallocate(theirs);
  E::deallocate(mine);
  HEAP(OneHeap, Kheap);
  void* first = OneHeapEngine::allocate(16);
  std::thread([&] { EXPECT_EQ(superblock_of(OneHeapEngine::allocate(16)), superblock_of(first)); }).join();
}

TEST_F(SuperblockThreads, AnotherThreadsFreeGoesToTheOwnersHeap) {
  HEAP(RemoteFree, SuperblockReport);
  using E = RemoteFreeEngine;
  void* p = E::allocate(1000);
  void* wall = E::allocate(1000);
  std::thread([&] {
    E::deallocate(p);
    EXPECT_NE(superblock_of(E::allocate(1000)), superblock_of(p));
  }).join();
  EXPECT_EQ(E::allocate(1000), p);
  E::deallocate(wall);
  checked<E>();
}

TEST_F(SuperblockThreads, AHeapIsLeftToTheNextThread) {
  HEAP(Heritage, SuperblockReport);
  using E = HeritageEngine;
  std::vector<void*> left;
  for (int i = 0; i < 2000; ++i) {
    std::thread([&] {
      for (int k = 0; k < 20; ++k) E::deallocate(E::allocate(5000));
      left.push_back(E::allocate(16));
    }).join();
  }
  Census census = checked<E>();
  EXPECT_EQ(census.heap_records, 1u);
  EXPECT_EQ(census.live_blocks, 2000u);
  EXPECT_LE(census.superblocks + census.empty_superblocks, 2u);
  for (void* p : left) E::deallocate(p);  // into an idle heap: what becomes empty leaves it at once
  census = checked<E>();
  EXPECT_TRUE(census.all_returned());
}

template <class E>
std::size_t records_of_ten_threads() {
  std::vector<std::thread> threads;
  std::barrier all(10);
  for (int i = 0; i < 10; ++i) {
    threads.emplace_back([&] {
      void* p = E::allocate(16);
      all.arrive_and_wait();
      E::deallocate(p);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(checked<E>().all_returned());
  return checked<E>().heap_records;
}

TEST_F(SuperblockThreads, RecordsTakeUpASuperblockEachOrShareOne) {
  HEAP(OwnRecords, SuperblockReport);
  HEAP(SharedRecords, SuperblockSharedRecords);
  EXPECT_EQ(records_of_ten_threads<OwnRecordsEngine>(), 10u);
  EXPECT_EQ(records_of_ten_threads<SharedRecordsEngine>(), 1u);
}

// --- The global heap.

TEST_F(SuperblockGlobalHeap, LargeObjectsAreWholeSuperblocks) {
  HEAP(Large, SuperblockReport);
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

TEST_F(SuperblockGlobalHeap, FreedLargeObjectsMergeAndServeEverything) {
  HEAP(Runs, SuperblockReport);
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
  HEAP(LargeResize, SuperblockReport);
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
  HEAP(LargeAligned, SuperblockReport);
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
  HEAP(LargeZero, SuperblockReport);
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

TEST_F(SuperblockGlobalHeap, HugeObjectsAreMappingsOfTheirOwn) {
  if (test::kUnderTsan) GTEST_SKIP() << "thread sanitizer shadows every mapping of this size";
  HEAP(Huge, SuperblockReport);
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

// --- Headers that are no longer what they were.

#define EXPECT_NAMED(statement, text) EXPECT_EXIT(statement, ::testing::KilledBySignal(SIGABRT), text)

TEST_F(SuperblockDeathTest, OverwrittenHeadersAreNamed) {
  HEAP(Overflow, SuperblockReport);
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

TEST_F(SuperblockDeathTest, ACopiedHeaderIsNone) {
  HEAP(Copied, SuperblockReport);
  using E = CopiedEngine;
  auto* p = static_cast<char*>(E::allocate(200));
  std::memcpy(p + 64, p - sizeof(superblock::Block), sizeof(superblock::Block));
  EXPECT_NAMED(E::deallocate(p + 64 + sizeof(superblock::Block)), "not the start of an object");
  E::deallocate(p);
}

TEST_F(SuperblockDeathTest, WhatWasMergedIsKnownToBeFree) {
  HEAP(Merged, SuperblockReport);
  using E = MergedEngine;
  void* blocks[4];
  for (void*& p : blocks) p = E::allocate(100);
  for (int i = 0; i < 3; ++i) E::deallocate(blocks[i]);
  for (int i = 0; i < 3; ++i) EXPECT_NAMED(E::deallocate(blocks[i]), "free already");
  E::deallocate(blocks[3]);
}

TEST_F(SuperblockDeathTest, BadPointersIntoEveryKindOfPiece) {
  HEAP(Pointers, SuperblockReport);
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
