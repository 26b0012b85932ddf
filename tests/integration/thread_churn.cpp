// Threads come and go: what they leave behind is bounded by what is live, not by how many there
// were. What free memory stays warm is decided by the ticks of a clock: here it moves with the
// threads that there were.
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <atomic>

#include "support/clock.hpp"
#include "support/cpu.hpp"
#include "support/harness.hpp"

namespace {

using Arguments = std::vector<std::string>;

template <class Body>
void in_thread(Body body) {
  pthread_t thread;
  auto entry = [](void* argument) -> void* {
    (*static_cast<Body*>(argument))();
    return nullptr;
  };
  const int result = pthread_create(&thread, nullptr, entry, &body);
  CHECK(result == 0, "pthread_create: %s", strerror(result));
  pthread_join(thread, nullptr);
}

// A ring of blocks that outlive their thread; the next thread to come by frees the old one.
struct Survivors {
  static constexpr std::size_t kCount = 1000;
  void* blocks[kCount] = {};
  std::size_t sizes[kCount] = {};

  void replace(std::size_t at, std::size_t size) {
    if (blocks[at] != nullptr) {
      CHECK(harness::intact(blocks[at], sizes[at]), "survivor %p overwritten", blocks[at]);
      free(blocks[at]);
    }
    blocks[at] = malloc(size);
    sizes[at] = size;
    CHECK(blocks[at] != nullptr, "malloc(%zu) refused", size);
    harness::fill(blocks[at], size);
  }
};

Survivors survivors;

void one_life(std::uint64_t seed) {
  harness::Random random(seed);
  void* blocks[20];
  for (void*& p : blocks) p = malloc(random.size(20000));
  survivors.replace(seed % Survivors::kCount, random.size(3000));
  for (void* p : blocks) free(p);
}

void sequence(const Arguments&) {
  harness::judge_memory();
  harness::require_library_malloc();
  harness::stop_clock();
  const unsigned total = harness::is_full_run() ? 1000000 : 30000;
  const unsigned warm = 5000;
  std::size_t settled = 0;
  std::size_t highest = 0;
  for (unsigned i = 0; i < total; ++i) {
    in_thread([i] { one_life(i); });
    if (i % 10 == 0) harness::advance_clock(1);
    if (i == warm) settled = harness::memory().footprint();
    if (i > warm && i % 1000 == 0) highest = std::max(highest, harness::memory().footprint());
  }
  printf("memory and page tables: %zu KiB after %u threads, at most %zu KiB up to %u\n", settled,
         warm, highest, total);
  CHECK(highest <= settled + settled / 4 + 4096, "grew from %zu to %zu KiB", settled, highest);
}

// Where a library has a cache for each CPU, and a test is not about them (ONE_CPU).
void stay_on_one_cpu_if_asked() {
  if (getenv("ONE_CPU") != nullptr) harness::stay_on_this_cpu();
}

// Batches of 32 living at once; every block is freed by a thread of the next batch.
void batches(const Arguments&) {
  harness::judge_memory();
  harness::require_library_malloc();
  stay_on_one_cpu_if_asked();
  harness::stop_clock();
  constexpr unsigned kBatch = 32;
  constexpr unsigned kBlocks = 64;
  static std::atomic<void*> handed_on[kBatch * kBlocks];
  // Nobody ends before all have done their work: each batch needs what 32 threads at once need, not
  // what the scheduler happens to let overlap.
  static pthread_barrier_t all_done;
  pthread_barrier_init(&all_done, nullptr, kBatch);
  std::size_t settled = 0;
  std::size_t highest = 0;
  const unsigned rounds = harness::is_full_run() ? 5000 : 300;
  for (unsigned round = 0; round < rounds; ++round) {
    pthread_t threads[kBatch];
    struct Argument {
      unsigned round;
      unsigned id;
    };
    static Argument arguments[kBatch];
    for (unsigned i = 0; i < kBatch; ++i) {
      arguments[i] = {round, i};
      const int result = pthread_create(
          &threads[i], nullptr,
          [](void* raw) -> void* {
            const auto& my = *static_cast<Argument*>(raw);
            harness::Random random(my.round * 1000 + my.id);
            for (unsigned k = 0; k < kBlocks; ++k) {
              void* block = malloc(random.size(8000));
              memset(block, 1, 1);
              free(handed_on[((my.id + 7) % kBatch) * kBlocks + k].exchange(block));
            }
            pthread_barrier_wait(&all_done);
            return nullptr;
          },
          &arguments[i]);
      CHECK(result == 0, "pthread_create: %s", strerror(result));
    }
    for (pthread_t thread : threads) pthread_join(thread, nullptr);
    harness::advance_clock(4);  // what a batch takes when nothing else runs
    // The second half against the first: a residue of one page a thread would be 32 MiB between
    // them.
    std::size_t& peak = round < rounds / 2 ? settled : highest;
    peak = std::max(peak, harness::memory().footprint());
  }
  for (auto& block : handed_on) free(block.exchange(nullptr));
  printf(
      "memory and page tables: at most %zu KiB in the first half of %u batches, %zu KiB in the "
      "second\n",
      settled, rounds, highest);
  CHECK(highest <= settled + settled / 4 + 4096, "grew from %zu to %zu KiB", settled, highest);
}

constexpr unsigned kLeavers = 10000;
void* left[kLeavers];

// Prints the memory of a process whose objects come from one thread, or from one
// each. None was freed yet.
void print_peak() {
  printf("peak %zu\n", harness::memory().footprint());
}

void leave(unsigned i) {
  left[i] = malloc(16);
  CHECK(left[i] != nullptr, "malloc(16) refused");
  memset(left[i], static_cast<int>(i), 16);
}

void free_all_left() {
  for (unsigned i = 0; i < kLeavers; ++i) {
    CHECK(static_cast<unsigned char*>(left[i])[15] == (i & 255), "object %u overwritten", i);
    free(left[i]);
  }
}

void one_keeps_all(const Arguments&) {
  harness::judge_memory();
  harness::require_library_malloc();
  harness::stop_clock();
  in_thread([] {
    for (unsigned i = 0; i < kLeavers; ++i) leave(i);
  });
  print_peak();
  free_all_left();
}

void each_leaves_one_child(const Arguments&) {
  harness::judge_memory();
  harness::require_library_malloc();
  harness::stop_clock();
  for (unsigned i = 0; i < kLeavers; ++i) {
    in_thread([i] { leave(i); });
    if (i % 10 == 0) harness::advance_clock(1);
  }
  print_peak();
  free_all_left();
}

std::size_t peak_of(const char* name) {
  const auto outcome = harness::run_self({name});
  harness::expect_success(outcome, name);
  std::size_t peak = 0;
  CHECK(sscanf(outcome.out.c_str(), "peak %zu", &peak) == 1, "no peak from %s",
        outcome.out.c_str());
  return peak;
}

void each_leaves_one(const Arguments&) {
  const std::size_t one = peak_of("one_keeps_all");
  const std::size_t each = peak_of("each_leaves_one_child");
  printf("one thread keeps %u objects: %zu KiB; %u threads leave one each: %zu KiB\n", kLeavers,
         one, kLeavers, each);
  CHECK(each <= 2 * one, "%zu KiB, more than twice %zu KiB", each, one);
}

}  // namespace

int main(int argc, char** argv) {
  return harness::run_case(argc, argv,
                           {{"sequence", sequence},
                            {"batches", batches},
                            {"each_leaves_one", each_leaves_one},
                            {"one_keeps_all", one_keeps_all},
                            {"each_leaves_one_child", each_leaves_one_child}});
}
