// Size-class tables computed at compile time: shared by every engine that has size classes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/bits.hpp"

namespace spanalloc {

/// One size class: blocks of `block_size` bytes, `blocks` of them in a real span of `real_span` bytes, which
/// lies at the start of a virtual span of `virtual_span` bytes (the address space it owns).
/// Equation: header + blocks * block_size + tail = real_span, tail < block_size.
struct SizeClass {
  std::uint32_t block_size = 0;
  std::uint32_t real_span = 0;
  std::uint32_t virtual_span = 0;
  std::uint32_t blocks = 0;

  constexpr std::size_t payload() const { return std::size_t{block_size} * blocks; }
  constexpr std::size_t overhead() const { return real_span - payload(); }
};

/// A multiplier M with: x % d == 0 exactly when uint32(x * M) < M, for all x < 2^32 / d (D. Lemire, O. Kaser,
/// N. Kurz, "Faster remainder by direct computation", SPE 2019, section 3.2): the least M above 2^32 / d. (Of
/// a power of two 2^32 / d itself would do, but see below.)
constexpr std::uint32_t divisibility_magic32(std::uint32_t d) {
  return static_cast<std::uint32_t>((std::uint64_t{1} << 32) / d + 1);
}
/// Limit L with: uint32(x * M) < L exactly when x is one of 0, d, 2d, ... (count - 1) * d, for all x < 2^32 /
/// d and count * d < 2^32 / d: at a multiple i * d the product is i * (M * d - 2^32), which grows with i; at
/// others it is at least M - 1. 0 of no multiples.
constexpr std::uint32_t multiple_limit32(std::uint32_t d, std::uint32_t count) {
  return count == 0 ? 0
                    : (count - 1) * (divisibility_magic32(d) * d) + 1;  // M * d - 2^32 is M * d in 32 bits
}
/// The same with 64 bits: exact for all x < 2^64 / d. d > 1.
constexpr std::uint64_t divisibility_magic64(std::uint64_t d) {
  return UINT64_MAX / d + 1;
}

}  // namespace spanalloc
