#include "os_calls.hpp"

#include <errno.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>

#include "base/bits.hpp"

extern "C" {
std::uint64_t __real__ZN9spanalloc2os6now_msEv();
void __real__ZN9spanalloc2os5yieldEv();
void __real__ZN9spanalloc2os11sleep_whileEPKvmm(const void* word, std::uint64_t seen,
                                                std::uint64_t ns);
void* __real_mmap(void* address, std::size_t bytes, int protection, int flags, int fd,
                  off_t offset) noexcept;
int __real_munmap(void* address, std::size_t bytes) noexcept;
int __real_madvise(void* address, std::size_t bytes, int advice) noexcept;
}

namespace spanalloc::test {
namespace {

// Constant-initialised: the first call comes before this file's constructors would run.
constinit std::atomic<std::size_t> mapped{0};
constinit std::atomic<std::size_t> yield_calls{0};
constinit std::atomic<std::uint64_t> clock_ms{1'000'000'000};  // 0: the machine's
constinit std::atomic<bool> hints_want_more_room{false};
constinit std::atomic<int> mapped_over{0};  // NothingIsMappedOver::Way; 0: it is
constinit std::atomic<std::size_t> refused_over{0};
constinit std::atomic<bool> nothing_is_unmapped{false};
constinit std::atomic<void (*)()> before_call{nullptr};
constexpr std::size_t kHugePage = 2 * kMiB;

std::size_t whole_pages(std::size_t bytes) {
  return align_up(bytes, static_cast<std::size_t>(sysconf(_SC_PAGESIZE)));
}

void come_before_a_call() {
  void (*const f)() = before_call.load(std::memory_order_relaxed);
  if (f == nullptr) return;
  before_call.store(nullptr, std::memory_order_relaxed);
  f();
  before_call.store(f, std::memory_order_relaxed);
}

bool is_free(void* address, std::size_t bytes) {
  void* const got =
      __real_mmap(address, bytes, PROT_NONE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (got != MAP_FAILED) __real_munmap(got, bytes);
  return got == address;
}

}  // namespace

HintsWantMoreRoom::HintsWantMoreRoom() {
  hints_want_more_room.store(true);
}
HintsWantMoreRoom::~HintsWantMoreRoom() {
  hints_want_more_room.store(false);
}

NothingIsMappedOver::NothingIsMappedOver(Way way) {
  refused_over.store(0);
  mapped_over.store(way);
}
NothingIsMappedOver::~NothingIsMappedOver() {
  mapped_over.store(0);
}
std::size_t NothingIsMappedOver::refused() {
  return refused_over.load(std::memory_order_relaxed);
}

NothingIsUnmapped::NothingIsUnmapped() {
  nothing_is_unmapped.store(true, std::memory_order_relaxed);
}
NothingIsUnmapped::~NothingIsUnmapped() {
  nothing_is_unmapped.store(false, std::memory_order_relaxed);
}

BeforeEachCall::BeforeEachCall(void (*f)()) {
  before_call.store(f, std::memory_order_relaxed);
}
BeforeEachCall::~BeforeEachCall() {
  before_call.store(nullptr, std::memory_order_relaxed);
}

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

int __wrap_munmap(void* address, std::size_t bytes) noexcept;

// os::now_ms(), os::yield() and os::sleep_while(), as the compiler calls them.
std::uint64_t __wrap__ZN9spanalloc2os6now_msEv() {
  const std::uint64_t ms = test::clock_ms.load(std::memory_order_relaxed);
  return ms == 0 ? __real__ZN9spanalloc2os6now_msEv() : ms;
}
void __wrap__ZN9spanalloc2os5yieldEv() {
  test::yield_calls.fetch_add(1, std::memory_order_relaxed);
  __real__ZN9spanalloc2os5yieldEv();
}
void __wrap__ZN9spanalloc2os11sleep_whileEPKvmm(const void* word, std::uint64_t seen,
                                                std::uint64_t ns) {
  test::yield_calls.fetch_add(1, std::memory_order_relaxed);
  __real__ZN9spanalloc2os11sleep_whileEPKvmm(word, seen, ns);
}

void* __wrap_mmap(void* address, std::size_t bytes, int protection, int flags, int fd,
                  off_t offset) noexcept {
  test::come_before_a_call();
  if (test::hints_want_more_room.load(std::memory_order_relaxed) && address != nullptr &&
      (flags & MAP_FIXED) == 0 && bytes >= test::kHugePage &&
      !test::is_free(address, bytes + test::kHugePage)) {
    address = nullptr;
  }
  // Over what is there already nothing is added.
  const bool replaces = (flags & MAP_FIXED) != 0;
  const int way = test::mapped_over.load(std::memory_order_relaxed);
  if (replaces && way != 0) {
    if (way == test::NothingIsMappedOver::kUnmaps) __wrap_munmap(address, bytes);
    test::refused_over.fetch_add(1, std::memory_order_relaxed);
    errno = ENOMEM;
    return MAP_FAILED;
  }
  void* const got = __real_mmap(address, bytes, protection, flags, fd, offset);
  if (got != MAP_FAILED && !replaces) {
    test::mapped.fetch_add(test::whole_pages(bytes), std::memory_order_relaxed);
  }
  return got;
}

int __wrap_madvise(void* address, std::size_t bytes, int advice) noexcept {
  test::come_before_a_call();
  return __real_madvise(address, bytes, advice);
}

int __wrap_munmap(void* address, std::size_t bytes) noexcept {
  test::come_before_a_call();
  if (test::nothing_is_unmapped.load(std::memory_order_relaxed)) {
    errno = ENOMEM;
    return -1;
  }
  const int result = __real_munmap(address, bytes);
  if (result == 0) test::mapped.fetch_sub(test::whole_pages(bytes), std::memory_order_relaxed);
  return result;
}
}
