// Tests in a process of their own: limits, locks, a heap that has not started yet.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "sanitizers.hpp"

namespace spanalloc::test {

/// The end of a death test's child: GoogleTest shows what it writes to stderr, but no failures.
[[noreturn]] inline void tell_and_exit() {
  const testing::TestResult& result = *testing::UnitTest::GetInstance()->current_test_info()->result();
  for (int i = 0; i < result.total_part_count(); ++i) {
    const testing::TestPartResult& part = result.GetTestPartResult(i);
    if (part.failed()) std::fprintf(stderr, "line %d: %s\n", part.line_number(), part.message());
  }
  std::_Exit(testing::Test::HasFailure() ? 1 : 0);
}

/// f() in a child of this process.
template <class F>
void in_child(F f) {
  EXPECT_EXIT(
      {
        f();
        tell_and_exit();
      },
      testing::ExitedWithCode(0), "");
}

/// f() in a process that has done nothing but start up to here.
template <class F>
void in_fresh_process(F f) {
  // An emulated program cannot start itself again: there it is a process that has run this test's beginning.
  if (kEmulated) return in_child(f);
  const std::string style = GTEST_FLAG_GET(death_test_style);
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  in_child(f);
  GTEST_FLAG_SET(death_test_style, style);
}

}  // namespace spanalloc::test
