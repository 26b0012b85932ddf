// The span word: packing, and the two transitions that other threads make.
#include "standard/span_word.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace spanalloc::standard {
namespace {

using Cell = AtomicSpanWord;

TEST(SpanWordTest, FieldsDoNotDisturbEachOther) {
  const SpanWord w = SpanWord::make(SpanWord::kMaxOwner, SpanState::kShared, 4096)
                         .with_head(BlockOffset{0xfffe})
                         .with_delayed(true);
  EXPECT_EQ(w.owner(), SpanWord::kMaxOwner);
  EXPECT_EQ(w.state(), SpanState::kShared);
  EXPECT_EQ(w.outstanding(), 4096u);
  EXPECT_EQ(w.head(), BlockOffset{0xfffe});
  EXPECT_TRUE(w.is_delayed());
  const SpanWord changed = w.with_owner(CacheNumber{7})
                               .with_state(SpanState::kOwned)
                               .with_outstanding(1)
                               .with_head(BlockOffset{2})
                               .with_delayed(false);
  EXPECT_EQ(changed,
            SpanWord::make(CacheNumber{7}, SpanState::kOwned, 1).with_head(BlockOffset{2}));
  EXPECT_TRUE(changed.is(CacheNumber{7}, SpanState::kOwned));
}

constexpr CacheNumber kOwner{3};
using Marks = std::vector<BlockOffset>;

TEST(SpanWordTest, TheLastRemoteFreeIsTheTransitionToFree) {
  Cell cell(SpanWord::make(kOwner, SpanState::kShared, 2));
  Marks links;
  const auto link = [&](BlockOffset head) { links.push_back(head); };
  EXPECT_EQ(cell.free_batch(BlockOffset{5}, 1, link).freed, Freed::kDelayed)
      << "the first one since the owner collected";
  const Cell::Outcome last = cell.free_batch(BlockOffset{9}, 1, link);
  EXPECT_EQ(last.freed, Freed::kEmptied);
  EXPECT_EQ(links, (Marks{BlockOffset::kNone, BlockOffset{5}}));
  EXPECT_EQ(last.word.state(), SpanState::kFree);
  EXPECT_EQ(last.word.owner(), kOwner) << "the claimer must know whose lists to take it from";
  EXPECT_EQ(cell.free_batch(BlockOffset{9}, 1, link).freed, Freed::kRefused)
      << "a free span has no block to free";
}

TEST(SpanWordTest, ARunOfBlocksIsOneTransition) {
  Cell cell(SpanWord::make(kOwner, SpanState::kShared, 5).with_head(BlockOffset{7}));
  Marks links;
  const auto link = [&](BlockOffset head) { links.push_back(head); };
  EXPECT_EQ(cell.free_batch(BlockOffset{2}, 6, link).freed, Freed::kRefused) << "more than are out";
  EXPECT_TRUE(links.empty());
  const Cell::Outcome first = cell.free_batch(BlockOffset{2}, 3, link);
  EXPECT_EQ(first.freed, Freed::kDelayed);
  EXPECT_EQ(first.word.outstanding(), 2u);
  EXPECT_EQ(first.word.head(), BlockOffset{2});
  EXPECT_EQ(cell.free_batch(BlockOffset{9}, 2, link).freed, Freed::kEmptied);
  EXPECT_EQ(links, (Marks{BlockOffset{7}, BlockOffset{2}}));
}

TEST(SpanWordTest, AHotSpanOnlyCollectsRemoteFrees) {
  Cell cell(SpanWord::make(kOwner, SpanState::kOwned, 2));
  const auto link = [](BlockOffset) {};
  EXPECT_EQ(cell.free_batch(BlockOffset{1}, 1, link).freed, Freed::kDone);
  const Cell::Outcome second = cell.free_batch(BlockOffset{2}, 1, link);
  EXPECT_EQ(second.freed, Freed::kDone);
  EXPECT_EQ(second.word.state(), SpanState::kOwned);
  EXPECT_EQ(cell.free_batch(BlockOffset{2}, 1, link).freed, Freed::kRefused)
      << "more frees than blocks";
  const RemoteList taken = cell.take_remotes(2);
  EXPECT_EQ(taken.first, BlockOffset{2});
  EXPECT_EQ(taken.count, 2u);
  EXPECT_EQ(cell.load_relaxed(), SpanWord::make(kOwner, SpanState::kOwned, 2));
  EXPECT_EQ(cell.take_remotes(2).first, BlockOffset::kNone);
}

TEST(SpanWordTest, CollectingSharesEmptiesOrRefuses) {
  Cell cell(SpanWord::make(kOwner, SpanState::kOwned, 5).with_head(BlockOffset{7}));
  EXPECT_EQ(cell.collect(6, kOwner).freed, Freed::kRefused);
  EXPECT_EQ(cell.load_relaxed().state(), SpanState::kOwned) << "nothing has changed";
  const Cell::Outcome shared = cell.collect(2, CacheNumber{4});
  EXPECT_EQ(shared.freed, Freed::kDone);
  EXPECT_EQ(shared.word,
            SpanWord::make(CacheNumber{4}, SpanState::kShared, 3).with_head(BlockOffset{7}));
  EXPECT_FALSE(cell.claim_if_empty([] { return 2u; }));
  const Cell::Outcome emptied = cell.collect(3, CacheNumber{4});
  EXPECT_EQ(emptied.freed, Freed::kEmptied);
  EXPECT_EQ(emptied.word.head(), BlockOffset{7}) << "who takes it from the pool takes the list";
  const Cell::Outcome claimed = cell.collect(1, CacheNumber{4});
  EXPECT_EQ(claimed.freed, Freed::kDone) << "that is its claimer's affair";
  EXPECT_EQ(claimed.word.state(), SpanState::kFree);
  EXPECT_FALSE(cell.own(kOwner, 5).done);
}

TEST(SpanWordTest, ARetiredSpanIsNeverEmptyNorDelayed) {
  Cell cell(SpanWord::make(kOwner, SpanState::kShared, 1).with_head(BlockOffset{7}));
  const auto capacity = [] { return 5U; };
  EXPECT_FALSE(cell.drop_remotes(kOwner, BlockOffset{8}, capacity).done);
  EXPECT_FALSE(cell.drop_remotes(CacheNumber{4}, BlockOffset{7}, capacity).done);
  EXPECT_TRUE(cell.retire(CacheNumber{4}, SpanState::kShared, 5));
  EXPECT_EQ(cell.load_relaxed(),
            SpanWord::make(CacheNumber{4}, SpanState::kShared, 5).with_delayed(true));
  EXPECT_EQ(cell.free_batch(BlockOffset{2}, 1, [](BlockOffset) {}).freed, Freed::kDone);
}

// A thread that ends leaves a span as it is: what is on its lists counts as out until somebody has
// counted it.
TEST(SpanWordTest, AnAbandonedSpanIsCountedByWhoHoldsIt) {
  Cell cell(SpanWord::make(kOwner, SpanState::kOwned, 5));
  EXPECT_FALSE(cell.hold().done);
  cell.leave_uncounted();
  EXPECT_TRUE(cell.load_relaxed().is_uncounted() && cell.load_relaxed().is_abandoned());
  const auto no_link = [](BlockOffset) {};
  EXPECT_EQ(cell.free_batch(BlockOffset{7}, 1, no_link).freed, Freed::kUncounted);
  const auto held = cell.hold();
  EXPECT_TRUE(held.done && held.before.is_uncounted() && held.after.is_held());
  EXPECT_FALSE(cell.hold().done) << "two threads hold it";
  EXPECT_EQ(cell.free_batch(BlockOffset{8}, 1, no_link).freed, Freed::kDone);
  EXPECT_FALSE(cell.count_held(4)) << "more than are out";
  EXPECT_TRUE(cell.count_held(2));
  EXPECT_EQ(cell.let_go(), Freed::kDone);
  const SpanWord counted = cell.load_relaxed();
  EXPECT_TRUE(counted.is_abandoned() && !counted.is_uncounted());
  EXPECT_EQ(counted.outstanding(), 1u);
  EXPECT_EQ(counted.head(), BlockOffset{8});
  EXPECT_EQ(cell.free_batch(BlockOffset{9}, 1, no_link).freed, Freed::kEmptied);
  EXPECT_FALSE(cell.hold().done);
}
TEST(SpanWordTest, AHeldSpanBecomesFreeWhenItIsLetGo) {
  Cell cell(SpanWord::make(kNobody, SpanState::kShared, 1).with_delayed(true));
  EXPECT_TRUE(cell.load_relaxed().is_abandoned() && !cell.load_relaxed().is_uncounted());
  EXPECT_TRUE(cell.hold().done);
  EXPECT_EQ(cell.free_batch(BlockOffset{7}, 1, [](BlockOffset) {}).freed, Freed::kDone);
  EXPECT_EQ(cell.let_go(), Freed::kEmptied);
}
TEST(SpanWordTest, ASpanOfOneBlockIsNotAbandoned) {
  EXPECT_TRUE(kLargeInUse.is_single() && !kLargeInUse.is_abandoned());
  Cell cell(kLargeInUse);
  EXPECT_FALSE(cell.hold().done);
  EXPECT_FALSE(kLargeFree.is_abandoned() || kLargeFree.is_single());
}

// What is on its lists counts as out, and what others have freed stays freed.
TEST(SpanWordTest, AnOwnedSpanIsHandedOverAsItIs) {
  const SpanWord owned = SpanWord::make(kOwner, SpanState::kOwned, 3).with_head(BlockOffset{7});
  Cell cell(owned);
  cell.hand_over(CacheNumber{4});
  EXPECT_EQ(cell.load_relaxed(),
            owned.with_state(SpanState::kShared).with_owner(CacheNumber{4}).with_delayed(true));
}

}  // namespace
}  // namespace spanalloc::standard
