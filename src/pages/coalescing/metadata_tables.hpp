// A manager's metadata as tables that grow with its range: where each entry
// stands, and for which units.
//
//   kUpper    the index's levels above 0. Those above 2 come first; they are small, and needed
//             whole. Then comes, for each 64^3 units, the entry of level 2 and the 64 of level 1
//             below it
//   kRows     a row for each 64 units: a word of each set, the index's entry of level 0, and the
//             mapper's 64 words, which are used together. (The last row has only the words of
//             existing units.)
//
// (64 is the index's fan. A range that needs fewer levels has no entries for others.) While
// there are `limit` units, only the entries of units below are touched; the mapper reads one
// word more, behind the last block.
#pragma once

#include <cstddef>

#include "base/bits.hpp"

namespace spanalloc::coalescing {

template <class Index, unsigned kSets>
struct MetadataTables {
  enum Table : unsigned { kUpper, kRows, kCount };
  static constexpr std::size_t kRowUnits = 64;
  /// Words of a row before the mapper's.
  static constexpr std::size_t kBeforeMapper = kSets + kRowUnits / Index::kFan * Index::kLists;
  static constexpr std::size_t kRowWords = kBeforeMapper + kRowUnits;

  static constexpr unsigned table_of_level(unsigned level) { return level == 0 ? kRows : kUpper; }
  static constexpr typename Index::LevelPlace place_of_level(unsigned level, std::size_t capacity) {
    constexpr unsigned kGroupsOfRow = log2_floor(kRowUnits / Index::kFan);
    if (level == 0) return {kSets * 8, kRowWords, kGroupsOfRow};
    if (level > 2) return {bytes_above(level, capacity), Index::kLists, 0};
    const std::size_t seconds = has_second(capacity) ? 1 : 0;
    const std::size_t before = bytes_above(2, capacity);
    const std::size_t block = (seconds + Index::kFan) * Index::kLists;
    if (level == 2) return {before, block, 0};
    return {before + seconds * kEntryBytes, block, log2_floor(Index::kFan)};
  }

  /// Bytes of the table that units [0, units) need, of at most `capacity`.
  static constexpr std::size_t bytes(unsigned table, std::size_t capacity, std::size_t units) {
    if (table == kRows) {
      return (entries(units, kRowUnits) * kBeforeMapper + units) * 8;
    }
    if (Index::levels_for(capacity) == 1) return 0;
    const std::size_t firsts = entries(units, kUnitsOfFirst);
    const std::size_t seconds = has_second(capacity) ? entries(firsts, Index::kFan) : 0;
    return bytes_above(2, capacity) + (seconds + firsts) * kEntryBytes;
  }
  /// The most units that do without the row or the entry of level 1 that `unit` has. (Words of a
  /// row that lie behind a gap are of no use where its sets lie in it.)
  static constexpr std::size_t units_before(unsigned table, std::size_t unit) {
    return align_down(unit, table == kRows ? kRowUnits : kUnitsOfFirst);
  }
  /// The most units for which the first `bytes` of the table are enough.
  static constexpr std::size_t units_within(unsigned table, std::size_t capacity,
                                            std::size_t bytes) {
    if (table == kRows) return bytes / (kRowWords * 8) * kRowUnits;
    const std::size_t before = bytes_above(2, capacity);
    const std::size_t there = bytes < before ? 0 : (bytes - before) / kEntryBytes;
    if (!has_second(capacity)) return there * kUnitsOfFirst;
    const std::size_t rest = there % (1 + Index::kFan);
    return (there / (1 + Index::kFan) * Index::kFan + rest - min_of(rest, 1)) * kUnitsOfFirst;
  }
  /// The first unit without an entry between the first `bytes` and `behind`, or across either end.
  static constexpr std::size_t units_behind(unsigned table, std::size_t capacity, std::size_t bytes,
                                            std::size_t behind) {
    if (table == kRows) return units_within(table, capacity, behind + kRowWords * 8 - 1);
    const std::size_t before = bytes_above(2, capacity);
    const std::size_t entry = behind < before ? 0 : entries(behind - before, kEntryBytes);
    if (!has_second(capacity)) return entry * kUnitsOfFirst;
    // If the entry of level 2 is missing, the whole group below it cannot be used.
    const std::size_t block = entry / (1 + Index::kFan);
    const std::size_t end_of_second = before + (block * (1 + Index::kFan) + 1) * kEntryBytes;
    const std::size_t rest = entry % (1 + Index::kFan);
    if (rest != 0 && end_of_second > bytes) return (block + 1) * Index::kFan * kUnitsOfFirst;
    return (block * Index::kFan + rest - min_of(rest, 1)) * kUnitsOfFirst;
  }

 private:
  static constexpr std::size_t kEntryBytes = Index::level_bytes(0, 1);
  // Units that an entry of level 1 covers.
  static constexpr std::size_t kUnitsOfFirst = Index::kFan * Index::kFan;

  static constexpr std::size_t entries(std::size_t units, std::size_t of) {
    return (units + of - 1) / of;
  }
  static constexpr bool has_second(std::size_t capacity) { return Index::levels_for(capacity) > 2; }
  // Bytes of the levels above `level`.
  static constexpr std::size_t bytes_above(unsigned level, std::size_t capacity) {
    std::size_t bytes = 0;
    for (unsigned above = level + 1; above < Index::levels_for(capacity); ++above) {
      bytes += Index::level_bytes(above, capacity);
    }
    return bytes;
  }
};

}  // namespace spanalloc::coalescing
