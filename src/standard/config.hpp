// What can be chosen about the engine. A config is a type whose constants are the choices.
// size_classes.hpp computes a row for each size class from it, and fails to compile if the choices
// do not fit together.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bits.hpp"
#include "pages/address_range.hpp"

namespace spanalloc {

/// The same in all configs, because the record of a span knows no config.
struct AllSpans {
  static constexpr unsigned kSliceBits = 16;  // the arena is counted in slices of 64 KiB

  // When a span's owner looks at the clock:
  // after so many frees into a current span, or, if frees go on, after twice as many each time,
  static constexpr std::uint32_t kFirstClock = 32;
  static constexpr std::uint32_t kMostClock = 8192;  // up to so many;
  static constexpr std::uint32_t kSoonClock = 16;    // after so many while work waits
};

/// The product.
struct Standard {
  static constexpr const char* kName = "standard";

  // --- Spans -------------------------------------------------------------------------------------
  static constexpr unsigned kSliceBits = AllSpans::kSliceBits;
  static constexpr unsigned kMaxOrder = 2;  // log2 of the most slices of a span of several blocks
  /// A span of several blocks has at least kWantedBlocks; a span of kMaxOrder without room for them
  /// has at least kMinBlocks. (To use a span up and empty it again costs some 2,000 instructions.)
  static constexpr unsigned kWantedBlocks = 16;
  static constexpr unsigned kMinBlocks = 8;
  /// How much of a real span of several blocks may be no block: its tail, and its slices' records.
  static constexpr std::size_t kMostOverheadPercent = 3;
  /// Spans of several blocks begin with so many bytes unused, by their class: see SizeClass::lead.
  static constexpr unsigned kColors = 8;
  static constexpr HugePages kHugePages = HugePages::kAsked;

  // --- Size classes ------------------------------------------------------------------------------
  static constexpr std::size_t kMaxLinear = 512;  // up to here there is a class every 16 bytes
  static constexpr unsigned kStepsPerDoubling = 8;
  // The largest block of a span of several blocks
  static constexpr std::size_t kMaxSmall = 32 * kKiB;
  static constexpr std::size_t kMaxBlock = 1 * kMiB;  // larger objects have no class of their own
  /// Requests up to the block size of this class find their class in a table with an entry a byte.
  static constexpr unsigned kClassesByByte = 41;  // up to 1,152 bytes

  // --- When spans move ---------------------------------------------------------------------------
  /// Spans with free blocks that are not the current one of their class: so many bytes a thread,
  /// beside a span of each class that it has had; and, if their class needs them soon
  /// (give_up_delay.hpp), the thread's part of what all threads may have.
  static constexpr std::size_t kReadyBytes = 512 * kKiB;
  static constexpr std::size_t kAllReadyBytes = 32 * kMiB;
  /// More of them, up to the thread's part of kAllAwayBytes, stay until few of their blocks are
  /// out, or the thread looks what rests. A look gives up so many, in blocks, and for each span so
  /// many more, some tenths of a millisecond; a round over the classes gives up such a part of
  /// those that are too many.
  static constexpr std::uint32_t kReadyPerLook = 1u << 14;
  static constexpr std::size_t kRoundsOfSurplus = 8;
  static constexpr std::uint32_t kCostOfGivingUp = 64;
  /// A thread that is not alone has its part of so many bytes of spans without a free block, and as
  /// much with free ones. When it gets a span for a class, and has more without, it leaves so many
  /// of that class.
  static constexpr std::size_t kAllAwayBytes = 64 * kMiB;
  static constexpr unsigned kLeftPerSearch = 2;
  /// How many entries that are none any more leave the queue of away spans when a span is given up.
  static constexpr unsigned kStalePerLook = 64;
  /// How many of its away spans a thread looks at when it needs a span.
  static constexpr std::uint32_t kAwayPerSearch = 4;
  /// The same where memory is out: a refusal must be quick, and the next one goes on from there.
  static constexpr std::uint32_t kAwayWithoutMemory = 16;
  /// As long as all threads together may have so many bytes in a span for each class, a thread has
  /// one for each class that it needs.
  static constexpr std::size_t kAllOwnedBytes = 16 * kMiB;
  /// Else it is lent blocks: so many at a time, and bytes, or one.
  static constexpr std::uint32_t kMostLent = 16;
  static constexpr std::size_t kBytesLent = 16 * kKiB;
  /// It earns a span of its own with so much credit: 1 for each batch, or so much for a turn, where
  /// it has freed since the last one. It loses the credit if it is lent nothing for so long.
  static constexpr unsigned kCreditToOwn = 64;
  static constexpr unsigned kCreditOfTurn = 16;
  static constexpr std::uint64_t kRestMs = 20;
  /// How many bytes of cached large spans a thread keeps.
  static constexpr std::size_t kCachedLargeBytes = 1 * kMiB;
  /// Its owner takes an away span back when others have freed so many thousandths of its blocks:
  /// 1/8. The paper's 80 % leaves free blocks unused for long, which costs memory; below 1/8 a span
  /// does not repay its slow path.
  static constexpr std::uint32_t kPartialPermille = 125;
  /// Frees of other threads' blocks wait in batches, one a span, of up to so many, and bytes.
  static constexpr std::uint32_t kMaxBatch = 32;
  static constexpr std::size_t kBytesInBatch = 32 * kKiB;
  /// In all threads' batches together there are up to so many bytes, an equal part for each thread.
  /// Nobody can use them before they are flushed, and a thread may stop running first.
  static constexpr std::size_t kBatchBytes = 32 * kMiB;
  /// A thread that only frees takes a cache record with so many frees of others' blocks, for its
  /// batches.
  static constexpr std::uint8_t kFreesForCache = 16;
  /// A thread takes a map with so many calls that it would have served: one that makes few needs
  /// no page.
  static constexpr std::uint8_t kMissesForMap = 64;
  /// What a row of the pool keeps for a shard until the next decay epoch; what exceeds it goes down
  /// to the page layer. It is so much that a program whose live memory comes and goes by tens of
  /// MiB finds its spans as it left them. A request for another size gets their memory before clean
  /// memory is touched (Heap::drain_for). Spans of one block have many rows, and one program uses
  /// them all: each keeps less.
  static constexpr std::size_t kPoolBytesPerRow = 64 * kMiB;
  static constexpr std::size_t kPoolBytesPerLargeRow = 512 * kKiB;  // or one span
  /// A smaller block that must move is copied: to move its pages out of the arena costs system
  /// calls, and makes it a mapping of its own for the rest of its life.
  static constexpr std::size_t kMoveAtLeast = 1 * kMiB;
  /// Blocks outside the arena: each is one of the 65,530 mappings that a process may have.
  static constexpr std::size_t kMostOutside = 16384;
  /// The most room that a block outside the arena keeps when it shrinks.
  static constexpr std::size_t kMostKeptOutside = 32 * kMiB;

  /// A larger block outside that is freed does not make the next one a copy: for it memory matters
  /// more than time.
  static constexpr std::size_t kMostThatComesBack = 32 * kMiB;

  // --- How many there may be on a page layer -----------------------------------------------------
  static constexpr std::uint32_t kMostCaches = 1u << 18;
  /// Threads beyond these find their own spans by the records alone, which takes longer.
  static constexpr std::size_t kMostMaps = 1u << 14;

  // --- What a miss of the pool looks at ----------------------------------------------------------
  // Bounded: a thousand idle threads must not make each fresh span expensive.
  static constexpr std::uint32_t kCachesPerMiss = 16;
  static constexpr unsigned kShardsPerMiss = 4;  // to drain them
  /// What a shard's stacks must hold before they are drained for another size.
  static constexpr std::size_t kWorthDraining = 2 * kMiB;
  /// What a miss drains for each slice that it wants, in PoolRows' units; more for huge blocks,
  /// whose slices must lie in a row.
  static constexpr std::size_t kDrainedPerSlice = 12;
  static constexpr std::size_t kDrainedPerHugeSlice = 32;

  // --- When memory goes back to the kernel (memory_return.hpp) -----------------------------------
  // What a decay epoch does at its beginning, and then with each call of a thread that passes by.
  static constexpr std::uint32_t kCachesPerEpoch = 64;  // whose cached large spans it takes
  static constexpr std::size_t kDrainedPerCall = 16;    // of the pool, as above
  static constexpr std::size_t kPurgedPerCall = 64 * kMiB;
  /// Near the soft limit, of the pool.
  static constexpr std::size_t kDrainedNearLimit = 1024;
  /// Spent on the pages of abandoned spans, in PartialPurge's units; half a millisecond.
  static constexpr std::size_t kPartsPurgedPerCall = 1u << 16;
  /// Of these, for a record, and the arena's word for it, that are in no CPU cache.
  static constexpr std::size_t kCostOfRecord = 8;
  /// How many such calls the background thread makes before it waits again.
  static constexpr unsigned kMostPartsOfAnEpoch = 1u << 16;
  /// Below this limit so little can be free that no background thread need watch it.
  static constexpr std::size_t kWorthBackground = 4 * kMiB;
  /// The longest time, but for one epoch, that it outlives the program's last thread.
  static constexpr std::uint64_t kLongestWaitMs = 1000;
  /// What exceeds the bound on dirty memory is purged by the frees that follow, at least so much at
  /// a time.
  static constexpr std::size_t kPurgedPerFree = 4 * kMiB;
  /// How often one free purges what other threads' frees have left, its own part among them, and
  /// how much at a time.
  static constexpr unsigned kMostPartsOfAFree = 32;
  static constexpr std::size_t kPurgedPerTurn = 16 * kMiB;
  /// From this size on large blocks are looked at: is little of them in memory? From kGiant on
  /// memory counts for more than time (large_habits.hpp).
  static constexpr std::size_t kLookAtLeast = 8 * kMiB;
  static constexpr std::size_t kGiant = 32 * kMiB;
  // In 256ths of a block in use: looks that differ by less may have found the same; from there on
  // clearing takes less time than the page faults after a purge.
  static constexpr std::size_t kScatter = 8;
  static constexpr std::size_t kQuickerCleared = 10;
  // The clearing that purges, whatever the look says.
  static constexpr unsigned kClearings = 64;
  static constexpr unsigned kGiantClearings = 16;
  // After so many giant blocks of zeroes in a row so many are not looked at.
  static constexpr std::uint32_t kZeroesInARow = 8;
  static constexpr std::uint32_t kZeroesUnseen = 63;
  // Idle memory around large blocks (slack_bound.hpp): how much there may be, and the credit with
  // which more is given back.
  static constexpr std::size_t kSlackAlways = 4 * kMiB;
  static constexpr std::size_t kSlackPartOfLive = 16;
  static constexpr std::size_t kSlackPerMs = 32 * kKiB;
  static constexpr std::size_t kSlackByTime = 32 * kMiB;
  /// Near the soft limit so much is worth a call.
  static constexpr std::size_t kSlackNearLimit = 4 * kKiB;

  // The soft limit (memory_return.hpp): how often the control group is read, far from it and near.
  static constexpr std::uint64_t kReadGroupMs = 1000;
  static constexpr std::uint64_t kReadGroupNearMs = 100;
  // The program's function is called that seldom because of the time that passes.
  static constexpr std::uint64_t kLeastBetweenCallsMs = 100;

  // --- What a thread keeps, and when it looks ----------------------------------------------------
  /// Blocks of a page and more that are carved at a time where that costs no page fault.
  static constexpr std::uint32_t kCarvedWhereUsed = 4;
  /// Hints at abandoned spans that one search follows: a bound on its time.
  static constexpr std::uint32_t kHintsPerSearch = 16;
  /// Of a current span that has carved no more a thread does not look whether it is giving it up.
  static constexpr std::size_t kLittleForCurrent = 28 * kKiB;
  /// How often a thread looks at a span again that it may be giving up.
  static constexpr std::uint32_t kLooksAtCurrent = 2;
  /// A class that needs a span so soon after it has given one up should have kept it.
  static constexpr std::uint64_t kNeededSoonMs = 20;
  /// Its spans then stay at most so many times; 2^n - 1.
  static constexpr unsigned kMostGiveUpDelay = 127;
  /// So many misses come between two looks for current spans that have rested; so many spans a look
  /// takes; and so long a round over all of them lasts at least.
  static constexpr std::uint32_t kMissesPerLook = 16;
  static constexpr unsigned kCurrentSpansPerLook = 8;
  static constexpr std::uint64_t kRoundOfCurrentMs = 200;
  /// A thread that has not read the clock for so long reads it again soon.
  static constexpr std::uint64_t kSeldomMs = 64;
};

/// A variant without batches: each free of another thread's block goes to its span at once. (But
/// where a thread is lent blocks.)
struct StandardNoBatches : Standard {
  static constexpr const char* kName = "standard-no-runs";
  static constexpr std::uint32_t kMaxBatch = 1;
};

/// A variant with the paper's reusability threshold: four fifths of a span's blocks must be free.
struct StandardReuse80 : Standard {
  static constexpr const char* kName = "standard-reuse-80";
  static constexpr std::uint32_t kPartialPermille = 800;
};

/// A variant whose spans all begin at the same cache line.
struct StandardOneColor : Standard {
  static constexpr const char* kName = "standard-one-color";
  static constexpr unsigned kColors = 1;
};

}  // namespace spanalloc
