// The a2alloc engine counts its steps: what an allocation looks at, what a
// heap fetches and carries.
//
// One config of the engine, in this process and beside its malloc, serves one trace of allocations;
// the config's observer counts. All but the time is exact: the same in every run. The configs are
// those that are libraries, and the report's with another K, F or size of superblocks.
//
// Traces (one thread but in the last):
//   larson      4000 objects of 7 to 499 bytes; 400,000 times a random one is replaced
//   threadtest  10 times 100,000 objects of 64 bytes allocated, then freed
//   churn       4 MiB live through six phases of sizes as in workloads/fragmentation.cpp (the
//               largest 24 KiB, so all in superblocks), 3 % of each phase staying; then nine in ten
//               freed
//   requests    2000 requests allocate 8 KiB to 1 MiB in objects of 16 bytes to 1 KiB, and free it
//               all
//   loaded      the same on top of 4 MiB that stand
//   threads     64 threads that live at once, an object of 16 bytes each
//
// Metrics: superblocks_looked_at and blocks_looked_at, an allocation; fetched, superblocks
// that a heap takes from the global heap, in 1000 allocations; carried_over_live, the most
// bytes of superblocks in heaps over the most live bytes; left_over_live, the same in churn
// when nine in ten are freed; kept_kib, what heaps keep when all is freed; record_superblocks,
// those that hold heap records.
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "base/bits.hpp"
#include "papers/a2alloc/engine/engine.hpp"
#include "support/sizes.hpp"
#include "support/workload.hpp"

namespace {

using namespace spanalloc;

// Only one thread at a time uses the engine.
struct Steps {
  std::uint64_t superblocks = 0;  // looked at
  std::uint64_t blocks = 0;       // free ones, looked at
  std::uint64_t added = 0;        // superblocks
  std::uint64_t carried = 0;      // superblocks in heaps
  std::uint64_t carried_most = 0;
};
Steps steps;

template <class Base>
struct Counted : Base {
  struct Observer {
    static void looks_at_superblock() { ++steps.superblocks; }
    static void looks_at_free_block() { ++steps.blocks; }
    static void adds_superblock() {
      ++steps.added;
      if (++steps.carried > steps.carried_most) steps.carried_most = steps.carried;
    }
    static void evicts_superblock() { --steps.carried; }
  };
};

template <class Base, std::size_t kK>
struct Keep : Base {
  static constexpr std::size_t kKeep = kK;
};
template <std::size_t kPercent>
struct UsedOverFree : A2allocReport {
  static constexpr std::size_t kUsedOverFreePercent = kPercent;
};
template <unsigned kBits>
struct Bits : A2allocReport {
  static constexpr unsigned kSuperblockBits = kBits;
};

// An engine as the traces see it.
struct Heap {
  const char* name;
  void* (*allocate)(std::size_t);
  void (*deallocate)(void*);
  a2alloc::Census (*census)();
  std::size_t superblock_bytes;
};

template <class Config>
constexpr Heap heap_of(const char* name) {
  using E = A2allocEngine<Counted<Config>>;
  return {name, E::allocate, E::deallocate, E::census, a2alloc::kSuperblockBytes<Config>};
}

constexpr Heap kHeaps[] = {
    heap_of<A2allocReport>("a2alloc"),
    heap_of<A2allocSizeClasses>("a2alloc-size-classes"),
    heap_of<A2allocFullestFirst>("a2alloc-fullest-first"),
    heap_of<A2allocSharedRecords>("a2alloc-shared-records"),
    heap_of<A2allocClasses>("a2alloc-classes"),
    heap_of<Kheap>("kheap"),
    heap_of<Keep<A2allocReport, 0>>("k-0"),
    heap_of<Keep<A2allocReport, 2>>("k-2"),
    heap_of<Keep<A2allocReport, 4>>("k-4"),
    heap_of<Keep<A2allocReport, 16>>("k-16"),
    heap_of<Keep<A2allocReport, 32>>("k-32"),
    heap_of<Keep<A2allocSizeClasses, 8>>("classes-k-8"),
    heap_of<Keep<A2allocSizeClasses, 16>>("classes-k-16"),
    heap_of<Keep<A2allocSizeClasses, 64>>("classes-k-64"),
    heap_of<UsedOverFree<0>>("f-0"),
    heap_of<UsedOverFree<100>>("f-1"),
    heap_of<UsedOverFree<700>>("f-7"),
    heap_of<UsedOverFree<1500>>("f-15"),
    heap_of<UsedOverFree<1'000'000>>("f-10000"),
    heap_of<Bits<14>>("size-16k"),
    heap_of<Bits<15>>("size-32k"),
    heap_of<Bits<17>>("size-128k"),
    heap_of<Bits<18>>("size-256k"),
};

struct Object {
  void* memory;
  std::size_t size;
};

// What a trace allocates through: it knows what lives, and what was asked of
// the engine since start().
class User {
 public:
  explicit User(const Heap& heap) : heap_(heap) {}
  Object allocate(std::size_t size) {
    ++mallocs_;
    live_.add(size);
    void* const p = heap_.allocate(size);
    workload::check(p != nullptr, "a2alloc_steps: memory was refused");
    static_cast<char*>(p)[0] = 1;
    return {p, size};
  }
  void free(const Object& o) {
    live_.remove(o.size);
    heap_.deallocate(o.memory);
  }
  void free_all(std::vector<Object>& objects) {
    for (const Object& o : objects) free(o);
    objects.clear();
  }
  // What came before does not count.
  void start() {
    mallocs_ = 0;
    steps.superblocks = steps.blocks = steps.added = 0;
    started_ns_ = workload::now_ns();
  }
  void stop() {
    ns_ = workload::now_ns() - started_ns_;
    counted_ = steps;
  }
  double carried_over_live() const {
    return static_cast<double>(steps.carried * heap_.superblock_bytes) /
           static_cast<double>(live_.now());
  }
  void tell(workload::Record& record) const {
    const auto an_allocation = [&](std::uint64_t n) {
      return static_cast<double>(n) / static_cast<double>(mallocs_);
    };
    record.metric("superblocks_looked_at", an_allocation(counted_.superblocks));
    record.metric("blocks_looked_at", an_allocation(counted_.blocks));
    record.metric("fetched", 1000 * an_allocation(counted_.added));
    record.metric("carried_over_live", counted_.carried_most * heap_.superblock_bytes,
                  live_.peak());
  }
  void print(const workload::Record& record) const { record.print(mallocs_, ns_, live_.peak()); }

 private:
  const Heap& heap_;
  workload::LiveBytes live_;
  std::uint64_t mallocs_ = 0;
  std::uint64_t started_ns_ = 0;
  std::uint64_t ns_ = 0;
  Steps counted_;
};

void larson(User& user, workload::Record&) {
  workload::Random random(1);
  std::vector<Object> slots(4000);
  for (Object& slot : slots) slot = user.allocate(random.between(7, 499));
  user.start();
  for (int i = 0; i < 400'000; ++i) {
    Object& slot = slots[random.below(slots.size())];
    user.free(slot);
    slot = user.allocate(random.between(7, 499));
  }
  user.stop();
  user.free_all(slots);
}

void threadtest(User& user, workload::Record&) {
  std::vector<Object> objects(100'000);
  user.start();
  for (int round = 0; round < 10; ++round) {
    for (Object& o : objects) o = user.allocate(64);
    for (const Object& o : objects) user.free(o);
  }
  user.stop();
}

void churn(User& user, workload::Record& record) {
  constexpr std::size_t kPhases[][2] = {{32, 128}, {128, 1024},   {1024, 8192},
                                        {48, 256}, {8192, 24576}, {32, 512}};
  constexpr std::size_t kTarget = 4 * kMiB;
  workload::Random random(1);
  std::vector<Object> loose, pinned;
  std::size_t live = 0;
  const auto drop_random = [&] {
    Object& place = loose[random.below(loose.size())];
    live -= place.size;
    user.free(place);
    place = loose.back();
    loose.pop_back();
  };
  user.start();
  for (const auto& [low, high] : kPhases) {
    for (std::size_t done = 0; done < 3 * kTarget;) {
      const std::size_t size = workload::log_uniform(random, low, high);
      done += size;
      while (!loose.empty() && live + size > kTarget) drop_random();
      (random.below(100) < 3 ? pinned : loose).push_back(user.allocate(size));
      live += size;
    }
  }
  loose.insert(loose.end(), pinned.begin(), pinned.end());
  const std::size_t rest = live / 10;
  while (live > rest) drop_random();
  user.stop();
  record.metric("left_over_live", user.carried_over_live());
  user.free_all(loose);
}

void serve_requests(User& user, std::size_t standing) {
  workload::Random random(1);
  std::vector<Object> base, objects;
  for (std::size_t bytes = 0; bytes < standing; bytes += base.back().size) {
    base.push_back(user.allocate(workload::log_uniform(random, 16, kKiB)));
  }
  user.start();
  for (int request = 0; request < 2000; ++request) {
    const std::size_t wanted = workload::log_uniform(random, 8 * kKiB, kMiB);
    for (std::size_t bytes = 0; bytes < wanted; bytes += objects.back().size) {
      objects.push_back(user.allocate(workload::log_uniform(random, 16, kKiB)));
    }
    user.free_all(objects);
  }
  user.stop();
  user.free_all(base);
}
void requests(User& user, workload::Record&) {
  serve_requests(user, 0);
}
void loaded(User& user, workload::Record&) {
  serve_requests(user, 4 * kMiB);
}

void threads(User& user, workload::Record&) {
  constexpr int kThreads = 64;
  std::counting_semaphore<> done(0), end(0);
  std::vector<std::thread> living;
  user.start();
  for (int i = 0; i < kThreads; ++i) {
    living.emplace_back([&] {
      const Object o = user.allocate(16);
      done.release();
      end.acquire();
      user.free(o);
      done.release();
    });
    done.acquire();
  }
  user.stop();
  for (int i = 0; i < kThreads; ++i) {
    end.release();
    done.acquire();  // the frees, too, come one after the other
  }
  for (std::thread& thread : living) thread.join();
}

struct Trace {
  const char* name;
  void (*run)(User&, workload::Record&);
};
constexpr Trace kTraces[] = {{"larson", larson}, {"threadtest", threadtest},
                             {"churn", churn},   {"requests", requests},
                             {"loaded", loaded}, {"threads", threads}};

template <class List>
std::vector<std::string> names(const List& list) {
  std::vector<std::string> found;
  for (const auto& each : list) found.emplace_back(each.name);
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "a2alloc_steps", "beyond the papers",
                            "the a2alloc engine counts its steps");
  const Heap& heap = kHeaps[options.choice("config", names(kHeaps), "config of the engine")];
  const Trace& trace = kTraces[options.choice("trace", names(kTraces), "what is allocated")];
  options.done();

  User user(heap);
  workload::Record record(options, 1);
  trace.run(user, record);
  user.tell(record);
  const a2alloc::Census census = heap.census();
  workload::check(census.consistent(),
                  "a2alloc_steps: the engine's walker finds its invariants broken");
  workload::check(census.live_blocks == 0, "a2alloc_steps: not every object was freed");
  record.metric("kept_kib", static_cast<double>(steps.carried * heap.superblock_bytes) / kKiB);
  record.metric("record_superblocks", census.heap_records);
  user.print(record);
}
