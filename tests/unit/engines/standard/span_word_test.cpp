// The span word: packing, and the two transitions that other threads make.
#include "engines/standard/span_word.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace spanalloc::standard {
namespace {

using Cell = Atomic<std::uint64_t>;

TEST(SpanWordTest, FieldsDoNotDisturbEachOther) {
  const SpanWord w = SpanWord::make(SpanWord::kMaxOwner, SpanState::kParked, 4096)
                         .with_head(BlockMark{0xfffe})
                         .with_listed(true);
  EXPECT_EQ(w.owner(), SpanWord::kMaxOwner);
  EXPECT_EQ(w.state(), SpanState::kParked);
  EXPECT_EQ(w.outstanding(), 4096u);
  EXPECT_EQ(w.head(), BlockMark{0xfffe});
  EXPECT_TRUE(w.listed());
  const SpanWord changed = w.with_owner(LabNumber{7})
                               .with_state(SpanState::kHot)
                               .with_outstanding(1)
                               .with_head(BlockMark{2})
                               .with_listed(false);
  EXPECT_EQ(changed, SpanWord::make(LabNumber{7}, SpanState::kHot, 1).with_head(BlockMark{2}));
  EXPECT_TRUE(changed.is(LabNumber{7}, SpanState::kHot));
}

constexpr LabNumber kOwner{3};
using Marks = std::vector<BlockMark>;

TEST(SpanWordTest, TheLastRemoteFreeIsTheTransitionToFree) {
  Cell cell(SpanWord::make(kOwner, SpanState::kParked, 2).bits);
  Marks links;
  const auto link = [&](BlockMark head) { links.push_back(head); };
  EXPECT_EQ(free_remotely(cell, BlockMark{5}, 1, link).result, RemoteFree::kListed)
      << "the first one since the owner settled";
  const RemotelyFreed last = free_remotely(cell, BlockMark{9}, 1, link);
  EXPECT_EQ(last.result, RemoteFree::kEmptied);
  EXPECT_EQ(links, (Marks{BlockMark::kNone, BlockMark{5}}));
  EXPECT_EQ(last.after.state(), SpanState::kFree);
  EXPECT_EQ(last.after.owner(), kOwner) << "the claimer must know whose lists to take it from";
  EXPECT_EQ(free_remotely(cell, BlockMark{9}, 1, link).result, RemoteFree::kBadFree)
      << "a free span has no block to free";
}

TEST(SpanWordTest, ARunOfBlocksIsOneTransition) {
  Cell cell(SpanWord::make(kOwner, SpanState::kParked, 5).with_head(BlockMark{7}).bits);
  Marks links;
  const auto link = [&](BlockMark head) { links.push_back(head); };
  EXPECT_EQ(free_remotely(cell, BlockMark{2}, 6, link).result, RemoteFree::kBadFree) << "more than are out";
  EXPECT_TRUE(links.empty());
  const RemotelyFreed first = free_remotely(cell, BlockMark{2}, 3, link);
  EXPECT_EQ(first.result, RemoteFree::kListed);
  EXPECT_EQ(first.after.outstanding(), 2u);
  EXPECT_EQ(first.after.head(), BlockMark{2});
  EXPECT_EQ(free_remotely(cell, BlockMark{9}, 2, link).result, RemoteFree::kEmptied);
  EXPECT_EQ(links, (Marks{BlockMark{7}, BlockMark{2}}));
}

TEST(SpanWordTest, AHotSpanOnlyCollectsRemoteFrees) {
  Cell cell(SpanWord::make(kOwner, SpanState::kHot, 2).bits);
  const auto link = [](BlockMark) {};
  EXPECT_EQ(free_remotely(cell, BlockMark{1}, 1, link).result, RemoteFree::kDone);
  const RemotelyFreed second = free_remotely(cell, BlockMark{2}, 1, link);
  EXPECT_EQ(second.result, RemoteFree::kDone);
  EXPECT_EQ(second.after.state(), SpanState::kHot);
  EXPECT_EQ(free_remotely(cell, BlockMark{2}, 1, link).result, RemoteFree::kBadFree)
      << "more frees than blocks";
  const RemoteList taken = take_remotes(cell, 2);
  EXPECT_EQ(taken.first, BlockMark{2});
  EXPECT_EQ(taken.count, 2u);
  EXPECT_EQ(SpanWord{cell.load_relaxed()}, SpanWord::make(kOwner, SpanState::kHot, 2));
  EXPECT_EQ(take_remotes(cell, 2).first, BlockMark::kNone);
}

}  // namespace
}  // namespace spanalloc::standard
