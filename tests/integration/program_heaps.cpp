// Heaps of a program's own beside malloc: their blocks in the hands of malloc's functions, forks
// beside threads that use them, and forks from a signal handler that has interrupted a call.
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <dlfcn.h>
#include <atomic>
#include <thread>
#include <vector>

#include "spanalloc/spanalloc.h"
#include "support/harness.hpp"

namespace {

using Arguments = std::vector<std::string>;

// The library's, which is preloaded.
#define FIND(name) \
  decltype(&::name) name = reinterpret_cast<decltype(&::name)>(dlsym(RTLD_DEFAULT, #name))
struct Library {
  FIND(sp_heap_create);
  FIND(sp_heap_destroy);
  FIND(sp_heap_reset);
  FIND(sp_heap_malloc);
  FIND(sp_heap_realloc);
  FIND(sp_heap_free);
  FIND(sp_heap_owns);
  FIND(sp_heap_stats);
  FIND(sp_owns);
};
const Library& sp() {
  static const Library library{};
  if (library.sp_heap_create == nullptr) harness::skip("another library than ours has no heaps");
  return library;
}
sp_heap* make_heap() {
  sp_heap* const heap = sp().sp_heap_create(nullptr, 0);
  CHECK(heap != nullptr, "no heap");
  return heap;
}
std::size_t blocks_in(sp_heap* heap) {
  sp_heap_statistics s{};
  sp().sp_heap_stats(heap, &s, sizeof s);
  return s.used_blocks;
}

void malloc_functions(const Arguments&) {
  sp_heap* const heap = make_heap();
  for (const std::size_t n : {std::size_t{1}, std::size_t{100}, std::size_t{5000},
                              std::size_t{100'000}, std::size_t{3'000'000}}) {
    void* p = sp().sp_heap_malloc(heap, n);
    CHECK(p != nullptr && sp().sp_owns(p) == 1, "a block of %zu bytes", n);
    CHECK(malloc_usable_size(p) >= n, "%zu bytes of %zu", malloc_usable_size(p), n);
    harness::fill(p, n);
    free(p);
    CHECK(blocks_in(heap) == 0, "free left %zu", blocks_in(heap));

    p = sp().sp_heap_malloc(heap, n);
    memset(p, 0x5A, n);
    for (const std::size_t larger : {n + 1, 2 * n, 20 * n}) {
      p = realloc(p, larger);
      CHECK(p != nullptr && sp().sp_heap_owns(heap, p) == 1, "realloc took it out of its heap");
      CHECK(malloc_usable_size(p) >= larger, "realloc to %zu", larger);
      for (std::size_t i = 0; i < n; ++i)
        CHECK(static_cast<char*>(p)[i] == 0x5A, "byte %zu of %zu was lost", i, n);
    }
    p = realloc(p, n);
    CHECK(sp().sp_heap_owns(heap, p) == 1, "realloc took it out of its heap");
    CHECK(realloc(p, 0) == nullptr && blocks_in(heap) == 0, "realloc to nothing");
  }
  // A buffer that libc makes larger, as getline does.
  std::size_t size = 8;
  char* line = static_cast<char*>(sp().sp_heap_malloc(heap, size));
  FILE* const file = fopen("/proc/self/maps", "r");
  CHECK(file != nullptr && getline(&line, &size, file) > 8, "getline");
  fclose(file);
  CHECK(sp().sp_heap_owns(heap, line) == 1, "getline took it out of its heap");
  sp().sp_heap_destroy(heap);
  CHECK(malloc_trim(0) == 1, "malloc_trim gave nothing back");
}

void bad_pointers(const Arguments&) {
  sp_heap* const heap = make_heap();
  void* const p = sp().sp_heap_malloc(heap, 100);
  void* const large = sp().sp_heap_malloc(heap, 1'000'000);
  const auto expect = [](void (*f)(void*), void* argument, const char* what) {
    const harness::Outcome outcome = harness::run_forked([&] { f(argument); });
    CHECK(outcome.killed_by(SIGABRT) && outcome.err.find(what) != std::string::npos,
          "not named \"%s\": %s", what, outcome.describe().c_str());
  };
  expect([](void* q) { free(static_cast<char*>(q) + 16); }, p, "not the start of a live block");
  expect([](void* q) { free(q), free(q); }, p, "double free of");
  expect([](void* q) { free(q), free(q); }, large, "no block of a heap");
  expect([](void* q) { (void)!malloc_usable_size(static_cast<char*>(q) + 16); }, p, "");
  sp().sp_heap_destroy(heap);
  expect([](void* q) { free(q); }, p, "no block of a heap");
}

// --- Fork ----------------------------------------------------------------------------------------

std::atomic<bool> stop{false};

void churn(sp_heap* heap, unsigned seed) {
  harness::Random random(seed);
  void* blocks[100] = {};
  while (!stop) {
    void*& block = blocks[random.below(100)];
    if (random.one_in(3)) {
      block = sp().sp_heap_realloc(heap, block, 1 + random.size(50'000));
    } else {
      sp().sp_heap_free(heap, block);
      block = sp().sp_heap_malloc(heap, random.size(random.one_in(50) ? 900'000 : 2000));
    }
    if (random.one_in(100)) {
      sp_heap* const own = make_heap();
      for (int i = 0; i < 50; ++i) (void)!sp().sp_heap_malloc(own, random.size(100'000));
      if (random.one_in(2)) sp().sp_heap_reset(own);
      sp().sp_heap_destroy(own);
    }
  }
  for (void* const block : blocks) sp().sp_heap_free(heap, block);
}

// What a child may do: all of it, with the heaps of before and new ones.
void use(sp_heap* heap, void* kept) {
  alarm(harness::kSecondsToHang);
  CHECK(harness::intact(kept, 1000), "a block of before the fork");
  void* blocks[500];
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < 500; ++i) {
      blocks[i] = sp().sp_heap_malloc(heap, 1 + i * 37);
      CHECK(blocks[i] != nullptr, "no memory in the child");
      harness::fill(blocks[i], 1 + i * 37);
    }
    for (std::size_t i = 0; i < 500; ++i) {
      CHECK(harness::intact(blocks[i], 1 + i * 37), "block %zu", i);
      sp().sp_heap_free(heap, blocks[i]);
    }
  }
  sp().sp_heap_free(heap, kept);
  sp_heap* const fresh = make_heap();
  CHECK(sp().sp_heap_malloc(fresh, 5'000'000) != nullptr, "no memory in a fresh heap");
  sp().sp_heap_destroy(fresh);
  std::thread([heap] { sp().sp_heap_free(heap, sp().sp_heap_malloc(heap, 100)); }).join();
  sp().sp_heap_reset(heap);
  CHECK(blocks_in(heap) == 0, "reset left blocks");
  sp().sp_heap_destroy(heap);
}

void fork_beside_threads(const Arguments&) {
  sp_heap* const heap = make_heap();
  void* const kept = sp().sp_heap_malloc(heap, 1000);
  harness::fill(kept, 1000);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 3; ++i) threads.emplace_back(churn, heap, i);
  const int forks = harness::is_full_run() ? 2000 : 60;
  for (int i = 0; i < forks; ++i)
    harness::expect_success(harness::run_forked([&] { use(heap, kept); }), "a child");
  stop = true;
  for (auto& thread : threads) thread.join();
  CHECK(blocks_in(heap) == 1, "%zu blocks are left", blocks_in(heap));
  sp().sp_heap_destroy(heap);
}

// The child goes on in the middle of the call; the parent ends as the child does.
void fork_in_handler(int) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(harness::kSecondsToHang);
    return;
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
  }
  _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
}

// At each of many steps of the work a signal arrives, in a process of its own.
void fork_from_handler(const Arguments& arguments) {
  if (arguments.empty()) {
    for (int step = 0; step < 60; ++step)
      harness::expect_success(harness::run_self({"fork_from_handler", std::to_string(step)}),
                              "a process");
    return;
  }
  sp_heap* const heap = make_heap();
  void* const kept = sp().sp_heap_malloc(heap, 1000);
  harness::fill(kept, 1000);
  std::thread other([heap] { churn(heap, 7); });
  struct sigaction action{};
  action.sa_handler = fork_in_handler;
  sigaction(SIGUSR1, &action, nullptr);
  const int wanted = std::stoi(arguments[0]);
  const pthread_t self = pthread_self();
  const pid_t process = getpid();
  std::atomic<int> rounds{0};
  // Whatever this thread is doing then: it counts rounds, not time.
  std::thread sender([&] {
    while (rounds.load() < 3 + wanted % 7) {
    }
    for (int i = 0; i < wanted * 97; ++i) asm volatile("");
    pthread_kill(self, SIGUSR1);
  });
  while (getpid() == process) {
    sp_heap* const own = make_heap();
    for (int i = 0; i < 20; ++i) sp().sp_heap_free(own, sp().sp_heap_malloc(own, 60'000));
    void* const p = sp().sp_heap_malloc(heap, 3'000'000);
    sp().sp_heap_free(heap, p);
    sp().sp_heap_destroy(own);
    rounds.fetch_add(1);
  }
  use(heap, kept);
  _exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  return harness::run_case(argc, argv,
                           {{"malloc_functions", malloc_functions},
                            {"bad_pointers", bad_pointers},
                            {"fork_beside_threads", fork_beside_threads},
                            {"fork_from_handler", fork_from_handler}});
}
