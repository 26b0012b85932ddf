// The three levels of caches of the supermalloc engine: which of them an object comes from and goes
// to, and how much each holds.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "memory_pattern.hpp"
#include "os/os.hpp"
#include "papers/supermalloc/tests/test_support.hpp"
#include "sanitizers.hpp"
#include "simulated_cpus.hpp"
#include "threads.hpp"

namespace spanalloc {
namespace {

using supermalloc::Bin;
using supermalloc::BinNumber;
using supermalloc::Chain;
using supermalloc::FreeObject;
using test::allocate_many;
using test::checked;
using test::free_all;
using test::own_cache;
using Bins = test::SupermallocBins;

class SupermallocCaches : public test::SupermallocTest {};

// What the CPU's chains and the global ones hold of a bin.
struct Chains {
  std::size_t chains = 0;
  std::size_t lists = 0;
  std::size_t most_lists = 0;
  std::size_t objects = 0;
};
template <class Config>
Chains chains_of(test::OwnHeap<Config>& heap, BinNumber b) {
  Chains sum;
  heap->cpu_caches().for_each_chain(b, [&](const Chain& chain) {
    ++sum.chains;
    sum.lists += chain.count();
    sum.most_lists = std::max<std::size_t>(sum.most_lists, chain.count());
    sum.objects += chain.objects();
  });
  return sum;
}
// Objects of the bin that are not in its folios: a program's, and caches'.
std::size_t out(test::OwnHeap<>& heap, BinNumber b) {
  std::size_t free = 0;
  std::size_t all = 0;
  heap->folios().for_each_fullness(b, [&](std::uint32_t each, std::size_t folios) {
    free += each * folios;
    all += Bins::of(b).folio_objects * folios;
  });
  return all - free;
}

void run_on(unsigned cpu) {
  test::run_on({cpu});
}
// Two CPUs that this process may use; the same one twice when there is but one.
std::pair<unsigned, unsigned> two_cpus() {
  const std::vector<unsigned>& cpus = test::cpus_of_this_process();
  return {cpus.front(), cpus.back()};
}

// "two linked lists each containing up to 1 MiB for each bin in the per-CPU cache", and one for
// each CPU in the global one. A chain of as many lists as 8 KiB go into 1 MiB is too short: a list
// is whole objects, and of 5,312 bytes it is one.
TEST_F(SupermallocCaches, ChainsHoldAMegabyteOfEveryBin) {
  for (BinNumber b = 0; b < Bins::kCount; ++b) {
    test::OwnHeap<> heap;
    const Bin& bin = Bins::of(b);
    if (bin.kind == supermalloc::Kind::kAligned) continue;
    // More than all caches hold: of a thread two lists, of the CPU two chains, of all together one.
    const std::size_t list = bin.is_large() ? 1 : bin.list_objects;
    std::vector<void*> objects;
    for (std::size_t i = 0; i < list * (3 * bin.chain_lists + 4); ++i) {
      // (At a page's beginning a large object has the bin of its size.)
      objects.push_back(bin.is_large() ? heap->allocate_aligned(bin.size, 4096)
                                       : heap->allocate(bin.size));
    }
    free_all(heap, objects);
    const Chains held = chains_of(heap, b);
    EXPECT_EQ(held.chains, 3u) << bin.size;
    EXPECT_EQ(held.most_lists, bin.chain_lists) << bin.size;
    EXPECT_EQ(held.lists, 3 * bin.chain_lists) << bin.size;
    EXPECT_EQ(held.objects, held.lists * list) << bin.size;
    EXPECT_LE(bin.chain_lists * list * bin.size, kMiB) << bin.size;
    EXPECT_GT((bin.chain_lists + 1) * list * bin.size, kMiB) << bin.size;
    checked(heap);
    heap->trim();
    EXPECT_EQ(chains_of(heap, b).chains, 0u) << bin.size;
    EXPECT_TRUE(checked(heap).all_returned()) << bin.size;
  }
}

// Where the paper's steps 1 to 4 of a free put the n-th object, and where those of an
// allocation find it again.
TEST_F(SupermallocCaches, AFreeGoesToTheThreadTheCpuAllCpusTheFolios) {
  for (const std::size_t n : {std::size_t{5312}, std::size_t{1984}, std::size_t{448}}) {
    test::OwnHeap<> heap;
    const BinNumber b = Bins::for_folios(n);
    const Bin& bin = Bins::of(b);
    const std::size_t list = bin.list_objects;
    const std::size_t chain = list * bin.chain_lists;
    const std::size_t caches = 2 * list + 3 * chain;
    std::vector<void*> objects = allocate_many(heap, caches + 3 * list, n);
    heap->trim();  // what lists have had beyond that
    const std::size_t all = objects.size();
    auto& cache = own_cache(heap);
    ASSERT_EQ(cache.objects(b), 0u);
    std::size_t freed = 0;
    for (void* p : objects) {
      heap->deallocate(p);
      ++freed;
      // The thread's two lists are full before a list goes on, and then the one that waited goes.
      const std::size_t own = freed <= 2 * list ? freed : list + 1 + (freed - 1) % list;
      ASSERT_EQ(cache.objects(b), own) << n << ": " << freed;
      const std::size_t moved = freed - own;
      ASSERT_EQ(chains_of(heap, b).objects, std::min(moved, 3 * chain)) << n << ": " << freed;
      // The third chain is all CPUs'.
      ASSERT_EQ(chains_of(heap, b).chains, std::min<std::size_t>((moved + chain - 1) / chain, 3));
      ASSERT_EQ(out(heap, b), all - (moved - std::min(moved, 3 * chain))) << n << ": " << freed;
    }
    checked(heap);
    // And back: the thread's, the CPU's, all CPUs', and only then the folios have less.
    const std::size_t in_caches = cache.objects(b) + 3 * chain;
    std::size_t taken = 0;
    for (void*& p : objects) {
      const std::size_t own = cache.objects(b);
      const std::size_t behind = chains_of(heap, b).objects;
      const std::size_t out_before = out(heap, b);
      p = heap->allocate(n);
      ++taken;
      if (own != 0) {
        ASSERT_EQ(cache.objects(b), own - 1);
        ASSERT_EQ(chains_of(heap, b).objects, behind);
      } else if (behind != 0) {
        ASSERT_EQ(cache.objects(b), list - 1);
        ASSERT_EQ(chains_of(heap, b).objects, behind - list) << "a whole list";
      }
      if (taken <= in_caches) {
        ASSERT_EQ(out(heap, b), out_before);
      } else if (own == 0) {
        ASSERT_GT(out(heap, b), out_before);
      }
    }
    EXPECT_EQ(chains_of(heap, b).objects, 0u);
    free_all(heap, objects);
    heap->trim();
    EXPECT_TRUE(checked(heap).all_returned());
  }
}

// One list a chain: more lists go by than the CPU and all CPUs have room for, and come
// again, the last one first.
struct ShortChains : Supermalloc {
  static constexpr std::size_t kChainBytes = 1;
};
TEST_F(SupermallocCaches, TheGlobalCacheIsAStackOfChains) {
  constexpr std::size_t kCpus = 5;
  const test::SimulatedCpus cpus(kCpus);
  test::OwnHeap<ShortChains> heap;
  const BinNumber b = Bins::for_folios(14'272);
  std::vector<void*> objects = allocate_many(heap, 4 + kCpus + 2, 14'272);
  heap->trim();
  auto& caches = heap->cpu_caches();
  std::thread([&] {
    run_on(two_cpus().first);
    for (int round = 0; round < 3; ++round) {
      std::vector<FreeObject*> put;
      for (void* p : objects) {
        auto* object = static_cast<FreeObject*>(p);
        object->push_on(&supermalloc::end_of_list, heap->secret());
        if (!caches.put(b, {object, 1})) break;
        put.push_back(object);
        EXPECT_EQ(caches.filled(b).load_relaxed(), put.size() < 2 ? 0 : put.size() - 2);
        EXPECT_EQ(chains_of(heap, b).chains, put.size());
        ASSERT_TRUE(caches.is_global_in_order(b));
      }
      ASSERT_EQ(put.size(), 2 + kCpus) << "two of this CPU's, and one for each CPU";
      std::vector<FreeObject*> found;
      if (round == 1) {
        caches.drain(b, [&](supermalloc::ObjectList list) { found.push_back(list.first); });
      } else {
        for (std::size_t i = 0; i < put.size(); ++i) {
          found.push_back(caches.take(b).first);
          ASSERT_TRUE(caches.is_global_in_order(b));
        }
      }
      // The CPU's own two, then the last that went to all of them.
      EXPECT_EQ(found,
                (std::vector<FreeObject*>{put[6], put[1], put[5], put[4], put[3], put[2], put[0]}));
      EXPECT_TRUE(caches.take(b).is_empty());
      EXPECT_EQ(caches.filled(b).load_relaxed(), 0u);
    }
    for (void* p : objects) static_cast<FreeObject*>(p)->seal = 0;
    free_all(heap, objects);
  }).join();
  heap->trim();
  EXPECT_TRUE(checked(heap).all_returned());
}

// Under locks a thread asks where it runs before its first use of a CPU's cache and then before
// every sixteenth: one that moves meanwhile stays with the CPU it came from, and not for longer.
TEST_F(SupermallocCaches, AThreadThatMovesIsNoticedWithTheSixteenthUse) {
  const std::pair<unsigned, unsigned> both = two_cpus();
  if (both.first == both.second) GTEST_SKIP() << "it takes two CPUs";
  constexpr std::size_t kUses = 16;
  const test::SimulatedCpus cpus(2);
  const test::Variable locks("SPANALLOC_RSEQ", "0");
  test::OwnHeap<> heap;
  const BinNumber b = Bins::for_folios(3000);
  ASSERT_GT(Bins::of(b).chain_lists, 2 * kUses) << "one chain holds all lists";
  auto& caches = heap->cpu_caches();
  std::vector<void*> objects;
  // (A thread on neither of the CPUs would get one of the two slots for its own.)
  std::thread([&] {
    run_on(both.first);
    objects = allocate_many(heap, 2 * kUses + 1, 3000);
    heap->trim();
  }).join();
  std::thread([&] {
    std::size_t used = 0;
    const auto use = [&](unsigned cpu, std::size_t times) {
      run_on(cpu);
      for (; times != 0; --times) {
        auto* object = static_cast<FreeObject*>(objects[used++]);
        object->push_on(&supermalloc::end_of_list, heap->secret());
        ASSERT_TRUE(caches.put(b, {object, 1}));
      }
    };
    // Of each CPU's chain, the shorter one's first.
    const auto lists = [&] {
      std::vector<std::size_t> counts;
      caches.for_each_chain(b, [&](const Chain& chain) { counts.push_back(chain.count()); });
      std::sort(counts.begin(), counts.end());
      return counts;
    };
    use(both.first, 1);
    use(both.second, kUses - 1);
    EXPECT_EQ(lists(), (std::vector<std::size_t>{kUses})) << "asked too often";
    use(both.second, 1);
    EXPECT_EQ(lists(), (std::vector<std::size_t>{1, kUses})) << "not asked any more";
    use(both.first, kUses);
    EXPECT_EQ(lists(), (std::vector<std::size_t>{kUses, kUses + 1})) << "asked at another time";
  }).join();
  heap->trim();
  EXPECT_TRUE(checked(heap).all_returned());
}

// By the addresses: the last list that came to the CPU's cache is what an empty thread's cache
// begins with, link by link as it was.
TEST_F(SupermallocCaches, AListMovesByItsHead) {
  test::OwnHeap<> heap;
  const BinNumber b = Bins::for_folios(128);
  const std::size_t list = Bins::of(b).list_objects;
  std::vector<void*> objects = allocate_many(heap, 3 * list, 128);
  heap->trim();
  free_all(heap, objects);  // the first one of the lists is the CPU's now
  std::vector<const FreeObject*> links;
  heap->cpu_caches().for_each_chain(b, [&](const Chain& chain) {
    ASSERT_EQ(chain.count(), 1u);
    for (const FreeObject* p = chain.heads()[0].first; !is_end(p); p = p->next) links.push_back(p);
  });
  ASSERT_EQ(links.size(), list);
  std::thread([&] {
    EXPECT_EQ(heap->allocate(128), links[0]);
    std::size_t i = 1;
    for (const FreeObject* p = own_cache(heap).first[b + 1].load_relaxed(); !is_end(p);
         p = p->next) {
      ASSERT_LT(i, list);
      EXPECT_EQ(p, links[i++]);
    }
    EXPECT_EQ(i, list);
    heap->deallocate(const_cast<FreeObject*>(links[0]));
  }).join();
  checked(heap);
}

TEST_F(SupermallocCaches, AThreadsEndLeavesLongListsToTheCpuAndShortOnesToTheFolios) {
  test::OwnHeap<> heap;
  const BinNumber b = Bins::for_folios(64);
  const std::size_t list = Bins::of(b).list_objects;
  for (const std::size_t kept :
       {list / 2, list / 2 + 1, list, list + list / 2, list + list / 2 + 1}) {
    std::thread([&] {
      std::vector<void*> objects = allocate_many(heap, kept, 64);
      heap->trim();
      free_all(heap, objects);
      EXPECT_EQ(own_cache(heap).objects(b), kept);
    }).join();
    std::size_t long_ones = kept > list / 2 ? std::min(kept, list) : 0;
    if (kept > list + list / 2) long_ones = kept;
    EXPECT_EQ(chains_of(heap, b).objects, long_ones) << kept;
    EXPECT_EQ(out(heap, b), long_ones) << kept;
    EXPECT_EQ(checked(heap).cached_objects, long_ones);
    heap->trim();
    EXPECT_EQ(out(heap, b), 0u);
  }
  EXPECT_EQ(heap->statistics().live_threads, 0u);
}

TEST_F(SupermallocCaches, TrimIsFollowedByEveryThreadInItsNextSlowPath) {
  test::OwnHeap<> heap;
  std::atomic<int> step{0};
  const auto wait_for = [&](int s) {
    while (step != s) std::this_thread::yield();
  };
  std::thread other([&] {
    std::vector<void*> objects = allocate_many(heap, 50, 64);
    free_all(heap, objects);
    step = 1;
    wait_for(2);
    // Another bin's slow path.
    heap->deallocate(heap->allocate(3000));
    EXPECT_EQ(own_cache(heap).objects(Bins::for_folios(64)), 0u);
    step = 3;
    wait_for(4);
  });
  wait_for(1);
  const std::size_t before = checked(heap).cached_objects;
  EXPECT_GE(before, 50u);
  heap->trim();
  EXPECT_EQ(checked(heap).cached_objects, before) << "a thread's cache is its own";
  step = 2;
  wait_for(3);
  EXPECT_EQ(out(heap, Bins::for_folios(64)), 0u);
  checked(heap);
  step = 4;
  other.join();
}

TEST_F(SupermallocCaches, StatisticsAddUpWithTheCensus) {
  test::OwnHeap<> heap;
  std::vector<void*> objects;
  const auto expect_sums = [&] {
    const supermalloc::Census census = checked(heap);
    const EngineStatistics statistics = heap->statistics();
    std::size_t outside = 0;
    for (void* p : objects) outside += heap->chunks().at(p).word() == 0;
    EXPECT_EQ(statistics.large_objects, census.large_objects + census.huge_objects + outside);
    std::size_t cached = 0;
    std::size_t pooled = 0;
    std::size_t carved = 0;
    std::size_t carved_large = 0;
    std::size_t all_committed = 0;
    std::size_t large = heap->huge().bytes();
    std::size_t cached_small = 0;
    std::size_t out_of_folios = 0;
    std::size_t last = 0;
    const Bin* bin = nullptr;
    heap->describe(
        [&](std::size_t size, std::size_t folio, std::size_t committed, std::size_t in_caches) {
          EXPECT_GT(size, last);
          last = size;
          BinNumber b = 0;
          while (Bins::of(b).size != size) ++b;
          bin = &Bins::of(b);
          EXPECT_EQ(folio, bin->folio_bytes);
          cached += in_caches;
          pooled += in_caches * size;
          all_committed += committed;
          if (bin->is_large()) {
            carved_large += heap->large().out(b) * size;
            large += (heap->large().out(b) - in_caches) * size;
          } else {
            cached_small += in_caches;
          }
        },
        // Of the bin that was told last.
        [&](std::size_t free, std::size_t folios) {
          EXPECT_LE(free, bin->folio_objects);
          if (free < bin->folio_objects) carved += folios * bin->folio_bytes;
          out_of_folios += (bin->folio_objects - free) * folios;
        });
    EXPECT_EQ(out_of_folios, census.live_objects + cached_small);
    EXPECT_EQ(cached, census.cached_objects);
    // (Where the kernel's pages are larger than ours it is not given all that is empty.)
    const std::size_t kept = all_committed - carved - carved_large;
    EXPECT_EQ(statistics.pooled_bytes, pooled + kept + heap->huge().kept_bytes());
    EXPECT_EQ(statistics.small_bytes_carved, carved);
    if (outside == 0) {
      EXPECT_EQ(statistics.large_bytes, large);
    }
    EXPECT_GE(statistics.opened_bytes, statistics.small_bytes_carved + statistics.pooled_bytes / 2);
    EXPECT_GE(statistics.reserved_bytes, statistics.opened_bytes);
    EXPECT_EQ(statistics.live_threads, 1u);
  };
  for (const std::size_t n :
       {1u, 64u, 500u, 5000u, 14000u, 20'000u, 300'000u, 900'000u, 3'000'000u}) {
    for (int i = 0; i < 40; ++i) {
      objects.push_back(heap->allocate(n));
      if (i % 3 != 0) continue;
      heap->deallocate(objects.back());
      objects.pop_back();
    }
    expect_sums();
  }
  objects.push_back(heap->allocate(supermalloc::HugeHeap::kLargest + 1));
  if (objects.back() == nullptr) objects.pop_back();
  expect_sums();
  for (int step = 0; !objects.empty(); ++step) {
    heap->deallocate(objects.back());
    objects.pop_back();
    if (step % 20 == 0) expect_sums();
  }
  expect_sums();
  heap->trim();
  expect_sums();
  EXPECT_EQ(heap->statistics().pooled_bytes, 0u);
  EXPECT_EQ(heap->statistics().small_bytes_carved, 0u);
  EXPECT_EQ(heap->statistics().large_bytes, 0u);
}

// The cache of threads that have none is all of theirs: nobody may find room in it, or whoever
// comes next would be given another thread's object. (Taking one off the room and putting it back
// where there was none makes room for whoever comes between.)
TEST_F(SupermallocCaches, NobodysCacheTakesNothing) {
  using Cache = supermalloc::ThreadCache<Supermalloc>;
  auto nobodys = std::make_unique<Cache>();
  FreeObject objects[4];
  SetOnce secret;
  secret.set(2);
  const int rounds = test::kUnderTsan ? 20'000 : 3'000'000;
  test::in_threads(4, [&](unsigned thread) {
    for (int i = 0; i < rounds && !testing::Test::HasFailure(); ++i) {
      ASSERT_FALSE(nobodys->push(1, &objects[thread], secret));
      ASSERT_EQ(nobodys->pop(1, secret.read()), nullptr);
    }
  });
  EXPECT_TRUE(nobodys->is_empty(0));
}

// Threads whose first act is to free what another one has allocated.
TEST_F(SupermallocCaches, ManyThreadsBeginWithAFree) {
  test::OwnHeap<> heap;
  for (int round = 0; round < 50; ++round) {
    std::vector<void*> objects = allocate_many(heap, 8 * 20, 100);
    test::in_threads(8, [&](unsigned thread) {
      for (unsigned i = 0; i < 20; ++i) heap->deallocate(objects[thread * 20 + i]);
    });
  }
  EXPECT_TRUE(checked(heap).all_returned());
}

// --- When memory is out --------------------------------------------------------------------------

// An arena of 1 GiB, used up. What another CPU's cache holds is found before memory is out.
TEST_F(SupermallocCaches, WhatAnotherCpuHoldsIsFoundBeforeMemoryIsOut) {
  const std::pair<unsigned, unsigned> both = two_cpus();
  const unsigned here = both.first;
  const unsigned there = both.second;
  if (here == there) GTEST_SKIP() << "it takes two CPUs";
  const test::Variable bits("SPANALLOC_ARENA_BITS", "30");
  const test::SimulatedCpus cpus(2);
  test::OwnHeap<> heap;
  std::thread([&] {
    run_on(here);
    const BinNumber b = Bins::kCount - 1;
    const std::size_t n = Bins::of(b).size;
    const std::size_t list = Bins::of(Bins::for_folios(3000)).list_objects;
    std::vector<void*> small = allocate_many(heap, 4 * list, 3000);
    std::vector<void*> large;
    // Without a chunk they have mappings of their own.
    const auto allocate_large = [&] {
      void* p = heap->allocate_aligned(n, 4096);
      EXPECT_NE(p, nullptr);
      if (heap->chunks().at(p).is_bin()) return p;
      EXPECT_EQ(heap->chunks().at(p).word(), 0u);
      heap->deallocate(p);
      return static_cast<void*>(nullptr);
    };
    while (void* p = allocate_large()) {
      large.push_back(p);
      ASSERT_LT(large.size(), 2000u);
    }
    EXPECT_GT(large.size(), 900u);
    // So are the small ones' chunks.
    for (void* p = nullptr; (p = heap->allocate(3000)) != nullptr;) small.push_back(p);
    EXPECT_EQ(heap->allocate(200), nullptr) << "a bin without a chunk";
    checked(heap);
    // Back to the other CPU's cache: two large ones and some lists of small ones.
    std::thread([&] {
      run_on(there);
      for (int i = 0; i < 2; ++i) {
        heap->deallocate(large.back());
        large.pop_back();
      }
      for (std::size_t i = 0; i < 4 * list; ++i) {
        heap->deallocate(small.back());
        small.pop_back();
      }
    }).join();
    EXPECT_EQ(chains_of(heap, b).objects, 2u);
    EXPECT_EQ(chains_of(heap, Bins::for_folios(3000)).objects, 4 * list);
    for (int i = 0; i < 2; ++i) {
      void* p = allocate_large();
      EXPECT_NE(p, nullptr);
      large.push_back(p);
    }
    EXPECT_EQ(allocate_large(), nullptr);
    for (std::size_t i = 0; i < 4 * list; ++i) {
      void* p = heap->allocate(3000);
      EXPECT_NE(p, nullptr);
      small.push_back(p);
    }
    EXPECT_EQ(heap->allocate(3000), nullptr);
    checked(heap);
    // Huge ones find mappings of their own.
    void* huge = heap->allocate(5 * kMiB);
    EXPECT_NE(huge, nullptr);
    EXPECT_TRUE(heap->owns(huge));
    heap->deallocate(huge);
    for (void* p : large) heap->deallocate(p);
    for (void* p : small) heap->deallocate(p);
    heap->trim();
    EXPECT_TRUE(checked(heap).all_returned());
  }).join();
}

// What no bin's chunk can be made for a huge range serves, or a mapping of its own.
TEST_F(SupermallocCaches, ALargeObjectWhoseBinGetsNoChunkIsServedAsAHugeOne) {
  const test::Variable bits("SPANALLOC_ARENA_BITS", "30");
  test::OwnHeap<> heap;
  std::vector<void*> objects;
  for (const std::size_t n : {64 * kMiB, 2 * kMiB}) {
    do {
      objects.push_back(heap->allocate(n));
      ASSERT_NE(objects.back(), nullptr);
      ASSERT_LT(objects.size(), 1000u);
    } while (heap->chunks().at(objects.back()).is_huge());
  }
  const auto expect_served = [&](void* p, std::size_t n) {
    ASSERT_NE(p, nullptr);
    EXPECT_GE(heap->usable_size(p), n);
    EXPECT_TRUE(heap->owns(p));
    EXPECT_EQ(test::first_nonzero(p, n), n);
    test::fill_pattern(p, n, 1);
    heap->deallocate(p);
  };
  for (const std::size_t n : {Bins::kLargestWithFolios + 1, 100 * kKiB, Bins::kLargest}) {
    void* p = heap->allocate_zeroed(n);
    EXPECT_EQ(heap->chunks().at(p).word(), 0u) << n;
    expect_served(p, n);
    p = heap->allocate_aligned(n, 4096);
    EXPECT_EQ(address_of(p) % 4096, 0u);
    expect_served(p, n);
  }
  heap->deallocate(objects[3]);
  for (const std::size_t n : {Bins::kLargestWithFolios + 1, 100 * kKiB, Bins::kLargest}) {
    void* p = heap->allocate_zeroed(n);
    EXPECT_EQ(p, objects[3]) << n;
    expect_served(p, n);
    checked(heap);
  }
  objects.erase(objects.begin() + 3);
  free_all(heap, objects);
  EXPECT_TRUE(checked(heap).all_returned());
}

// The kernel refuses a mapping for its size: nothing that a cache holds would change that.
TEST_F(SupermallocCaches, AHugeRequestThatIsRefusedLeavesCachesAsTheyAre) {
  test::OwnHeap<> heap;
  for (void* p : {heap->allocate(100), heap->allocate(100'000)}) heap->deallocate(p);
  const std::size_t cached = checked(heap).cached_objects;
  EXPECT_GT(cached, 1u);
  EXPECT_EQ(heap->allocate(kMaxRequest / 2), nullptr);
  EXPECT_EQ(checked(heap).cached_objects, cached);
  EXPECT_EQ(heap->wishes(), 0u);
}

}  // namespace
}  // namespace spanalloc
