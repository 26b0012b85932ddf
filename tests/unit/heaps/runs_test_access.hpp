// What tests do with the memory of all heaps.
#pragma once

#include <cstdint>

#include "heaps/heap.hpp"

namespace spanalloc::heaps {

struct RunsTestAccess {
  static Runs::Arena& arena() { return runs.arena_; }
  static Atomic<std::uint32_t>& inside() { return runs.inside_; }
  static TableReach make_records(std::size_t end) { return runs.make_records(end); }
  static std::size_t end_of_records() { return runs.known_end_.load_relaxed(); }
  /// No epoch ends for half a second.
  static void begin_epoch() { runs.epoch_began_ = os::now_ms(); }
  /// What is given back from here on is decommitted at once: it can be read no more.
  static void set_at_limit(bool is) { arena().shortage().set(Shortage::kHardLimit, is); }
};

}  // namespace spanalloc::heaps
