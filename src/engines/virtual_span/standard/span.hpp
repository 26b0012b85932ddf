// A span's record in the side table (one a granule; the record of the first granule of a span speaks for it).
//
// From any granule of a span of several blocks `order` leads to its first one. A span of one block is only
// ever asked for by the address of its block, in its first granule; the records of its other granules are
// left as they are from earlier spans: they say "free", and wherever their `order` leads, to a record that
// says "free" or to a span that the address does not lie in.
#pragma once

#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "engines/virtual_span/standard/block.hpp"
#include "engines/virtual_span/standard/numbers.hpp"
#include "engines/virtual_span/standard/span_word.hpp"

namespace spanalloc::standard {

/// Which of its LAB's lists a span stands on; kFull: one of no free block, passed by when memory was out.
enum class ListId : std::uint8_t { kNone = 0, kFloating, kReusable, kAttention, kFull };

/// Life: expected -> hot -> parked (floating, reusable) -> free -> hot ...; single-block spans: free ->
/// parked. What is constant while the span is not free is written by Heap::begin_life().
struct alignas(kCacheLine) Span {
  Atomic<std::uint64_t> word;         ///< shared: SpanWord
  Atomic<std::uint32_t> unpublished;  ///< written by the owner only, read by all: its frees not yet in `word`
  Plain<std::uint32_t> floor;         ///< owner: a local free that leaves <= floor blocks out is an event
  Plain<std::uint32_t> start_magic;  ///< divisibility_magic32 of the block size if the span is one granule of
                                     ///< several blocks, else 0; constant while the span is not free
  Atomic<std::uint32_t> start_limit;  ///< owner: multiple_limit32 of it and `carved`, else 0; who holds a
                                      ///< block sees a limit that lets it pass
  Atomic<Block*> free_list;      ///< owner: parked: its freed blocks; hot: a reserve behind the LAB's head;
                                 ///< empty: end_of_list()
  Atomic<std::uint32_t> carved;  ///< owner: blocks 1..carved have been on a list; the rest is untouched; who
                                 ///< holds a block sees that it was carved
  Plain<SpanNumber> next;        ///< lock of the owning LAB: neighbours on the list `list`
  Plain<SpanNumber> prev;        ///< "
  Plain<ListId> list;            ///< "
  Plain<std::uint8_t> size_class;  ///< constant while the span is not free: its ClassId
  std::uint8_t order;  ///< log2 of the span's granules if it has several blocks, else 0; constant while the
                       ///< span is not free, and the same in the records of all its granules
  Atomic<std::uint8_t> shown_class;  ///< size_class of the latest life, for statistics while others run
  std::uint8_t mark;                 ///< the census's
  bool zero;                         ///< owner of a hot one: what was never carved reads as zero
  Atomic<HeapNumber> heap;  ///< constant while the span is not free, and until somebody takes it out of that
                            ///< heap's pool: whose it is
  Atomic<std::uint32_t> pool_link;  ///< the pool stack that the free span is in

  SpanWord load_word() const { return SpanWord{word.load_relaxed()}; }
  ClassId class_id() const { return ClassId{static_cast<std::uint8_t>(size_class)}; }
};
static_assert(sizeof(Span) == kCacheLine);

/// A span's record and its number: what everybody passes around. Without a number: no span.
struct SpanRef {
  Span* record = nullptr;
  SpanNumber number = SpanNumber::kNone;

  Span* operator->() const { return record; }
  explicit operator bool() const { return number != SpanNumber::kNone; }
  friend bool operator==(SpanRef a, SpanRef b) { return a.number == b.number; }
};

}  // namespace spanalloc::standard
