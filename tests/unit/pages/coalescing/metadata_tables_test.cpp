// Where a manager's metadata stand in its tables: no two of them share a byte, and what is said
// of the tables' ends holds.
#include "pages/coalescing/metadata_tables.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "pages/coalescing/free_index.hpp"

namespace spanalloc::coalescing {
namespace {

constexpr unsigned kSets = 7;

struct Extent {
  std::size_t first;
  std::size_t end;
};

// The extents of what units [0, units) have in each table; entries that several units share once.
template <class Index>
std::vector<Extent> extents(unsigned table, std::size_t capacity,
                            const std::vector<std::size_t>& units) {
  using Tables = MetadataTables<Index, kSets>;
  std::map<std::size_t, std::size_t> found;
  for (const std::size_t unit : units) {
    if (table == Tables::kRows) {
      const std::size_t row = unit / 64 * Tables::kRowWords * 8;
      found[row] = row + kSets * 8;
      const std::size_t word = row + (Tables::kBeforeMapper + unit % 64) * 8;
      found[word] = word + 8;
    }
    std::size_t entry = unit;
    for (unsigned level = 0; level < Index::levels_for(capacity); ++level) {
      entry /= Index::kFan;
      if (Tables::table_of_level(level) != table) continue;
      const auto place = Tables::place_of_level(level, capacity);
      const std::size_t in_block = entry % (std::size_t{1} << place.entry_bits);
      const std::size_t at = place.offset + (entry >> place.entry_bits) * place.block_words * 8 +
                             in_block * Index::kLists * 8;
      found[at] = at + Index::kLists * 8;
    }
  }
  std::vector<Extent> all;
  for (const auto& [first, end] : found) all.push_back({first, end});
  return all;
}

template <class Index>
void check(std::size_t capacity) {
  using Tables = MetadataTables<Index, kSets>;
  SCOPED_TRACE(capacity);
  std::vector<std::size_t> units;
  for (std::size_t step = 1; step < capacity; step *= 2) {
    for (const std::size_t at : {step - 1, step, step + 1, step * 3 / 2}) {
      if (at < capacity) units.push_back(at);
    }
  }
  units.push_back(0);
  units.push_back(capacity - 1);
  std::sort(units.begin(), units.end());
  for (const unsigned table : {unsigned{Tables::kUpper}, unsigned{Tables::kRows}}) {
    SCOPED_TRACE(table);
    const std::vector<Extent> all = extents<Index>(table, capacity, units);
    for (std::size_t i = 1; i < all.size(); ++i) ASSERT_LE(all[i - 1].end, all[i].first);
    for (std::size_t i = 0; i < units.size(); ++i) {
      // What the first units need, and no more.
      const std::vector<std::size_t> first(units.begin(),
                                           units.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      const std::vector<Extent> theirs = extents<Index>(table, capacity, first);
      const std::size_t bytes = Tables::bytes(table, capacity, units[i] + 1);
      if (theirs.empty()) {
        EXPECT_EQ(bytes, 0u);
        continue;
      }
      ASSERT_LE(theirs.back().end, bytes) << units[i];
      // So many bytes are enough for these units, but for what is less than a
      // row or an entry of level 1.
      const std::size_t least = table == Tables::kRows ? 64 : Index::kFan * Index::kFan;
      const std::size_t enough = Tables::units_within(table, capacity, bytes);
      EXPECT_GT(enough + least, units[i]);
      EXPECT_LE(Tables::bytes(table, capacity, enough), bytes);
      EXPECT_GT(Tables::bytes(table, capacity, enough + 2 * least), bytes);
      // Nor are a unit's entries in a gap that ends there.
      if (table == Tables::kRows && i % 2 == 0) {
        const std::size_t behind = Tables::units_behind(table, capacity, 0, bytes + i);
        EXPECT_GE(extents<Index>(table, capacity, {behind}).front().first, bytes + i);
        EXPECT_LT(extents<Index>(table, capacity, {behind}).front().first,
                  bytes + i + Tables::kRowWords * 8);
      }
    }
  }
}

TEST(MetadataTablesTest, NothingSharesAByte) {
  for (const std::size_t capacity :
       {std::size_t{1}, std::size_t{63}, std::size_t{64}, std::size_t{65}, std::size_t{4096},
        std::size_t{4097}, std::size_t{262'144}, std::size_t{262'145}, std::size_t{1} << 28}) {
    check<FreeIndex<6>>(capacity);
    if (capacity <= 4097) check<FreeIndex<1>>(capacity);
    check<FreeIndex<3>>(capacity);
  }
}

// The index's upper levels: an entry of level 2 is before the 64 of level 1 that it is about.
TEST(MetadataTablesTest, BehindAGapEveryLevelIsThere) {
  using Index = FreeIndex<6>;
  using Tables = MetadataTables<Index, kSets>;
  constexpr std::size_t kCapacity = std::size_t{1} << 28;
  constexpr std::size_t kEntry = Index::kLists * 8;
  const std::size_t second = Tables::place_of_level(2, kCapacity).offset;
  const std::size_t block = 65 * kEntry;
  struct Case {
    std::size_t gap;
    std::size_t behind;
    std::size_t first;  // entry of level 1
  };
  for (const Case& c : std::vector<Case>{
           {second + 5 * kEntry, second + 7 * kEntry, 6},
           {second + 5 * kEntry, second + 7 * kEntry - 1, 6},
           {second + 5 * kEntry, second + 7 * kEntry + 1, 7},
           {second + kEntry, second + 2 * kEntry, 1},
           {second + kEntry - 1, second + 2 * kEntry, 64},
           {second, second + kEntry, 64},
           {second + 60 * kEntry, second + block, 64},
           {second + 60 * kEntry, second + block + 1, 128},
           {second + block + kEntry, second + block + 3 * kEntry, 66},
       }) {
    EXPECT_EQ(Tables::units_behind(Tables::kUpper, kCapacity, c.gap, c.behind), c.first * 4096);
  }
}

}  // namespace
}  // namespace spanalloc::coalescing
