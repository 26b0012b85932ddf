#include "program_threads.hpp"

#include <cstring>

#include "program_calls.hpp"

namespace spanalloc::simulation::program {

// --- What a thread does --------------------------------------------------------------------------

static void allocate_or_free() {
  Thread& thread = me();
  if (phase->swings) {
    if (thread.blocks.empty()) thread.rises = true;
    if (thread.blocks.size() >= phase->target) thread.rises = false;
  }
  const bool wants_more = phase->swings ? thread.rises : thread.blocks.size() < phase->target;
  const bool has_room = live_bytes + phase->size[0] < plan->most_bytes;
  if (has_room && thread.random.below(8) < (wants_more ? 6 : 2)) {
    Block block;
    if (allocate(block)) me().blocks.push_back(block);
  } else if (!thread.blocks.empty()) {
    release(take_from(thread.blocks, phase->order));
  }
}

static void ask() {
  Thread& thread = me();
  if (thread.blocks.empty()) return;
  const Block& block = thread.blocks[thread.random.below(thread.blocks.size())];
  check_stamps(block);
  const InCall call;
  SIM_CHECK(sp_owns(block.memory) == 1, "a live block is said not to be the heap's: %p",
            static_cast<void*>(block.memory));
  const std::size_t usable = sp_usable_size(block.memory);
  SIM_CHECK(usable == block.usable, "block %p: usable bytes were %zu, and are %zu",
            static_cast<void*>(block.memory), block.usable, usable);
  check_errno(true);
}

// A program hands a block to another thread by something that orders memory: a lock, a release.
static void show_to_others(const Block& block) {
  scheduler.drain();
  commons.push_back(block);
}

static void fork_process() {
  bool lived[kMostThreads];
  for (unsigned t = 0; t < kMostThreads; ++t) lived[t] = scheduler.lives(t);
  if (!process.fork(me().random.one_in(2))) return;
  calls_in_flight = me().in_call ? 1 : 0;
  for (unsigned t = 0; t < kMostThreads; ++t) threads[t].vanished = lived[t] && !scheduler.lives(t);
  inherit();
  wants_threads = true;
}

// A child has threads again as soon as the operation ends whose call, or handler, has forked.
static void start_threads_of_child() {
  wants_threads = false;
  unsigned living = 0;
  for (unsigned t = 0; t < kMostThreads; ++t) living += scheduler.lives(t) ? 1 : 0;
  for (; living < phase->threads; ++living) {
    const unsigned number = free_number();
    if (number == kMostThreads) return;
    simulated_single_threaded = 0;
    start_thread(number, me().left);
  }
}

// --- Limits, statistics --------------------------------------------------------------------------

// The program's cache drops some of what it has: nested in a call of the library.
static void on_limit(void*, std::size_t, std::size_t) {
  SIM_LOG("  soft limit: the program's function is called");
  for (unsigned i = 0; i < 4 && !commons.empty(); ++i) release(take_from(commons, Order::random));
  Block block;
  if (me().random.one_in(4) && allocate(block)) {
    scheduler.drain();  // the outer call may end at a fork
    me().blocks.push_back(block);
  }
}

static void set_limit() {
  Random& random = me().random;
  std::size_t limit = 0;
  if (!random.one_in(3)) limit = live_bytes / 2 + random.below(live_bytes * 2 + kMiB);
  set_place(scheduler.self(), "set_soft_limit(%zu)", limit);
  const InCall call;
  if (sp_set_soft_limit(limit) != 0) {
    SIM_CHECK(errno == ENOTSUP, "sp_set_soft_limit fails with errno %d", errno);
    return;
  }
  limit_is_set = limit != 0;
  if (random.one_in(2)) sp_on_soft_limit(random.one_in(3) ? nullptr : &on_limit, nullptr);
  (void)sp_soft_limit_is_near();
}

static void look_at_statistics() {
  set_place(scheduler.self(), "stats");
  const InCall call;
  sp_statistics statistics{};
  sp_stats(&statistics, sizeof statistics);
}

static void write_document() {
  set_place(scheduler.self(), "stats_json");
  const InCall call;
  std::size_t bytes = 0;
  sp_stats_json([](void* sum, const char*, std::size_t n) { *static_cast<std::size_t*>(sum) += n; },
                &bytes, 0);
  SIM_CHECK(bytes != 0, "no statistics");
}

void trim() {
  set_place(scheduler.self(), "trim");
  const InCall call;
  (void)sp_trim();
  check_errno(true);
}

// --- Threads -------------------------------------------------------------------------------------

unsigned free_number() {
  for (unsigned t = 0; t < kMostThreads; ++t) {
    if (!scheduler.lives(t)) return t;
  }
  return kMostThreads;
}

void start_thread(unsigned number, unsigned operations) {
  Thread& thread = threads[number];
  ++thread.lives;
  thread.random = Random(plan->spec.seed * 31 + number * 0x10001 + thread.lives * 0x9E3779B9u);
  for (const Block& block : thread.blocks) commons.push_back(block);
  thread.blocks.clear();
  thread.left = operations;
  thread.must_end = thread.in_call = thread.gives = thread.has_allocated = thread.misused = false;
  thread.heap_in_call = kNoHeap;
  process.begin_thread(number);
  scheduler.start(number, &thread_body);
}

static void end_soon() {
  Thread& thread = me();
  const unsigned number = free_number();
  if (number == kMostThreads) return;
  simulated_single_threaded = 0;
  const unsigned left = std::exchange(thread.left, 0);
  thread.must_end = true;
  start_thread(number, left);
}

static void one_operation() {
  Thread& thread = me();
  std::uint32_t sum = 0;
  for (const std::uint32_t weight : phase->weights) sum += weight;
  auto drawn = static_cast<std::uint32_t>(thread.random.below(sum));
  unsigned operation = 0;
  while (drawn >= phase->weights[operation]) drawn -= phase->weights[operation++];
  switch (static_cast<Operation>(operation)) {
    case Operation::allocate_or_free:
      return allocate_or_free();
    case Operation::reallocate: {
      if (thread.blocks.empty()) return allocate_or_free();
      Block block = take_from(thread.blocks, Order::random);
      const std::size_t bytes = thread.random.one_in(2)
                                    ? draw_size()
                                    : block.bytes + thread.random.below(block.bytes / 4 + 64);
      if (live_bytes + bytes > plan->most_bytes * 2) return thread.blocks.push_back(block);
      if (reallocate(block, bytes)) me().blocks.push_back(block);
      return;
    }
    case Operation::publish:
      if (!thread.blocks.empty()) show_to_others(take_from(thread.blocks, Order::random));
      return;
    case Operation::take:
      if (!commons.empty()) thread.blocks.push_back(take_from(commons, Order::random));
      return;
    case Operation::free_public:
      if (!commons.empty()) release(take_from(commons, phase->order));
      return;
    case Operation::ask:
      return ask();
    case Operation::trim:
      return trim();
    case Operation::statistics:
      return look_at_statistics();
    case Operation::document:
      return write_document();
    case Operation::heap: {
      use_heaps();
      return scheduler.drain();  // heaps and their blocks are everybody's
    }
    case Operation::limit:
      return set_limit();
    case Operation::fork:
      return fork_process();
    case Operation::sleep:
      kernel.pass(thread.random.below(phase->kernel.clock_jump + 1));
      return;
    case Operation::exit_soon:
      return end_soon();
  }
}

// What other libraries' destructors do at a thread's end. (A thread that first allocates in the
// last rounds cannot be told of its end: POSIX ends the rounds.)
static void between_destructors(unsigned round) {
  Thread& thread = me();
  if (!thread.has_allocated || thread.random.one_in(2)) return;
  SIM_LOG("destructors, round %u", round);
  for (unsigned i = 0; i < 3; ++i) {
    Block block;
    if (thread.random.one_in(2)) {
      if (allocate(block)) me().blocks.push_back(block);
    } else if (!thread.blocks.empty()) {
      release(take_from(thread.blocks, Order::random));
    }
  }
}

void thread_body(unsigned self) {
  for (;;) {
    while (me().left != 0) {
      --me().left;
      one_operation();
      if (wants_threads) start_threads_of_child();
    }
    if (me().must_end) break;
    scheduler.idle();
  }
  Thread& thread = threads[self];
  while (!thread.blocks.empty()) {
    const Block block = take_from(thread.blocks, Order::newest);
    if (thread.random.one_in(2)) {
      release(block);
    } else {
      show_to_others(block);
    }
  }
  // A fork that finds the thread in its destructors leaves a call behind.
  thread.in_call = thread.gives = true;
  ++gifts_begun;
  ++calls_begun;
  ++calls_in_flight;
  process.run_destructors(&between_destructors);
  --calls_in_flight;
  thread.in_call = thread.gives = false;
}

// --- Signals -------------------------------------------------------------------------------------

// A handler allocates: a fault of the program's, which may break what its thread has, and end the
// process. What other threads have stays theirs.
static void misuse() {
  Thread& thread = me();
  SIM_LOG("misuse: the handler allocates");
  any_misuse = thread.misused = true;
  scheduler.excuse(true);
  // It may be handed out again, to this thread.
  for (const Block& block : thread.blocks) leave(block);
  thread.blocks.clear();
  void* kept[4] = {};
  for (void*& p : kept) {
    const std::size_t bytes = draw_size();
    p = sp_malloc(bytes);
    Block block;
    block.memory = static_cast<char*>(p);
    block.usable = bytes;
    if (p == nullptr) continue;
    scheduler.excuse(false);  // for another thread's live block there is none
    enter(block);
    leave(block);
    scheduler.excuse(true);
    std::memset(p, 0xA5, bytes);
  }
  for (void* p : kept) {
    if (thread.random.one_in(2)) sp_free(p);
  }
}

// A handler that forks, as man 7 signal-safety allows.
void handle_signal() {
  if (!scheduler.in_thread()) return;
  if (plan->has(Feature::misuse) && me().in_call && !me().misused && me().random.one_in(8))
    return misuse();
  fork_process();
}

void inherit() {
  for (unsigned t = 0; t < kMostThreads; ++t) {
    Thread& thread = threads[t];
    if (scheduler.lives(t)) continue;
    for (const Block& block : thread.blocks) commons.push_back(block);
    thread.blocks.clear();
    const bool was_in_call = std::exchange(thread.in_call, false);
    vanished += std::exchange(thread.vanished, false) ? 1 : 0;
    torn += was_in_call ? 1 : 0;
    if (!was_in_call) continue;
    if (const int h = std::exchange(thread.heap_in_call, kNoHeap); h != kNoHeap) {
      FirstClassHeap& heap = heaps[h];
      heap.torn = true;
      --heap.calls;
      // A heap that was being made or ended is nobody's.
      if (!std::exchange(heap.closing, false)) continue;
      for (const Block& block : heap.blocks) leave(block);
      heap.blocks.clear();
      heap.heap = nullptr;
    }
  }
}

}  // namespace spanalloc::simulation::program
