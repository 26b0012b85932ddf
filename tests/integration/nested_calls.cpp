// Libraries that stand in for libc's mmap and the like, and allocate in them (allocating_hooks.c),
// are served in the middle of our own calls. Threads that start, end and fork allocate as they like
// meanwhile, and free what was allocated in there; what they allocated is freed in there.
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "support/harness.hpp"

namespace {

using HookCalls = long (*)(const char*);
using HookSwap = void* (*)(void*, std::size_t, unsigned);

template <class F>
F found(const char* name) {
  auto function = reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));
  CHECK(function != nullptr, "%s is not there: the hooks are not preloaded", name);
  return function;
}

// Blocks of all sizes come and go, large ones grow; memory goes back to the kernel.
void work(unsigned seed, int rounds) {
  const auto swap = found<HookSwap>("hook_swap");
  constexpr unsigned kLive = 64;
  unsigned char* live[kLive] = {};
  std::size_t bytes[kLive] = {};
  std::uint64_t random = seed * 2654435761u + 1;
  for (int i = 0; i < rounds; ++i) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    const auto drawn = static_cast<unsigned>(random >> 33);
    const unsigned at = drawn % kLive;
    const std::size_t n = std::size_t{1} << (drawn / kLive % 22);
    if (live[at] != nullptr) {
      CHECK(live[at][0] == at && live[at][bytes[at] - 1] == at,
            "a block of %zu bytes has other contents", bytes[at]);
    }
    if (live[at] != nullptr && drawn % 3 == 0) {
      live[at] = static_cast<unsigned char*>(realloc(live[at], n + n / 2));
      bytes[at] = n + n / 2;
      CHECK(live[at] != nullptr && live[at][0] == at, "realloc has lost what was in the block");
    } else {
      free(live[at]);
      live[at] = static_cast<unsigned char*>(malloc(n));
      bytes[at] = n;
      CHECK(live[at] != nullptr, "no memory");
    }
    live[at][0] = live[at][bytes[at] - 1] = static_cast<unsigned char>(at);
    if (i % 16 == 0) free(swap(malloc(n), n, drawn / 7));
    if (i % 128 == 0) malloc_trim(0);
  }
  // Large enough to be moved, a few times.
  void* large = malloc(1 << 20);
  for (std::size_t n = 2 << 20; n <= 64 << 20; n *= 2) {
    large = realloc(large, n);
    CHECK(large != nullptr, "no memory");
  }
  free(large);
  for (unsigned char* block : live) free(block);
}

// Blocks that have a mapping each grow in it, never touched. How large these are says
// LARGE_MIB: not every library has such blocks below that. They grow where mremap is what is
// tested: who does not call it copies. False: the machine does not grant as much, as under
// strict overcommit or a limit.
bool grow_large() {
  const char* mib = getenv("LARGE_MIB");
  if (mib == nullptr) return true;
  const char* hooks = getenv("HOOKS");
  const bool by_mremap = hooks != nullptr && std::strstr(hooks, "mremap") != nullptr;
  const std::size_t n = std::strtoul(mib, nullptr, 10) << 20;
  // What it will be at last, and more: growing is not refused then.
  void* volatile large = malloc(n + n / 2);
  if (large == nullptr) return false;
  free(large);
  large = malloc(n);
  CHECK(large != nullptr, "no memory for a block of %s MiB", mib);
  for (std::size_t more = n / 16; by_mremap && more <= n / 4; more *= 2) {
    large = realloc(large, n + more);
    CHECK(large != nullptr, "a block of %s MiB could not grow", mib);
  }
  free(large);
  return true;
}

void* thread_body(void* seed) {
  work(static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(seed)), 300);
  return nullptr;
}

void fork_and_work(unsigned seed) {
  const pid_t child = fork();
  CHECK(child >= 0, "fork failed");
  if (child == 0) {
    alarm(harness::kSecondsToHang);
    work(seed, 150);
    pthread_t thread{};
    CHECK(pthread_create(&thread, nullptr, thread_body,
                         reinterpret_cast<void*>(std::uintptr_t{seed} + 1)) == 0,
          "no thread in a fork's child");
    pthread_join(thread, nullptr);
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0,
        "a fork's child has ended with status %x", status);
}

void* thread_that_forks(void* seed) {
  thread_body(seed);
  fork_and_work(static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(seed)) + 1000);
  return nullptr;
}

// The words of HOOKS that must have been entered follow on the command line; those
// that must not, with a '!'.
void threads_and_forks(const std::vector<std::string>& entered) {
  alarm(harness::kSecondsToHang);
  work(1, 600);
  constexpr unsigned kThreads = 4;
  for (unsigned round = 0; round < 3; ++round) {
    pthread_t threads[kThreads];
    for (unsigned i = 0; i < kThreads; ++i) {
      CHECK(pthread_create(&threads[i], nullptr, i == 0 ? thread_that_forks : thread_body,
                           reinterpret_cast<void*>(std::uintptr_t{round * kThreads + i + 2})) == 0,
            "no thread");
    }
    fork_and_work(round + 100);
    for (pthread_t thread : threads) pthread_join(thread, nullptr);
  }
  const auto calls = found<HookCalls>("hook_calls");
  for (const char* name :
       {"mmap", "munmap", "mremap", "madvise", "mprotect", "sched_yield", "clock_gettime",
        "getrlimit", "sched_getaffinity", "sched_getcpu", "getauxval"}) {
    std::printf("%s %ld\n", name, calls(name));
  }
  for (const std::string& name : entered) {
    if (name[0] == '!') {
      CHECK(calls(name.c_str() + 1) == 0, "%s was called %ld times", name.c_str() + 1,
            calls(name.c_str() + 1));
      continue;
    }
    CHECK(calls(name.c_str()) > 0, "the library has never called %s: nothing was tested",
          name.c_str());
  }
}

}  // namespace

int main(int count, char** arguments) {
  harness::require_library_malloc();
  std::vector<std::string> entered{arguments + 1, arguments + count};
  const bool has_memory = grow_large();
  const auto mremap = std::find(entered.begin(), entered.end(), "mremap");
  if (has_memory || mremap == entered.end()) {
    if (!has_memory)
      std::printf("no memory is granted for a block of %s MiB: left out\n", getenv("LARGE_MIB"));
    threads_and_forks(entered);
    return 0;
  }
  entered.erase(mremap);
  threads_and_forks(entered);
  harness::skip(
      "no memory is granted for a block of %s MiB: mremap need not be called, all else is right",
      getenv("LARGE_MIB"));
}
