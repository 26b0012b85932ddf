// From an address to the target of its span, for the spans of one thread: what makes every free of one's own
// block one short path, wherever the block lies.
//
// An entry for each value of address bits 16 to 31: that is, one for each slice of 4 GiB, and those that
// are 4 GiB apart share one. So an entry is a guess, which the target's test of the address decides. Behind
// an entry that was never set, or cleared, is the map's own target, which no address passes.
//
// Who writes what: the map's thread sets entries, for spans that it owns. Whoever takes a span from the
// thread clears the entry before anybody else can own the span: the thread itself, or another one that has
// claimed the empty span, by a compare-and-swap that leaves an entry alone that leads elsewhere by now. A
// claimed span has no block out, so no correct free of the thread's can be looking at the entry.
//
// It is address space, zero until written: a page of it serves 32 MiB of spans.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "engines/standard/free_target.hpp"

namespace spanalloc::standard {

template <std::size_t kEntries>
struct ThreadMapOf {
  static constexpr unsigned kSliceBits = 16;

  /// Offset of the target from `none`; 0: none. (First: so the short path adds nothing to an index.)
  Atomic<std::uint64_t> entries[kEntries];
  alignas(kCacheLine) FreeTarget none;  ///< stays zero

  Atomic<std::uint64_t>& entry(std::uintptr_t a) {
    return entries[(static_cast<std::uint32_t>(a) >> kSliceBits) % kEntries];
  }
  std::uint64_t offset_of(const FreeTarget& target) const { return address_of(&target) - address_of(&none); }

  /// The map's thread. Relaxed, here and below: who follows an entry owns what it leads to, or finds that
  /// out.
  void set(std::uintptr_t a, const FreeTarget& target) { entry(a).store_relaxed(offset_of(target)); }
  /// Who has the span.
  void clear(std::uintptr_t a, const FreeTarget& target) {
    std::uint64_t offset = offset_of(target);
    if (entry(a).load_relaxed() == offset) entry(a).compare_exchange_strong_acq_rel(offset, 0);
  }
};
using ThreadMap = ThreadMapOf<65536>;
static_assert(offsetof(ThreadMap, entries) == 0);

/// A map that leads nowhere: of a thread that has none of its own. Never written.
inline constinit ThreadMap kNoMap{};

/// To the target that a map has for an address. On x86-64 each access adds map and offset in its operand: if
/// the compiler saw that it is always the same sum, it would compute it first, one instruction more.
class FreeTargetPointer {
 public:
  SPANALLOC_INLINE FreeTargetPointer(ThreadMap& map, std::uintptr_t a)
      : map_(&map), offset_(map.entry(a).load_relaxed()) {}
  SPANALLOC_INLINE FreeTarget* operator->() {
#if defined(__x86_64__)
    offset_ = opaque(offset_);
#endif
    return reinterpret_cast<FreeTarget*>(reinterpret_cast<char*>(map_) +
                                         (offset_ + offsetof(ThreadMap, none)));
  }

 private:
  ThreadMap* map_;
  std::uint64_t offset_;
};

}  // namespace spanalloc::standard
