// The program of a run: threads that allocate and free as the plan's phases say, and check what
// they get.
#pragma once

#include "plan.hpp"

namespace spanalloc::simulation {

/// Runs the whole plan; a check that does not hold ends the process (report.hpp).
void run_program(const Plan& plan);

}  // namespace spanalloc::simulation
