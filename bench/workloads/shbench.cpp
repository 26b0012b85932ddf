// shbench: thread-local rounds like threadtest's, but objects survive rounds: lifetimes vary.
//
// Named after MicroQuill's SmartHeap benchmark, whose source is not free; this is our own algorithm
// for what scalloc (OOPSLA 2015) 7.2.2 says of it: "objects are allocated and deallocated in rounds
// [...] the lifetime of objects is not exactly one round but varies throughout the benchmark [...]
// 10^6 rounds per thread of objects between 1 and 8 bytes in size". The paper gives no objects a
// round and no distribution of lifetimes. Ours: each round allocates --objects (8) objects of
// random sizes; of every eight in sequence,
//   four die at the end of their round, in reverse order (the stack-like use of most short-lived
//   objects), three die 1 to 16 rounds later, one dies 1 to --lifetime (8192) rounds later: about
//   4,000 objects of a thread are live at any time, spread over several spans that are never quite
//   empty, which is what makes reusing spans matter in that section.
// --rounds is what each thread runs: the figures take the paper's number, the suite three times
// that.
//
// Operations: pairs of malloc and free (all objects are freed at the end, within the time). The
// first and the last byte of an object are written after malloc and compared before free; all of
// them would take a loop of random length, whose mispredicted ends cost more than an allocation.
#include "support/mapped_array.hpp"
#include "support/workload.hpp"

namespace {

constexpr std::uint64_t kMediumLifetime = 16;
constexpr std::uint32_t kNone = ~std::uint32_t{0};

struct Entry {
  unsigned char* object;
  std::uint32_t next;  // in the list of objects that die in one round, or of unused entries
  std::uint16_t size;
  unsigned char fill;
};

// Live objects of one thread by the round in which they die.
class Calendar {
 public:
  Calendar(std::uint64_t objects, std::uint64_t lifetime)
      : rounds_(lifetime + 1),
        // No more can be live than every round of one lifetime can leave behind.
        entries_(objects * (kMediumLifetime + 1) + (objects / 8 + 1) * (lifetime + 1)),
        heads_(rounds_) {
    check_index(entries_.size());
    for (std::uint64_t i = 0; i < rounds_; ++i) heads_[i] = kNone;
    for (std::uint64_t i = 0; i < entries_.size(); ++i)
      entries_[i].next = static_cast<std::uint32_t>(i + 1);
    entries_[entries_.size() - 1].next = kNone;
  }
  void add(std::uint64_t death, unsigned char* object, std::size_t size, unsigned char fill) {
    const std::uint32_t index = unused_;
    workload::check(index != kNone, "shbench: the table of live objects is full");
    Entry& entry = entries_[index];
    unused_ = entry.next;
    std::uint32_t& head = heads_[death % rounds_];
    entry = {object, head, static_cast<std::uint16_t>(size), fill};
    head = index;
  }
  template <class Free>
  void end_round(std::uint64_t round, Free free_object) {
    std::uint32_t& head = heads_[round % rounds_];
    while (head != kNone) {
      const std::uint32_t index = head;
      Entry& entry = entries_[index];
      free_object(entry.object, entry.size, entry.fill);
      head = entry.next;
      entry.next = unused_;
      unused_ = index;
    }
  }

 private:
  static void check_index(std::size_t count) {
    workload::check(count < kNone, "shbench: --objects x --lifetime is too large");
  }
  std::uint64_t rounds_;
  workload::MappedArray<Entry> entries_;
  workload::MappedArray<std::uint32_t> heads_;
  std::uint32_t unused_ = 0;
};

struct alignas(workload::kCacheLine) Worker {
  Worker(std::uint64_t objects, std::uint64_t lifetime, std::uint64_t seed)
      : calendar(objects, lifetime), brief(objects), random(seed) {}
  Calendar calendar;
  workload::MappedArray<Entry> brief;  // objects that die in the round they are born in
  workload::Random random;
  workload::LiveBytes live;
};

unsigned char* new_object(Worker& worker, std::size_t size, unsigned char fill) {
  auto* const object = static_cast<unsigned char*>(std::malloc(size));
  workload::check(object != nullptr, "shbench: malloc returned null");
  object[0] = object[size - 1] = fill;
  worker.live.add(size);
  return object;
}

void delete_object(Worker& worker, unsigned char* object, std::size_t size, unsigned char fill) {
  workload::check(object[0] == fill && object[size - 1] == fill,
                  "shbench: an object was overwritten");
  worker.live.remove(size);
  std::free(object);
}

struct Parameters {
  std::uint64_t objects, rounds, lifetime, low, high;
};

void run_round(Worker& worker, std::uint64_t round, const Parameters& p) {
  std::size_t brief = 0;
  for (std::uint64_t i = 0; i < p.objects; ++i) {
    const std::uint64_t bits = worker.random.next();
    const std::size_t size = p.low + (bits >> 32) % (p.high - p.low + 1);
    const auto fill = static_cast<unsigned char>(bits);
    unsigned char* const object = new_object(worker, size, fill);
    // The place within the eight moves by three a round, so that no lifetime is tied
    // to a place in the round.
    const std::uint64_t kind = (i + 3 * round) % 8;
    if (kind % 2 == 0) {
      worker.brief[brief++] = {object, kNone, static_cast<std::uint16_t>(size), fill};
    } else {
      const std::uint64_t longest =
          kind == 7 || p.lifetime < kMediumLifetime ? p.lifetime : kMediumLifetime;
      worker.calendar.add(round + worker.random.between(1, longest), object, size, fill);
    }
  }
  while (brief > 0) {
    const Entry& entry = worker.brief[--brief];
    delete_object(worker, entry.object, entry.size, entry.fill);
  }
  worker.calendar.end_round(round,
                            [&](unsigned char* object, std::size_t size, unsigned char fill) {
                              delete_object(worker, object, size, fill);
                            });
}

void run(Worker& worker, const Parameters& p) {
  for (std::uint64_t round = 0; round < p.rounds; ++round) run_round(worker, round, p);
  const Parameters no_more = {0, 0, p.lifetime, p.low, p.high};
  for (std::uint64_t round = p.rounds; round <= p.rounds + p.lifetime; ++round)
    run_round(worker, round, no_more);
}

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "shbench", "scalloc 7.2.2, after MicroQuill's shbench",
                            "thread-local rounds of small objects whose lifetimes vary");
  const auto threads = options.integer("threads", 2, 1, 1024, "threads");
  Parameters p{};
  p.rounds = options.integer("rounds", 1'000'000, 1, 1u << 30, "rounds of each thread");
  p.objects = options.integer("objects", 8, 1, 1 << 16, "objects allocated a round");
  p.lifetime =
      options.integer("lifetime", 8192, 1, 1 << 20, "rounds that the longest-lived objects live");
  p.low = options.integer("low", 1, 1, 4096, "smallest size in bytes");
  p.high = options.integer("high", 8, 1, 4096, "largest size in bytes");
  options.require(p.low <= p.high, "--low must not exceed --high");
  options.done();

  std::vector<Worker> workers;
  workers.reserve(threads);
  for (std::uint64_t i = 0; i < threads; ++i) workers.emplace_back(p.objects, p.lifetime, i + 1);
  const std::uint64_t ns =
      workload::run_threads(threads, [&](std::uint64_t i) { run(workers[i], p); });

  for (const Worker& worker : workers)
    workload::check(worker.live.now() == 0, "shbench: not every object was freed");
  workload::Record(options, threads)
      .print(threads * p.rounds * p.objects, ns, workload::sum_of_peaks(workers));
}
