// Of a block that is out: how large it is, whose, and making it larger or smaller.
#pragma once

#include "engines/virtual_span/standard/frontend.hpp"

namespace spanalloc::standard {

inline std::size_t Frontend::usable_size(const void* p) {
  const std::uintptr_t a = address_of(p);
  std::size_t granule = 0;
  if (!Heap::granule_of(a, granule)) {
    if (p == nullptr) return 0;
    os::fatal("size asked of a pointer that this allocator did not return:", p);
  }
  std::uint32_t number = 0;
  const Span& span = Heap::span_of_granule(granule, number);
  const SpanWord word{span.word.load_relaxed()};  // the caller's block keeps the span as it is
  if (SPANALLOC_UNLIKELY(word.state() == SpanState::kFree || !is_start(a, number, span.size_class))) {
    bad_pointer(p, Deed::kAskSize);
  }
  if (SPANALLOC_UNLIKELY(is_newest_free(p, number, word))) os::fatal("size asked of memory that is free:", p);
  return block_bytes(span.size_class, number);
}

inline void* Frontend::resize(void* p, std::size_t n) {
  const std::uintptr_t a = address_of(p);
  std::size_t granule = 0;
  if (n == 0 || n > kMaxRequest || !Heap::granule_of(a, granule)) return nullptr;
  std::uint32_t number = 0;
  const Span& span = Heap::span_of_granule(granule, number);
  const unsigned c = span.size_class;
  if (kClassTable[c].blocks == 1) return n > kMaxListed ? resize_single(number, n) : nullptr;
  return n <= kMaxListed && class_of(n) == c ? p : nullptr;
}

// A block of its own takes or gives granules behind it, or its pages move to a larger place.
inline void* Frontend::resize_single(std::uint32_t number, std::size_t n) {
  const InsideHeap inside;
  const std::size_t old_granules = Heap::granules_of(number);
  const std::size_t granules = granules_for(n);
  const unsigned c = n > kMaxBlock ? kLargeClass : class_of(n);
  if (granules == old_granules || Heap::resize_in_place(number, granules)) {
    Span& span = Heap::span(number);
    span.size_class = static_cast<std::uint8_t>(c);
    span.shown_class.store_relaxed(static_cast<std::uint8_t>(c));
  } else {
    if (n <= kMoveAtLeast || old_granules << kGranuleBits < kMoveAtLeast) return nullptr;
    number = Heap::move_large(number, granules);
    if (number == 0) return nullptr;
  }
  unpoison(Heap::address(number), block_bytes(c, number));
  return Heap::address(number);
}

inline bool Frontend::owns(const void* p) {
  std::size_t granule = 0;
  if (!Heap::granule_of(address_of(p), granule)) return false;
  std::uint32_t number = 0;
  const Span& span = Heap::span_of_granule(granule, number);
  // A free granule's record may lead to a span before it that has no such granule.
  return granule - number < (std::size_t{1} << span.order) &&
         SpanWord{span.word.load_relaxed()}.state() != SpanState::kFree;
}

}  // namespace spanalloc::standard
