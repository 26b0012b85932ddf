// The product's numbers: bounds and thresholds. What follows from them, a row for each size class, is
// computed in size_classes.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bits.hpp"

namespace spanalloc::standard {

inline constexpr unsigned kGranuleBits = 16;
inline constexpr std::size_t kGranule = std::size_t{1} << kGranuleBits;
inline constexpr unsigned kMaxOrder = 2;  // of a span of several blocks

inline constexpr std::size_t kQuantum = 16;
inline constexpr std::size_t kMaxSmall = 512;
inline constexpr unsigned kSmallClasses = kMaxSmall / kQuantum;  // classes 1 .. kSmallClasses
inline constexpr unsigned kStepsPerDoubling = 8;
inline constexpr std::size_t kMaxListed = 32 * kKiB;  // largest block of a span with several blocks
inline constexpr std::size_t kMaxBlock = 1 * kMiB;    // larger objects have no class of their own size
inline constexpr std::size_t kMaxGranules = kMaxBlock / kGranule;  // of a span with a class
inline constexpr unsigned kClasses =
    1 + kSmallClasses + (log2_floor(kMaxBlock) - log2_floor(kMaxSmall)) * kStepsPerDoubling;
inline constexpr unsigned kFirstSingle =
    1 + kSmallClasses + (log2_floor(kMaxListed) - log2_floor(kMaxSmall)) * kStepsPerDoubling;
// Classes 1 .. kThreadClasses keep their hot lists in thread-local storage, as many as fit
// (thread_state.hpp); classes kThreadClasses+1 .. kFirstSingle-1 keep them in the LAB.
inline constexpr unsigned kThreadClasses = 42;  // up to 1,280 bytes
inline constexpr unsigned kLabClasses = kFirstSingle - kThreadClasses - 1;
/// The class of objects above kMaxBlock: one block in a span of as many granules as it needs.
inline constexpr unsigned kLargeClass = kClasses;
// Below this a block that must move is copied: moving pages costs system calls, and leaves pieces of the
// arena as mappings of their own for as long as the block lives.
inline constexpr std::size_t kMoveAtLeast = kMaxBlock;
// Rows of the span-pool: spans of one granule; naturally aligned ones of 2 and 4; others of 2 .. 16 granules.
inline constexpr unsigned kPoolRows = 1 + kMaxOrder + kMaxGranules - 1;
// What a row of the pool keeps for a core; beyond it spans go down to the page layer. The rows of spans of
// one block are many (2 .. 16 granules), and a program with such objects uses them all: each of them keeps
// less.
inline constexpr std::size_t kPoolBytesARow = 2 * kMiB;
inline constexpr std::size_t kPoolBytesARowOfSingles = 512 * kKiB;  // or one span
inline constexpr unsigned kMinBlocks = 8;  // blocks of a span that is not a single-block span, at least
inline constexpr std::size_t kPageForTail = 4 * kKiB;  // real spans end on such a boundary
// Of a real span of several blocks at most so much is no block: its tail, and its granules' records.
inline constexpr std::size_t kMostOverheadPercent = 3;
inline constexpr std::size_t kRecordBytes = 64;  // span.hpp

// A parked span becomes reusable when 1/8 of its blocks is free. The paper's 80 % keeps spans floating for
// long, which costs memory; below 1/8 the slow path that makes a span hot again is no longer paid back.
inline constexpr std::uint32_t kReuseFraction = 8;

// Frees of another thread's blocks are gathered while they fall into one span, up to this many.
inline constexpr std::uint32_t kMaxRun = 16;

}  // namespace spanalloc::standard
