// The spans that a thread has in hand, counted for assertions.
//
// A function has a span in hand while it relies on what it has read of an owned span: that the
// thread owns it, in which place it stands, what its lists are. Work on the thread's own spans may
// give up any of them, and another thread may own such a span at once. So such work begins with
// nothing in hand: docs/concurrency.md, "Work on a thread's own spans".
#pragma once

#include <cstdint>

#include "base/assert.hpp"

namespace spanalloc::standard {

/// Of one cache record; only its thread uses it. Zero-initialisable.
class InHand {
 public:
  bool is_nothing() const { return count_ == 0; }
  /// What holds has been left by a jump, or its thread has vanished.
  void let_go() { count_ = 0; }

  /// While it lives, the thread has a span in hand.
  class [[nodiscard]] Taken {
   public:
    explicit Taken(InHand& all) : all_(all) {
      if constexpr (kAssertions) ++all_.count_;
    }
    ~Taken() {
      if constexpr (kAssertions) --all_.count_;
    }
    Taken(const Taken&) = delete;
    Taken& operator=(const Taken&) = delete;

   private:
    InHand& all_;
  };

 private:
  std::uint8_t count_ = 0;
};

}  // namespace spanalloc::standard
