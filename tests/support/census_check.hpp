// One reading of what engines tell of where their memory is, by a census of their own or, the
// standard engine, by a walk from outside: is every span somewhere, and is every span of an empty
// heap where an empty heap may have it?
#pragma once

#include <cstdio>
#include <string>

#include "engine/engine.hpp"
#include "heap_walk.hpp"

namespace spanalloc::test {

/// Of an engine's default heap, or of a heap of one's own.
template <class Heap>
auto census_of(Heap& heap)
  requires(
      requires { walk_heap(heap); } || requires { heap.census(); })
{
  if constexpr (requires { walk_heap(heap); }) {
    return walk_heap(heap);
  } else {
    return heap.census();
  }
}

struct CensusVerdict {
  bool consistent = true;  ///< no span is lost or in two places
  /// Each span is in the pool or is an empty current span of a living thread cache
  bool returned = true;
  std::string text;
};

template <class Census>
CensusVerdict judge(const Census& c) {
  char text[384];
  CensusVerdict verdict;
  if constexpr (requires { c.consistent(); }) {
    verdict.consistent = c.consistent();
    verdict.returned = c.all_returned();
  } else {
    verdict.consistent = c.lost == 0;
    verdict.returned = c.nothing_held();
  }
  if constexpr (requires { c.superblocks; }) {
    std::snprintf(text, sizeof text,
                  "pieces %zu: free %zu, superblocks %zu, empty ones %zu, large %zu, heap records "
                  "%zu, lost %zu; "
                  "live blocks %zu; broken %zu: %s at %zx",
                  c.known, c.free, c.superblocks, c.empty_superblocks, c.large, c.heap_records,
                  c.lost, c.live_blocks, c.broken, c.broken == 0 ? "" : c.first_problem,
                  static_cast<std::size_t>(c.at));
  } else if constexpr (requires { c.folio_chunks; }) {
    std::snprintf(text, sizeof text,
                  "chunks %zu: folios %zu, large %zu, huge %zu, free %zu, none %zu; objects: live "
                  "%zu, cached "
                  "%zu, large %zu, huge %zu; empty folios %zu; broken %zu: %s at %zx",
                  c.chunks, c.folio_chunks, c.large_chunks, c.huge_chunks, c.free_chunks,
                  c.no_chunks, c.live_objects, c.cached_objects, c.large_objects, c.huge_objects,
                  c.empty_folios, c.broken, c.broken == 0 ? "" : c.first_problem,
                  static_cast<std::size_t>(c.at));
  } else if constexpr (requires { c.broken; }) {
    std::snprintf(text, sizeof text,
                  "carved %zu: pool %zu, owned empty %zu, owned %zu, abandoned %zu, "
                  "single %zu, "
                  "lost %zu, broken %zu",
                  c.carved, c.in_pool, c.owned_empty, c.owned, c.abandoned, c.single, c.lost,
                  c.broken);
  } else {
    std::snprintf(
        text, sizeof text,
        "carved %zu: pool %zu, hot empty %zu, hot %zu, floating %zu, suspect %zu, reusable %zu, "
        "empty but idle %zu, lost %zu",
        c.carved, c.pooled, c.empty_hot, c.hot, c.floating, c.suspect, c.reusable, c.empty_idle,
        c.lost);
  }
  verdict.text = text;
  return verdict;
}

/// Nothing is allocated any more, and no other thread is in the heap: what it has left all the
/// same; empty when that is nothing.
template <class Heap>
std::string leftovers(Heap& heap) {
  heap.trim();
  const EngineStatistics left = heap.statistics();
  if (left.large_objects != 0 || left.large_bytes != 0) {
    return std::to_string(left.large_objects) + " large objects of " +
           std::to_string(left.large_bytes) + " bytes are left";
  }
  if constexpr (requires { census_of(heap); }) {
    const CensusVerdict verdict = judge(census_of(heap));
    if (!verdict.consistent || !verdict.returned) return "census: " + verdict.text;
  }
  return "";
}
/// The same of an engine.
template <class E>
std::string leftovers() {
  E engine;
  return leftovers(engine);
}

}  // namespace spanalloc::test
