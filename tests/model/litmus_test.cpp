// The checker checked: classic litmus tests whose outcomes are known, each expected to be found or
// refused. A litmus "failure" is the relaxed outcome that the memory model in question allows.
#include "base/atomic.hpp"
#include "model_test.hpp"

namespace spanalloc::model {
namespace {

enum class Access { relaxed, release_acquire, seq_cst, update };

void write(Atomic<int>& cell, int value, Access access) {
  switch (access) {
    case Access::relaxed:
      return cell.store_relaxed(value);
    case Access::release_acquire:
      return cell.store_release(value);
    case Access::seq_cst:
      return cell.store_seq_cst(value);
    case Access::update:
      cell.exchange_seq_cst(value);  // the old value is of no interest
      return;
  }
}

int read(const Atomic<int>& cell, Access access) {
  if (access == Access::relaxed) return cell.load_relaxed();
  if (access == Access::release_acquire) return cell.load_acquire();
  return cell.load_seq_cst();
}

// Store buffering: each thread writes its own variable and reads the other's. Both read 0?
template <Access kAccess>
struct StoreBuffering {
  static constexpr unsigned kThreads = 2;
  Atomic<int> cells[2];
  int seen[2] = {-1, -1};
  void thread(unsigned self) {
    write(cells[self], 1, kAccess);
    seen[self] = read(cells[1 - self], kAccess);
  }
  void at_rest() { MODEL_CHECK(seen[0] == 1 || seen[1] == 1); }
};

TEST(Litmus, StoreBufferingNeedsStoreBuffers) {
  EXPECT_HOLDS(StoreBuffering<Access::relaxed>,
               {.memory = MemoryModel::interleaving, .preemptions = 4});
  EXPECT_HOLDS(StoreBuffering<Access::release_acquire>,
               {.memory = MemoryModel::interleaving, .preemptions = 4});
}

TEST(Litmus, StoreBufferingIsAllowedWithoutSeqCst) {
  for (const MemoryModel memory : {MemoryModel::tso, MemoryModel::pso, MemoryModel::views}) {
    EXPECT_FINDS(StoreBuffering<Access::relaxed>, "seen[0]", {.memory = memory});
    EXPECT_FINDS(StoreBuffering<Access::release_acquire>, "seen[0]", {.memory = memory});
  }
}

TEST(Litmus, StoreBufferingIsForbiddenWithSeqCst) {
  for (const MemoryModel memory : {MemoryModel::tso, MemoryModel::pso, MemoryModel::views}) {
    EXPECT_HOLDS(StoreBuffering<Access::seq_cst>, {.memory = memory, .preemptions = 4});
    EXPECT_HOLDS(StoreBuffering<Access::update>, {.memory = memory, .preemptions = 4});
  }
}

// Message passing: data, then a flag. The flag seen but not the data?
template <Access kFlag>
struct MessagePassing {
  static constexpr unsigned kThreads = 2;
  Atomic<int> data;
  Atomic<int> flag;
  int seen_flag = 0;
  int seen_data = 0;
  void thread(unsigned self) {
    if (self == 0) {
      data.store_relaxed(1);
      write(flag, 1, kFlag);
    } else {
      seen_flag = read(flag, kFlag);
      seen_data = data.load_relaxed();
    }
  }
  void at_rest() { MODEL_CHECK(seen_flag == 0 || seen_data == 1); }
};

TEST(Litmus, MessagePassing) {
  for (const MemoryModel memory : {MemoryModel::interleaving, MemoryModel::tso}) {
    EXPECT_HOLDS(MessagePassing<Access::relaxed>, {.memory = memory, .preemptions = 4});
  }
  for (const MemoryModel memory : {MemoryModel::pso, MemoryModel::views}) {
    EXPECT_FINDS(MessagePassing<Access::relaxed>, "seen_data", {.memory = memory});
    EXPECT_HOLDS(MessagePassing<Access::release_acquire>, {.memory = memory, .preemptions = 4});
    EXPECT_HOLDS(MessagePassing<Access::seq_cst>, {.memory = memory, .preemptions = 4});
  }
}

// Message passing where only the reader's half is too weak: loads may be reordered, which store
// buffers of the writer cannot show.
struct MessagePassingLazyReader {
  static constexpr unsigned kThreads = 2;
  Atomic<int> data;
  Atomic<int> flag;
  int seen_flag = 0;
  int seen_data = 0;
  void thread(unsigned self) {
    if (self == 0) {
      data.store_relaxed(1);
      flag.store_release(1);
    } else {
      seen_flag = flag.load_relaxed();
      seen_data = data.load_relaxed();
    }
  }
  void at_rest() { MODEL_CHECK(seen_flag == 0 || seen_data == 1); }
};

TEST(Litmus, MissingAcquire) {
  EXPECT_HOLDS(MessagePassingLazyReader, {.memory = MemoryModel::pso, .preemptions = 4});
  EXPECT_FINDS(MessagePassingLazyReader, "seen_data", {.memory = MemoryModel::views});
}

// Two threads write both variables in opposite orders. Does each first store win?
template <Access kAccess>
struct TwoPlusTwoWrites {
  static constexpr unsigned kThreads = 2;
  Atomic<int> cells[2];
  void thread(unsigned self) {
    write(cells[self], 1, kAccess);
    write(cells[1 - self], 2, kAccess);
  }
  void at_rest() { MODEL_CHECK(!(cells[0].load_relaxed() == 1 && cells[1].load_relaxed() == 1)); }
};

TEST(Litmus, TwoPlusTwoWrites) {
  EXPECT_FINDS(TwoPlusTwoWrites<Access::relaxed>, "cells", {.memory = MemoryModel::pso});
  EXPECT_HOLDS(TwoPlusTwoWrites<Access::relaxed>, {.memory = MemoryModel::tso, .preemptions = 4});
  EXPECT_HOLDS(TwoPlusTwoWrites<Access::release_acquire>,
               {.memory = MemoryModel::pso, .preemptions = 4});
}

// Independent reads of independent writes: do two readers disagree about the order of two writers?
template <Access kAccess>
struct IndependentReads {
  static constexpr unsigned kThreads = 4;
  Atomic<int> cells[2];
  int first[2] = {};
  int second[2] = {};
  void thread(unsigned self) {
    if (self < 2) return write(cells[self], 1, kAccess);
    const unsigned reader = self - 2;
    first[reader] = read(cells[reader], kAccess);
    second[reader] = read(cells[1 - reader], kAccess);
  }
  void at_rest() {
    MODEL_CHECK(!(first[0] == 1 && second[0] == 0 && first[1] == 1 && second[1] == 0));
  }
};

TEST(Litmus, IndependentReads) {
  EXPECT_HOLDS(IndependentReads<Access::release_acquire>,
               {.memory = MemoryModel::tso, .preemptions = 3});
  EXPECT_FINDS(IndependentReads<Access::release_acquire>, "first", {.memory = MemoryModel::views});
  EXPECT_HOLDS(IndependentReads<Access::seq_cst>, {.memory = MemoryModel::views, .preemptions = 3});
}

// Reads of one variable never go backwards.
struct Coherence {
  static constexpr unsigned kThreads = 2;
  Atomic<int> cell;
  void thread(unsigned self) {
    if (self == 0) {
      cell.store_relaxed(1);
      cell.store_relaxed(2);
    } else {
      const int first = cell.load_relaxed();
      const int second = cell.load_relaxed();
      MODEL_CHECK(first <= second);
    }
  }
  void at_rest() { MODEL_CHECK(cell.load_relaxed() == 2); }
};

TEST(Litmus, Coherence) {
  for (const MemoryModel memory : {MemoryModel::tso, MemoryModel::pso, MemoryModel::views}) {
    EXPECT_HOLDS(Coherence, {.memory = memory, .preemptions = 4});
  }
}

// A counter that is read and written in two steps loses an update; a read-modify-write does not.
template <bool kUpdate>
struct Counter {
  static constexpr unsigned kThreads = 3;
  Atomic<int> count;
  void thread(unsigned) {
    if constexpr (kUpdate) {
      count.fetch_add_relaxed(1);
    } else {
      count.store_relaxed(count.load_relaxed() + 1);
    }
  }
  void at_rest() { MODEL_CHECK(count.load_relaxed() == 3); }
};

TEST(Litmus, LostUpdate) {
  for (const MemoryModel memory :
       {MemoryModel::interleaving, MemoryModel::tso, MemoryModel::pso, MemoryModel::views}) {
    EXPECT_FINDS(Counter<false>, "count", {.memory = memory});
    EXPECT_HOLDS(Counter<true>, {.memory = memory, .preemptions = 4});
  }
}

// The race detector: data handed over by a flag, with and without the orders
// that make it a hand-over.
template <bool kRelease, bool kAcquire>
struct HandOver {
  static constexpr unsigned kThreads = 2;
  Plain<int> data;
  Atomic<int> flag;
  void thread(unsigned self) {
    if (self == 0) {
      data.set(7);
      kRelease ? flag.store_release(1) : flag.store_relaxed(1);
    } else {
      const int seen = kAcquire ? flag.load_acquire() : flag.load_relaxed();
      if (seen == 1) MODEL_CHECK(data.get() == 7);
    }
  }
  void at_rest() {}
};

using ReleaseOnly = HandOver<true, false>;
using AcquireOnly = HandOver<false, true>;
using ReleaseAcquire = HandOver<true, true>;

TEST(Litmus, DataRace) {
  for (const MemoryModel memory :
       {MemoryModel::interleaving, MemoryModel::tso, MemoryModel::pso, MemoryModel::views}) {
    EXPECT_FINDS(ReleaseOnly, "data race", {.memory = memory});
    EXPECT_FINDS(AcquireOnly, "data race", {.memory = memory});
    EXPECT_HOLDS(ReleaseAcquire, {.memory = memory, .preemptions = 4});
  }
}

// A read-modify-write by a third thread, even a relaxed one, continues the release
// sequence; a store ends it.
template <bool kUpdate>
struct ReleaseSequence {
  static constexpr unsigned kThreads = 3;
  Plain<int> data;
  Atomic<int> flag;
  void thread(unsigned self) {
    if (self == 0) {
      data.set(7);
      flag.store_release(1);
    } else if (self == 1) {
      if (flag.load_relaxed() != 1) return;
      if constexpr (kUpdate) {
        flag.fetch_add_relaxed(1);
      } else {
        flag.store_relaxed(2);
      }
    } else if (flag.load_acquire() == 2) {
      MODEL_CHECK(data.get() == 7);
    }
  }
  void at_rest() {}
};

TEST(Litmus, ReleaseSequence) {
  for (const MemoryModel memory : {MemoryModel::tso, MemoryModel::pso, MemoryModel::views}) {
    EXPECT_HOLDS(ReleaseSequence<true>, {.memory = memory, .preemptions = 4});
    EXPECT_FINDS(ReleaseSequence<false>, "data race", {.memory = memory, .preemptions = 4});
  }
}

// Two locks taken in opposite orders.
template <bool kOpposite>
struct TwoLocks {
  static constexpr unsigned kThreads = 2;
  Atomic<int> locks[2];
  void lock(unsigned which) {
    for (int expected = 0; !locks[which].compare_exchange_strong_acquire(expected, 1); expected = 0)
      spin_hint();
  }
  void thread(unsigned self) {
    const unsigned first = kOpposite ? self : 0;
    lock(first);
    lock(1 - first);
    locks[1 - first].store_release(0);
    locks[first].store_release(0);
  }
  void at_rest() { MODEL_CHECK(locks[0].load_relaxed() == 0 && locks[1].load_relaxed() == 0); }
};

TEST(Litmus, Deadlock) {
  for (const MemoryModel memory :
       {MemoryModel::interleaving, MemoryModel::tso, MemoryModel::pso, MemoryModel::views}) {
    EXPECT_FINDS(TwoLocks<true>, "deadlock", {.memory = memory});
    EXPECT_HOLDS(TwoLocks<false>, {.memory = memory, .preemptions = 3});
  }
}

// A wait without a hint never gives the other thread its turn when no preemption is left.
struct Livelock {
  static constexpr unsigned kThreads = 2;
  Atomic<int> flag;
  void thread(unsigned self) {
    if (self == 0) return flag.store_release(1);
    while (flag.load_acquire() == 0) {
    }
  }
  void at_rest() {}
};

TEST(Litmus, Livelock) {
  EXPECT_FINDS(Livelock, "livelock", {.preemptions = 0});
}

struct LivelockAtRest {
  static constexpr unsigned kThreads = 2;
  Atomic<int> flag;
  void thread(unsigned) { flag.fetch_add_seq_cst(1); }
  void at_rest() {
    while (flag.load_acquire() != 0) {
    }
  }
};

TEST(Litmus, LivelockAtRest) {
  EXPECT_FINDS(LivelockAtRest, "livelock", {});
}

// Weak compare-exchange: code that takes its failure for a changed value is wrong.
struct WeakOnce {
  static constexpr unsigned kThreads = 2;
  Atomic<int> cells[2];
  void thread(unsigned self) {
    int expected = 0;
    MODEL_CHECK(cells[self].compare_exchange_weak_acq_rel(expected, 1));
  }
  void at_rest() {}
};

TEST(Litmus, SpuriousFailure) {
  EXPECT_HOLDS(WeakOnce, {});
  EXPECT_FINDS(WeakOnce, "compare_exchange_weak", {.spurious_failures = 1});
}

// More preemptions must show more: a failure that needs two of them is not found with one.
struct NeedsTwoPreemptions {
  static constexpr unsigned kThreads = 2;
  Atomic<int> step;
  void thread(unsigned self) {
    if (self == 0) {
      step.store_seq_cst(1);
      const int seen = step.load_seq_cst();  // 2 only if the other thread ran in between
      step.store_seq_cst(seen + 10);
    } else {
      int expected = 1;
      if (!step.compare_exchange_strong_seq_cst(expected, 2)) return;
      MODEL_CHECK(step.load_seq_cst() != 12);
    }
  }
  void at_rest() {}
};

TEST(Litmus, PreemptionBound) {
  EXPECT_HOLDS(NeedsTwoPreemptions, {.preemptions = 1});
  EXPECT_FINDS(NeedsTwoPreemptions, "12", {.preemptions = 2});
}

// The counts themselves: two threads of two visible operations interleave in 6
// ways, three of one in 6.
template <unsigned kCount, unsigned kSteps>
struct Interleavings {
  static constexpr unsigned kThreads = kCount;
  Atomic<int> cell;
  void thread(unsigned) {
    for (unsigned i = 0; i < kSteps; ++i) cell.fetch_add_seq_cst(1);
  }
  void at_rest() { MODEL_CHECK(cell.load_relaxed() == static_cast<int>(kCount * kSteps)); }
};

TEST(Litmus, CountsEveryInterleavingOnce) {
  const Options all{.memory = MemoryModel::interleaving, .preemptions = 100};
  EXPECT_EQ((explore<Interleavings<2, 2>>(all).executions), 6u);   // 4! / (2! 2!)
  EXPECT_EQ((explore<Interleavings<2, 3>>(all).executions), 20u);  // 6! / (3! 3!)
  EXPECT_EQ((explore<Interleavings<3, 2>>(all).executions), 90u);  // 6! / (2! 2! 2!)
}

// Forks. The child finds every state that memory goes through, and no other.
template <int kX, int kY>
struct ForkFinds {
  static constexpr unsigned kThreads = 1;
  Atomic<int> x;
  Atomic<int> y;
  void thread(unsigned) {
    x.fetch_add_seq_cst(1);
    y.store_seq_cst(1);
    x.exchange_seq_cst(2);
  }
  void at_rest() { MODEL_CHECK(x.load_relaxed() != kX || y.load_relaxed() != kY); }
};

TEST(Litmus, AForkFindsEveryStateOfMemory) {
  for (const MemoryModel memory :
       {MemoryModel::interleaving, MemoryModel::pso, MemoryModel::views}) {
    const Options options{.memory = memory, .forks = true};
    expect_finds<ForkFinds<0, 0>>("ForkFinds<0, 0>", options, "x.load");
    expect_finds<ForkFinds<1, 0>>("ForkFinds<1, 0>", options, "x.load");
    expect_finds<ForkFinds<1, 1>>("ForkFinds<1, 1>", options, "x.load");
    expect_finds<ForkFinds<2, 1>>("ForkFinds<2, 1>", options, "x.load");
    expect_holds<ForkFinds<0, 1>>("ForkFinds<0, 1>", options);
    expect_holds<ForkFinds<2, 0>>("ForkFinds<2, 0>", options);
  }
}

// Two threads, each half-way through variables that no other thread uses.
struct ForkFindsBothHalfWay {
  static constexpr unsigned kThreads = 2;
  Atomic<int> cells[2][2];
  void thread(unsigned self) {
    for (Atomic<int>& cell : cells[self]) cell.store_seq_cst(1);
  }
  void at_rest() {
    bool both = true;
    for (auto& pair : cells)
      both = both && pair[0].load_relaxed() == 1 && pair[1].load_relaxed() == 0;
    MODEL_CHECK(!both);
  }
};

TEST(Litmus, AForkFindsThreadsHalfWayThroughWhatIsTheirOwn) {
  EXPECT_FINDS(ForkFindsBothHalfWay, "both", {.preemptions = 1, .forks = true});
}

// What was still in a store buffer may be lost, in the order in which the buffer lets it out.
enum class Lost { nothing, both, last, first };
template <Lost kLost>
struct ForkLoses {
  static constexpr unsigned kThreads = 1;
  Atomic<int> x;
  Atomic<int> y;
  // Not in the modelled memory: true in the child if both stores had been executed
  bool stored = false;
  void thread(unsigned) {
    x.store_relaxed(1);
    y.store_relaxed(1);
    stored = true;
  }
  void at_rest() {
    const bool has_x = kLost == Lost::nothing || kLost == Lost::last;
    const bool has_y = kLost == Lost::nothing || kLost == Lost::first;
    MODEL_CHECK(!stored || (x.load_relaxed() != 0) != has_x || (y.load_relaxed() != 0) != has_y);
  }
};

TEST(Litmus, AForkMayLoseWhatIsInStoreBuffers) {
  for (const MemoryModel memory : {MemoryModel::tso, MemoryModel::pso}) {
    const Options options{.memory = memory, .forks = true};
    EXPECT_FINDS(ForkLoses<Lost::nothing>, "stored", options);
    EXPECT_FINDS(ForkLoses<Lost::both>, "stored", options);
    EXPECT_FINDS(ForkLoses<Lost::last>, "stored", options);
  }
  EXPECT_HOLDS(ForkLoses<Lost::first>, {.memory = MemoryModel::tso, .forks = true});
  EXPECT_FINDS(ForkLoses<Lost::first>, "stored", {.memory = MemoryModel::pso, .forks = true});
  EXPECT_HOLDS(ForkLoses<Lost::both>, {.memory = MemoryModel::interleaving, .forks = true});
}

// A model without any choice proves nothing and must not count as passed.
struct NothingToExplore {
  static constexpr unsigned kThreads = 1;
  void thread(unsigned) {}
  void at_rest() {}
};

TEST(Litmus, AnEmptyExplorationIsNoPass) {
  EXPECT_FALSE(explore<NothingToExplore>({}).passed());
}

}  // namespace
}  // namespace spanalloc::model
