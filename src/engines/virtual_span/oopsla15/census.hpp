// Counting every span of a heap by where it is. For tests and diagnosis: exact only while no other thread
// uses the heap.
#pragma once

#include <cstddef>

#include "engines/virtual_span/oopsla15/frontend.hpp"

namespace spanalloc::oopsla15 {

/// Equation at rest: carved == pooled + lost + hot + empty_hot + floating + suspect + reusable + empty_idle.
struct Census {
  std::size_t carved = 0;      ///< spans ever taken from the arena
  std::size_t pooled = 0;      ///< in the span-pool
  std::size_t lost = 0;        ///< free but not in the pool, or hot without a living LAB
  std::size_t hot = 0;         ///< some LAB allocates from it, and it holds objects
  std::size_t empty_hot = 0;   ///< some LAB allocates from it, and it holds none
  std::size_t floating = 0;    ///< holds objects; in no set
  std::size_t suspect = 0;     ///< holds objects; floating, but in its owner's set
  std::size_t reusable = 0;    ///< holds objects; in its owner's set
  std::size_t empty_idle = 0;  ///< floating or reusable without objects: should have been returned

  /// True if every span is where an empty heap may have it.
  bool nothing_held() const { return carved == pooled + empty_hot; }
};

template <class Config>
Census take_census() {
  using Front = Frontend<Config>;
  Census census;
  std::size_t free_state = 0;
  std::size_t hot_state = 0;
  const Directory& directory = Front::backend.directory();
  const std::size_t limit = directory.limit.load_acquire();
  for (std::size_t granule = 0; granule < limit; ++granule) {
    if (directory.mark(granule) == 0) continue;
    ++census.carved;
    const Span* span = directory.span(granule);
    const SpanWord word = span->load_word();
    if (word.state() == State::kHot) {
      ++hot_state;
    } else if (!word.is_idle()) {
      ++free_state;
    } else if (word.count() + span->local_free.load_relaxed() == span->blocks) {
      ++census.empty_idle;
    } else if (word.state() == State::kReusable) {
      ++census.reusable;
    } else {
      ++(word.listed() ? census.suspect : census.floating);
    }
  }
  Front::for_each_lab([&](const Lab& lab) {
    if (lab.owner.load_relaxed() == kTerminated) return;
    for (unsigned c = 1; c < kClasses; ++c) {
      const Span* span = lab.hot->hot[c];
      if (span == nullptr) continue;
      const std::size_t free = Front::owned_free(span, lab.hot->list[c]) + span->load_word().count();
      ++(free == span->blocks ? census.empty_hot : census.hot);
    }
  });
  Front::backend.for_each_pooled([&](Span*) { ++census.pooled; });
  census.lost = free_state - census.pooled + hot_state - census.hot - census.empty_hot;
  return census;
}

}  // namespace spanalloc::oopsla15
