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
  static constexpr unsigned kGranuleBits = 16;  // the arena is counted in granules of 64 KiB
  static constexpr unsigned kMaxOrder = 2;      // log2 of the granules of a span of several blocks, at most
  static constexpr unsigned kMinBlocks = 8;     // of a span of several blocks
  /// Of a real span of several blocks at most so much is no block: its tail, and its granules' records.
  static constexpr std::size_t kMostOverheadPercent = 3;
  static constexpr HugePages kHugePages = HugePages::kKernelDefault;

  // --- Size classes ----------------------------------------------------------------------------------------
  static constexpr std::size_t kMaxSmall = 512;  // up to here a class every 16 bytes
  static constexpr unsigned kStepsPerDoubling = 8;
  static constexpr std::size_t kMaxListed = 32 * kKiB;  // largest block of a span with several blocks
  static constexpr std::size_t kMaxBlock = 1 * kMiB;    // larger objects have no class of their own size
  /// Classes 1 .. kThreadClasses keep their hot lists in thread-local storage, as many as fit
  /// (thread_state.hpp); those up to kMaxListed keep them in the LAB.
  static constexpr unsigned kThreadClasses = 42;  // up to 1,280 bytes

  // --- When spans move -------------------------------------------------------------------------------------
  /// A parked span becomes reusable when so many thousandths of its blocks are free: 1/8. The paper's 80 %
  /// keeps spans floating for long, which costs memory; below 1/8 the slow path that makes a span hot again
  /// is no longer paid back.
  static constexpr std::uint32_t kReusablePermille = 125;
  /// Frees of another thread's blocks are gathered while they fall into one span, up to this many.
  static constexpr std::uint32_t kMaxRun = 16;
  /// What a row of the span-pool keeps for a core; beyond it spans go down to the page layer. The rows of
  /// spans of one block are many, and a program with such objects uses them all: each of them keeps less.
  static constexpr std::size_t kPoolBytesARow = 2 * kMiB;
  static constexpr std::size_t kPoolBytesARowOfSingles = 512 * kKiB;  // or one span
  /// Below this a block that must move is copied: moving pages costs system calls, and leaves pieces of the
  /// arena as mappings of their own for as long as the block lives.
  static constexpr std::size_t kMoveAtLeast = 1 * kMiB;
};

/// Each free of another thread's block goes to its span at once.
struct StandardNoRuns : Standard {
  static constexpr const char* kName = "standard-no-runs";
  static constexpr std::uint32_t kMaxRun = 1;
};

/// The paper's reusability threshold: four fifths of a span's blocks must be free.
struct StandardReuse80 : Standard {
  static constexpr const char* kName = "standard-reuse-80";
  static constexpr std::uint32_t kReusablePermille = 800;
};

}  // namespace spanalloc
