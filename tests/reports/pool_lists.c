// A pool of four makes 400,000 objects of 121 bytes, the main thread drops them all; twenty times.
#include <pthread.h>
#include "report.h"
enum { EACH = 100000, ROUNDS = 20 };
static pthread_barrier_t turn;
static void* list[4][EACH];
static void* work(void* row) {
  for (int round = 0; round < ROUNDS; ++round) {
    pthread_barrier_wait(&turn);
    for (int i = 0; i < EACH; ++i) ((void**)row)[i] = written(121);
    pthread_barrier_wait(&turn);
  }
  return NULL;
}
int main(void) {
  pthread_t thread[4];
  double after[ROUNDS];
  pthread_barrier_init(&turn, NULL, 5);
  for (int i = 0; i < 4; ++i) pthread_create(&thread[i], NULL, work, list[i]);
  for (int round = 0; round < ROUNDS; ++round) {
    pthread_barrier_wait(&turn), pthread_barrier_wait(&turn);
    for (int i = 0; i < 4 * EACH; ++i) free(list[i % 4][i / 4]);
    after[round] = mib();
  }
  for (int i = 0; i < 4; ++i) pthread_join(thread[i], NULL);
  return verdict(after[19] < after[4] + 8, "%.0f MiB after 5, %.0f after 20", after[4], after[19]);
}
