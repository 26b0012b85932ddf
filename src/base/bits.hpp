// Integer helpers used everywhere; all constexpr, none allocates.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace spanalloc {

inline constexpr std::size_t kKiB = 1024;
inline constexpr std::size_t kMiB = 1024 * kKiB;
inline constexpr std::size_t kGiB = 1024 * kMiB;
inline constexpr std::size_t kTiB = 1024 * kGiB;
inline constexpr std::size_t kCacheLine = 64;

constexpr bool is_power_of_two(std::size_t x) {
  return x != 0 && (x & (x - 1)) == 0;
}

/// Rounds up to a power-of-two multiple. The caller has excluded overflow (x <=
/// SIZE_MAX - alignment + 1).
constexpr std::size_t align_up(std::size_t x, std::size_t alignment) {
  return (x + alignment - 1) & ~(alignment - 1);
}
constexpr std::size_t align_down(std::size_t x, std::size_t alignment) {
  return x & ~(alignment - 1);
}

/// floor(log2(x)) for x > 0.
constexpr unsigned log2_floor(std::size_t x) {
  return 63u - static_cast<unsigned>(std::countl_zero(x));
}
/// ceil(log2(x)) for x > 0.
constexpr unsigned log2_ceil(std::size_t x) {
  return x <= 1 ? 0 : log2_floor(x - 1) + 1;
}

constexpr std::size_t min_of(std::size_t a, std::size_t b) {
  return a < b ? a : b;
}
constexpr std::size_t max_of(std::size_t a, std::size_t b) {
  return a < b ? b : a;
}

inline std::uintptr_t address_of(const void* p) {
  return reinterpret_cast<std::uintptr_t>(p);
}
/// A number that mostly differs between threads running at once, to spread them over slots where
/// any slot will do: stacks lie at least a page apart, the product mixes the bits above that.
/// Needs no thread identity.
inline unsigned spread_by_stack() {
  return static_cast<unsigned>(
      ((address_of(__builtin_frame_address(0)) >> 12) * 0x9E3779B97F4A7C15u) >> 40);
}
template <class T = void>
inline T* pointer_to(std::uintptr_t a) {
  return reinterpret_cast<T*>(
      a);  // NOLINT(performance-no-int-to-ptr): addresses are this program's trade
}

}  // namespace spanalloc
