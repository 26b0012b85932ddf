// Which call of the program's function is made when, and by whom.
#include "pages/soft_limit_callback.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <atomic>
#include <thread>
#include <vector>

#include "child.hpp"
#include "os_calls.hpp"

namespace spanalloc {

struct SoftLimitCallbackTestAccess {
  static SpinLock& lock(SoftLimitCallback& callback) { return callback.lock_; }
};

namespace {

struct Calls {
  SoftLimitCallback callback;
  std::atomic<unsigned> made{0};
  std::atomic<unsigned> running{0};
  std::atomic<bool> overlapped{false};
  bool note_again = false;

  Calls() { callback.set(&Calls::call, this); }
  static void call(void* context, std::size_t held, std::size_t limit) {
    Calls& self = *static_cast<Calls*>(context);
    if (self.running.fetch_add(1) != 0) self.overlapped = true;
    EXPECT_EQ(held, 7u);
    EXPECT_EQ(limit, 8u);
    ++self.made;
    if (self.note_again) {
      self.note_again = false;
      EXPECT_TRUE(self.callback.note_near());
      EXPECT_FALSE(self.make()) << "it is due, but not from within";
      EXPECT_EQ(self.made, 1u);
    }
    self.running.fetch_sub(1);
  }
  bool make() { return callback.call_if_due(7, 8); }
};

TEST(SoftLimitCallback, IsCalledOnceForEachNote) {
  Calls calls;
  EXPECT_TRUE(calls.make());
  EXPECT_EQ(calls.made, 0u);
  for (unsigned i = 1; i <= 3; ++i) {
    EXPECT_TRUE(calls.callback.note_near());
    EXPECT_TRUE(calls.callback.note_near());
    EXPECT_TRUE(calls.make());
    EXPECT_TRUE(calls.make());
    EXPECT_EQ(calls.made, i);
  }
}

TEST(SoftLimitCallback, IsNotCalledWithinItself) {
  Calls calls;
  calls.note_again = true;
  calls.callback.note_near();
  EXPECT_FALSE(calls.make()) << "what was noted meanwhile is due";
  EXPECT_EQ(calls.made, 1u);
  EXPECT_TRUE(calls.make());
  EXPECT_EQ(calls.made, 2u);
}

TEST(SoftLimitCallback, OfNoFunctionNothingIsNoted) {
  SoftLimitCallback none;
  EXPECT_FALSE(none.note_near());
  EXPECT_TRUE(none.call_if_due(1, 1));
  Calls calls;
  calls.callback.note_near();
  calls.callback.set(nullptr, nullptr);
  EXPECT_TRUE(calls.make());
  EXPECT_EQ(calls.made, 0u);
}

// Threads that note and call at once, and one that sets it all the while.
TEST(SoftLimitCallback, CallsOfThreadsDoNotOverlap) {
  Calls calls;
  constexpr unsigned kNotes = 2000;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (unsigned i = 0; i < kNotes; ++i) {
        calls.callback.note_near();
        calls.make();
      }
    });
  }
  for (unsigned i = 0; i < kNotes; ++i) calls.callback.set(&Calls::call, &calls);
  for (std::thread& thread : threads) thread.join();
  calls.make();
  EXPECT_FALSE(calls.overlapped);
  EXPECT_FALSE(calls.callback.is_due());
  EXPECT_GE(calls.made, 1u);
  EXPECT_LE(calls.made, 4 * kNotes + 1);
}

// A handler's fork may have come while the thread held the lock: then the recovery of the child,
// which finds memory near the limit, is the holder's own.
TEST(SoftLimitCallback, WhoHoldsTheLockDoesNotWaitForIt) {
  Calls calls;
  SpinLock& lock = SoftLimitCallbackTestAccess::lock(calls.callback);
  ASSERT_TRUE(lock.try_lock());
  // A thread that waits gives its CPU away. Then it gets the lock.
  const std::size_t yields_before = test::yields();
  std::atomic<bool> is_done{false};
  std::atomic<bool> has_waited{false};
  std::thread helper([&] {
    while (!is_done && test::yields() == yields_before) std::this_thread::yield();
    if (is_done) return;
    has_waited = true;
    lock.reset();
  });
  EXPECT_TRUE(calls.callback.note_near());
  is_done = true;
  helper.join();
  EXPECT_FALSE(has_waited);
  EXPECT_TRUE(calls.callback.is_due());
  EXPECT_TRUE(lock.is_mine()) << "it is its holder's still";
  if (lock.is_mine()) lock.unlock();
}

// What was due in the parent is the parent's; a call of a thread that did not come along is over.
TEST(SoftLimitCallback, AForksChildBeginsAnew) {
  Calls calls;
  calls.callback.note_near();
  std::atomic<bool> is_in{false};
  std::atomic<bool> may_leave{false};
  struct Gate {
    std::atomic<bool>& is_in;
    std::atomic<bool>& may_leave;
  } gate{is_in, may_leave};
  SoftLimitCallback busy;
  busy.set(
      [](void* context, std::size_t, std::size_t) {
        Gate& of = *static_cast<Gate*>(context);
        of.is_in = true;
        while (!of.may_leave) std::this_thread::yield();
      },
      &gate);
  busy.note_near();
  std::thread thread([&] { busy.call_if_due(0, 0); });
  while (!is_in) std::this_thread::yield();
  const int ended = test::run_in_child([&] {
    SpinLock::enter_child();
    calls.callback.enter_child();
    busy.enter_child();
    if (calls.callback.is_due() || busy.is_due()) return 1;
    may_leave = true;
    busy.note_near();
    return busy.call_if_due(0, 0) ? 0 : 2;
  });
  EXPECT_EQ(ended, 0);
  may_leave = true;
  thread.join();
  EXPECT_TRUE(calls.callback.is_due());
}

}  // namespace
}  // namespace spanalloc
