// Where the records of first-class heaps are, for a reader outside of the process
// (pages/heaps_inspection.hpp says what each of these is). All of it follows from the types.
#pragma once

#include <cstddef>

#include "base/inspection_access.hpp"
#include "heaps/heap.hpp"
#include "heaps/runs.hpp"
#include "pages/heaps_inspection.hpp"

// As in standard/inspection.hpp.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"

namespace spanalloc {

struct HeapsInspectionAccess {
  static constexpr HeapsInspection tell(const heaps::Runs& runs) {
    using heaps::Heap;
    using heaps::HeapCore;
    using heaps::Run;
    using heaps::Shard;
    HeapsInspection out;
    const auto& slices = runs.arena_.slices_;
    out.base = &slices.range.base_;
    out.records = &runs.table_.records_;
    out.end = &runs.known_end_;
    out.held = &slices.in_use_or_dirty_;
    out.decommitted = &runs.arena_.decommitted_.count_;
    out.lost = &slices.lost_;
    out.slice_bits = heaps::HeapsConfig::kSliceBits;
    out.run_stride = sizeof(Run);
    out.run_owner = offsetof(Run, owner);
    out.run_first = offsetof(Run, first);
    out.run_count = offsetof(Run, count);
    out.run_heap = offsetof(Run, heap);
    out.heap_handle = offsetof(Heap, core_) + offsetof(HeapCore, handle);
    out.heap_limit = offsetof(Heap, core_) + offsetof(HeapCore, limit);
    out.heap_name = offsetof(Heap, name_);
    out.name_bytes = sizeof(Heap::name_);
    out.heap_first_shard = offsetof(Heap, first_);
    out.heap_shards = offsetof(Heap, shards_);
    out.shard_count = heaps::HeapsConfig::kMostShards;
    out.shard_blocks = offsetof(Shard, blocks_);
    out.shard_bytes = offsetof(Shard, bytes_);
    return out;
  }

 private:
  // What a reader takes for a word is one.
  static_assert(sizeof(Atomic<std::size_t>) == 8 && sizeof(Atomic<std::uint32_t>) == 4 &&
                sizeof(OwnersWord) == 8 && sizeof(heaps::Slice) == 4);
};

}  // namespace spanalloc

#pragma GCC diagnostic pop
