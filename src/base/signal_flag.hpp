// A flag of one thread that only the thread itself and its signal handlers read: what
// std::sig_atomic_t is for. A compiler barrier keeps what the flag speaks of behind enter() and
// before leave(); the processor shows a thread its own stores in order.
#pragma once

#include <cstdint>

namespace spanalloc {

class SignalFlag {
 public:
  constexpr SignalFlag() = default;

  bool is_set() const { return value_ != 0; }
  /// Sets the flag; returns whether it was set.
  bool enter() {
    const bool outer = is_set();
    value_ = 1;
    asm volatile("" ::: "memory");
    return outer;
  }
  /// Undoes the enter() that returned `outer`.
  void leave(bool outer) {
    asm volatile("" ::: "memory");
    value_ = outer ? 1 : 0;
  }

 private:
  volatile std::uint8_t value_ = 0;
};

}  // namespace spanalloc
