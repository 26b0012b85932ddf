#include "os_calls.hpp"

#include <sys/mman.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "base/bits.hpp"

extern "C" {
int __real_clock_gettime(clockid_t clock, timespec* now) noexcept;
void* __real_mmap(void* address, std::size_t bytes, int protection, int flags, int fd, off_t offset) noexcept;
int __real_munmap(void* address, std::size_t bytes) noexcept;
void __real__ZN9spanalloc2os5yieldEv();  // spanalloc::os::yield
}

namespace spanalloc::test {
namespace {

// Constant-initialised: the first call comes before this file's constructors would run.
constinit std::atomic<std::size_t> mapped{0};
constinit std::atomic<std::size_t> yield_calls{0};
constinit std::atomic<std::uint64_t> clock_ms{1'000'000'000};  // 0: the machine's

std::size_t whole_pages(std::size_t bytes) {
  return align_up(bytes, static_cast<std::size_t>(sysconf(_SC_PAGESIZE)));
}

}  // namespace

std::size_t mapped_by_calls() {
  return mapped.load(std::memory_order_relaxed);
}

std::size_t yields() {
  return yield_calls.load(std::memory_order_relaxed);
}

void advance_clock(std::uint64_t ms) {
  clock_ms.fetch_add(ms, std::memory_order_relaxed);
}
void let_clock_go() {
  clock_ms.store(0, std::memory_order_relaxed);
}

}  // namespace spanalloc::test

namespace test = spanalloc::test;

extern "C" {

int __wrap_clock_gettime(clockid_t clock, timespec* now) noexcept {
  const std::uint64_t ms = test::clock_ms.load(std::memory_order_relaxed);
  if (ms == 0 || clock != CLOCK_MONOTONIC_COARSE) return __real_clock_gettime(clock, now);
  now->tv_sec = static_cast<time_t>(ms / 1000);
  now->tv_nsec = static_cast<long>(ms % 1000 * 1000000);
  return 0;
}

void* __wrap_mmap(void* address, std::size_t bytes, int protection, int flags, int fd,
                  off_t offset) noexcept {
  void* const got = __real_mmap(address, bytes, protection, flags, fd, offset);
  // Over what is there already nothing is added. (A kernel that is too old for MAP_FIXED_NOREPLACE takes the
  // address for a hint; then the caller unmaps what it got.)
  const bool replaces = (flags & MAP_FIXED) != 0;
  if (got != MAP_FAILED && !replaces) {
    test::mapped.fetch_add(test::whole_pages(bytes), std::memory_order_relaxed);
  }
  return got;
}

int __wrap_munmap(void* address, std::size_t bytes) noexcept {
  const int result = __real_munmap(address, bytes);
  if (result == 0) test::mapped.fetch_sub(test::whole_pages(bytes), std::memory_order_relaxed);
  return result;
}

void __wrap__ZN9spanalloc2os5yieldEv() {
  test::yield_calls.fetch_add(1, std::memory_order_relaxed);
  __real__ZN9spanalloc2os5yieldEv();
}
}
