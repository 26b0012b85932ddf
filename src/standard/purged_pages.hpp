// Which pages of a span were purged while some of its blocks are out: a mask of
// pages in the span's record.
//
// A block that touches a purged page is *purged*: it is free, was carved, and is on none of
// the span's lists, because its link is gone with the page. Only the mask remembers it. So
// in every state of a span
//   carved = blocks out + blocks on lists + purged blocks
// where a purged block is one of the first `carved` that touches a page of the mask. Pages without
// a carved block may be purged without a bit. A page that ends in blocks that were never carved
// never has a bit: what is carved later must not be taken for purged.
#pragma once

#include <bit>
#include <cstdint>

#include "standard/free_list.hpp"
#include "standard/size_classes.hpp"

namespace spanalloc::standard {

/// Bit n: the 4 KiB from byte n * 4 KiB on. Where the kernel's pages are larger,
/// their bits change together.
struct PageMask {
  static constexpr unsigned kBits = 12;
  static constexpr std::uint32_t kBytes = 1u << kBits;
  static_assert(kMostSpan / kBytes <= 64);

  static constexpr std::uint64_t range(std::uint32_t first, std::uint32_t last) {
    return (~std::uint64_t{0} >> (63 - (last - first))) << first;
  }
  static constexpr std::size_t pages(std::uint64_t mask) {
    return static_cast<std::size_t>(std::popcount(mask));
  }
  /// The pages that block `i` touches.
  static constexpr std::uint64_t of_block(std::uint32_t i, const SizeClass& span) {
    return range(span.offset_of(i) >> kBits, (span.offset_of(i + 1) - 1) >> kBits);
  }
  /// Calls f(first, last) for each run of pages.
  template <class F>
  static void for_each_run(std::uint64_t mask, F&& f) {
    while (mask != 0) {
      const auto first = static_cast<std::uint32_t>(std::countr_zero(mask));
      const std::uint64_t above = mask >> first;
      const auto length = static_cast<std::uint32_t>(std::countr_one(above));
      f(first, first + length - 1);
      mask &= ~range(first, first + length - 1);
    }
  }
};
static_assert(PageMask::range(0, 63) == ~std::uint64_t{0} && PageMask::range(3, 3) == 8);

/// Calls f(i) for each purged block, in address order.
template <class F>
inline void for_each_purged(std::uint64_t mask, const SizeClass& span, std::uint32_t carved,
                            F&& f) {
  std::uint32_t next = 0;  // a block may touch two runs
  PageMask::for_each_run(mask, [&](std::uint32_t first, std::uint32_t last) {
    const std::uint32_t begin = first == 0 ? 0 : span.index_at(first << PageMask::kBits);
    const std::uint32_t end = span.index_at(((last + 1) << PageMask::kBits) - 1) + 1;
    for (next = begin > next ? begin : next; next < end && next < carved; ++next) f(next);
  });
}
inline std::uint32_t count_purged(std::uint64_t mask, const SizeClass& span, std::uint32_t carved) {
  std::uint32_t count = 0;
  for_each_purged(mask, span, carved, [&](std::uint32_t) { ++count; });
  return count;
}

}  // namespace spanalloc::standard
