// malloc and free while a thread is being torn down: in C++ thread_local destructors, in pthread
// key destructors of every round, before and after the library's own exit hook has run.
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "support/harness.hpp"

namespace {

using Arguments = std::vector<std::string>;

std::atomic<std::size_t> destroyed{0};

void* filled(std::size_t size) {
  void* p = malloc(size);
  CHECK(p != nullptr, "malloc(%zu) refused during teardown", size);
  harness::fill(p, size);
  return p;
}

void drop(void* p, std::size_t size) {
  CHECK(harness::intact(p, size), "block %p of %zu bytes overwritten", p, size);
  free(p);
}

void churn(std::uint64_t seed) {
  harness::Random random(seed);
  void* blocks[30];
  std::size_t sizes[30];
  for (int i = 0; i < 30; ++i) {
    sizes[i] = random.size(200000);
    blocks[i] = filled(sizes[i]);
  }
  for (int i = 0; i < 30; ++i) drop(blocks[i], sizes[i]);
}

// A key's value is a block that says in which round it was last seen; each round replaces the
// block, so that it is freed in a later round than it was allocated in.
struct Value {
  pthread_key_t key;
  unsigned round;
  unsigned last_round;
};

std::atomic<unsigned> latest_round{0};

void next_round(void* raw) {
  const Value old = *static_cast<Value*>(raw);
  churn(old.key * 10 + old.round);
  if (old.round < old.last_round) {
    auto* next = static_cast<Value*>(malloc(sizeof(Value) + 16 * old.round));
    *next = {old.key, old.round + 1, old.last_round};
    CHECK(pthread_setspecific(old.key, next) == 0, "pthread_setspecific");
  }
  free(raw);
  unsigned seen = latest_round.load();
  while (seen < old.round && !latest_round.compare_exchange_weak(seen, old.round)) {
  }
  destroyed.fetch_add(1);
}

void arm(pthread_key_t key, unsigned rounds) {
  auto* value = static_cast<Value*>(malloc(sizeof(Value)));
  *value = {key, 1, rounds};
  CHECK(pthread_setspecific(key, value) == 0, "pthread_setspecific");
}

struct ThreadLocal {
  std::vector<std::string> names;
  void* block = nullptr;
  ~ThreadLocal() {
    if (block != nullptr) drop(block, 5000);
    churn(names.size());
    destroyed.fetch_add(1);
  }
};
thread_local ThreadLocal one_local;
thread_local ThreadLocal other_local;

void use_thread_locals() {
  for (int i = 0; i < 20; ++i) one_local.names.push_back(std::string(40, 'x'));
  one_local.block = filled(5000);
  other_local.names.push_back("hello");
}

void thread_locals(const Arguments&) {
  harness::require_library_malloc();
  for (unsigned i = 0; i < 500; ++i) {
    std::thread([] { use_thread_locals(); }).join();
  }
  CHECK(destroyed == 1000, "%zu destructors ran", destroyed.load());
}

// 100 keys, more than the 32 that glibc keeps inside the thread: later ones live in a block from
// calloc that is freed after all destructors.
void key_destructors(const Arguments&) {
  harness::require_library_malloc();
  constexpr unsigned kKeys = 100;
  pthread_key_t keys[kKeys];
  for (auto& key : keys) CHECK(pthread_key_create(&key, next_round) == 0, "pthread_key_create");
  const unsigned threads = harness::is_full_run() ? 200 : 50;
  for (unsigned i = 0; i < threads; ++i) {
    std::thread([&] {
      for (unsigned k = 0; k < kKeys; ++k) arm(keys[k], 1 + k % PTHREAD_DESTRUCTOR_ITERATIONS);
      if (i % 2 == 0) use_thread_locals();
    }).join();
  }
  CHECK(latest_round == PTHREAD_DESTRUCTOR_ITERATIONS, "destructors ran in %u rounds",
        latest_round.load());
}

// The thread's first malloc is made by a destructor, when it is already being torn down.
pthread_key_t first_use_key;

void first_use_in_destructor(const Arguments&) {
  harness::require_library_malloc();
  CHECK(pthread_key_create(&first_use_key,
                           [](void* raw) {
                             const auto round = reinterpret_cast<std::uintptr_t>(raw);
                             churn(round);
                             if (round < PTHREAD_DESTRUCTOR_ITERATIONS) {
                               pthread_setspecific(first_use_key,
                                                   reinterpret_cast<void*>(round + 1));
                             }
                             destroyed.fetch_add(1);
                           }) == 0,
        "pthread_key_create");
  for (int i = 0; i < 300; ++i) {
    pthread_t thread;
    CHECK(pthread_create(
              &thread, nullptr,
              [](void*) -> void* {
                pthread_setspecific(first_use_key, reinterpret_cast<void*>(1));
                return nullptr;
              },
              nullptr) == 0,
          "pthread_create");
    pthread_join(thread, nullptr);
  }
  CHECK(destroyed == 300u * PTHREAD_DESTRUCTOR_ITERATIONS, "%zu destructors ran", destroyed.load());
}

// Threads that use the heap after their teardown, by the ten thousand: nothing of them may stay.
void leaves_no_residue(const Arguments&) {
  harness::judge_memory();
  harness::require_library_malloc();
  pthread_key_t key;
  CHECK(pthread_key_create(&key, next_round) == 0, "pthread_key_create");
  std::size_t settled = 0;
  const unsigned total = harness::is_full_run() ? 100000 : 3000;
  std::size_t highest = 0;
  for (unsigned i = 0; i < total; ++i) {
    std::thread([&] {
      arm(key, PTHREAD_DESTRUCTOR_ITERATIONS);
      free(malloc(100));
    }).join();
    if (i == 500) settled = harness::memory().footprint();
    if (i > 500 && i % 100 == 0) highest = std::max(highest, harness::memory().footprint());
  }
  printf("memory and page tables: %zu KiB after 500 threads, at most %zu KiB up to %u\n", settled,
         highest, total);
  CHECK(highest <= settled + settled / 4 + 2048, "grew from %zu to %zu KiB", settled, highest);
}

// Blocks left by dead threads, freed by others: from a living thread, and from
// a destructor of a third.
void blocks_outlive_threads(const Arguments&) {
  harness::require_library_malloc();
  pthread_key_t key;
  struct Left {
    std::vector<std::pair<void*, std::size_t>> blocks;
  };
  CHECK(pthread_key_create(&key,
                           [](void* raw) {
                             auto* heritage = static_cast<Left*>(raw);
                             for (auto& [block, size] : heritage->blocks) drop(block, size);
                             delete heritage;
                             destroyed.fetch_add(1);
                           }) == 0,
        "pthread_key_create");
  for (unsigned i = 0; i < 200; ++i) {
    auto* heritage = new Left;
    std::thread([&] {
      harness::Random random(i);
      for (int k = 0; k < 100; ++k) {
        const std::size_t size = random.size(100000);
        heritage->blocks.emplace_back(filled(size), size);
      }
    }).join();
    std::thread([&] { pthread_setspecific(key, heritage); }).join();
  }
  CHECK(destroyed == 200, "%zu heritages were freed", destroyed.load());
}

void cancelled_threads(const Arguments&) {
  harness::require_library_malloc();
  for (unsigned i = 0; i < 100; ++i) {
    pthread_t thread;
    CHECK(pthread_create(
              &thread, nullptr,
              [](void*) -> void* {
                use_thread_locals();
                for (;;) {
                  churn(1);
                  pthread_testcancel();
                }
              },
              nullptr) == 0,
          "pthread_create");
    pthread_cancel(thread);
    void* result = nullptr;
    pthread_join(thread, &result);
    CHECK(result == PTHREAD_CANCELED, "the thread was not cancelled");
  }
  churn(2);
}

}  // namespace

int main(int argc, char** argv) {
  return harness::run_case(argc, argv,
                           {{"thread_locals", thread_locals},
                            {"key_destructors", key_destructors},
                            {"first_use_in_destructor", first_use_in_destructor},
                            {"leaves_no_residue", leaves_no_residue},
                            {"blocks_outlive_threads", blocks_outlive_threads},
                            {"cancelled_threads", cancelled_threads}});
}
