// The standard engine over the coalescing arena: memory of one size at work for another, and large
// objects' growing, shrinking, moving and mistakes. Where it matters what is free, a process of its
// own begins with nothing.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>
#include <thread>

#include "address_limit.hpp"
#include "heap_walk.hpp"
#include "memory_return_access.hpp"
#include "os_calls.hpp"
#include "standard/test_support.hpp"

namespace spanalloc::large {
namespace {

long page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// --- One size's memory for every other -----------------------------------------------------------

TEST(StandardLarge, FreedSmallBlocksBecomeOneLargeObject) {
  in_fresh_process([] {
    auto small = fill(64 * kMiB, 64);
    // Else what is open behind them, and was never used, is of the same free range.
    void* behind = E::allocate(100 * kKiB);
    free_all(small);
    const std::size_t before = opened();
    const long faults = page_faults();
    auto* p = static_cast<char*>(E::allocate(60 * kMiB));
    ASSERT_NE(p, nullptr);
    for (std::size_t at = 0; at < 60 * kMiB; at += kPage) p[at] = 1;
    EXPECT_EQ(opened(), before);
    if (!test::kUnderAsan && !test::kUnderTsan && !test::kEmulated) {
      EXPECT_LE(page_faults(), faults + 500)
          << "the pages that the small blocks had are still there";
    }
    E::deallocate(p);
    E::deallocate(behind);
    expect_nothing_out();
  });
}

TEST(StandardLarge, AFreedLargeObjectBecomesSmallBlocks) {
  in_fresh_process([] {
    auto large = fill(30 * kMiB, 30 * kMiB);
    free_all(large);
    const std::size_t before = opened();
    const long faults = page_faults();
    auto small = fill(28 * kMiB, 64);
    EXPECT_LE(opened(), before);
    if (!test::kUnderAsan && !test::kUnderTsan && !test::kEmulated) {
      EXPECT_LE(page_faults(), faults + 2000)
          << "new are records of spans and what the test itself writes";
    }
    free_all(small);
    expect_nothing_out();
  });
}

TEST(StandardLarge, EverySizeServesEveryOther) {
  in_fresh_process([] {
    const std::size_t sizes[] = {208, 3000, 30000, 40000, 200 * kKiB, kMiB, 5 * kMiB, 20 * kMiB};
    std::size_t most = 0;
    for (const std::size_t before : sizes) {
      for (const std::size_t after : sizes) {
        auto blocks = fill(24 * kMiB, before);
        // A block of each class may leave its span hot: what they pin is
        // small, but may lie anywhere.
        if (most != 0) {
          EXPECT_LE(opened(), most) << before << " after others";
        }
        free_all(blocks);
        most = std::max(most, opened());
        blocks = fill(20 * kMiB, after);
        EXPECT_LE(opened(), most + 20 * kMiB) << before << " -> " << after;
        free_all(blocks);
        most = std::max(most, opened());
      }
    }
    // (Address space, opened in steps of 16 MiB. A current span that stays where it is may
    // stand in a large one's way.)
    EXPECT_LE(most, 96 * kMiB) << "24 MiB at a time";
    expect_nothing_out();
  });
}

// Spans go from blocks of one kind to the other through the pool, too: what
// counts as live does not drift.
TEST(StandardLarge, NothingCountsAsLiveWhenAllIsFree) {
  in_fresh_process([] {
    const std::size_t sizes[] = {208, 40000, 3000, 100 * kKiB, 60000, 30000, kMiB};
    for (int round = 0; round < 4; ++round) {
      for (const std::size_t size : sizes) {
        auto blocks = fill(8 * kMiB, size);
        EXPECT_GE(E::pages.memory_return.dirty_bound.live() << 16,
                  size > Standard::kMaxSmall ? 8 * kMiB - 4 * size : 0)
            << size;
        EXPECT_LE(E::pages.memory_return.dirty_bound.live(), std::size_t{16 * kMiB} >> 16) << size;
        free_all(blocks);
      }
    }
    E::trim();
    EXPECT_EQ(E::pages.memory_return.dirty_bound.live(), 0u);
    expect_nothing_out();
  });
}

// --- Resizing ------------------------------------------------------------------------------------

TEST(StandardLarge, GrowsInPlaceIntoAFreeNeighbour) {
  in_fresh_process([] {
    void* p = E::allocate(2 * kMiB);
    void* room = E::allocate(10 * kMiB);
    void* wall = E::allocate(100 * kKiB);
    ASSERT_EQ(static_cast<char*>(p) + 2 * kMiB, room);
    ASSERT_EQ(static_cast<char*>(room) + 10 * kMiB,
              pointer_to(align_down(address_of(wall), Classes::kSlice)));
    fill_pattern(p, 2 * kMiB, 1);
    EXPECT_NE(E::resize(p, 2 * kMiB).block, nullptr);
    E::deallocate(room);
    const std::size_t before = opened();
    EXPECT_EQ(E::resize(p, 8 * kMiB).block, p);
    EXPECT_EQ(E::usable_size(p), 8 * kMiB);
    EXPECT_EQ(E::statistics().large_bytes, 8 * kMiB);
    EXPECT_EQ(E::resize(p, 12 * kMiB).block, p) << "up to the wall";
    EXPECT_EQ(opened(), before);
    EXPECT_EQ(first_mismatch(p, 2 * kMiB, 1), 2 * kMiB);
    std::memset(p, 3, 12 * kMiB);
    EXPECT_NE(E::resize(p, 12 * kMiB + 1).block, p);
    E::deallocate(wall);
    const test::HeapWalk walk = test::walk_heap<E>();
    EXPECT_TRUE(walk.consistent());
    EXPECT_EQ(walk.single, 0u);
    EXPECT_EQ(E::statistics().large_objects, 1u) << "outside the arena";
  });
}

TEST(StandardLarge, ShrinksInPlaceAndGivesTheTailBack) {
  in_fresh_process([] {
    auto* p = static_cast<char*>(E::allocate(20 * kMiB));
    void* wall = E::allocate(2 * kMiB);
    fill_pattern(p, 20 * kMiB, 1);
    const std::size_t before = opened();
    EXPECT_EQ(Api::realloc(p, 3 * kMiB), p);
    EXPECT_EQ(E::usable_size(p), 3 * kMiB);
    EXPECT_EQ(E::statistics().large_bytes, 5 * kMiB);
    EXPECT_GE(E::statistics().pooled_bytes, 17 * kMiB);
    EXPECT_EQ(first_mismatch(p, 3 * kMiB, 1), 3 * kMiB);
    EXPECT_FALSE(E::owns(p + 3 * kMiB));
    void* tail = E::allocate(17 * kMiB);
    EXPECT_EQ(tail, p + 3 * kMiB);
    EXPECT_EQ(opened(), before);
    std::memset(tail, 9, 17 * kMiB);
    EXPECT_EQ(first_mismatch(p, 3 * kMiB, 1), 3 * kMiB);
    for (void* block : {static_cast<void*>(p), wall, tail}) E::deallocate(block);
    expect_nothing_out();
  });
}

// Pages that were never touched stay so; the others come along.
TEST(StandardLarge, MovesPagesWhereItCannotGrow) {
  if (test::kEmulated) GTEST_SKIP() << "the emulator moves no pages";
  in_fresh_process([] {
    constexpr std::size_t kOld = 16 * kMiB;
    auto* p = static_cast<unsigned char*>(E::allocate(kOld));
    void* wall = E::allocate(100 * kKiB);
    for (std::size_t at = 0; at < kOld; at += 2 * kPage) fill_pattern(p + at, kPage, at);
    auto* q = static_cast<unsigned char*>(E::resize(p, 64 * kMiB).block);
    ASSERT_NE(q, nullptr);
    ASSERT_NE(q, p);
    EXPECT_EQ(resident_pages(q, 64 * kMiB), kOld / kPage / 2);
    EXPECT_EQ(resident_pages(p, kOld), 0u) << "nothing was copied";
    for (std::size_t at = 0; at < kOld; at += 2 * kPage) {
      ASSERT_EQ(first_mismatch(q + at, kPage, at), kPage) << at;
      ASSERT_EQ(first_nonzero(q + at + kPage, kPage), kPage) << at;
    }
    EXPECT_EQ(E::statistics().large_objects, 1u);
    EXPECT_EQ(E::usable_size(q), 80 * kMiB) << "a quarter to grow into";
    EXPECT_FALSE(E::owns(p));
    auto* zeroed = static_cast<unsigned char*>(E::allocate_zeroed(kOld));
    EXPECT_EQ(zeroed, p) << "the old place is free";
    EXPECT_EQ(resident_pages(p, kOld), 0u) << "and known to be zero";
    EXPECT_EQ(first_nonzero(zeroed, kOld), kOld);
    std::memset(q, 1, 64 * kMiB);
    EXPECT_EQ(first_nonzero(zeroed, kOld), kOld);
    EXPECT_EQ(E::resize(q, 40 * kMiB).block, q);
    for (void* block : {static_cast<void*>(q), wall, static_cast<void*>(zeroed)})
      E::deallocate(block);
    expect_nothing_out();
  });
}

// Room that a move has left behind its target is no warm memory to copy into.
TEST(StandardLarge, MovesOneAfterTheOther) {
  if (test::kEmulated) GTEST_SKIP() << "the emulator moves no pages";
  in_fresh_process([] {
    std::vector<void*> walls;
    std::array<void*, 3> blocks{};
    for (void*& p : blocks) {
      p = E::allocate(2 * kMiB);
      std::memset(p, 7, 2 * kMiB);
      walls.push_back(E::allocate(100 * kKiB));
    }
    std::size_t n = 128 * kMiB;
    for (void*& p : blocks) {
      void* q = E::resize(p, n).block;
      ASSERT_NE(q, nullptr) << n;
      EXPECT_NE(q, p);
      EXPECT_EQ(resident_pages(q, n), 2 * kMiB / kPage);
      p = q;
      n /= 4;
    }
    for (void* p : blocks) E::deallocate(p);
    free_all(walls);
    expect_nothing_out();
  });
}

// Blocks that grow in turn stand in each other's way at every step.
TEST(StandardLarge, BlocksThatGrowInTurnMoveSeldom) {
  if (test::kEmulated) GTEST_SKIP() << "the emulator moves no pages";
  in_fresh_process([] {
    constexpr std::size_t kStep = 64 * kKiB;
    constexpr std::size_t kLast = 16 * kMiB;
    std::array<unsigned char*, 5> blocks{};
    unsigned moved = 0;
    for (std::size_t n = kStep; n <= kLast; n += kStep) {
      for (std::size_t b = 0; b < blocks.size(); ++b) {
        auto* p = static_cast<unsigned char*>(Api::realloc(blocks[b], n));
        ASSERT_NE(p, nullptr);
        if (n > kMiB + kStep) moved += p != blocks[b];
        blocks[b] = p;
        fill_pattern(p + n - kStep, kStep, n + b);
      }
    }
    EXPECT_LE(moved, 14 * blocks.size()) << "a quarter more each time: log(16) / log(1.25)";
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      for (std::size_t n = kStep; n <= kLast; n += kStep) {
        ASSERT_EQ(first_mismatch(blocks[b] + n - kStep, kStep, n + b), kStep) << b << ": " << n;
      }
      const std::size_t usable = E::usable_size(blocks[b]);
      EXPECT_GE(usable, kLast);
      EXPECT_EQ(resident_pages(blocks[b], usable), kLast / kPage) << "room is not in memory";
    }
    const test::HeapWalk walk = test::walk_heap<E>();
    EXPECT_TRUE(walk.consistent());
    EXPECT_LE(walk.single, 1u) << "all but the arena's last one are mappings of their own";
    EXPECT_EQ(E::statistics().large_objects, blocks.size());
    for (unsigned char* p : blocks) E::deallocate(p);
    expect_nothing_out();
  });
}

// Into its room a block grows where it stands, and made a little smaller it stays; made smaller
// than that it gives the room back.
TEST(StandardLarge, RoomIsUsedAndGivenBack) {
  if (test::kEmulated) GTEST_SKIP() << "the emulator moves no pages";
  in_fresh_process([] {
    void* p = E::allocate(8 * kMiB);
    void* wall = E::allocate(2 * kMiB);
    fill_pattern(p, 8 * kMiB, 1);
    void* q = E::resize(p, 9 * kMiB).block;
    ASSERT_NE(q, nullptr);
    ASSERT_NE(q, p);
    const std::size_t usable = E::usable_size(q);
    ASSERT_GE(usable, 11 * kMiB);
    EXPECT_EQ(E::resize(q, 10 * kMiB).block, q);
    EXPECT_EQ(E::usable_size(q), usable) << "what is left of the room stays";
    EXPECT_EQ(E::resize(q, 10 * kMiB).block, q);
    EXPECT_EQ(E::usable_size(q), usable);
    EXPECT_EQ(E::resize(q, 10 * kMiB * 7 / 8).block, q);
    EXPECT_EQ(E::usable_size(q), usable) << "a size that goes back and forth keeps it";
    EXPECT_EQ(E::resize(q, 7 * kMiB).block, q);
    EXPECT_EQ(E::usable_size(q) / kPage, 7 * kMiB / kPage) << "it does not grow any more";
    EXPECT_EQ(first_mismatch(q, 7 * kMiB, 1), 7 * kMiB);
    // The next one to come begins anew.
    E::deallocate(q);
    void* r = E::allocate(9 * kMiB);
    EXPECT_EQ(E::usable_size(r), 9 * kMiB);
    EXPECT_EQ(E::resize(r, 3 * kMiB).block, r);
    EXPECT_EQ(E::usable_size(r), 3 * kMiB);
    for (void* block : {r, wall}) E::deallocate(block);
    expect_nothing_out();
  });
}

// Each crossing of the largest class would move the block, and so would each of a slice's boundary.
TEST(StandardLarge, SizesThatGoBackAndForthMoveOnce) {
  if (test::kEmulated) GTEST_SKIP() << "the emulator moves no pages";
  in_fresh_process([] {
    for (const std::size_t n : {kMiB, 4 * kMiB}) {
      std::array<void*, 5> blocks{};
      for (void*& p : blocks) {
        p = Api::malloc(n);
        fill_pattern(p, n, n);
      }
      for (void*& p : blocks) p = Api::realloc(p, n + 1);
      for (unsigned round = 0; round < 3; ++round) {
        for (void* p : blocks) {
          EXPECT_EQ(Api::realloc(p, n), p);
          EXPECT_EQ(Api::realloc(p, n + 1), p);
          EXPECT_EQ(first_mismatch(p, n, n), n);
        }
      }
      for (void* p : blocks) E::deallocate(p);
    }
    expect_nothing_out();
  });
}

// Room is for who has memory: a limit counts what is mapped, and locked memory is resident.
TEST(StandardLarge, NoRoomIsOpenedUnderALimit) {
  if (test::kUnderAsan || test::kUnderTsan) GTEST_SKIP() << "a sanitizer needs its address space";
  if (test::kEmulated) GTEST_SKIP() << test::kNoLimits;
  in_fresh_process([] {
    const rlimit limit{8 * kGiB, 8 * kGiB};
    ASSERT_TRUE(test::limit_address_space(limit));
    void* p = E::allocate(64 * kMiB);
    void* wall = E::allocate(2 * kMiB);
    // Until something is refused nobody need know of the limit.
    std::vector<void*> all;
    while (void* q = E::allocate(64 * kMiB)) all.push_back(q);
    free_all(all);
    const std::size_t before = opened();
    void* q = E::resize(p, 65 * kMiB).block;
    if (q == nullptr) q = p;  // copied by the caller
    EXPECT_LE(opened(), before + 65 * kMiB + kMiB);
    EXPECT_LE(E::usable_size(q), 65 * kMiB + kMiB);
    for (void* block : {q, wall}) E::deallocate(block);
    expect_nothing_out();
  });
}
TEST(StandardLarge, LockedBlocksGetNoRoom) {
  if (test::kUnderAsan || test::kUnderTsan || test::kEmulated) {
    GTEST_SKIP() << "the memory of a sanitizer or emulator cannot be locked";
  }
  if (mlockall(MCL_FUTURE) != 0) GTEST_SKIP() << "this process may not lock its memory";
  munlockall();
  in_fresh_process([] {
    ASSERT_EQ(mlockall(MCL_FUTURE), 0);
    void* p = E::allocate(8 * kMiB);
    void* wall = E::allocate(2 * kMiB);
    const std::size_t before = opened();
    EXPECT_EQ(E::resize(p, 9 * kMiB).block, nullptr);
    EXPECT_EQ(opened(), before) << "not even for a look";
    for (void* block : {p, wall}) E::deallocate(block);
    munlockall();
    expect_nothing_out();
  });
}

// Each growth moves: neighbours of every kind come to lie side by side, pieces of
// moved memory among them.
TEST(StandardLarge, GrowsAgainAndAgain) {
  in_fresh_process(
      [] {
        test::let_clock_go();
        constexpr int kVectors = 3;
        for (int round = 0; round < 4; ++round) {
          std::array<unsigned char*, kVectors> blocks{};
          std::array<std::size_t, kVectors> sizes{};
          for (std::size_t n = 300 * kKiB; n < 6 * kMiB; n += n / 2) {
            for (std::size_t v = 0; v < kVectors; ++v) {
              auto* p = static_cast<unsigned char*>(Api::realloc(blocks[v], n));
              ASSERT_NE(p, nullptr);
              ASSERT_EQ(first_mismatch(p, sizes[v], v), sizes[v]) << n;
              fill_pattern(p, n, v);
              blocks[v] = p;
              sizes[v] = n;
            }
          }
          for (unsigned char* p : blocks) E::deallocate(p);
          ASSERT_TRUE(test::walk_heap<E>().consistent());
          if (round == 2) E::trim();
        }
        expect_nothing_out();
      },
      "5");
}

TEST(StandardLarge, CrossesTheBoundaryOfItsClassBothWays) {
  in_fresh_process([] {
    const std::size_t sizes[] = {kMiB + 1, kMiB,      900 * kKiB, kMiB,          2 * kMiB,
                                 kMiB - 1, 5 * kMiB,  33 * kKiB,  kMiB + 1,      70 * kKiB,
                                 3 * kMiB, 65 * kKiB, 64 * kKiB,  64 * kKiB + 1, 200 * kKiB,
                                 2 * kMiB, 40 * kKiB, kMiB};
    for (const bool walled : {false, true}) {
      std::vector<void*> walls;
      void* p = Api::malloc(36 * kKiB);
      std::size_t n = 36 * kKiB;
      fill_pattern(p, n, n);
      for (const std::size_t next : sizes) {
        if (walled) walls.push_back(E::allocate(64 * kKiB));
        p = Api::realloc(p, next);
        ASSERT_NE(p, nullptr);
        ASSERT_EQ(first_mismatch(p, min_of(n, next), n), min_of(n, next)) << n << " -> " << next;
        n = next;
        EXPECT_GE(E::usable_size(p), n);
        // A little below the boundary it may keep what it had above it.
        const bool may_be_large = n > kMiB * 7 / 8;
        EXPECT_LT(E::usable_size(p), n + (may_be_large ? n / 2 : n / 8) + Classes::kSlice);
        fill_pattern(p, n, n);
        const test::HeapWalk walk = test::walk_heap<E>();
        EXPECT_TRUE(walk.consistent());
        EXPECT_EQ(walk.single + E::pages.outside.statistics().objects, 1 + walls.size());
        // One that begins late in its first slice may need more slices than any class has.
        const bool large = address_of(p) % Classes::kSlice + n > kMiB;
        EXPECT_GE(E::statistics().large_objects, large ? 1u : 0u);
        EXPECT_LE(E::statistics().large_objects, large || may_be_large ? 1u : 0u);
      }
      E::deallocate(p);
      free_all(walls);
      expect_nothing_out();
    }
  });
}

TEST(StandardLarge, ARefusedGrowthLeavesTheBlockAsItWas) {
  void* p = E::allocate(5 * kMiB);
  fill_pattern(p, 5 * kMiB, 5);
  for (const std::size_t huge : {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 2 + 1, std::size_t{1} << 47}) {
    EXPECT_EQ(E::resize(p, huge).block, nullptr);
    errno = 0;
    EXPECT_EQ(Api::realloc(p, huge), nullptr);
    EXPECT_EQ(errno, ENOMEM);
  }
  EXPECT_EQ(E::usable_size(p), 5 * kMiB);
  EXPECT_EQ(first_mismatch(p, 5 * kMiB, 5), 5 * kMiB);
  EXPECT_TRUE(test::walk_heap<E>().consistent());
  E::deallocate(p);
  expect_nothing_out();
}

TEST(StandardLarge, AGrowthBeyondTheLimitLeavesTheBlockAsItWas) {
  if (test::kUnderAsan || test::kUnderTsan) GTEST_SKIP() << "a sanitizer needs its address space";
  if (test::kEmulated) GTEST_SKIP() << test::kNoLimits;
  in_fresh_process([] {
    const rlimit limit{512 * kMiB, 512 * kMiB};
    ASSERT_TRUE(test::limit_address_space(limit));
    auto* p = static_cast<unsigned char*>(E::allocate(200 * kMiB));
    ASSERT_NE(p, nullptr);
    for (std::size_t at = 0; at < 200 * kMiB; at += kMiB) fill_pattern(p + at, kPage, at);
    for (int i = 0; i < 10; ++i) {
      EXPECT_EQ(Api::realloc(p, 511 * kMiB), nullptr);  // there are program and tables, too
      EXPECT_EQ(Api::realloc(p, 2 * kGiB), nullptr);
    }
    EXPECT_EQ(E::usable_size(p), 200 * kMiB);
    EXPECT_TRUE(test::walk_heap<E>().consistent());
    for (std::size_t at = 0; at < 200 * kMiB; at += kMiB)
      ASSERT_EQ(first_mismatch(p + at, kPage, at), kPage);
    p = static_cast<unsigned char*>(Api::realloc(p, 220 * kMiB));
    ASSERT_NE(p, nullptr) << "there is room for that";
    for (std::size_t at = 0; at < 200 * kMiB; at += kMiB)
      ASSERT_EQ(first_mismatch(p + at, kPage, at), kPage);
    // What a large object held serves small ones although the limit lets nothing new be opened.
    E::deallocate(p);
    auto small = fill(200 * kMiB, 50000);
    void* q = E::allocate(100 * kMiB);
    EXPECT_NE(q, nullptr);
    free_all(small);
    E::deallocate(q);
    p = static_cast<unsigned char*>(E::allocate(300 * kMiB));
    EXPECT_NE(p, nullptr) << "closed pieces are opened again as one";
    E::deallocate(p);
    expect_nothing_out();
  });
}

// --- Zeroed memory -------------------------------------------------------------------------------

TEST(StandardLarge, ZeroedAfterDirtyReuse) {
  in_fresh_process([] {
    void* wall = nullptr;
    for (const std::size_t n : {kMiB + 1, 3 * kMiB, 20 * kMiB}) {
      void* p = E::allocate(n);
      if (wall == nullptr) wall = E::allocate(2 * kMiB);
      std::memset(p, 0xff, n);
      E::deallocate(p);
      p = E::allocate_zeroed(n);
      EXPECT_EQ(first_nonzero(p, n), n);
      std::memset(p, 0xff, n);
      // Partly clean: half of it was purged as a part of something else.
      ASSERT_EQ(E::resize(p, n / 2).block, p);
      E::trim();
      E::deallocate(p);
      p = E::allocate_zeroed(n);
      EXPECT_EQ(first_nonzero(p, n), n);
      E::deallocate(p);
    }
    E::deallocate(wall);
    expect_nothing_out();
  });
}

TEST(StandardLarge, ZeroedAfterAPurgeTouchesNothing) {
  in_fresh_process([] {
    constexpr std::size_t kBytes = 32 * kMiB;
    void* p = E::allocate_zeroed(kBytes);
    EXPECT_EQ(resident_pages(p, kBytes), 0u) << "fresh";
    std::memset(p, 0xff, kBytes);
    E::deallocate(p);
    EXPECT_TRUE(E::trim());
    EXPECT_FALSE(E::trim()) << "once";
    void* q = E::allocate_zeroed(kBytes);
    EXPECT_EQ(q, p);
    EXPECT_EQ(resident_pages(q, kBytes), 0u) << "purged";
    EXPECT_EQ(first_nonzero(q, kBytes), kBytes);
    E::deallocate(q);
    expect_nothing_out();
  });
}

// A lock ends with the block.
TEST(StandardLarge, LockedMemoryGoesBack) {
  if (test::kUnderAsan || test::kUnderTsan || test::kEmulated) GTEST_SKIP() << "pages are counted";
  static constexpr std::size_t kBytes = 8 * kMiB;
  if (!test::may_lock(kBytes)) GTEST_SKIP() << "so much cannot be locked";
  os::start();
  if (!os::may_renew()) GTEST_SKIP() << "nothing is mapped anew here";
  in_fresh_process([] {
    os::start();
    void* p = E::allocate(kBytes);
    std::memset(p, 1, kBytes);
    ASSERT_EQ(mlock(p, kBytes), 0);
    E::deallocate(p);
    EXPECT_TRUE(E::trim());
    EXPECT_EQ(resident_pages(p, kBytes), 0u);
  });
}

// What a program never touches stays untouched, however often it takes a large
// block and uses other parts.
TEST(StandardLarge, WhatIsTouchedOfLargeBlocksDoesNotAddUp) {
  if (test::kEmulated) GTEST_SKIP() << "the emulator's own pages are as its kernel has them";
  in_fresh_process([] {
    constexpr std::size_t kBytes = 64 * kMiB;
    constexpr std::size_t kUsed = 2 * kMiB;
    for (const bool zeroed : {false, true}) {
      void* first = nullptr;
      for (std::size_t i = 0; i < 24; ++i) {
        auto* p =
            static_cast<unsigned char*>(zeroed ? E::allocate_zeroed(kBytes) : E::allocate(kBytes));
        if (first == nullptr) first = p;
        ASSERT_EQ(p, first);
        EXPECT_EQ(resident_pages(p, kBytes), 0u) << i;
        if (zeroed) {
          ASSERT_EQ(first_nonzero(p + i * kUsed, kUsed), kUsed);
        }
        std::memset(p + i * kUsed, 1, kUsed);
        E::deallocate(p);
      }
    }
    expect_nothing_out();
  });
}

// What is filled with zeroes looks as if nobody had touched it.
TEST(StandardLarge, LargeBlocksOfZeroesStayWarmAfterAWhile) {
  if (test::kUnderAsan || test::kUnderTsan || test::kEmulated)
    GTEST_SKIP() << "page faults are counted";
  in_fresh_process([] {
    standard::MemoryReturnTestAccess::next_purge(E::pages.memory_return).store_relaxed(UINT64_MAX);
    constexpr std::size_t kBytes = 64 * kMiB;
    long faults = 0;
    for (int i = 0; i < 40; ++i) {
      if (i == 12) faults = page_faults();
      void* p = E::allocate(kBytes);
      std::memset(p, 0, kBytes);
      E::deallocate(p);
    }
    EXPECT_LE(page_faults(), faults + 200);
    expect_nothing_out();
  });
}

// A program may have protected a page of a block, and forgotten it. (glibc forgives that, too.)
TEST(StandardLarge, ABlockWithAProtectedPageCanBeFreed) {
  in_fresh_process([] {
    constexpr std::size_t kBytes = 64 * kMiB;
    for (int i = 0; i < 4; ++i) {
      auto* p = static_cast<char*>(E::allocate(kBytes));
      char* middle = p + kMiB - address_of(p) % kMiB;
      ASSERT_EQ(mprotect(middle, 62 * kMiB, PROT_NONE), 0);
      E::deallocate(p);
      ASSERT_EQ(mprotect(middle, 62 * kMiB, PROT_READ | PROT_WRITE), 0);
    }
    expect_nothing_out();
  });
}

TEST(StandardLarge, LargeBlocksThatAreUsedStayWarm) {
  if (test::kUnderAsan || test::kUnderTsan || test::kEmulated) GTEST_SKIP() << "pages are counted";
  in_fresh_process([] {
    standard::MemoryReturnTestAccess::next_purge(E::pages.memory_return).store_relaxed(UINT64_MAX);
    for (const std::size_t bytes : {4 * kMiB, 8 * kMiB, 32 * kMiB, 64 * kMiB}) {
      for (int i = 0; i < 40; ++i) {
        void* p = E::allocate(bytes);
        const std::size_t used_up = resident_pages(p, bytes);
        if (i != 0) {
          // The second time the bound turns out to be too small.
          EXPECT_EQ(used_up, (i == 1 ? min_of(bytes, 32 * kMiB) : bytes) / kPage)
              << bytes << ": " << i;
        }
        std::memset(p, 1, bytes);
        E::deallocate(p);
      }
      E::trim();
    }
    expect_nothing_out();
  });
}

// Blocks of one size, all of them written to, and how much of the engine's memory is resident.
class WarmBlocks {
 public:
  explicit WarmBlocks(std::size_t size) : all(fill(256 * kMiB, size)) {
    for (void* p : all) std::memset(p, 1, size);
    base_ = E::pages.address(standard::SpanNumber{1});
    bytes_ = address_of(E::pages.address(E::pages.end_of_spans())) - address_of(base_);
  }
  std::size_t resident() const { return resident_pages(base_, bytes_) * kPage; }
  // By another thread, which finds a purge under way.
  void free_all_beside_a_purge() {
    const LockGuard purges(E::pages.memory_return.purge_lock);
    std::thread([this] { free_all(all); }).join();
  }

  std::vector<void*> all;

 private:
  char* base_ = nullptr;
  std::size_t bytes_ = 0;
};

// Nobody passes by: with the last free no more is left than the bound.
TEST(StandardLarge, AFreeLeavesNoMoreWarmThanTheBound) {
  if (test::kUnderAsan || test::kUnderTsan || test::kEmulated) GTEST_SKIP() << "pages are counted";
  for (const std::size_t bytes : {100 * kKiB, 700 * kKiB, 4 * kMiB, 24 * kMiB, 128 * kMiB}) {
    for (const bool backwards : {false, true}) {
      in_fresh_process([=] {
        WarmBlocks blocks(bytes);
        // Half of them: a quarter of what is live stays, too.
        std::vector<void*> kept;
        for (std::size_t i = 0; i < blocks.all.size(); ++i) {
          void* p = blocks.all[backwards ? blocks.all.size() - 1 - i : i];
          if (i % 2 == 0) {
            kept.push_back(p);
          } else {
            E::deallocate(p);
          }
        }
        const std::size_t live = kept.size() * bytes;
        // What pools and large_spans keep besides, and what a purge a free leaves.
        const std::size_t more = 8 * kMiB + kept.size() * Classes::kSlice;
        EXPECT_LE(blocks.resident(), live + live / 4 + 32 * kMiB + more);
        free_all(kept);
        EXPECT_LE(blocks.resident(), 32 * kMiB + 8 * kMiB);
        EXPECT_GE(blocks.resident(), 16 * kMiB) << "some of it stays";
        expect_nothing_out();
      });
    }
  }
}

// Threads that free at the same time find another one purging. The last of them may, too.
TEST(StandardLarge, AFreeThatMeetsAPurgeLeavesItsPartToTheNext) {
  if (test::kUnderAsan || test::kUnderTsan || test::kEmulated) GTEST_SKIP() << "pages are counted";
  in_fresh_process([] {
    WarmBlocks blocks(16 * kMiB);
    void* const last = blocks.all.back();
    blocks.all.pop_back();
    blocks.free_all_beside_a_purge();
    EXPECT_GE(blocks.resident(), 256 * kMiB) << "nobody has purged";
    E::deallocate(last);
    EXPECT_LE(blocks.resident(), 32 * kMiB + 8 * kMiB);
    expect_nothing_out();
  });
}

// Or an epoch, which has the lock for another reason.
TEST(StandardLarge, AFreeThatMeetsAnEpochLeavesItsPartToThat) {
  if (test::kUnderAsan || test::kUnderTsan || test::kEmulated) GTEST_SKIP() << "pages are counted";
  in_fresh_process([] {
    WarmBlocks blocks(16 * kMiB);
    blocks.free_all_beside_a_purge();
    EXPECT_GE(blocks.resident(), 250 * kMiB) << "nobody has purged";
    standard::MemoryReturnTestAccess::next_purge(E::pages.memory_return).store_relaxed(0);
    void* const p = E::allocate(200'000);
    EXPECT_LE(blocks.resident(), 32 * kMiB + 8 * kMiB);
    E::deallocate(p);
  });
}

// Clearing a block brings all of it into memory: then nobody can tell how little the program uses.
// So now and then it is not cleared but purged.
TEST(StandardLarge, ClearingHugeBlocksIsGivenUpWhereLittleIsUsed) {
  if (test::kUnderAsan || test::kUnderTsan || test::kEmulated) GTEST_SKIP() << "pages are counted";
  in_fresh_process([] {
    constexpr std::size_t kBytes = 64 * kMiB;
    void* p = E::allocate(kBytes);
    std::memset(p, 1, kBytes);
    E::deallocate(p);
    std::size_t resident = 0;
    for (std::size_t i = 0; i < 20; ++i) {
      auto* q = static_cast<unsigned char*>(E::allocate_zeroed(kBytes));
      ASSERT_EQ(first_nonzero(q + i * kMiB, kMiB), kMiB);
      for (std::size_t at = 0; at < kBytes; at += kMiB) q[at] = 1;
      resident = resident_pages(q, kBytes);
      if (i == 0) {
        EXPECT_EQ(resident, kBytes / kPage) << "cleared";
      }
      E::deallocate(q);
    }
    EXPECT_LE(resident, kBytes / kMiB + kMiB / kPage);
    expect_nothing_out();
  });
}

// Blocks that share a span, too: one that was never handed out is zero but for its link.
TEST(StandardLarge, ListedBlocksKnowFreshMemory) {
  in_fresh_process([] {
    constexpr std::size_t kBytes = 16 * kKiB;
    std::vector<unsigned char*> blocks(300);
    const auto touched = [&] {
      std::size_t pages = 0;
      for (unsigned char* p : blocks) pages += resident_pages(p, kBytes);
      return pages;
    };
    for (auto& p : blocks) p = static_cast<unsigned char*>(E::allocate_zeroed(kBytes));
    EXPECT_LE(touched(), 2 * blocks.size()) << "fresh: the page of the link, perhaps a neighbour's";
    for (unsigned char* p : blocks) {
      ASSERT_EQ(first_nonzero(p, kBytes), kBytes);
      std::memset(p, 0xff, kBytes);
    }
    // A part of the dirty blocks comes back among those never handed out.
    for (std::size_t i = 0; i < blocks.size(); i += 3) E::deallocate(blocks[i]);
    for (std::size_t i = 0; i < blocks.size(); i += 3) {
      blocks[i] = static_cast<unsigned char*>(E::allocate_zeroed(kBytes));
      ASSERT_EQ(first_nonzero(blocks[i], kBytes), kBytes) << i;
      std::memset(blocks[i], 0xff, kBytes);
    }
    for (unsigned char* p : blocks) E::deallocate(p);
    // Spans that come back through the pool are dirty throughout, those that were purged are not.
    for (int round = 0; round < 2; ++round) {
      for (auto& p : blocks) {
        p = static_cast<unsigned char*>(E::allocate_zeroed(kBytes));
        ASSERT_EQ(first_nonzero(p, kBytes), kBytes);
        std::memset(p, 0xff, kBytes);
      }
      for (unsigned char* p : blocks) E::deallocate(p);
      E::trim();
    }
    expect_nothing_out();
  });
}

TEST(StandardLarge, WhatNobodyWantsIsPurgedWhenSomebodyPassesBy) {
  in_fresh_process(
      [] {
        constexpr std::size_t kBytes = 16 * kMiB;
        void* p = E::allocate(kBytes);
        void* wall = E::allocate(2 * kMiB);
        std::memset(p, 1, kBytes);
        E::deallocate(p);
        // What passes by takes dirty memory first, and so keeps that warm.
        constexpr std::size_t kWarm = kMiB + kMiB / 2;
        for (int i = 0; i < 200 && resident_pages(p, kBytes) > kWarm / kPage; ++i) {
          test::advance_clock(1);
          E::deallocate(E::allocate(kWarm));
        }
        EXPECT_LE(resident_pages(p, kBytes), kWarm / kPage);
        E::deallocate(wall);
      },
      "20");
}

// --- Outside the arena ---------------------------------------------------------------------------

// A block of `n` bytes, full of a pattern, that has left the arena for want of room.
unsigned char* moved_out(std::size_t n, std::uint64_t seed) {
  auto* p = static_cast<char*>(E::allocate(n - kMiB));
  std::vector<void*> walls;
  for (char* wall = nullptr; wall < p + n - kMiB || wall >= p + n; walls.push_back(wall)) {
    wall = static_cast<char*>(E::allocate(100 * kKiB));
  }
  void* q = E::resize(p, n).block;
  free_all(walls);
  if (q == nullptr || q == p) return nullptr;
  fill_pattern(q, n, seed);
  return static_cast<unsigned char*>(q);
}

TEST(StandardOutside, BlocksServeLikeAnyOther) {
  in_fresh_process([] {
    unsigned char* p = moved_out(8 * kMiB, 1);
    ASSERT_NE(p, nullptr);
    EXPECT_TRUE(E::owns(p));
    EXPECT_FALSE(E::owns(p + 1));
    EXPECT_GE(E::usable_size(p), 8 * kMiB);
    EXPECT_LE(E::usable_size(p), 10 * kMiB + kPage);
    EXPECT_EQ(Api::malloc_usable_size(p), E::usable_size(p));
    // Growing.
    for (const std::size_t n : {9 * kMiB, 20 * kMiB, 20 * kMiB + 1, 90 * kMiB}) {
      p = static_cast<unsigned char*>(Api::realloc(p, n));
      ASSERT_NE(p, nullptr);
      ASSERT_EQ(first_mismatch(p, 8 * kMiB, 1), 8 * kMiB) << n;
      EXPECT_GE(E::usable_size(p), n);
      p[n - 1] = 1;
    }
    EXPECT_EQ(E::statistics().large_objects, 1u);
    EXPECT_GE(E::statistics().opened_bytes, E::statistics().large_bytes);
    // Shrinking: where it is, down to a size that has a class.
    for (const std::size_t n : {70 * kMiB, 30 * kMiB, 9 * kMiB}) {
      EXPECT_EQ(Api::realloc(p, n), p);
      EXPECT_LE(E::usable_size(p), n + n / 2);
      ASSERT_EQ(first_mismatch(p, 8 * kMiB, 1), 8 * kMiB) << n;
    }
    p = static_cast<unsigned char*>(Api::realloc(p, 100 * kKiB));
    ASSERT_EQ(first_mismatch(p, 100 * kKiB, 1), 100 * kKiB);
    EXPECT_EQ(E::statistics().large_objects, 0u);
    EXPECT_EQ(Api::realloc(p, 0), nullptr);
    expect_nothing_out();
  });
}

TEST(StandardOutside, AnyThreadMayFreeAndResizeThem) {
  in_fresh_process([] {
    unsigned char* p = moved_out(8 * kMiB, 1);
    unsigned char* q = moved_out(8 * kMiB, 2);
    ASSERT_TRUE(p != nullptr && q != nullptr);
    std::thread([&] {
      q = static_cast<unsigned char*>(Api::realloc(q, 50 * kMiB));
      E::deallocate(p);
    }).join();
    EXPECT_EQ(first_mismatch(q, 8 * kMiB, 2), 8 * kMiB);
    E::deallocate(q);
    expect_nothing_out();
  });
}

TEST(StandardOutside, MistakesAreNamed) {
  in_fresh_process([] {
    unsigned char* p = moved_out(8 * kMiB, 1);
    ASSERT_NE(p, nullptr);
    const std::string freed = "free of a pointer that this allocator did not return";
    const std::string asked = "size asked of a pointer that this allocator did not return";
    for (const std::size_t offset : {std::size_t{1}, std::size_t{16}, kPage, 4 * kMiB}) {
      expect_named([=] { E::deallocate(p + offset); }, freed);
      expect_named([=] { E::usable_size(p + offset); }, asked);
      expect_named([=] { Api::realloc(p + offset, 100); }, asked);
    }
    expect_named([=] { E::deallocate(p), E::deallocate(p); }, freed);
    expect_named([=] { E::deallocate(p), Api::realloc(p, 10 * kMiB); }, asked);
    E::deallocate(p);
    expect_nothing_out();
  });
}

// Blocks that come and go would have all their page faults each time: the next ones stay in the
// arena.
TEST(StandardOutside, WhatComesAndGoesStaysInTheArena) {
  if (test::kUnderAsan || test::kUnderTsan || test::kEmulated) GTEST_SKIP() << "pages are counted";
  for (const std::size_t low : {kMiB, 2 * kMiB, 3 * kMiB, 5 * kMiB}) {
    for (const std::size_t high : {9 * kMiB, 12 * kMiB, 30 * kMiB}) {
      in_fresh_process([=] {
        void* p = E::allocate(low);
        void* wall = E::allocate(kMiB);
        long faults = 0;
        for (unsigned round = 0; round < 20; ++round) {
          if (round == 4) faults = page_faults();
          p = Api::realloc(p, high);
          std::memset(p, 1, high);
          p = Api::realloc(p, low);
        }
        EXPECT_LE(page_faults(), faults + 100) << low << ' ' << high;
        for (void* block : {p, wall}) E::deallocate(block);
        expect_nothing_out();
      });
    }
  }
}

TEST(StandardOutside, WhatGrowsAndIsFreedStaysInTheArena) {
  if (test::kUnderAsan || test::kUnderTsan || test::kEmulated) GTEST_SKIP() << "pages are counted";
  in_fresh_process([] {
    long faults = 0;
    for (unsigned round = 0; round < 20; ++round) {
      if (round == 3) faults = page_faults();
      void* q = E::allocate(2 * kMiB);
      void* other = E::allocate(2 * kMiB);
      for (const std::size_t n : {4 * kMiB, 8 * kMiB}) {
        q = Api::realloc(q, n);
        std::memset(q, 1, n);
      }
      E::deallocate(q);
      E::deallocate(other);
    }
    EXPECT_LE(page_faults(), faults + 1000);
    expect_nothing_out();
  });
}

// Copied are those for which that pays now, not all that ever come.
TEST(StandardOutside, WhatCameAndWentIsForgottenAgain) {
  in_fresh_process(
      [] {
        unsigned char* p = moved_out(8 * kMiB, 1);
        ASSERT_NE(p, nullptr);
        E::deallocate(p);
        EXPECT_GE(E::pages.outside.came_back(), 8 * kMiB);
        for (unsigned tick = 0; tick < 40; ++tick) {
          test::advance_clock(1000);
          E::deallocate(E::allocate(2 * kMiB));
        }
        EXPECT_EQ(E::pages.outside.came_back(), 0u);
        p = moved_out(8 * kMiB, 1);
        ASSERT_NE(p, nullptr);
        EXPECT_EQ(E::pages.outside.statistics().objects, 1u);
        E::deallocate(p);
        expect_nothing_out();
      },
      "1000");
}

TEST(StandardOutside, AChildHasThemToo) {
  if (test::kUnderTsan) GTEST_SKIP() << "thread sanitizer does not follow this";
  in_fresh_process([] {
    unsigned char* p = moved_out(8 * kMiB, 1);
    ASSERT_NE(p, nullptr);
    const pid_t child = fork();
    if (child == 0) {
      if (first_mismatch(p, 8 * kMiB, 1) != 8 * kMiB) _exit(1);
      p = static_cast<unsigned char*>(Api::realloc(p, 40 * kMiB));
      if (p == nullptr || first_mismatch(p, 8 * kMiB, 1) != 8 * kMiB) _exit(2);
      E::deallocate(p);
      _exit(E::statistics().large_objects == 0 ? 0 : 3);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    ASSERT_EQ(first_mismatch(p, 8 * kMiB, 1), 8 * kMiB);
    E::deallocate(p);
    expect_nothing_out();
  });
}

// --- Alignments ----------------------------------------------------------------------------------

TEST(StandardLarge, AlignmentsAboveAGranule) {
  std::vector<void*> blocks;
  for (std::size_t alignment = 128 * kKiB; alignment <= 512 * kMiB; alignment *= 2) {
    for (const std::size_t n : {std::size_t{0}, std::size_t{1}, 100 * kKiB, kMiB, 3 * kMiB + 5}) {
      auto* p = static_cast<char*>(E::allocate_aligned(n, alignment));
      if (p == nullptr && alignment > 64 * kMiB) continue;  // where address space is short
      ASSERT_NE(p, nullptr) << n << " at " << alignment;
      EXPECT_EQ(address_of(p) % alignment, 0u);
      EXPECT_GE(E::usable_size(p), n);
      if (n != 0) p[0] = p[n - 1] = 1;
      // Half of them live on and grow; the place of the others serves the next ones.
      if (blocks.size() % 2 == 0 && n > kMiB) {
        p = static_cast<char*>(Api::realloc(p, n + 2 * kMiB));
        ASSERT_NE(p, nullptr);
        EXPECT_EQ(p[0] + p[n - 1], 2);
      }
      blocks.push_back(p);
    }
  }
  EXPECT_EQ(E::allocate_aligned(1, std::size_t{1} << 63), nullptr);
  EXPECT_EQ(E::allocate_aligned(SIZE_MAX, 128 * kKiB), nullptr);
  EXPECT_EQ(E::allocate_aligned(kMiB, std::size_t{1} << 46), nullptr);
  EXPECT_TRUE(test::walk_heap<E>().consistent());
  free_all(blocks);
  expect_nothing_out();
}

// --- Mistakes ------------------------------------------------------------------------------------

constexpr const char* kNotLive = "not the start of a live block";

TEST(StandardLargeMistakes, DoubleFreesAreNamed) {
  for (const std::size_t n : {40 * kKiB, 200 * kKiB, kMiB, kMiB + 1, 10 * kMiB}) {
    SCOPED_TRACE(n);
    void* p = E::allocate(n);
    expect_named([=] { E::deallocate(p), E::deallocate(p); }, kNotLive);
    E::deallocate(p);
    expect_named([=] { E::deallocate(p); }, kNotLive);
    expect_named([=] { std::thread([=] { E::deallocate(p); }).join(); }, kNotLive);
    expect_named([=] { Api::realloc(p, 2 * n); }, kNotLive);
    expect_named([=] { E::usable_size(p); }, kNotLive);
    E::trim();
    expect_named([=] { E::deallocate(p); }, kNotLive);
  }
}

TEST(StandardLargeMistakes, AddressesInsideABlockAreNamed) {
  // Slices that were something else before: spans of one slice and of several.
  for (const std::size_t size : {64u, 20000u}) {
    auto small = fill(16 * kMiB, size);
    free_all(small);
  }
  E::trim();
  for (const std::size_t n : {40 * kKiB, 900 * kKiB, 5 * kMiB, 12 * kMiB}) {
    auto* p = static_cast<char*>(E::allocate(n));
    for (const std::size_t offset : {std::size_t{1}, std::size_t{16}, std::size_t{4096}, 64 * kKiB,
                                     64 * kKiB + 64, 128 * kKiB, 192 * kKiB, kMiB, n - 16}) {
      if (offset >= n) continue;
      SCOPED_TRACE(std::to_string(n) + " + " + std::to_string(offset));
      expect_named([=] { E::deallocate(p + offset); },
                   "free of a pointer that is not the start of a live block: ");
      const std::string asked = "size asked of a pointer that is not the start of a live block: ";
      expect_named([=] { Api::realloc(p + offset, 100); }, asked);
      expect_named([=] { E::usable_size(p + offset); }, asked);
    }
    E::deallocate(p);
  }
}

// Open memory that nobody was ever given, and what lies before and behind it.
TEST(StandardLargeMistakes, AddressesThatWereNeverHandedOutAreNamed) {
  in_fresh_process([] {
    auto* p = static_cast<char*>(E::allocate(8 * kMiB));
    E::deallocate(E::allocate(64));
    char* open_end = E::pages.address(E::pages.end_of_spans());
    char* never = open_end - Classes::kSlice;
    ASSERT_GT(never, p + 8 * kMiB);
    for (char* address : {never, never + 16, open_end - 1}) {
      expect_named([=] { E::deallocate(address); },
                   "free of a pointer that is not the start of a live block");
      expect_named([=] { E::usable_size(address); },
                   "size asked of a pointer that is not the start of a live block");
      expect_named([=] { Api::realloc(address, 10); },
                   "size asked of a pointer that is not the start of a live block");
    }
    char* slice_0 = E::pages.address(standard::SpanNumber::kNone);
    expect_named([=] { E::deallocate(slice_0 + 64); },
                 "free of a pointer that is not the start of a live block");
    expect_named([=] { E::usable_size(slice_0 + 64); },
                 "size asked of a pointer that is not the start of a live block");
    expect_named([=] { E::deallocate(open_end); }, "that this allocator did not return");
    // Among small blocks, too.
    auto* small = static_cast<char*>(E::allocate(5000));
    expect_named([=] { E::deallocate(small + 16); },
                 "free of a pointer that is not the start of a live block: ");
    expect_named([=] { E::usable_size(small + 16); },
                 "size asked of a pointer that is not the start of a live block");
    E::deallocate(small);
    E::deallocate(p);
    expect_nothing_out();
  });
}

TEST(StandardLargeMistakes, PlacesThatAResizeHasLeftAreNamed) {
  in_fresh_process([] {
    auto* p = static_cast<char*>(E::allocate(8 * kMiB));
    void* wall = E::allocate(2 * kMiB);
    ASSERT_EQ(E::resize(p, 3 * kMiB).block, p);
    expect_named([=] { E::deallocate(p + 3 * kMiB); }, kNotLive);
    expect_named([=] { E::deallocate(p + kMiB); }, kNotLive);
    ASSERT_EQ(E::resize(p, 7 * kMiB).block, p);
    expect_named([=] { E::deallocate(p + 3 * kMiB); }, kNotLive);
    if (!test::kEmulated) {
      auto* q = static_cast<char*>(E::resize(p, 20 * kMiB).block);
      ASSERT_NE(q, nullptr);
      ASSERT_NE(q, p);
      expect_named([=] { E::deallocate(p); }, kNotLive);
      expect_named([=] { Api::realloc(p, kMiB); }, kNotLive);
      p = q;
    }
    E::deallocate(p);
    E::deallocate(wall);
    expect_nothing_out();
  });
}

}  // namespace
}  // namespace spanalloc::large
