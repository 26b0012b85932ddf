// Each invariant that has a name (span_protocol.hpp, docs/concurrency.md) is violated here, and its assertion
// seen to fire.
#include "base/assert.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "engines/virtual_span/standard/engine.hpp"
#include "pages/coalescing/hold_registry.hpp"
#include "sync/spin_lock.hpp"
#include "sync/treiber_stack.hpp"

namespace spanalloc {
namespace {

using E = StandardEngine;
using standard::Heap;
using standard::Lab;
using standard::ListId;
using standard::Span;
using standard::SpanState;
using standard::SpanWord;
using Protocol = Heap::Protocol;

TEST(AssertionDeathTest, FiresAndNamesItself) {
  const int one = 1;
  EXPECT_DEATH(SPANALLOC_ASSERT(one == 2), "spanalloc: assertion failed: one == 2 \\(.*assertions_test.cpp:");
}

TEST(AssertionDeathTest, ALockIsLetGoByItsHolder) {
  SpinLock lock;
  EXPECT_DEATH(lock.unlock(), "is_mine\\(\\)");
}

TEST(AssertionDeathTest, NumberZeroIsNoElement) {
  Atomic<std::uint32_t> link;
  TreiberStack stack;
  EXPECT_DEATH(stack.push(0, [&](std::uint32_t) -> Atomic<std::uint32_t>& { return link; }), "first != 0");
}

TEST(AssertionDeathTest, AHoldEndsOnce) {
  coalescing::HoldRegistry<1> registry;
  registry.begin(0);
  registry.end(0);
  EXPECT_DEATH(registry.end(0), "word.load_relaxed");
}

// Spans of one class, all but the last one parked and full.
class SpanAssertionDeathTest : public testing::Test {
 protected:
  static constexpr std::size_t kSize = 5000;

  void SetUp() override {
    E::process_start();
    for (int i = 0; i < 100; ++i) blocks_.push_back(E::allocate(kSize));
    hot_ = number_of(blocks_.back());
    for (void* p : blocks_) {
      if (number_of(p) == hot_) continue;
      parked_ = number_of(p);
      block_ = p;
    }
    ASSERT_EQ(word(parked_).state(), SpanState::kParked);
    ASSERT_EQ(word(hot_).state(), SpanState::kHot);
  }
  void TearDown() override {
    for (void* p : blocks_) E::deallocate(p);
  }

  static std::uint32_t number_of(void* p) {
    std::size_t granule = 0;
    EXPECT_TRUE(Heap::granule_of(address_of(p), granule));
    return Heap::first_granule(granule);
  }
  static SpanWord word(std::uint32_t number) { return SpanWord{Heap::span(number).word.load_relaxed()}; }
  static std::uint32_t me() { return standard::thread_state.lab->number; }
  static void set_word(std::uint32_t number, SpanWord word) {
    Heap::span(number).word.store_relaxed(word.bits);
  }

  std::vector<void*> blocks_;
  void* block_ = nullptr;
  std::uint32_t parked_ = 0;
  std::uint32_t hot_ = 0;
};

TEST_F(SpanAssertionDeathTest, I1_AParkedSpanIsOnAList) {
  const auto free_all_of_a_span_that_is_on_no_list = [&] {
    Heap::span(parked_).list = ListId::kNone;
    for (void* p : blocks_) {
      if (number_of(p) == parked_) E::deallocate(p);
    }
  };
  EXPECT_DEATH(free_all_of_a_span_that_is_on_no_list(), "span.list != ListId::kNone");
}

TEST_F(SpanAssertionDeathTest, I1_ListsAreDoublyLinked) {
  const auto unlink_with_a_wrong_neighbour = [&] {
    ASSERT_NE(Heap::span(parked_).next + Heap::span(parked_).prev, 0u);
    Heap::span(parked_).next = Heap::span(parked_).prev = hot_;
    for (void* p : blocks_) {
      if (number_of(p) == parked_) E::deallocate(p);
    }
  };
  EXPECT_DEATH(unlink_with_a_wrong_neighbour(), "(next|prev)");
}

TEST_F(SpanAssertionDeathTest, I2_OnlyAClaimedSpanIsGivenToThePool) {
  EXPECT_DEATH(Heap::put_in_pool(parked_), "state\\(\\) == SpanState::kFree");
  EXPECT_DEATH(Protocol::parked_to_pool(parked_, me()), "state\\(\\) == SpanState::kFree");
}

TEST_F(SpanAssertionDeathTest, I2_WhatIsFreeIsTakenOnce) {
  EXPECT_DEATH(Heap::make_single(parked_, standard::kFirstSingle), "state\\(\\) == SpanState::kFree");
}

TEST_F(SpanAssertionDeathTest, I3_OnlyAThreadsLabIsOrphanedAndOnlyToAnOrphanage) {
  EXPECT_DEATH(Protocol::orphan_all(0), "is_orphanage");
}

TEST_F(SpanAssertionDeathTest, OnlyItsOwnersHotSpanParks) {
  EXPECT_DEATH(Protocol::hot_to_parked(parked_, me(), 0), "SpanState::kHot");
  EXPECT_DEATH(Protocol::hot_to_parked(hot_, me() + 1, 0), "SpanState::kHot");
  EXPECT_DEATH(Protocol::hot_to_parked(hot_, me(), 0xffff), "free_blocks <=");
}

TEST_F(SpanAssertionDeathTest, TheRemoteListIsAsLongAsTheWordSays) {
  const std::uint32_t blocks = standard::kClassTable[Heap::span(hot_).size_class].blocks;
  const auto take_a_list_of_no_blocks = [&] {
    set_word(hot_, word(hot_).with_head(5));
    std::uint32_t count = 0;
    (void)standard::take_remotes(Heap::span(hot_).word, blocks, count);
  };
  EXPECT_DEATH(take_a_list_of_no_blocks(), "before.head\\(\\) == 0");
}

TEST_F(SpanAssertionDeathTest, ALabIsGivenBackWithoutHotSpans) {
  EXPECT_DEATH(Heap::return_lab(standard::thread_state.lab), "has_no_hot_span\\(\\)");
}

}  // namespace
}  // namespace spanalloc
