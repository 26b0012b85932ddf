// The span word: packing, and the two transitions that other threads make.
#include "standard/span_word.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace spanalloc::standard {
namespace {

using Cell = AtomicSpanWord;

TEST(SpanWordTest, FieldsDoNotDisturbEachOther) {
  const SpanWord w = SpanWord::make(SpanWord::kMaxOwner, SpanState::kNobodys, 4096)
                         .with_head(BlockOffset{0xfffe})
                         .with_mark(true);
  EXPECT_EQ(w.owner(), SpanWord::kMaxOwner);
  EXPECT_EQ(w.state(), SpanState::kNobodys);
  EXPECT_EQ(w.outstanding(), 4096u);
  EXPECT_EQ(w.head(), BlockOffset{0xfffe});
  EXPECT_TRUE(w.is_marked());
  const SpanWord changed = w.with_owner(CacheNumber{7})
                               .with_state(SpanState::kOwned)
                               .with_outstanding(1)
                               .with_head(BlockOffset{2})
                               .with_mark(false);
  EXPECT_EQ(changed,
            SpanWord::make(CacheNumber{7}, SpanState::kOwned, 1).with_head(BlockOffset{2}));
  EXPECT_TRUE(changed.is(CacheNumber{7}, SpanState::kOwned));
}

constexpr CacheNumber kOwner{3};
using Marks = std::vector<BlockOffset>;

constexpr SpanWord nobodys(std::uint64_t out) {
  return SpanWord::make(kNobody, SpanState::kNobodys, out).with_mark(true);
}

TEST(SpanWordTest, TheLastRemoteFreeIsTheTransitionToFree) {
  Cell cell(nobodys(2));
  Marks links;
  const auto link = [&](BlockOffset head) { links.push_back(head); };
  EXPECT_EQ(cell.free_batch(BlockOffset{5}, 1, link).freed, Freed::kDone);
  const Cell::Outcome last = cell.free_batch(BlockOffset{9}, 1, link);
  EXPECT_EQ(last.freed, Freed::kEmptied);
  EXPECT_EQ(links, (Marks{BlockOffset::kNone, BlockOffset{5}}));
  EXPECT_EQ(last.word.state(), SpanState::kFree);
  EXPECT_EQ(cell.free_batch(BlockOffset{9}, 1, link).freed, Freed::kRefused)
      << "a free span has no block to free";
}

TEST(SpanWordTest, ARunOfBlocksIsOneTransition) {
  Cell cell(nobodys(5).with_head(BlockOffset{7}));
  Marks links;
  const auto link = [&](BlockOffset head) { links.push_back(head); };
  EXPECT_EQ(cell.free_batch(BlockOffset{2}, 6, link).freed, Freed::kRefused) << "more than are out";
  EXPECT_TRUE(links.empty());
  const Cell::Outcome first = cell.free_batch(BlockOffset{2}, 3, link);
  EXPECT_EQ(first.freed, Freed::kDone);
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
  const RemoteList taken = cell.take_remotes(kOwner, 2);
  EXPECT_EQ(taken.first, BlockOffset{2});
  EXPECT_EQ(taken.count, 2u);
  EXPECT_EQ(cell.load_relaxed(), SpanWord::make(kOwner, SpanState::kOwned, 2));
  EXPECT_EQ(cell.take_remotes(kOwner, 2).first, BlockOffset::kNone);
}

TEST(SpanWordTest, WhoGivesASpanUpCountsWhatIsFreeInIt) {
  const SpanWord owned = SpanWord::make(kOwner, SpanState::kOwned, 5).with_head(BlockOffset{7});
  Cell cell(owned);
  EXPECT_EQ(cell.count_and_leave(6).freed, Freed::kRefused);
  EXPECT_EQ(cell.load_relaxed(), owned) << "nothing has changed";
  const Cell::Outcome left = cell.count_and_leave(2);
  EXPECT_EQ(left.freed, Freed::kDone);
  EXPECT_EQ(left.word, nobodys(3).with_head(BlockOffset{7}));
  Cell empty(owned);
  const Cell::Outcome emptied = empty.count_and_leave(5);
  EXPECT_EQ(emptied.freed, Freed::kEmptied);
  EXPECT_EQ(emptied.word.head(), BlockOffset{7}) << "who takes it from the pool takes the list";
  EXPECT_FALSE(emptied.word.is_marked()) << "it would seem to be a cached large span";
}

TEST(SpanWordTest, AnAwaySpanIsLeftUnlessAnotherThreadHasClaimedIt) {
  const SpanWord owned = SpanWord::make(kOwner, SpanState::kOwned, 2).with_head(BlockOffset{7});
  Cell cell(owned);
  EXPECT_EQ(cell.leave_away(CacheNumber{4}).freed, Freed::kRefused);
  const Cell::Outcome left = cell.leave_away(kOwner);
  EXPECT_EQ(left.freed, Freed::kDone);
  EXPECT_EQ(left.word, nobodys(2).with_head(BlockOffset{7}));
  Cell empty(owned.with_outstanding(0));
  EXPECT_TRUE(empty.replace(owned.with_outstanding(0),
                            owned.with_outstanding(0).with_state(SpanState::kFree)));
  EXPECT_EQ(empty.leave_away(kOwner).freed, Freed::kRefused);
  EXPECT_EQ(empty.take_remotes(kOwner, 5).first, BlockOffset::kNone);
}

TEST(SpanWordTest, AWithdrawnSpanIsNeverEmpty) {
  Cell cell(nobodys(1).with_head(BlockOffset{7}));
  const auto capacity = [] { return 5U; };
  EXPECT_FALSE(cell.drop_remotes(BlockOffset{8}, capacity).done);
  EXPECT_TRUE(cell.retire(kNobody, SpanState::kNobodys, 5));
  EXPECT_EQ(cell.load_relaxed(), nobodys(5));
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
  EXPECT_EQ(cell.let_go(0), Freed::kDone);
  const SpanWord counted = cell.load_relaxed();
  EXPECT_TRUE(counted.is_abandoned() && !counted.is_uncounted());
  EXPECT_EQ(counted.outstanding(), 1u);
  EXPECT_EQ(counted.head(), BlockOffset{8});
  EXPECT_EQ(cell.free_batch(BlockOffset{9}, 1, no_link).freed, Freed::kEmptied);
  EXPECT_FALSE(cell.hold().done);
}
TEST(SpanWordTest, AHeldSpanBecomesFreeWhenItIsLetGo) {
  Cell cell(SpanWord::make(kNobody, SpanState::kNobodys, 1).with_mark(true));
  EXPECT_TRUE(cell.load_relaxed().is_abandoned() && !cell.load_relaxed().is_uncounted());
  EXPECT_TRUE(cell.hold().done);
  EXPECT_EQ(cell.free_batch(BlockOffset{7}, 1, [](BlockOffset) {}).freed, Freed::kDone);
  EXPECT_EQ(cell.let_go(0), Freed::kEmptied);
}
// What its holder takes counts as out; what others have freed stays free, on no list of the word.
TEST(SpanWordTest, AHeldSpanLendsBlocks) {
  Cell cell(nobodys(2).with_head(BlockOffset{7}));
  EXPECT_TRUE(cell.hold().done);
  EXPECT_EQ(cell.take_held_remotes(), BlockOffset{7});
  EXPECT_EQ(cell.take_held_remotes(), BlockOffset::kNone);
  EXPECT_EQ(cell.free_batch(BlockOffset{8}, 2, [](BlockOffset) {}).freed, Freed::kDone);
  EXPECT_EQ(cell.let_go(3), Freed::kDone);
  EXPECT_EQ(cell.load_relaxed(), nobodys(3).with_head(BlockOffset{8}));
  EXPECT_EQ(cell.free_batch(BlockOffset{9}, 3, [](BlockOffset) {}).freed, Freed::kEmptied);
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
  cell.hand_over();
  EXPECT_EQ(cell.load_relaxed(), nobodys(3).with_head(BlockOffset{7}));
}

}  // namespace
}  // namespace spanalloc::standard
