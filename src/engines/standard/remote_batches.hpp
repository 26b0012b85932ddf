// Remote batches: blocks of other threads' spans that a thread has freed and not given back yet. So
// the cache line of a span's word moves between cores once a batch, not once a block.
//
// A batch is a free target, as the record of a span is, and the thread's map leads to it as long as
// it holds a block: frees into it take the short path. Only its first block and its last one take a
// slow path. The span counts the blocks in the batch as out, so the span stays what it is.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "engines/standard/block.hpp"
#include "engines/standard/free_target.hpp"
#include "engines/standard/numbers.hpp"

namespace spanalloc::standard {

/// Only its thread uses it.
struct alignas(kCacheLine) RemoteBatch : FreeTarget {
  Block* oldest;        ///< of the blocks that it holds
  SpanNumber number;    ///< the span that the last remote free here went to; kNone: there was none
  std::uint32_t quota;  ///< how many blocks it may hold; 0: it holds none

  std::uint32_t count() const { return quota == 0 ? 0 : quota - left.load_relaxed(); }
  bool holds(SpanNumber span) const { return quota != 0 && number == span; }
};

/// Batches for several spans at a time: a span may have one of two, which its number
/// tells. (If it told one, every third of nine spans that are freed into in turn would
/// have none.) Zero-initialisable.
struct RemoteBatches {
  static constexpr unsigned kBatches = 64;

  RemoteBatch batches[kBatches];
  std::uint32_t holding = 0;  ///< how many batches hold a block
  std::size_t bytes = 0;      ///< how much the blocks are that these may hold
  std::uint32_t next = 0;     ///< which batch is flushed next
  std::uint32_t turn = 0;     ///< odd or even: which of its two the next span takes that has none

  /// The span's batch. If it has none: a batch of another span, or of none.
  RemoteBatch& of(SpanNumber span) {
    RemoteBatch& first = first_of(span);
    return first.number == span ? first : (&first)[1];
  }
  /// A batch for a span that has none: its two take turns.
  RemoteBatch& take_turn(SpanNumber span) { return (&first_of(span))[++turn % 2]; }
  /// The batch holds its first block, of `size` bytes.
  void begin(RemoteBatch& batch, std::uint32_t quota, std::size_t size) {
    batch.quota = quota;
    bytes += quota * size;
    ++holding;
  }
  void end(RemoteBatch& batch, std::size_t size) {
    bytes -= batch.quota * size;
    batch.quota = 0;
    --holding;
  }
  /// No batch may hold a block, or the blocks are lost.
  void forget() {
    for (RemoteBatch& batch : batches) {
      batch.number = SpanNumber::kNone;
      batch.quota = 0;
    }
    holding = 0;
    bytes = 0;
  }

 private:
  // (The number is mixed, because spans of four slices have every fourth number.)
  RemoteBatch& first_of(SpanNumber span) {
    return batches[(index_of(span) * 0x9E3779B1u >> (32 - kPairBits)) * 2];
  }
  static constexpr unsigned kPairBits = 5;
  static_assert(kBatches == 2u << kPairBits);
};

}  // namespace spanalloc::standard
