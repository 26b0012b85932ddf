// What can be chosen about the engine, each choice a type. The paper's numbers; DESIGN.md beside this file
// says where it gives none.
#pragma once

#include <cstddef>

#include "base/bits.hpp"

namespace spanalloc {

/// The allocator of the paper, with locks.
struct Supermalloc {
  static constexpr const char* kName = "supermalloc";
  /// A thread keeps two lists a bin, each of up to so many bytes (section 8), and of at least one object.
  static constexpr std::size_t kThreadListBytes = 8 * kKiB;
  /// A CPU keeps two chains of such lists a bin, and all of them together keep one for each CPU.
  static constexpr std::size_t kChainBytes = 1 * kMiB;
  /// Whether what a critical section will touch is asked for before its lock is taken (section 8).
  static constexpr bool kPrefetch = true;
  /// Whether objects come from the fullest folio that has one free, or from the one that was used last, by an
  /// allocation or a free.
  static constexpr bool kFullestFit = true;
  /// Whether large objects begin at a random cache line of their first page (section 5).
  static constexpr bool kRandomOffset = true;
};

}  // namespace spanalloc
