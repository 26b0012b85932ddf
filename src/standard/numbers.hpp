// The numbers that name the engine's things, each a type of its own: none is an
// index of another's table.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

#include "base/number.hpp"

namespace spanalloc::standard {

/// Defined in heap.hpp and page_layer.hpp; what they own refers to them.
template <class Config>
class Heap;
template <class Config>
class PageLayer;

/// Every block's size and address is a multiple of this.
inline constexpr std::size_t kQuantum = 16;

/// A span, by the number of its first slice in the arena. Slice 0 is never handed out.
enum class SpanNumber : std::uint32_t { kNone = 0 };
/// A cache record, by its place in the table of all.
enum class CacheNumber : std::uint32_t {};
/// A size class; see size_classes.hpp.
enum class ClassId : std::uint32_t { kNone = 0 };
/// A block, by its offset in its span in quanta, plus one: no division, and never 0.
enum class BlockOffset : std::uint32_t { kNone = 0 };

constexpr BlockOffset as_block_offset(std::uint64_t offset) {
  return BlockOffset{static_cast<std::uint32_t>(offset >> 4) + 1};
}
constexpr std::uint64_t offset_of_block(BlockOffset block) {
  return std::uint64_t{index_of(block) - 1} << 4;
}

/// How many slices.
struct SliceCount {
  std::size_t count = 0;
  friend constexpr auto operator<=>(SliceCount, SliceCount) = default;
};

}  // namespace spanalloc::standard
