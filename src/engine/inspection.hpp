// What a reader outside of the process must know to find the heap's records there: where they
// begin, and where in a record each field is. `spanalloc top` is led to it by an ELF note
// (api/inspection.hpp), finds the records by it, and counts what they say
// (tools/spanalloc_cli/top/inspection.py has the same list of fields). So nothing is counted in the
// process for such a reader, and nothing is run there: the linker fills all of this in, by the
// types, and no thread of ours ever reads it.
//
// What such a reader may rely on, and what not, docs/concurrency.md says.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pages/program_heaps.hpp"

namespace spanalloc {

/// Also exported, as `spanalloc_inspection`. Constant. Version 1 is what is here: a field that
/// goes, or means something else, takes another version; new ones come at the end, and `bytes`
/// grows.
/// All that is behind `engine`, but for `program_heaps`, is 0 for an engine that does not tell its
/// layout.
struct Inspection {
  static constexpr std::uint32_t kVersion = 1;
  static constexpr char kMagic[] = "spanalloc heap";

  char magic[16] = {};
  std::uint32_t version = kVersion;
  std::uint32_t bytes = sizeof(Inspection);
  char library_version[16] = {};
  char engine[32] = {};

  // --- Where: addresses in the process -----------------------------------------------------------

  const void* classes = nullptr;          ///< the table of size classes; constant
  const void* arena_base = nullptr;       ///< a word: the address of slice 0; 0: not started
  const void* arena_limit = nullptr;      ///< a word: how many slices have rows
  const void* arena_rows = nullptr;       ///< a word: where the rows are
  const void* span_records = nullptr;     ///< a word: where the records of slices are
  const void* span_end = nullptr;         ///< a word: how many there are, but for gaps
  const void* cache_records = nullptr;    ///< a word: where the records of threads' caches are
  const void* cache_end = nullptr;        ///< 4 bytes: how many there are, but for gaps
  const void* cache_forks = nullptr;      ///< 4 bytes: what a living thread's cache has as `forks`
  const void* link_key = nullptr;         ///< a word: links of free blocks are stored xor this
  const void* outside_objects = nullptr;  ///< a word: blocks with a mapping of their own
  const void* outside_bytes = nullptr;    ///< a word: bytes of these

  // --- Of the table of classes: bytes ------------------------------------------------------------

  std::uint32_t class_stride = 0;
  std::uint32_t class_count = 0;  ///< rows; row 0 is no class; behind them that of huge blocks
  std::uint32_t class_first_large = 0;  ///< from this class on a span has one block
  std::uint32_t class_block_size = 0;   ///< fields of 4 bytes
  std::uint32_t class_span = 0;         ///< bytes of address space
  std::uint32_t class_blocks = 0;
  std::uint32_t class_lead = 0;  ///< bytes before the first block

  // --- Of the arena ------------------------------------------------------------------------------

  std::uint32_t slice_bits = 0;
  std::uint32_t row_units = 0;     ///< slices of a row
  std::uint32_t row_words = 0;     ///< its words
  std::uint32_t row_dirty = 0;     ///< which of them has a bit for each dirty slice,
  std::uint32_t row_unmapped = 0;  ///< for each that was decommitted,
  std::uint32_t row_lost = 0;      ///< and for the first of each range that is not ours
  std::uint32_t row_blocks = 0;    ///< where the slices' own words begin
  std::uint32_t block_size_shift = 0;
  std::uint32_t block_state_mask = 0;
  std::uint32_t block_used = 0;  ///< the state of a range that is handed out

  // --- Of a slice's record, that of a span where one begins: offsets in bytes --------------------

  std::uint32_t span_stride = 0;
  std::uint32_t span_word = 0;     ///< 8 bytes: span_word.hpp
  std::uint32_t span_class = 0;    ///< 1
  std::uint32_t span_carved = 0;   ///< 2
  std::uint32_t span_list = 0;     ///< 8: an address; bit 3 set: the list is empty
  std::uint32_t span_purged = 0;   ///< 8
  std::uint32_t span_retired = 0;  ///< 1
  std::uint32_t word_owner_shift = 0;
  std::uint32_t word_state_shift = 0;
  std::uint32_t word_cached_bit = 0;  ///< of a free span: it is in the cache of its owner
  std::uint32_t word_nobody = 0;      ///< the owner of spans of one block, and of abandoned ones

  // --- Of a cache's record: offsets in bytes -----------------------------------------------------

  std::uint32_t cache_stride = 0;
  std::uint32_t cache_thread = 0;    ///< 8: an address in the thread's TLS; 0: no thread has it
  std::uint32_t cache_forks_of = 0;  ///< 4
  std::uint32_t cache_batches = 0;
  std::uint32_t batch_count = 0;  ///< how many of them
  std::uint32_t batch_stride = 0;
  std::uint32_t batch_span = 0;   ///< 4: a number; the span to which its blocks belong
  std::uint32_t batch_quota = 0;  ///< 4
  std::uint32_t batch_left = 0;   ///< 4

  // --- First-class heaps -------------------------------------------------------------------------

  /// A word: where HeapsInspection is (pages/heaps_inspection.hpp); 0: there was no heap yet.
  const void* program_heaps = nullptr;

  // --- For who asks after one block --------------------------------------------------------------

  const void* no_block = nullptr;  ///< the address to which the last link of a list leads; constant
  /// A word: the table of blocks with a mapping of their own; 0: none. A table is a word, the count
  /// of its slots, and as many slots of two words from byte 16 on: the block's address (0 and 1: no
  /// block), and what `outside_…` part.
  const void* outside_table = nullptr;
  std::uint32_t span_order = 0;  ///< 1: log2 of the span's slices, in each of its slices' records
  std::uint32_t span_first = 0;  ///< 8: where the first block begins
  std::uint32_t batch_list = 0;  ///< 8: an address
  std::uint32_t outside_before = 0;  ///< from this bit on, 6: pages before the block's first one
  std::uint32_t outside_end = 0;     ///< below this bit, from bit 12 on: bytes of the mapping
  /// 1: its owner allocates from the batch, which holds the blocks counted at most.
  std::uint32_t batch_lent = 0;
};

/// An engine whose records a reader outside may walk.
template <class E>
concept TellsLayout = requires(Inspection& out) { E::tell_layout(out); };

template <class E>
consteval Inspection inspection_of(const char* library_version) {
  Inspection out;
  const auto copy = [](auto& to, const char* from) {
    for (std::size_t i = 0; from[i] != 0; ++i) {
      to[i] = from[i];
      to[i + 1] = 0;  // too long a text does not compile
    }
  };
  copy(out.magic, Inspection::kMagic);
  copy(out.library_version, library_version);
  // An ablation's name, which lists what differs, may be too long, and is cut.
  for (std::size_t i = 0; E::kName[i] != 0 && i + 1 < sizeof out.engine; ++i) {
    out.engine[i] = E::kName[i];
    out.engine[i + 1] = 0;
  }
  if constexpr (TellsLayout<E>) E::tell_layout(out);
  out.program_heaps = ProgramHeaps::inspection_place();
  return out;
}

}  // namespace spanalloc
