// Splitmix64: a random number generator that is small, fast, and reproducible from its seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace spanalloc::test {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t x = state_ += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }
  /// Uniform below `bound` > 0.
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(next() % bound); }
  bool one_in(std::size_t n) { return below(n) == 0; }

 private:
  std::uint64_t state_;
};

/// SPANALLOC_TEST_SEED, by default 1: what everything drawn at random follows from.
inline const std::uint64_t kSeed = [] {
  const char* text = std::getenv("SPANALLOC_TEST_SEED");
  return text == nullptr || *text == '\0' ? 1 : std::strtoull(text, nullptr, 10);
}();
/// Of one of several streams. With the default seed it is the stream's number.
inline std::uint64_t seed_of(std::uint64_t stream) {
  return stream + (kSeed - 1) * 0xD1B54A32D192ED03u;
}

}  // namespace spanalloc::test
