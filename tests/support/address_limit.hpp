// A limit on address space for the calling process, a test's child, whatever its parent has mapped.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>

#include "os/os.hpp"

namespace spanalloc::test {

/// Bytes of address space that this process has mapped. Allocates nothing.
inline std::size_t address_space_in_use() {
  char text[64] = {};
  const int fd = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);  // its first field, in pages
  if (fd < 0 || ::read(fd, text, sizeof text - 1) <= 0) _exit(99);
  ::close(fd);
  return std::strtoul(text, nullptr, 10) * os::page_size();
}

/// Bytes of those that count as data. Allocates nothing.
inline std::size_t data_in_use() {
  char text[128] = {};
  const int fd = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);  // its sixth field, in pages
  if (fd < 0 || ::read(fd, text, sizeof text - 1) <= 0) _exit(99);
  ::close(fd);
  char* at = text;
  for (int field = 1; field < 6; ++field) std::strtoul(at, &at, 10);
  return std::strtoul(at, nullptr, 10) * os::page_size();
}

/// Sets a limit on address space as if it had stood at the start. False when it could not be set.
inline bool limit_address_space(const rlimit& limit) {
  if (setrlimit(RLIMIT_AS, &limit) != 0) return false;
  os::ask();
  return true;
}

/// Allows `bytes` more than are mapped now. False when that could not be set.
inline bool leave_address_space(std::size_t bytes) {
  return limit_address_space({address_space_in_use() + bytes, std::size_t{1} << 60});
}

}  // namespace spanalloc::test
