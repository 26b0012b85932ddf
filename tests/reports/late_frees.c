// A program frees its data after main, in an exit handler. The instructions of 1,000 frees
// there, and before, one by one.
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include "report.h"
static char* block[30000];
static void drop(int from, int to) {
  raise(SIGSTOP);
  for (int i = from; i < to; ++i) free(block[i * 7919 % 30000]);
  raise(SIGSTOP);
}
static void late(void) {
  drop(10000, 11000);
}
static long steps(pid_t child) {
  int status;
  long count = 0;
  for (int stops = 0; stops < 2;) {
    ptrace(stops ? PTRACE_SINGLESTEP : PTRACE_CONT, child, 0, 0), waitpid(child, &status, 0);
    if (!WIFSTOPPED(status)) return -1;
    if (WSTOPSIG(status) != SIGSTOP && WSTOPSIG(status) != SIGTRAP) return -WSTOPSIG(status);
    WSTOPSIG(status) == SIGSTOP ? ++stops : ++count;
  }
  return count;
}
int main(void) {
  const pid_t child = fork();
  if (child == 0) {
    ptrace(PTRACE_TRACEME, 0, 0, 0), atexit(late), raise(SIGSTOP);
    for (int i = 0; i < 30000; ++i) block[i] = malloc(16 + chance(500));
    drop(0, 1000);
    exit(0);
  }
  int status;
  waitpid(child, &status, 0);
  const long early = steps(child), after = steps(child);
  ptrace(PTRACE_CONT, child, 0, 0), waitpid(child, &status, 0);
  return verdict(early > 0 && after < 3 * early, "%.0f instructions a free, late %.0f", early / 1e3,
                 after / 1e3);
}
