// Blocks of other threads' spans that a thread has freed and not yet given back: so that the cache line that
// a span's word is in moves once a run, not once a block.
//
// A run is an target like that of one's own spans, and stands in the thread's map as long as it holds a
// block: frees into it take the same short path. Its first block and its last one take the slow path. While
// it holds a block its span counts that as out, so the span stays what it is.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "engines/standard/block.hpp"
#include "engines/standard/free_target.hpp"
#include "engines/standard/numbers.hpp"

namespace spanalloc::standard {

/// Its thread's alone.
struct alignas(kCacheLine) RemoteBatch : FreeTarget {
  Block* oldest;        ///< of those that it holds
  SpanNumber number;    ///< the span that the last such free hit; kNone: none yet
  std::uint32_t quota;  ///< how many it may hold; 0: it holds none

  std::uint32_t count() const { return quota == 0 ? 0 : quota - left.load_relaxed(); }
  bool holds(SpanNumber span) const { return quota != 0 && number == span; }
};

/// A run for each of several spans at a time: a span's is one of two, by its number. (With one each, every
/// third of nine spans that are freed into in turn would have none.) Zero-initialisable.
struct RemoteBatches {
  static constexpr unsigned kBatches = 64;

  RemoteBatch batches[kBatches];
  std::uint32_t holding = 0;  ///< runs that hold a block
  std::size_t bytes = 0;      ///< of the blocks that these may hold
  std::uint32_t next = 0;     ///< whose turn it is to be given back
  std::uint32_t turn = 0;     ///< which of two runs the next span takes that has neither

  /// The span's; another one's or nobody's if it has none.
  RemoteBatch& of(SpanNumber span) {
    RemoteBatch& first = first_of(span);
    return first.number == span ? first : (&first)[1];
  }
  /// The one that a span may have which has none.
  RemoteBatch& take_turn(SpanNumber span) { return (&first_of(span))[++turn % 2]; }
  /// It holds its first block, of `size` bytes.
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
  /// None may hold a block, or they are lost.
  void forget() {
    for (RemoteBatch& batch : batches) {
      batch.number = SpanNumber::kNone;
      batch.quota = 0;
    }
    holding = 0;
    bytes = 0;
  }

 private:
  // (Mixed: spans of four slices have every fourth number.)
  RemoteBatch& first_of(SpanNumber span) {
    return batches[(index_of(span) * 0x9E3779B1u >> (32 - kPairBits)) * 2];
  }
  static constexpr unsigned kPairBits = 5;
  static_assert(kBatches == 2u << kPairBits);
};

}  // namespace spanalloc::standard
