// How much memory `standard` takes at the worst, for blocks of up to 32 KiB: computed from the size
// classes as docs/architecture.md, "A bound", argues; the table there is printed from here.
//
//   memory <= a * live + b * threads + c
//
// `live`: the sum over the threads of the most bytes that blocks of each had at one time, counted
// in block sizes; of threads that live at the same time.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "base/bits.hpp"
#include "standard/cache_record.hpp"
#include "standard/size_classes.hpp"
#include "standard/thread_map.hpp"

namespace spanalloc::test {

struct MemoryBound {
  using Config = Standard;
  using Classes = standard::SizeClasses<Config>;
  static constexpr std::size_t kPage = 4 * kKiB;

  // --- Documented --------------------------------------------------------------------------------

  /// `a`, before anything was given back by a tick or a trim.
  static constexpr double kAtOnce = 61;
  /// `a`, when parked spans have been thinned: after a decay time with
  /// somebody passing by, or a trim.
  static constexpr double kAtRest = 33;
  /// `b` of threads that free blocks of their own only, and of all.
  static constexpr std::size_t kThread = 27 * kMiB;
  static constexpr std::size_t kThreadWithRemotes = 43 * kMiB;
  /// `c`: what a process has at its start, and what the first look at a table opens.
  static constexpr std::size_t kProcess = 1 * kMiB;

  // --- Derived -----------------------------------------------------------------------------------

  /// Of a span's memory, the part that one block of it is.
  static constexpr double pin_of_span(unsigned c) {
    const auto& info = Classes::kTable[c];
    return static_cast<double>(info.block_size) / info.real_span;
  }
  /// Of the pages that a block touches, at the most, the part that it is.
  static constexpr double pin_of_pages(unsigned c) {
    const auto& info = Classes::kTable[c];
    std::size_t most = 1;
    for (std::size_t i = 0; i < info.blocks; ++i) {
      const std::size_t begin = info.offset_of(static_cast<std::uint32_t>(i));
      most = std::max(most, (begin + info.block_size - 1) / kPage - begin / kPage + 1);
    }
    return static_cast<double>(info.block_size) / static_cast<double>(most * kPage);
  }
  /// How much memory a class's spans have for each byte that lives in them when it takes one more:
  /// none of them is reusable then.
  static constexpr double growth(unsigned c) {
    const auto& info = Classes::kTable[c];
    return info.real_span /
           (static_cast<double>(info.block_size) * (info.blocks - info.enough_free + 1));
  }

  /// Listed classes, those first whose spans, or pages, are held by the smallest part.
  template <class Pin>
  static constexpr auto cheapest_first(Pin pin) {
    std::array<unsigned, Classes::kSmallClasses - 1> order{};
    // Each once: compilers count the steps of what they work out.
    std::array<double, Classes::kSmallClasses> pins{};
    for (unsigned i = 0; i < order.size(); ++i) {
      order[i] = i + 1;
      pins[i + 1] = pin(i + 1);
    }
    std::sort(order.begin(), order.end(),
              [&](unsigned x, unsigned y) { return pins[x] < pins[y]; });
    return order;
  }
  static constexpr auto spans_cheapest_first() { return cheapest_first(pin_of_span); }
  static constexpr auto pages_cheapest_first() { return cheapest_first(pin_of_pages); }

  /// Memory of spans with a block in use, over live: class after class takes what the pins of
  /// those before it have left.
  static constexpr double spans_over_live() {
    double sum = 0, pinned = 0;
    for (const unsigned c : spans_cheapest_first()) {
      const double spans = (1 - pinned) * growth(c);
      sum += spans;
      pinned += spans * pin_of_span(c);
    }
    return sum;
  }
  /// Memory of pages with a block in use, over live: of each class at most all of its spans.
  static constexpr double pages_over_live() {
    double sum = 0, left = 1;
    for (const unsigned c : pages_cheapest_first()) {
      const double pages = std::min(growth(c), left / pin_of_pages(c));
      sum += pages;
      left -= pages * pin_of_pages(c);
    }
    return sum;
  }
  /// A slice's records, here and in the page manager, and its page table.
  static constexpr double kTables = (128 + 38 + 16 * 8) / (64.0 * kKiB);
  static constexpr double at_once() { return spans_over_live() * (1 + kTables); }
  static constexpr double at_rest() { return pages_over_live() + spans_over_live() * kTables; }

  static constexpr std::size_t current_bytes() {
    std::size_t sum = 0;
    for (unsigned c = 1; c < Classes::kSmallClasses; ++c) sum += Classes::kTable[c].real_span;
    return sum;
  }
  /// Batches of other threads' blocks: each may be all that keeps a span of
  /// the largest from returning.
  static constexpr std::size_t batch_bytes() {
    std::size_t most = 0;
    for (unsigned c = 1; c < Classes::kSmallClasses; ++c) {
      most = std::max(most, std::size_t{Classes::kTable[c].real_span} *
                                standard::RemoteBatches<Config>::kBatches);
    }
    return most;
  }
  static constexpr std::size_t kReady = Config::kReadyBytes;
  static constexpr std::size_t kCached = Config::kCachedLargeBytes;
  /// Cache record, map, and the thread's own words.
  static constexpr std::size_t kState = sizeof(standard::CacheRecord<Config>) + 16 * kKiB;
  /// Of each class the current span, the one before, and another ready one.
  static constexpr std::size_t thread_bytes() {
    return 3 * current_bytes() + kReady + kCached + kState;
  }
  static constexpr std::size_t thread_bytes_with_remotes() {
    return thread_bytes() + batch_bytes();
  }

  /// Robson 1971: no allocator that does not move needs less against
  /// power-of-two sizes of 1 to n words.
  static constexpr double robson(std::size_t largest_over_smallest) {
    return log2_floor(largest_over_smallest) / 2.0 + 1;
  }
};

/// What is documented is what is derived, rounded up.
static_assert(MemoryBound::at_once() <= MemoryBound::kAtOnce &&
              MemoryBound::kAtOnce < MemoryBound::at_once() * 1.05);
static_assert(MemoryBound::at_rest() <= MemoryBound::kAtRest &&
              MemoryBound::kAtRest < MemoryBound::at_rest() * 1.05);
static_assert(MemoryBound::thread_bytes() <= MemoryBound::kThread &&
              MemoryBound::kThread < MemoryBound::thread_bytes() * 1.2);
static_assert(MemoryBound::thread_bytes_with_remotes() <= MemoryBound::kThreadWithRemotes &&
              MemoryBound::kThreadWithRemotes < MemoryBound::thread_bytes_with_remotes() * 1.2);

}  // namespace spanalloc::test
