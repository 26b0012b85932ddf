// What a fork leaves behind: threads vanish in the middle of whatever they did; the child's heap is
// whole, and the vanished threads' caches go to new ones.
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "child.hpp"
#include "papers/supermalloc/engine/engine.hpp"
#include "papers/supermalloc/tests/test_support.hpp"
#include "random.hpp"
#include "sanitizers.hpp"
#include "simulated_cpus.hpp"
#include "threads.hpp"

namespace spanalloc {
namespace {

using supermalloc::Census;

struct ForkConfig : Supermalloc {};
using E = SupermallocEngine<ForkConfig>;
using Bins = supermalloc::Bins<ForkConfig>;

constexpr unsigned kWorkers = 4;
constexpr std::size_t kSlots = 1000;
using Slots = std::array<std::atomic<void*>, kSlots>;

// What the workers allocate: lists of the smallest of it are the longest that
// they have in their hands.
constexpr std::size_t kFirstSmall = 24;  // of the dice's 256 numbers
constexpr std::size_t kSmallest = 16 + kFirstSmall * 8;

// Lists and chains move, folios empty, large and huge objects come and go; half of the frees are
// remote, and every now and then a thread ends.
void churn(Slots& slots, std::uint64_t seed, std::atomic<unsigned>& started,
           const std::atomic<bool>& stop) {
  E::deallocate(E::allocate(kSmallest));
  ++started;
  test::Random random(test::seed_of(seed));
  const auto some = [&](unsigned steps) {
    for (unsigned i = 0; i < steps && !stop.load(std::memory_order_relaxed); ++i) {
      const std::size_t dice = random.below(256);
      std::size_t n = 16 + dice * 8;
      if (dice == 0) n = 3 * kMiB;
      if (dice > 0 && dice < 8) n = 100'000 * dice;
      if (dice >= 8 && dice < kFirstSmall) n = 14'000;
      E::deallocate(slots[random.below(kSlots)].exchange(E::allocate(n)));
    }
  };
  while (!stop.load(std::memory_order_relaxed)) {
    some(500);
    std::thread(some, 200).join();
  }
}

void use_the_heap(Slots& slots) {
  test::in_threads(kWorkers, [&](unsigned) {
    for (auto& slot : slots) {
      E::deallocate(slot.exchange(nullptr));
      void* p = E::allocate(256);
      std::memset(p, 1, 256);
      E::deallocate(p);
    }
  });
}

// Another library's fork handlers, registered before those of every engine: in the child they run
// before an engine has been told that it is one.
std::atomic<bool> handlers_allocate{false};
void fork_handler() {
  if (!handlers_allocate) return;
  for (const std::size_t size : {std::size_t{40}, std::size_t{5000}, 300 * kKiB, 3 * kMiB}) {
    std::vector<void*> blocks(50);
    for (void*& p : blocks) p = E::allocate(size);
    for (void* p : blocks) E::deallocate(p);
  }
}
const int registered = pthread_atfork(fork_handler, fork_handler, fork_handler);

#define SKIP_WHERE_THREADS_DO_NOT_FORK()                                                         \
  if (test::kUnderTsan)                                                                          \
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";               \
  if (test::kUnderAsan) GTEST_SKIP() << "the sanitizer's own malloc may be locked in the child"; \
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks

// In a child: ends it, with a line that says why, unless the heap is whole.
void demand_whole(int code) {
  const Census census = E::census();
  if (census.consistent()) return;
  std::fprintf(stderr, "in the child (%d): %s at %zx\n", code,
               census.broken == 0 ? "chunks do not add up" : census.first_problem,
               static_cast<std::size_t>(census.at));
  _exit(code);
}
void expect_well(pid_t child, int round) {
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "child killed by signal " << WTERMSIG(status) << " in round "
                                 << round;
  EXPECT_EQ(WEXITSTATUS(status), 0) << "round " << round;
}
void expect_nothing_out() {
  E::trim();
  const Census census = E::census();
  EXPECT_TRUE(census.consistent()) << census.first_problem;
  EXPECT_TRUE(census.all_returned());
}

// In a child that has freed all that it knows of, and trimmed. Nothing is in use but what
// vanished threads had in their hands, an object and a list each (of a worker that waits for
// another thread that one), and what was in the chains of a CPU and a bin that one of them
// was at: that is counted.
void demand_lost_by_threads_only(const Census& left) {
  constexpr std::size_t kBusy = kWorkers + 1;  // and the trimmer
  const std::size_t in_chains = E::statistics().spans_lost_to_fork;
  const std::size_t list = Bins::of(Bins::for_folios(kSmallest)).list_objects;
  if (left.live_objects <= in_chains + kBusy * (1 + list) &&
      left.large_objects <= in_chains + kBusy * 2 &&
      left.live_objects + left.large_objects <= in_chains + kBusy * (2 + list) &&
      left.huge_objects <= kBusy) {
    return;
  }
  std::fprintf(stderr,
               "in the child: %zu objects, %zu large, %zu huge are out, %zu were in chains\n",
               left.live_objects, left.large_objects, left.huge_objects, in_chains);
  _exit(6);
}

TEST(SupermallocFork, ChildrenOfBusyParentsHaveWholeHeaps) {
  SKIP_WHERE_THREADS_DO_NOT_FORK();
  ASSERT_EQ(registered, 0);
  E::process_start();
  auto slots = std::make_unique<Slots>();
  for (auto& slot : *slots) slot.store(nullptr);
  std::atomic<bool> stop{false};
  std::atomic<unsigned> started{0};
  std::vector<std::thread> workers;
  for (unsigned t = 0; t < kWorkers; ++t) {
    workers.emplace_back([&, t] { churn(*slots, t, started, stop); });
  }
  std::thread trimmer([&] {
    while (!stop) {
      E::trim();
      std::this_thread::yield();
    }
  });
  while (started < kWorkers) std::this_thread::yield();
  for (int round = 0; round < 60 && !testing::Test::HasFailure(); ++round) {
    handlers_allocate = round % 2 == 0;
    alarm(540);  // a deadlock ends the test
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(540);
      demand_whole(3);
      // As many new threads as have vanished, workers' and the trimmer's: each takes one's cache,
      // cleans it up, and gives it back at its end.
      use_the_heap(*slots);
      demand_whole(4);
      for (auto& slot : *slots) E::deallocate(slot.exchange(nullptr));
      use_the_heap(*slots);
      E::trim();
      demand_whole(5);
      demand_lost_by_threads_only(E::census());
      if (E::statistics().live_threads != 1) _exit(7);
      _exit(0);
    }
    expect_well(child, round);
  }
  handlers_allocate = false;
  alarm(0);
  stop = true;
  for (std::thread& worker : workers) worker.join();
  trimmer.join();
  for (auto& slot : *slots) E::deallocate(slot.exchange(nullptr));
  expect_nothing_out();
}

// A thread that gives a folio's pages back has no lock meanwhile, and the folio is in no list. (Of
// 892 KiB that takes a while: many of these forks come in the middle of it.)
TEST(SupermallocFork, ChildrenOfAnEmptyingParentHaveAllFolios) {
  SKIP_WHERE_THREADS_DO_NOT_FORK();
  E::process_start();
  constexpr std::size_t kN = Bins::kLargestWithFolios;
  std::atomic<bool> stop{false};
  test::Progress progress;
  std::thread emptier([&] {
    std::vector<void*> objects(Bins::of(Bins::for_folios(kN)).folio_objects);
    while (!stop) {
      for (void*& p : objects) std::memset(p = E::allocate(kN), 1, kN);
      for (void* p : objects) E::deallocate(p);
      progress.step();
      E::trim();
    }
  });
  alarm(540);
  for (int round = 0; round < 100 && !testing::Test::HasFailure(); ++round) {
    progress.wait_for_more(1);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(540);
      demand_whole(3);
      E::trim();
      demand_whole(4);
      _exit(0);
    }
    expect_well(child, round);
  }
  alarm(0);
  stop = true;
  emptier.join();
  expect_nothing_out();
}

// A signal's handler forks in the middle of whatever the thread does, and the child goes on there.
// What it was emptying is still its own: nobody else may have been given it.
std::atomic<bool> is_at_work{false};

// In a process of its own: 0 when all is well.
int go_on_as_a_handlers_child(unsigned after_us) {
  alarm(540);
  E::process_start();
  signal(SIGUSR1, &test::fork_and_go_on_as_the_child);
  // Other threads, which vanish, are in the heap, too.
  for (unsigned t = 0; t < 2; ++t) {
    std::thread([t] {
      test::Random random(t);
      for (;;) {
        void* p = E::allocate(random.below(20'000));
        if (is_at_work) E::trim();
        E::deallocate(p);
      }
    }).detach();
  }
  std::thread([self = pthread_self(), after_us] {
    while (!is_at_work) std::this_thread::yield();
    usleep(after_us);
    pthread_kill(self, SIGUSR1);
  }).detach();
  const pid_t parent = getpid();
  std::vector<unsigned char*> objects(100);
  const auto size = [](std::size_t k) { return 12'000 + 20 * k; };
  for (int i = 0; getpid() == parent; ++i) {
    for (std::size_t k = 0; k < objects.size(); ++k) {
      objects[k] = static_cast<unsigned char*>(E::allocate(size(k)));
      objects[k][0] = objects[k][size(k) - 1] = static_cast<unsigned char>(k);
    }
    is_at_work = true;
    for (std::size_t k = 0; k < objects.size(); ++k) {
      if (objects[k][0] != k || objects[k][size(k) - 1] != k) return 3;
      E::deallocate(objects[k]);
    }
    if (i % 8 == 0) E::trim();
  }
  // This is the child. Nobody else is left: new threads come, and then the sums.
  demand_whole(4);
  test::in_threads(3, [](unsigned) { E::deallocate(E::allocate(100)); });
  E::trim();
  demand_whole(5);
  return 0;
}

TEST(SupermallocFork, AHandlersChildGoesOnWhereItWas) {
  SKIP_WHERE_THREADS_DO_NOT_FORK();
  for (unsigned round = 0; round < 40 && !testing::Test::HasFailure(); ++round) {
    EXPECT_EQ(test::run_in_child([&] { return go_on_as_a_handlers_child(37 * round); }), 0);
  }
}

// Threads vanish that have objects in their caches, and no other thread takes these: a trim gives
// them back, and so does who finds no memory.
TEST(SupermallocFork, WhatCachesOfVanishedThreadsHaveIsGivenBack) {
  SKIP_WHERE_THREADS_DO_NOT_FORK();
  const test::Variable bits("SPANALLOC_ARENA_BITS", "30");
  const test::SimulatedCpus cpus(1);
  const test::OneCpuForSequences bound;
  constexpr unsigned kThreads = 3;
  test::OwnHeap<> heap;
  std::atomic<unsigned> ready{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      std::vector<void*> objects = test::allocate_many(heap, 50, 64);
      test::free_all(heap, objects);
      objects = test::allocate_many(heap, 2, 14'000);
      test::free_all(heap, objects);
      ++ready;
      while (!stop) std::this_thread::yield();
    });
  }
  while (ready < kThreads) std::this_thread::yield();
  void* mine = heap->allocate(64);
  const auto trim = [&] {
    if (!heap->trim()) return 3;
    const Census census = heap->census();
    if (!census.consistent()) return 4;
    return census.live_objects == 1 && census.cached_objects == 0 ? 0 : 5;
  };
  const auto run_out_of_memory = [&] {
    while (heap->chunks().carve(0) != 0) {
    }
    if (heap->allocate(Bins::kLargestWithFolios / 2) != nullptr) return 3;
    // This thread's own list is all that is left in caches.
    const Census census = heap->census();
    if (!census.consistent()) return 4;
    const std::size_t own = test::own_cache(heap).objects(Bins::for_folios(64));
    return census.live_objects == 1 && census.cached_objects == own ? 0 : 5;
  };
  const std::function<int()> ways[] = {trim, run_out_of_memory};
  for (int way = 0; way < 2; ++way) {
    alarm(540);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(540);
      _exit(ways[way]());
    }
    expect_well(child, way);
    alarm(0);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  heap->deallocate(mine);
  heap->trim();
  EXPECT_TRUE(test::checked(heap).all_returned());
}

// A thread vanishes while it has the lock of a CPU's cache, or of the global one: what is in that
// one is lost, and counted; the other one's is not.
TEST(SupermallocFork, WhatACacheLosesIsCounted) {
  SKIP_WHERE_THREADS_DO_NOT_FORK();
  const test::Variable bits("SPANALLOC_ARENA_BITS", "32");
  const test::SimulatedCpus cpus(1);
  const test::OneCpuForSequences bound;
  const supermalloc::BinNumber b = Bins::for_folios(3000);
  const std::size_t list = Bins::of(b).list_objects;
  const std::size_t chain = Bins::of(b).chain_lists;
  test::OwnHeap<> heap;
  std::vector<void*> objects = test::allocate_many(heap, list * (2 * chain + chain + 2), 3000);
  heap->trim();
  test::free_all(heap, objects);
  // Two chains of the CPU's, one of all CPUs', and the thread's lists.
  for (std::size_t last = 1; last <= 3; ++last) {
    std::atomic<bool> has_lock{false};
    std::atomic<bool> stop{false};
    std::thread holder([&] {
      std::size_t chains = 0;
      heap->cpu_caches().for_each_chain(b, [&](const supermalloc::Chain&) {
        if (++chains != last) return;
        has_lock = true;
        while (!stop) std::this_thread::yield();
      });
    });
    while (!has_lock) std::this_thread::yield();
    alarm(540);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(540);
      heap->trim();
      const Census census = heap->census();
      const std::size_t lost = (last == 3 ? 1 : 2) * chain * list;
      if (!census.consistent()) _exit(3);
      if (heap->statistics().spans_lost_to_fork != lost) _exit(4);
      if (census.live_objects != lost || census.cached_objects != 0) _exit(5);
      _exit(0);
    }
    expect_well(child, static_cast<int>(last));
    alarm(0);
    stop = true;
    holder.join();
  }
  EXPECT_EQ(heap->statistics().spans_lost_to_fork, 0u);
  heap->trim();
  EXPECT_TRUE(test::checked(heap).all_returned());
}

// A heap of a test's own is told of forks, too, as long as it lives.
TEST(SupermallocFork, OwnHeapsAreWholeInTheChild) {
  SKIP_WHERE_THREADS_DO_NOT_FORK();
  const test::Variable bits("SPANALLOC_ARENA_BITS", "32");
  constexpr unsigned kThreads = 3;
  test::OwnHeap<> one;
  test::OwnHeap<ForkConfig> other;
  std::atomic<bool> stop{false};
  std::atomic<unsigned> started{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      test::Random random(t);
      void* in_one[50] = {};
      void* in_other[50] = {};
      for (unsigned i = 0; !stop; ++i) {
        const std::size_t slot = random.below(50);
        const std::size_t n = random.one_in(32) ? 100'000 : random.below(2000);
        one->deallocate(std::exchange(in_one[slot], one->allocate(n)));
        other->deallocate(std::exchange(in_other[slot], other->allocate(n)));
        if (i == 0) ++started;
      }
      for (void* p : in_one) one->deallocate(p);
      for (void* p : in_other) other->deallocate(p);
    });
  }
  while (started < kThreads) std::this_thread::yield();
  void* mine = one->allocate(100);
  for (int round = 0; round < 20 && !testing::Test::HasFailure(); ++round) {
    alarm(540);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(540);
      if (!one->census().consistent() || !other->census().consistent()) _exit(3);
      one->deallocate(mine);
      if (one->allocate(100) != mine) _exit(4);  // this thread's cache is still its own
      test::in_threads(kThreads, [&](unsigned) {
        one->deallocate(one->allocate(100));
        other->deallocate(other->allocate(100));
      });
      if (!one->census().consistent()) _exit(5);
      other->destroy();
      if (other->allocate(100) == nullptr || !other->census().consistent()) _exit(6);
      _exit(0);
    }
    expect_well(child, round);
  }
  alarm(0);
  stop = true;
  for (std::thread& thread : threads) thread.join();
  one->deallocate(mine);
  one->trim();
  other->trim();
  EXPECT_TRUE(test::checked(one).all_returned());
  EXPECT_TRUE(test::checked(other).all_returned());
}

}  // namespace
}  // namespace spanalloc
