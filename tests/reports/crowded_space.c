// A sanitizer, or a runtime, has reserved nearly all of the 2^47 bytes that a program has. 8 GiB
// are left, at a place of their own choice; from above 2^47, where processors have it, malloc must
// hand out nothing that nobody asked for.
#include <sys/mman.h>
#include "report.h"
int main(void) {
  char *best = NULL, *at;
  for (size_t size = 1ul << 46; size >= 1ul << 30; size /= 2)
    while ((at = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) !=
           MAP_FAILED)
      if (!best) best = at;
  munmap(best + (1ul << 40), 8ul << 30);
  int served = 0, high = 0;
  for (int i = 0; i < 16384; ++i) {
    char* block = malloc(64 * KIB);
    if (block) *block = 1;
    served += block != NULL, high += (uintptr_t)block >> 47 != 0;
  }
  return verdict(served == 16384 && !high, "%d of 16384 served", served);
}
