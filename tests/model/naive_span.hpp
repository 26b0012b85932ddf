// The known traps: naive span protocols, as one first writes them, each with the failure
// that the checker must find in it. Every model of a production protocol runs the ones of
// its subject first, so that a checker which could not see such a failure cannot approve of
// the production code either.
//
// The naive span keeps its books apart: a count of blocks freed by the owner, a count freed by
// others, a state with an epoch, and lists beside all that.
#pragma once

#include <cstdint>

#include "base/atomic.hpp"
#include "model_test.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc::model::naive {

enum State : std::uint32_t { kFree, kOwned, kNearlyFull, kPartial };

struct Epoch {
  std::uint32_t count;
  std::uint32_t state;
  friend bool operator==(Epoch, Epoch) = default;
};

struct NaiveSpan {
  Atomic<Epoch> epoch{Epoch{0, kNearlyFull}};
  Atomic<std::uint32_t> owner{1};
  Atomic<std::uint32_t> local_frees;   // written by the owner only
  Atomic<std::uint32_t> remote_frees;  // by read-modify-write
  Atomic<std::uint32_t> in_pool;

  bool transition(Epoch from, State to) {
    return epoch.compare_exchange_strong_acq_rel(from, Epoch{from.count + 1, to});
  }
  std::uint32_t frees() const { return local_frees.load_acquire() + remote_frees.load_acquire(); }
  State state() const { return static_cast<State>(epoch.load_acquire().state); }
};

/// Two threads; however they go, the span comes into the pool exactly once.
struct PooledOnce {
  static constexpr unsigned kThreads = 2;
  NaiveSpan span;
  void pool_if(bool claimed) {
    if (claimed) span.in_pool.fetch_add_relaxed(1);
  }
  void at_rest() { MODEL_CHECK(span.in_pool.load_relaxed() == 1); }
};

/// One thread cache's reusable set, as far as one span is concerned.
struct NaiveSet {
  SpinLock lock;
  Atomic<std::uint32_t> links;  // how often the span is linked; lock
  Atomic<std::uint32_t> open{1};

  void put() {
    LockGuard guard(lock);
    if (open.load_relaxed() != 0) links.store_relaxed(links.load_relaxed() + 1);
  }
  void remove_if_linked() {
    LockGuard guard(lock);
    if (links.load_relaxed() != 0) links.store_relaxed(links.load_relaxed() - 1);
  }
};

// --- Remote free list ----------------------------------------------------------------------------

// Count and list of remote frees are two variables: the owner believes the count and takes a list
// that is shorter, then writes the blocks off.
struct CountBesideTheList {
  static constexpr unsigned kThreads = 3;
  Atomic<std::uint32_t> count;
  Atomic<std::uint32_t> head;
  Atomic<std::uint32_t> links[3];
  unsigned received = 0;
  void thread(unsigned self) {
    if (self == 0) {
      const std::uint32_t expected = count.exchange_acq_rel(0);
      std::uint32_t taken = 0;
      for (std::uint32_t b = head.exchange_acq_rel(0); b != 0; b = links[b].load_relaxed()) ++taken;
      received = taken;
      MODEL_CHECK(taken >= expected);
      return;
    }
    count.fetch_add_acq_rel(1);
    std::uint32_t top = head.load_relaxed();
    do {
      links[self].store_relaxed(top);
    } while (!head.compare_exchange_weak_acq_rel(top, self));
  }
  void at_rest() {}
};

// One tag serves as remote count and against ABA: as many pushes as pops bring an old value back.
struct CountServesAsTag {
  static constexpr unsigned kThreads = 2;
  static constexpr std::uint32_t kBlocks = 3;
  Atomic<std::uint64_t> list{std::uint64_t{2} << 32 | 1};  // {count, head}: block 1, then block 2
  Atomic<std::uint32_t> links[kBlocks + 1];
  bool held[kBlocks + 1] = {false, false, false, true};
  CountServesAsTag() { links[1].store_relaxed(2); }
  std::uint32_t pop() {
    std::uint64_t top = list.load_acquire();
    while (static_cast<std::uint32_t>(top) != 0) {
      const auto block = static_cast<std::uint32_t>(top);
      const std::uint64_t next = ((top >> 32) - 1) << 32 | links[block].load_relaxed();
      if (!list.compare_exchange_weak_acq_rel(top, next)) continue;
      MODEL_CHECK(!held[block]);
      held[block] = true;
      return block;
    }
    return 0;
  }
  void push(std::uint32_t block) {
    held[block] = false;
    std::uint64_t top = list.load_relaxed();
    do {
      links[block].store_relaxed(static_cast<std::uint32_t>(top));
    } while (!list.compare_exchange_weak_acq_rel(top, ((top >> 32) + 1) << 32 | block));
  }
  void thread(unsigned self) {
    const std::uint32_t first = pop();
    if (self == 0) return;
    pop();  // kept
    push(3);
    if (first != 0) push(first);
  }
  void at_rest() {
    for (auto b = static_cast<std::uint32_t>(list.load_relaxed()); b != 0;
         b = links[b].load_relaxed()) {
      MODEL_CHECK(!held[b]);
    }
  }
};

// --- Span states with eager return ---------------------------------------------------------------

// "Empty" is an owner-only count plus a remote count, read at different times without a fence:
// the owner's last free and the remote last free each miss the other's. This is Dekker's
// pattern; interleavings alone do not show it, because in every interleaving one of the two
// comes last and sees both.
struct CountsApart : PooledOnce {
  static constexpr std::uint32_t kCapacity = 2;
  void thread(unsigned self) {
    if (self == 0) {
      span.local_frees.store_release(span.local_frees.load_relaxed() + 1);
    } else {
      span.remote_frees.fetch_add_acq_rel(1);
    }
    pool_if(span.frees() == kCapacity && span.transition(Epoch{0, kNearlyFull}, kFree));
  }
};

// A free that crosses "reusable" and "empty" at once bumps the epoch in the first transition and
// fails the second with the old one.
struct CrossesTwoEvents : PooledOnce {
  static constexpr std::uint32_t kCapacity = 2;
  NaiveSet set;
  void thread(unsigned) {
    const Epoch seen = span.epoch.load_acquire();
    span.remote_frees.fetch_add_acq_rel(1);
    const std::uint32_t frees = span.frees();
    if (frees >= 1 && seen.state == kNearlyFull && span.transition(seen, kPartial)) set.put();
    if (frees == kCapacity && span.transition(seen, kFree)) {
      set.remove_if_linked();
      span.in_pool.fetch_add_relaxed(1);
    }
  }
};

// The epoch starts anew when a span leaves the pool: a slow freer of its
// former life frees it again.
struct EpochForgottenInPool {
  static constexpr unsigned kThreads = 2;
  static constexpr std::uint32_t kCapacity = 2;
  NaiveSpan span;
  bool in_use_again = false;
  void thread(unsigned) {
    const Epoch seen = span.epoch.load_acquire();
    span.remote_frees.fetch_add_acq_rel(1);
    if (span.frees() != kCapacity || !span.transition(seen, kFree)) return;
    MODEL_CHECK(!in_use_again);
    // Straight through the pool, into the hands of another thread
    span.remote_frees.store_relaxed(0);
    span.epoch.store_release(Epoch{0, kNearlyFull});
    in_use_again = true;
  }
  void at_rest() {}
};

// --- Reusable set --------------------------------------------------------------------------------

// Making a span reusable and linking it into the set are two steps; the last free comes between.
struct ReusableThenLinked {
  static constexpr unsigned kThreads = 2;
  static constexpr std::uint32_t kCapacity = 2;
  NaiveSpan span;
  NaiveSet set;
  void thread(unsigned) {
    const std::uint32_t frees = span.remote_frees.fetch_add_acq_rel(1) + 1;
    const Epoch seen = span.epoch.load_acquire();
    if (frees == kCapacity) {
      // Reads the epoch until it can claim: this variant has none of the other traps.
      for (Epoch now = seen; !span.transition(now, kFree); now = span.epoch.load_acquire()) {
      }
      set.remove_if_linked();
      span.in_pool.fetch_add_relaxed(1);
    } else if (span.transition(seen, kPartial)) {
      set.put();
    }
  }
  void at_rest() { MODEL_CHECK(span.in_pool.load_relaxed() + set.links.load_relaxed() == 1); }
};

// The set is closed between a freer's look and its put: the span is reusable, and in no set.
struct PutIntoClosedSet {
  static constexpr unsigned kThreads = 2;
  NaiveSpan span;
  NaiveSet set;
  void thread(unsigned self) {
    if (self == 0) {
      if (span.transition(Epoch{0, kNearlyFull}, kPartial)) set.put();
      return;
    }
    LockGuard guard(set.lock);  // close: whatever is in the set goes with its owner
    set.open.store_relaxed(0);
    if (set.links.load_relaxed() != 0) span.owner.store_release(0);
  }
  void at_rest() {
    const bool reachable = span.owner.load_relaxed() == 0 || set.links.load_relaxed() == 1;
    MODEL_CHECK(span.state() != kPartial || reachable);
  }
};

// Pool and set link through the same field: a remover that is late writes into the pool's chain.
struct SharedLink {
  static constexpr unsigned kThreads = 2;
  Atomic<std::uint32_t> next[3];  // of spans 1 and 2
  Atomic<std::uint32_t> pool_top;
  Atomic<std::uint32_t> claimed;
  SharedLink() { pool_top.store_relaxed(2); }
  void thread(unsigned self) {
    if (self == 0) {  // the last freer claims span 1 and puts it into the pool
      claimed.store_release(1);
      std::uint32_t top = pool_top.load_relaxed();
      do {
        next[1].store_relaxed(top);
      } while (!pool_top.compare_exchange_weak_acq_rel(top, 1));
    } else if (claimed.load_acquire() ==
               1) {  // the owner sees a claimed span in its set and drops it
      next[1].store_relaxed(0);
    }
  }
  void at_rest() { MODEL_CHECK(pool_top.load_relaxed() == 1 && next[1].load_relaxed() == 2); }
};

// --- Adoption ------------------------------------------------------------------------------------

// Adoption changes the epoch; the last freer comes with a stale one, fails its
// transition, and nobody tries again.
struct StaleEpochAfterAdoption : PooledOnce {
  static constexpr std::uint32_t kCapacity = 1;
  void thread(unsigned self) {
    const Epoch seen = span.epoch.load_acquire();
    if (self == 0) {
      span.remote_frees.fetch_add_acq_rel(1);
      pool_if(span.frees() == kCapacity && span.transition(seen, kFree));
    } else if (seen.state == kNearlyFull && span.transition(seen, kNearlyFull)) {
      span.owner.store_release(2);
    }
  }
};

// The put goes to the owner that was read before the adoption, whose set is closed.
struct PutToOldOwner {
  static constexpr unsigned kThreads = 2;
  NaiveSpan span;
  NaiveSet sets[3];  // 1: the dead owner's, 2: the adopter's
  PutToOldOwner() { sets[1].open.store_relaxed(0); }
  void thread(unsigned self) {
    if (self == 0) {
      const std::uint32_t owner = span.owner.load_acquire();
      if (span.transition(Epoch{0, kNearlyFull}, kPartial)) sets[owner].put();
    } else {
      std::uint32_t dead = 1;
      if (span.owner.compare_exchange_strong_acq_rel(dead, 2) && span.state() == kPartial)
        sets[2].put();
    }
  }
  void at_rest() { MODEL_CHECK(span.state() != kPartial || sets[2].links.load_relaxed() == 1); }
};

// --- Memory is out -------------------------------------------------------------------------------

// The owner looks for any span of its own that has a free block, and takes it on an epoch that it
// reads after it has looked: the last free comes between, and the next owner's life of the span.
struct TakenOnALaterEpoch {
  static constexpr unsigned kThreads = 2;
  NaiveSpan span;
  std::uint32_t taken_from = 1;
  void thread(unsigned self) {
    if (self == 1) {
      if (!span.transition(Epoch{0, kNearlyFull}, kFree)) return;
      span.owner.store_release(2);
      span.epoch.store_release(Epoch{2, kNearlyFull});
      return;
    }
    if (span.owner.load_acquire() != 1 || span.state() != kNearlyFull) return;
    const Epoch seen = span.epoch.load_acquire();
    if (seen.state == kNearlyFull && span.transition(seen, kOwned))
      taken_from = span.owner.load_acquire();
  }
  void at_rest() { MODEL_CHECK(taken_from == 1); }
};

// --- Termination, and leaving a current span
// -------------------------------------------------------------------------------------------------

// The end of a thread turns its current span into a nearly full one without
// looking whether it is empty.
struct TerminateForgetsEmptyHot : PooledOnce {
  static constexpr std::uint32_t kCapacity = 2;
  TerminateForgetsEmptyHot() {
    span.epoch.store_relaxed(Epoch{0, kOwned});
    span.local_frees.store_relaxed(1);
  }
  void thread(unsigned self) {
    const Epoch seen = span.epoch.load_acquire();
    if (self == 0) {
      span.owner.store_release(0);
      if (seen.state == kOwned) MODEL_CHECK(span.transition(seen, kNearlyFull));
      return;
    }
    span.remote_frees.fetch_add_acq_rel(1);
    if (seen.state == kOwned) return;  // the owner takes care of its current span
    pool_if(span.frees() == kCapacity && span.transition(seen, kFree));
  }
};

// The owner finds no remote frees, then makes its full current span nearly full. A
// remote free in between sees "hot" and does nothing: the span has a free block, is
// nearly full, and no event follows.
struct FreeBetweenRefillAndFloating {
  static constexpr unsigned kThreads = 2;
  static constexpr std::uint32_t kCapacity = 2;
  NaiveSpan span;
  NaiveSet set;
  FreeBetweenRefillAndFloating() {
    span.epoch.store_relaxed(Epoch{0, kOwned});
    span.local_frees.store_relaxed(0);
  }
  void thread(unsigned self) {
    if (self == 0) {
      if (span.remote_frees.load_acquire() != 0) return;  // refilled: it stays hot
      MODEL_CHECK(span.transition(span.epoch.load_acquire(), kNearlyFull));
      return;
    }
    span.remote_frees.fetch_add_acq_rel(1);
    const Epoch seen = span.epoch.load_acquire();
    if (seen.state == kNearlyFull && span.transition(seen, kPartial)) set.put();
  }
  void at_rest() {
    MODEL_CHECK(span.state() != kNearlyFull || span.remote_frees.load_relaxed() == 0);
    MODEL_CHECK(span.state() != kPartial || set.links.load_relaxed() == 1);
  }
};

}  // namespace spanalloc::model::naive
