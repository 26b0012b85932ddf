// Ten threads allocate buffers of 4 to 40 KiB, two hundred others free them, in
// turns: 1.4 MiB live at a time.
#include <pthread.h>
#include <semaphore.h>
#include "report.h"
static sem_t turn[210], back;
static char* buffer[64];
static int over;
static void* run(void* argument) {
  const long self = (long)argument;
  for (sem_wait(&turn[self]); !over; sem_post(&back), sem_wait(&turn[self]))
    for (int i = 0; i < 64; ++i)
      if (self < 10)
        buffer[i] = written(4 * KIB + chance(36 * KIB));
      else
        free(buffer[i]);
  return NULL;
}
int main(void) {
  pthread_t thread[210];
  pthread_attr_t small;
  pthread_attr_init(&small), pthread_attr_setstacksize(&small, 64 * KIB), sem_init(&back, 0, 0);
  for (long i = 0; i < 210; ++i)
    sem_init(&turn[i], 0, 0), pthread_create(&thread[i], &small, run, (void*)i);
  const double before = mib();
  for (int round = 0; round < 2000; ++round) {
    sem_post(&turn[round % 10]), sem_wait(&back);
    sem_post(&turn[10 + round % 200]), sem_wait(&back);
  }
  const double held = mib() - before;
  over = 1;
  for (int i = 0; i < 210; ++i) sem_post(&turn[i]), pthread_join(thread[i], NULL);
  return verdict(held < 100, "%.0f MiB", held);
}
