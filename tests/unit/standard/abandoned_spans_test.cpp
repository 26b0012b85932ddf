// Spans that their threads have left: who counts them, how they are found, and what of damaged
// ones.
#include "standard/abandoned_spans.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "child.hpp"
#include "heap_walk.hpp"
#include "owned_heap.hpp"
#include "sanitizers.hpp"
#include "threads.hpp"

namespace spanalloc {
namespace {

using standard::ClassId;
using standard::SpanRef;
using standard::SpanState;
using Classes = standard::SizeClasses<Standard>;

class AbandonedSpansTest : public testing::Test {
 protected:
  static constexpr std::size_t kSize = 512;

  SpanRef span_of(void* p) { return own_.pages.span_of(own_.pages.any_slice_at(address_of(p))); }
  // A thread ends and leaves so many blocks, the last one in a span with free ones.
  std::vector<void*> leave(std::size_t count, std::size_t size = kSize) {
    std::vector<void*> left(count);
    test::on_another_thread([&] {
      for (void*& p : left) p = own_.allocate(size);
    });
    return left;
  }
  void free_all(const std::vector<void*>& blocks) {
    for (void* p : blocks) own_.deallocate(p);
  }
  bool all_returned() {
    const test::HeapWalk walk = standard::HeapWalker<Standard>(own_.pages).walk();
    return walk.all_returned();
  }

  test::OwnedHeap<> own_;
};

TEST_F(AbandonedSpansTest, TheFirstFreeCounts) {
  const std::vector<void*> left = leave(3);
  const SpanRef span = span_of(left[0]);
  EXPECT_TRUE(span->load_word().is_uncounted());
  EXPECT_EQ(span->load_word().outstanding(), Classes::info(span->class_id()).blocks);
  own_.deallocate(left[0]);
  EXPECT_TRUE(span->load_word().is_abandoned());
  EXPECT_FALSE(span->load_word().is_uncounted());
  EXPECT_EQ(span->load_word().outstanding(), 2u);
  own_.deallocate(left[1]);
  own_.deallocate(left[2]);
  EXPECT_EQ(span->load_word().state(), SpanState::kFree);
}

TEST_F(AbandonedSpansTest, TheNextThreadOfTheClassNeedsNoCount) {
  const std::vector<void*> left = leave(3);
  std::vector<void*> next = leave(3);
  EXPECT_EQ(span_of(next[0]), span_of(left[0]));
  EXPECT_TRUE(span_of(next[0])->load_word().is_uncounted());
  next.insert(next.end(), left.begin(), left.end());
  std::sort(next.begin(), next.end());
  EXPECT_EQ(std::unique(next.begin(), next.end()), next.end());
  free_all(next);
}

// With nobody who frees into it, statistics, a trim and a search without memory find it.
TEST_F(AbandonedSpansTest, AnEmptyOneIsFoundWithoutAFree) {
  const auto leave_empty = [&] {
    test::on_another_thread([&] { own_.deallocate(own_.allocate(kSize)); });
  };
  leave_empty();
  EXPECT_EQ(own_.statistics().live_blocks, 0u);
  EXPECT_TRUE(all_returned());
  leave_empty();
  own_.trim();
  EXPECT_TRUE(all_returned());
  leave_empty();
  EXPECT_TRUE(own_.heap.count_all_abandoned(0));
  EXPECT_FALSE(own_.heap.count_all_abandoned(0));
  EXPECT_TRUE(all_returned());
}

// Its hint is of the class that it had in its life before.
TEST_F(AbandonedSpansTest, AHintOfAnotherClassIsPutWhereItBelongs) {
  const std::vector<void*> first = leave(3);
  const SpanRef span = span_of(first[0]);
  free_all(first);
  ASSERT_EQ(span->load_word().state(), SpanState::kFree);
  const std::size_t other = kSize + kSize / 4;
  const std::vector<void*> second = leave(3, other);
  ASSERT_EQ(span_of(second[0]), span) << "the pool's youngest";
  const ClassId c = span->class_id();
  auto& hints = own_.heap.abandoned;
  standard::SpanChain seen;
  for (unsigned turn = 0; turn < 4; ++turn) {
    if (const SpanRef found = hints.take(c, 0); found) {
      EXPECT_EQ(found, span);
      hints.show(found);
      free_all(second);
      return;
    }
    std::uint32_t looks = 1;
    standard::SpanWord before;
    EXPECT_FALSE(own_.heap.protocol().hold_shown(c, standard::CacheNumber{0}, looks, seen, before));
  }
  FAIL() << "a span with free blocks is not to be found";
}

// A thread that was told of a damaged list goes on, where a handler has left the report, and ends.
TEST_F(AbandonedSpansTest, ADamagedOneIsHeldByNobody) {
  void* p = nullptr;
  test::on_another_thread([&] {
    p = own_.allocate(kSize);
    own_.heap.protocol().take_out_of_use(span_of(p));
  });
  EXPECT_TRUE(span_of(p)->load_word().is_uncounted());
  own_.deallocate(p);
  EXPECT_TRUE(span_of(p)->load_word().is_abandoned());
}

// A free may come to show a span that has begun a large block's life meanwhile.
TEST_F(AbandonedSpansTest, ALargeBlocksSpanIsOnNoStack) {
  void* p = own_.allocate(64 * kKiB);
  const SpanRef span = span_of(p);
  own_.heap.abandoned.show(span);
  EXPECT_EQ(span->abandoned_link.load_relaxed(), 0u);
  own_.deallocate(p);
}

using AbandonedSpansDeathTest = AbandonedSpansTest;

// What the program has done to its list is seen by who counts it.
TEST_F(AbandonedSpansDeathTest, ADamagedOneIsReported) {
  if (test::kUnderAsan) GTEST_SKIP() << "the sanitizer reports the write";
  void* good = nullptr;
  void* bad = nullptr;
  test::on_another_thread([&] {
    void* blocks[8];
    for (void*& p : blocks) p = own_.allocate(kSize);
    good = blocks[0];
    bad = blocks[1];
    for (unsigned i = 1; i < 8; ++i) own_.deallocate(blocks[i]);
  });
  *static_cast<std::uint64_t*>(bad) = 1;
  EXPECT_DEATH(own_.deallocate(good), "free list overwritten");
  EXPECT_DEATH(own_.trim(), "free list overwritten");
  EXPECT_DEATH((void)own_.statistics(), "free list overwritten");
}

}  // namespace
}  // namespace spanalloc
