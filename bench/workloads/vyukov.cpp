// vyukov: a chain of threads, each frees what the one before it allocated.
//
// Source: SuperMalloc (Kuszmaul, ISMM 2015) section 9, "Footprint", and Figure 13; after D. Vyukov,
// "Possible problem in scalable allocator" (2008). Thread 0 allocates data and gives them to thread
// 1, which frees them, allocates as many and gives them to thread 2, and so on. The paper: 200
// threads, 50,000 objects each, sizes random below 4 KiB, so at most 100 MiB are asked for at a
// time; what an allocator needs above that is memory that it keeps with threads which have no use
// for it (2.3 GiB in DLmalloc, 4.1 GiB in TBBmalloc).
//
// The author's vyukov.cpp writes every byte: --write all.
//
// Ours: threads and objects are options, sizes uniform in 1 to 4095. One thread works at a time.
// All of them exist before the first begins and until the last has ended: caches of a living thread
// are what the experiment is about. The author's last thread allocates nothing; here thread 0 frees
// what it has allocated. An operation is one malloc and its free.
#include <latch>
#include <semaphore>

#include "support/mapped_array.hpp"
#include "support/stamp.hpp"
#include "support/workload.hpp"

namespace {

constexpr std::size_t kLargest = 4095;

struct Object {
  void* address;
  std::size_t size;
};

// The data on their way down the chain: held by the one thread whose turn it is.
struct Chain {
  workload::MappedArray<Object> objects;
  workload::LiveBytes live;
  bool writes_all = false;

  // Unique for each object, so that of two at one address only the later one's stamp is there.
  std::uint64_t word(std::uint64_t thread, std::size_t index) const {
    const auto& [address, size] = objects[index];
    return workload::stamp_word(address, size, thread * objects.size() + index);
  }

  void allocate(std::uint64_t thread) {
    workload::Random random(thread + 1);
    for (std::size_t i = 0; i < objects.size(); ++i) {
      auto& [address, size] = objects[i];
      size = random.between(1, kLargest);
      address = std::malloc(size);
      workload::check(address != nullptr, "vyukov: malloc returned null");
      if (writes_all) __builtin_memset(address, static_cast<int>(i), size);
      workload::stamp(address, size, word(thread, i));
      live.add(size);
    }
  }

  void free_all(std::uint64_t allocated_by) {
    for (std::size_t i = 0; i < objects.size(); ++i) {
      const auto& [address, size] = objects[i];
      workload::check(workload::stamped(address, size, word(allocated_by, i)),
                      "vyukov: an object does not hold what was written into it");
      std::free(address);
      live.remove(size);
    }
  }
};

struct alignas(workload::kCacheLine) Turn {
  std::binary_semaphore mine{0};
};

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "vyukov", "SuperMalloc (ISMM 2015) section 9, Figure 13",
                            "a chain of threads, each frees what the one before it allocated");
  const auto threads = options.integer("threads", 50, 1, 10'000, "threads; the paper's 200");
  const auto objects = options.integer("objects", 10'000, 1, 100'000'000,
                                       "objects that each thread allocates; the paper's 50000");
  Chain chain;
  chain.writes_all =
      options.choice("write", {"stamps", "all"}, "what is written of an object") == 1;
  options.done();

  chain.objects = workload::MappedArray<Object>(objects);
  std::vector<Turn> turns(threads);
  turns[0].mine.release();
  std::latch end(1);
  std::uint64_t elapsed = 0;  // by thread 0
  workload::run_threads(threads, [&](std::uint64_t i) {
    turns[i].mine.acquire();
    const std::uint64_t begin = workload::now_ns();
    if (i > 0) chain.free_all(i - 1);
    chain.allocate(i);
    turns[(i + 1) % threads].mine.release();
    if (i == 0) {
      turns[0].mine.acquire();
      chain.free_all(threads - 1);
      elapsed = workload::now_ns() - begin;
      end.count_down();
    }
    end.wait();
  });
  workload::check(chain.live.now() == 0, "vyukov: not every object was freed");

  workload::Record(options, threads).print(threads * objects, elapsed, chain.live.peak());
}
