// An arena that hands out slices by one bump pointer over an address range (see address_range.hpp).
//
// A step that meets a foreign mapping continues behind it; the mapping's range counts as
// lost. When the address range is used up, allocate() returns 0: engines drain their pools
// and then report out of memory.
//
// All functions but base() and limit() take the lock; they run once for each fresh span.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "pages/address_range.hpp"
#include "pages/config.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc {

/// kLimitSlackBits: see AddressRange.
template <unsigned kSliceBits, unsigned kMaxOrder, HugePages kHugePages,
          std::size_t kMaxStep = PagesConfig::kMostStep, unsigned kLimitSlackBits = 1>
class BumpArena {
  using Range = AddressRange<kSliceBits, kHugePages, kMaxStep, kLimitSlackBits>;

 public:
  static constexpr std::size_t kSlice = Range::kSlice;

  /// Claims the range. The engine sizes its side tables by capacity() and opens them up to limit().
  bool start() {
    Guard guard(*this);
    if (range_.started()) return true;
    next_ = 1;  // number 0 means "none"
    limit_.store_relaxed(1);
    // Slice boundaries must survive any page size, and huge orders must be naturally aligned.
    return range_.start(kSlice << kMaxOrder);
  }

  /// 2^order slices, naturally aligned, open and zero; 0 when out of memory or address space.
  std::uint32_t allocate(unsigned order) {
    Guard guard(*this);
    if (!range_.started()) return 0;
    if (const std::uint32_t kept = take_kept(order)) return kept;
    const std::size_t count = std::size_t{1} << order;
    for (;;) {
      const std::size_t first = align_up(next_, count);
      const std::size_t end = first + count;
      if (end > range_.capacity()) return 0;
      if (end > range_.opened()) {
        const std::size_t open = range_.opened();
        const os::Placed opened = range_.open_up_to(end);
        if (opened == os::Placed::kRefused) return 0;
        if (opened == os::Placed::kTaken) {
          keep_gap(next_, open);
          next_ = range_.opened();  // behind a foreign mapping
        }
        continue;  // only a part may be open
      }
      keep_gap(next_, first);
      next_ = end;
      // Release: a thread that learns of a slice below the limit may read the arena's data about
      // it.
      limit_.store_release(end);
      SPANALLOC_ASSERT(lock_.is_mine() && next_ >= 1 && next_ <= range_.opened() &&
                       limit() == next_);
      return static_cast<std::uint32_t>(first);
    }
  }

  std::uintptr_t base() const { return range_.base(); }
  /// Slices below this number have been handed out (or skipped). Relaxed: a caller with a pointer
  /// into the arena got it from a thread that saw a limit beyond it.
  std::size_t limit() const { return limit_.load_relaxed(); }
  /// The most slices that the range can hold; constant after start().
  std::size_t capacity() const { return range_.capacity(); }

  /// Whether the range is address space that is reserved: until a limit is heeded
  /// (address_range.hpp). A hint: a thread that learns late of it leaves more open.
  bool is_reserved() const { return range_.reserved(); }
  /// Gives the reservation back if a limit stands. True: it has.
  SPANALLOC_COLD bool heed_limit() {
    Guard guard(*this);
    return range_.started() && range_.heed_limit();
  }
  /// What f() answers; and if that is no, what it answers once more, without the reservation if a
  /// limit stands. For what the kernel is asked for beside the arena.
  template <class F>
  auto ask_within_limits(F f) {
    const bool may_stand = range_.may_heed_limits();
    const auto answer = f();
    if (answer || !may_stand) return answer;
    heed_limit();
    return f();  // also if another thread has, or was just asking the kernel for much
  }
  /// See AddressRange. They take no lock.
  void begin_purging() { range_.begin_purging(); }
  bool purge_unused(void* address, std::size_t bytes) {
    return range_.purge_unused(address, bytes);
  }

  ArenaStatistics statistics() {
    Guard guard(*this);
    return {range_.reserved_bytes(), range_.opened_bytes(), (lost_ + range_.skipped()) * kSlice};
  }

  /// Gives the range back to the kernel, while nobody uses the arena or anything from it; start()
  /// may follow. left_of: see AddressRange.
  template <class LeftOf>
  void destroy(LeftOf&& left_of) {
    Guard guard(*this);
    range_.destroy(left_of);
    limit_.store_relaxed(0);
    next_ = lost_ = 0;
    for (std::uint8_t& count : kept_count_) count = 0;
  }
  void destroy() {
    destroy([](std::size_t) { return kSlice; });
  }

  /// In a fork's child, first of all.
  void enter_child() { lock_.abandon_if_owner_died(); }

 private:
  friend struct BumpArenaTestAccess;  // defined by unit tests only

  /// Holds the lock; what it guards is whole. (The lock reports a dead owner once, to whichever
  /// call comes first.)
  class [[nodiscard]] Guard {
   public:
    explicit Guard(BumpArena& arena) : guard_(arena.lock_) {
      if (SPANALLOC_UNLIKELY(guard_.owner_died())) arena.repair();
    }

   private:
    LockGuard<WakingLock> guard_;
  };

  // In a fork's child: a vanished thread was allocating. Pieces that were kept may be handed out
  // already, or be listed twice; where foreign mappings are in the way, what lies before the last
  // step may be one of them. So both are lost: address space, but no memory.
  SPANALLOC_COLD void repair() {
    for (unsigned order = 0; order <= kMaxOrder; ++order) {
      lost_ += std::size_t{kept_count_[order]} << order;
      kept_count_[order] = 0;
    }
    range_.recover_in_child();
    if (range_.started() && !range_.reserved() && next_ < range_.opened()) {
      lost_ += range_.opened() - next_;
      next_ = range_.opened();
    }
  }

  // Cuts [from, to) into naturally aligned pieces, for smaller requests.
  void keep_gap(std::size_t from, std::size_t to) {
    while (from < to) {
      unsigned order = from == 0 ? 0 : static_cast<unsigned>(std::countr_zero(from));
      if (order > kMaxOrder) order = kMaxOrder;
      while (from + (std::size_t{1} << order) > to) --order;
      if (kept_count_[order] < PagesConfig::kKeptPerOrder) {
        kept_[order][kept_count_[order]++] = static_cast<std::uint32_t>(from);
      } else {
        lost_ += std::size_t{1} << order;
      }
      from += std::size_t{1} << order;
    }
  }

  std::uint32_t take_kept(unsigned order) {
    for (unsigned from = order; from <= kMaxOrder; ++from) {
      if (kept_count_[from] == 0) continue;
      const std::uint32_t first = kept_[from][--kept_count_[from]];
      const std::size_t count = std::size_t{1} << order;
      keep_gap(first + count, first + (std::size_t{1} << from));
      return first;
    }
    return 0;
  }

  // Invariants, under the lock: 1 <= next_ <= range_.opened(); limit_ == next_ after every
  // allocate. Base and capacity: constant after start(); the rest under the lock
  Range range_;
  Atomic<std::size_t> limit_{0};  // shared: written under the lock, read by every free
  WakingLock lock_;               // gives access to everything below
  std::size_t next_ = 0;
  std::size_t lost_ = 0;  // beside what the range has skipped
  std::uint8_t kept_count_[kMaxOrder + 1] = {};
  std::uint32_t kept_[kMaxOrder + 1][PagesConfig::kKeptPerOrder] = {};
};

}  // namespace spanalloc
