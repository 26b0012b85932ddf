// What a thread is told at once of a block: how large it is, and whether it stays.
#include "standard/engine.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "random.hpp"
#include "seed_report.hpp"
#include "standard/test_support.hpp"
#include "threads.hpp"

namespace spanalloc::large {
namespace {

// Of a block that is large enough.
struct Stays {
  static constexpr bool leaves_alone(std::size_t n, std::size_t usable) { return n <= usable; }
};
std::size_t at_once(const void* p) {
  return E::usable_size_at_once(p);
}
TEST(StandardResizeAtOnce, AThreadThatAsksGetsAMap) {
  in_fresh_process([] {
    std::vector<void*> blocks;
    for (std::size_t n = 16; n <= 1000; n += 50) blocks.push_back(E::allocate(n));
    EXPECT_EQ(at_once(blocks[0]), 0u);
    for (int i = 0; i < Standard::kMissesForMap; ++i) EXPECT_GE(E::usable_size(blocks[0]), 16u);
    ASSERT_NE(E::thread_cache.map, &standard::kNoMap);
    for (void* p : blocks) {
      const std::size_t usable = E::usable_size(p);
      EXPECT_EQ(at_once(p), usable) << "the look before has shown the span to the map";
      const Resized same = E::resize_at_once<TakeAllBack>(p, usable);
      EXPECT_EQ(same.block, p);
      EXPECT_EQ(same.usable, usable);
      EXPECT_EQ(at_once(static_cast<char*>(p) + 8), 0u) << "no block begins there";
    }
    free_all(blocks);
    expect_nothing_out();
  });
}

TEST(StandardResizeAtOnce, AThreadThatGetsNoMapIsToldByTheRecord) {
  in_fresh_process([] {
    std::vector<void*> blocks;
    for (std::size_t n = 16; n <= 1000; n += 50) blocks.push_back(E::allocate(n));
    E::thread_cache.map_misses = Standard::kMissesForMap;
    for (void* p : blocks) EXPECT_EQ(at_once(p), E::usable_size(p));
    EXPECT_EQ(E::thread_cache.map, &standard::kNoMap);
    free_all(blocks);
    expect_nothing_out();
  });
}

// Of blocks of all kinds, live and freed, whatever came before.
TEST(StandardResizeAtOnce, IsRightOrSaysNothing) {
  in_fresh_process([] {
    test::Random random{test::seed_of(2)};
    std::vector<void*> blocks(400);
    unsigned known = 0;
    for (unsigned i = 0; i < 30'000; ++i) {
      void*& p = blocks[random.below(blocks.size())];
      if (p != nullptr) {
        const std::size_t usable = E::usable_size(p);
        const std::size_t told = at_once(p);
        ASSERT_TRUE(told == usable || told == 0) << told << " for " << usable;
        known += told != 0;
        const std::size_t n = 1 + random.below(2 * usable);
        const Resized resized = E::resize_at_once<Stays>(p, n);
        ASSERT_TRUE(resized.usable == usable || resized.usable == 0);
        ASSERT_TRUE(resized.block == nullptr || (resized.block == p && n <= usable));
        ASSERT_EQ(resized.block != nullptr, told != 0 && n <= usable);
        E::deallocate(p);
        ASSERT_TRUE(kPoisons || at_once(p) == 0) << "it is free";
      }
      const std::size_t most = random.one_in(4) ? 2 * kMiB : random.one_in(3) ? 40'000 : 1'500;
      p = random.one_in(8) ? E::allocate_aligned(random.below(most), 16u << random.below(13))
                           : E::allocate(random.below(most));
      ASSERT_NE(p, nullptr);
    }
    EXPECT_GT(known, 20'000u);
    free_all(blocks);
    expect_nothing_out();
  });
}

// The map leads to the batch, which is no span's record.
TEST(StandardResizeAtOnce, SaysNothingOfABlockThatARemoteBatchWouldTake) {
  in_fresh_process([] {
    std::vector<void*> blocks = fill(100 * 200, 200);
    const std::size_t usable = E::usable_size(blocks[0]);
    test::on_another_thread([&] {
      void* freed = nullptr;
      std::vector<void*> own = fill(200 * 200, 200);  // so that the thread has a map
      free_all(own);
      for (int i = 0; i < 10; ++i) {
        E::deallocate(freed = blocks.back());
        blocks.pop_back();
      }
      standard::FreeTargetPointer target(*E::thread_cache.map, address_of(blocks[0]));
      ASSERT_TRUE(standard::FreeTarget::accepts(target, address_of(blocks[0])))
          << "there is a batch";
      EXPECT_FALSE(E::pages.is_record(target.get()));
      EXPECT_EQ(target.get()->free_list().first(), freed);
      EXPECT_EQ(at_once(blocks[0]), 0u);
      EXPECT_EQ(E::usable_size(blocks[0]), usable);
    });
    free_all(blocks);
    E::trim();
    expect_nothing_out();
  });
}

// What has written to it since hides the link that tells.
TEST(StandardResizeAtOnce, SaysNothingOfABlockThatAnotherThreadFreedLast) {
  if (kPoisons) GTEST_SKIP() << "the sanitizer names the write";
  in_fresh_process([] {
    for (unsigned c = 1; c < Classes::kSmallClasses; ++c) {
      const std::size_t size = Classes::info(standard::ClassId{c}).block_size;
      std::vector<void*> blocks(6);
      for (void*& p : blocks) p = E::allocate(size);
      for (int i = 0; i < Standard::kMissesForMap; ++i) ASSERT_EQ(E::usable_size(blocks[3]), size);
      for (const unsigned i : {3u, 0u}) {
        auto& word = *static_cast<std::uint64_t*>(blocks[i]);
        ASSERT_EQ(at_once(blocks[i]), size);
        test::on_another_thread([&] { E::deallocate(blocks[i]); });
        const std::uint64_t link = std::exchange(word, 0x5a5a5a5a5a5a5a5a);
        EXPECT_EQ(at_once(blocks[i]), 0u) << size;
        EXPECT_EQ(at_once(blocks[5]), size) << size;
        word = link;
      }
      for (const unsigned i : {1u, 2u, 4u, 5u}) E::deallocate(blocks[i]);
      E::trim();
    }
    expect_nothing_out();
  });
}

}  // namespace
}  // namespace spanalloc::large
