// aligned_alloc of a size that is no multiple of the alignment: since C17 no longer undefined.
#include "report.h"
int main(void) {
  int bad = 0, calls = 0;
  for (size_t alignment = 1; alignment <= 4u * MIB; alignment *= 2) {
    const size_t sizes[] = {0, 1, alignment - 1, alignment + 1, alignment * 3 / 2, 44};
    for (int i = 0; i < 6; ++i, ++calls) {
      char* block = aligned_alloc(alignment, sizes[i]);
      bad += !block || (uintptr_t)block % alignment || malloc_usable_size(block) < sizes[i];
      if (block) memset(block, 1, sizes[i]);
      free(block);
    }
  }
  return verdict(bad == 0, "%d of %d refused or wrong", bad, calls);
}
