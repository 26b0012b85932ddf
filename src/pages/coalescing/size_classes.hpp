// Classes of block sizes, for the static controller's index.
//
// Sizes below kExact have a class each. Above, every doubling is cut into kSteps classes. A class
// holds the sizes from its lower bound up to the next class's.
#pragma once

#include <cstddef>

#include "base/bits.hpp"

namespace spanalloc::coalescing {

struct BlockClasses {
  static constexpr unsigned kStepBits = 2;
  static constexpr std::size_t kSteps = std::size_t{1} << kStepBits;
  static constexpr std::size_t kExact = 2 * kSteps;  // where the first doubling in steps begins
  // Everything from 7/8 of 2^30 units on is in the last class
  static constexpr unsigned kMaxSizeBits = 30;
  static constexpr unsigned kCount =
      static_cast<unsigned>(kExact + (kMaxSizeBits - kStepBits - 1) * kSteps);

  /// The class that a block of `size` units belongs to; size > 0.
  static constexpr unsigned of(std::size_t size) {
    if (size < kExact) return static_cast<unsigned>(size);
    if (size >> kMaxSizeBits != 0) return kCount - 1;
    const unsigned doubling = log2_floor(size);
    const std::size_t step = (size >> (doubling - kStepBits)) & (kSteps - 1);
    return static_cast<unsigned>(kExact + (doubling - kStepBits - 1) * kSteps + step);
  }
};
static_assert(BlockClasses::of(1) == 1 && BlockClasses::of(7) == 7 && BlockClasses::of(8) == 8);
static_assert(BlockClasses::of((std::size_t{1} << BlockClasses::kMaxSizeBits) - 1) ==
              BlockClasses::kCount - 1);

}  // namespace spanalloc::coalescing
