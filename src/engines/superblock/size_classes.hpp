// Size classes, for the configs that have them. Class 0 is none: a superblock of class 0 holds blocks of any
// size. The others: multiples of 16 bytes up to 128, then four to each doubling, up to 1/16 of a superblock,
// so that about that much of a superblock is wasted behind its last block at most.
#pragma once

#include <cstddef>

#include "base/bits.hpp"
#include "engines/superblock/config.hpp"

namespace spanalloc::superblock {

inline constexpr unsigned kAnySize = 0;

/// Bytes for the caller in a block of a class above 0.
constexpr std::size_t class_bytes(unsigned size_class) {
  if (size_class <= 8) return size_class * std::size_t{16};
  const unsigned step = size_class - 9;
  return std::size_t{5 + step % 4} << (5 + step / 4);
}

/// The class above 0 whose blocks hold n bytes and waste least.
constexpr unsigned class_holding(std::size_t n) {
  if (n <= 128) return n <= 16 ? 1 : static_cast<unsigned>((n + 15) / 16);
  const unsigned log = log2_floor(n - 1);
  return 9 + (log - 7) * 4 + static_cast<unsigned>(((n - 1) >> (log - 2)) & 3);
}

template <class Config>
inline constexpr std::size_t kLargestClassBytes = kSuperblockBytes<Config> / 16;
/// Number of classes, class 0 included.
template <class Config>
inline constexpr unsigned kClassCount =
    Config::kSizeClasses ? class_holding(kLargestClassBytes<Config>) + 1 : 1;

/// The class that serves requests for n bytes.
template <class Config>
constexpr unsigned class_of(std::size_t n) {
  return Config::kSizeClasses && n <= kLargestClassBytes<Config> ? class_holding(n) : kAnySize;
}

static_assert(class_bytes(class_holding(129)) == 160 && class_bytes(class_holding(4096)) == 4096);

}  // namespace spanalloc::superblock
