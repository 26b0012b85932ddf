// What is said to the compiler beyond C++: attributes, which way a branch mostly goes, and single
// instructions that it makes of no C++.
#pragma once

#include <cstdint>

#define SPANALLOC_LIKELY(x) __builtin_expect(!!(x), 1)
#define SPANALLOC_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define SPANALLOC_COLD [[gnu::noinline, gnu::cold]]
#define SPANALLOC_INLINE [[gnu::always_inline]] inline
// The library must load by dlopen and its thread-local reads must be one instruction: initial-exec.
// (Not for AddressSanitizer's builds, whose programs are linked with this code: GNU ld makes an
// "lea" of the "add" that computes such an address, and a check for null that GCC bases on the
// add's flags then fails at random.)
#ifdef __SANITIZE_ADDRESS__
#define SPANALLOC_TLS
#else
#define SPANALLOC_TLS [[gnu::tls_model("initial-exec")]]
#endif

namespace spanalloc {

/// A build for thread sanitizer. That sees no access of an assembler's instruction, and takes a
/// plain or volatile one for a race with others' atomic ones. So where one of these stands for an
/// atomic operation, such a build has that operation. All else is the code that ships.
#ifdef __has_feature
#define SPANALLOC_HAS_FEATURE(x) __has_feature(x)
#else
#define SPANALLOC_HAS_FEATURE(x) 0
#endif
#if defined(__SANITIZE_THREAD__) || SPANALLOC_HAS_FEATURE(thread_sanitizer)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

/// Asks for a cache line as a store would. Where the machine has no such
/// instruction nothing happens.
[[gnu::always_inline]] inline void prefetch_to_write(void* p) {
#if defined(__x86_64__)
  // The compiler's builtin would ask for reading, as the oldest machines have nothing else; those
  // execute this as nothing.
  asm volatile("prefetchw %0" : : "m"(*static_cast<char*>(p)));
#else
  __builtin_prefetch(p, 1);
#endif
}

/// a ^ b, and whether that is 0: by one instruction where the machine has one for both. (Compilers
/// see through the exclusive or, and compare first.)
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

/// Has the compiler keep a function's coming result where it is returned, instead of
/// moving it there at the end.
template <class T>
[[gnu::always_inline]] inline void keep_in_result_register(T*& result) {
#if defined(__x86_64__)
  asm("" : "+a"(result));
#else
  asm("" : "+r"(result));
#endif
}

}  // namespace spanalloc
