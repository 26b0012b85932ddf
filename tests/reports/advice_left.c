// A numeric library advises huge pages for its large arrays, and frees them. Who gets that memory
// next and touches a page in 64 KiB of it must not pay for whole huge pages: no more than such
// tables took before. (`malloc_trim` in the place of waiting.)
#include <sys/mman.h>
#include "report.h"
enum { ARRAYS = 40, ARRAY = 8 * MIB, TABLES = 60, TABLE = 4 * MIB, ROUNDS = 3 };
static double sparse_tables(void) {
  char* table[TABLES];
  const double before = mib();
  for (int i = 0; i < TABLES; ++i) {
    table[i] = malloc(TABLE);
    for (size_t at = 0; at < TABLE; at += 64 * KIB) table[i][at] = 1;
  }
  const double took = mib() - before;
  for (int i = 0; i < TABLES; ++i) free(table[i]);
  malloc_trim(0);
  return took;
}
int main(void) {
  static char* array[ARRAYS];
  const double before = sparse_tables();
  for (int round = 0; round < ROUNDS; ++round) {
    for (int i = 0; i < ARRAYS; ++i) {
      array[i] = malloc(ARRAY + 4096 * (size_t)i);
      const uintptr_t start = ((uintptr_t)array[i] + 4095) & -4096ul;
      madvise((void*)start, ARRAY - 4096, MADV_HUGEPAGE);
      memset(array[i], 1, ARRAY);
    }
    for (int i = 0; i < ARRAYS; ++i) free(array[i]);
  }
  malloc_trim(0);
  const double after = sparse_tables();
  return verdict(after < 1.5 * before + 16, "%.0f MiB for %d tables, %.0f before", after, TABLES,
                 before);
}
