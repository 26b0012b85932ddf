// What this test runs under, for the few tests that cannot: a sanitizer, or qemu's user emulation.
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

#ifdef SPANALLOC_TEST_EMULATED
inline constexpr bool kEmulated = true;
#else
inline constexpr bool kEmulated = false;
#endif
// Reasons for skips, said once.
inline constexpr const char* kNoLimits = "the emulator does not enforce limits on address space";
inline constexpr const char* kNoThreadedForks =
    "the emulator does not follow forks of threaded programs";

}  // namespace spanalloc::test
