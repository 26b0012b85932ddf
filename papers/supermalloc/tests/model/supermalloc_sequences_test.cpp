// A CPU's chains of the supermalloc engine (cpu_caches.hpp) where threads of
// that CPU change them by restartable sequences, and those of another one by its lock: no list
// is lost, or in two places.
//
// The caches are the library's. Of a sequence the checker runs the steps (model_sequence.hpp):
// others may come before each of them, which ends it if they are of its CPU.
#include <cstring>

#include "model_sequence.hpp"
#include "model_test.hpp"
#include "os_stub.hpp"
#include "papers/supermalloc/engine/bins.hpp"
#include "papers/supermalloc/engine/config.hpp"
#include "papers/supermalloc/engine/cpu_caches.hpp"

namespace spanalloc::model {
namespace {

using supermalloc::Chain;
using supermalloc::FreeObject;
using supermalloc::ObjectList;

// So many lists a chain, of an object each.
template <unsigned kLists>
struct ShortChains : Supermalloc {
  static constexpr std::size_t kChainBytes = kLists * 16 * kKiB;
};
constexpr supermalloc::BinNumber kBin = supermalloc::Bins<Supermalloc>::kFirstLarge;

template <unsigned kChainLists>
struct ChainsWorldOf {
  using Config = ShortChains<kChainLists>;
  static constexpr const supermalloc::Bin& kTheBin = supermalloc::Bins<Config>::of(kBin);
  static_assert(kTheBin.is_large() && kTheBin.chain_lists == kChainLists &&
                kTheBin.list_objects == 1);

  static constexpr unsigned kLists = 8;

  supermalloc::CpuCaches<Config> caches;
  FreeObject heads[kLists];      // one object a list, into which nobody looks
  Plain<unsigned> uses[kLists];  // by whoever has the list
  bool is_cached[kLists] = {};

  ChainsWorldOf() {
    forget_memory();
    constexpr std::size_t kBytes = 64 * kKiB;  // another execution's
    std::memset(os::map(kBytes, os::page_size()), 0, kBytes);
    forget_memory();
    count_cpus(2);
    if (!caches.start() || !caches.uses_sequences()) fail("no caches to start with");
  }

  void use(unsigned n) { uses[n].set(uses[n].get() + 1); }
  void put(unsigned n) {
    use(n);
    is_cached[n] = true;
    if (!caches.put(kBin, {&heads[n], 1})) is_cached[n] = false;
  }
  void put(std::initializer_list<unsigned> numbers) {
    for (const unsigned n : numbers) put(n);
  }
  unsigned number_of(ObjectList list) const {
    MODEL_CHECK(list.count == 1 && list.first >= heads && list.first < heads + kLists);
    return static_cast<unsigned>(list.first - heads);
  }
  void got(ObjectList list) {
    const unsigned n = number_of(list);
    MODEL_CHECK(is_cached[n]);
    is_cached[n] = false;
    use(n);
  }
  bool take() {
    const ObjectList list = caches.take(kBin);
    if (list.is_empty()) return false;
    got(list);
    return true;
  }
  void drain() {
    caches.drain(kBin, [&](ObjectList list) { got(list); });
  }
  void look() {
    std::size_t lists = 0;
    caches.for_each_chain(kBin, [&](const Chain& chain) { lists += chain.objects(); });
    MODEL_CHECK(lists <= kLists);
  }
  void at_rest() {
    MODEL_CHECK(caches.is_global_in_order(kBin));
    drain();
    for (const bool is_left : is_cached) MODEL_CHECK(!is_left);
  }
};

using ChainsWorld = ChainsWorldOf<2>;

// (A thread that finds its CPU's lock taken goes by, and may find nothing.)
//
// Two threads of one CPU. What the one does may leave the chain's word as the other one has seen
// it.
struct TakeAndTake : ChainsWorld {
  static constexpr unsigned kThreads = 2;
  TakeAndTake() {
    put({0, 1});
    run_on(0, 0);
    run_on(1, 0);
  }
  void thread(unsigned self) {
    (void)take();
    if (self == 1) put(2);
  }
};
struct PutAndPut : ChainsWorld {
  static constexpr unsigned kThreads = 2;
  PutAndPut() {
    put(0);
    run_on(0, 0);
    run_on(1, 0);
  }
  void thread(unsigned self) {
    if (self == 0) {
      put(1);
    } else {
      put(2);
      (void)take();
      put(3);
    }
  }
};
// Another CPU's thread takes everything away, or looks.
struct TakeAndDrain : ChainsWorld {
  static constexpr unsigned kThreads = 2;
  TakeAndDrain() {
    put({0, 1});
    run_on(0, 0);
    run_on(1, 1);
  }
  void thread(unsigned self) {
    if (self == 0) {
      (void)take();
      put(2);
    } else {
      drain();
    }
  }
};
struct PutAndLook : ChainsWorld {
  static constexpr unsigned kThreads = 2;
  PutAndLook() {
    put(0);
    run_on(0, 0);
    run_on(1, 1);
  }
  void thread(unsigned self) {
    if (self == 0) {
      put(1);
      (void)take();
    } else {
      look();
      drain();
    }
  }
};
// Both: two threads of one CPU, and one of another.
struct ThreeThreads : ChainsWorld {
  static constexpr unsigned kThreads = 3;
  ThreeThreads() {
    put({0, 1});
    run_on(0, 0);
    run_on(1, 0);
    run_on(2, 1);
  }
  void thread(unsigned self) {
    if (self == 0) {
      (void)take();
    } else if (self == 1) {
      put(2);
    } else {
      drain();
    }
  }
};
// Both chains are full, or empty: chains change places with the global cache, under the CPU's lock.
// Threads that are moved meanwhile come to the other CPU's chains.
struct ChainsMove : ChainsWorld {
  static constexpr unsigned kThreads = 2;
  ChainsMove() {
    put({0, 1, 2, 3});
    run_on(0, 0);
    run_on(1, 0);
  }
  void thread(unsigned self) {
    if (self == 0) {
      put(4);
    } else {
      (void)take();
      put(5);
    }
  }
};
struct ChainsComeBack : ChainsWorld {
  static constexpr unsigned kThreads = 2;
  ChainsComeBack() {
    put({0, 1, 2, 3, 4});
    (void)take();
    for (int i = 0; i < 2; ++i) (void)take();  // two are left, in the global cache
    run_on(0, 0);
    run_on(1, 0);
  }
  void thread(unsigned self) {
    if (self == 0) {
      (void)take();
    } else {
      put(5);
      (void)take();
    }
  }
};
// Threads that are moved from one CPU to another, where others are.
struct Moves : ChainsWorld {
  static constexpr unsigned kThreads = 3;
  Moves() {
    put({0, 1, 2});
    run_on(0, 0);
    run_on(1, 0);
    run_on(2, 1);
  }
  void thread(unsigned self) {
    if (self == 0) {
      put(3);
      put(4);
    } else if (self == 1) {
      (void)take();
    } else {
      put(5);
    }
  }
};

// One that finds the chain closed comes to it by the lock, on another CPU by then.
struct ComesByTheLock : ChainsWorld {
  static constexpr unsigned kThreads = 3;
  ComesByTheLock() {
    put(0);
    run_on(0, 0);
    run_on(1, 0);
    run_on(2, 1);
  }
  void thread(unsigned self) {
    if (self == 2) {
      look();
    } else {
      put(1 + self);
    }
  }
};
// One has seen a full chain, long ago, which has gone to the global cache since. It begins its
// sequence when the CPU's chains are another one's to change: of a thread that was on this CPU
// behind its closing, and has been moved. That one brings the chain back, with another list.
struct BeginsLate : ChainsWorldOf<1> {
  static constexpr unsigned kThreads = 2;
  Chain seen;
  BeginsLate() {
    put({0, 1, 2});
    seen = caches.first_chain(kBin).get();
    for (int i = 0; i < 3; ++i) (void)take();
    put({3, 4});
    run_on(0, 0);
    run_on(1, 0);
  }
  void thread(unsigned self) {
    if (self == 1) {
      put(5);
      return;
    }
    const ObjectList list =
        supermalloc::CpuSequences::pop(os::sequence_area(), 0, caches.first_chain(kBin), seen);
    if (!list.is_empty()) got(list);
  }
};
// Both threads vanish at any step: one whose sequence moves a list, and one whose list has chains
// change places. The child finds each list once, or never again, and has chains to go on with.
struct ForkedChains : ChainsWorldOf<1> {
  static constexpr unsigned kThreads = 2;
  ForkedChains() {
    put({0, 1, 2});
    run_on(0, 0);
    run_on(1, 0);
  }
  void thread(unsigned self) {
    if (self == 0) {
      put(3);
    } else {
      (void)take();
    }
  }
  void at_rest() {
    SpinLock::enter_child();
    caches.enter_child();
    const auto find = [&](ObjectList list) {
      const unsigned n = number_of(list);
      MODEL_CHECK(is_cached[n]);
      is_cached[n] = false;
    };
    for (ObjectList list = caches.take(kBin); !list.is_empty(); list = caches.take(kBin))
      find(list);
    caches.drain(kBin, find);
    for (unsigned n = 0; n < 4; ++n) {
      is_cached[n] = true;
      MODEL_CHECK(caches.put(kBin, {&heads[n], 1}));
    }
    caches.drain(kBin, find);
    for (unsigned n = 0; n < 4; ++n) MODEL_CHECK(!is_cached[n]);
    MODEL_CHECK(caches.is_global_in_order(kBin));
  }
};

constexpr Options on_x86(unsigned preemptions, unsigned migrations = 0) {
  return {.memory = MemoryModel::tso, .preemptions = preemptions, .migrations = migrations};
}

TEST(SupermallocSequencesModel, WhatIsMissingIsFoundOut) {
  faults = {.are_not_restarted = true};
  EXPECT_FINDS(TakeAndTake, "is_cached", on_x86(2));
  EXPECT_FINDS(PutAndPut, "is_", on_x86(2));
  faults = {.end_with_plain_store = true};
  EXPECT_FINDS(TakeAndDrain, "race", on_x86(2));
  EXPECT_FINDS(PutAndLook, "is_", on_x86(2));
  faults = {.look_once_where_they_run = true};
  EXPECT_FINDS(ComesByTheLock, "race", on_x86(3, 1));
  faults = {.pops_do_not_look = true};
  EXPECT_FINDS(BeginsLate, "race", on_x86(2, 1));
  faults = {};
}

TEST(SupermallocSequencesModel, ThreadsOfOneCpuLoseNothing) {
  EXPECT_HOLDS(TakeAndTake, on_x86(bound(4, 6)));
  EXPECT_HOLDS(PutAndPut, on_x86(bound(4, 6)));
  EXPECT_HOLDS(ChainsMove, on_x86(bound(3, 5)));
  EXPECT_HOLDS(ChainsComeBack, on_x86(bound(3, 5)));
}
TEST(SupermallocSequencesModel, ThreadsOfOtherCpusLoseNothing) {
  EXPECT_HOLDS(TakeAndDrain, on_x86(bound(3, 4)));
  EXPECT_HOLDS(PutAndLook, on_x86(bound(3, 4)));
  EXPECT_HOLDS(ThreeThreads, on_x86(bound(2, 3)));
}
TEST(SupermallocSequencesModel, ThreadsThatMoveLoseNothing) {
  EXPECT_HOLDS(TakeAndTake, on_x86(bound(3, 4), 1));
  EXPECT_HOLDS(PutAndPut, on_x86(bound(3, 4), 1));
  EXPECT_HOLDS(ChainsMove, on_x86(bound(2, 3), bound(1, 2)));
  EXPECT_HOLDS(ChainsComeBack, on_x86(bound(2, 3), bound(1, 2)));
  EXPECT_HOLDS(Moves, on_x86(bound(1, 2), 1));
  EXPECT_HOLDS(ComesByTheLock, on_x86(bound(2, 3), 1));
  EXPECT_HOLDS(BeginsLate, on_x86(bound(4, 6), 1));
}

TEST(SupermallocSequencesModel, AForksChildFindsEachListOnceOrNever) {
  Options options = on_x86(bound(1, 2));
  options.forks = true;
  EXPECT_HOLDS(ForkedChains, options);
}

}  // namespace
}  // namespace spanalloc::model
