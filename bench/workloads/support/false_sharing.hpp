// Whether an allocator puts blocks that two threads use at the same time into one cache line:
// decided by addresses, so the answer is exact and does not depend on the machine's load.
//
// A judged round: the threads allocate --held blocks each, in turns, so that their allocations
// interleave; when all hold theirs, the blocks' cache lines are compared across threads; then each
// thread frees its own. All blocks are held at the same time, so a line with blocks of two threads
// is false sharing, not the later and harmless reuse of a block by another thread.
//
// Hoard's programs hold one block a thread. Whether two neighbouring blocks lie in one line
// then depends on where in a line the first happens to lie; with several the answer is a
// property of the allocator.
#ifndef SPANALLOC_BENCH_FALSE_SHARING_HPP
#define SPANALLOC_BENCH_FALSE_SHARING_HPP

#include "support/mapped_array.hpp"
#include "support/workload.hpp"

namespace workload {

class FalseSharingJudge {
 public:
  FalseSharingJudge(std::uint64_t threads, std::size_t size, std::size_t held)
      : size_(size), gate_(static_cast<std::ptrdiff_t>(threads)) {
    for (std::uint64_t i = 0; i < threads; ++i) blocks_.emplace_back(held);
    thread_of_line_ = MappedArray<Owner>(table_size(threads * held * (size / kCacheLine + 2)));
  }

  // Called by every thread with its number; the calls of all threads make one round.
  void round(std::uint64_t thread) {
    MappedArray<void*>& mine = blocks_[thread];
    for (std::size_t k = 0; k < mine.size(); ++k) {
      mine[k] = std::malloc(size_);
      check(mine[k] != nullptr, "malloc returned null");
      gate_.arrive_and_wait();
    }
    if (thread == 0) compare();
    gate_.arrive_and_wait();
    for (std::size_t k = 0; k < mine.size(); ++k) std::free(mine[k]);
  }
  void wait_for_all() { gate_.arrive_and_wait(); }

  std::uint64_t rounds() const { return rounds_; }
  std::uint64_t rounds_with_sharing() const { return shared_rounds_; }
  // The most cache lines with blocks of several threads in one round.
  std::uint64_t most_lines() const { return most_lines_; }

 private:
  struct Owner {
    std::uintptr_t line;
    std::uint64_t thread;
    std::uint64_t round;  // the entry is empty unless it is of this round, counted from 1
    bool shared;
  };
  static std::size_t table_size(std::size_t lines) { return std::bit_ceil(2 * lines); }

  Owner& owner_of(std::uintptr_t line) {
    const std::size_t mask = thread_of_line_.size() - 1;
    std::size_t at = line * 0x9e3779b97f4a7c15u >> 20 & mask;
    while (thread_of_line_[at].round == rounds_ && thread_of_line_[at].line != line)
      at = (at + 1) & mask;
    return thread_of_line_[at];
  }
  void compare() {
    ++rounds_;
    std::uint64_t shared = 0;
    for (std::uint64_t thread = 0; thread < blocks_.size(); ++thread) {
      for (std::size_t k = 0; k < blocks_[thread].size(); ++k) {
        const auto at = reinterpret_cast<std::uintptr_t>(blocks_[thread][k]);
        for (std::uintptr_t line = at / kCacheLine; line <= (at + size_ - 1) / kCacheLine; ++line) {
          Owner& owner = owner_of(line);
          if (owner.round != rounds_) {
            owner = {line, thread, rounds_, false};
          } else if (owner.thread != thread && !owner.shared) {
            owner.shared = true;
            ++shared;
          }
        }
      }
    }
    if (shared > 0) ++shared_rounds_;
    if (shared > most_lines_) most_lines_ = shared;
  }

  const std::size_t size_;
  std::vector<MappedArray<void*>>
      // Each on pages of its own: the judge must not be what it looks for
      blocks_;
  MappedArray<Owner> thread_of_line_;  // hash table with linear probing; thread 0's
  std::barrier<> gate_;
  std::uint64_t rounds_ = 0, shared_rounds_ = 0, most_lines_ = 0;
};

struct FalseSharingParameters {
  std::uint64_t threads, size, held, iterations, repetitions;

  static FalseSharingParameters from(Options& options) {
    FalseSharingParameters p{};
    p.threads = options.integer("threads", 2, 1, 1024, "threads");
    p.size = options.integer("size", 8, 1, 4096, "bytes of an object");
    p.held = options.integer("held", 4, 1, 1024, "objects that a thread holds at once; Hoard's: 1");
    p.iterations = options.integer("iterations", 1000, 1, 1u << 30,
                                   "times that a thread allocates and frees them");
    p.repetitions =
        options.integer("repetitions", 20'000, 1, 1u << 30,
                        "passes over the objects of an iteration, divided by the threads");
    options.done();
    return p;
  }
  std::uint64_t passes() const { return repetitions / threads > 0 ? repetitions / threads : 1; }
  std::uint64_t operations() const { return threads * iterations * held * passes(); }
  std::uint64_t live_bytes() const { return threads * held * size; }
};

// The loop of Hoard's two programs: allocate, write every byte in each pass, check, free.
inline void write_and_replace(const FalseSharingParameters& p, void** objects) {
  const std::uint64_t passes = p.passes();
  for (std::uint64_t i = 0; i < p.iterations; ++i) {
    for (std::uint64_t k = 0; k < p.held; ++k) {
      objects[k] = std::malloc(p.size);
      check(objects[k] != nullptr, "malloc returned null");
      __builtin_memset(objects[k], static_cast<int>((i + k) & 0xff), p.size);
    }
    for (std::uint64_t pass = 0; pass < passes; ++pass) {
      for (std::uint64_t k = 0; k < p.held; ++k) {
        auto* const bytes = static_cast<volatile unsigned char*>(objects[k]);
        for (std::uint64_t b = 0; b < p.size; ++b)
          bytes[b] = static_cast<unsigned char>(bytes[b] + 1);
      }
    }
    for (std::uint64_t k = 0; k < p.held; ++k) {
      const auto* const bytes = static_cast<unsigned char*>(objects[k]);
      for (std::uint64_t b = 0; b < p.size; ++b)
        check(bytes[b] == static_cast<unsigned char>(i + k + passes), "an object was overwritten");
      std::free(objects[k]);
    }
  }
}

inline constexpr int kJudgedRounds = 16;

// In every thread: `before(thread)`, judged rounds, the timed loop, judged rounds again,
// `after(thread)`. Returns the nanoseconds of the timed loop, from the first thread's
// start to the last one's end.
template <class Before, class After>
std::uint64_t run_judged(FalseSharingJudge& judge, const FalseSharingParameters& p, Before before,
                         After after) {
  struct alignas(kCacheLine) Times {
    std::uint64_t start, end;
  };
  MappedArray<Times> times(p.threads);
  std::vector<MappedArray<void*>> tables;
  for (std::uint64_t i = 0; i < p.threads; ++i) tables.emplace_back(p.held);
  run_threads(p.threads, [&](std::uint64_t thread) {
    before(thread);
    for (int i = 0; i < kJudgedRounds; ++i) judge.round(thread);
    judge.wait_for_all();
    times[thread].start = now_ns();
    write_and_replace(p, tables[thread].data());
    times[thread].end = now_ns();
    for (int i = 0; i < kJudgedRounds; ++i) judge.round(thread);
    after(thread);
  });
  std::uint64_t start = times[0].start, end = times[0].end;
  for (std::uint64_t i = 1; i < p.threads; ++i) {
    if (times[i].start < start) start = times[i].start;
    if (times[i].end > end) end = times[i].end;
  }
  return end - start;
}

inline void record_judged(Record& record, const FalseSharingJudge& judge) {
  record.metric("false_sharing", judge.rounds_with_sharing() > 0 ? 1 : 0);
  record.metric("judged_rounds", judge.rounds());
  record.metric("rounds_with_false_sharing", judge.rounds_with_sharing());
  record.metric("shared_lines", judge.most_lines());
}

}  // namespace workload

#endif  // SPANALLOC_BENCH_FALSE_SHARING_HPP
