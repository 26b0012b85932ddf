// One contiguous range of address space, opened from its beginning on.
//
// There are two ways to claim it:
//  - placed: only an address is chosen, at random, far from where the kernel places mappings. Each
//    step maps exactly what it opens. A step that meets a foreign mapping is halved until it ends
//    before that; then the range skips what lies in the way, at least one slice. A guard page of
//    ours stands before what is open, and one behind it.
//  - reserved: PROT_NONE over the whole range (2^kMaxBits bytes, half as many after each refusal).
//    Costs no memory and is not charged. Opening is mprotect, so neighbouring steps merge into one
//    mapping. A range that is reserved by choice begins at such an address, too, if there is room.
// kClaim says which is tried first. A range is placed if RLIMIT_AS was set at the start
// (a reservation would use up the limit) or every reservation was refused; and it is
// reserved if no place was found.
//
// A limit on address space that is set later counts the reservation, so that every mapping of the
// process is refused. Each step of a range that is reserved by choice, at an address of ours, asks
// whether a limit stands. Then what is not open goes back to the kernel, and the range is placed
// from there on.
//
// The first step opens what was asked for. Then steps double up to kMaxStep, or under a limit to a
// sixteenth of that. A refused step is tried again with exactly what is needed (strict overcommit
// charges the whole step). Under mlockall(MCL_FUTURE), where opened memory is resident at once,
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
#include "base/inspection_access.hpp"
#include "base/poison.hpp"
#include "os/os.hpp"
#include "pages/coalescing/mapper.hpp"
#include "pages/config.hpp"
#include "pages/huge_page_advice.hpp"
#include "pages/page_calls.hpp"

namespace spanalloc {

/// kAsked: what SPANALLOC_THP says; where that is "auto" the range's owner advises.
enum class HugePages { kKernelDefault, kForbid, kPrefer, kAsked };

enum class Claim { kPlace, kReserve };

/// An arena's figures: reserved_bytes >= opened_bytes >= bytes handed out.
struct ArenaStatistics {
  std::size_t reserved_bytes = 0;
  std::size_t opened_bytes = 0;
  std::size_t lost_bytes = 0;  ///< addresses where foreign mappings stand
  // Of an arena that merges and purges:
  std::size_t decommitted_bytes = 0;  ///< free ranges without charge; no part of opened_bytes
  std::size_t table_bytes = 0;        ///< readable bytes of its manager's tables
  // Events since the start; in a fork's child those of its parent, too.
  std::size_t growths = 0;       ///< steps that have opened address space
  std::size_t purges = 0;        ///< calls of the kernel that have given pages back
  std::size_t purged_bytes = 0;  ///< of these
};

/// kLimitSlackBits: if there is a limit on address space where a reservation was to be
/// made, the range is 2^this times the limit. For callers that unmap parts of what they
/// get: only what is mapped counts.
template <unsigned kSliceBits, HugePages kHugePages, std::size_t kMaxStep, unsigned kLimitSlackBits,
          Claim kClaim = Claim::kReserve, class Calls = PageCalls>
class AddressRange {
  using Block = coalescing::Block;
  using enum os::Placed;

 public:
  static constexpr std::size_t kSlice = std::size_t{1} << kSliceBits;
  static constexpr unsigned kMinBits = PagesConfig::kMinBits;
  static constexpr unsigned kMaxBits = kClaim == Claim::kPlace ? 44 : 45;

  /// Claims the range, `alignment` bytes aligned. False when no place was found.
  SPANALLOC_COLD bool start(std::size_t alignment) {
    if (started()) return true;
    if constexpr (kHugePages == HugePages::kAsked) huge_page_use_ = spanalloc::huge_page_use();
    const std::uint64_t option = os::option_number("ARENA_BITS", kMinBits, 45, kMaxBits);
    const auto cap = static_cast<unsigned>(min_of(option, kMaxBits));
    if constexpr (kClaim == Claim::kPlace) return place(alignment, cap) || reserve(alignment, cap);
    const std::size_t limit = os::address_space_limit();
    if (limit == SIZE_MAX && reserve(alignment, cap)) return true;
    const std::size_t bits = limit == SIZE_MAX
                                 ? PagesConfig::kUnreservedBits
                                 : max_of(kMinBits, log2_ceil(limit) + kLimitSlackBits);
    return place(alignment, static_cast<unsigned>(min_of(cap, bits)));
  }
  bool started() const { return base_.load_relaxed() != 0; }

  std::uintptr_t base() const { return base_.load_relaxed(); }
  /// Whether all of it is address space of ours. A limit may end that, under the owner's lock: who
  /// reads without it may see that late.
  bool reserved() const { return reservation_.load_relaxed() != Reservation::kNone; }
  /// The most slices that the range can hold.
  std::size_t capacity() const { return capacity_; }
  /// Slices below this number are open, or skipped.
  std::size_t opened() const { return opened_.load_relaxed(); }
  /// Those of them that were skipped: foreign mappings, never ours.
  std::size_t skipped() const { return skipped_.load_relaxed(); }
  /// Whether any of them lies at `slice` or behind it. By the owner.
  bool has_skipped_behind(std::size_t slice) const {
    return skips_ != 0 && skip_[skips_ - 1].end > slice;
  }
  std::size_t opened_bytes() const { return (opened() - skipped()) * kSlice; }
  std::size_t reserved_bytes() const { return reserved() ? capacity_ * kSlice : opened_bytes(); }

  /// Opens at least slices [opened(), end), or where a foreign mapping is on the way, a part of
  /// them: call it again for the rest. kTaken: nothing was opened, for a mapping lay at slice
  /// opened(). Now opened() is behind it, or behind a part of it; skipped slices are not ours.
  SPANALLOC_COLD os::Placed open_up_to(std::size_t end) {
    const std::size_t needed = end - opened();
    if (end > capacity_) return kRefused;
    // (Limits have just been asked for when the first slice is opened.)
    const bool heeds = heeds_limits() && opened() > 1;
    os::NewPage fresh = heeds || needed < step_ ? os::new_page() : os::NewPage::kPlain;
    if (heeds && heed_limit(fresh)) fresh = os::new_page();
    const std::size_t step = min_of(max_of(needed, step_), capacity_ - opened());
    const bool limited = !reserved() && (limited_ || os::has_memory_limit());
    const std::size_t largest = limited ? kMaxStep / PagesConfig::kStepPartUnderLimit : kMaxStep;
    step_ = min_of(step * 2, max_of(largest >> kSliceBits, 1));
    if (step > needed && fresh == os::NewPage::kPlain && !is_kept_locked()) {
      const os::Placed placed = try_open(step);
      if (placed == kYes) return placed;
      if (placed == kRefused) refused_step_ = step;
    }
    for (std::size_t part = needed; part != 0; part /= 2) {
      const os::Placed placed = try_open(part);
      // Memory is short, but may be granted later. Then the first step opens just what is needed.
      if (placed == kRefused) step_ = 1;
      if (placed != kTaken) return placed;
    }
    return skip();
  }

  /// Whether it is reserved by choice, at a place of ours. (Where the kernel has chosen the place
  /// it would soon give what comes back to somebody else.)
  bool heeds_limits() const {
    return is_far_.load_relaxed() && reservation_.load_relaxed() == Reservation::kAll;
  }
  /// The same, also while that is being given back. Any thread.
  bool may_heed_limits() const { return is_far_.load_relaxed() && reserved(); }
  /// If it heeds limits, and one stands, gives back what is not open. True: it has, and the kernel
  /// may grant what it has refused before.
  SPANALLOC_COLD bool heed_limit() { return heeds_limits() && heed_limit(os::new_page()); }

  /// In a fork's child, when a thread that vanished may have been giving the reservation back:
  /// finds out whether it has. (A few pages of ours may stay mapped.)
  SPANALLOC_COLD void recover_in_child() {
    if (reservation_.load_relaxed() != Reservation::kBeingGivenBack) return;
    // Far from where the kernel places mappings nobody else is given this page at once. Each time
    // another one: the page of a child that has forked, too, before it knew may be mapped still.
    const std::size_t page = os::page_size();
    char* const end = static_cast<char*>(address(0)) + claimed_bytes_ - page;
    const char* const behind = static_cast<char*>(address(opened())) + page;
    char* const one =
        end - (1 + questions_ % max_of(static_cast<std::size_t>(end - behind) / page, 1)) * page;
    store_in_order(questions_, questions_ + 1);
    const os::Placed placed = Calls::reserve_at(one, page);
    // A limit that stands refuses each mapping: then whether the page can be purged tells.
    if (placed == kTaken || (placed == kRefused && Calls::purge(one, page)))
      return reservation_.store_relaxed(Reservation::kAll);
    if (placed == kYes) Calls::release(one, page);
    be_placed();
  }

  /// Slices of the last step ahead of need that was refused; 0: none, or told before.
  std::size_t take_refused_step() {
    const std::size_t step = refused_step_;
    refused_step_ = 0;
    return step;
  }
  /// Whether there is a limit that did not stand at the start.
  void set_limited(bool limited) { limited_ = limited; }

  /// Continues at slice `end`, unless opened() is behind it. Slices before it are never opened.
  /// False: the capacity ends there.
  bool skip_to(std::size_t end) {
    if (end >= capacity_) return false;
    if (end > opened()) leave_out(end - opened());
    return true;
  }

  /// Decommits open slices. After recommit() they are zero. False: refused, nothing has
  /// changed. In a placed range they are unmapped: somebody else may map there, and then
  /// they cannot be recommitted.
  bool decommit(Block block) {
    void* const start = address(block.first);
    const std::size_t bytes = block.size * kSlice;
    return reserved() ? Calls::close(start, bytes) : Calls::release(start, bytes);
  }
  /// Decommits slices that are never recommitted: their first and last page stay ours, as guards.
  void decommit_for_ever(Block block) {
    const std::size_t page = os::page_size();
    const std::size_t bytes = block.size * kSlice;
    char* const start = static_cast<char*>(address(block.first));
    if (Calls::close(start, bytes) && !reserved() && bytes > 2 * page)
      Calls::release(start + page, bytes - 2 * page);
  }
  os::Placed recommit(Block block) {
    if (!reserved()) return map_anew(block);
    const bool opened = Calls::open(address(block.first), block.size * kSlice);
    if (opened) advise(address(block.first), block.size * kSlice);
    return opened ? kYes : kRefused;
  }
  /// Maps fresh pages, which are zero, where nothing is mapped any more because the owner has moved
  /// the old ones. kTaken: somebody else has mapped there first.
  os::Placed map_anew(Block block) {
    const os::Placed placed = Calls::open_at(address(block.first), block.size * kSlice);
    if (placed == kYes) advise(address(block.first), block.size * kSlice);
    return placed;
  }

  /// Gives the whole range back to the kernel, while nobody uses anything in it; start() may
  /// follow. Of a placed range only what is still ours: the first left_of(slice) bytes
  /// (whole pages) of each opened slice, fewer than a slice has where the owner has
  /// decommitted or unmapped some.
  template <class LeftOf>
  void destroy(LeftOf&& left_of) {
    // Its addresses may be somebody else's next.
    if (kPoisons && started()) unpoison(address(0), opened() * kSlice);
    if (reserved()) {
      Calls::release(address(0), claimed_bytes_);
    } else if (started()) {
      release_opened(left_of);
    }
    base_.store_relaxed(0);
    reservation_.store_relaxed(Reservation::kNone);
    guarded_ = false;
    claimed_bytes_ = capacity_ = 0;
    opened_.store_relaxed(0);
    step_ = 1;
    limited_ = false;
    skipped_.store_relaxed(0);
    skips_ = 0;
  }
  void destroy() {
    destroy([](std::size_t) { return kSlice; });
  }

  /// Before a round of purge_unused(): whether the process is locked as a whole is asked anew.
  void begin_purging() { locked_.store_relaxed(kNotAsked); }
  /// Purges open memory that nobody uses; any thread. True: it reads as zero. What is large enough
  /// loses whatever the program has set on its pages, too: the next owner must not get that.
  /// Smaller pieces keep it, and a process that is locked as a whole keeps its locks.
  SPANALLOC_COLD bool purge_unused(void* address, std::size_t bytes) {
    if (bytes < PagesConfig::kLeastRenewed || is_locked_in_round())
      return Calls::purge(address, bytes);
    if (!Calls::renew(address, bytes)) return false;
    advise(address, bytes);
    return true;
  }

  HugePageUse huge_page_use() const { return huge_page_use_; }
  /// Whether the owner advises huge pages where memory is dense.
  bool is_advised_by_owner() const {
    return kHugePages == HugePages::kAsked && huge_page_use_ == HugePageUse::kAuto;
  }

  /// For open memory. Any thread.
  void prefer_huge_pages(void* address, std::size_t bytes) {
    has_preferred_.store_relaxed(true);
    Calls::prefer_huge_pages(address, bytes);
  }
  void forbid_huge_pages(void* address, std::size_t bytes) {
    has_forbidden_.store_relaxed(true);
    Calls::forbid_huge_pages(address, bytes);
  }

  /// Whether memory that is opened would be resident at once. (The page before slice 1
  /// is ours from the start on and never opened: it tells whether mlockall(MCL_CURRENT)
  /// has locked what is there.)
  bool is_locked() const { return os::memory_is_locked() || is_kept_locked(); }

  /// False: the kernel calls all mapped pages resident. (The page before slice 1
  /// has never been touched.)
  bool kernel_tells_resident_pages() const {
    return Calls::resident_pages(guard_before(1), os::page_size()) == 0;
  }

  void* address(std::size_t slice) const {
    return pointer_to(base_.load_relaxed() + (slice << kSliceBits));
  }

 private:
  friend struct AddressRangeTestAccess;  // defined by unit tests only
  friend struct spanalloc::InspectionAccess;
  friend struct spanalloc::HeapsInspectionAccess;

  void claim(std::uintptr_t base, std::size_t bytes, bool reserved) {
    capacity_ = bytes >> kSliceBits;
    if (capacity_ > UINT32_MAX) capacity_ = UINT32_MAX;
    reservation_.store_relaxed(reserved ? Reservation::kAll : Reservation::kNone);
    guarded_ = reserved;
    claimed_bytes_ = bytes;
    opened_.store_relaxed(1);
    // In a fork's child a vanished thread may have begun, and left what it had noted.
    skipped_.store_relaxed(0);
    skips_ = 0;
    base_.store_release(base);  // release: start() may have been called by another thread
  }

  // Advice by SPANALLOC_THP is given wherever memory is opened; advice by the arena's kind only
  // with the reservation, before main: afterwards a filter of system calls may not know the call.
  void advise(void* address, std::size_t bytes) {
    HugePageUse use = huge_page_use_;
    if (!started() && kHugePages == HugePages::kForbid) use = HugePageUse::kNever;
    if (!started() && kHugePages == HugePages::kPrefer) use = HugePageUse::kAlways;
    if (use == HugePageUse::kNever) forbid_huge_pages(address, bytes);
    if (use == HugePageUse::kAlways) prefer_huge_pages(address, bytes);
  }

  // Far from the kernel's own mappings, in whichever direction it lays them out: a range of 2^44
  // bytes from the first window ends below a third of the address space. Kernels with 39-bit
  // addresses have the last.
  static constexpr Interval kWindows[] = {
      {5 * kTiB, 25 * kTiB}, {44 * kTiB, 60 * kTiB}, {32 * kGiB, 128 * kGiB}};
  // What is reserved has 2^45 bytes: from the first window they lie between the kernel's mappings
  // in the one direction and a program that is position independent. Below 20 TiB Java maps its
  // heap at fixed addresses.
  static constexpr Interval kWindowsToReserve[] = {
      {44 * kTiB, 53 * kTiB}, {20 * kTiB, 25 * kTiB}, {32 * kGiB, 128 * kGiB}};

  SPANALLOC_COLD bool place(std::size_t alignment, unsigned bits) {
    const std::uintptr_t place = random_place<Calls>(kWindows, alignment);
    if (place == 0) return false;
    claim(place, std::size_t{1} << bits, false);
    if (place_guards() == kYes) return true;
    base_.store_relaxed(0);
    return false;
  }
  SPANALLOC_COLD bool reserve(std::size_t alignment, unsigned most) {
    void* const place = kClaim == Claim::kReserve
                            ? pointer_to(random_place<Calls>(kWindowsToReserve, alignment))
                            : nullptr;
    for (unsigned bits = most; bits >= kMinBits; --bits) {
      const std::size_t bytes = std::size_t{1} << bits;
      const bool far = place != nullptr && Calls::reserve_at(place, bytes) == kYes;
      void* base = far ? place : Calls::reserve(bytes, alignment);
      if (base == nullptr) continue;
      is_far_.store_relaxed(far);
      advise(base, bytes);
      claim(address_of(base), bytes, true);
      return true;
    }
    return false;
  }

  // Skips no more than the mapping covers, rounded up to slices.
  SPANALLOC_COLD os::Placed skip() {
    const std::size_t behind = capacity_ - 1 - opened();
    const std::size_t slices =
        steps_in_the_way<Calls>(address_of(address(opened())), kSlice, behind);
    if (slices == 0) return kRefused;  // nothing is behind it
    leave_out(slices);
    return kTaken;
  }
  void leave_out(std::size_t slices) {
    note_skip(opened(), opened() + slices);
    guarded_ = reserved();
    // Release: a fork's child that finds the range behind them finds them noted, and no guards.
    opened_.store_release(opened_.load_relaxed() + slices);
    // Last: a child that finds the range in front of them skips them once more, and must not count
    // them twice. (One that finds it in between counts too few, for statistics only.)
    skipped_.store_release(skipped_.load_relaxed() + slices);
    SPANALLOC_ASSERT(opened() <= capacity_ && skipped() < opened());
  }

  bool is_kept_locked() const { return os::is_locked(guard_before(1)); }

  // --- Limits that are set after the start ---

  // A limit on addresses refuses a page; one on data, when it is near, some times what is open. (In
  // locked memory the question would take what it asks for.)
  bool heed_limit(os::NewPage fresh) {
    const std::size_t ahead = max_of(
        min_of(opened_bytes() * PagesConfig::kLookAhead, PagesConfig::kMostLookedFor), kSlice);
    const bool stands =
        fresh == os::NewPage::kRefused ||
        (fresh == os::NewPage::kPlain && Calls::open_at(nullptr, ahead) == kRefused);
    return stands && give_reservation_back();
  }
  bool give_reservation_back() {
    const std::size_t page = os::page_size();
    char* const start = static_cast<char*>(address(0));
    char* const behind = static_cast<char*>(address(opened())) + page;  // the guard stays
    char* const last = start + claimed_bytes_ - page;
    if (behind >= last) return false;
    // First, for a fork's child: it must not open what somebody else may have mapped by then.
    reservation_.store_relaxed(Reservation::kBeingGivenBack);
    // All but the last page: this cuts a mapping in two. Where the kernel refuses every mapping
    // because there are too many, it refuses this, too; and the reservation is not the reason.
    if (!Calls::release(behind, static_cast<std::size_t>(last - behind))) {
      reservation_.store_relaxed(Reservation::kAll);
      return false;
    }
    Calls::release(last, page);
    Calls::release(start, static_cast<std::size_t>(guard_before(1) - start));
    be_placed();
    return true;
  }
  void be_placed() {
    reservation_.store_relaxed(Reservation::kNone);
    // What is opened from here on has no advice: a filter may not know the call.
    has_preferred_.store_relaxed(false);
    has_forbidden_.store_relaxed(false);
    limited_ = true;
    step_ = 1;
  }

  // (Rounds of other threads only make it ask more often.)
  bool is_locked_in_round() {
    Asked answer = locked_.load_relaxed();
    if (answer == kNotAsked) {
      // (Where no page more is granted a new mapping in the place of an old one may be.)
      const bool locked = os::new_page() == os::NewPage::kLocked || is_kept_locked();
      answer = locked ? kLocked : kNotLocked;
      locked_.store_relaxed(answer);
    }
    return answer == kLocked;
  }

  char* guard_before(std::size_t slice) const {
    return static_cast<char*>(address(slice)) - os::page_size();
  }
  // Reserves the pages before and at the beginning of what is opened next. (Behind
  // a foreign mapping, too.)
  os::Placed place_guards() {
    if (guarded_) return kYes;
    const os::Placed placed = Calls::reserve_at(guard_before(opened()), 2 * os::page_size());
    guarded_ = placed == kYes;
    return placed;
  }

  os::Placed try_open(std::size_t slices) {
    char* start = static_cast<char*>(address(opened()));
    const std::size_t bytes = slices * kSlice;
    if (const os::Placed placed = place_guards(); placed != kYes) return placed;
    if (!fits_the_machine<Calls>(bytes, [this] { return is_locked(); })) return kRefused;
    if (!reserved()) {
      // The guard at the start becomes memory; the last page that is mapped becomes the new guard.
      char* behind = start + os::page_size();
      const os::Placed placed = Calls::reserve_at(behind, bytes);
      if (placed != kYes) return placed;
      if (!Calls::open(start, bytes) && !open_as_before(start, bytes)) {
        Calls::release(behind, bytes);
        return kRefused;
      }
      advise(start, bytes);
    } else if (!Calls::open(start, bytes)) {
      return kRefused;
    }
    opened_.store_relaxed(opened() + slices);
    SPANALLOC_ASSERT(opened() >= 1 && opened() <= capacity_);
    return kYes;
  }

  // Memory opened without advice, behind memory with advice, makes one more mapping, and a
  // process may have only so many. It joins what is before it if the whole of the guard's
  // mapping gets that advice, too.
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

  // Slices that are not ours. If there are more than kMostSkips pieces, the last one takes in all
  // that lies between: then destroy() leaves too much mapped, but never unmaps a foreign mapping.
  void note_skip(std::size_t first, std::size_t end) {
    Interval* const last = skips_ == 0 ? nullptr : &skip_[skips_ - 1];
    // (Where a fork's child skips them once more the note is there already, perhaps joined to the
    // one before.)
    if (last != nullptr && (last->end >= first || skips_ == PagesConfig::kMostSkips)) {
      last->end = end;
      return;
    }
    skip_[skips_] = {first, end};
    store_in_order(skips_, skips_ + 1);
  }

  bool is_skipped(std::size_t slice) const {
    for (std::size_t i = 0; i < skips_; ++i) {
      if (skip_[i].first <= slice && slice < skip_[i].end) return true;
    }
    return false;
  }

  // Whole slices in a row are released with one call; then the guards.
  template <class LeftOf>
  void release_opened(LeftOf&& left_of) {
    std::size_t first = 1;  // of the run of whole slices that ends at `slice`
    for (std::size_t slice = 1; slice <= opened(); ++slice) {
      std::size_t left = 0;
      if (slice < opened() && !is_skipped(slice)) left = left_of(slice);
      if (left == kSlice) continue;
      if (first < slice) Calls::release(address(first), (slice - first) * kSlice);
      if (left != 0) Calls::release(address(slice), left);
      first = slice + 1;
    }
    std::size_t begin = 1;
    for (std::size_t i = 0; i <= skips_; ++i) {
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
  // Of what is not open. It changes under the owner's lock.
  enum class Reservation : std::uint8_t { kNone, kAll, kBeingGivenBack };
  Atomic<Reservation> reservation_{Reservation::kNone};
  Atomic<bool> is_far_{false};     // constant after start(): reserved where we have chosen
  std::size_t claimed_bytes_ = 0;  // constant after start(); capacity_ in bytes, or a bit more
  std::size_t capacity_ = 0;       // constant after start()
  // Of what is asked for (kSystem: nothing is); constant after start()
  HugePageUse huge_page_use_ = HugePageUse::kSystem;
  // Whether any of the range has ever got such advice. Relaxed: a thread that misses
  // it is refused once more.
  Atomic<bool> has_preferred_{false};
  Atomic<bool> has_forbidden_{false};
  Atomic<std::size_t> opened_{0};
  // Of recover_in_child(), in this process and in those that it comes from.
  std::size_t questions_ = 0;
  enum Asked : std::uint8_t { kNotAsked, kNotLocked, kLocked };
  Atomic<Asked> locked_{kNotAsked};  // relaxed: it is only asked more often
  std::size_t step_ = 1;
  std::size_t refused_step_ = 0;
  bool limited_ = false;
  Atomic<std::size_t> skipped_{0};
  bool guarded_ = false;  // reserved, or guard pages stand before and at opened()
  std::size_t skips_ = 0;
  Interval skip_[PagesConfig::kMostSkips];  // slices that are not ours, ascending
};

}  // namespace spanalloc
