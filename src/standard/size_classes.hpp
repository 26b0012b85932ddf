// The size classes: computed from the bounds of a config, and asserted below the table.
// docs/size-classes.md, printed by a unit test, lists them for `Standard`:
//
//   class     block sizes                       real span               virtual span
//   1..32     16, 32, ... 512 (step 16)         64 KiB                  64 KiB
//   33..56    576 .. 4 KiB (8 a doubling)       <= 64 KiB               64 KiB
//   57..80    4.5 KiB .. 32 KiB                 >= 8 blocks             128 KiB or 256 KiB
//   81..120   36 KiB .. 1 MiB                   one block, exactly      64 KiB to 1 MiB, whole
//                                                                       slices
//   121       above 1 MiB                       one block               whole slices
//
// A virtual span of several blocks is 2^order slices of 64 KiB, naturally aligned, so that a
// block's address leads to the span's first slice. In a span of one block the block itself
// begins in the first slice. A real span of several blocks begins where its virtual span does,
// and its first block on one of its first cache lines, by the class (Bonwick 1994 calls this
// coloring): the first blocks of all spans would else lie in the same set of every cache. A
// block of size d at index i lies at start + lead + i * d, and every power of two that divides d
// divides the lead, so the block is aligned to it. Where the block of a span of one block begins,
// large_block_place.hpp says. Metadata is in a table of its own (span.hpp).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/bits.hpp"
#include "base/divisibility.hpp"
#include "standard/config.hpp"
#include "standard/numbers.hpp"

namespace spanalloc::standard {

inline constexpr std::size_t kSmallPage = 4 * kKiB;          // real spans end on such a boundary
inline constexpr std::size_t kRecordBytes = 2 * kCacheLine;  // of a span; counted as overhead

/// Blocks of `block_size` bytes, `blocks` of them in a real span of `real_span` bytes, which lies
/// at the start of a virtual span of `virtual_span` bytes (the address space it owns). The first
/// block begins `lead` bytes behind the span. Equation:
/// lead + blocks * block_size + tail = real_span, tail < kSmallPage.
struct SizeClass {
  std::uint32_t block_size = 0;
  std::uint32_t real_span = 0;
  std::uint32_t virtual_span = 0;
  std::uint32_t blocks = 0;
  std::uint32_t lead = 0;

  /// From the beginning of the span to block `i`
  constexpr std::uint32_t offset_of(std::uint32_t i) const { return lead + i * block_size; }
  /// Of the block that has this byte, which is not in the lead
  constexpr std::uint32_t index_at(std::uint32_t offset) const {
    return (offset - lead) / block_size;
  }
  constexpr std::size_t payload() const { return std::size_t{block_size} * blocks; }
  constexpr std::size_t overhead() const { return real_span - payload(); }
};

/// All that slow paths ask about a class, in one record.
struct ClassInfo : SizeClass {
  std::uint64_t magic = 0;        ///< divisibility_magic(block_size)
  std::uint32_t enough_free = 0;  ///< an owner takes a remote list of at least this many
  std::uint8_t order = 0;         ///< of the virtual span, if it has several blocks
  /// Of the virtual span; 0 for kHuge, whose objects each have their own number
  std::uint8_t slices = 0;
  std::uint8_t pool_row = 0;    ///< kPoolRows: never pooled
  std::uint16_t pool_most = 0;  ///< spans of this row that a shard keeps
};

/// The rules by which rows are made.
template <class Config>
struct SizeClassRules : Config {
  using Config::kMaxLinear, Config::kStepsPerDoubling, Config::kMaxSmall, Config::kMaxBlock;
  using Config::kSliceBits, Config::kMaxOrder, Config::kMinBlocks, Config::kWantedBlocks,
      Config::kMostOverheadPercent;

  static constexpr std::size_t kSlice = std::size_t{1} << kSliceBits;
  static constexpr unsigned kLinearClasses = kMaxLinear / kQuantum;  // classes 1 .. kLinearClasses
  /// Rows of tables by class: class 0 (none) to class kCount - 1, and kHuge where it has a row.
  static constexpr unsigned kCount =
      1 + kLinearClasses + (log2_floor(kMaxBlock) - log2_floor(kMaxLinear)) * kStepsPerDoubling;
  /// From this class on a span has one block.
  static constexpr ClassId kFirstLarge{
      1 + kLinearClasses + (log2_floor(kMaxSmall) - log2_floor(kMaxLinear)) * kStepsPerDoubling};
  // Rows of tables of classes with lists
  static constexpr unsigned kSmallClasses = index_of(kFirstLarge);
  /// The class of objects above kMaxBlock: one block in a span of as many slices as it needs.
  static constexpr ClassId kHuge{kCount};
  static constexpr std::size_t kMaxSlices = kMaxBlock / kSlice;  // of a span with a class
  /// Of the pool: spans of one slice; naturally aligned ones of 2, 4 ..; others of 2 .. kMaxSlices.
  static constexpr unsigned kPoolRows = 1 + kMaxOrder + kMaxSlices - 1;
  /// A row has one stack for this decay epoch and one for the epoch before.
  static constexpr unsigned kPoolStacks = 2 * kPoolRows;
  static constexpr unsigned row_of_stack(unsigned stack) { return stack / 2; }
  static constexpr std::size_t slices_of_row(unsigned row) {
    return row <= kMaxOrder ? std::size_t{1} << row : row - kMaxOrder + std::size_t{1};
  }

  /// The class of a request of n bytes, 1 <= n <= kMaxBlock.
  static constexpr ClassId of(std::size_t n) {
    if (n <= kMaxLinear) return ClassId{static_cast<unsigned>((n + kQuantum - 1) / kQuantum)};
    // With b = floor(log2(n-1)) the steps of the doubling (2^b, 2^(b+1)] are 2^(b-3) wide: the
    // three bits below the leading one of n-1 number them.
    const unsigned b = log2_floor(n - 1);
    return ClassId{kLinearClasses + (b - log2_floor(kMaxLinear)) * kStepsPerDoubling +
                   static_cast<unsigned>((n - 1) >> (b - log2_floor(kStepsPerDoubling))) -
                   (kStepsPerDoubling - 1)};
  }

  static constexpr std::uint32_t block_size(ClassId id) {
    const unsigned c = index_of(id);
    if (c <= kLinearClasses) return static_cast<std::uint32_t>(c * kQuantum);
    const unsigned doubling = (c - kLinearClasses - 1) / kStepsPerDoubling;
    const unsigned step = (c - kLinearClasses - 1) % kStepsPerDoubling + 1;
    return static_cast<std::uint32_t>((kMaxLinear << doubling) / kStepsPerDoubling *
                                      (kStepsPerDoubling + step));
  }

  static constexpr bool has_little_overhead(const SizeClass& span) {
    const std::size_t records = span.virtual_span / kSlice * kRecordBytes;
    return (span.overhead() + records) * 100 <= span.real_span * kMostOverheadPercent;
  }

  /// Where the first block of a class's span begins, if `slack` bytes of the span may go unused:
  /// one of kColors cache lines.
  static constexpr std::uint32_t lead_of(ClassId c, std::size_t slack) {
    const std::size_t size = block_size(c);
    const std::size_t alignment = size & (0 - size);
    const std::size_t line = index_of(c) % Config::kColors * kCacheLine;
    return static_cast<std::uint32_t>(align_down(min_of(line, slack), alignment));
  }

  /// The span of a class. Several blocks: the smallest virtual span, and in it as many blocks, as
  /// the bounds on overhead and on the number of blocks allow. One block: whole slices.
  static constexpr SizeClass span_of(ClassId c) {
    const std::uint32_t size = block_size(c);
    if (c >= kFirstLarge) {
      return {size, static_cast<std::uint32_t>(align_up(size, kSmallPage)),
              static_cast<std::uint32_t>(align_up(size, kSlice)), 1};
    }
    for (unsigned order = 0; order <= kMaxOrder; ++order) {
      const auto whole = static_cast<std::uint32_t>(kSlice << order);
      const std::uint32_t least = order == kMaxOrder ? kMinBlocks : kWantedBlocks;
      // Small blocks make room for it, larger ones have it where a span's end is unused anyway.
      const std::uint32_t room = whole - (size <= kMaxLinear ? lead_of(c, whole) : 0);
      for (std::uint32_t blocks = room / size; blocks >= least; --blocks) {
        const std::uint32_t lead = lead_of(c, whole - size * blocks);
        const auto real = static_cast<std::uint32_t>(align_up(lead + size * blocks, kSmallPage));
        const SizeClass span{size, real, whole, blocks, lead};
        if (has_little_overhead(span)) return span;
      }
    }
    return {size, 0, 0, 0};  // none: row_holds() refuses it
  }

  static constexpr ClassInfo make_class(const SizeClass& span) {
    ClassInfo info{span};
    info.slices = static_cast<std::uint8_t>(info.virtual_span >> kSliceBits);
    if (info.blocks > 1) {
      info.order = static_cast<std::uint8_t>(log2_floor(info.slices));
      info.pool_row = info.order;
    } else {
      info.pool_row = static_cast<std::uint8_t>(info.slices == 1 ? 0 : kMaxOrder + info.slices - 1);
    }
    const std::size_t pool_bytes =
        info.pool_row <= kMaxOrder ? Config::kPoolBytesPerRow : Config::kPoolBytesPerLargeRow;
    info.pool_most =
        static_cast<std::uint16_t>(max_of(pool_bytes / max_of(info.virtual_span, 1), 1));
    info.magic = divisibility_magic(info.block_size);
    // A span that is not partial has some block out, and one that is has some block free.
    const std::uint32_t free = (info.blocks * Config::kPartialPermille + 999) / 1000;
    const auto reuse_free =
        static_cast<std::uint32_t>(max_of(min_of(free, info.blocks - std::size_t{1}), 1));
    info.enough_free = reuse_free;
    return info;
  }

  static constexpr std::array<ClassInfo, kCount + 1> make_table() {
    std::array<ClassInfo, kCount + 1> table{};
    for (unsigned c = 1; c < kCount; ++c) table[c] = make_class(span_of(ClassId{c}));
    table[kCount].blocks = 1;
    table[kCount].pool_row = kPoolRows;
    return table;
  }
};

template <class Config>
struct SizeClasses : SizeClassRules<Config> {
  using Rules = SizeClassRules<Config>;
  using Rules::block_size, Rules::of, Rules::kCount, Rules::kFirstLarge, Rules::kSlice,
      Rules::kMaxBlock, Rules::kMaxSmall, Rules::kMaxOrder, Rules::kPoolRows;

  static constexpr std::array<ClassInfo, kCount + 1> kTable = Rules::make_table();

  static constexpr const ClassInfo& info(ClassId c) { return kTable[index_of(c)]; }
  static constexpr bool has_one_block(ClassId c) { return info(c).blocks == 1; }

  /// The smallest class whose blocks hold n bytes and are aligned to `alignment` (a power of two).
  /// kNone: there is none; above a slice no class is aligned.
  static constexpr ClassId of_aligned(std::size_t n, std::size_t alignment) {
    if (n > kMaxBlock || alignment > kSlice) return ClassId::kNone;
    // A class below both of these has several blocks in a span, each smaller than the least
    // multiple of the alignment: it does not serve. From there it takes a few steps.
    const std::size_t multiple = align_up(max_of(n, 1), alignment);
    const std::size_t dense = multiple <= kMaxBlock ? index_of(of(multiple)) : kCount;
    const std::size_t single = max_of(index_of(of(max_of(n, 1))), index_of(kFirstLarge));
    for (auto c = static_cast<unsigned>(min_of(dense, single)); c < kCount; ++c) {
      if (kTable[c].blocks == 1 || (kTable[c].block_size & (alignment - 1)) == 0) return ClassId{c};
    }
    return ClassId::kNone;
  }

  /// The first class that breaks a rule; 0: none does.
  static constexpr unsigned first_bad_row() {
    for (unsigned c = 1; c < kCount; ++c) {
      if (!row_holds(c)) return c;
    }
    if (kTable[kCount - 1].block_size != kMaxBlock) return kCount - 1;
    if (kTable[index_of(kFirstLarge) - 1].block_size != kMaxSmall) return index_of(kFirstLarge) - 1;
    return 0;
  }
  static constexpr bool row_holds(unsigned c) {
    const ClassInfo& k = kTable[c];
    const std::size_t smallest = c == 1 ? 1 : kTable[c - 1].block_size + std::size_t{1};
    constexpr std::size_t kSteps = min_of(Rules::kStepsPerDoubling, 128 / kQuantum);
    const bool holds =
        // Some span of kMaxOrder keeps to kMinBlocks and kMostOverheadPercent
        k.blocks != 0 && of(smallest) == ClassId{c} && of(k.block_size) == ClassId{c} &&
        k.block_size == block_size(ClassId{c}) && k.block_size % kQuantum == 0 &&
        // (block - n) / n is at most a step for every n above 128, and 1/8 where classes go by 16
        // bytes.
        (smallest <= 128 || (k.block_size - smallest) * kSteps <= smallest) &&
        // The first block begins in the first slice.
        k.lead < kSlice &&
        // The real span ends with the page in which the last block ends.
        k.real_span == align_up(k.offset_of(k.blocks), kSmallPage) &&
        k.real_span <= k.virtual_span && k.virtual_span == kSlice * k.slices &&
        k.pool_row < kPoolRows && k.pool_most != 0 &&
        // The lead divides by what a block is aligned to.
        k.lead % (k.block_size & (0 - k.block_size)) == 0 &&
        // Counts of blocks are 16-bit fields of the span word, block offsets 20-bit.
        k.blocks < 0xffff && (ClassId{c} < kFirstLarge) == (k.blocks > 1);
    // A span of one block has less than a slice that is not its block.
    if (k.blocks == 1) return holds && k.virtual_span - k.block_size < kSlice;
    return holds && Rules::has_little_overhead(k) && k.slices == 1u << k.order &&
           k.order <= kMaxOrder && k.blocks >= Rules::kMinBlocks &&
           // A span that goes away with no block free must not be taken back at once.
           k.enough_free < k.blocks && k.enough_free != 0;
  }

  // Spans of several blocks are aligned to a slice, so a block is as aligned as its size. The class
  // of a multiple of a power of two has blocks that are a multiple of it: either the class's step
  // divides the power, and the size is exact, or the power divides the step.
  static constexpr bool multiples_are_aligned() {
    for (std::size_t alignment = kQuantum; alignment <= kMaxSmall; alignment *= 2) {
      for (std::size_t n = alignment; n <= kMaxSmall; n += alignment) {
        if (block_size(of(n)) % alignment != 0) return false;
      }
    }
    return true;
  }
};

/// Every engine that is built from a config asserts this.
template <class Config>
constexpr bool classes_hold() {
  using Classes = SizeClasses<Config>;
  static_assert(Classes::kMaxBlock / Classes::kSlice <= 255,
                "ClassInfo has a byte for a span's slices");
  static_assert(Classes::kPoolRows <= 255, "ClassInfo has a byte for a span's row of the pool");
  static_assert(Classes::first_bad_row() == 0, "see first_bad_row() for what a row must keep to");
  static_assert(Classes::multiples_are_aligned());
  static_assert(Classes::of_aligned(Classes::kMaxBlock, Classes::kSlice) ==
                ClassId{Classes::kCount - 1});
  static_assert(is_power_of_two(Classes::kStepsPerDoubling));
  static_assert(Classes::kCount <= 255,
                "the record of a span has a byte for its class, kHuge included");
  return true;
}
static_assert(classes_hold<Standard>());
static_assert(SizeClasses<Standard>::kCount == 121 && SizeClasses<Standard>::kSmallClasses == 81);

}  // namespace spanalloc::standard
