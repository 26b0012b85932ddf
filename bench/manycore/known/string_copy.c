/* Copies 64 KiB by "rep movsb", `operations` times: loads and stores alternate byte by byte, but
 * the processor works by lines, one access each for what is read and for what is written. */
#include "known.h"
static void body(int number) {
  (void)number;
  enum { SIZE = 64 << 10 };
  char* bytes = fresh_pages(2 * SIZE / PAGE);
  for (long i = 0; i < operations; i++) {
    void *from = bytes, *to = bytes + SIZE;
    size_t n = SIZE;
    __asm__ volatile("rep movsb" : "+S"(from), "+D"(to), "+c"(n) : : "memory");
  }
}
