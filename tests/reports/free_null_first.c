// What must do nothing, as the first call of the process: free(NULL) and its
// like, before any constructor.
#include "report.h"
static int bad;
static void first(void) {
  free(NULL);
  bad += malloc_usable_size(NULL) != 0;
  malloc_trim(0);
  void* empty = realloc(NULL, 0);
  bad += !empty;
  free(empty);
}
__attribute__((section(".preinit_array"), used)) static void (*run_first)(void) = first;
int main(void) {
  return verdict(bad == 0, "%d wrong", bad);
}
