// Assertions: what comments and docs/concurrency.md state as invariants, said to the machine as
// well.
//
// SPANALLOC_ASSERT(condition) costs nothing in a release build, where the condition is not even
// evaluated. In debug, sanitizer, model and stress builds a condition that does not hold ends the
// process (in a model: the execution, as a failure) with its text and place. tests/unit/assertions
// plants a violation of each invariant that has a name and sees it fire.
//
// A condition must be free of side effects and true whenever it is reached, also in a fork's child
// that has not been put right yet: where that needs an exception the condition says so.
#pragma once

#include "base/compiler.hpp"

#ifndef SPANALLOC_ASSERTIONS
#define SPANALLOC_ASSERTIONS 0
#endif

namespace spanalloc {

/// Whether they are checked: for what only they read.
inline constexpr bool kAssertions = SPANALLOC_ASSERTIONS != 0;

/// Says which assertion has failed, and ends the process.
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);

}  // namespace spanalloc

#if SPANALLOC_ASSERTIONS
#define SPANALLOC_ASSERT(...)    \
  (SPANALLOC_LIKELY(__VA_ARGS__) \
       ? static_cast<void>(0)    \
       : ::spanalloc::assertion_failed(#__VA_ARGS__, __FILE__, __LINE__))
#else
#define SPANALLOC_ASSERT(...) static_cast<void>(sizeof(static_cast<bool>(__VA_ARGS__)))
#endif
