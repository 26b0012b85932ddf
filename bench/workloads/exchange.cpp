// exchange: one thread allocates, others free at random what it has allocated long before.
//
// Source: beyond the papers. A table of --objects blocks. Thread 0 allocates a block for each
// exchange and hands it on, in lots of 64, to the other threads in turn; each of them puts it at a
// random place of its part of the table and frees the block that was there. So every free is
// another thread's, and of a span that the thread has freed nothing of for long: runs of frees of
// one span do not come. An operation is one exchange.
#include <atomic>
#include <thread>

#include "support/mapped_array.hpp"
#include "support/stamp.hpp"
#include "support/workload.hpp"

namespace {

constexpr std::size_t kLot = 64;
constexpr std::size_t kLots = 32;  // a queue's

struct Parcel {
  void* block;
  std::uint64_t unique;  // what its contents say besides its address
};

// From thread 0 to one of the others; no lock.
struct alignas(workload::kCacheLine) Queue {
  alignas(workload::kCacheLine) std::atomic<std::uint64_t> put{0};
  alignas(workload::kCacheLine) std::atomic<std::uint64_t> taken{0};
  Parcel blocks[kLots][kLot];
};

void wait_a_moment(unsigned& tries) {
  if (++tries % 16 == 0) std::this_thread::yield();
}

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(
      argc, argv, "exchange", "beyond the papers",
      "one thread allocates, others free at random what it allocated long before");
  const auto threads = options.integer("threads", 4, 2, 1000, "threads; one of them allocates");
  const auto objects = options.integer("objects", 1'000'000, 1, 100'000'000, "blocks alive");
  const auto size = options.integer("size", 64, 8, 1 << 20, "bytes of a block");
  const auto exchanges = options.integer("exchanges", 4'000'000, 1, 1'000'000'000, "exchanges");
  options.done();

  const std::uint64_t takers = threads - 1;
  const std::uint64_t part = (objects + takers - 1) / takers;
  const std::uint64_t lots = (exchanges + takers * kLot - 1) / (takers * kLot);  // of each taker
  workload::MappedArray<Parcel> table(part * takers);
  workload::MappedArray<Queue> queues(takers);
  std::uint64_t elapsed = 0;
  std::uint64_t count = 0;  // thread 0's
  const auto allocate = [&] {
    void* p = std::malloc(size);
    workload::check(p != nullptr, "exchange: malloc returned null");
    workload::stamp(p, size, workload::stamp_word(p, size, ++count));
    return Parcel{p, count};
  };
  const auto give_back = [&](const Parcel& p) {
    workload::check(workload::stamped(p.block, size, workload::stamp_word(p.block, size, p.unique)),
                    "exchange: a block lost contents");
    std::free(p.block);
  };
  // The table is thread 0's to fill: whoever frees a block of it is another one.
  const auto hand_on = [&] {
    for (std::uint64_t i = 0; i < part * takers; ++i) table[i] = allocate();
    workload::measured_part_starts();
    const std::uint64_t begin = workload::now_ns();
    for (std::uint64_t lot = 0; lot <= lots; ++lot) {
      for (std::uint64_t t = 0; t < takers; ++t) {
        Queue& queue = queues[t];
        for (unsigned tries = 0; lot - queue.taken.load(std::memory_order_acquire) == kLots;) {
          wait_a_moment(tries);
        }
        if (lot < lots) {
          for (Parcel& parcel : queue.blocks[lot % kLots]) parcel = allocate();
        }
        queue.put.store(lot + 1, std::memory_order_release);
      }
    }
    for (std::uint64_t t = 0; t < takers; ++t) {
      for (unsigned tries = 0; queues[t].taken.load(std::memory_order_acquire) <= lots;)
        wait_a_moment(tries);
    }
    elapsed = workload::now_ns() - begin;
    workload::measured_part_ends();
  };
  const auto take = [&](std::uint64_t t) {
    Queue& queue = queues[t];
    workload::Random random(t + 1);
    for (std::uint64_t lot = 0; lot <= lots; ++lot) {
      for (unsigned tries = 0; queue.put.load(std::memory_order_acquire) <= lot;)
        wait_a_moment(tries);
      if (lot < lots) {
        for (const Parcel& parcel : queue.blocks[lot % kLots]) {
          Parcel& place = table[t * part + random.between(0, part - 1)];
          const Parcel old = place;
          place = parcel;
          give_back(old);
        }
      }
      queue.taken.store(lot + 1, std::memory_order_release);
    }
  };
  workload::run_threads(threads, [&](std::uint64_t i) { i == 0 ? hand_on() : take(i - 1); });
  for (std::uint64_t i = 0; i < part * takers; ++i) give_back(table[i]);

  workload::Record(options, threads).print(lots * kLot * takers, elapsed, part * takers * size);
}
