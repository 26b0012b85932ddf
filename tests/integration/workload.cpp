// An ordinary multi-threaded workload with every block's content checked, to be run
// in hostile surroundings:
//   workload mixed THREADS MIB_PER_THREAD STEPS [refusals]
// Each thread keeps at most MIB_PER_THREAD of live blocks. With `refusals`, null is an answer that
// the workload lives with; at the end, when everything is free, allocations must succeed again.
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <atomic>
#include <thread>

#include "support/harness.hpp"

namespace {

using Arguments = std::vector<std::string>;

std::atomic<std::size_t> refused{0};
std::atomic<std::size_t> served{0};

struct Slot {
  void* block = nullptr;
  std::size_t size = 0;
};

struct Plan {
  std::size_t budget;
  std::size_t steps;
  bool may_be_refused;
};

void check(const Slot& slot) {
  CHECK(harness::intact(slot.block, slot.size), "block %p of %zu bytes overwritten", slot.block,
        slot.size);
}

void* request(harness::Random& random, std::size_t size) {
  if (random.below(4) != 0) return malloc(size);
  void* p = calloc(1, size);
  CHECK(p == nullptr || harness::all_zero(p, size), "calloc(%zu) is not zero", size);
  return p;
}

void worker(std::uint64_t seed, const Plan& plan, std::vector<Slot>& slots) {
  harness::Random random(seed);
  std::size_t live = 0;
  for (std::size_t i = 0; i < plan.steps; ++i) {
    Slot& slot = slots[random.below(slots.size())];
    if (slot.block != nullptr) {
      check(slot);
      free(slot.block);
      live -= slot.size;
      slot.block = nullptr;
      continue;
    }
    const std::size_t size = random.size(3u << 20);
    if (live + size > plan.budget) continue;
    errno = 0;
    slot = {request(random, size), size};
    if (slot.block == nullptr) {
      CHECK(errno == ENOMEM, "refused %zu bytes with errno %d", size, errno);
      CHECK(plan.may_be_refused, "refused %zu bytes with %zu live in this thread", size, live);
      refused.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    harness::fill(slot.block, size);
    live += size;
    served.fetch_add(1, std::memory_order_relaxed);
  }
  for (Slot& slot : slots) {
    if (slot.block == nullptr) continue;
    check(slot);
    free(slot.block);
    slot.block = nullptr;
  }
}

void mixed(const Arguments& arguments) {
  harness::require_library_malloc();
  CHECK(arguments.size() >= 3, "usage: mixed THREADS MIB_PER_THREAD STEPS [refusals]");
  const unsigned long count = strtoul(arguments[0].c_str(), nullptr, 10);
  const Plan plan{strtoul(arguments[1].c_str(), nullptr, 10) << 20,
                  strtoul(arguments[2].c_str(), nullptr, 10), arguments.size() > 3};
  // Everything that the test itself needs is there before memory gets short.
  std::vector<std::vector<Slot>> slots(count, std::vector<Slot>(500));
  pthread_barrier_t start;
  pthread_barrier_init(&start, nullptr, static_cast<unsigned>(count));
  std::vector<std::thread> threads;
  for (unsigned long i = 0; i < count; ++i) {
    threads.emplace_back([i, &plan, &slots, &start] {
      pthread_barrier_wait(&start);
      worker(i, plan, slots[i]);
    });
  }
  for (auto& thread : threads) thread.join();
  worker(99, plan, slots[0]);
  void* block = malloc(1000);
  CHECK(block != nullptr, "1000 bytes refused after everything was freed");
  free(block);
  const harness::Memory now = harness::memory();
  printf("served %zu, refused %zu; peak %zu KiB, page tables %zu KiB\n", served.load(),
         refused.load(), now.peak_resident, now.page_tables);
}

}  // namespace

int main(int argc, char** argv) {
  return harness::run_case(argc, argv, {{"mixed", mixed}});
}
