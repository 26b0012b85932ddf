// A lock-free stack of numbered elements (R. K. Treiber, "Systems Programming: Coping with
// Parallelism", IBM RJ 5118, 1986), as the scalloc paper's span-pool uses it.
//
// Elements are numbers 1 .. 2^32-1 (0 is "none"); where an element keeps its link is the caller's
// affair: `links(n)` must return what loads and stores one as an `Atomic<uint32_t>&` does, and
// stays readable for ever; nothing else writes it while the element is in a stack.
//
// Invariant: top.number heads a null-terminated chain of links; every element of the chain is in
// this stack and in no other. ABA: a pop that read (top, next) may be overtaken by pops and pushes
// that bring `top` back with another `next`. The 32-bit tag beside the number changes with every
// successful push and pop, so that the compare-and-swap fails; it would take exactly k * 2^32
// operations between one thread's load and its compare-and-swap to fool it.
#pragma once

#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"

namespace spanalloc {

class TreiberStack {
 public:
  template <class Links>
  void push(std::uint32_t number, Links&& links) noexcept {
    push_chain(number, number, links);
  }

  /// Pushes a chain already linked from `first` to `last` in one step.
  template <class Links>
  void push_chain(std::uint32_t first, std::uint32_t last, Links&& links) noexcept {
    SPANALLOC_ASSERT(first != 0 && last != 0);
    // Only copied into a link; the CAS checks that it still stands
    std::uint64_t top = top_.load_relaxed();
    do {
      links(last).store_relaxed(number_of(top));
      // Release: a popper that acquires this top sees the links and everything
      // written to the elements.
    } while (!top_.compare_exchange_weak_release(top, advance(top, first)));
  }

  /// 0 when the stack was empty at some instant during the call.
  template <class Links>
  std::uint32_t pop(Links&& links) noexcept {
    // Acquire: pairs with the push that made it, to read its link
    std::uint64_t top = top_.load_acquire();
    while (number_of(top) != 0) {
      // May read the link of an element that was popped meanwhile: then the tag has
      // moved on and the CAS fails.
      const std::uint32_t next = links(number_of(top)).load_relaxed();
      if (top_.compare_exchange_weak_acq_rel(top, advance(top, next))) return number_of(top);
    }
    return 0;
  }

  /// Takes the whole chain; returns its first element (0 if empty). The caller then
  /// owns every element of it.
  std::uint32_t take_all() noexcept {
    std::uint64_t top = top_.load_acquire();
    while (number_of(top) != 0) {
      if (top_.compare_exchange_weak_acq_rel(top, advance(top, 0))) return number_of(top);
    }
    return 0;
  }

 private:
  static std::uint32_t number_of(std::uint64_t top) { return static_cast<std::uint32_t>(top); }
  static std::uint64_t advance(std::uint64_t old_top, std::uint32_t number) {
    return ((old_top >> 32) + 1) << 32 | number;
  }

  Atomic<std::uint64_t> top_{0};  // shared: {tag:32, number:32}
};

}  // namespace spanalloc
