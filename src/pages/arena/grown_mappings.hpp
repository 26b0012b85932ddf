// Mappings of ours that may have grown in place while they were moved out of the arena, over slices
// decommitted at that moment (moved_pages.hpp). If the kernel refuses to unmap the new end, it must
// go before those slices are recommitted. (Beyond the limit it looks foreign.)
#pragma once

#include <cstdint>

#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "pages/config.hpp"
#include "pages/page_calls.hpp"

namespace spanalloc {

/// Under the arena's lock. Addresses.
template <class Calls>
class GrownMappings {
 public:
  /// Before a mapping that ends at addresses.first may grow. False: there are too many already.
  SPANALLOC_COLD bool begin(Interval addresses) {
    if (count_ == PagesConfig::kMostGrown) return false;
    grown_[count_++] = {addresses, false};
    return true;
  }
  SPANALLOC_COLD void complete(std::uintptr_t first, bool has_grown) {
    for (unsigned i = 0; i < count_; ++i) {
      if (grown_[i].addresses.first != first || grown_[i].is_complete) continue;
      grown_[i].is_complete = true;
      if (!has_grown) grown_[i] = grown_[--count_];
      return;
    }
  }
  bool overlap(std::uintptr_t first, std::uintptr_t end) const {
    for (unsigned i = 0; i < count_; ++i) {
      if (grown_[i].addresses.first < end && grown_[i].addresses.end > first) return true;
    }
    return false;
  }
  SPANALLOC_COLD void unmap() {
    unsigned left = 0;
    for (unsigned i = 0; i < count_; ++i) {
      const auto [first, end] = grown_[i].addresses;
      if (!grown_[i].is_complete || !Calls::release(pointer_to(first), end - first))
        grown_[left++] = grown_[i];
    }
    count_ = left;
  }
  void forget() { count_ = 0; }

 private:
  struct Grown {
    Interval addresses;
    bool is_complete;
  };
  unsigned count_ = 0;
  Grown grown_[PagesConfig::kMostGrown]{};
};

}  // namespace spanalloc
