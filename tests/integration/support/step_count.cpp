#include "support/step_count.hpp"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>

#include "support/harness.hpp"

namespace harness {

namespace {

constinit std::atomic<std::size_t> steps{0};
constinit std::atomic<std::size_t> kernel_calls{0};
// Behind which one handler is called; 0: none.
constinit std::atomic<std::size_t> stop{0};
void (*stop_handler)() = nullptr;

#ifdef __x86_64__
// Whether the interrupted thread's next instruction is `syscall`.
bool is_at_kernel_call(const void* context) {
  const auto& registers = static_cast<const ucontext_t*>(context)->uc_mcontext.gregs;
  const auto* next = reinterpret_cast<const unsigned char*>(registers[REG_RIP]);
  return next[0] == 0x0F && next[1] == 0x05;
}
// The trap flag. The stack pointer steps over what the compiler may keep below it.
constexpr long kTrapFlag = 0x100;
void set_trap_flag() {
  asm volatile("lea -128(%%rsp), %%rsp\n pushfq\n orq %0, (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp"
               :
               : "i"(kTrapFlag)
               : "memory", "cc");
}
void clear_trap_flag() {
  asm volatile("lea -128(%%rsp), %%rsp\n pushfq\n andq %0, (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp"
               :
               : "i"(~kTrapFlag)
               : "memory", "cc");
}
constexpr bool kCanStep = true;
#else
bool is_at_kernel_call(const void*) {
  return false;
}
void set_trap_flag() {}
void clear_trap_flag() {}
constexpr bool kCanStep = false;
#endif

void note_step(int, siginfo_t*, void* context) {
  const std::size_t number = steps.fetch_add(1, std::memory_order_relaxed) + 1;
  if (is_at_kernel_call(context)) kernel_calls.fetch_add(1, std::memory_order_relaxed);
  if (number == stop.load(std::memory_order_relaxed)) stop_handler();
}

void handle_steps() {
  struct sigaction action{};
  action.sa_sigaction = note_step;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  CHECK(sigaction(SIGTRAP, &action, nullptr) == 0, "sigaction: %s", strerror(errno));
}

}  // namespace

void require_step_count() {
  if (!kCanStep) skip("instructions are counted by the trap flag of x86-64 only");
  constexpr std::size_t kWork = 100;
  const std::size_t count = instructions_of([] {
    for (std::size_t i = 0; i < kWork; ++i) asm volatile("" : "+r"(i));
  });
  if (count == 0) skip("the processor does not trap after each instruction here");
  CHECK(count >= kWork && count < 100 * kWork,
        "%zu rounds of a loop are counted as %zu instructions", kWork, count);
  constexpr std::size_t kCalls = 3;
  instructions_of([] {
    for (std::size_t i = 0; i < kCalls; ++i) syscall(SYS_getppid);
  });
  CHECK(kernel_calls_counted() == kCalls, "%zu calls of the kernel are counted as %zu", kCalls,
        kernel_calls_counted());
}

void begin_count() {
  handle_steps();
  steps.store(0);
  kernel_calls.store(0);
  set_trap_flag();
}

std::size_t end_count() {
  clear_trap_flag();
  stop.store(0);
  return steps.load();
}
void call_behind(std::size_t instructions, void (*handler)()) {
  stop_handler = handler;
  stop.store(instructions);
}
std::size_t kernel_calls_counted() {
  return kernel_calls.load();
}

}  // namespace harness
