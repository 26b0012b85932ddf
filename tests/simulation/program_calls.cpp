#include "program_calls.hpp"

#include "base/bits.hpp"

namespace spanalloc::simulation::program {

// --- Calls ---------------------------------------------------------------------------------------

void stop_for_ever() {
  for (;;) scheduler.idle();
}

bool may_be_refused() {
  return any_misuse || kernel.refusals() != refusals_before || kernel.plan().space_limit != 0 ||
         kernel.plan().open_limit != 0 || kernel.plan().mappings_limit != 0 ||
         kernel.plan().foreign != 0 ||  // somebody is faster than a step that was asked for
         (plan->process.arena_bits != 0 && vanished != 0) ||  // a small arena, and what forks lost
         (kernel.foreign_pages() != 0 && !engine::can_grow());
}

void check_errno(bool succeeded) {
  const int found = errno;
  SIM_CHECK(found == (succeeded ? kUntouched : ENOMEM), "errno is %d behind a call that %s", found,
            succeeded ? "succeeded" : "failed");
}

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

static bool anybody_gives() {
  for (unsigned t = 0; t < kMostThreads; ++t) {
    if (scheduler.lives(t) && threads[t].in_call && threads[t].gives) return true;
  }
  return false;
}

// Before a request: whether by its end anybody can have given something back, or the kernel granted
// it.
class Unhelped {
 public:
  bool holds() const {
    return !may_be_given_ && gifts_ == gifts_begun && forks_ == process.forks() &&
           grants_ == kernel.grants() && !any_misuse &&
           (!engine::allocations_give() || calls_ + 1 == calls_begun);
  }

 private:
  const bool may_be_given_ = me().in_call || anybody_gives() ||
                             (engine::allocations_give() && calls_in_flight != 0) ||
                             (engine::children_find_more() && process.is_child());
  const std::uint64_t gifts_ = gifts_begun;
  const std::uint64_t calls_ = calls_begun;
  const std::uint64_t forks_ = process.forks();
  const std::uint64_t grants_ = kernel.grants();
};

// A request was refused, and nobody else has given anything back while it ran: then there is
// nothing for it now either, unless the kernel grants more.
static void check_refused_again(std::size_t bytes) {
  set_place(scheduler.self(), "malloc(%zu), refused before", bytes);
  const Kernel::RefuseAll refuse(kernel);
  const InCall call(kNoHeap, Gives::no);
  scheduler.run_alone();
  void* const p = sp_malloc(bytes);
  if (p != nullptr && scheduler.yields_of_operation() != 0) return sp_free(p);  // others ran
  SIM_CHECK(p == nullptr, "%zu bytes were refused, and are there when asked for again", bytes);
}

bool allocate(Block& block) {
  Random& random = me().random;
  me().has_allocated = true;
  std::size_t bytes = draw_size();
  me().bytes_in_call = bytes;
  void* p = nullptr;
  bool zero = false;
  std::size_t alignment = bytes < 16 ? 8 : 16;
  switch (plan->has(Feature::aligned) ? random.below(8) : random.below(5)) {
    default: {
      const Unhelped unhelped;
      bool got = false;
      set_place(scheduler.self(), "malloc(%zu)", bytes);
      {
        const InCall call(kNoHeap, Gives::no);
        p = sp_malloc(bytes);
        got = accept(block, p, bytes, alignment, false);
      }
      if (!got) {
        if (unhelped.holds() && bytes <= engine::most_alike()) check_refused_again(bytes);
        return false;
      }
      break;
    }
    case 4: {
      set_place(scheduler.self(), "calloc(1, %zu)", bytes);
      const InCall call(kNoHeap, Gives::no);
      p = sp_calloc(1, bytes);
      if (!accept(block, p, bytes, alignment, false)) return false;
      zero = true;
      break;
    }
    case 5:
    case 6: {
      alignment = std::size_t{16} << random.below(random.one_in(4) ? 14 : 8);
      me().bytes_in_call = bytes + alignment;
      set_place(scheduler.self(), "aligned_alloc(%zu, %zu)", alignment, bytes);
      const InCall call(kNoHeap, Gives::no);
      p = sp_aligned_alloc(alignment, bytes);
      if (!accept(block, p, bytes, alignment, false)) return false;
      break;
    }
    case 7: {
      alignment = std::size_t{16} << random.below(6);
      set_place(scheduler.self(), "posix_memalign(%zu, %zu)", alignment, bytes);
      const InCall call(kNoHeap, Gives::no);
      const int error = sp_posix_memalign(&p, alignment, bytes);
      SIM_CHECK(error == (p == nullptr ? ENOMEM : 0), "posix_memalign returns %d", error);
      if (!accept(block, p, bytes, alignment, false)) return false;
      break;
    }
  }
  {
    const InCall call(kNoHeap, Gives::no);
    note_usable(block);
  }
  if (zero) check_zero(block.memory, block.bytes);
  block.heap = kNoHeap;
  enter(block);
  write_stamps(block);
  return true;
}

void release(Block block) {
  check_stamps(block);
  leave(block);
  set_place(scheduler.self(), "free(%p) of %zu bytes", static_cast<void*>(block.memory),
            block.bytes);
  me().bytes_in_call = block.bytes;
  const InCall call(block.heap);
  if (block.heap != kNoHeap && me().random.one_in(2)) {
    sp_heap_free(heaps[block.heap].heap, block.memory);
  } else {
    sp_free(block.memory);
  }
  check_errno(true);
}

bool reallocate(Block& block, std::size_t bytes) {
  check_stamps(block);
  leave(block);
  set_place(scheduler.self(), "realloc(%p, %zu) of %zu bytes", static_cast<void*>(block.memory),
            bytes, block.bytes);
  const Block before = block;
  const int heap = block.heap;
  bool is_resized = false;
  {
    const InCall call(heap);
    const bool in_heap = heap != kNoHeap && me().random.one_in(2);
    void* const p = in_heap ? sp_heap_realloc(heaps[heap].heap, block.memory, bytes)
                            : sp_realloc(block.memory, bytes);
    if (bytes == 0) {
      check_errno(true);
      SIM_CHECK(p == nullptr, "realloc(p, 0) returns %p", p);
      return false;
    }
    is_resized = accept(block, p, bytes, bytes < 16 ? 8 : 16, in_heap && heaps[heap].limit != 0);
    if (is_resized) {
      scheduler.drain_range(block.memory, block.bytes);
      check_stamps(before, block.memory, min_of(before.bytes, bytes));
      if (heap != kNoHeap && !in_heap && sp_heap_owns(heaps[heap].heap, block.memory) == 0)
        block.heap = kNoHeap;
      note_usable(block);
    }
  }
  // Behind the call: a thread whose handler has allocated comes no further, and has no block.
  if (!is_resized) {
    block = before;
    check_stamps(block);
  }
  enter(block);
  if (is_resized) write_stamps(block);
  return true;
}

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

}  // namespace spanalloc::simulation::program
