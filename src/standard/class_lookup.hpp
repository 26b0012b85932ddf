// How malloc finds the class of a request: by tables. A load from a table costs less than a branch
// that some sizes take and others do not.
#pragma once

#include "standard/free_list.hpp"
#include "standard/size_classes.hpp"

namespace spanalloc::standard {

/// SizeClasses::of() of requests up to kMost, rounded up to steps that divide the block sizes of
/// all their classes; of 0: class 0, which never has a block.
template <class Config, std::size_t kStep, std::size_t kMost>
struct ClassTable {
  std::array<std::uint8_t, kMost / kStep + 1> classes{};

  constexpr ClassTable() {
    for (std::size_t i = 1; i <= kMost / kStep; ++i) {
      classes[i] = static_cast<std::uint8_t>(index_of(SizeClasses<Config>::of(i * kStep)));
    }
  }
  SPANALLOC_INLINE constexpr ClassId operator[](std::size_t n) const {
    return ClassId{classes[(n + kStep - 1) / kStep]};
  }
};

template <class Config>
struct ClassLookup {
  using Classes = SizeClasses<Config>;
  static constexpr std::size_t kStep = 128;
  static constexpr std::size_t kLargeStep = 4 * kKiB;

  /// The largest block whose class is looked up by the byte.
  static constexpr std::size_t kMostByByte = Classes::kTable[Config::kClassesByByte].block_size;
  static constexpr ClassTable<Config, 1, kMostByByte> by_byte{};
  static constexpr ClassTable<Config, kStep, Config::kMaxSmall> small{};
  static constexpr ClassTable<Config, kLargeStep, Config::kMaxBlock> large{};

  static constexpr bool blocks_are_in_steps() {
    for (unsigned c = Config::kClassesByByte; c < Classes::kCount; ++c) {
      const std::size_t step = c < Classes::kSmallClasses ? kStep : kLargeStep;
      if (Classes::kTable[c].block_size % step != 0) return false;
    }
    return true;
  }

  /// By class: the bits that no link to another block of such a span has set.
  static constexpr std::array<std::uint64_t, Classes::kSmallClasses> no_link_bits = [] {
    std::array<std::uint64_t, Classes::kSmallClasses> bits{};
    for (unsigned c = 0; c < bits.size(); ++c) {
      bits[c] = standard::no_link_bits(c == 0 ? kQuantum : Classes::kTable[c].virtual_span);
    }
    return bits;
  }();
};

}  // namespace spanalloc::standard
