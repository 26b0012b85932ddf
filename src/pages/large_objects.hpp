// Objects outside spans: one mapping each, listed in a side table.
//
// Nothing about an object is kept in or next to it, so neither an overflow nor a pointer to foreign memory
// can fake a header: what is not in the table is not ours. The table is an open-addressing hash (linear
// probing, multiplicative hashing, at most half full) keyed by the object's address; removal shifts later
// entries back (Knuth, TAOCP 3, 6.4, algorithm R), so it never fills with tombstones. Its memory comes from
// the kernel and doubles; the first page is mapped with the first object.
//
// Invariants, under lock_:
//   (1) every entry names a mapping that is ours: an entry leaves the table before its address range can go
//       back to the kernel, and enters it after the range was mapped. Hence no two entries have one address,
//       even when the kernel hands an address out again at once.
//   (2) 2 * (entries_ + promised_) <= capacity_: whoever was promised a slot inserts without failing. A
//   resize
//       takes its entry out, keeps the slot promised, remaps, and puts the entry back under the new address.
// No system call happens under the lock. The lock and the table cost nothing against the mapping's own cost
// (microseconds, and serialised by the kernel), hence one lock and no shards.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "os/os.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc {

struct LargeObjectStatistics {
  std::size_t bytes = 0;  ///< of all objects, in whole pages
  std::size_t objects = 0;
};

/// The kernel as this layer uses it; tests replace it to make calls fail.
struct LargeObjectCalls {
  static void* map(std::size_t bytes, std::size_t alignment) { return os::map(bytes, alignment); }
  static void* remap(void* p, std::size_t old_bytes, std::size_t new_bytes, bool may_move) {
    return os::remap(p, old_bytes, new_bytes, may_move);
  }
  static void release(void* p, std::size_t bytes) { os::release(p, bytes); }
};

/// Thread-safe; zero-initialisable; never destroyed. Neither reads nor sets errno.
template <class Calls = LargeObjectCalls>
class LargeObjects {
 public:
  /// A zeroed object of `size` bytes (any, rounded up to whole pages; 0 counts as 1) at a multiple of
  /// `alignment` (a power of two). nullptr when memory is out; then nothing has changed.
  void* allocate(std::size_t size, std::size_t alignment) {
    const std::size_t page = os::page_size();
    if (size == 0) size = 1;
    if (size > SIZE_MAX / 2 || alignment > SIZE_MAX / 4) return nullptr;
    const std::size_t bytes = align_up(size, page);
    if (!promise_slot()) return nullptr;
    void* object = Calls::map(bytes, max_of(alignment, page));
    LockGuard guard(lock_);
    --promised_;
    if (object == nullptr) return nullptr;
    insert(Entry{address_of(object), bytes | log2_ceil(alignment)});
    return object;
  }

  /// Unmaps the object. False when `p` is not exactly the address of one; then nothing has changed.
  bool free(void* p) {
    Entry entry;
    {
      LockGuard guard(lock_);
      if (!take(address_of(p), entry)) return false;
    }
    Calls::release(p, entry.bytes());
    return true;
  }

  /// Bytes of the object at exactly `p` (whole pages), 0 when there is none.
  std::size_t usable_size(const void* p) const {
    LockGuard guard(lock_);
    const Entry* entry = find(address_of(p));
    return entry == nullptr ? 0 : entry->bytes();
  }

  /// Makes the object at `p` at least `size` bytes large, in place or by moving its pages. The old contents
  /// stay up to the smaller size, new bytes are zero. Returns its address, or nullptr: then nothing has
  /// changed. An object whose alignment exceeds a page does not move.
  void* resize(void* p, std::size_t size) {
    if (size == 0) size = 1;
    if (size > SIZE_MAX / 2) return nullptr;
    const std::size_t page = os::page_size();
    const std::size_t bytes = align_up(size, page);
    Entry entry;
    {
      LockGuard guard(lock_);
      if (!take(address_of(p), entry)) return nullptr;
      ++promised_;
    }
    // Nothing has to move to become smaller (Linux would not; an emulator may).
    const bool may_move = bytes > entry.bytes() && entry.alignment() <= page;
    void* moved = bytes == entry.bytes() ? p : Calls::remap(p, entry.bytes(), bytes, may_move);
    LockGuard guard(lock_);
    --promised_;
    if (moved == nullptr) {
      insert(entry);
      return nullptr;
    }
    insert(Entry{address_of(moved), bytes | log2_ceil(entry.alignment())});
    return moved;
  }

  /// Both fields from one instant.
  LargeObjectStatistics statistics() const {
    LockGuard guard(lock_);
    return {bytes_, entries_};
  }

  void lock_for_fork() { lock_.lock(); }
  void unlock_after_fork_in_parent() { lock_.unlock(); }
  /// Promises of threads that did not survive are void; what they had mapped but not listed (at most one
  /// object a vanished thread) stays mapped and unreachable in the child.
  void reset_after_fork_in_child() {
    promised_ = 0;
    lock_.reset_after_fork();
  }

 private:
  struct Entry {
    std::uintptr_t address = 0;  // 0: the slot is empty
    std::uint64_t packed = 0;    // bytes (a multiple of the page size) | log2(alignment)

    static constexpr std::uint64_t kLogMask = 63;
    std::size_t bytes() const { return packed & ~kLogMask; }
    std::size_t alignment() const { return std::size_t{1} << (packed & kLogMask); }
  };

  static constexpr std::size_t kFirstCapacity = 256;  // one 4 KiB page

  std::size_t home(std::uintptr_t address) const {
    // Fibonacci hashing: page addresses differ above bit 12; the top bits of the product mix them all.
    return static_cast<std::size_t>((address * 0x9E3779B97F4A7C15u) >> (64 - log2_floor(capacity_)));
  }
  std::size_t next(std::size_t slot) const { return (slot + 1) & (capacity_ - 1); }
  bool has_room() const { return 2 * (entries_ + promised_ + 1) <= capacity_; }

  Entry* find(std::uintptr_t address) const {
    if (capacity_ == 0 || address == 0) return nullptr;
    std::size_t slot = home(address);
    for (; table_[slot].address != 0; slot = next(slot)) {
      if (table_[slot].address == address) return &table_[slot];
    }
    return nullptr;
  }

  void place(const Entry& entry) {
    std::size_t slot = home(entry.address);
    while (table_[slot].address != 0) slot = next(slot);
    table_[slot] = entry;
  }

  void insert(const Entry& entry) {
    place(entry);
    ++entries_;
    bytes_ += entry.bytes();
  }

  bool take(std::uintptr_t address, Entry& out) {
    Entry* found = find(address);
    if (found == nullptr) return false;
    out = *found;
    --entries_;
    bytes_ -= out.bytes();
    // Close the gap: an entry further along the probe run moves into it unless its home lies behind the gap.
    std::size_t gap = static_cast<std::size_t>(found - table_);
    for (std::size_t slot = next(gap); table_[slot].address != 0; slot = next(slot)) {
      const std::size_t from_home = (slot - home(table_[slot].address)) & (capacity_ - 1);
      const std::size_t from_gap = (slot - gap) & (capacity_ - 1);
      if (from_home < from_gap) continue;
      table_[gap] = table_[slot];
      gap = slot;
    }
    table_[gap] = Entry{};
    return true;
  }

  // Reserves a slot for the caller (promised_ + 1), growing the table if need be; false when that fails.
  bool promise_slot() {
    for (;;) {
      std::size_t capacity;
      {
        LockGuard guard(lock_);
        if (has_room()) {
          ++promised_;
          return true;
        }
        capacity = capacity_;
      }
      if (!grow(capacity)) return false;
    }
  }

  // Doubles the table if it still has the capacity that was too small; maps and unmaps outside the lock.
  bool grow(std::size_t seen_capacity) {
    const std::size_t capacity = seen_capacity == 0 ? kFirstCapacity : 2 * seen_capacity;
    auto* fresh = static_cast<Entry*>(Calls::map(table_bytes(capacity), os::page_size()));
    if (fresh == nullptr) return false;
    Entry* retired = fresh;
    std::size_t retired_capacity = capacity;
    {
      LockGuard guard(lock_);
      if (capacity_ == seen_capacity) {
        retired = table_;
        retired_capacity = capacity_;
        table_ = fresh;
        capacity_ = capacity;
        for (std::size_t i = 0; i < retired_capacity; ++i) {
          if (retired[i].address != 0) place(retired[i]);
        }
      }
    }
    if (retired_capacity != 0) Calls::release(retired, table_bytes(retired_capacity));
    return true;
  }
  static std::size_t table_bytes(std::size_t capacity) {
    return align_up(capacity * sizeof(Entry), os::page_size());
  }

  mutable SpinLock lock_;  // guards everything below
  Entry* table_ = nullptr;
  std::size_t capacity_ = 0;  // power of two, or 0 before the first object
  std::size_t entries_ = 0;
  std::size_t promised_ = 0;  // slots of allocate and resize calls in flight
  std::size_t bytes_ = 0;
};

}  // namespace spanalloc
