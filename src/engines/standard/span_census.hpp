// A count of every span by where it is, taken by walking the arena: the proof that none was lost.
#pragma once

#include <cstddef>

namespace spanalloc {

/// Taken while no other thread runs in the engine; exact then.
struct SpanCensus {
  std::size_t carved = 0;   ///< spans that the arena has handed out and not taken back: the sum of all below
  std::size_t in_pool = 0;  ///< free, and found in the pool exactly once
  std::size_t hot_empty = 0;  ///< hot span of a living LAB, no block out
  std::size_t hot = 0;        ///< hot span of a living LAB, blocks out (or another thread's, not looked into)
  std::size_t floating = 0;   ///< on a LAB's list, below the reusability threshold
  std::size_t reusable = 0;   ///< on a LAB's list, above it
  std::size_t single = 0;     ///< the one block of the span is out
  std::size_t lost = 0;       ///< out of use: hot spans of threads that a fork left behind, and damaged ones
  std::size_t broken = 0;     ///< anything else: in no place, or in two

  /// Nothing is out: each span is in the pool or an empty hot span of a living LAB.
  bool all_returned() const { return carved == in_pool + hot_empty; }
  bool consistent() const {
    return broken == 0 && carved == in_pool + hot_empty + hot + floating + reusable + single + lost;
  }
};

}  // namespace spanalloc
