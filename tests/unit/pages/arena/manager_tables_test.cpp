#include "pages/arena/manager_tables.hpp"

#include <gtest/gtest.h>

#include "pages/coalescing/manager.hpp"
#include "pages/config.hpp"
#include "pages/page_calls.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc {
namespace {

using coalescing::Block;

/// Slices of a range that opens what it is told to, and counts questions.
struct FakeSlices {
  using Calls = PageCalls;
  using Manager = coalescing::CoalescingManager<FakeSlices>;
  static constexpr std::size_t kSlice = 64 * kKiB;
  struct Range {
    std::size_t capacity() const { return std::size_t{1} << 20; }
    std::uintptr_t base() const { return capacity() * kSlice; }
    std::size_t opened() const { return end; }
    bool has_skipped_behind(std::size_t) const { return false; }
    bool is_locked() { return ++questions, false; }
    bool skip_to(std::size_t to) { return end = max_of(end, to), true; }
    void decommit_for_ever(Block) {}
    std::size_t end = 1;
    unsigned questions = 0;
  };
  struct Memo {
    void memory_came_back() {}
  };

  bool pause() { return true; }
  bool purge(Block) { return true; }
  void mark_lost(Block) {}
  void forget_lost_mark(std::size_t) {}
  bool has_room_for_gap() const { return true; }
  bool add_gap(Block gap) { return manager.extend_used(gap.size); }

  Range range;
  Manager manager{*this};
  WakingLock grow_lock;
  Memo refused;
};

TEST(ManagerTables, AskOnceWhetherMemoryIsLockedAndOnlyToOpen) {
  FakeSlices slices;
  ManagerTables<FakeSlices> tables(slices);
  ASSERT_TRUE(tables.start());
  EXPECT_EQ(slices.range.questions, 1u) << "for all tables";
  LockGuard guard(slices.grow_lock);
  const auto reaches = [](std::size_t end) { return TableReach{end, end}; };
  slices.range.end = 2;
  ASSERT_TRUE(tables.book_opened(reaches));
  EXPECT_EQ(slices.range.questions, 1u) << "they are open that far";
  // Something is in the way of the caller's own table.
  slices.range.end = 3;
  ASSERT_TRUE(tables.book_opened([](std::size_t) { return TableReach{2, 4}; }));
  EXPECT_EQ(slices.manager.limit(), 5u);
  EXPECT_EQ(slices.range.questions, 1u) << "the row of the gap's end is there";
  slices.range.end = slices.range.capacity();
  ASSERT_TRUE(tables.book_opened(reaches));
  EXPECT_EQ(slices.manager.limit(), slices.range.capacity());
  EXPECT_EQ(slices.range.questions, 2u);
  tables.destroy();
}

}  // namespace
}  // namespace spanalloc
