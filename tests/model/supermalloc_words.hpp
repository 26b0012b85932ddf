// The words of the supermalloc engine that instructions take as their operand,
// made visible to the checker.
//
// base/atomic.hpp has them as the library does, which the models do not see. The engine's headers
// find these first, because they stand in its namespace: so include this before any of them.
#pragma once

#include <cstdint>

#include "base/atomic.hpp"
#include "model_atomic.hpp"

namespace spanalloc::supermalloc {

class OwnersWord {
 public:
  unsigned long long read_own() const { return word_.load_relaxed(); }
  unsigned long long load_relaxed() const { return word_.load_relaxed(); }
  void store_relaxed(unsigned long long value) { word_.store_relaxed(value); }
  void count_up() { store_relaxed(load_relaxed() + 1); }
  bool take_one() {
    const unsigned long long word = load_relaxed();
    if (word == 0) return false;
    store_relaxed(word - 1);
    return true;
  }

 private:
  Atomic<unsigned long long> word_{0};
};

class SetOnce {
 public:
  unsigned long long read() const { return word_.load_relaxed(); }
  void set(unsigned long long value) {
    unsigned long long unset = 0;
    while (unset == 0 && !word_.compare_exchange_weak_relaxed(unset, value)) {
    }
  }

 private:
  Atomic<unsigned long long> word_{0};
};

/// Behind every store before it, and ahead of every one behind it: the second is more
/// than the library's promises, but what a kernel that stops threads for a fork finds. A
/// fork may come before it.
inline void store_in_order(unsigned long& word, unsigned long value) {
  static constinit Atomic<std::uint32_t> behind_all{0};
  if (model::modelled) behind_all.exchange_acq_rel(0);
  word = value;
}

}  // namespace spanalloc::supermalloc
