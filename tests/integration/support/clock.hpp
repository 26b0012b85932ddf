// A clock of the test's own, in the place of the library's: clock.cpp has the program's clock_gettime, which
// comes before libc's where the library looks for it. It runs as libc's does until it is stopped.
#pragma once

namespace harness {

/// From now on time passes by advance_clock() only.
void stop_clock();
void advance_clock(unsigned milliseconds);

}  // namespace harness
