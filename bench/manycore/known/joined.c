/* Thread 0 starts `operations` threads, one after the other, each of which computes 20000 steps,
 * 40000 cycles, and joins it: it wakes when the other one ends. */
#include "known.h"
static void* worker(void* unused) {
  compute(20000);
  return unused;
}
static void body(int number) {
  for (long i = 0; number == 0 && i < operations; i++) {
    pthread_t other;
    if (pthread_create(&other, NULL, worker, NULL) != 0) exit(1);
    pthread_join(other, NULL);
  }
}
