// The kernel's calls as arenas and tables use them, and how those find places in the address space.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "os/os.hpp"
#include "pages/config.hpp"

namespace spanalloc {

/// Tests replace this to make calls fail.
struct PageCalls {
  static constexpr auto& reserve = os::reserve;
  static constexpr auto& open = os::open;
  static constexpr auto& open_at = os::open_at;
  static constexpr auto& close = os::close;
  static constexpr auto& reserve_at = os::reserve_at;
  static constexpr auto& release = os::release;
  static constexpr auto& purge = os::purge;
  static constexpr auto& renew = os::renew;
  static constexpr auto& remap = os::remap;
  static constexpr auto& prefer_huge_pages = os::prefer_huge_pages;
  static constexpr auto& forbid_huge_pages = os::forbid_huge_pages;
  static constexpr auto& can_be_read = os::can_be_read;
  static constexpr auto& resident_pages = os::resident_pages;
  static constexpr auto& would_grant = os::would_grant;
};

/// Whether the kernel would charge so many bytes more. A mapping that is not charged is granted at
/// any size, and grows to any: so whoever opens or grows one asks first. Not while new memory is
/// locked: then the question itself would take the memory.
template <class Calls, class IsLocked>
bool fits_the_machine(std::size_t bytes, IsLocked&& is_locked) {
  return bytes < PagesConfig::kAskFirst || is_locked() || Calls::would_grant(bytes);
}

/// [first, end), in what unit its user says.
struct Interval {
  std::size_t first = 0;
  std::size_t end = 0;
};

/// kYes: nothing is mapped in the page before `address` and the one at it. The answer may soon be
/// old.
template <class Calls>
os::Placed could_be_placed(std::uintptr_t address) {
  const std::size_t page = os::page_size();
  void* const start = pointer_to(address - page);
  const os::Placed placed = Calls::reserve_at(start, 2 * page);
  // If the kernel does not take it back it stands in the way itself.
  if (placed == os::Placed::kYes && !Calls::release(start, 2 * page)) return os::Placed::kTaken;
  return placed;
}

/// A random multiple of `alignment` with nothing mapped around it, in the first window that has
/// one. (Windows are addresses.) The kernel and the loader place nothing there by themselves
/// (anything further on is skipped later). 0: none.
template <class Calls, std::size_t kCount>
SPANALLOC_COLD std::uintptr_t random_place(const Interval (&windows)[kCount],
                                           std::size_t alignment) {
#ifdef __SANITIZE_THREAD__
  return 0;  // thread sanitizer ends a process that maps where it has put nothing
#endif
  for (const Interval& window : windows) {
    for (unsigned attempt = 0; attempt < PagesConfig::kDraws; ++attempt) {
      const std::uintptr_t drawn =
          window.first + os::random_place_bits() % (window.end - window.first);
      const std::uintptr_t place = align_down(drawn, alignment);
      if (place >= window.first && could_be_placed<Calls>(place) == os::Placed::kYes) return place;
    }
  }
  return 0;
}

/// Something is mapped at `start`: how many steps of `step` bytes it is to a place with
/// nothing around it, no more than what is mapped covers, rounded up. Fewer than `most`; 0: none,
/// or the kernel refuses, which tells nothing of what is mapped.
template <class Calls>
SPANALLOC_COLD std::size_t steps_in_the_way(std::uintptr_t start, std::size_t step,
                                            std::size_t most) {
  std::size_t taken = 0;
  std::size_t free = 1;
  if (most < 2) return 0;
  for (;;) {
    const os::Placed placed = could_be_placed<Calls>(start + free * step);
    if (placed == os::Placed::kYes) break;
    if (placed == os::Placed::kRefused || free == most - 1) return 0;
    taken = free;
    free = min_of(free * 2, most - 1);
  }
  while (free - taken > 1) {
    const std::size_t middle = taken + (free - taken) / 2;
    const os::Placed placed = could_be_placed<Calls>(start + middle * step);
    if (placed == os::Placed::kRefused) return 0;
    (placed == os::Placed::kYes ? free : taken) = middle;
  }
  return free;
}

}  // namespace spanalloc
