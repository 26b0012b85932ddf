// A span's record, in a table with one record a slice; that of a span's first
// slice speaks for the span.
//
// In a span of several blocks `order` leads from every slice to the first. A span of one block is
// only asked for by the address of its block, which begins in its first slice. The records of its
// other slices stay as earlier spans left them: they say "free", and their `order` leads to a
// record that says "free" or to a span in which the address does not lie.
#pragma once

#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "engines/standard/free_list.hpp"
#include "engines/standard/free_target.hpp"
#include "engines/standard/numbers.hpp"
#include "engines/standard/span_word.hpp"

namespace spanalloc::standard {

/// A span's list. kFull: a span without a free block that a search met when memory was out.
enum class ListId : std::uint8_t { kNone = 0, kNearlyFull, kPartial, kDelayed, kFull };

/// A span's life: never used -> owned -> shared (on one of the lists) -> free -> owned ... A span
/// of one block changes free -> shared -> free, maybe as a cached large span. Heap::begin_life()
/// writes what is constant while the span is not free.
///
/// The first cache line is the owner's: its short paths write there, and nowhere else in
/// the record. Other threads read and write the second line; in the first only what a
/// shared span's owner has freed.
///
/// Equation of a shared span: quota - left = uncollected, the owner's frees that
/// `word` does not count yet.
struct alignas(kCacheLine) Span : FreeTarget {
  /// Owner; of a shared span under the lock: what `left` was when it was set
  Atomic<std::uint32_t> quota;
  /// Owner: so many of the first blocks were out or listed once, the rest is untouched; a thread
  /// that holds a block sees that it was carved
  Atomic<std::uint32_t> carved;
  bool zero;          ///< owner of an owned span: what was never carved reads as zero
  std::uint8_t idle;  ///< of a span of one block, the thread that has it: see SlackBound
  /// Lock of the owner, of a shared span: retired; on no list, and not counted again
  Plain<bool> retired;
  FreeList rest;  ///< owner: a second list, of what others had freed before; mostly empty
  Atomic<std::uint64_t> purged;  ///< owner; of a shared span the lock: see purged_pages.hpp

  alignas(kCacheLine) AtomicSpanWord word;  ///< shared
  /// Lock of the owner: the next span on the list `list`
  Plain<SpanNumber> next;
  Plain<SpanNumber> prev;  ///< lock of the owner: the one before
  Plain<ListId> list;      ///< lock of the owner
  /// Constant while the span is not free: its ClassId
  Plain<std::uint8_t> size_class;
  /// log2 of the span's slices if it has several blocks, else 0; constant while the span is not
  /// free, and equal in the records of all its slices
  std::uint8_t order;
  /// size_class of the latest life, for statistics of other threads
  Atomic<std::uint8_t> shown_class;
  /// Lock of the owner: abandoned, and its free blocks not counted yet; until then
  /// `word` counts them as out
  Plain<bool> uncounted;
  /// The heap that has the span: constant while it is not free, and until a thread takes
  /// it out of that heap's pool
  Atomic<HeapNumber> heap;
  /// The pool's stack that the free span is in: the next span there
  Atomic<std::uint32_t> pool_link;
  Plain<std::uint32_t> watched;  ///< lock of the owner; of an owned span the owner: see Watch
  /// A copy of `blocks` for other threads, written by the owner: a look into the first line would
  /// take that line from the owner's CPU at each of their frees
  BlockTest shown;
  /// Holder of a block of kHuge: slices that it was last resized to (or a little more), beyond
  /// which the span may have room; 0: never resized
  std::uint32_t asked;
  /// Of a span of one block of a class, the holder of the block, or of the cached span: bytes from
  /// where the block begins to where the span ends
  std::uint32_t room;

  SpanWord load_word() const { return word.load_relaxed(); }
  ClassId class_id() const { return ClassId{static_cast<std::uint8_t>(size_class)}; }

  /// The owner's free that is the `count`-th from now is the next event.
  void expect_frees(std::uint32_t count) {
    quota.store_relaxed(count);
    left.store_relaxed(count);
  }
  /// A current span is looked at when its list ends. Frees into it are events only to read the
  /// clock, unless the thread may be about to give the span up: expect_emptying(). Then `quota` is
  /// how often it has looked.
  void expect_frees_while_owned() { expect_clock(kFirstClock); }
  void expect_clock(std::uint32_t frees) { expect_emptying(frees, kForClock + frees); }
  // `quota` of a current span: only read the clock
  static constexpr std::uint32_t kForClock = 1u << 16;
  static constexpr std::uint32_t kFirstClock = 32;  // after so many frees, or, if frees go on,
  // After up to so many; kSoonClock while work waits
  static constexpr std::uint32_t kMostClock = 8192;
  static constexpr std::uint32_t kSoonClock = 16;
  void expect_emptying(std::uint32_t count, std::uint32_t looks) {
    quota.store_relaxed(looks);
    left.store_relaxed(count);
  }
  /// The owner's frees since expect_frees(). To others a hint, unless they have the lock.
  std::uint32_t uncollected() const { return quota.load_relaxed() - left.load_relaxed(); }
  /// uncollected(), and what the owner did to the span and its blocks before.
  std::uint32_t uncollected_acquire() const { return quota.load_relaxed() - left.load_acquire(); }
};
static_assert(sizeof(Span) == 2 * kCacheLine);

/// What is remembered of a shared span from one decay epoch to the next: how many
/// blocks were out, and whether its pages were purged as far as possible since. 0:
/// nothing, as when it becomes shared.
struct Watch {
  /// Of an owned span, its owner's: since it was last shared or used up blocks were carved, or
  /// taken back from purged pages
  static constexpr std::uint32_t kGrown = 1;
  static constexpr std::uint32_t seen(std::uint32_t out) { return out * 2 + 2; }
  static constexpr std::uint32_t purged(std::uint32_t out) { return out * 2 + 3; }
};

/// A span's record and number, as functions pass a span to each other. Without a number: no span.
struct SpanRef {
  Span* record = nullptr;
  SpanNumber number = SpanNumber::kNone;

  Span* operator->() const { return record; }
  explicit operator bool() const { return number != SpanNumber::kNone; }
  friend bool operator==(SpanRef a, SpanRef b) { return a.number == b.number; }
};

}  // namespace spanalloc::standard
