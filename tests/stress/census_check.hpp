// One reading of the engines' censuses: is every span somewhere, and is every span of an empty heap where an
// empty heap may have it?
#pragma once

#include <cstdio>
#include <string>

namespace spanalloc::stress {

struct CensusVerdict {
  bool consistent = true;  ///< no span is lost or in two places
  bool returned = true;    ///< each span is in the pool or is an empty hot span of a living LAB
  std::string text;
};

template <class Census>
CensusVerdict judge(const Census& c) {
  char text[384];
  CensusVerdict verdict;
  if constexpr (requires { c.superblocks; }) {
    verdict.consistent = c.consistent();
    verdict.returned = c.all_returned();
    std::snprintf(
        text, sizeof text,
        "pieces %zu: free %zu, superblocks %zu, empty ones %zu, large %zu, heap records %zu, lost %zu; "
        "live blocks %zu; broken %zu: %s at %zx",
        c.known, c.free, c.superblocks, c.empty_superblocks, c.large, c.heap_records, c.lost, c.live_blocks,
        c.broken, c.broken == 0 ? "" : c.first_problem, static_cast<std::size_t>(c.at));
  } else if constexpr (requires { c.broken; }) {
    verdict.consistent = c.consistent();
    verdict.returned = c.all_returned();
    std::snprintf(text, sizeof text,
                  "carved %zu: pool %zu, hot empty %zu, hot %zu, floating %zu, reusable %zu, single %zu, "
                  "lost to fork %zu, broken %zu",
                  c.carved, c.in_pool, c.hot_empty, c.hot, c.floating, c.reusable, c.single, c.lost_to_fork,
                  c.broken);
  } else {
    verdict.consistent = c.lost == 0;
    verdict.returned = c.nothing_held();
    std::snprintf(text, sizeof text,
                  "carved %zu: pool %zu, hot empty %zu, hot %zu, floating %zu, suspect %zu, reusable %zu, "
                  "empty but idle %zu, lost %zu",
                  c.carved, c.pooled, c.empty_hot, c.hot, c.floating, c.suspect, c.reusable, c.empty_idle,
                  c.lost);
  }
  verdict.text = text;
  return verdict;
}

}  // namespace spanalloc::stress
