// Counting every span of a heap by where it is. For tests and diagnosis: exact only while no
// other thread uses the heap.
#pragma once

#include <cstddef>

#include "base/assert.hpp"
#include "papers/scalloc/engine/directory.hpp"
#include "papers/scalloc/engine/lab.hpp"

namespace spanalloc::scalloc {

/// Equation at rest: carved == pooled + lost + hot + empty_hot + floating + suspect
/// + reusable + empty_idle.
struct Census {
  std::size_t carved = 0;  ///< spans ever taken from the arena
  std::size_t pooled = 0;  ///< in the span-pool
  /// free but not in the pool, hot without a living LAB, or lost by misuse
  std::size_t lost = 0;
  std::size_t hot = 0;         ///< some LAB allocates from it, and it holds objects
  std::size_t empty_hot = 0;   ///< some LAB allocates from it, and it holds none
  std::size_t floating = 0;    ///< holds objects; in no set
  std::size_t suspect = 0;     ///< holds objects; floating, but in its owner's set
  std::size_t reusable = 0;    ///< holds objects; in its owner's set
  std::size_t empty_idle = 0;  ///< floating or reusable without objects: should have been returned

  /// True if every span is where an empty heap may have it.
  bool nothing_held() const { return carved == pooled + empty_hot; }

  std::size_t idle() const { return floating + suspect + reusable + empty_idle; }

  /// Those that a LAB allocates from.
  void count_hot_spans(const Lab& lab) {
    if (lab.owner.load_relaxed() == kTerminated) return;
    for (const ClassId c : kAllClasses) {
      Span* span = lab.hot->hot[c];
      if (span == nullptr) continue;
      const std::size_t free = owned_free(span, lab.hot->list[c]) + span->load_word().count();
      SPANALLOC_ASSERT(free <= span->blocks);  // O1
      ++(free == span->blocks ? empty_hot : hot);
    }
  }
  /// With everything else counted: what is left is lost.
  Census completed() const {
    SPANALLOC_ASSERT(pooled + hot + empty_hot + idle() <= carved);  // O7, O8: no span in two places
    Census census = *this;
    census.lost = carved - (pooled + hot + empty_hot + idle());
    return census;
  }
};

/// Spans by what their words say: all but those that are in the pool or hot.
inline Census count_spans(const Directory& directory) {
  Census census;
  directory.for_each_span([&](const Span* span, Mark) {
    ++census.carved;
    const SpanWord word = span->load_word();
    if (!word.is_idle()) return;
    if (word.count() + span->local_free.load_relaxed() == span->blocks) {
      ++census.empty_idle;
    } else if (word.state() == State::kReusable) {
      ++census.reusable;
    } else {
      ++(word.listed() ? census.suspect : census.floating);
    }
  });
  return census;
}

}  // namespace spanalloc::scalloc
