// What a heap keeps that is large and zero at first: in a table of the page layer, between guard
// pages, so that a process that never allocates does not touch it.
#pragma once

#include <cstdint>

#include "standard/abandoned_spans.hpp"
#include "standard/numbers.hpp"
#include "standard/size_classes.hpp"
#include "standard/span_pool.hpp"

namespace spanalloc::standard {

/// Zero-initialised.
template <class Config>
struct HeapStorage {
  using Classes = SizeClasses<Config>;
  // Each row has two stacks a shard: one for this decay epoch, one for the epoch before.
  using Pool = SpanPool<SpanNumber, Classes::kPoolStacks, 256, true, 2>;

  Pool pool{};
  typename AbandonedSpans<Config, Classes::kSmallClasses>::Stacks abandoned{};
};

}  // namespace spanalloc::standard
