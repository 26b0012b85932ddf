// fork from programs whose threads are in the middle of malloc and free: the child's
// heap is usable, however often and from wherever one forks. A child that hangs on a
// lost lock dies of its alarm.
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "support/harness.hpp"

extern char** environ;

namespace {

using Arguments = std::vector<std::string>;

std::atomic<bool> stop{false};
std::atomic<std::size_t> operations{0};

// Blocks of all kinds, filled and checked; small ones travel between threads through a mailbox.
struct Parcel {
  void* block = nullptr;
  std::size_t size = 0;
};

class Churn {
 public:
  explicit Churn(std::uint64_t seed) : random_(seed) {}
  ~Churn() {
    for (Parcel& slot : slots_) drop(slot);
  }
  void step() {
    Parcel& slot = slots_[random_.below(kSlots)];
    if (slot.block == nullptr) {
      take(slot);
    } else if (random_.below(8) == 0) {
      const std::size_t size = random_.size(kLargest);
      void* moved = realloc(slot.block, size);
      CHECK(moved != nullptr, "realloc to %zu refused", size);
      slot = {moved, size};
      harness::fill(moved, size);
    } else {
      drop(slot);
    }
  }
  void take(Parcel& slot) {
    slot.size = random_.size(kLargest);
    slot.block = malloc(slot.size);
    CHECK(slot.block != nullptr, "malloc(%zu) refused", slot.size);
    harness::fill(slot.block, slot.size);
  }
  static void drop(Parcel& slot) {
    if (slot.block == nullptr) return;
    CHECK(harness::intact(slot.block, slot.size), "block %p of %zu bytes overwritten", slot.block,
          slot.size);
    free(slot.block);
    slot.block = nullptr;
  }

 private:
  static constexpr std::size_t kSlots = 200;
  static constexpr std::size_t kLargest = 2u << 20;
  harness::Random random_;
  Parcel slots_[kSlots];
};

std::atomic<void*> mailbox[64];

void churn_until_stopped(std::uint64_t seed) {
  Churn churn(seed);
  harness::Random random(seed ^ 0xABCD);
  while (!stop.load(std::memory_order_relaxed)) {
    churn.step();
    // Half of the frees of these small blocks are remote.
    void* block = malloc(16 + random.below(300));
    free(mailbox[random.below(64)].exchange(block));
    operations.fetch_add(1, std::memory_order_relaxed);
  }
}

class ChurningThreads {
 public:
  explicit ChurningThreads(unsigned count) {
    for (unsigned i = 0; i < count; ++i) threads_.emplace_back(churn_until_stopped, i + 1);
    while (operations.load() < 10000) usleep(1000);
  }
  ~ChurningThreads() {
    stop.store(true);
    for (auto& thread : threads_) thread.join();
    for (auto& slot : mailbox) free(slot.exchange(nullptr));
  }

 private:
  std::vector<std::thread> threads_;
};

// What a child does with its heap: everything.
void use_heap(std::uint64_t seed, int steps) {
  Churn churn(seed);
  for (int i = 0; i < steps; ++i) churn.step();
  free(mailbox[seed % 64].exchange(nullptr));  // a block of the parent's threads
}

void await(pid_t child, const char* what) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0) CHECK(errno == EINTR, "waitpid: %s", strerror(errno));
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: %s %d", what,
        WIFEXITED(status) ? "exit code" : "signal",
        WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

pid_t fork_child() {
  const pid_t child = fork();
  CHECK(child >= 0, "fork: %s", strerror(errno));
  if (child == 0) alarm(harness::kSecondsToHang);
  return child;
}

void allocate_in_child(const Arguments&) {
  harness::require_library_malloc();
  std::vector<Parcel> inherited(300);
  harness::Random random(5);
  for (auto& one : inherited) {
    one.size = random.size(100000);
    one.block = malloc(one.size);
    harness::fill(one.block, one.size);
  }
  ChurningThreads threads(4);
  const int forks = harness::is_full_run() ? 3000 : 80;
  for (int i = 0; i < forks; ++i) {
    const pid_t child = fork_child();
    if (child == 0) {
      use_heap(1000u + static_cast<unsigned>(i), 400);
      for (auto& one : inherited) Churn::drop(one);
      use_heap(2000u + static_cast<unsigned>(i), 100);
      _exit(0);
    }
    await(child, "child that allocates");
  }
  for (auto& one : inherited) Churn::drop(one);
}

void threads_in_child(const Arguments&) {
  harness::require_library_malloc();
  ChurningThreads threads(3);
  for (int i = 0; i < (harness::is_full_run() ? 40 : 20); ++i) {
    const pid_t child = fork_child();
    if (child == 0) {
      std::vector<std::thread> own;
      for (unsigned k = 0; k < 3; ++k) own.emplace_back([k] { use_heap(k, 300); });
      for (auto& thread : own) thread.join();
      exit(0);  // runs atexit handlers and destructors in the child
    }
    await(child, "child with threads");
  }
}

void child_of_child(const Arguments&) {
  harness::require_library_malloc();
  ChurningThreads threads(3);
  for (int i = 0; i < (harness::is_full_run() ? 30 : 10); ++i) {
    const pid_t child = fork_child();
    if (child == 0) {
      // Each generation forks the next while a thread of its own is allocating.
      for (unsigned generation = 0; generation < 4; ++generation) {
        std::atomic<bool> done{false};
        std::thread busy([&] {
          while (!done.load()) use_heap(generation, 50);
        });
        use_heap(generation, 100);
        const pid_t next = fork_child();
        if (next != 0) {
          await(next, "next generation");
          done.store(true);
          busy.join();
          _exit(0);
        }
        busy.detach();  // that thread does not exist here
      }
      use_heap(99, 200);
      _exit(0);
    }
    await(child, "chain of children");
  }
}

void exec_and_spawn(const Arguments&) {
  harness::require_library_malloc();
  ChurningThreads threads(3);
  for (int i = 0; i < 25; ++i) {
    const pid_t child = fork_child();
    if (child == 0) {
      use_heap(static_cast<unsigned>(i), 50);
      execlp("true", "true", static_cast<char*>(nullptr));
      _exit(1);
    }
    await(child, "fork and exec");
    pid_t spawned = 0;
    char name[] = "true";
    char* argv[] = {name, nullptr};
    CHECK(posix_spawnp(&spawned, "true", nullptr, nullptr, argv, environ) == 0, "posix_spawn");
    await(spawned, "posix_spawn");
    FILE* pipe = popen("echo hello", "r");
    char line[16] = {};
    CHECK(pipe != nullptr && fgets(line, sizeof line, pipe) != nullptr &&
              strcmp(line, "hello\n") == 0 && pclose(pipe) == 0,
          "popen");
  }
}

// Several threads fork at once, while others churn.
void concurrent_forks(const Arguments&) {
  harness::require_library_malloc();
  ChurningThreads threads(2);
  std::vector<std::thread> forkers;
  for (unsigned k = 0; k < 3; ++k) {
    forkers.emplace_back([k] {
      for (unsigned i = 0; i < 40; ++i) {
        const pid_t child = fork_child();
        if (child == 0) {
          use_heap(k * 100 + i, 200);
          _exit(0);
        }
        await(child, "child of a forking thread");
        use_heap(i, 20);
      }
    });
  }
  for (auto& forker : forkers) forker.join();
}

// Handlers of other libraries allocate in the parent's and child's half of fork, and before it.
// They are registered after the allocator's, so `prepare` runs before its prepare and the
// others after its handlers.
void* from_prepare = nullptr;
int handlers_run = 0;

void atfork_handlers_allocate(const Arguments&) {
  harness::require_library_malloc();
  free(malloc(1));
  pthread_atfork(
      [] {
        from_prepare = malloc(1000);
        ++handlers_run;
      },
      [] {
        free(from_prepare);
        free(malloc(70000));
        ++handlers_run;
      },
      [] {
        free(from_prepare);
        free(malloc(70000));
        ++handlers_run;
      });
  ChurningThreads threads(3);
  for (unsigned i = 0; i < 60; ++i) {
    handlers_run = 0;
    const pid_t child = fork_child();
    CHECK(handlers_run == 2, "%d handlers ran", handlers_run);
    if (child == 0) {
      use_heap(i, 100);
      _exit(0);
    }
    await(child, "fork with handlers");
  }
}

// A server that lives on as the child of the child of ...: what each fork loses stays bounded.
void generations_stay_small(const Arguments&) {
  harness::judge_memory();
  harness::require_library_malloc();
  const int generations = harness::is_full_run() ? 40 : 20;
  std::size_t at_start = 0;
  for (int generation = 0; generation < generations; ++generation) {
    stop.store(false);
    operations.store(0);
    auto* threads = new ChurningThreads(2);
    const pid_t child = fork_child();
    if (child != 0) {
      delete threads;
      await(child, "generation");
      if (generation == 0) return;
      _exit(0);
    }
    // The threads do not exist here and hold nothing: their blocks are garbage
    // of at most 2 x 200 slots.
    if (generation == 0) at_start = harness::memory().footprint();
  }
  use_heap(1, 1000);
  const std::size_t grown = harness::memory().footprint() - at_start;
  // Per generation: the blocks that the vanished threads held, about 2 x 200 x 2 KiB on average,
  // and at most a hot span a class and thread.
  CHECK(grown < static_cast<std::size_t>(generations) * 12 * 1024,
        "%zu KiB more after %d generations", grown, generations);
  _exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  return harness::run_case(argc, argv,
                           {{"allocate_in_child", allocate_in_child},
                            {"threads_in_child", threads_in_child},
                            {"child_of_child", child_of_child},
                            {"exec_and_spawn", exec_and_spawn},
                            {"concurrent_forks", concurrent_forks},
                            {"atfork_handlers_allocate", atfork_handlers_allocate},
                            {"generations_stay_small", generations_stay_small}});
}
