// A cache of 64 MiB, blocks of 4 to 32 KiB: eight threads replace all of it twenty times over.
#include <pthread.h>
#include "report.h"
enum { SLOTS = 3640 };
static char* slot[SLOTS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void* replace(void* unused) {
  for (int i = 0; i < 20 * SLOTS / 8; ++i) {
    char* fresh = written(4 * KIB + chance(28 * KIB));
    pthread_mutex_lock(&lock);
    char** place = &slot[chance(SLOTS)];
    char* old = *place;
    *place = fresh;
    pthread_mutex_unlock(&lock);
    free(old);
  }
  return unused;
}
int main(void) {
  pthread_t thread[8];
  for (int t = 0; t < 8; ++t) pthread_create(&thread[t], NULL, replace, NULL);
  for (int t = 0; t < 8; ++t) pthread_join(thread[t], NULL);
  double live = 0;
  for (int i = 0; i < SLOTS; ++i) live += (double)malloc_usable_size(slot[i]) / MIB;
  return verdict(mib() < 1.5 * live + 16, "%.0f MiB for %.0f live", mib(), live);
}
