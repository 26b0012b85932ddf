// SPANALLOC_CPUS in the middle of a process, which asks for it once.
#pragma once

#include <string>

#include "environment.hpp"
#include "os/os.hpp"

namespace spanalloc::test {

/// Heaps that start while it lives have so many CPUs.
class SimulatedCpus {
 public:
  explicit SimulatedCpus(unsigned count)
      : variable_("SPANALLOC_CPUS", std::to_string(count).c_str()) {
    os::ask();
  }

 private:
  struct AskAgain {
    ~AskAgain() { os::ask(); }
  } ask_again_;  // when the variable is gone
  Variable variable_;
};

}  // namespace spanalloc::test
