// A thread's map: it leads from an address to the free target of the span that the address
// lies in, for the spans of one thread. So every free of the thread's own blocks is one short
// path, wherever they lie; and so is the question how large one of them is (resize.hpp).
//
// There is an entry for each value of the address bits 16 to 31: one for each slice of 4 GiB;
// slices that are 4 GiB apart share one. So an entry is a guess, and the target's test of the
// address decides. An entry that was never set, or was cleared, leads to the map's own target
// `none`, which no address passes.
//
// The map's thread sets entries, for its own spans and remote batches. When a span leaves it, the
// entry is cleared before anybody else can own the span: by the thread itself, or by the thread
// that has claimed the empty span. They clear it by a compare-and-swap, which leaves an entry alone
// that leads elsewhere by now. No block of a claimed span is out, so no correct free or question of
// the thread's can be looking at the entry.
//
// A map is address space that is zero until it is written: a page of it serves 32 MiB of spans.
#pragma once

#include "standard/free_target.hpp"

namespace spanalloc::standard {

template <std::size_t kEntries>
struct ThreadMapOf {
  static constexpr unsigned kSliceBits = 16;

  /// Offset of the target from `none`; 0: none. (First: so the short path adds nothing to an
  /// index.)
  Atomic<std::uint64_t> entries[kEntries];
  alignas(kCacheLine) FreeTarget none;  ///< stays zero

  Atomic<std::uint64_t>& entry(std::uintptr_t a) {
    return entries[(static_cast<std::uint32_t>(a) >> kSliceBits) % kEntries];
  }
  std::uint64_t offset_of(const FreeTarget& target) const {
    return address_of(&target) - address_of(&none);
  }

  /// Called by the map's thread. Relaxed, here and below: a thread that follows an entry owns the
  /// span that it leads to, or finds out that it does not.
  void set(std::uintptr_t a, const FreeTarget& target) {
    entry(a).store_relaxed(offset_of(target));
  }
  /// Called by the thread that has the span.
  void clear(std::uintptr_t a, const FreeTarget& target) {
    std::uint64_t offset = offset_of(target);
    if (entry(a).load_relaxed() == offset) entry(a).compare_exchange_strong_acq_rel(offset, 0);
  }
};
using ThreadMap = ThreadMapOf<65536>;
static_assert(offsetof(ThreadMap, entries) == 0);

/// A map that leads nowhere, for a thread that has none of its own. Never written.
inline constinit ThreadMap kNoMap{};

/// Leads to the target that a map has for an address. On x86-64 each access adds map and
/// offset in its operand; without opaque() the compiler would compute the sum first,
/// with one more instruction.
class FreeTargetPointer {
 public:
  SPANALLOC_INLINE FreeTargetPointer(ThreadMap& map, std::uintptr_t a)
      : map_(&map), offset_(map.entry(a).load_relaxed()) {}
  SPANALLOC_INLINE FreeTarget* operator->() {
#if defined(__x86_64__)
    offset_ = opaque(offset_);
#endif
    return get();
  }
  SPANALLOC_INLINE FreeTarget* get() const {
    return reinterpret_cast<FreeTarget*>(reinterpret_cast<char*>(map_) +
                                         (offset_ + offsetof(ThreadMap, none)));
  }

 private:
  ThreadMap* map_;
  std::uint64_t offset_;
};

}  // namespace spanalloc::standard
