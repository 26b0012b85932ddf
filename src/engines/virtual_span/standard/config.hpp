// The product's numbers: size classes, spans, thresholds. Every bound is asserted below the table.
//
//   class     block sizes                       real span               virtual span
//   1..32     16, 32, ... 512 (step 16)         64 KiB                  64 KiB
//   33..56    576 .. 4 KiB (8 a doubling)       <= 64 KiB               64 KiB
//   57..80    4.5 KiB .. 32 KiB                 >= 8 blocks             64 KiB to 256 KiB
//   81..120   36 KiB .. 1 MiB                   one block, exactly      64 KiB to 1 MiB, whole granules
//   121       above 1 MiB                       one block               whole granules
//
// A virtual span of several blocks is 2^order granules of 64 KiB, naturally aligned, so that a block's
// address leads to the span's first granule; of a span of one block that is where the block is. A real span
// starts where its virtual span starts. Blocks begin at the span's start with nothing before them: a block of
// size d at index i lies at start + i * d, so it is aligned to every power of two that divides d (up to the
// virtual span's size). Metadata stands in a side table (span.hpp).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/bits.hpp"
#include "base/size_class_generator.hpp"

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

// Frees of another thread's blocks are gathered while they fall into one span, up to this many.
inline constexpr std::uint32_t kMaxRun = 16;

/// Class of a request of n bytes, 1 <= n <= kMaxBlock.
constexpr unsigned class_of(std::size_t n) {
  if (n <= kMaxSmall) return static_cast<unsigned>((n + kQuantum - 1) / kQuantum);
  // With b = floor(log2(n-1)) the steps of the doubling (2^b, 2^(b+1)] are 2^(b-3) wide: the three bits below
  // the leading one of n-1 number them.
  const unsigned b = log2_floor(n - 1);
  return kSmallClasses + (b - log2_floor(kMaxSmall)) * kStepsPerDoubling +
         static_cast<unsigned>((n - 1) >> (b - 3)) - (kStepsPerDoubling - 1);
}

constexpr std::uint32_t block_size_of(unsigned c) {
  if (c <= kSmallClasses) return static_cast<std::uint32_t>(c * kQuantum);
  const unsigned doubling = (c - kSmallClasses - 1) / kStepsPerDoubling;
  const unsigned step = (c - kSmallClasses - 1) % kStepsPerDoubling + 1;
  return static_cast<std::uint32_t>((kMaxSmall << doubling) / kStepsPerDoubling * (kStepsPerDoubling + step));
}

/// One row a class: block size (bytes), blocks a span, real span and virtual span (KiB). The comment: class,
/// the largest share of a block that a request of this class leaves unused, and the span's tail as a share of
/// it.
struct ClassRow {
  std::uint32_t block_size;
  std::uint32_t blocks;
  std::uint32_t real_kib;
  std::uint32_t virtual_kib;
};

// clang-format off
inline constexpr ClassRow kClassRows[] = {
    {16, 4096, 64, 64},           //   1  unused <= 93.8 %  tail 0.0 %
    {32, 2048, 64, 64},           //   2  unused <= 46.9 %  tail 0.0 %
    {48, 1365, 64, 64},           //   3  unused <= 31.2 %  tail 0.0 %
    {64, 1024, 64, 64},           //   4  unused <= 23.4 %  tail 0.0 %
    {80, 819, 64, 64},            //   5  unused <= 18.8 %  tail 0.0 %
    {96, 682, 64, 64},            //   6  unused <= 15.6 %  tail 0.1 %
    {112, 585, 64, 64},           //   7  unused <= 13.4 %  tail 0.0 %
    {128, 512, 64, 64},           //   8  unused <= 11.7 %  tail 0.0 %
    {144, 455, 64, 64},           //   9  unused <= 10.4 %  tail 0.0 %
    {160, 409, 64, 64},           //  10  unused <=  9.4 %  tail 0.1 %
    {176, 372, 64, 64},           //  11  unused <=  8.5 %  tail 0.1 %
    {192, 341, 64, 64},           //  12  unused <=  7.8 %  tail 0.1 %
    {208, 315, 64, 64},           //  13  unused <=  7.2 %  tail 0.0 %
    {224, 292, 64, 64},           //  14  unused <=  6.7 %  tail 0.2 %
    {240, 273, 64, 64},           //  15  unused <=  6.2 %  tail 0.0 %
    {256, 256, 64, 64},           //  16  unused <=  5.9 %  tail 0.0 %
    {272, 240, 64, 64},           //  17  unused <=  5.5 %  tail 0.4 %
    {288, 227, 64, 64},           //  18  unused <=  5.2 %  tail 0.2 %
    {304, 215, 64, 64},           //  19  unused <=  4.9 %  tail 0.3 %
    {320, 204, 64, 64},           //  20  unused <=  4.7 %  tail 0.4 %
    {336, 195, 64, 64},           //  21  unused <=  4.5 %  tail 0.0 %
    {352, 186, 64, 64},           //  22  unused <=  4.3 %  tail 0.1 %
    {368, 178, 64, 64},           //  23  unused <=  4.1 %  tail 0.0 %
    {384, 170, 64, 64},           //  24  unused <=  3.9 %  tail 0.4 %
    {400, 163, 64, 64},           //  25  unused <=  3.8 %  tail 0.5 %
    {416, 157, 64, 64},           //  26  unused <=  3.6 %  tail 0.3 %
    {432, 151, 64, 64},           //  27  unused <=  3.5 %  tail 0.5 %
    {448, 146, 64, 64},           //  28  unused <=  3.3 %  tail 0.2 %
    {464, 141, 64, 64},           //  29  unused <=  3.2 %  tail 0.2 %
    {480, 136, 64, 64},           //  30  unused <=  3.1 %  tail 0.4 %
    {496, 132, 64, 64},           //  31  unused <=  3.0 %  tail 0.1 %
    {512, 128, 64, 64},           //  32  unused <=  2.9 %  tail 0.0 %
    {576, 113, 64, 64},           //  33  unused <= 10.9 %  tail 0.7 %
    {640, 102, 64, 64},           //  34  unused <=  9.8 %  tail 0.4 %
    {704, 93, 64, 64},            //  35  unused <=  8.9 %  tail 0.1 %
    {768, 85, 64, 64},            //  36  unused <=  8.2 %  tail 0.4 %
    {832, 78, 64, 64},            //  37  unused <=  7.6 %  tail 1.0 %
    {896, 73, 64, 64},            //  38  unused <=  7.0 %  tail 0.2 %
    {960, 68, 64, 64},            //  39  unused <=  6.6 %  tail 0.4 %
    {1024, 64, 64, 64},           //  40  unused <=  6.2 %  tail 0.0 %
    {1152, 56, 64, 64},           //  41  unused <= 11.0 %  tail 1.6 %
    {1280, 51, 64, 64},           //  42  unused <=  9.9 %  tail 0.4 %
    {1408, 46, 64, 64},           //  43  unused <=  9.0 %  tail 1.2 %
    {1536, 42, 64, 64},           //  44  unused <=  8.3 %  tail 1.6 %
    {1664, 39, 64, 64},           //  45  unused <=  7.6 %  tail 1.0 %
    {1792, 36, 64, 64},           //  46  unused <=  7.1 %  tail 1.6 %
    {1920, 34, 64, 64},           //  47  unused <=  6.6 %  tail 0.4 %
    {2048, 32, 64, 64},           //  48  unused <=  6.2 %  tail 0.0 %
    {2304, 28, 64, 64},           //  49  unused <= 11.1 %  tail 1.6 %
    {2560, 25, 64, 64},           //  50  unused <= 10.0 %  tail 2.3 %
    {2816, 23, 64, 64},           //  51  unused <=  9.1 %  tail 1.2 %
    {3072, 21, 64, 64},           //  52  unused <=  8.3 %  tail 1.6 %
    {3328, 18, 60, 64},           //  53  unused <=  7.7 %  tail 2.5 %
    {3584, 18, 64, 64},           //  54  unused <=  7.1 %  tail 1.6 %
    {3840, 17, 64, 64},           //  55  unused <=  6.6 %  tail 0.4 %
    {4096, 16, 64, 64},           //  56  unused <=  6.2 %  tail 0.0 %
    {4608, 14, 64, 64},           //  57  unused <= 11.1 %  tail 1.6 %
    {5120, 12, 60, 64},           //  58  unused <= 10.0 %  tail 0.0 %
    {5632, 10, 56, 64},           //  59  unused <=  9.1 %  tail 1.8 %
    {6144, 10, 60, 64},           //  60  unused <=  8.3 %  tail 0.0 %
    {6656, 9, 60, 64},            //  61  unused <=  7.7 %  tail 2.5 %
    {7168, 9, 64, 64},            //  62  unused <=  7.1 %  tail 1.6 %
    {7680, 8, 60, 64},            //  63  unused <=  6.7 %  tail 0.0 %
    {8192, 8, 64, 64},            //  64  unused <=  6.2 %  tail 0.0 %
    {9216, 14, 128, 128},         //  65  unused <= 11.1 %  tail 1.6 %
    {10240, 12, 120, 128},        //  66  unused <= 10.0 %  tail 0.0 %
    {11264, 11, 124, 128},        //  67  unused <=  9.1 %  tail 2.4 %
    {12288, 10, 120, 128},        //  68  unused <=  8.3 %  tail 0.0 %
    {13312, 9, 120, 128},         //  69  unused <=  7.7 %  tail 2.5 %
    {14336, 9, 128, 128},         //  70  unused <=  7.1 %  tail 1.6 %
    {15360, 8, 120, 128},         //  71  unused <=  6.7 %  tail 0.0 %
    {16384, 8, 128, 128},         //  72  unused <=  6.2 %  tail 0.0 %
    {18432, 14, 252, 256},        //  73  unused <= 11.1 %  tail 0.0 %
    {20480, 12, 240, 256},        //  74  unused <= 10.0 %  tail 0.0 %
    {22528, 11, 244, 256},        //  75  unused <=  9.1 %  tail 0.8 %
    {24576, 10, 240, 256},        //  76  unused <=  8.3 %  tail 0.0 %
    {26624, 9, 236, 256},         //  77  unused <=  7.7 %  tail 0.8 %
    {28672, 9, 252, 256},         //  78  unused <=  7.1 %  tail 0.0 %
    {30720, 8, 240, 256},         //  79  unused <=  6.7 %  tail 0.0 %
    {32768, 8, 256, 256},         //  80  unused <=  6.2 %  tail 0.0 %
    {36864, 1, 36, 64},           //  81  unused <= 11.1 %  tail 0.0 %
    {40960, 1, 40, 64},           //  82  unused <= 10.0 %  tail 0.0 %
    {45056, 1, 44, 64},           //  83  unused <=  9.1 %  tail 0.0 %
    {49152, 1, 48, 64},           //  84  unused <=  8.3 %  tail 0.0 %
    {53248, 1, 52, 64},           //  85  unused <=  7.7 %  tail 0.0 %
    {57344, 1, 56, 64},           //  86  unused <=  7.1 %  tail 0.0 %
    {61440, 1, 60, 64},           //  87  unused <=  6.7 %  tail 0.0 %
    {65536, 1, 64, 64},           //  88  unused <=  6.2 %  tail 0.0 %
    {73728, 1, 72, 128},          //  89  unused <= 11.1 %  tail 0.0 %
    {81920, 1, 80, 128},          //  90  unused <= 10.0 %  tail 0.0 %
    {90112, 1, 88, 128},          //  91  unused <=  9.1 %  tail 0.0 %
    {98304, 1, 96, 128},          //  92  unused <=  8.3 %  tail 0.0 %
    {106496, 1, 104, 128},        //  93  unused <=  7.7 %  tail 0.0 %
    {114688, 1, 112, 128},        //  94  unused <=  7.1 %  tail 0.0 %
    {122880, 1, 120, 128},        //  95  unused <=  6.7 %  tail 0.0 %
    {131072, 1, 128, 128},        //  96  unused <=  6.2 %  tail 0.0 %
    {147456, 1, 144, 192},        //  97  unused <= 11.1 %  tail 0.0 %
    {163840, 1, 160, 192},        //  98  unused <= 10.0 %  tail 0.0 %
    {180224, 1, 176, 192},        //  99  unused <=  9.1 %  tail 0.0 %
    {196608, 1, 192, 192},        // 100  unused <=  8.3 %  tail 0.0 %
    {212992, 1, 208, 256},        // 101  unused <=  7.7 %  tail 0.0 %
    {229376, 1, 224, 256},        // 102  unused <=  7.1 %  tail 0.0 %
    {245760, 1, 240, 256},        // 103  unused <=  6.7 %  tail 0.0 %
    {262144, 1, 256, 256},        // 104  unused <=  6.2 %  tail 0.0 %
    {294912, 1, 288, 320},        // 105  unused <= 11.1 %  tail 0.0 %
    {327680, 1, 320, 320},        // 106  unused <= 10.0 %  tail 0.0 %
    {360448, 1, 352, 384},        // 107  unused <=  9.1 %  tail 0.0 %
    {393216, 1, 384, 384},        // 108  unused <=  8.3 %  tail 0.0 %
    {425984, 1, 416, 448},        // 109  unused <=  7.7 %  tail 0.0 %
    {458752, 1, 448, 448},        // 110  unused <=  7.1 %  tail 0.0 %
    {491520, 1, 480, 512},        // 111  unused <=  6.7 %  tail 0.0 %
    {524288, 1, 512, 512},        // 112  unused <=  6.2 %  tail 0.0 %
    {589824, 1, 576, 576},       // 113  unused <= 11.1 %  tail 0.0 %
    {655360, 1, 640, 640},       // 114  unused <= 10.0 %  tail 0.0 %
    {720896, 1, 704, 704},       // 115  unused <=  9.1 %  tail 0.0 %
    {786432, 1, 768, 768},       // 116  unused <=  8.3 %  tail 0.0 %
    {851968, 1, 832, 832},       // 117  unused <=  7.7 %  tail 0.0 %
    {917504, 1, 896, 896},       // 118  unused <=  7.1 %  tail 0.0 %
    {983040, 1, 960, 960},       // 119  unused <=  6.7 %  tail 0.0 %
    {1048576, 1, 1024, 1024},     // 120  unused <=  6.2 %  tail 0.0 %
};
// clang-format on

/// Everything the slow paths ask about a class, in one record.
struct ClassInfo : SizeClass {
  std::uint64_t magic = 0;              ///< divisibility_magic64(block_size)
  std::uint32_t reuse_outstanding = 0;  ///< a parked span with at most this many blocks out is reusable
  std::uint32_t refill_remotes = 0;     ///< a hot span takes its remote list when it holds at least this many
  std::uint8_t order = 0;               ///< of the virtual span, if it has several blocks
  std::uint8_t granules = 0;            ///< of the virtual span; 0 for kLargeClass: each object has its own
  std::uint8_t pool_row = 0;            ///< kPoolRows: never pooled
  std::uint8_t pool_most = 0;           ///< spans that a core keeps of this row
};

// A parked span becomes reusable when 1/8 of its blocks is free. The paper's 80 % keeps spans floating for
// long, which costs memory; below 1/8 the slow path that makes a span hot again is no longer paid back.
inline constexpr std::uint32_t kReuseFraction = 8;

constexpr ClassInfo make_class(const ClassRow& row) {
  ClassInfo info;
  info.block_size = row.block_size;
  info.blocks = row.blocks;
  info.real_span = static_cast<std::uint32_t>(row.real_kib * kKiB);
  info.virtual_span = static_cast<std::uint32_t>(row.virtual_kib * kKiB);
  info.granules = static_cast<std::uint8_t>(info.virtual_span >> kGranuleBits);
  if (row.blocks > 1) {
    info.order = static_cast<std::uint8_t>(log2_floor(info.granules));
    info.pool_row = info.order;
  } else {
    info.pool_row = static_cast<std::uint8_t>(info.granules == 1 ? 0 : kMaxOrder + info.granules - 1);
  }
  const std::size_t pool_bytes = info.pool_row <= kMaxOrder ? kPoolBytesARow : kPoolBytesARowOfSingles;
  info.pool_most = static_cast<std::uint8_t>(max_of(pool_bytes / info.virtual_span, 1));
  info.magic = divisibility_magic64(info.block_size);
  const std::uint32_t reuse_free = (info.blocks + kReuseFraction - 1) / kReuseFraction;
  info.reuse_outstanding = info.blocks - reuse_free;
  info.refill_remotes = reuse_free;
  return info;
}

constexpr std::array<ClassInfo, kClasses + 1> make_classes() {
  std::array<ClassInfo, kClasses + 1> table{};
  for (unsigned c = 1; c < kClasses; ++c) table[c] = make_class(kClassRows[c - 1]);
  table[kLargeClass].blocks = 1;
  table[kLargeClass].pool_row = kPoolRows;
  return table;
}

inline constexpr std::array<ClassInfo, kClasses + 1> kClassTable = make_classes();

constexpr bool classes_hold() {
  if (sizeof kClassRows / sizeof kClassRows[0] != kClasses - 1) return false;
  for (unsigned c = 1; c < kClasses; ++c) {
    const ClassInfo& k = kClassTable[c];
    const std::size_t smallest = c == 1 ? 1 : kClassTable[c - 1].block_size + std::size_t{1};
    if (class_of(smallest) != c || class_of(k.block_size) != c) return false;
    if (k.block_size != block_size_of(c)) return false;
    if (k.block_size % kQuantum != 0) return false;
    // (block - n) / n <= 1/8 for every n above 128.
    if (smallest > 128 && (k.block_size - smallest) * 8 > smallest) return false;
    // Tail and metadata (a 64-byte record a granule) together at most 3 % of the real span; it ends with the
    // page that the last block ends in.
    if ((k.overhead() + k.virtual_span / kGranule * 64) * 100 > k.real_span * std::size_t{3}) return false;
    if (k.real_span != align_up(k.payload(), kPageForTail)) return false;
    if (k.real_span > k.virtual_span || k.virtual_span != kGranule * k.granules) return false;
    if (k.blocks > 1 && (k.granules != 1u << k.order || k.order > kMaxOrder)) return false;
    // A block of its own fills its granules but for less than one.
    if (k.blocks == 1 && k.virtual_span - k.block_size >= kGranule) return false;
    if (k.pool_row >= kPoolRows || k.pool_most == 0) return false;
    // Counts of blocks are 16-bit fields of the span word, block marks 20-bit.
    if (k.blocks < 1 || k.blocks >= 0xffff) return false;
    if ((c < kFirstSingle) != (k.blocks > 1) || (k.blocks > 1 && k.blocks < kMinBlocks)) return false;
    if (c <= kThreadClasses && (k.order != 0 || k.blocks < 2)) return false;
    // A span that parks full must not be reusable at once.
    if (k.blocks > 1 && (k.reuse_outstanding >= k.blocks || k.reuse_outstanding == 0)) return false;
  }
  return block_size_of(kClasses - 1) == kMaxBlock && block_size_of(kFirstSingle - 1) == kMaxListed;
}
static_assert(classes_hold());
static_assert(kClasses == 121 && kFirstSingle == 81 && kSmallClasses <= kThreadClasses);

// Spans of several blocks are aligned to a granule, so a block is as aligned as its size. The class of a
// multiple of a power of two has blocks that are a multiple of it: either the class's step divides the power,
// and the size is exact, or the power divides the step.
constexpr bool multiples_are_aligned() {
  for (std::size_t alignment = kQuantum; alignment <= kMaxListed; alignment *= 2) {
    for (std::size_t n = alignment; n <= kMaxListed; n += alignment) {
      if (block_size_of(class_of(n)) % alignment != 0) return false;
    }
  }
  return true;
}
static_assert(multiples_are_aligned());

/// Smallest class whose blocks hold n bytes and are aligned to `alignment` (a power of two); 0 when there is
/// none: above a granule no class is aligned.
constexpr unsigned class_of_aligned(std::size_t n, std::size_t alignment) {
  if (n > kMaxBlock || alignment > kGranule) return 0;
  // A class below both of these has blocks that are smaller than the least multiple of the alignment, and
  // several of them in a span: it cannot do. The rest is a few steps.
  const std::size_t multiple = align_up(max_of(n, 1), alignment);
  const unsigned dense = multiple <= kMaxBlock ? class_of(multiple) : kClasses;
  const unsigned single = static_cast<unsigned>(max_of(class_of(max_of(n, 1)), kFirstSingle));
  for (unsigned c = static_cast<unsigned>(min_of(dense, single)); c < kClasses; ++c) {
    const ClassInfo& k = kClassTable[c];
    if (k.blocks == 1 || (k.block_size & (alignment - 1)) == 0) return c;
  }
  return 0;
}
static_assert(class_of_aligned(1, 64) == 4 && class_of_aligned(kMaxBlock, kGranule) == kClasses - 1);

}  // namespace spanalloc::standard
