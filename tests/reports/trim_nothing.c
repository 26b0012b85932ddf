// systemd: each memory pressure event "successfully trimmed", 0 bytes returned, again and again at
// full load. Nothing happens between the calls: from the second on malloc_trim has nothing to give.
#include "report.h"
int main(void) {
  static char* block[20000];
  for (int i = 0; i < 20000; ++i) block[i] = written(100 + chance(8000));
  for (int i = 0; i < 20000; ++i)
    if (i % 3) free(block[i]);
  malloc_trim(0);
  int claims = 0;
  for (int i = 0; i < 20; ++i) claims += malloc_trim(0);
  return verdict(claims == 0, "%d of 20 claim a success", claims);
}
