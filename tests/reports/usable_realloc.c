// malloc_usable_size promises bytes that _FORTIFY_SOURCE=3 forbids; the way out that its
// authors name is realloc to that size, which must then be free of charge: the same
// block, and all of it for use.
#include "report.h"
int main(void) {
  int moved = 0, sizes = 0;
  for (size_t size = 1; size <= 4u * MIB; size += size / 7 + 1, ++sizes) {
    char* block = malloc(size);
    const size_t usable = malloc_usable_size(block);
    char* same = realloc(block, usable);
    moved += same != block || malloc_usable_size(same) < usable;
    memset(same, 1, usable);
    free(same);
  }
  return verdict(moved == 0, "%d of %d moved", moved, sizes);
}
