#include "kernel_refusals.hpp"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "sanitizers.hpp"

namespace spanalloc::test::kernel {
namespace {

// Constant-initialised: the first call comes before this file's constructors would run.
constinit Plan the_plan;
constinit std::atomic<Books*> the_books{nullptr};
constinit std::atomic<Books*> last_books{nullptr};
constinit std::atomic<std::uint64_t> clock_ms{0};  // 0: the machine's
constinit std::atomic<bool> environment_read{false};

bool by_chance(std::size_t number) {
  std::uint64_t x = (number + 1) * 0x9E3779B97F4A7C15u + the_plan.seed * 0xD1B54A32D192ED03u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return (x ^ (x >> 31)) % 1000 < the_plan.permille;
}

// Before main: neither getenv nor anything that allocates.
void read_environment() {
  if (environment_read.exchange(true) || environ == nullptr) return;
  const std::size_t length = strlen(kPlanVariable);
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (strncmp(*entry, kPlanVariable, length) != 0 || (*entry)[length] != '=') continue;
    Plan plan;
    int fd = -1;
    unsigned long seed = 0;
    unsigned tears = 0;
    if (sscanf(*entry + length + 1, "%u,%zu,%zu,%u,%lu,%u,%d", &plan.calls, &plan.first, &plan.count,
               &plan.permille, &seed, &tears, &fd) != 7) {
      return;
    }
    plan.seed = seed;
    plan.tears = tears != 0;
    const long books = syscall(SYS_mmap, nullptr, sizeof(Books), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (books != -1) arm(plan, *reinterpret_cast<Books*>(books));
    return;
  }
}

bool is_refused(Call call) {
  read_environment();
  Books* books = the_books.load(std::memory_order_acquire);
  if (books == nullptr) return false;
  books->made[call].fetch_add(1, std::memory_order_relaxed);
  if ((the_plan.calls >> call & 1) == 0) return false;
  const std::size_t number = books->planned.fetch_add(1, std::memory_order_relaxed);
  const bool refused = the_plan.permille != 0
                           ? by_chance(number)
                           : number >= the_plan.first && number - the_plan.first < the_plan.count;
  if (!refused) return false;
  books->refused[call].fetch_add(1, std::memory_order_relaxed);
  errno = ENOMEM;
  return true;
}

// Not where a sanitizer keeps its calls.
[[maybe_unused]] void* map(void* address, std::size_t bytes, int protection, int flags, int fd,
                           off_t offset) {
  if (is_refused(kMmap)) return MAP_FAILED;
  return reinterpret_cast<void*>(syscall(SYS_mmap, address, bytes, protection, flags, fd, offset));
}

}  // namespace

void arm(const Plan& plan, Books& books) {
  the_plan = plan;
  clock_ms.store(1'000'000);
  last_books.store(&books);
  the_books.store(&books, std::memory_order_release);
}

void disarm() {
  the_books.store(nullptr);
}

std::size_t refusals() {
  const Books* books = last_books.load();
  std::size_t sum = 0;
  for (unsigned c = 0; books != nullptr && c < kCalls; ++c) sum += books->refused[c].load();
  return sum;
}

void advance_clock(unsigned ms) {
  clock_ms.fetch_add(ms);
}

void write_plan(char* text, std::size_t size, const Plan& plan, int fd) {
  snprintf(text, size, "%u,%zu,%zu,%u,%lu,%u,%d", plan.calls, plan.first, plan.count, plan.permille,
           static_cast<unsigned long>(plan.seed), plan.tears ? 1u : 0u, fd);
}

Books* told_books() {
  read_environment();
  return last_books.load();
}

}  // namespace spanalloc::test::kernel

namespace kernel = spanalloc::test::kernel;

// A sanitizer must see every mapping: there the calls stay its own, and tests say that they skip.
#if !defined(SPANALLOC_TEST_ASAN) && !defined(SPANALLOC_TEST_TSAN)

// default: a library that is loaded finds them.
#define INTERPOSED extern "C" [[gnu::visibility("default")]]

INTERPOSED void* mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
  return kernel::map(address, bytes, protection, flags, fd, offset);
}
INTERPOSED void* mmap64(void* address, size_t bytes, int protection, int flags, int fd,
                        off64_t offset) noexcept {
  return kernel::map(address, bytes, protection, flags, fd, offset);
}
INTERPOSED int munmap(void* address, size_t bytes) noexcept {
  if (kernel::is_refused(kernel::kMunmap)) return -1;
  return static_cast<int>(syscall(SYS_munmap, address, bytes));
}
INTERPOSED int mprotect(void* address, size_t bytes, int protection) noexcept {
  if (kernel::is_refused(kernel::kMprotect)) return -1;
  return static_cast<int>(syscall(SYS_mprotect, address, bytes, protection));
}
INTERPOSED int madvise(void* address, size_t bytes, int advice) noexcept {
  if (kernel::is_refused(kernel::kMadvise)) return -1;
  return static_cast<int>(syscall(SYS_madvise, address, bytes, advice));
}
INTERPOSED void* mremap(void* old, size_t old_bytes, size_t bytes, int flags, ...) noexcept {
  va_list arguments;
  va_start(arguments, flags);
  void* target = (flags & MREMAP_FIXED) != 0 ? va_arg(arguments, void*) : nullptr;
  va_end(arguments);
  if (kernel::is_refused(kernel::kMremap)) {
    if (kernel::the_plan.tears && target != nullptr) syscall(SYS_munmap, target, bytes);
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return reinterpret_cast<void*>(syscall(SYS_mremap, old, old_bytes, bytes, flags, target));
}
INTERPOSED int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const std::uint64_t ms = kernel::clock_ms.load(std::memory_order_relaxed);
  if (ms == 0 || clock != CLOCK_MONOTONIC_COARSE)
    return static_cast<int>(syscall(SYS_clock_gettime, clock, now));
  now->tv_sec = static_cast<time_t>(ms / 1000);
  now->tv_nsec = static_cast<long>(ms % 1000 * 1000000);
  return 0;
}

#endif
