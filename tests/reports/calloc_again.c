// A thousand times calloc of 1 GB, of which nobody writes a byte.
#include "report.h"
int main(void) {
  const long before = faults();
  for (int i = 0; i < 1000; ++i) free(calloc(1, 1000000000));
  return verdict(faults() - before < 5000, "%ld page faults", faults() - before);
}
