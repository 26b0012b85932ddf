// Each invariant that has a name (span_protocol.hpp, docs/concurrency.md) is violated here, and
// its assertion seen to fire.
#include "base/assert.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <thread>
#include <vector>

#include "owned_heap.hpp"
#include "pages/coalescing/hold_registry.hpp"
#include "pages/coalescing_arena.hpp"
#include "sanitizers.hpp"
#include "standard/span_pool.hpp"
#include "sync/spin_lock.hpp"
#include "sync/treiber_stack.hpp"

namespace spanalloc {

struct CoalescingArenaTestAccess {
  template <class Arena>
  static void count_a_slice_as_lost(Arena& arena) {
    arena.slices_.lost_.fetch_add_relaxed(1);
  }
};

namespace {

using standard::CacheNumber;
using standard::SpanRef;
using standard::SpanState;
using standard::SpanWord;
using standard::Stock;
using Classes = standard::SizeClasses<Standard>;

TEST(AssertionDeathTest, FiresAndNamesItself) {
  const int one = 1;
  EXPECT_DEATH(SPANALLOC_ASSERT(one == 2),
               "spanalloc: assertion failed: one == 2 \\(.*assertions_test.cpp:");
}

TEST(AssertionDeathTest, ALockIsLetGoByItsHolder) {
  SpinLock lock;
  EXPECT_DEATH(lock.unlock(), "is_mine\\(\\)");
}

TEST(AssertionDeathTest, NumberZeroIsNoElement) {
  Atomic<std::uint32_t> link;
  TreiberStack stack;
  EXPECT_DEATH(stack.push(0, [&](std::uint32_t) -> Atomic<std::uint32_t>& { return link; }),
               "first != 0");
}

TEST(AssertionDeathTest, AHoldEndsOnce) {
  coalescing::HoldRegistry<1> registry;
  registry.begin(0);
  registry.end(0);
  EXPECT_DEATH(registry.end(0), "word.load_relaxed");
}

// Spans of one class, all but the last one away, in a heap of the test's own.
class SpanAssertionDeathTest : public testing::Test {
 protected:
  static constexpr std::size_t kSize = 5000;

  void SetUp() override {
    for (unsigned i = 0; i < 200; ++i) blocks_.push_back(own_.allocate(kSize));
    hot_ = span_of(blocks_.back());
    away_ = span_of(blocks_.front());
    ASSERT_EQ(away_->stock(), Stock::kAway);
    ASSERT_NE(hot_->stock(), Stock::kAway);
    ASSERT_EQ(hot_->load_word().state(), SpanState::kOwned);
  }

  auto& heap() { return own_.heap; }
  auto& protocol() { return heap().protocol(); }
  SpanRef span_of(void* p) { return own_.pages.span_of(own_.pages.any_slice_at(address_of(p))); }
  CacheNumber me() { return own_.thread_cache()->cache->number; }
  test::OwnedHeap<Standard> own_;
  std::vector<void*> blocks_;
  SpanRef away_;
  SpanRef hot_;
};

TEST_F(SpanAssertionDeathTest, I1_WhatOthersHaveFreedIsNotOutAtTheirSpan) {
  const std::uint32_t blocks = Classes::info(hot_->class_id()).blocks;
  const auto take_a_list_of_no_blocks = [&] {
    hot_->word.set(hot_->load_word().with_head(standard::BlockOffset{5}).with_outstanding(blocks));
    (void)hot_->word.take_remotes(me(), blocks);
  };
  EXPECT_DEATH(take_a_list_of_no_blocks(), "before.head\\(\\) == BlockOffset::kNone");
}

TEST_F(SpanAssertionDeathTest, I2_OnlyAClaimedSpanIsGivenToThePool) {
  EXPECT_DEATH(heap().put_in_pool(away_, 0), "state\\(\\) == SpanState::kFree");
}

TEST_F(SpanAssertionDeathTest, I2_WhatIsFreeIsTakenOnce) {
  EXPECT_DEATH(heap().begin_single_life({away_}, Classes::kFirstLarge, 0),
               "state\\(\\) == SpanState::kFree");
}

TEST_F(SpanAssertionDeathTest, W1_WorkBeginsWithNothingInHand) {
  auto& thread = *own_.thread_cache();
  const auto hand = thread.take_in_hand();
  EXPECT_DEATH(thread.cache->timed_work.run(thread), "has_nothing_in_hand\\(\\)");
  EXPECT_DEATH(thread.cache->owned.give_up_unused(thread, 0), "has_nothing_in_hand\\(\\)");
  EXPECT_DEATH(own_.trim(), "has_nothing_in_hand\\(\\)");
  EXPECT_DEATH(own_.allocate(Standard::kMaxBlock + 1), "has_nothing_in_hand\\(\\)");
}

// Its handler may jump.
TEST_F(SpanAssertionDeathTest, W1_NothingIsInHandAfterAReport) {
  auto& thread = *own_.thread_cache();
  alignas(standard::InHand::Taken) unsigned char left[sizeof(standard::InHand::Taken)];
  new (left) standard::InHand::Taken(thread.cache->in_hand);
  ASSERT_FALSE(thread.has_nothing_in_hand());
  standard::ForkRecovery<Standard>::let_go(&own_.pages);
  EXPECT_TRUE(thread.has_nothing_in_hand());
}

TEST_F(SpanAssertionDeathTest, I3_OnlyAUsedUpSpanGoesAway) {
  auto& thread = *own_.thread_cache();
  EXPECT_DEATH(thread.cache->owned.put_away(thread, away_.record), "Stock::kUsedUp");
  EXPECT_DEATH(thread.cache->owned.put_away(thread, hot_.record), "Stock::kUsedUp");
}

TEST_F(SpanAssertionDeathTest, I4_OnlyItsHolderLetsASpanGo) {
  EXPECT_DEATH((void)away_->word.let_go(0), "is_held");
  EXPECT_DEATH((void)hot_->word.take_held_remotes(), "is_held");
}

TEST_F(SpanAssertionDeathTest, OnlyItsOwnerGivesASpanUp) {
  std::thread([&] { own_.deallocate(own_.allocate(kSize)); }).join();
  const CacheNumber somebody{index_of(me()) + 1};
  ASSERT_TRUE(own_.pages.caches.has(somebody));
  EXPECT_DEATH((void)protocol().owned_to_nobodys(hot_, somebody, 0), "SpanState::kOwned");
}

TEST(ArenaAssertionDeathTest, OpenedIsTakenFreeClosedAndLost) {
  const auto destroy_with_wrong_books = [] {
    CoalescingArena<16, HugePages::kKernelDefault> arena;
    ASSERT_TRUE(arena.start(1 << 16));
    CoalescingArenaTestAccess::count_a_slice_as_lost(arena);
    arena.destroy();
  };
  EXPECT_DEATH(destroy_with_wrong_books(), "books_add_up");
}

TEST(PoolAssertionDeathTest, TheCountOfAStackIsNeverTooLow) {
  SpanPool<standard::SpanNumber, 1, 1, true> pool;
  pool.set_shards(1);
  Atomic<std::uint32_t> link{0};
  const auto links = [&](standard::SpanNumber) -> Atomic<std::uint32_t>& { return link; };
  pool.put(0, 0, standard::SpanNumber{1}, links);  // as one that is put without a bound
  EXPECT_DEATH((void)pool.get_local(0, 0, links), "before >= spans");
}

TEST_F(SpanAssertionDeathTest, TheRemoteListHoldsWhatTheWordCounts) {
  std::vector<void*> of_hot;
  for (void* p : blocks_) {
    if (span_of(p) == hot_) of_hot.push_back(p);
  }
  of_hot.pop_back();  // it stays out: there is one more to count
  std::thread([&] {
    for (void* p : of_hot) own_.deallocate(p);
  }).join();
  const auto count_one_more = [&] {
    const SpanWord word = hot_->load_word();
    hot_->word.set(word.with_outstanding(word.outstanding() - 1));
    for (int i = 0; i < 100; ++i) (void)own_.allocate(kSize);
  };
  EXPECT_DEATH(count_one_more(), "blocks == remotes.count");
}

TEST_F(SpanAssertionDeathTest, ASpanGoesToAStackThatThePoolHas) {
  constexpr std::size_t kSingle = 40 * kKiB;
  own_.deallocate(own_.allocate(kSingle));
  const auto put_where_nobody_looks = [&] {
    const auto taken = heap().take_span(Classes::of(kSingle), 0);
    heap().put_in_pool(taken.span, 1u << 20);
  };
  EXPECT_DEATH(put_where_nobody_looks(), "shard < pool_.shards\\(\\)");
}

TEST_F(SpanAssertionDeathTest, ALabIsReturnedOnce) {
  auto* cache = own_.pages.caches.take();
  auto* other = own_.pages.caches.take();
  own_.pages.caches.give_back(cache);
  own_.pages.caches.give_back(other);
  EXPECT_DEATH(own_.pages.caches.give_back(cache), "is_idle\\(record\\)");
}

TEST_F(SpanAssertionDeathTest, ALabIsGivenBackWithoutHotSpansAndByItsThread) {
  auto* cache = own_.thread_cache()->cache;
  EXPECT_DEATH(heap().end_cache(cache), "owned.are_none\\(\\)");
  EXPECT_DEATH(std::thread([&] { heap().end_cache(cache); }).join(), "is_mine");
}

}  // namespace
}  // namespace spanalloc
