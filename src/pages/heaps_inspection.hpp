// Where a reader outside of the process finds the first-class heaps (src/heaps): their records, one
// for each slice of 64 KiB, and the fields of a heap. The engine's record (engine/inspection.hpp)
// leads here; tools/spanalloc_cli/top/heaps.py has the same list of fields. The linker fills it in,
// by the types (heaps/inspection.hpp). No thread of ours ever reads it.
//
// docs/concurrency.md says what such a reader may rely on.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spanalloc {

/// Constant. Version 1 is what is here: a field that goes, or means something else, takes another
/// version; new ones come at the end, and `bytes` grows.
struct HeapsInspection {
  static constexpr std::uint32_t kVersion = 1;

  std::uint32_t version = kVersion;
  std::uint32_t bytes = sizeof(HeapsInspection);

  // --- Where: addresses in the process -----------------------------------------------------------

  const void* base = nullptr;         ///< a word: the address of slice 0; 0: not started
  const void* records = nullptr;      ///< a word: where the records of slices are
  const void* end = nullptr;          ///< a word: how many there are, but for gaps
  const void* held = nullptr;         ///< a word: slices in use, or free and dirty,
  const void* decommitted = nullptr;  ///< a word: of these not to be counted, nor slice 0,
  const void* lost = nullptr;         ///< a word: nor these

  // --- Of a slice's record, that of a run where one begins: offsets in bytes ---------------------

  std::uint32_t slice_bits = 0;
  std::uint32_t run_stride = 0;
  std::uint32_t run_owner = 0;  ///< 8; 0: no run begins there, or nobody has it
  std::uint32_t run_first = 0;  ///< 4: the run's first slice
  std::uint32_t run_count = 0;  ///< 4: its slices
  std::uint32_t run_heap = 0;   ///< 4: the slice where its heap stands; the heap's own: itself

  // --- Of a heap: offsets in bytes from its slice's start ----------------------------------------

  std::uint32_t heap_handle = 0;  ///< 8: the program's sp_heap*; 0: it is being destroyed
  std::uint32_t heap_limit = 0;   ///< 8: bytes; all ones: none
  std::uint32_t heap_name = 0;    ///< name_bytes, with a zero
  std::uint32_t name_bytes = 0;
  std::uint32_t heap_first_shard = 0;
  std::uint32_t heap_shards = 0;  ///< addresses of the others; 0: none
  std::uint32_t shard_count = 0;  ///< how many of these addresses

  // --- Of a shard --------------------------------------------------------------------------------

  std::uint32_t shard_blocks = 0;  ///< 8: blocks in use
  std::uint32_t shard_bytes = 0;   ///< 8: of them, with headers
  std::uint32_t unused = 0;
};

}  // namespace spanalloc
