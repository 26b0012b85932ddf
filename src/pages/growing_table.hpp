// A table of records indexed by number, in address space of its own: reserved for the largest number there
// can be, opened (zero-filled) as numbers come into use. Records never move, and go away with the whole table
// only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "os/os.hpp"

namespace spanalloc {

/// Opens the part of a reserved table of `capacity_bytes` at `base` that lies in [open_bytes, needed), and no
/// page more if `sparing` (memory is locked: what is opened is resident at once). Returns how far it is open
/// then (whole pages, or the capacity), 0 when the kernel, open(address, bytes), refuses; then nothing has
/// changed.
template <class Open>
std::size_t open_table(char* base, std::size_t open_bytes, std::size_t needed, std::size_t capacity_bytes,
                       bool sparing, Open open) {
  const std::size_t page = os::page_size();
  // Steps of 64 KiB keep the number of system calls small; a refused step is retried exactly.
  std::size_t target = min_of(align_up(needed, max_of(page, 64 * kKiB)), capacity_bytes);
  if (sparing || !open(base + open_bytes, target - open_bytes)) {
    target = align_up(needed, page);
    if (!open(base + open_bytes, target - open_bytes)) return 0;
  }
  return target;
}

template <class T>
class GrowingTable {
 public:
  /// Reserves room for `records`; safe to call again. The caller serialises start() and ensure(). False when
  /// refused.
  bool start(std::size_t records) {
    if (records_.load_relaxed() != nullptr) return true;
    const std::size_t bytes = align_up(records * sizeof(T), os::page_size());
    void* p = os::reserve(bytes, os::page_size());
    if (p == nullptr) return false;
    capacity_bytes_ = bytes;
    records_.store_release(static_cast<T*>(p));  // release: readers that see the address see the mapping
    return true;
  }

  /// Makes records [0, end) usable. False when the kernel refuses; then nothing has changed.
  bool ensure(std::size_t end) {
    const std::size_t needed = end * sizeof(T);
    if (needed <= open_bytes_) return true;
    if (needed > capacity_bytes_) return false;
    char* base = reinterpret_cast<char*>(records_.load_relaxed());
    const bool locked = os::memory_is_locked() || os::is_locked(base + open_bytes_);
    const std::size_t open = open_table(base, open_bytes_, needed, capacity_bytes_, locked, os::open);
    if (open == 0) return false;
    open_bytes_ = open;
    SPANALLOC_ASSERT(needed <= open_bytes_ && open_bytes_ <= capacity_bytes_);
    return true;
  }

  /// Gives the table's address space back, while nobody uses it; start() may follow.
  void destroy() {
    if (T* records = records_.load_relaxed()) os::release(records, capacity_bytes_);
    records_.store_relaxed(nullptr);
    capacity_bytes_ = open_bytes_ = 0;
  }

  T& operator[](std::size_t number) { return records_.load_relaxed()[number]; }
  const T& operator[](std::size_t number) const { return records_.load_relaxed()[number]; }
  T* records() { return records_.load_relaxed(); }
  std::size_t number_of(const T* record) {
    return static_cast<std::size_t>(record - records_.load_relaxed());
  }

 private:
  Atomic<T*> records_{nullptr};  // constant after start()
  std::size_t capacity_bytes_ = 0;
  std::size_t open_bytes_ = 0;
};

}  // namespace spanalloc
