// Fragmentation over a long churn whose sizes change in phases. Source: beyond the papers.
//
// `live-mib` MiB stand at all times. In each phase objects of that phase's sizes replace random
// ones until `turnover` times the live bytes have been allocated; of each phase's objects `pinned`
// percent stay to the end. So the objects of a phase lie in what those of the phase before left
// behind. The phases, log-uniform:
//   1  32 to 128 bytes      3  1 to 8 KiB        5  8 to 64 KiB
//   2  128 bytes to 1 KiB   4  48 to 256 bytes   6  32 to 512 bytes
// At the end of each: metric rss_over_live_phaseN, which is (RSS + page tables, less what the
// process had before the first object and less this program's own tables) over the live bytes, read
// outside of what is timed. At last nine in ten of the objects that are left are freed, at random,
// pinned ones too: rss_over_live_freed90 right after that, and rss_over_live_250ms after a quarter
// of a second and rss_over_live_rested after `rest-ms` milliseconds (1000) in which the program
// every 5 ms allocates and frees an object of each size. Allocators that return memory by the clock
// do it there, and the length of the rest decides which: the second is longer than the decay of
// spanalloc (0.5 s, so the quarter of a second is shorter) and shorter than jemalloc's (10 s).
// rss_over_live_mean is the mean over the phases. An operation is one malloc with its free.
#include <algorithm>

#include "support/mapped_array.hpp"
#include "support/resident.hpp"
#include "support/sizes.hpp"
#include "support/stamp.hpp"
#include "support/workload.hpp"

namespace {

struct Range {
  std::size_t low, high;
};
constexpr Range kPhases[] = {{32, 128}, {128, 1024},   {1024, 8192},
                             {48, 256}, {8192, 65536}, {32, 512}};
constexpr std::size_t kPhaseCount = std::size(kPhases);

struct Object {
  void* memory;
  std::uint32_t size;
  std::uint32_t id;  // tells its stamp from that of every other object
};

// Objects in no order. Room is only reserved: how many there are at once depends on the phase.
class Stack {
 public:
  explicit Stack(std::size_t room) : objects_(room, false) {}
  void push(const Object& o) {
    workload::check(size_ < objects_.size(), "fragmentation: more objects than there is room for");
    objects_[size_++] = o;
    if (size_ > most_) {
      most_ = size_;
      objects_.written(most_);
    }
  }
  Object pop() { return objects_[--size_]; }
  // The object at a place, whose place the last one takes.
  Object take(std::size_t place) {
    const Object o = objects_[place];
    objects_[place] = objects_[--size_];
    return o;
  }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  workload::MappedArray<Object> objects_;
  std::size_t size_ = 0;
  std::size_t most_ = 0;
};

class Heap {
 public:
  // Loose objects are at most what fits into the target; of all, a share of at most 15 % stays.
  Heap(std::size_t target, std::uint64_t turnover)
      : target_(target),
        random_(1),
        loose_(room(target, turnover)),
        pinned_(room(target, turnover)) {}

  // Allocates `bytes` in objects of `range`, freeing others as the target asks for.
  void churn(const workload::SizeTable& sizes, std::size_t bytes, std::uint64_t pinned_percent) {
    for (std::size_t done = 0; done < bytes; ++operations_) {
      const auto size = static_cast<std::uint32_t>(sizes.at(operations_));
      done += size;
      while (!loose_.empty() && static_cast<std::size_t>(live_.now()) + size > target_)
        drop_random(loose_);
      const Object o = allocate(size);
      (random_.below(100) < pinned_percent ? pinned_ : loose_).push(o);
    }
  }
  // Frees all but a tenth of the bytes.
  void shrink() {
    while (!pinned_.empty()) loose_.push(pinned_.pop());
    const std::int64_t rest = live_.now() / 10;
    while (live_.now() > rest) drop_random(loose_);
  }
  void free_all() {
    while (!loose_.empty()) drop_random(loose_);
  }
  // A little activity every 5 ms.
  void rest(std::uint64_t milliseconds) {
    for (std::uint64_t i = 0; i < milliseconds / 5; ++i) {
      workload::sleep_ms(5);
      for (std::uint32_t size = 32; size <= 65536; size *= 2) {
        drop(allocate(size));
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
    workload::check(
        workload::stamped(o.memory, o.size, workload::stamp_word(o.memory, o.size, o.id)),
        "fragmentation: an object was overwritten");
    std::free(o.memory);
    live_.remove(o.size);
  }
  void drop_random(Stack& objects) { drop(objects.take(random_.below(objects.size()))); }
  // A quarter of all objects: beyond what chance makes of 15 %; the last term is
  // for a handful of objects.
  static std::size_t room(std::size_t target, std::uint64_t turnover) {
    std::size_t all = 0;
    for (const Range& phase : kPhases) all += target * turnover / phase.low;
    return target / kPhases[0].low + all / 4 + 4096;
  }

  const std::size_t target_;
  workload::Random random_;
  Stack loose_, pinned_;
  workload::LiveBytes live_;
  std::uint64_t operations_ = 0;
  std::uint32_t next_id_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "fragmentation", "beyond the papers",
                            "a long churn whose sizes change in phases");
  const auto live_mib = options.integer("live-mib", 32, 1, 1u << 20, "MiB that stand at all times");
  const auto turnover =
      options.integer("turnover", 3, 1, 1000, "times the live bytes are allocated in a phase");
  const auto pinned =
      options.integer("pinned", 3, 0, 15, "percent of a phase's objects that stay to the end");
  const auto phases = options.integer("phases", kPhaseCount, 1, kPhaseCount, "phases");
  const auto rest_ms =
      options.integer("rest-ms", 1000, 0, 100000, "milliseconds of rest at the end");
  options.done();

  const std::size_t target = live_mib << 20;
  std::vector<workload::SizeTable> sizes;
  for (const Range& range : kPhases) sizes.emplace_back(range.low, range.high, 1);
  Heap heap(target, turnover);
  const std::int64_t before = workload::resident_beyond_tables();
  const auto over_live = [&] {
    return static_cast<double>(workload::resident_beyond_tables() - before) /
           static_cast<double>(heap.live().now());
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
  constexpr std::uint64_t kShortRest = 250;
  heap.rest(std::min(rest_ms, kShortRest));
  const double rested_short = over_live();
  heap.rest(rest_ms - std::min(rest_ms, kShortRest));
  const double rested = over_live();
  heap.free_all();

  workload::Record record(options, 1);
  for (std::uint64_t p = 0; p < phases; ++p)
    record.metric("rss_over_live_phase" + std::to_string(p + 1), ratios[p]);
  record.metric("rss_over_live_mean", mean);
  record.metric("rss_over_live_freed90", freed);
  if (rest_ms >= kShortRest) record.metric("rss_over_live_250ms", rested_short);
  record.metric("rss_over_live_rested", rested);
  record.print(heap.operations(), elapsed, heap.live().peak());
}
