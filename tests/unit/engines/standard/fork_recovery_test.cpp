// What a fork leaves behind: threads vanish in the middle of whatever they did, the child's heap stays
// usable.
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "child.hpp"
#include "engines/standard/engine.hpp"
#include "engines/standard/test_support.hpp"
#include "sanitizers.hpp"
#include "threads.hpp"

namespace spanalloc {
namespace {

using E = StandardEngine;
constexpr int kWorkers = 4;
constexpr std::size_t kSlots = 5000;
using Slots = std::array<std::atomic<void*>, kSlots>;

// Parks and revives spans all the time: 256-byte blocks replaced at random.
void churn(Slots& slots, unsigned seed, const std::atomic<bool>& stop) {
  while (!stop.load(std::memory_order_relaxed)) {
    seed = seed * 1664525 + 1013904223;
    E::deallocate(slots[(seed >> 8) % kSlots].exchange(E::allocate(256)));
  }
}

// In the child: new threads take the vanished threads' LABs, free all that is out, and allocate.
void use_the_heap(std::vector<std::unique_ptr<Slots>>& all) {
  test::in_threads(kWorkers, [&](unsigned) {
    E::allocate(256);
    for (auto& slots : all) {
      for (auto& slot : *slots) {
        E::deallocate(slot.exchange(nullptr));
        void* p = E::allocate(256);
        static_cast<char*>(p)[255] = 1;
        E::deallocate(p);
      }
    }
  });
}

// A thread that purges holds whole stacks of free spans; a child that is made meanwhile must not lose them.
// Another library's fork handlers, registered before ours: in the child they run before the heap has been
// told that it is one.
std::atomic<bool> handlers_allocate{false};
void allocate_in_handler() {
  if (!handlers_allocate) return;
  for (const std::size_t size : {std::size_t{40}, std::size_t{5000}, 300 * kKiB, 3 * kMiB}) {
    std::vector<void*> blocks(50);
    for (void*& p : blocks) p = E::allocate(size);
    for (void* p : blocks) E::deallocate(p);
  }
}
const int registered = pthread_atfork(allocate_in_handler, allocate_in_handler, allocate_in_handler);

TEST(StandardFork, OtherHandlersMayAllocate) {
  if (test::kUnderTsan) GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kUnderAsan) GTEST_SKIP() << "the sanitizer's own malloc may be locked in the child";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  ASSERT_EQ(registered, 0);
  E::process_start();
  std::atomic<bool> stop{false};
  std::vector<std::thread> others;
  std::latch begun(2);
  for (int t = 0; t < 2; ++t) {
    others.emplace_back([&] {
      begun.count_down();
      while (!stop) {
        std::vector<void*> blocks(200);
        for (void*& p : blocks) p = E::allocate(3000);
        for (void* p : blocks) E::deallocate(p);
      }
    });
  }
  begun.wait();
  handlers_allocate = true;
  for (int round = 0; round < 50; ++round) {
    alarm(540);  // a deadlock ends the test
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(540);
      E::deallocate(E::allocate(100000));
      _exit(E::census().consistent() ? 0 : 3);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "round " << round;
  }
  handlers_allocate = false;
  alarm(0);
  stop = true;
  for (std::thread& other : others) other.join();
  E::trim();
  EXPECT_TRUE(E::census().consistent());
}

TEST(StandardFork, ChildrenOfAPurgingParentHaveAllFreeSpans) {
  if (test::kUnderTsan) GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kUnderAsan) GTEST_SKIP() << "the sanitizer's own malloc may be locked in the child";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  E::process_start();
  std::atomic<bool> stop{false};
  std::latch begun(1);
  std::thread purger([&] {
    std::vector<void*> blocks(500);
    begun.count_down();
    while (!stop) {
      for (void*& p : blocks) *static_cast<char*>(p = E::allocate(60000)) = 1;
      for (void* p : blocks) E::deallocate(p);
      E::trim();
    }
  });
  begun.wait();
  for (int round = 0; round < 60; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(540);
      const SpanCensus census = E::census();
      _exit(census.consistent() && census.lost_to_fork == 0 ? 0 : 3);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "round " << round;
  }
  stop = true;
  purger.join();
}

// Another thread that does work() again and again, and can be stopped wherever it is.
class Stoppable {
 public:
  template <class Work>
  explicit Stoppable(Work work) {
    struct sigaction action{};
    action.sa_handler = stand;
    EXPECT_EQ(sigaction(SIGUSR1, &action, &before_), 0);
    thread_ = std::thread([this, work] {
      while (!over_) work();
    });
  }
  ~Stoppable() {
    over_ = true;
    thread_.join();
    sigaction(SIGUSR1, &before_, nullptr);
  }
  Stoppable(const Stoppable&) = delete;
  Stoppable& operator=(const Stoppable&) = delete;

  /// f() while it stands still.
  template <class F>
  void during_a_stop(F f) {
    may_go_ = stands_ = false;
    ASSERT_EQ(pthread_kill(thread_.native_handle(), SIGUSR1), 0);
    while (!stands_) usleep(100);
    f();
    may_go_ = true;
    while (stands_) usleep(100);
  }

 private:
  static void stand(int) {
    stands_ = true;
    while (!may_go_) usleep(100);
    stands_ = false;
  }

  static inline std::atomic<bool> stands_;
  static inline std::atomic<bool> may_go_;
  std::atomic<bool> over_{false};
  struct sigaction before_{};
  std::thread thread_;
};

// Whether `done` is what the memory begins with and `old` what it ends with: it is being written, in order.
bool is_half_written(const char* memory, std::size_t bytes, char done, char old) {
  constexpr std::size_t kStep = kMiB;  // (copies go on in several pages at a time)
  std::size_t at = 0;
  while (at < bytes && memory[at] == done) at += kStep;
  if (at == 0 || at >= bytes) return false;
  while (at < bytes && memory[at] == old) at += kStep;
  return at >= bytes;
}

// Forks while another thread does work(), as often as it takes until some forks came in the middle of what
// is_in_the_middle() knows: then `expected` large objects are in the child. The thread stands still
// meanwhile, so that the child gets all of its memory as of one moment.
template <class Work, class InTheMiddle>
void expect_in_the_middle(std::size_t expected, Work work, InTheMiddle is_in_the_middle) {
  constexpr int kOften = 4;
  Stoppable other(work);
  for (int found = 0; found < kOften && !testing::Test::HasFailure();) {
    other.during_a_stop([&] {
      const pid_t child = fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        alarm(540);
        if (!E::census().consistent()) _exit(3);
        if (!is_in_the_middle()) _exit(0);
        _exit(E::statistics().large_objects == expected ? 1 : 2);
      }
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      ASSERT_TRUE(WIFEXITED(status)) << status;
      EXPECT_LE(WEXITSTATUS(status), 1) << "2: another number of large objects";
      found += WEXITSTATUS(status) == 1;
    });
  }
}

// A thread that vanishes while calloc clears a large block, or while realloc copies into one, takes nothing
// with it. (A step or two before the call returns it does.)
TEST(StandardFork, BlocksThatAreNotReadyAreFreeInTheChild) {
  if (test::kUnderTsan) GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kUnderAsan) GTEST_SKIP() << "the sanitizer's own malloc may be locked in the child";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  large::in_fresh_process([] {
    E::process_start();
    constexpr std::size_t kBytes = 48 * kMiB;
    const auto dirty = [] {
      void* p = E::allocate(6 * kBytes);
      std::memset(p, 1, 6 * kBytes);
      E::deallocate(p);
    };
    dirty();
    std::atomic<char*> target{nullptr};
    {
      SCOPED_TRACE("calloc");
      expect_in_the_middle(
          0,
          [&] {
            char* p = static_cast<char*>(E::allocate_zeroed(kBytes));
            target = p;
            std::memset(p, 1, kBytes);
            E::deallocate(p);
          },
          [&] { return target != nullptr && is_half_written(target, kBytes, 0, 1); });
    }
    // Warm memory waits for the copy, and the block cannot grow where it stands.
    dirty();
    char* p = static_cast<char*>(E::allocate(kBytes));
    std::memset(p, 3, kBytes);
    void* wall = E::allocate(2 * kMiB);
    target = nullptr;
    {
      SCOPED_TRACE("realloc");
      expect_in_the_middle(
          2,
          [&] {
            char* moved = static_cast<char*>(MallocApi<E>::realloc(p, 2 * kBytes));
            target = moved;
            std::memset(moved, 1, kBytes);
            E::deallocate(moved);
            p = static_cast<char*>(E::allocate(kBytes));
            std::memset(p, 3, kBytes);
          },
          [&] { return target != nullptr && is_half_written(target, kBytes, 3, 1); });
    }
    E::deallocate(p);
    E::deallocate(wall);
  });
}

// The signal handler forks while its thread has claimed a span of another's, and waits for that one's lock to
// take it off a list. In the child the list is made anew by the waiting thread itself.
constexpr pid_t kNoChild = -2;
std::atomic<pid_t> handlers_child{kNoChild};
TEST(StandardFork, AClaimantWaitsForTheLockAndForksInAHandler) {
  if (test::kUnderTsan) GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kUnderAsan) GTEST_SKIP() << "the sanitizer's own malloc may be locked in the child";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  constexpr std::size_t kSize = 5000;
  handlers_child = kNoChild;
  E::process_start();
  std::vector<void*> blocks(200);
  std::atomic<int> step{0};
  standard::LabNumber owner{};
  const auto wait_for = [&](int wanted) {
    while (step != wanted) usleep(100);
  };
  std::thread holder([&] {
    for (void*& p : blocks) p = E::allocate(kSize);
    owner = E::frontend.lab->number;
    step = 1;
    wait_for(2);
    (void)E::pages.lab(owner).lock.lock();
    step = 3;
    wait_for(4);
    E::pages.lab(owner).lock.unlock();
    wait_for(5);
  });
  wait_for(1);
  E::deallocate(E::allocate(10));
  std::vector<std::vector<void*>> spans;
  const auto span_of = [](void* p) { return E::pages.span_of(E::pages.any_granule_at(address_of(p))); };
  standard::SpanRef last;
  for (void* p : blocks) {
    if (span_of(p) != last) spans.emplace_back();
    last = span_of(p);
    spans.back().push_back(p);
  }
  ASSERT_GE(spans.size(), 6u);
  const auto free_one = [&](std::size_t span) {
    E::deallocate(spans[span].back());
    spans[span].pop_back();
  };
  // Neighbours on the attention list, the middle one with one block left to free.
  for (const std::size_t span : {std::size_t{3}, std::size_t{2}, std::size_t{1}}) free_one(span);
  while (spans[2].size() > 1) free_one(2);
  for (unsigned i = 0; i < standard::RemoteRuns::kRuns; ++i)
    E::deallocate(E::allocate(2 * kMiB));  // gives runs back
  step = 2;
  wait_for(3);
  struct sigaction action{};
  struct sigaction before{};
  action.sa_handler = [](int) {
    handlers_child = fork();
    if (handlers_child == 0) alarm(540);
  };
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  const standard::Span& claimed = *span_of(spans[2].back()).record;
  const pid_t parent = getpid();
  std::thread signaller([&, me = pthread_self()] {
    const auto is_claimed = [&] {
      return standard::SpanWord{claimed.word.load_relaxed()}.state() == standard::SpanState::kFree;
    };
    while (!is_claimed()) usleep(100);
    usleep(10'000);  // what is left on the way to the lock
    pthread_kill(me, SIGUSR1);
    while (handlers_child == kNoChild) usleep(100);
    step = 4;
  });
  free_one(2);
  if (getpid() != parent) {
    for (std::vector<void*>& span : spans) {
      for (void* p : span) E::deallocate(p);
    }
    E::trim();
    E::deallocate(E::allocate(kSize));
    _exit(E::census().consistent() ? 0 : 3);
  }
  signaller.join();
  sigaction(SIGUSR1, &before, nullptr);
  step = 5;
  holder.join();
  ASSERT_GT(handlers_child, 0);
  int status = 0;
  ASSERT_EQ(waitpid(handlers_child, &status, 0), handlers_child);
  EXPECT_EQ(status, 0);
  for (std::vector<void*>& span : spans) {
    for (void* p : span) E::deallocate(p);
  }
  E::trim();
  EXPECT_TRUE(E::census().consistent());
}

TEST(StandardFork, ChildrenOfBusyParentsHaveConsistentHeaps) {
  if (test::kUnderTsan) GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
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
  for (unsigned t = 0; t < kWorkers; ++t) {
    workers.emplace_back([&, t] {
      begun.count_down();
      churn(*all[t], t * 7919 + 1, stop);
    });
  }
  begun.wait();
  for (int round = 0; round < 60; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(540);
      if (!E::census().consistent()) _exit(3);
      use_the_heap(all);
      _exit(E::census().consistent() ? 0 : 4);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << "child killed by signal " << WTERMSIG(status) << " in round " << round;
    ASSERT_EQ(WEXITSTATUS(status), 0) << "round " << round;
  }
  stop = true;
  for (std::thread& worker : workers) worker.join();
  for (auto& slots : all) {
    for (auto& slot : *slots) E::deallocate(slot.exchange(nullptr));
  }
  E::trim();
  EXPECT_TRUE(E::census().all_returned());
}

// A thread has taken its first range from the arena, which has no record yet, and there is no LAB yet: that
// record names LAB 0.
TEST(StandardFork, AThreadVanishesWithTheVeryFirstRange) {
  if (test::kUnderTsan) GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kUnderAsan) GTEST_SKIP() << "the sanitizer's own malloc may be locked in the child";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  test::in_fresh_process([] {
    E::process_start();
    ASSERT_TRUE(E::pages.start());
    ASSERT_EQ(index_of(E::pages.end_of_labs()), 0u);
    std::atomic<bool> taken{false};
    std::atomic<bool> stop{false};
    std::thread worker([&] {
      E::pages.inside_without_lab.store_relaxed(1);
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
      _exit(E::census().consistent() ? 0 : 4);
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
