// Both controllers behind one concept: what add, remove and take mean, whichever form they have.
#include "pages/coalescing/controller.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "pages/coalescing/hold_registry.hpp"
#include "pages/coalescing/mapper.hpp"
#include "pages/coalescing/static_controller.hpp"
#include "papers/leite_rocha/manager/tree_controller.hpp"

namespace spanalloc::coalescing {
namespace {

struct Chunks {
  static void* map(std::size_t bytes) { return std::calloc(1, bytes); }
  static void unmap(void* chunk, std::size_t) { std::free(chunk); }
};
using Registry = HoldRegistry<1>;
using Tree = TreeController<Chunks>;
using Static = StaticController<WordMapper>;

static_assert(BlockController<Tree> && !BlockController<Static> && !BlockController<WordMapper>);

constexpr std::size_t kUnits = 1000;

// A range of units that nothing is free of at first, under one or the other controller.
class TreeRange {
 public:
  TreeRange() { EXPECT_TRUE(tree_->start()); }
  ~TreeRange() { tree_->release(); }
  void add(Block block) { EXPECT_TRUE(tree_->add(block)); }
  bool remove(Block block) { return tree_->remove(block); }
  Block take(std::size_t size) { return tree_->take(size); }

 private:
  std::unique_ptr<Tree> tree_ = std::make_unique<Tree>();
};
template <class Mapper>
class StaticRangeOver {
 public:
  StaticRangeOver() {
    mapper_.attach(words_.data(), kUnits);
    controller_.attach(kUnits, 0);
    std::uint64_t* next = bitmaps_.data();
    for (unsigned level = 0; level < FreeIndex<>::levels_for(kUnits); ++level) {
      controller_.index().attach_level(level, next);
      next += FreeIndex<>::level_bytes(level, kUnits) / 8;
    }
    controller_.index().set_limit(kUnits);
  }
  void add(Block block) { controller_.add(block, true); }
  bool remove(Block block) {
    Hold hold(registry_);
    return static_cast<bool>(controller_.remove(block, hold));
  }
  Block take(std::size_t size, Search search = Search::kExhaustive) {
    Hold hold(registry_);
    return controller_.take(size, 1, search, hold).block;
  }
  Mapper& mapper() { return mapper_; }

 private:
  Registry registry_;
  std::vector<std::uint64_t> words_ = std::vector<std::uint64_t>(WordMapper::bytes_for(kUnits) / 8);
  std::vector<std::uint64_t> bitmaps_ =
      std::vector<std::uint64_t>(2 * FreeIndex<>::level_bytes(0, kUnits) / 8);
  Mapper mapper_;
  StaticController<Mapper> controller_{mapper_};
};
using StaticRange = StaticRangeOver<WordMapper>;

template <class Range>
class Controller : public ::testing::Test {
 protected:
  Range range;
};
using Ranges = ::testing::Types<TreeRange, StaticRange>;
TYPED_TEST_SUITE(Controller, Ranges);

TYPED_TEST(Controller, HasNothingAtFirst) {
  EXPECT_FALSE(this->range.take(1));
  EXPECT_FALSE(this->range.remove({0, kUnits}));
}

TYPED_TEST(Controller, RemovesExactlyOneBlockOnce) {
  this->range.add({10, 5});
  EXPECT_FALSE(this->range.remove({10, 4}));
  EXPECT_FALSE(this->range.remove({11, 4}));
  EXPECT_FALSE(this->range.remove({}));
  EXPECT_TRUE(this->range.remove({10, 5}));
  EXPECT_FALSE(this->range.remove({10, 5}));
  EXPECT_FALSE(this->range.take(1));
}

TYPED_TEST(Controller, TakesTheSmallestBlockThatFitsAtTheLowestAddress) {
  const Block blocks[] = {{900, 3}, {0, 7}, {100, 2}, {300, 3}, {500, 100}};
  for (const Block block : blocks) this->range.add(block);
  EXPECT_FALSE(this->range.take(101));
  EXPECT_EQ(this->range.take(3), (Block{300, 3}));
  EXPECT_EQ(this->range.take(3), (Block{900, 3}));
  EXPECT_EQ(this->range.take(3), (Block{0, 7}));
  EXPECT_EQ(this->range.take(1), (Block{100, 2}));
  EXPECT_EQ(this->range.take(1), (Block{500, 100}));
  EXPECT_FALSE(this->range.take(1));
}

TYPED_TEST(Controller, ABlockMayComeBackInAnotherSize) {
  this->range.add({64, 64});
  EXPECT_EQ(this->range.take(64), (Block{64, 64}));
  this->range.add({64, 1});
  this->range.add({65, 63});
  EXPECT_FALSE(this->range.remove({64, 64}));
  EXPECT_EQ(this->range.take(2), (Block{65, 63}));
  EXPECT_TRUE(this->range.remove({64, 1}));
}

// Counts the headers that are looked at.
struct CountingMapper : WordMapper {
  BlockWord load(std::size_t unit) const {
    ++looks;
    return WordMapper::load(unit);
  }
  mutable unsigned looks = 0;
};

// A search that is not exhaustive looks at as many blocks that are too small as it is allowed to,
// however many there are; but it goes on to the blocks that are large enough for certain.
TEST(StaticController, LooksAtNoMoreBlocksThanTheSearchIsWorth) {
  constexpr std::size_t kHole = 12;  // in a list with those of 13
  constexpr std::size_t kHoles = kUnits / (kHole + 1) - 3;
  struct Expected {
    Search search;
    std::size_t most;
  };
  for (const auto& [search, most] :
       {Expected{Search::kQuick, 8}, {Search::kThorough, 64}, {Search::kExhaustive, kHoles}}) {
    for (const std::size_t holes : {std::size_t{5}, std::size_t{20}, kHoles}) {
      StaticRangeOver<CountingMapper> range;
      for (std::size_t i = 0; i < holes; ++i) range.add({i * (kHole + 1), kHole});
      range.mapper().looks = 0;
      EXPECT_FALSE(range.take(kHole + 1, search));
      EXPECT_EQ(range.mapper().looks, std::min(most, holes));
      range.add({kUnits - 20, 20});
      range.mapper().looks = 0;
      EXPECT_EQ(range.take(kHole + 1, search), (Block{kUnits - 20, 20}));
      EXPECT_EQ(range.mapper().looks, std::min(most, holes) + 1);
    }
  }
}

}  // namespace
}  // namespace spanalloc::coalescing
