// Whether a library changes its CPUs' caches by restartable sequences or under locks, as SPANALLOC_RSEQ says.
// A malloc and a free are run with a signal behind each instruction, and the kernel sends every sequence to
// its exit. None comes to its end then: it must give up, and the call be served another way.
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "support/harness.hpp"

extern "C" {
[[gnu::weak]] extern const std::ptrdiff_t __rseq_offset;
[[gnu::weak]] extern const unsigned int __rseq_size;
}

namespace {

#ifdef __x86_64__

constinit std::atomic<std::size_t> steps{0};
constinit std::atomic<std::size_t> in_sequences{0};

// A signal that comes inside of a sequence finds the thread at its exit: behind the signature that libc has
// told the kernel.
void look(int, siginfo_t*, void* context) {
  steps.fetch_add(1, std::memory_order_relaxed);
  const auto& registers = static_cast<const ucontext_t*>(context)->uc_mcontext.gregs;
  constexpr std::uint32_t kSignature = 0x53053053;
  std::uint32_t before = 0;
  memcpy(&before, reinterpret_cast<const char*>(registers[REG_RIP]) - sizeof before, sizeof before);
  if (before == kSignature) in_sequences.fetch_add(1, std::memory_order_relaxed);
}

// The trap flag. The stack pointer steps over what the compiler may keep below it.
void step_from_here() {
  asm volatile("lea -128(%%rsp), %%rsp\n pushfq\n orq $0x100, (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp" ::
                   : "memory", "cc");
}
void step_no_more() {
  asm volatile("lea -128(%%rsp), %%rsp\n pushfq\n andq $~0x100, (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp" ::
                   : "memory", "cc");
}

// How often a sequence was stopped in a malloc and a free of an object that each goes to the CPU's cache.
std::size_t sequences_of_a_pair() {
  harness::require_library_malloc();
  if (&__rseq_size == nullptr || &__rseq_offset == nullptr || __rseq_size == 0) {
    harness::skip("the C library has registered no restartable sequences");
  }
  constexpr std::size_t kSize = 20'000;
  const auto use_cache = [] {
    void* volatile p = malloc(kSize);  // or compilers see that nobody needs it
    free(p);
  };
  for (int i = 0; i < 10; ++i) use_cache();
  struct sigaction action{};
  action.sa_sigaction = look;
  action.sa_flags = SA_SIGINFO;
  CHECK(sigaction(SIGTRAP, &action, nullptr) == 0, "sigaction");
  step_from_here();
  void* volatile p = malloc(kSize);
  if (p != nullptr) memset(p, 1, 16);
  free(p);
  step_no_more();
  CHECK(p != nullptr, "no memory");
  if (steps == 0) harness::skip("the processor does not trap after each instruction here");
  CHECK(steps > 50, "%zu instructions are too few", steps.load());
  for (int i = 0; i < 10; ++i) use_cache();
  return in_sequences;
}

void are_run(const std::vector<std::string>&) {
  const std::size_t found = sequences_of_a_pair();
  CHECK(found != 0, "no sequence in %zu instructions", steps.load());
}
void are_not_run(const std::vector<std::string>&) {
  const std::size_t found = sequences_of_a_pair();
  CHECK(found == 0, "%zu times in a sequence", found);
}

#else

void are_run(const std::vector<std::string>&) {
  harness::skip("sequences are written for x86-64");
}
void are_not_run(const std::vector<std::string>&) {
  harness::skip("sequences are written for x86-64");
}

#endif

}  // namespace

int main(int argc, char** argv) {
  return harness::run_case(argc, argv, {{"are_run", are_run}, {"are_not_run", are_not_run}});
}
