// Sizes drawn from distributions, and tables of them, so that a measured loop pays for no
// logarithm.
#ifndef SPANALLOC_BENCH_SIZES_HPP
#define SPANALLOC_BENCH_SIZES_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "support/mapped_array.hpp"
#include "support/workload.hpp"

namespace workload {

// From low to high, every doubling equally likely (log-uniform): the choice where
// nothing is known but the range.
inline std::size_t log_uniform(Random& random, std::size_t low, std::size_t high) {
  const double from = static_cast<double>(low), to = static_cast<double>(high) + 1;
  const auto n = static_cast<std::size_t>(from * std::pow(to / from, random.unit()));
  return n < low ? low : (n > high ? high : n);
}

// Log-uniform sizes drawn beforehand and read in a circle.
class SizeTable {
 public:
  SizeTable(std::size_t low, std::size_t high, std::uint64_t seed) : sizes_(kEntries) {
    Random random(seed);
    for (std::size_t& n : sizes_) n = log_uniform(random, low, high);
  }
  std::size_t at(std::uint64_t i) const { return sizes_[i % kEntries]; }

 private:
  // 32 KiB: fits beside the rest into a core's own caches
  static constexpr std::size_t kEntries = 4096;
  MappedArray<std::size_t> sizes_;
};

}  // namespace workload

#endif  // SPANALLOC_BENCH_SIZES_HPP
