// An arena whose tables meet something foreign: the slices that would have their entries there are
// lost, and everything else goes on as before.
#include <sys/mman.h>

#include <cstring>
#include <optional>
#include <thread>

#include "address_limit.hpp"
#include "child.hpp"
#include "pages/coalescing_arena_test_support.hpp"

namespace spanalloc {
namespace {

using Calls = FaultyCalls;
constexpr std::size_t kPage = 4 * kKiB;

// The arena's tables, in the order in which they are placed.
enum Table : unsigned { kUpper, kRows, kTables };
// Where block() hits an entry of the index's second level in kUpper, the one of
// units from 576 * 4096 on.
constexpr std::size_t kSecondLevel = 15 * kPage;

class ArenaGaps : public CoalescingArenaTest {
 protected:
  void SetUp() override {
    if (test::kUnderAsan || test::kUnderTsan || test::kEmulated) {
      GTEST_SKIP() << "needs many gigabytes of addresses";
    }
  }
  ~ArenaGaps() override {
    for (void* p : theirs) munmap(p, kPage);
  }
  // Starts an arena of 2^44 bytes and learns where its tables are.
  void start_large() {
    set_bits("44");
    arena = std::make_unique<FaultyArena>();
    Calls::reset();
    const auto placed =
        Calls::during(Calls::kReserveAt, [&] { ASSERT_TRUE(arena->start(kSlice << 2)); });
    tables.clear();
    for (const Calls::Call& call : placed) {
      if (call.bytes > 2 * kPage) tables.push_back(call.address + kPage);
    }
    ASSERT_EQ(tables.size(), std::size_t{kTables});
  }
  // A page of somebody else's in the way of table `t`, `behind` bytes behind
  // what is mapped of it now.
  void block(std::size_t t, std::size_t behind) {
    void* at = pointer_to(tables[t] + kMiB + kPage + behind);
    void* p = mmap(at, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    ASSERT_EQ(p, at);
    theirs.push_back(p);
  }
  char* address(std::uint32_t first) const {
    return pointer_to<char>(arena->base() + std::size_t{first} * kSlice);
  }
  // Takes ranges of `count` slices until so many slices are open; each is new,
  // and memory at both ends.
  void grow_to(std::size_t slices, std::size_t count) {
    while (arena->limit() < slices) {
      const std::uint32_t first = arena->take_growing(count, 1, kAnyUse).first;
      ASSERT_NE(first, 0u);
      check_new(first, count);
    }
  }
  void check_new(std::uint32_t first, std::size_t count) {
    for (const std::size_t at : {std::size_t{0}, count * kSlice - 8}) {
      auto* word = reinterpret_cast<std::uint64_t*>(address(first) + at);
      ASSERT_EQ(*word, 0u);
      *word = 1;
    }
    taken[first] = count;
  }
  // What the walk shows is what was taken, and what is free; in order, and nothing foreign. (What
  // is decommitted is not shown either.)
  void expect_walk(bool some_is_closed = false) {
    std::size_t end = 1;
    std::size_t seen = 0;
    std::size_t out_of_sight = 0;
    arena->walk([&](std::uint32_t first, std::size_t count, bool free) {
      ASSERT_GE(first, end);
      out_of_sight += first - end;
      end = first + count;
      if (free) return;
      ASSERT_TRUE(taken.contains(first)) << first;
      EXPECT_EQ(taken[first], count);
      ++seen;
    });
    EXPECT_EQ(seen, taken.size());
    out_of_sight += arena->limit() - end;
    EXPECT_GE(out_of_sight * kSlice, arena->statistics().lost_bytes);
    if (!some_is_closed) {
      EXPECT_EQ(out_of_sight * kSlice, arena->statistics().lost_bytes);
    }
  }
  void give_all() {
    for (const auto& [first, count] : taken) {
      for (const std::size_t at : {std::size_t{0}, count * kSlice - 8}) {
        auto* word = reinterpret_cast<std::uint64_t*>(address(first) + at);
        EXPECT_EQ(*word, 1u);
        *word = 0;
      }
      arena->give(first, true);
    }
    taken.clear();
  }

  std::vector<std::uintptr_t> tables;
  std::vector<void*> theirs;
  std::map<std::uint32_t, std::size_t> taken;
};

TEST_F(ArenaGaps, EachTableMayBeInterrupted) {
  for (const Table t : {kUpper, kRows}) {
    for (const std::size_t behind : {std::size_t{0}, 3 * kPage, kSecondLevel, 100 * kPage}) {
      SCOPED_TRACE(std::to_string(t) + " " + std::to_string(behind));
      start_large();
      block(t, behind);
      if (HasFatalFailure()) return;
      // The index's upper levels reach far with what is mapped at first.
      grow_to(t == kUpper ? 4'000'000 : 260'000, t == kUpper ? 10'000 : 700);
      if (HasFatalFailure()) return;
      const std::size_t lost = arena->statistics().lost_bytes / kSlice;
      EXPECT_GT(lost, 0u);
      // Three pages: what is in the way, and two guards; and what an entry more at either end
      // is about. Where that takes the place of an entry of the second level, all of the first
      // that it is about are lost.
      const bool second = t == kUpper && behind == kSecondLevel;
      EXPECT_LE(lost, (second ? 64 + 9 : 9) * (t == kUpper ? 4096u : 64u));
      if (second) {
        EXPECT_GE(lost, 64u * 4096);
      }
      expect_walk();
      const std::size_t limit = arena->limit();
      for (int round = 0; round < 2; ++round) {
        give_all();
        expect_walk(true);
        arena->decommit_free();
        EXPECT_EQ(arena->take(1, 1).first, 0u) << "everything is decommitted";
        // It can be had again, but for what is lost.
        for (std::size_t n = 0; n < 50; ++n) {
          const std::uint32_t first = arena->take_growing(1000, 1, kAnyUse).first;
          ASSERT_NE(first, 0u);
          check_new(first, 1000);
        }
        EXPECT_EQ(arena->limit(), limit);
      }
      arena->recover_lock();
      arena->recover_in_child();
      give_all();
      expect_walk(true);
      arena->destroy();
      for (void* p : theirs) munmap(p, kPage);
      theirs.clear();
      EXPECT_EQ(arena->base(), 0u);
    }
  }
}

// More than one at a time, one behind the other.
TEST_F(ArenaGaps, SeveralTablesAtOnce) {
  start_large();
  block(kRows, 0);
  block(kRows, 50 * kPage);
  block(kRows, 51 * kPage);
  block(kUpper, 0);
  block(kUpper, 10 * kPage);
  grow_to(3'000'000, 3'333);
  if (HasFatalFailure()) return;
  expect_walk();
  give_all();
  arena->decommit_free();
  const std::uint32_t first = arena->take_growing(30'000, 1, kAnyUse).first;
  ASSERT_NE(first, 0u);
  check_new(first, 30'000);
  give_all();
  expect_walk(true);
  arena->destroy();
}

// The side table of the arena's user has gaps of its own.
TEST_F(ArenaGaps, WhatItsUserHasNoRecordsForIsLost) {
  start_large();
  constexpr TableReach kGap{1000, 1234};
  std::size_t asked = 0;
  const auto reach = [&](std::size_t end) {
    ++asked;
    if (end <= kGap.end || arena->limit() >= kGap.next) return TableReach{end, end};
    return kGap;
  };
  std::size_t sum = 0;
  while (sum < 10'000) {
    const std::uint32_t first = arena->take_growing(50, 1, reach).first;
    ASSERT_NE(first, 0u);
    EXPECT_TRUE(first + 50 <= kGap.end || first >= kGap.next) << first;
    check_new(first, 50);
    sum += 50;
  }
  const std::size_t lost = arena->statistics().lost_bytes / kSlice;
  EXPECT_GE(lost, kGap.next - kGap.end);
  EXPECT_LE(lost, kGap.next - kGap.end + 1);
  expect_walk();
  give_all();
  expect_walk();
  arena->destroy();
}

// Entries of the index's highest levels lie before those of the first slices, and take pages. No
// foreign mapping comes between.
TEST_F(ArenaGaps, WhatATableNeedsAtFirstIsMappedAtOnce) {
  test::in_child([this] {
    set_bits("44");
    ASSERT_TRUE(test::leave_address_space(kTiB)) << "nothing is mapped ahead then";
    arena = std::make_unique<FaultyArena>();
    Calls::reset();
    // Somebody maps right behind whatever gets a place, if it is not just a question.
    std::optional<Calls::Call> placed;
    Calls::after = [&](const Calls::Call& call, std::size_t) {
      if (call.kind == Calls::kReserveAt) placed = call;
    };
    Calls::refuses.may([&](const Calls::Call& call, std::size_t) {
      if (placed && (call.kind != Calls::kRelease || call.address != placed->address)) {
        void* const behind = pointer_to(placed->address + placed->bytes);
        void* const p = mmap(behind, kPage, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (p == behind) theirs.push_back(p);
      }
      placed.reset();
      return false;
    });
    ASSERT_TRUE(arena->start(kSlice << 2));
    Calls::after = nullptr;
    Calls::refuses = nullptr;
    EXPECT_GE(theirs.size(), std::size_t{kTables});
    grow_to(10'000, 100);
    expect_walk();
  });
}

// A thread has told the range that slices have no records, and vanishes while it gives them up: its
// child's next slices are no gap.
TEST_F(ArenaGaps, AForkWhileAGapIsGivenUp) {
  start_large();
  constexpr TableReach kGap{1000, 1234};
  const auto reach = [&](std::size_t end) {
    return end <= kGap.end || arena->limit() >= kGap.next ? TableReach{end, end} : kGap;
  };
  unsigned forks = 0;
  Calls::refuses.may([&](const Calls::Call& call, std::size_t) {
    if (call.kind != Calls::kClose) return false;
    ++forks;
    test::in_child([&] {
      Calls::refuses = nullptr;
      SpinLock::enter_child();
      std::thread([&] {
        arena->recover_lock();
        arena->recover_in_child();
        while (arena->limit() < 20'000) {
          const std::uint32_t first = arena->take_growing(50, 1, reach).first;
          ASSERT_NE(first, 0u);
          check_new(first, 50);
        }
        EXPECT_LE(arena->statistics().lost_bytes / kSlice, kGap.next - kGap.end + 1 + 50);
      }).join();
    });
    return false;
  });
  while (forks == 0 && arena->limit() < 10'000) {
    const std::uint32_t first = arena->take_growing(50, 1, reach).first;
    ASSERT_NE(first, 0u);
    check_new(first, 50);
  }
  Calls::refuses = nullptr;
  EXPECT_EQ(forks, 1u);
  give_all();
  arena->destroy();
}

// A fork in the middle of growth, at any call of the kernel: the child goes on.
TEST_F(ArenaGaps, AForkInTheMiddleOfGrowth) {
  for (std::size_t k = 0; k < 24; ++k) {
    SCOPED_TRACE(k);
    start_large();
    block(kRows, 0);
    grow_to(100, 10);
    bool forked = false;
    bool reached = false;
    // The thread that grows vanishes at call k: the child of a handler that forked
    // there never comes back to it.
    Calls::refuses.may([&](const Calls::Call&, std::size_t number) {
      if (number != k || forked) return false;
      forked = reached = true;
      test::in_child([this] {
        Calls::refuses = nullptr;
        SpinLock::enter_child();
        std::thread([this] {
          arena->recover_lock();
          arena->recover_in_child();
          expect_walk();
          grow_to(45'000, 700);
          expect_walk();
          give_all();
        }).join();
      });
      return false;
    });
    Calls::calls = 0;
    const std::uint32_t first = arena->take_growing(40'000, 1, kAnyUse).first;
    Calls::refuses = nullptr;
    if (first != 0) check_new(first, 40'000);
    if (HasFatalFailure()) return;
    give_all();
    arena->destroy();
    for (void* p : theirs) munmap(p, kPage);
    theirs.clear();
    if (!reached) break;
  }
}

}  // namespace
}  // namespace spanalloc
