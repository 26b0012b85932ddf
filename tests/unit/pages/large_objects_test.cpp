#include "pages/large_objects.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <latch>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "address_limit.hpp"
#include "memory_pattern.hpp"
#include "sanitizers.hpp"
#include "seed_report.hpp"
#include "threads.hpp"

namespace spanalloc {
namespace {

// The kernel, with a switch for each call that makes it refuse.
struct FailingCalls : LargeObjectCalls {
  static inline bool refuse_map = false;
  static inline bool refuse_remap = false;
  static inline std::size_t grants_at_most = SIZE_MAX;
  static inline unsigned questions = 0;
  static inline long maps = 0;  // mappings held
  static inline std::function<void()> before_remap;
  static void* map(std::size_t bytes, std::size_t alignment) {
    if (refuse_map) return nullptr;
    void* p = LargeObjectCalls::map(bytes, alignment);
    if (p != nullptr) ++maps;
    return p;
  }
  static void* remap(void* p, std::size_t old_bytes, std::size_t new_bytes) {
    if (before_remap) before_remap();
    return refuse_remap ? nullptr : LargeObjectCalls::remap(p, old_bytes, new_bytes);
  }
  static void release(void* p, std::size_t bytes) {
    --maps;
    LargeObjectCalls::release(p, bytes);
  }
  static bool would_grant(std::size_t bytes) {
    ++questions;
    return bytes <= grants_at_most;
  }
};

// What grows always moves, always to an address that was just in use: the order of table
// updates and system calls shows.
struct MovingCalls : LargeObjectCalls {
  static void* remap(void* p, std::size_t old_bytes, std::size_t new_bytes) {
    if (new_bytes < old_bytes) return LargeObjectCalls::remap(p, old_bytes, new_bytes);
    void* fresh = os::map(new_bytes, 1);
    if (fresh == nullptr) return nullptr;
    std::memcpy(fresh, p, min_of(old_bytes, new_bytes));
    os::release(p, old_bytes);
    return fresh;
  }
};

TEST(LargeObjects, GivesZeroedWholePagesAtAnyAlignment) {
  LargeObjects<> objects;
  const std::size_t page = os::page_size();
  for (std::size_t alignment = 1; alignment <= 64 * kMiB; alignment *= 4) {
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{1}, page, page + 1, std::size_t{3 * kMiB}}) {
      auto* p = static_cast<char*>(objects.allocate(size, alignment));
      ASSERT_NE(p, nullptr);
      EXPECT_EQ(address_of(p) % max_of(alignment, page), 0u);
      const std::size_t usable = objects.usable_size(p);
      EXPECT_EQ(usable, align_up(max_of(size, 1), page));
      ASSERT_EQ(test::first_nonzero(p, usable), usable);
      std::memset(p, 1, usable);
      EXPECT_TRUE(objects.free(p));
    }
  }
  EXPECT_EQ(objects.statistics().objects, 0u);
  EXPECT_EQ(objects.statistics().bytes, 0u);
}

TEST(LargeObjects, KnowsExactlyItsOwnAddresses) {
  LargeObjects<> objects;
  EXPECT_EQ(objects.usable_size(&objects), 0u) << "an empty table answers";
  EXPECT_FALSE(objects.free(nullptr));
  auto* p = static_cast<char*>(objects.allocate(2 * kMiB, 16));
  EXPECT_FALSE(objects.free(p + 16));
  EXPECT_FALSE(objects.free(p + os::page_size()));
  EXPECT_EQ(objects.usable_size(p + os::page_size()), 0u);
  EXPECT_EQ(objects.resize(p + os::page_size(), kMiB), nullptr);
  EXPECT_FALSE(objects.free(nullptr));
  EXPECT_TRUE(objects.free(p));
  EXPECT_FALSE(objects.free(p)) << "double free";
}

// Each move leaves a grave, and takes a slot elsewhere: were graves not counted, the table would
// have no empty slot in the end, and a search for an address that is not there none to stop at.
TEST(LargeObjects, MovesDoNotFillTheTableWithGraves) {
  // To a new place each time: nobody gets the old one until the end.
  struct Calls : LargeObjectCalls {
    static std::vector<std::pair<void*, std::size_t>>& left() {
      static std::vector<std::pair<void*, std::size_t>> all;
      return all;
    }
    static void* remap(void* p, std::size_t old_bytes, std::size_t new_bytes) {
      void* fresh = os::map(new_bytes, 1);
      if (fresh != nullptr) left().emplace_back(p, old_bytes);
      return fresh;
    }
  };
  const std::size_t page = os::page_size();
  LargeObjects<Calls> objects;
  std::vector<void*> all(page / 36);
  for (void*& p : all) ASSERT_NE(p = objects.allocate(page, 1), nullptr);
  for (unsigned round = 0; round < 100; ++round) {
    const std::size_t size = page * (1 + round % 2);
    for (void*& p : all) ASSERT_NE(p = objects.resize(p, size + page), nullptr);
    for (void*& p : all) ASSERT_EQ(objects.usable_size(p), size + page);
    ASSERT_EQ(objects.usable_size(static_cast<char*>(all[0]) + 1), 0u);
  }
  for (void* p : all) EXPECT_TRUE(objects.free(p));
  for (const auto& [p, bytes] : Calls::left()) os::release(p, bytes);
  EXPECT_EQ(objects.statistics().objects, 0u);
}

TEST(LargeObjects, RefusesImpossibleSizes) {
  LargeObjects<> objects;
  EXPECT_EQ(objects.allocate(SIZE_MAX, 16), nullptr);
  EXPECT_EQ(objects.allocate(SIZE_MAX / 2 + 1, 16), nullptr);
  EXPECT_EQ(objects.allocate(std::size_t{1} << 60, 16), nullptr);
  EXPECT_EQ(objects.allocate(1, std::size_t{1} << 63), nullptr);
  void* p = objects.allocate(100, 16);
  EXPECT_EQ(objects.resize(p, SIZE_MAX), nullptr);
  EXPECT_EQ(objects.resize(p, std::size_t{1} << 60), nullptr);
  EXPECT_EQ(objects.usable_size(p), os::page_size());
  EXPECT_TRUE(objects.free(p));
}

TEST(LargeObjects, ResizeKeepsContentsAndZeroesTheRest) {
  LargeObjects<> objects;
  const std::size_t page = os::page_size();
  auto* p = static_cast<unsigned char*>(objects.allocate(4 * page, 16));
  std::memset(p, 0xAB, 4 * page);
  void* wall = os::map(64 * page, page);  // something that may stand in the way
  auto* q = static_cast<unsigned char*>(objects.resize(p, 512 * page));
  ASSERT_NE(q, nullptr);
  EXPECT_EQ(objects.usable_size(q), 512 * page);
  if (q != p) {
    EXPECT_EQ(objects.usable_size(p), 0u);
  }
  for (std::size_t i = 0; i < 4 * page; ++i) ASSERT_EQ(q[i], 0xAB);
  for (std::size_t i = 4 * page; i < 512 * page; ++i) ASSERT_EQ(q[i], 0);
  auto* r = static_cast<unsigned char*>(objects.resize(q, page));
  EXPECT_EQ(r, q) << "shrinking is in place";
  EXPECT_EQ(objects.statistics().bytes, page);
  EXPECT_TRUE(objects.free(r));
  os::release(wall, 64 * page);
}

TEST(LargeObjects, AlignedObjectsDoNotMove) {
  LargeObjects<MovingCalls> objects;
  void* p = objects.allocate(kMiB, 4 * kMiB);
  EXPECT_EQ(objects.resize(p, 8 * kMiB), nullptr);
  EXPECT_EQ(objects.usable_size(p), kMiB);
  void* plain = objects.allocate(kMiB, 16);
  void* moved = objects.resize(plain, 8 * kMiB);
  ASSERT_NE(moved, nullptr);
  EXPECT_NE(moved, plain);
  EXPECT_TRUE(objects.free(moved));
  EXPECT_TRUE(objects.free(p));
}

TEST(LargeObjects, RefusedCallsChangeNothing) {
  using Failing = FailingCalls;
  LargeObjects<Failing> objects;
  const long maps_before = Failing::maps;
  Failing::refuse_map = true;
  EXPECT_EQ(objects.allocate(kMiB, 16), nullptr) << "no table, no object";
  Failing::refuse_map = false;
  std::vector<void*> live;
  while (live.size() < 127) live.push_back(objects.allocate(1, 16));
  Failing::refuse_map = true;
  EXPECT_EQ(objects.allocate(kMiB, 16), nullptr);
  Failing::refuse_map = false;
  live.push_back(objects.allocate(1, 16));  // the table is now full
  Failing::refuse_map = true;
  EXPECT_EQ(objects.allocate(kMiB, 16), nullptr) << "the table cannot grow";
  Failing::refuse_map = false;
  Failing::refuse_remap = true;
  EXPECT_EQ(objects.resize(live[5], kMiB), nullptr);
  EXPECT_EQ(objects.usable_size(live[5]), os::page_size());
  Failing::refuse_remap = false;
  EXPECT_NE(live[5] = objects.resize(live[5], kMiB), nullptr);
  for (int i = 0; i < 1000; ++i) live.push_back(objects.allocate(1, 16));
  EXPECT_EQ(objects.statistics().objects, live.size());
  for (void* p : live) EXPECT_TRUE(objects.free(p));
  EXPECT_EQ(objects.statistics().bytes, 0u);
  EXPECT_EQ(Failing::maps, maps_before + 1) << "only the table is left";
}

// It keeps its address, and its slot. So it needs no other one, for which there may be no room.
TEST(LargeObjects, AnObjectBecomesSmallerInItsSlot) {
  using Failing = FailingCalls;
  const std::size_t page = os::page_size();
  LargeObjects<Failing> objects;
  std::vector<void*> live(127);
  for (void*& p : live) ASSERT_NE(p = objects.allocate(3 * page, 16), nullptr);
  Failing::refuse_map = true;
  EXPECT_EQ(objects.allocate(1, 16), nullptr) << "the table is full, and cannot grow";
  EXPECT_EQ(objects.resize(live[0], 4 * page), nullptr) << "what grows may move";
  EXPECT_EQ(objects.resize(live[0], 3 * page - 1), live[0]) << "as large as it is";
  EXPECT_FALSE(objects.was_larger(live[0]));
  // A fork's child must not find an entry of more than is mapped.
  std::size_t known = 0;
  Failing::before_remap = [&] { known = objects.usable_size(live[0]); };
  EXPECT_EQ(objects.resize(live[0], page), live[0]);
  Failing::before_remap = nullptr;
  EXPECT_EQ(known, page) << "first the entry, then the mapping";
  EXPECT_EQ(objects.usable_size(live[0]), page);
  EXPECT_TRUE(objects.was_larger(live[0]));
  EXPECT_EQ(objects.statistics().bytes, (3 * live.size() - 2) * page);
  Failing::refuse_remap = true;
  EXPECT_EQ(objects.resize(live[1], page), nullptr);
  Failing::refuse_remap = Failing::refuse_map = false;
  EXPECT_EQ(objects.usable_size(live[1]), 3 * page) << "nothing has changed";
  EXPECT_FALSE(objects.was_larger(live[1]));
  EXPECT_EQ(objects.statistics().bytes, (3 * live.size() - 2) * page);
  for (void* p : live) EXPECT_TRUE(objects.free(p));
  EXPECT_EQ(objects.statistics().bytes, 0u);
  objects.destroy();
}

// A mapping that is not charged may grow to any size: the kernel is asked what a charged one would
// be told. For less than 1 GiB it is not asked.
TEST(LargeObjects, GrowsByNoMoreThanTheKernelWouldCharge) {
  LargeObjects<FailingCalls> objects;
  void* p = objects.allocate(kMiB, 16);
  FailingCalls::grants_at_most = 2 * kGiB;
  FailingCalls::questions = 0;
  ASSERT_NE(p = objects.resize(p, 64 * kMiB), nullptr);
  EXPECT_EQ(FailingCalls::questions, 0u);
  EXPECT_EQ(objects.resize(p, 4 * kGiB), nullptr);
  EXPECT_EQ(FailingCalls::questions, 1u);
  EXPECT_EQ(objects.usable_size(p), 64 * kMiB) << "nothing has changed";
  ASSERT_NE(p = objects.resize(p, 2 * kGiB), nullptr);
  ASSERT_NE(p = objects.resize(p, kMiB), nullptr);
  EXPECT_EQ(FailingCalls::questions, 2u) << "to be smaller nobody need ask";
  FailingCalls::grants_at_most = SIZE_MAX;
  EXPECT_TRUE(objects.free(p));
  objects.destroy();
}

TEST(LargeObjects, SurvivesAnAddressSpaceLimit) {
  if (test::kEmulated) GTEST_SKIP() << test::kNoLimits;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    LargeObjects<> objects;
    if (!test::leave_address_space(32 * kGiB)) _exit(5);
    std::size_t count = 0;
    void* last = nullptr;
    while (void* p = objects.allocate(kGiB, 16)) {
      last = p;
      if (++count > 1000) _exit(2);
    }
    if (last == nullptr || objects.resize(last, 40 * kGiB) != nullptr) _exit(3);
    if (!objects.free(last) || objects.allocate(kGiB, 16) == nullptr) _exit(4);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers reserve more address space than the limit";
#endif
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// Those that come from elsewhere begin somewhere in their mappings.
TEST(LargeObjects, AdoptsWhatOthersHaveMapped) {
  LargeObjects<> objects;
  const std::size_t page = os::page_size();
  ASSERT_NE(objects.allocate(kMiB, 16), nullptr);
  std::vector<unsigned char*> adopted;
  for (unsigned i = 0; i < 4; ++i) {
    for (const std::size_t offset : {std::size_t{0}, std::size_t{64}, page, 64 * kKiB - 64}) {
      ASSERT_TRUE(objects.promise(100));
      void* mapping = os::map(kMiB, page);
      ASSERT_NE(mapping, nullptr);
      objects.fill(mapping, kMiB, offset);
      adopted.push_back(static_cast<unsigned char*>(mapping) + offset);
      EXPECT_EQ(objects.usable_size(adopted.back()), kMiB - offset);
      EXPECT_EQ(objects.usable_size(adopted.back() + page), 0u);
    }
  }
  EXPECT_FALSE(objects.promise(17)) << "so many may there be";
  ASSERT_TRUE(objects.promise(18));
  objects.give_promise_back();
  EXPECT_EQ(objects.statistics().objects, 17u);
  EXPECT_EQ(objects.statistics().bytes, 17 * kMiB);
  for (unsigned char*& p : adopted) {
    p[0] = 7;
    p[kMiB - 64 * kKiB] = 8;
    const std::size_t offset = kMiB - objects.usable_size(p);
    auto* q = static_cast<unsigned char*>(objects.resize(p, 3 * kMiB));
    ASSERT_NE(q, nullptr);
    EXPECT_EQ(q[0] + q[kMiB - 64 * kKiB], 15);
    EXPECT_EQ(objects.usable_size(q), align_up(3 * kMiB + offset, page) - offset);
    EXPECT_EQ(address_of(q) % page, offset % page);
    EXPECT_EQ(objects.resize(q, 2 * kMiB), q);
    p = q;
  }
  EXPECT_NE(objects.free(adopted[0]), 0u);
  EXPECT_EQ(objects.free(adopted[0]), 0u);
  EXPECT_EQ(objects.statistics().objects, 16u);
  objects.destroy();
  EXPECT_EQ(objects.statistics().bytes, 0u);
}

// Against a reference: thousands of objects, growth, and deletions in every order.
TEST(LargeObjects, TableAgreesWithAReference) {
  LargeObjects<> objects;
  std::mt19937 random(test::seed_of(1));
  std::vector<void*> live;
  for (int i = 0; i < 20000; ++i) {
    if (live.size() < 3000 && (live.empty() || random() % 5 < 3)) {
      live.push_back(objects.allocate(1, 16));
      ASSERT_NE(live.back(), nullptr);
    } else {
      const std::size_t at = random() % live.size();
      ASSERT_TRUE(objects.free(live[at]));
      ASSERT_EQ(objects.usable_size(live[at]), 0u);
      live[at] = live.back();
      live.pop_back();
    }
    if (i % 1000 == 0) {
      for (void* p : live) ASSERT_EQ(objects.usable_size(p), os::page_size());
    }
  }
  for (void* p : live) EXPECT_TRUE(objects.free(p));
  EXPECT_EQ(objects.statistics().objects, 0u);
}

// Moving resizes free addresses that other threads' new objects take at once: a table that is
// updated after the fact would hold two entries of one address.
TEST(LargeObjects, AddressReuseAcrossThreads) {
  auto objects = std::make_unique<LargeObjects<MovingCalls>>();
  Atomic<std::uint32_t> errors{0};
  test::in_threads(4, [&](unsigned t) {
    for (unsigned i = 0; i < 1500; ++i) {
      auto* p = static_cast<unsigned*>(objects->allocate(1, 16));
      *p = t * 10000 + i;
      auto* q = static_cast<unsigned*>(objects->resize(p, (1 + i % 3) * os::page_size() + 1));
      if (q == nullptr || *q != t * 10000 + i) errors.fetch_add_relaxed(1);
      if (objects->usable_size(q) != (2 + i % 3) * os::page_size()) errors.fetch_add_relaxed(1);
      if (!objects->free(q)) errors.fetch_add_relaxed(1);
    }
  });
  EXPECT_EQ(errors.load_relaxed(), 0u);
  EXPECT_EQ(objects->statistics().objects, 0u);
  EXPECT_EQ(objects->statistics().bytes, 0u);
}

// Threads vanish wherever they are in allocate, resize and free: whole objects at most are lost
// with them, and the table goes on.
TEST(LargeObjects, ChildrenOfBusyParentsGoOn) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kUnderAsan) GTEST_SKIP() << "the sanitizer's own malloc may be locked in the child";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  constexpr unsigned kThreads = 4, kSlots = 300;
  static LargeObjects<> objects;
  static std::atomic<void*> slots[kThreads][kSlots];
  std::atomic<bool> stop{false};
  test::Progress progress;
  std::vector<std::thread> threads;
  std::latch begun(kThreads);
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      begun.count_down();
      for (unsigned i = 0; !stop.load(std::memory_order_relaxed); i = i * 5 + 1, progress.step()) {
        void* p = slots[t][i % kSlots].exchange(nullptr);
        if (p != nullptr && i % 7 != 0) {
          objects.free(p);
        } else if (p != nullptr) {
          slots[t][i % kSlots] = objects.resize(p, (i % 4 + 1) * os::page_size());
        } else {
          slots[t][i % kSlots] = objects.allocate(1, 16);
        }
      }
    });
  }
  begun.wait();
  for (int round = 0; round < 60; ++round) {
    progress.wait_for_more(200);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(540);
      SpinLock::enter_child();
      objects.enter_child();
      std::size_t found = 0;
      for (auto& of_thread : slots) {
        for (auto& slot : of_thread) {
          if (void* p = slot; p != nullptr) {
            if (objects.usable_size(p) == 0) _exit(2);
            ++found;
          }
        }
      }
      const LargeObjectStatistics before = objects.statistics();
      if (before.objects < found || before.objects > found + kThreads) _exit(3);
      for (auto& of_thread : slots) {
        for (auto& slot : of_thread) {
          if (void* p = slot.exchange(nullptr); p != nullptr && !objects.free(p)) _exit(4);
        }
      }
      for (int i = 0; i < 1000; ++i) {
        void* p = objects.allocate(1, 16);
        if (p == nullptr || !objects.free(p)) _exit(5);
      }
      _exit(objects.statistics().objects == before.objects - found ? 0 : 6);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "round " << round;
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  for (auto& of_thread : slots) {
    for (auto& slot : of_thread) {
      void* p = slot.exchange(nullptr);
      EXPECT_TRUE(p == nullptr || objects.free(p));
    }
  }
  EXPECT_EQ(objects.statistics().objects, 0u);
}

// A table that fills with the graves of freed objects is made anew, and does not grow.
TEST(LargeObjects, ManyLivesInOneTable) {
  auto objects = std::make_unique<LargeObjects<>>();
  std::vector<void*> live(60);
  for (int i = 0; i < 100000; ++i) {
    void*& p = live[static_cast<std::size_t>(i * 7919) % live.size()];
    ASSERT_TRUE(p == nullptr || objects->free(p));
    p = objects->allocate(1, 16);
    ASSERT_NE(p, nullptr);
    ASSERT_EQ(objects->usable_size(p), os::page_size());
  }
  for (void* p : live) EXPECT_TRUE(p == nullptr || objects->free(p));
  EXPECT_EQ(objects->statistics().objects, 0u);
}

}  // namespace
}  // namespace spanalloc
