// When a class has a magazine, which blocks it holds, and that it loses none.
#include "standard/magazines.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <latch>
#include <set>
#include <thread>
#include <vector>

#include "environment.hpp"
#include "heap_walk.hpp"
#include "memory_return_access.hpp"
#include "owned_heap.hpp"
#include "random.hpp"
#include "standard/test_support.hpp"
#include "threads.hpp"

namespace spanalloc::large {
namespace {

using standard::ClassId;

auto& magazines() {
  return E::thread_cache.cache->magazines;
}
standard::SpanRef span_of(const void* p) {
  return E::pages.span_of(E::pages.any_slice_at(address_of(p)));
}
bool is_kept(const void* p) {
  return static_cast<const standard::Block*>(p)->is_kept();
}
bool is_current(const void* p, std::size_t size) {
  return E::thread_cache.current_span(Classes::of(size)) == span_of(p);
}

// Live blocks of one size, or of sizes up to `size`, of which one after the other is replaced.
struct Replaced {
  std::size_t size;
  std::size_t least = size;
  test::Random random{7};
  std::vector<void*> blocks = std::vector<void*>(300);

  std::size_t draw() { return least + random.next() % (size - least + 1); }
  template <class Heap>
  void fill(Heap&& heap) {
    blocks.reserve(4 * blocks.size());  // tests hold references, and add blocks
    for (void*& p : blocks) p = heap.allocate(draw());
  }
  template <class Heap>
  void replace(unsigned times, Heap&& heap) {
    for (unsigned i = 0; i < times; ++i) {
      void*& p = blocks[random.next() % blocks.size()];
      heap.deallocate(p);
      p = heap.allocate(draw());
      ASSERT_NE(p, nullptr);
      std::memset(p, 0x5a, sizeof(void*));
    }
  }
  void fill() { fill(E{}); }
  void replace(unsigned times) { replace(times, E{}); }
  // A block that is in no current span.
  void*& outside() {
    for (void*& p : blocks) {
      if (!is_current(p, size)) return p;
    }
    return blocks.front();
  }
};

// So that the next block is one of the magazine.
void use_current_up(Replaced& it, ClassId c) {
  while (!E::thread_cache.list_of(c).is_empty()) it.blocks.push_back(E::allocate(it.size));
}

class StandardMagazines : public testing::Test {
 protected:
  void SetUp() override { expect_nothing_out(); }
  void TearDown() override {
    E::trim();
    expect_nothing_out();
  }
};

// On a thread of its own, which begins without any.
template <class F>
void replacing(std::size_t size, F&& f) {
  test::on_another_thread([&] {
    Replaced it{size};
    it.fill();
    it.replace(4000);
    f(it);
    free_all(it.blocks);
  });
}

TEST_F(StandardMagazines, WhoReplacesBlocksAtRandomHasThem) {
  for (const std::size_t size : {1200, 2000, 4096, 7000, 16384, 32768}) {
    replacing(size, [&](Replaced& it) {
      const ClassId c = Classes::of(size);
      ASSERT_TRUE(magazines().is_open(c)) << size;
      // A block of a full span comes at once again, whatever span it is of.
      for (int i = 0; i < 20; ++i) {
        use_current_up(it, c);
        void*& p = it.outside();
        void* const old = p;
        ASSERT_TRUE(magazines().has_room(c));
        E::deallocate(p);
        EXPECT_TRUE(is_kept(old));
        p = E::allocate(size);
        EXPECT_EQ(p, old);
      }
    });
  }
}

TEST(StandardMagazinesOfAHeap, AreOpenedUnlessAnOptionSaysNo) {
  for (const bool wanted : {true, false}) {
    const test::Variable option("SPANALLOC_MAGAZINES", wanted ? "1" : "0");
    test::OwnedHeap own;
    Replaced it{2000};
    it.fill(own);
    it.replace(4000, own);
    EXPECT_EQ(own.thread_cache()->cache->magazines.is_open(Classes::of(2000)), wanted);
  }
}

TEST_F(StandardMagazines, SmallerBlocksHaveNone) {
  replacing(1152, [&](Replaced&) { EXPECT_FALSE(magazines().are_open()); });
}

TEST_F(StandardMagazines, WhoFreesByTheBatchHasNone) {
  test::on_another_thread([] {
    for (int round = 0; round < 200; ++round) {
      std::vector<void*> blocks = large::fill(2 * kMiB, 4000);
      free_all(blocks);
    }
    EXPECT_FALSE(magazines().is_open(Classes::of(4000)));
  });
}

TEST_F(StandardMagazines, TheyCloseWhenWholeSpansBecomeFree) {
  const std::size_t size = 4000;
  replacing(size, [&](Replaced& it) {
    ASSERT_TRUE(magazines().is_open(Classes::of(size)));
    for (int round = 0; round < 200; ++round) {
      free_all(it.blocks);
      it.blocks.resize(300);
      it.fill();
    }
    EXPECT_FALSE(magazines().is_open(Classes::of(size)));
    magazines().give_back_unused(E::thread_cache);
    magazines().give_back_unused(E::thread_cache);
    EXPECT_FALSE(magazines().are_open()) << "frees are those of a thread that never had one";
  });
}

// Of a thousand, most may be asleep.
TEST_F(StandardMagazines, BesideManyThreadsEachKeepsOneBlock) {
  for (const std::size_t size : {1200, 4096, 32768}) {
    test::on_another_thread([&] {
      E::deallocate(E::allocate(1));
      auto& threads = E::thread_cache.heap->live_caches;
      threads.fetch_add_relaxed(1000);
      Replaced it{size};
      it.fill();
      it.replace(4000);
      threads.fetch_sub_relaxed(1000);
      ASSERT_TRUE(magazines().is_open(Classes::of(size))) << size;
      void*& p = it.outside();
      void* const old = p;
      E::deallocate(p);
      EXPECT_TRUE(is_kept(old));
      EXPECT_FALSE(magazines().has_room(Classes::of(size)));
      p = E::allocate(size);
      free_all(it.blocks);
    });
  }
}

// A thread that has more room for spans of small blocks goes on with the same spans of larger ones.
TEST_F(StandardMagazines, SpansOfBatchesStayWhereSmallBlocksHaveMoreRoom) {
  test::on_another_thread([] {
    Replaced it{1000};
    it.blocks.resize(3000);
    it.fill();
    const auto& used_up = E::thread_cache.cache->owned.used_up();
    for (int i = 0; i < 100 && used_up.room() == Standard::kUsedUpBytes; ++i) it.replace(10'000);
    ASSERT_GT(used_up.room(), Standard::kUsedUpBytes);
    unsigned shared = 0;
    for (int round = 0; round < 300; ++round) {
      it.replace(300);
      std::vector<void*> batch = fill(40 * 4096, 4096);
      const standard::SpanRef span = span_of(batch.front());
      free_all(batch);
      if (round >= 200 && !E::thread_cache.is_owned_here(span->load_word())) ++shared;
    }
    EXPECT_GT(used_up.room(), Standard::kUsedUpBytes);
    EXPECT_EQ(shared, 0u);
    free_all(it.blocks);
  });
}

TEST_F(StandardMagazines, TheyAreBounded) {
  for (const std::size_t size : {1200, 4000, 32768}) {
    replacing(size, [&](Replaced& it) {
      const ClassId c = Classes::of(size);
      std::size_t kept = 0;
      for (void*& p : it.blocks) {
        if (!is_current(p, size) && magazines().has_room(c)) {
          ++kept;
          E::deallocate(p);
          p = E::allocate(100);
        }
      }
      EXPECT_FALSE(magazines().has_room(c));
      EXPECT_LE(kept * Classes::info(c).block_size, Standard::kMagazineBytes);
      EXPECT_LE(kept, Standard::kMagazineBlocks);
    });
  }
}

// Frees some blocks that are in no current span, and returns those that are kept.
std::vector<void*> keep_some(Replaced& it) {
  std::vector<void*> kept;
  while (it.blocks.size() > 100) {
    E::deallocate(it.blocks.back());
    if (is_kept(it.blocks.back())) kept.push_back(it.blocks.back());
    it.blocks.pop_back();
  }
  EXPECT_FALSE(kept.empty());
  return kept;
}

TEST_F(StandardMagazines, TrimTakesAllOfThem) {
  replacing(16384, [&](Replaced& it) {
    const std::vector<void*> kept = keep_some(it);
    E::trim();
    EXPECT_FALSE(magazines().give_all_back(E::thread_cache)) << "nothing is left";
    for (void* p : kept) EXPECT_FALSE(is_kept(p));
  });
}

TEST_F(StandardMagazines, TheyAreGivenBackWhenMemoryIsOut) {
  replacing(16384, [&](Replaced& it) {
    keep_some(it);
    EXPECT_TRUE(standard::Refill<Standard>::give_back_unused(E::thread_cache));
    EXPECT_FALSE(magazines().give_all_back(E::thread_cache));
  });
}

TEST_F(StandardMagazines, WhatIsNotNeededIsGivenBackByAndBy) {
  replacing(16384, [&](Replaced& it) {
    keep_some(it);
    magazines().give_back_unused(E::thread_cache);  // what was there since the look before: nothing
    magazines().give_back_unused(E::thread_cache);
    EXPECT_FALSE(magazines().give_all_back(E::thread_cache));
  });
}

// Neither malloc nor free looks at a span, a list or the pool; but what others have freed goes back
// to the kernel all the same.
// Neither malloc nor free looks at a span, a list or the pool; but what was freed before goes back
// to the kernel all the same.
TEST(StandardMagazinesAlone, WhoLivesOffThemPassesBy) {
  in_fresh_process([] {
    std::vector<void*> peak = fill(64 * kMiB, 1000);
    Replaced it{4096};
    it.fill();
    it.replace(4000);
    ASSERT_TRUE(magazines().is_open(Classes::of(4096)));
    char* const middle = static_cast<char*>(peak[peak.size() / 2]);
    char* const page = middle - address_of(middle) % kPage;
    free_all(peak);
    // A decay epoch begins as soon as one has ended.
    for (int i = 0; i < 10'000 && resident_pages(page, kPage) != 0; ++i) {
      standard::MemoryReturnTestAccess::next_purge(E::pages.memory_return).store_relaxed(0);
      it.replace(1000);
    }
    EXPECT_EQ(resident_pages(page, kPage), 0u);
    free_all(it.blocks);
  });
}

TEST_F(StandardMagazines, NoBlockIsHandedOutTwice) {
  test::on_another_thread([] {
    Replaced it{32768, 1};
    it.blocks.resize(2000);
    it.fill();
    for (int round = 0; round < 50; ++round) {
      it.replace(400);
      EXPECT_EQ(std::set<void*>(it.blocks.begin(), it.blocks.end()).size(), it.blocks.size());
    }
    free_all(it.blocks);
  });
}

TEST_F(StandardMagazines, WhatTheyHandOutIsZeroForCalloc) {
  for (const std::size_t size : {2000, 6000, 20000}) {
    replacing(size, [&](Replaced& it) {
      for (int i = 0; i < 500; ++i) {
        void*& p = it.blocks[it.random.next() % it.blocks.size()];
        std::memset(p, 0xff, size);
        E::deallocate(p);
        p = E::allocate_zeroed(size);
        ASSERT_EQ(first_nonzero(p, size), size);
      }
    });
  }
}

TEST_F(StandardMagazines, TheyAreNoneOfOtherThreadsBlocks) {
  const std::size_t size = 4096;
  std::vector<void*> others(100);
  for (void*& p : others) p = E::allocate(size);
  replacing(size, [&](Replaced&) {
    for (void* p : others) {
      E::deallocate(p);
      EXPECT_FALSE(is_kept(p));
    }
  });
}

TEST_F(StandardMagazines, AForksChildGivesBackWhatVanishedThreadsKept) {
  if (test::kUnderTsan || test::kUnderAsan) GTEST_SKIP() << "forks of threaded programs";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  std::latch kept(1);
  std::latch over(1);
  std::vector<void*> blocks;
  std::thread keeper([&] {
    Replaced it{16384};
    it.fill();
    it.replace(4000);
    keep_some(it);
    blocks = it.blocks;
    kept.count_down();
    over.wait();
    free_all(blocks);
  });
  kept.wait();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(540);
    for (void* p : blocks) E::deallocate(p);
    E::trim();
    _exit(test::walk_heap<E>().all_returned() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  over.count_down();
  keeper.join();
}

using StandardMagazinesDeathTest = StandardMagazines;

TEST_F(StandardMagazinesDeathTest, ABlockThatWaitsThereIsRefused) {
  replacing(16384, [&](Replaced& it) {
    void*& p = it.outside();
    E::deallocate(p);
    ASSERT_TRUE(is_kept(p));
    expect_named([&] { E::deallocate(p); }, "double free");
    expect_named([&] { (void)Api::malloc_usable_size(p); }, "memory that is free");
    expect_named([&] { (void)Api::realloc(p, 20000); }, "memory that is free");
    p = E::allocate(16384);
  });
}

// Whichever magazine has it: the mark tells. (Not in a fork's child, so nothing can die here.)
TEST_F(StandardMagazines, ABlockThatWaitsThereIsFreeToOtherThreads) {
  replacing(2000, [&](Replaced& it) {
    void*& p = it.outside();
    E::deallocate(p);
    ASSERT_TRUE(is_kept(p));
    test::on_another_thread([&] {
      E::deallocate(E::allocate(10));
      EXPECT_TRUE(standard::Misuse<Standard>::looks_free(static_cast<standard::Block*>(p)));
      EXPECT_TRUE(standard::Misuse<Standard>::is_on_list(E::thread_cache, span_of(p),
                                                         static_cast<standard::Block*>(p)));
    });
    p = E::allocate(2000);
  });
}

TEST_F(StandardMagazinesDeathTest, AWriteIntoABlockThatWaitsThereIsSeen) {
  replacing(16384, [&](Replaced& it) {
    void*& p = it.outside();
    const ClassId c = Classes::of(16384);
    use_current_up(it, c);
    E::deallocate(p);
    expect_named(
        [&] {
          std::memset(p, 0x41, sizeof(void*));
          (void)E::allocate(16384);
        },
        "free list overwritten");
    p = E::allocate(16384);
  });
}

}  // namespace
}  // namespace spanalloc::large
