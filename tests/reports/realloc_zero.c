// realloc(p, 0) as glibc has it: frees and returns null, and of null it allocates. Any mixture is
// none of leak and double free.
#include <errno.h>
#include "report.h"
int main(void) {
  char* block = NULL;
  int bad = 0;
  double before = 0;
  errno = 0;
  for (int i = 0; i < 1000000; ++i) {
    char* next = realloc(block, i % 3 == 2 ? 100 : 0);
    if (i % 3 == 0) bad += next == NULL;  // of null: as malloc(0)
    if (i % 3 == 1) bad += next != NULL;  // of a block: freed
    block = next;
    if (i % 3 == 2) free(block), block = NULL;
    if (i == 1000) before = mib();
  }
  return verdict(bad == 0 && errno == 0 && mib() < before + 1, "%d differ, errno %d", bad, errno);
}
