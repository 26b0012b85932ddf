// An album shows pictures of 1 to 60 MiB, one after the other, each with its 200 small
// objects, of which 20 stay.
#include "report.h"
int main(void) {
  for (int picture = 0; picture < 60; ++picture) {
    char *object[200], *pixels = written(MIB + chance(59 * MIB));
    for (int i = 0; i < 200; ++i) object[i] = written(50 + chance(3000));
    char* scaled = written(MIB + chance(8 * MIB));
    free(pixels);
    for (int i = 0; i < 180; ++i) free(object[i]);
    free(scaled);
  }
  const double held = mib();
  malloc_trim(0);
  return verdict(held < 48, "%.0f MiB, trimmed %.0f", held, mib());
}
