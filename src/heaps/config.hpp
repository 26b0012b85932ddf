// What may be tuned in heaps of a program's own, and why so. Sizes are in bytes unless said
// otherwise.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bits.hpp"

namespace spanalloc::heaps {

struct HeapsConfig {
  /// Heaps take memory in slices of 64 KiB: a short heap takes one, of which it touches the pages
  /// that it needs.
  static constexpr unsigned kSliceBits = 16;
  static constexpr std::size_t kSlice = std::size_t{1} << kSliceBits;
  /// A shard's next run is as long as all that it has, up to so many slices.
  static constexpr std::size_t kMostRunSlices = 16;
  /// Blocks of more get slices of their own: at most a fifth of these is no block.
  static constexpr std::size_t kMostShared = 256 * kKiB;
  /// Shards of a heap, at most; no more than CPUs, rounded up to a power of two.
  static constexpr unsigned kMostShards = 32;
  /// A heap gets twice as many shards when a lock was found taken so often.
  static constexpr std::uint32_t kTakenToGrow = 16;
  /// Slices that are purged beyond those that exceed the bound on dirty memory.
  static constexpr std::size_t kPurgedBeyond = 4 * kMiB / kSlice;
  /// What is free, and was for so long, is purged when the next heap ends.
  static constexpr std::uint64_t kEpochMs = 500;
};

}  // namespace spanalloc::heaps
