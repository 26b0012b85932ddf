// pages_larson: Larson's server in pages, whose threads end and are replaced.
//
// Source: Leite and Rocha (ISMM 2019) section 5, Figure 7; after Larson and Krishnan (ISMM 1998).
// Each of 1 to 32 threads works on its slice, 100 slots, of a shared array: 100 allocations of 1 to
// 128 pages, each stored in a random slot of the slice after what is there has been freed. Then the
// thread is destroyed and its slice given to a new one. The pages are not touched. The paper runs
// for 5 s and reports allocations a second.
//
// Ours: a fixed number of lives a slice, or with --milliseconds a fixed time. A thread's
// successor is created by the thread itself and waits for its end, so that at no time more than
// one thread works on a slice. The region has twice the pages that the slots can hold. An
// operation is one allocation, and its free where the slot was taken; creating and destroying
// the threads is in the time.
#include <pthread.h>

#include <algorithm>
#include <latch>

#include "pages/access.hpp"

namespace {

struct Parameters {
  std::uint64_t threads, lives, requests, slots, low, high, milliseconds;
};

struct Slot {
  void* address = nullptr;
  std::size_t count = 0;
};

template <class Access>
class Server {
 public:
  Server(Access access, const Parameters& p)
      : access_(access), p_(p), ended_(static_cast<std::ptrdiff_t>(p.threads)) {
    for (std::uint64_t i = 0; i < p.threads; ++i) slices_.emplace_back(*this, i);
  }

  // Returns nanoseconds.
  std::uint64_t run() {
    const std::uint64_t begin = workload::now_ns();
    deadline_ns_ = begin + p_.milliseconds * 1'000'000;
    for (Slice& slice : slices_) start(slice);
    ended_.wait();
    const std::uint64_t elapsed = workload::now_ns() - begin;
    for (Slice& slice : slices_) {
      pthread_join(slice.worker, nullptr);
      for (const Slot& slot : slice.slots)
        if (slot.address) access_.free(slot.address, slot.count, slice.owner);
    }
    return elapsed;
  }

  std::uint64_t allocations() const {
    std::uint64_t sum = 0;
    for (const Slice& slice : slices_) sum += slice.lives * p_.requests;
    return sum;
  }

 private:
  // Belongs to the one thread that works on it, handed on by creating the next.
  struct alignas(workload::kCacheLine) Slice {
    Slice(Server& s, std::uint64_t index)
        : server(s), owner(index + 1), random(index + 1), slots(s.p_.slots) {}
    Server& server;
    const std::uint64_t owner;
    workload::Random random;
    std::vector<Slot> slots;
    std::uint64_t lives = 0;
    pthread_t worker{};
  };

  static void start(Slice& slice) {
    pthread_t next;
    workload::check(pthread_create(&next, nullptr, live, &slice) == 0,
                    "pages_larson: no more threads");
  }

  static void* live(void* argument) {
    Slice& slice = *static_cast<Slice*>(argument);
    if (slice.lives > 0) pthread_join(slice.worker, nullptr);
    slice.worker = pthread_self();
    slice.server.work(slice);
    return nullptr;
  }

  void work(Slice& slice) {
    for (std::uint64_t i = 0; i < p_.requests; ++i) {
      Slot& slot = slice.slots[slice.random.below(slice.slots.size())];
      if (slot.address) access_.free(slot.address, slot.count, slice.owner);
      slot.count = slice.random.between(p_.low, p_.high);
      slot.address = access_.allocate(slot.count, slice.owner);
    }
    ++slice.lives;
    if (p_.milliseconds > 0 ? workload::now_ns() < deadline_ns_ : slice.lives < p_.lives)
      start(slice);
    else
      ended_.count_down();
  }

  Access access_;
  const Parameters& p_;
  std::vector<Slice> slices_;
  std::uint64_t deadline_ns_ = 0;
  std::latch ended_;
};

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(
      argc, argv, "pages_larson", "Leite and Rocha (ISMM 2019) section 5, Figure 7",
      "random blocks of pages in slots, by threads that end and are replaced");
  pages::Choice choice(options);
  Parameters p;
  p.threads = options.integer("threads", 1, 1, 1024, "threads at a time");
  p.lives = options.integer("lives", 1000, 1, 1'000'000'000,
                            "threads that work on a slice after each other");
  p.requests = options.integer("requests", 100, 1, 1'000'000'000,
                               "allocations in a thread's life; the paper's 100");
  p.slots = options.integer("slots", 100, 1, 1'000'000, "slots of a slice; the paper's 100");
  p.low = options.integer("low", 1, 1, 1'000'000, "smallest block in pages; the paper's 1");
  p.high = options.integer("high", 128, 1, 1'000'000, "largest block in pages; the paper's 128");
  p.milliseconds = options.integer("milliseconds", 0, 0, 3'600'000,
                                   "run for this time in place of `lives`; the paper's 5000");
  options.require(p.low <= p.high, "--low must not exceed --high");
  choice.done();

  const std::size_t region = 2 * p.threads * p.slots * p.high;
  Parameters reduced = p;
  reduced.lives = std::min<std::uint64_t>(p.lives, 8);
  // What is claimed is touched: little of it at a time
  reduced.slots = std::min<std::uint64_t>(p.slots, 8);
  reduced.milliseconds = 0;
  {
    const auto manager = choice.create(region);
    Server(pages::Checked(*manager, region), reduced).run();
  }

  const auto manager = choice.create(region);
  Server server(pages::Untouched(*manager, region), p);
  workload::Record record(options, p.threads);
  const std::uint64_t elapsed = server.run();
  record.metric("allocations_per_s", static_cast<double>(server.allocations()) * 1e9, elapsed);
  if (const auto blocks = manager->free_blocks()) record.metric("free_blocks", *blocks);
  record.print(server.allocations(), elapsed);
}
