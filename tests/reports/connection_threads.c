// A database server: each connection is a new thread, needs 8 MiB for its query, and leaves
// three tiny objects behind.
#include <pthread.h>
#include "report.h"
static void* serve(void* unused) {
  char* block[900];
  for (int i = 0; i < 900; ++i) block[i] = written(33 + chance(18 * KIB));
  for (int i = 0; i < 900; ++i) free(block[i]);
  for (int i = 0; i < 3; ++i) written(33 + chance(1968));
  return unused;
}
static double run(int connections) {
  for (pthread_t thread; connections; --connections)
    pthread_create(&thread, NULL, serve, NULL), pthread_join(thread, NULL);
  return mib();
}
int main(void) {
  const double first = run(20), last = run(300);
  return verdict(last < first + 32, "%.0f MiB after 20, %.0f after 320", first, last);
}
