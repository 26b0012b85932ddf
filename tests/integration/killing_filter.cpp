// A filter that ends the process at any system call but those that libc's own malloc makes, with
// the flags that it passes, and what libc's threads, fork and exit need. It comes after main has
// begun: in the main thread, in the middle of other threads, in a fork's child.
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "support/harness.hpp"

#ifndef SYS_rseq
#if defined(__aarch64__)
#define SYS_rseq 293
#else
#define SYS_rseq 334
#endif
#endif

extern "C" [[gnu::weak]] int sp_stats_json(void (*write)(void*, const char*, std::size_t), void*,
                                           unsigned flags);

namespace {

// MADV_GUARD_INSTALL and MADV_GUARD_REMOVE: how glibc 2.42 and later guard the stacks of threads.
constexpr std::uint32_t kGuardInstall = 102;

using Arguments = std::vector<std::string>;

// A condition on an argument: of the bits in `mask` it must have `value`; 0: none.
struct Condition {
  unsigned argument = 0;
  std::uint32_t mask = 0;
  std::uint32_t value = 0;
};
struct Rule {
  long call;
  Condition first{};
  Condition second{};
};

constexpr std::uint32_t kAll = ~0u;
constexpr std::uint32_t but(std::uint32_t bits) {
  return ~bits;
}
// Which may be there or not
constexpr std::uint32_t kMapBits = MAP_NORESERVE | MAP_FIXED | MAP_STACK;
constexpr std::uint32_t kMap = MAP_PRIVATE | MAP_ANONYMOUS;
constexpr std::uint32_t kAccess = PROT_READ | PROT_WRITE;  // or none

std::vector<Rule> rules() {
  std::vector<Rule> all = {
      // malloc's
      {SYS_mmap, {2, but(kAccess), 0}, {3, but(kMapBits), kMap}},
      {SYS_munmap},
      {SYS_mremap, {3, kAll, MREMAP_MAYMOVE}},
      {SYS_mprotect, {2, but(kAccess), 0}},
      {SYS_brk},
      {SYS_madvise, {2, kAll, MADV_DONTNEED}},
      {SYS_futex, {1, kAll, FUTEX_WAIT_PRIVATE}},
      {SYS_futex, {1, kAll, FUTEX_WAKE_PRIVATE}},
      // of threads that are made, and waited for
      {SYS_futex, {1, kAll, FUTEX_WAIT}},
      {SYS_futex, {1, kAll, FUTEX_WAKE}},
      {SYS_futex, {1, but(FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME), FUTEX_WAIT_BITSET}},
      {SYS_clone},
      {SYS_rseq},
      {SYS_set_robust_list},
      {SYS_rt_sigprocmask},
      {SYS_rt_sigaction},
      {SYS_exit},
      {SYS_madvise, {2, but(1), kGuardInstall}},
      // of processes
      {SYS_exit_group},
      {SYS_wait4},
      {SYS_write},
      // of ../support/keep_core.cpp, in a child (limits that the library might ask for are others)
      {SYS_prlimit64, {1, kAll, RLIMIT_CORE}},
      {SYS_timer_create},
      {SYS_timer_settime},
      // of a second filter
      {SYS_prctl},
      {SYS_seccomp},
  };
#ifdef SYS_clone3
  all.push_back({SYS_clone3});
#endif
  return all;
}

// libc's abort(), and what is asked before it: whether its handler runs already.
const std::vector<Rule> kOfAbort = {{SYS_getpid}, {SYS_gettid}, {SYS_tgkill}, {SYS_sigaltstack}};

void add_condition(std::vector<sock_filter>& program, const Condition& condition,
                   unsigned char to_next) {
  const auto offset = static_cast<unsigned>(offsetof(seccomp_data, args)) + condition.argument * 8;
  program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset));  // its lower half
  program.push_back(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, condition.mask));
  program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, condition.value, 0, to_next));
}

// For the whole process. Skips where there are no filters.
void kill_at_other_calls(bool may_abort = false) {
  puts("filtered from here on");  // libc asks what the output is before it first writes
  fflush(stdout);
  std::vector<sock_filter> program;
  std::vector<Rule> all = rules();
  if (may_abort) all.insert(all.end(), kOfAbort.begin(), kOfAbort.end());
  for (const Rule& rule : all) {
    const bool two = rule.second.mask != 0;
    const bool one = rule.first.mask != 0;
    program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
    const auto behind = static_cast<unsigned char>(3 * one + 3 * two + 1);
    program.push_back(
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(rule.call), 0, behind));
    if (one) add_condition(program, rule.first, static_cast<unsigned char>(3 * two + 1));
    if (two) add_condition(program, rule.second, 1);
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) != 0) {
    harness::skip("this system has no seccomp filters: %s", strerror(errno));
  }
}

// Runs it in a forked child; what wait() says of that.
template <class F>
int status_of_child(F f) {
  const pid_t child = fork();
  CHECK(child >= 0, "fork");
  if (child == 0) {
    f();
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child, "waitpid");
  return status;
}

void prove_filter() {
  const int status = status_of_child([] { syscall(SYS_getppid); });
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS, "the filter is not in force: status %d",
        status);
}

// --- What is done under it -----------------------------------------------------------------------

void use_small(unsigned rounds) {
  std::vector<void*> blocks(4000);
  for (unsigned round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const std::size_t size = 16 + (i * 37 + round * 101) % 3000;
      CHECK((blocks[i] = malloc(size)) != nullptr, "malloc(%zu)", size);
      memset(blocks[i], 1, size);
    }
    for (void* p : blocks) free(p);
  }
}

void grow_and_shrink() {
  unsigned char* p = nullptr;
  std::size_t old = 0;
  for (const std::size_t size : {1000u, 40000u, 300000u, 3000000u, 20000000u, 90000000u, 9000000u,
                                 700000u, 60000u, 500u, 12000000u}) {
    p = static_cast<unsigned char*>(realloc(p, size));
    CHECK(p != nullptr, "realloc to %zu", size);
    const std::size_t kept = old < size ? old : size;
    for (std::size_t i = 0; i < kept; i += 997) CHECK(p[i] == 0x5A, "byte %zu of %zu", i, size);
    memset(p, 0x5A, size);
    old = size;
  }
  free(p);
}

// Those of which much is used, little, or nothing; and such as must read as zero.
void use_large() {
  for (const std::size_t size : {100000u, 700000u, 5000000u, 30000000u}) {
    for (unsigned i = 0; i < 12; ++i) {
      void* p = malloc(size);
      CHECK(p != nullptr, "malloc(%zu)", size);
      memset(p, 1, size >> i);
      free(p);
      p = calloc(1, size);
      CHECK(p != nullptr && harness::all_zero(p, size), "calloc(%zu)", size);
      free(p);
      void* aligned = nullptr;
      CHECK(posix_memalign(&aligned, 2u << 20, size) == 0, "posix_memalign");
      memset(aligned, 1, 5000);
      aligned = realloc(aligned, size + size / 3);
      CHECK(aligned != nullptr, "realloc");
      free(aligned);
    }
  }
}

// Each frees what its neighbour has allocated, and leaves what others free after its end.
void use_threads() {
  constexpr unsigned kThreads = 6;
  static std::atomic<void*> left[kThreads][500];
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([t] {
      for (unsigned round = 0; round < 40; ++round) {
        for (unsigned i = 0; i < 500; ++i) {
          void* p = malloc(16 + (i * 31 + t * 7) % 40000);
          CHECK(p != nullptr, "malloc");
          memset(p, 1, 16);
          free(left[t][i].exchange(p));
          free(left[(t + 1) % kThreads][i].exchange(nullptr));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& of_thread : left) {
    for (auto& p : of_thread) free(p.exchange(nullptr));
  }
}

void use_all() {
  grow_and_shrink();
  use_small(10);
  use_large();
  use_threads();
  malloc_trim(0);
  (void)mallinfo2();
  // (A library that is put in the place of ours may have none.)
  if (sp_stats_json != nullptr) {
    std::size_t length = 0;
    const auto count = [](void* sum, const char*, std::size_t bytes) {
      *static_cast<std::size_t*>(sum) += bytes;
    };
    CHECK(sp_stats_json(count, &length, 0) == 0 && length > 100, "sp_stats_json: %zu", length);
  }
  // What is live must be much, too: its growth, and the way back. (Of large
  // heaps more may be asked.)
  std::vector<void*> blocks;
  for (unsigned i = 0; i < 100'000; ++i) {
    void* p = malloc(2000);
    CHECK(p != nullptr, "malloc");
    memset(p, 1, 2000);
    blocks.push_back(p);
  }
  for (void* p : blocks) free(p);
}

void use_forks() {
  std::atomic<bool> stop{false};
  std::vector<std::thread> others;
  for (unsigned t = 0; t < 2; ++t) {
    others.emplace_back([&] {
      while (!stop) use_small(1);
    });
  }
  for (unsigned i = 0; i < 8; ++i) {
    const int status = status_of_child([] {
      use_small(2);
      grow_and_shrink();
      use_threads();
    });
    CHECK(status == 0, "a child ended with status %d", status);
  }
  stop = true;
  for (std::thread& thread : others) thread.join();
}

// Until nothing more is given, small and large; then all of it goes back.
void use_up() {
  for (const std::size_t size : {1u << 20, 3000u}) {
    std::vector<void*> blocks;
    blocks.reserve(1'000'000);
    while (void* p = malloc(size)) {
      CHECK(blocks.size() < blocks.capacity(), "no limit is met");
      memset(p, 1, 16);
      blocks.push_back(p);
    }
    for (void* p : blocks) free(p);
    malloc_trim(0);
  }
}

void use_everything() {
  prove_filter();
  use_all();
  use_forks();
  use_all();
}

// --- Cases ---------------------------------------------------------------------------------------

void main_thread(const Arguments&) {
  harness::require_library_malloc();
  kill_at_other_calls();
  use_everything();
}
void used_heap(const Arguments&) {
  harness::require_library_malloc();
  use_all();
  kill_at_other_calls();
  use_everything();
}
// A limit that stands from the start on is known; one that comes later is met. (A range that is
// reserved before it comes is no matter of addresses any more: what is opened in it is data.)
void set_limit(int resource, std::size_t bytes) {
  const rlimit limit{bytes, RLIM_INFINITY};
  CHECK(setrlimit(resource, &limit) == 0, "setrlimit: %s", strerror(errno));
}
std::size_t data_in_use() {
  std::size_t pages = 0;  // the sixth number
  FILE* statm = fopen("/proc/self/statm", "r");
  CHECK(statm != nullptr && fscanf(statm, "%*u %*u %*u %*u %*u %zu", &pages) == 1,
        "no /proc/self/statm");
  fclose(statm);
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}
void under_limit(const Arguments&) {
  harness::require_library_malloc();
  use_small(10);
  kill_at_other_calls();
  prove_filter();
  use_all();
  use_forks();
  use_up();
  // (What was opened for one size does not serve every other size in each engine.)
  use_small(2);
}
void limit_at_start(const Arguments&) {
  const auto outcome = harness::run_self({"under_limit"}, [] { set_limit(RLIMIT_AS, 1u << 30); });
  harness::expect_success(outcome, "under a limit from the start on");
}
void later_limit(const Arguments& arguments) {
  use_all();
  set_limit(RLIMIT_DATA, data_in_use() + (std::size_t{600} << 20));
  under_limit(arguments);
}
void other_thread(const Arguments&) {
  harness::require_library_malloc();
  std::atomic<bool> stands{false};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (!stands) use_small(1);
      use_small(20);
    });
  }
  std::thread([&] {
    use_small(2);
    kill_at_other_calls();
    stands = true;
    use_large();
  }).join();
  for (std::thread& thread : threads) thread.join();
  use_everything();
}
void forks_child(const Arguments&) {
  harness::require_library_malloc();
  use_small(2);
  const harness::Outcome outcome = harness::run_forked([] {
    kill_at_other_calls();
    use_everything();
  });
  harness::expect_success(outcome, "the child");
}

// What each case above is run with, beside nothing: giving back at once, and
// without the kernel's clock.
void run_with(const char* name, const char* value, const char* one) {
  const auto outcome = harness::run_self({one}, [=] { setenv(name, value, 1); });
  harness::expect_success(outcome, one);
}
void decay_at_once(const Arguments&) {
  run_with("SPANALLOC_DECAY_MS", "0", "used_heap");
}
void background(const Arguments&) {
  run_with("SPANALLOC_BACKGROUND", "1", "used_heap");
}
void counted_clock(const Arguments&) {
  run_with("SPANALLOC_CLOCK", "counted", "main_thread");
}

// A block that is freed twice still ends the process by SIGABRT.
void misuse(const Arguments&) {
  harness::require_library_malloc();
  const int status = status_of_child([] {
    void* volatile p = malloc(100);
    kill_at_other_calls(true);
    free(p);
    free(p);
    free(malloc(100));
    free(malloc(100));
  });
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
    harness::skip("this system has no seccomp filters");
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "status %d", status);
}

}  // namespace

int main(int argc, char** argv) {
  return harness::run_case(argc, argv,
                           {{"main_thread", main_thread},
                            {"used_heap", used_heap},
                            {"other_thread", other_thread},
                            {"forks_child", forks_child},
                            {"under_limit", under_limit},
                            {"limit_at_start", limit_at_start},
                            {"later_limit", later_limit},
                            {"decay_at_once", decay_at_once},
                            {"background", background},
                            {"counted_clock", counted_clock},
                            {"misuse", misuse}});
}
