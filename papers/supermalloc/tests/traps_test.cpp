// The known faults of the published SuperMalloc, one test each at least, which fails on an
// engine that has the fault: how to give it to this one stands beside each. (The fifth one, a
// self-check that returns on its first line: census_test.cpp sees the walker count, and name
// each thing that is broken.)
#include <errno.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "api/malloc_api.hpp"
#include "memory_pattern.hpp"
#include "os_calls.hpp"
#include "papers/supermalloc/engine/engine.hpp"
#include "papers/supermalloc/tests/test_support.hpp"
#include "sanitizers.hpp"
#include "threads.hpp"

namespace spanalloc {
namespace {

using supermalloc::BinNumber;
using supermalloc::Census;
using supermalloc::Chain;
using supermalloc::FreeObject;
using supermalloc::ObjectList;
using test::checked;
using Bins = test::SupermallocBins;

class SupermallocTraps : public test::SupermallocTest {};

// An engine of this file's own: its heap is one that a library has, whose threads find their caches
// by a thread_local variable.
struct TrapConfig : Supermalloc {};
using E = SupermallocEngine<TrapConfig>;
using Api = MallocApi<E>;

Census census_of_engine() {
  E::trim();
  const Census census = E::census();
  EXPECT_TRUE(census.consistent()) << census.first_problem;
  return census;
}

// --- Pushes by compare-and-swap race pops under a lock -------------------------------------------

// A pop reads the first list and what is behind it, and writes that: what is pushed in between, and
// waits for no lock, is lost. To see it fail, take the guard out of CpuCaches::put_by_lock(): the
// push is there before the lock's holder has done. (Where sequences are used nobody waits: what has
// no lock to itself goes elsewhere. cpu_sequences_test.cpp)
TEST_F(SupermallocTraps, APushWaitsForWhoeverHasTheLock) {
  const test::Variable locks("SPANALLOC_RSEQ", "0");
  supermalloc::CpuCaches<Supermalloc> caches;
  ASSERT_TRUE(caches.start());
  const BinNumber b = 0;
  FreeObject first{};
  FreeObject pushed{};
  ASSERT_TRUE(caches.put(b, {&first, 1}));
  std::atomic<bool> has_pushed{false};
  std::thread other;
  std::size_t chains = 0;
  // With the lock of the one CPU that there is.
  caches.for_each_chain(b, [&](const Chain& chain) {
    ++chains;
    const std::size_t yields = test::yields();
    other = std::thread([&] {
      EXPECT_TRUE(caches.put(b, {&pushed, 1}));
      has_pushed = true;
    });
    // Until it has pushed, or has waited for the lock so long that it gives its time away.
    while (!has_pushed && test::yields() == yields) usleep(100);
    EXPECT_FALSE(has_pushed);
    EXPECT_EQ(chain.count(), 1u);
  });
  ASSERT_EQ(chains, 1u);
  other.join();
  EXPECT_EQ(caches.take(b).first, &pushed);
  EXPECT_EQ(caches.take(b).first, &first);
  EXPECT_TRUE(caches.take(b).is_empty());
  caches.destroy();
}

// The CPU's and the global cache, from several threads, with chains that change places all the
// time, and drains. To see it fail, take the guard out of CpuCaches::put_by_lock(): lists are
// missing at the end, or two threads have the same one.
TEST_F(SupermallocTraps, NoListIsLostOrThereTwice) {
  supermalloc::CpuCaches<Supermalloc> caches;
  ASSERT_TRUE(caches.start());
  // A bin of one list a chain: so every second move is one of chains.
  const BinNumber b = Bins::kCount - 1;
  ASSERT_EQ(Bins::of(b).chain_lists, 1u);
  constexpr std::size_t kLists = 12;
  constexpr unsigned kThreads = 4;
  const int rounds = test::kUnderTsan ? 5'000 : 1'000'000;
  // Caches move lists by their heads and look into none.
  auto heads = std::make_unique<FreeObject[]>(kLists);
  // Threads that have it in their hands, plus the caches: 0
  std::vector<std::atomic<int>> owners(kLists);
  std::atomic<std::size_t> next{0};
  test::in_threads(kThreads, [&](unsigned thread) {
    std::vector<FreeObject*> mine;
    while (mine.size() < kLists / kThreads) mine.push_back(&heads[next++]);
    for (FreeObject* head : mine) owners[static_cast<std::size_t>(head - heads.get())] = 1;
    const auto got = [&](ObjectList list) {
      EXPECT_EQ(list.count, 1u);
      EXPECT_EQ(owners[static_cast<std::size_t>(list.first - heads.get())]++, 0);
      mine.push_back(list.first);
    };
    for (int round = 0; round < rounds && !testing::Test::HasFailure(); ++round) {
      if (thread == 0 && round % 64 == 0) caches.drain(b, got);
      if (!mine.empty() && round % 2 == 0) {
        FreeObject* head = mine.back();
        mine.pop_back();
        --owners[static_cast<std::size_t>(head - heads.get())];
        if (caches.put(b, {head, 1})) continue;
        ++owners[static_cast<std::size_t>(head - heads.get())];
        mine.push_back(head);
      } else if (const ObjectList list = caches.take(b); !list.is_empty()) {
        got(list);
      }
    }
    while (!mine.empty()) {
      FreeObject* head = mine.back();
      mine.pop_back();
      --owners[static_cast<std::size_t>(head - heads.get())];
      if (caches.put(b, {head, 1})) continue;
      // There is no room for all of them
      owners[static_cast<std::size_t>(head - heads.get())] = -1;
    }
  });
  std::set<FreeObject*> left;
  caches.drain(b, [&](ObjectList list) { EXPECT_TRUE(left.insert(list.first).second); });
  for (std::size_t i = 0; i < kLists; ++i) {
    EXPECT_EQ(left.contains(&heads[i]), owners[i] == 0) << i;
  }
  caches.destroy();
}

// --- A shrinking realloc leaks -------------------------------------------------------------------

// Where the smaller block is another one the larger one must be freed. To see it fail, let
// MallocApi::move() return before it frees: all of these stay.
TEST_F(SupermallocTraps, AShrinkingReallocLeavesNothingBehind) {
  const std::size_t large_before = census_of_engine().large_objects;
  for (const std::size_t n : {std::size_t{4000}, std::size_t{100'000}, 3 * kMiB}) {
    for (int i = 0; i < 500; ++i) {
      void* p = Api::malloc(n);
      ASSERT_NE(p, nullptr);
      test::fill_pattern(p, 100, n);
      p = Api::realloc(p, 100);
      ASSERT_EQ(test::first_mismatch(p, 100, n), 100u);
      p = Api::realloc(p, 17);
      ASSERT_EQ(test::first_mismatch(p, 17, n), 17u);
      Api::free(p);
    }
  }
  const Census census = census_of_engine();
  EXPECT_EQ(census.live_objects, 0u);
  EXPECT_EQ(census.large_objects, large_before);
  EXPECT_EQ(census.huge_objects, 0u);
  EXPECT_LE(census.huge_chunks + census.free_chunks, 2u);
}

// --- calloc multiplies unchecked -----------------------------------------------------------------

TEST_F(SupermallocTraps, CallocOfAnOverflowIsRefused) {
  // The product is 0 or small: an unchecked one hands out a block of that. (To see it fail, let
  // MallocApi::calloc() not ask whether it overflows.)
  constexpr std::size_t kHalf = std::size_t{1} << 32;
  constexpr struct {
    std::size_t count;
    std::size_t size;
  } kRequests[] = {{kHalf, kHalf},       {kHalf + 1, kHalf}, {SIZE_MAX, 2},
                   {2, SIZE_MAX},        {SIZE_MAX / 3, 4},  {SIZE_MAX / 16 + 2, 16},
                   {SIZE_MAX, SIZE_MAX}, {kHalf * 2, kHalf}};
  for (const auto& request : kRequests) {
    errno = 0;
    EXPECT_EQ(Api::calloc(request.count, request.size), nullptr)
        << request.count << " x " << request.size;
    EXPECT_EQ(errno, ENOMEM);
  }
  EXPECT_EQ(census_of_engine().live_objects, 0u);
  // The largest that fits is a matter of memory, not of arithmetic.
  void* p = Api::calloc(3, 5);
  EXPECT_EQ(test::first_nonzero(p, 15), 15u);
  Api::free(p);
}

// --- Caches are armed again after their thread's end ---------------------------------------------

// Destructors of others come after the thread has left its cache: a cache that they make or fill
// would be nobody's, with all that is in it. To see it fail, let ThreadCaches::find() not ask
// whether the thread has ended: caches stay taken.
template <class Allocate, class Deallocate>
struct LastDestructor {
  static inline Allocate* allocate = nullptr;
  static inline Deallocate* deallocate = nullptr;
  static inline std::atomic<int> rounds{0};
  static inline pthread_key_t key = 0;

  static void run(void* value) {
    // More than a list holds, and large ones; some of what it has allocated before.
    std::vector<void*> objects;
    for (int i = 0; i < 300; ++i) objects.push_back((*allocate)(i % 100 == 0 ? 50'000 : 100));
    for (void* p : objects) {
      if (p == nullptr) _exit(9);
      (*deallocate)(p);
    }
    if (++rounds < PTHREAD_DESTRUCTOR_ITERATIONS) pthread_setspecific(key, value);
  }
};

template <class Allocate, class Deallocate>
void end_threads(Allocate allocate, Deallocate deallocate) {
  using Last = LastDestructor<Allocate, Deallocate>;
  Last::allocate = &allocate;
  Last::deallocate = &deallocate;
  ASSERT_EQ(pthread_key_create(&Last::key, &Last::run), 0);
  for (int i = 0; i < 10; ++i) {
    std::thread([&] {
      deallocate(allocate(16));
      Last::rounds = 0;
      pthread_setspecific(Last::key, &allocate);
    }).join();
    EXPECT_EQ(Last::rounds, PTHREAD_DESTRUCTOR_ITERATIONS);
  }
  pthread_key_delete(Last::key);
}

TEST_F(SupermallocTraps, AThreadPastItsEndGetsNoCacheInALibrary) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer is gone from the thread by the last round";
  E::deallocate(E::allocate(1));
  const std::size_t before = E::statistics().live_threads;
  end_threads([](std::size_t n) { return E::allocate(n); }, [](void* p) { E::deallocate(p); });
  EXPECT_EQ(E::statistics().live_threads, before);
  EXPECT_TRUE(census_of_engine().all_returned());
  EXPECT_EQ(E::census().cached_objects, 0u);
}

TEST_F(SupermallocTraps, AThreadPastItsEndGetsNoCacheInAnyOtherHeap) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer is gone from the thread by the last round";
  test::OwnHeap<> heap;
  end_threads([&](std::size_t n) { return heap->allocate(n); },
              [&](void* p) { heap->deallocate(p); });
  EXPECT_EQ(heap->statistics().live_threads, 0u);
  std::size_t caches = 0;
  heap->thread_caches().for_each([&](const auto&) { ++caches; });
  EXPECT_EQ(caches, 1u);
  heap->trim();
  EXPECT_TRUE(checked(heap).all_returned());
  EXPECT_EQ(checked(heap).cached_objects, 0u);
}

}  // namespace
}  // namespace spanalloc
