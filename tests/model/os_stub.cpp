// The kernel contract and thread lifecycle as far as engines need them inside a model: memory
// comes from fixed ranges, at the same addresses in every execution; waiting is a yield to the
// checker; an error is a failure.
#include "os_stub.hpp"

#include <signal.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "base/assert.hpp"
#include "base/bits.hpp"
#include "os/cgroup.hpp"
#include "os/huge_pages.hpp"
#include "os/os.hpp"
#include "scheduler.hpp"
#include "thread/background.hpp"
#include "thread/lifecycle.hpp"

namespace spanalloc::model {

namespace {

constexpr std::size_t kRangeBytes = std::size_t{1} << 36;
constexpr std::size_t kSmallBytes = std::size_t{1} << 22;  // the range's end serves os::map()
constexpr std::size_t kUsedOfAligned = std::size_t{1} << 26;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kMostTouched = 65536;
char* range = nullptr;
// Pages of the range that were ever touched: each becomes readable by its first fault, so that
// forget_memory() knows which are to be zero again.
char* touched[kMostTouched];
std::size_t touched_count = 0;
bool purges = false;
bool refuses = false;
std::uint64_t clock_ms = 0;
std::size_t used = 0;
std::size_t mapped = 0;
std::uintptr_t first_range = 0;
std::size_t first_range_bytes = 0;
std::size_t first_range_limit = SIZE_MAX;
char* aligned_range = nullptr;
unsigned cpus = 1;

void note_touched(int, siginfo_t* fault, void*) {
  const std::uintptr_t page = align_down(address_of(fault->si_addr), kPage);
  if (page - address_of(range) >= kRangeBytes || touched_count == kMostTouched) {
    signal(SIGSEGV, SIG_DFL);  // it is no page of the range: the same fault again, for good
    return;
  }
  touched[touched_count++] = pointer_to<char>(page);
  if (mprotect(pointer_to(page), kPage, PROT_READ | PROT_WRITE) != 0) std::abort();
}

void ensure_range() {
  if (range != nullptr) return;
  void* p =
      mmap(nullptr, kRangeBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) std::abort();
  range = static_cast<char*>(p);
  struct sigaction action{};
  action.sa_sigaction = &note_touched;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
}

void clear_touched(const char* first, std::size_t bytes) {
  for (std::size_t i = 0; i < touched_count; ++i) {
    if (static_cast<std::size_t>(touched[i] - first) < bytes) std::memset(touched[i], 0, kPage);
  }
}

void* take(std::size_t& offset, std::size_t end, std::size_t bytes, std::size_t alignment) {
  ensure_range();
  const std::uintptr_t base = address_of(range);
  const std::size_t first = align_up(base + offset, alignment) - base;
  if (bytes > end || first > end - bytes) return nullptr;
  offset = first + bytes;
  return range + first;
}

// A range at a multiple of more than the range above is large: one, the same in every execution.
// Only its first part is ever used; the rest of the alignment is address space.
void* take_aligned(std::size_t bytes, std::size_t alignment) {
  if (bytes > kRangeBytes) return nullptr;
  if (aligned_range == nullptr) {
    void* p = mmap(nullptr, alignment + kRangeBytes, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) std::abort();
    aligned_range = pointer_to<char>(align_up(address_of(p), alignment));
    if (mprotect(aligned_range, kUsedOfAligned, PROT_READ | PROT_WRITE) != 0) std::abort();
  }
  return aligned_range;
}

}  // namespace

void forget_memory() {
  clear_touched(range, kRangeBytes);
  purges = refuses = false;
  clock_ms = 0;
  used = 0;
  first_range = 0;
  first_range_limit = SIZE_MAX;
  mapped = kRangeBytes - kSmallBytes;
}

void count_cpus(unsigned count) {
  cpus = count;
}

void limit_first_range(std::size_t bytes) {
  first_range_limit = bytes;
}

void refuse_memory() {
  refuses = true;
}

void grant_purges() {
  purges = true;
}

void refuse_purges() {
  purges = false;
}

void set_clock(std::uint64_t ms) {
  clock_ms = ms;
}

}  // namespace spanalloc::model

namespace spanalloc {

void assertion_failed(const char* condition, const char*, int) {
  model::fail(condition);
}

}  // namespace spanalloc

namespace spanalloc::os {

bool would_grant(std::size_t) {
  return true;
}

const void* thread_id() {
  alignas(2) static const char marks[model::kMaxThreads + 1][2] = {};
  return marks[model::acting_thread()];
}
void before_fork() {}
bool is_new_child() {
  return false;
}
void enter_child() {}
void yield() {
  model::yield();
}
void sleep_briefly() {
  model::yield();
}
void sleep_while(const void*, std::uint64_t, std::uint64_t) {
  model::yield();
}
bool wake_one(const void*) {
  return true;
}
void fatal(const char* what, const void*) {
  model::fail(what);
}
void fatal_of_range(const char* what, const void*) {
  model::fail(what);
}
void fatal(const char* what) {
  model::fail(what);
}

void* map_unheard(std::size_t, std::size_t) {
  return nullptr;
}
std::size_t page_size() {
  return 4096;
}
unsigned cpu_count() {
  return model::cpus;
}
unsigned cpu_numbers() {
  return model::cpus;
}
unsigned current_cpu() {
  return model::this_cpu();
}
std::size_t address_space_limit() {
  return SIZE_MAX;
}
std::size_t memory_limit() {
  return SIZE_MAX;
}
void forget_memory_limit() {}
NewPage new_page() {
  return NewPage::kPlain;
}
// No process here has left another one behind, and with it a table that was just growing.
bool can_be_read(const std::uint32_t*) {
  return true;
}
bool is_locked(void*) {
  return false;
}
std::uint64_t random_bits() {
  return 0;
}
std::uint64_t random_place_bits() {
  return 0;
}
std::uint64_t now_ms() {
  return model::clock_ms;
}
void sleep_ms(std::uint64_t) {
  model::yield();
}
unsigned option_choice(const char*, const char* const*, unsigned, unsigned fallback, const char*) {
  return fallback;
}
std::uint64_t option_number(const char*, std::uint64_t, std::uint64_t, std::uint64_t fallback) {
  return fallback;
}
bool option_switch(const char* name, bool fallback) {
  return std::strcmp(name, "RSEQ") == 0 || fallback;
}
std::uint64_t option_size(const char*, const char*, std::uint64_t fallback, const char*) {
  return fallback;
}
bool makes_huge_pages_unasked(const char*) {
  return false;
}
bool read_memory_group(MemoryGroup&, const char*) {
  return false;
}
bool write_text(int, const char*, std::size_t) {
  return true;
}
ErrnoGuard::ErrnoGuard() : saved_(0) {}
ErrnoGuard::~ErrnoGuard() {}

void* reserve(std::size_t bytes, std::size_t alignment) {
  void* p =
      alignment > model::kRangeBytes
          ? model::take_aligned(bytes, alignment)
          : model::take(model::used, model::kRangeBytes - model::kSmallBytes, bytes, alignment);
  if (model::first_range == 0) {
    model::first_range = address_of(p);
    model::first_range_bytes = p == nullptr ? 0 : bytes;
  }
  return p;
}
Placed reserve_at(void*, std::size_t) {
  return Placed::kRefused;  // what is placed is reserved
}
bool open(void* address, std::size_t bytes) {
  if (model::refuses) return false;
  const std::size_t offset = address_of(address) - model::first_range;
  return offset >= model::first_range_bytes || offset + bytes <= model::first_range_limit;
}
Placed open_at(void*, std::size_t) {
  return Placed::kYes;
}
bool close(void*, std::size_t) {
  return true;
}
bool release(void*, std::size_t) {
  return true;
}
bool unmap(void*, std::size_t) {
  return true;
}
void* map(std::size_t bytes, std::size_t alignment) {
  return model::take(model::mapped, model::kRangeBytes, bytes, alignment);
}
bool purge(void* address, std::size_t bytes) {
  if (model::purges) model::clear_touched(static_cast<const char*>(address), bytes);
  return model::purges;
}
bool renew(void* address, std::size_t bytes) {
  return purge(address, bytes);
}
std::size_t resident_pages(void*, std::size_t) {
  return 0;
}
void forbid_huge_pages(void*, std::size_t) {}
void prefer_huge_pages(void*, std::size_t) {}

}  // namespace spanalloc::os

namespace spanalloc::thread {

bool start_background(void (*)()) {
  return false;
}

// Models that fork say themselves what the child does.
void watch_forks(ForkWatch&) {}
void unwatch_forks(ForkWatch&) {}

// Models end their threads themselves.
unsigned ExitKey::key(void (*)(void*)) {
  return 1;
}
bool ExitKey::watch_this_thread(void*, void (*)(void*)) {
  return true;
}
bool ExitKey::comes_again(void*, std::uint8_t&) const {
  return false;
}
void* ExitKey::find() const {
  return nullptr;
}
void ExitKey::leave() {}
void ExitKey::stay_away(void*) {}
void ExitKey::remove() {}

}  // namespace spanalloc::thread
