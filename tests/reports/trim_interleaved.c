// 128 MiB, freed but for every eighth block; then malloc_trim(0). What is free
// lies between what lives.
#include "report.h"
int main(void) {
  static char* block[3600];
  double live = 0;
  for (int i = 0; i < 3600; ++i) {
    const size_t size = 8 * KIB + chance(56 * KIB);
    block[i] = written(size);
    if (i % 8 == 0) live += (double)size / MIB;
  }
  for (int i = 0; i < 3600; ++i)
    if (i % 8) free(block[i]);
  malloc_trim(0);
  return verdict(mib() < 1.5 * live + 8, "%.0f MiB for %.0f live", mib(), live);
}
