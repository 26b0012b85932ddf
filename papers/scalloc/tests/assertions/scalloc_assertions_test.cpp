// Each invariant of the scalloc engine that has a name (DESIGN.md) is violated here, and
// its assertion seen to fire.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "base/assert.hpp"
#include "papers/scalloc/engine/engine.hpp"
#include "papers/scalloc/tests/test_support.hpp"

namespace spanalloc {
namespace {

using scalloc::ClassId;
using scalloc::Lab;
using scalloc::Mark;
using scalloc::SetList;
using scalloc::Span;
using scalloc::SpanWord;
using scalloc::State;

using Config = HookedConfig<>;
using Protocol = scalloc::SpanProtocol<Config>;

// A hot span, and a floating one of the same class that holds objects and a free block.
class ScallocAssertionDeathTest : public testing::Test {
 protected:
  static constexpr std::size_t kSize = 64 * kKiB;
  static constexpr ClassId kClass = scalloc::class_of(kSize);

  void SetUp() override {
    blocks_ = make_floating_span(*heap_, kSize);
    floating_ = span_of(blocks_.front());
    hot_ = span_of(blocks_.back());
    heap_->deallocate(blocks_.back());
    blocks_.pop_back();
    heap_->deallocate(blocks_.back());
    blocks_.pop_back();
    lab_ = ScallocTestAccess::lab(*heap_);
    ASSERT_EQ(floating_->load_word().state(), State::kFloating);
    ASSERT_EQ(hot_->load_word().state(), State::kHot);
  }
  void free_all() {
    for (void* p : blocks_) heap_->deallocate(p);
  }
  scalloc::ReusableSet& set() { return lab_->set(kClass); }
  static void put(Span* span, SpanWord word) { span->word.store_relaxed(word.bits()); }
  void make_suspect() {
    SpanWord seen = floating_->load_word();
    ASSERT_TRUE(floating_->try_mark_suspect(seen));
    const LockGuard guard(set().lock);
    set().link(floating_, SetList::kSuspects);
  }

  OwnHeap<Config> heap_;
  std::vector<void*> blocks_;
  Span* floating_ = nullptr;
  Span* hot_ = nullptr;
  Lab* lab_ = nullptr;
};

TEST_F(ScallocAssertionDeathTest, O1_NoMoreBlocksAreFreeThanThereAre) {
  const auto look_at_a_span_with_too_many = [&] {
    make_suspect();
    floating_->local_free.store_relaxed(floating_->blocks + 1);
    heap_->trim();
  };
  EXPECT_DEATH(look_at_a_span_with_too_many(), "free <= blocks");
  const auto free_one_more = [&] {
    floating_->local_free.store_relaxed(floating_->blocks);
    heap_->deallocate(blocks_.front());
  };
  EXPECT_DEATH(free_one_more(), "freed < span->blocks");
}

TEST_F(ScallocAssertionDeathTest, O2_WhoKeepsFreeBlocksToHimselfSaysSo) {
  const auto hide_them = [&] {
    SpanWord seen = floating_->load_word();
    floating_->try_mark_floating(seen, false);
  };
  EXPECT_DEATH(hide_them(), "mixed \\|\\| local_free");
}

TEST_F(ScallocAssertionDeathTest, O3_FlagsGoWithStates) {
  EXPECT_DEATH((void)floating_->load_word().moved(State::kReusable, false, false),
               "state == State::kReusable");
  EXPECT_DEATH((void)hot_->load_word().with_mixed(), "is_idle\\(\\)");
  const auto find_a_hot_span_that_is_listed = [&] {
    put(hot_, SpanWord(hot_->load_word().bits() | std::uint64_t{1} << 30));
    heap_->trim();
  };
  EXPECT_DEATH(find_a_hot_span_that_is_listed(), "seen.is_sound\\(\\)");
}

TEST_F(ScallocAssertionDeathTest, TheRemoteListIsOfBlocks) {
  EXPECT_DEATH((void)floating_->load_word().pushed(0), "offset != 0");
  EXPECT_DEATH((void)floating_->load_word().pushed(24), "offset % 16 == 0");
  EXPECT_DEATH((void)SpanWord(std::uint64_t{0xfff} << 17).pushed(16), "count\\(\\) < kMaxCount");
}

TEST_F(ScallocAssertionDeathTest, O5_OnlyAnIdleSpanBecomesFreeReusableOrASuspect) {
  SpanWord hot = hot_->load_word();
  EXPECT_DEATH(hot_->try_mark_free(hot), "old.is_idle\\(\\)");
  EXPECT_DEATH(hot_->try_mark_reusable(hot), "old.is_idle\\(\\)");
  EXPECT_DEATH(hot_->try_mark_suspect(hot), "old.state\\(\\) == State::kFloating");
  SpanWord free = hot.taken(State::kFree);
  EXPECT_DEATH(hot_->try_mark_hot(free), "old.state\\(\\) == State::kHot");
  EXPECT_DEATH(hot_->try_mark_floating(free, true), "old.state\\(\\) == State::kHot");
  EXPECT_DEATH(floating_->mark_taken_hot(), "old.state\\(\\) == State::kFree");
  EXPECT_DEATH((void)hot.taken(State::kFloating), "state == State::kFree");
}

TEST_F(ScallocAssertionDeathTest, O6_SetsAreChangedUnderTheirLock) {
  EXPECT_DEATH(set().link(floating_, SetList::kSuspects), "lock.is_mine\\(\\)");
  EXPECT_DEATH(set().unlink(floating_), "lock.is_mine\\(\\)");
}

TEST_F(ScallocAssertionDeathTest, O6_ASpanIsLinkedOnce) {
  const auto link_it_twice = [&] {
    make_suspect();
    const LockGuard guard(set().lock);
    set().link(floating_, SetList::kReusable);
  };
  EXPECT_DEATH(link_it_twice(), "set_list == SetList::kNone");
}

TEST_F(ScallocAssertionDeathTest, O6_OnlyTheOwnerOfAnOpenSetExaminesIt) {
  const auto examine_a_closed_set = [&] {
    make_suspect();
    set().owner.store_relaxed(scalloc::kTerminated);
    heap_->trim();
  };
  EXPECT_DEATH(examine_a_closed_set(), "owner.load_relaxed\\(\\) == lab.owner_word\\(\\)");
}

TEST_F(ScallocAssertionDeathTest, O7_AHotSpanIsItsLabsOwn) {
  const auto give_up_somebody_elses = [&] {
    hot_->owner.store_relaxed(lab_->owner_word() + (std::uint64_t{1} << 48));
    heap_->trim();
  };
  EXPECT_DEATH(give_up_somebody_elses(), "owner.load_relaxed\\(\\) == lab.owner_word\\(\\)");
  const auto give_up_one_of_another_class = [&] {
    hot_->size_class.store_relaxed(ClassId{index_of(kClass) + 1});
    heap_->trim();
  };
  EXPECT_DEATH(give_up_one_of_another_class(), "size_class.load_relaxed\\(\\) == size_class");
  const auto give_up_one_that_floats = [&] {
    put(hot_, hot_->load_word().moved(State::kFloating, true, false));
    heap_->trim();
  };
  EXPECT_DEATH(give_up_one_that_floats(), "seen.state\\(\\) == State::kHot");
}

TEST_F(ScallocAssertionDeathTest, O7_AListIsOfItsHotSpansBlocks) {
  const auto take_a_block_of_another_span = [&] {
    ScallocTestAccess::thread(*heap_)->spans.list[kClass] =
        static_cast<scalloc::FreeBlock*>(blocks_.front());
    heap_->allocate(kSize);
  };
  EXPECT_DEATH(
      {
        static_cast<scalloc::FreeBlock*>(blocks_.front())->link_to(nullptr);
        take_a_block_of_another_span();
      },
      "links_within\\(hot\\[size_class\\], block\\)");
}

TEST_F(ScallocAssertionDeathTest, O7_ALabBeginsWithoutHotSpans) {
  on_another_thread([&] {
    EXPECT_DEATH(
        {
          // Where a thread has a frontend before its first use
          using Default = ScallocEngine<Config>;
          Default::frontend().spans.hot[kClass] = hot_;
          Default::allocate(100);
        },
        "spans.are_none\\(\\)");
  });
}

TEST_F(ScallocAssertionDeathTest, O8_OnlyAFreeSpanIsPooled) {
  EXPECT_DEATH(heap_->backend().put(hot_, 0), "state\\(\\) == State::kFree");
  EXPECT_DEATH(heap_->backend().put(floating_, 0), "state\\(\\) == State::kFree");
}

TEST_F(ScallocAssertionDeathTest, O8_ASpanIsPooledOnce) {
  free_all();
  blocks_.clear();
  ASSERT_EQ(floating_->load_word().state(), State::kFree);
  EXPECT_DEATH(heap_->backend().put(floating_, 0), "is_class\\(\\)");
}

TEST_F(ScallocAssertionDeathTest, O8_WhatComesFromThePoolIsFree) {
  free_all();
  blocks_.clear();
  const auto take_one_that_is_in_use = [&] {
    put(floating_, floating_->load_word().taken(State::kHot));
    while (heap_->backend().get_pooled(kClass, 0) != nullptr) {
    }
  };
  EXPECT_DEATH(take_one_that_is_in_use(), "state\\(\\) <= State::kFree");
  const auto walk_over_one_with_a_class = [&] {
    const scalloc::Directory& directory = heap_->backend().directory();
    directory.set_mark(directory.number_of(floating_), Mark::of_class(kClass));
    heap_->trim();
  };
  EXPECT_DEATH(walk_over_one_with_a_class(), "is_free\\(\\)");
}

TEST_F(ScallocAssertionDeathTest, O9_TheDefaultHeapIsNeverDestroyed) {
  EXPECT_DEATH(ScallocEngine<Config>::heap().destroy(), "!is_default\\(\\)");
}

TEST_F(ScallocAssertionDeathTest, O9_NoThreadIsInAHeapThatIsDestroyed) {
  OwnHeap<Config> heap;
  std::vector<void*> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(heap->allocate(512 * kKiB));
  const auto destroy_it_in_the_middle_of_a_call = [&] {
    Config::arm(scalloc::Step::kBeforeFloating, [&](Span*) { heap->destroy(); });
    heap->allocate(512 * kKiB);
  };
  EXPECT_DEATH(destroy_it_in_the_middle_of_a_call(), "!record.is_inside\\(\\)");
}

TEST_F(ScallocAssertionDeathTest, MarksAndOwnerWordsAreWhatTheySay) {
  EXPECT_DEATH((void)Mark::free().size_class(), "is_class\\(\\)");
  EXPECT_DEATH((void)scalloc::make_owner(pointer_to<Lab>(std::uintptr_t{1} << 50), 1),
               ">> 48 == 0");
}

}  // namespace
}  // namespace spanalloc
