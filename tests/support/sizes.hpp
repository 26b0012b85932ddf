// Sizes worth trying: all small ones, both sides of every power of two, and the
// ends of an engine's classes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace spanalloc::test {

/// Every size to 1100 bytes, then sparser ones with the neighbours of all
/// powers of two, up to `limit`.
inline std::vector<std::size_t> sample_sizes(std::size_t limit) {
  std::vector<std::size_t> sizes;
  for (std::size_t n = 0; n <= 1100 && n <= limit; ++n) sizes.push_back(n);
  for (std::size_t n = 1101; n <= limit; n += n / 29) sizes.push_back(n);
  for (std::size_t power = 2048; power <= limit; power *= 2) {
    for (std::size_t n : {power - 16, power - 1, power, power + 1, power + 16}) {
      if (n <= limit) sizes.push_back(n);
    }
  }
  std::sort(sizes.begin(), sizes.end());
  return sizes;
}

/// The largest size that each block of E holds, up to `limit`: n and n + 1 lie in different
/// classes. (Steps under 1/32 are skipped: no size class is that fine.)
template <class E>
std::vector<std::size_t> class_ends(std::size_t limit) {
  std::vector<std::size_t> ends;
  for (std::size_t n = 1; n <= limit;) {
    void* p = E::allocate(n);
    if (p == nullptr) break;
    const std::size_t usable = E::usable_size(p);
    E::deallocate(p);
    ends.push_back(usable);
    n = std::max(usable + 1, n + n / 32);
  }
  return ends;
}

}  // namespace spanalloc::test
