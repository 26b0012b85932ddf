// A program that mostly waits: 86 threads, 1,000 children, 40 MiB at its peak. How much
// address space is its own?
#include <pthread.h>
#include <sys/wait.h>
#include "report.h"
static void* work(void* unused) {
  char* block[100];
  for (int turn = 0; turn < 5; ++turn) {
    for (int i = 0; i < 100; ++i) block[i] = written(100 + chance(9000));
    for (int i = 0; i < 100; ++i) free(block[i]);
  }
  return unused;
}
int main(void) {
  pthread_t thread[86];
  pthread_attr_t small;
  pthread_attr_init(&small), pthread_attr_setstacksize(&small, 64 * KIB);
  for (int i = 0; i < 86; ++i) pthread_create(&thread[i], &small, work, NULL);
  for (int i = 0; i < 1000; ++i) {
    const pid_t child = vfork();
    if (child == 0) _exit(0);
    waitpid(child, NULL, 0);
    free(written(chance(400 * KIB)));
  }
  for (int i = 0; i < 86; ++i) pthread_join(thread[i], NULL);
  const double size = (double)kib("/proc/self/status", "VmSize:") / KIB;
  return verdict(size < 1024, "%.0f MiB of address space", size);
}
