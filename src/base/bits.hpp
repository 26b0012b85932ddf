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

/// Rounds up to a power-of-two multiple. The caller has excluded overflow (x <= SIZE_MAX - alignment + 1).
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
/// A number that mostly differs between threads running at once, to spread them over slots where any slot
/// will do: stacks lie at least a page apart, the product mixes the bits above that. Needs no thread
/// identity.
inline unsigned spread_by_stack() {
  return static_cast<unsigned>(((address_of(__builtin_frame_address(0)) >> 12) * 0x9E3779B97F4A7C15u) >> 40);
}
template <class T = void>
inline T* pointer_to(std::uintptr_t a) {
  return reinterpret_cast<T*>(a);  // NOLINT(performance-no-int-to-ptr): addresses are this program's trade
}

/// Asks for a cache line as a store would. Where the machine has no such instruction nothing happens.
[[gnu::always_inline]] inline void prefetch_to_write(void* p) {
#if defined(__x86_64__)
  // The compiler's builtin would ask for reading, as the oldest machines have nothing else; those execute
  // this as nothing.
  asm volatile("prefetchw %0" : : "m"(*static_cast<char*>(p)));
#else
  __builtin_prefetch(p, 1);
#endif
}

/// a ^ b, and whether that is 0: by one instruction where the machine has one for both. (Compilers see
/// through the exclusive or, and compare first.)
struct Difference {
  std::uint64_t bits;
  bool none;
};
[[gnu::always_inline]] inline Difference difference(std::uint64_t a, std::uint64_t b) {
#if defined(__x86_64__)
  bool none;
  asm("xor %2, %0" : "+r"(a), "=@ccz"(none) : "rm"(b));
  return {a, none};
#else
  return {a ^ b, a == b};
#endif
}

/// Has the compiler forget what it knows of a value: it takes it as it is.
template <class T>
[[gnu::always_inline]] inline T opaque(T value) {
  asm("" : "+r"(value));
  return value;
}

/// Has the compiler keep a function's coming result where it is returned, instead of moving it there at the
/// end.
template <class T>
[[gnu::always_inline]] inline void keep_in_result_register(T*& result) {
#if defined(__x86_64__)
  asm("" : "+a"(result));
#else
  asm("" : "+r"(result));
#endif
}

}  // namespace spanalloc

#define SPANALLOC_LIKELY(x) __builtin_expect(!!(x), 1)
#define SPANALLOC_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define SPANALLOC_COLD [[gnu::noinline, gnu::cold]]
#define SPANALLOC_INLINE [[gnu::always_inline]] inline
// The library must load by dlopen and its thread-local reads must be one instruction: initial-exec. (Not for
// AddressSanitizer's builds, whose programs are linked with this code: GNU ld makes an "lea" of the "add"
// that computes such an address, and a check for null that GCC bases on the add's flags then fails at
// random.)
#ifdef __SANITIZE_ADDRESS__
#define SPANALLOC_TLS
#else
#define SPANALLOC_TLS [[gnu::tls_model("initial-exec")]]
#endif
