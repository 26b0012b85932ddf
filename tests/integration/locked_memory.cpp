// mlockall: new mappings become resident at once and madvise cannot empty them any more. Zeroed
// memory must still be zero, and what is locked must stay in proportion to what the program uses.
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <thread>

#include "support/harness.hpp"

namespace {

using Arguments = std::vector<std::string>;

void lock_memory(int flags) {
  // Needed without CAP_IPC_LOCK only; where it cannot be raised, mlockall says so.
  const rlimit unlimited{RLIM_INFINITY, RLIM_INFINITY};
  const bool raised = setrlimit(RLIMIT_MEMLOCK, &unlimited) == 0;
  if (mlockall(flags) != 0) {
    harness::skip("mlockall: %s%s", strerror(errno),
                  raised ? "" : " (and RLIMIT_MEMLOCK cannot be raised)");
  }
}

// Dirties memory of all sizes, frees it, and asks for zeroed memory of the same sizes.
void recycle_and_check_zeroes() {
  for (const std::size_t size : {16u, 48u, 100u, 500u, 3000u, 9000u, 40000u, 100000u, 300000u,
                                 900000u, 1500000u, 5000000u}) {
    for (int round = 0; round < 3; ++round) {
      constexpr std::size_t kBlocks = 24;
      void* blocks[kBlocks];
      for (void*& p : blocks) {
        p = malloc(size);
        CHECK(p != nullptr, "malloc(%zu) refused", size);
        memset(p, 0xA5, size);
      }
      for (void* p : blocks) free(p);
      if (round == 1) malloc_trim(0);
      for (void*& p : blocks) {
        p = calloc(1, size);
        CHECK(p != nullptr, "calloc(%zu) refused", size);
        CHECK(harness::all_zero(p, size), "calloc(%zu) is not zero in round %d", size, round);
        memset(p, 0x5A, size);
      }
      for (void* p : blocks) free(p);
    }
  }
}

void recycle_in_threads() {
  recycle_and_check_zeroes();
  std::thread other(recycle_and_check_zeroes);
  recycle_and_check_zeroes();
  other.join();
}

void zeroes_under_mcl_future(const Arguments&) {
  harness::require_library_malloc();
  lock_memory(MCL_FUTURE);
  recycle_in_threads();
}

void zeroes_under_mcl_both(const Arguments&) {
  harness::require_library_malloc();
  recycle_and_check_zeroes();
  lock_memory(MCL_CURRENT | MCL_FUTURE);
  recycle_in_threads();
}

void zeroes_under_mcl_onfault(const Arguments&) {
  harness::require_library_malloc();
  lock_memory(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT);
  recycle_in_threads();
}

// Only `standard` promises proportion: the paper's config opens 2 MiB for each 32 KiB span.
void stays_proportional(const Arguments&) {
  harness::judge_memory();
  harness::require_library_malloc();
  free(malloc(1));
  lock_memory(MCL_FUTURE);
  const std::size_t before = harness::memory().footprint();
  constexpr std::size_t kKeptMiB = 48;
  std::vector<void*> blocks;
  blocks.reserve(500000);
  harness::Random random(3);
  for (std::size_t bytes = 0; bytes < (kKeptMiB << 20);) {
    const std::size_t size = random.size(200000);
    void* p = malloc(size);
    CHECK(p != nullptr, "malloc(%zu) refused", size);
    blocks.push_back(p);
    bytes += size;
  }
  const std::size_t grown = harness::memory().footprint() - before;
  printf("%zu MiB allocated, %zu KiB more resident\n", kKeptMiB, grown);
  // A quarter for classes and partly used spans, 16 MiB for one hot span a class and the vector.
  CHECK(grown <= (kKeptMiB + kKeptMiB / 4 + 16) * 1024, "%zu KiB for %zu MiB", grown, kKeptMiB);
  for (void* p : blocks) free(p);
}

// A small program under mlockall must not lock a big window.
void little_use_locks_little(const Arguments&) {
  harness::judge_memory();
  harness::require_library_malloc();
  free(malloc(1));
  const std::size_t before = harness::memory().footprint();
  lock_memory(MCL_CURRENT | MCL_FUTURE);
  const std::size_t locked = harness::memory().footprint();
  void* blocks[100];
  for (std::size_t i = 0; i < 100; ++i) blocks[i] = malloc(10 + 37 * i);
  const std::size_t grown = harness::memory().footprint() - locked;
  for (void* p : blocks) free(p);
  printf("locking took %zu KiB (libraries included), 100 small blocks %zu KiB\n", locked - before,
         grown);
  CHECK(locked - before <= 64 * 1024, "mlockall made %zu KiB resident", locked - before);
  CHECK(grown <= 8 * 1024, "100 small blocks made %zu KiB resident", grown);
}

// What a thread that frees many blocks takes for itself, beside its spans. (Only
// `standard` promises it.)
void threads_lock_little(const Arguments&) {
  harness::judge_memory();
  harness::require_library_malloc();
  free(malloc(1));
  lock_memory(MCL_FUTURE);
  constexpr unsigned kThreads = 16;
  // What the threads' stacks would take: they are locked whole.
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 64 * 1024);
  const std::size_t before = harness::memory().footprint();
  static pthread_barrier_t all_are_done;
  pthread_barrier_init(&all_are_done, nullptr, kThreads + 1);
  pthread_t threads[kThreads];
  for (pthread_t& thread : threads) {
    const auto body = [](void*) -> void* {
      void* blocks[100];
      for (int round = 0; round < 100; ++round) {
        for (void*& p : blocks) p = malloc(64);
        for (void* p : blocks) free(p);
      }
      pthread_barrier_wait(&all_are_done);
      pthread_barrier_wait(&all_are_done);
      return nullptr;
    };
    CHECK(pthread_create(&thread, &attributes, body, nullptr) == 0, "no thread: %s",
          strerror(errno));
  }
  pthread_barrier_wait(&all_are_done);
  const std::size_t grown = harness::memory().footprint() - before;
  pthread_barrier_wait(&all_are_done);
  for (const pthread_t thread : threads) pthread_join(thread, nullptr);
  printf("%zu KiB a thread, stack included\n", grown / kThreads);
  // A stack, a span and the LAB.
  CHECK(grown <= kThreads * 320, "%zu KiB for %u threads", grown, kThreads);
}

}  // namespace

int main(int argc, char** argv) {
  return harness::run_case(argc, argv,
                           {{"zeroes_under_mcl_future", zeroes_under_mcl_future},
                            {"zeroes_under_mcl_both", zeroes_under_mcl_both},
                            {"zeroes_under_mcl_onfault", zeroes_under_mcl_onfault},
                            {"stays_proportional", stays_proportional},
                            {"little_use_locks_little", little_use_locks_little},
                            {"threads_lock_little", threads_lock_little}});
}
