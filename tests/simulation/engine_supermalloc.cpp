// The engine of supermalloc in a simulation.
#include "api/nested_engine.hpp"
#include "census_check.hpp"
#include "papers/supermalloc/engine/engine.hpp"

namespace spanalloc {
using LibraryEngine = NestedEngine<SupermallocEngine<Supermalloc>>;
}

#include "library.hpp"

namespace spanalloc::simulation::engine {

const char* const kName = "supermalloc";

void start_process() {
  start_library_engine();
}

void check_quiet() {}

// A large object begins at a cache line drawn for it, and the bin is the one that holds both.
std::size_t most_alike() {
  return 12 * kKiB;
}

namespace {

// How many objects caches that a fork left behind say to have and do not: until somebody cleans one
// up a list may be counted in both of its places, or an object that its thread had in hand. (One
// list or object, whatever it was doing: but that is what is to be found out.)
std::size_t objects_said_twice() {
  auto& heap = supermalloc::Allocator<Supermalloc>::default_instance;
  std::size_t objects = 0;
  heap.thread_caches().for_each([&](const supermalloc::ThreadCache<Supermalloc>& cache) {
    if (!cache.is_left_behind) return;
    unsigned bins_in_hand = 0;
    for (supermalloc::BinNumber b = 0; b < cache.kBins; ++b) {
      const auto length = [&](const supermalloc::FreeObject* list) {
        std::size_t count = 0;
        for (; !is_end(list) && count < cache.most(b); list = next_of(list, heap.secret())) ++count;
        return count;
      };
      const auto* const first = cache.first[b + 1].load_relaxed();
      const auto* const spare = cache.spare[b].first.load_relaxed();
      const std::size_t has = length(first) + (spare == first ? 0 : length(spare));
      if (has != cache.objects(b)) ++bins_in_hand;
      if (has < cache.objects(b)) objects += cache.objects(b) - has;
    }
    SIM_CHECK(bins_in_hand <= 1, "a vanished thread's cache counts wrong in %u bins", bins_in_hand);
  });
  return objects;
}

}  // namespace

void check_bounds() {}

void check_heap(const Expected& expected) {
  const auto census = SupermallocEngine<Supermalloc>::census();
  const test::CensusVerdict verdict = test::judge(census);
  SIM_CHECK(verdict.consistent, "census: %s", verdict.text.c_str());
  check_statistics(expected, objects_said_twice());
  if (!expected.is_end || expected.torn != 0) return;
  SIM_CHECK(verdict.returned, "at the end, census: %s", verdict.text.c_str());
}

}  // namespace spanalloc::simulation::engine
