// Whether a number is a multiple of another, by one multiplication and one
// comparison in place of a division.
#pragma once

#include <cstdint>

#include "base/bits.hpp"

namespace spanalloc {

/// A multiplier M with: x % d == 0 exactly when uint64(x * M) < M, for all x < 2^64 / d^2 (D.
/// Lemire, O. Kaser, N. Kurz, "Faster remainder by direct computation", SPE 2019, section 3.2): the
/// least M above 2^64 / d. (Of a power of two 2^64 / d itself would do, but see below.) 1 < d.
constexpr std::uint64_t divisibility_magic(std::uint64_t d) {
  return UINT64_MAX / d + (is_power_of_two(d) ? 2 : 1);
}
/// Limit L with: uint64(x * M) < L exactly when x is one of 0, d, 2d, ... (count - 1) * d. 0 of no
/// multiples. Not only for offsets: for every difference x of two addresses below 2^48, negative
/// ones included, if d <= 2^15 and count * d <= 2^18. With e = M * d - 2^64, 0 < e <= d, so that k
/// * e <= 2^48 and M > 2^49, the product modulo 2^64 of
///   x = k * d, k >= 0          is k * e: it grows with k, and does not wrap
///   x = k * d + r, 0 < r < d   is k * e + r * M, at least M > L, at most 2^64 + e - M + k * e <
///                              2^64
///   x = -k * d, k > 0          is 2^64 - k * e > L
///   x = -k * d - r             is 2^64 - k * e - r * M, at least M - e - k * e > 2^48 - 2^15 > L
/// `magic`: M, divisibility_magic(d).
constexpr std::uint64_t multiple_limit(std::uint64_t d, std::uint64_t magic, std::uint64_t count) {
  return count == 0 ? 0 : (count - 1) * (magic * d) + 1;  // M * d - 2^64 is M * d in 64 bits
}

}  // namespace spanalloc
