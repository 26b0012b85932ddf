// Tables between guard pages: what they open, what they give back, and what a foreign
// mapping in their way costs.
#include "pages/guarded_table.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "address_limit.hpp"
#include "child.hpp"
#include "pages/coalescing_arena_test_support.hpp"
#include "pages/growing_table.hpp"
#include "sanitizers.hpp"

namespace spanalloc {

struct GuardedTableTestAccess {
  /// As in a fork's child that has what was noted of the table, and not where it begins.
  template <class Table>
  static void forget_base(Table& table) {
    table.base_.store_relaxed(0);
  }
};

namespace {

using Calls = FaultyCalls;
using Table = GuardedTable<FaultyCalls>;
constexpr std::size_t kPage = 4 * kKiB;
constexpr std::size_t kCapacity = 64 * kMiB;

// The rights of the mapping at an address, "" where there is none.
std::string rights_at(const void* p) {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    std::size_t begin = 0;
    std::size_t end = 0;
    char rights[8] = {};
    if (std::sscanf(line.c_str(), "%zx-%zx %7s", &begin, &end, rights) != 3) continue;
    if (address_of(p) >= begin && address_of(p) < end) return std::string(rights, 3);
  }
  return "";
}

void* map_foreign(char* at, std::size_t bytes) {
  void* p = mmap(at, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  EXPECT_EQ(p, at);
  std::memset(p, 0x5a, bytes);
  return p;
}
bool is_untouched(const void* p, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) {
    if (static_cast<const unsigned char*>(p)[i] != 0x5a) return false;
  }
  return true;
}

class GuardedTableTest : public testing::Test {
 protected:
  GuardedTableTest() {
    Calls::reset();
    region.choose<FaultyCalls>();
  }
  ~GuardedTableTest() override { Calls::reset(); }
  void SetUp() override {
    if (test::kUnderTsan) GTEST_SKIP() << "a sanitizer's shadow is where tables would be";
  }
  void start() {
    ASSERT_TRUE(table.start(region.place_for(kCapacity), kCapacity));
    opened = 0;
  }
  // All of [from, to) is zero, and ours.
  void use(std::size_t from, std::size_t to) {
    for (std::size_t at = from; at < to; at += kPage) {
      ASSERT_EQ(table.base()[at], 0) << at;
      table.base()[at] = 1;
    }
  }
  TableRegion region;
  Table table;
  std::size_t opened = 0;
};

TEST_F(GuardedTableTest, OpensWhatIsAskedForBetweenGuards) {
  start();
  for (const std::size_t needed :
       {1ul, 4096ul, 4097ul, 70'000ul, 1'000'000ul, 5'000'000ul, kCapacity}) {
    const TableReach reach = table.open_up_to(opened, needed, false);
    ASSERT_EQ(reach.end, needed);
    EXPECT_EQ(reach.next, needed);
    use(align_up(opened, kPage), needed);
    opened = needed;
    EXPECT_EQ(rights_at(table.base() - 1), "---");
    EXPECT_EQ(rights_at(table.base() + align_up(needed, 64 * kKiB)), "---");
    EXPECT_TRUE(table.has(0, needed));
  }
  char* base = table.base();
  table.destroy();
  for (const std::size_t at : {std::size_t{0}, kCapacity / 2, kCapacity})
    EXPECT_EQ(rights_at(base + at), "");
  EXPECT_EQ(rights_at(base - 1), "");
}

TEST_F(GuardedTableTest, SparingOpensNoPageMore) {
  start();
  ASSERT_EQ(table.open_up_to(0, 5000, true).end, 5000u);
  EXPECT_EQ(rights_at(table.base() + kPage), "rw-");
  EXPECT_EQ(rights_at(table.base() + 2 * kPage), "---");
  table.destroy();
}

// Wherever the mapping begins and however large it is: it costs what it covers and two guards.
TEST_F(GuardedTableTest, AForeignMappingCostsWhatItCovers) {
  for (const std::size_t begins : {2 * kMiB, 2 * kMiB + kPage, 3 * kMiB - kPage}) {
    for (const std::size_t bytes : {kPage, 3 * kPage, 64 * kKiB, 5 * kMiB}) {
      SCOPED_TRACE(std::to_string(begins) + " " + std::to_string(bytes));
      start();
      ASSERT_EQ(table.open_up_to(0, 100, false).end, 100u);
      use(0, 100);
      void* theirs = map_foreign(table.base() + begins, bytes);
      const std::size_t needed = 16 * kMiB;
      TableReach reach = table.open_up_to(100, needed, false);
      ASSERT_LT(reach.end, needed);
      EXPECT_EQ(reach.end, begins - kPage);
      EXPECT_EQ(reach.next, begins + bytes + kPage);
      use(kPage, align_down(reach.end, kPage));
      EXPECT_EQ(table.open_up_to(100, reach.end, false).end, reach.end)
          << "what lies before it is ours";
      EXPECT_EQ(table.open_up_to(reach.end, needed, false).next, reach.next) << "it is told again";
      const std::size_t behind = reach.next;
      reach = table.open_up_to(behind, needed, false);
      ASSERT_EQ(reach.end, needed);
      use(behind, needed);
      EXPECT_FALSE(table.has(begins, begins + 1));
      EXPECT_TRUE(table.has(behind, needed));
      EXPECT_EQ(rights_at(table.base() + behind - 1), "---");
      EXPECT_TRUE(is_untouched(theirs, bytes));
      char* base = table.base();
      table.destroy();
      EXPECT_TRUE(is_untouched(theirs, bytes)) << "and not ours to unmap";
      munmap(theirs, bytes);
      for (std::size_t at = 0; at < needed; at += kPage) ASSERT_EQ(rights_at(base + at), "") << at;
    }
  }
}

TEST_F(GuardedTableTest, ManyForeignMappingsEndTheTable) {
  start();
  std::vector<void*> theirs;
  for (std::size_t at = 2 * kMiB; at < 42 * kMiB; at += 2 * kMiB) {
    theirs.push_back(map_foreign(table.base() + at, kPage));
  }
  std::size_t from = 0;
  unsigned gaps = 0;
  for (;;) {
    const TableReach reach = table.open_up_to(from, kCapacity, false);
    if (reach.end > from) use(align_up(from, kPage), align_down(reach.end, kPage));
    if (reach.next == reach.end) break;
    ++gaps;
    from = reach.next;
  }
  EXPECT_EQ(gaps, 16u);
  for (void* p : theirs) EXPECT_TRUE(is_untouched(p, kPage));
  table.destroy();
  for (void* p : theirs) {
    EXPECT_TRUE(is_untouched(p, kPage));
    munmap(p, kPage);
  }
}

// Each call refused once; asked again, it works, and nothing is lost.
TEST_F(GuardedTableTest, AnyCallMayBeRefused) {
  for (std::size_t k = 0;; ++k) {
    SCOPED_TRACE(k);
    Calls::reset();
    Calls::refuses.may([k](const Calls::Call&, std::size_t number) { return number == k; });
    const TablePlace place = region.place_for(kCapacity);
    if (!table.start(place, kCapacity)) {
      ASSERT_TRUE(table.start(place, kCapacity));
    }
    std::size_t from = 0;
    for (const std::size_t needed : {100ul, 2'000'000ul, 3'000'000ul}) {
      TableReach reach = table.open_up_to(from, needed, false);
      EXPECT_EQ(reach.end, reach.next) << "a refusal is no gap";
      if (reach.end != needed) reach = table.open_up_to(from, needed, false);
      ASSERT_EQ(reach.end, needed);
      use(align_up(from, kPage), needed);
      from = needed;
    }
    table.destroy();
    if (Calls::refuses.has_refused()) continue;
    EXPECT_GE(k, 5u) << "so many calls does it make";
    break;
  }
}

// A step comes to a foreign mapping, and the page behind that is refused: what the step has opened
// before it may be enough.
TEST_F(GuardedTableTest, WhatARefusedStepHasOpenedIsEnough) {
  for (const std::size_t pages_before : {2u, 3u, 8u}) {
    start();
    ASSERT_EQ(table.open_up_to(0, 100, false).end, 100u);
    const std::size_t begins = 2 * kMiB + 16 * kPage;
    void* theirs = map_foreign(table.base() + begins, kPage);
    const std::uintptr_t behind = address_of(table.base()) + begins + kPage;
    Calls::refuses = [behind](const Calls::Call& call, std::size_t) {
      return call.kind == Calls::kReserveAt && call.address + call.bytes > behind;
    };
    const std::size_t needed = begins - pages_before * kPage;
    EXPECT_EQ(table.open_up_to(100, needed, false).end, needed);
    use(kPage, needed);
    Calls::refuses = nullptr;
    table.destroy();
    munmap(theirs, kPage);
  }
}

// A fork finds the thread that gives the reservation back between the call of the kernel and the
// note of it: the child leaves alone what somebody else has mapped there.
TEST_F(GuardedTableTest, AForkAfterThePlaceWasGivenBackOpensNothing) {
  start();
  Calls::refuse_all(Calls::kOpen);
  EXPECT_EQ(table.open_up_to(0, 100, false).end, 0u);
  int outcome = -1;
  Calls::refuses.may([&](const Calls::Call& call, std::size_t) {
    if (call.kind != Calls::kRelease || outcome != -1) return false;
    outcome = test::run_in_child([&] {
      munmap(pointer_to(call.address), call.bytes);  // as the parent's call will
      void* theirs = map_foreign(table.base(), kPage);
      mprotect(theirs, kPage, PROT_READ);
      if (table.open_up_to(0, 100, false).end != 0) return 1;
      return rights_at(theirs) == "r--" && is_untouched(theirs, kPage) ? 0 : 2;
    });
    return false;
  });
  table.give_reservation_back();
  Calls::reset();
  EXPECT_EQ(outcome, 0);
  EXPECT_EQ(table.open_up_to(0, 100, false).end, 100u);
  table.destroy();
}

// A fork finds the thread that makes the table grow between a call of the kernel and the note of
// it: in the child the table goes on without a gap, if nobody else's mapping is there.
TEST_F(GuardedTableTest, AForkAfterAnyCallOfItsGrowthLeavesNoGap) {
  for (const bool foreign : {false, true}) {
    unsigned forks = 0;
    for (std::size_t k = 0;; ++k) {
      SCOPED_TRACE(std::to_string(k) + (foreign ? " foreign" : ""));
      start();
      ASSERT_EQ(table.open_up_to(0, 100, false).end, 100u);
      use(0, 100);
      void* theirs = foreign ? map_foreign(table.base() + 5 * kMiB, kPage) : nullptr;
      const std::size_t needed = 4'000'000;
      bool has_forked = false;
      Calls::reset();
      Calls::after = [&](const Calls::Call&, std::size_t number) {
        if (number != k || has_forked) return;
        has_forked = true;
        EXPECT_EQ(test::run_in_child([&] {
                    if (table.open_up_to(100, needed, false).end != needed) return 1;
                    for (std::size_t at = kPage; at < needed; at += kPage) {
                      if (table.base()[at]++ != 0) return 2;
                    }
                    const TableReach reach = table.open_up_to(needed, 8 * kMiB, false);
                    if (!foreign) return reach.end == 8 * kMiB && table.is_without_gaps() ? 0 : 3;
                    if (reach.end != 5 * kMiB - kPage || reach.next != 5 * kMiB + 2 * kPage)
                      return 4;
                    return is_untouched(theirs, kPage) ? 0 : 5;
                  }),
                  0);
      };
      ASSERT_EQ(table.open_up_to(100, needed, false).end, needed);
      Calls::reset();
      table.destroy();
      if (theirs != nullptr) munmap(theirs, kPage);
      if (!has_forked) break;
      ++forks;
    }
    EXPECT_GE(forks, 2u);
  }
}

// What a vanished thread was about to meet is not ours.
TEST_F(GuardedTableTest, AForkBeforeAForeignMappingWasMetLeavesItAlone) {
  start();
  ASSERT_EQ(table.open_up_to(0, 100, false).end, 100u);
  void* theirs = map_foreign(table.base() + 2 * kMiB, 3 * kPage);
  unsigned forks = 0;
  Calls::reset();
  bool in_child = false;
  Calls::after = [&](const Calls::Call&, std::size_t) {
    if (in_child) return;
    ++forks;
    EXPECT_EQ(test::run_in_child([&] {
                in_child = true;
                TableReach reach = table.open_up_to(100, 4 * kMiB, false);
                if (reach.end != 2 * kMiB - kPage) return 1;
                // (What the vanished thread has looked at behind it may be in the way as well.)
                std::size_t lost = 0;
                for (; reach.end != 4 * kMiB;
                     reach = table.open_up_to(reach.next, 4 * kMiB, false)) {
                  if (reach.next == reach.end) return 2;
                  lost += (reach.next - reach.end) / kPage;
                }
                if (!is_untouched(theirs, 3 * kPage)) return 3;
                return lost >= 5 && lost <= 16 ? 0 : 4;
              }),
              0)
        << forks;
  };
  const TableReach reach = table.open_up_to(100, 4 * kMiB, false);
  EXPECT_EQ(reach.end, 2 * kMiB - kPage);
  EXPECT_GE(forks, 3u);
  Calls::reset();
  table.destroy();
  munmap(theirs, 3 * kPage);
}

// A child begins a table anew that it does not find begun, whatever else it finds.
TEST_F(GuardedTableTest, IsBegunWithNothingOpenAndWithoutGaps) {
  start();
  void* theirs = map_foreign(table.base() + 2 * kMiB, kPage);
  ASSERT_LT(table.open_up_to(0, 4 * kMiB, false).end, 4 * kMiB);
  GuardedTableTestAccess::forget_base(table);
  start();
  ASSERT_FALSE(table.is_used());
  EXPECT_TRUE(table.is_without_gaps());
  ASSERT_EQ(table.open_up_to(0, 100, false).end, 100u);
  use(0, 100);
  table.destroy();
  munmap(theirs, kPage);
}

// A process may have only so many mappings: what is reserved and cannot be
// opened takes one of them.
TEST_F(GuardedTableTest, APlaceThatCannotBeOpenedCanBeGivenBack) {
  start();
  Calls::refuse_all(Calls::kOpen);
  for (unsigned attempt = 0; attempt < 3; ++attempt) {
    EXPECT_EQ(table.open_up_to(0, 100, false).end, 0u);
    table.give_reservation_back();
    EXPECT_EQ(rights_at(table.base() - kPage), "");
    EXPECT_EQ(rights_at(table.base()), "");
  }
  Calls::reset();
  ASSERT_EQ(table.open_up_to(0, 3'000'000, false).end, 3'000'000u);
  use(0, 3'000'000);
  table.give_reservation_back();
  EXPECT_EQ(rights_at(table.base() - kPage), "---") << "it is in use";
  table.destroy();

  // Somebody else is there by then: that is a refusal, and theirs stays.
  start();
  Calls::refuse_all(Calls::kOpen);
  EXPECT_EQ(table.open_up_to(0, 100, false).end, 0u);
  table.give_reservation_back();
  Calls::reset();
  void* theirs = map_foreign(table.base(), kPage);
  const TableReach reach = table.open_up_to(0, 100, false);
  EXPECT_EQ(reach.end, 0u);
  EXPECT_EQ(reach.next, 0u);
  table.destroy();
  EXPECT_TRUE(is_untouched(theirs, kPage));
  munmap(theirs, kPage);
}

TEST(TableRegionTest, TablesDoNotMeetAndBeginNearEachOther) {
  TableRegion region;
  region.choose<PageCalls>();
  std::set<std::uintptr_t> gigabytes;
  std::uintptr_t begin = 0;
  for (const std::size_t bytes :
       {2 * kMiB, 121 * kMiB, 369 * kMiB, 2 * kGiB + 1, 8 * kGiB, 16 * kGiB}) {
    const TablePlace place = region.place_for(bytes);
    if (place.address == 0) GTEST_SKIP() << "no place is free: tables are reserved";
    EXPECT_EQ(place.address % (64 * kKiB), 0u);
    EXPECT_TRUE(begin == 0 || place.address - begin >= 64 * kKiB);
    begin = place.address + bytes;
    gigabytes.insert(place.address / kGiB);
  }
  EXPECT_LE(gigabytes.size(), 3u) << "pages of page tables";
}

// Numbers are what gaps cost.
TEST(GrowingTableGaps, RecordsBehindAForeignMappingGoOn) {
  if (test::kUnderTsan) GTEST_SKIP() << "a sanitizer's shadow is where tables would be";
  struct Record {
    std::uint64_t words[3];  // does not divide a page
  };
  TableRegion region;
  region.choose<PageCalls>();
  GrowingTable<Record> table;
  ASSERT_TRUE(table.start(1'000'000, &region));
  ASSERT_EQ(table.reach(0, 1).end, 1u);
  char* base = reinterpret_cast<char*>(&table[0]);
  void* theirs = map_foreign(base + 2 * kMiB, kPage);
  std::size_t made = 0;
  std::vector<std::size_t> skipped;
  for (std::size_t number = 0; number < 200'000;) {
    const TableReach reach = table.reach(number, number + 1);
    if (reach.end == number + 1) {
      ASSERT_TRUE(table.has(number));
      ASSERT_EQ(table[number].words[2], 0u);
      table[number].words[2] = number;
      ++made;
      ++number;
      continue;
    }
    ASSERT_GT(reach.next, number) << "refused";
    for (; number < reach.next; ++number) {
      EXPECT_FALSE(table.has(number));
      skipped.push_back(number);
    }
  }
  EXPECT_FALSE(skipped.empty());
  EXPECT_LE(skipped.size() * sizeof(Record), 3 * kPage + 2 * sizeof(Record));
  EXPECT_EQ(made + skipped.size(), 200'000u);
  EXPECT_TRUE(is_untouched(theirs, kPage));
  table.destroy();
  munmap(theirs, kPage);
}

}  // namespace
}  // namespace spanalloc
