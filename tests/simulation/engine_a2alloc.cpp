// The engine of a2alloc in a simulation.
#include "api/nested_engine.hpp"
#include "census_check.hpp"
#include "papers/a2alloc/engine/engine.hpp"

namespace spanalloc {
using LibraryEngine = NestedEngine<A2allocEngine<A2alloc>>;
}

#include "library.hpp"

namespace spanalloc::simulation::engine {

const char* const kName = "a2alloc";

void start_process() {
  start_library_engine();
}

bool can_grow() {
  return a2alloc::Allocator<A2alloc>::default_instance.global_heap().can_grow();
}

void check_quiet() {}

// Threads share heaps: of the superblock that one thread's request has obtained another one's may
// be served a moment later.
bool allocations_give() {
  return true;
}
bool children_find_more() {
  return true;
}

// Who finds no memory waits for what another thread purges.
bool may_wait_without_lock() {
  return a2alloc::Allocator<A2alloc>::default_instance.global_heap().counts().purging != 0;
}

void check_bounds() {}

void check_heap(const Expected& expected) {
  const auto census = A2allocEngine<A2alloc>::census();
  const test::CensusVerdict verdict = test::judge(census);
  SIM_CHECK(verdict.consistent, "census: %s", verdict.text.c_str());
  check_statistics(expected);
  if (!expected.is_end || expected.torn != 0) return;
  SIM_CHECK(verdict.returned, "at the end, census: %s", verdict.text.c_str());
}

}  // namespace spanalloc::simulation::engine
