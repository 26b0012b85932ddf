// Where a test runs.
#pragma once

#include <errno.h>
#include <sched.h>
#include <string.h>

#include "harness.hpp"

namespace harness {

/// The calling thread, and those that it makes, stay on the CPU where it is: where a library has a
/// cache for each CPU, what was freed is found again.
inline void stay_on_this_cpu() {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(sched_getcpu()), &set);
  CHECK(sched_setaffinity(0, sizeof set, &set) == 0, "sched_setaffinity: %s", strerror(errno));
}

}  // namespace harness
