#include "program.hpp"

#include <utility>

#include "engine.hpp"
#include "kernel.hpp"
#include "process.hpp"
#include "program_calls.hpp"
#include "program_threads.hpp"
#include "report.hpp"

namespace spanalloc::simulation {

[[gnu::weak]] bool engine::can_grow() {
  return true;
}
[[gnu::weak]] void engine::check_refusal(std::size_t) {}
[[gnu::weak]] std::size_t engine::most_alike() {
  return SIZE_MAX;
}
[[gnu::weak]] bool engine::allocations_give() {
  return false;
}
[[gnu::weak]] bool engine::children_find_more() {
  return false;
}
[[gnu::weak]] bool engine::may_wait_without_lock() {
  return false;
}

namespace program {
namespace {

// --- Checks while all threads are idle -----------------------------------------------------------

void check_all(bool is_end) {
  inherit();
  Expected expected;
  expected.vanished = vanished;
  expected.torn = torn;
  expected.is_end = is_end;
  const auto count = [&](const std::vector<Block>& blocks) {
    for (const Block& block : blocks) {
      check_stamps(block);
      if (block.heap != kNoHeap) continue;
      ++expected.blocks;
      expected.bytes += block.usable;
    }
  };
  count(commons);
  for (const Thread& thread : threads) count(thread.blocks);
  for (const FirstClassHeap& heap : heaps) count(heap.blocks);
  if (any_misuse) return;
  check_heaps();
  engine::check_heap(expected);
}

void run_phase(const Phase& next) {
  phase = &next;
  kernel.set(next.kernel);
  scheduler.set(next.schedule);
  refusals_before = kernel.refusals();
  unsigned living = 0;
  for (unsigned t = 0; t < kMostThreads; ++t) {
    if (!scheduler.lives(t)) continue;
    ++living;
    // The first one stays: a process has a thread.
    if (living > next.threads || (next.new_threads && living > 1)) {
      threads[t].must_end = true;
      threads[t].left = 0;
    } else {
      threads[t].left = next.operations;
    }
  }
  while (living < next.threads) {
    const unsigned number = free_number();
    if (number == kMostThreads) break;
    if (living != 0) simulated_single_threaded = 0;
    start_thread(number, next.operations);
    ++living;
  }
  scheduler.resume_all();
  scheduler.run();
  check_all(false);
}

// Every thread ends, everything is freed, the heap gives back what it can: then nothing is
// left, and there is memory again.
void run_end() {
  static Phase last;
  last = Phase{};
  last.number = 99;
  last.operations = 0;
  last.schedule.gap = 100;
  last.kernel.space_limit = plan->process.limit_at_start;
  kernel.pass(100'000);
  phase = &last;
  kernel.set(last.kernel);
  scheduler.set(last.schedule);
  refusals_before = kernel.refusals();
  for (unsigned t = 0; t < kMostThreads; ++t) {
    if (!scheduler.lives(t)) continue;
    threads[t].left = 0;
    threads[t].must_end = true;
  }
  scheduler.resume_all();
  scheduler.run();
  inherit();
  for (Thread& thread : threads) {
    for (const Block& block : thread.blocks) commons.push_back(block);
    thread.blocks.clear();
  }
  // A thread of its own frees all.
  const unsigned number = free_number();
  simulated_single_threaded = 0;
  Thread& thread = threads[number];
  ++thread.lives;
  thread.must_end = true;
  thread.in_call = false;
  thread.heap_in_call = kNoHeap;
  process.begin_thread(number);
  scheduler.start(number, [](unsigned) {
    if (limit_is_set) (void)sp_set_soft_limit(0);
    (void)sp_on_soft_limit(nullptr, nullptr);
    for (unsigned h = 0; h < kMostHeaps; ++h) {
      for (const Block& block : heaps[h].blocks) {
        check_stamps(block);
        leave(block);
      }
      heaps[h].blocks.clear();
      if (heaps[h].heap != nullptr) sp_heap_destroy(heaps[h].heap);
      heaps[h].heap = nullptr;
    }
    while (!commons.empty()) release(take_from(commons, Order::newest));
    scheduler.look(true);
    if (!any_misuse) engine::check_bounds();
    scheduler.look(false);
    // What was refused before is granted again.
    for (const std::size_t bytes : {16u, 1000u, 30'000u, 300'000u, 3'000'000u}) {
      set_place(scheduler.self(), "malloc(%zu) at the end", bytes);
      Block block;
      const InCall call;
      if (accept(block, sp_malloc(bytes), bytes, 16, false)) sp_free(block.memory);
    }
    trim();
    process.run_destructors([](unsigned) {});
  });
  scheduler.run();
  SIM_CHECK(live.empty() && live_bytes == 0, "simulation: %zu blocks are left", live.size());
  (void)sp_trim();
  check_all(true);
}

}  // namespace
}  // namespace program

void run_program(const Plan& the_plan) {
  using namespace program;
  plan = &the_plan;
  scheduler.set_cpus(plan->process.cpus);
  scheduler.set_signal_handler(&handle_signal);
  scheduler.set_store_check(&check_store);
  engine::start_process();
  for (const Phase& next : plan->phases) run_phase(next);
  if (!any_misuse) run_end();
}

}  // namespace spanalloc::simulation
