// The contract with the kernel (src/os/os.hpp) over the model of it.
#include "os/os.hpp"

#include <cerrno>
#include <cstring>

#include "kernel.hpp"
#include "os/cgroup.hpp"
#include "os/huge_pages.hpp"
#include "process.hpp"
#include "report.hpp"
#include "scheduler.hpp"
#include "thread/background.hpp"

namespace spanalloc::os {

using simulation::Call, simulation::kernel, simulation::process, simulation::scheduler;

namespace {
// Around a call of the kernel's: errno is as it was, and other threads may run, or fork, before the
// library has noted what the call has done.
class CallGuard {
 public:
  CallGuard() = default;
  ~CallGuard() { scheduler.kernel_step(); }
  CallGuard(const CallGuard&) = delete;
  CallGuard& operator=(const CallGuard&) = delete;

 private:
  ErrnoGuard keep_;
};
}  // namespace

// --- Memory --------------------------------------------------------------------------------------

std::size_t page_size() {
  return 4096;
}
void* reserve(std::size_t bytes, std::size_t alignment) {
  const CallGuard guard;
  return kernel.reserve(bytes, alignment);
}
bool open(void* address, std::size_t bytes) {
  const CallGuard guard;
  return kernel.open(address, bytes);
}
Placed open_at(void* address, std::size_t bytes) {
  const CallGuard guard;
  return kernel.place_at(address, bytes, true, Call::open_at);
}
Placed reserve_at(void* address, std::size_t bytes) {
  const CallGuard guard;
  return kernel.place_at(address, bytes, false, Call::reserve_at);
}
bool close(void* address, std::size_t bytes) {
  const CallGuard guard;
  return kernel.close(address, bytes);
}
bool release(void* address, std::size_t bytes) {
  const CallGuard guard;
  return kernel.release(address, bytes, Call::release);
}
void* map(std::size_t bytes, std::size_t alignment) {
  const CallGuard guard;
  return kernel.map(bytes, alignment);
}
void* map_unheard(std::size_t bytes, std::size_t alignment) {
  return map(bytes, alignment);
}
bool unmap(void* address, std::size_t bytes) {
  const CallGuard guard;
  const bool unmapped = kernel.release(address, bytes, Call::unmap);
  if (!unmapped) kernel.forget_pages(address, bytes);
  return unmapped;
}
void* remap(void* address, std::size_t old_bytes, std::size_t new_bytes) {
  const CallGuard guard;
  return kernel.remap(address, old_bytes, new_bytes);
}
bool purge(void* address, std::size_t bytes) {
  const CallGuard guard;
  return kernel.purge(address, bytes, Call::purge);
}
bool renew(void* address, std::size_t bytes) {
  const CallGuard guard;
  return kernel.purge(address, bytes, Call::renew);
}
bool would_grant(std::size_t bytes) {
  return kernel.would_grant(bytes);
}
void forbid_huge_pages(void*, std::size_t) {
  scheduler.kernel_step();
}
void prefer_huge_pages(void*, std::size_t) {
  scheduler.kernel_step();
}
bool can_be_read(const std::uint32_t* word) {
  return kernel.can_be_read(word);
}
std::size_t resident_pages(void* address, std::size_t bytes) {
  ErrnoGuard keep;
  return kernel.resident(address, bytes);
}
NewPage new_page() {
  return kernel.is_locked() ? NewPage::kLocked : NewPage::kPlain;
}
bool is_locked(void* page) {
  return kernel.is_locked_at(page);
}
bool may_renew() {
  return true;
}

// --- What is asked once --------------------------------------------------------------------------

namespace {
bool limit_is_forgotten = false;
}

void start() {}
void ask() {}
std::size_t address_space_limit() {
  const std::uint64_t limit = process.plan().limit_at_start;
  return limit == 0 || limit_is_forgotten ? SIZE_MAX : limit;
}
std::size_t memory_limit() {
  return address_space_limit();
}
void forget_memory_limit() {
  limit_is_forgotten = true;
}
unsigned cpu_count() {
  return process.plan().cpus;
}
unsigned cpu_numbers() {
  return process.plan().cpus;
}
std::uint64_t random_bits() {
  return process.random_bits();
}
std::uint64_t random_place_bits() {
  return process.random_bits();
}

// --- Threads, time, forks ------------------------------------------------------------------------

const void* thread_id() {
  return simulation::mark_of(scheduler.self());
}
unsigned current_cpu() {
  return scheduler.in_thread() ? scheduler.cpu() : 0;
}
std::uint64_t now_ms() {
  return kernel.now_ms();
}
void sleep_while(const void*, std::uint64_t, std::uint64_t) {
  scheduler.yield();
}
bool wake_one(const void*) {
  scheduler.kernel_step();
  return true;
}
void yield() {
  scheduler.yield();
}
void sleep_briefly() {
  scheduler.yield();
}
void sleep_ms(std::uint64_t ms) {
  kernel.pass(ms);
  scheduler.yield();
}
void before_fork() {}
bool is_new_child() {
  return process.is_new_child();
}
void enter_child() {
  process.enter_child();
}
bool children_show_themselves() {
  return true;
}

// --- Options -------------------------------------------------------------------------------------

const char* option(const char*) {
  return nullptr;
}
std::uint64_t option_number(const char* name, std::uint64_t low, std::uint64_t high,
                            std::uint64_t fallback) {
  const auto within = [&](std::uint64_t value) {
    return value < low ? low : value > high ? high : value;
  };
  const simulation::ProcessPlan& plan = process.plan();
  if (std::strcmp(name, "DECAY_MS") == 0 && plan.decay_ms != UINT64_MAX)
    return within(plan.decay_ms);
  if (std::strcmp(name, "ARENA_BITS") == 0 && plan.arena_bits != 0) return within(plan.arena_bits);
  return fallback;
}
std::uint64_t option_size(const char*, const char*, std::uint64_t fallback, const char*) {
  return fallback;
}
unsigned option_choice(const char*, const char* const*, unsigned, unsigned fallback, const char*) {
  return fallback;
}
bool option_switch(const char* name, bool fallback) {
  if (std::strcmp(name, "RSEQ") == 0) return process.plan().sequences;
  if (std::strcmp(name, "BACKGROUND") == 0) return process.plan().background;
  return fallback;
}
bool option_text(const char*, char*, std::size_t) {
  return false;
}
bool makes_huge_pages_unasked(const char*) {
  return false;
}
bool read_memory_group(MemoryGroup&, const char*) {
  return false;
}

// --- Reports -------------------------------------------------------------------------------------

void fatal(const char* what, const void* address) {
  simulation::end_if_excused();  // a misuse is what it reports
  simulation::fail("the heap reports: %s %p", what, address);
}
void fatal_of_range(const char* what, const void* start) {
  fatal(what, start);
}
void fatal(const char* what) {
  simulation::end_if_excused();
  simulation::fail("the heap reports: %s", what);
}
void before_fatal(void (*)(), bool (*)(const void*, AddressFacts&)) {}
bool write_text(int, const char*, std::size_t) {
  return true;
}
int make_file(const char*) {
  return -1;
}
bool close_file(int) {
  return true;
}
void ignore_write_signals() {}
const char* program_name() {
  return "simulation";
}
int process_id() {
  return 1;
}
int kernel_thread_id() {
  return 1 + static_cast<int>(scheduler.self());
}
std::uintptr_t pthread_of(std::uintptr_t mark) {
  return mark;
}

ErrnoGuard::ErrnoGuard() : saved_(errno) {}
ErrnoGuard::~ErrnoGuard() {
  errno = saved_;
}

}  // namespace spanalloc::os

namespace spanalloc::thread {

bool start_background(void (*)()) {
  return false;
}

}  // namespace spanalloc::thread
