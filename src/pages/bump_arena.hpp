// The arena as one bump pointer: reserve big, open little.
//
// One contiguous, aligned range of address space is claimed once. Two ways to claim it:
//  - reserved: PROT_NONE over the whole range (2^kMaxBits, halving on refusal). Costs no memory and is not
//    charged; opening is mprotect, so neighbouring steps merge into one mapping.
//  - unreserved, under a finite RLIMIT_AS (where a reservation would eat the limit) or when every
//    reservation was refused: only an address is chosen, far from where the kernel places mappings, and each
//    step maps exactly what it opens. A step that collides with a foreign mapping moves on behind it; the
//    range is counted as lost.
//
// Opening: the first step is what was asked, then steps double up to kMaxStep; a refused step is retried with
// exactly what is needed (strict overcommit charges the whole step). When the process locks its memory
// (mlockall(MCL_FUTURE) makes what is opened resident at once) only what is used is opened.
//
// When the range is used up allocate() returns 0: engines drain their pools and then report out of memory.
//
// All functions but base() and limit() take the lock; they run once per fresh span.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "os/os.hpp"
#include "pages/page_source.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc {

enum class HugePages { kKernelDefault, kForbid, kPrefer };

/// kLimitSlackBits: under a limit on address space the range is the limit times 2^this, for callers that give
/// parts of what they were handed back to the kernel (the range costs nothing, what is mapped does).
template <unsigned kGranuleBits, unsigned kMaxOrder, HugePages kHugePages, std::size_t kMaxStep = 16 * kMiB,
          unsigned kLimitSlackBits = 1>
class BumpArena {
 public:
  static constexpr std::size_t kGranule = std::size_t{1} << kGranuleBits;
  static constexpr unsigned kMinBits = 30;
  static constexpr unsigned kMaxBits = 45;

  /// Claims the range. `on_open(first_granule, end_granule)` style side tables are the engine's affair: it
  /// sizes them by capacity() and opens them up to limit() itself.
  bool start() {
    LockGuard guard(lock_);
    if (base_.load_relaxed() != 0) return true;
    const std::uint64_t cap = os::option_number("ARENA_BITS", kMinBits, kMaxBits, kMaxBits);
    const std::size_t left = os::address_space_left();
    // Granule boundaries must survive any page size, and huge orders must be naturally aligned.
    constexpr std::size_t kAlignment = kGranule << kMaxOrder;
    if (left == SIZE_MAX) {
      for (unsigned bits = static_cast<unsigned>(cap); bits >= kMinBits; --bits) {
        const std::size_t bytes = std::size_t{1} << bits;
        void* base = os::reserve(bytes, kAlignment);
        if (base == nullptr) continue;
        if constexpr (kHugePages == HugePages::kForbid) os::forbid_huge_pages(base, bytes);
        if constexpr (kHugePages == HugePages::kPrefer) os::prefer_huge_pages(base, bytes);
        return claim(address_of(base), bytes, bytes);
      }
    }
    const unsigned bits = static_cast<unsigned>(min_of(
        cap, left == SIZE_MAX ? kUnreservedBits : max_of(kMinBits, log2_ceil(left) + kLimitSlackBits)));
    return claim(free_place(kAlignment), std::size_t{1} << bits, 0);
  }

  /// PageSource: 2^order granules, naturally aligned, open and zero; 0 when out of memory or address space.
  std::uint32_t allocate(unsigned order) {
    LockGuard guard(lock_);
    if (base_.load_relaxed() == 0) return 0;
    if (const std::uint32_t spare = take_spare(order)) return spare;
    const std::size_t count = std::size_t{1} << order;
    for (;;) {
      const std::size_t first = align_up(next_, count);
      const std::size_t end = first + count;
      if (end > capacity_) return 0;
      if (end > opened_) {
        const OpenResult result = open_up_to(end);
        if (result == OpenResult::kRefused) return 0;
        if (result == OpenResult::kSkipped) continue;  // next_ moved behind a foreign mapping
      }
      keep_gap(next_, first);
      next_ = end;
      // Release: whoever learns of a granule below the limit may read the arena's books about it.
      limit_.store_release(end);
      return static_cast<std::uint32_t>(first);
    }
  }

  /// PageSource: a bump pointer takes nothing back.
  bool free(std::uint32_t, unsigned, bool) { return false; }

  /// PageSource. An unreserved range is unmapped: somebody else may map there, and then it cannot be
  /// reopened.
  bool close(std::uint32_t first, unsigned order) {
    if (reserved_) return os::close(granule_address(first), kGranule << order);
    os::release(granule_address(first), kGranule << order);
    return true;
  }
  bool reopen(std::uint32_t first, unsigned order) {
    void* address = granule_address(first);
    return reserved_ ? os::open(address, kGranule << order)
                     : os::open_at(address, kGranule << order) == os::Placed::kYes;
  }

  std::uintptr_t base() const { return base_.load_relaxed(); }
  /// Granules below this number have been handed out (or skipped). Relaxed: a caller that holds a pointer
  /// into the arena got it from someone who saw the limit that covers it.
  std::size_t limit() const { return limit_.load_relaxed(); }
  /// Granules the range can ever hold; constant after start().
  std::size_t capacity() const { return capacity_; }

  PageSourceStatistics statistics() {
    LockGuard guard(lock_);
    const std::size_t opened = (opened_ - skipped_) * kGranule;
    return {reserved_ ? capacity_ * kGranule : opened, opened, lost_ * kGranule};
  }

  void lock_for_fork() { lock_.lock(); }
  void unlock_after_fork() { lock_.unlock(); }

 private:
  enum class OpenResult { kOpened, kRefused, kSkipped };
  // Without a reservation and without a limit (a reservation of every size was refused).
  static constexpr std::size_t kUnreservedBits = 36;
  // Gap pieces kept per order; more are lost (address space only, they were never opened for use).
  static constexpr unsigned kSparesPerOrder = 8;

  bool claim(std::uintptr_t base, std::size_t bytes, std::size_t reserved_bytes) {
    capacity_ = bytes >> kGranuleBits;
    if (capacity_ > UINT32_MAX) capacity_ = UINT32_MAX;
    reserved_ = reserved_bytes != 0;
    next_ = 1;  // number 0 means "none"
    opened_ = 1;
    limit_.store_relaxed(1);
    base_.store_release(base);  // release: start() may have been called by another thread
    return true;
  }

  // An address for an unreserved arena: below where the kernel and the loader place anything by themselves,
  // with nothing mapped at its start (what lies further on is stepped over). Kernels with 39-bit addresses
  // have only the lower half of these.
  static std::uintptr_t free_place(std::size_t alignment) {
    std::uintptr_t place = 0;
    for (unsigned attempt = 0; attempt < 32; ++attempt) {
      const unsigned low = attempt < 16 ? 40 : 35;  // in [2^low, 2^(low+3))
      const std::uintptr_t span = (std::uintptr_t{1} << (low + 3)) - (std::uintptr_t{1} << low);
      place = align_down((std::uintptr_t{1} << low) + os::random_bits() % span, max_of(alignment, kGiB));
      if (!os::reserve_at(pointer_to(place), kGranule)) continue;
      os::release(pointer_to(place), kGranule);
      break;
    }
    return place;
  }

  OpenResult open_up_to(std::size_t end) {
    const std::size_t needed = end - opened_;
    // Granule 0 is never opened: it tells whether mlockall(MCL_CURRENT) has locked the reservation.
    const bool locked = os::memory_is_locked() || (reserved_ && os::is_locked(granule_address(0)));
    if (!locked) {
      const std::size_t step = min_of(max_of(needed, step_), capacity_ - opened_);
      // Without a reservation what is opened ahead takes from the limit that large objects need too.
      const std::size_t largest = reserved_ ? kMaxStep : kMaxStep / 16;
      step_ = min_of(step * 2, max_of(largest >> kGranuleBits, 1));
      if (step > needed && try_open(step) == os::Placed::kYes) return OpenResult::kOpened;
    }
    switch (try_open(needed)) {
      case os::Placed::kYes:
        return OpenResult::kOpened;
      case os::Placed::kRefused:
        return OpenResult::kRefused;  // memory is short: another time the same range may do
      case os::Placed::kTaken:
        break;
    }
    if (opened_ + needed >= capacity_) return OpenResult::kRefused;
    keep_gap(next_, opened_);
    lost_ += needed;
    skipped_ += needed;
    opened_ += needed;
    next_ = opened_;
    return OpenResult::kSkipped;
  }

  os::Placed try_open(std::size_t granules) {
    void* address = granule_address(opened_);
    const std::size_t bytes = granules * kGranule;
    if (reserved_) {
      if (!os::open(address, bytes)) return os::Placed::kRefused;
    } else {
      const os::Placed placed = os::open_at(address, bytes);
      if (placed != os::Placed::kYes) return placed;
      if constexpr (kHugePages == HugePages::kForbid) os::forbid_huge_pages(address, bytes);
      if constexpr (kHugePages == HugePages::kPrefer) os::prefer_huge_pages(address, bytes);
    }
    opened_ += granules;
    return os::Placed::kYes;
  }

  // Cuts [from, to) into naturally aligned pieces for smaller requests.
  void keep_gap(std::size_t from, std::size_t to) {
    while (from < to) {
      unsigned order = from == 0 ? 0 : static_cast<unsigned>(std::countr_zero(from));
      if (order > kMaxOrder) order = kMaxOrder;
      while (from + (std::size_t{1} << order) > to) --order;
      if (spare_count_[order] < kSparesPerOrder) {
        spare_[order][spare_count_[order]++] = static_cast<std::uint32_t>(from);
      } else {
        lost_ += std::size_t{1} << order;
      }
      from += std::size_t{1} << order;
    }
  }

  std::uint32_t take_spare(unsigned order) {
    for (unsigned from = order; from <= kMaxOrder; ++from) {
      if (spare_count_[from] == 0) continue;
      const std::uint32_t first = spare_[from][--spare_count_[from]];
      const std::size_t count = std::size_t{1} << order;
      keep_gap(first + count, first + (std::size_t{1} << from));
      return first;
    }
    return 0;
  }

  void* granule_address(std::size_t granule) const {
    return pointer_to(base_.load_relaxed() + (granule << kGranuleBits));
  }

  // Equations, under the lock: 1 <= next_ <= opened_ <= capacity_; limit_ == next_ after every allocate.
  Atomic<std::uintptr_t> base_{0};  // constant after start()
  Atomic<std::size_t> limit_{0};    // shared: written under the lock, read by every free
  SpinLock lock_;                   // gives access to everything below
  bool reserved_ = false;           // constant after start()
  std::size_t capacity_ = 0;
  std::size_t next_ = 0;
  std::size_t opened_ = 0;
  std::size_t step_ = 1;
  std::size_t lost_ = 0;
  std::size_t skipped_ = 0;  // of lost_: foreign mappings, counted in opened_ but never ours
  std::uint8_t spare_count_[kMaxOrder + 1] = {};
  std::uint32_t spare_[kMaxOrder + 1][kSparesPerOrder] = {};
};

}  // namespace spanalloc
