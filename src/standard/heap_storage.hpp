// What a heap keeps that is large and zero at first: in a table of the page
// layer, between guard pages.
#pragma once

#include <cstdint>

#include "standard/numbers.hpp"
#include "standard/size_classes.hpp"
#include "standard/span_pool.hpp"

namespace spanalloc::standard {

/// Zero-initialised; forget() makes all but `heap` as good as that again.
template <class Config>
struct HeapStorage {
  using Classes = SizeClasses<Config>;
  // Each row has two stacks a shard: one for this decay epoch, one for the epoch before.
  using Pool = SpanPool<SpanNumber, Classes::kPoolStacks, 256, true, 2>;

  Atomic<Heap<Config>*> heap{nullptr};  ///< see HeapTable
  Pool pool{};
  /// See AbandonedLists
  alignas(kCacheLine) Atomic<std::uint64_t> abandoned[Classes::kSmallClasses];

  /// While nobody uses the heap, which has none of its spans in the pool any
  /// more (or has lost them).
  void forget() {
    pool.forget_all();
    for (Atomic<std::uint64_t>& bits : abandoned) bits.store_relaxed(0);
  }
};

}  // namespace spanalloc::standard
