// Of a block that is out: how large it is, whose, and making it larger or smaller.
#pragma once

#include "engines/virtual_span/standard/engine.hpp"

namespace spanalloc::standard {

template <class Config>
SPANALLOC_INLINE typename Frontend<Config>::Location Frontend<Config>::locate_live(const void* p) {
  const Location at = locate(p);  // the caller's block keeps the span as it is
  if (SPANALLOC_UNLIKELY(!at.has_record())) {
    os::fatal("size asked of a pointer that this allocator did not return:", p);
  }
  if (SPANALLOC_UNLIKELY(!at.is_block)) bad_pointer(p, Misuse::kAskSize);
  const auto* block = static_cast<const Block*>(p);
  const bool suspect = at.size_class() < Classes::kFirstSingle && looks_free(block);
  if (SPANALLOC_UNLIKELY((suspect && is_listed(at.span, block)) || is_newest_free(p, at))) {
    os::fatal("size asked of memory that is free:", p);
  }
  return at;
}

template <class Config>
inline std::size_t Frontend<Config>::usable_size(const void* p) {
  if (p == nullptr) return 0;
  const Location at = locate_live(p);
  return block_bytes(at.size_class(), at.span);
}

template <class Config>
template <LeavesAlone Policy>
inline Resized Frontend<Config>::resize(void* p, std::size_t n) {
  const Location at = locate_live(p);
  const ClassId c = at.size_class();
  const std::size_t usable = block_bytes(c, at.span);
  if (Policy::leaves_alone(n, usable)) return {p, usable};
  if (n > kMaxRequest) return {nullptr, usable};
  if (Classes::is_single(c)) {
    return {n > Config::kMaxListed ? resize_single(at.span, n, granules_for(usable)) : nullptr, usable};
  }
  return {n <= Config::kMaxListed && Classes::of(n) == c ? p : nullptr, usable};
}

// A block of its own takes or gives granules behind it, or its pages move to a larger place.
template <class Config>
inline void* Frontend<Config>::resize_single(SpanRef span, std::size_t n, GranuleCount old) {
  const Inside inside(*this);
  Heap& home = pages->heap_of(span);
  const GranuleCount granules = granules_for(n);
  const ClassId c = n > Config::kMaxBlock ? Classes::kLarge : Classes::of(n);
  // A fork's child may find the span in between: then its class says less than it has.
  const ClassId before = span->class_id();
  if (granules < old) Heap::change_class(span, c);
  if (granules == old || home.resize_in_place(span, old, granules)) {
    Heap::change_class(span, c);
  } else {
    Heap::change_class(span, before);
    if (n <= Config::kMoveAtLeast || old.count << Config::kGranuleBits < Config::kMoveAtLeast) return nullptr;
    span = home.move_large(span, old, granules);
    if (!span) return nullptr;
  }
  char* block = pages->address(span.number);
  unpoison(block,
           c == Classes::kLarge ? granules.count << Config::kGranuleBits : Classes::info(c).block_size);
  return block;
}

template <class Config>
inline bool Frontend<Config>::owns(const void* p) {
  const Location at = locate(p);
  return at.in_span && heap->has(at.span);
}

}  // namespace spanalloc::standard
