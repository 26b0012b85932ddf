// The arena over the coalescing manager: moved pages, and what is left when the kernel refuses anything.
#include <sys/mman.h>
#include <sys/resource.h>

#include "child.hpp"
#include "pages/coalescing_arena_test_support.hpp"

namespace spanalloc {
namespace {

using Calls = FaultyCalls;

// --- Moving ------------------------------------------------------------------------------------------------

TEST_F(CoalescingArenaTest, MovedRangesAreReplacedWhenTheyArePurged) {
  if (test::kEmulated) GTEST_SKIP() << "the emulator moves no pages";
  start();
  const std::uint32_t a = tenant->take_growing(4).first;
  ASSERT_NE(tenant->take_growing(1).first, 0u);
  const std::uint32_t b = tenant->take_growing(6).first;
  ASSERT_NE(tenant->take_growing(1).first, 0u);
  ASSERT_TRUE(tenant->move(a, b));
  tenant->give(b);
  Calls::refuse_all(Calls::kReplace);
  EXPECT_EQ(Calls::during(Calls::kPurge, [&] { EXPECT_EQ(arena->purge(false), 6u); }).size(), 1u)
      << "a refusal is not the end: the pages can still go";
  ASSERT_EQ(tenant->take(6, 1, FaultyArena::Reuse::kCleanFirst).first, b);
  tenant->give(b);
  Calls::refuses = nullptr;
  const auto replaced = Calls::during(Calls::kReplace, [&] { EXPECT_EQ(arena->purge(false), 6u); });
  ASSERT_EQ(replaced.size(), 1u);
  EXPECT_EQ(replaced[0].address, arena->base() + b * kGranule);
  EXPECT_EQ(replaced[0].bytes, 6 * kGranule);
  ASSERT_EQ(tenant->take(6, 1, FaultyArena::Reuse::kCleanFirst).first, b);
  tenant->give(b);
  EXPECT_EQ(Calls::during(Calls::kReplace, [&] { EXPECT_EQ(arena->purge(false), 6u); }).size(), 0u);
  expect_books(*arena, *tenant);
}

// The kernel counts moved pages as mappings of their own, and has room for 65,530.
TEST_F(CoalescingArenaTest, MovesAreBoundedByThePiecesThatTheyLeave) {
  set_bits("31");
  start();
  Calls::pretend_to_move = true;
  const std::uint32_t from = arena->take_growing(1, 1, kAnyUse).first;
  ASSERT_NE(from, 0u);
  for (int round = 0; round < 4; ++round) {
    std::vector<std::uint32_t> targets;
    std::vector<std::uint32_t> walls;
    for (bool moved = true; moved && targets.size() < 10000;) {
      const std::uint32_t to = arena->take_growing(1, 1, kAnyUse).first;
      walls.push_back(arena->take_growing(1, 1, kAnyUse).first);
      ASSERT_NE(to, 0u);
      const std::size_t calls = Calls::count[Calls::kMove];
      moved = arena->move(from, to, 1);
      if (moved) {
        targets.push_back(to);
      } else {
        EXPECT_EQ(Calls::count[Calls::kMove], calls) << "the kernel is not asked";
        EXPECT_EQ(arena->count_of(to), 0u) << "the target is given back";
      }
    }
    EXPECT_GE(targets.size(), 8000u) << "round " << round;
    EXPECT_LE(targets.size(), 8200u);
    // Whether they are purged one by one, all at once, in two parts, or closed: the pieces are gone.
    for (const std::uint32_t to : targets) arena->give(to);
    std::size_t purged = round == 0 ? arena->purge(false) : 0;
    for (const std::uint32_t wall : walls) arena->give(wall);
    if (round == 2) purged += arena->purge(false, 5000);
    if (round != 3) purged += arena->purge(false);
    EXPECT_EQ(purged != 0, round != 3);
    EXPECT_GE(arena->close_free(), 2 * targets.size() * kGranule);
  }
}

// However often pages go to and fro, two ranges are two pieces.
TEST_F(CoalescingArenaTest, MovesBetweenTheSamePlacesNeverEnd) {
  start();
  Calls::pretend_to_move = true;
  std::uint32_t from = arena->take_growing(4, 1, kAnyUse).first;
  ASSERT_NE(from, 0u);
  for (int i = 0; i < 40000; ++i) {
    const std::uint32_t to = arena->take_growing(4, 1, kAnyUse).first;
    ASSERT_NE(to, 0u);
    ASSERT_TRUE(arena->move(from, to, 4)) << "move " << i;
    arena->give(from, true);
    from = to;
  }
}

TEST_F(CoalescingArenaTest, WhatCannotBeMovedStaysWhereItWas) {
  start();
  const std::uint32_t a = tenant->take_growing(4).first;
  const std::uint32_t b = tenant->take_growing(6).first;
  Calls::refuse_all(Calls::kMove);
  EXPECT_FALSE(tenant->move(a, b));
  EXPECT_EQ(arena->statistics().lost_bytes, 0u);
  expect_books(*arena, *tenant);
  EXPECT_EQ(tenant->take(6).first, b) << "the target is free again";
}

TEST_F(CoalescingArenaTest, ATargetThatIsLostIsNeverSeenAgain) {
  start();
  const std::uint32_t a = tenant->take_growing(4).first;
  const std::uint32_t b = tenant->take_growing(6).first;
  const std::uint32_t c = tenant->take_growing(6).first;
  ASSERT_NE(a * b * c, 0u);
  Calls::refuse_all(Calls::kMove);
  Calls::when_not_moved = os::Moved::kTargetLost;
  EXPECT_FALSE(tenant->move(a, b));
  EXPECT_EQ(arena->statistics().lost_bytes, 6 * kGranule);
  EXPECT_EQ(expect_books(*arena, *tenant, 6).out_of_sight, 6u);
  // It is somebody else's now.
  ASSERT_EQ(mprotect(tenant->address(b), 6 * kGranule, PROT_NONE), 0);
  Calls::refuses = nullptr;
  EXPECT_FALSE(tenant->move(a, c)) << "not again";
  EXPECT_EQ(Calls::count[Calls::kMove], 1u);
  tenant->give_all();
  arena->purge(false);
  arena->close_free();
  arena->recover_in_child();
  while (tenant->take_growing(1).first < 40) {
  }
  EXPECT_EQ(expect_books(*arena, *tenant, 6).out_of_sight, 6u);
}

// --- Any one call refused ----------------------------------------------------------------------------------

// A bit of everything. What is refused is asked for again at once.
void scenario(FaultyArena& arena, ArenaTenant& tenant) {
  const auto take = [&](std::size_t count, std::size_t alignment = 1) {
    Taken got = tenant.take_growing(count, alignment);
    if (got.first == 0) got = tenant.take_growing(count, alignment);
    ASSERT_NE(got.first, 0u) << "refused once is not refused for ever";
  };
  const auto largest = [&] {
    std::uint32_t found = 0;
    for (const auto& [first, range] : tenant.live()) {
      if (found == 0 || range.count > tenant.live().at(found).count) found = first;
    }
    return found;
  };
  for (const std::size_t count : {1u, 5u, 2u, 9u, 3u}) take(count);
  take(2, 32);
  tenant.give(tenant.live().begin()->first);
  tenant.give(largest());
  arena.purge(false);
  take(4);
  arena.age();
  tenant.give(std::next(tenant.live().begin())->first);
  arena.purge(true);
  arena.close_free();
  take(3);
  take(20);
  tenant.give(largest());
  arena.close_free();
  arena.close_free();
  take(6, 16);
  const std::uint32_t from = largest();
  const std::size_t count = tenant.live().at(from).count;
  const Taken to = tenant.take_growing(count + 2);
  if (to.first != 0) tenant.move(from, to.first);
  tenant.resize(tenant.live().begin()->first, 12);
  tenant.resize(tenant.live().begin()->first, 2);
  if (to.first != 0 && tenant.live().contains(to.first)) tenant.give(to.first);
  arena.purge(false);
  take(40);
  tenant.give(largest());
}

class CoalescingArenaRefusals : public CoalescingArenaTest {
 protected:
  // The scenario with call k refused.
  void refuse_one(bool reserved, std::size_t k, os::Moved moved) {
    start(reserved);
    Calls::when_not_moved = moved;
    bool lost = false;
    Calls::refuses = [&](const Calls::Call& call, std::size_t number) {
      if (number != k) return false;
      lost = call.kind == Calls::kMove && moved == os::Moved::kTargetLost;
      return true;
    };
    scenario(*arena, *tenant);
    Calls::refuses = nullptr;
    const std::size_t lost_granules = arena->statistics().lost_bytes / kGranule;
    EXPECT_EQ(lost_granules != 0, lost);
    expect_books(*arena, *tenant, lost_granules);
    tenant->give_all();
    expect_books(*arena, *tenant, lost_granules);
    if (!lost) expect_all_can_be_had();
    Calls::release_all();
  }
  // And for nothing new space must be opened.
  void expect_all_can_be_had() {
    const std::size_t limit = arena->limit();
    for (std::size_t n = 1; n < limit; ++n) ASSERT_NE(arena->take_growing(1, 1, kAnyUse).first, 0u);
    EXPECT_EQ(arena->limit(), limit);
  }
};

TEST_F(CoalescingArenaRefusals, AnyCallOfTheKernelMayBeRefused) {
  for (const bool reserved : {true, false}) {
    if (!reserved && (test::kUnderAsan || test::kUnderTsan)) continue;
    start(reserved);
    Calls::recording = true;
    scenario(*arena, *tenant);
    const std::vector<Calls::Call> calls = Calls::record;
    for (const Calls::Kind kind : {Calls::kPurge, Calls::kMove, Calls::kReplace}) {
      EXPECT_TRUE(Calls::count[kind] > 0 || test::kEmulated) << kind;
    }
    EXPECT_GT(Calls::count[reserved ? Calls::kOpen : Calls::kReserveAt], 4u);
    EXPECT_EQ(Calls::count[Calls::kClose] > 0, reserved);
    EXPECT_EQ(Calls::count[Calls::kRelease] > 0, !reserved);
    Calls::release_all();
    for (std::size_t k = 0; k < calls.size() && !HasFailure(); ++k) {
      SCOPED_TRACE((reserved ? "reserved, call " : "unreserved, call ") + std::to_string(k));
      refuse_one(reserved, k, os::Moved::kNo);
      if (calls[k].kind == Calls::kMove) refuse_one(reserved, k, os::Moved::kTargetLost);
    }
  }
}

TEST_F(CoalescingArenaTest, AStartThatWasRefusedCanBeMadeAgain) {
  for (std::size_t k = 0; k < 80; ++k) {
    SCOPED_TRACE(k);
    arena = std::make_unique<FaultyArena>();
    tenant = std::make_unique<ArenaTenant>(*arena);
    Calls::reset();
    Calls::refuses = [k](const Calls::Call& call, std::size_t number) {
      return number >= k && (call.kind != Calls::kReserve || call.bytes != kGiB);
    };
    const bool started = arena->start(kGranule);
    if (!started) {
      EXPECT_EQ(arena->take_growing(1, 1, kAnyUse).first, 0u);
    }
    Calls::refuses = nullptr;
    ASSERT_TRUE(arena->start(kGranule));
    ASSERT_NE(tenant->take_growing(100).first, 0u);
    expect_books(*arena, *tenant);
    Calls::release_all();
    if (started) return;
    EXPECT_LT(k, 79u) << "a start takes fewer calls";
  }
}

TEST_F(CoalescingArenaTest, AStartThatFindsNoPlaceFails) {
  if (test::kUnderAsan || test::kUnderTsan)
    GTEST_SKIP() << "a sanitizer's shadow is where the arena would be";
  arena = std::make_unique<FaultyArena>();
  tenant = std::make_unique<ArenaTenant>(*arena);
  Calls::refuses = [](const Calls::Call& call, std::size_t) {
    return call.kind == Calls::kReserve || call.kind == Calls::kReserveAt;
  };
  EXPECT_FALSE(arena->start(kGranule));
  EXPECT_EQ(arena->base(), 0u);
  Calls::refuse_all(Calls::kReserve);
  ASSERT_TRUE(arena->start(kGranule));
  ASSERT_NE(tenant->take_growing(10).first, 0u);
  expect_books(*arena, *tenant);
}

// Opening what is reserved is never refused for its size: the kernel is asked what a mapping would be told.
TEST_F(CoalescingArenaTest, HugeRangesAreAskedForFirst) {
  set_bits("33");
  start();
  Calls::refuse_all(Calls::kWouldGrant);
  EXPECT_EQ(arena->take_growing(2 * kGiB / kGranule, 1, kAnyUse).first, 0u);
  EXPECT_EQ(arena->limit(), 1u);
  EXPECT_EQ(opened_granules(), 1u);
  EXPECT_EQ(Calls::count[Calls::kOpen] + 0, 0u);
  ASSERT_NE(tenant->take_growing(10).first, 0u) << "small ones are not";
  Calls::refuses = nullptr;
  EXPECT_NE(arena->take_growing(2 * kGiB / kGranule, 1, kAnyUse).first, 0u);
}

// --- Limits and locks: in a process of its own -------------------------------------------------------------

TEST_F(CoalescingArenaTest, UnderAnAddressLimitNothingIsReservedAndClosedMemoryCountsNot) {
  if (test::kUnderAsan || test::kUnderTsan) GTEST_SKIP() << "a sanitizer needs its address space";
  if (test::kEmulated) GTEST_SKIP() << test::kNoLimits;
  test::in_child([this] {
    const rlimit large{std::size_t{1} << 60, std::size_t{1} << 60};
    ASSERT_EQ(setrlimit(RLIMIT_AS, &large), 0);
    const std::size_t used = large.rlim_cur - os::address_space_left();
    const rlimit limit{used + 256 * kMiB, large.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    set_bits("45");
    start();
    std::size_t bytes = 0;
    std::vector<std::uint32_t> taken;
    for (;;) {
      const std::uint32_t first = arena->take_growing(16, 1, kAnyUse).first;
      if (first == 0) break;
      *tenant->address(first) = 1;
      taken.push_back(first);
      bytes += 16 * kGranule;
    }
    EXPECT_GE(bytes, 200 * kMiB) << "nearly all of the limit is usable";
    EXPECT_LE(arena->statistics().reserved_bytes, arena->statistics().opened_bytes);
    EXPECT_EQ(arena->statistics().lost_bytes, 0u);
    const std::size_t at_end = arena->limit();
    for (int i = 0; i < 100; ++i) EXPECT_EQ(arena->take_growing(64, 1, kAnyUse).first, 0u);
    EXPECT_EQ(arena->limit(), at_end) << "a refusal loses nothing";
    for (std::size_t i = 0; i < taken.size(); i += 2) arena->give(taken[i]);
    EXPECT_TRUE(arena->is_tight());
    EXPECT_LE(arena->statistics().opened_bytes, (taken.size() + 2) / 2 * 16 * kGranule * 5 / 4);
    EXPECT_NE(arena->take_growing(64, 1, kAnyUse).first, 0u) << "what came back is no longer charged";
    arena->close_free();
    void* other = os::map(64 * kMiB, os::page_size());
    EXPECT_NE(other, nullptr) << "and others can have it";
  });
}

void expect_opened_as_used(FaultyArena& arena, ArenaTenant& tenant) {
  const std::size_t before = arena.statistics().opened_bytes;
  for (int i = 0; i < 8; ++i) ASSERT_NE(tenant.take_growing(3).first, 0u);
  EXPECT_LE(arena.statistics().opened_bytes, before + 24 * kGranule);
  const std::uint32_t first = tenant.live().begin()->first;
  const std::uint32_t last = tenant.live().rbegin()->first;
  EXPECT_FALSE(tenant.move(first, last)) << "locked memory stays where it is";
  expect_books(arena, tenant);
}

TEST_F(CoalescingArenaTest, LockedMemoryIsOpenedAsUsed) {
  if (test::kUnderAsan || test::kUnderTsan || test::kEmulated) {
    GTEST_SKIP() << "the memory of a sanitizer or emulator cannot be locked";
  }
  if (mlockall(MCL_FUTURE) != 0) GTEST_SKIP() << "this process may not lock its memory";
  munlockall();
  test::in_child([this] {
    ASSERT_EQ(mlockall(MCL_FUTURE), 0);
    start();
    expect_opened_as_used(*arena, *tenant);
  });
}

TEST_F(CoalescingArenaTest, MemoryLockedBeforeIsOpenedAsUsed) {
  if (test::kUnderAsan || test::kUnderTsan || test::kEmulated) {
    GTEST_SKIP() << "the memory of a sanitizer or emulator cannot be locked";
  }
  if (mlockall(MCL_CURRENT) != 0) GTEST_SKIP() << "this process may not lock its memory";
  munlockall();
  test::in_child([this] {
    start();
    ASSERT_NE(tenant->take_growing(1).first, 0u);
    ASSERT_EQ(mlockall(MCL_CURRENT), 0);
    expect_opened_as_used(*arena, *tenant);
  });
}

}  // namespace
}  // namespace spanalloc
