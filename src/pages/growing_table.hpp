// A table of records indexed by number, in address space of its own (guarded_table.hpp): opened, zero-filled,
// as numbers come into use. Records never move, and go away with the whole table only.
#pragma once

#include <cstddef>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "os/os.hpp"
#include "pages/guarded_table.hpp"

namespace spanalloc {

template <class T>
class GrowingTable {
 public:
  /// Room for `records`, placed in the region, or reserved wherever the kernel likes (nullptr); safe to call
  /// again. The caller serialises start() and ensure(). False when refused.
  bool start(std::size_t records, TableRegion* region = nullptr) {
    if (records_.load_relaxed() != nullptr) return true;
    // (A fork's child may find it begun.)
    const bool placed = region != nullptr && !table_.started();
    return start_at(placed ? region->place_for(records * sizeof(T)) : TablePlace{}, records);
  }
  /// The same at a place that was found before.
  bool start_at(TablePlace place, std::size_t records) {
    if (records_.load_relaxed() != nullptr) return true;
    if (!table_.started() && !table_.start(place, records * sizeof(T))) return false;
    capacity_ = records;
    // Release: readers that see the address see the mapping.
    records_.store_release(reinterpret_cast<T*>(table_.base()));
    return true;
  }

  /// Makes the records [0, end) usable, of which those below `from` are in use.
  TableReach reach(std::size_t from, std::size_t end) {
    if (end > capacity_) return {from, from};
    if (table_.is_open_up_to(end * sizeof(T))) return {end, end};
    // What was mapped for the first opening tells by itself whether mlockall(MCL_FUTURE) was called before.
    // (Of a place that was given back nothing may be asked: it may be somebody else's.)
    const bool locked = (table_.holds_place() && os::is_locked(table_.next_page())) ||
                        (table_.is_used() && os::memory_is_locked());
    const TableReach bytes = table_.open_up_to(from * sizeof(T), end * sizeof(T), locked);
    if (bytes.end == end * sizeof(T)) return {end, end};
    const std::size_t below = max_of(bytes.end / sizeof(T), from);
    const bool gap = bytes.next != bytes.end;
    return {below, gap ? (bytes.next + sizeof(T) - 1) / sizeof(T) : below};
  }
  /// The same for a table that all users know to be without gaps: false when it cannot be.
  bool ensure(std::size_t end) { return reach(0, end).end == end; }
  /// Of a table that can be done without; see guarded_table.hpp. Like reach(), one thread at a time.
  void give_reservation_back() { table_.give_reservation_back(); }
  bool is_without_gaps() const { return table_.is_without_gaps(); }
  /// Whether there is such a record, of a number below some end that has been reached.
  bool has(std::size_t number) const { return table_.has(number * sizeof(T), (number + 1) * sizeof(T)); }

  /// Gives the table's address space back, while nobody uses it; start() may follow.
  void destroy() {
    table_.destroy();
    records_.store_relaxed(nullptr);
    capacity_ = 0;
  }

  T& operator[](std::size_t number) { return records_.load_relaxed()[number]; }
  const T& operator[](std::size_t number) const { return records_.load_relaxed()[number]; }
  std::size_t number_of(const T* record) {
    return static_cast<std::size_t>(record - records_.load_relaxed());
  }

 private:
  Atomic<T*> records_{nullptr};  // constant after start()
  std::size_t capacity_ = 0;     // "
  GuardedTable<> table_;
};

/// A growing table whose first kFront records stand in front of a region's other tables. Most processes never
/// need more, and have neither mappings nor page tables for these then.
template <class T, std::size_t kFront>
class FrontedTable {
 public:
  /// Finds places for both parts. The first one is there with it; false: refused.
  bool start(std::size_t records, TableRegion& region) {
    if (capacity_ == 0) {
      front_place_ = region.place_in_front(kFront * sizeof(T));
      rest_place_ = region.place_for((records - kFront) * sizeof(T));
      capacity_ = records;
    }
    return front_.start_at(front_place_, kFront);
  }

  /// As of GrowingTable. Where the first part cannot be opened to its end, and the second one can, the
  /// records between are a gap.
  TableReach reach(std::size_t from, std::size_t end) {
    if (end > capacity_) return {from, from};
    if (from < kFront) {
      const std::size_t wanted = min_of(end, kFront);
      const TableReach reach = front_.reach(from, wanted);
      if (reach.next != reach.end) return reach;
      if (reach.end != wanted) return rest_is_open() ? give_front_up(reach.end) : reach;
      if (end == wanted) return reach;
      from = kFront;
    }
    if (!start_rest()) return {from, from};
    const TableReach reach = rest_.reach(from - kFront, end - kFront);
    return {reach.end + kFront, reach.next + kFront};
  }
  /// As of GrowingTable.
  void give_reservation_back() {
    front_.give_reservation_back();
    rest_.give_reservation_back();
  }
  bool is_without_gaps() const {
    return front_.is_without_gaps() && rest_.is_without_gaps() && given_up_.load_relaxed() == 0;
  }
  bool has(std::size_t number) const {
    if (number >= kFront) return rest_.has(number - kFront);
    // Acquire: what is given up.
    return front_.has(number) && number < kFront - given_up_.load_acquire();
  }
  void destroy() {
    front_.destroy();
    rest_.destroy();
    given_up_.store_relaxed(0);
    capacity_ = 0;
  }
  T& operator[](std::size_t number) { return number < kFront ? front_[number] : rest_[number - kFront]; }
  const T& operator[](std::size_t number) const {
    return number < kFront ? front_[number] : rest_[number - kFront];
  }

 private:
  bool start_rest() { return rest_.start_at(rest_place_, capacity_ - kFront); }
  SPANALLOC_COLD bool rest_is_open() { return start_rest() && rest_.ensure(1); }
  SPANALLOC_COLD TableReach give_front_up(std::size_t from) {
    given_up_.store_release(kFront - from);
    return {from, kFront};
  }

  GrowingTable<T> front_;
  GrowingTable<T> rest_;             // has a mapping with the first record that front_ has no place for
  TablePlace front_place_;           // constant after start()
  TablePlace rest_place_;            // "
  std::size_t capacity_ = 0;         // "
  Atomic<std::size_t> given_up_{0};  // of front_'s records the last ones
};

}  // namespace spanalloc
