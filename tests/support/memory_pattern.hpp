// Content that tells whose block it is: every byte depends on its offset and on a seed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spanalloc::test {

// Thread sanitizer would watch every byte that one thread writes for itself: minutes for nothing.
#define SPANALLOC_UNWATCHED [[gnu::no_sanitize_thread]] inline

SPANALLOC_UNWATCHED unsigned char pattern_byte(std::size_t offset, std::uint64_t seed) {
  return static_cast<unsigned char>((offset + seed) * 0x9E3779B97F4A7C15u >> 56);
}

SPANALLOC_UNWATCHED void fill_pattern(void* block, std::size_t n, std::uint64_t seed) {
  auto* bytes = static_cast<unsigned char*>(block);
  for (std::size_t i = 0; i < n; ++i) bytes[i] = pattern_byte(i, seed);
}

/// Offset of the first byte that is not as filled; `n` when all are.
SPANALLOC_UNWATCHED std::size_t first_mismatch(const void* block, std::size_t n,
                                               std::uint64_t seed) {
  const auto* bytes = static_cast<const unsigned char*>(block);
  for (std::size_t i = 0; i < n; ++i) {
    if (bytes[i] != pattern_byte(i, seed)) return i;
  }
  return n;
}

/// Offset of the first byte that is not zero; `n` when all are.
SPANALLOC_UNWATCHED std::size_t first_nonzero(const void* block, std::size_t n) {
  const auto* bytes = static_cast<const unsigned char*>(block);
  for (std::size_t i = 0; i < n; ++i) {
    if (bytes[i] != 0) return i;
  }
  return n;
}

#undef SPANALLOC_UNWATCHED

}  // namespace spanalloc::test
