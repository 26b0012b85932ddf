// What the engine has out, by bin and in all: from the counts that its parts keep. Any time; an
// estimate while threads are at work.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "engine/engine.hpp"
#include "pages/large_objects.hpp"
#include "papers/supermalloc/engine/bins.hpp"
#include "papers/supermalloc/engine/chunk_table.hpp"
#include "papers/supermalloc/engine/cpu_caches.hpp"
#include "papers/supermalloc/engine/folio_heap.hpp"
#include "papers/supermalloc/engine/huge_heap.hpp"
#include "papers/supermalloc/engine/large_heap.hpp"
#include "papers/supermalloc/engine/object_list.hpp"
#include "papers/supermalloc/engine/thread_caches.hpp"

namespace spanalloc::supermalloc {

template <class Config>
struct Books {
  using TheBins = Bins<Config>;

  ChunkTable& chunks;
  FolioHeap<Config>& folios;
  LargeHeap<Config>& large;
  HugeHeap& huge;
  CpuCaches<Config>& cpus;
  ThreadCaches<Config>& threads;

  /// Objects of the bin that caches of all levels hold.
  std::size_t cached(BinNumber b) {
    std::size_t objects = 0;
    cpus.for_each_chain(b, [&](const Chain& chain) { objects += chain.objects(); });
    if (b < TheBins::kFirstLarge) {
      threads.for_each([&](const ThreadCache<Config>& cache) { objects += cache.objects(b); });
    }
    return objects;
  }
  /// Of which pages may be in memory: folios, or large objects; those that are out, and those that
  /// the kernel did not take back.
  std::size_t committed_bytes(BinNumber b) const {
    if (b < TheBins::kFirstLarge) return folios.committed_bytes(b);
    return (large.out(b) + large.kept(b)) * TheBins::of(b).size;
  }

  SPANALLOC_COLD EngineStatistics statistics(const LargeObjectStatistics& outside) {
    EngineStatistics result;
    const ArenaStatistics arena = chunks.statistics();
    result.reserved_bytes = arena.reserved_bytes;
    result.opened_bytes = arena.opened_bytes;
    result.large_objects = huge.objects() + outside.objects;
    result.large_bytes = huge.bytes() + outside.bytes;
    // What the kernel did not take back is nobody's: free memory, here and below.
    result.pooled_bytes = huge.kept_bytes();
    result.live_bytes = result.live_blocks = result.free_bytes = result.free_blocks =
        result.kept_block_bytes = 0;
    for (BinNumber b = 0; b < TheBins::kCount; ++b) {
      const Bin& bin = TheBins::of(b);
      const std::size_t in_caches = cached(b);
      result.pooled_bytes += in_caches * bin.size;
      if (!bin.is_large()) {
        const std::size_t committed = folios.committed_bytes(b);
        const std::size_t in_use = folios.bytes_in_use(b);
        result.small_bytes_carved += in_use;
        result.pooled_bytes += committed > in_use ? committed - in_use : 0;
        if (in_use != 0) add_objects(b, in_caches, result);
        continue;
      }
      result.pooled_bytes += large.kept(b) * bin.size;
      const std::size_t out = large.out(b);
      const std::size_t in_use = out > in_caches ? out - in_caches : 0;
      result.large_objects += in_use;
      result.large_bytes += in_use * bin.size;
    }
    result.live_threads = threads.live();
    result.spans_lost_to_fork = cpus.lost_to_fork();
    return result;
  }

  /// Of small objects in folios in use: those in caches are free, too.
  SPANALLOC_COLD void add_objects(BinNumber b, std::size_t in_caches, EngineStatistics& result) {
    const Bin& bin = TheBins::of(b);
    std::size_t out = 0;
    std::size_t free = 0;
    folios.for_each_fullness(b, [&](std::uint32_t free_objects, std::size_t number) {
      if (free_objects == bin.folio_objects) return;
      out += (bin.folio_objects - free_objects) * number;
      free += free_objects * number;
    });
    const std::size_t cached = min_of(in_caches, out);
    result.live_blocks += out - cached;
    result.live_bytes += (out - cached) * bin.size;
    result.free_blocks += free + cached;
    result.free_bytes += (free + cached) * bin.size;
    result.kept_block_bytes += cached * bin.size;
  }

  /// Of each bin that has memory, in turn: see DescribesBins.
  template <class F, class G>
  SPANALLOC_COLD void describe(F&& f, G&& g) {
    for (BinNumber b = 0; b < TheBins::kCount; ++b) {
      const std::size_t committed = committed_bytes(b);
      if (committed == 0) continue;
      const Bin& bin = TheBins::of(b);
      f(std::size_t{bin.size}, std::size_t{bin.folio_bytes}, committed, cached(b));
      if (bin.is_large()) continue;
      folios.for_each_fullness(
          b, [&](std::uint32_t free, std::size_t number) { g(std::size_t{free}, number); });
    }
  }
};

}  // namespace spanalloc::supermalloc
