// What may be tuned in src/pages: how much, how long, how often, and why so. Sizes are in bytes
// unless said otherwise; what follows from layouts and encodings stands where these are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bits.hpp"

namespace spanalloc {

struct PagesConfig {
  // --- Address space (address_range.hpp, page_calls.hpp, guarded_table.hpp) ---

  /// Bits of a range's size: the least that is of use, and what is taken when every reservation
  /// was refused though there is no limit.
  static constexpr unsigned kMinBits = 30;
  static constexpr unsigned kUnreservedBits = 36;
  /// The largest step ahead of need; under a limit, this part of it: what is open ahead is missing
  /// for everything else.
  static constexpr std::size_t kMostStep = 16 * kMiB;
  static constexpr std::size_t kStepPartUnderLimit = 16;
  /// From here on the kernel is asked first: a mapping that is not charged is granted at any size.
  static constexpr std::size_t kAskFirst = kGiB;
  /// Draws of a place, before the next window is tried.
  static constexpr unsigned kDraws = 16;
  /// Pieces of foreign mappings that are remembered one by one, of a range and of a table.
  static constexpr unsigned kMostSkips = 8;
  static constexpr unsigned kMostTableGaps = 16;
  /// A table's steps, and what is mapped ahead of them: each saves calls of the kernel.
  static constexpr std::size_t kTableStep = 64 * kKiB;
  static constexpr std::size_t kTableAhead = kMiB;

  // --- Searches for free blocks (coalescing/) ---

  /// Blocks of a list that are looked at: before larger sizes, and before memory is opened.
  static constexpr unsigned kQuickTries = 8;
  static constexpr unsigned kThoroughTries = 64;
  /// Units, at most, that are searched for dirty ones where the answer need not be exact.
  static constexpr std::size_t kWorthLooking = 64 * 64;
  /// Searches more while other threads hold free blocks: one may be about to publish what is
  /// wanted.
  static constexpr unsigned kLooksAgain = 3;

  // --- Out of memory (coalescing_arena.hpp, arena/) ---

  /// A range of this size is worth a call that decommits it; and at least so much is recommitted.
  static constexpr std::size_t kWorthDecommitting = kMiB;
  /// Decommitted ranges at once. Each is a hole in a mapping: a process may have 65,530 mappings.
  static constexpr std::size_t kMostDecommitted = 16384;
  /// Of what is open: a smaller part is not decommitted, so that about so many holes are made.
  static constexpr std::size_t kHoles = 1024;
  /// At limit memory that comes back is decommitted when it is this part of what is open.
  static constexpr std::size_t kComeBackPart = 8;
  /// A decommitted range that somebody else has mapped over is given up up to this size.
  static constexpr std::size_t kLostIfTaken = 16 * kMiB;
  /// How long a "no" to decommitting stands; and twice as long after each time in vain, at most so.
  static constexpr std::uint64_t kDeniedMs = 100;
  static constexpr std::uint64_t kMostVainMs = 6400;
  /// A refusal of more than this beyond what is open shows no limit.
  static constexpr std::size_t kReasonable = 64 * kMiB;
  /// By this part of what is needed more must be free, before it is decommitted in vain once more.
  static constexpr std::size_t kClearlyMorePart = 8;
  /// A limit is looked for from this much open memory on, each time that this part more is open, by
  /// asking for so many times as many addresses, this much at most.
  static constexpr std::size_t kFirstLookForLimit = 4 * kMiB;
  static constexpr std::size_t kLookPart = 8;
  static constexpr std::size_t kLookAhead = 16;
  static constexpr std::size_t kMostLookedFor = kGiB;
  /// Pieces without metadata; moved ranges whose place is not mapped; mappings that may have grown
  /// over decommitted slices. More are refused.
  static constexpr unsigned kMostGaps = 64;
  static constexpr unsigned kMostUnmapped = 8;
  static constexpr unsigned kMostGrown = 8;

  // --- Purging (address_range.hpp) ---

  /// Free memory from this size on is mapped anew when it is purged.
  static constexpr std::size_t kLeastRenewed = kMiB;

  // --- Huge pages (huge_page_advice.hpp) ---

  /// On x86-64, and on 64-bit Arm with pages of 4 KiB.
  static constexpr std::size_t kHugePage = 2 * kMiB;
  /// A heap with less open is given no advice by "auto".
  static constexpr std::size_t kLeastAdvised = 64 * kMiB;
  /// Of its pages, in memory: then it is dense.
  static constexpr std::size_t kDensePermille = 950;
  /// A probe's age at which it is looked at.
  static constexpr std::uint64_t kStaysMs = 500;
  static constexpr unsigned kLooksAnEpoch = 4;
  /// A probe's answer holds for this part of what is open: so much can turn out sparse.
  static constexpr std::size_t kAnswerPart = 16;
  /// After so many calls that take advice back each takes back so many huge pages' at a time: each
  /// can make two mappings more.
  static constexpr std::uint32_t kOftenTakenBack = 4096;
  static constexpr std::size_t kTakenBackAtOnce = 32;

  // --- Dirty memory (dirty_bound.hpp) ---

  /// What may be dirty whatever is live, and what regret adds at most.
  static constexpr std::size_t kDirtyAlways = 32 * kMiB;
  static constexpr std::size_t kMostRegretted = 256 * kMiB;

  // --- Others ---

  /// Places of a large range that are looked at for contents, in turn another page of each.
  static constexpr std::size_t kSamples = 16;
  /// Pieces of gaps that a bump arena keeps of each order; others are lost, as addresses only.
  static constexpr unsigned kKeptPerOrder = 8;
  /// Blocks put off that one call of malloc frees: none shall take long for it.
  static constexpr std::size_t kFreedAtOnce = 64;
};

}  // namespace spanalloc
