// Fragmentation over a long churn whose sizes change in phases.
// Source: beyond the papers.
//
// `live-mib` MiB stand at all times. In each phase objects of that phase's sizes replace random ones until
// `turnover` times the live bytes have been allocated; of each phase's objects `pinned` percent stay to the
// end. So the objects of a phase lie in what those of the phase before left behind. The phases, log-uniform:
//   1  32 to 128 bytes      3  1 to 8 KiB        5  8 to 64 KiB
//   2  128 bytes to 1 KiB   4  48 to 256 bytes   6  32 to 512 bytes
// At the end of each: metric rss_over_live_phaseN, which is (RSS + page tables, less what the process had
// before the first object) over the live bytes, read outside of what is timed. At last nine in ten of the
// objects that are left are freed, at random, pinned ones too: rss_over_live_freed90 right after that, and
// rss_over_live_rested after `rest-ms` milliseconds in which the program now and then allocates and frees an
// object (allocators that return memory by the clock do it there). rss_over_live_mean is the mean over the
// phases. An operation is one malloc with its free.
#include "support/resident.hpp"
#include "support/sizes.hpp"
#include "support/stamp.hpp"
#include "support/workload.hpp"

namespace {

struct Range {
  std::size_t low, high;
};
constexpr Range kPhases[] = {{32, 128}, {128, 1024}, {1024, 8192}, {48, 256}, {8192, 65536}, {32, 512}};
constexpr std::size_t kPhaseCount = std::size(kPhases);

struct Object {
  void* memory;
  std::uint32_t size;
  std::uint32_t id;  // tells its stamp from that of every other object
};

class Heap {
 public:
  explicit Heap(std::size_t target) : target_(target), random_(1) {
    // All the room there can be need of, touched now, so that it counts as there before the first object.
    loose_.resize(target / kPhases[0].low + 1);
    pinned_.resize(loose_.size());
    loose_.clear();
    pinned_.clear();
  }

  // Allocates `bytes` in objects of `range`, freeing others as the target asks for.
  void churn(const workload::SizeTable& sizes, std::size_t bytes, std::uint64_t pinned_percent) {
    for (std::size_t done = 0; done < bytes; ++operations_) {
      const auto size = static_cast<std::uint32_t>(sizes.at(operations_));
      done += size;
      while (!loose_.empty() && static_cast<std::size_t>(live_.now()) + size > target_) drop_random(loose_);
      const Object o = allocate(size);
      (random_.below(100) < pinned_percent ? pinned_ : loose_).push_back(o);
    }
  }
  // Frees all but a tenth of the bytes.
  void shrink() {
    loose_.insert(loose_.end(), pinned_.begin(), pinned_.end());
    pinned_.clear();
    const std::int64_t rest = live_.now() / 10;
    while (live_.now() > rest) drop_random(loose_);
  }
  void free_all() {
    while (!loose_.empty()) drop_random(loose_);
  }
  // A little activity every 5 ms.
  void rest(std::uint64_t milliseconds) {
    for (std::uint64_t i = 0; i < milliseconds / 5; ++i) {
      const timespec pause = {0, 5'000'000};
      nanosleep(&pause, nullptr);
      for (std::uint32_t size = 32; size <= 65536; size *= 2) {
        loose_.push_back(allocate(size));
        drop(loose_.back());
        loose_.pop_back();
      }
    }
  }
  const workload::LiveBytes& live() const { return live_; }
  std::uint64_t operations() const { return operations_; }

 private:
  Object allocate(std::uint32_t size) {
    void* memory = std::malloc(size);
    workload::check(memory != nullptr, "fragmentation: malloc returned null");
    const Object o{memory, size, next_id_++};
    workload::stamp(memory, size, workload::stamp_word(memory, size, o.id));
    live_.add(size);
    return o;
  }
  void drop(const Object& o) {
    workload::check(workload::stamped(o.memory, o.size, workload::stamp_word(o.memory, o.size, o.id)),
                    "fragmentation: an object was overwritten");
    std::free(o.memory);
    live_.remove(o.size);
  }
  void drop_random(std::vector<Object>& objects) {
    Object& o = objects[random_.below(objects.size())];
    drop(o);
    o = objects.back();
    objects.pop_back();
  }

  const std::size_t target_;
  workload::Random random_;
  std::vector<Object> loose_, pinned_;
  workload::LiveBytes live_;
  std::uint64_t operations_ = 0;
  std::uint32_t next_id_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "fragmentation", "beyond the papers",
                            "a long churn whose sizes change in phases");
  const std::uint64_t live_mib = options.integer("live-mib", 32, 1, 1u << 20, "MiB that stand at all times");
  const std::uint64_t turnover =
      options.integer("turnover", 3, 1, 1000, "times the live bytes are allocated in a phase");
  const std::uint64_t pinned =
      options.integer("pinned", 3, 0, 15, "percent of a phase's objects that stay to the end");
  const std::uint64_t phases = options.integer("phases", kPhaseCount, 1, kPhaseCount, "phases");
  const std::uint64_t rest_ms =
      options.integer("rest-ms", 1000, 0, 100000, "milliseconds of rest at the end");
  options.done();

  const std::size_t target = live_mib << 20;
  std::vector<workload::SizeTable> sizes;
  for (const Range& range : kPhases) sizes.emplace_back(range.low, range.high, 1);
  Heap heap(target);
  const std::int64_t before = workload::resident_bytes();
  const auto over_live = [&] {
    return static_cast<double>(workload::resident_bytes() - before) / static_cast<double>(heap.live().now());
  };

  double ratios[kPhaseCount], mean = 0;
  std::uint64_t elapsed = 0;
  for (std::uint64_t p = 0; p < phases; ++p) {
    const std::uint64_t begin = workload::now_ns();
    heap.churn(sizes[p], target * turnover, pinned);
    elapsed += workload::now_ns() - begin;
    ratios[p] = over_live();
    mean += ratios[p] / static_cast<double>(phases);
  }
  const std::uint64_t begin = workload::now_ns();
  heap.shrink();
  elapsed += workload::now_ns() - begin;
  const double freed = over_live();
  heap.rest(rest_ms);
  const double rested = over_live();
  heap.free_all();

  workload::Record record(options, 1);
  record.operations(heap.operations());
  record.elapsed_ns(elapsed);
  record.peak_live(heap.live().peak());
  for (std::uint64_t p = 0; p < phases; ++p)
    record.metric(("rss_over_live_phase" + std::to_string(p + 1)).c_str(), ratios[p]);
  record.metric("rss_over_live_mean", mean);
  record.metric("rss_over_live_freed90", freed);
  record.metric("rss_over_live_rested", rested);
  record.print();
  return 0;
}
