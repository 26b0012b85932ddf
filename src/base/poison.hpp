// Tells AddressSanitizer which memory the program may touch, in builds that have it: free blocks
// are poisoned behind their link word. Nothing in other builds.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define SPANALLOC_HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SPANALLOC_HAS_ASAN 1
#endif
#endif

#ifdef SPANALLOC_HAS_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace spanalloc {

#ifdef SPANALLOC_HAS_ASAN
inline constexpr bool kPoisons = true;
inline void poison(const void* p, std::size_t bytes) {
  __asan_poison_memory_region(p, bytes);
}
inline void unpoison(const void* p, std::size_t bytes) {
  __asan_unpoison_memory_region(p, bytes);
}
#else
/// To ask first where it costs something to find out how much.
inline constexpr bool kPoisons = false;
inline void poison(const void*, std::size_t) {}
inline void unpoison(const void*, std::size_t) {}
#endif

}  // namespace spanalloc
