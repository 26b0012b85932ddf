// Tests in a process of their own: limits, locks, exhaustion, crashes, a heap
// that has not started yet.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "sanitizers.hpp"

namespace spanalloc::test {

/// The forked child's exit code, or 128 + the signal that ended it; -1 when fork failed.
/// `work` returns the code.
template <class Work>
int run_in_child(Work&& work) {
  const pid_t pid = fork();
  if (pid < 0) return -1;
  if (pid == 0) _exit(work());
  int status = 0;
  while (waitpid(pid, &status, 0) != pid) {
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/// A signal handler that forks: the child goes on where the signal came, and the
/// parent ends as the child does.
inline void fork_and_go_on_as_the_child(int) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(540);  // should it hang
    return;
  }
  int status = 0;
  waitpid(child, &status, 0);
  _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
}

/// The end of a death test's child: GoogleTest shows what it writes to stderr, but no failures.
[[noreturn]] inline void tell_and_exit() {
  const testing::TestResult& result =
      *testing::UnitTest::GetInstance()->current_test_info()->result();
  for (int i = 0; i < result.total_part_count(); ++i) {
    const testing::TestPartResult& part = result.GetTestPartResult(i);
    if (part.failed()) std::fprintf(stderr, "line %d: %s\n", part.line_number(), part.message());
  }
  std::_Exit(testing::Test::HasFailure() ? 1 : 0);
}

/// What a signal handler's forks are in a test with a process of its own: each child goes on with
/// what was interrupted, to the test's end; then so does the parent.
struct HandlersForks {
  static inline bool is_child = false;
  static inline unsigned forks = 0;
  static inline unsigned failed = 0;
  /// Where the handler comes. A child forks no more.
  static void fork_here() {
    if (is_child) return;
    ++forks;
    const pid_t child = fork();
    is_child = child == 0;
    int status = 0;
    if (!is_child && (waitpid(child, &status, 0) != child || status != 0)) ++failed;
  }
  /// At the test's end.
  static void expect_children_succeed() {
    if (is_child) tell_and_exit();
    EXPECT_NE(forks, 0u) << "nothing was interrupted";
    EXPECT_EQ(failed, 0u) << "of " << forks;
  }
};

/// f(), with the checks of a test, in a child of this process.
template <class F>
void in_child(F f) {
  EXPECT_EXIT((f(), tell_and_exit()), testing::ExitedWithCode(0), "");
}

/// Whether a process may lock so much of its memory. (Sanitizers only say that they do.)
inline bool may_lock(std::size_t bytes) {
  return run_in_child([bytes] {
           void* p =
               mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
           const bool locked = p != MAP_FAILED && mlock(p, bytes) == 0;
           return locked && madvise(p, bytes, MADV_DONTNEED) != 0 ? 0 : 1;
         }) == 0;
}

/// Whether a process may decide about the randomisation of its addresses: a container's filter may
/// say no.
inline bool may_change_randomisation() {
  return run_in_child([] {
           return personality(ADDR_NO_RANDOMIZE) == -1 || personality(0) == -1 ? 1 : 0;
         }) == 0;
}

/// f() in a process that has done nothing but start up to here.
template <class F>
void in_fresh_process(F f) {
  // An emulated program cannot start itself again: there it is a process that has
  // run this test's beginning.
  if (kEmulated) return in_child(f);
  const std::string style = GTEST_FLAG_GET(death_test_style);
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  in_child(f);
  GTEST_FLAG_SET(death_test_style, style);
}

}  // namespace spanalloc::test
