// Sixteen threads of a pool serve a request each, one after the other, of 16 MiB at its peak. All
// is freed, the threads wait for more.
#include <pthread.h>
#include <semaphore.h>
#include "report.h"
static sem_t done;
static pthread_barrier_t end;
static void* serve(void* unused) {
  char* block[2000];
  for (int i = 0; i < 2000; ++i) block[i] = written(KIB + chance(15 * KIB));
  for (int i = 0; i < 2000; ++i) free(block[i]);
  sem_post(&done);
  pthread_barrier_wait(&end);
  return unused;
}
int main(void) {
  pthread_t thread[16];
  sem_init(&done, 0, 0), pthread_barrier_init(&end, NULL, 17);
  for (int i = 0; i < 16; ++i) pthread_create(&thread[i], NULL, serve, NULL), sem_wait(&done);
  const double held = mib();
  malloc_trim(0);
  const double trimmed = mib();
  pthread_barrier_wait(&end);
  for (int i = 0; i < 16; ++i) pthread_join(thread[i], NULL);
  return verdict(held < 64, "%.0f MiB, trimmed %.0f", held, trimmed);
}
