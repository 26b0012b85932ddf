// The lock on real threads and real forks; every interleaving of few steps is the model's affair.
#include "sync/spin_lock.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "child.hpp"
#include "sanitizers.hpp"
#include "threads.hpp"

namespace spanalloc {
namespace {

TEST(SpinLock, OneThreadAtATime) {
  SpinLock lock;
  int count = 0;
  test::in_threads(4, [&](unsigned) {
    for (int i = 0; i < 20'000; ++i) {
      LockGuard guard(lock);
      EXPECT_FALSE(guard.owner_died());
      ++count;
    }
  });
  EXPECT_EQ(count, 80'000);
}

TEST(SpinLock, KnowsItsHolder) {
  SpinLock lock;
  EXPECT_FALSE(lock.is_mine());
  ASSERT_TRUE(lock.try_lock());
  EXPECT_TRUE(lock.is_mine());
  EXPECT_FALSE(lock.try_lock()) << "nobody takes it twice";
  std::thread([&] {
    EXPECT_FALSE(lock.is_mine());
    EXPECT_FALSE(lock.try_lock());
  }).join();
  lock.unlock();
  EXPECT_FALSE(lock.is_mine());
  EXPECT_TRUE(lock.try_lock());
  lock.unlock();
}

TEST(SpinLock, WhoDoesNotWaitIsToldHowItIs) {
  SpinLock lock;
  Locked how{};
  EXPECT_TRUE(lock.is_free());
  ASSERT_TRUE(lock.try_lock(how));
  EXPECT_EQ(how, Locked::kClean);
  EXPECT_TRUE(lock.is_mine());
  EXPECT_FALSE(lock.is_free());
  EXPECT_FALSE(lock.try_lock(how)) << "nobody takes it twice";
  std::thread([&] { EXPECT_FALSE(lock.try_lock(how)); }).join();
  lock.unlock();
  EXPECT_TRUE(lock.is_free());
}

// Forks while another thread holds `lock`; returns what look() returns in the child, which has one thread.
template <class Look>
int in_child_without_the_holder(SpinLock& lock, Look look) {
  std::atomic<bool> held{false};
  std::atomic<bool> done{false};
  std::thread holder([&] {
    LockGuard guard(lock);
    held = true;
    while (!done) std::this_thread::yield();
  });
  while (!held) std::this_thread::yield();
  SpinLock::begin_fork();
  const int code = test::run_in_child([&] {
    SpinLock::enter_child();
    return look();
  });
  SpinLock::end_fork();
  done = true;
  holder.join();
  return code;
}

TEST(SpinLock, SaysInAForksChildThatItsOwnerDied) {
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  SpinLock lock;
  EXPECT_EQ(in_child_without_the_holder(lock,
                                        [&] {
                                          if (!lock.owner_died() || lock.try_lock()) return 1;
                                          if (lock.lock() != Locked::kOwnerDied) return 2;
                                          lock.unlock();
                                          if (lock.owner_died()) return 3;
                                          return lock.lock() == Locked::kClean ? 0 : 4;
                                        }),
            0);
  EXPECT_EQ(lock.lock(), Locked::kClean) << "the parent's is untouched";
  lock.unlock();
}

TEST(SpinLock, WhoDoesNotWaitTakesADeadOwnersLock) {
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  SpinLock lock;
  for (const bool abandons : {false, true}) {
    EXPECT_EQ(in_child_without_the_holder(lock,
                                          [&] {
                                            if (abandons) lock.abandon_if_owner_died();
                                            Locked how{};
                                            if (lock.is_free() || !lock.try_lock(how)) return 1;
                                            if (how != Locked::kOwnerDied || !lock.is_mine()) return 2;
                                            lock.unlock();
                                            if (!lock.is_free() || !lock.try_lock(how)) return 3;
                                            return how == Locked::kClean ? 0 : 4;
                                          }),
              0)
        << abandons;
  }
}

TEST(SpinLock, AnAbandonedLockTellsTheNextHolderOnce) {
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  SpinLock lock;
  EXPECT_EQ(in_child_without_the_holder(lock,
                                        [&] {
                                          lock.abandon_if_owner_died();
                                          if (!lock.owner_died() || lock.lock() != Locked::kOwnerDied)
                                            return 1;
                                          lock.abandon_if_owner_died();
                                          if (!lock.is_mine()) return 2;
                                          lock.unlock();
                                          return lock.lock() == Locked::kClean ? 0 : 3;
                                        }),
            0);
}

TEST(SpinLock, ARepairedLockIsFree) {
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  SpinLock lock;
  EXPECT_EQ(in_child_without_the_holder(lock,
                                        [&] {
                                          lock.reset();
                                          return lock.lock() == Locked::kClean ? 0 : 1;
                                        }),
            0);
}

TEST(SpinLock, TheThreadThatForkedKeepsItsLocks) {
  SpinLock lock;
  LockGuard guard(lock);
  EXPECT_EQ(test::run_in_child([&] {
              SpinLock::enter_child();
              lock.abandon_if_owner_died();
              return !lock.owner_died() && lock.is_mine() ? 0 : 1;
            }),
            0);
}

}  // namespace
}  // namespace spanalloc
