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
#include "engines/virtual_span/standard/intake.hpp"
#include "engines/virtual_span/standard/numbers.hpp"
#include "engines/virtual_span/standard/span_word.hpp"

namespace spanalloc::standard {

/// Which of its LAB's lists a span stands on; kFull: one of no free block, passed by when memory was out.
enum class ListId : std::uint8_t { kNone = 0, kFloating, kReusable, kAttention, kFull };

/// Life: expected -> hot -> parked (floating, reusable) -> free -> hot ...; single-block spans: free ->
/// parked. What is constant while the span is not free is written by Heap::begin_life().
///
/// The first line is the owner's, whose short paths write to it, and to nothing else of the record. Others
/// read and write the second one, and look into the first only for what a parked span's owner has freed.
///
/// Equation, parked: quota - left = the owner's frees since the last settling, which `word` does not know
/// yet.
struct alignas(kCacheLine) Span : Intake {
  Atomic<std::uint32_t> quota;   ///< owner, if parked under the lock: what `left` was when it was set
  Atomic<std::uint32_t> carved;  ///< owner: blocks 1..carved have been on a list; the rest is untouched; who
                                 ///< holds a block sees that it was carved
  bool zero;                     ///< owner of a hot one: what was never carved reads as zero
  Atomic<Block*> rest;  ///< owner: a second list, of what others had freed when it became hot; mostly empty

  alignas(kCacheLine) Atomic<std::uint64_t> word;  ///< shared: SpanWord
  Plain<SpanNumber> next;                          ///< lock of the owning LAB: neighbours on the list `list`
  Plain<SpanNumber> prev;                          ///< "
  Plain<ListId> list;                              ///< "
  Plain<std::uint8_t> size_class;                  ///< constant while the span is not free: its ClassId
  std::uint8_t order;  ///< log2 of the span's granules if it has several blocks, else 0; constant while the
                       ///< span is not free, and the same in the records of all its granules
  Atomic<std::uint8_t> shown_class;  ///< size_class of the latest life, for statistics while others run
  std::uint8_t mark;                 ///< the census's
  Plain<bool> uncounted;    ///< lock of the owning LAB: an orphan whose free blocks have not been counted: as
                            ///< long as that is so `word` counts them as out
  Atomic<HeapNumber> heap;  ///< constant while the span is not free, and until somebody takes it out of that
                            ///< heap's pool: whose it is
  Atomic<std::uint32_t> pool_link;  ///< the pool stack that the free span is in
  BlockTest shown;  ///< the owner's, for others: to look into the first line would take it from
                    ///< the owner's core with each of their frees

  SpanWord load_word() const { return SpanWord{word.load_relaxed()}; }
  ClassId class_id() const { return ClassId{static_cast<std::uint8_t>(size_class)}; }

  /// So many of its owner's frees later is the next event.
  void expect_frees(std::uint32_t count) {
    quota.store_relaxed(count);
    left.store_relaxed(count);
  }
  /// A hot span is looked at when its list ends; frees into it are no event, but once in a long while.
  void expect_frees_while_hot() { expect_frees(1u << 30); }
  /// The owner's frees since expect_frees(). Others: a hint, unless they have the lock.
  std::uint32_t unpublished() const { return quota.load_relaxed() - left.load_relaxed(); }
  /// The same, with what the owner did to the span and its blocks before.
  std::uint32_t unpublished_acquire() const { return quota.load_relaxed() - left.load_acquire(); }
};
static_assert(sizeof(Span) == 2 * kCacheLine);

/// A span's record and its number: what everybody passes around. Without a number: no span.
struct SpanRef {
  Span* record = nullptr;
  SpanNumber number = SpanNumber::kNone;

  Span* operator->() const { return record; }
  explicit operator bool() const { return number != SpanNumber::kNone; }
  friend bool operator==(SpanRef a, SpanRef b) { return a.number == b.number; }
};

}  // namespace spanalloc::standard
