// Runs a function in a forked child, for what would harm the test process: limits, exhaustion, crashes.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

namespace spanalloc::test {

/// The child's exit code, or 128 + the signal that ended it; -1 when fork failed. `work` returns the code.
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

}  // namespace spanalloc::test
