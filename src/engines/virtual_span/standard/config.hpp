// The product's numbers: size classes, spans, thresholds. Every bound is asserted below the table.
//
//   class     block sizes                       real span               virtual span
//   1..32     16, 32, ... 512 (step 16)         64 KiB                  64 KiB
//   33..56    576 .. 4 KiB (8 a doubling)       <= 64 KiB               64 KiB
//   57..80    4.5 KiB .. 32 KiB                 >= 8 blocks             64 KiB to 256 KiB
//   81..120   36 KiB .. 1 MiB                   one block, exactly      64 KiB to 1 MiB
//
// A virtual span is 2^order granules of 64 KiB, naturally aligned; a real span starts where its virtual span
// starts. Blocks begin at the span's start with nothing before them: a block of size d at index i lies at
// start + i * d, so it is aligned to every power of two that divides d (up to the virtual span's size).
// Metadata stands in a side table (span.hpp).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/bits.hpp"
#include "base/size_class_generator.hpp"

namespace spanalloc::standard {

inline constexpr unsigned kGranuleBits = 16;
inline constexpr std::size_t kGranule = std::size_t{1} << kGranuleBits;
inline constexpr unsigned kMaxOrder = 4;  // 1 MiB
inline constexpr unsigned kOrders = kMaxOrder + 1;

inline constexpr std::size_t kQuantum = 16;
inline constexpr std::size_t kMaxSmall = 512;
inline constexpr unsigned kSmallClasses = kMaxSmall / kQuantum;  // classes 1 .. kSmallClasses
inline constexpr unsigned kStepsPerDoubling = 8;
inline constexpr std::size_t kMaxListed = 32 * kKiB;  // largest block of a span with several blocks
inline constexpr std::size_t kMaxBlock = 1 * kMiB;    // larger objects lie outside spans
inline constexpr unsigned kClasses =
    1 + kSmallClasses + (log2_floor(kMaxBlock) - log2_floor(kMaxSmall)) * kStepsPerDoubling;
inline constexpr unsigned kFirstSingle =
    1 + kSmallClasses + (log2_floor(kMaxListed) - log2_floor(kMaxSmall)) * kStepsPerDoubling;
// Classes 1 .. kThreadClasses keep their hot lists in thread-local storage, as many as fit
// (thread_state.hpp); classes kThreadClasses+1 .. kFirstSingle-1 keep them in the LAB.
inline constexpr unsigned kThreadClasses = 28;  // up to 448 bytes
inline constexpr unsigned kLabClasses = kFirstSingle - kThreadClasses - 1;
inline constexpr unsigned kMinBlocks = 8;  // blocks of a span that is not a single-block span, at least
inline constexpr std::size_t kPageForTail = 4 * kKiB;  // real spans end on such a boundary

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

/// Everything the slow paths ask about a class, in one record.
struct ClassInfo : SizeClass {
  std::uint64_t magic = 0;              ///< divisibility_magic64(block_size)
  std::uint32_t reuse_outstanding = 0;  ///< a parked span with at most this many blocks out is reusable
  std::uint32_t refill_remotes = 0;     ///< a hot span takes its remote list when it holds at least this many
  std::uint8_t order = 0;
};

// A parked span becomes reusable when 1/8 of its blocks is free. The paper's 80 % keeps spans floating for
// long, which costs memory; below 1/8 the slow path that makes a span hot again is no longer paid back.
inline constexpr std::uint32_t kReuseFraction = 8;

constexpr ClassInfo make_class(unsigned c) {
  ClassInfo info;
  info.block_size = block_size_of(c);
  const std::size_t d = info.block_size;
  std::size_t blocks = 1;
  std::size_t virtual_span = kGranule;
  if (c < kFirstSingle) {
    while (virtual_span / d < kMinBlocks) virtual_span *= 2;
    // The most blocks whose tail, up to the next page boundary, is within 3 % of the real span.
    for (blocks = virtual_span / d;; --blocks) {
      const std::size_t real = align_up(blocks * d, kPageForTail);
      if (real <= virtual_span && (real - blocks * d) * 100 <= real * 3) break;
    }
  } else {
    while (virtual_span < d) virtual_span *= 2;
  }
  info.blocks = static_cast<std::uint32_t>(blocks);
  info.real_span = static_cast<std::uint32_t>(align_up(blocks * d, kPageForTail));
  info.virtual_span = static_cast<std::uint32_t>(virtual_span);
  info.order = static_cast<std::uint8_t>(log2_floor(virtual_span) - kGranuleBits);
  info.magic = divisibility_magic64(d);
  const std::uint32_t reuse_free = (info.blocks + kReuseFraction - 1) / kReuseFraction;
  info.reuse_outstanding = info.blocks - reuse_free;
  info.refill_remotes = reuse_free;
  return info;
}

constexpr std::array<ClassInfo, kClasses> make_classes() {
  std::array<ClassInfo, kClasses> table{};
  for (unsigned c = 1; c < kClasses; ++c) table[c] = make_class(c);
  return table;
}

inline constexpr std::array<ClassInfo, kClasses> kClassTable = make_classes();

constexpr bool classes_hold() {
  for (unsigned c = 1; c < kClasses; ++c) {
    const ClassInfo& k = kClassTable[c];
    const std::size_t smallest = c == 1 ? 1 : kClassTable[c - 1].block_size + std::size_t{1};
    if (class_of(smallest) != c || class_of(k.block_size) != c) return false;
    if (k.block_size % kQuantum != 0) return false;
    // (block - n) / n <= 1/8 for every n above 128.
    if (smallest > 128 && (k.block_size - smallest) * 8 > smallest) return false;
    // Tail at most 3 % of the real span; metadata is 64 bytes a granule, 0.1 %.
    if (k.overhead() * 100 > k.real_span * std::size_t{3}) return false;
    if (k.real_span > k.virtual_span || k.virtual_span != kGranule << k.order || k.order > kMaxOrder)
      return false;
    // Counts of blocks are 16-bit fields of the span word, block marks 20-bit.
    if (k.blocks < 1 || k.blocks >= 0xffff) return false;
    if ((c < kFirstSingle) != (k.blocks > 1)) return false;
    if (c <= kThreadClasses && (k.order != 0 || k.blocks < 2)) return false;
    // A span that parks full must not be reusable at once.
    if (k.blocks > 1 && (k.reuse_outstanding >= k.blocks || k.reuse_outstanding == 0)) return false;
  }
  return block_size_of(kClasses - 1) == kMaxBlock && block_size_of(kFirstSingle - 1) == kMaxListed;
}
static_assert(classes_hold());
static_assert(kClasses == 121 && kFirstSingle == 81 && kThreadClasses <= kSmallClasses);

/// Smallest class whose blocks hold n bytes and are aligned to `alignment` (a power of two, at most
/// kMaxBlock); 0 when there is none.
constexpr unsigned class_of_aligned(std::size_t n, std::size_t alignment) {
  if (n > kMaxBlock || alignment > kMaxBlock) return 0;
  for (unsigned c = class_of(n == 0 ? 1 : n); c < kClasses; ++c) {
    const ClassInfo& k = kClassTable[c];
    if (k.block_size % alignment == 0) return c;
    if (k.blocks == 1 && k.virtual_span % alignment == 0) return c;
  }
  return 0;
}
static_assert(class_of_aligned(1, 64) == 4 && class_of_aligned(kMaxBlock, kMaxBlock) == kClasses - 1);

}  // namespace spanalloc::standard
