// The arena over the coalescing manager: pages that move out, and what is left when the
// kernel refuses anything.
#include <sys/mman.h>
#include <sys/resource.h>

#include <future>
#include <thread>
#include <utility>

#include "address_limit.hpp"
#include "child.hpp"
#include "pages/coalescing_arena_test_support.hpp"

namespace spanalloc {
namespace {

using Calls = FaultyCalls;

// --- Moving --------------------------------------------------------------------------------------

TEST_F(CoalescingArenaTest, WhatIsMovedOutLeavesAFreeRangeOfZeros) {
  start();
  const std::uint32_t before = tenant->take_growing(3).first;
  const std::uint32_t a = tenant->take_growing(4).first;
  ASSERT_NE(tenant->take_growing(1).first, 0u);
  const std::size_t limit = arena->limit();
  ASSERT_TRUE(tenant->move_out(a));
  EXPECT_EQ(arena->statistics().lost_bytes, 0u);
  expect_books(*arena, *tenant);
  EXPECT_EQ(arena->dirty_slices(a, 4), 0u);
  tenant->give(before);
  EXPECT_EQ(tenant->take(7).first, before) << "it is one range with its neighbour";
  EXPECT_EQ(arena->limit(), limit);
  EXPECT_EQ(Calls::count[Calls::kRemap], 1u);
  expect_books(*arena, *tenant);
}

TEST_F(CoalescingArenaTest, WhatCannotBeMovedOutStaysWhereItWas) {
  start();
  const std::uint32_t a = tenant->take_growing(4).first;
  Calls::refuse_all(Calls::kRemap);
  EXPECT_FALSE(tenant->move_out(a));
  EXPECT_EQ(arena->statistics().lost_bytes, 0u);
  expect_books(*arena, *tenant);
  Calls::refuses = nullptr;
  // The kernel refuses more than one mapping.
  ASSERT_EQ(mprotect(tenant->address(a) + kSlice, kSlice, PROT_READ), 0);
  EXPECT_FALSE(tenant->move_out(a));
  ASSERT_EQ(mprotect(tenant->address(a) + kSlice, kSlice, PROT_READ | PROT_WRITE), 0);
  expect_books(*arena, *tenant);
  EXPECT_TRUE(tenant->move_out(a));
}

// Nothing is mapped behind it, where it would grow, and what is in the arena must stay one.
TEST_F(CoalescingArenaTest, WhatIsClosedIsNoRoomToGrowInto) {
  start();
  const std::uint32_t a = tenant->take_growing(4).first;
  const std::uint32_t behind = tenant->take_growing(20).first;
  ASSERT_EQ(behind, a + 4);
  ASSERT_NE(tenant->take_growing(1).first, 0u);
  tenant->give(behind);
  ASSERT_GE(arena->decommit_free(), 20 * kSlice);
  EXPECT_FALSE(tenant->move_out(a));
  EXPECT_EQ(Calls::count[Calls::kRemap], 0u);
  while (tenant->take(1).first != 0) {
  }
  EXPECT_EQ(tenant->take_growing(20).first, behind);
  expect_books(*arena, *tenant);
  EXPECT_TRUE(tenant->move_out(a));
}

TEST_F(CoalescingArenaTest, WhatHasGrownWhereItStandsGoesBack) {
  start();
  if (arena->statistics().reserved_bytes >= kGiB) GTEST_SKIP() << "nothing is unmapped there";
  const std::uint32_t a = tenant->take_growing(4).first;
  while (arena->limit() != a + 4 && tenant->take(1).first != 0) {
  }
  const std::uint32_t last = tenant->live().rbegin()->first;
  char* end = tenant->address(static_cast<std::uint32_t>(arena->limit()));
  ASSERT_TRUE(os::release(end, os::page_size())) << "the guard";
  const std::size_t limit = arena->limit();
  EXPECT_FALSE(tenant->move_out(last));
  EXPECT_EQ(Calls::count[Calls::kRemap], 1u);
  EXPECT_EQ(arena->statistics().lost_bytes, 0u);
  EXPECT_EQ(arena->limit(), limit);
  EXPECT_EQ(os::reserve_at(end, kMiB), os::Placed::kYes) << "nothing is left there";
  os::release(end, kMiB);
  expect_books(*arena, *tenant);
}

// Another thread's mapping may be given the place, or a part of it, in between.
TEST_F(CoalescingArenaTest, APlaceThatSomebodyElseIsGivenIsNeverSeenAgain) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer ends a process that maps where it has put nothing";
  for (const bool whole : {true, false}) {
    start();
    const std::uint32_t before = tenant->take_growing(3).first;
    const std::uint32_t a = tenant->take_growing(6).first;
    const std::uint32_t behind = tenant->take_growing(3).first;
    ASSERT_NE(tenant->take_growing(1).first, 0u);
    char* theirs = nullptr;
    const std::size_t bytes = (whole ? 6 : 1) * kSlice;
    Calls::in_the_hole = [&](void* place, std::size_t) {
      theirs = static_cast<char*>(place) + (whole ? 0 : 2 * kSlice);
      ASSERT_EQ(os::open_at(theirs, bytes), os::Placed::kYes);
      std::memset(theirs, 7, bytes);
    };
    ASSERT_TRUE(tenant->move_out(a, true));
    Calls::in_the_hole = nullptr;
    EXPECT_EQ(arena->statistics().lost_bytes, 6 * kSlice);
    EXPECT_EQ(expect_books(*arena, *tenant, 6).out_of_sight, 6u);
    tenant->give(before);
    tenant->give(behind);
    arena->purge(false);
    EXPECT_EQ(expect_books(*arena, *tenant, 6).out_of_sight, 6u)
        << "neighbours do not merge across it";
    arena->decommit_free();
    arena->recover_in_child();
    while (tenant->take_growing(1).first < 60) {
    }
    EXPECT_EQ(expect_books(*arena, *tenant, 6).out_of_sight, 6u);
    tenant->give_all();
    if (!test::kUnderAsan) arena->destroy();
    for (std::size_t i = 0; i < bytes; ++i) ASSERT_EQ(theirs[i], 7) << i;
    os::release(theirs, bytes);
    Calls::reset();
  }
}

// Under a limit the place may be granted to nobody just now: it is decommitted,
// like what loses its charge.
TEST_F(CoalescingArenaTest, APlaceThatIsRefusedIsClosedUntilItIsNeeded) {
  for (const bool foreign : {false, true}) {
    start();
    if (arena->statistics().reserved_bytes >= kGiB)
      GTEST_SKIP() << "of a reserved range it is lost";
    const std::uint32_t a = tenant->take_growing(40).first;
    ASSERT_NE(tenant->take_growing(1).first, 0u);
    Calls::refuse_all(Calls::kOpenAt);
    ASSERT_TRUE(tenant->move_out(a, true));
    EXPECT_EQ(arena->statistics().lost_bytes, 0u);
    EXPECT_EQ(expect_books(*arena, *tenant).out_of_sight, 40u);
    Calls::refuses = nullptr;
    char* place = tenant->address(a);
    if (foreign) {
      ASSERT_EQ(os::open_at(place + 30 * kSlice, kSlice), os::Placed::kYes);
      place[30 * kSlice] = 7;
    }
    while (tenant->take(1).first != 0) {
    }
    const std::uint32_t next = tenant->take_growing(30).first;
    EXPECT_EQ(next >= a && next < a + 40, !foreign);
    expect_books(*arena, *tenant, arena->statistics().lost_bytes / kSlice);
    if (foreign) {
      EXPECT_EQ(place[30 * kSlice], 7);
      os::release(place + 30 * kSlice, kSlice);
    }
  }
}

// Who forks then leaves a child in which nothing is mapped there, and nobody will ever say so.
TEST_F(CoalescingArenaTest, AChildNeverTouchesAPlaceThatWasJustLeft) {
  if (test::kUnderTsan) GTEST_SKIP() << "thread sanitizer does not follow this";
  start();
  const std::uint32_t before = tenant->take_growing(3).first;
  const std::uint32_t a = tenant->take_growing(6).first;
  const std::uint32_t behind = tenant->take_growing(3).first;
  ASSERT_NE(tenant->take_growing(1).first, 0u);
  const auto look = [&] {
    SpinLock::enter_child();
    tenant->forget(a);
    arena->recover_lock();
    arena->recover_in_child();
    EXPECT_EQ(arena->statistics().lost_bytes, 6 * kSlice);
    tenant->give(before);
    tenant->give(behind);
    while (tenant->take_growing(2).first < 200) {
    }
    arena->purge(false);
    arena->decommit_free();
    EXPECT_EQ(os::open_at(tenant->address(a), 6 * kSlice), os::Placed::kYes) << "nothing is there";
  };
  // By another thread: the one that moves is gone in the child.
  Calls::in_the_hole = [&](void*, std::size_t) {
    std::thread([&] { test::in_child(look); }).join();
  };
  ASSERT_TRUE(tenant->move_out(a));
  EXPECT_EQ(arena->statistics().lost_bytes, 0u);
  expect_books(*arena, *tenant);
}

// What a thread was decommitting when it vanished is a block that it had claimed, too. In a placed
// range it is unmapped once: from then on its addresses may be anybody's.
TEST_F(CoalescingArenaTest, AChildDecommitsOnceWhatItsParentWasDecommitting) {
  start();
  if (arena->statistics().reserved_bytes >= kGiB) GTEST_SKIP() << "nothing is unmapped there";
  const std::uint32_t a = tenant->take_growing(4).first;
  ASSERT_NE(tenant->take_growing(1).first, 0u);
  tenant->give(a);
  unsigned forks = 0;
  Calls::refuses.may([&](const Calls::Call& call, std::size_t) {
    if (call.kind != Calls::kRelease || call.address != address_of(tenant->address(a)))
      return false;
    ++forks;
    test::in_child([&] {
      Calls::refuses = nullptr;
      SpinLock::enter_child();
      std::thread([&] {
        const auto unmapped = Calls::during(Calls::kRelease, [&] {
          arena->recover_lock();
          arena->recover_in_child();
        });
        EXPECT_EQ(unmapped.size(), 1u);
        expect_books(*arena, *tenant);
      }).join();
    });
    return false;
  });
  EXPECT_GE(arena->decommit_free(), 4 * kSlice);
  EXPECT_EQ(forks, 1u);
  Calls::refuses = nullptr;
  expect_books(*arena, *tenant);
}

// Unmapped already, and by now somebody else's.
TEST_F(CoalescingArenaTest, AChildLeavesAloneWhatItsParentHadDecommitted) {
  start();
  if (arena->statistics().reserved_bytes >= kGiB) GTEST_SKIP() << "nothing is unmapped there";
  const std::uint32_t a = tenant->take_growing(4).first;
  ASSERT_NE(tenant->take_growing(1).first, 0u);
  tenant->give(a);
  unsigned forks = 0;
  Calls::after = [&](const Calls::Call& call, std::size_t) {
    if (call.kind != Calls::kRelease || call.address != address_of(tenant->address(a))) return;
    ++forks;
    test::in_child([&] {
      Calls::after = nullptr;
      auto* const theirs = static_cast<char*>(tenant->address(a)) + kSlice;
      ASSERT_EQ(os::open_at(theirs, kSlice), os::Placed::kYes);
      *theirs = 7;
      SpinLock::enter_child();
      std::thread([&] {
        const auto unmapped = Calls::during(Calls::kRelease, [&] {
          arena->recover_lock();
          arena->recover_in_child();
        });
        EXPECT_EQ(unmapped.size(), 0u);
        EXPECT_EQ(*theirs, 7);
      }).join();
    });
  };
  EXPECT_GE(arena->decommit_free(), 4 * kSlice);
  EXPECT_EQ(forks, 1u);
  Calls::after = nullptr;
  expect_books(*arena, *tenant);
}

// Before the recovery, in a call that the fork has interrupted: nobody knows yet whether it is
// mapped.
TEST_F(CoalescingArenaTest, AChildTakesNothingThatItsParentWasDecommitting) {
  if (test::kUnderAsan || test::kUnderTsan) GTEST_SKIP() << "sanitizers need address space";
  if (test::kEmulated) GTEST_SKIP() << test::kNoLimits;
  test::in_child([&] {
    std::promise<std::uint32_t> full;
    std::promise<void> released;
    std::promise<void> done;
    std::thread other([&] {  // first, as the limit counts its stack
      const std::uint32_t a = full.get_future().get();
      Calls::after = [&](const Calls::Call& call, std::size_t) {
        if (call.kind != Calls::kRelease || call.address != address_of(tenant->address(a))) return;
        released.set_value();
        done.get_future().wait();
      };
      arena->give(a);
      Calls::after = nullptr;
    });
    ASSERT_TRUE(test::leave_address_space(64 * kMiB));
    start();
    constexpr std::size_t kCount = 16;
    std::vector<std::uint32_t> taken;
    while (const std::uint32_t first = arena->take_growing(kCount, 1, kAnyUse).first)
      taken.push_back(first);
    const std::uint32_t a = taken[taken.size() / 2];
    full.set_value(a);
    released.get_future().wait();
    EXPECT_EQ(test::run_in_child([&] {
                Calls::after = nullptr;
                auto* const theirs = static_cast<char*>(tenant->address(a));
                if (os::open_at(theirs, kSlice) != os::Placed::kYes) return 1;
                *theirs = 7;
                SpinLock::enter_child();
                (void)arena->take_growing(kCount, 1, kAnyUse);
                arena->recover_lock();
                arena->recover_in_child();
                if (*theirs != 7) return 2;
                return arena->statistics().lost_bytes == 0 ? 0 : 3;
              }),
              0);
    done.set_value();
    other.join();
  });
}

// The call of the child's that its handler interrupted goes on before the recovery, and memory is
// out. What the parent's other thread was decommitting, which may or may not have been unmapped, is
// as any decommitted memory after the recovery, which must still know of it.
TEST_F(CoalescingArenaTest, AChildDecommitsNothingElseBeforeItsRecovery) {
  if (test::kUnderAsan || test::kUnderTsan) GTEST_SKIP() << "sanitizers need address space";
  if (test::kEmulated) GTEST_SKIP() << test::kNoLimits;
  for (const bool is_unmapped : {false, true}) {
    test::in_child([&] {
      std::promise<std::uint32_t> full;
      std::promise<void> stands;
      std::promise<void> done;
      std::thread other([&] {  // first, as the limit counts its stack
        const std::uint32_t a = full.get_future().get();
        bool has_stood = false;
        const auto stand = [&](const Calls::Call& call, std::size_t) {
          if (call.kind != Calls::kRelease || call.address != address_of(tenant->address(a)) ||
              std::exchange(has_stood, true)) {
            return false;
          }
          stands.set_value();
          done.get_future().wait();
          return false;
        };
        if (is_unmapped) {
          Calls::after = stand;
        } else {
          Calls::refuses.may(stand);
        }
        arena->give(a);
      });
      ASSERT_TRUE(test::leave_address_space(64 * kMiB));
      start();
      constexpr std::size_t kCount = 16;
      std::vector<std::uint32_t> taken;
      while (const std::uint32_t first = arena->take_growing(kCount, 1, kAnyUse).first)
        taken.push_back(first);
      for (const std::uint32_t first : taken) *tenant->address(first) = 7;
      const std::uint32_t a = taken[taken.size() / 2];
      full.set_value(a);
      stands.get_future().wait();
      EXPECT_EQ(
          test::run_in_child([&] {
            Calls::after = nullptr;
            Calls::refuses.may(nullptr);
            SpinLock::enter_child();
            arena->give(taken[1]);
            arena->give(taken[3]);
            // Together they are enough, when they have lost their charge.
            const std::size_t both =
                arena->take_growing(2 * kCount, 1, kAnyUse, FaultyArena::Effort::kDecommit).first !=
                        0
                    ? 2
                    : 0;
            arena->recover_lock();
            arena->recover_in_child();
            if (arena->statistics().lost_bytes != 0) return 1;
            std::size_t again = 0;
            for (;; ++again) {
              const Taken range = arena->take_growing(kCount, 1, kAnyUse);
              if (range.first == 0) break;
              if (range.zero && *tenant->address(range.first) != 0) return 2;
              *tenant->address(range.first) = 7;
            }
            return both + again == 3 ? 0 : 3;
          }),
          0)
          << (is_unmapped ? "behind" : "before") << " the call";
      done.set_value();
      other.join();
    });
  }
}

// A refused one is memory as before.
TEST_F(CoalescingArenaTest, WhatCouldNotBeDecommittedReadsAsItDid) {
  start();
  const std::uint32_t a = tenant->take_growing(4).first;
  ASSERT_NE(tenant->take_growing(1).first, 0u);
  tenant->give_zero(a);
  Calls::refuses.may([&](const Calls::Call& call, std::size_t) {
    return call.kind == Calls::kRelease || call.kind == Calls::kClose;
  });
  EXPECT_EQ(arena->decommit_free(), 0u);
  Calls::refuses = nullptr;
  const Taken again = arena->take(4, 1);
  EXPECT_EQ(again.first, a);
  EXPECT_TRUE(again.zero);
  const auto* const words = reinterpret_cast<const std::uint64_t*>(tenant->address(a));
  for (std::size_t i = 0; i < 4 * kSlice / 8; ++i) ASSERT_EQ(words[i], 0u) << i;
}

// --- Any one call refused ------------------------------------------------------------------------

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
  arena.decommit_free();
  take(3);
  take(20);
  tenant.give(largest());
  arena.decommit_free();
  arena.decommit_free();
  take(6, 16);
  const std::uint32_t from = largest();
  tenant.move_out(from, true);
  tenant.resize(tenant.live().begin()->first, 12);
  tenant.resize(tenant.live().begin()->first, 2);
  arena.purge(false);
  take(40);
  tenant.give(largest());
}

class CoalescingArenaRefusals : public CoalescingArenaTest {
 protected:
  // The scenario with call k refused. False: it made fewer calls.
  bool refuse_one(bool reserved, std::size_t k) {
    start(reserved);
    bool lost = false;
    Calls::refuses.may([&](const Calls::Call& call, std::size_t number) {
      if (number != k) return false;
      // In a reserved range nothing else is opened so.
      lost = reserved && call.kind == Calls::kOpenAt;
      return true;
    });
    scenario(*arena, *tenant);
    const bool refused = Calls::refuses.has_refused();
    Calls::refuses = nullptr;
    const std::size_t lost_slices = arena->statistics().lost_bytes / kSlice;
    EXPECT_EQ(lost_slices != 0, lost);
    expect_books(*arena, *tenant, lost_slices);
    tenant->give_all();
    expect_books(*arena, *tenant, lost_slices);
    if (!lost) expect_all_can_be_had();
    Calls::release_all();
    return refused;
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
    for (const Calls::Kind kind : {Calls::kPurge, Calls::kRemap, Calls::kOpenAt}) {
      EXPECT_GT(Calls::count[kind], 0u) << kind;
    }
    EXPECT_GT(Calls::count[reserved ? Calls::kOpen : Calls::kReserveAt], 4u);
    EXPECT_EQ(Calls::count[Calls::kClose] > 0, reserved);
    EXPECT_EQ(Calls::count[Calls::kRelease] > 0, !reserved);
    Calls::release_all();
    // Where the range lies, which differs, decides whether an alignment costs a call or two more.
    constexpr std::size_t kDiffers = 3;
    for (std::size_t k = 0; k < calls.size() + kDiffers && !HasFailure(); ++k) {
      SCOPED_TRACE((reserved ? "reserved, call " : "unreserved, call ") + std::to_string(k));
      EXPECT_TRUE(refuse_one(reserved, k) || k + kDiffers >= calls.size());
    }
  }
}

TEST_F(CoalescingArenaTest, AStartThatWasRefusedCanBeMadeAgain) {
  for (std::size_t k = 0; k < 80; ++k) {
    SCOPED_TRACE(k);
    arena = std::make_unique<FaultyArena>();
    tenant = std::make_unique<ArenaTenant>(*arena);
    Calls::reset();
    Calls::refuses.may([k](const Calls::Call& call, std::size_t number) {
      return number >= k && (call.kind != Calls::kReserve || call.bytes != kGiB);
    });
    const bool started = arena->start(kSlice);
    EXPECT_NE(started, Calls::refuses.has_refused());
    if (!started) {
      EXPECT_EQ(arena->take_growing(1, 1, kAnyUse).first, 0u);
    }
    Calls::refuses = nullptr;
    ASSERT_TRUE(arena->start(kSlice));
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
  EXPECT_FALSE(arena->start(kSlice));
  EXPECT_EQ(arena->base(), 0u);
  Calls::refuses.may(
      [](const Calls::Call& call, std::size_t) { return call.kind == Calls::kReserve; });
  ASSERT_TRUE(arena->start(kSlice)) << "a place is enough";
  ASSERT_NE(tenant->take_growing(10).first, 0u);
  expect_books(*arena, *tenant);
}

// Opening what is reserved is never refused for its size: the kernel is asked what
// a mapping would be told.
TEST_F(CoalescingArenaTest, HugeRangesAreAskedForFirst) {
  set_bits("33");
  start();
  Calls::refuse_all(Calls::kWouldGrant);
  EXPECT_EQ(arena->take_growing(2 * kGiB / kSlice, 1, kAnyUse).first, 0u);
  EXPECT_EQ(arena->limit(), 1u);
  EXPECT_EQ(opened_slices(), 1u);
  EXPECT_EQ(Calls::count[Calls::kOpen] + 0, 0u);
  ASSERT_NE(tenant->take_growing(10).first, 0u) << "small ones are not";
  Calls::refuses = nullptr;
  EXPECT_NE(arena->take_growing(2 * kGiB / kSlice, 1, kAnyUse).first, 0u);
}

// So is growth out of the arena. What is not charged grows to any size.
TEST_F(CoalescingArenaTest, WhatMovesOutGrowsByNoMoreThanTheKernelWouldCharge) {
  start();
  const std::uint32_t a = tenant->take_growing(4).first;
  ASSERT_NE(tenant->take_growing(1).first, 0u);
  Calls::refuse_all(Calls::kWouldGrant);
  EXPECT_EQ(arena->move_out(a, 4, 2 * kGiB).to, nullptr);
  EXPECT_EQ(Calls::count[Calls::kRemap], 0u);
  EXPECT_EQ(arena->statistics().lost_bytes, 0u);
  expect_books(*arena, *tenant);
  EXPECT_TRUE(tenant->move_out(a)) << "for less nobody asks";
  EXPECT_EQ(Calls::count[Calls::kWouldGrant], 1u);
}

// --- Limits and locks: in a process of its own ---------------------------------------------------

TEST_F(CoalescingArenaTest, UnderAnAddressLimitNothingIsReservedAndClosedMemoryCountsNot) {
  if (test::kUnderAsan || test::kUnderTsan) GTEST_SKIP() << "a sanitizer needs its address space";
  if (test::kEmulated) GTEST_SKIP() << test::kNoLimits;
  test::in_child([this] {
    ASSERT_TRUE(test::leave_address_space(256 * kMiB));
    set_bits("45");
    start();
    std::size_t bytes = 0;
    std::vector<std::uint32_t> taken;
    for (;;) {
      const std::uint32_t first = arena->take_growing(16, 1, kAnyUse).first;
      if (first == 0) break;
      *tenant->address(first) = 1;
      taken.push_back(first);
      bytes += 16 * kSlice;
    }
    EXPECT_GE(bytes, 200 * kMiB) << "nearly all of the limit is usable";
    EXPECT_LE(arena->statistics().reserved_bytes, arena->statistics().opened_bytes);
    EXPECT_EQ(arena->statistics().lost_bytes, 0u);
    const std::size_t at_end = arena->limit();
    for (int i = 0; i < 100; ++i) EXPECT_EQ(arena->take_growing(64, 1, kAnyUse).first, 0u);
    EXPECT_EQ(arena->limit(), at_end) << "a refusal loses nothing";
    for (std::size_t i = 0; i < taken.size(); i += 2) arena->give(taken[i]);
    EXPECT_TRUE(arena->is_at_limit());
    EXPECT_LE(arena->statistics().opened_bytes, (taken.size() + 2) / 2 * 16 * kSlice * 5 / 4);
    EXPECT_NE(arena->take_growing(64, 1, kAnyUse).first, 0u)
        << "what came back is no longer charged";
    arena->decommit_free();
    void* other = os::map(64 * kMiB, os::page_size());
    EXPECT_NE(other, nullptr) << "and others can have it";
  });
}

// What a limit is looked for by takes no memory, and not much of what others may want meanwhile.
TEST_F(CoalescingArenaTest, ALimitIsLookedForByAddressesAlone) {
  if (os::has_memory_limit()) GTEST_SKIP() << "a limit stands";
  set_bits("34");
  start();
  Calls::recording = true;
  while (arena->limit() < 2 * kGiB / kSlice)
    ASSERT_NE(arena->take_growing(64, 1, kAnyUse).first, 0u);
  Calls::recording = false;
  std::size_t looks = 0;
  for (const Calls::Call& call : Calls::record) {
    EXPECT_NE(call.kind, Calls::kWouldGrant);
    EXPECT_FALSE(call.kind == Calls::kOpenAt && call.address == 0);
    if (call.kind != Calls::kReserveAt || call.address != 0) continue;
    ++looks;
    EXPECT_LE(call.bytes, kGiB);
  }
  EXPECT_GE(looks, 20u);
  EXPECT_LE(looks, 80u);
  EXPECT_FALSE(arena->is_at_limit());
}

// Fills what a limit allows, until the arena is refused something.
std::vector<std::uint32_t> fill_up(FaultyArena& arena) {
  std::vector<std::uint32_t> taken;
  while (const std::uint32_t first = arena.take_growing(16, 1, kAnyUse).first)
    taken.push_back(first);
  return taken;
}

TEST_F(CoalescingArenaTest, ALimitThatIsRaisedIsForgotten) {
  if (test::kUnderAsan || test::kUnderTsan) GTEST_SKIP() << "a sanitizer needs its address space";
  if (test::kEmulated) GTEST_SKIP() << test::kNoLimits;
  const rlimit none{RLIM_INFINITY, RLIM_INFINITY};
  for (const bool at_start : {true, false}) {
    for (const int resource : {RLIMIT_AS, RLIMIT_DATA}) {
      SCOPED_TRACE(at_start);
      SCOPED_TRACE(resource == RLIMIT_AS ? "addresses" : "data");
      test::in_child([=, this] {
        set_bits("45");
        // (Of data the process has some MiB itself.)
        const std::size_t allowed =
            resource == RLIMIT_AS ? test::address_space_in_use() + 256 * kMiB : 256 * kMiB;
        const rlimit limit{allowed, RLIM_INFINITY};
        if (at_start) {
          ASSERT_EQ(setrlimit(resource, &limit), 0);
          os::ask();
          ASSERT_TRUE(os::has_memory_limit());
        }
        start();
        if (!at_start) {
          ASSERT_EQ(setrlimit(resource, &limit), 0);
        }
        const std::vector<std::uint32_t> taken = fill_up(*arena);
        EXPECT_GE(taken.size(), 128u);
        EXPECT_TRUE(arena->is_at_limit());
        arena->look_at_limit();
        EXPECT_TRUE(arena->is_at_limit()) << "it stands";
        for (std::size_t i = 0; i < taken.size(); i += 2) arena->give(taken[i]);
        arena->look_at_limit();
        EXPECT_TRUE(arena->is_at_limit()) << "it stands, whatever is decommitted here";
        ASSERT_EQ(setrlimit(resource, &none), 0);
        arena->look_at_limit();
        EXPECT_FALSE(arena->is_at_limit());
        EXPECT_FALSE(os::has_memory_limit());
        while (arena->limit() < kGiB / kSlice)
          ASSERT_NE(arena->take_growing(16, 1, kAnyUse).first, 0u);
        EXPECT_FALSE(arena->is_at_limit());
        // Another one is met as well.
        const rlimit again{test::address_space_in_use() + 16 * kMiB + 300 * kKiB, RLIM_INFINITY};
        ASSERT_EQ(setrlimit(RLIMIT_AS, &again), 0);
        fill_up(*arena);
        EXPECT_TRUE(arena->is_at_limit());
      });
    }
  }
}

// All that it was granted would be resident at once.
TEST_F(CoalescingArenaTest, NothingIsAskedAboutALimitWhereNewMemoryIsLocked) {
  if (test::kUnderAsan || test::kUnderTsan || test::kEmulated) {
    GTEST_SKIP() << "the memory of a sanitizer or emulator cannot be locked";
  }
  if (mlockall(MCL_FUTURE) != 0) GTEST_SKIP() << "this process may not lock its memory";
  munlockall();
  test::in_child([this] {
    set_bits("45");
    const rlimit limit{256 * kMiB, RLIM_INFINITY};
    ASSERT_EQ(setrlimit(RLIMIT_DATA, &limit), 0);
    os::ask();
    start();
    fill_up(*arena);
    ASSERT_TRUE(arena->is_at_limit());
    const rlimit none{RLIM_INFINITY, RLIM_INFINITY};
    ASSERT_EQ(setrlimit(RLIMIT_DATA, &none), 0);
    ASSERT_EQ(mlockall(MCL_FUTURE), 0);
    Calls::recording = true;
    arena->look_at_limit();
    Calls::recording = false;
    for (const Calls::Call& call : Calls::record) {
      EXPECT_FALSE(call.kind == Calls::kOpenAt && call.address == 0) << call.bytes;
    }
    munlockall();
    arena->look_at_limit();
    EXPECT_FALSE(arena->is_at_limit());
  });
}

void expect_opened_as_used(FaultyArena& arena, ArenaTenant& tenant) {
  const std::size_t before = arena.statistics().opened_bytes;
  for (int i = 0; i < 8; ++i) ASSERT_NE(tenant.take_growing(3).first, 0u);
  EXPECT_LE(arena.statistics().opened_bytes, before + 24 * kSlice);
  EXPECT_FALSE(tenant.move_out(tenant.live().begin()->first)) << "locked memory stays where it is";
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

// Their sets of slices have no row there: a look at it would end the process.
TEST_F(CoalescingArenaTest, DestroysWhatItHasOpenedWithoutTables) {
  start();
  const std::uintptr_t base = arena->base();
  Calls::refuses = [base](const Calls::Call& call, std::size_t) {
    return call.kind == Calls::kOpen && call.address - base >= kGiB;
  };
  EXPECT_EQ(arena->take_growing(14'000, 1, kAnyUse).first, 0u);
  const std::size_t opened = opened_slices();
  EXPECT_GE(opened, 14'000u);
  EXPECT_LT(arena->limit(), opened);
  Calls::refuses = nullptr;
  arena->destroy();
  void* last = pointer_to(base + (opened - 1) * kSlice);
  EXPECT_EQ(os::reserve_at(last, kSlice), os::Placed::kYes) << "nothing of it is left";
  os::release(last, kSlice);
}

}  // namespace
}  // namespace spanalloc
