// The span word: packing, and the two transitions that other threads make.
#include "engines/standard/span_word.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace spanalloc::standard {
namespace {

using Cell = Atomic<std::uint64_t>;

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
  Cell cell(SpanWord::make(kOwner, SpanState::kShared, 2).bits);
  Marks links;
  const auto link = [&](BlockOffset head) { links.push_back(head); };
  EXPECT_EQ(free_remotely(cell, BlockOffset{5}, 1, link).result, RemoteFree::kDelayed)
      << "the first one since the owner collected";
  const RemotelyFreed last = free_remotely(cell, BlockOffset{9}, 1, link);
  EXPECT_EQ(last.result, RemoteFree::kEmptied);
  EXPECT_EQ(links, (Marks{BlockOffset::kNone, BlockOffset{5}}));
  EXPECT_EQ(last.after.state(), SpanState::kFree);
  EXPECT_EQ(last.after.owner(), kOwner) << "the claimer must know whose lists to take it from";
  EXPECT_EQ(free_remotely(cell, BlockOffset{9}, 1, link).result, RemoteFree::kBadFree)
      << "a free span has no block to free";
}

TEST(SpanWordTest, ARunOfBlocksIsOneTransition) {
  Cell cell(SpanWord::make(kOwner, SpanState::kShared, 5).with_head(BlockOffset{7}).bits);
  Marks links;
  const auto link = [&](BlockOffset head) { links.push_back(head); };
  EXPECT_EQ(free_remotely(cell, BlockOffset{2}, 6, link).result, RemoteFree::kBadFree)
      << "more than are out";
  EXPECT_TRUE(links.empty());
  const RemotelyFreed first = free_remotely(cell, BlockOffset{2}, 3, link);
  EXPECT_EQ(first.result, RemoteFree::kDelayed);
  EXPECT_EQ(first.after.outstanding(), 2u);
  EXPECT_EQ(first.after.head(), BlockOffset{2});
  EXPECT_EQ(free_remotely(cell, BlockOffset{9}, 2, link).result, RemoteFree::kEmptied);
  EXPECT_EQ(links, (Marks{BlockOffset{7}, BlockOffset{2}}));
}

TEST(SpanWordTest, AHotSpanOnlyCollectsRemoteFrees) {
  Cell cell(SpanWord::make(kOwner, SpanState::kOwned, 2).bits);
  const auto link = [](BlockOffset) {};
  EXPECT_EQ(free_remotely(cell, BlockOffset{1}, 1, link).result, RemoteFree::kDone);
  const RemotelyFreed second = free_remotely(cell, BlockOffset{2}, 1, link);
  EXPECT_EQ(second.result, RemoteFree::kDone);
  EXPECT_EQ(second.after.state(), SpanState::kOwned);
  EXPECT_EQ(free_remotely(cell, BlockOffset{2}, 1, link).result, RemoteFree::kBadFree)
      << "more frees than blocks";
  const RemoteList taken = take_remotes(cell, 2);
  EXPECT_EQ(taken.first, BlockOffset{2});
  EXPECT_EQ(taken.count, 2u);
  EXPECT_EQ(SpanWord{cell.load_relaxed()}, SpanWord::make(kOwner, SpanState::kOwned, 2));
  EXPECT_EQ(take_remotes(cell, 2).first, BlockOffset::kNone);
}

}  // namespace
}  // namespace spanalloc::standard
