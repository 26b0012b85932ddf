// The paper's size classes (OOPSLA'15, section 3.1): 29 with class 0, 9 distinct real-span sizes.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/bits.hpp"
#include "papers/scalloc/engine/numbers.hpp"

namespace spanalloc::scalloc {

inline constexpr unsigned kVirtualSpanBits = 21;
inline constexpr std::size_t kVirtualSpan = std::size_t{1} << kVirtualSpanBits;
/// Bytes at the start of every real span that belong to its header.
inline constexpr std::size_t kHeaderBytes = 256;
/// Real spans above this many bytes give their pages back when they become empty (the paper's
/// MADVISE_THRESHOLD: the boundary between classes by 16 bytes and classes by doubling).
inline constexpr std::size_t kMadviseThreshold = 32 * kKiB;

/// Class 0 is no class: it marks slices without a span
inline constexpr unsigned kClasses = 29;
inline constexpr unsigned kFreeClass = 29;     ///< marks a span that is in no frontend
inline constexpr unsigned kClassEntries = 30;  ///< entries of a table that any mark may index
inline constexpr std::size_t kSmallMax = 256;  ///< classes up to here go by 16 bytes
inline constexpr std::size_t kSpanMax = kMiB;  ///< larger objects live outside spans
inline constexpr unsigned kRealSpanSizes = 9;

/// One class. Equation: first_block + blocks * block_size + tail == real_span, tail < block_size.
struct SizeClass {
  std::uint32_t block_size;
  std::uint32_t real_span;
  /// Offset of the first block; blocks are naturally aligned up to 4 KiB
  std::uint32_t first_block;
  std::uint32_t blocks;
  std::uint32_t waste;  ///< real_span - blocks * block_size: header, padding and tail
};

inline constexpr std::array<SizeClass, kClasses> kSizeClasses = {{
    {0, 0, 0, 0, 0},
    {16, 32 * kKiB, 256, 2032, 256},
    {32, 32 * kKiB, 256, 1016, 256},
    {48, 32 * kKiB, 256, 677, 272},
    {64, 32 * kKiB, 256, 508, 256},
    {80, 32 * kKiB, 256, 406, 288},
    {96, 32 * kKiB, 256, 338, 320},
    {112, 32 * kKiB, 256, 290, 288},
    {128, 32 * kKiB, 256, 254, 256},
    {144, 32 * kKiB, 256, 225, 368},
    {160, 32 * kKiB, 256, 203, 288},
    {176, 32 * kKiB, 256, 184, 384},
    {192, 32 * kKiB, 256, 169, 320},
    {208, 32 * kKiB, 256, 156, 320},
    {224, 32 * kKiB, 256, 145, 288},
    {240, 32 * kKiB, 256, 135, 368},
    {256, 32 * kKiB, 256, 127, 256},
    {512, 64 * kKiB, 512, 127, 512},
    {1024, 64 * kKiB, 1024, 63, 1024},
    {2048, 64 * kKiB, 2048, 31, 2048},
    {4096, 132 * kKiB, 4096, 32, 4096},
    {8192, 196 * kKiB, 4096, 24, 4096},
    {16384, 260 * kKiB, 4096, 16, 4096},
    {32768, 260 * kKiB, 4096, 8, 4096},
    {65536, 516 * kKiB, 4096, 8, 4096},
    {131072, 516 * kKiB, 4096, 4, 4096},
    {262144, 772 * kKiB, 4096, 3, 4096},
    {524288, 1540 * kKiB, 4096, 3, 4096},
    {1048576, 1028 * kKiB, 4096, 1, 4096},
}};

constexpr const SizeClass& info(ClassId c) {
  return kSizeClasses[index_of(c)];
}
constexpr bool is_class(ClassId c) {
  return c != ClassId::kNone && index_of(c) < kClasses;
}

/// All classes, by size of block.
inline constexpr std::array<ClassId, kClasses - 1> kAllClasses = [] {
  std::array<ClassId, kClasses - 1> classes{};
  for (std::uint32_t i = 0; i < classes.size(); ++i) classes[i] = ClassId{i + 1};
  return classes;
}();
inline constexpr ClassId kSmallestClass = kAllClasses.front();

/// class_of(size) as an index, size <= kSmallMax.
constexpr std::size_t small_class_index(std::size_t size) {
  return (size + 15) / 16;
}
/// The class of a request of `size` bytes, size <= kSpanMax. kNone for size 0.
constexpr ClassId class_of(std::size_t size) {
  if (size <= kSmallMax) return ClassId{static_cast<std::uint32_t>(small_class_index(size))};
  return ClassId{log2_floor(size - 1) + 9};  // 512 is class 17: log2_floor(511) == 8
}

/// The largest alignment that every block of a class has.
constexpr std::size_t natural_alignment(ClassId size_class) {
  const SizeClass& c = info(size_class);
  return std::size_t{1} << std::countr_zero(c.block_size | c.first_block);
}

/// Exact division by a class's block size: with block_size == odd << shift and odd * inverse == 1
/// (mod 2^32), rotr(x * inverse, shift) is x / block_size when block_size divides x, and above
/// (2^32 - 1) / block_size otherwise (H. S. Warren, "Hacker's Delight", 10-17). One comparison with
/// the number of blocks then tells whether an offset is a block's start, in range and divisible.
constexpr std::uint32_t inverse_of(std::uint32_t block_size) {
  const std::uint32_t odd = block_size >> std::countr_zero(block_size);
  std::uint32_t x = odd;                         // right in the low 3 bits
  for (int i = 0; i < 4; ++i) x *= 2 - odd * x;  // each step doubles the bits that are right
  return x;
}
constexpr std::uint32_t block_index(std::uint32_t offset_from_first, std::uint32_t inverse,
                                    unsigned shift) {
  return std::rotr(offset_from_first * inverse, static_cast<int>(shift));
}

/// The most that a span of any class has.
inline constexpr std::uint32_t kMostBlocks = kSizeClasses[1].blocks;

/// Real-span sizes get indexes in the order in which they appear in the table.
constexpr std::array<std::uint8_t, kClasses> make_real_span_indexes() {
  std::array<std::uint8_t, kClasses> index{};
  std::array<std::uint32_t, kClasses> sizes{};
  unsigned known = 0;
  for (const ClassId c : kAllClasses) {
    unsigned i = 0;
    while (i < known && sizes[i] != info(c).real_span) ++i;
    if (i == known) sizes[known++] = info(c).real_span;
    index[index_of(c)] = static_cast<std::uint8_t>(i);
  }
  index[0] = static_cast<std::uint8_t>(known);  // how many there are
  return index;
}
inline constexpr std::array<std::uint8_t, kClasses> kRealSpanIndex = make_real_span_indexes();

/// The bits that no link within a real span of so many bytes has (free_block.hpp).
constexpr std::uint64_t no_link_bits(std::size_t real_span) {
  return ~std::uint64_t{std::bit_ceil(real_span) - 16};
}
/// Of each class: malloc's fast path reads them.
inline constexpr std::array<std::uint64_t, kClasses> kNoLinkBits = [] {
  std::array<std::uint64_t, kClasses> bits{};
  for (unsigned c = 0; c < kClasses; ++c) bits[c] = no_link_bits(kSizeClasses[c].real_span);
  return bits;
}();

constexpr bool class_table_is_sound() {
  for (const ClassId id : kAllClasses) {
    const std::uint32_t c = index_of(id);
    const SizeClass& k = info(id);
    const std::size_t payload = std::size_t{k.blocks} * k.block_size;
    if (k.blocks > kMostBlocks) return false;
    const std::size_t wanted = c <= 16 ? 16 * std::size_t{c} : std::size_t{512} << (c - 17);
    if (k.block_size != wanted || class_of(k.block_size) != id || class_of(k.block_size - 1) != id)
      return false;
    if (c > 1 && class_of(kSizeClasses[c - 1].block_size + 1) != id) return false;
    if (k.first_block < kHeaderBytes || k.first_block + payload > k.real_span) return false;
    // One more block would fit
    if (k.real_span - k.first_block - payload >= k.block_size) return false;
    // At most 3.2 %
    if (k.waste != k.real_span - payload || k.waste * 31 > k.real_span) return false;
    if (k.real_span % (4 * kKiB) != 0 || k.real_span > kVirtualSpan) return false;
    if (c <= 16 ? k.real_span != kMadviseThreshold : k.real_span <= kMadviseThreshold) return false;
    if (k.block_size <= 4096 && is_power_of_two(k.block_size) &&
        natural_alignment(id) < k.block_size)
      return false;
    const auto shift = static_cast<unsigned>(std::countr_zero(k.block_size));
    const std::uint32_t inverse = inverse_of(k.block_size);
    if (block_index((k.blocks - 1) * k.block_size, inverse, shift) != k.blocks - 1) return false;
    if (block_index(k.block_size - 8, inverse, shift) < k.blocks) return false;
    if (block_index(0 - k.block_size, inverse, shift) < k.blocks) return false;
    if (block_index(k.blocks * k.block_size, inverse, shift) < k.blocks) return false;
  }
  return true;
}
static_assert(class_table_is_sound());
static_assert(kRealSpanIndex[0] == kRealSpanSizes);
static_assert(kSizeClasses[16].blocks == 127, "section 7.7.2: 127 blocks of 256 bytes");
static_assert(kSizeClasses[kClasses - 1].block_size == kSpanMax);

}  // namespace spanalloc::scalloc
