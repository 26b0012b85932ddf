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

#include "memory_return_access.hpp"
#include "os_calls.hpp"
#include "pages/coalescing_arena_test_support.hpp"
#include "random.hpp"
#include "standard/test_support.hpp"
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
// With what is free in the arena.
std::size_t kept_bytes() {
  return memory_return().kept_bytes();
}
// What the records say of pages that are gone.
std::size_t gone_by_records() {
  std::size_t pages = 0;
  E::pages.arena.walk([&](std::uint32_t first, std::size_t, bool free) {
    if (free) return;
    const auto span = E::pages.span(standard::SpanNumber{first});
    if (span->gone != 0) {
      EXPECT_LE(span->room() + span->gone * kPage, E::pages.slices_of(span).count * Classes::kSlice)
          << "no block reaches them";
    }
    pages += span->gone + standard::PageMask::pages(span->purged());
  });
  return pages;
}
std::size_t gone() {
  return standard::MemoryReturnTestAccess::gone(memory_return());
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

// What the kernel says, in files.
class FakeFiles {
 public:
  FakeFiles() {
    char name[] = "/tmp/spanalloc-files-XXXXXX";
    root_ = mkdtemp(name);
    standard::MemoryReturnTestAccess::group_root(memory_return()) = root_.c_str();
  }
  ~FakeFiles() { std::filesystem::remove_all(root_); }
  void set_huge_pages(const std::string& words) {
    write("/sys/kernel/mm/transparent_hugepage/enabled", words + "\n");
  }

 protected:
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

 private:
  std::string root_;
};

class FakeGroup : public FakeFiles {
 public:
  FakeGroup() {
    write("/proc/self/cgroup", "0::/a\n");
    write("/proc/self/mountinfo", "31 23 0:28 / /sys rw - cgroup2 cgroup2 rw\n");
    write("/sys/a/memory.stat", "inactive_file 0\n");
  }
  void set(std::size_t limit, std::size_t used) {
    write("/sys/a/memory.max", std::to_string(limit) + "\n");
    write("/sys/a/memory.current", std::to_string(used) + "\n");
  }
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
      most.held = std::max(most.held, kept_bytes());
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
    EXPECT_LE(with.held, kLimit + 4 * kMiB);
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
    EXPECT_LE(kept_bytes(), kLimit);
    E::deallocate(large);
    E::trim();
    expect_nothing_out();
  });
}

TEST(StandardNearLimit, WhatIsFreeNearItStaysUpToTheLimit) {
  in_fresh_process([] {
    E::set_soft_limit(kLimit);
    void* const most = touched(57 * kMiB);
    EXPECT_TRUE(is_near());
    EXPECT_TRUE(E::pages.arena.is_short());
    for (const std::size_t size : {40'000, 200'000, 900'000, 5'000'000}) {
      for (int i = 0; i < 30; ++i) {
        E::deallocate(touched(size));
        EXPECT_TRUE(E::thread_cache.cache->large_spans.is_empty());
        ASSERT_LE(held(), 57 * kMiB + 3 * 64 * kKiB) << size << " " << i;
        ASSERT_LE(kept_bytes(), kLimit) << size << " " << i;
      }
    }
    E::deallocate(touched(3'000'000));
    const std::size_t purged = E::pages.arena.statistics().purged_bytes;
    for (int i = 0; i < 30; ++i) E::deallocate(touched(3'000'000));
    EXPECT_LE(E::pages.arena.statistics().purged_bytes, purged + 3'000'000) << "it is used again";
    std::vector<void*> small = fill(3 * kMiB, 500);
    free_all(small);
    // (What the thread itself goes on with stays.)
    EXPECT_LE(held(), 57 * kMiB + 2 * kStep + Standard::kReadyBytes);
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
    EXPECT_LE(held(), 50 * kMiB + 2 * 64 * kKiB);
    void* const next = touched(10 * kMiB);
    EXPECT_LE(resident_bytes(), before + 3 * kMiB + kStep) << "it serves the next one";
    E::deallocate(next);
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
    EXPECT_LE(kept_bytes(), 8 * kMiB) << "at once";
    blocks = fill(20 * kMiB, 100'000);
    EXPECT_TRUE(is_near());
    E::set_soft_limit(0);
    EXPECT_EQ(E::soft_limit(), 0u);
    EXPECT_FALSE(is_near());
    free_all(blocks);
    EXPECT_GE(kept_bytes(), 15 * kMiB);
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
      if (i % 500 != 0) continue;
      ASSERT_TRUE(CoalescingArenaTestAccess::books_add_up(E::pages.arena)) << i;
      ASSERT_EQ(gone(), gone_by_records()) << i;
    }
    EXPECT_GE(held(), E::pages.outside.statistics().bytes);
    free_all(blocks);
    E::trim();
    EXPECT_TRUE(CoalescingArenaTestAccess::books_add_up(E::pages.arena));
    expect_nothing_out();
    EXPECT_EQ(E::pages.outside.bytes(), 0u);
    EXPECT_EQ(gone(), 0u);
  });
}

// Pages that went from spans in use count again when blocks on them are used.
TEST(StandardNearLimit, PagesThatAreGoneDoNotCount) {
  in_fresh_process(
      [] {
        E::set_soft_limit(kLimit);
        std::vector<void*> blocks = fill(60 * kMiB, 500);
        EXPECT_TRUE(is_near());
        const std::size_t before = held();
        std::vector<void*> left;
        for (std::size_t i = 0; i < blocks.size(); ++i) {
          if (i % 64 == 0) {
            left.push_back(blocks[i]);
          } else {
            E::deallocate(blocks[i]);
          }
        }
        for (unsigned i = 0; i < 10; ++i) {
          test::advance_clock(300);
          for (unsigned k = 0; k < 100; ++k) E::deallocate(touched(200'000));
        }
        EXPECT_EQ(gone(), gone_by_records());
        EXPECT_LE(held(), before / 4) << "one of eight pages has a block";
        EXPECT_FALSE(is_near());
        EXPECT_LE(resident_bytes(), held() + 2 * kMiB);
        std::vector<void*> again = fill(40 * kMiB, 500);
        EXPECT_EQ(gone(), gone_by_records());
        EXPECT_GE(held(), 40 * kMiB);
        free_all(again);
        free_all(left);
        E::trim();
        EXPECT_EQ(gone(), 0u);
        expect_nothing_out();
      },
      "500");
}

// Where a huge page may have brought it in all the same it counts.
TEST(StandardNearLimit, WhatHugePagesMayBringInCounts) {
  in_fresh_process([] {
    FakeFiles files;
    std::size_t counted = SIZE_MAX;
    for (const char* words : {"always madvise [never]", "always [madvise] never",
                              "[always] madvise never", "always inherit", ""}) {
      files.set_huge_pages(words);
      E::set_soft_limit(0);
      E::set_soft_limit(kLimit);
      const std::size_t before = held();
      std::vector<void*> blocks = fill(20 * kMiB, 70'000);
      const std::size_t after = held() - before;
      const bool may_bring = std::string(words).find("[madvise]") == std::string::npos &&
                             std::string(words).find("[never]") == std::string::npos;
      if (!may_bring) counted = after;
      EXPECT_LE(counted, 24 * kMiB) << words;
      EXPECT_TRUE(!may_bring || after >= counted + 10 * kMiB) << words << " " << after;
      EXPECT_EQ(gone(), gone_by_records());
      for (void* p : blocks) E::deallocate(p);
      E::trim();
    }
  });
}

// However much there was of it.
TEST(StandardNearLimit, WhatIsFreedBeyondItGoesBack) {
  for (const std::size_t size : {100, 1000, 10'000, 30'000, 60'000, 500'000, 3'000'000}) {
    SCOPED_TRACE(size);
    in_fresh_process([&] {
      E::set_soft_limit(kLimit);
      std::vector<void*> blocks = fill(2 * kLimit, size);
      EXPECT_GE(held(), 2 * kLimit - 4 * kMiB);
      free_all(blocks);
      EXPECT_LE(kept_bytes(), kLimit + kLimit / 16);
      EXPECT_LE(resident_bytes(), kLimit + kLimit / 16);
    });
  }
}

// What counts is no less than what is in memory, far from the limit, too.
TEST(StandardNearLimit, WhatIsInMemoryCounts) {
  in_fresh_process([] {
    FakeFiles files;
    files.set_huge_pages("always madvise [never]");
    E::set_soft_limit(kGiB);
    test::Random random{test::seed_of(13)};
    std::vector<void*> blocks(300);
    for (unsigned i = 0; i < 4000; ++i) {
      void*& p = blocks[random.below(blocks.size())];
      const std::size_t size = 30'000 + random.below(random.one_in(10) ? 2'000'000 : 150'000);
      if (random.one_in(3)) {
        p = Api::realloc(p, size);
      } else {
        E::deallocate(p);
        p = E::allocate(size);
      }
      std::memset(p, 1, random.one_in(2) ? Api::malloc_usable_size(p) : size);
      if (i % 100 == 0) {
        ASSERT_LE(resident_bytes(), kept_bytes() + E::pages.outside.bytes() + 20 * kPage) << i;
        ASSERT_EQ(gone(), gone_by_records()) << i;
      }
    }
    free_all(blocks);
    E::trim();
    expect_nothing_out();
  });
}

// To go through a span's free blocks pays where some were freed since the last time.
TEST(StandardNearLimit, ASpanIsGoneThroughWhenA16thWasFreed) {
  static standard::Span span;
  EXPECT_FALSE(span.wants_purge_near(160, 160));
  EXPECT_FALSE(span.wants_purge_near(151, 160));
  EXPECT_TRUE(span.wants_purge_near(150, 160));
  EXPECT_FALSE(span.wants_purge_near(150, 160));
  EXPECT_FALSE(span.wants_purge_near(141, 160));
  EXPECT_TRUE(span.wants_purge_near(100, 160));
  EXPECT_FALSE(span.wants_purge(100, true)) << "nor when time has passed, if none was freed since";
  // It was used in between: what is freed counts from there on.
  EXPECT_FALSE(span.wants_purge_near(140, 160));
  EXPECT_TRUE(span.wants_purge(140, true)) << "which was seen, and not purged";
  EXPECT_FALSE(span.wants_purge_near(131, 160));
  EXPECT_TRUE(span.wants_purge_near(130, 160));
  span.begin_to_own();
  EXPECT_FALSE(span.wants_purge_near(155, 160)) << "as a new one";
  EXPECT_TRUE(span.wants_purge_near(145, 160));
  // Few blocks: each one.
  static standard::Span few;
  EXPECT_FALSE(few.wants_purge_near(4, 4));
  EXPECT_TRUE(few.wants_purge_near(3, 4));
  EXPECT_TRUE(few.wants_purge_near(2, 4));
}

// A large block near the limit has no more room than it was asked for, and grows all the same.
TEST(StandardNearLimit, WhatIsAroundALargeBlockDoesNotCount) {
  in_fresh_process([] {
    FakeFiles files;
    files.set_huge_pages("always [madvise] never");
    E::set_soft_limit(kLimit);
    void* const most = touched(57 * kMiB);
    EXPECT_TRUE(is_near());
    test::Random random{test::seed_of(7)};
    for (unsigned round = 0; round < 200; ++round) {
      std::vector<char*> blocks(1 + random.below(20));
      std::size_t all = 0;
      const std::size_t before = held();
      std::vector<std::size_t> sizes;
      for (char*& p : blocks) {
        const std::size_t size = 33'000 + random.below(150'000);
        p = static_cast<char*>(touched(size));
        ASSERT_GE(Api::malloc_usable_size(p), size);
        ASSERT_TRUE(!is_near() || Api::malloc_usable_size(p) <= size + kPage);
        std::memset(p, 1, Api::malloc_usable_size(p));
        all += size + 3 * kPage;
        sizes.push_back(size);
      }
      ASSERT_TRUE(!is_near() || held() <= before + all) << round;
      ASSERT_EQ(gone(), gone_by_records());
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        const std::size_t more = sizes[i] + random.below(100'000);
        blocks[i] = static_cast<char*>(Api::realloc(blocks[i], more));
        ASSERT_NE(blocks[i], nullptr);
        ASSERT_EQ(blocks[i][sizes[i] - 1], 1);
        std::memset(blocks[i], 2, more);
      }
      ASSERT_EQ(gone(), gone_by_records());
      if (random.one_in(4)) E::set_soft_limit(random.one_in(2) ? 0 : kLimit);
      for (char* p : blocks) E::deallocate(p);
      ASSERT_EQ(gone(), gone_by_records());
    }
    E::deallocate(most);
    E::trim();
    EXPECT_EQ(gone(), 0u);
    expect_nothing_out();
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

TEST(StandardNearLimit, TheProgramIsToldAgainWithEachStepAndEpoch) {
  in_fresh_process(
      [] {
        Told told;
        E::set_soft_limit(kLimit);
        errno = 0;
        std::vector<void*> blocks = fill(80 * kMiB, 130'000);
        // From 56 MiB on; a step is 1 MiB, and some slices.
        EXPECT_GE(told.times, 18u);
        EXPECT_LE(told.times, 25u);
        EXPECT_EQ(errno, 0) << "malloc leaves it alone, whatever the function does";
        unsigned before = told.times;
        for (unsigned i = 0; i < 1000; ++i) E::deallocate(touched(130'000));
        EXPECT_LE(told.times, before + 1) << "it does not grow";
        for (unsigned i = 0; i < 10; ++i) {
          before = told.times;
          test::advance_clock(300);
          for (unsigned k = 0; k < 100; ++k) E::deallocate(touched(130'000));
          EXPECT_GE(told.times, before + 1) << "an epoch";
          EXPECT_LE(told.times, before + 2);
        }
        EXPECT_TRUE(E::is_near_soft_limit());
        free_all(blocks);
        EXPECT_FALSE(E::is_near_soft_limit());
        before = told.times;
        test::advance_clock(300);
        for (unsigned k = 0; k < 100; ++k) E::deallocate(touched(130'000));
        EXPECT_EQ(told.times, before);
      },
      "500");
}

// Caches of blocks of all sizes that drop a part of their entries, chosen at random, when they are
// told: where these are small, no page becomes free.
struct CacheShape {
  std::size_t least;
  std::size_t most;
  unsigned part;  // that is dropped: one in so many
};
std::size_t peak_of_cache(const CacheShape& shape, std::size_t bytes) {
  static std::atomic<bool> wanted;
  wanted = false;
  E::on_soft_limit([](void*, std::size_t, std::size_t) { wanted = true; }, nullptr);
  E::set_soft_limit(kLimit);
  test::Random random{test::seed_of(static_cast<unsigned>(shape.least + shape.part))};
  std::vector<void*> blocks;
  std::size_t peak = 0;
  std::size_t taken = 0;
  while (taken < bytes) {
    const std::size_t size = shape.least + random.below(shape.most - shape.least);
    taken += size;
    blocks.push_back(E::allocate(size));
    if (blocks.size() % 16 == 0) peak = std::max(peak, kept_bytes());
    if (!wanted.exchange(false)) continue;
    for (std::size_t drop = blocks.size() / shape.part + 1; drop != 0; --drop) {
      std::swap(blocks[random.below(blocks.size())], blocks.back());
      E::deallocate(blocks.back());
      blocks.pop_back();
    }
  }
  EXPECT_GE(blocks.size() * (shape.least + shape.most) / 2, kLimit / 3) << "it is a cache";
  free_all(blocks);
  return peak;
}
TEST(StandardNearLimit, ACacheThatDropsAPartWhenToldStaysWithinIt) {
  for (const CacheShape& shape :
       {CacheShape{16, 120, 4}, CacheShape{500, 3500, 4}, CacheShape{100, 900, 8},
        CacheShape{900, 1100, 2}, CacheShape{3000, 30'000, 4}, CacheShape{30'000, 90'000, 4},
        CacheShape{100'000, 2'000'000, 4}, CacheShape{40, 60'000, 4}}) {
    SCOPED_TRACE(testing::Message()
                 << shape.least << " to " << shape.most << ", one of " << shape.part);
    in_fresh_process([&] {
      EXPECT_LE(peak_of_cache(shape, (test::kUnderTsan || test::kEmulated ? 3 : 8) * kLimit),
                kLimit + kLimit / 16);
      E::trim();
      expect_nothing_out();
    });
  }
}

// Large blocks that are replaced at random: what is free serves the next ones, as far as the limit
// leaves room.
TEST(StandardNearLimit, ReplacedLargeBlocksUseAgainWhatIsFree) {
  const auto purged_part = [](std::size_t live, std::size_t& peak) {
    FakeFiles files;
    files.set_huge_pages("always madvise [never]");
    E::set_soft_limit(kLimit);
    test::Random random{test::seed_of(11)};
    std::vector<std::pair<void*, std::size_t>> blocks;
    std::size_t have = 0;
    std::size_t all = 0;
    for (unsigned phase = 0; phase < 8; ++phase) {
      const std::size_t least = 40'000u << phase % 4;
      for (unsigned i = 0; i < 1000; ++i) {
        const std::size_t size = least + random.below(3 * least);
        while (have + size > live) {
          std::swap(blocks[random.below(blocks.size())], blocks.back());
          E::deallocate(blocks.back().first);
          have -= blocks.back().second;
          blocks.pop_back();
        }
        blocks.emplace_back(touched(size), size);
        have += size;
        all += size;
        peak = std::max(peak, kept_bytes());
      }
    }
    const std::size_t purged = E::pages.arena.statistics().purged_bytes;
    for (const auto& [block, size] : blocks) E::deallocate(block);
    return static_cast<double>(purged) / static_cast<double>(all);
  };
  in_fresh_process([&] {
    std::size_t peak = 0;
    EXPECT_LE(purged_part(kLimit / 5 * 4, peak), 0.2);
    EXPECT_LE(peak, kLimit + kLimit / 16);
  });
  in_fresh_process([&] {
    std::size_t peak = 0;
    EXPECT_LE(purged_part(kLimit / 10 * 9, peak), 0.5);
    EXPECT_LE(peak, kLimit + kLimit / 16);
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
