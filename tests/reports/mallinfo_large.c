// 5 GiB are allocated, little of it written: what mallinfo2 and mallinfo say of it, and of its end.
#include "report.h"
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
int main(void) {
  char *big[5], *small[10000];
  for (int i = 0; i < 5; ++i) *(big[i] = malloc(1ul << 30)) = 1;
  for (int i = 0; i < 10000; ++i) small[i] = written(10000);
  const struct mallinfo2 full = mallinfo2();
  const struct mallinfo old = mallinfo();
  for (int i = 0; i < 5; ++i) free(big[i]);
  for (int i = 0; i < 10000; ++i) free(small[i]);
  const struct mallinfo2 empty = mallinfo2();
  const double used = (double)(full.uordblks + full.hblkhd) / (1 << 30),
               left = (double)(empty.uordblks + empty.hblkhd) / (1 << 30);
  const double ints = ((double)old.uordblks + (double)old.hblkhd) / (1 << 30);
  // uordblks has the mapped blocks or not, as who writes it understands the manual.
  return verdict(used > 5.08 && used < 10.3 && left < 0.5 && old.uordblks >= 0 && old.hblkhd >= 0,
                 "%.2f GiB (mallinfo %.2f), then %.2f", used, ints, left);
}
