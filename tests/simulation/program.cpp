#include "program.hpp"

#include <spanalloc/spanalloc.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "base/bits.hpp"
#include "engine.hpp"
#include "report.hpp"

extern "C" char simulated_single_threaded;

namespace spanalloc::simulation {

[[gnu::weak]] bool engine::can_grow() {
  return true;
}
[[gnu::weak]] void engine::check_refusal(std::size_t) {}

namespace {

using test::Random;

constexpr int kUntouched = 4711;  // errno before each call
constexpr unsigned kMostHeaps = 5;
constexpr int kNoHeap = -1;

struct Block {
  char* memory = nullptr;
  std::size_t bytes = 0;   // as asked
  std::size_t usable = 0;  // as reported
  std::uint64_t stamp = 0;
  int heap = kNoHeap;
};

struct FirstClassHeap {
  sp_heap* heap = nullptr;
  std::size_t limit = 0;
  bool closing = false;  // it is being reset or destroyed
  unsigned calls = 0;    // in flight
  unsigned begun = 0;    // calls that have begun
  bool torn = false;     // a fork has left a call behind
  std::vector<Block> blocks;
};

struct Thread {
  Random random{0};
  std::vector<Block> blocks;
  unsigned left = 0;  // operations of the phase
  bool must_end = false;
  bool rises = true;  // Phase::swings
  bool in_call = false;
  bool vanished = false;  // at a fork
  bool misused = false;   // its signal handler has allocated
  bool has_allocated = false;
  bool began_alone = false;  // no other thread was in a call when its call began
  std::uint64_t call = 0;    // its number
  int heap_in_call = kNoHeap;
  std::uint64_t lives = 0;  // threads that had the number before
};

// The program's state. A fork's child has all of it, but for the threads.
const Plan* plan = nullptr;
const Phase* phase = nullptr;
Thread threads[kMostThreads];
std::vector<Block> commons;  // any thread may free these
FirstClassHeap heaps[kMostHeaps];
std::map<std::uintptr_t, std::uintptr_t> live;  // [begin, end)
std::size_t live_bytes = 0;
std::uint64_t stamps = 0;
std::size_t torn = 0;  // threads that have vanished at forks
std::uint64_t refusals_before = 0;
bool limit_is_set = false;
unsigned calls_in_flight = 0;
std::uint64_t calls_begun = 0;
bool any_misuse = false;

Thread& me() {
  return threads[scheduler.self()];
}

// --- Contents ------------------------------------------------------------------------------------

std::uint64_t word_of(std::uint64_t stamp, std::size_t offset) {
  return (stamp + offset) * 0x9E3779B97F4A7C15u ^ stamp;
}

// Which words of a block of so many bytes are stamped: all of a small one; of a large one its ends,
// and one each kilobyte.
constexpr std::size_t kAllStamped = 256;
constexpr std::size_t kEnd = 64;
constexpr std::size_t kStride = 1024;

template <class F>
void for_each_stamp(std::size_t bytes, F f) {
  if (bytes <= kAllStamped) {
    for (std::size_t at = 0; at + 8 <= bytes; at += 8) f(at, 8u);
    if (bytes % 8 != 0) f(bytes & ~std::size_t{7}, static_cast<unsigned>(bytes % 8));
    return;
  }
  for (std::size_t at = 0; at < kEnd; at += 8) f(at, 8u);
  for (std::size_t at = kStride; at + 8 <= bytes; at += kStride) f(at, 8u);
  const std::size_t end = (bytes - kEnd) & ~std::size_t{7};
  for (std::size_t at = end; at + 8 <= bytes; at += 8) f(at, 8u);
}

void write_stamps(const Block& block) {
  for_each_stamp(block.bytes, [&](std::size_t at, unsigned size) {
    const std::uint64_t word = word_of(block.stamp, at);
    std::memcpy(block.memory + at, &word, size);
  });
}

// Of what was stamped as `block`, and lies at `memory` now, the first `bytes`.
void check_stamps(const Block& block, const char* memory, std::size_t bytes) {
  for_each_stamp(block.bytes, [&](std::size_t at, unsigned size) {
    if (at + size > bytes) return;
    const std::uint64_t word = word_of(block.stamp, at);
    if (std::memcmp(memory + at, &word, size) == 0) return;
    std::uint64_t found = 0;
    std::memcpy(&found, memory + at, size);
    fail("contents lost: block %p of %zu bytes, at byte %zu: %llx, not %llx",
         static_cast<const void*>(memory), block.bytes, at, static_cast<unsigned long long>(found),
         static_cast<unsigned long long>(word));
  });
}
void check_stamps(const Block& block) {
  check_stamps(block, block.memory, block.bytes);
}

void check_zero(const char* memory, std::size_t bytes) {
  const auto check = [&](std::size_t at) {
    SIM_CHECK(memory[at] == 0, "calloc: byte %zu of %zu is not zero", at, bytes);
  };
  const std::size_t all = min_of(bytes, 4096);
  for (std::size_t at = 0; at < all; ++at) check(at);
  for (std::size_t at = all; at < bytes; at += 256) check(at);
  for (std::size_t at = bytes - min_of(bytes, 64); at < bytes; ++at) check(at);
}

// --- Live blocks ---------------------------------------------------------------------------------

void enter(const Block& block) {
  const std::uintptr_t begin = address_of(block.memory);
  const std::uintptr_t end = begin + max_of(block.usable, 1);
  const auto next = live.lower_bound(begin);
  if (next != live.end() && next->first < end)
    fail("block [%zx, %zx) overlaps the live block [%zx, %zx)", begin, end, next->first,
         next->second);
  if (next != live.begin() && std::prev(next)->second > begin)
    fail("block [%zx, %zx) overlaps the live block [%zx, %zx)", begin, end, std::prev(next)->first,
         std::prev(next)->second);
  live.emplace_hint(next, begin, end);
  live_bytes += block.bytes;
}

void leave(const Block& block) {
  live.erase(address_of(block.memory));
  live_bytes -= block.bytes;
}

// --- Calls ---------------------------------------------------------------------------------------

// Of a thread whose handler has allocated nothing is known. (It looks idle.)
[[noreturn]] void stop_for_ever() {
  for (;;) scheduler.idle();
}

/// Around each call of the library.
class InCall {
 public:
  explicit InCall(int heap = kNoHeap) : outer_(std::exchange(me().in_call, true)) {
    ++result->operations;
    if (!outer_) {
      scheduler.begin_operation();
      me().call = ++calls_begun;
      me().began_alone = ++calls_in_flight == 1;
    }
    if (heap != kNoHeap) {
      heap_ = heap;
      me().heap_in_call = heap;
      ++heaps[heap].calls;
      ++heaps[heap].begun;
    }
    if (!outer_ && plan->has(Feature::alone) && me().random.one_in(32)) scheduler.run_alone();
    errno = kUntouched;
  }
  ~InCall() {
    if (heap_ != kNoHeap) {
      --heaps[heap_].calls;
      me().heap_in_call = kNoHeap;
    }
    if (outer_) return;
    if (me().misused) {
      --calls_in_flight;
      stop_for_ever();
    }
    scheduler.end_operation();
    scheduler.look(true);
    engine::check_quiet();
    scheduler.look(false);
    me().in_call = false;
    --calls_in_flight;
    SIM_CHECK(scheduler.locks_held() == 0, "a lock is held behind the call: %p",
              scheduler.lock_held());
  }
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;

 private:
  const bool outer_;
  int heap_ = kNoHeap;
};

bool may_be_refused() {
  return any_misuse || kernel.refusals() != refusals_before || kernel.plan().space_limit != 0 ||
         kernel.plan().open_limit != 0 || kernel.plan().mappings_limit != 0 ||
         kernel.plan().foreign != 0 ||  // somebody is faster than a step that was asked for
         (kernel.foreign_pages() != 0 && !engine::can_grow());
}

void check_errno(bool succeeded) {
  const int found = errno;
  SIM_CHECK(found == (succeeded ? kUntouched : ENOMEM), "errno is %d behind a call that %s", found,
            succeeded ? "succeeded" : "failed");
}

// What a call has returned for `bytes`. False: there is no memory.
bool accept(Block& block, void* p, std::size_t bytes, std::size_t alignment, bool may_fail) {
  check_errno(p != nullptr);
  if (p == nullptr) {
    SIM_CHECK(may_fail || may_be_refused(),
              "%zu bytes were refused, though the kernel has refused nothing", bytes);
    if (me().heap_in_call == kNoHeap && me().began_alone && me().call == calls_begun) {
      scheduler.look(true);
      engine::check_refusal(bytes);
      scheduler.look(false);
    }
    SIM_LOG("  = null");
    return false;
  }
  SIM_CHECK(address_of(p) % alignment == 0, "block %p is not aligned to %zu", p, alignment);
  block.memory = static_cast<char*>(p);
  block.bytes = bytes;
  block.stamp = ++stamps;
  SIM_LOG("  = %p", p);
  return true;
}

void note_usable(Block& block) {
  block.usable = sp_usable_size(block.memory);
  SIM_CHECK(block.usable >= block.bytes, "block %p of %zu bytes has %zu",
            static_cast<void*>(block.memory), block.bytes, block.usable);
  scheduler.drain_range(block.memory, max_of(block.usable, 1));
}

std::size_t draw_size() {
  Random& random = me().random;
  const std::size_t first = phase->size[0];
  switch (phase->sizes) {
    case Sizes::one:
      return first;
    case Sizes::few:
      return phase->size[random.below(3)];
    case Sizes::small:
      return random.below(1025);
    case Sizes::medium:
      return 16u << random.below(12);
    case Sizes::wide:
      return (std::size_t{16} << random.below(17)) + random.below(16);
    case Sizes::large:
      return 32 * kKiB + (random.below(4 * kMiB) >> random.below(7));
    case Sizes::pages:
      return 4096 * (1 + random.below(plan->has(Feature::large) ? 64 : 8)) -
             random.below(2) * random.below(64);
  }
  return first;
}

bool allocate(Block& block) {
  Random& random = me().random;
  me().has_allocated = true;
  std::size_t bytes = draw_size();
  void* p = nullptr;
  bool zero = false;
  std::size_t alignment = bytes < 16 ? 8 : 16;
  switch (plan->has(Feature::aligned) ? random.below(8) : random.below(5)) {
    default: {
      set_place(scheduler.self(), "malloc(%zu)", bytes);
      const InCall call;
      p = sp_malloc(bytes);
      if (!accept(block, p, bytes, alignment, false)) return false;
      break;
    }
    case 4: {
      set_place(scheduler.self(), "calloc(1, %zu)", bytes);
      const InCall call;
      p = sp_calloc(1, bytes);
      if (!accept(block, p, bytes, alignment, false)) return false;
      zero = true;
      break;
    }
    case 5:
    case 6: {
      alignment = std::size_t{16} << random.below(random.one_in(4) ? 14 : 8);
      set_place(scheduler.self(), "aligned_alloc(%zu, %zu)", alignment, bytes);
      const InCall call;
      p = sp_aligned_alloc(alignment, bytes);
      if (!accept(block, p, bytes, alignment, false)) return false;
      break;
    }
    case 7: {
      alignment = std::size_t{16} << random.below(6);
      set_place(scheduler.self(), "posix_memalign(%zu, %zu)", alignment, bytes);
      const InCall call;
      const int error = sp_posix_memalign(&p, alignment, bytes);
      SIM_CHECK(error == (p == nullptr ? ENOMEM : 0), "posix_memalign returns %d", error);
      if (!accept(block, p, bytes, alignment, false)) return false;
      break;
    }
  }
  {
    const InCall call;
    note_usable(block);
  }
  if (zero) check_zero(block.memory, block.bytes);
  block.heap = kNoHeap;
  enter(block);
  write_stamps(block);
  return true;
}

// The block is the program's no longer, whatever becomes of the call.
void release(Block block) {
  check_stamps(block);
  leave(block);
  set_place(scheduler.self(), "free(%p) of %zu bytes", static_cast<void*>(block.memory),
            block.bytes);
  const InCall call(block.heap);
  if (block.heap != kNoHeap && me().random.one_in(2)) {
    sp_heap_free(heaps[block.heap].heap, block.memory);
  } else {
    sp_free(block.memory);
  }
  check_errno(true);
}

// True: the block is there still, at its old or another place.
bool reallocate(Block& block, std::size_t bytes) {
  check_stamps(block);
  leave(block);
  set_place(scheduler.self(), "realloc(%p, %zu) of %zu bytes", static_cast<void*>(block.memory),
            bytes, block.bytes);
  const Block before = block;
  const int heap = block.heap;
  const InCall call(heap);
  const bool in_heap = heap != kNoHeap && me().random.one_in(2);
  void* const p = in_heap ? sp_heap_realloc(heaps[heap].heap, block.memory, bytes)
                          : sp_realloc(block.memory, bytes);
  if (bytes == 0) {
    check_errno(true);
    SIM_CHECK(p == nullptr, "realloc(p, 0) returns %p", p);
    return false;
  }
  if (!accept(block, p, bytes, bytes < 16 ? 8 : 16, in_heap && heaps[heap].limit != 0)) {
    block = before;
    check_stamps(block);
    enter(block);
    return true;
  }
  scheduler.drain_range(block.memory, block.bytes);
  check_stamps(before, block.memory, min_of(before.bytes, bytes));
  if (heap != kNoHeap && !in_heap && sp_heap_owns(heaps[heap].heap, block.memory) == 0)
    block.heap = kNoHeap;
  note_usable(block);
  enter(block);
  write_stamps(block);
  return true;
}

// --- What a thread does --------------------------------------------------------------------------

Block take_from(std::vector<Block>& blocks, Order order) {
  std::size_t at = blocks.size() - 1;
  switch (order) {
    case Order::newest:
      break;
    case Order::oldest:
      at = 0;
      break;
    case Order::random:
      at = me().random.below(blocks.size());
      break;
    case Order::neighbours: {
      // One of the same 64 KiB as the newest, if a few looks find one.
      for (unsigned looks = 0; looks < 4; ++looks) {
        const std::size_t other = me().random.below(blocks.size());
        if (address_of(blocks[other].memory) >> 16 == address_of(blocks.back().memory) >> 16)
          at = other;
      }
      break;
    }
  }
  const Block block = blocks[at];
  if (order == Order::oldest) {
    blocks.erase(blocks.begin());
  } else {
    blocks[at] = blocks.back();
    blocks.pop_back();
  }
  return block;
}

void allocate_or_free() {
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

void ask() {
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

void inherit();

// A program hands a block to another thread by something that orders memory: a lock, a release.
void show_to_others(const Block& block) {
  scheduler.drain();
  commons.push_back(block);
}

void fork_process() {
  bool lived[kMostThreads];
  for (unsigned t = 0; t < kMostThreads; ++t) lived[t] = scheduler.lives(t);
  if (!process.fork(me().random.one_in(2))) return;
  calls_in_flight = me().in_call ? 1 : 0;
  for (unsigned t = 0; t < kMostThreads; ++t) threads[t].vanished = lived[t] && !scheduler.lives(t);
  inherit();
}

// --- First-class heaps ---------------------------------------------------------------------------

// A heap with a limit has refused a block. If it has no other, no other call for it was in flight
// at any time, and the kernel has refused nothing, then only its shards' homes, an eighth of the
// limit at most, and what the block needs beside itself leave no room.
void check_limit(const FirstClassHeap& heap, bool was_alone, unsigned begun, std::size_t bytes,
                 std::size_t alignment) {
  if (heap.limit == 0 || !was_alone || heap.begun != begun || heap.torn || !heap.blocks.empty() ||
      may_be_refused())
    return;
  constexpr std::size_t kPiece = 64 * kKiB;
  const std::size_t needed = align_up(bytes + alignment, kPiece) + 2 * kPiece + heap.limit / 8;
  SIM_CHECK(needed > heap.limit, "a heap with a limit of %zu and no block refuses %zu bytes",
            heap.limit, bytes);
}

void use_heaps() {
  Thread& thread = me();
  Random& random = thread.random;
  const auto h = static_cast<int>(random.below(kMostHeaps));
  FirstClassHeap& slot = heaps[h];
  if (slot.closing) return;
  if (slot.heap == nullptr) {
    slot.closing = true;
    sp_heap_options options{};
    if (random.one_in(3)) options.limit_bytes = (1 + random.below(64)) * 64 * kKiB;
    options.name = random.one_in(2) ? "heap" : nullptr;
    set_place(scheduler.self(), "heap_create");
    const InCall call(h);
    sp_heap* const heap = sp_heap_create(&options, sizeof options);
    if (heap == nullptr) {
      SIM_CHECK(errno == ENOMEM && may_be_refused(), "sp_heap_create fails with errno %d", errno);
    }
    slot.heap = heap;
    slot.limit = options.limit_bytes;
    slot.closing = false;
    return;
  }
  const std::size_t what = random.below(20);
  if (what == 0 && slot.calls == 0) {
    for (const Block& block : slot.blocks) {
      check_stamps(block);
      leave(block);
    }
    slot.blocks.clear();
    slot.closing = true;
    const bool destroys = random.one_in(2);
    set_place(scheduler.self(), destroys ? "heap_destroy" : "heap_reset");
    {
      const InCall call(h);
      destroys ? sp_heap_destroy(slot.heap) : sp_heap_reset(slot.heap);
    }
    if (destroys) {
      slot.heap = nullptr;
      slot.torn = false;
    }
    slot.closing = false;
    return;
  }
  if (what < 10 && !slot.blocks.empty()) {
    Block block = take_from(slot.blocks, Order::random);
    if (what < 3) {
      if (!reallocate(block, draw_size())) return;
      (block.heap == kNoHeap ? commons : slot.blocks).push_back(block);
    } else {
      release(block);
    }
    return;
  }
  if (what == 11 && slot.limit != 0) {
    // One that is emptied has room for what takes most of its limit.
    while (!slot.blocks.empty() && slot.calls == 0) release(take_from(slot.blocks, phase->order));
    if (slot.closing || slot.heap == nullptr) return;  // by another thread, meanwhile
  }
  if (what == 10) {
    set_place(scheduler.self(), "heap_stats");
    const InCall call(h);
    sp_heap_statistics statistics{};
    sp_heap_stats(slot.heap, &statistics, sizeof statistics);
    return;
  }
  if (live_bytes > plan->most_bytes) return;
  Block block;
  const std::size_t bytes = what == 11 && slot.limit != 0 && slot.blocks.empty()
                                ? 1 + random.below(slot.limit)
                                : draw_size();
  void* p = nullptr;
  std::size_t alignment = bytes < 16 ? 8 : 16;
  const std::size_t kind = random.below(6);
  set_place(scheduler.self(), "heap_malloc(%d, %zu), way %zu", h, bytes, kind);
  {
    const InCall call(h);
    const bool is_alone = slot.calls == 1;
    const unsigned begun = slot.begun;
    if (kind == 0) {
      p = sp_heap_calloc(slot.heap, 1, bytes);
    } else if (kind == 1) {
      alignment = std::size_t{16} << random.below(9);
      p = sp_heap_aligned_alloc(slot.heap, alignment, bytes);
    } else {
      p = sp_heap_malloc(slot.heap, bytes);
    }
    if (!accept(block, p, bytes, alignment, slot.limit != 0)) {
      check_limit(slot, is_alone, begun, bytes, alignment);
      return;
    }
    note_usable(block);
  }
  if (kind == 0) check_zero(block.memory, block.bytes);
  block.heap = h;
  enter(block);
  write_stamps(block);
  slot.blocks.push_back(block);
}

// --- Limits, statistics --------------------------------------------------------------------------

// The program's cache drops some of what it has: nested in a call of the library.
void on_limit(void*, std::size_t, std::size_t) {
  SIM_LOG("  soft limit: the program's function is called");
  for (unsigned i = 0; i < 4 && !commons.empty(); ++i) release(take_from(commons, Order::random));
  Block block;
  if (me().random.one_in(4) && allocate(block)) {
    scheduler.drain();  // the outer call may end at a fork
    me().blocks.push_back(block);
  }
}

void set_limit() {
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

void look_at_statistics() {
  set_place(scheduler.self(), "stats");
  const InCall call;
  sp_statistics statistics{};
  sp_stats(&statistics, sizeof statistics);
}

void write_document() {
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

void thread_body(unsigned self);

// A number that no thread has; kMostThreads: all are taken.
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
  thread.must_end = thread.in_call = thread.has_allocated = thread.misused = false;
  thread.heap_in_call = kNoHeap;
  process.begin_thread(number);
  scheduler.start(number, &thread_body);
}

void end_soon() {
  Thread& thread = me();
  const unsigned number = free_number();
  if (number == kMostThreads) return;
  simulated_single_threaded = 0;
  const unsigned left = std::exchange(thread.left, 0);
  thread.must_end = true;
  start_thread(number, left);
}

void one_operation() {
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
void between_destructors(unsigned round) {
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
  thread.in_call = true;
  ++calls_begun;
  ++calls_in_flight;
  process.run_destructors(&between_destructors);
  --calls_in_flight;
  thread.in_call = false;
}

// --- Signals -------------------------------------------------------------------------------------

// A handler allocates: a fault of the program's, which may break what its thread has, and end the
// process. What other threads have stays theirs.
void misuse() {
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

// In a fork's child, and where threads have ended: what the others had is anybody's.
void inherit() {
  for (unsigned t = 0; t < kMostThreads; ++t) {
    Thread& thread = threads[t];
    if (scheduler.lives(t)) continue;
    for (const Block& block : thread.blocks) commons.push_back(block);
    thread.blocks.clear();
    torn += std::exchange(thread.vanished, false) ? 1 : 0;
    if (!std::exchange(thread.in_call, false)) continue;
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

// --- Checks while all threads are idle -----------------------------------------------------------

void check_heaps() {
  for (FirstClassHeap& slot : heaps) {
    if (slot.heap == nullptr || slot.torn) continue;
    static std::size_t visited;
    visited = 0;
    sp_heap_visit(
        slot.heap,
        [](void* block, std::size_t bytes, void*) {
          ++visited;
          const auto at = live.find(address_of(block));
          SIM_CHECK(at != live.end(), "a heap shows block %p, which is not live", block);
          SIM_CHECK(bytes >= at->second - at->first - 1, "a heap shows block %p with %zu bytes",
                    block, bytes);
        },
        nullptr);
    SIM_CHECK(visited == slot.blocks.size(), "a heap shows %zu blocks of %zu", visited,
              slot.blocks.size());
    sp_heap_statistics statistics{};
    sp_heap_stats(slot.heap, &statistics, sizeof statistics);
    SIM_CHECK(statistics.used_blocks == slot.blocks.size(), "a heap counts %zu blocks of %zu",
              statistics.used_blocks, slot.blocks.size());
    SIM_CHECK(slot.limit == 0 || statistics.taken_bytes <= slot.limit,
              "a heap has taken %zu bytes, beyond its limit of %zu", statistics.taken_bytes,
              slot.limit);
  }
}

void check_all(bool is_end) {
  inherit();
  Expected expected;
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
  refusals_before = 0;
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

void run_program(const Plan& the_plan) {
  plan = &the_plan;
  scheduler.set_cpus(plan->process.cpus);
  scheduler.set_signal_handler(&handle_signal);
  engine::start_process();
  for (const Phase& next : plan->phases) run_phase(next);
  if (!any_misuse) run_end();
}

}  // namespace spanalloc::simulation
