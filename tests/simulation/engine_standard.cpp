// The product's engine in a simulation.
#include "api/nested_engine.hpp"
#include "heap_walk.hpp"
#include "heaps/runs.hpp"
#include "standard/engine.hpp"

namespace spanalloc {
using LibraryEngine = NestedEngine<StandardEngine>;
}

#include "library.hpp"
#include "process.hpp"

namespace spanalloc::simulation::engine {

const char* const kName = "standard";

void start_process() {
  start_library_engine();
}

void check_quiet() {
  auto& cache = StandardEngine::thread_cache;
  if (cache.cache == nullptr) return;
  SIM_CHECK(cache.has_nothing_in_hand(), "a span is in hand behind the call");
  SIM_CHECK(cache.cache->inside.load_relaxed() == 0, "the thread counts as inside behind the call");
}

// A thread that finds no memory gives up the empty spans that it has itself.
bool allocations_give() {
  return true;
}

// A search of the arena waits for blocks that are in other threads' hands.
bool may_wait_without_lock() {
  return StandardEngine::pages.arena.someone_is_inside();
}

// Who finds nothing looks at a few of its away spans, each time at others.
std::size_t most_alike() {
  return 0;
}

// Free dirty slices that were last in a span of several blocks, as far as their records say. (The
// records of slices inside a large block may say so of an earlier life.)
static std::size_t dirty_of_small() {
  using Classes = standard::SizeClasses<Standard>;
  auto& pages = StandardEngine::pages;
  std::size_t sum = 0;
  pages.arena.walk([&](std::uint32_t first, std::size_t count, bool free) {
    for (std::uint32_t i = first; free && i < first + count; ++i) {
      const standard::SpanNumber number{i};
      if (number >= pages.end_of_spans() || !pages.has_record(number)) continue;
      const auto c = pages.span_of(pages.span(number))->shown_class();
      if (c == standard::ClassId::kNone || Classes::has_one_block(c)) continue;
      sum += pages.arena.dirty_slices(i, 1);
    }
  });
  return sum;
}

// The bound of dirty memory goes by a count of what large blocks leave, which is kept beside what
// the arena knows. Of what small ones leave it learns at each epoch's end.
void check_bounds() {
  // In a fork's child what vanished threads held is dirty, and is counted when an epoch ends.
  if (process.is_child()) return;
  constexpr std::size_t kMayDiffer = 64;  // slices: all counts are hints (pages/dirty_bound.hpp)
  const std::size_t dirty = StandardEngine::pages.arena.dirty_free();
  const std::size_t counted = StandardEngine::pages.memory_return.dirty_bound.dirty();
  SIM_CHECK(dirty <= counted + dirty_of_small() + kMayDiffer,
            "%zu slices are dirty, %zu are counted, and %zu may be of small blocks", dirty, counted,
            dirty_of_small());
}

void check_refusal(std::size_t bytes) {
  // (A handler forked in this very call: the child's next call gets what its vanished threads had.)
  if (StandardEngine::pages.recovery_is_due.load_relaxed() != 0) return;
  const test::HeapWalk walk = test::walk_heap<StandardEngine>();
  SIM_CHECK(walk.in_pool == 0, "%zu bytes were refused, while %zu spans are in pools and caches",
            bytes, walk.in_pool);
}

// Memory at rest, beside what the kernel says (docs/statistics.md).
void check_memory() {
  sp_statistics told{};
  sp_stats(&told, sizeof told);
  if (told.opened_bytes == 0) return;
  const std::size_t sum = told.carved_bytes + told.large_bytes + told.pooled_bytes;
  SIM_CHECK(told.opened_bytes >= sum, "statistics: %zu bytes are open, and their parts are %zu",
            std::size_t{told.opened_bytes}, sum);
  // The tables of the heaps' arena, and what the library maps for itself.
  constexpr std::size_t kBesides = 2 * kMiB;
  const std::size_t may_be_resident = told.opened_bytes - told.clean_bytes + told.metadata_bytes +
                                      told.heaps_taken_bytes + told.heaps_kept_bytes + kBesides;
  if (kernel.plan().locked || kernel.present() <= may_be_resident) return;
  // A range that was moving out when its thread vanished is lost, and may still have its pages
  // (pages/arena/moved_pages.hpp). No figure of the heaps' tells of it.
  const std::size_t lost = process.is_child() ? heaps::runs.statistics().lost_bytes : 0;
  const std::size_t resident = kernel.resident();
  SIM_CHECK(resident <= may_be_resident + lost,
            "%zu bytes are in memory, statistics tell of %zu, and %zu are lost", resident,
            may_be_resident, lost);
}

void check_heap(const Expected& expected) {
  // (Which is done in the next call that comes to a slow path.)
  if (StandardEngine::pages.recovery_is_due.load_relaxed() != 0) return;
  const test::HeapWalk walk = test::walk_heap<StandardEngine>();
  SIM_CHECK(walk.broken == 0,
            "heap check: of %zu spans %zu are in no place or in two (pool %zu, owned %zu and %zu "
            "empty, nobody's %zu, single %zu, lost %zu)",
            walk.carved, walk.broken, walk.in_pool, walk.owned, walk.owned_empty, walk.abandoned,
            walk.single, walk.lost);
  SIM_CHECK(walk.consistent(), "heap check: the sum of places is not %zu", walk.carved);
  check_statistics(expected);
  check_memory();
  // (Batches for others' spans vanish with their threads.)
  if (!expected.is_end || expected.vanished != 0) return;
  SIM_CHECK(walk.carved == walk.in_pool + walk.owned_empty,
            "at the end, of %zu spans %zu are in the pool and %zu empty; owned %zu, nobody's %zu, "
            "single %zu, lost %zu",
            walk.carved, walk.in_pool, walk.owned_empty, walk.owned, walk.abandoned, walk.single,
            walk.lost);
}

}  // namespace spanalloc::simulation::engine
