// Where the block of a span of one block begins, and how large it is.
//
// Spans begin on 64 KiB. If their blocks did, the first words of many objects of one size would
// lie in few sets of the CPU's caches and, since they are far apart, on pages that share few sets
// of the TLB. So a block begins at a multiple of a cache line in the first slice, as far as the
// slices have more room than was asked for. Its place follows from that room and the span's
// number: no count is kept, and neighbouring spans differ. The record keeps the place from one
// life in dirty memory to the next, until the span serves a request that does not fit behind it,
// or that needs alignment.
#pragma once

#include "standard/size_classes.hpp"

namespace spanalloc::standard {

/// The request that a block serves.
struct Request {
  std::size_t bytes;
  std::size_t alignment = kQuantum;
};

template <class Config>
struct LargeBlockPlace {
  static constexpr std::size_t kSlice = std::size_t{1} << Config::kSliceBits;
  static constexpr std::size_t kLines = kSmallPage / kCacheLine;  // in a page

  /// Where in a span of `span_bytes` a block for the request begins.
  static constexpr std::size_t offset(SpanNumber number, std::size_t span_bytes, Request request) {
    if (request.alignment > kCacheLine || request.bytes >= span_bytes) return 0;
    // In the first slice: its record is the one that the block's address leads to.
    const std::size_t room = min_of(span_bytes - request.bytes, kSlice - kCacheLine);
    // Spans that are 16 slices apart are 256 pages apart, and would share a set of the TLB. They
    // are spread evenly, because the places fill all the sets.
    const std::size_t page = index_of(number) / 16 % (room / kSmallPage + 1) * kSmallPage;
    const std::size_t lines = min_of((room - page) / kCacheLine + 1, kLines);
    // Multiples of the golden ratio: no line is used much more than others, however
    // far apart the spans are.
    const std::uint64_t fraction = index_of(number) * std::uint32_t{0x9E3779B1};
    return page + (fraction * lines >> 32) * kCacheLine;
  }

  /// Whether a block at this address serves the request.
  static constexpr bool fits(std::uintptr_t block, std::size_t span_bytes, Request request) {
    return offset_of(block) + request.bytes <= span_bytes && is_aligned(block, request);
  }
  static constexpr bool is_aligned(std::uintptr_t block, Request request) {
    return request.alignment <= kCacheLine || block % request.alignment == 0;
  }
  /// Where a block begins in its span.
  SPANALLOC_INLINE static constexpr std::size_t offset_of(std::uintptr_t block) {
    return block % kSlice;
  }
  /// How many bytes the program may use of a block of a class, or of kHuge, in a span of
  /// `span_bytes`.
  SPANALLOC_INLINE static constexpr std::size_t bytes(std::uintptr_t block, ClassId c,
                                                      std::size_t span_bytes) {
    const std::size_t behind = span_bytes - offset_of(block);
    const std::size_t most = SizeClasses<Config>::info(c).block_size;  // 0 for kHuge
    return most == 0 ? behind : min_of(behind, most);
  }
};

}  // namespace spanalloc::standard
