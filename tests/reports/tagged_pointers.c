// An interpreter keeps a tag in the upper 16 bits of its pointers and in the lower 3:
// malloc uses none of them.
#include "report.h"
int main(void) {
  int bad = 0;
  for (size_t size = 8; size <= 64u * MIB; size += size / 5 + 1)
    for (int i = 0; i < 20; ++i) {
      char* block = malloc(size);
      bad += (uintptr_t)block >> 47 != 0 || (uintptr_t)block % 8 ||
             (size >= 16 && (uintptr_t)block % 16);
      if (i % 2) free((char*)((((uint64_t)0xb4 << 56) | (uintptr_t)block) & ~(0xfful << 56)));
    }
  return verdict(bad == 0, "%d need more bits", bad);
}
