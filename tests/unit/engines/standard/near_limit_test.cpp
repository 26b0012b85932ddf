// What the heap does near its soft limit, and what counts against that.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "engines/standard/test_support.hpp"
#include "memory_return_access.hpp"
#include "os_calls.hpp"
#include "pages/coalescing_arena_test_support.hpp"
#include "random.hpp"
#include "threads.hpp"

namespace spanalloc::large {
namespace {

constexpr std::size_t kLimit =
    64 * kMiB;  // near from 56 MiB on, far from 48 MiB on; steps of 1 MiB
constexpr std::size_t kStep = kMiB;

auto& memory_return() {
  return E::pages.memory_return;
}
std::size_t held() {
  return memory_return().held_bytes();
}
bool is_near() {
  return memory_return().soft_limit.is_near();
}
std::size_t resident_bytes() {
  std::size_t pages = 0;
  E::pages.arena.walk([&](std::uint32_t first, std::size_t slices, bool) {
    pages +=
        resident_pages(E::pages.address(standard::SpanNumber{first}), slices * Classes::kSlice);
  });
  return pages * os::page_size();
}
void* touched(std::size_t size) {
  void* p = E::allocate(size);
  EXPECT_NE(p, nullptr);
  for (std::size_t at = 0; at < size; at += kPage) static_cast<char*>(p)[at] = 1;
  return p;
}

class FakeGroup {
 public:
  FakeGroup() {
    char name[] = "/tmp/spanalloc-group-XXXXXX";
    root_ = mkdtemp(name);
    write("/proc/self/cgroup", "0::/a\n");
    write("/proc/self/mountinfo", "31 23 0:28 / /sys rw - cgroup2 cgroup2 rw\n");
    write("/sys/a/memory.stat", "inactive_file 0\n");
    standard::MemoryReturnTestAccess::group_root(memory_return()) = root_.c_str();
  }
  ~FakeGroup() { std::filesystem::remove_all(root_); }
  void set(std::size_t limit, std::size_t used) {
    write("/sys/a/memory.max", std::to_string(limit) + "\n");
    write("/sys/a/memory.current", std::to_string(used) + "\n");
  }

 private:
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  std::string root_;
};

// Phases of blocks of different sizes, most of which go before the next phase begins; no more than
// half of the limit is live at once. The most that is held, and that is in memory.
struct Peaks {
  std::size_t held = 0;
  std::size_t resident = 0;
};
Peaks churn_of_changing_sizes() {
  Peaks most;
  std::vector<void*> kept;
  test::Random random{test::seed_of(1)};
  for (const std::size_t size : {100, 3000, 24'000, 600, 70'000, 300'000, 1200, 3'000'000, 9000}) {
    std::vector<void*> blocks;
    for (std::size_t bytes = 0; bytes < 30 * kMiB; bytes += size) {
      blocks.push_back(touched(size));
      most.held = std::max(most.held, held());
      if (random.one_in(30 * kMiB / size / 16 + 2))
        most.resident = std::max(most.resident, resident_bytes());
    }
    most.resident = std::max(most.resident, resident_bytes());
    // A few stay, so that their spans do.
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (random.one_in(10'000 / (size / 100 + 1) + 40)) {
        kept.push_back(blocks[i]);
      } else {
        E::deallocate(blocks[i]);
      }
    }
  }
  free_all(kept);
  return most;
}

TEST(StandardNearLimit, AChurnOfChangingSizesStaysWithinIt) {
  in_fresh_process([] {
    const Peaks without = churn_of_changing_sizes();
    E::trim();
    E::set_soft_limit(kLimit);
    const Peaks with = churn_of_changing_sizes();
    EXPECT_GT(without.resident, kLimit + 8 * kMiB) << "else the limit is no limit";
    EXPECT_LE(with.resident, kLimit);
    // (Spans that a few blocks pin count whole, also where most of their pages are gone.)
    EXPECT_GT(without.held, kLimit + 16 * kMiB);
    EXPECT_LE(with.held, kLimit + 8 * kMiB);
    E::trim();
    expect_nothing_out();
  });
}

// What threads and pools keep goes before more is taken.
TEST(StandardNearLimit, OneLargeBlockTakesThePlaceOfManySmallOnes) {
  in_fresh_process([] {
    E::set_soft_limit(kLimit);
    std::vector<void*> blocks = fill(44 * kMiB, 1000);
    free_all(blocks);
    EXPECT_GE(held(), 40 * kMiB) << "far from the limit it is kept";
    EXPECT_FALSE(is_near());
    void* const large = touched(40 * kMiB);
    // One call gives back a part, and the calls that follow the rest.
    EXPECT_LE(held(), 56 * kMiB);
    E::deallocate(large);
    E::trim();
    expect_nothing_out();
  });
}

TEST(StandardNearLimit, NothingIsKeptNearIt) {
  in_fresh_process([] {
    E::set_soft_limit(kLimit);
    void* const most = touched(57 * kMiB);
    EXPECT_TRUE(is_near());
    EXPECT_TRUE(E::pages.arena.is_short());
    for (const std::size_t size : {40'000, 200'000, 900'000, 5'000'000}) {
      for (int i = 0; i < 30; ++i) {
        E::deallocate(touched(size));
        EXPECT_TRUE(E::thread_cache.cache->large_spans.is_empty());
        ASSERT_LE(held(), 57 * kMiB + kStep + 5'100'000) << size << " " << i;
      }
    }
    std::vector<void*> small = fill(3 * kMiB, 500);
    free_all(small);
    // (What the thread itself goes on with stays.)
    EXPECT_LE(held(), 57 * kMiB + 2 * kStep + Standard::kUsedUpBytes);
    E::deallocate(most);
    E::deallocate(touched(2 * kMiB));
    EXPECT_FALSE(is_near());
    EXPECT_FALSE(E::pages.arena.is_short());
    E::deallocate(touched(200'000));
    EXPECT_FALSE(E::thread_cache.cache->large_spans.is_empty()) << "far from it it is kept again";
  });
}

TEST(StandardNearLimit, WhatABlockLosesInItsPlaceGoesBack) {
  in_fresh_process([] {
    E::set_soft_limit(kLimit);
    char* const most = static_cast<char*>(touched(57 * kMiB));
    EXPECT_TRUE(is_near());
    const std::size_t before = resident_bytes();
    ASSERT_EQ(E::resize(most, 50 * kMiB).block, most);
    EXPECT_LE(resident_bytes(), before - 7 * kMiB + kStep);
    E::deallocate(most);
  });
}

// A thread that has vanished had noted what is wanted, and not set the limit yet.
TEST(StandardNearLimit, AChildAdoptsALimitThatItsParentWasAdopting) {
  in_fresh_process([] {
    E::deallocate(E::allocate(1));
    memory_return().want_soft_limit(kLimit);
    standard::MemoryReturnTestAccess::adopted_limit(memory_return()).store_relaxed(kLimit);
    const pid_t child = fork();
    if (child == 0) {
      (void)touched(40 * kMiB);
      const bool is_far = !is_near();
      (void)touched(17 * kMiB);
      _exit(is_far && is_near() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  });
}

// Whatever the parent had, the child may want any other.
TEST(StandardNearLimit, AChildMaySetEachLimit) {
  if (test::kUnderTsan || test::kUnderAsan) GTEST_SKIP() << "forks of threaded programs";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  constexpr std::size_t kLimits[] = {0, kLimit, 1, E::kLimitOfGroup};
  for (const std::size_t before : kLimits) {
    for (const std::size_t wanted : kLimits) {
      in_fresh_process([&] {
        FakeGroup group;
        group.set(160 * kMiB, 159 * kMiB);
        (void)touched(60 * kMiB);
        E::set_soft_limit(before);
        test::in_threads(2, [&](unsigned n) {
          if (n != 0) return;
          const pid_t child = fork();
          if (child == 0) {
            E::set_soft_limit(wanted);
            _exit(is_near() == (wanted != 0) ? 0 : 1);
          }
          int status = 0;
          ASSERT_EQ(waitpid(child, &status, 0), child);
          EXPECT_EQ(status, 0) << before << " " << wanted;
        });
      });
    }
  }
}

TEST(StandardNearLimit, NothingIsRefusedBeyondIt) {
  in_fresh_process([] {
    E::set_soft_limit(kMiB);
    std::vector<void*> blocks = fill(100 * kMiB, 300'000);
    std::vector<void*> small = fill(20 * kMiB, 200);
    EXPECT_GE(held(), 120 * kMiB);
    free_all(small);
    free_all(blocks);
    E::trim();
    EXPECT_LE(held(), 2 * kMiB);
    expect_nothing_out();
  });
}

TEST(StandardNearLimit, AProgramMaySetAnotherOneAtAnyTime) {
  in_fresh_process([] {
    EXPECT_EQ(E::soft_limit(), 0u);
    std::vector<void*> blocks = fill(60 * kMiB, 100'000);
    free_all(blocks);
    EXPECT_GE(held(), 20 * kMiB);
    E::set_soft_limit(8 * kMiB);
    EXPECT_EQ(E::soft_limit(), 8 * kMiB);
    EXPECT_LE(held(), 8 * kMiB) << "at once";
    blocks = fill(20 * kMiB, 100'000);
    EXPECT_TRUE(is_near());
    E::set_soft_limit(0);
    EXPECT_EQ(E::soft_limit(), 0u);
    EXPECT_FALSE(is_near());
    free_all(blocks);
    EXPECT_GE(held(), 15 * kMiB);
  });
}

TEST(StandardNearLimit, TheOptionHoldsUntilTheProgramSaysOtherwise) {
  test::in_fresh_process([] {
    setenv("SPANALLOC_SOFT_LIMIT", "3M", 1);
    E::deallocate(E::allocate(1));
    EXPECT_EQ(E::soft_limit(), 3 * kMiB);
    E::set_soft_limit(5);
    EXPECT_EQ(E::soft_limit(), 5u);
  });
  test::in_fresh_process([] {
    setenv("SPANALLOC_SOFT_LIMIT", "3M", 1);
    E::set_soft_limit(0);
    E::deallocate(E::allocate(1));
    EXPECT_EQ(E::soft_limit(), 0u) << "what was said before the heap began";
  });
}

// --- The books -----------------------------------------------------------------------------------

TEST(StandardNearLimit, WhatIsHeldAddsUp) {
  in_fresh_process([] {
    test::Random random{test::seed_of(2)};
    std::vector<void*> blocks(500);
    for (unsigned i = 0; i < 20'000; ++i) {
      void*& p = blocks[random.below(blocks.size())];
      const std::size_t size = random.one_in(20) ? random.below(8 * kMiB) : random.below(80'000);
      switch (random.below(8)) {
        case 0:
          p = Api::realloc(p, size + 1);
          break;
        case 1:
          E::deallocate(p);
          p = Api::calloc(1, size);
          break;
        default:
          E::deallocate(p);
          p = E::allocate(size);
      }
      if (random.one_in(2000)) E::trim();
      if (random.one_in(3000)) E::set_soft_limit(random.below(2) * 100 * kMiB);
      if (random.one_in(500)) test::advance_clock(300);
      ASSERT_TRUE(i % 1000 != 0 || CoalescingArenaTestAccess::books_add_up(E::pages.arena)) << i;
    }
    EXPECT_GE(held(), E::pages.outside.statistics().bytes);
    free_all(blocks);
    E::trim();
    EXPECT_TRUE(CoalescingArenaTestAccess::books_add_up(E::pages.arena));
    expect_nothing_out();
    EXPECT_EQ(E::pages.outside.bytes(), 0u);
  });
}

// What threads were in the middle of when the process forked is counted anew.
TEST(StandardNearLimit, WhatIsHeldAddsUpInAForksChild) {
  in_fresh_process([] {
    E::process_start();  // as a library does: a fork in the middle of the start has no handlers yet
    E::set_soft_limit(kLimit);
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        test::Random random{test::seed_of(3 + t)};
        std::vector<void*> blocks(50);
        while (!stop) {
          void*& p = blocks[random.below(blocks.size())];
          E::deallocate(p);
          p = E::allocate(random.below(600'000));
        }
        free_all(blocks);
      });
    }
    int ended = 0;
    for (unsigned i = 0; ended == 0 && i < (test::kUnderTsan ? 3 : 30); ++i) {
      ended = test::run_in_child([] {
        E::deallocate(E::allocate(100));
        E::deallocate(E::allocate(3 * kMiB));
        E::trim();
        return CoalescingArenaTestAccess::books_add_up(E::pages.arena) ? 0 : 1;
      });
    }
    stop = true;
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(ended, 0);
    E::trim();
    EXPECT_TRUE(CoalescingArenaTestAccess::books_add_up(E::pages.arena));
  });
}

// --- The program's function ----------------------------------------------------------------------

struct Told {
  std::atomic<unsigned> times{0};
  std::atomic<std::size_t> held{0};
  std::vector<void*>* frees = nullptr;

  Told() { E::on_soft_limit(&Told::tell, this); }
  static void tell(void* context, std::size_t held, std::size_t limit) {
    Told& self = *static_cast<Told*>(context);
    EXPECT_EQ(limit, kLimit);
    EXPECT_FALSE(memory_return().purge_lock.is_mine());
    ++self.times;
    self.held = held;
    // What a cache would do, and more: all of that is served.
    void* p = E::allocate(200'000);
    E::deallocate(p);
    if (self.frees != nullptr) free_all(*self.frees);
    errno = EBADF;
  }
};

TEST(StandardNearLimit, TheProgramIsToldOnceEachTimeItComesNear) {
  in_fresh_process([] {
    Told told;
    E::set_soft_limit(kLimit);
    std::vector<void*> blocks;
    told.frees = &blocks;
    for (unsigned round = 1; round <= 3; ++round) {
      blocks = fill(50 * kMiB, 130'000);
      EXPECT_EQ(told.times, round - 1) << "not yet near";
      // (A block at a time, as the function frees them.)
      for (unsigned i = 0; i < 200 && told.times < round; ++i) blocks.push_back(touched(130'000));
      EXPECT_EQ(told.times, round);
      EXPECT_GE(told.held, 48 * kMiB);
      EXPECT_LE(told.held, kLimit);
      EXPECT_TRUE(blocks.size() <= 1) << "it has freed them";
      free_all(blocks);
      E::trim();
    }
  });
}

TEST(StandardNearLimit, TheProgramIsNotToldAgainWhileItStaysNear) {
  in_fresh_process([] {
    Told told;
    E::set_soft_limit(kLimit);
    errno = 0;
    std::vector<void*> blocks = fill(80 * kMiB, 130'000);
    EXPECT_EQ(told.times, 1u);
    EXPECT_EQ(errno, 0) << "malloc leaves it alone, whatever the function does";
    for (unsigned i = 0; i < 1000; ++i) E::deallocate(touched(130'000));
    EXPECT_EQ(told.times, 1u);
    free_all(blocks);
  });
}

// What is only kept goes by itself.
TEST(StandardNearLimit, TheProgramIsNotToldOfMemoryThatWasFree) {
  in_fresh_process([] {
    Told told;
    E::set_soft_limit(kLimit);
    for (const std::size_t size : {1000, 20'000, 300'000, 3'000'000, 50'000}) {
      std::vector<void*> blocks = fill(40 * kMiB, size);
      free_all(blocks);
    }
    EXPECT_EQ(told.times, 0u);
  });
}

TEST(StandardNearLimit, ARequestThatCannotBeMetIsNoReasonToCall) {
  in_fresh_process([] {
    Told told;
    E::set_soft_limit(kLimit);
    E::deallocate(E::allocate(3 * kMiB));
    EXPECT_EQ(E::allocate(PTRDIFF_MAX / 2), nullptr);
    std::vector<void*> blocks = fill(2 * kMiB, 1000);
    EXPECT_EQ(told.times, 0u);
    EXPECT_FALSE(is_near());
    // Nor does it put off what is due.
    std::vector<void*> more = fill(kLimit - kLimit / 16, 100'000);
    EXPECT_TRUE(is_near());
    free_all(blocks);
    free_all(more);
  });
}

TEST(StandardNearLimit, ThreadsThatComeNearAtOnce) {
  in_fresh_process([] {
    Told told;
    E::set_soft_limit(kLimit);
    const std::size_t each = test::kUnderTsan ? 18 * kMiB : 20 * kMiB;
    for (unsigned round = 0; round < 3; ++round) {
      std::vector<std::thread> threads;
      std::latch all_hold(4);
      for (unsigned t = 0; t < 4; ++t) {
        threads.emplace_back([each, t, &all_hold] {
          std::vector<void*> blocks = fill(each, 30'000 + t * 40'000);
          all_hold.arrive_and_wait();
          for (unsigned i = 0; i < 200; ++i) E::deallocate(E::allocate(100 + i * 5000));
          free_all(blocks);
        });
      }
      for (std::thread& thread : threads) thread.join();
      E::trim();
      EXPECT_FALSE(is_near());
    }
    EXPECT_GE(told.times, 1u);
    EXPECT_TRUE(CoalescingArenaTestAccess::books_add_up(E::pages.arena));
    expect_nothing_out();
  });
}

// --- The control group ---------------------------------------------------------------------------

TEST(StandardNearLimit, TheGroupsLimitIsReadAgainAsItChanges) {
  in_fresh_process([] {
    FakeGroup group;
    group.set(160 * kMiB, 100 * kMiB);
    E::deallocate(E::allocate(1));
    E::set_soft_limit(E::kLimitOfGroup);
    const std::size_t before = held();
    EXPECT_EQ(E::soft_limit(), before + 60 * kMiB);
    std::vector<void*> blocks = fill(30 * kMiB, 130'000);
    EXPECT_FALSE(is_near());
    // Others take what was left, which shows when the group is read again.
    group.set(160 * kMiB, 150 * kMiB);
    E::deallocate(touched(2 * kMiB));
    EXPECT_FALSE(is_near());
    test::advance_clock(1'001);
    standard::MemoryReturnTestAccess::next_purge(memory_return()).store_relaxed(0);
    E::deallocate(touched(2 * kMiB));
    EXPECT_TRUE(is_near());
    EXPECT_LE(E::soft_limit(), held() + 13 * kMiB);
    // The group may have more.
    group.set(kGiB, 150 * kMiB);
    test::advance_clock(1'001);
    standard::MemoryReturnTestAccess::next_purge(memory_return()).store_relaxed(0);
    E::deallocate(touched(2 * kMiB));
    EXPECT_FALSE(is_near());
    free_all(blocks);
  });
}

// However little time that takes.
TEST(StandardNearLimit, TheGroupIsReadAgainWithWhatIsTaken) {
  in_fresh_process([] {
    FakeGroup group;
    group.set(160 * kMiB, 100 * kMiB);
    E::deallocate(E::allocate(1));
    E::set_soft_limit(E::kLimitOfGroup);
    group.set(160 * kMiB, 159 * kMiB);
    std::vector<void*> blocks = fill(15 * kMiB, 130'000);
    EXPECT_FALSE(is_near());
    std::vector<void*> more = fill(8 * kMiB, 130'000);
    EXPECT_TRUE(is_near());
    free_all(blocks);
    free_all(more);
  });
}

}  // namespace
}  // namespace spanalloc::large
