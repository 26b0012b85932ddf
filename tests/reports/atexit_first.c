// More exit handlers than the C library has room for, as the first thing of all: it allocates,
// holding its lock. They allocate too.
#include "report.h"
static int ran;
static void handler(void) {
  free(written(100 + 1000 * (size_t)ran));
  if (++ran == 200) verdict(1, "%d ran", ran);
}
static void first(void) {
  for (int i = 0; i < 200; ++i) atexit(handler);
}
__attribute__((section(".preinit_array"), used)) static void (*run_first)(void) = first;
int main(void) {
  return 0;
}
