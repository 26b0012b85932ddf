// What a block begins with, as calloc and a moving realloc want it.
#pragma once

#include <cstring>

#include "base/compiler.hpp"
#include "standard/numbers.hpp"

namespace spanalloc::standard {

/// A copy of `bytes` bytes, or as many zeros if there is nothing to copy.
struct Fill {
  const void* from = nullptr;
  std::size_t bytes = 0;

  bool is_zero() const { return from == nullptr && bytes != 0; }
  /// `zero`: the block at p reads as zero already.
  SPANALLOC_INLINE void write(void* p, bool zero) const {
    if (from != nullptr) {
      std::memcpy(p, from, bytes);
    } else if (!zero && bytes != 0) {
      std::memset(p, 0, bytes);
    }
  }
};

/// Clears the first bytes of a small block. Blocks are multiples of 16 bytes. For the most common
/// ones a call of memset would take as many instructions as malloc itself.
SPANALLOC_INLINE void clear_block(void* p, std::size_t bytes) {
  static_assert(kQuantum == 16);
  if (SPANALLOC_UNLIKELY(bytes > 8 * kQuantum)) {
    std::memset(p, 0, bytes);
    return;
  }
  // From both ends, which overlap. (A block for 0 bytes has 16.)
  auto* const first = static_cast<char*>(p);
  char* const last = first + ((bytes - (bytes != 0)) & ~(kQuantum - 1));
  std::memset(first, 0, kQuantum);
  std::memset(last, 0, kQuantum);
  if (bytes <= 2 * kQuantum) return;
  std::memset(first + kQuantum, 0, kQuantum);
  std::memset(last - kQuantum, 0, kQuantum);
  if (bytes <= 4 * kQuantum) return;
  std::memset(first + 2 * kQuantum, 0, 2 * kQuantum);
  std::memset(last - 3 * kQuantum, 0, 2 * kQuantum);
}

}  // namespace spanalloc::standard
