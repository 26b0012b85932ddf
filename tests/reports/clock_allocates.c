// libfaketime puts its own clock_gettime in the place of libc's, which allocates and
// frees. Whoever asks it for the time in malloc comes back to malloc, again and again, or
// waits for a lock of its own.
#include <time.h>
#include "report.h"
static char* kept[64];
static int depth, deepest;
static long calls;
int clock_gettime(clockid_t unused, struct timespec* now) {
  static const size_t sizes[] = {24, 4096, 552, 40000, 70000, 1000000};
  if (++depth > deepest) deepest = depth;
  if (depth > 40) _exit(verdict(0, "calls itself through malloc without end"));
  char** old = &kept[calls % 64];
  char* fresh = written(sizes[calls++ % 6]);
  free(*old), *old = fresh, --depth;
  return *now = (struct timespec){1700000000 + calls / 20, unused}, 0;
}
int main(void) {
  char* block[200] = {0};
  struct timespec now;
  alarm(30);
  for (int i = 0; i < 100000; ++i) {
    free(block[i % 200]), block[i % 200] = written(20 + chance(i % 100 == 0 ? MIB : 20 * KIB));
    if (i % 100 == 0) clock_gettime(CLOCK_MONOTONIC, &now);
  }
  return verdict(deepest <= 3, "%ld calls, %d deep", calls, deepest);
}
