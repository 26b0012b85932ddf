// shared_slots: threads replace blocks of random sizes at random places, some of which they share.
//
// Source: beyond the papers. Each thread has --slots places of its own; --shared places are
// everybody's. With each operation a thread allocates a block and puts it into one of its own
// places, or, with a chance of --share percent, exchanges it for the block in a shared place; then
// it frees what was there. So most frees are of the thread's own blocks, and the others are of
// whatever thread's, in no order. That is what a server does that keeps a cache for all its
// threads.
//
// --seed 0 takes the options as they are. Any other draws what they vary by: a half to twice the
// places, a half to twice the share, and the bounds of the sizes likewise.
//
// Operations: replacements. Blocks are stamped and checked at their free.
#include <atomic>

#include "support/mapped_array.hpp"
#include "support/stamp.hpp"
#include "support/workload.hpp"

namespace {

struct Parameters {
  std::uint64_t slots, shared, share, low, high, operations;
};

// A block says itself how large it is and what it was stamped with, so that a place is one word.
struct Head {
  std::uint32_t size;
  std::uint32_t salt;
};

void* make(workload::Random& random, const Parameters& p, workload::LiveBytes& live) {
  const std::size_t size = random.between(p.low, p.high);
  auto* const block = static_cast<Head*>(std::malloc(size));
  workload::check(block != nullptr, "shared_slots: malloc returned null");
  *block = {static_cast<std::uint32_t>(size), static_cast<std::uint32_t>(random.next())};
  workload::stamp(block, size, workload::stamp_word(block, size, block->salt), sizeof(Head));
  live.add(size);
  return block;
}
void free_block(void* p, workload::LiveBytes& live) {
  if (p == nullptr) return;
  const auto* const block = static_cast<Head*>(p);
  const std::size_t size = block->size;
  workload::check(
      workload::stamped(p, size, workload::stamp_word(p, size, block->salt), sizeof(Head)),
      "shared_slots: a block was overwritten");
  live.remove(size);
  std::free(p);
}

// A half to twice as much.
std::uint64_t vary(workload::Random& random, std::uint64_t n) {
  return n / 2 + random.below(n + n / 2 + 1);
}

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "shared_slots", "beyond the papers",
                            "threads replace blocks at random places, some of which they share");
  const auto threads = options.integer("threads", 2, 1, 1024, "threads");
  const auto seed = options.integer("seed", 0, 0, 1u << 30, "0: as given; else what varies them");
  Parameters p;
  p.slots = options.integer("slots", 1024, 1, 1 << 24, "places that a thread has of its own");
  p.shared = options.integer("shared", 1024, 1, 1 << 24, "places that all threads have");
  p.share = options.integer("share", 25, 0, 50, "replacements of a hundred that are shared");
  p.low = options.integer("low", 16, 16, 1 << 20, "smallest block in bytes");
  p.high = options.integer("high", 495, 16, 1 << 21, "largest block in bytes");
  p.operations =
      options.integer("operations", 1'000'000, 1, 1'000'000'000, "replacements of each thread");
  options.require(p.low <= p.high, "--low must not exceed --high");
  options.done();
  if (seed != 0) {
    workload::Random random(seed);
    for (std::uint64_t* value : {&p.slots, &p.shared, &p.share, &p.high})
      *value = vary(random, *value);
    p.high = p.high > p.low ? p.high : p.low;
  }

  workload::MappedArray<std::atomic<void*>> shared(p.shared);
  workload::MappedArray<void*> own(threads * p.slots);
  workload::MappedArray<workload::LiveBytes> live(threads);
  const std::uint64_t elapsed = workload::run_threads(threads, [&](std::uint64_t t) {
    workload::Random random(seed * threads + t + 1);
    void** const mine = &own[t * p.slots];
    for (std::uint64_t i = 0; i < p.operations; ++i) {
      void* block = make(random, p, live[t]);
      if (random.below(100) < p.share) {
        block = shared[random.below(p.shared)].exchange(block, std::memory_order_acq_rel);
      } else {
        std::swap(block, mine[random.below(p.slots)]);
      }
      free_block(block, live[t]);
    }
    for (std::uint64_t i = 0; i < p.slots; ++i) free_block(mine[i], live[t]);
  });
  for (std::uint64_t i = 0; i < p.shared; ++i) free_block(shared[i].load(), live[0]);
  std::int64_t left = 0;
  std::int64_t peak = 0;
  for (std::uint64_t t = 0; t < threads; ++t) {
    left += live[t].now();
    peak += live[t].peak();
  }
  workload::check(left == 0, "shared_slots: a block was overwritten, or not freed");
  workload::Record(options, threads).print(threads * p.operations, elapsed, peak);
}
