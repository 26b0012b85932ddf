// Eight threads allocate 16 MiB each and wait; the main thread frees it all,
// then needs as much itself.
#include <pthread.h>
#include "report.h"
enum { EACH = 16000 };
static pthread_barrier_t filled, end;
static char* block[8][EACH];
static void* fill(void* row) {
  for (int i = 0; i < EACH; ++i) ((char**)row)[i] = written(256 + chance(1500));
  pthread_barrier_wait(&filled), pthread_barrier_wait(&end);
  return NULL;
}
int main(void) {
  pthread_t thread[8];
  pthread_barrier_init(&filled, NULL, 9), pthread_barrier_init(&end, NULL, 9);
  for (int t = 0; t < 8; ++t) pthread_create(&thread[t], NULL, fill, block[t]);
  pthread_barrier_wait(&filled);
  for (int i = 0; i < 8 * EACH; ++i) free(block[i % 8][i / 8]);
  const double freed = mib();
  for (int t = 0; t < 8; ++t)
    for (int i = 0; i < EACH; ++i) block[t][i] = written(256 + chance(1500));
  const double again = mib();
  pthread_barrier_wait(&end);
  for (int t = 0; t < 8; ++t) pthread_join(thread[t], NULL);
  return verdict(again < 200, "%.0f MiB, %.0f with 128 live", freed, again);
}
