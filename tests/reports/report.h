// What the programs share: memory as the kernel counts it, read without malloc; random
// numbers, the same in each run; and the verdict, one line on stdout and the exit code: 0
// good, 1 as bad as the report says.
#pragma once
#include <fcntl.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { KIB = 1024, MIB = 1024 * 1024 };

// The sum of a field over all lines of a file of /proc/self that begin with it, in KiB.
static inline long kib(const char* file, const char* field) {
  static char text[4 << 20];
  size_t used = 0;
  const int fd = open(file, O_RDONLY);
  for (ssize_t n = 1; n > 0; used += (size_t)n) {
    n = read(fd, text + used, sizeof text - 1 - used);
    if (n < 0) break;
  }
  close(fd);
  text[used] = 0;
  long sum = 0;
  for (char* at = text; at; at = strchr(at, '\n'), at += at != NULL)
    if (strncmp(at, field, strlen(field)) == 0) sum += strtol(at + strlen(field), NULL, 10);
  return sum;
}

// MiB in use now: resident pages and the page tables that map them.
static inline double mib(void) {
  return (double)(kib("/proc/self/status", "VmRSS:") + kib("/proc/self/status", "VmPTE:")) / 1024;
}

static inline long faults(void) {
  struct rusage use;
  getrusage(RUSAGE_SELF, &use);
  return use.ru_minflt;
}

static inline unsigned chance(unsigned below) {
  static __thread uint64_t state = 88172645463325252u;
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return (unsigned)((state >> 11) % below);
}

// A block, written to on each of its pages.
static inline char* written(size_t size) {
  char* block = (char*)malloc(size);
  for (size_t at = 0; block && at < size; at += 4096) block[at] = 1;
  return block;
}

static inline int verdict(int good, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vprintf(format, arguments);
  va_end(arguments);
  putchar('\n');
  fflush(stdout);
  return !good;
}
