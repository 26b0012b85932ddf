// sync/spin_lock.hpp under the checker.
#include "sync/spin_lock.hpp"

#include "model_test.hpp"

namespace spanalloc {
struct SpinLockTestAccess {
  static void spin(unsigned spins) { SpinLock::spins = spins; }
};
}  // namespace spanalloc

namespace spanalloc::model {
namespace {

// The naive lock looks and takes in two steps.
class TwoStepLock {
 public:
  void lock() {
    while (word_.load_acquire() != 0) spin_hint();
    word_.store_relaxed(1);
  }
  void unlock() { word_.store_release(0); }

 private:
  Atomic<std::uint32_t> word_{0};
};

// Excludes, but hands nothing over: the unlock is not a release.
class UnorderedLock {
 public:
  void lock() {
    for (std::uint32_t free = 0; !word_.compare_exchange_strong_acquire(free, 1); free = 0)
      spin_hint();
  }
  void unlock() { word_.store_relaxed(0); }

 private:
  Atomic<std::uint32_t> word_{0};
};

template <class Lock, unsigned kCount>
struct Counting {
  static constexpr unsigned kThreads = kCount;
  Lock lock;
  Plain<unsigned> count;
  void thread(unsigned) {
    (void)lock.lock();
    count.set(count.get() + 1);
    lock.unlock();
  }
  void at_rest() { MODEL_CHECK(count.get() == kCount); }
};

using TwoStep = Counting<TwoStepLock, 2>;
using Unordered = Counting<UnorderedLock, 2>;
using TwoThreads = Counting<SpinLock, 2>;
using ThreeThreads = Counting<SpinLock, 3>;

TEST(SpinLock, NaiveLocksAreFoundOut) {
  EXPECT_FINDS(TwoStep, "data race", {.memory = MemoryModel::interleaving});
  for (const MemoryModel memory : {MemoryModel::tso, MemoryModel::pso, MemoryModel::views}) {
    EXPECT_FINDS(TwoStep, "data race", {.memory = memory});
    EXPECT_FINDS(Unordered, "data race", {.memory = memory});
  }
}

TEST(SpinLock, ExcludesAndHandsOver) {
  for (const MemoryModel memory : {MemoryModel::tso, MemoryModel::pso, MemoryModel::views}) {
    EXPECT_HOLDS(TwoThreads, {.memory = memory, .preemptions = 6});
    EXPECT_HOLDS(ThreeThreads, {.memory = memory, .preemptions = bound(3, 5)});
  }
}

// A failed try_lock takes nothing; a successful one excludes.
struct TryLock {
  static constexpr unsigned kThreads = 3;
  SpinLock lock;
  Plain<unsigned> count;
  unsigned successes = 0;
  void thread(unsigned self) {
    if (self == 0) {
      LockGuard guard(lock);
      count.set(count.get() + 1);
      ++successes;
    } else if (lock.try_lock()) {
      count.set(count.get() + 1);
      ++successes;
      lock.unlock();
    }
  }
  void at_rest() {
    MODEL_CHECK(count.get() == successes);
    MODEL_CHECK(lock.try_lock());
  }
};

TEST(SpinLock, TryLock) {
  for (const MemoryModel memory : {MemoryModel::tso, MemoryModel::pso, MemoryModel::views}) {
    EXPECT_HOLDS(TryLock, {.memory = memory, .preemptions = bound(3, 5)});
  }
}

// Waiters that do not spin: each marks the word before it sleeps. (A wait ends with any change of
// memory: so what is woken too late, or never, is woken in the end, as by its time-out.)
using TwoThatSleep = Counting<WakingLock, 2>;
using ThreeThatSleep = Counting<WakingLock, 3>;

// The naive sleeper marks the word whatever stands there by now: a free lock is held by nobody
// then.
class BlindMarkLock {
 public:
  void lock() {
    for (std::uint32_t free = 0; !word_.compare_exchange_strong_acquire(free, 1); free = 0) {
      word_.fetch_or_relaxed(2);
      spin_hint();
    }
  }
  void unlock() { word_.store_release(0); }

 private:
  Atomic<std::uint32_t> word_{0};
};
using BlindMark = Counting<BlindMarkLock, 2>;

class SpinLockSleepers : public testing::Test {
 protected:
  void SetUp() override { SpinLockTestAccess::spin(0); }
  void TearDown() override { SpinLockTestAccess::spin(512); }
};

TEST_F(SpinLockSleepers, AMarkOnAFreeLockIsFoundOut) {
  EXPECT_FINDS(BlindMark, "", {.memory = MemoryModel::tso});
}

TEST_F(SpinLockSleepers, ExcludeAndHandOver) {
  for (const MemoryModel memory : {MemoryModel::tso, MemoryModel::pso, MemoryModel::views}) {
    EXPECT_HOLDS(TwoThatSleep, {.memory = memory, .preemptions = 6});
    EXPECT_HOLDS(ThreeThatSleep, {.memory = memory, .preemptions = bound(3, 5)});
  }
}

// In a fork's child: who takes the lock learns whether its owner died, and only then is
// what it guards half changed.
template <bool kTells, class Lock = SpinLock>
struct TornByFork {
  static constexpr unsigned kThreads = 2;
  Lock lock;
  Plain<unsigned> first, second;  // equal
  void thread(unsigned) {
    LockGuard guard(lock);
    first.set(first.get() + 1);
    second.set(second.get() + 1);
  }
  void at_rest() {
    SpinLock::enter_child();
    const bool died = lock.owner_died();
    MODEL_CHECK(lock.try_lock() != died);
    if (!died) lock.unlock();
    lock.abandon_if_owner_died();
    const bool torn = first.get() != second.get();
    MODEL_CHECK(lock.lock() == (died ? Locked::kOwnerDied : Locked::kClean));
    if (kTells) MODEL_CHECK(died || !torn);
    if (!kTells) MODEL_CHECK(!torn);
    lock.unlock();
    MODEL_CHECK(lock.lock() == Locked::kClean);
  }
};

TEST(SpinLock, TellsAForksChildThatItsOwnerDied) {
  for (const MemoryModel memory : {MemoryModel::interleaving, MemoryModel::tso, MemoryModel::pso}) {
    EXPECT_HOLDS(TornByFork<true>, {.memory = memory, .preemptions = 4, .forks = true});
    EXPECT_FINDS(TornByFork<false>, "torn", {.memory = memory, .forks = true});
  }
}

// Whether somebody slept for it or not.
using TornOfSleepers = TornByFork<true, WakingLock>;
TEST_F(SpinLockSleepers, TellAForksChildThatTheOwnerDied) {
  for (const MemoryModel memory : {MemoryModel::interleaving, MemoryModel::tso, MemoryModel::pso}) {
    EXPECT_HOLDS(TornOfSleepers, {.memory = memory, .preemptions = 4, .forks = true});
  }
}

}  // namespace
}  // namespace spanalloc::model
