// Size classes, for the configs that have them. Class 0 is none: a superblock of class 0
// holds blocks of any size. The others: multiples of 16 bytes up to 128, then four to each
// doubling, up to 1/16 of a superblock, so that about that much of a superblock is wasted
// behind its last block at most.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bits.hpp"
#include "papers/a2alloc/engine/config.hpp"

namespace spanalloc::a2alloc {

/// Which sizes the blocks of a superblock have.
struct SizeClass {
  std::uint8_t number = 0;

  constexpr bool is_any_size() const { return number == 0; }
  /// Bytes for the caller in a block; of a class above 0.
  constexpr std::size_t bytes() const {
    if (number <= 8) return number * std::size_t{16};
    const unsigned step = number - 9u;
    return std::size_t{5 + step % 4} << (5 + step / 4);
  }
  friend bool operator==(SizeClass, SizeClass) = default;
};

inline constexpr SizeClass kAnySize{};

/// The class above 0 whose blocks hold n bytes and waste least.
constexpr SizeClass class_holding(std::size_t n) {
  const auto numbered = [](std::size_t number) {
    return SizeClass{static_cast<std::uint8_t>(number)};
  };
  if (n <= 128) return numbered(n <= 16 ? 1 : (n + 15) / 16);
  const unsigned log = log2_floor(n - 1);
  return numbered(9 + (log - 7) * 4 + (((n - 1) >> (log - 2)) & 3));
}

template <class Config>
inline constexpr std::size_t kLargestClassBytes = kSuperblockBytes<Config> / 16;
/// Number of classes, class 0 included.
template <class Config>
inline constexpr unsigned kClassCount =
    Config::kSizeClasses ? class_holding(kLargestClassBytes<Config>).number + 1u : 1u;

/// The class that serves requests for n bytes.
template <class Config>
constexpr SizeClass class_of(std::size_t n) {
  return Config::kSizeClasses && n <= kLargestClassBytes<Config> ? class_holding(n) : kAnySize;
}

static_assert(class_holding(129).bytes() == 160 && class_holding(4096).bytes() == 4096);

}  // namespace spanalloc::a2alloc
