// The engine of scalloc in a simulation.
#include "api/nested_engine.hpp"
#include "census_check.hpp"
#include "papers/scalloc/engine/engine.hpp"

namespace spanalloc {
using LibraryEngine = NestedEngine<ScallocEngine<Scalloc>>;
}

#include "library.hpp"

namespace spanalloc::simulation::engine {

const char* const kName = "scalloc";

void start_process() {
  start_library_engine();
}

void check_quiet() {}

bool allocations_give() {
  return true;
}
bool children_find_more() {
  return true;
}

void check_bounds() {}

void check_heap(const Expected& expected) {
  const auto census = ScallocEngine<Scalloc>::census();
  const test::CensusVerdict verdict = test::judge(census);
  // DESIGN.md, Threads: one that a vanished thread was moving between two places.
  SIM_CHECK(census.lost <= expected.torn, "census: %s; %zu threads have vanished",
            verdict.text.c_str(), expected.torn);
  check_statistics(expected);
  const EngineStatistics told = LibraryEngine::statistics();
  // A call that a fork has left behind has a block in hand, a realloc two.
  const std::size_t in_hand = 2 * expected.torn;
  SIM_CHECK(
      told.live_blocks + told.large_objects <= expected.blocks + in_hand,
      "statistics: %zu blocks live (%zu large), the program has %zu, %zu threads have vanished",
      told.live_blocks + told.large_objects, told.large_objects, expected.blocks, expected.torn);
  if (!expected.is_end) return;
  SIM_CHECK(verdict.returned || expected.vanished != 0, "at the end, census: %s",
            verdict.text.c_str());
  // (What a vanished thread allocated from is lost, and counted.)
  SIM_CHECK(census.hot + census.idle() <= told.spans_lost_to_fork + in_hand,
            "at the end, census: %s; %zu lost to forks, %zu threads have vanished",
            verdict.text.c_str(), told.spans_lost_to_fork, expected.torn);
}

}  // namespace spanalloc::simulation::engine
