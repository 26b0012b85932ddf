// The figures of EngineStatistics by name: one table, from which malloc_info, malloc_stats and
// sp_stats_json all write. docs/statistics.md explains each; a test compares it with what they
// write.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/compiler.hpp"
#include "engine/engine.hpp"
#include "pages/program_heaps.hpp"

namespace spanalloc {

/// (Characters in their place: a pointer to each would have to be relocated at every start.)
struct Figure {
  std::uint16_t offset;  ///< in EngineStatistics
  char name[22];         ///< as in sp_statistics; JSON's
  char element[22];      ///< malloc_info's
  char meaning[40];      ///< malloc_stats'

  /// kNotTold: the engine has no such figure.
  std::size_t of(const EngineStatistics& s) const {
    return *reinterpret_cast<const std::size_t*>(reinterpret_cast<const char*>(&s) + offset);
  }
};

#define SPANALLOC_FIGURE(field) offsetof(EngineStatistics, field)
/// In the order in which malloc_stats prints them.
inline constexpr Figure kFigures[] = {
    {SPANALLOC_FIGURE(reserved_bytes), "reserved_bytes", "reserved", "address space held (bytes)"},
    {SPANALLOC_FIGURE(opened_bytes), "opened_bytes", "opened", "readable address space (bytes)"},
    {SPANALLOC_FIGURE(small_bytes_carved), "carved_bytes", "carved", "spans in use (bytes)"},
    {SPANALLOC_FIGURE(live_bytes), "live_bytes", "live_bytes", "  live blocks in them (bytes)"},
    {SPANALLOC_FIGURE(live_blocks), "live_blocks", "live_blocks", "  live blocks"},
    {SPANALLOC_FIGURE(free_bytes), "free_bytes", "free_bytes", "  free blocks in them (bytes)"},
    {SPANALLOC_FIGURE(free_blocks), "free_blocks", "free_blocks", "  free blocks"},
    {SPANALLOC_FIGURE(unsure_bytes), "unsure_bytes", "unsure_bytes", "  live or free (bytes)"},
    {SPANALLOC_FIGURE(unsure_blocks), "unsure_blocks", "unsure_blocks", "  live or free blocks"},
    {SPANALLOC_FIGURE(kept_block_bytes), "kept_block_bytes", "kept_block_bytes",
     "  free, kept by threads (bytes)"},
    {SPANALLOC_FIGURE(purged_part_bytes), "purged_part_bytes", "purged_part_bytes",
     "  given back of them (bytes)"},
    {SPANALLOC_FIGURE(pooled_bytes), "pooled_bytes", "pooled", "free memory (bytes)"},
    {SPANALLOC_FIGURE(pool_bytes), "pool_bytes", "pool_bytes", "  in pools (bytes)"},
    {SPANALLOC_FIGURE(kept_span_bytes), "kept_span_bytes", "kept_span_bytes",
     "  kept by threads (bytes)"},
    {SPANALLOC_FIGURE(dirty_bytes), "dirty_bytes", "dirty_bytes", "  to be given back (bytes)"},
    {SPANALLOC_FIGURE(clean_bytes), "clean_bytes", "clean_bytes", "  not in memory (bytes)"},
    {SPANALLOC_FIGURE(decommitted_bytes), "decommitted_bytes", "decommitted_bytes",
     "given back with its addresses (bytes)"},
    {SPANALLOC_FIGURE(metadata_bytes), "metadata_bytes", "metadata_bytes", "own tables (bytes)"},
    {SPANALLOC_FIGURE(resident_bytes), "resident_bytes", "resident_bytes", "in memory (bytes)"},
    {SPANALLOC_FIGURE(growths), "growths", "growths", "steps of growth"},
    {SPANALLOC_FIGURE(purges), "purges", "purges", "times that pages were given back"},
    {SPANALLOC_FIGURE(purged_bytes), "purged_bytes", "purged_bytes", "  given back in all (bytes)"},
    {SPANALLOC_FIGURE(decay_epochs), "decay_epochs", "decay_epochs", "decay epochs"},
    {SPANALLOC_FIGURE(trims), "trims", "trims", "trims"},
    {SPANALLOC_FIGURE(large_bytes), "large_bytes", "large", "large objects (bytes)"},
    {SPANALLOC_FIGURE(large_objects), "large_objects", "large_objects", "large objects"},
    {SPANALLOC_FIGURE(live_threads), "live_threads", "labs", "threads that use the heap"},
    {SPANALLOC_FIGURE(spans_lost_to_fork), "spans_lost_to_fork", "lost_to_fork",
     "spans lost to fork"},
    {SPANALLOC_FIGURE(heaps), "heaps", "heaps", "first-class heaps"},
    {SPANALLOC_FIGURE(heaps_taken_bytes), "heaps_taken_bytes", "heaps_taken_bytes",
     "  what they have taken (bytes)"},
    {SPANALLOC_FIGURE(heaps_kept_bytes), "heaps_kept_bytes", "heaps_kept_bytes",
     "  given back by them, kept (bytes)"},
};
#undef SPANALLOC_FIGURE
static_assert(sizeof kFigures / sizeof(Figure) == sizeof(EngineStatistics) / sizeof(std::size_t));

/// Adds what no engine knows.
SPANALLOC_COLD inline void add_heaps(EngineStatistics& to) {
  const ProgramHeaps::Figures figures = ProgramHeaps::figures();
  to.heaps = figures.heaps;
  to.heaps_taken_bytes = figures.taken_bytes;
  to.heaps_kept_bytes = figures.kept_bytes;
}

/// All figures, as a library tells them.
template <class E>
SPANALLOC_COLD EngineStatistics all_statistics() {
  EngineStatistics all = E::statistics();
  add_heaps(all);
  return all;
}

/// show(const Figure&, value) for each that the engine has.
template <class Show>
inline void for_each_figure(const EngineStatistics& s, Show&& show) {
  for (const Figure& figure : kFigures) {
    if (const std::size_t value = figure.of(s); value != kNotTold) show(figure, value);
  }
}

}  // namespace spanalloc
