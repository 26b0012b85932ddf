// What the shards of a heap have in common: its name, its limit, and how it comes by runs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/compiler.hpp"
#include "heaps/runs.hpp"

namespace spanalloc::heaps {

/// The first word is the heap's name (heap.hpp); 0: it is being destroyed.
struct HeapCore {
  Atomic<std::uint64_t> handle;
  Slice home = 0;             // where the heap stands; constant
  std::size_t limit = 0;      // bytes of runs; constant
  Atomic<std::size_t> taken;  // bytes of runs; at most the limit

  /// False: beyond the limit. Relaxed: only the sum counts.
  bool book(std::size_t bytes) {
    std::size_t now = taken.load_relaxed();
    do {
      if (now > limit || bytes > limit - now) return false;
    } while (!taken.compare_exchange_weak_relaxed(now, now + bytes));
    return true;
  }
  void unbook(std::size_t bytes) { taken.fetch_sub_relaxed(bytes); }

  /// A run for this heap, nobody's; booked. The caller is inside.
  SPANALLOC_COLD Runs::Taken take_run(std::size_t slices, std::size_t alignment = 1) {
    const std::size_t bytes = slices * Runs::kSlice;
    if (bytes >= runs.bytes() || !book(bytes)) return {};  // (sums cannot overflow then)
    const Runs::Taken taken_run = runs.take(slices, alignment);
    if (taken_run.first == 0) unbook(bytes);
    return taken_run;
  }
  /// Gives back a run of this heap that is nobody's.
  SPANALLOC_COLD void give_run(Slice run) {
    unbook(runs.bytes_of(run));
    runs.give(run);
  }
  /// The same of one that a shard has let go of.
  SPANALLOC_COLD void give_detached(Slice run) {
    give_run(run);
    runs.leave();
    runs.keep_bound();
  }
};

}  // namespace spanalloc::heaps
