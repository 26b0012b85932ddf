// Mixes of sizes and lifetimes as programs have them. Source: beyond the papers.
//
// Each thread plays a table of (size, lifetime) pairs: step t allocates an object, and frees
// those whose lifetime, in steps, ends at t. Threads share nothing but the table. An operation is
// one malloc with its free.
//
// The distributions are shapes, not traces. Only `keyvalue` takes its numbers from a publication;
// those of the others are ours, chosen to have the properties named:
//   compiler  Nodes of a dozen fixed sizes (16 to 128 bytes), identifiers, arrays that are powers
//             of two, a few buffers. More than half die at once; of the rest most live to the end
//             of a "function" of 3,000 allocations and die together with it; one in twenty stays
//             for long.
//   browser   Small objects rule (85 % up to 256 bytes), with a tail to 512 KiB that holds most of
//             the bytes. Three in four die within some hundred allocations, one in five lives for
//             thousands, the rest stays.
//   keyvalue  Keys and values of a store at random replacement (exponential lifetimes: nothing dies
//             young). Sizes are the fits to Facebook's ETC pool in Atikoglu et al., "Workload
//             Analysis of a Large-Scale Key-Value Store", SIGMETRICS 2012: keys generalised extreme
//             value (30.7984, 8.20449, 0.078688), values generalised Pareto (0, 214.476, 0.348238);
//             its separate table for values under 15 bytes is left out.
//   web       32 requests in flight, served in turn. Each takes a buffer of 4, 8 or 16 KiB and 120
//             smaller objects; four in ten of these die on the way, the rest together at the
//             request's end; one in a hundred survives in a cache.
//   powerlaw  P(size > s) = 16 / s from 16 bytes to 1 MiB, so that every doubling of size has the
//             same share of the bytes; P(lifetime > t) = t^-1/2. Heavy tails in both, drawn
//             independently.
#include <algorithm>

#include "support/mapped_array.hpp"
#include "support/sizes.hpp"
#include "support/stamp.hpp"
#include "support/workload.hpp"

namespace {

using workload::log_uniform;
using workload::Random;

constexpr std::size_t kEvents = std::size_t{1} << 16;  // entries of the table, read in a circle
constexpr std::uint64_t kWheel = std::uint64_t{1} << 17;
constexpr std::uint64_t kLongest = kWheel - 1;  // lifetimes are below the wheel's turn

struct Event {
  std::uint32_t size;
  std::uint32_t lifetime;  // 1 to kLongest
};

class Events {
 public:
  void push_back(Event e) { table_[size_++] = e; }
  std::size_t size() const { return size_; }
  const Event& operator[](std::size_t i) const { return table_[i]; }

 private:
  workload::MappedArray<Event> table_{kEvents};
  std::size_t size_ = 0;
};

Event event(std::uint64_t size, double lifetime) {
  const double clipped = std::clamp(lifetime, 1.0, static_cast<double>(kLongest));
  return Event{static_cast<std::uint32_t>(std::max<std::uint64_t>(size, 1)),
               static_cast<std::uint32_t>(clipped)};
}

double exponential(Random& random, double mean) {
  return -mean * std::log1p(-random.unit());
}

// Half the steps double the chance of the smaller ones: node sizes of a tree
// are not equally frequent.
std::uint64_t node_size(Random& random) {
  static constexpr std::uint64_t kSizes[] = {16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 112, 128};
  return kSizes[std::min(random.below(std::size(kSizes)), random.below(std::size(kSizes)))];
}

Events compiler_events(Random& random) {
  constexpr std::uint64_t kFunction = 3000;
  Events events;
  for (std::uint64_t i = 0; i < kEvents; ++i) {
    const double kind = random.unit(), life = random.unit();
    std::uint64_t size = node_size(random);
    if (kind < 0.20)
      size = random.between(8, 48);
    else if (kind < 0.28)
      size = std::uint64_t{64} << random.below(7);
    else if (kind < 0.30)
      size = log_uniform(random, 1024, 32768);
    double lifetime = exponential(random, 20);
    if (life < 0.05)
      lifetime = static_cast<double>(random.between(kFunction, kLongest));
    else if (life < 0.45)
      lifetime = static_cast<double>(kFunction - i % kFunction);
    events.push_back(event(size, lifetime));
  }
  return events;
}

Events browser_events(Random& random) {
  Events events;
  for (std::uint64_t i = 0; i < kEvents; ++i) {
    const double kind = random.unit(), life = random.unit();
    std::uint64_t size = 8 * random.between(2, 8);
    if (kind < 0.003)
      size = log_uniform(random, 32 << 10, 512 << 10);
    else if (kind < 0.03)
      size = log_uniform(random, 2048, 32 << 10);
    else if (kind < 0.15)
      size = log_uniform(random, 257, 2048);
    else if (kind < 0.35)
      size = random.between(16, 128);
    else if (kind < 0.65)
      size = 8 * random.between(9, 32);
    double lifetime = exponential(random, 100);
    if (life < 0.05)
      lifetime = static_cast<double>(random.between(1, kLongest));
    else if (life < 0.25)
      lifetime = exponential(random, 5000);
    events.push_back(event(size, lifetime));
  }
  return events;
}

Events keyvalue_events(Random& random) {
  constexpr double kMeanLifetime = 32768;
  Events events;
  while (events.size() < kEvents) {
    // Inverses of the distribution functions, at u in (0, 1).
    const double u = random.unit() * 0.999999 + 0.0000005, v = random.unit() * 0.999999 + 0.0000005;
    const double key = 30.7984 + 8.20449 * (std::pow(-std::log(u), -0.078688) - 1) / 0.078688;
    const double value = 214.476 * (std::pow(1 - v, -0.348238) - 1) / 0.348238;
    const double lifetime = exponential(random, kMeanLifetime);
    events.push_back(event(static_cast<std::uint64_t>(std::clamp(key, 1.0, 250.0)), lifetime));
    events.push_back(
        event(static_cast<std::uint64_t>(std::clamp(value, 1.0, 1048576.0)), lifetime));
  }
  return events;
}

Events web_events(Random& random) {
  constexpr std::uint64_t kInFlight = 32, kObjects = 121;
  Events events;
  for (std::uint64_t i = 0; i < kEvents; ++i) {
    // The requests take turns; each is at its own place in its own life, so that none end together.
    const std::uint64_t request = i % kInFlight;
    const std::uint64_t place = (i / kInFlight + request * kObjects / kInFlight) % kObjects;
    const auto to_end = static_cast<double>((kObjects - place) * kInFlight);
    const double kind = random.unit(), life = random.unit();
    if (place == 0) {
      events.push_back(event(std::uint64_t{4096} << random.below(3), to_end));
      continue;
    }
    std::uint64_t size = log_uniform(random, 16, 256);
    if (kind < 0.05)
      size = log_uniform(random, 1024, 16384);
    else if (kind < 0.15)
      size = random.between(32, 1024);
    double lifetime = to_end;
    if (life < 0.01)
      lifetime = exponential(random, 50000);
    else if (life < 0.40)
      lifetime = std::min(to_end, exponential(random, 10 * kInFlight));
    events.push_back(event(size, lifetime));
  }
  return events;
}

Events powerlaw_events(Random& random) {
  constexpr double kLargest = 1 << 20;
  Events events;
  while (events.size() < kEvents) {
    const double u = 1 - random.unit(), v = 1 - random.unit();  // in (0, 1]
    events.push_back(event(static_cast<std::uint64_t>(std::min(16 / u, kLargest)), 1 / (v * v)));
  }
  return events;
}

struct Object {
  void* memory;
  std::uint32_t size;
  std::uint32_t next;  // another object that dies at the same step
};

struct alignas(workload::kCacheLine) Result {
  workload::LiveBytes live;
  workload::Histogram malloc_ns, free_ns;
};

// One thread's objects. The one of step t stands at t modulo the wheel: it has died
// when that place comes again.
template <bool kTimed>
class Player {
 public:
  Player(const Events& events, std::uint64_t offset, Result& result)
      : events_(events), offset_(offset), result_(result), dying_(kWheel), objects_(kWheel) {
    for (std::uint32_t& first : dying_) first = kNone;
  }

  void play(std::uint64_t steps) {
    for (std::uint64_t t = 0; t < steps; ++t) {
      bury(t % kWheel);
      const Event e = events_[(offset_ + t) % kEvents];
      const auto slot = static_cast<std::uint32_t>(t % kWheel);
      void* memory = allocate(e.size);
      workload::check(memory != nullptr, "mixed: malloc returned null");
      workload::stamp(memory, e.size, workload::stamp_word(memory, e.size, slot));
      std::uint32_t& death = dying_[(t + e.lifetime) % kWheel];
      objects_[slot] = Object{memory, e.size, death};
      death = slot;
      result_.live.add(e.size);
    }
    for (std::uint64_t slot = 0; slot < kWheel; ++slot) bury(slot);
  }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  void* allocate(std::size_t n) {
    if constexpr (!kTimed) return std::malloc(n);
    const std::uint64_t begin = workload::now_ns();
    void* memory = std::malloc(n);
    result_.malloc_ns.record(workload::now_ns() - begin);
    return memory;
  }
  void release(void* memory) {
    if constexpr (!kTimed) return std::free(memory);
    const std::uint64_t begin = workload::now_ns();
    std::free(memory);
    result_.free_ns.record(workload::now_ns() - begin);
  }
  // Frees the objects that die at this place of the wheel.
  void bury(std::uint64_t slot) {
    std::uint32_t i = dying_[slot];
    dying_[slot] = kNone;
    while (i != kNone) {
      const Object o = objects_[i];
      workload::check(
          workload::stamped(o.memory, o.size, workload::stamp_word(o.memory, o.size, i)),
          "mixed: an object was overwritten");
      release(o.memory);
      result_.live.remove(o.size);
      i = o.next;
    }
  }

  const Events& events_;
  const std::uint64_t offset_;
  Result& result_;
  workload::MappedArray<std::uint32_t> dying_;
  workload::MappedArray<Object> objects_;
};

template <bool kTimed>
std::uint64_t run(const Events& events, std::uint64_t threads, std::uint64_t steps,
                  workload::MappedArray<Result>& results) {
  std::vector<Player<kTimed>> players;
  players.reserve(threads);
  for (std::uint64_t i = 0; i < threads; ++i)
    players.emplace_back(events, i * kEvents / threads, results[i]);
  return workload::run_threads(threads, [&](std::uint64_t i) { players[i].play(steps); });
}

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "mixed", "beyond the papers",
                            "mixes of sizes and lifetimes as programs have them");
  const std::size_t kind =
      options.choice("distribution", {"compiler", "browser", "keyvalue", "web", "powerlaw"},
                     "sizes and lifetimes; see the head of mixed.cpp");
  const auto threads =
      options.integer("threads", 1, 1, 1024, "threads, each with objects of its own");
  const auto steps =
      options.integer("operations", 1000000, 1, 1u << 31, "objects allocated by each thread");
  const bool timed = options.integer("latency", 0, 0, 1, "1: time every call, for histograms") == 1;
  const auto seed = options.integer("seed", 1, 0, UINT64_MAX, "seed of the random numbers");
  options.done();

  Random random(seed);
  constexpr Events (*kMakers[])(Random&) = {compiler_events, browser_events, keyvalue_events,
                                            web_events, powerlaw_events};
  const Events events = kMakers[kind](random);
  workload::MappedArray<Result> results(threads);
  const std::uint64_t ns = timed ? run<true>(events, threads, steps, results)
                                 : run<false>(events, threads, steps, results);

  workload::Record record(options, threads);
  if (timed) {
    Result& all = results[0];
    for (std::uint64_t i = 1; i < threads; ++i) {
      all.malloc_ns.merge(results[i].malloc_ns);
      all.free_ns.merge(results[i].free_ns);
    }
    record.latency("malloc", all.malloc_ns);
    record.latency("free", all.free_ns);
    record.metric("malloc_p9999_ns", all.malloc_ns.percentile(0.9999));
    record.metric("free_p9999_ns", all.free_ns.percentile(0.9999));
  }
  record.print(threads * steps, ns, workload::sum_of_peaks(results));
}
