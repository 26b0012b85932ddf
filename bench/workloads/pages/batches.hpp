// Batches of one-page allocations and then as many frees, by independent threads: what
// linux-scalability and threadtest have in common in pages.
#ifndef SPANALLOC_BENCH_PAGE_BATCHES_HPP
#define SPANALLOC_BENCH_PAGE_BATCHES_HPP

#include <algorithm>

#include "pages/access.hpp"

namespace pages {

struct Batches {
  std::uint64_t threads, batches, blocks;
  std::size_t region() const { return threads * blocks; }
};

// Returns nanoseconds.
template <class Access>
std::uint64_t run_batches(Access access, const Batches& b) {
  std::vector<std::vector<void*>> addresses(b.threads);
  for (std::vector<void*>& a : addresses) a.resize(b.blocks);
  return workload::run_threads(b.threads, [&](std::uint64_t thread) {
    std::vector<void*>& mine = addresses[thread];
    for (std::uint64_t batch = 0; batch < b.batches; ++batch) {
      for (void*& address : mine) address = access.allocate(1, thread + 1);
      for (void* address : mine) access.free(address, 1, thread + 1);
    }
  });
}

// The checked run, the measured run, the record.
inline void measure_batches(const workload::Options& options, const Choice& choice,
                            const Batches& measured) {
  const Batches reduced{measured.threads, std::min<std::uint64_t>(measured.batches, 4),
                        std::min<std::uint64_t>(measured.blocks, 64)};
  run_batches(Checked(*choice.create(measured.region()), measured.region()), reduced);

  const std::unique_ptr<PageManager> manager = choice.create(measured.region());
  const std::uint64_t elapsed = run_batches(Untouched(*manager, measured.region()), measured);
  workload::Record record(options, measured.threads);
  if (const auto blocks = manager->free_blocks()) record.metric("free_blocks", *blocks);
  record.print(measured.threads * measured.batches * measured.blocks, elapsed);
}

}  // namespace pages

#endif  // SPANALLOC_BENCH_PAGE_BATCHES_HPP
