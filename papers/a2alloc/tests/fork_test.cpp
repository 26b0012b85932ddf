// What a fork leaves behind: threads vanish in the middle of whatever they did; the child's heap is
// whole, and the vanished threads' heaps go to new ones.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <semaphore>
#include <thread>
#include <vector>

#include "child.hpp"
#include "engines.hpp"
#include "environment.hpp"
#include "os_calls.hpp"
#include "papers/a2alloc/engine/engine.hpp"
#include "papers/a2alloc/tests/test_support.hpp"
#include "sanitizers.hpp"
#include "threads.hpp"

namespace spanalloc {
namespace {

constexpr unsigned kWorkers = 4;
constexpr std::size_t kSlots = 1000;
using Slots = std::array<std::atomic<void*>, kSlots>;

// Superblocks fill, empty, are evicted and come back; large objects come and go; half
// of the frees are remote.
template <class E>
void churn(Slots& slots, unsigned seed, std::atomic<unsigned>& started,
           const std::atomic<bool>& stop) {
  E::deallocate(E::allocate(16));
  ++started;
  while (!stop.load(std::memory_order_relaxed)) {
    seed = seed * 1664525 + 1013904223;
    const unsigned dice = (seed >> 4) % 64;
    const std::size_t n = dice == 0 ? 100000 : dice < 8 ? 5000 : 16 + dice * 8;
    E::deallocate(slots[(seed >> 12) % kSlots].exchange(E::allocate(n)));
  }
}

template <class E>
void use_the_heap(Slots& slots) {
  test::in_threads(kWorkers, [&](unsigned) {
    for (auto& slot : slots) {
      E::deallocate(slot.exchange(nullptr));
      void* p = E::allocate(256);
      static_cast<char*>(p)[255] = 1;
      E::deallocate(p);
    }
  });
}

template <class E>
class A2allocFork : public ::testing::Test {};
using Engines =
    ::testing::Types<A2allocEngine<A2alloc>, A2allocEngine<A2allocClasses>, A2allocEngine<Kheap>>;
TYPED_TEST_SUITE(A2allocFork, Engines, test::EngineNames);

// Another library's fork handlers, registered before those of every engine: in the child they run
// before an engine has been told that it is one.
std::atomic<void (*)()> allocate_in_handler{nullptr};
void fork_handler() {
  if (void (*allocate)() = allocate_in_handler; allocate != nullptr) allocate();
}
const int registered = pthread_atfork(fork_handler, fork_handler, fork_handler);

template <class E>
void allocate_and_free() {
  for (const std::size_t size : {std::size_t{40}, std::size_t{5000}, 300 * kKiB}) {
    std::vector<void*> blocks(50);
    for (void*& p : blocks) p = E::allocate(size);
    for (void* p : blocks) E::deallocate(p);
  }
}

// Says what is wrong, if anything is.
bool is_whole(const a2alloc::Census& c, const char* when) {
  if (c.consistent()) return true;
  std::fprintf(
      stderr,
      "in the child, %s: %zu broken, first %s at %zx; %zu known: %zu free, %zu+%zu superblocks, "
      "%zu large, %zu of records, %zu lost, %zu lost to the fork\n",
      when, c.broken, c.first_problem != nullptr ? c.first_problem : "none",
      static_cast<std::size_t>(c.at), c.known, c.free, c.superblocks, c.empty_superblocks, c.large,
      c.heap_records, c.lost, c.lost_to_fork);
  return false;
}

TYPED_TEST(A2allocFork, ChildrenOfBusyParentsHaveWholeHeaps) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kUnderAsan) GTEST_SKIP() << "the sanitizer's own malloc may be locked in the child";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  using E = TypeParam;
  ASSERT_EQ(registered, 0);
  E::process_start();
  auto slots = std::make_unique<Slots>();
  for (auto& slot : *slots) slot.store(nullptr);
  std::atomic<bool> stop{false};
  std::atomic<unsigned> started{0};
  std::vector<std::thread> workers;
  for (unsigned t = 0; t < kWorkers; ++t) {
    workers.emplace_back([&, t] { churn<E>(*slots, t * 7919 + 1, started, stop); });
  }
  std::thread trimmer([&] {
    while (!stop) E::trim();
  });
  while (started < kWorkers) std::this_thread::yield();
  for (int round = 0; round < 40 && !this->HasFailure(); ++round) {
    allocate_in_handler = round % 2 == 0 ? allocate_and_free<E> : nullptr;
    alarm(540);  // a deadlock ends the test
    const pid_t child = fork();
    EXPECT_GE(child, 0);
    if (child < 0) break;
    if (child == 0) {
      alarm(540);
      if (!is_whole(E::census(), "at its start")) _exit(3);
      const std::size_t records = E::census().heap_records;
      use_the_heap<E>(*slots);
      if (E::census().heap_records > records) _exit(4);  // four vanished threads, four new ones
      for (auto& slot : *slots) E::deallocate(slot.exchange(nullptr));
      E::trim();
      _exit(is_whole(E::census(), "at its end") ? 0 : 5);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status))
        << "child killed by signal " << WTERMSIG(status) << " in round " << round;
    EXPECT_EQ(WEXITSTATUS(status), 0) << "round " << round;
  }
  allocate_in_handler = nullptr;
  alarm(0);
  stop = true;
  for (std::thread& worker : workers) worker.join();
  trimmer.join();
  for (auto& slot : *slots) E::deallocate(slot.exchange(nullptr));
  E::trim();
  EXPECT_TRUE(E::census().consistent());
  EXPECT_TRUE(E::census().all_returned());
}

// The forking thread has no heap yet, and makes one in the handler. Another thread's trim has just
// taken its empty superblock out of that heap, and holds its lock, when the process forks.
struct StandsInTheMiddle : a2alloc::NoObserver {
  static inline std::atomic<bool> stands{false};
  static inline std::atomic<bool> may_go_on{false};
  static void evicts_superblock() {
    stands = true;
    while (!may_go_on) std::this_thread::yield();
  }
};
struct HandlerConfig : A2allocReport {
  using Observer = StandsInTheMiddle;
};
using HandlerEngine = A2allocEngine<HandlerConfig>;
std::atomic<bool> trim_now{false};
void make_a_heap_to_be_trimmed() {
  if (trim_now) return;  // it is the parent's or the child's handler
  HandlerEngine::deallocate(HandlerEngine::allocate(40));
  trim_now = true;
  while (!StandsInTheMiddle::stands) std::this_thread::yield();
}

TEST(A2allocForkHandler, AHeapMadeInItIsWholeInTheChild) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kUnderAsan) GTEST_SKIP() << "the sanitizer's own malloc may be locked in the child";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  alarm(540);
  trim_now = StandsInTheMiddle::stands = StandsInTheMiddle::may_go_on = false;
  HandlerEngine::process_start();
  std::atomic<bool> started{false};
  std::thread trimmer([&] {
    void* kept = HandlerEngine::allocate(40);  // so that its own heap has no empty superblock
    started = true;
    while (!trim_now) std::this_thread::yield();
    HandlerEngine::trim();
    HandlerEngine::deallocate(kept);
  });
  while (!started) std::this_thread::yield();
  allocate_in_handler = make_a_heap_to_be_trimmed;
  const pid_t child = fork();
  allocate_in_handler = nullptr;
  if (child == 0) {
    alarm(540);
    const a2alloc::Census census = HandlerEngine::census();
    _exit(census.consistent() && census.lost_to_fork == 1 ? 0 : 3);
  }
  StandsInTheMiddle::may_go_on = true;
  trimmer.join();
  ASSERT_GE(child, 0);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  alarm(0);
  EXPECT_TRUE(HandlerEngine::census().consistent());
}

// A thread that repairs a heap has lost one of its superblocks, which is about to leave the heap.
TEST(A2allocForkLost, WhatIsLostLeavesItsHeapInTheChild) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  test::OwnHeap<A2allocReport> heap;
  auto* const piece = heap->piece_of(heap->allocate(40));
  SpinLock& lock = piece->heap.load_relaxed()->lock;
  std::binary_semaphore is_lost{0};
  std::binary_semaphore may_go_on{0};
  std::thread repairs([&] {
    const LockGuard guard(lock);
    heap->global_heap().lose(piece);
    is_lost.release();
    may_go_on.acquire();
  });
  is_lost.acquire();
  EXPECT_EQ(test::run_in_child([&] {
              const a2alloc::Census census = heap->census();
              return is_whole(census, "with a superblock lost") && census.lost_to_fork == 1 ? 0 : 1;
            }),
            0);
  may_go_on.release();
  repairs.join();
}

// A thread is about to give back pages that it has taken out of everybody's reach.
struct StandsBeforeThePurge : a2alloc::NoObserver {
  static inline std::atomic<bool> stands{false};
  static inline std::atomic<bool> may_go_on{false};
  static void purges() {
    stands = true;
    while (!may_go_on) std::this_thread::yield();
  }
};
struct PurgeConfig : A2alloc {
  using Observer = StandsBeforeThePurge;
};

class A2allocPurge : public testing::Test {
 protected:
  A2allocPurge() { StandsBeforeThePurge::stands = StandsBeforeThePurge::may_go_on = false; }
  test::OwnHeap<PurgeConfig> heap;
};

constexpr std::size_t kPurged = 100 * kMiB;
bool all_is_free(const a2alloc::Census& census, const char* when) {
  return is_whole(census, when) && census.large == 0 && census.lost_to_fork == 0 &&
         census.free >= kPurged / test::kPiece;
}

TEST_F(A2allocPurge, WhatIsBeingPurgedIsFreeInAForksChild) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kUnderAsan) GTEST_SKIP() << "the sanitizer's own malloc may be locked in the child";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  alarm(540);
  heap->deallocate(heap->allocate(40));
  std::thread purger([&] { heap->deallocate(heap->allocate(kPurged)); });
  while (!StandsBeforeThePurge::stands) std::this_thread::yield();
  EXPECT_EQ(test::run_in_child([&] {
              alarm(540);
              StandsBeforeThePurge::may_go_on = true;
              const a2alloc::Census census = heap->census();
              if (!all_is_free(census, "at its start")) return 3;
              // All of it serves again.
              char* p = static_cast<char*>(heap->allocate_zeroed(kPurged));
              if (p == nullptr || heap->census().known != census.known) return 5;
              for (std::size_t at = 0; at < kPurged; at += 4096) {
                if (p[at] != 0) return 6;
              }
              heap->deallocate(p);
              return is_whole(heap->census(), "at its end") ? 0 : 7;
            }),
            0);
  StandsBeforeThePurge::may_go_on = true;
  purger.join();
  alarm(0);
  test::checked(heap);
}

// A request that nothing but what is being purged can serve waits for it.
TEST_F(A2allocPurge, WhatIsBeingPurgedIsWaitedFor) {
  constexpr std::size_t kBytes = 200 * kMiB;
  test::Variable smallest{"SPANALLOC_ARENA_BITS", "30"};
  void* objects[5];
  for (void*& p : objects) ASSERT_NE(p = heap->allocate(kBytes), nullptr);
  ASSERT_EQ(heap->allocate(kBytes), nullptr);
  // Of what the second free leaves more than half goes back, at once.
  std::thread purger([&] {
    heap->deallocate(objects[0]);
    heap->deallocate(objects[1]);
  });
  while (!StandsBeforeThePurge::stands) std::this_thread::yield();
  const std::size_t yields_before = test::yields();
  std::atomic<bool> is_served{false};
  std::thread lets_go([&] {
    while (test::yields() == yields_before && !is_served) std::this_thread::yield();
    StandsBeforeThePurge::may_go_on = true;
  });
  EXPECT_NE(heap->allocate(kBytes), nullptr);
  is_served = true;
  EXPECT_GT(test::yields(), yields_before);
  lets_go.join();
  purger.join();
  test::checked(heap);
}

// The thread that purges forks there itself, as a signal handler may: in the child, too, it goes
// on. What its parent was about to purge is free to the child, and its own from here on.
struct ForksBeforeThePurge : a2alloc::NoObserver {
  static inline char* of_child = nullptr;
  static void purges() {
    if (test::HandlersForks::forks != 0) return;
    test::HandlersForks::fork_here();
    if (test::HandlersForks::is_child) use_what_is_free();
  }
  static void use_what_is_free();
};
struct ForkConfig : A2alloc {
  using Observer = ForksBeforeThePurge;
};
using ForkEngine = A2allocEngine<ForkConfig>;

void ForksBeforeThePurge::use_what_is_free() {
  of_child = static_cast<char*>(ForkEngine::allocate(kPurged));
  ASSERT_NE(of_child, nullptr);
  memset(of_child, 0x5a, kPurged);
}

TEST(A2allocForkPurge, TheThreadThatPurgesMayForkMeanwhile) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  test::in_child([] {
    const test::RestingThread left_behind;
    ForkEngine::deallocate(ForkEngine::allocate(kPurged));
    if (char* const p = ForksBeforeThePurge::of_child; p != nullptr) {
      for (std::size_t at = 0; at < kPurged; at += 4096) ASSERT_EQ(p[at], 0x5a);
      ForkEngine::deallocate(p);
    }
    EXPECT_TRUE(all_is_free(ForkEngine::census(), "behind the purge"));
    test::HandlersForks::expect_children_succeed();
  });
}

// The same where it has just taken the pieces, with the lock held. The child finds them out of
// reach and frees them: so they must not be put back.
struct ForksAsItBooks : a2alloc::NoObserver {
  static void books_out_of_reach() {
    if (test::HandlersForks::forks == 0) test::HandlersForks::fork_here();
  }
};
struct BookConfig : A2alloc {
  using Observer = ForksAsItBooks;
};
using BookEngine = A2allocEngine<BookConfig>;

TEST(A2allocForkPurge, TheThreadThatPurgesMayForkAsItTakesPieces) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  test::in_child([] {
    const test::RestingThread left_behind;
    BookEngine::deallocate(BookEngine::allocate(kPurged));
    EXPECT_TRUE(all_is_free(BookEngine::census(), "behind the purge"));
    test::HandlersForks::expect_children_succeed();
  });
}

}  // namespace
}  // namespace spanalloc
