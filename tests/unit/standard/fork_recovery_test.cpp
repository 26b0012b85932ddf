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

// The signal handler forks while its thread has claimed a span of another's, and
// waits for that one's lock to take it off a list. In the child the list is made anew
// by the waiting thread itself.
constexpr pid_t kNoChild = -2;
std::atomic<pid_t> handlers_child{kNoChild};
TEST(StandardFork, AClaimantWaitsForTheLockAndForksInAHandler) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kUnderAsan) GTEST_SKIP() << "the sanitizer's own malloc may be locked in the child";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  constexpr std::size_t kSize = 5000;
  alarm(540);  // a deadlock ends the test
  handlers_child = kNoChild;
  E::process_start();
  std::vector<void*> blocks(200);
  std::atomic<int> step{0};
  standard::CacheNumber owner{};
  const auto wait_for = [&](int wanted) {
    while (step != wanted) usleep(100);
  };
  std::thread holder([&] {
    for (void*& p : blocks) p = E::allocate(kSize);
    owner = E::thread_cache.cache->number;
    step = 1;
    wait_for(2);
    (void)E::pages.cache(owner).lock.lock();
    step = 3;
    wait_for(4);
    E::pages.cache(owner).lock.unlock();
    wait_for(5);
  });
  wait_for(1);
  E::deallocate(E::allocate(10));
  std::vector<std::vector<void*>> spans;
  const auto span_of = [](void* p) {
    return E::pages.span_of(E::pages.any_slice_at(address_of(p)));
  };
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
  // Neighbours on the delayed list, the middle one with one block left to free.
  for (const std::size_t span : {std::size_t{3}, std::size_t{2}, std::size_t{1}}) free_one(span);
  while (spans[2].size() > 1) free_one(2);
  for (unsigned i = 0; i < standard::RemoteBatches<Standard>::kBatches; ++i)
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
  const std::size_t yields_before = test::yields();  // nobody else yields: the others sleep
  std::thread signaller([&, me = pthread_self()] {
    const auto is_claimed = [&] {
      return claimed.word.load_relaxed().state() == standard::SpanState::kFree;
    };
    const auto waits_for_the_lock = [&] { return test::yields() != yields_before; };
    while (!is_claimed() || !waits_for_the_lock()) usleep(100);
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
    _exit(test::walk_heap<E>().consistent() ? 0 : 3);
  }
  signaller.join();
  sigaction(SIGUSR1, &before, nullptr);
  step = 5;
  holder.join();
  ASSERT_GT(handlers_child, 0);
  int status = 0;
  ASSERT_EQ(waitpid(handlers_child, &status, 0), handlers_child);
  EXPECT_EQ(status, 0);
  alarm(0);
  for (std::vector<void*>& span : spans) {
    for (void* p : span) E::deallocate(p);
  }
  E::trim();
  EXPECT_TRUE(test::walk_heap<E>().consistent());
}

// A list is made anew in the child, and one of its spans is found damaged: that is lost without a
// word, and none of the others.
TEST(StandardFork, WhatIsDamagedOnATornListIsLostAlone) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kUnderAsan) GTEST_SKIP() << "the sanitizer's own malloc may be locked in the child";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  E::process_start();
  E::deallocate(E::allocate(10));
  std::latch holds(1);
  std::latch is_over(1);
  std::thread holder([&] {
    std::vector<void*> blocks(400);
    for (void*& p : blocks) p = E::allocate(5000);
    for (std::size_t i = 0; i < blocks.size(); i += 2) E::deallocate(blocks[i]);
    // The second one of a list.
    const std::uint64_t was = std::exchange(*static_cast<std::uint64_t*>(blocks[98]), 0);
    (void)E::thread_cache.cache->lock.lock();
    holds.count_down();
    is_over.wait();
    E::thread_cache.cache->lock.unlock();
    *static_cast<std::uint64_t*>(blocks[98]) = was;
    for (std::size_t i = 1; i < blocks.size(); i += 2) E::deallocate(blocks[i]);
  });
  holds.wait();
  const int status = test::run_in_child([] {
    const test::HeapWalk walk = test::walk_heap<E>();
    if (!walk.consistent()) return 1;
    return walk.lost == 1 ? 0 : 2;
  });
  EXPECT_EQ(status, 0);
  is_over.count_down();
  holder.join();
  E::trim();
  EXPECT_TRUE(test::walk_heap<E>().consistent());
}

// A thread has counted its last free into a span that it shares, and vanishes before it looks at
// the span: no call was under way, and the span is pooled when the child abandons the thread's.
TEST(StandardFork, ASpanWhoseLastFreeWasOnlyCountedIsPooledInTheChild) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kUnderAsan) GTEST_SKIP() << "the sanitizer's own malloc may be locked in the child";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  E::process_start();
  E::deallocate(E::allocate(10));
  std::latch counted(1);
  std::latch is_over(1);
  test::HeapWalk before;
  std::thread other([&] {
    std::vector<void*> blocks(60);
    for (void*& p : blocks) p = E::allocate(5000);
    const standard::SpanRef span = E::pages.span_of(E::pages.any_slice_at(address_of(blocks[0])));
    const auto is_of_span = [&](void* p) {
      return E::pages.span_of(E::pages.any_slice_at(address_of(p))) == span;
    };
    std::size_t out = 0;
    while (is_of_span(blocks[out])) ++out;
    for (std::size_t i = 1; i < out; ++i) E::deallocate(blocks[i]);
    ASSERT_EQ(span->load_word().state(), standard::SpanState::kShared);
    ASSERT_NE(span->list(), standard::ListId::kNone);
    before = test::walk_heap<E>();
    auto* const block = static_cast<standard::Block*>(blocks[0]);
    const std::uint64_t link = address_of(span->free_list().first()) ^ address_of(block);
    EXPECT_TRUE(standard::FreeTarget::push(span.record, block, link)) << "the last is an event";
    counted.count_down();
    is_over.wait();
    EXPECT_TRUE(E::pages.heap.protocol().collect_after_free(span, E::thread_cache.cache->number));
    E::pages.heap.put_in_pool(span, 0);
    for (std::size_t i = out; i < blocks.size(); ++i) E::deallocate(blocks[i]);
  });
  counted.wait();
  const int status = test::run_in_child([&] {
    const test::HeapWalk walk = test::walk_heap<E>();
    if (!walk.consistent() || walk.lost != 0 || walk.carved != before.carved) return 1;
    return walk.in_pool == before.in_pool + 1 ? 0 : 2;
  });
  EXPECT_EQ(status, 0);
  is_over.count_down();
  other.join();
  E::trim();
  EXPECT_TRUE(test::walk_heap<E>().consistent());
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
