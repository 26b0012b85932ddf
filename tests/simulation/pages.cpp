// The program of a simulation of the page manager alone: threads that allocate, resize, free and
// purge blocks of one region by the functions of spanalloc.h, and check what they get.
#include <spanalloc/spanalloc.h>

#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "base/bits.hpp"
#include "engine.hpp"
#include "plan.hpp"
#include "program.hpp"
#include "report.hpp"

namespace spanalloc::simulation {

namespace engine {
const char* const kName = "pages";
}

namespace {

using test::Random;

constexpr std::size_t kUnit = 4096;

struct Block {
  char* memory;
  std::size_t bytes;
  std::uint64_t stamp;
};

struct Thread {
  Random random{0};
  std::vector<Block> blocks;
  unsigned left = 0;
  bool must_end = false;
  bool in_call = false;
};

const Plan* plan = nullptr;
const Phase* phase = nullptr;
Thread threads[kMostThreads];
std::vector<Block> commons;
std::map<std::uintptr_t, std::uintptr_t> live;
std::size_t live_bytes = 0;
std::size_t region_bytes = 0;
std::uint64_t stamps = 0;
bool extends = false;  // a thread is in sp_pages_extend
std::size_t torn = 0;
sp_pages* pages = nullptr;

Thread& me() {
  return threads[scheduler.self()];
}

// A word at each page's begin and end.
template <class F>
void for_each_stamp(const Block& block, std::size_t from, std::size_t to, F f) {
  for (std::size_t at = from; at < to; at += kUnit) {
    for (const std::size_t offset : {at, at + kUnit - 8}) {
      const std::uint64_t word = (block.stamp + offset) * 0x9E3779B97F4A7C15u;
      f(block.memory + offset, word);
    }
  }
}
void write_stamps(const Block& block, std::size_t from = 0) {
  for_each_stamp(block, from, block.bytes,
                 [](char* at, std::uint64_t word) { std::memcpy(at, &word, 8); });
}
void check_stamps(const Block& block) {
  for_each_stamp(block, 0, block.bytes, [&](char* at, std::uint64_t word) {
    SIM_CHECK(std::memcmp(at, &word, 8) == 0, "contents lost: block %p of %zu bytes, at %p",
              static_cast<void*>(block.memory), block.bytes, static_cast<void*>(at));
  });
}
void check_zero(const Block& block, std::size_t from, std::size_t to) {
  for (std::size_t at = from; at < to; at += 512) {
    SIM_CHECK(block.memory[at] == 0, "a block said to be zero is not: %p, at %zu",
              static_cast<void*>(block.memory), at);
  }
}

void enter(const Block& block) {
  const std::uintptr_t begin = address_of(block.memory);
  const std::uintptr_t end = begin + block.bytes;
  const auto next = live.lower_bound(begin);
  SIM_CHECK((next == live.end() || next->first >= end) &&
                (next == live.begin() || std::prev(next)->second <= begin),
            "block [%zx, %zx) overlaps a live one", begin, end);
  live.emplace_hint(next, begin, end);
  live_bytes += block.bytes;
}
void leave(const Block& block) {
  live.erase(address_of(block.memory));
  live_bytes -= block.bytes;
}

class InCall {
 public:
  InCall() {
    ++result->operations;
    me().in_call = true;
    scheduler.begin_operation();
    if (plan->has(Feature::alone) && me().random.one_in(16)) {
      scheduler.run_alone();
      alone_ = true;
    }
  }
  ~InCall() {
    scheduler.end_operation();
    me().in_call = false;
  }
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;
  /// The call is lock-free: it has waited for nobody, whoever was stopped where.
  void check_never_waited(const char* what) const {
    SIM_CHECK(!alone_ || scheduler.yields_of_operation() == 0,
              "%s waits for a thread that is stopped", what);
  }

 private:
  bool alone_ = false;
};

void allocate() {
  Thread& thread = me();
  const std::size_t units = 1 + (thread.random.below(64) >> thread.random.below(7));
  const std::size_t alignment = plan->has(Feature::aligned) && thread.random.one_in(3)
                                    ? kUnit << thread.random.below(6)
                                    : kUnit;
  Block block{nullptr, units * kUnit, ++stamps};
  void* out = nullptr;
  int zero = -1;
  sp_pages_status status{};
  {
    set_place(scheduler.self(), "allocate(%zu, %zu)", block.bytes, alignment);
    const InCall call;
    status = alignment == kUnit
                 ? sp_pages_allocate(pages, block.bytes, &out, &zero)
                 : sp_pages_allocate_aligned(pages, block.bytes, alignment, &out, &zero);
    // (One that finds nothing at first waits, and may succeed then.)
  }
  if (status != SP_PAGES_OK) {
    SIM_CHECK(status == SP_PAGES_NO_ROOM && out == nullptr && zero == -1, "an allocation says %s",
              sp_pages_status_text(status));
    return;
  }
  SIM_LOG("  = %p", out);
  SIM_CHECK(address_of(out) % alignment == 0, "block %p is not aligned to %zu", out, alignment);
  block.memory = static_cast<char*>(out);
  enter(block);
  if (zero == 1) check_zero(block, 0, block.bytes);
  write_stamps(block);
  me().blocks.push_back(block);
}

Block take_from(std::vector<Block>& blocks) {
  const std::size_t at = me().random.below(blocks.size());
  const Block block = blocks[at];
  blocks[at] = blocks.back();
  blocks.pop_back();
  return block;
}

void release(const Block& block) {
  check_stamps(block);
  leave(block);
  set_place(scheduler.self(), "free(%p) of %zu bytes", static_cast<void*>(block.memory),
            block.bytes);
  const InCall call;
  const sp_pages_status status = sp_pages_free(pages, block.memory);
  SIM_CHECK(status == SP_PAGES_OK, "a free says %s", sp_pages_status_text(status));
  call.check_never_waited("a free");
}

void resize() {
  Thread& thread = me();
  if (thread.blocks.empty()) return allocate();
  Block block = take_from(thread.blocks);
  check_stamps(block);
  const std::size_t bytes = kUnit * (1 + thread.random.below(block.bytes / kUnit * 2));
  leave(block);
  const bool grows = bytes > block.bytes;
  set_place(scheduler.self(), "%s(%p, %zu) of %zu bytes", grows ? "grow" : "shrink",
            static_cast<void*>(block.memory), bytes, block.bytes);
  int zero = 0;
  const std::size_t before = block.bytes;
  {
    const InCall call;
    const sp_pages_status status = grows ? sp_pages_grow(pages, block.memory, bytes, &zero)
                                         : sp_pages_shrink(pages, block.memory, bytes);
    SIM_CHECK(status == SP_PAGES_OK || (grows && status == SP_PAGES_NO_ROOM), "it says %s",
              sp_pages_status_text(status));
    if (status == SP_PAGES_OK) block.bytes = bytes;
    call.check_never_waited("a call that resizes");
    SIM_CHECK(sp_pages_size_of(pages, block.memory) == block.bytes, "the block has %zu bytes",
              sp_pages_size_of(pages, block.memory));
  }
  enter(block);
  if (block.bytes > before) {
    if (zero == 1) check_zero(block, before, block.bytes);
    write_stamps(block, before);
  }
  check_stamps(block);
  me().blocks.push_back(block);
}

void purge() {
  set_place(scheduler.self(), "purge");
  const InCall call;
  std::size_t bytes = 0;
  const unsigned flags = me().random.one_in(2) ? SP_PAGES_PURGE_IDLE : 0;
  SIM_CHECK(sp_pages_purge(pages, flags, &bytes) == SP_PAGES_OK, "a purge fails");
}

void extend() {
  if (extends || region_bytes >= plan->most_bytes * 2) return;
  extends = true;
  const std::size_t bytes = kUnit * (1 + me().random.below(256));
  set_place(scheduler.self(), "extend(%zu)", bytes);
  {
    const InCall call;
    const sp_pages_status status = sp_pages_extend(pages, bytes, 0);
    SIM_CHECK(status == SP_PAGES_OK || status == SP_PAGES_REFUSED, "an extension says %s",
              sp_pages_status_text(status));
    if (status == SP_PAGES_OK) region_bytes += bytes;
  }
  scheduler.drain();  // threads that take turns order memory
  extends = false;
}

void inherit() {
  for (unsigned t = 0; t < kMostThreads; ++t) {
    if (scheduler.lives(t)) continue;
    for (const Block& block : threads[t].blocks) commons.push_back(block);
    threads[t].blocks.clear();
    if (std::exchange(threads[t].in_call, false)) ++torn;
  }
  if (scheduler.in_thread()) extends = false;
}

void fork_process() {
  // (An extension that a fork leaves behind may have grown the region or not.)
  if (extends || !process.fork(me().random.one_in(2))) return;
  inherit();
  SIM_CHECK(sp_pages_after_fork(pages) == SP_PAGES_OK, "sp_pages_after_fork fails");
}

void one_operation() {
  Thread& thread = me();
  const auto weight = [&](Operation operation) {
    return phase->weights[static_cast<unsigned>(operation)];
  };
  const std::size_t drawn = thread.random.below(1000);
  if (drawn < weight(Operation::reallocate)) return resize();
  if (drawn >= 990 && weight(Operation::trim) != 0) return purge();
  if (drawn >= 985 && drawn < 990) return extend();
  if (drawn == 984 && weight(Operation::fork) != 0) return fork_process();
  if (drawn >= 900 && weight(Operation::publish) != 0) {
    if (!commons.empty() && thread.random.one_in(2)) return release(take_from(commons));
    if (!thread.blocks.empty()) {
      scheduler.drain();
      commons.push_back(take_from(thread.blocks));
    }
    return;
  }
  if (thread.random.below(8) < (thread.blocks.size() < phase->target ? 6u : 2u)) return allocate();
  if (!thread.blocks.empty()) release(take_from(thread.blocks));
}

void thread_body(unsigned) {
  for (;;) {
    while (me().left != 0) {
      --me().left;
      one_operation();
    }
    if (me().must_end) break;
    scheduler.idle();
  }
  scheduler.drain();
}

// With no call in flight blocks tile the region, and no two neighbours are free.
void check_all() {
  inherit();
  for (const Block& block : commons) check_stamps(block);
  for (const Thread& thread : threads) {
    for (const Block& block : thread.blocks) check_stamps(block);
  }
  struct Walk {
    std::uintptr_t next;
    bool was_free = false;
    std::size_t used = 0;
    std::size_t blocks = 0;
    std::size_t largest_free = 0;
  } walk{address_of(sp_pages_region(pages))};
  const std::uintptr_t first = walk.next;
  sp_pages_walk(
      pages,
      [](const sp_pages_block* block, void* context) {
        Walk& at = *static_cast<Walk*>(context);
        SIM_CHECK(address_of(block->start) == at.next, "the walk leaves a gap at %zx", at.next);
        at.next += block->bytes;
        const bool is_free = block->state == SP_PAGES_FREE;
        SIM_CHECK(block->state != SP_PAGES_MOVING, "a block is moving while all threads are idle");
        SIM_CHECK(!is_free || !at.was_free, "two free blocks are neighbours at %p", block->start);
        at.was_free = is_free;
        if (is_free) {
          at.largest_free = max_of(at.largest_free, block->bytes);
          return;
        }
        at.used += block->bytes;
        ++at.blocks;
      },
      &walk);
  SIM_CHECK(walk.next - first == region_bytes, "the walk ends at %zu of %zu bytes",
            walk.next - first, region_bytes);
  SIM_CHECK(torn != 0 ? walk.used >= live_bytes : walk.used == live_bytes,
            "%zu bytes are used, the program has %zu", walk.used, live_bytes);
  // While nobody else is there, what is free is found.
  if (void* found = nullptr; walk.largest_free != 0) {
    const sp_pages_status status = sp_pages_allocate(pages, walk.largest_free, &found, nullptr);
    SIM_CHECK(status == SP_PAGES_OK, "%zu bytes are free in one block, and asked for it says %s",
              walk.largest_free, sp_pages_status_text(status));
    SIM_CHECK(sp_pages_free(pages, found) == SP_PAGES_OK, "a free says no");
  }
  SIM_CHECK(torn != 0 || walk.blocks == live.size(), "%zu blocks are used, the program has %zu",
            walk.blocks, live.size());
}

void run_phase(const Phase& next) {
  phase = &next;
  kernel.set(next.kernel);
  Schedule schedule = next.schedule;
  schedule.signal_gap = 0;  // sp_pages_after_fork may not come within a call
  scheduler.set(schedule);
  unsigned living = 0;
  for (unsigned t = 0; t < kMostThreads; ++t) {
    if (!scheduler.lives(t)) continue;
    threads[t].must_end = ++living > next.threads;
    threads[t].left = threads[t].must_end ? 0 : next.operations;
  }
  for (unsigned t = 0; t < kMostThreads && living < next.threads; ++t) {
    if (scheduler.lives(t)) continue;
    threads[t].random = Random(plan->spec.seed * 31 + t * 0x10001 + next.number);
    threads[t].must_end = false;
    threads[t].left = next.operations;
    scheduler.start(t, &thread_body);
    ++living;
  }
  scheduler.resume_all();
  scheduler.run();
  check_all();
}

}  // namespace

void run_program(const Plan& the_plan) {
  plan = &the_plan;
  scheduler.set_cpus(plan->process.cpus);
  Random random(plan->spec.seed);
  region_bytes = kUnit * (16 + random.below(512));
  const std::size_t most = align_up(plan->most_bytes * 4, kUnit) + region_bytes;
  SIM_CHECK(sp_pages_create(region_bytes, most, kUnit, &pages) == SP_PAGES_OK,
            "the manager cannot be made");
  for (const Phase& next : plan->phases) run_phase(next);
  static Phase last;
  last.operations = 0;
  last.threads = 0;
  run_phase(last);
  for (const Block& block : commons)
    SIM_CHECK(sp_pages_free(pages, block.memory) == SP_PAGES_OK, "a free at the end fails");
  commons.clear();
  live.clear();
  live_bytes = 0;
  check_all();
  SIM_CHECK(sp_pages_destroy(pages) == SP_PAGES_OK, "the manager cannot be destroyed");
}

}  // namespace spanalloc::simulation
