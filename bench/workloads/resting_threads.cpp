// Threads that have worked once and rest from then on: what their caches hold.
// Source: beyond the papers.
//
// Each of `threads` threads in turn, one at a time, allocates blocks of `sizes` sizes, log-spaced
// from 16 bytes to `high`, `burst-kib` KiB in all and at least one of each, writes every page of
// them, frees them but for one of each size where `keep` is 1, and sleeps. When all sleep the
// program looks what is resident (RSS + page tables, less what the process had with all threads
// started and before the first block); again after `rest-ms` milliseconds in which the main thread
// every 5 ms allocates and frees a block of each size; and after malloc_trim(0). Metrics: idle_mib,
// rested_mib, trimmed_mib, live_mib, and rested_over_live where something is kept. An operation is
// one malloc with its free; what is timed is the threads' work.
#include <malloc.h>
#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <semaphore>

#include "support/resident.hpp"
#include "support/stamp.hpp"
#include "support/workload.hpp"

namespace {

using workload::mib;

constexpr std::size_t kPageSize = 4096;

struct Shape {
  std::vector<std::size_t> sizes;
  std::vector<std::uint64_t> counts;  // blocks of each size in a burst
  bool keep = false;
};

struct Block {
  unsigned char* memory = nullptr;
  std::size_t size = 0;
  unsigned char mark = 0;  // another one than its neighbours'
};

Block allocate(std::size_t size, std::size_t id) {
  const Block b{static_cast<unsigned char*>(std::malloc(size)), size,
                static_cast<unsigned char>(id)};
  workload::check(b.memory != nullptr, "resting_threads: malloc returned null");
  for (std::size_t at = 0; at < size; at += kPageSize) b.memory[at] = b.mark;
  b.memory[size - 1] = b.mark;
  return b;
}

void drop(const Block& b) {
  workload::check(b.memory[0] == b.mark && b.memory[b.size - 1] == b.mark,
                  "resting_threads: a block was overwritten");
  std::free(b.memory);
}

class alignas(workload::kCacheLine) Sleeper {
 public:
  void start(const Shape& shape, std::counting_semaphore<>& told) {
    shape_ = &shape;
    told_ = &told;
    std::uint64_t most = 0;
    for (const std::uint64_t n : shape.counts) most += n;
    blocks_.resize(most);
    kept_.resize(shape.keep ? shape.sizes.size() : 0);
    thread_ = workload::start_small_thread(run, this);
  }
  void wake() { awake_.release(); }
  void join() { pthread_join(thread_, nullptr); }

 private:
  static void* run(void* self) {
    static_cast<Sleeper*>(self)->work_and_sleep();
    return nullptr;
  }
  void work_and_sleep() {
    told_->release();  // started
    awake_.acquire();
    std::size_t n = 0;
    for (std::size_t s = 0; s < shape_->sizes.size(); ++s) {
      for (std::uint64_t i = 0; i < shape_->counts[s]; ++i) {
        blocks_[n] = allocate(shape_->sizes[s], n);
        ++n;
      }
    }
    // Of each size the one in the middle stays.
    n = 0;
    for (std::size_t s = 0; s < shape_->sizes.size(); ++s) {
      for (std::uint64_t i = 0; i < shape_->counts[s]; ++i, ++n) {
        if (shape_->keep && i == shape_->counts[s] / 2) {
          kept_[s] = blocks_[n];
        } else {
          drop(blocks_[n]);
        }
      }
    }
    told_->release();  // has worked
    awake_.acquire();
    for (const Block& b : kept_) drop(b);
  }

  const Shape* shape_ = nullptr;
  std::counting_semaphore<>* told_ = nullptr;
  std::counting_semaphore<> awake_{0};
  pthread_t thread_{};
  std::vector<Block> blocks_, kept_;
};

void pass_by(const Shape& shape, std::uint64_t ms) {
  for (std::uint64_t i = 0; i < ms / 5; ++i) {
    workload::sleep_ms(5);
    for (const std::size_t size : shape.sizes) drop(allocate(size, size));
  }
}

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "resting_threads", "beyond the papers",
                            "threads that have worked once and rest from then on");
  const auto threads = options.integer("threads", 200, 1, 100000, "threads");
  const auto sizes = options.integer("sizes", 20, 1, 512, "sizes of blocks");
  const auto high = options.integer("high", 32768, 32, 1u << 30, "the largest of them in bytes");
  const auto burst_kib = options.integer("burst-kib", 1024, 0, 1u << 30, "KiB of a thread's work");
  const bool keep = options.integer("keep", 0, 0, 1, "1: one block of each size stays") != 0;
  const auto rest_ms = options.integer("rest-ms", 1000, 0, 100000, "milliseconds of rest");
  options.done();

  Shape shape;
  shape.keep = keep;
  std::uint64_t a_thread = 0;
  std::int64_t live = 0;
  for (std::uint64_t i = 0; i < sizes; ++i) {
    const double share = sizes == 1 ? 1 : static_cast<double>(i) / static_cast<double>(sizes - 1);
    const auto size =
        static_cast<std::size_t>(16 * std::pow(static_cast<double>(high) / 16, share));
    shape.sizes.push_back(size);
    shape.counts.push_back(std::max<std::uint64_t>(1, burst_kib * 1024 / sizes / size));
    a_thread += shape.counts.back();
    if (keep) live += static_cast<std::int64_t>(size * threads);
  }

  std::counting_semaphore<> told(0);
  const auto sleepers = std::make_unique<Sleeper[]>(threads);
  for (std::uint64_t i = 0; i < threads; ++i) sleepers[i].start(shape, told);
  for (std::uint64_t i = 0; i < threads; ++i) told.acquire();
  const std::int64_t before = workload::resident_bytes();

  const std::uint64_t begin = workload::now_ns();
  for (std::uint64_t i = 0; i < threads; ++i) {
    sleepers[i].wake();
    told.acquire();
  }
  const std::uint64_t elapsed = workload::now_ns() - begin;
  const std::int64_t idle = workload::resident_bytes() - before;
  pass_by(shape, rest_ms);
  const std::int64_t rested = workload::resident_bytes() - before;
  malloc_trim(0);
  const std::int64_t trimmed = workload::resident_bytes() - before;
  for (std::uint64_t i = 0; i < threads; ++i) sleepers[i].wake();
  for (std::uint64_t i = 0; i < threads; ++i) sleepers[i].join();

  workload::Record record(options, threads);
  record.metric("idle_mib", mib(idle));
  record.metric("rested_mib", mib(rested));
  record.metric("trimmed_mib", mib(trimmed));
  record.metric("live_mib", mib(live));
  if (live > 0) record.metric("rested_over_live", rested, live);
  record.print(threads * a_thread, elapsed);
}
