// posix_memalign of more than 2 and 4 GiB, at the alignment of a 16 KiB page and beyond.
#include "report.h"
int main(void) {
  int bad = 0, calls = 0;
  const size_t sizes[] = {(1ul << 31) - 1, 1ul << 31, (5ul << 29) + 1, (1ul << 32) + 1, 17ul << 30};
  for (int i = 0; i < 5; ++i)
    for (size_t alignment = 64; alignment <= 1ul << 32; alignment *= 16, ++calls) {
      void* block = NULL;
      if (posix_memalign(&block, alignment, sizes[i]) || (uintptr_t)block % alignment)
        ++bad;
      else
        ((char*)block)[0] = ((char*)block)[sizes[i] - 1] = 1,
        bad += malloc_usable_size(block) < sizes[i];
      free(block);
    }
  return verdict(bad == 0, "%d of %d refused or wrong", bad, calls);
}
