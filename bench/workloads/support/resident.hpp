// The process's memory as it stands: RSS and page tables, from /proc/self/status,
// read without allocating.
#ifndef SPANALLOC_BENCH_RESIDENT_HPP
#define SPANALLOC_BENCH_RESIDENT_HPP

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "support/workload.hpp"

namespace workload {

struct Resident {
  std::int64_t rss, page_tables;  // bytes
};

// Takes tens of microseconds: to be called outside of what is timed.
inline Resident resident() {
  static char text[8192];
  const int file = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  check(file >= 0, "cannot open /proc/self/status");
  std::size_t length = 0;
  for (ssize_t n;
       length < sizeof text - 1 && (n = read(file, text + length, sizeof text - 1 - length)) > 0;)
    length += static_cast<std::size_t>(n);
  close(file);
  text[length] = '\0';
  const char* rss = std::strstr(text, "\nVmRSS:");
  const char* tables = std::strstr(text, "\nVmPTE:");
  check(rss != nullptr && tables != nullptr, "no VmRSS and VmPTE in /proc/self/status");
  return {std::strtoll(rss + 7, nullptr, 10) * 1024, std::strtoll(tables + 7, nullptr, 10) * 1024};
}
// Bytes of RSS + page tables.
inline std::int64_t resident_bytes() {
  const Resident now = resident();
  return now.rss + now.page_tables;
}

// The same without the workload's own tables.
inline std::int64_t resident_beyond_tables() {
  return resident_bytes() - static_cast<std::int64_t>(own_bytes.now);
}

inline double mib(std::int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

}  // namespace workload

#endif  // SPANALLOC_BENCH_RESIDENT_HPP
