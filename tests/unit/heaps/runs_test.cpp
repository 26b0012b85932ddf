// The memory of all heaps in a fork's child: what a call has in its hands when a signal handler
// forks, or when its thread vanishes.
#include "heaps/runs.hpp"

#include <gtest/gtest.h>
#include <spanalloc/spanalloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

#include "address_limit.hpp"
#include "child.hpp"
#include "os_calls.hpp"
#include "pages/coalescing_arena_test_support.hpp"
#include "runs_test_access.hpp"
#include "sanitizers.hpp"
#include "threads.hpp"

namespace spanalloc::heaps {
namespace {

constexpr std::size_t kLarge = 300 * kKiB;
static_assert(kLarge > HeapsConfig::kMostShared);

// A large block of a heap, all of it of one byte.
class Filled {
 public:
  Filled(sp_heap* heap, int fill)
      : p_(static_cast<char*>(sp_heap_malloc(heap, kLarge))), fill_(fill) {
    EXPECT_NE(p_, nullptr);
    if (p_ != nullptr) std::memset(p_, fill_, kLarge);
  }
  void* get() const { return p_; }
  bool is_whole() const {
    for (std::size_t i = 0; i < kLarge; ++i) {
      if (p_[i] != static_cast<char>(fill_)) return false;
    }
    return true;
  }

 private:
  char* p_;
  int fill_;
};

// Free ranges that nobody has purged, and beside each a run of a heap that is being destroyed: what
// a child's recovery gives back merges with what is free.
class Ranges {
 public:
  Ranges() {
    std::vector<Filled> go;
    for (int i = 0; i < 20; ++i) {
      go.emplace_back(heap_, i);
      (void)Filled(dying_, i);
      if (i % 4 == 0) stay_.emplace_back(heap_, i);
    }
    for (const Filled& block : go) sp_heap_free(heap_, block.get());
    // As in a thread that vanishes in destroy().
    const auto name = reinterpret_cast<std::uint64_t>(dying_);
    reinterpret_cast<Atomic<std::uint64_t>&>(*Heap::named(name)).store_relaxed(0);
  }
  // A range that is free twice would serve two blocks, or count twice.
  void expect_each_is_had_once() {
    EXPECT_TRUE(CoalescingArenaTestAccess::books_add_up(RunsTestAccess::arena()));
    std::vector<Filled> all;
    for (int i = 0; i < 60; ++i) all.emplace_back(heap_, 100 + i);
    for (const Filled& block : all) EXPECT_TRUE(block.is_whole());
    for (const Filled& block : stay_) EXPECT_TRUE(block.is_whole());
    for (const Filled& block : all) sp_heap_free(heap_, block.get());
    EXPECT_TRUE(CoalescingArenaTestAccess::books_add_up(RunsTestAccess::arena()));
  }

 private:
  sp_heap* const heap_ = sp_heap_create(nullptr, 0);
  sp_heap* const dying_ = sp_heap_create(nullptr, 0);
  std::vector<Filled> stay_;
};

void skip_if_forks_are_not_followed() {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
}

// Ranges are out of the arena's books while the kernel purges them.
TEST(Runs, ATrimThatAHandlersForkInterruptsRecovers) {
  skip_if_forks_are_not_followed();
  if (IsSkipped()) return;
  test::in_fresh_process([] {
    const test::RestingThread left_behind;
    Ranges ranges;
    {
      const test::BeforeEachCall handler(&test::HandlersForks::fork_here);
      EXPECT_TRUE(runs.trim());
    }
    ranges.expect_each_is_had_once();
    test::HandlersForks::expect_children_succeed();
  });
}

TEST(Runs, APurgeForTheBoundThatAHandlersForkInterruptsRecovers) {
  skip_if_forks_are_not_followed();
  if (IsSkipped()) return;
  test::in_fresh_process([] {
    const test::RestingThread left_behind;
    Ranges ranges;
    // An epoch has passed, and makes them old; with the next one they go.
    for (int i = 0; i < 2; ++i) {
      test::advance_clock(HeapsConfig::kEpochMs);
      if (i == 0) runs.keep_bound();
    }
    {
      const test::BeforeEachCall handler(&test::HandlersForks::fork_here);
      runs.keep_bound();
    }
    ranges.expect_each_is_had_once();
    test::HandlersForks::expect_children_succeed();
  });
}

// What is given back at a memory limit is decommitted at once, which is a call of the kernel's.
TEST(Runs, ARecoveryThatAHandlersForkInterruptsRecovers) {
  skip_if_forks_are_not_followed();
  if (IsSkipped()) return;
  test::in_fresh_process([] {
    const test::RestingThread left_behind;
    Ranges ranges;
    RunsTestAccess::set_at_limit(true);
    RunsTestAccess::inside().store_relaxed(1);  // as of a thread that vanishes
    static const pid_t parent = getpid();
    static bool is_recovered = false;
    const test::BeforeEachCall handler([] {
      if (getpid() != parent && !is_recovered) test::HandlersForks::fork_here();
    });
    EXPECT_EQ(test::run_in_child([&] {
                is_recovered = true;
                RunsTestAccess::set_at_limit(false);
                ranges.expect_each_is_had_once();
                test::HandlersForks::expect_children_succeed();
                return testing::Test::HasFailure() ? 1 : 0;
              }),
              0);
  });
}

// As StandardSpanTable's test of this name.
TEST(Runs, RecordsThatAreRefusedBehindAGapOfAnotherTableAreNotThere) {
  if (test::kUnderAsan || test::kUnderTsan || test::kEmulated) {
    GTEST_SKIP() << "limits addresses";
  }
  test::in_fresh_process([] {
    ASSERT_TRUE(runs.start());
    Runs::Arena& arena = RunsTestAccess::arena();
    constexpr TableReach kGap{1000, 100'000};
    const auto reach_around_gap = [&](std::size_t end) {
      return end <= kGap.end || arena.limit() >= kGap.next ? TableReach{end, end} : kGap;
    };
    ASSERT_EQ(RunsTestAccess::make_records(kGap.end).end, kGap.end);
    while (arena.limit() < kGap.next) {
      ASSERT_NE(arena.take_growing(50, 1, reach_around_gap).first, 0u);
    }
    ASSERT_TRUE(test::leave_address_space(0));
    const std::size_t wanted = arena.limit() + 50;
    ASSERT_LT(RunsTestAccess::make_records(wanted).end, wanted) << "nothing was refused";
    for (Slice slice = 1; slice < wanted; ++slice) {
      if (!runs.contains(runs.address(slice))) continue;
      EXPECT_EQ(runs[slice].owner.load_relaxed(), 0u);  // can be read
    }
  });
}

// What a call is inside of while it waits for the lock of a heap's shard, which a visitor has.
std::uint32_t inside_of_a_resize(std::size_t from, std::size_t to) {
  struct Look {
    sp_heap* heap = sp_heap_create(nullptr, 0);
    void* block = nullptr;
    std::size_t to = 0;
    std::uint32_t inside = 0;
    std::thread resizes;
  } look;
  look.block = sp_heap_malloc(look.heap, from);
  look.to = to;
  sp_heap_visit(
      look.heap,
      [](void*, std::size_t, void* context) {
        Look& of = *static_cast<Look*>(context);
        const std::size_t yields_before = test::yields();
        of.resizes = std::thread([&of] { of.block = sp_heap_realloc(of.heap, of.block, of.to); });
        while (test::yields() == yields_before) std::this_thread::yield();
        of.inside = RunsTestAccess::inside().load_relaxed();
      },
      &look);
  look.resizes.join();
  EXPECT_NE(look.block, nullptr);
  sp_heap_destroy(look.heap);
  return look.inside;
}

// A large block's resize changes its run. That of another one stays in a run that its shard has.
TEST(Runs, AResizeIsInsideIfTheBlockIsLarge) {
  EXPECT_EQ(inside_of_a_resize(kLarge, 2 * kLarge), 1u);
  EXPECT_EQ(inside_of_a_resize(2 * kLarge, kLarge), 1u);
  EXPECT_EQ(inside_of_a_resize(100, 50), 0u);
  EXPECT_EQ(inside_of_a_resize(50, 100), 0u);
  EXPECT_EQ(RunsTestAccess::inside().load_relaxed(), 0u);
}

}  // namespace
}  // namespace spanalloc::heaps
