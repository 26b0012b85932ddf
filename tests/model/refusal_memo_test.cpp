// pages/arena/refusal_memo.hpp under the checker: memory that was given back is never called
// absent.
#include "pages/arena/refusal_memo.hpp"

#include "model_test.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc::model {
namespace {

// Memory is one range a giver; who asks searches them all.
template <class Memo, unsigned kGivers, unsigned kAskers>
struct Memory {
  static constexpr unsigned kThreads = kGivers + kAskers;
  Memo memo;
  SpinLock lock;
  Atomic<std::uint32_t> free[kGivers];

  bool search() {
    bool found = false;
    for (Atomic<std::uint32_t>& f : free) found = f.load_seq_cst() != 0 || found;
    return found;
  }
  void give(unsigned self) {
    free[self].store_seq_cst(1);
    memo.memory_came_back();
    // What this thread has given itself it must find.
    LockGuard guard(lock);
    MODEL_CHECK(!memo.known_absent(1, 1));
  }
  void ask() {
    LockGuard guard(lock);
    if (memo.known_absent(1, 1)) return;
    memo.arm();
    if (!search()) memo.note(1, 1);
  }
  void thread(unsigned self) {
    if (self < kGivers) {
      give(self);
    } else {
      ask();
      ask();
    }
  }
  void at_rest() { MODEL_CHECK(!memo.known_absent(1, 1)); }
};

// Is armed only when the search has failed.
struct ArmedTooLate : RefusalMemo {
  void arm() {}
  void note(std::size_t count, std::size_t alignment) {
    RefusalMemo::arm();
    RefusalMemo::note(count, alignment);
  }
};

using OneEach = Memory<RefusalMemo, 1, 1>;
using TwoGivers = Memory<RefusalMemo, 2, 1>;
using TwoAskers = Memory<RefusalMemo, 1, 2>;
using TooLate = Memory<ArmedTooLate, 1, 1>;

TEST(RefusalMemo, ArmingAfterTheSearchIsFoundOut) {
  EXPECT_FINDS(TooLate, "known_absent", {.memory = MemoryModel::interleaving});
}

TEST(RefusalMemo, WhatWasGivenBackIsNeverCalledAbsent) {
  for (const MemoryModel memory : {MemoryModel::tso, MemoryModel::pso, MemoryModel::views}) {
    EXPECT_HOLDS(OneEach, {.memory = memory, .preemptions = 6});
    const unsigned few = memory == MemoryModel::views ? bound(1, 2) : bound(2, 3);
    EXPECT_HOLDS(TwoGivers, {.memory = memory, .preemptions = few});
    EXPECT_HOLDS(TwoAskers, {.memory = memory, .preemptions = few});
  }
}

// Arming without the order is the store-buffering litmus test.
struct Weak {
  static constexpr unsigned kThreads = 2;
  Atomic<std::uint32_t> armed;
  Atomic<std::uint32_t> free;
  bool noted = false;
  void thread(unsigned self) {
    if (self == 0) {
      free.store_seq_cst(1);
      if (armed.load_seq_cst() != 0) armed.store_relaxed(0);
    } else {
      armed.store_release(1);
      noted = free.load_seq_cst() == 0;
    }
  }
  void at_rest() { MODEL_CHECK(!(noted && armed.load_relaxed() != 0)); }
};

TEST(RefusalMemo, ArmingNeedsItsOrder) {
  EXPECT_FINDS(Weak, "noted", {.memory = MemoryModel::tso});
}

}  // namespace
}  // namespace spanalloc::model
