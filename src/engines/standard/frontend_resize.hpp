// Of a block that is out: how large it is, whose, and making it larger or smaller.
#pragma once

#include "engines/standard/engine.hpp"

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
    if (n <= Config::kMaxListed) return {nullptr, usable};
    return {resize_single(at.span, n, granules_of_single(c, at.span)), usable};
  }
  return {n <= Config::kMaxListed && Classes::of(n) == c ? p : nullptr, usable};
}

// A block of its own takes or gives granules behind it, or its pages move to a larger place. One that was
// moved grows into the room it got, and then moves on before it grows where it stands: only what is one
// mapping can be moved.
template <class Config>
inline void* Frontend<Config>::resize_single(SpanRef span, std::size_t n, GranuleCount old) {
  const Inside inside(*this);
  Heap& home = pages->heap_of(span);
  const std::size_t offset = Singles::offset_of(span->shown.base.load_relaxed());
  const GranuleCount granules = granules_for(offset + n);
  // Of blocks that begin late in their first granule the class that has as many granules.
  ClassId c = n > Config::kMaxBlock ? Classes::kLarge : Classes::of(n);
  if (c != Classes::kLarge && Classes::info(c).granules != granules.count) {
    c = offset + n > Config::kMaxBlock ? Classes::kLarge : Classes::of(offset + n);
  }
  const bool may_move =
      granules > old && n > Config::kMoveAtLeast && old.count << Config::kGranuleBits >= Config::kMoveAtLeast;
  const bool moves_first = may_move && home.is_better_moved(span);
  if (keeps_its_room(span, granules, old)) {
    span->asked = static_cast<std::uint32_t>(max_of(granules.count, span->asked));
  } else {
    SpanRef resized = moves_first ? home.move_large(span, old, granules) : SpanRef{};
    if (!resized && resize_where_it_stands(home, span, c, granules, old)) {
      resized = span;
      home.give_slack_back(span, pages->address(span.number) + offset, n, true);
      span->asked = static_cast<std::uint32_t>(granules.count);
    }
    if (!resized && may_move && !moves_first) resized = home.move_large(span, old, granules);
    if (!resized) return nullptr;
    span = resized;
  }
  char* block = pages->address(span.number) + offset;
  unpoison(block, block_bytes(span->class_id(), span));
  return block;
}

// Of a block that has grown and does not shrink now, or by no more than an eighth (or a granule) of the most
// that it was asked for: a size that goes back and forth across a boundary would move it each time.
template <class Config>
inline bool Frontend<Config>::keeps_its_room(SpanRef span, GranuleCount granules, GranuleCount old) {
  if (span->class_id() != Classes::kLarge || span->asked == 0 || granules > old) return false;
  return granules.count + max_of(span->asked / 8, 1) >= span->asked;
}

template <class Config>
inline bool Frontend<Config>::resize_where_it_stands(Heap& home, SpanRef span, ClassId c,
                                                     GranuleCount granules, GranuleCount old) {
  // A fork's child may find the span in between: then its class says less than it has.
  const ClassId before = span->class_id();
  if (granules < old) Heap::change_class(span, c);
  const bool fits = granules == old || home.resize_in_place(span, old, granules);
  Heap::change_class(span, fits ? c : before);
  return fits;
}

template <class Config>
inline bool Frontend<Config>::owns(const void* p) {
  const Location at = locate(p);
  return at.in_span && heap->has(at.span);
}

}  // namespace spanalloc::standard
