// The span word: packing, and the two transitions that other threads make.
#include "engines/virtual_span/standard/span_word.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace spanalloc::standard {
namespace {

using Cell = Atomic<std::uint64_t>;

TEST(SpanWordTest, FieldsDoNotDisturbEachOther) {
  const SpanWord w =
      SpanWord::make(SpanWord::kMaxOwner, SpanState::kParked, 4096).with_head(0xfffe).with_listed(true);
  EXPECT_EQ(w.owner(), SpanWord::kMaxOwner);
  EXPECT_EQ(w.state(), SpanState::kParked);
  EXPECT_EQ(w.outstanding(), 4096u);
  EXPECT_EQ(w.head(), 0xfffeu);
  EXPECT_TRUE(w.listed());
  const SpanWord changed =
      w.with_owner(7).with_state(SpanState::kHot).with_outstanding(1).with_head(2).with_listed(false);
  EXPECT_EQ(changed, SpanWord::make(7, SpanState::kHot, 1).with_head(2));
  EXPECT_EQ(changed.identity(), SpanWord::identity_of(7, SpanState::kHot));
}

TEST(SpanWordTest, TheLastRemoteFreeIsTheTransitionToFree) {
  Cell cell(SpanWord::make(3, SpanState::kParked, 2).bits);
  std::vector<std::uint32_t> links;
  SpanWord after{};
  const auto link = [&](std::uint32_t head) { links.push_back(head); };
  EXPECT_EQ(free_remotely(cell, 5, 1, after, link), RemoteFree::kListed)
      << "the first one since the owner settled";
  EXPECT_EQ(free_remotely(cell, 9, 1, after, link), RemoteFree::kEmptied);
  EXPECT_EQ(links, (std::vector<std::uint32_t>{0, 5}));
  EXPECT_EQ(after.state(), SpanState::kFree);
  EXPECT_EQ(after.owner(), 3u) << "the claimer must know whose lists to take it from";
  EXPECT_EQ(free_remotely(cell, 9, 1, after, link), RemoteFree::kBadFree)
      << "a free span has no block to free";
}

TEST(SpanWordTest, ARunOfBlocksIsOneTransition) {
  Cell cell(SpanWord::make(3, SpanState::kParked, 5).with_head(7).bits);
  std::vector<std::uint32_t> links;
  SpanWord after{};
  const auto link = [&](std::uint32_t head) { links.push_back(head); };
  EXPECT_EQ(free_remotely(cell, 2, 6, after, link), RemoteFree::kBadFree) << "more than are out";
  EXPECT_TRUE(links.empty());
  EXPECT_EQ(free_remotely(cell, 2, 3, after, link), RemoteFree::kListed);
  EXPECT_EQ(after.outstanding(), 2u);
  EXPECT_EQ(after.head(), 2u);
  EXPECT_EQ(free_remotely(cell, 9, 2, after, link), RemoteFree::kEmptied);
  EXPECT_EQ(links, (std::vector<std::uint32_t>{7, 2}));
}

TEST(SpanWordTest, AHotSpanOnlyCollectsRemoteFrees) {
  Cell cell(SpanWord::make(3, SpanState::kHot, 2).bits);
  SpanWord after{};
  const auto link = [](std::uint32_t) {};
  EXPECT_EQ(free_remotely(cell, 1, 1, after, link), RemoteFree::kDone);
  EXPECT_EQ(free_remotely(cell, 2, 1, after, link), RemoteFree::kDone);
  EXPECT_EQ(after.state(), SpanState::kHot);
  EXPECT_EQ(free_remotely(cell, 2, 1, after, link), RemoteFree::kBadFree) << "more frees than blocks";
  std::uint32_t count = 0;
  EXPECT_EQ(take_remotes(cell, 2, count), 2u);
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(SpanWord{cell.load_relaxed()}, SpanWord::make(3, SpanState::kHot, 2));
  EXPECT_EQ(take_remotes(cell, 2, count), 0u);
}

}  // namespace
}  // namespace spanalloc::standard
