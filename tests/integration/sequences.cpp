// Whether a library changes its CPUs' caches by restartable sequences or under locks, as
// SPANALLOC_RSEQ says. A malloc and a free are run with a signal behind each instruction, and the
// kernel sends every sequence to its exit. None comes to its end then: it must give up, and the
// call be served another way.
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <ucontext.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "support/cpu.hpp"
#include "support/harness.hpp"

extern "C" {
[[gnu::weak]] extern const std::ptrdiff_t __rseq_offset;
[[gnu::weak]] extern const unsigned int __rseq_size;
}

namespace {

using Arguments = std::vector<std::string>;

bool are_registered() {
  return &__rseq_size != nullptr && &__rseq_offset != nullptr && __rseq_size != 0;
}

// Objects that each go to the CPU's cache, and are taken from there.
constexpr std::size_t kSize = 20'000;

// Threads that allocate, and free what others have allocated.
void serve_threads() {
  constexpr unsigned kThreads = 4;
  constexpr unsigned kRounds = 200;
  static std::atomic<void*> slots[64];
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([t] {
      harness::Random random(t);
      for (unsigned i = 0; i < kRounds; ++i) {
        const std::size_t n = i % 2 == 0 ? kSize : random.size(100'000) + sizeof(std::size_t);
        auto* p = static_cast<unsigned char*>(malloc(n));
        CHECK(p != nullptr, "malloc(%zu) refused", n);
        memset(p, 0x5A, n);
        memcpy(p, &n, sizeof n);
        auto* other = static_cast<unsigned char*>(slots[random.below(64)].exchange(p));
        if (other == nullptr) continue;
        std::size_t size = 0;
        memcpy(&size, other, sizeof size);
        for (std::size_t k = sizeof size; k < size; ++k)
          CHECK(other[k] == 0x5A, "a block is overwritten");
        free(other);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& slot : slots) free(slot.exchange(nullptr));
}

// Where the kernel has none, or an emulator is in its place.
void none_to_serve_by(const Arguments&) {
  harness::require_library_malloc();
  CHECK(!are_registered(), "the C library has registered restartable sequences");
  serve_threads();
}

#ifdef __x86_64__

constinit std::atomic<std::size_t> steps{0};
constinit std::atomic<std::size_t> in_sequences{0};

greg_t& register_of(void* context, int which) {
  return static_cast<ucontext_t*>(context)->uc_mcontext.gregs[which];
}

// A signal that comes inside of a sequence finds the thread at its exit: behind the signature that
// libc has told the kernel.
bool is_at_exit_of_sequence(void* context) {
  constexpr std::uint32_t kSignature = 0x53053053;
  std::uint32_t before = 0;
  memcpy(&before, reinterpret_cast<const char*>(register_of(context, REG_RIP)) - sizeof before,
         sizeof before);
  return before == kSignature;
}
void look(int, siginfo_t*, void* context) {
  steps.fetch_add(1, std::memory_order_relaxed);
  if (is_at_exit_of_sequence(context)) in_sequences.fetch_add(1, std::memory_order_relaxed);
}

// The trap flag. The stack pointer steps over what the compiler may keep below it.
constexpr greg_t kTrapFlag = 0x100;
void step_from_here() {
  asm volatile(
      "lea -128(%%rsp), %%rsp\n pushfq\n orq $0x100, (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp" ::
          : "memory", "cc");
}
void step_no_more() {
  asm volatile(
      "lea -128(%%rsp), %%rsp\n pushfq\n andq $~0x100, (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp" ::
          : "memory", "cc");
}
void handle_each_step(void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction action{};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO;
  CHECK(sigaction(SIGTRAP, &action, nullptr) == 0, "sigaction");
}

void use_cache() {
  for (int i = 0; i < 10; ++i) {
    void* volatile p = malloc(kSize);  // or compilers see that nobody needs it
    free(p);
  }
}

// How often a sequence was stopped in a malloc and a free.
std::size_t sequences_of_a_pair() {
  use_cache();
  steps = in_sequences = 0;
  handle_each_step(look);
  step_from_here();
  void* volatile p = malloc(kSize);
  if (p != nullptr) memset(p, 1, 16);
  free(p);
  step_no_more();
  CHECK(p != nullptr, "no memory");
  if (steps == 0) harness::skip("the processor does not trap after each instruction here");
  CHECK(steps > 50, "%zu instructions are too few", steps.load());
  use_cache();
  return in_sequences;
}

void require_sequences() {
  harness::require_library_malloc();
  if (!are_registered()) harness::skip("the C library has registered no restartable sequences");
}

void run_on(const cpu_set_t& set) {
  CHECK(sched_setaffinity(0, sizeof set, &set) == 0, "sched_setaffinity");
}
// On another CPU there may be no chain yet, which is made under a lock.
void stay_here() {
  harness::stay_on_this_cpu();
}

void are_run(const Arguments&) {
  require_sequences();
  stay_here();
  const std::size_t found = sequences_of_a_pair();
  CHECK(found != 0, "no sequence in %zu instructions", steps.load());
}
void are_not_run(const Arguments&) {
  harness::require_library_malloc();
  const std::size_t found = sequences_of_a_pair();
  CHECK(found == 0, "%zu times in a sequence", found);
}
void none_are_registered(const Arguments& arguments) {
  none_to_serve_by(arguments);
  are_not_run(arguments);
}

// A handler that interrupts a sequence, and runs some of its own there, at the same chain. (The
// interrupted thread has no lock there, and nothing half done but that sequence. Elsewhere a
// handler must not allocate.)
constinit unsigned interruptions_left = 0;
constinit bool keeps = false;
constinit void* kept[64] = {};
constinit unsigned kept_count = 0;
void allocate(int, siginfo_t*, void* context) {
  steps.fetch_add(1, std::memory_order_relaxed);
  if (!is_at_exit_of_sequence(context)) return;
  in_sequences.fetch_add(1, std::memory_order_relaxed);
  void* p = malloc(kSize);
  if (p != nullptr) memset(p, 2, kSize);
  if (keeps && kept_count < 64) {
    kept[kept_count++] = p;
  } else {
    free(p);
  }
  // Then the next try comes to its end.
  if (--interruptions_left == 0) register_of(context, REG_EFL) &= ~kTrapFlag;
}

bool is_full_of(const void* p, unsigned char byte) {
  for (std::size_t i = 0; i < kSize; ++i) {
    if (static_cast<const unsigned char*>(p)[i] != byte) return false;
  }
  return true;
}

void handler_allocates(const Arguments&) {
  require_sequences();
  stay_here();
  if (const std::size_t found = sequences_of_a_pair(); found == 0) {
    harness::fail(__FILE__, __LINE__, "no sequence in %zu instructions", steps.load());
  }
  handle_each_step(allocate);
  for (unsigned interruptions = 1; interruptions <= 6; ++interruptions) {
    for (const bool keeping : {false, true}) {
      keeps = keeping;
      kept_count = 0;
      // What the caches have, in two sizes: handlers take from them, and put into them.
      void* before[8];
      for (void*& p : before) p = malloc(kSize);
      for (void* p : before) free(p);
      in_sequences = 0;
      interruptions_left = interruptions;
      step_from_here();
      void* volatile p = malloc(kSize);
      step_no_more();
      CHECK(p != nullptr && in_sequences != 0, "%zu times in a sequence", in_sequences.load());
      memset(p, 1, kSize);
      for (unsigned i = 0; i < kept_count; ++i) {
        CHECK(kept[i] != nullptr && is_full_of(kept[i], 2), "a handler's block is overwritten");
      }
      const unsigned of_malloc = kept_count;
      in_sequences = 0;
      interruptions_left = interruptions;
      step_from_here();
      free(p);
      step_no_more();
      CHECK(in_sequences != 0, "no free was interrupted");
      // Nobody's block is anybody else's.
      std::set<void*> blocks;
      for (unsigned i = 0; i < kept_count; ++i) {
        CHECK(kept[i] != nullptr && is_full_of(kept[i], 2), "a handler's block is overwritten");
        CHECK(i >= of_malloc || kept[i] != p,
              "a block that was somebody's went to the handler, too");
        CHECK(blocks.insert(kept[i]).second, "a block is out twice");
      }
      void* after[32];
      for (void*& block : after) {
        block = malloc(kSize);
        CHECK(block != nullptr && blocks.insert(block).second, "a block is out twice");
      }
      for (void* block : blocks) free(block);
    }
  }
}

// A process that has one CPU when it starts, and all of them later: on each it runs sequences.
cpu_set_t only(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return set;
}
cpu_set_t my_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  CHECK(sched_getaffinity(0, sizeof set, &set) == 0, "sched_getaffinity");
  return set;
}
int first_of(const cpu_set_t& set) {
  int cpu = 0;
  while (!CPU_ISSET(cpu, &set)) ++cpu;
  return cpu;
}
void on_each_cpu(const Arguments&) {
  require_sequences();
  const cpu_set_t at_start = my_cpus();
  CHECK(CPU_COUNT(&at_start) == 1, "it starts with %d CPUs", CPU_COUNT(&at_start));
  use_cache();
  cpu_set_t all;
  memset(&all, 0xFF, sizeof all);  // of which the kernel takes those that there are
  run_on(all);
  const cpu_set_t now = my_cpus();
  int met = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE && met < 4; ++cpu) {
    if (!CPU_ISSET(cpu, &now)) continue;
    ++met;
    run_on(only(cpu));
    const std::size_t found = sequences_of_a_pair();
    CHECK(found != 0, "no sequence on CPU %d", cpu);
  }
  CHECK(met > 1, "it was allowed no other CPU");
}
void cpus_met_later(const Arguments&) {
  require_sequences();
  const cpu_set_t mine = my_cpus();
  if (CPU_COUNT(&mine) < 2) harness::skip("it takes two CPUs");
  for (const int resource : {RLIMIT_AS, RLIMIT_DATA}) {
    rlimit limit{};
    CHECK(getrlimit(resource, &limit) == 0, "getrlimit");
    if (limit.rlim_cur != RLIM_INFINITY) harness::skip("a limit on memory stands");
  }
  const harness::Outcome outcome =
      harness::run_self({"on_each_cpu"}, [&] { run_on(only(first_of(mine))); });
  harness::expect_success(outcome, "on_each_cpu");
}

#else

void skip_here(const Arguments&) {
  harness::skip("sequences are written for x86-64");
}
constexpr auto are_run = skip_here;
constexpr auto are_not_run = skip_here;
constexpr auto none_are_registered = skip_here;
constexpr auto handler_allocates = skip_here;
constexpr auto on_each_cpu = skip_here;
constexpr auto cpus_met_later = skip_here;

#endif

}  // namespace

int main(int argc, char** argv) {
  return harness::run_case(argc, argv,
                           {{"are_run", are_run},
                            {"are_not_run", are_not_run},
                            {"none_are_registered", none_are_registered},
                            {"none_to_serve_by", none_to_serve_by},
                            {"handler_allocates", handler_allocates},
                            {"on_each_cpu", on_each_cpu},
                            {"cpus_met_later", cpus_met_later}});
}
