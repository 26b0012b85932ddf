#include "support/step_count.hpp"

#include <errno.h>
#include <signal.h>
#include <string.h>

#include <atomic>

#include "support/harness.hpp"

namespace harness {

namespace {

constinit std::atomic<std::size_t> steps{0};

void note_step(int) {
  steps.fetch_add(1, std::memory_order_relaxed);
}

#ifdef __x86_64__
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
void set_trap_flag() {}
void clear_trap_flag() {}
constexpr bool kCanStep = false;
#endif

void handle_steps() {
  struct sigaction action{};
  action.sa_handler = note_step;
  action.sa_flags = SA_RESTART;
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
  CHECK(count >= kWork && count < 100 * kWork, "%zu rounds of a loop are counted as %zu instructions", kWork,
        count);
}

void begin_count() {
  handle_steps();
  steps.store(0);
  set_trap_flag();
}

std::size_t end_count() {
  clear_trap_flag();
  return steps.load();
}

}  // namespace harness
