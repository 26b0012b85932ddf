// One contiguous range of address space, opened from its beginning on.
//
// Two ways to claim it:
//  - placed: only an address is chosen, at random, far from where the kernel places mappings, and each step
//    maps exactly what it opens. A step that collides with a foreign mapping is halved until it ends before
//    it; what lies in the way is skipped, a slice or what it covers. A guard page of ours stands before
//    what is open, and one behind it.
//  - reserved: PROT_NONE over the whole range (2^kMaxBits, halving on refusal). Costs no memory and is not
//    charged; opening is mprotect, so neighbouring steps merge into one mapping.
// kClaim says which is tried first. Under a RLIMIT_AS that stood at the start (where a reservation would eat
// the limit) or when every reservation was refused a range is placed; and reserved, when no place was found.
//
// Opening: the first step is what was asked, then steps double up to kMaxStep, or under a limit to a
// sixteenth of that; a refused step is retried with exactly what is needed (strict overcommit charges the
// whole step). When the process locks its memory (mlockall(MCL_FUTURE) makes what is opened resident at once)
// only what is used is opened.
//
// The range is counted in slices; slice 0 is never opened. Not synchronised: the owner's lock gives
// access; base() and capacity() are constant after start().
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "os/os.hpp"
#include "pages/huge_page_advice.hpp"
#include "pages/page_calls.hpp"

namespace spanalloc {

/// kAsked: what SPANALLOC_THP says; where that is "auto" the range's owner advises.
enum class HugePages { kKernelDefault, kForbid, kPrefer, kAsked };

enum class Claim { kPlace, kReserve };

/// What an arena over a range tells about itself: reserved_bytes >= opened_bytes >= bytes handed out.
struct ArenaStatistics {
  std::size_t reserved_bytes = 0;
  std::size_t opened_bytes = 0;
  std::size_t lost_bytes = 0;  ///< address ranges that another mapping took from under us
};

/// kLimitSlackBits: where a reservation was to be made and a limit on address space stands, the range is the
/// limit times 2^this, for callers that give parts of what they were handed back to the kernel (the range
/// costs nothing, what is mapped does).
template <unsigned kSliceBits, HugePages kHugePages, std::size_t kMaxStep, unsigned kLimitSlackBits,
          Claim kClaim = Claim::kReserve, class Calls = PageCalls>
class AddressRange {
 public:
  static constexpr std::size_t kSlice = std::size_t{1} << kSliceBits;
  static constexpr unsigned kMinBits = 30;
  static constexpr unsigned kMaxBits = kClaim == Claim::kPlace ? 44 : 45;
  /// Without a reservation and without a limit (a reservation of every size was refused).
  static constexpr unsigned kUnreservedBits = 36;

  /// Claims the range, `alignment` bytes aligned. False when no place was found.
  SPANALLOC_COLD bool start(std::size_t alignment) {
    if (started()) return true;
    if constexpr (kHugePages == HugePages::kAsked) huge_page_use_ = spanalloc::huge_page_use();
    const std::uint64_t option = os::option_number("ARENA_BITS", kMinBits, 45, kMaxBits);
    const auto cap = static_cast<unsigned>(min_of(option, kMaxBits));
    if constexpr (kClaim == Claim::kPlace) return place(alignment, cap) || reserve(alignment, cap);
    const std::size_t limit = os::address_space_limit();
    if (limit == SIZE_MAX && reserve(alignment, cap)) return true;
    const std::size_t bits =
        limit == SIZE_MAX ? kUnreservedBits : max_of(kMinBits, log2_ceil(limit) + kLimitSlackBits);
    return place(alignment, static_cast<unsigned>(min_of(cap, bits)));
  }
  bool started() const { return base_.load_relaxed() != 0; }

  std::uintptr_t base() const { return base_.load_relaxed(); }
  bool reserved() const { return reserved_; }
  /// Slices the range can ever hold.
  std::size_t capacity() const { return capacity_; }
  /// Slices below this number are open, or skipped.
  std::size_t opened() const { return opened_.load_relaxed(); }
  /// Of these: foreign mappings, never ours.
  std::size_t skipped() const { return skipped_.load_relaxed(); }
  std::size_t opened_bytes() const { return (opened() - skipped()) * kSlice; }
  std::size_t reserved_bytes() const { return reserved_ ? capacity_ * kSlice : opened_bytes(); }

  enum class OpenResult { kOpened, kRefused, kSkipped };

  /// Opens at least slices [opened(), end), or where a foreign mapping is on the way, a part of that: call
  /// it again for the rest. kSkipped: nothing was opened, the mapping lies at what was opened() and opened()
  /// is behind it now, or behind a part of it; what was skipped is not ours.
  SPANALLOC_COLD OpenResult open_up_to(std::size_t end) {
    const std::size_t needed = end - opened();
    if (end > capacity_) return OpenResult::kRefused;
    const std::size_t step = min_of(max_of(needed, step_), capacity_ - opened());
    // Under a limit what is opened ahead takes from what everything else needs, too.
    const bool limited = limited_ || os::has_memory_limit();
    const std::size_t largest = !reserved_ && limited ? kMaxStep / 16 : kMaxStep;
    step_ = min_of(step * 2, max_of(largest >> kSliceBits, 1));
    if (step > needed && !is_locked()) {
      const os::Placed placed = try_open(step);
      if (placed == os::Placed::kYes) return OpenResult::kOpened;
      if (placed == os::Placed::kRefused) refused_step_ = step;
    }
    for (std::size_t part = needed; part != 0; part /= 2) {
      const os::Placed placed = try_open(part);
      if (placed == os::Placed::kYes) return OpenResult::kOpened;
      // Memory is short: another time the same range may do. Then as much as is needed is asked for at once.
      if (placed == os::Placed::kRefused) {
        step_ = 1;
        return OpenResult::kRefused;
      }
    }
    return skip();
  }

  /// Slices that were to be opened ahead of need, the last time, and were refused; 0: none, or told before.
  std::size_t take_refused_step() {
    const std::size_t step = refused_step_;
    refused_step_ = 0;
    return step;
  }
  /// A limit has been met that did not stand at the start, or is gone.
  void set_limited(bool limited) { limited_ = limited; }

  /// Goes on at slice `end` (as far as that is not behind opened() already): what lies before is not opened
  /// any more. False: the capacity ends there.
  bool skip_to(std::size_t end) {
    if (end >= capacity_) return false;
    if (end > opened()) {
      leave_out(end - opened());
      guarded_ = reserved_;
    }
    return true;
  }

  /// Makes open slices inaccessible, their memory uncharged; recommit() undoes it, and they are zero. False:
  /// refused, nothing has changed. A placed range is unmapped: somebody else may map there, and then it
  /// cannot be recommitted.
  bool decommit(std::size_t first, std::size_t count) {
    if (reserved_) return Calls::close(address(first), count * kSlice);
    return Calls::release(address(first), count * kSlice);
  }
  /// What is never opened again: its first and its last page stay ours, as guards.
  void decommit_for_ever(std::size_t first, std::size_t count) {
    const std::size_t page = os::page_size();
    const std::size_t bytes = count * kSlice;
    if (!Calls::close(address(first), bytes) || reserved_ || bytes <= 2 * page) return;
    Calls::release(static_cast<char*>(address(first)) + page, bytes - 2 * page);
  }
  os::Placed recommit(std::size_t first, std::size_t count) {
    const std::size_t bytes = count * kSlice;
    os::Placed placed = os::Placed::kYes;
    if (!reserved_) {
      placed = Calls::open_at(address(first), bytes);
    } else if (!Calls::open(address(first), bytes)) {
      placed = os::Placed::kRefused;
    }
    if (placed == os::Placed::kYes) advise(address(first), bytes);
    return placed;
  }

  /// Maps fresh pages, which are zero, where nothing is mapped any more: the owner has moved what was open
  /// there. Somebody else may have been quicker (kTaken).
  os::Placed map_anew(std::size_t first, std::size_t count) {
    const os::Placed placed = Calls::open_at(address(first), count * kSlice);
    if (placed == os::Placed::kYes) advise(address(first), count * kSlice);
    return placed;
  }

  /// Gives the whole range back to the kernel, while nobody uses anything in it; start() may follow. Of an
  /// placed range only what is still ours: of an opened slice its first left_of(slice) bytes (whole
  /// pages), which is less than a slice where the owner has closed or unmapped some of it.
  template <class LeftOf>
  void destroy(LeftOf&& left_of) {
    if (reserved_) {
      Calls::release(address(0), claimed_bytes_);
    } else if (started()) {
      release_opened(left_of);
    }
    base_.store_relaxed(0);
    reserved_ = guarded_ = false;
    claimed_bytes_ = capacity_ = 0;
    opened_.store_relaxed(0);
    step_ = 1;
    skipped_.store_relaxed(0);
    skips_ = 0;
  }
  void destroy() {
    destroy([](std::size_t) { return kSlice; });
  }

  HugePageUse huge_page_use() const { return huge_page_use_; }
  /// Whether the owner shall advise what is dense.
  bool is_advised_by_owner() const {
    return kHugePages == HugePages::kAsked && huge_page_use_ == HugePageUse::kAuto;
  }

  /// Of what is open. Any thread.
  void prefer_huge_pages(void* address, std::size_t bytes) {
    has_preferred_.store_relaxed(true);
    Calls::prefer_huge_pages(address, bytes);
  }
  void forbid_huge_pages(void* address, std::size_t bytes) {
    has_forbidden_.store_relaxed(true);
    Calls::forbid_huge_pages(address, bytes);
  }

  /// Opening more than is used would make it resident at once. (The page before slice 1 is ours from the
  /// start on and never opened: it tells whether mlockall(MCL_CURRENT) has locked what is there.)
  bool is_locked() const { return os::memory_is_locked() || os::is_locked(guard_before(1)); }

  /// Some kernels call all resident that is mapped. (The page before slice 1 has never been touched.)
  bool kernel_tells_resident_pages() const {
    return Calls::resident_pages(guard_before(1), os::page_size()) == 0;
  }

  void* address(std::size_t slice) const { return pointer_to(base_.load_relaxed() + (slice << kSliceBits)); }

 private:
  void claim(std::uintptr_t base, std::size_t bytes, bool reserved) {
    capacity_ = bytes >> kSliceBits;
    if (capacity_ > UINT32_MAX) capacity_ = UINT32_MAX;
    reserved_ = guarded_ = reserved;
    claimed_bytes_ = bytes;
    opened_.store_relaxed(1);
    base_.store_release(base);  // release: start() may have been called by another thread
  }

  // What the option says, wherever memory is opened; what the arena's kind says only with the reservation,
  // which is made before main: afterwards a filter of system calls may not know the call.
  void advise(void* address, std::size_t bytes) {
    constexpr bool kAsked = kHugePages == HugePages::kAsked;
    const bool at_start = !started();
    if ((kHugePages == HugePages::kForbid && at_start) || (kAsked && huge_page_use_ == HugePageUse::kNever)) {
      forbid_huge_pages(address, bytes);
    }
    if ((kHugePages == HugePages::kPrefer && at_start) ||
        (kAsked && huge_page_use_ == HugePageUse::kAlways)) {
      prefer_huge_pages(address, bytes);
    }
  }

  // Far from the kernel's own mappings, in whichever direction it lays them out: a range of 2^44 bytes from
  // the first window ends below a third of the address space. Kernels with 39-bit addresses have the last
  // one.
  static constexpr PlaceWindow kWindows[] = {
      {5 * kTiB, 25 * kTiB}, {44 * kTiB, 60 * kTiB}, {32 * kGiB, 128 * kGiB}};

  SPANALLOC_COLD bool place(std::size_t alignment, unsigned bits) {
    const std::uintptr_t place = random_place<Calls>(kWindows, alignment);
    if (place == 0) return false;
    claim(place, std::size_t{1} << bits, false);
    if (place_guards() == os::Placed::kYes) return true;
    base_.store_relaxed(0);
    return false;
  }
  SPANALLOC_COLD bool reserve(std::size_t alignment, unsigned most) {
    for (unsigned bits = most; bits >= kMinBits; --bits) {
      const std::size_t bytes = std::size_t{1} << bits;
      void* base = Calls::reserve(bytes, alignment);
      if (base == nullptr) continue;
      advise(base, bytes);
      claim(address_of(base), bytes, true);
      return true;
    }
    return false;
  }

  // No more is lost than is covered.
  SPANALLOC_COLD OpenResult skip() {
    const std::size_t behind = capacity_ - 1 - opened();
    const std::size_t slices = steps_in_the_way<Calls>(address_of(address(opened())), kSlice, behind);
    if (slices == 0) return OpenResult::kRefused;  // nothing is behind it
    leave_out(slices);
    guarded_ = false;
    return OpenResult::kSkipped;
  }
  void leave_out(std::size_t slices) {
    skipped_.store_relaxed(skipped_.load_relaxed() + slices);
    note_skip(opened(), slices);
    // Release: a fork's child that finds the range behind them finds them skipped.
    opened_.store_release(opened_.load_relaxed() + slices);
    SPANALLOC_ASSERT(opened() <= capacity_ && skipped() < opened());
  }

  char* guard_before(std::size_t slice) const { return static_cast<char*>(address(slice)) - os::page_size(); }
  // The pages before and at the beginning of what will be opened next. (Behind something foreign, too.)
  os::Placed place_guards() {
    if (guarded_) return os::Placed::kYes;
    const os::Placed placed = Calls::reserve_at(guard_before(opened()), 2 * os::page_size());
    guarded_ = placed == os::Placed::kYes;
    return placed;
  }

  os::Placed try_open(std::size_t slices) {
    char* start = static_cast<char*>(address(opened()));
    const std::size_t bytes = slices * kSlice;
    if (const os::Placed placed = place_guards(); placed != os::Placed::kYes) return placed;
    // What is not reserved, or is mapped without being charged, is granted whatever its size: ask what a
    // mapping of this size would be told; not where the mapping itself would take the memory.
    if (bytes >= kAskFirst && !is_locked() && !Calls::would_grant(bytes)) return os::Placed::kRefused;
    if (!reserved_) {
      // The guard at the start becomes memory, and the end of what is mapped the new guard.
      char* behind = start + os::page_size();
      const os::Placed placed = Calls::reserve_at(behind, bytes);
      if (placed != os::Placed::kYes) return placed;
      if (!Calls::open(start, bytes) && !open_as_before(start, bytes)) {
        Calls::release(behind, bytes);
        return os::Placed::kRefused;
      }
      advise(start, bytes);
    } else if (!Calls::open(start, bytes)) {
      return os::Placed::kRefused;
    }
    opened_.store_relaxed(opened() + slices);
    SPANALLOC_ASSERT(opened() >= 1 && opened() <= capacity_);
    return os::Placed::kYes;
  }

  // Behind memory with advice what is opened without makes a mapping more, of which a process may have only
  // so many. With the same advice, given to the whole of the guard's mapping, it joins what is before it.
  SPANALLOC_COLD bool open_as_before(void* start, std::size_t bytes) {
    const std::size_t with_guard = bytes + os::page_size();
    if (has_preferred_.load_relaxed()) {
      Calls::prefer_huge_pages(start, with_guard);
      if (Calls::open(start, bytes)) return true;
    }
    if (!has_forbidden_.load_relaxed()) return false;
    Calls::forbid_huge_pages(start, with_guard);
    return Calls::open(start, bytes);
  }

  static constexpr std::size_t kAskFirst = kGiB;

  // What is not ours. When there are too many pieces the last one takes in all that lies between: destroy()
  // leaves too much mapped then, but nothing of anybody else's is unmapped.
  struct Piece {
    std::size_t first = 0;
    std::size_t end = 0;
  };
  static constexpr unsigned kMaxSkips = 8;

  void note_skip(std::size_t first, std::size_t count) {
    if (skips_ != 0 && (skip_[skips_ - 1].end == first || skips_ == kMaxSkips)) {
      skip_[skips_ - 1].end = first + count;
      return;
    }
    skip_[skips_++] = {first, first + count};
  }

  // Whole slices that follow each other go with one call; then the guards.
  template <class LeftOf>
  void release_opened(LeftOf&& left_of) {
    std::size_t first = 1;  // of the run of whole slices that ends at `slice`
    const auto release_run = [&](std::size_t end) {
      if (first < end) Calls::release(address(first), (end - first) * kSlice);
    };
    unsigned skip = 0;
    std::size_t slice = 1;
    while (slice < opened()) {
      if (skip < skips_ && skip_[skip].first == slice) {
        release_run(slice);
        first = slice = skip_[skip++].end;
        continue;
      }
      const std::size_t left = left_of(slice);
      if (left != kSlice) {
        release_run(slice);
        if (left != 0) Calls::release(address(slice), left);
        first = slice + 1;
      }
      ++slice;
    }
    release_run(slice);
    std::size_t begin = 1;
    for (unsigned i = 0; i <= skips_; ++i) {
      const std::size_t end = i < skips_ ? skip_[i].first : opened();
      if (begin < end || guarded_) {
        Calls::release(guard_before(begin), os::page_size());
        Calls::release(address(end), os::page_size());
      }
      if (i < skips_) begin = skip_[i].end;
    }
  }

  // Equation: 1 <= opened_ <= capacity_ after start().
  Atomic<std::uintptr_t> base_{0};  // constant after start()
  bool reserved_ = false;           // constant after start()
  std::size_t claimed_bytes_ = 0;   // constant after start(); capacity_ in bytes, or a bit more
  std::size_t capacity_ = 0;        // constant after start()
  HugePageUse huge_page_use_ = HugePageUse::kSystem;  // "
  // Whether some of it has got such advice, ever. Relaxed: who finds none yet is refused once more.
  Atomic<bool> has_preferred_{false};
  Atomic<bool> has_forbidden_{false};
  Atomic<std::size_t> opened_{0};
  std::size_t step_ = 1;
  std::size_t refused_step_ = 0;
  bool limited_ = false;
  Atomic<std::size_t> skipped_{0};
  bool guarded_ = false;  // reserved, or guard pages stand before and at opened()
  unsigned skips_ = 0;
  Piece skip_[kMaxSkips];  // ascending
};

}  // namespace spanalloc
