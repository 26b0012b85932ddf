// The kernel's calls as arenas and tables use them, and how those find places in the address space.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "os/os.hpp"

namespace spanalloc {

/// Tests replace this to make calls fail.
struct PageCalls {
  static void* reserve(std::size_t bytes, std::size_t alignment) {
    return os::reserve(bytes, alignment);
  }
  static bool open(void* address, std::size_t bytes) { return os::open(address, bytes); }
  static os::Placed open_at(void* address, std::size_t bytes) {
    return os::open_at(address, bytes);
  }
  static bool close(void* address, std::size_t bytes) { return os::close(address, bytes); }
  static os::Placed reserve_at(void* address, std::size_t bytes) {
    return os::reserve_at(address, bytes);
  }
  static bool release(void* address, std::size_t bytes) { return os::release(address, bytes); }
  static bool purge(void* address, std::size_t bytes) { return os::purge(address, bytes); }
  static void* remap(void* address, std::size_t old_bytes, std::size_t new_bytes) {
    return os::remap(address, old_bytes, new_bytes);
  }
  static void prefer_huge_pages(void* address, std::size_t bytes) {
    os::prefer_huge_pages(address, bytes);
  }
  static void forbid_huge_pages(void* address, std::size_t bytes) {
    os::forbid_huge_pages(address, bytes);
  }
  static bool can_be_read(const std::uint32_t* word) { return os::can_be_read(word); }
  static std::size_t resident_pages(void* address, std::size_t bytes) {
    return os::resident_pages(address, bytes);
  }
  static bool would_grant(std::size_t bytes) { return os::would_grant(bytes); }
};

/// Addresses [first, end) that a place is drawn from.
struct PlaceWindow {
  std::uintptr_t first;
  std::uintptr_t end;
};

/// Whether nothing is mapped in the page before `address` and the one at it.
/// The answer may soon be old.
template <class Calls>
bool is_free_around(std::uintptr_t address) {
  const std::size_t page = os::page_size();
  if (Calls::reserve_at(pointer_to(address - page), 2 * page) != os::Placed::kYes) return false;
  Calls::release(pointer_to(address - page), 2 * page);
  return true;
}

/// A random multiple of `alignment` with nothing mapped around it, in the first window that has
/// one. The kernel and the loader place nothing there by themselves (anything further on is
/// skipped later). 0: none.
template <class Calls, std::size_t kCount>
SPANALLOC_COLD std::uintptr_t random_place(const PlaceWindow (&windows)[kCount],
                                           std::size_t alignment) {
#ifdef __SANITIZE_THREAD__
  return 0;  // thread sanitizer ends a process that maps where it has put nothing
#endif
  for (const PlaceWindow& window : windows) {
    for (unsigned attempt = 0; attempt < 16; ++attempt) {
      const std::uintptr_t drawn = window.first + os::random_bits() % (window.end - window.first);
      const std::uintptr_t place = align_down(drawn, alignment);
      if (place >= window.first && is_free_around<Calls>(place)) return place;
    }
  }
  return 0;
}

/// Something is mapped at `start`: how many steps of `step` bytes it is to a place with
/// nothing around it, no more than what is mapped covers, rounded up. Fewer than `most`; 0:
/// none, or no mapping is granted.
template <class Calls>
SPANALLOC_COLD std::size_t steps_in_the_way(std::uintptr_t start, std::size_t step,
                                            std::size_t most) {
  std::size_t taken = 0;
  std::size_t free = 1;
  if (most < 2) return 0;
  while (!is_free_around<Calls>(start + free * step)) {
    if (free == most - 1) return 0;
    taken = free;
    free = min_of(free * 2, most - 1);
  }
  while (free - taken > 1) {
    const std::size_t middle = taken + (free - taken) / 2;
    (is_free_around<Calls>(start + middle * step) ? free : taken) = middle;
  }
  return free;
}

}  // namespace spanalloc
