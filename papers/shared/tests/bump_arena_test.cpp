#include "papers/shared/bump_arena.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <functional>
#include <set>
#include <thread>

#include "address_limit.hpp"
#include "child.hpp"
#include "owned.hpp"
#include "sanitizers.hpp"

namespace spanalloc {

struct BumpArenaTestAccess {
  template <class Arena>
  static WakingLock& lock(Arena& arena) {
    return arena.lock_;
  }
};

namespace {

using Arena = BumpArena<16, 4, HugePages::kKernelDefault>;
/// Each gives its 32 TiB of addresses back: there is not room for many.
using OwnArena = test::Owned<Arena>;

char* address(Arena& arena, std::uint32_t slice) {
  return pointer_to<char>(arena.base() + std::size_t{slice} * Arena::kSlice);
}

TEST(BumpArena, HandsOutAlignedZeroedDisjointRanges) {
  OwnArena arena;
  ASSERT_TRUE(arena->start());
  EXPECT_TRUE(arena->start()) << "idempotent";
  EXPECT_EQ(arena->base() % (Arena::kSlice << 4), 0u);
  std::set<std::uint32_t> seen;
  for (unsigned i = 0; i < 200; ++i) {
    const unsigned order = (i * 7) % 5;
    const std::uint32_t first = arena->allocate(order);
    ASSERT_NE(first, 0u);
    EXPECT_EQ(first % (1u << order), 0u);
    EXPECT_LE(first + (1u << order), arena->limit());
    for (std::uint32_t g = first; g < first + (1u << order); ++g) {
      EXPECT_TRUE(seen.insert(g).second) << "slice " << g << " twice";
      EXPECT_EQ(address(*arena, g)[100], 0);
      std::memset(address(*arena, g), 1, 4096);
    }
  }
}

TEST(BumpArena, AlignmentGapsServeSmallerRequests) {
  OwnArena arena;
  ASSERT_TRUE(arena->start());
  EXPECT_EQ(arena->allocate(0), 1u);
  const std::uint32_t large = arena->allocate(4);
  EXPECT_EQ(large, 16u);
  std::set<std::uint32_t> gap;
  for (int i = 0; i < 14; ++i) gap.insert(arena->allocate(0));
  EXPECT_EQ(gap.size(), 14u);
  EXPECT_LT(*gap.rbegin(), 16u) << "slices 2 to 15 come before new address space";
}

// A fork has left the thread behind that was allocating. The lock reports that once: so whichever
// call comes first repairs. Pieces that were kept may be handed out already: they are lost.
TEST(BumpArena, TheFirstCallInAForksChildRepairs) {
  if (test::kUnderTsan) GTEST_SKIP() << "thread sanitizer allows no threads in a child";
  const std::function<void(Arena&)> calls[] = {
      [](Arena& arena) { EXPECT_TRUE(arena.start()); },
      [](Arena& arena) { EXPECT_NE(arena.allocate(0), 0u); },
      [](Arena& arena) { arena.heed_limit(); },
      [](Arena& arena) { EXPECT_GE(arena.statistics().lost_bytes, 14 * Arena::kSlice); },
  };
  for (const auto& call : calls) {
    SCOPED_TRACE(&call - calls);
    test::in_child([&] {
      OwnArena arena;
      ASSERT_TRUE(arena->start());
      ASSERT_EQ(arena->allocate(0), 1u);
      ASSERT_EQ(arena->allocate(4), 16u) << "slices 2 to 15 are kept";
      std::thread([&] { (void)BumpArenaTestAccess::lock(*arena).lock(); }).join();
      SpinLock::enter_child();
      arena->enter_child();
      call(*arena);
      EXPECT_GE(arena->statistics().lost_bytes, 14 * Arena::kSlice);
      for (int i = 0; i < 20; ++i) EXPECT_GE(arena->allocate(0), 32u);
    });
  }
}

TEST(BumpArena, OpensLittle) {
  OwnArena arena;
  ASSERT_TRUE(arena->start());
  ASSERT_NE(arena->allocate(0), 0u);
  EXPECT_LE(arena->statistics().opened_bytes, 4 * Arena::kSlice);
  for (int i = 0; i < 2000; ++i) ASSERT_NE(arena->allocate(0), 0u);
  const ArenaStatistics s = arena->statistics();
  EXPECT_GE(s.opened_bytes, 2000 * Arena::kSlice);
  EXPECT_LE(s.opened_bytes, 2001 * Arena::kSlice + 16 * kMiB) << "a step is at most 16 MiB";
  EXPECT_EQ(s.lost_bytes, 0u);
}

TEST(BumpArena, ASmallArenaEndsAndStaysUsable) {
  test::in_child([] {
    setenv("SPANALLOC_ARENA_BITS", "30", 1);
    OwnArena arena;
    ASSERT_TRUE(arena->start());
    EXPECT_EQ(arena->statistics().reserved_bytes, kGiB);
    std::size_t slices = 0;
    while (arena->allocate(4) != 0) slices += 16;
    EXPECT_EQ(slices, kGiB / Arena::kSlice - 16) << "all but the range of slice 0";
    EXPECT_NE(arena->allocate(0), 0u) << "what the first alignment skipped is still there";
  });
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(BumpArena, UnderAnAddressLimitNothingIsReserved) {
  if (test::kEmulated) GTEST_SKIP() << test::kNoLimits;
  test::in_child([] {
    ASSERT_TRUE(test::leave_address_space(512 * kMiB));
    OwnArena arena;
    ASSERT_TRUE(arena->start());
    std::size_t bytes = 0;
    for (std::uint32_t g = arena->allocate(0); g != 0; g = arena->allocate(0)) {
      *address(*arena, g) = 1;
      bytes += Arena::kSlice;
    }
    EXPECT_GE(bytes, 380 * kMiB) << "nearly all of the limit is usable";
    EXPECT_LE(arena->statistics().reserved_bytes, arena->statistics().opened_bytes);
  });
}

// The limit is set when the range is reserved, and counts the reservation.
template <class Arena>
void expect_limit_is_heeded(Arena& arena, int resource, std::size_t used) {
  const rlimit limit{used + 256 * kMiB, RLIM_INFINITY};
  ASSERT_EQ(setrlimit(resource, &limit), 0);
  EXPECT_NE(arena.ask_within_limits([] { return os::map(64 * kMiB, 1); }), nullptr)
      << "for others, too";
  std::size_t bytes = 0;
  for (std::uint32_t g = arena.allocate(0); g != 0; g = arena.allocate(0)) {
    *address(arena, g) = 1;
    bytes += Arena::kSlice;
  }
  EXPECT_GE(bytes, 160 * kMiB) << "nearly all that is left";
  EXPECT_LE(bytes, 192 * kMiB);
  EXPECT_FALSE(arena.is_reserved());
  EXPECT_EQ(arena.statistics().reserved_bytes, arena.statistics().opened_bytes);
  EXPECT_EQ(arena.statistics().lost_bytes, 0u);
}

TEST(BumpArena, ALaterLimitOnAddressesTakesTheReservation) {
  if (test::kEmulated) GTEST_SKIP() << test::kNoLimits;
  test::in_child([] {
    const std::size_t before = test::address_space_in_use();
    OwnArena arena;
    ASSERT_TRUE(arena->start());
    ASSERT_TRUE(arena->is_reserved());
    ASSERT_NE(arena->allocate(0), 0u);
    ASSERT_GT(test::address_space_in_use(), before + kGiB);
    expect_limit_is_heeded(*arena, RLIMIT_AS, before);
    arena->destroy();
    EXPECT_LE(test::address_space_in_use(), before + 65 * kMiB) << "nothing of it is left";
  });
}

TEST(BumpArena, ALaterLimitOnDataIsSeenBeforeItRefuses) {
  if (test::kEmulated) GTEST_SKIP() << test::kNoLimits;
  test::in_child([] {
    OwnArena arena;
    ASSERT_TRUE(arena->start());
    for (int i = 0; i < 100; ++i) ASSERT_NE(arena->allocate(0), 0u);
    ASSERT_TRUE(arena->is_reserved());
    const rlimit limit{test::data_in_use() + 64 * kMiB, RLIM_INFINITY};
    ASSERT_EQ(setrlimit(RLIMIT_DATA, &limit), 0);
    const std::size_t open = arena->statistics().opened_bytes;
    while (arena->is_reserved()) ASSERT_NE(arena->allocate(0), 0u);
    EXPECT_LE(arena->statistics().opened_bytes, open + kMiB) << "with the next step";
    while (arena->allocate(0) != 0) {
    }
    EXPECT_GE(arena->statistics().opened_bytes, open + 62 * kMiB);
  });
}

// A refusal is not a foreign mapping: nothing is given up for it.
TEST(BumpArena, ARefusalLosesNothing) {
  if (test::kEmulated) GTEST_SKIP() << test::kNoLimits;
  test::in_child([] {
    ASSERT_TRUE(test::leave_address_space(64 * kMiB));
    OwnArena arena;
    ASSERT_TRUE(arena->start());
    while (arena->allocate(0) != 0) {
    }
    const std::size_t limit = arena->limit();
    for (int i = 0; i < 1000; ++i) EXPECT_EQ(arena->allocate(4), 0u);
    EXPECT_EQ(arena->limit(), limit);
    EXPECT_LE(arena->statistics().lost_bytes, kMiB) << "at most what alignment skipped";
    ASSERT_TRUE(test::leave_address_space(kGiB));
    for (int i = 0; i < 100; ++i) EXPECT_NE(arena->allocate(4), 0u) << "the limit was lifted";
  });
}

TEST(BumpArena, StepsOverForeignMappings) {
  if (test::kEmulated) GTEST_SKIP() << test::kNoLimits;
  test::in_child([] {
    ASSERT_TRUE(test::leave_address_space(kGiB));
    OwnArena arena;
    ASSERT_TRUE(arena->start());
    const std::uint32_t first = arena->allocate(0);
    ASSERT_NE(first, 0u);
    // Somebody maps a page a little ahead.
    char* ahead = address(*arena, 40);
    ASSERT_EQ(mmap(ahead, 4096, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
              ahead);
    std::memset(ahead, 0x5a, 4096);
    std::set<std::uint32_t> seen;
    for (int i = 0; i < 200; ++i) {
      const std::uint32_t g = arena->allocate(0);
      ASSERT_NE(g, 0u);
      ASSERT_NE(g, 40u);
      ASSERT_TRUE(seen.insert(g).second);
      std::memset(address(*arena, g), 1, Arena::kSlice);
    }
    EXPECT_EQ(ahead[100], 0x5a) << "the foreign page was not touched";
    EXPECT_GE(arena->statistics().lost_bytes, Arena::kSlice);
  });
}
#endif

TEST(BumpArena, LockedMemoryIsOpenedAsUsed) {
  if (test::kUnderAsan || test::kUnderTsan || test::kEmulated) {
    GTEST_SKIP() << "the memory of a sanitizer or emulator cannot be locked";
  }
  if (mlockall(MCL_FUTURE) != 0) GTEST_SKIP() << "this process may not lock its memory";
  munlockall();
  test::in_child([] {
    ASSERT_EQ(mlockall(MCL_FUTURE), 0);
    OwnArena arena;
    ASSERT_TRUE(arena->start());
    for (int i = 0; i < 8; ++i) ASSERT_NE(arena->allocate(0), 0u);
    EXPECT_LE(arena->statistics().opened_bytes, 9 * Arena::kSlice);
  });
}

TEST(BumpArena, MemoryLockedBeforeIsOpenedAsUsed) {
  if (test::kUnderAsan || test::kUnderTsan || test::kEmulated) {
    GTEST_SKIP() << "the memory of a sanitizer or emulator cannot be locked";
  }
  if (mlockall(MCL_CURRENT) != 0) GTEST_SKIP() << "this process may not lock its memory";
  munlockall();
  test::in_child([] {
    OwnArena arena;
    ASSERT_TRUE(arena->start());
    ASSERT_NE(arena->allocate(0), 0u);
    ASSERT_EQ(mlockall(MCL_CURRENT), 0);
    const std::size_t before = arena->statistics().opened_bytes;
    for (int i = 0; i < 64; ++i) ASSERT_NE(arena->allocate(0), 0u);
    EXPECT_LE(arena->statistics().opened_bytes, before + 65 * Arena::kSlice);
  });
}

}  // namespace
}  // namespace spanalloc
