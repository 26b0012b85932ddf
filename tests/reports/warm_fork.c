// A server loads, drops three quarters, trims (Ruby's Process.warmup) and forks; each worker
// allocates 5 MiB. What it has written to is its own copy from then on.
#include <sys/wait.h>
#include "report.h"
int main(void) {
  enum { N = 200000 };
  static char* block[N];
  for (int i = 0; i < N; ++i) block[i] = written(40 + chance(1200));
  for (int i = 0; i < N; ++i)
    if (chance(4)) free(block[i]);
  malloc_trim(0);
  double sum = 0;
  for (int worker = 0; worker < 4; ++worker) {
    double own = 0;
    int pipes[2];
    if (pipe(pipes) == 0 && fork() == 0) {
      const double before = (double)kib("/proc/self/smaps_rollup", "Private_Dirty:");
      for (int i = 0; i < 20000; ++i) written(16 + chance(496));
      own = ((double)kib("/proc/self/smaps_rollup", "Private_Dirty:") - before) / KIB;
      _exit(write(pipes[1], &own, sizeof own) < 0);
    }
    if (read(pipes[0], &own, sizeof own) == sizeof own) sum += own;
    wait(NULL);
  }
  return verdict(sum / 4 < 20, "%.1f MiB a worker for 5", sum / 4);
}
