// larson: a server whose threads replace objects at random, hand what is left
// to a successor, and end.
//
// Defined by: Larson, Krishnan: Memory allocation for long-running server
// applications (ISMM 1998). Used by:
//   scalloc (OOPSLA 2015) 7.2.3: 10 seconds, objects of 7 bytes, 10^3 objects a thread, 10^4 rounds
//   a slot before a thread hands over; throughput is reported; SuperMalloc (ISMM 2015) 9, Figure
//   11: "larson 10 7 500 1000 10000 1 8": 10 seconds, sizes from 7 to below 500, 1000 objects a
//   thread, 10^4 rounds, seed 1, 8 threads; mean time per operation and the standard deviation
//   among calls of malloc; a2alloc report 3: 1 to 8 threads (its parameters are not given).
// Here: as in the original, the main thread allocates every chain's first objects, sizes are
// uniform in [--low, --high), and one round of a thread replaces as many objects at random slots as
// it has slots. A thread that has run --rounds rounds starts its successor, which takes over the
// slots, and ends; each waits for its predecessor's end before it starts a successor, so never more
// than two threads of a chain exist. We scale the rounds: --generations threads a chain of --rounds
// each (the suite: 10 x 4000, divided by the number of chains; the papers' 10 seconds are some 10
// to 100 x 10^4), fixed, so that time per operation and memory compare. --seconds runs for a time
// instead, as the papers do.
//
// --latency 1 times every malloc and every free with two reads of the clock (some 20 ns
// each, part of what is reported) into a histogram each, and reports the mean and the
// standard deviation among calls.
//
// Operations: replacements, each a free and a malloc. Objects are stamped and checked at their
// free.
#include <cmath>
#include <latch>
#include <memory>
#include <system_error>

#include "support/mapped_array.hpp"
#include "support/stamp.hpp"
#include "support/workload.hpp"

namespace {

struct Parameters {
  std::uint64_t threads, low, high, objects, rounds, generations, seconds;
  bool latency;
};

struct Slot {
  void* object;
  std::uint32_t size;
  std::uint32_t version;  // tells apart the objects that follow each other in a slot
};

// Latencies of one call: the histogram for percentiles, exact sums for mean and deviation.
struct Latency {
  workload::Histogram histogram;
  double sum = 0, squares = 0;
  void record(std::uint64_t ns) {
    histogram.record(ns);
    const auto x = static_cast<double>(ns);
    sum += x;
    squares += x * x;
  }
  void merge(const Latency& other) {
    histogram.merge(other.histogram);
    sum += other.sum;
    squares += other.squares;
  }
  double mean() const {
    return histogram.count() == 0 ? 0 : sum / static_cast<double>(histogram.count());
  }
  double deviation() const {
    if (histogram.count() < 2) return 0;
    const auto n = static_cast<double>(histogram.count());
    return std::sqrt(std::max(0.0, (squares - sum * sum / n) / (n - 1)));
  }
};

// A line of threads, each the successor of the one before. Owned by its living thread; the
// hand-over is the creation of the next.
struct alignas(workload::kCacheLine) Chain {
  Chain(const Parameters& p, std::uint64_t number)
      : slots(p.objects), random(number + 1), salt((number + 1) << 32) {}
  workload::MappedArray<Slot> slots;
  workload::Random random;
  std::uint64_t salt;
  workload::LiveBytes live;
  std::uint64_t operations = 0;
  std::uint64_t generation = 0;
  std::uint64_t end_ns = 0;
  // Thread g has handle g % 3: its predecessor's is joined by it, its successor's is written by it.
  std::thread handles[3];
  Latency malloc_latency, free_latency;
};

struct World {
  explicit World(const Parameters& parameters)
      : p(parameters),
        gate(static_cast<std::ptrdiff_t>(p.threads + 1)),
        ended(static_cast<std::ptrdiff_t>(p.threads)) {}
  const Parameters p;
  std::barrier<> gate;  // first generation and the main thread
  std::latch ended;
  alignas(workload::kCacheLine) std::atomic<bool> stop{false};
};

template <bool timed, class Call>
auto measured(Latency& latency, Call call) {
  if constexpr (!timed) {
    return call();
  } else {
    const std::uint64_t begin = workload::now_ns();
    if constexpr (std::is_void_v<decltype(call())>) {
      call();
      latency.record(workload::now_ns() - begin);
    } else {
      auto* const result = call();
      latency.record(workload::now_ns() - begin);
      return result;
    }
  }
}

std::uint64_t stamp_of(const Chain& chain, const Slot& slot) {
  return workload::stamp_word(slot.object, slot.size, chain.salt + slot.version);
}

template <bool timed>
void fill(Chain& chain, Slot& slot, const Parameters& p) {
  const std::size_t size = p.low + chain.random.below(p.high - p.low);
  slot.object = measured<timed>(chain.malloc_latency, [&] { return std::malloc(size); });
  workload::check(slot.object != nullptr, "larson: malloc returned null");
  slot.size = static_cast<std::uint32_t>(size);
  ++slot.version;
  workload::stamp(slot.object, size, stamp_of(chain, slot));
  chain.live.add(size);
}

template <bool timed>
void empty(Chain& chain, Slot& slot) {
  workload::check(workload::stamped(slot.object, slot.size, stamp_of(chain, slot)),
                  "larson: an object was overwritten");
  chain.live.remove(slot.size);
  measured<timed>(chain.free_latency, [&] { std::free(slot.object); });
}

template <bool timed>
void replace_objects(World& world, Chain& chain) {
  const Parameters& p = world.p;
  const std::uint64_t wanted = p.rounds * p.objects;
  std::uint64_t done = 0;
  // Relaxed: only the moment of stopping depends on it.
  for (; done < wanted && !world.stop.load(std::memory_order_relaxed); ++done) {
    Slot& slot = chain.slots[chain.random.below(p.objects)];
    empty<timed>(chain, slot);
    fill<timed>(chain, slot, p);
  }
  chain.operations += done;
}

void live(World& world, Chain& chain) {
  const std::uint64_t generation = chain.generation;
  if (generation == 0) world.gate.arrive_and_wait();
  if (world.p.latency)
    replace_objects<true>(world, chain);
  else
    replace_objects<false>(world, chain);
  if (generation > 0) chain.handles[(generation - 1) % 3].join();
  const bool last = world.p.seconds > 0 ? world.stop.load(std::memory_order_relaxed)
                                        : generation + 1 == world.p.generations;
  if (last) {
    chain.end_ns = workload::now_ns();
    workload::measured_part_ends();
    world.ended.count_down();
    return;
  }
  chain.generation = generation + 1;
  try {
    chain.handles[(generation + 1) % 3] = std::thread(live, std::ref(world), std::ref(chain));
  } catch (const std::system_error&) {
    workload::fail("larson: a successor could not be started");
  }
}

// Returns the nanoseconds from the common start to the end of the last chain.
std::uint64_t run(World& world, std::vector<std::unique_ptr<Chain>>& chains) {
  for (auto& chain : chains)
    chain->handles[0] = std::thread(live, std::ref(world), std::ref(*chain));
  workload::measured_part_starts();
  const std::uint64_t start = workload::now_ns();
  world.gate.arrive_and_wait();
  if (world.p.seconds > 0) {
    workload::sleep_ms(1000 * world.p.seconds);
    world.stop.store(true, std::memory_order_relaxed);
  }
  world.ended.wait();
  std::uint64_t end = start;
  for (auto& chain : chains) {
    chain->handles[chain->generation % 3].join();
    end = std::max(end, chain->end_ns);
  }
  return end - start;
}

void report_latency(workload::Record& record, const char* call, const Latency& latency) {
  record.latency(call, latency.histogram);
  const std::string name = call;
  record.metric(name + "_mean_ns", latency.mean());
  record.metric(name + "_stddev_ns", latency.deviation());
  record.metric(name + "_p9999_ns", latency.histogram.percentile(0.9999));
  record.metric(name + "_max_ns", latency.histogram.max());
}

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "larson",
                            "Larson & Krishnan (ISMM 1998); scalloc 7.2.3; SuperMalloc 9",
                            "threads replace objects at random, hand them to a successor, and end");
  Parameters p{};
  p.threads = options.integer("threads", 2, 1, 1024, "chains of threads");
  p.low = options.integer("low", 7, 1, 1 << 20, "smallest size in bytes");
  p.high = options.integer("high", 8, 2, 1 << 20, "sizes are below this");
  p.objects = options.integer("objects", 1000, 1, 1 << 24, "slots of each chain");
  p.rounds = options.integer("rounds", 1000, 1, 1u << 30,
                             "rounds of a thread; a round replaces --objects objects");
  p.generations =
      options.integer("generations", 10, 1, 1u << 20, "threads of a chain, one after the other");
  p.seconds = options.integer("seconds", 0, 0, 3600,
                              "run for this time instead of --generations; 0: do not");
  p.latency = options.integer("latency", 0, 0, 1, "1 times every call") != 0;
  options.require(p.low < p.high, "--low must be below --high");
  options.done();

  std::vector<std::unique_ptr<Chain>> chains;
  for (std::uint64_t i = 0; i < p.threads; ++i) chains.push_back(std::make_unique<Chain>(p, i));
  for (auto& chain : chains)
    for (std::uint64_t i = 0; i < p.objects; ++i) fill<false>(*chain, chain->slots[i], p);
  World world(p);
  const std::uint64_t ns = run(world, chains);

  std::uint64_t operations = 0, generations = 0;
  std::int64_t peak = 0;
  Latency malloc_latency, free_latency;
  for (auto& chain : chains) {
    for (std::uint64_t i = 0; i < p.objects; ++i) empty<false>(*chain, chain->slots[i]);
    workload::check(chain->live.now() == 0, "larson: not every object was freed");
    operations += chain->operations;
    generations += chain->generation + 1;
    peak += chain->live.peak();
    malloc_latency.merge(chain->malloc_latency);
    free_latency.merge(chain->free_latency);
  }
  workload::Record record(options, p.threads);
  record.metric("threads_started", generations);
  if (p.latency) {
    report_latency(record, "malloc", malloc_latency);
    report_latency(record, "free", free_latency);
  }
  record.print(operations, ns, peak);
}
