// A second thread needs 60 MiB, frees it and is gone; then the main thread needs 60 MiB.
#include <pthread.h>
#include "report.h"
static char* block[60000];
static void fill(void) {
  for (int i = 0; i < 60000; ++i) block[i] = written(512 + chance(KIB));
}
static void* work(void* unused) {
  fill();
  for (int i = 0; i < 60000; ++i) free(block[i]);
  return unused;
}
int main(void) {
  pthread_t thread;
  pthread_create(&thread, NULL, work, NULL), pthread_join(thread, NULL);
  const double left = mib();
  fill();
  return verdict(mib() < 90, "%.0f MiB, %.0f with 60 live", left, mib());
}
