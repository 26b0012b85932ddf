// What the simulated program does with first-class heaps.
#include "program_calls.hpp"
#include "program_threads.hpp"

namespace spanalloc::simulation::program {

// --- First-class heaps ---------------------------------------------------------------------------

constexpr std::size_t kPiece = 64 * kKiB;

// Of what a heap without blocks has room for; each second time all of it (check_limit).
static std::size_t most_of_limit(Random& random, std::size_t limit) {
  const std::size_t room = limit - limit / 8;
  if (random.one_in(2) || room <= 4 * kPiece) return 1 + random.below(limit);
  return room - 4 * kPiece;
}

// A heap with a limit has refused a block. If it has no other, no other call for it was in flight
// at any time, and the kernel has refused nothing, then only its shards' homes, an eighth of the
// limit at most, and what the block needs beside itself leave no room.
static void check_limit(const FirstClassHeap& heap, bool was_alone, unsigned begun,
                        std::size_t bytes, std::size_t alignment) {
  if (heap.limit == 0 || !was_alone || heap.begun != begun || heap.torn || !heap.blocks.empty() ||
      may_be_refused())
    return;
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
    set_place(scheduler.self(), "heap_create(%d)", h);
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
    set_place(scheduler.self(), destroys ? "heap_destroy(%d)" : "heap_reset(%d)", h);
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
    if (what < (block.bytes > kSmall ? 7u : 3u)) {  // moves and new lengths of runs are rare else
      if (!reallocate(block, draw_size())) return;
      (block.heap == kNoHeap ? commons : slot.blocks).push_back(block);
    } else {
      release(block);
    }
    return;
  }
  if (what >= 11 && what < 14 && slot.limit != 0) {
    // One that is emptied has room for what takes most of its limit.
    while (!slot.blocks.empty() && slot.calls == 0) release(take_from(slot.blocks, phase->order));
    if (slot.closing || slot.heap == nullptr) return;  // by another thread, meanwhile
  }
  if (what == 10) {
    set_place(scheduler.self(), "heap_stats(%d)", h);
    const InCall call(h);
    sp_heap_statistics statistics{};
    sp_heap_stats(slot.heap, &statistics, sizeof statistics);
    return;
  }
  if (live_bytes > plan->most_bytes) return;
  Block block;
  const bool wants_most = what >= 11 && what < 14 && slot.limit != 0 && slot.blocks.empty();
  const std::size_t bytes = wants_most ? most_of_limit(random, slot.limit) : draw_size();
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

}  // namespace spanalloc::simulation::program
