// The functions of spanalloc.h over spanalloc::LibraryEngine, and what holds for the statistics of
// any engine. Included once, after that name is declared.
#pragma once

// A simulated process starts when its run says so, and not when the program is loaded.
#define constructor(priority) used
#include "api/sp_api.hpp"
#undef constructor

#include "engine.hpp"
#include "kernel.hpp"
#include "report.hpp"

namespace spanalloc::simulation {

/// While all threads are idle the statistics are exact. `said_free`: objects in use that are
/// counted as free, in a fork's child.
inline void check_statistics(const Expected& expected, std::size_t said_free = 0) {
  const EngineStatistics told = LibraryEngine::statistics();
  std::size_t blocks = told.large_objects;
  if (told.live_blocks != kNotTold) blocks += told.live_blocks;
  const std::size_t unsure = told.unsure_blocks == kNotTold ? 0 : told.unsure_blocks;
  if (told.live_blocks != kNotTold) {
    SIM_CHECK(blocks <= expected.blocks + expected.vanished * 4096 &&
                  blocks + unsure + said_free >= expected.blocks,
              "statistics: %zu blocks live (%zu unsure, %zu large), the program has %zu", blocks,
              unsure, told.large_objects, expected.blocks);
  }
  SIM_CHECK(told.opened_bytes <= told.reserved_bytes,
            "statistics: %zu bytes are open of %zu reserved", told.opened_bytes,
            told.reserved_bytes);
}

}  // namespace spanalloc::simulation
