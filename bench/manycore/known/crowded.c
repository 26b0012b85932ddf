/* Thread 0 starts `operations` threads, each of which computes 20000 steps, 40000 cycles, and then
 * joins them. On a machine with a core for each they overlap; on one with a single core each waits
 * for the one before, and the first for thread 0 to sleep. */
#include "known.h"
enum { MOST = 64 };
static void* worker(void* unused) {
  compute(20000);
  return unused;
}
static void body(int number) {
  pthread_t others[MOST];
  for (long i = 0; number == 0 && i < operations && i < MOST; i++)
    if (pthread_create(&others[i], NULL, worker, NULL) != 0) exit(1);
  for (long i = 0; number == 0 && i < operations && i < MOST; i++) pthread_join(others[i], NULL);
}
