// A validator's stacks and heaps: 256 KiB, allocated, written to and freed by four threads, 2,000
// times each. How often is it the kernel's memory anew?
#include <pthread.h>
#include "report.h"
static void* work(void* unused) {
  for (int i = 0; i < 2000; ++i) free(written(256 * KIB));
  return unused;
}
int main(void) {
  pthread_t thread[4];
  const long before = faults();
  for (int t = 0; t < 4; ++t) pthread_create(&thread[t], NULL, work, NULL);
  for (int t = 0; t < 4; ++t) pthread_join(thread[t], NULL);
  return verdict(faults() - before < 8000, "%ld page faults", faults() - before);
}
