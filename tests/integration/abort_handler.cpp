// A SIGABRT handler that uses the heap, as crash reporters do, after each kind of misuse that a
// library notices: it is called once, and can allocate, free, fork and jump out, and the program
// goes on then. What it does wrong itself ends the process, by SIGABRT's default action.
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <iterator>
#include <thread>
#include <utility>

#include "support/clock.hpp"
#include "support/cpu.hpp"
#include "support/harness.hpp"

namespace {

using Arguments = std::vector<std::string>;

// Hidden from the compiler, which rightly warns about what this test does on purpose.
template <class T>
T* opaque(T* p) {
  asm volatile("" : "+r"(p));
  return p;
}
void free_it(void* p) {
  free(opaque(p));
}
void overwrite(void* p, std::uintptr_t with) {
  *static_cast<volatile std::uintptr_t*>(opaque(p)) = with;
}
constexpr std::uintptr_t kWild = 0x4141414141414141u;

// --- Kinds of misuse: one each, for what else is damaged is found next, by a handler that
// allocates. A library that does not notice one returns from it.

constexpr std::size_t kSizes[] = {16, 64, 240, 1000, 5000, 20000};
constexpr int kBlocks = 2000;

// Those that are in use: whoever frees one takes it out first.
void* in_use[kBlocks];
void free_in_use(int i) {
  free(std::exchange(in_use[i], nullptr));
}
template <class Use>
void with_blocks(std::size_t size, Use use) {
  const int count = static_cast<int>(std::min<std::size_t>(kBlocks, (std::size_t{8} << 20) / size));
  void* blocks[kBlocks] = {};
  for (int i = 0; i < count; ++i) in_use[i] = blocks[i] = malloc(size);
  use(blocks, count);
}
void allocate_on(std::size_t size, int count) {
  void* got[2 * kBlocks] = {};
  for (int i = 0; i < 2 * count; ++i) got[i] = opaque(malloc(size));
  for (int i = 0; i < 2 * count; ++i) free(got[i]);
}

// The one that was freed last, with others around it that are not free.
void write_after_free(std::size_t size) {
  with_blocks(size, [size](void** blocks, int count) {
    for (int i = 0; i < count; i += 2) free_in_use(i);
    overwrite(blocks[(count - 1) / 2 * 2], kWild);
    allocate_on(size, count);
    malloc_trim(0);
  });
}
// Not the first of the list.
void write_to_one_after_free(std::size_t size) {
  with_blocks(size, [size](void** blocks, int count) {
    for (int i = 0; i < count; ++i) free_in_use(i);
    overwrite(blocks[count - 10], kWild);
    allocate_on(size, count);
    malloc_trim(0);
  });
}
// What gives memory back looks at lists, too.
void write_after_free_and_trim(std::size_t size) {
  with_blocks(size, [](void** blocks, int count) {
    for (int i = 0; i < count; i += 2) free_in_use(i);
    overwrite(blocks[(count - 1) / 2 * 2], kWild);
    malloc_trim(0);
  });
}
void write_after_anothers_free(std::size_t size) {
  with_blocks(size, [size](void** blocks, int count) {
    std::thread([&] {
      for (int i = 0; i < count; i += 2) free_in_use(i);
    }).join();
    overwrite(blocks[(count - 1) / 2 * 2], kWild);
    allocate_on(size, count);
    malloc_trim(0);
  });
}
// In a thread that gathers what it frees of others'.
void write_into_gathered(std::size_t size) {
  with_blocks(size, [size](void** blocks, int count) {
    std::thread([&] {
      sigset_t none;  // the handler is this thread's
      sigemptyset(&none);
      pthread_sigmask(SIG_SETMASK, &none, nullptr);
      free(malloc(size));
      for (int i = 0; i < count / 2; ++i) {
        free_in_use(i);
        if (i == 3) overwrite(blocks[2], kWild);
      }
      allocate_on(size, count);
      malloc_trim(0);
    }).join();
  });
}
void overflow(std::size_t size) {
  with_blocks(size, [size](void** blocks, int count) {
    // Into what stands behind the block, which in a heap without headers is the next one.
    const std::size_t room = malloc_usable_size(blocks[count / 2]);
    for (int i = 0; i < count; i += 2) free_in_use(i);
    memset(opaque(static_cast<char*>(blocks[21]) + room), 0x41, 16);
    for (int i = 1; i < count; i += 2) free_in_use(i);
    allocate_on(size, count);
    malloc_trim(0);
  });
}
void double_free(std::size_t size) {
  void* keep = malloc(size);
  void* p = malloc(size);
  free_it(p);
  free_it(p);
  free(keep);
}
void double_free_with_one_between(std::size_t size) {
  with_blocks(size, [](void** blocks, int) {
    free_in_use(0);
    free_in_use(1);
    free_it(blocks[0]);
  });
}
void double_free_by_another_thread(std::size_t size) {
  with_blocks(size, [size](void** blocks, int count) {
    std::thread([&] {
      for (int i = 0; i < count / 2; ++i) free_in_use(i);
    }).join();
    free_it(blocks[0]);
    free_it(blocks[1]);
    allocate_on(size, count);
    malloc_trim(0);
  });
}
void double_free_after_write(std::size_t size) {
  with_blocks(size, [size](void** blocks, int count) {
    free_in_use(0);
    memset(opaque(blocks[0]), 0, 16);
    free_it(blocks[0]);
    for (int i = 1; i < count; ++i) free_in_use(i);
    allocate_on(size, count);
    malloc_trim(0);
  });
}
// The same of a span that is so empty that its thread allocates from it again.
void double_free_after_write_in_emptied(std::size_t size) {
  with_blocks(size, [size](void** blocks, int count) {
    for (int i = 1; i < count; ++i) {
      if (i % 32 > 1) free_in_use(i);  // its neighbour keeps the span in use
    }
    free_in_use(0);
    memset(opaque(blocks[0]), 0, 16);
    free_it(blocks[0]);
    allocate_on(size, count);
    malloc_trim(0);
  });
}

// A thread that has allocated blocks of which another one frees some, and uses the
// heap when it is asked to.
class Owner {
 public:
  void allocate(std::size_t size, int count) {
    is_there = true;
    std::thread([this, size, count] {
      for (int i = 0; i < count; ++i) in_use[i] = malloc(size);
      for (;;) {
        at_work_.store(false);
        at_work_.notify_all();
        at_work_.wait(false);
        allocate_on(size, count);
        malloc_trim(0);
      }
    }).detach();
    at_work_.wait(true);
  }
  void use_heap() {
    at_work_.store(true);
    at_work_.notify_all();
    at_work_.wait(true);
  }

  bool is_there = false;

 private:
  std::atomic<bool> at_work_{true};
};
Owner owner;

template <class Use>
void with_blocks_of_another(std::size_t size, Use use) {
  const int count = static_cast<int>(std::min<std::size_t>(kBlocks, (std::size_t{8} << 20) / size));
  owner.allocate(size, count);
  free(malloc(size));
  use(count);
  malloc_trim(0);
}
// The first one that is freed of a span in a row goes to it at once.
void double_free_after_write_of_anothers(std::size_t size) {
  with_blocks_of_another(size, [](int) {
    void* p = in_use[0];
    free_in_use(0);
    memset(opaque(p), 0, 16);
    free_it(p);
  });
}
// Those that follow are gathered, or not.
void double_free_after_write_of_gathered(std::size_t size) {
  with_blocks_of_another(size, [](int) {
    free_in_use(1);
    free_in_use(2);
    void* p = in_use[0];
    free_in_use(0);
    memset(opaque(p), 0, 16);
    free_it(p);
  });
}
void double_free_after_write_of_the_first_gathered(std::size_t size) {
  with_blocks_of_another(size, [](int) {
    free_in_use(1);
    void* p = in_use[0];
    free_in_use(0);
    memset(opaque(p), 0, 16);
    free_it(p);
  });
}
void double_free_after_write_in_anothers_emptied(std::size_t size) {
  with_blocks_of_another(size, [](int count) {
    for (int i = 1; i < count; ++i) {
      if (i % 32 > 1) free_in_use(i);  // its neighbour keeps the span in use
    }
    void* p = in_use[0];
    free_in_use(0);
    memset(opaque(p), 0, 16);
    free_it(p);
  });
}
// The span passes for free while its last block, or one of them, is out.
void double_free_for_another(std::size_t size) {
  with_blocks(size, [size](void** blocks, int count) {
    free_in_use(count - 2);
    memset(opaque(blocks[count - 2]), 0, 16);
    free_in_use(count - 3);
    free_it(blocks[count - 2]);
    for (int i = 0; i < count - 3; ++i) free_in_use(i);
    malloc_trim(0);
    allocate_on(size, count);
    malloc_trim(0);
  });
}
void interior_free(std::size_t size) {
  free_it(static_cast<char*>(malloc(size)) + 8);
}
void interior_free_of_large(std::size_t size) {
  free_it(static_cast<char*>(malloc(size * 500)) + 4096);
}
void double_free_of_large(std::size_t size) {
  void* p = malloc(size * 500);
  free_it(p);
  free_it(p);
}
char in_static_data[64];
void foreign_free(std::size_t) {
  free_it(in_static_data + 16);
}
void size_after_free(std::size_t size) {
  void* p = malloc(size);
  free(p);
  volatile std::size_t got = malloc_usable_size(opaque(p));
  static_cast<void>(got);
}
void realloc_after_free(std::size_t size) {
  void* p = malloc(size);
  free(p);
  free_it(realloc(opaque(p), 10 * size));
}

struct Kind {
  const char* name;
  void (*misuse)(std::size_t size);
};
constexpr Kind kKinds[] = {
    {"write_after_free", write_after_free},
    {"write_to_one_after_free", write_to_one_after_free},
    {"write_after_free_and_trim", write_after_free_and_trim},
    {"write_after_anothers_free", write_after_anothers_free},
    {"write_into_gathered", write_into_gathered},
    {"overflow", overflow},
    {"double_free", double_free},
    {"double_free_with_one_between", double_free_with_one_between},
    {"double_free_by_another_thread", double_free_by_another_thread},
    {"double_free_after_write", double_free_after_write},
    {"double_free_after_write_in_emptied", double_free_after_write_in_emptied},
    {"double_free_after_write_of_anothers", double_free_after_write_of_anothers},
    {"double_free_after_write_of_gathered", double_free_after_write_of_gathered},
    {"double_free_after_write_of_the_first_gathered",
     double_free_after_write_of_the_first_gathered},
    {"double_free_after_write_in_anothers_emptied", double_free_after_write_in_anothers_emptied},
    {"double_free_for_another", double_free_for_another},
    {"interior_free", interior_free},
    {"interior_free_of_large", interior_free_of_large},
    {"double_free_of_large", double_free_of_large},
    {"foreign_free", foreign_free},
    {"size_after_free", size_after_free},
    {"realloc_after_free", realloc_after_free}};

// --- What a handler and a program do with the heap -----------------------------------------------

// Of every class that was damaged, of others, and of large ones.
void use_heap(std::size_t damaged) {
  static constexpr std::size_t kOthers[] = {1,    16,   48,   64,    200,   240,
                                            1000, 3000, 5000, 20000, 70000, 3'000'000};
  void* got[324];
  int count = 0;
  for (int i = 0; i < 300; ++i) got[count++] = opaque(malloc(damaged));
  for (int i = 0; i < 24; ++i) got[count++] = opaque(calloc(1, kOthers[i % std::size(kOthers)]));
  for (int i = 0; i < count; ++i) {
    if (got[i] == nullptr) _exit(90);
    *static_cast<volatile char*>(got[i]) = 1;
  }
  for (int i = 0; i < count; i += 3) got[i] = realloc(got[i], 2 * damaged);
  for (int i = 0; i < count; ++i) free(got[i]);
}
void fork_and_use_heap(std::size_t damaged) {
  const pid_t child = fork();
  if (child < 0) _exit(91);
  if (child == 0) {
    alarm(harness::kSecondsToHang);
    use_heap(damaged);
    _exit(0);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
    _exit(92);
}
void use_heap_in_thread(std::size_t damaged) {
  if (owner.is_there) owner.use_heap();
  std::thread([damaged] { use_heap(damaged); }).join();
}

volatile sig_atomic_t entered = 0;
std::size_t damaged_size = 0;

[[noreturn]] void say_and_exit(int code) {
  _exit(code);
}

// Ends the process with 3 if it is entered once and all is well.
void handler_that_uses_heap(int) {
  entered = entered + 1;
  if (entered != 1) say_and_exit(93);
  use_heap(damaged_size);
  fork_and_use_heap(damaged_size);
  use_heap_in_thread(damaged_size);
  malloc_trim(0);
  use_heap(damaged_size);
  say_and_exit(3);
}

sigjmp_buf back;
void handler_that_jumps(int) {
  entered = entered + 1;
  use_heap(damaged_size);
  siglongjmp(back, 1);
}

void handler_that_misuses(int) {
  entered = entered + 1;
  if (entered != 1) say_and_exit(93);
  void* p = malloc(64);
  free_it(p);
  free_it(p);
  say_and_exit(94);
}

void set_handler(void (*handler)(int), int flags = 0) {
  struct sigaction action{};
  action.sa_handler = handler;
  action.sa_flags = flags;
  CHECK(sigaction(SIGABRT, &action, nullptr) == 0, "sigaction: %s", strerror(errno));
}

// Kinds that the library under test notices with that size: those that end an
// innocent process by SIGABRT.
bool is_noticed(const Kind& kind, std::size_t size) {
  const auto outcome = harness::run_forked([&] { kind.misuse(size); });
  CHECK(outcome.killed_by(SIGABRT) || outcome.exited(0), "%s of %zu bytes: %s", kind.name, size,
        outcome.describe().c_str());
  return outcome.killed_by(SIGABRT);
}

// What is given back to the kernel before it is written to goes unnoticed, and so does what is
// freed on a CPU that nobody allocates on afterwards: so that a process that waits for a CPU, or
// goes to another one, notices the same as one that does not, the library's clock stands still, and
// all stay on one CPU.
template <class Each>
void for_each_noticed(Each each) {
  harness::require_library_malloc();
  harness::stop_clock();
  harness::stay_on_this_cpu();
  std::size_t noticed = 0;
  for (const Kind& kind : kKinds) {
    std::size_t of_kind = 0;
    for (const std::size_t size : kSizes) {
      if (!is_noticed(kind, size)) continue;
      ++of_kind;
      each(kind, size);
    }
    printf("%s: noticed with %zu of %zu sizes\n", kind.name, of_kind, std::size(kSizes));
    noticed += of_kind;
  }
  CHECK(noticed >= 6 * std::size(kSizes), "hardly any misuse is noticed");
}

void handler_uses_heap(const Arguments&) {
  for_each_noticed([](const Kind& kind, std::size_t size) {
    const auto outcome = harness::run_forked([&] {
      alarm(harness::kSecondsToHang);
      damaged_size = size;
      set_handler(&handler_that_uses_heap);
      kind.misuse(size);
    });
    CHECK(outcome.exited(3), "%s of %zu bytes: %s", kind.name, size, outcome.describe().c_str());
  });
}

// The handler leaves by siglongjmp, and the program uses the heap, ends threads and forks; and is
// told again of what it does wrong then.
void handler_jumps_out(const Arguments&) {
  for_each_noticed([](const Kind& kind, std::size_t size) {
    if (kind.misuse == write_into_gathered) return;  // no thread jumps out of another one
    const auto outcome = harness::run_forked([&] {
      alarm(harness::kSecondsToHang);
      damaged_size = size;
      set_handler(&handler_that_jumps);
      if (sigsetjmp(back, 1) == 0) {
        kind.misuse(size);
        _exit(95);
      }
      use_heap(size);
      fork_and_use_heap(size);
      use_heap_in_thread(size);
      malloc_trim(0);
      use_heap(size);
      if (entered != 1) _exit(96);
      if (sigsetjmp(back, 1) == 0) {
        double_free(64);
        _exit(97);
      }
      use_heap(size);
      _exit(entered == 2 ? 3 : 98);
    });
    CHECK(outcome.exited(3), "%s of %zu bytes: %s", kind.name, size, outcome.describe().c_str());
  });
}

// What was in use at the report can be freed, and is no misuse. (The threads' ends and the pool
// have looked at the spans meanwhile.)
void what_is_out_can_be_freed(const Arguments&) {
  for_each_noticed([](const Kind& kind, std::size_t size) {
    if (kind.misuse == write_into_gathered) return;  // no thread jumps out of another one
    const auto outcome = harness::run_forked([&] {
      alarm(harness::kSecondsToHang);
      damaged_size = size;
      set_handler(&handler_that_jumps);
      if (sigsetjmp(back, 1) == 0) {
        kind.misuse(size);
        _exit(95);
      }
      for (int i = 0; i < kBlocks; i += 2) free_in_use(i);
      use_heap(size);
      std::thread([] {
        for (int i = 1; i < kBlocks; i += 2) free_in_use(i);
      }).join();
      malloc_trim(0);
      use_heap(size);
      _exit(entered == 1 ? 3 : 96);
    });
    CHECK(outcome.exited(3), "%s of %zu bytes: %s", kind.name, size, outcome.describe().c_str());
  });
}

// By the default action, whether or not SIGABRT is blocked while the handler
// runs, and on which stack.
void second_fault_ends(const Arguments&) {
  harness::require_library_malloc();
  static char stack[256 * 1024];
  for (const int flags : {0, SA_NODEFER, SA_ONSTACK, SA_NODEFER | SA_ONSTACK}) {
    const auto outcome = harness::run_forked([flags] {
      alarm(harness::kSecondsToHang);
      stack_t signals{};
      signals.ss_sp = stack;
      signals.ss_size = sizeof stack;
      CHECK(sigaltstack(&signals, nullptr) == 0, "sigaltstack: %s", strerror(errno));
      set_handler(&handler_that_misuses, flags);
      double_free(64);
    });
    CHECK(outcome.killed_by(SIGABRT), "flags %#x: %s", static_cast<unsigned>(flags),
          outcome.describe().c_str());
    CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 2,
          "flags %#x: not both were told: %s", static_cast<unsigned>(flags),
          outcome.describe().c_str());
  }
}

// --- Stacks of other kinds

// f() on this stack; it comes back here.
ucontext_t back_here;
void (*on_stack)();
void run_on(char* at, std::size_t size, void (*f)()) {
  ucontext_t there{};
  getcontext(&there);
  there.uc_stack.ss_sp = at;
  there.uc_stack.ss_size = size;
  there.uc_link = &back_here;
  on_stack = f;
  makecontext(&there, [] { on_stack(); }, 0);
  swapcontext(&back_here, &there);
}
constexpr std::size_t kStack = 256 * 1024;
// Two stacks, the first one below the second.
char* map_stacks() {
  void* stacks =
      mmap(nullptr, 2 * kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(stacks != MAP_FAILED, "no stacks");
  return static_cast<char*>(stacks);
}

// A stack for signals that the kernel forgets while a handler is on it, wherever it lies.
void second_fault_on_disarmed_stack_ends(const Arguments&) {
  harness::require_library_malloc();
  constexpr unsigned kAutodisarm = 1u << 31;  // SS_AUTODISARM, which libc's header may lack
  for (const bool signals_above : {true, false}) {
    const auto outcome = harness::run_forked([signals_above] {
      alarm(harness::kSecondsToHang);
      char* stacks = map_stacks();
      stack_t signals{};
      signals.ss_sp = stacks + (signals_above ? kStack : 0);
      signals.ss_size = kStack;
      signals.ss_flags = static_cast<int>(kAutodisarm);
      CHECK(sigaltstack(&signals, nullptr) == 0, "sigaltstack: %s", strerror(errno));
      set_handler(&handler_that_misuses, SA_ONSTACK);
      run_on(stacks + (signals_above ? 0 : kStack), kStack, [] { double_free(64); });
    });
    CHECK(outcome.killed_by(SIGABRT), "above: %d: %s", signals_above, outcome.describe().c_str());
    CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 2, "not both were told: %s",
          outcome.describe().c_str());
  }
}

// One that lets SIGABRT through is called again, eight times, but not for ever.
void handler_that_unblocks(int) {
  entered = entered + 1;
  if (entered > 100) say_and_exit(93);
  sigset_t abort_alone;
  sigemptyset(&abort_alone);
  sigaddset(&abort_alone, SIGABRT);
  sigprocmask(SIG_UNBLOCK, &abort_alone, nullptr);
  double_free(64);
  say_and_exit(94);
}
void fault_in_unblocking_handler_ends(const Arguments&) {
  harness::require_library_malloc();
  const auto outcome = harness::run_forked([] {
    alarm(harness::kSecondsToHang);
    set_handler(&handler_that_unblocks);
    double_free(64);
  });
  CHECK(outcome.killed_by(SIGABRT), "%s", outcome.describe().c_str());
  // A line of each misuse: one before the first call, one in each of nine.
  CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 10, "%s",
        outcome.describe().c_str());
}

// The misuse again, from deeper in the stack, in a frame that has written nothing
// where the first report was.
[[gnu::noinline]] void misuse_below_a_hole(std::size_t size) {
  char hole[64 * 1024];
  opaque(hole);
  double_free(size);
  opaque(hole);
}
// After the handler was left by siglongjmp it is called for what comes next.
void handler_is_called_again(const Arguments&) {
  harness::require_library_malloc();
  damaged_size = 64;
  const auto in_hole = harness::run_forked([] {
    alarm(harness::kSecondsToHang);
    set_handler(&handler_that_jumps);
    if (sigsetjmp(back, 1) == 0) double_free(64);
    if (entered == 1 && sigsetjmp(back, 1) == 0) misuse_below_a_hole(64);
    _exit(entered == 2 ? 3 : 96);
  });
  CHECK(in_hole.exited(3), "a deeper frame: %s", in_hole.describe().c_str());
  // However often, with others between of which the stack tells that no handler runs.
  const auto in_many_holes = harness::run_forked([] {
    alarm(harness::kSecondsToHang);
    set_handler(&handler_that_jumps);
    static int i;  // survives the jumps
    for (i = 0; i < 20; ++i) {
      entered = 0;
      if (sigsetjmp(back, 1) == 0) double_free(64);
      if (entered == 1 && sigsetjmp(back, 1) == 0) misuse_below_a_hole(64);
      if (entered != 2) _exit(96);
    }
    _exit(3);
  });
  CHECK(in_many_holes.exited(3), "again and again: %s", in_many_holes.describe().c_str());
  const auto stack_is_gone = harness::run_forked([] {
    alarm(harness::kSecondsToHang);
    set_handler(&handler_that_jumps);
    static char* stacks;
    stacks = map_stacks();
    if (sigsetjmp(back, 1) == 0) run_on(stacks + kStack, kStack, [] { double_free(64); });
    munmap(stacks + kStack, kStack);
    if (entered == 1 && sigsetjmp(back, 1) == 0) run_on(stacks, kStack, [] { double_free(64); });
    _exit(entered == 2 ? 3 : 96);
  });
  CHECK(stack_is_gone.exited(3), "another stack: %s", stack_is_gone.describe().c_str());
}

// Without a handler, or with one that returns, nothing has changed.
void handler_returns(const Arguments&) {
  harness::require_library_malloc();
  for (const bool ignored : {false, true}) {
    const auto outcome = harness::run_forked([ignored] {
      set_handler(ignored ? SIG_IGN : [](int) {});
      double_free(64);
    });
    CHECK(outcome.killed_by(SIGABRT), "%s", outcome.describe().c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  return harness::run_case(
      argc, argv,
      {{"handler_uses_heap", handler_uses_heap},
       {"handler_jumps_out", handler_jumps_out},
       {"what_is_out_can_be_freed", what_is_out_can_be_freed},
       {"second_fault_ends", second_fault_ends},
       {"second_fault_on_disarmed_stack_ends", second_fault_on_disarmed_stack_ends},
       {"fault_in_unblocking_handler_ends", fault_in_unblocking_handler_ends},
       {"handler_is_called_again", handler_is_called_again},
       {"handler_returns", handler_returns}});
}
