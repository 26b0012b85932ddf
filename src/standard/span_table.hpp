// The arena, and a record for each of its slices: from an address to the record of its span, and
// back.
//
// There is one base address and one table, so that any pointer leads to its span's record by one
// subtraction and one comparison.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/inspection_access.hpp"
#include "pages/coalescing_arena.hpp"
#include "pages/growing_table.hpp"
#include "standard/size_classes.hpp"
#include "standard/span.hpp"

namespace spanalloc::standard {

/// All functions but start() and destroy() are thread-safe. Zero-initialised.
template <class Config>
class SpanTable {
 public:
  using Arena = CoalescingArena<Config::kSliceBits, Config::kHugePages>;

  bool start() {
    // The arena must be aligned like the spans of several blocks, whatever the page size.
    return arena.start(SizeClasses<Config>::kSlice << Config::kMaxOrder) &&
           spans_.start(arena.capacity(), &arena.table_region()) && spans_.ensure(1);
  }
  void destroy() {
    arena.destroy();
    spans_.destroy();
    known_end_.store_relaxed(0);
    plain_end_.store_relaxed(0);
  }

  SPANALLOC_INLINE SpanRef span(SpanNumber number) { return {&spans_[index_of(number)], number}; }
  /// `record`: that of a span's first slice.
  SpanRef ref_of(Span& record) {
    return {&record, SpanNumber{static_cast<std::uint32_t>(&record - &spans_[0])}};
  }
  SPANALLOC_INLINE char* address(SpanNumber number) const {
    return pointer_to<char>(arena.base() + (std::size_t{index_of(number)} << Config::kSliceBits));
  }
  /// Which slice of the arena `a` lies in. An address outside gives a number that no slice has.
  SPANALLOC_INLINE std::size_t slice_of(std::uintptr_t a) const {
    return (a - arena.base()) >> Config::kSliceBits;  // below the base: wraps to a huge number
  }
  /// Whether the slice has a record. Records reach to where the arena has handed slices out, or to
  /// the first gap among them. (Slice 0 is never handed out; its record says so.) Relaxed: a thread
  /// that holds a live block got it after the record was made.
  SPANALLOC_INLINE bool has_plain_slice(std::size_t number) const {
    return SPANALLOC_LIKELY(number < plain_end_.load_relaxed());
  }
  /// Whether the target is a span's record (and there is no gap before it).
  SPANALLOC_INLINE bool is_record(const FreeTarget* target) const {
    return has_plain_slice((address_of(target) - address_of(&spans_[0])) / sizeof(Span));
  }
  /// The record of the slice that `a` lies in, if it has one; also behind gaps,
  /// where foreign mappings are.
  SPANALLOC_INLINE SpanRef any_slice_at(std::uintptr_t a) {
    const std::size_t number = slice_of(a);
    if (number >= known_end_.load_relaxed()) return {};
    const SpanNumber slice{static_cast<std::uint32_t>(number)};
    return has_record(slice) ? span(slice) : SpanRef{};
  }
  /// The record of the span that a slice belongs to.
  SpanRef span_of(SpanRef slice) {
    return span(SpanNumber{index_of(slice.number) & ~((1u << slice->order()) - 1)});
  }
  /// Slices below this have records, but for gaps. Acquire: the table is open so far.
  SpanNumber end_of_spans() const {
    return SpanNumber{static_cast<std::uint32_t>(known_end_.load_acquire())};
  }
  /// Asked of a number below end_of_spans(). False: a foreign mapping is in the record's place.
  bool has_record(SpanNumber number) const { return spans_.has(index_of(number)); }
  /// The arena calls it under its lock before it hands out slices below `end`: makes their records.
  auto records_reach() {
    return [this](std::size_t end) { return make_records(end); };
  }
  /// The link from a free span to the next one in its stack of a pool.
  auto pool_links() {
    return [this](SpanNumber number) -> Atomic<std::uint32_t>& { return span(number)->pool_link; };
  }

  SliceCount slices_of(SpanRef span) const { return {arena.count_of(index_of(span.number))}; }
  Block* block_at_offset(SpanRef span, BlockOffset offset) const {
    return reinterpret_cast<Block*>(address(span.number) + offset_of_block(offset));
  }
  BlockOffset offset_of(SpanRef span, const void* block) const {
    return as_block_offset(address_of(block) - address_of(address(span.number)));
  }
  /// Where a list of the span begins, or no_block().
  Block* first_of(SpanRef span, BlockOffset list) const {
    return list == BlockOffset::kNone ? no_block() : block_at_offset(span, list);
  }

  Arena arena;

 private:
  friend struct spanalloc::InspectionAccess;

  SPANALLOC_COLD TableReach make_records(std::size_t end) {
    // The arena's limit may lie behind the last record: the arena skips slices that have no entry
    // in one of the tables. Where records are refused, those up to the limit have not been made.
    const std::size_t from = max_of(known_end_.load_relaxed(), arena.limit());
    const TableReach reach = spans_.reach(from, end);
    if (reach.end <= from) return reach;
    // Release: the table is open so far
    if (spans_.is_without_gaps()) plain_end_.store_release(reach.end);
    // Release: the table is open so far
    known_end_.store_release(reach.end);
    return reach;
  }

  GrowingTable<Span> spans_;          // grown under the arena's lock
  Atomic<std::size_t> known_end_{0};  // written under the arena's lock: records end here
  Atomic<std::size_t> plain_end_{0};  // written under the arena's lock: their first gap
};

}  // namespace spanalloc::standard
