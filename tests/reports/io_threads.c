// Eight threads make the values of a store, 100 MiB; the main thread deletes seven of eight at
// random, then the store is filled again with values of another size.
#include <pthread.h>
#include "report.h"
enum { N = 160000 };
static char* value[N];
static size_t least, most;
static void* fill(void* argument) {
  for (long i = (long)argument; i < N; i += 8)
    if (!value[i]) value[i] = written(least + chance((unsigned)(most - least)));
  return NULL;
}
static void threads(size_t from, size_t to) {
  pthread_t thread[8];
  least = from, most = to;
  for (long t = 0; t < 8; ++t) pthread_create(&thread[t], NULL, fill, (void*)t);
  for (int t = 0; t < 8; ++t) pthread_join(thread[t], NULL);
}
int main(void) {
  threads(16, 1300);
  const double full = mib();
  for (int i = 0; i < N; ++i)
    if (chance(8)) free(value[i]), value[i] = NULL;
  const double deleted = mib();
  threads(300, 1010);
  return verdict(mib() < 1.4 * full, "%.0f MiB, %.0f with 13 live, %.0f full again", full, deleted,
                 mib());
}
