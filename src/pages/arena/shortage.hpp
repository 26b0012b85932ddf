// Why memory that is free should not be kept for the next request: what the caches of an engine ask
// before they keep any.
#pragma once

#include <cstdint>

#include "base/atomic.hpp"

namespace spanalloc {

/// Thread-safe, zero-initialisable. Relaxed: hints, by which nothing else is read.
class Shortage {
 public:
  enum Reason : std::uint32_t {
    kHardLimit = 1,  ///< the process may have no more: memory_limit.hpp
    kSoftLimit = 2,  ///< what is held is near the soft limit: soft_limit.hpp
  };

  bool is_any() const { return (bits_.load_relaxed() & (kHardLimit | kSoftLimit)) != 0; }
  bool is(Reason reason) const { return (bits_.load_relaxed() & reason) != 0; }
  void set(Reason reason, bool value) { set_bits(reason, value); }

  /// Whether there is a soft limit, or was one: then it is looked at before memory is taken.
  bool is_watched() const { return (bits_.load_relaxed() & kWatched) != 0; }
  void watch() { set_bits(kWatched, true); }

 private:
  static constexpr std::uint32_t kWatched = 4;

  // (Others' bits stay: one step.)
  void set_bits(std::uint32_t bits, bool value) {
    if (value) {
      bits_.fetch_or_relaxed(bits);
    } else {
      bits_.fetch_and_relaxed(~bits);
    }
  }

  Atomic<std::uint32_t> bits_{0};
};

}  // namespace spanalloc
