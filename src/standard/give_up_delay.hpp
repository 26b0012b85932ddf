// Decides how often a thread keeps an emptying span that it might give up.
//
// OwnedSpans gives up such a span, current or ready, because its thread may be about to wait for
// long. A program that frees and allocates in turn, a few dozen blocks at a time, would lose a span
// in each round and look for another one at once. So if a class needs a span soon after it has
// given one up, its spans stay the next 7, 63, 127 times. If it needs one only later, the thread
// has waited in between, and the delay goes back to 0.
#pragma once

#include <utility>

#include "standard/size_classes.hpp"

namespace spanalloc::standard {

/// Of one cache record; only its owner uses it. Zero-initialisable.
template <class Config>
class GiveUpDelay {
  static constexpr unsigned kClassCount = SizeClasses<Config>::kSmallClasses;

 public:
  /// The owner might give up a span of the class. True: the span stays this time.
  bool stays(ClassId c) {
    std::uint8_t& left = left_[index_of(c)];
    if (left == 0) return false;
    --left;
    return true;
  }
  /// The owner has given it up.
  void gave_up(ClassId c, std::uint64_t now_ms) {
    given_up_ms_[index_of(c)] = static_cast<std::uint32_t>(now_ms) | 1;
  }
  bool has_given_up(ClassId c) const { return given_up_ms_[index_of(c)] != 0; }
  /// The class has given up a span, and needs one again.
  void needs_again(ClassId c, std::uint64_t now_ms) {
    const std::uint32_t since =
        static_cast<std::uint32_t>(now_ms) - std::exchange(given_up_ms_[index_of(c)], 0);
    std::uint8_t& delay = last_delay_[index_of(c)];
    // (The stamp may be a millisecond ahead.)
    delay = since + 1 <= Config::kNeededSoonMs + 1
                ? static_cast<std::uint8_t>((delay * 8 + 7) & Config::kMostGiveUpDelay)
                : 0;
    left_[index_of(c)] = delay;
  }
  void forget() { *this = {}; }

 private:
  std::uint32_t given_up_ms_[kClassCount] = {};  // when the class did last; 0: has a span since
  std::uint8_t left_[kClassCount] = {};          // how many times the class's span stays yet
  std::uint8_t last_delay_[kClassCount] = {};    // what left_ began with: 0, 7, 63, 127
};

}  // namespace spanalloc::standard
