// A manager's metadata as tables that grow with its range: what stands where, and which units an entry is
// about.
//
//   kUpper    the index's levels above 1, the highest first: in steps, each entry of the last (level 2) is
//             about 64^3 units; those above it are small and needed whole
//   kMiddle   its level 1: an entry for 64^2 units
//   kLower    its level 0: an entry for 64 units
//   kRows     a row for 64 units: a word of each set, then the mapper's 64 words: they are used together
//
// (64: the index's fan. A range that needs fewer levels has empty tables.) While there are `limit` units only
// the entries of units below are touched; of the last block's end the mapper reads one word more.
#pragma once

#include <cstddef>

#include "base/bits.hpp"

namespace spanalloc::coalescing {

template <class Index, unsigned kSets>
struct MetadataTables {
  enum Table : unsigned { kUpper, kMiddle, kLower, kRows, kCount };
  static constexpr std::size_t kRowUnits = 64;
  static constexpr std::size_t kRowWords = kSets + kRowUnits;

  static constexpr unsigned table_of_level(unsigned level) {
    return level == 0 ? kLower : level == 1 ? kMiddle : kUpper;
  }
  /// Where a level begins in its table.
  static constexpr std::size_t offset_of_level(unsigned level, std::size_t capacity) {
    std::size_t offset = 0;
    if (level < 2) return offset;
    for (unsigned above = level + 1; above < Index::levels_for(capacity); ++above) {
      offset += Index::level_bytes(above, capacity);
    }
    return offset;
  }
  /// Bytes of the table that units [0, units) of at most `capacity` need.
  static constexpr std::size_t bytes(unsigned table, std::size_t capacity, std::size_t units) {
    if (table == kRows) return (entries(units, kRowUnits) * kSets + units) * 8;
    const unsigned level = level_of(table);
    if (level >= Index::levels_for(capacity)) return 0;
    return offset_of_level(level, capacity) + Index::level_bytes(level, units);
  }
  /// The most units that the first `bytes` of the table are enough for.
  static constexpr std::size_t units_within(unsigned table, std::size_t capacity, std::size_t bytes) {
    const std::size_t before = table == kRows ? 0 : offset_of_level(level_of(table), capacity);
    return bytes < before ? 0 : (bytes - before) / entry_bytes(table) * units_of_entry(table);
  }
  /// The first unit whose entry begins at `bytes` or behind.
  static constexpr std::size_t units_behind(unsigned table, std::size_t capacity, std::size_t bytes) {
    return units_within(table, capacity, bytes + entry_bytes(table) - 1);
  }

 private:
  static constexpr unsigned level_of(unsigned table) {
    return table == kUpper ? 2 : table == kMiddle ? 1 : 0;
  }
  static constexpr std::size_t entries(std::size_t units, std::size_t of) { return (units + of - 1) / of; }
  static constexpr std::size_t entry_bytes(unsigned table) {
    return table == kRows ? kRowWords * 8 : Index::level_bytes(0, 1);
  }
  static constexpr std::size_t units_of_entry(unsigned table) {
    std::size_t units = Index::kFan;
    for (unsigned level = table == kRows ? 0 : level_of(table); level != 0; --level) units *= Index::kFan;
    return table == kRows ? kRowUnits : units;
  }
};

}  // namespace spanalloc::coalescing
