// Bounds the dirty memory that freed large blocks leave. The free that exceeds the bound purges the
// excess: a decay epoch may be far away, for a thread has to come by to begin it.
//
//   dirty <= 32 MiB + live / 4            of such blocks, in slices
//   or, where that is more,
//   dirty <= min(32 MiB + live / 4 + regretted, 2 * height - live)
//
// A program that frees much and takes it again at once would pay for each of its pages anew. If it
// takes clean memory soon after as much was purged for the bound, that purge was in vain:
// `regretted` grows by twice as much, to 256 MiB at most. Each decay epoch takes an eighth off.
//
// `height` is how much was live at a time of late. Live and dirty memory together stay within twice
// the height: where sizes differ, much of what is beyond lies in pieces that fit nothing. `live`
// goes up and down; its highest value is noted when it has fallen by 32 MiB, or to the half. A
// higher value becomes the height (and counts before it is noted); a lower one brings the height
// down by a sixteenth of the way.
//
// All counts are hints. Dirty memory that small blocks take is not subtracted, so `dirty` may be
// too high. Each decay epoch corrects it, and so does a purge that finds less than it looks for:
// memory is counted only after a purge can find it.
#pragma once

#include <cstddef>

#include "base/atomic.hpp"
#include "pages/config.hpp"

namespace spanalloc {

/// Thread-safe, zero-initialisable. Relaxed throughout: the counts only decide when to purge.
template <std::size_t kSlice>
class DirtyBound {
 public:
  static constexpr std::size_t kAlways = PagesConfig::kDirtyAlways / kSlice;
  static constexpr std::size_t kMostRegretted = PagesConfig::kMostRegretted / kSlice;

  /// `dirty` of the slices were dirty.
  void taken(std::size_t slices, std::size_t dirty) {
    rise(slices);
    if (dirty != 0) dirty_.fetch_sub_relaxed(dirty);
    const std::size_t purged = purged_.load_relaxed();
    if (purged == 0) return;
    const std::size_t in_vain = min_of(slices - min_of(dirty, slices), purged);
    purged_.store_relaxed(purged - in_vain);
    regretted_.store_relaxed(min_of(regretted_.load_relaxed() + 2 * in_vain, kMostRegretted));
  }
  void given(std::size_t slices, bool zero) {
    sink(slices);
    if (!zero) dirty_.fetch_add_relaxed(slices);
  }
  /// A span, in use or in a pool, became a span of one block, or ceases to be one.
  void changed(std::size_t slices, bool to_one_block) {
    if (to_one_block) {
      rise(slices);
    } else {
      sink(slices);
    }
  }
  void purged(std::size_t slices) { dirty_.fetch_sub_relaxed(slices); }
  void purged_for_bound(std::size_t slices) {
    purged(slices);
    purged_.fetch_add_relaxed(slices);
  }
  /// A purge found all that there was. `counted`: dirty() before it, without what it has purged.
  /// What others give meanwhile stays counted.
  void found_all_of(std::size_t counted) {
    if (at_least_0(dirty_.fetch_sub_relaxed(counted) - counted) == 0) dirty_is(0);
  }
  /// After a fork.
  void live_is(std::size_t slices) { live_.store_relaxed(slices); }
  /// Dirty slices of all blocks, large or small.
  void dirty_is(std::size_t slices) { dirty_.store_relaxed(slices); }
  void pass_epoch(std::size_t dirty) {
    dirty_is(dirty);
    purged_.store_relaxed(0);
    const std::size_t regretted = regretted_.load_relaxed();
    regretted_.store_relaxed(regretted - (regretted + 7) / 8);
  }

  /// Slices of spans of one block, in use or in pools.
  std::size_t live() const { return at_least_0(live_.load_relaxed()); }
  std::size_t dirty() const { return at_least_0(dirty_.load_relaxed()); }
  /// Slices that should be purged.
  std::size_t excess() const {
    const std::size_t dirty = this->dirty();
    const std::size_t live = this->live();
    const std::size_t least = kAlways + live / 4;
    if (dirty <= least) return 0;
    // (The highest value counts while it stands, before its fall notes it.)
    const std::size_t twice = 2 * max_of(height_.load_relaxed(), highest_.load_relaxed());
    const std::size_t wanted =
        min_of(least + regretted_.load_relaxed(), twice - min_of(twice, live));
    return dirty - min_of(dirty, max_of(least, wanted));
  }

 private:
  void rise(std::size_t slices) {
    const std::size_t live = at_least_0(live_.fetch_add_relaxed(slices) + slices);
    if (live > highest_.load_relaxed()) highest_.store_relaxed(live);
  }
  void sink(std::size_t slices) {
    const std::size_t live = at_least_0(live_.fetch_sub_relaxed(slices) - slices);
    const std::size_t highest = highest_.load_relaxed();
    if (highest == 0 || (live > highest / 2 && highest - live < kAlways)) return;
    const std::size_t height = height_.load_relaxed();
    height_.store_relaxed(highest >= height ? highest : height - (height - highest) / 16);
    highest_.store_relaxed(0);
  }
  static std::size_t at_least_0(std::size_t count) {
    return static_cast<std::ptrdiff_t>(count) < 0 ? 0 : count;
  }

  Atomic<std::size_t> live_{0};
  Atomic<std::size_t> dirty_{0};
  Atomic<std::size_t> purged_{0};  // for the bound, in this decay epoch
  Atomic<std::size_t> regretted_{0};
  Atomic<std::size_t> highest_{0};  // live value since one was noted; 0: none yet
  Atomic<std::size_t> height_{0};
};

}  // namespace spanalloc
