// Programs set what the manual lists, and stop or complain where mallopt refuses.
#include "report.h"
int main(void) {
  int bad = 0;
  bad += mallopt(M_ARENA_MAX, 4) != 1;
  bad += mallopt(M_TRIM_THRESHOLD, 128 * KIB) != 1;
  bad += mallopt(M_MMAP_THRESHOLD, 256 * KIB) != 1;
  bad += mallopt(M_TOP_PAD, 64 * KIB) != 1;
  bad += mallopt(M_MMAP_MAX, 65536) != 1;
  bad += mallopt(M_PERTURB, 0) != 1;
  free(written(1000));
  return verdict(bad == 0, "%d of 6 refused", bad);
}
