// The index of free blocks against a set of blocks: what it finds, and what it says of damage.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "heaps/two_level_index.hpp"
#include "random.hpp"

namespace spanalloc::heaps {
namespace {

// Everything that is asked about lies in this test's memory, or nowhere.
alignas(16) char memory[2 * kMiB];
struct TestMemory {
  static bool may_have(const void* p) {
    return address_of(p) - address_of(memory) < sizeof memory - sizeof(Block);
  }
};
using Index = TwoLevelIndex<TestMemory>;

constexpr Key kKey{0x0123456789ABCDEF, 0x9E8D7C6B5A493827};

Block* block_at(std::size_t offset) {
  return reinterpret_cast<Block*>(memory + offset + kHeader);
}

class TwoLevelIndexTest : public testing::Test {
 protected:
  Block* insert(std::size_t offset, std::size_t size) {
    Block* const block = block_at(offset);
    block->become_free(kKey, size);
    index.insert(kKey, block, size);
    return block;
  }
  Index index{};
};

TEST_F(TwoLevelIndexTest, IsEmptyAtFirst) {
  EXPECT_TRUE(index.is_empty());
  for (std::size_t size = kLeastBlock; size <= Index::kMostBytes;
       size = align_up(size + size / 3, 16))
    EXPECT_EQ(index.find(kKey, size), nullptr) << size;
}

TEST_F(TwoLevelIndexTest, FindsTheOnlyBlockForAllSizesUpToItsOwn) {
  for (std::size_t size = kLeastBlock; size < Index::kMostBytes; size += 16 + size / 64 / 16 * 16) {
    Block* const block = insert(0, size);
    EXPECT_EQ(index.find(kKey, size), block) << size;
    EXPECT_EQ(index.find(kKey, kLeastBlock), block) << size;
    EXPECT_EQ(index.find(kKey, size + 16), nullptr) << size;
    EXPECT_TRUE(index.remove(kKey, block, size));
    EXPECT_TRUE(index.is_empty());
  }
}

// In a list of sizes that differ by less than a sixteenth only the first block is looked at: what
// is found always fits, and a block is found if one exists that is a sixteenth larger than asked.
TEST_F(TwoLevelIndexTest, FindsWhatFitsAmongMany) {
  constexpr std::size_t kSlots = 1000;
  constexpr std::size_t kSlot = 2048;
  test::Random random(test::seed_of(1));
  std::map<Block*, std::size_t> model;
  for (int step = 0; step < 200'000; ++step) {
    Block* const block = block_at(random.below(kSlots) * kSlot);
    if (const auto at = model.find(block); at != model.end()) {
      ASSERT_TRUE(index.remove(kKey, block, at->second));
      model.erase(at);
    } else if (random.below(3) != 0) {
      const std::size_t size = kLeastBlock + random.below((kSlot - kLeastBlock) / 16) * 16;
      block->become_free(kKey, size);
      index.insert(kKey, block, size);
      model[block] = size;
    }
    const std::size_t wanted = kLeastBlock + random.below((kSlot - kLeastBlock) / 16) * 16;
    Block* const found = index.find(kKey, wanted);
    if (found != nullptr) {
      ASSERT_TRUE(model.contains(found));
      ASSERT_GE(model[found], wanted);
      // None that fits is smaller by more than a sixteenth.
      for (const auto& [other, size] : model)
        ASSERT_FALSE(size >= wanted + wanted / 16 && model[found] > size + size / 16 + 16 &&
                     step % 100 == 0);
    } else {
      for (const auto& [other, size] : model) ASSERT_LT(size, wanted + wanted / 16 + 16);
    }
    ASSERT_EQ(index.is_empty(), model.empty());
  }
}

TEST_F(TwoLevelIndexTest, TakesTheNewestOfItsSizeFirst) {
  insert(0, 64);
  Block* const newest = insert(128, 64);
  EXPECT_EQ(index.find(kKey, 64), newest);
}

TEST_F(TwoLevelIndexTest, SeesOverwrittenLinks) {
  Block* const blocks[] = {insert(0, 64), insert(128, 64), insert(256, 64)};
  for (Block* const block : blocks) {
    char saved[32];
    std::memcpy(saved, block, sizeof saved);
    for (const int value : {0, 0x41, 0xFF}) {
      for (std::size_t word = 1; word < 3; ++word) {
        std::memset(reinterpret_cast<char*>(block) + 8 * word, value, 8);
        EXPECT_FALSE(index.remove(kKey, block, 64));
        std::memcpy(static_cast<void*>(block), saved, sizeof saved);
      }
    }
  }
  for (Block* const block : blocks) EXPECT_TRUE(index.remove(kKey, block, 64));
  EXPECT_TRUE(index.is_empty());
}

TEST_F(TwoLevelIndexTest, IsNotLedAstrayByANeighbourThatWasOverwritten) {
  Block* const old = insert(0, 64);
  Block* const middle = insert(128, 64);
  Block* const newest = insert(256, 64);
  std::memset(static_cast<void*>(old), 0x5A, 16);
  EXPECT_FALSE(index.remove(kKey, middle, 64));
  EXPECT_TRUE(index.remove(kKey, newest, 64));
  index.drop_list_of(middle);
  EXPECT_TRUE(index.is_empty());
}

TEST(HeapBlock, EachBitOfAHeaderMatters) {
  Block* const block = block_at(0);
  block->set_tag(kKey, Tag::of(64));
  EXPECT_TRUE(block->tag(kKey).is_used());
  for (unsigned bit = 0; bit < 64; ++bit) {
    memory[kHeader + bit / 8] = static_cast<char>(memory[kHeader + bit / 8] ^ 1 << bit % 8);
    EXPECT_FALSE(block->tag(kKey)) << bit;
    memory[kHeader + bit / 8] = static_cast<char>(memory[kHeader + bit / 8] ^ 1 << bit % 8);
  }
  EXPECT_FALSE(block->tag(Key{kKey.secret ^ 1 << 20, kKey.links})) << "another heap's";
  std::memcpy(static_cast<void*>(block_at(64)), block, 8);
  EXPECT_FALSE(block_at(64)->tag(kKey)) << "moved";
}

TEST(HeapBlock, SizesAreThoseOfTheirPayloads) {
  EXPECT_EQ(block_bytes(0), kLeastBlock);
  for (std::size_t n = 1; n < 10'000; ++n) {
    EXPECT_EQ(block_bytes(n) % kGranule, 0u);
    EXPECT_GE(block_bytes(n), n + kHeader);
    EXPECT_LT(block_bytes(n), max_of(n + kHeader + kGranule, kLeastBlock + 1));
  }
}

}  // namespace
}  // namespace spanalloc::heaps
