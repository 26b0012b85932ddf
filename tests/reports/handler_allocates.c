// A profiler's signal handler allocates. The signal comes in the middle of malloc and
// free: at every 61st instruction of 600 calls, one handler at a time. POSIX forbids
// it; how far does it get?
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include "report.h"
static volatile int inside, handled;
static void handle(int number) {
  inside = number, free(malloc(8176)), free(malloc(48)), ++handled, inside = 0;
}
static void work(void) {
  char* block[50] = {0};
  for (int i = 0; i < 300; ++i) free(block[i % 50]), block[i % 50] = malloc(20 + chance(9000));
}
int main(void) {
  const pid_t child = fork();
  int status = 0;
  if (child == 0) {
    signal(SIGUSR1, handle), ptrace(PTRACE_TRACEME, 0, 0, 0), raise(SIGSTOP), work(),
        raise(SIGSTOP), _exit(0);
  }
  waitpid(child, &status, 0);
  long steps = 0, signals = 0, since = 0;
  for (ptrace(PTRACE_SINGLESTEP, child, 0, 0);; ++steps) {
    for (long spins = 0; waitpid(child, &status, WNOHANG) == 0;)
      if (++spins == 3000000)
        return kill(child, SIGKILL), verdict(0, "waits for ever at handler %ld", signals);
    if (!WIFSTOPPED(status) || (WSTOPSIG(status) != SIGTRAP && WSTOPSIG(status) != SIGUSR1)) break;
    const int busy = (int)ptrace(PTRACE_PEEKDATA, child, (void*)&inside, 0);
    since = busy ? since + 1 : 0;
    if (since > 300000)
      return kill(child, SIGKILL), verdict(0, "spins for ever at handler %ld", signals);
    const int now = !busy && steps % 61 == 60;
    signals += now;
    ptrace(PTRACE_SINGLESTEP, child, 0, now ? SIGUSR1 : 0);
  }
  kill(child, SIGKILL);
  return verdict(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP, "%ld handlers, then %s",
                 signals, WIFSTOPPED(status) ? strsignal(WSTOPSIG(status)) : "the end");
}
