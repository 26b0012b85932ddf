// The lock on real threads and real forks; every interleaving of few steps is the model's affair.
#include "sync/spin_lock.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "child.hpp"
#include "os_calls.hpp"
#include "sanitizers.hpp"
#include "threads.hpp"

namespace spanalloc {

struct SpinLockTestAccess {
  // Waiters do not spin, and sleep for so long if nobody wakes them.
  static void sleep(unsigned spins, std::uint64_t ns) {
    SpinLock::spins = spins;
    SpinLock::sleep_ns = ns;
  }
  static std::uint64_t word(const SpinLock& lock) { return lock.word_.load_relaxed(); }
  static bool has_sleeper(const SpinLock& lock) { return (word(lock) & SpinLock::kSleeper) != 0; }
};

namespace {

// In a process where who sleeps for a lock does so for an hour if nobody wakes it.
class SpinLockSleepers : public testing::Test {
 protected:
  static constexpr std::uint64_t kHour = 3'600'000'000'000;
  void SetUp() override { SpinLockTestAccess::sleep(0, kHour); }
  void TearDown() override { SpinLockTestAccess::sleep(512, 50'000); }
};

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

// A thread of a fork's child may have the mark of one that vanished with the lock: here it is the
// same thread.
TEST(SpinLock, TellsAVanishedThreadOfItsMarkFromItself) {
  SpinLock lock;
  EXPECT_FALSE(lock.is_mine_for_ever());
  ASSERT_TRUE(lock.try_lock());
  EXPECT_TRUE(lock.is_mine_for_ever());
  std::thread([&] { EXPECT_FALSE(lock.is_mine_for_ever()); }).join();
  test::in_child([&] {
    SpinLock::enter_child();
    EXPECT_FALSE(lock.is_mine_for_ever());
    EXPECT_FALSE(lock.is_free());
    EXPECT_EQ(lock.lock(), Locked::kOwnerDied);
    EXPECT_TRUE(lock.is_mine_for_ever());
    lock.unlock();
  });
  lock.unlock();
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

// Forks while another thread holds `lock`; returns what look() returns in the child, which has one
// thread. Before that prepare() has been done.
template <class Lock, class Look, class Prepare>
int in_child_without_the_holder(Lock& lock, Look look, Prepare prepare) {
  std::atomic<bool> held{false};
  std::atomic<bool> done{false};
  std::thread holder([&] {
    LockGuard guard(lock);
    held = true;
    while (!done) std::this_thread::yield();
  });
  while (!held) std::this_thread::yield();
  prepare();
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
template <class Look>
int in_child_without_the_holder(SpinLock& lock, Look look) {
  return in_child_without_the_holder(lock, look, [] {});
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
                                            if (how != Locked::kOwnerDied || !lock.is_mine())
                                              return 2;
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
  EXPECT_EQ(
      in_child_without_the_holder(lock,
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

TEST(Sleep, LastsUntilSomebodyIsWoken) {
  alignas(8) std::atomic<std::uint64_t> word{7};
  os::sleep_while(&word, 8, UINT64_MAX / 4);  // it is not what it would sleep for
  EXPECT_FALSE(os::wake_one(&word));
  std::thread sleeper([&] { os::sleep_while(&word, 7, UINT64_MAX / 4); });
  while (!os::wake_one(&word)) std::this_thread::yield();
  sleeper.join();
}

// Who frees the lock wakes it: else this takes an hour.
TEST_F(SpinLockSleepers, AreWokenWhenTheLockIsFree) {
  WakingLock lock;
  for (unsigned round = 0; round < 3; ++round) {
    std::atomic<bool> frees{false};
    ASSERT_EQ(lock.lock(), Locked::kClean);
    const std::size_t before = test::yields();
    std::thread waiter([&] {
      EXPECT_EQ(lock.lock(), Locked::kClean);
      EXPECT_TRUE(frees);
      EXPECT_TRUE(SpinLockTestAccess::has_sleeper(lock)) << "others may sleep, too";
      lock.unlock();
    });
    // It sleeps; or it is about to, and then finds another word.
    while (test::yields() - before < 1) std::this_thread::yield();
    EXPECT_TRUE(SpinLockTestAccess::has_sleeper(lock));
    frees = true;
    lock.unlock();
    waiter.join();
    EXPECT_EQ(SpinLockTestAccess::word(lock), 0u);
  }
}

// Hundreds that look every 50 microseconds would keep the holder from the cores.
TEST(SpinLock, WhoSleepsForLongLooksSeldom) {
  WakingLock lock;
  ASSERT_EQ(lock.lock(), Locked::kClean);
  const std::size_t before = test::yields();
  const auto begin = std::chrono::steady_clock::now();
  std::thread waiter([&] {
    EXPECT_EQ(lock.lock(), Locked::kClean);
    lock.unlock();
  });
  while (test::yields() - before < 18 ||
         std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(150)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const std::size_t sleeps = test::yields() - before;
  const auto passed = std::chrono::steady_clock::now() - begin;
  lock.unlock();
  waiter.join();
  // Two of each length from 50 microseconds on, then 12.8 ms each at least: but for signals, which
  // nobody sends here.
  EXPECT_LE(sleeps, 18u + static_cast<std::size_t>(passed / std::chrono::microseconds(12'800)));
}

// A mark that a child has inherited is nobody's.
TEST_F(SpinLockSleepers, OfAParentAreNoneInAForksChild) {
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  WakingLock lock;
  ASSERT_EQ(lock.lock(), Locked::kClean);
  std::thread waiter([&] {
    EXPECT_EQ(lock.lock(), Locked::kClean);
    lock.unlock();
  });
  while (!SpinLockTestAccess::has_sleeper(lock)) std::this_thread::yield();
  // The thread that has it goes on in the child.
  SpinLock::begin_fork();
  EXPECT_EQ(test::run_in_child([&] {
              SpinLock::enter_child();
              lock.abandon_if_owner_died();
              if (lock.owner_died() || !lock.is_mine()) return 1;
              lock.unlock();
              if (SpinLockTestAccess::word(lock) != 0) return 2;
              if (lock.lock() != Locked::kClean || SpinLockTestAccess::has_sleeper(lock)) return 3;
              lock.unlock();
              return 0;
            }),
            0);
  SpinLock::end_fork();
  lock.unlock();
  waiter.join();
}

TEST_F(SpinLockSleepers, OfAHolderThatDiedAreNoneInAForksChild) {
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  WakingLock lock;
  std::thread waiter;
  EXPECT_EQ(in_child_without_the_holder(
                lock,
                [&] {
                  if (!SpinLockTestAccess::has_sleeper(lock)) return 1;
                  if (!lock.owner_died() || lock.lock() != Locked::kOwnerDied) return 2;
                  if (SpinLockTestAccess::has_sleeper(lock)) return 3;
                  lock.unlock();
                  return lock.lock() == Locked::kClean ? 0 : 4;
                },
                [&] {
                  waiter = std::thread([&] { const LockGuard guard(lock); });
                  while (!SpinLockTestAccess::has_sleeper(lock)) {
                    std::this_thread::yield();
                  }
                }),
            0);
  waiter.join();
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
