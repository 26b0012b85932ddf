/* Thread 0 writes 4 MiB, eight times its cache; then thread 1 reads them. Only what still is in
 * thread 0's cache, at most 8192 of the 65536 lines, comes from there; the rest was written back
 * and comes from the shared cache. */
#include "known.h"
static void body(int number) {
  static char* bytes;
  const size_t size = 4 << 20;
  if (number == 0) {
    bytes = fresh_pages(size / PAGE);
    for (size_t i = 0; i < size; i += LINE) *(volatile char*)(bytes + i) = 1;
  }
  pthread_barrier_wait(&start_line);
  if (number == 1)
    for (size_t i = 0; i < size; i += LINE) (void)*(volatile char*)(bytes + i);
}
