#include "kernel_refusals.hpp"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "own_clock.hpp"
#include "random.hpp"
#include "sanitizers.hpp"

namespace spanalloc::test::kernel {
namespace {

// Constant-initialised: the first call comes before this file's constructors would run.
constinit std::atomic<Books*> the_books{nullptr};
constinit std::atomic<bool> armed{false};
constinit std::atomic<std::uint64_t> clock_ms{0};  // 0: the machine's
constinit std::atomic<bool> environment_read{false};

bool by_chance(const Plan& plan, std::size_t number) {
  return Random(number * 0x9E3779B97F4A7C15u + plan.seed * 0xD1B54A32D192ED03u).below(1000) <
         plan.permille;
}

// Before main: neither getenv nor anything that allocates.
void read_environment() {
  if (environment_read.exchange(true) || environ == nullptr) return;
  const std::size_t length = strlen(kBooksVariable);
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (strncmp(*entry, kBooksVariable, length) != 0 || (*entry)[length] != '=') continue;
    const int fd = atoi(*entry + length + 1);
    const long p =
        syscall(SYS_mmap, nullptr, sizeof(Books), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == -1) return;
    auto& books = *reinterpret_cast<Books*>(p);
    arm(books.plan, books);
    return;
  }
}

bool is_refused(Call call) {
  read_environment();
  if (!armed.load(std::memory_order_acquire)) return false;
  Books* books = the_books.load();
  const Plan& plan = books->plan;
  books->made[call].fetch_add(1, std::memory_order_relaxed);
  if ((plan.calls >> call & 1) == 0) return false;
  const std::size_t number = books->planned.fetch_add(1, std::memory_order_relaxed);
  const bool refused = plan.permille != 0
                           ? by_chance(plan, number)
                           : number >= plan.first && number - plan.first < plan.count;
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
  books.plan = plan;
  clock_ms.store(1'000'000);
  the_books.store(&books);
  armed.store(true, std::memory_order_release);
}

void disarm() {
  armed.store(false);
}

std::size_t refusals() {
  const Books* books = the_books.load();
  std::size_t sum = 0;
  for (unsigned c = 0; books != nullptr && c < kCalls; ++c) sum += books->refused[c].load();
  return sum;
}

void advance_clock(unsigned ms) {
  clock_ms.fetch_add(ms);
}

Books* told_books() {
  read_environment();
  return the_books.load();
}

}  // namespace spanalloc::test::kernel

int spanalloc::test::own_clock(clockid_t clock, timespec* now) {
  const std::uint64_t ms = kernel::clock_ms.load(std::memory_order_relaxed);
  if (ms == 0) return static_cast<int>(syscall(SYS_clock_gettime, clock, now));
  now->tv_sec = static_cast<time_t>(ms / 1000);
  now->tv_nsec = static_cast<long>(ms % 1000 * 1000000);
  return 0;
}

namespace kernel = spanalloc::test::kernel;

// A sanitizer must see every mapping: there the calls stay its own, and tests say that they skip.
#if !defined(SPANALLOC_TEST_ASAN) && !defined(SPANALLOC_TEST_TSAN)

// default: a library that is loaded finds them.
#define INTERPOSED extern "C" [[gnu::visibility("default")]]

INTERPOSED void* mmap(void* address, size_t bytes, int protection, int flags, int fd,
                      off_t offset) noexcept {
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
  // What a filter that knows glibc's malloc alone would kill for.
  if (flags != MREMAP_MAYMOVE) abort();
  if (kernel::is_refused(kernel::kMremap)) return MAP_FAILED;
  return reinterpret_cast<void*>(syscall(SYS_mremap, old, old_bytes, bytes, flags));
}

#endif
