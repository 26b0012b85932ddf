// What a word of the chunk table says, and that its lowest byte alone says what the
// short path of free needs.
#include "papers/supermalloc/engine/chunk_table.hpp"

#include <gtest/gtest.h>

#include "base/atomic.hpp"
#include "papers/supermalloc/engine/config.hpp"

namespace spanalloc {
namespace {

using supermalloc::BinNumber;
using supermalloc::Bins;
using supermalloc::ChunkEntry;
using TheBins = Bins<Supermalloc>;

std::uint32_t tag_alone(ChunkEntry entry) {
  const Atomic<std::uint32_t> word(entry.word());
  return word.load_low_byte_relaxed();
}

TEST(SupermallocChunkTable, AWordOfABinIsItsNumber) {
  for (BinNumber b = 0; b < TheBins::kCount; ++b) {
    const ChunkEntry entry = ChunkEntry::of_bin(b);
    EXPECT_TRUE(entry.is_bin() && !entry.is_huge() && !entry.is_free()) << b;
    EXPECT_EQ(entry.bin(), b);
    EXPECT_EQ(tag_alone(entry), b + 1);
  }
}

TEST(SupermallocChunkTable, AWordOfAHugeObjectHasItsPages) {
  for (const std::uint32_t pages : {0u, 1u, 255u, 256u, 1u << 21, ChunkEntry::kNumbers - 1}) {
    const ChunkEntry entry = ChunkEntry::of_huge(pages);
    EXPECT_TRUE(entry.is_huge() && !entry.is_bin() && !entry.is_free()) << pages;
    EXPECT_EQ(entry.pages(), pages);
    EXPECT_GE(entry.bin(), TheBins::kCount);
    EXPECT_EQ(tag_alone(entry), ChunkEntry::kHuge);
  }
}

TEST(SupermallocChunkTable, AWordOfAFreeRangeHasTheNextOne) {
  for (const std::uint32_t next : {0u, 1u, 255u, 256u, ChunkEntry::kNumbers - 1}) {
    for (const bool dirty : {false, true}) {
      const ChunkEntry entry = ChunkEntry::of_free(next, dirty);
      EXPECT_TRUE(entry.is_free() && !entry.is_bin() && !entry.is_huge()) << next;
      EXPECT_EQ(entry.next(), next);
      EXPECT_EQ(entry.is_dirty(), dirty);
      EXPECT_GE(entry.bin(), TheBins::kCount);
      EXPECT_EQ(tag_alone(entry), entry.tag());
    }
  }
}

TEST(SupermallocChunkTable, NothingIsNoneOfThem) {
  const ChunkEntry entry = ChunkEntry::nothing();
  EXPECT_TRUE(!entry.is_bin() && !entry.is_huge() && !entry.is_free());
  EXPECT_EQ(entry.word(), 0u);
}

}  // namespace
}  // namespace spanalloc
