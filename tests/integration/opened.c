/* What the opener opens: a shared object that is found in no folder but the one that the opener's
 * RUNPATH names. */
#include <stdlib.h>
#include <string.h>

__attribute__((visibility("default"))) int opened_works(void) {
  char* block = strdup("a string");
  const int good = block != NULL && strcmp(block, "a string") == 0;
  free(block);
  return good;
}
