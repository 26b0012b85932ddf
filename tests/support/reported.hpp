// What a program does that goes on after a misuse was reported: its SIGABRT handler jumps out.
#pragma once

#include <setjmp.h>
#include <signal.h>

namespace spanalloc::test {

inline thread_local sigjmp_buf out_of_report;

/// True: f, which misuses a heap, has been reported, and was left in the middle. The next report is
/// the process's end. (f has nothing that must be destroyed.) For processes of a test's own.
template <class F>
[[gnu::noinline]] bool is_reported(F&& f) {
  struct sigaction action{};
  action.sa_handler = [](int) { siglongjmp(out_of_report, 1); };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGABRT, &action, nullptr);
  if (sigsetjmp(out_of_report, 1) != 0) return true;
  f();
  return false;
}

}  // namespace spanalloc::test
