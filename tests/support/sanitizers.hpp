// Which sanitizer this test runs under, for the few tests that cannot.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define SPANALLOC_TEST_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SPANALLOC_TEST_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define SPANALLOC_TEST_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SPANALLOC_TEST_TSAN 1
#endif
#endif

namespace spanalloc::test {

#ifdef SPANALLOC_TEST_ASAN
inline constexpr bool kUnderAsan = true;
#else
inline constexpr bool kUnderAsan = false;
#endif
#ifdef SPANALLOC_TEST_TSAN
inline constexpr bool kUnderTsan = true;
#else
inline constexpr bool kUnderTsan = false;
#endif

}  // namespace spanalloc::test
