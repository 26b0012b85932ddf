// A variable that is not atomic, watched for data races.
//
// Two accesses by different threads, at least one a write, must be ordered by a chain of release and acquire
// operations (happens-before, kept as vector clocks); otherwise the execution fails. So a missing acquire or
// release is reported even where the values happen to come out right.
#pragma once

#include "model_atomic.hpp"

namespace spanalloc::model {

template <class T>
class Plain {
 public:
  constexpr Plain() = default;
  constexpr explicit Plain(T initial) : value_(initial) {}

  T get() const {
    plain_access(this, false);
    return value_;
  }
  void set(T value) {
    plain_access(this, true);
    value_ = value;
  }

 private:
  T value_{};
};

}  // namespace spanalloc::model
