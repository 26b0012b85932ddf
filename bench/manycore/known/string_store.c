/* Fills 64 KiB by "rep stosb", `operations` times: the processor works by lines, not by bytes. */
#include "known.h"
static void body(int number) {
  (void)number;
  enum { SIZE = 64 << 10 };
  char* bytes = fresh_pages(SIZE / PAGE);
  for (long i = 0; i < operations; i++) {
    void* to = bytes;
    size_t n = SIZE;
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(n) : "a"(i) : "memory");
  }
}
