// A span's record in the side table (one a slice; the record of the first slice of a span speaks for it).
//
// From any slice of a span of several blocks `order` leads to its first one. A span of one block is only
// ever asked for by the address of its block, in its first slice; the records of its other slices are
// left as they are from earlier spans: they say "free", and wherever their `order` leads, to a record that
// says "free" or to a span that the address does not lie in.
#pragma once

#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "engines/standard/block.hpp"
#include "engines/standard/free_target.hpp"
#include "engines/standard/numbers.hpp"
#include "engines/standard/span_word.hpp"

namespace spanalloc::standard {

/// Which of its thread cache's lists a span stands on; kFull: one of no free block, passed by when memory was
/// out.
enum class ListId : std::uint8_t { kNone = 0, kNearlyFull, kPartial, kDelayed, kFull };

/// Life: never used -> hot -> parked (on one of the lists) -> free -> hot ...; of a span of one block: free
/// -> parked -> free, maybe as a spare. What is constant while the span is not free is written by
/// Heap::begin_life().
///
/// The first line is the owner's, whose short paths write to it, and to nothing else of the record. Others
/// read and write the second one, and look into the first only for what a parked span's owner has freed.
///
/// Equation, parked: quota - left = the owner's frees since the last settling, which `word` does not know
/// yet.
struct alignas(kCacheLine) Span : FreeTarget {
  Atomic<std::uint32_t> quota;   ///< owner, if parked under the lock: what `left` was when it was set
  Atomic<std::uint32_t> carved;  ///< owner: the first blocks, so many, were on a list or out; the rest is
                                 ///< untouched; who holds a block sees that it was carved
  bool zero;                     ///< owner of a hot one: what was never carved reads as zero
  std::uint8_t idle;  ///< of a span of one block, whoever has it: pages of 4 KiB around the block that are
                      ///< in memory; see SlackBound
  Plain<bool> lost;  ///< lock of the thread cache that a parked one has: out of use for the rest of its life,
                     ///< on no list, and not counted again
  Atomic<Block*> rest;  ///< owner: a second list, of what others had freed when it became hot; mostly empty
  Atomic<std::uint64_t> purged;  ///< owner of a hot one, of a parked one the lock: pages that were given
                                 ///< back, with the free blocks on them; see dropped_pages.hpp

  alignas(kCacheLine) Atomic<std::uint64_t> word;  ///< shared: SpanWord
  Plain<SpanNumber> next;          ///< lock of the owning thread cache: neighbours on the list `list`
  Plain<SpanNumber> prev;          ///< "
  Plain<ListId> list;              ///< "
  Plain<std::uint8_t> size_class;  ///< constant while the span is not free: its ClassId
  std::uint8_t order;  ///< log2 of the span's slices if it has several blocks, else 0; constant while the
                       ///< span is not free, and the same in the records of all its slices
  Atomic<std::uint8_t> shown_class;  ///< size_class of the latest life, for statistics while others run
  Plain<bool> uncounted;  ///< lock of the owning thread cache: an orphan whose free blocks have not been
                          ///< counted: as long as that is so `word` counts them as out
  Atomic<HeapNumber> heap;  ///< constant while the span is not free, and until somebody takes it out of that
                            ///< heap's pool: whose it is
  Atomic<std::uint32_t> pool_link;  ///< the pool stack that the free span is in
  Plain<std::uint32_t> watched;     ///< lock of the owning thread cache; owner of a hot one: see Watch
  BlockTest shown;      ///< the owner's, for others: to look into the first line would take it from
                        ///< the owner's core with each of their frees
  std::uint32_t asked;  ///< holder of a block of kHuge: slices that it was last resized to (or a little
                        ///< more), beyond which the span may have room; 0: never resized
  std::uint32_t room;  ///< holder of the block of a span of one block of a class, or of the spare: bytes from
                       ///< where the block begins to where the span ends

  SpanWord load_word() const { return SpanWord{word.load_relaxed()}; }
  ClassId class_id() const { return ClassId{static_cast<std::uint8_t>(size_class)}; }

  /// So many of its owner's frees later is the next event.
  void expect_frees(std::uint32_t count) {
    quota.store_relaxed(count);
    left.store_relaxed(count);
  }
  /// A current span is looked at when its list ends; frees into it are an event only for the clock to be
  /// read.
  void expect_frees_while_owned() { expect_clock(kFirstClock); }
  void expect_clock(std::uint32_t frees) { expect_emptying(frees, kForClock + frees); }
  /// Unless it may be about to be given up: then the event comes so many frees later. Of a current span
  /// `quota` says nothing else: how often that has been looked at.
  static constexpr std::uint32_t kForClock = 1u
                                             << 16;  // quota, of a current span: no such look, but the clock;
  static constexpr std::uint32_t kFirstClock = 32;   // after so many frees, or, if that goes on,
  static constexpr std::uint32_t kMostClock = 8192;  // up to so many; less while there is work waiting
  static constexpr std::uint32_t kSoonClock = 16;
  void expect_emptying(std::uint32_t count, std::uint32_t looks) {
    quota.store_relaxed(looks);
    left.store_relaxed(count);
  }
  /// The owner's frees since expect_frees(). Others: a hint, unless they have the lock.
  std::uint32_t uncollected() const { return quota.load_relaxed() - left.load_relaxed(); }
  /// The same, with what the owner did to the span and its blocks before.
  std::uint32_t uncollected_acquire() const { return quota.load_relaxed() - left.load_acquire(); }
};
static_assert(sizeof(Span) == 2 * kCacheLine);

/// What is remembered of a parked span from tick to tick: how many blocks were out, and whether what can be
/// given back of its pages was given back since. 0: nothing; so it begins to be parked.
struct Watch {
  static constexpr std::uint32_t kGrown = 1;  ///< of a current span, its owner's: blocks were carved, or
                                              ///< taken back from dropped pages, since it was parked or warm
  static constexpr std::uint32_t seen(std::uint32_t out) { return out * 2 + 2; }
  static constexpr std::uint32_t thinned(std::uint32_t out) { return out * 2 + 3; }
};

/// A span's record and its number: what everybody passes around. Without a number: no span.
struct SpanRef {
  Span* record = nullptr;
  SpanNumber number = SpanNumber::kNone;

  Span* operator->() const { return record; }
  explicit operator bool() const { return number != SpanNumber::kNone; }
  friend bool operator==(SpanRef a, SpanRef b) { return a.number == b.number; }
};

}  // namespace spanalloc::standard
