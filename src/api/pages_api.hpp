// The page manager of spanalloc.h: checks of what the caller gives, and bytes and addresses in the
// place of the unit numbers that the coalescing manager works with.
//
// A manager lies in its metadata buffer, its books (one word a unit, bitmaps) behind it:
//
//   metadata ... | PageRegion | books for `capacity` units | ...
//                ^ aligned to a cache line, hence the slack in metadata_bytes()
//
// What differs between a program with an operating system and one without stands in the type
// `System`; neither threads' identity nor a clock is needed.
#pragma once

#include <spanalloc/spanalloc.h>

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "pages/coalescing/manager.hpp"

namespace spanalloc {

/// What a page manager may ask of the system that it runs on; the last three only
/// for memory of the system's.
template <class S>
concept PagesSystem = requires(void* address, std::size_t bytes) {
  // Between two looks for memory that other threads hold in the middle of a call.
  S::pause();
  // Makes reserved memory usable; it reads as zero. False when refused.
  { S::open(address, bytes) } -> std::same_as<bool>;
  // Takes physical memory back; true only if the range now reads as zero.
  { S::purge(address, bytes) } -> std::same_as<bool>;
  // Takes address space back for good.
  S::release(address, bytes);
};

/// A region and how it is cut, all checked.
struct PagesLayout {
  std::uintptr_t start = 0;
  unsigned unit_shift = 0;   // log2 of a unit's bytes
  std::size_t units = 0;     // at first
  std::size_t capacity = 0;  // what the region can be extended to
  bool from_system = false;  // otherwise region and metadata are the caller's
};

/// Thread-safe but where spanalloc.h says otherwise. Functions return what spanalloc.h says of the
/// function of the same name; pointers that it must have are not null here.
template <PagesSystem System>
class PageRegion {
 public:
  /// The index has eight levels of 64, enough for 2^48 units.
  static constexpr std::size_t kMaxUnits = std::size_t{1} << 47;

  static constexpr std::size_t metadata_bytes(std::size_t units) {
    return sizeof(PageRegion) + alignof(PageRegion) - 1 + Manager::metadata_bytes(units);
  }
  /// The most units, up to `limit`, that a buffer of `bytes` has room for; 0 when not even one.
  static constexpr std::size_t capacity_of(std::size_t bytes, std::size_t limit) {
    std::size_t low = 0;
    for (std::size_t high = limit; low < high;) {
      const std::size_t middle = high - (high - low) / 2;
      if (metadata_bytes(middle) <= bytes) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }

  /// `books` reads as zero. Lives until destroy(); there is no destructor to run.
  PageRegion(const PagesLayout& layout, bool zero, void* books)
      : layout_(layout), environment_{layout_}, manager_(environment_) {
    manager_.attach(books, layout.capacity, layout.start >> layout.unit_shift);
    manager_.extend(layout.units, zero);
    life_.store_relaxed(kAlive);
  }
  PageRegion(const PageRegion&) = delete;
  PageRegion& operator=(const PageRegion&) = delete;

  bool is_alive() const { return life_.load_relaxed() == kAlive; }
  void* region() const { return pointer_to(layout_.start); }

  void destroy() {
    life_.store_relaxed(0);
    if (!layout_.from_system) return;
    const PagesLayout layout = layout_;  // it goes with the metadata
    System::release(pointer_to(layout.start), layout.capacity << layout.unit_shift);
    System::release(this, metadata_bytes(layout.capacity));
  }

  sp_pages_status allocate(std::size_t bytes, std::size_t alignment, void** out, int* zero) {
    if (bytes == 0) return SP_PAGES_BAD_SIZE;
    if (!is_power_of_two(alignment)) return SP_PAGES_BAD_ALIGNMENT;
    const std::size_t alignment_units = max_of(alignment >> layout_.unit_shift, 1);
    const coalescing::Allocation got = manager_.allocate(units_for(bytes), alignment_units);
    if (!got) return SP_PAGES_NO_ROOM;
    *out = address_of_unit(got.block.first);
    tell(zero, got.zero);
    return SP_PAGES_OK;
  }

  sp_pages_status free(const void* block) {
    return manager_.free(unit_at(block)) ? SP_PAGES_OK : SP_PAGES_NOT_A_BLOCK;
  }

  sp_pages_status grow(const void* block, std::size_t bytes, int* zero) {
    const std::size_t first = unit_at(block);
    const std::size_t old = manager_.size_of(first);
    if (old == 0) return SP_PAGES_NOT_A_BLOCK;
    if (bytes == 0 || units_for(bytes) < old) return SP_PAGES_BAD_SIZE;
    const auto grown = manager_.grow(first, units_for(bytes));
    if (!grown) return SP_PAGES_NO_ROOM;
    tell(zero, grown.zero);
    return SP_PAGES_OK;
  }

  sp_pages_status shrink(const void* block, std::size_t bytes) {
    const std::size_t first = unit_at(block);
    const std::size_t old = manager_.size_of(first);
    if (old == 0) return SP_PAGES_NOT_A_BLOCK;
    if (bytes == 0 || units_for(bytes) > old) return SP_PAGES_BAD_SIZE;
    return manager_.shrink(first, units_for(bytes)) ? SP_PAGES_OK : SP_PAGES_NOT_A_BLOCK;
  }

  std::size_t size_of(const void* block) const {
    return manager_.size_of(unit_at(block)) << layout_.unit_shift;
  }

  sp_pages_status extend(std::size_t bytes, unsigned flags) {
    const unsigned known = layout_.from_system ? 0 : SP_PAGES_REGION_ZERO;
    if ((flags & ~known) != 0) return SP_PAGES_BAD_FLAGS;
    const std::size_t units = bytes >> layout_.unit_shift;
    if (units == 0 || units << layout_.unit_shift != bytes) return SP_PAGES_BAD_SIZE;
    // Acquire: the end that the last one to extend has left.
    if (extending_.exchange_acquire(true)) return SP_PAGES_BUSY;
    const sp_pages_status status = extend_alone(units, flags != 0);
    extending_.store_release(false);
    return status;
  }

  sp_pages_status purge(bool only_idle, std::size_t* bytes) {
    if (!layout_.from_system) return SP_PAGES_UNSUPPORTED;
    const std::size_t units = manager_.purge(only_idle);
    if (only_idle) manager_.age();
    if (bytes != nullptr) *bytes = units << layout_.unit_shift;
    return SP_PAGES_OK;
  }

  /// visit(const sp_pages_block&)
  template <class Visit>
  void walk(Visit visit) const {
    manager_.walk([&](coalescing::Block block, coalescing::BlockState state, bool dirty) {
      const bool free = state == coalescing::BlockState::kFree;
      const bool used = state == coalescing::BlockState::kUsed;
      visit(sp_pages_block{address_of_unit(block.first), block.size << layout_.unit_shift,
                           used   ? SP_PAGES_USED
                           : free ? SP_PAGES_FREE
                                  : SP_PAGES_MOVING,
                           free && !dirty ? 1 : 0});
    });
  }

  sp_pages_statistics statistics() const {
    sp_pages_statistics all{};
    all.unit_bytes = std::size_t{1} << layout_.unit_shift;
    all.region_bytes = manager_.limit() << layout_.unit_shift;
    all.limit_bytes = layout_.capacity << layout_.unit_shift;
    all.metadata_bytes = metadata_bytes(layout_.capacity);
    walk([&](const sp_pages_block& block) {
      switch (block.state) {
        case SP_PAGES_USED:
          ++all.used_blocks;
          all.used_bytes += block.bytes;
          break;
        case SP_PAGES_FREE:
          ++all.free_blocks;
          all.free_bytes += block.bytes;
          if (block.zero != 0) all.free_zero_bytes += block.bytes;
          all.largest_free_bytes = max_of(all.largest_free_bytes, block.bytes);
          break;
        case SP_PAGES_MOVING:
          all.moving_bytes += block.bytes;
      }
    });
    return all;
  }

  void reset_after_fork() {
    manager_.recover_after_fork();
    extending_.store_relaxed(false);
  }

 private:
  struct Environment {
    const PagesLayout& layout;
    bool pause() {
      System::pause();
      return true;
    }
    bool purge(coalescing::Block block) {
      return System::purge(pointer_to(layout.start + (block.first << layout.unit_shift)),
                           block.size << layout.unit_shift);
    }
  };
  using Manager = coalescing::CoalescingManager<Environment>;

  static constexpr std::uint64_t kAlive = 0x73705f7061676573;  // "sp_pages"
  // Beyond every range: no block begins there
  static constexpr std::size_t kNoUnit = SIZE_MAX;

  std::size_t units_for(std::size_t bytes) const { return ((bytes - 1) >> layout_.unit_shift) + 1; }
  void* address_of_unit(std::size_t unit) const {
    return pointer_to(layout_.start + (unit << layout_.unit_shift));
  }
  std::size_t unit_at(const void* address) const {
    // Huge if it lies before the region
    const std::uintptr_t offset = address_of(address) - layout_.start;
    const std::size_t unit = offset >> layout_.unit_shift;
    return unit << layout_.unit_shift == offset && unit < manager_.limit() ? unit : kNoUnit;
  }
  static void tell(int* zero, bool value) {
    if (zero != nullptr) *zero = value ? 1 : 0;
  }

  sp_pages_status extend_alone(std::size_t units, bool zero) {
    const std::size_t end = manager_.limit();
    if (units > layout_.capacity - end) return SP_PAGES_NO_ROOM;
    if (layout_.from_system && !System::open(address_of_unit(end), units << layout_.unit_shift)) {
      return SP_PAGES_REFUSED;
    }
    manager_.extend(units, zero || layout_.from_system);
    return SP_PAGES_OK;
  }

  const PagesLayout layout_;
  Environment environment_;
  Manager manager_;
  Atomic<std::uint64_t> life_{0};  // kAlive from the constructor to destroy()
  Atomic<bool> extending_{false};  // shared: somebody is
};

}  // namespace spanalloc
