// Address space for a table that grows from its beginning on. Each page is opened as it comes
// into use, between two guard pages: an overrun of the table meets one, and nothing foreign
// ever borders on the table.
//
//      guard | open, zero-filled ............... | guard, mapped ahead |   nobody's, up to the
//                                                                          capacity
//            0                                 open_                 mapped_
//
// Nothing else is mapped: a table costs what is open, and what is mapped ahead to save calls (not
// under a limit). Where a foreign mapping is in a table's way, the table continues behind it: the
// entries that would stand there are a gap, and never exist.
//
// A process's tables begin in one region (TableRegion), so that their first
// pages share page tables.
//
// Fork: a child may find a table whose thread vanished between two steps of its growth. Pages
// that it had mapped and not recorded would be in the table's own way. So mapping_ records
// what is about to be mapped.
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

/// How far a table reaches, in its user's unit: all below `end` can be used. If that is less than
/// was asked for, a gap follows, up to `next`; or if next == end, the kernel has refused memory.
struct TableReach {
  std::size_t end = 0;
  std::size_t next = 0;
};

/// Where a table begins (0: anywhere), and how many bytes are mapped there at
/// first, though not opened.
struct TablePlace {
  std::uintptr_t address = 0;
  std::size_t mapped = 0;

  static std::size_t ahead() { return os::has_memory_limit() ? 0 : PagesConfig::kTableAhead; }
};

/// Places tables at a random place with room for all. Not thread-safe.
class TableRegion {
 public:
  /// Chooses the place. If none was free, each table is reserved wherever the kernel likes.
  template <class Calls>
  SPANALLOC_COLD void choose() {
    if (small_ != 0) return;
    small_ = random_place<Calls>(kWindows, kGiB);
    if (small_ == 0) return;
    mapped_ahead_ = TablePlace::ahead();
    // Tables cost less if their first pages share a page of page tables;
    // within it the place is random.
    end_of_small_ = small_ + kGiB - 2 * kMiB;
    big_ = end_of_small_;
    const std::uint64_t random = os::random_place_bits();
    small_ += random % kFronts * 2 * kMiB + kFront + random / kFronts % kShifts * 64 * kKiB;
    front_ = small_ + 64 * kKiB - os::page_size();
  }
  /// A place for a small table that never exceeds `bytes`: before the first table of place_for(),
  /// close enough to share its page of page tables.
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
  // The front lies in one of kFronts ranges of 2 MiB, each of which one page of page
  // tables describes. The first table behind the front begins within the same range, and
  // their guards are one mapping.
  static constexpr std::size_t kFronts = 128;
  static constexpr std::size_t kFront = 1536 * kKiB;
  static constexpr std::size_t kShifts = 6;
  // Below and above the arenas' windows (address_range.hpp). Kernels with 39-bit
  // addresses have the last.
  static constexpr Interval kWindows[] = {
      {1 * kTiB, 4 * kTiB}, {60 * kTiB, 80 * kTiB}, {256 * kGiB, 384 * kGiB}};

  std::uintptr_t small_ = 0;  // where the next small table begins
  std::uintptr_t front_ = 0;  // where the last table in front of it begins
  std::uintptr_t end_of_small_ = 0;
  std::uintptr_t big_ = 0;
  std::size_t mapped_ahead_ = 0;
};

/// Sizes in bytes. Zero-initialisable; the caller serialises all but has().
template <class Calls = PageCalls>
class GuardedTable {
  using enum os::Placed;

 public:
  /// Room for `capacity` bytes, at `place` if that is free. What the first `first` bytes need is
  /// mapped at once, so that no foreign mapping comes between. False: refused.
  SPANALLOC_COLD bool start(TablePlace place, std::size_t capacity, std::size_t first = 1) {
    SPANALLOC_ASSERT(!started());
    const std::size_t page = os::page_size();
    capacity = align_up(capacity, page);
    if (place.address != 0) {
      const std::size_t least = min_of(align_up(first, page), capacity);
      for (const std::size_t bytes : {min_of(max_of(place.mapped, least), capacity), least}) {
        void* guard = pointer_to(place.address - page);
        if (Calls::reserve_at(guard, bytes + 2 * page) != kYes) continue;
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

  /// Opens the table up to `needed`, of which the part below `from` is in use already. `sparing`:
  /// opens no page more, because memory is locked, and opened pages are resident at once.
  TableReach open_up_to(std::size_t from, std::size_t needed, bool sparing) {
    SPANALLOC_ASSERT(from <= needed && needed <= capacity_);
    while (open_ < needed) {
      const std::size_t exact = align_up(needed, os::page_size());
      const std::size_t step = min_of(align_up(needed, PagesConfig::kTableStep), capacity_);
      if (!sparing && open_next(step)) continue;
      // A refused step is tried again with exactly what is needed, if its first part is not enough.
      if (open_ < needed && !open_next(exact)) return reach(from, open_);
    }
    return reach(from, needed);
  }
  bool is_used() const { return open_ != 0; }
  bool is_open_up_to(std::size_t bytes) const { return bytes <= open_ && is_without_gaps(); }
  bool is_without_gaps() const { return gaps_.load_relaxed() == 0; }
  /// Whether [first, end), which lies below what has been opened, is in no gap. For any thread that
  /// knows it to have been opened: such a thread sees the gaps before it, too.
  bool has(std::size_t first, std::size_t end) const {
    for (unsigned i = 0; i < gaps_.load_acquire(); ++i) {  // acquire: what the gap is
      if (gap_[i].first < end && first < gap_[i].end) return false;
    }
    return true;
  }
  bool holds_place() const { return mapped_ != 0; }
  /// For asking whether the next page would be locked.
  void* next_page() const { return base() + open_; }

  /// For a table that its owner can do without, when it could not be opened. While nothing is open
  /// the place then costs no mapping, of which a process may have only so many. Opening takes the
  /// place again; if somebody else has mapped there, the table is refused for ever.
  SPANALLOC_COLD void give_reservation_back() {
    if (is_used() || mapped_ == 0) return;
    const std::size_t page = os::page_size();
    // First, for a fork's child: it must not open what somebody else may have mapped by then. (A
    // child that finds the place still mapped is refused it, as if it were somebody else's.)
    const std::size_t mapped = mapped_;
    store_in_order(mapped_, 0);
    if (!Calls::release(base() - page, mapped + page)) mapped_ = mapped;
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
  friend struct GuardedTableTestAccess;  // defined by unit tests only

  void forget() {
    base_.store_relaxed(0);
    capacity_ = open_ = mapped_ = mapping_ = 0;
    gaps_.store_relaxed(0);
  }

  // The base last: by it a fork's child knows that the table was begun. (A child that does not know
  // begins anew, whatever else of the table it has.)
  void begin(std::uintptr_t base, std::size_t mapped, std::size_t capacity) {
    open_ = mapping_ = 0;
    gaps_.store_relaxed(0);
    mapped_ = mapped;
    capacity_ = capacity;
    base_.store_release(base);
  }

  TableReach reach(std::size_t from, std::size_t needed) const {
    for (unsigned i = 0; i < gaps_.load_relaxed(); ++i) {
      const Interval& gap = gap_[i];
      if (gap.end > from && gap.first < needed) return {max_of(gap.first, from), gap.end};
    }
    return {needed, needed};
  }

  // One step towards `target`, or a part of it, up to a foreign mapping, or over that. The guard
  // behind it is mapped first. False: refused.
  SPANALLOC_COLD bool open_next(std::size_t target) {
    const std::size_t page = os::page_size();
    if (mapped_ == 0 && !take_place_again()) return false;
    if (SPANALLOC_UNLIKELY(mapping_ > mapped_)) take_what_was_being_mapped();
    if (target + page > mapped_) {
      const std::size_t exact = target + page - mapped_;
      std::size_t bytes = min_of(max_of(exact, TablePlace::ahead()), capacity_ + page - mapped_);
      for (;;) {
        store_in_order(mapping_, mapped_ + bytes);
        const os::Placed placed = Calls::reserve_at(base() + mapped_, bytes);
        if (placed == kYes) break;
        store_in_order(mapping_, 0);
        if (placed == kRefused && bytes <= exact) return false;
        if (placed == kTaken && bytes == page) return step_over();
        if (placed == kRefused) bytes = exact;
        if (placed == kTaken) bytes = align_up(bytes / 2, page);
      }
      store_in_order(mapped_, mapped_ + bytes);
    }
    return open_to(min_of(target, mapped_ - page));
  }
  // Continues what a vanished thread was mapping, page by page. A page that cannot be read is what
  // it has mapped (or nothing was there: it is mapped now). A page that can be read is a foreign
  // one that it was about to meet. (A foreign page that cannot be read, mapped just there and then,
  // would be taken for ours.)
  SPANALLOC_COLD void take_what_was_being_mapped() {
    const std::size_t page = os::page_size();
    for (; mapped_ < mapping_; mapped_ += page) {
      const char* next = base() + mapped_;
      const os::Placed placed = Calls::reserve_at(base() + mapped_, page);
      if (placed == kRefused) return;  // the next caller continues
      if (placed == kTaken && Calls::can_be_read(reinterpret_cast<const std::uint32_t*>(next)))
        break;
    }
    mapping_ = 0;
  }
  bool take_place_again() {
    const std::size_t page = os::page_size();
    if (Calls::reserve_at(base() - page, 2 * page) != kYes) return false;
    mapped_ = page;
    return true;
  }
  bool open_to(std::size_t target) {
    if (!Calls::open(base() + open_, target - open_)) return false;
    open_ = target;
    return true;
  }
  // A foreign mapping begins where ours ends, at mapped_: finds its end, and continues there.
  SPANALLOC_COLD bool step_over() {
    const std::size_t page = os::page_size();
    const std::size_t first = mapped_ - page;  // our guard
    const unsigned gaps = gaps_.load_relaxed();
    if ((open_ < first && !open_to(first)) || gaps == PagesConfig::kMostTableGaps) return false;
    const std::size_t pages =
        steps_in_the_way<Calls>(address_of(base()) + mapped_, page, (capacity_ - first) / page);
    // A guard before what follows, and one behind it.
    const std::size_t end = mapped_ + pages * page;
    if (pages == 0 || end >= capacity_ || Calls::reserve_at(base() + end - page, 2 * page) != kYes)
      return false;
    gap_[gaps] = {first, end};
    gaps_.store_release(gaps + 1);
    open_ = end;
    mapped_ = end + page;
    return true;
  }

  // Invariants: open_ + page <= mapped_ <= capacity_ + page, or open_ = mapped_ = 0 (the place is
  // not held). Gaps end at or before open_.
  Atomic<std::uintptr_t> base_{0};  // constant after start()
  std::size_t capacity_ = 0;
  std::size_t open_ = 0;
  std::size_t mapped_ = 0;
  // If more than mapped_: somebody is mapping up to here, or was when a fork made this copy.
  std::size_t mapping_ = 0;
  Atomic<unsigned> gaps_{0};
  Interval gap_[PagesConfig::kMostTableGaps];  // ascending
};

}  // namespace spanalloc
