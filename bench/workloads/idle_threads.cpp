// A thousand threads that are idle most of the time. Source: beyond the papers.
//
// As in a server with a thread a connection: every thread sleeps, is woken now and then (in
// random order, at most `active` of them at a time), does a burst and sleeps again. A burst
// allocates `burst` objects of log-uniform sizes from 16 bytes to `high`, frees them but for
// `keep` of them, which replace those kept from the burst before. What the sleeping threads'
// caches hold is the point: metric idle_over_live is RSS + page tables when all sleep, less what
// the process had with all threads started and before the first burst, over the live bytes. An
// operation is one malloc with its free; elapsed is that of all bursts, waking included (metric
// burst_ns_per_operation: without).
#include <pthread.h>

#include <memory>
#include <semaphore>

#include "support/resident.hpp"
#include "support/sizes.hpp"
#include "support/stamp.hpp"
#include "support/workload.hpp"

namespace {

struct Shape {
  std::uint64_t burst, keep;
  const workload::SizeTable* sizes;
};

struct Object {
  void* memory = nullptr;
  std::uint32_t size = 0;
  std::uint32_t id = 0;  // tells its stamp from that of every other object of the thread
};

constexpr std::uint64_t kMostBurst = 1024;

class alignas(workload::kCacheLine) Sleeper {
 public:
  void start(const Shape& shape, std::uint64_t id, std::counting_semaphore<>& places) {
    shape_ = &shape;
    kept_.resize(shape.keep);
    turn_ = id * 977;  // its own place in the table of sizes
    places_ = &places;
    thread_ = workload::start_small_thread(run, this);
  }
  void wake() { awake_.release(); }
  void join() {
    done_ = true;
    wake();
    pthread_join(thread_, nullptr);
  }
  const workload::LiveBytes& live() const { return live_; }
  std::uint64_t burst_ns() const { return burst_ns_; }

 private:
  static void* run(void* self) {
    static_cast<Sleeper*>(self)->sleep_and_work();
    return nullptr;
  }
  // Makes the part of the stack that a burst uses resident, as it is not the allocator's.
  [[gnu::noinline]] static void touch_stack() {
    char stack[kMostBurst * sizeof(Object) + 8192];
    std::memset(stack, 1, sizeof stack);
    workload::touch(stack);
  }
  void sleep_and_work() {
    touch_stack();
    places_->release();  // started
    for (;;) {
      awake_.acquire();
      const std::uint64_t begin = workload::now_ns();
      if (done_) break;
      burst();
      burst_ns_ += workload::now_ns() - begin;
      places_->release();
    }
    for (Object& o : kept_) drop(o);
  }
  void burst() {
    Object objects[kMostBurst];
    const std::uint64_t n = shape_->burst;
    for (std::uint64_t i = 0; i < n; ++i) {
      const std::size_t size = shape_->sizes->at(turn_);
      objects[i] = Object{std::malloc(size), static_cast<std::uint32_t>(size),
                          static_cast<std::uint32_t>(turn_++)};
      workload::check(objects[i].memory != nullptr, "idle_threads: malloc returned null");
      workload::stamp(objects[i].memory, size, word_of(objects[i]));
      live_.add(size);
    }
    // Those kept lie scattered among those that are freed.
    for (std::uint64_t i = 0; i < shape_->keep; ++i) {
      drop(kept_[i]);
      std::swap(kept_[i], objects[i * n / shape_->keep]);
    }
    for (std::uint64_t i = 0; i < n; ++i) drop(objects[i]);
  }
  static std::uint64_t word_of(const Object& o) {
    return workload::stamp_word(o.memory, o.size, o.id);
  }
  void drop(Object& o) {
    if (o.memory == nullptr) return;
    workload::check(workload::stamped(o.memory, o.size, word_of(o)),
                    "idle_threads: an object was overwritten");
    std::free(o.memory);
    live_.remove(o.size);
    o.memory = nullptr;
  }

  const Shape* shape_ = nullptr;
  std::counting_semaphore<>* places_ = nullptr;
  std::counting_semaphore<> awake_{0};
  bool done_ = false;  // written before the wake that it is read after
  pthread_t thread_{};
  std::uint64_t turn_ = 0;
  std::uint64_t burst_ns_ = 0;
  workload::LiveBytes live_;
  std::vector<Object> kept_;
};

void take_all(std::counting_semaphore<>& places, std::uint64_t n) {
  for (std::uint64_t i = 0; i < n; ++i) places.acquire();
}

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "idle_threads", "beyond the papers",
                            "a thousand threads, idle most of the time");
  Shape shape;
  const auto threads = options.integer("threads", 1000, 1, 100000, "threads");
  const auto rounds = options.integer("rounds", 5, 1, 1u << 20, "bursts of each thread");
  const auto active = options.integer("active", 2, 1, 1024, "threads that are awake at a time");
  shape.burst = options.integer("burst", 200, 1, kMostBurst, "objects of a burst");
  shape.keep =
      options.integer("keep", 10, 0, kMostBurst, "objects that a thread keeps between bursts");
  const auto high = options.integer("high", 8192, 16, 1u << 30, "largest size in bytes");
  options.require(shape.keep <= shape.burst, "--keep must not be above --burst");
  options.done();

  const workload::SizeTable sizes(16, high, 1);
  shape.sizes = &sizes;
  workload::Random random(1);
  std::vector<std::uint32_t> order(threads * rounds);
  for (std::uint64_t i = 0; i < order.size(); ++i)
    order[i] = static_cast<std::uint32_t>(i % threads);
  for (std::uint64_t r = 0; r < rounds; ++r)
    for (std::uint64_t i = threads - 1; i > 0; --i)
      std::swap(order[r * threads + i], order[r * threads + random.below(i + 1)]);

  std::counting_semaphore<> places(0);
  const auto sleepers = std::make_unique<Sleeper[]>(threads);
  for (std::uint64_t i = 0; i < threads; ++i) sleepers[i].start(shape, i, places);
  take_all(places, threads);
  const std::int64_t before = workload::resident_bytes();

  places.release(static_cast<std::ptrdiff_t>(active));
  const std::uint64_t begin = workload::now_ns();
  for (const std::uint32_t i : order) {
    places.acquire();
    sleepers[i].wake();
  }
  take_all(places, active);
  const std::uint64_t elapsed = workload::now_ns() - begin;
  const std::int64_t idle = workload::resident_bytes();

  std::int64_t live = 0, highest_burst = 0;
  std::uint64_t burst_ns = 0;
  for (std::uint64_t i = 0; i < threads; ++i) {
    live += sleepers[i].live().now();
    const std::int64_t burst = sleepers[i].live().peak() - sleepers[i].live().now();
    if (burst > highest_burst) highest_burst = burst;
    burst_ns += sleepers[i].burst_ns();
  }
  for (std::uint64_t i = 0; i < threads; ++i) sleepers[i].join();

  const std::uint64_t operations = threads * rounds * shape.burst;
  workload::Record record(options, threads);
  if (live > 0) record.metric("idle_over_live", idle - before, live);
  record.metric("idle_kib_per_thread", idle - before, 1024 * threads);
  record.metric("burst_ns_per_operation", burst_ns, operations);
  record.print(operations, elapsed, live + highest_burst * static_cast<std::int64_t>(active));
}
