// What can be chosen about the engine, each choice a type. The paper's numbers; DESIGN.md beside
// this file says where it gives none.
#pragma once

#include <cstddef>

#include "base/bits.hpp"

namespace spanalloc {

/// The allocator of the paper, with locks.
struct Supermalloc {
  static constexpr const char* kName = "supermalloc";
  /// A thread keeps two lists a bin, each of up to so many bytes (section 8),
  /// and of at least one object.
  static constexpr std::size_t kThreadListBytes = 8 * kKiB;
  /// A CPU keeps two chains of such lists a bin, and all of them together keep one for each CPU.
  static constexpr std::size_t kChainBytes = 1 * kMiB;
  /// Whether what a critical section will touch is asked for before its lock is taken (section 8).
  static constexpr bool kPrefetch = true;
  /// Whether objects come from the fullest folio that has one free (section 3), or from the one at
  /// the lowest address (first fit, as in jemalloc), an empty one only where no other has an object
  /// free; that one is found by a walk, which bounds nothing.
  static constexpr bool kFullestFit = true;
  /// Whether medium sizes are prime numbers of cache lines (section 4), or powers of two.
  static constexpr bool kPrimeSizes = true;
  /// Whether large objects begin at a random cache line of their first page (section 5).
  static constexpr bool kRandomOffset = true;
  /// Whether each CPU has caches of its own, or all of them those of one (section 8).
  static constexpr bool kCpuCaches = true;
  /// Whether there is a global cache between the CPUs' caches and the folios (section 8).
  static constexpr bool kGlobalCache = true;
  /// What small sizes below 64 bytes are multiples of, and every object is aligned
  /// to: what C asks of malloc.
  static constexpr std::size_t kQuantum = 16;
};

// --- The same with one choice made otherwise: what it is worth -----------------------------------

struct SupermallocNoPrefetch : Supermalloc {
  static constexpr const char* kName = "supermalloc-no-prefetch";
  static constexpr bool kPrefetch = false;
};

struct SupermallocFirstFit : Supermalloc {
  static constexpr const char* kName = "supermalloc-first-fit";
  static constexpr bool kFullestFit = false;
};

struct SupermallocPowersOfTwo : Supermalloc {
  static constexpr const char* kName = "supermalloc-powers-of-two";
  static constexpr bool kPrimeSizes = false;
};

struct SupermallocNoOffset : Supermalloc {
  static constexpr const char* kName = "supermalloc-no-offset";
  static constexpr bool kRandomOffset = false;
};

struct SupermallocNoCpuCaches : Supermalloc {
  static constexpr const char* kName = "supermalloc-no-cpu-caches";
  static constexpr bool kCpuCaches = false;
};

struct SupermallocNoGlobalCache : Supermalloc {
  static constexpr const char* kName = "supermalloc-no-global-cache";
  static constexpr bool kGlobalCache = false;
};

/// Bins of 24, 40 and 56 bytes, as the paper will have them: aligned to 8 bytes (section 3,
/// its third option). What asks malloc for 17 bytes or more and relies on 16, as SSE
/// instructions do, fails with it.
struct SupermallocAlignedTo8 : Supermalloc {
  static constexpr const char* kName = "supermalloc-aligned-to-8";
  static constexpr std::size_t kQuantum = 8;
};

}  // namespace spanalloc
