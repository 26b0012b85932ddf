// Finds the current spans that their thread has not used for a while, so that the thread can give
// them up.
//
// Only its thread can give up a current span. A thread that serves one request after another, with
// many classes each, and waits in between, would keep every page that its spans have ever touched.
// So the thread looks at its current spans in rounds: at a few classes with each 16th miss and each
// look at the clock. It gives up a span that it has neither allocated from nor freed into since the
// round before. Nobody's, the span serves the thread as well, and others can purge its free pages
// or take it when it is empty.
//
// malloc and free do nothing for this: each of them changes the head of the span's list, or the
// count of frees until the next event, and the round compares these. (Both may be as they were
// although the thread has used the span. It then gives up a span in use, which is harmless.)
#pragma once

#include "standard/span.hpp"

namespace spanalloc::standard {

/// Of one cache record; only its owner uses it. Zero-initialisable.
template <class Config>
class CurrentAges {
  static constexpr unsigned kClassCount = SizeClasses<Config>::kSmallClasses;

 public:
  /// True: a round begins now.
  bool begins(std::uint64_t now_ms) {
    if (next_ != 0 || now_ms - began_ms_ < Config::kRoundOfCurrentMs) return false;
    began_ms_ = now_ms;
    next_ = 1;  // there is no class 0
    return true;
  }
  bool goes_on() const { return next_ != 0; }
  /// The round's next class; kNone: the round has ended.
  ClassId next() {
    const ClassId c{next_};
    next_ = next_ == kClassCount ? 0 : next_ + 1;
    return index_of(c) == kClassCount ? ClassId::kNone : c;
  }
  /// Whether the thread has left the class's current span alone since the round before.
  bool is_unused(ClassId c, const Span& span) {
    const std::uint64_t trace = span.trace();
    std::uint64_t& seen = seen_[index_of(c)];
    const bool rested = seen == trace;
    seen = trace;
    return rested;
  }
  void forget() { *this = {}; }

 private:
  std::uint64_t began_ms_ = 0;
  unsigned next_ = 0;  // 0: no round is going on
  std::uint64_t seen_[kClassCount] = {};
};

}  // namespace spanalloc::standard
