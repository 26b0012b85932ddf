// pages_coalescing: how often neighbours that are freed at once stay apart.
//
// Source: Leite and Rocha (ISMM 2019) section 5, "Coalescing Failures", Figure 8. A single
// region, one free block, exactly holds T x B blocks; they are allocated and randomly
// distributed, B to each of T threads (2 to 32), which then free them all at once. The number of
// free blocks that remain, less one, is the number of failures. The paper takes the mean of 1000
// runs and does not give the blocks' size.
//
// Ours: the same, blocks of one page unless told otherwise, each run on a manager of its own. Every
// run checks that the blocks cover the region without gap or overlap and that not one more could be
// had; the first also that all of them can be allocated again after the frees. The time is that of
// the frees; an operation is a free. Metrics: failures (mean of the runs), failures_max,
// failures_per_free. A manager that keeps no blocks has no coalescing to fail: exit code 3.
#include <sched.h>

#include <algorithm>

#include "pages/page_manager.hpp"

namespace {

struct Parameters {
  std::uint64_t threads, blocks, block_pages, runs;
  std::size_t total() const { return threads * blocks; }
};

class Experiment {
 public:
  Experiment(const pages::Choice& choice, const Parameters& p)
      : choice_(choice), p_(p), addresses_(p.total()) {}

  void run(std::uint64_t number) {
    const auto manager = choice_.create(p_.total() * p_.block_pages);
    workload::check(free_blocks(*manager) == 1,
                    "pages_coalescing: a new region is not one free block");
    allocate_all(*manager);
    workload::check(free_blocks(*manager) == 0 && !manager->allocate(p_.block_pages),
                    "pages_coalescing: the region holds more than was asked for");
    check_cover();
    shuffle(number);
    elapsed_ns_ += free_at_once(*manager);
    const std::uint64_t left = free_blocks(*manager);
    workload::check(left >= 1, "pages_coalescing: no free block after all were freed");
    sum_ += left - 1;
    max_ = std::max(max_, left - 1);
    if (number == 0) allocate_all(*manager);
  }

  void report(workload::Record& record) const {
    const auto runs = static_cast<double>(p_.runs);
    record.metric("failures", static_cast<double>(sum_) / runs);
    record.metric("failures_max", max_);
    record.metric("failures_per_free", static_cast<double>(sum_) / runs, p_.total());
    record.print(p_.total() * p_.runs, elapsed_ns_);
  }

 private:
  static std::uint64_t free_blocks(const pages::PageManager& manager) {
    const auto blocks = manager.free_blocks();
    if (!blocks)
      workload::unavailable("not applicable: this page manager keeps no free blocks to be counted");
    return *blocks;
  }

  void allocate_all(pages::PageManager& manager) {
    for (void*& address : addresses_) {
      address = manager.allocate(p_.block_pages);
      workload::check(address != nullptr, "pages_coalescing: the region does not hold all blocks");
    }
  }

  void check_cover() {
    std::sort(addresses_.begin(), addresses_.end());
    for (std::size_t i = 0; i < addresses_.size(); ++i)
      workload::check(static_cast<char*>(addresses_[i]) ==
                          static_cast<char*>(addresses_[0]) + i * p_.block_pages * pages::kPageSize,
                      "pages_coalescing: blocks overlap or leave gaps");
  }

  // Fisher and Yates.
  void shuffle(std::uint64_t seed) {
    workload::Random random(seed + 1);
    for (std::size_t i = addresses_.size(); i > 1; --i)
      std::swap(addresses_[i - 1], addresses_[random.below(i)]);
  }

  std::uint64_t free_at_once(pages::PageManager& manager) {
    std::atomic<std::uint64_t> ready{0};
    return workload::run_threads(p_.threads, [&](std::uint64_t thread) {
      // Woken one after the other, the threads would free after each other.
      ready.fetch_add(1);
      while (ready.load() < p_.threads) sched_yield();
      for (std::uint64_t i = 0; i < p_.blocks; ++i)
        manager.free(addresses_[thread * p_.blocks + i], p_.block_pages);
    });
  }

  const pages::Choice& choice_;
  const Parameters& p_;
  std::vector<void*> addresses_;
  std::uint64_t elapsed_ns_ = 0;
  std::uint64_t sum_ = 0;
  std::uint64_t max_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(
      argc, argv, "pages_coalescing", "Leite and Rocha (ISMM 2019) section 5, Figure 8",
      "free blocks that remain after threads have freed a whole region at once");
  pages::Choice choice(options);
  Parameters p;
  p.threads = options.integer("threads", 2, 1, 1024, "threads");
  p.blocks = options.integer("blocks", 1000, 1, 10'000'000, "blocks of each thread");
  p.block_pages = options.integer("block-pages", 1, 1, 1'000'000, "pages of a block");
  p.runs = options.integer("runs", 100, 1, 1'000'000, "runs; the paper's 1000");
  choice.done();

  Experiment experiment(choice, p);
  for (std::uint64_t i = 0; i < p.runs; ++i) experiment.run(i);
  workload::Record record(options, p.threads);
  experiment.report(record);
}
