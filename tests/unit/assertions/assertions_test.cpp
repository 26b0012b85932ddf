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
#include "span_access.hpp"
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
using standard::ListId;
using standard::SpanRef;
using standard::SpanState;
using standard::SpanTestAccess;
using standard::SpanWord;
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

// Spans of one class, all but the last one parked and full, in a heap of the test's own.
class SpanAssertionDeathTest : public testing::Test {
 protected:
  static constexpr std::size_t kSize = 5000;

  void SetUp() override {
    // Twice as many as stay with the thread when they are used up.
    for (std::size_t i = 0; i < 2 * Standard::kUsedUpBytes / kSize; ++i)
      blocks_.push_back(own_.allocate(kSize));
    hot_ = span_of(blocks_.back());
    for (void* p : blocks_) {
      if (span_of(p)->load_word().state() == SpanState::kShared) parked_ = span_of(p);
    }
    ASSERT_TRUE(parked_);
    ASSERT_EQ(parked_->load_word().state(), SpanState::kShared);
    ASSERT_EQ(hot_->load_word().state(), SpanState::kOwned);
  }

  auto& heap() { return own_.heap; }
  auto& protocol() { return heap().protocol(); }
  SpanRef span_of(void* p) { return own_.pages.span_of(own_.pages.any_slice_at(address_of(p))); }
  CacheNumber me() { return own_.thread_cache()->cache->number; }
  void free_all_of(SpanRef span) {
    for (void* p : blocks_) {
      if (span_of(p) == span) own_.deallocate(p);
    }
  }

  auto links() {
    struct Links {
      standard::PageLayer<Standard>& pages;
      auto& next(standard::SpanNumber n) const {
        return SpanTestAccess::next(*pages.span(n).record);
      }
      auto& previous(standard::SpanNumber n) const {
        return SpanTestAccess::previous(*pages.span(n).record);
      }
    };
    return Links{own_.pages};
  }

  test::OwnedHeap<Standard> own_;
  std::vector<void*> blocks_;
  SpanRef parked_;
  SpanRef hot_;
};

TEST_F(SpanAssertionDeathTest, I1_AParkedSpanIsOnAList) {
  const auto free_all_of_a_span_that_is_on_no_list = [&] {
    parked_->forget_list();
    free_all_of(parked_);
  };
  EXPECT_DEATH(free_all_of_a_span_that_is_on_no_list(), "list\\(\\) != ListId::kNone");
}

TEST_F(SpanAssertionDeathTest, I1_ListsAreDoublyLinked) {
  const auto unlink_with_a_wrong_neighbour = [&] {
    SpanTestAccess::next(*parked_.record) = hot_.number;
    SpanTestAccess::previous(*parked_.record) = hot_.number;
    free_all_of(parked_);
  };
  EXPECT_DEATH(unlink_with_a_wrong_neighbour(), "(next|previous)");
}

TEST_F(SpanAssertionDeathTest, I2_OnlyAClaimedSpanIsGivenToThePool) {
  EXPECT_DEATH(heap().put_in_pool(parked_, 0), "state\\(\\) == SpanState::kFree");
  EXPECT_DEATH(protocol().take_off_lists(parked_, me()), "state\\(\\) == SpanState::kFree");
}

TEST_F(SpanAssertionDeathTest, I2_WhatIsFreeIsTakenOnce) {
  EXPECT_DEATH(heap().begin_single_life({parked_}, Classes::kFirstLarge, 0),
               "state\\(\\) == SpanState::kFree");
}

TEST_F(SpanAssertionDeathTest, W1_WorkBeginsWithNothingInHand) {
  auto& thread = *own_.thread_cache();
  const auto hand = thread.hold();
  EXPECT_DEATH(thread.cache->timed_work.run(thread), "has_nothing_in_hand\\(\\)");
  EXPECT_DEATH(thread.cache->magazines.give_all_back(thread), "has_nothing_in_hand\\(\\)");
  EXPECT_DEATH(thread.cache->loans.return_all(thread), "has_nothing_in_hand\\(\\)");
  EXPECT_DEATH(thread.cache->owned.share_unused(thread, 0), "has_nothing_in_hand\\(\\)");
  EXPECT_DEATH(own_.trim(), "has_nothing_in_hand\\(\\)");
  EXPECT_DEATH(own_.allocate(Standard::kMaxBlock + 1), "has_nothing_in_hand\\(\\)");
}

// Its handler may jump.
TEST_F(SpanAssertionDeathTest, W1_NothingIsInHandAfterAReport) {
  auto& thread = *own_.thread_cache();
  alignas(standard::InHand::Hold) unsigned char left[sizeof(standard::InHand::Hold)];
  new (left) standard::InHand::Hold(thread.cache->in_hand);
  ASSERT_FALSE(thread.has_nothing_in_hand());
  standard::ForkRecovery<Standard>::let_go(&own_.pages);
  EXPECT_TRUE(thread.has_nothing_in_hand());
}

TEST_F(SpanAssertionDeathTest, I5_OnlyItsHolderLetsAnAbandonedSpanGo) {
  EXPECT_DEATH((void)parked_->word.let_go(), "is_held");
  EXPECT_DEATH((void)hot_->word.let_go(), "is_held");
}

TEST_F(SpanAssertionDeathTest, I4_AnEmptySpanThatNobodyClaimedHasBeenListed) {
  if (test::kEmulated) GTEST_SKIP() << "the emulator cannot execute the program anew";
  // Executed anew: the invariant has an exception for forks
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto take_a_span_that_is_empty_unseen = [&] {
    const SpanWord word = parked_->load_word();
    parked_->expect_frees(word.outstanding());
    SpanTestAccess::left(*parked_.record).store_relaxed(0);
    own_.pages.cache(me()).nearly_full[index_of(parked_->class_id())].remove(parked_.number,
                                                                             links());
    own_.pages.cache(me()).partial[index_of(parked_->class_id())].push_front(parked_.number,
                                                                             links());
    SpanTestAccess::list(*parked_.record) = ListId::kPartial;
    (void)protocol().partial_to_owned(parked_->class_id(), me());
  };
  EXPECT_DEATH(take_a_span_that_is_empty_unseen(), "is_empty_only_if_delayed");
}

TEST_F(SpanAssertionDeathTest, OnlyItsOwnersHotSpanParks) {
  EXPECT_DEATH((void)protocol().owned_to_shared(parked_, me(), 0), "SpanState::kOwned");
  std::thread([&] { own_.deallocate(own_.allocate(kSize)); }).join();
  const CacheNumber somebody{index_of(me()) + 1};
  ASSERT_TRUE(own_.pages.caches.has(somebody));
  EXPECT_DEATH((void)protocol().owned_to_shared(hot_, somebody, 0), "SpanState::kOwned");
  EXPECT_DEATH((void)protocol().owned_to_shared(hot_, me(), 0xffff), "free_blocks <=");
}

TEST_F(SpanAssertionDeathTest, ListsAreChangedUnderTheirLock) {
  EXPECT_DEATH(protocol().unlink(own_.pages.cache(me()), parked_), "may_change");
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

TEST_F(SpanAssertionDeathTest, TheRemoteListIsAsLongAsTheWordSays) {
  const std::uint32_t blocks = Classes::info(hot_->class_id()).blocks;
  const auto take_a_list_of_no_blocks = [&] {
    hot_->word.set(hot_->load_word().with_head(standard::BlockOffset{5}));
    (void)hot_->word.take_remotes(blocks);
  };
  EXPECT_DEATH(take_a_list_of_no_blocks(), "before.head\\(\\) == BlockOffset::kNone");
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
