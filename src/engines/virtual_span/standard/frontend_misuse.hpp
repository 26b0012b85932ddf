// What to say of a pointer that is no block's: the cold ends of free and of asking a size.
#pragma once

#include "engines/virtual_span/standard/frontend.hpp"

namespace spanalloc::standard {

SPANALLOC_COLD inline void Frontend::deallocate_outside_spans(void* p) {
  if (p != nullptr) os::fatal("free of a pointer that this allocator did not return:", p);
}

// What to say of an address whose record knows no such block. A record speaks for its own granule only if
// the span has several blocks: in which other block the address lies is found in the arena.
SPANALLOC_COLD inline void Frontend::bad_pointer(const void* p, Deed deed) {
  static constexpr const char* kSentences[][2] = {
      {"free of a pointer that is not the start of a block:",
       "size asked of a pointer that is not the start of a block:"},
      {"free of memory that was never handed out:", "size asked of memory that was never handed out:"},
      {"free of memory that is free already (double free):", "size asked of memory that is free:"},
      {"free of memory that is free (double free, or never handed out):",
       "size asked of memory that is free, or was never handed out:"},
      {"free of an address that lies in no block:", "size asked of an address that lies in no block:"},
  };
  os::fatal(kSentences[static_cast<int>(place_of(address_of(p)))][static_cast<int>(deed)], p);
}

// In a block of a live span that nobody has had yet.
inline bool Frontend::is_untouched(std::uintptr_t a, std::uint32_t number, const Span& span) {
  const ClassInfo& info = kClassTable[span.size_class];
  const std::uint64_t offset = a - address_of(Heap::address(number));
  return info.blocks != 1 && offset >= std::uint64_t{span.carved.load_relaxed()} * info.block_size &&
         offset < info.payload();
}

SPANALLOC_COLD inline Frontend::Place Frontend::place_of(std::uintptr_t a) {
  std::size_t granule = 0;
  if (!Heap::granule_of(a, granule)) return Place::kNoMemory;
  Place place = Place::kNoMemory;
  Heap::walk_ranges([&](std::uint32_t number, std::size_t granules, bool free) {
    if (granule - number >= granules) return;  // also where it is before the range
    const Span& span = Heap::span(number);
    const bool live = !free && SpanWord{span.word.load_relaxed()}.state() != SpanState::kFree;
    // The start of a live block: it has become one since the caller looked, in other hands.
    place = !live                                  ? Place::kFreeMemory
            : is_start(a, number, span.size_class) ? Place::kFreeMemory
            : is_untouched(a, number, span)        ? Place::kUntouched
                                                   : Place::kInsideBlock;
  });
  std::uint32_t first = 0;
  const bool was_span = Heap::span_of_granule(granule, first).shown_class.load_relaxed() != 0;
  return place == Place::kFreeMemory && was_span ? Place::kFreedBlock : place;
}

// Whether the block is the first of a list of free ones. (Of the others it is not known without a search.)
inline bool Frontend::is_newest_free(const void* p, std::uint32_t number, SpanWord word) {
  const Span& span = Heap::span(number);
  const ThreadState& t = thread_state;
  if (word.head() == block_mark(address_of(p) - address_of(Heap::address(number)))) return true;
  if (t.run.count != 0 && t.run.newest == p) return true;
  if (word.identity() == t.hot_identity && head_of(t.lab, span.size_class) == p) return true;
  const bool mine = word.identity() == t.hot_identity || word.identity() == t.parked_identity;
  return mine && span.free_list.load_relaxed() == p;
}

inline void Frontend::check_listed(std::uint64_t link, const Block* block, unsigned c) {
  if (link - 1 < kClassTable[c].virtual_span - std::uint64_t{1}) return;
  if ((link ^ address_of(block)) == address_of(no_block())) return;
  os::fatal("free list overwritten (write after free?) at", block);
}

}  // namespace spanalloc::standard
