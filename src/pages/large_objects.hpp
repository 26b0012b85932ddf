// Large objects: each has a mapping of its own, outside spans, and an entry in a side table.
//
// An object begins where its mapping does; or, if the mapping has come from elsewhere (fill()),
// some pages and bytes behind that.
//
// Nothing about an object is kept in or next to it, so neither an overflow nor a pointer to foreign
// memory can fake a header: a pointer that is not in the table is not ours. The table is an
// open-addressing hash (linear probing, multiplicative hashing) keyed by the object's address. Its
// memory comes from the kernel; the first page is mapped with the first object.
//
// Invariants, under lock_:
//   (1) Every entry names a mapping that is ours: an entry leaves the table before its address
//       range can go back to the kernel, and enters it after the range was mapped. So no two
//       entries have one address, even when the kernel hands an address out again at once.
//   (2) 2 * (entries_ + tombstones_ + promised_) <= capacity: a thread that was promised a slot
//       inserts without failing. An object that grows is promised a slot: its entry is taken out,
//       and put back under the new address when the mapping has moved. One that becomes smaller
//       keeps its address, and its slot: the entry says so before the rest goes back to the kernel.
//   (3) At every instant the table is whole: an entry comes with the write of its address and goes
//       when its address becomes a grave; it gets smaller with the write of its other word; a new
//       table comes with the write of table_. Each is one store. Only the counts may be behind, and
//       a fork's child counts anew (Guard). For this, removal leaves graves and shifts nothing; a
//       table full of graves is made anew.
// No system call happens under the lock, but for destroy(). The lock and the table cost
// nothing beside the mapping itself (microseconds, and serialised by the kernel): so there is
// one lock, and no shards.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "base/inspection_access.hpp"
#include "os/os.hpp"
#include "pages/page_calls.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc {

struct LargeObjectStatistics {
  std::size_t bytes = 0;  ///< of all objects, in whole pages
  std::size_t objects = 0;
};

/// The kernel; tests replace it to make calls fail.
struct LargeObjectCalls {
  static void* map(std::size_t bytes, std::size_t alignment) { return os::map(bytes, alignment); }
  static void* remap(void* p, std::size_t old_bytes, std::size_t new_bytes) {
    return os::remap(p, old_bytes, new_bytes);
  }
  static void release(void* p, std::size_t bytes) { os::unmap(p, bytes); }
  static bool would_grant(std::size_t bytes) { return os::would_grant(bytes); }
};

/// Thread-safe; zero-initialisable; ends only by destroy(). Neither reads nor sets errno.
template <class Calls = LargeObjectCalls>
class LargeObjects {
 public:
  /// A zeroed object of `size` bytes (any, rounded up to whole pages; 0 counts as 1) at a multiple
  /// of `alignment` (a power of two). nullptr when memory is out; then nothing has changed.
  void* allocate(std::size_t size, std::size_t alignment) {
    const std::size_t page = os::page_size();
    if (size == 0) size = 1;
    if (size > SIZE_MAX / 2 || alignment > SIZE_MAX / 4) return nullptr;
    const std::size_t bytes = align_up(size, page);
    if (!promise_slot()) return nullptr;
    void* object = Calls::map(bytes, max_of(alignment, page));
    Guard guard(*this);
    take_promise_back();
    if (object == nullptr) return nullptr;
    insert(Entry::make(address_of(object), bytes, log2_ceil(alignment), 0));
    return object;
  }

  /// Promises a slot for an object whose mapping the caller is about to make. fill() or
  /// give_promise_back() ends the promise. False: there is no slot, or there are `most` objects.
  bool promise(std::size_t most) { return statistics().objects < most && promise_slot(); }
  void fill(void* mapping, std::size_t bytes, std::size_t offset) {
    SPANALLOC_ASSERT(offset < kMostOffset);
    Guard guard(*this);
    take_promise_back();
    insert(Entry::make(address_of(mapping) + offset, bytes, 0, offset / os::page_size()));
  }
  void give_promise_back() {
    Guard guard(*this);
    take_promise_back();
  }

  /// Unmaps the object. Returns its bytes; 0: `p` is not exactly the address of one,
  /// and nothing has changed.
  std::size_t free(void* p) {
    Entry entry;
    {
      Guard guard(*this);
      if (!take(address_of(p), entry)) return 0;
    }
    Calls::release(entry.mapping(), entry.bytes());
    return entry.bytes();
  }

  /// The object's bytes from `p` on; 0: `p` is not exactly the address of an object.
  std::size_t usable_size(const void* p) {
    return look_at(p, [](const Entry& object) { return object.usable(); });
  }
  /// Whether the object has ever been made smaller.
  bool was_larger(const void* p) {
    return look_at(p, [](const Entry& object) { return object.was_larger(); });
  }

  /// Makes the object at `p` at least `size` bytes large, in place or by moving its
  /// pages. The contents stay up to the smaller size, new bytes are zero. Returns its
  /// address; nullptr: nothing has changed. An object whose alignment exceeds a page does
  /// not grow: it might have to move.
  SPANALLOC_COLD void* resize(void* p, std::size_t size) {
    if (size == 0) size = 1;
    if (size > SIZE_MAX / 2) return nullptr;
    Entry entry;
    std::size_t bytes = 0;
    {
      Guard guard(*this);
      Slot* const slot = find(address_of(p));
      if (slot == nullptr) return nullptr;
      entry = {address_of(p), slot->packed};
      bytes = align_up(size + entry.offset(), os::page_size());
      // An object that does not grow keeps its address, and with it its slot.
      if (bytes < entry.bytes()) change(*slot, entry.resized(bytes));
    }
    if (bytes > entry.bytes()) return grow(p, bytes);
    if (bytes == entry.bytes() || Calls::remap(entry.mapping(), entry.bytes(), bytes) != nullptr)
      return p;
    Guard guard(*this);
    if (Slot* const slot = find(address_of(p))) change(*slot, entry);
    return nullptr;
  }

  /// Unmaps every object and the table, while nobody uses them; objects may be allocated
  /// afterwards.
  void destroy() {
    Guard guard(*this);
    Table* table = table_.load_relaxed();
    if (table == nullptr) return;
    for_each_in(table,
                [](const Entry& object) { Calls::release(object.mapping(), object.bytes()); });
    table_.store_relaxed(nullptr);
    Calls::release(table, table->bytes());
    ++tables_;  // replace() must not find the number that it saw
    entries_ = tombstones_ = promised_ = 0;
    bytes_.store_relaxed(0);
  }

  /// In a fork's child, first of all.
  void enter_child() { lock_.abandon_if_owner_died(); }

  /// Both fields from one instant.
  LargeObjectStatistics statistics() {
    Guard guard(*this);
    return {bytes(), entries_};
  }
  /// How much of them is in memory, as the kernel tells; under the lock. A system call of ours.
  SPANALLOC_COLD std::size_t resident_bytes() {
    std::size_t pages = 0;
    Guard guard(*this);
    for_each_in(table_.load_relaxed(), [&](const Entry& object) {
      pages += os::resident_pages(object.mapping(), object.bytes());
    });
    return pages * os::page_size();
  }
  /// Of all objects, without the lock.
  std::size_t bytes() const { return bytes_.load_relaxed(); }

 private:
  friend struct spanalloc::InspectionAccess;

  static constexpr std::size_t kMostOffset = 64 * kKiB;

  struct Entry {
    std::uintptr_t address = 0;
    // From bit 0 on: log2 of the alignment (6 bits); whole pages between the mapping's beginning
    // and the object's page (6); the mapping's bytes, a multiple of the page size; from kEndOfBytes
    // on whether the object has been larger.
    std::uint64_t packed = 0;

    static constexpr std::uint64_t kLogMask = 63;
    static constexpr unsigned kBeforeShift = 6;
    static constexpr unsigned kEndOfBytes = 48;
    static constexpr std::uint64_t kWasLarger = std::uint64_t{1} << kEndOfBytes;
    static constexpr std::uint64_t kBytesMask = (std::uint64_t{1} << kEndOfBytes) - 4 * kKiB;

    static Entry make(std::uintptr_t address, std::size_t bytes, unsigned log2_alignment,
                      std::size_t before) {
      SPANALLOC_ASSERT((bytes & ~kBytesMask) == 0 && before <= kLogMask &&
                       log2_alignment <= kLogMask);
      return {address, bytes | log2_alignment | before << kBeforeShift};
    }
    std::size_t bytes() const { return packed & kBytesMask; }
    std::size_t alignment() const { return std::size_t{1} << (packed & kLogMask); }
    bool was_larger() const { return (packed & kWasLarger) != 0; }
    /// Where the object begins in its mapping.
    std::size_t offset() const {
      const std::size_t page = os::page_size();
      return (packed >> kBeforeShift & kLogMask) * page + address % page;
    }
    void* mapping() const { return pointer_to(address - offset()); }
    std::size_t usable() const { return bytes() - offset(); }
    Entry resized(std::size_t now) const {
      return {address, (packed & ~kBytesMask) | now | (now < bytes() ? kWasLarger : 0)};
    }
    Entry moved_to(std::uintptr_t mapping) const { return {mapping + offset(), packed}; }
  };

  // Changed under lock_ only; atomic for the order in which a fork's child finds the stores.
  struct Slot {
    Atomic<std::uintptr_t> address;  // of the object; kEmpty, or kTombstone where one was
    std::uint64_t packed;

    bool is_live() const { return address.load_relaxed() > kTombstone; }
  };
  static constexpr std::uintptr_t kEmpty = 0;
  static constexpr std::uintptr_t kTombstone = 1;

  struct alignas(16) Table {
    std::size_t capacity;

    Slot& operator[](std::size_t slot) { return reinterpret_cast<Slot*>(this + 1)[slot]; }
    std::size_t next(std::size_t slot) const { return slot + 1 == capacity ? 0 : slot + 1; }
    std::size_t home(std::uintptr_t address) const {
      // Fibonacci hashing: page addresses differ above bit 12; the top bits of
      // the product mix them all.
      const std::uint64_t hash = address * 0x9E3779B97F4A7C15u;
      return static_cast<std::size_t>((hash >> 32) * capacity >> 32);
    }
    std::size_t bytes() const { return (capacity + 1) * sizeof(Slot); }
  };
  static_assert(sizeof(Table) == sizeof(Slot));

  /// Takes the lock, and sees to it that the counts are right.
  class [[nodiscard]] Guard {
   public:
    explicit Guard(LargeObjects& objects) : guard_(objects.lock_) {
      // After a fork the threads that held the lock, or were promised slots,
      // are missing in the child.
      if (SPANALLOC_UNLIKELY(guard_.owner_died() ||
                             objects.generation_ != SpinLock::generation())) {
        objects.count_anew();
      }
    }

   private:
    LockGuard<WakingLock> guard_;
  };

  // Promises of vanished threads are void. A mapping that they had made but not listed (at most one
  // a thread) stays mapped in the child, and is never used.
  void count_anew() {
    generation_ = SpinLock::generation();
    promised_ = entries_ = tombstones_ = 0;
    std::size_t bytes = 0;
    Table* table = table_.load_relaxed();
    for (std::size_t i = 0; table != nullptr && i < table->capacity; ++i)
      tombstones_ += (*table)[i].address.load_relaxed() == kTombstone;
    for_each_in(table, [&](const Entry& object) {
      ++entries_;
      bytes += object.bytes();
    });
    bytes_.store_relaxed(bytes);
  }

  // f(entry) of the object that begins at p, under the lock; nothing if none does.
  template <class F>
  auto look_at(const void* p, F f) -> decltype(f(Entry{})) {
    Guard guard(*this);
    const Slot* slot = find(address_of(p));
    return slot == nullptr ? decltype(f(Entry{})){} : f(Entry{address_of(p), slot->packed});
  }
  template <class F>
  static void for_each_in(Table* table, F f) {
    for (std::size_t i = 0; table != nullptr && i < table->capacity; ++i) {
      const Slot& slot = (*table)[i];
      if (slot.is_live()) f(Entry{slot.address.load_relaxed(), slot.packed});
    }
  }

  // The object's mapping has `bytes` then, perhaps elsewhere.
  SPANALLOC_COLD void* grow(void* p, std::size_t bytes) {
    Entry entry;
    // One more: a grave may keep the slot that it leaves.
    if (!promise_slot()) return nullptr;
    {
      Guard guard(*this);
      if (!take(address_of(p), entry)) {
        take_promise_back();
        return nullptr;
      }
    }
    void* const moved =
        may_grow(entry, bytes) ? Calls::remap(entry.mapping(), entry.bytes(), bytes) : nullptr;
    Guard guard(*this);
    take_promise_back();
    const Entry now = moved == nullptr ? entry : entry.resized(bytes).moved_to(address_of(moved));
    insert(now);
    return moved == nullptr ? nullptr : pointer_to(now.address);
  }
  // (The mapping of an object that came from elsewhere may not be charged.)
  static bool may_grow(const Entry& entry, std::size_t bytes) {
    return entry.alignment() <= os::page_size() &&
           fits_the_machine<Calls>(bytes - entry.bytes(), os::memory_is_locked);
  }

  // After a fork count_anew() may have dropped this promise. One too few does no
  // harm: tables are half empty.
  void take_promise_back() { promised_ -= promised_ != 0; }

  Slot* find(std::uintptr_t address) {
    Table* table = table_.load_relaxed();
    if (table == nullptr || address <= kTombstone) return nullptr;
    for (std::size_t slot = table->home(address);; slot = table->next(slot)) {
      const std::uintptr_t found = (*table)[slot].address.load_relaxed();
      if (found == kEmpty) return nullptr;
      if (found == address) return &(*table)[slot];
    }
  }

  // Into the first slot without an object. True: it was a grave.
  static bool place(Table& table, const Entry& entry) {
    std::size_t slot = table.home(entry.address);
    while (table[slot].is_live()) slot = table.next(slot);
    const bool was_grave = table[slot].address.load_relaxed() == kTombstone;
    table[slot].packed = entry.packed;
    table[slot].address.store_release(entry.address);  // release: (3)
    return was_grave;
  }

  // In its slot.
  void change(Slot& slot, const Entry& to) {
    bytes_.store_relaxed(bytes() - Entry{to.address, slot.packed}.bytes() + to.bytes());
    store_in_order(slot.packed, to.packed);
  }

  void insert(const Entry& entry) {
    tombstones_ -= place(*table_.load_relaxed(), entry);
    ++entries_;
    bytes_.store_relaxed(bytes() + entry.bytes());
    // In a fork's child a promise that count_anew() has dropped may be kept all the same.
    SPANALLOC_ASSERT(has_room_for_promises() || generation_ != 0);
  }

  bool take(std::uintptr_t address, Entry& out) {
    Slot* found = find(address);
    if (found == nullptr) return false;
    out = {address, found->packed};
    --entries_;
    bytes_.store_relaxed(bytes() - out.bytes());
    Table& table = *table_.load_relaxed();
    const auto slot = static_cast<std::size_t>(found - &table[0]);
    // No probe continues behind a slot that an empty one follows.
    const bool is_last = table[table.next(slot)].address.load_relaxed() == kEmpty;
    found->address.store_relaxed(is_last ? kEmpty : kTombstone);
    tombstones_ += !is_last;
    return true;
  }

  // Invariant (2).
  bool has_room_for_promises() const {
    const Table* table = table_.load_relaxed();
    return table == nullptr || 2 * (entries_ + tombstones_ + promised_) <= table->capacity;
  }

  // Promises the caller a slot, in a new table if need be; false when that fails.
  bool promise_slot() {
    for (;;) {
      std::size_t tables = 0;
      std::size_t bytes = os::page_size();
      {
        Guard guard(*this);
        tables = tables_;
        if (const Table* table = table_.load_relaxed(); table != nullptr) {
          if (2 * (entries_ + tombstones_ + promised_ + 1) <= table->capacity) {
            ++promised_;
            return true;
          }
          // As large as the old table if graves fill that; otherwise twice as large.
          bytes = 4 * (entries_ + promised_ + 1) <= table->capacity ? table->bytes()
                                                                    : 2 * table->bytes();
        }
      }
      if (!replace(tables, bytes)) return false;
    }
  }

  // Puts a table of `bytes` in the place of table number `seen`, unless another thread has done so.
  // Maps and unmaps outside the lock.
  bool replace(std::size_t seen, std::size_t bytes) {
    auto* fresh = static_cast<Table*>(Calls::map(bytes, os::page_size()));
    if (fresh == nullptr) return false;
    fresh->capacity = bytes / sizeof(Slot) - 1;
    Table* retired = fresh;
    {
      Guard guard(*this);
      if (tables_ == seen) {
        retired = table_.load_relaxed();
        for_each_in(retired, [fresh](const Entry& object) { place(*fresh, object); });
        table_.store_release(fresh);  // release: (3)
        tombstones_ = 0;
        ++tables_;
        SPANALLOC_ASSERT(has_room_for_promises() || generation_ != 0);
      }
    }
    if (retired != nullptr) Calls::release(retired, retired->bytes());
    return true;
  }

  WakingLock lock_;  // gives access to everything below
  Atomic<Table*> table_{nullptr};
  std::size_t tables_ = 0;  // that there have been
  std::size_t entries_ = 0;
  std::size_t tombstones_ = 0;
  std::size_t promised_ = 0;      // slots of calls in flight
  Atomic<std::size_t> bytes_{0};  // written under the lock
  std::uint16_t generation_ = 0;  // of the process in which the counts were made
};

}  // namespace spanalloc
