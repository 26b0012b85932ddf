// The arena over the coalescing manager: what it opens and decommits, knows to be zero, and purges.
#include <errno.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <random>
#include <thread>

#include "pages/coalescing_arena_test_support.hpp"
#include "seed_report.hpp"

namespace spanalloc {
namespace {

using Calls = FaultyCalls;

// --- Growth --------------------------------------------------------------------------------------

TEST_F(CoalescingArenaTest, OpensAheadInDoublingSteps) {
  start();
  EXPECT_EQ(arena->limit(), 1u);
  EXPECT_EQ(arena->take(1, 1).first, 0u) << "nothing is open at first";
  ASSERT_NE(tenant->take_growing(1).first, 0u);
  EXPECT_EQ(arena->limit(), 2u);
  for (int i = 0; i < 2000; ++i) ASSERT_NE(tenant->take_growing(1).first, 0u);
  EXPECT_LE(arena->limit(), 2002 + 16 * kMiB / kSlice) << "a step is at most 16 MiB";
  EXPECT_LE(Calls::count[Calls::kOpen] + 0, 30u);
  EXPECT_EQ(expect_books(*arena, *tenant).out_of_sight, 0u);
}

// Where a step ahead is refused, just what is missing beyond the free end is opened.
TEST_F(CoalescingArenaTest, OpensWhatIsMissingBeyondTheFreeTail) {
  start(kReserved);
  const std::uint32_t a = tenant->take_growing(10).first;
  ASSERT_EQ(arena->limit(), 11u);
  ASSERT_TRUE(tenant->resize(a, 4));
  Calls::refuses = [](const Calls::Call& call, std::size_t) { return call.bytes > 5 * kSlice; };
  const auto opened =
      Calls::during(Calls::kOpen, [&] { EXPECT_EQ(tenant->take_growing(11).first, 5u); });
  ASSERT_EQ(opened.size(), 2u) << "the step ahead, and what is needed";
  EXPECT_EQ(opened[1].bytes, 5 * kSlice) << "six slices at the end were free";
  EXPECT_EQ(opened[1].address, arena->base() + 11 * kSlice);
  EXPECT_EQ(arena->limit(), 16u);
  expect_books(*arena, *tenant);
}

TEST_F(CoalescingArenaTest, AlignsBeyondItsOwnAlignment) {
  for (const bool reserved : {true, false}) {
    // Their shadow is where it would be
    if (!reserved && (test::kUnderAsan || test::kUnderTsan)) continue;
    start(reserved);
    for (std::size_t alignment = 1; alignment <= 2048; alignment *= 2) {
      ASSERT_NE(tenant->take_growing(3, alignment).first, 0u) << alignment;
      ASSERT_NE(tenant->take_growing(1, alignment).first, 0u) << alignment;
    }
    expect_books(*arena, *tenant);
    tenant->give_all();
    EXPECT_EQ(arena->take(in_use(), 1).first, 1u) << "what was skipped for alignment is not lost";
    EXPECT_EQ(tenant->take_growing(1, arena->capacity()).first, 0u);
    EXPECT_EQ(arena->take_growing(1, std::size_t{1} << 63, kAnyUse).first, 0u);
  }
}

// A request is not weighed against each of many holes that are a little too small: they would all
// be looked at under the lock that every growing thread needs. So what fits behind them is found
// among few of them only. (How many are looked at, controller_test.cpp counts.)
TEST_F(CoalescingArenaTest, GrowsPastManyHolesThatAreTooSmall) {
  const auto finds_what_fits_behind = [&](std::size_t count) {
    start();
    std::vector<std::uint32_t> holes(count);
    for (std::uint32_t& hole : holes) {
      hole = arena->take_growing(12, 1, kAnyUse).first;
      EXPECT_NE(arena->take_growing(1, 1, kAnyUse).first, 0u);
    }
    const std::uint32_t large = arena->take_growing(13, 1, kAnyUse).first;
    EXPECT_NE(arena->take_growing(1, 1, kAnyUse).first, 0u);
    for (const std::uint32_t hole : holes) arena->give(hole);
    arena->give(large);
    const std::uint32_t found = arena->take_growing(13, 1, kAnyUse).first;
    EXPECT_NE(found, 0u);
    return found == large;
  };
  EXPECT_TRUE(finds_what_fits_behind(10));
  EXPECT_FALSE(finds_what_fits_behind(500));
}

// When the kernel refuses, each of them is looked at.
TEST_F(CoalescingArenaTest, LooksAtEveryHoleBeforeItReportsThatMemoryIsOut) {
  start();
  std::vector<std::uint32_t> holes(500);
  for (std::uint32_t& hole : holes) {
    hole = arena->take_growing(12, 1, kAnyUse).first;
    ASSERT_NE(arena->take_growing(1, 1, kAnyUse).first, 0u);
  }
  const std::uint32_t large = arena->take_growing(13, 1, kAnyUse).first;
  while (arena->take(1, 1).first != 0) {
  }
  for (const std::uint32_t hole : holes) arena->give(hole);
  arena->give(large);
  Calls::refuse_all(Calls::kOpen);
  EXPECT_EQ(arena->take_growing(13, 1, kAnyUse).first, large) << "behind 500 that are too small";
  EXPECT_EQ(arena->take_growing(13, 1, kAnyUse).first, 0u);
}

// What has been refused is remembered until memory comes back, by whatever way.
TEST_F(CoalescingArenaTest, WhatIsRefusedIsNotThere) {
  start();
  constexpr std::uint32_t kEnd = 129;
  const std::uint32_t everything = arena->take_growing(kEnd - 1, 1, kAnyUse).first;
  ASSERT_EQ(arena->limit(), kEnd);
  Calls::refuse_all(Calls::kOpen);
  std::map<std::uint32_t, std::uint32_t> taken{{everything, kEnd - 1}};
  const auto has_room = [&](std::uint32_t count, std::uint32_t alignment) {
    std::uint32_t begin = 1;
    const auto fits = [&](std::uint32_t end) {
      const std::size_t origin = arena->base() / kSlice;
      return align_up(origin + begin, alignment) - origin + count <= end;
    };
    for (const auto& [first, length] : taken) {
      if (fits(first)) return true;
      begin = first + length;
    }
    return fits(kEnd);
  };
  std::mt19937 random(test::seed_of(7));
  unsigned refused = 0;
  for (int i = 0; i < 40'000; ++i) {
    const std::size_t which = taken.empty() ? 0 : random() % taken.size();
    const auto some = std::next(taken.begin(), static_cast<std::ptrdiff_t>(which));
    const auto count = static_cast<std::uint32_t>(1 + random() % (i % 1000 < 500 ? 6 : 40));
    const std::uint32_t alignment = 1u << random() % 6;
    switch (taken.empty() ? 0 : random() % 8) {
      case 1:
        arena->give(some->first);
        taken.erase(some);
        break;
      case 2:
        if (some->second <= 1) break;
        arena->resize_in_place(some->first, some->second - 1);
        --some->second;
        break;
      case 3:
        if (arena->resize_in_place(some->first, count)) some->second = count;
        break;
      default: {
        const bool room = has_room(count, alignment);
        const std::uint32_t first = arena->take_growing(count, alignment, kAnyUse).first;
        ASSERT_EQ(first != 0, room) << count << " at " << alignment;
        if (room) taken.emplace(first, count);
        refused += !room;
      }
    }
  }
  EXPECT_GE(refused, 5000u);
}

// Where the range ends decommitting makes no room: nothing is decommitted for a
// request that cannot be had.
TEST_F(CoalescingArenaTest, NothingIsClosedInVainWhereTheRangeEnds) {
  start();
  std::vector<std::uint32_t> ranges;
  while (const std::uint32_t first = arena->take_growing(2, 1, kAnyUse).first)
    ranges.push_back(first);
  ASSERT_GE(ranges.size(), 8000u);
  for (std::size_t i = 0; i < ranges.size(); i += 2) arena->give(ranges[i]);
  Calls::calls = 0;
  for (std::size_t i = 1; i < 200; i += 20) {
    arena->give(ranges[i]);
    EXPECT_EQ(arena->take_growing(50, 1, kAnyUse, FaultyArena::Effort::kDecommit).first, 0u);
  }
  EXPECT_LE(Calls::calls + 0, 100u);
}

// A refusal decommits nothing if all that is free would not do; and one that follows a
// give costs no more calls.
TEST_F(CoalescingArenaTest, NothingIsClosedForWhatWouldNotDo) {
  start();
  std::vector<std::uint32_t> ranges(1000);
  for (std::uint32_t& first : ranges) first = arena->take_growing(2, 1, kAnyUse).first;
  for (std::size_t i = 0; i < ranges.size(); i += 2) arena->give(ranges[i]);
  Calls::refuses = [](const Calls::Call& call, std::size_t) {
    return call.kind == Calls::kOpen || call.kind == Calls::kWouldGrant;
  };
  Calls::calls = 0;
  for (std::size_t i = 1; i < 200; i += 20) {
    arena->give(ranges[i]);
    EXPECT_EQ(arena->take_growing(3000, 1, kAnyUse, FaultyArena::Effort::kDecommit).first, 0u);
  }
  EXPECT_EQ(Calls::count[Calls::kClose] + 0, 0u);
  EXPECT_LE(Calls::calls + 0, 100u);
}

// Decommitted ranges are opened again when the kernel lets us have them, whatever it says of
// mappings elsewhere (at the limit on their number reopening makes them fewer); and by and by,
// for a few may be enough.
TEST_F(CoalescingArenaTest, WhatIsClosedIsReallyAskedFor) {
  start(kReserved);
  std::vector<std::uint32_t> ranges(400);
  for (std::uint32_t& first : ranges) first = arena->take_growing(2, 1, kAnyUse).first;
  while (arena->take(1, 1).first != 0) {
  }
  for (std::size_t i = 0; i < ranges.size(); i += 2) arena->give(ranges[i]);
  EXPECT_EQ(arena->decommit_free(), ranges.size() / 2 * 2 * kSlice);
  Calls::refuses = [](const Calls::Call& call, std::size_t) {
    return call.kind == Calls::kOpen || call.kind == Calls::kWouldGrant;
  };
  for (int i = 0; i < 10; ++i) EXPECT_EQ(arena->take_growing(2, 1, kAnyUse).first, 0u);
  Calls::calls = 0;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(arena->take_growing(2, 1, kAnyUse).first, 0u);
  EXPECT_LE(Calls::calls + 0, 40u) << "one of them stands for all";
  // From here on the kernel opens what was decommitted, and new space once two of these are open.
  unsigned recommitted = 0;
  const std::uintptr_t end = arena->base() + arena->limit() * kSlice;
  Calls::refuses = [&](const Calls::Call& call, std::size_t) {
    if (call.kind == Calls::kOpen && call.address < end) ++recommitted;
    return call.kind == Calls::kWouldGrant ||
           (call.kind == Calls::kOpen && call.address >= end && recommitted < 2);
  };
  EXPECT_NE(arena->take_growing(100, 1, kAnyUse).first, 0u);
  EXPECT_LE(recommitted, 10u) << "not all of them";
  Calls::refuses.may([&](const Calls::Call& call, std::size_t) {
    return call.kind == Calls::kWouldGrant || (call.kind == Calls::kOpen && call.address >= end);
  });
  for (std::size_t i = 0; i < ranges.size() / 2; ++i)
    EXPECT_NE(arena->take_growing(2, 1, kAnyUse).first, 0u);
}

// A kernel that does not count in sums (heuristic overcommit) would grant what is missing,
// but not the whole: everything is decommitted once, in vain, and not again after each bit
// of memory that comes back.
TEST_F(CoalescingArenaTest, WhatWasClosedInVainIsNotClosedAgainSoon) {
  start(kReserved);
  std::vector<std::uint32_t> ranges(1000);
  for (std::uint32_t& first : ranges) first = arena->take_growing(2, 1, kAnyUse).first;
  for (std::size_t i = 0; i < ranges.size(); i += 2) arena->give(ranges[i]);
  const std::uintptr_t end = arena->base() + arena->limit() * kSlice;
  Calls::refuses = [end](const Calls::Call& call, std::size_t) {
    return call.kind == Calls::kOpen && call.address >= end;
  };
  Calls::calls = 0;
  for (std::size_t i = 1; i < 400; i += 20) {
    arena->give(ranges[i]);
    EXPECT_EQ(arena->take_growing(3000, 1, kAnyUse, FaultyArena::Effort::kDecommit).first, 0u);
  }
  // Once: the clock stands still.
  EXPECT_GE(Calls::count[Calls::kClose] + 0, 400u);
  EXPECT_LE(Calls::count[Calls::kClose] + 0, 700u);
}

// A kernel that grants so many slices in all.
struct Budget {
  std::size_t left;
  bool operator()(const FaultyCalls::Call& call, std::size_t) {
    const std::size_t slices = call.bytes / kSlice;
    if (call.kind == FaultyCalls::kClose) left += slices;
    if (call.kind == FaultyCalls::kWouldGrant) return slices > left;
    if (call.kind != FaultyCalls::kOpen || call.bytes % kSlice != 0) return false;
    if (slices > left) return true;
    left -= slices;
    return false;
  }
};

// Closing for an aligned range counts what lies in front of it; and what is free at the end stays.
TEST_F(CoalescingArenaTest, ClosingCountsWhatIsReallyNeeded) {
  start(kReserved);
  // Wherever the kernel has put the arena: the next multiple of the alignment is far behind the
  // end.
  constexpr std::size_t kAlignment = 4096;
  const std::size_t origin = arena->base() / kSlice;
  const std::size_t next = align_up(origin + 1, kAlignment) - origin;
  if (next < 1500) {
    ASSERT_NE(arena->take_growing(next, 1, kAnyUse).first, 0u);
  }
  std::vector<std::uint32_t> ranges(400);
  for (std::uint32_t& first : ranges) first = arena->take_growing(2, 1, kAnyUse).first;
  while (arena->take(1, 1).first != 0) {
  }
  for (std::size_t i = 0; i < ranges.size(); i += 2) arena->give(ranges[i]);
  auto budget = std::make_shared<Budget>(Budget{0});
  Calls::refuses = [budget](const Calls::Call& call, std::size_t n) { return (*budget)(call, n); };
  // 200 free ranges of two slices; and a few more each time.
  for (std::size_t i = 1; i < 40; i += 2) {
    arena->give(ranges[i]);
    EXPECT_EQ(arena->take_growing(1, kAlignment, kAnyUse, FaultyArena::Effort::kDecommit).first,
              0u);
  }
  EXPECT_EQ(Calls::count[Calls::kClose] + 0, 0u);
  EXPECT_NE(arena->take_growing(300, 1, kAnyUse, FaultyArena::Effort::kDecommit).first, 0u);
  EXPECT_GE(Calls::count[Calls::kClose] + 0, 100u);
}

TEST_F(CoalescingArenaTest, ClosingLeavesTheEndForWhatIsOpenedBehindIt) {
  start(kReserved);
  const std::size_t all = arena->capacity() - 1;
  ASSERT_NE(arena->take_growing(all - 170, 1, kAnyUse).first, 0u);
  Calls::refuses = [limit = arena->base() + (arena->capacity() - 60) * kSlice](
                       const Calls::Call& call, std::size_t) {
    return call.kind == Calls::kOpen && call.address + call.bytes > limit;
  };
  const std::uint32_t hole = arena->take_growing(50, 1, kAnyUse).first;
  const std::uint32_t wall = arena->take_growing(1, 1, kAnyUse).first;
  const std::uint32_t tail = arena->take_growing(59, 1, kAnyUse).first;
  ASSERT_NE(hole, 0u);
  ASSERT_EQ(tail, wall + 1);
  ASSERT_EQ(arena->limit(), arena->capacity() - 60);
  arena->give(hole);
  arena->give(tail);
  auto budget = std::make_shared<Budget>(Budget{0});
  Calls::refuses = [budget](const Calls::Call& call, std::size_t n) { return (*budget)(call, n); };
  EXPECT_EQ(arena->take_growing(100, 1, kAnyUse, FaultyArena::Effort::kDecommit).first, tail);
  EXPECT_EQ(Calls::count[Calls::kClose] + 0, 1u) << "the hole";
}

// What was denied to a large request is not denied to a smaller one.
TEST_F(CoalescingArenaTest, AClosingInVainSpeaksForItsSizeOnly) {
  start(kReserved);
  std::vector<std::uint32_t> ranges(400);
  for (std::uint32_t& first : ranges) first = arena->take_growing(2, 1, kAnyUse).first;
  while (arena->take(1, 1).first != 0) {
  }
  for (std::size_t i = 0; i < ranges.size(); i += 2) arena->give(ranges[i]);
  auto budget = std::make_shared<Budget>(Budget{0});
  Calls::refuses = [budget](const Calls::Call& call, std::size_t n) {
    return call.kind != Calls::kWouldGrant && (*budget)(call, n);
  };
  EXPECT_EQ(arena->take_growing(500, 1, kAnyUse, FaultyArena::Effort::kDecommit).first, 0u);
  EXPECT_NE(arena->take_growing(300, 1, kAnyUse, FaultyArena::Effort::kDecommit).first, 0u);
}

// In a range that is not reserved others may map where something was decommitted. That is
// not asked for each time.
TEST_F(CoalescingArenaTest, ClosedRangesThatOthersTookAreNotAskedForAgain) {
  if (test::kUnderAsan || test::kUnderTsan) GTEST_SKIP() << "their shadow is where it would be";
  start();
  std::vector<std::uint32_t> ranges(400);
  for (std::uint32_t& first : ranges) first = arena->take_growing(2, 1, kAnyUse).first;
  while (arena->take(1, 1).first != 0) {
  }
  for (std::size_t i = 0; i < ranges.size(); i += 2) arena->give(ranges[i]);
  EXPECT_EQ(arena->decommit_free(), ranges.size() * kSlice);
  for (std::size_t i = 0; i < ranges.size(); i += 2) {
    void* at = pointer_to(arena->base() + ranges[i] * kSlice);
    ASSERT_EQ(mmap(at, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
              at);
  }
  EXPECT_NE(arena->take_growing(2, 1, kAnyUse).first, 0u) << "behind the end";
  Calls::calls = 0;
  for (std::size_t i = 1; i < 40; i += 2) {
    arena->give(ranges[i]);
    EXPECT_NE(arena->take_growing(3, 1, kAnyUse).first, 0u);
  }
  EXPECT_LE(Calls::calls + 0, 400u);
  for (std::size_t i = 0; i < ranges.size(); i += 2)
    munmap(pointer_to(arena->base() + ranges[i] * kSlice), 4096);
}

TEST_F(CoalescingArenaTest, TheRangeEndsAndStaysUsable) {
  start(kReserved);
  EXPECT_EQ(arena->statistics().reserved_bytes, kGiB);
  const std::size_t all = arena->capacity() - 1;
  EXPECT_EQ(arena->take_growing(all + 1, 1, kAnyUse).first, 0u);
  EXPECT_EQ(arena->take_growing(SIZE_MAX, 1, kAnyUse).first, 0u);
  EXPECT_EQ(arena->take_growing(0, 1, kAnyUse).first, 0u);
  EXPECT_EQ(opened_slices(), 1u);
  ASSERT_NE(arena->take_growing(1000, 1, kAnyUse).first, 0u);
  EXPECT_EQ(arena->take_growing(all - 999, 1, kAnyUse).first, 0u);
  ASSERT_NE(arena->take_growing(all - 1000, 1, kAnyUse).first, 0u) << "all that is left";
  EXPECT_EQ(arena->take_growing(1, 1, kAnyUse).first, 0u);
  EXPECT_EQ(arena->limit(), arena->capacity());
  arena->give(1);
  EXPECT_EQ(arena->take_growing(1001, 1, kAnyUse).first, 0u);
  EXPECT_EQ(arena->take_growing(1000, 1, kAnyUse).first, 1u);
}

TEST_F(CoalescingArenaTest, TwoThreadsGrowAtOnce) {
  start();
  std::atomic<std::size_t> books{1};
  std::atomic<int> in_books{0};
  const auto before_use = [&](std::size_t end) {
    EXPECT_EQ(in_books.fetch_add(1), 0) << "one at a time";
    EXPECT_GT(end, books.exchange(end));
    in_books.fetch_sub(1);
    return TableReach{end, end};
  };
  std::array<std::vector<Taken>, 2> taken;
  std::vector<std::thread> threads;
  for (auto& mine : taken) {
    threads.emplace_back([&] {
      for (std::size_t i = 0; i < 1500; ++i) {
        const std::size_t count = 1 + i * 7 % 5;
        const Taken got = arena->take_growing(count, 1, before_use);
        ASSERT_NE(got.first, 0u);
        ASSERT_LE(got.first + count, books.load()) << "handed out before the books were";
        if (i % 3 == 0) {
          arena->give(got.first);
        } else {
          std::memset(tenant->address(got.first), 1, 64);
          mine.push_back(got);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<std::uint32_t> seen;
  for (const auto& mine : taken) {
    for (const Taken& got : mine) {
      EXPECT_TRUE(seen.insert(got.first).second);
      arena->give(got.first);
    }
  }
  EXPECT_EQ(books.load(), arena->limit());
  EXPECT_EQ(expect_books(*arena, *tenant).free, in_use());
  EXPECT_LE(arena->limit(), 6000 + 16 * kMiB / kSlice);
}

TEST_F(CoalescingArenaTest, WhatItsUserHasNoBooksForIsNotHandedOutNorLost) {
  start();
  ASSERT_NE(tenant->take_growing(3).first, 0u);
  const std::size_t limit = arena->limit();
  std::size_t asked = 0;
  const auto no_books = [&](std::size_t end) {
    EXPECT_GT(end, limit);
    ++asked;
    return TableReach{limit, limit};
  };
  for (int i = 0; i < 3; ++i) EXPECT_EQ(arena->take_growing(100, 1, no_books).first, 0u);
  EXPECT_EQ(asked, 3u);
  EXPECT_EQ(arena->limit(), limit);
  const auto opened =
      Calls::during(Calls::kOpen, [&] { ASSERT_NE(tenant->take_growing(100).first, 0u); });
  EXPECT_TRUE(opened.empty()) << "it was open already";
  expect_books(*arena, *tenant);
  tenant->give_all();
  EXPECT_EQ(tenant->take(in_use()).first, 1u);
}

// A mapping of another's in the way of a range that is not reserved.
TEST_F(CoalescingArenaTest, StepsOverForeignMappingsAndNeverShowsThem) {
  if (test::kUnderAsan || test::kUnderTsan)
    GTEST_SKIP() << "a sanitizer's shadow is where the arena would be";
  start();
  ASSERT_NE(tenant->take_growing(1).first, 0u);
  char* ahead = tenant->address(40);
  ASSERT_EQ(mmap(ahead, 4096, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
            ahead);
  std::memset(ahead, 0x5a, 4096);
  for (int i = 0; i < 100; ++i) ASSERT_NE(tenant->take_growing(3).first, 0u);
  EXPECT_GE(arena->statistics().lost_bytes, kSlice);
  EXPECT_LE(arena->statistics().lost_bytes, 3 * kSlice);
  const ArenaBooks books = expect_books(*arena, *tenant);
  EXPECT_EQ(books.out_of_sight * kSlice, arena->statistics().lost_bytes);
  arena->recover_in_child();  // as far as the arena knows: nobody holds anything
  EXPECT_EQ(expect_books(*arena, *tenant).out_of_sight, books.out_of_sight);
  tenant->give_all();
  arena->purge(false);
  arena->decommit_free();
  EXPECT_EQ(expect_books(*arena, *tenant).free, 0u);
  const std::size_t limit = arena->limit();
  while (arena->statistics().opened_bytes + arena->statistics().lost_bytes < limit * kSlice) {
    ASSERT_NE(tenant->take_growing(1).first, 0u);
  }
  expect_books(*arena, *tenant);
  EXPECT_EQ(ahead[100], 0x5a) << "the foreign page was not touched";
  munmap(ahead, 4096);
}

// What is lost to foreign mappings is their size and as much again at most,
// however much was asked for.
TEST_F(CoalescingArenaTest, ForeignMappingsCostALargeRangeLittle) {
  if (test::kUnderAsan || test::kUnderTsan)
    GTEST_SKIP() << "a sanitizer's shadow is where the arena would be";
  start();
  ASSERT_NE(arena->take_growing(1, 1, kAnyUse).first, 0u);
  const auto map_foreign = [&](std::uint32_t first, std::size_t bytes) {
    void* p = mmap(tenant->address(first), bytes, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    EXPECT_EQ(p, tenant->address(first));
    return p;
  };
  void* page = map_foreign(100, 4096);
  void* several = map_foreign(3000, 500 * kSlice);
  constexpr std::size_t kCount = 12000;  // of 16,383
  const Calls::Kind kind = Calls::kReserveAt;
  std::vector<Calls::Call> opened;
  std::uint32_t first = 0;
  opened = Calls::during(kind, [&] { first = arena->take_growing(kCount, 1, kAnyUse).first; });
  EXPECT_GE(first, 3500u);
  EXPECT_LE(opened.size(), 400u) << "calls of the kernel";
  EXPECT_GE(arena->statistics().lost_bytes, 501 * kSlice);
  EXPECT_LE(arena->statistics().lost_bytes, 504 * kSlice) << "what they cover, and guards";
  EXPECT_EQ(arena->take_growing(90, 1, kAnyUse).first, 2u) << "what lies before them is ours";
  EXPECT_EQ(arena->take_growing(2898, 1, kAnyUse).first, 101u) << "but for a guard before the next";
  munmap(page, 4096);
  munmap(several, 500 * kSlice);
}

// --- Closing -------------------------------------------------------------------------------------

TEST_F(CoalescingArenaTest, ClosedRangesAreOpenedAgainBeforeNewSpace) {
  for (const bool reserved : {true, false}) {
    if (!reserved && (test::kUnderAsan || test::kUnderTsan)) continue;
    start(reserved);
    const std::uint32_t a = tenant->take_growing(20).first;
    const std::uint32_t b = tenant->take_growing(5).first;
    const std::uint32_t c = tenant->take_growing(30).first;
    const std::uint32_t d = tenant->take_growing(1).first;
    ASSERT_NE(a * b * c * d, 0u);
    tenant->give(a);
    tenant->give(c);
    const std::size_t limit = arena->limit();
    const std::size_t free = expect_books(*arena, *tenant).free;
    EXPECT_EQ(arena->decommit_free(), free * kSlice);
    EXPECT_EQ(arena->decommit_free(), 0u);
    EXPECT_EQ(opened_slices(), 1 + tenant->taken());
    ArenaBooks books = expect_books(*arena, *tenant);
    EXPECT_EQ(books.free, 0u);
    EXPECT_EQ(books.out_of_sight, free);
    EXPECT_EQ(tenant->take(1).first, 0u);

    const Taken again = tenant->take_growing(25);
    EXPECT_EQ(again.first, c + 5) << "the end of the one that is large enough";
    EXPECT_TRUE(again.zero);
    EXPECT_EQ(arena->limit(), limit);
    books = expect_books(*arena, *tenant);
    EXPECT_EQ(books.free, 0u) << "no more was opened than that";
    EXPECT_EQ(tenant->take_growing(20).first, a);
    EXPECT_EQ(arena->limit(), limit);
    tenant->give_all();
    // Neighbours that were decommitted one after the other are opened together.
    ASSERT_EQ(tenant->take_growing(10).first != 0, true);
    arena->decommit_free();
    tenant->give_all();
    arena->decommit_free();
    EXPECT_EQ(expect_books(*arena, *tenant).free, 0u);
    ASSERT_NE(tenant->take_growing(limit - 1).first, 0u);
    EXPECT_EQ(arena->limit(), limit);
    tenant->give_all();
  }
}

TEST_F(CoalescingArenaTest, WhatTheKernelWillNotCloseStaysFree) {
  start(kReserved);
  const std::uint32_t a = tenant->take_growing(4).first;
  ASSERT_NE(tenant->take_growing(1).first, 0u);
  const std::uint32_t c = tenant->take_growing(6).first;
  ASSERT_NE(tenant->take_growing(1).first, 0u);
  ASSERT_EQ(arena->take_growing(1, 1, kAnyUse).first != 0, true);
  tenant->give(a);
  tenant->give(c);
  Calls::refuse_all(Calls::kClose);
  EXPECT_EQ(arena->decommit_free(), 0u);
  Calls::refuses = [&](const Calls::Call& call, std::size_t) {
    return call.kind == Calls::kClose && call.bytes == 4 * kSlice;
  };
  EXPECT_GE(arena->decommit_free(), 6 * kSlice);
  EXPECT_EQ(tenant->take(4).first, a);
  EXPECT_EQ(tenant->take(6).first, 0u);
  Calls::refuse_all(Calls::kOpen);
  EXPECT_EQ(tenant->take_growing(6).first, 0u) << "it cannot be opened again, nor anything else";
  Calls::refuses = nullptr;
  EXPECT_EQ(tenant->take_growing(6).first, c);
}

// A range that is not reserved is unmapped, which the kernel refuses where it may
// not cut a mapping in two.
TEST_F(CoalescingArenaTest, WhatTheKernelWillNotUnmapStaysFree) {
  if (test::kUnderAsan || test::kUnderTsan)
    GTEST_SKIP() << "a sanitizer's shadow is where the arena would be";
  start();
  const std::uint32_t a = tenant->take_growing(4).first;
  ASSERT_NE(tenant->take_growing(1).first, 0u);
  tenant->give(a);
  Calls::refuse_all(Calls::kRelease);
  EXPECT_EQ(arena->decommit_free(), 0u);
  EXPECT_EQ(tenant->take(4).first, a) << "still open";
  tenant->give(a);
  Calls::refuses = nullptr;
  EXPECT_GE(arena->decommit_free(), 4 * kSlice);
  EXPECT_EQ(tenant->take(4).first, 0u);
  EXPECT_EQ(tenant->take_growing(4).first, a);
  expect_books(*arena, *tenant);
}

// --- What is known to be zero --------------------------------------------------------------------

TEST_F(CoalescingArenaTest, KnowsWhatIsZero) {
  start();
  const std::uint32_t a = tenant->take_growing(8).first;
  const std::uint32_t wall = tenant->take_growing(1).first;
  ASSERT_EQ(wall, a + 8);
  const auto taken_again = [&] {
    const Taken got = tenant->take(8, 1, FaultyArena::Reuse::kDirtyFirst);
    EXPECT_EQ(got.first, a);
    return got.zero;
  };
  tenant->give(a);
  EXPECT_FALSE(taken_again());
  tenant->give_zero(a);
  EXPECT_TRUE(taken_again());
  tenant->give(a);
  EXPECT_EQ(arena->purge(false), 8u);
  EXPECT_TRUE(taken_again());
  tenant->give(a);
  Calls::refuse_all(Calls::kPurge);
  EXPECT_EQ(arena->purge(false), 0u);
  Calls::refuses = nullptr;
  EXPECT_FALSE(taken_again()) << "the purge was refused";
  tenant->give(a);
  EXPECT_GE(arena->decommit_free(), 8 * kSlice);
  const Taken recommitted = tenant->take_growing(8);
  EXPECT_EQ(recommitted.first, a);
  EXPECT_TRUE(recommitted.zero);

  // One dirty slice in the middle.
  ASSERT_TRUE(tenant->resize(a, 3));
  const std::uint32_t middle = tenant->take(1).first;
  ASSERT_EQ(middle, a + 3);
  const std::uint32_t end = tenant->take(4).first;
  ASSERT_EQ(end, a + 4);
  tenant->give_zero(a);
  tenant->give(middle);
  tenant->give_zero(end);
  const Taken dirty = tenant->take(1);
  EXPECT_EQ(dirty.first, middle);
  EXPECT_FALSE(dirty.zero);
  const Taken front = tenant->take(3);
  EXPECT_EQ(front.first, a);
  EXPECT_TRUE(front.zero);
  const Taken rest = tenant->take(4);
  EXPECT_EQ(rest.first, end);
  EXPECT_TRUE(rest.zero);
}

TEST_F(CoalescingArenaTest, WhatMovesOutLeavesZerosBehind) {
  start();
  const std::uint32_t a = tenant->take_growing(8).first;
  const std::uint32_t wall = tenant->take_growing(1).first;
  const std::uint32_t b = tenant->take_growing(10).first;
  ASSERT_NE(a * b * wall, 0u);
  ASSERT_TRUE(tenant->move_out(a));
  expect_books(*arena, *tenant);
  const Taken left = tenant->take(8, 1, FaultyArena::Reuse::kCleanFirst);
  EXPECT_EQ(left.first, a);
  EXPECT_TRUE(left.zero);
  tenant->give_all();
  const Taken all = tenant->take(19);
  EXPECT_EQ(all.first, a);
  EXPECT_FALSE(all.zero);
}

// --- Decay ---------------------------------------------------------------------------------------

TEST_F(CoalescingArenaTest, PurgesExactlyWhatStayedFreeSinceTheLastTick) {
  start();
  std::vector<std::uint32_t> rooms;
  for (int i = 0; i < 6; ++i) {
    rooms.push_back(tenant->take_growing(8).first);
    ASSERT_NE(tenant->take_growing(1).first, 0u);
  }
  const auto purged = [&](bool only_aged) {
    std::set<std::pair<std::size_t, std::size_t>> runs;
    std::size_t slices = 0;
    std::size_t told = 0;
    for (const auto& call : Calls::during(Calls::kPurge, [&] { told = arena->purge(only_aged); })) {
      runs.emplace((call.address - arena->base()) / kSlice, call.bytes / kSlice);
      slices += call.bytes / kSlice;
    }
    EXPECT_EQ(slices, told);
    return runs;
  };
  using Runs = std::set<std::pair<std::size_t, std::size_t>>;
  tenant->give(rooms[0]);
  tenant->give(rooms[1]);
  EXPECT_EQ(purged(true), Runs{}) << "no tick yet";
  arena->age();
  tenant->give(rooms[2]);
  ASSERT_EQ(tenant->take(8).first, rooms[0]);
  tenant->give(rooms[0]);  // young again
  ASSERT_EQ(tenant->take(3).first, rooms[0]);
  tenant->give(rooms[0]);
  EXPECT_EQ(purged(true), (Runs{{rooms[1], 8}}));
  EXPECT_EQ(purged(true), Runs{}) << "once";
  arena->age();
  ASSERT_EQ(tenant->take(3).first, rooms[0]);
  EXPECT_EQ(purged(true), (Runs{{rooms[0] + 3, 5}, {rooms[2], 8}}));
  tenant->give(rooms[0]);
  EXPECT_EQ(purged(true), Runs{});
  tenant->give(rooms[3]);
  EXPECT_EQ(purged(false), (Runs{{rooms[0], 3}, {rooms[3], 8}})) << "on demand everything goes";
  expect_books(*arena, *tenant);
}

TEST_F(CoalescingArenaTest, APurgeStopsAtItsBound) {
  start();
  std::vector<std::uint32_t> rooms;
  for (int i = 0; i < 10; ++i) {
    rooms.push_back(tenant->take_growing(4).first);
    ASSERT_NE(tenant->take_growing(1).first, 0u);
  }
  for (const std::uint32_t room : rooms) tenant->give(room);
  EXPECT_EQ(arena->purge(false, 6), 6u);
  EXPECT_EQ(arena->purge(false, 1), 1u);
  EXPECT_EQ(arena->purge(false, 0), 0u);
  EXPECT_EQ(arena->purge(false), 33u);
  EXPECT_EQ(arena->purge(false), 0u);
}

// 16 slices are 1 MiB.
TEST_F(CoalescingArenaTest, FreeRangesOfAMegabyteAreMappedAnew) {
  start();
  const std::uint32_t small = tenant->take_growing(15).first;
  ASSERT_NE(tenant->take_growing(1).first, 0u);
  const std::uint32_t large = tenant->take_growing(70).first;
  ASSERT_NE(tenant->take_growing(1).first, 0u);
  tenant->give(small);
  EXPECT_EQ(arena->purge(false), 15u);
  EXPECT_EQ(Calls::renewals, 0u);
  tenant->give(large);
  EXPECT_EQ(arena->purge(false, 10), 10u);
  EXPECT_EQ(Calls::renewals, 0u);
  EXPECT_EQ(arena->purge(false, 16), 16u);
  EXPECT_EQ(Calls::renewals, 1u);
  EXPECT_EQ(arena->purge(false), 44u);
  EXPECT_EQ(Calls::renewals, 2u);
  expect_books(*arena, *tenant);
  // By its owner, who is about to give it.
  const std::uint32_t again = tenant->take(70).first;
  ASSERT_EQ(again, large);
  EXPECT_TRUE(arena->purge_taken(large, 70));
  EXPECT_EQ(Calls::renewals, 2u) << "it is in use";
  EXPECT_TRUE(arena->purge_unused(large, 70));
  EXPECT_EQ(Calls::renewals, 3u);
  tenant->forget(large);
  arena->give(large, true);
  expect_books(*arena, *tenant);
}

TEST_F(CoalescingArenaTest, WhatIsPurgedIsOneMappingWithItsNeighbours) {
  if (test::kUnderTsan || test::kEmulated) GTEST_SKIP() << "mappings are the kernel's own";
  os::start();
  if (!os::may_renew()) GTEST_SKIP() << "nothing is mapped anew here";
  start();
  ASSERT_NE(tenant->take_growing(1).first, 0u);
  const std::uint32_t a = tenant->take_growing(64).first;
  ASSERT_NE(tenant->take_growing(1).first, 0u);
  char* const p = tenant->address(a);
  const auto is_one = [&] {  // mremap refuses more than one mapping; there is no room for more
    errno = 0;
    return mremap(p - kSlice / 2, 64 * kSlice, 65 * kSlice, 0) == MAP_FAILED && errno == ENOMEM;
  };
  EXPECT_TRUE(is_one());
  ASSERT_EQ(madvise(p + kSlice, 30 * kSlice, MADV_DONTFORK), 0);
  ASSERT_EQ(madvise(p + 40 * kSlice, 3 * kSlice, MADV_DONTDUMP), 0);
  EXPECT_FALSE(is_one());
  tenant->give(a);
  EXPECT_EQ(arena->purge(false), 64u);
  EXPECT_TRUE(is_one());
}

}  // namespace
}  // namespace spanalloc
