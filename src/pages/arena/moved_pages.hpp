// Pages that leave the arena: they become a mapping of their own, at an address that the kernel
// chooses, and fresh memory is mapped in their old place.
//
// Between the two steps nothing is mapped there, and the kernel may give the place to anybody: the
// range counts as lost from before the move until the kernel has confirmed that the place is ours
// again.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "os/os.hpp"
#include "pages/arena/decommitted_ranges.hpp"
#include "pages/coalescing/mapper.hpp"
#include "pages/config.hpp"
#include "pages/page_calls.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc {

/// What a move has done. `to`: where the pages are now; nullptr: refused, nothing has changed.
/// `left_a_range`: the range still belongs to the caller, who has to give it back, and its bytes
/// are zero; otherwise the range is nobody's already.
struct MovedOut {
  void* to = nullptr;
  bool left_a_range = false;
};

template <class Slices>
class MovedPages {
  using Block = coalescing::Block;
  using Calls = typename Slices::Calls;
  using enum os::Placed;

 public:
  constexpr MovedPages(Slices& slices, DecommittedRanges<Slices>& decommitted)
      : slices_(slices), decommitted_(decommitted) {}

  /// See CoalescingArena::move_out(). `keeps_place`: a fresh range is wanted in the old place.
  template <class Moved>
  SPANALLOC_COLD MovedOut move_out(Block block, std::size_t bytes, bool keeps_place, Moved moved) {
    void* const to = move_pages(block, bytes);
    if (to == nullptr) return {};
    slices_.forget_advice(block);
    os::Placed placed = kRefused;
    if (slices_.range.reserved() || keeps_place) placed = slices_.range.map_anew(block);
    // Behind that: until then the kernel may give the place to another thread. And while the block
    // is lost: nobody else can take it.
    moved(to);
    if (placed == kYes) slices_.unmark_lost(block);
    if (placed == kRefused) note_unmapped(block);
    return {to, placed == kYes};
  }

  bool has_unmapped() const { return unmapped_count_.load_relaxed() != 0; }
  /// Under the lock. True: some of the unmapped blocks are mapped now, and free.
  SPANALLOC_COLD bool map_unmapped() {
    const unsigned count = unmapped_count_.load_relaxed();
    unsigned left = 0;
    bool some = false;
    for (unsigned i = 0; i < count; ++i) {
      const Block block = unmapped_[i];
      const os::Placed placed = slices_.range.map_anew(block);
      if (placed == kRefused) unmapped_[left++] = block;
      if (placed != kYes) continue;  // kTaken: a foreign mapping stands there
      slices_.unmark_lost(block);
      slices_.free(block.first, true);
      some = true;
    }
    unmapped_count_.store_relaxed(left);
    return some;
  }

 private:
  // Moves the pages of a block in use out of the arena; the block counts as lost then. nullptr:
  // refused. (Holds no lock: a function that watches mremap may wait for other threads that
  // allocate.)
  void* move_pages(Block block, std::size_t bytes) {
    // The kernel could grow the mapping in place, over decommitted or lost slices behind it. Then
    // it would be hard to tell whose those addresses are.
    const Block behind{block.end(), 1};
    if (block.end() < slices_.manager.limit() &&
        (decommitted_.contains(behind) || slices_.is_lost(behind)))
      return nullptr;
    void* const from = slices_.range.address(block.first);
    const std::size_t old = block.size * Slices::kSlice;
    const auto is_locked = [this] { return slices_.range.is_locked(); };
    if (!fits_the_machine<Calls>(bytes - old, is_locked)) return nullptr;
    const std::uintptr_t end = address_of(from) + old;
    {
      LockGuard guard(slices_.grow_lock);
      if (!decommitted_.grown.begin({end, end + bytes - old})) return nullptr;
    }
    // Before the move: a fork's child must neither use the range nor give it back.
    slices_.mark_lost(block);
    void* const to = Calls::remap(from, old, bytes);
    // The kernel may have grown it in place: over slices decommitted since, or at the arena's end.
    const bool has_grown = to == from && !Calls::release(pointer_to(end), bytes - old);
    {
      LockGuard guard(slices_.grow_lock);
      decommitted_.grown.complete(end, has_grown);
    }
    if (to != nullptr && to != from) return to;
    slices_.unmark_lost(block);
    return nullptr;
  }
  // Makes a lost block where nothing is mapped decommitted, which is as good. In this order: a
  // fork's child that finds it in both sets takes it for lost. It stays lost in a reserved range
  // (decommitted slices are mapped there) and where no more ranges may be decommitted, until it is
  // mapped; for good, if kMostUnmapped blocks wait for that already.
  SPANALLOC_COLD void note_unmapped(Block block) {
    LockGuard guard(slices_.grow_lock);
    if (!slices_.range.reserved() && decommitted_.add_unmapped(block))
      return slices_.unmark_lost(block);
    const unsigned count = unmapped_count_.load_relaxed();
    if (count == PagesConfig::kMostUnmapped) return;
    unmapped_[count] = block;
    unmapped_count_.store_relaxed(count + 1);
  }

  Slices& slices_;
  DecommittedRanges<Slices>& decommitted_;
  Atomic<unsigned> unmapped_count_{0};  // relaxed: a hint for readers without the lock
  Block unmapped_[PagesConfig::kMostUnmapped];
};

}  // namespace spanalloc
