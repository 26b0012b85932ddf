// A table of records indexed by number, in address space of its own (guarded_table.hpp).
// Records are opened, zero-filled, as their numbers come into use. They never move, and
// disappear only with the whole table.
#pragma once

#include <cstddef>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "base/inspection_access.hpp"
#include "os/os.hpp"
#include "pages/guarded_table.hpp"

namespace spanalloc {

template <class T>
class GrowingTable {
 public:
  /// Claims room for `records`, in the region, or without one (nullptr) wherever the kernel likes;
  /// may be called again. The caller serialises start() and reach(). False: refused.
  bool start(std::size_t records, TableRegion* region = nullptr) {
    if (records_.load_relaxed() != nullptr) return true;
    // (A fork's child may find the table begun.)
    const bool placed = region != nullptr && !table_.started();
    return start_at(placed ? region->place_for(records * sizeof(T)) : TablePlace{}, records);
  }
  /// Like start(), at a place that was found before.
  bool start_at(TablePlace place, std::size_t records) {
    if (records_.load_relaxed() != nullptr) return true;
    if (!table_.started() && !table_.start(place, records * sizeof(T))) return false;
    capacity_ = records;
    // Release: readers that see the address see the mapping, too.
    records_.store_release(reinterpret_cast<T*>(table_.base()));
    return true;
  }

  /// Makes the records [0, end) usable; those below `from` are in use already.
  TableReach reach(std::size_t from, std::size_t end) {
    if (end > capacity_) return {from, from};
    if (table_.is_open_up_to(end * sizeof(T))) return {end, end};
    // The next page, mapped already, tells whether mlockall(MCL_FUTURE) was called before it was
    // mapped. (If the place was given back it may be somebody else's.)
    const bool locked = (table_.holds_place() && os::is_locked(table_.next_page())) ||
                        (table_.is_used() && os::memory_is_locked());
    const TableReach bytes = table_.open_up_to(from * sizeof(T), end * sizeof(T), locked);
    if (bytes.end == end * sizeof(T)) return {end, end};
    const std::size_t below = max_of(bytes.end / sizeof(T), from);
    const bool gap = bytes.next != bytes.end;
    return {below, gap ? (bytes.next + sizeof(T) - 1) / sizeof(T) : below};
  }
  /// Like reach(), for a table that all users expect to have no gaps. False: the
  /// records are not all usable.
  bool ensure(std::size_t end) { return reach(0, end).end == end; }
  /// For a table that its owner can do without (guarded_table.hpp). Like
  /// reach(), one thread at a time.
  void give_reservation_back() { table_.give_reservation_back(); }
  bool is_without_gaps() const { return table_.is_without_gaps(); }
  /// Whether the record exists, for a number below an end that was reached.
  bool has(std::size_t number) const {
    return table_.has(number * sizeof(T), (number + 1) * sizeof(T));
  }

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
  friend struct spanalloc::InspectionAccess;
  friend struct spanalloc::HeapsInspectionAccess;

  Atomic<T*> records_{nullptr};  // constant after start()
  std::size_t capacity_ = 0;     // constant after start()
  GuardedTable<> table_;
};

/// A growing table whose first kFront records stand in front of a region's other tables. Most
/// processes need no more, and then have no mappings and page tables for the rest.
template <class T, std::size_t kFront>
class FrontedTable {
 public:
  /// Finds places for both parts, and starts the first one. False: refused.
  bool start(std::size_t records, TableRegion& region) {
    if (capacity_ == 0) {
      front_place_ = region.place_in_front(kFront * sizeof(T));
      rest_place_ = region.place_for((records - kFront) * sizeof(T));
      capacity_ = records;
    }
    return front_.start_at(front_place_, kFront);
  }

  /// Like GrowingTable's. If only the second part can be opened, the records up to it are a gap.
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
  /// Like GrowingTable's.
  void give_reservation_back() {
    front_.give_reservation_back();
    rest_.give_reservation_back();
  }
  bool is_without_gaps() const {
    return front_.is_without_gaps() && rest_.is_without_gaps() && given_up_.load_relaxed() == 0;
  }
  bool has(std::size_t number) const {
    if (number >= kFront) return rest_.has(number - kFront);
    // Acquire: the number of records given up.
    return front_.has(number) && number < kFront - given_up_.load_acquire();
  }
  void destroy() {
    front_.destroy();
    rest_.destroy();
    given_up_.store_relaxed(0);
    capacity_ = 0;
  }
  T& operator[](std::size_t number) {
    return number < kFront ? front_[number] : rest_[number - kFront];
  }
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
  GrowingTable<T> rest_;             // mapped from the first record on that front_ has no room for
  TablePlace front_place_;           // constant after start()
  TablePlace rest_place_;            // constant after start()
  std::size_t capacity_ = 0;         // constant after start()
  Atomic<std::size_t> given_up_{0};  // how many of front_'s last records
};

}  // namespace spanalloc
