// One reading of both engines' censuses: is every span somewhere, and is every span of an empty heap where an
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
  char text[256];
  CensusVerdict verdict;
  if constexpr (requires { c.broken; }) {
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
