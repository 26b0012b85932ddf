// A program that is linked with own_clock.cpp has a clock of its own in the place of the
// kernel's: it has a getauxval that names another object than the kernel's, and every library of
// the program finds that one.
#pragma once

#include <time.h>

namespace spanalloc::test {

/// What that clock says: the program defines it.
int own_clock(clockid_t which, timespec* now);

}  // namespace spanalloc::test
