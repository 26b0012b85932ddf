// What can be chosen about the engine, each choice a type. DESIGN.md beside this file tells why
// these values: the report gives none.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bits.hpp"

namespace spanalloc {

namespace a2alloc {
/// Told of every step. A config may name a type with the same functions that counts
/// them; this one does not.
struct NoObserver {
  static void looks_at_superblock() {}
  static void looks_at_free_block() {}
  static void adds_superblock() {}
  static void evicts_superblock() {}
  static void books_out_of_reach() {}  // under the global heap's lock: a purge has taken pieces
  static void purges() {}
};
}  // namespace a2alloc

/// The report's allocator as it was built.
struct A2allocReport {
  static constexpr const char* kName = "a2alloc-report";
  /// Size of a superblock: 2^16 bytes. Objects above half of it are large.
  static constexpr unsigned kSuperblockBits = 16;
  /// K: a heap of at most so many superblocks keeps them all.
  static constexpr std::size_t kKeep = 8;
  /// F, in percent: a heap whose used space over its free space is at least this keeps its
  /// superblocks. 300: three quarters in use.
  static constexpr std::size_t kUsedOverFreePercent = 300;
  /// Whether each thread has a heap of its own, or all of them one.
  static constexpr bool kHeapPerThread = true;
  /// Whether an allocation moves its superblock to the front of the heap's list.
  static constexpr bool kMoveToFront = true;
  /// Whether a superblock holds blocks of one size class only.
  static constexpr bool kSizeClasses = false;
  /// Lists of superblocks by how full they are, searched from the fullest on. 1:
  /// one list in order of use.
  static constexpr unsigned kFullnessGroups = 1;
  /// Whether the records of many heaps share a superblock, or each takes up one of its own.
  static constexpr bool kShareHeapRecords = false;
  /// Whether what is free and in memory is bounded. The report gives none back.
  static constexpr bool kBoundsWhatIsFree = false;
  using Observer = a2alloc::NoObserver;
};

/// The product.
struct A2alloc : A2allocReport {
  static constexpr const char* kName = "a2alloc";
  static constexpr bool kBoundsWhatIsFree = true;
};

/// One thing each of what the report leaves for later.
struct A2allocSizeClasses : A2allocReport {
  static constexpr const char* kName = "a2alloc-size-classes";
  static constexpr bool kSizeClasses = true;
  // Each class in use needs a superblock, so a thread that uses little memory has more of them.
  static constexpr std::size_t kKeep = 32;
};
struct A2allocFullestFirst : A2allocReport {
  static constexpr const char* kName = "a2alloc-fullest-first";
  static constexpr unsigned kFullnessGroups = 4;
};
struct A2allocSharedRecords : A2allocReport {
  static constexpr const char* kName = "a2alloc-shared-records";
  static constexpr bool kShareHeapRecords = true;
};

/// All of it together.
struct A2allocClasses : A2allocSizeClasses {
  static constexpr const char* kName = "a2alloc-classes";
  static constexpr unsigned kFullnessGroups = 4;
  static constexpr bool kShareHeapRecords = true;
};

/// What the report compares itself with: one heap, one lock (and that of the large objects), first
/// fit; what the heap has it keeps.
struct Kheap : A2allocReport {
  static constexpr const char* kName = "kheap";
  static constexpr std::size_t kKeep = SIZE_MAX;
  static constexpr bool kHeapPerThread = false;
  static constexpr bool kMoveToFront = false;
};

namespace a2alloc {

template <class Config>
inline constexpr std::size_t kSuperblockBytes = std::size_t{1} << Config::kSuperblockBits;
/// The largest size that comes from a superblock; also what alignment adds may
/// not exceed half of that.
template <class Config>
inline constexpr std::size_t kLargestInSuperblock = kSuperblockBytes<Config> / 2;
/// Objects above this are not kept for reuse: each is a mapping of its own.
inline constexpr std::size_t kLargestInGlobalHeap = 256 * kMiB;

}  // namespace a2alloc
}  // namespace spanalloc
