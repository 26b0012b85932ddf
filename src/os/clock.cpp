// Time, and waiting for it: what is done by futex.
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdint.h>
#include <time.h>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "os/os.hpp"
#include "os/system_call.hpp"
#include "os/vdso.hpp"

namespace spanalloc::os {

namespace {

#if defined(__aarch64__)
constexpr char kClockName[] = "__kernel_clock_gettime";
#else
constexpr char kClockName[] = "__vdso_clock_gettime";
#endif

using ClockFunction = int (*)(clockid_t, timespec*);

enum class Clock : unsigned { kKernel, kCounted, kStill };

// Which clock there is, found out once; any thread finds the same, so that no ordering is needed.
constexpr std::uintptr_t kNotAsked = 0;
constexpr std::uintptr_t kCountedClock = 1;
constexpr std::uintptr_t kStillClock = 2;
constinit Atomic<std::uintptr_t> known_clock{kNotAsked};

constexpr std::uint64_t kNoTime = UINT64_MAX;

// kNoTime: it does not know. (Linux's own function needs no system call for this clock, and
// does not fail. On systems that only resemble Linux it may be nothing but the system call,
// which a filter may refuse.)
std::uint64_t ms_by(std::uintptr_t clock) {
  timespec now{};
  if (reinterpret_cast<ClockFunction>(clock)(CLOCK_MONOTONIC_COARSE, &now) != 0) return kNoTime;
  return static_cast<std::uint64_t>(now.tv_sec) * 1000 +
         static_cast<std::uint64_t>(now.tv_nsec) / 1000000;
}

SPANALLOC_COLD std::uintptr_t find_clock() {
  static constexpr const char* kChoices[] = {"kernel", "counted", "still"};
  const auto choice =
      static_cast<Clock>(option_choice("CLOCK", kChoices, 3, 0, "kernel, counted or still"));
  std::uintptr_t clock = kCountedClock;
  if (choice == Clock::kStill) clock = kStillClock;
  if (const std::uintptr_t kernels = address_of(vdso_function(kClockName));
      choice == Clock::kKernel && kernels != 0 && ms_by(kernels) != kNoTime) {
    clock = kernels;
  }
  known_clock.store_relaxed(clock);
  return clock;
}

std::uintptr_t clock_in_use() {
  const std::uintptr_t known = known_clock.load_relaxed();
  return SPANALLOC_LIKELY(known != kNotAsked) ? known : find_clock();
}

// What a counted clock is looked at in a millisecond. Busy programs look some ten thousand times
// in a second: for them the clock is not far off. It stops where nobody allocates, and so does
// what hangs on it anyway.
constexpr std::uint64_t kLooksAMs = 16;
constinit Atomic<std::uint64_t> looks{0};  // relaxed: nothing follows from its value but time

// What the kernel's clock told last, so that time does not go back.
constinit Atomic<std::uint64_t> last_ms{0};

// The kernel's clock is refused from now on.
SPANALLOC_COLD std::uint64_t count_from_now_on() {
  looks.store_relaxed(last_ms.load_relaxed() * kLooksAMs);
  known_clock.store_relaxed(kCountedClock);
  return last_ms.load_relaxed();
}

void wait_for(std::uint64_t ns) {
  // Nobody changes it, and nobody is woken: what ends the wait is the time.
  static constinit Atomic<std::uint32_t> word{0};
  sleep_while(&word, 0, ns);
}

}  // namespace

std::uint64_t now_ms() {
  const std::uintptr_t clock = clock_in_use();
  if (clock == kCountedClock) return looks.fetch_add_relaxed(1) / kLooksAMs;
  if (clock == kStillClock) return 0;
  const std::uint64_t now = ms_by(clock);
  if (SPANALLOC_UNLIKELY(now == kNoTime)) return count_from_now_on();
  // It moves every few milliseconds: mostly nothing is written. (A later time may be overwritten by
  // an earlier one that another thread was told: by no more than that.)
  if (last_ms.load_relaxed() != now) last_ms.store_relaxed(now);
  return now;
}

void sleep_while(const void* word, std::uint64_t seen, std::uint64_t ns) {
  const timespec duration{static_cast<time_t>(ns / 1'000'000'000),
                          static_cast<long>(ns % 1'000'000'000)};
  (void)system_call(SYS_futex, argument(word), FUTEX_WAIT | FUTEX_PRIVATE_FLAG,
                    static_cast<std::uint32_t>(seen), argument(&duration));
}

bool wake_one(const void* word) {
  return system_call(SYS_futex, argument(word), FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1) > 0;
}

void yield() {
  wait_for(1000);
}

void sleep_briefly() {
  wait_for(50000);
}

void sleep_ms(std::uint64_t ms) {
  // Else none would pass for a thread that sleeps until some has.
  if (clock_in_use() == kCountedClock) looks.fetch_add_relaxed(ms * kLooksAMs);
  wait_for(ms * 1'000'000);
}

// The kernel reads the word, and goes on only if it finds what it was told to expect there. That is
// no value that a page is likely to begin with: where it is found the thread sleeps, for at least
// as long as its timer slack, however short a time-out it gives.
bool can_be_read(const std::uint32_t* word) {
  constexpr long kUnlikely = 0x5AC3965B;
  const timespec none{};
  return system_call(SYS_futex, argument(word), FUTEX_WAIT | FUTEX_PRIVATE_FLAG, kUnlikely,
                     argument(&none)) != -EFAULT;
}

}  // namespace spanalloc::os
