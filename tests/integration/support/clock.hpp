// A clock of the test's own, in the place of the kernel's, for the library to find (own_clock.hpp).
// It runs as the kernel's does until it is stopped.
#pragma once

namespace harness {

/// From now on time passes by advance_clock() only.
void stop_clock();
void advance_clock(unsigned milliseconds);

}  // namespace harness
