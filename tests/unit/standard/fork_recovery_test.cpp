// What a fork leaves behind: threads vanish in the middle of whatever they did, the
// child's heap stays usable.
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <latch>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "child.hpp"
#include "heap_walk.hpp"
#include "memory_return_access.hpp"
#include "os_calls.hpp"
#include "sanitizers.hpp"
#include "standard/engine.hpp"
#include "standard/test_support.hpp"
#include "threads.hpp"

namespace spanalloc {
namespace {

using E = StandardEngine;
constexpr int kWorkers = 4;
constexpr std::size_t kSlots = 5000;
using Slots = std::array<std::atomic<void*>, kSlots>;

// The clock stands still but for what workers move it: so ticks of the decay come between their
// operations, and between forks. One is due after half the decay time of 500 ms.
constexpr unsigned kTickMs = 300;

// Parks and revives spans all the time: 256-byte blocks replaced at random.
void churn(Slots& slots, unsigned seed, test::Progress& progress, const std::atomic<bool>& stop) {
  for (unsigned i = 1; !stop.load(std::memory_order_relaxed); ++i) {
    seed = seed * 1664525 + 1013904223;
    E::deallocate(slots[(seed >> 8) % kSlots].exchange(E::allocate(256)));
    if (i % 1000 != 0) continue;
    test::advance_clock(kTickMs / 4);
    progress.step();
  }
}

// Whether the decay has ticked since the last call.
bool has_ticked() {
  static std::uint64_t seen = 0;
  return standard::MemoryReturnTestAccess::next_purge(E::pages.memory_return).load_relaxed() >
         std::exchange(
             seen,
             standard::MemoryReturnTestAccess::next_purge(E::pages.memory_return).load_relaxed());
}

// In the child: new threads take the vanished threads' thread caches, free all
// that is out, and allocate.
void use_the_heap(std::vector<std::unique_ptr<Slots>>& all) {
  test::in_threads(kWorkers, [&](unsigned) {
    E::allocate(256);
    for (auto& slots : all) {
      test::advance_clock(kTickMs);
      for (auto& slot : *slots) {
        E::deallocate(slot.exchange(nullptr));
        void* p = E::allocate(256);
        static_cast<char*>(p)[255] = 1;
        E::deallocate(p);
      }
    }
  });
}

// A thread that purges holds whole stacks of free spans; a child that is made meanwhile must not
// lose them. Another library's fork handlers, registered before ours: in the child they run before
// the heap has been told that it is one.
std::atomic<bool> handlers_allocate{false};
void allocate_in_handler() {
  if (!handlers_allocate) return;
  for (const std::size_t size : {std::size_t{40}, std::size_t{5000}, 300 * kKiB, 3 * kMiB}) {
    std::vector<void*> blocks(50);
    for (void*& p : blocks) p = E::allocate(size);
    for (void* p : blocks) E::deallocate(p);
  }
}
const int registered =
    pthread_atfork(allocate_in_handler, allocate_in_handler, allocate_in_handler);

TEST(StandardFork, OtherHandlersMayAllocate) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kUnderAsan) GTEST_SKIP() << "the sanitizer's own malloc may be locked in the child";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  ASSERT_EQ(registered, 0);
  E::process_start();
  std::atomic<bool> stop{false};
  std::vector<std::thread> others;
  std::latch begun(2);
  test::Progress progress;
  for (int t = 0; t < 2; ++t) {
    others.emplace_back([&] {
      begun.count_down();
      while (!stop) {
        std::vector<void*> blocks(200);
        for (void*& p : blocks) p = E::allocate(3000);
        for (void* p : blocks) E::deallocate(p);
        test::advance_clock(kTickMs);
        progress.step();
      }
    });
  }
  begun.wait();
  (void)has_ticked();
  handlers_allocate = true;
  for (int round = 0; round < 50; ++round) {
    alarm(540);  // a deadlock ends the test
    progress.wait_for_more(1);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(540);
      E::deallocate(E::allocate(100000));
      _exit(test::walk_heap<E>().consistent() ? 0 : 3);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "round " << round;
  }
  handlers_allocate = false;
  EXPECT_TRUE(has_ticked());
  alarm(0);
  stop = true;
  for (std::thread& other : others) other.join();
  E::trim();
  EXPECT_TRUE(test::walk_heap<E>().consistent());
}

TEST(StandardFork, ChildrenOfAPurgingParentHaveAllFreeSpans) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kUnderAsan) GTEST_SKIP() << "the sanitizer's own malloc may be locked in the child";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  E::process_start();
  std::atomic<bool> stop{false};
  test::Progress progress;
  std::thread purger([&] {
    std::vector<void*> blocks(500);
    for (unsigned i = 0; !stop; ++i) {
      for (void*& p : blocks) {
        *static_cast<char*>(p = E::allocate(60000)) = 1;
        progress.step();
      }
      for (void* p : blocks) {
        E::deallocate(p);
        progress.step();
      }
      // By trims and by ticks.
      if (i % 2 == 0) E::trim();
      test::advance_clock(kTickMs);
    }
  });
  progress.wait_for_more(1);
  (void)has_ticked();
  alarm(540);  // a deadlock ends the test
  for (int round = 0; round < 60; ++round) {
    progress.wait_for_more(100);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(540);
      const test::HeapWalk walk = test::walk_heap<E>();
      _exit(walk.consistent() && walk.lost == 0 ? 0 : 3);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "round " << round;
  }
  alarm(0);
  EXPECT_TRUE(has_ticked());
  stop = true;
  purger.join();
}

// A page that stops the one thread that touches it, in the middle of whatever it
// does, until it may go on.
class StoppingPage {
 public:
  explicit StoppingPage(char* inside) : page_(align_down(address_of(inside), os::page_size())) {
    current_ = this;
    struct sigaction action{};
    action.sa_sigaction = stand;
    action.sa_flags = SA_SIGINFO;
    EXPECT_EQ(sigaction(SIGSEGV, &action, &before_), 0);
    EXPECT_EQ(mprotect(pointer_to(page_), os::page_size(), PROT_NONE), 0);
  }
  ~StoppingPage() {
    open();
    sigaction(SIGSEGV, &before_, nullptr);
  }
  StoppingPage(const StoppingPage&) = delete;
  StoppingPage& operator=(const StoppingPage&) = delete;

  bool stops_somebody() const { return stands_; }
  void let_go() { may_go_ = true; }
  void open() { mprotect(pointer_to(page_), os::page_size(), PROT_READ | PROT_WRITE); }

 private:
  static void stand(int, siginfo_t* what, void*) {
    StoppingPage& self = *current_;
    if (align_down(address_of(what->si_addr), os::page_size()) != self.page_) _exit(4);
    self.stands_ = true;
    while (!self.may_go_) usleep(100);
    self.open();
  }

  static inline StoppingPage* current_ = nullptr;
  const std::uintptr_t page_;
  std::atomic<bool> stands_{false};
  std::atomic<bool> may_go_{false};
  struct sigaction before_{};
};

// Forks while another thread is in call(), at the moment when that comes to the page of `inside`:
// `expected` large objects are in the child. False: the call did not come there.
template <class Call>
bool fork_in_the_middle(char* inside, std::size_t expected, Call call) {
  StoppingPage page(inside);
  std::atomic<bool> is_over{false};
  std::thread other([&] {
    call();
    is_over = true;
  });
  while (!page.stops_somebody() && !is_over) usleep(100);
  const bool stopped = page.stops_somebody();
  if (stopped) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(540);
      page.open();
      if (!test::walk_heap<E>().consistent()) _exit(3);
      _exit(E::statistics().large_objects == expected ? 0 : 2);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "2 << 8: another number of large objects; 3 << 8: the heap walk";
  }
  page.let_go();
  other.join();
  return stopped;
}

// A thread that vanishes while calloc clears a large block, or while realloc copies into one, takes
// nothing with it. (A step or two before the call returns it does.)
TEST(StandardFork, BlocksThatAreNotReadyAreFreeInTheChild) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kUnderAsan) GTEST_SKIP() << "the sanitizer's own malloc may be locked in the child";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  large::in_fresh_process([] {
    E::process_start();
    constexpr std::size_t kBytes = 8 * kMiB;
    constexpr int kOften = 4;
    const auto dirty = [] {
      void* p = E::allocate(6 * kBytes);
      std::memset(p, 1, 6 * kBytes);
      E::deallocate(p);
    };
    {
      SCOPED_TRACE("calloc");
      dirty();
      // The block comes to lie where the one before was.
      char* block = static_cast<char*>(E::allocate_zeroed(kBytes));
      int stopped = 0;
      for (int round = 0; round < 10 * kOften && stopped < kOften; ++round) {
        std::memset(block, 1, kBytes);
        E::deallocate(block);
        stopped += fork_in_the_middle(
            block + kBytes / 2, 0, [&] { block = static_cast<char*>(E::allocate_zeroed(kBytes)); });
      }
      EXPECT_EQ(stopped, kOften);
      E::deallocate(block);
    }
    {
      SCOPED_TRACE("realloc");
      // Warm memory waits for the copy, and the block cannot grow where it stands.
      dirty();
      int stopped = 0;
      for (int round = 0; round < kOften; ++round) {
        char* block = static_cast<char*>(E::allocate(kBytes));
        std::memset(block, 3, kBytes);
        void* wall = E::allocate(2 * kMiB);
        char* moved = nullptr;
        stopped += fork_in_the_middle(block + kBytes / 2, 2, [&] {
          moved = static_cast<char*>(MallocApi<E>::realloc(block, 2 * kBytes));
        });
        EXPECT_EQ(moved[0], 3);
        EXPECT_EQ(moved[kBytes - 1], 3);
        E::deallocate(moved);
        E::deallocate(wall);
      }
      EXPECT_EQ(stopped, kOften);
    }
  });
}

TEST(StandardFork, ChildrenOfBusyParentsHaveConsistentHeaps) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kUnderAsan) GTEST_SKIP() << "the sanitizer's own malloc may be locked in the child";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  E::process_start();
  std::vector<std::unique_ptr<Slots>> all;
  std::atomic<bool> stop{false};
  std::vector<std::thread> workers;
  for (unsigned t = 0; t < kWorkers; ++t) {
    all.push_back(std::make_unique<Slots>());
    for (auto& slot : *all.back()) slot.store(nullptr);
  }
  std::latch begun(kWorkers);
  test::Progress progress;
  for (unsigned t = 0; t < kWorkers; ++t) {
    workers.emplace_back([&, t] {
      begun.count_down();
      churn(*all[t], t * 7919 + 1, progress, stop);
    });
  }
  begun.wait();
  (void)has_ticked();
  alarm(540);  // a deadlock ends the test
  for (int round = 0; round < 60; ++round) {
    progress.wait_for_more(1);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(540);
      if (!test::walk_heap<E>().consistent()) _exit(3);
      use_the_heap(all);
      _exit(test::walk_heap<E>().consistent() ? 0 : 4);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status))
        << "child killed by signal " << WTERMSIG(status) << " in round " << round;
    ASSERT_EQ(WEXITSTATUS(status), 0) << "round " << round;
  }
  alarm(0);
  EXPECT_TRUE(has_ticked());
  stop = true;
  for (std::thread& worker : workers) worker.join();
  for (auto& slots : all) {
    for (auto& slot : *slots) E::deallocate(slot.exchange(nullptr));
  }
  E::trim();
  EXPECT_TRUE(test::walk_heap<E>().all_returned());
}

// How many spans threads own that have vanished.
std::size_t owned_by_vanished() {
  std::size_t spans = 0;
  E::pages.arena.walk([&](std::uint32_t number, std::size_t, bool free) {
    if (free) return;
    const standard::SpanWord word = E::pages.span(standard::SpanNumber{number})->load_word();
    if (word.state() == standard::SpanState::kOwned && E::pages.caches.was_used(word.owner()) &&
        E::pages.caches.has_vanished(E::pages.caches[word.owner()]))
      ++spans;
  });
  return spans;
}

// Threads that rest at a fork keep their spans in the child until a decay epoch ends, or the child
// trims; then new threads have their cache records.
TEST(StandardFork, AnEpochTakesRestingThreadsSpansOver) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kUnderAsan) GTEST_SKIP() << "the sanitizer's own malloc may be locked in the child";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  for (const bool trims : {false, true}) {
    test::in_fresh_process([trims] {
      E::process_start();
      E::deallocate(E::allocate(100));
      std::atomic<bool> stop{false};
      std::latch resting(kWorkers);
      std::vector<std::thread> workers;
      std::vector<void*> blocks(kWorkers * 1000);
      for (unsigned t = 0; t < kWorkers; ++t) {
        workers.emplace_back([&, t] {
          for (unsigned i = 0; i < 1000; ++i)
            blocks[t * 1000 + i] = E::allocate(16 + (i % 40) * 100);
          resting.count_down();
          while (!stop) usleep(100);
        });
      }
      resting.wait();
      const pid_t child = fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        alarm(540);
        const std::uint32_t records = index_of(E::pages.caches.end());
        E::deallocate(E::allocate(100000));
        if (owned_by_vanished() < kWorkers) _exit(2);
        if (trims) E::trim();
        test::advance_clock(kTickMs);
        // (A block of this size goes to the arena, and the thread looks at the clock.)
        for (int i = 0; !trims && i < 3; ++i) E::deallocate(E::allocate(3 * kMiB));
        if (owned_by_vanished() != 0) _exit(3);
        test::in_threads(kWorkers, [&](unsigned t) {
          for (unsigned i = 0; i < 1000; ++i) E::deallocate(blocks[t * 1000 + i]);
        });
        if (index_of(E::pages.caches.end()) != records) _exit(4);
        E::trim();
        _exit(test::walk_heap<E>().all_returned() ? 0 : 5);
      }
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0) << "2 << 8: taken over at once; 3 << 8: not by then; 4 << 8: a record "
                              "is lost; 5 << 8: a span is";
      stop = true;
      for (std::thread& worker : workers) worker.join();
    });
  }
}

// A thread has taken its first range from the arena, which has no record yet, and there is no
// thread cache yet: that record names thread cache 0.
TEST(StandardFork, AThreadVanishesWithTheVeryFirstRange) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kUnderAsan) GTEST_SKIP() << "the sanitizer's own malloc may be locked in the child";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  test::in_fresh_process([] {
    E::process_start();
    ASSERT_TRUE(E::pages.start());
    ASSERT_EQ(index_of(E::pages.caches.end()), 0u);
    std::atomic<bool> taken{false};
    std::atomic<bool> stop{false};
    std::thread worker([&] {
      E::pages.inside_without_cache.store_relaxed(1);
      const auto range = E::pages.arena.take_growing(3, 1, E::pages.records_reach(),
                                                     decltype(E::pages.arena)::Effort::kGrow);
      EXPECT_NE(range.first, 0u);
      taken = true;
      while (!stop) usleep(100);
    });
    while (!taken) usleep(100);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      E::deallocate(E::allocate(100));
      _exit(test::walk_heap<E>().consistent() ? 0 : 4);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    stop = true;
    worker.join();
  });
}

}  // namespace
}  // namespace spanalloc
