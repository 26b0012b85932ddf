// Which of a thread's current spans have rested.
//
// Nobody but its thread can give up a current span, and a thread that serves one request after another, of
// many classes each, and sleeps in between, would keep every page that its spans have ever touched. So in
// rounds, a few classes with each 16th miss and each look at the clock, the thread looks at its current
// spans: one that was neither allocated from nor freed into since the round before is parked. There it is as
// good for the thread, and others can give back its free pages, or all of it.
//
// What a span's thread does shows in the head of its list, or in the count of frees until the next event: a
// look costs malloc and free nothing. (That both are as they were although it has worked is possible, and
// harmless.)
#pragma once

#include <cstdint>

#include "engines/standard/numbers.hpp"
#include "engines/standard/span.hpp"

namespace spanalloc::standard {

/// Of one thread cache; all of it its owner's. Zero-initialisable.
template <unsigned kClassCount>
class CurrentAges {
 public:
  /// A round is going on, or begins.
  bool is_due(std::uint64_t now_ms) {
    if (next_ != 0) return true;
    if (now_ms - began_ms_ < kRoundMs) return false;
    began_ms_ = now_ms;
    next_ = 1;  // there is no class 0
    return true;
  }
  /// The round's next class; kNone: that was the last one.
  ClassId next() {
    const ClassId c{next_};
    next_ = next_ == kClassCount ? 0 : next_ + 1;
    return index_of(c) == kClassCount ? ClassId::kNone : c;
  }
  /// Of the class's current span.
  bool has_rested(ClassId c, const Span& span) {
    const std::uint64_t left = span.left.load_relaxed();
    const std::uint64_t trace = address_of(span.free_list.load_relaxed()) ^ left << 48 ^ left >> 16;
    std::uint64_t& seen = seen_[index_of(c)];
    const bool rested = seen == trace;
    seen = trace;
    return rested;
  }
  void forget() { *this = {}; }

 private:
  static constexpr std::uint64_t kRoundMs = 200;

  std::uint64_t began_ms_ = 0;
  unsigned next_ = 0;  // 0: no round is going on
  std::uint64_t seen_[kClassCount] = {};
};

}  // namespace spanalloc::standard
