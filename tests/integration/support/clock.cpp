#include "support/clock.hpp"

#include <dlfcn.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "own_clock.hpp"
#include "support/harness.hpp"

namespace {

// Nanoseconds; 0 as long as the clock runs.
constinit std::atomic<long long> stopped_at{0};

}  // namespace

int spanalloc::test::own_clock(clockid_t which, timespec* now) {
  const long long at = stopped_at.load(std::memory_order_relaxed);
  if (at == 0) return static_cast<int>(syscall(SYS_clock_gettime, which, now));
  now->tv_sec = at / 1'000'000'000;
  now->tv_nsec = at % 1'000'000'000;
  return 0;
}

namespace harness {

void stop_clock() {
  CHECK(dlsym(RTLD_DEFAULT, "getauxval") == reinterpret_cast<void*>(&getauxval),
        "the library does not see this clock");
  timespec now{};
  syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
  stopped_at.store(now.tv_sec * 1'000'000'000LL + now.tv_nsec);
}

void advance_clock(unsigned milliseconds) {
  stopped_at.fetch_add(milliseconds * 1'000'000LL);
}

}  // namespace harness
