// Decides when a thread that is lent blocks of a class is to own a span there.
//
// Where many threads would each own a span of each class, they are lent blocks instead, a batch at
// a time, of spans that are nobody's. That costs more time than a span of one's own, and less
// memory: an own span stays with a thread that waits. So a thread has earned a span when it is seen
// to go on: it has allocated in the class, freed, and allocated again, some times over, and has not
// rested meanwhile. Where threads are more than twice the CPUs most of them wait: there the clock
// must have moved between two such turns, so that one that serves a request now and then earns
// nothing. (A thread that only allocates earns a span with many batches.)
#pragma once

#include "standard/size_classes.hpp"

namespace spanalloc::standard {

/// Of one thread heap; only its thread uses it. Zero-initialisable.
template <class Config>
class Lending {
  static constexpr unsigned kClassCount = SizeClasses<Config>::kSmallClasses;

 public:
  bool has_earned_span(ClassId c) const { return credit_[index_of(c)] >= Config::kCreditToOwn; }
  /// A batch of the class has been lent to the thread. `few`: threads are not many more than CPUs.
  void lent(ClassId c, std::uint64_t now_ms, bool few) {
    if (now_ms - last_ms_ > Config::kRestMs) forget();
    last_ms_ = now_ms;
    const auto low_ms = static_cast<std::uint8_t>(now_ms);
    const unsigned i = index_of(c);
    const bool is_turn = has_freed_[i] && (few || low_ms != last_turn_[i]);
    if (is_turn) last_turn_[i] = low_ms;
    has_freed_[i] = false;
    credit_[i] = static_cast<std::uint8_t>(credit_[i] + (is_turn ? Config::kCreditOfTurn : 1));
  }
  /// The thread has freed a block of the class that is of no span of its own. (The class of a span
  /// that another thread's second free of the block has emptied may be any.)
  SPANALLOC_INLINE void freed(ClassId c) {
    if (SPANALLOC_LIKELY(index_of(c) < kClassCount)) has_freed_[index_of(c)] = true;
  }
  void forget() { *this = {}; }

 private:
  static_assert(Config::kCreditToOwn + Config::kCreditOfTurn <= UINT8_MAX);

  std::uint64_t last_ms_ = 0;  // when the thread was lent a batch last, of any class
  std::uint8_t credit_[kClassCount] = {};
  std::uint8_t last_turn_[kClassCount] = {};  // when, in ms, its low bits
  bool has_freed_[kClassCount] = {};          // since the class was lent a batch last
};

}  // namespace spanalloc::standard
