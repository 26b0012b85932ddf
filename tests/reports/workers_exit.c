// Four times fifty workers at once, each loads 4 MiB and is ended; nothing lives any more.
#include <pthread.h>
#include "report.h"
static pthread_barrier_t loaded;
static void* work(void* unused) {
  char* block[400];
  for (int i = 0; i < 400; ++i) block[i] = written(100 + chance(20 * KIB));
  pthread_barrier_wait(&loaded);
  for (int i = 0; i < 400; ++i) free(block[i]);
  return unused;
}
int main(void) {
  double after[4];
  pthread_barrier_init(&loaded, NULL, 50);
  for (int round = 0; round < 4; ++round) {
    pthread_t thread[50];
    for (int i = 0; i < 50; ++i) pthread_create(&thread[i], NULL, work, NULL);
    for (int i = 0; i < 50; ++i) pthread_join(thread[i], NULL);
    after[round] = mib();
  }
  malloc_trim(0);
  return verdict(after[3] < 50, "%.0f, %.0f, %.0f MiB, trimmed %.0f", after[0], after[1], after[3],
                 mib());
}
