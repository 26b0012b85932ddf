// When a thread's emptying current span is not given up although hardly a block of it is out.
//
// collect_current() parks such a span, because its thread may be about to sleep. A program that frees and
// allocates in turn, a few dozen blocks at a time, would lose and look for a span in each round: it needs one
// again at once. That is a regret, and buys its class patience: the next 1, 3, 7 ... 127 looks at such
// a span are left out. Who comes back later than that has slept in between, and has no patience left to buy
// on.
#pragma once

#include <cstdint>

#include "engines/standard/numbers.hpp"

namespace spanalloc::standard {

/// Of one thread cache; all of it its owner's. Zero-initialisable.
template <unsigned kClassCount>
class GiveUpDelay {
 public:
  /// A current span of the class is looked at, and might be given up. True: this time it stays.
  bool stays(ClassId c) {
    std::uint8_t& left = left_[index_of(c)];
    if (left == 0) return false;
    --left;
    return true;
  }
  /// It was.
  void gave_up(ClassId c, std::uint64_t now_ms) {
    word_of(c) |= bit_of(c);
    given_up_ms_ = now_ms;
  }
  bool has_given_up(ClassId c) const { return (given_up_[index_of(c) / 64] & bit_of(c)) != 0; }
  /// The class, of which one was given up, needs a span again.
  void needs_again(ClassId c, std::uint64_t now_ms) {
    word_of(c) &= ~bit_of(c);
    std::uint8_t& worth = worth_[index_of(c)];
    worth = now_ms - given_up_ms_ <= kSoonMs ? static_cast<std::uint8_t>((worth * 2 + 1) & kMost) : 0;
    left_[index_of(c)] = worth;
  }
  void forget() {
    if (given_up_ms_ != 0) *this = {};
  }

 private:
  static constexpr std::uint64_t kSoonMs = 20;
  static constexpr unsigned kMost = 127;

  static std::uint64_t bit_of(ClassId c) { return std::uint64_t{1} << index_of(c) % 64; }
  std::uint64_t& word_of(ClassId c) { return given_up_[index_of(c) / 64]; }

  std::uint64_t given_up_ms_ = 0;  // the last time, of whatever class: an earlier one seems later, at most
  std::uint64_t given_up_[(kClassCount + 63) / 64] = {};
  std::uint8_t left_[kClassCount] = {};   // how often the class's span stays from now on
  std::uint8_t worth_[kClassCount] = {};  // what the last regret has bought
};

}  // namespace spanalloc::standard
