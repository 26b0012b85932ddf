// What can be chosen about the engine, each choice a type. What follows from it, a row for each size class,
// is computed in size_classes.hpp, and what does not fit together fails there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bits.hpp"
#include "pages/address_range.hpp"

namespace spanalloc {

/// The product.
struct Standard {
  static constexpr const char* kName = "standard";

  // --- Spans -----------------------------------------------------------------------------------------------
  static constexpr unsigned kSliceBits = 16;  // the arena is counted in slices of 64 KiB
  static constexpr unsigned kMaxOrder = 2;    // log2 of the slices of a span of several blocks, at most
  /// A span of several blocks has at least so many; one of kMaxOrder, if that has no room for them, at least
  /// kMinBlocks. (To use a span up and empty it again costs some 2,000 instructions.)
  static constexpr unsigned kWantedBlocks = 16;
  static constexpr unsigned kMinBlocks = 8;
  /// Of a real span of several blocks at most so much is no block: its tail, and its slices' records.
  static constexpr std::size_t kMostOverheadPercent = 3;
  static constexpr HugePages kHugePages = HugePages::kAsked;

  // --- Size classes ----------------------------------------------------------------------------------------
  static constexpr std::size_t kMaxLinear = 512;  // up to here a class every 16 bytes
  static constexpr unsigned kStepsPerDoubling = 8;
  static constexpr std::size_t kMaxSmall = 32 * kKiB;  // largest block of a span with several blocks
  static constexpr std::size_t kMaxBlock = 1 * kMiB;   // larger objects have no class of their own size
  /// The class of a request up to the block size of this class is read from a table with an entry a byte.
  static constexpr unsigned kClassesByByte = 41;  // up to 1,152 bytes

  // --- When spans move -------------------------------------------------------------------------------------
  /// Spans that a thread has used up stay hot beside those that it allocates from, so many bytes of them.
  static constexpr std::size_t kUsedUpBytes = 512 * kKiB;
  /// What a thread keeps of spans of one block.
  static constexpr std::size_t kCachedLargeBytes = 1 * kMiB;
  /// A parked span becomes reusable when so many thousandths of its blocks are free: 1/8. The paper's 80 %
  /// keeps spans nearly full for long, which costs memory; below 1/8 the slow path that makes a span hot
  /// again is no longer paid back.
  static constexpr std::uint32_t kPartialPermille = 125;
  /// Frees of another thread's blocks are batched span by span, up to this many.
  static constexpr std::uint32_t kMaxBatch = 32;
  /// And each thread up to its part of so many bytes. Nobody can use them before they are given back, and a
  /// thread may fall asleep first.
  static constexpr std::size_t kBatchBytes = 32 * kMiB;
  /// What a row of the span-pool keeps for a core until the next tick; beyond it spans go down to the page
  /// layer. So much that a program whose live memory comes and goes by tens of MiB finds its spans as it left
  /// them; who needs another size gets them before memory is touched that was not (Heap::drain_for). The rows
  /// of spans of one block are many, and a program with such objects uses them all: each of them keeps less.
  static constexpr std::size_t kPoolBytesARow = 64 * kMiB;
  static constexpr std::size_t kPoolBytesARowOfSingles = 512 * kKiB;  // or one span
  /// Below this a block that must move is copied: to move its pages out of the arena costs system calls, and
  /// makes it a mapping of its own for as long as it lives.
  static constexpr std::size_t kMoveAtLeast = 1 * kMiB;
};

/// Each free of another thread's block goes to its span at once.
struct StandardNoRuns : Standard {
  static constexpr const char* kName = "standard-no-runs";
  static constexpr std::uint32_t kMaxBatch = 1;
};

/// The paper's reusability threshold: four fifths of a span's blocks must be free.
struct StandardReuse80 : Standard {
  static constexpr const char* kName = "standard-reuse-80";
  static constexpr std::uint32_t kPartialPermille = 800;
};

}  // namespace spanalloc
