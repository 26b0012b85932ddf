// Address space for a table that grows from its beginning on, each page opened as it comes into use, between
// two guard pages: what runs over a table's end meets one, and nothing foreign ever borders on it.
//
//      guard | open, zero-filled ............... | guard, mapped ahead |   nobody's, up to the capacity
//            0                                 open_                 mapped_
//
// Nothing else is mapped: a table costs what is open, and what is mapped ahead to save calls (not under a
// limit). Where somebody else has mapped something into a table's way, the table goes on behind it: what
// would stand there is a gap, and has no place in this table for ever.
//
// A process's tables begin in one region (TableRegion), so that their first pages share page tables.
//
// Fork: a child may find a table whose thread vanished between two steps of its growth. What was mapped and
// not yet noted would be in its own table's way there. So it is noted before what is about to be mapped.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "os/os.hpp"
#include "pages/page_calls.hpp"

namespace spanalloc {

/// How far a table reaches, in whatever its user counts: all below `end` can be used. If that is less than
/// was asked for: a gap follows, up to `next`; without one (next == end) the kernel has refused memory.
struct TableReach {
  std::size_t end = 0;
  std::size_t next = 0;
};

/// Where a table begins, 0: nowhere in particular; and how much of it is mapped, if not opened, at first.
struct TablePlace {
  std::uintptr_t address = 0;
  std::size_t mapped = 0;

  static std::size_t ahead() { return os::has_memory_limit() ? 0 : kMiB; }
};

/// Where tables are placed: somewhere random, with room for all. Not thread-safe.
class TableRegion {
 public:
  /// Chooses a place. Without one (none was free) tables are reserved wherever the kernel likes.
  template <class Calls>
  SPANALLOC_COLD void choose() {
    if (small_ != 0) return;
    small_ = random_place<Calls>(kWindows, kGiB);
    if (small_ == 0) return;
    mapped_ahead_ = TablePlace::ahead();
    // Tables whose first pages share a page table's page cost less; up to that bound where does not matter.
    end_of_small_ = small_ + kGiB - 2 * kMiB;
    big_ = end_of_small_;
    const std::uint64_t random = os::random_bits();
    small_ += random % kFronts * 2 * kMiB + kFront + random / kFronts % kShifts * 64 * kKiB;
    front_ = small_ + 64 * kKiB - os::page_size();
  }
  /// A place for a small table that is never larger than `bytes`, side by side with others: before the first
  /// one that place_for() is asked for, in the range of the same page table's page.
  TablePlace place_in_front(std::size_t bytes) {
    const std::size_t page = os::page_size();
    const std::size_t room = align_up(bytes, page) + 2 * page;
    if (front_ == 0 || room > front_ % (2 * kMiB)) return place_for(bytes);
    front_ -= room;
    return {front_ + page, mapped_ahead_};
  }
  /// A place for a table of `bytes` with its guards.
  TablePlace place_for(std::size_t bytes) {
    if (small_ == 0) return {};
    const std::size_t room = align_up(bytes, 64 * kKiB) + 128 * kKiB;
    std::uintptr_t& next = room <= end_of_small_ - small_ ? small_ : big_;
    const std::uintptr_t place = next + 64 * kKiB;
    next += room;
    return {place, mapped_ahead_};
  }
  void forget() { small_ = end_of_small_ = big_ = front_ = 0; }

 private:
  // The front is the beginning of one of so many ranges of 2 MiB, which a page of a page table is about; the
  // first table behind it begins within the same range, and their guards are one mapping.
  static constexpr std::size_t kFronts = 128;
  static constexpr std::size_t kFront = 1536 * kKiB;
  static constexpr std::size_t kShifts = 6;
  // Below the arenas' windows and above them (address_range.hpp); kernels with 39-bit addresses have the
  // last.
  static constexpr PlaceWindow kWindows[] = {
      {1 * kTiB, 4 * kTiB}, {60 * kTiB, 80 * kTiB}, {256 * kGiB, 384 * kGiB}};

  std::uintptr_t small_ = 0;  // where the next small table begins
  std::uintptr_t front_ = 0;  // where those in front of it begin
  std::uintptr_t end_of_small_ = 0;
  std::uintptr_t big_ = 0;
  std::size_t mapped_ahead_ = 0;
};

/// In bytes. Zero-initialisable; the caller serialises all but has().
template <class Calls = PageCalls>
class GuardedTable {
 public:
  /// Room for `capacity` bytes, at `place` if that is free. False: refused.
  SPANALLOC_COLD bool start(TablePlace place, std::size_t capacity) {
    SPANALLOC_ASSERT(!started());
    const std::size_t page = os::page_size();
    capacity = align_up(capacity, page);
    if (place.address != 0) {
      for (const std::size_t bytes : {min_of(place.mapped, capacity), std::size_t{0}}) {
        void* guard = pointer_to(place.address - page);
        if (Calls::reserve_at(guard, bytes + 2 * page) != os::Placed::kYes) continue;
        begin(place.address, bytes + page, capacity);
        return true;
      }
    }
    void* reserved = Calls::reserve(capacity + 2 * page, page);
    if (reserved == nullptr) return false;
    begin(address_of(reserved) + page, capacity + page, capacity);
    return true;
  }
  bool started() const { return base() != nullptr; }
  char* base() const { return pointer_to<char>(base_.load_relaxed()); }

  /// Opens all up to `needed` of which the part below `from` is in use already. `sparing`: no page more
  /// (memory is locked: what is opened is resident at once).
  TableReach open_up_to(std::size_t from, std::size_t needed, bool sparing) {
    SPANALLOC_ASSERT(from <= needed && needed <= capacity_);
    while (open_ < needed) {
      // Steps of 64 KiB keep the number of system calls small; a refused step is retried exactly.
      const std::size_t exact = align_up(needed, os::page_size());
      const std::size_t step = min_of(align_up(needed, 64 * kKiB), capacity_);
      Opened opened = sparing ? Opened::kRefused : open_next(step);
      if (opened == Opened::kRefused) opened = open_next(exact);
      if (opened == Opened::kRefused) return reach(from, open_);
    }
    return reach(from, needed);
  }
  bool is_used() const { return open_ != 0; }
  bool is_open_up_to(std::size_t bytes) const { return bytes <= open_ && is_without_gaps(); }
  bool is_without_gaps() const { return gaps_.load_relaxed() == 0; }
  /// Whether [first, end), below what has been opened, lies in no gap. Any thread that knows it to have been
  /// opened, and so the gaps before.
  bool has(std::size_t first, std::size_t end) const {
    for (unsigned i = 0; i < gaps_.load_acquire(); ++i) {  // acquire: what the gap is
      if (gap_[i].first < end && first < gap_[i].end) return false;
    }
    return true;
  }
  bool holds_place() const { return mapped_ != 0; }
  /// For asking whether the next page would be locked.
  void* next_page() const { return base() + open_; }

  /// For the owner of a table that can be done without, when it could not be opened: while nothing of it is
  /// open its place costs no mapping, of which a process may have only so many. Opening it takes the place
  /// again; if somebody else has it by then, the table is refused for ever.
  SPANALLOC_COLD void give_reservation_back() {
    if (is_used() || mapped_ == 0) return;
    const std::size_t page = os::page_size();
    if (Calls::release(base() - page, mapped_ + page)) mapped_ = 0;
  }

  /// Gives everything back to the kernel, while nobody uses it; start() may follow.
  void destroy() {
    if (!started()) return;
    if (mapped_ == 0) return forget();
    const std::size_t page = os::page_size();
    std::size_t first = 0;
    for (unsigned i = 0; i < gaps_.load_relaxed(); ++i) {
      Calls::release(base() + first - page, gap_[i].first - first + 2 * page);
      first = gap_[i].end;
    }
    Calls::release(base() + first - page, mapped_ - first + page);
    forget();
  }

 private:
  void forget() {
    base_.store_relaxed(0);
    capacity_ = open_ = mapped_ = mapping_ = 0;
    gaps_.store_relaxed(0);
  }

  // The base last: by it a fork's child knows a table that was begun.
  void begin(std::uintptr_t base, std::size_t mapped, std::size_t capacity) {
    mapped_ = mapped;
    capacity_ = capacity;
    base_.store_release(base);
  }

  enum class Opened { kYes, kRefused, kGap };
  struct Gap {
    std::size_t first = 0;
    std::size_t end = 0;
  };
  static constexpr unsigned kMaxGaps = 16;

  TableReach reach(std::size_t from, std::size_t needed) const {
    for (unsigned i = 0; i < gaps_.load_relaxed(); ++i) {
      const Gap& gap = gap_[i];
      if (gap.end > from && gap.first < needed) return {max_of(gap.first, from), gap.end};
    }
    return {needed, needed};
  }

  // One step towards `target`, or a part of it, up to where something foreign begins. The guard behind it
  // comes first.
  SPANALLOC_COLD Opened open_next(std::size_t target) {
    const std::size_t page = os::page_size();
    if (mapped_ == 0 && !take_place_again()) return Opened::kRefused;
    if (SPANALLOC_UNLIKELY(mapping_ > mapped_)) take_what_was_being_mapped();
    if (target + page > mapped_) {
      const std::size_t exact = target + page - mapped_;
      std::size_t bytes = min_of(max_of(exact, TablePlace::ahead()), capacity_ + page - mapped_);
      for (;;) {
        store_in_order(mapping_, mapped_ + bytes);
        const os::Placed placed = Calls::reserve_at(base() + mapped_, bytes);
        if (placed == os::Placed::kYes) break;
        store_in_order(mapping_, 0);
        if (placed == os::Placed::kRefused && bytes <= exact) return Opened::kRefused;
        if (placed == os::Placed::kTaken && bytes == page) return step_over();
        if (placed == os::Placed::kRefused) bytes = exact;
        if (placed == os::Placed::kTaken) bytes = align_up(bytes / 2, page);
      }
      store_in_order(mapped_, mapped_ + bytes);
    }
    return open_to(min_of(target, mapped_ - page)) ? Opened::kYes : Opened::kRefused;
  }
  // Page by page: what has no right yet to be read is what the vanished thread has mapped (or nobody's: it is
  // mapped now). What can be read is another one's, that it was about to meet. (Another one's that cannot be
  // read, just there and in just that moment, would be taken for ours.)
  SPANALLOC_COLD void take_what_was_being_mapped() {
    const std::size_t page = os::page_size();
    for (; mapped_ < mapping_; mapped_ += page) {
      const char* next = base() + mapped_;
      const os::Placed placed = Calls::reserve_at(base() + mapped_, page);
      if (placed == os::Placed::kRefused) return;  // the next one who comes goes on
      if (placed == os::Placed::kTaken && Calls::can_be_read(reinterpret_cast<const std::uint32_t*>(next)))
        break;
    }
    mapping_ = 0;
  }
  bool take_place_again() {
    const std::size_t page = os::page_size();
    if (Calls::reserve_at(base() - page, 2 * page) != os::Placed::kYes) return false;
    mapped_ = page;
    return true;
  }
  bool open_to(std::size_t target) {
    if (!Calls::open(base() + open_, target - open_)) return false;
    open_ = target;
    return true;
  }
  // A foreign mapping begins where ours ends, at mapped_: finds its end, and goes on there.
  SPANALLOC_COLD Opened step_over() {
    const std::size_t page = os::page_size();
    const std::size_t first = mapped_ - page;  // our guard
    if (open_ < first && !open_to(first)) return Opened::kRefused;
    const unsigned gaps = gaps_.load_relaxed();
    if (gaps == kMaxGaps) return Opened::kRefused;
    const std::size_t pages =
        steps_in_the_way<Calls>(address_of(base()) + mapped_, page, (capacity_ - first) / page);
    if (pages == 0) return Opened::kRefused;
    // A guard before what follows, and one behind it.
    const std::size_t end = mapped_ + pages * page;
    if (end >= capacity_ || Calls::reserve_at(base() + end - page, 2 * page) != os::Placed::kYes) {
      return Opened::kRefused;
    }
    gap_[gaps] = {first, end};
    gaps_.store_release(gaps + 1);
    open_ = end;
    mapped_ = end + page;
    return Opened::kGap;
  }

  // Equations: open_ + page <= mapped_ <= capacity_ + page, or open_ = mapped_ = 0: the place is not held;
  // gaps end at or before open_.
  Atomic<std::uintptr_t> base_{0};  // constant after start()
  std::size_t capacity_ = 0;
  std::size_t open_ = 0;
  std::size_t mapped_ = 0;
  // More than mapped_: up to there somebody is mapping, or was when a fork left it behind.
  std::size_t mapping_ = 0;
  Atomic<unsigned> gaps_{0};
  Gap gap_[kMaxGaps];  // ascending
};

}  // namespace spanalloc
