// The tables of an arena's manager (its index, mapper and sets of units): they grow with the arena,
// each in a place of its own (guarded_table.hpp).
//
// Where a foreign mapping is in a table's way, the slices whose entries would stand there are lost:
// a gap. They are one block in use, of which nobody touches more than the first entry and the last.
#pragma once

#include <cstddef>
#include <optional>

#include "base/assert.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "pages/coalescing/mapper.hpp"
#include "pages/guarded_table.hpp"

namespace spanalloc {

/// Under the arena's lock, but for start() and destroy().
template <class Slices>
class ManagerTables {
  using Tables = typename Slices::Manager::Tables;

 public:
  constexpr explicit ManagerTables(Slices& slices) : slices_(slices) {}

  TableRegion& region() { return region_; }

  /// False: no memory for them. Repeatable.
  SPANALLOC_COLD bool start() {
    if (capacity() == 0) {
      const std::size_t units = slices_.range.capacity();
      region_.choose<typename Slices::Calls>();
      void* places[Tables::kCount] = {};
      for (unsigned t = 0; t < Tables::kCount; ++t) {
        const std::size_t bytes = Tables::bytes(t, units, units);
        if (bytes == 0) continue;  // so small a range needs fewer levels
        const std::size_t first = Tables::bytes(t, units, 1 + in_hand(t));
        if (!tables_[t].started() && !tables_[t].start(region_.place_for(bytes), bytes, first))
          return false;
        places[t] = tables_[t].base();
      }
      // Last: by the capacity a fork's child knows that the rest is done.
      slices_.manager.attach_tables(places, units, slices_.range.base() / Slices::kSlice);
    }
    return limit() != 0 || (reach(1).end == 1 && slices_.manager.extend_used(1));
  }
  void destroy() {
    for (auto& table : tables_) table.destroy();
    region_.forget();
  }
  /// Of the entries up to the limit, in whole pages.
  std::size_t bytes_in_use() const {
    std::size_t sum = 0;
    for (unsigned t = 0; t < Tables::kCount && limit() != 0; ++t)
      sum += align_up(bytes(t, limit()), os::page_size());
    return sum;
  }

  /// Gives the manager what the range has opened or skipped, as far as these tables and the
  /// caller's own reach (before_use(end)). Slices without entries in some table are lost. False: no
  /// memory for a table; try again later.
  template <class BeforeUse>
  SPANALLOC_COLD bool book_opened(BeforeUse before_use) {
    SPANALLOC_ASSERT(slices_.grow_lock.is_mine() && slices_.range.opened() >= limit());
    const std::size_t first = limit();
    std::size_t end = slices_.range.opened();
    std::size_t next = first;
    for (const TableReach& reach : {this->reach(end), before_use(end)}) {
      end = min_of(end, reach.end);
      if (reach.end <= first) next = max_of(next, reach.next);
    }
    if (end <= first) return book_gap(next);
    const coalescing::Block fresh{first, end - first};
    // (A range skips or opens, and is booked before it does so again.)
    if (!slices_.range.has_skipped_behind(first)) {
      slices_.forget_lost_mark(first);  // a vanished thread may have been about to lose it
      if (!slices_.manager.extend(fresh.size, true)) return false;
      slices_.refused.memory_came_back();
      return true;
    }
    // Marked first: a fork's child that finds this half done may lose more, but never uses a
    // foreign mapping.
    slices_.mark_lost(fresh);
    return slices_.manager.extend_used(fresh.size);
  }

 private:
  std::size_t capacity() const { return slices_.manager.capacity(); }
  std::size_t limit() const { return slices_.manager.limit(); }

  // Makes one lost block of the slices from the limit up to `next`: they have no entries in some
  // table. Its first slice has entries (reach() keeps one in hand); its last slice must have all
  // that it shares with those behind it.
  SPANALLOC_COLD bool book_gap(std::size_t next) {
    const std::size_t first = limit();
    if (next <= first || !slices_.has_room_for_gap()) return false;
    std::optional<bool> locked;
    for (unsigned t = 0; t < Tables::kCount;) {
      const std::size_t before = Tables::units_before(t, next);
      const TableReach reach =
          table_reach(t, before - min_of(before, in_hand(t)), next + 1, locked);
      if (reach.end == next + 1) {
        ++t;
        continue;
      }
      if (reach.next <= next) return false;
      next = reach.next;
      t = 0;
    }
    const coalescing::Block gap{first, next + 1 - first};
    const std::size_t opened = slices_.range.opened();
    const bool was_skipped = slices_.range.has_skipped_behind(first);
    if (!slices_.range.skip_to(gap.end())) return false;
    // Slices opened there are of no use. (If the kernel refuses to decommit them, that costs
    // addresses only.)
    const std::size_t unused = min_of(gap.end(), opened) - first;
    if (!was_skipped && unused != 0) slices_.range.decommit_for_ever({first, unused});
    return slices_.add_gap(gap);
  }

  // Opens the tables for `end` slices, and tells how far all reach: at least to the limit.
  SPANALLOC_COLD TableReach reach(std::size_t end) {
    TableReach all{end, end};
    std::optional<bool> locked;
    for (unsigned t = 0; t < Tables::kCount; ++t) {
      const TableReach reach = table_reach(t, limit(), end, locked);
      if (reach.end < all.end) all = reach;
    }
    return all;
  }
  // `locked`: whether opened pages would be resident at once. That takes several calls of the
  // kernel to know: asked when the first table must open, and not again.
  SPANALLOC_COLD TableReach table_reach(unsigned table, std::size_t from, std::size_t end,
                                        std::optional<bool>& locked) {
    if (tables_[table].is_open_up_to(bytes(table, end))) return {end, end};
    if (!locked) locked = slices_.range.is_locked();
    // (Before the first unit there may be entries, of the highest levels: they are not in use yet.)
    const std::size_t in_use = from == 0 ? 0 : bytes(table, from);
    const TableReach reach = tables_[table].open_up_to(in_use, bytes(table, end), *locked);
    if (reach.end == bytes(table, end)) return {end, end};
    std::size_t units = Tables::units_within(table, capacity(), reach.end);
    units = max_of(units - min_of(units, in_hand(table)), from);
    const bool gap = reach.next != reach.end;
    return {units, gap ? Tables::units_behind(table, capacity(), reach.end, reach.next) : units};
  }
  std::size_t bytes(unsigned table, std::size_t units) const {
    return Tables::bytes(table, capacity(), min_of(units + in_hand(table), capacity()));
  }
  // Rows for one slice more: a gap would begin there.
  static std::size_t in_hand(unsigned table) { return table == Tables::kRows ? 1 : 0; }

  Slices& slices_;
  TableRegion region_;
  GuardedTable<typename Slices::Calls> tables_[Tables::kCount];
};

}  // namespace spanalloc
