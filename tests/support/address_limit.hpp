// A limit on address space for the calling process, a test's child, whatever its parent has mapped.
#pragma once

#include <sys/resource.h>

#include <cstddef>

#include "os/os.hpp"

namespace spanalloc::test {

/// Allows `bytes` more than are mapped now. False when that could not be set.
inline bool leave_address_space(std::size_t bytes) {
  const rlimit large{std::size_t{1} << 60, std::size_t{1} << 60};
  if (setrlimit(RLIMIT_AS, &large) != 0) return false;
  const std::size_t used = large.rlim_cur - os::address_space_left();
  const rlimit limit{used + bytes, large.rlim_max};
  return setrlimit(RLIMIT_AS, &limit) == 0;
}

}  // namespace spanalloc::test
