// 60 GiB in blocks of 1 MiB and more, of which little is written: is the kernel's limit on mappings
// near? (Ends at 2 GiB of memory.)
#include "report.h"
int main(void) {
  int served = 0, mappings = -1;
  double size = 0;
  for (int i = 0; i < 30000 && (i % 100 || mib() < 2048); ++i) {
    const size_t wanted = MIB + chance(2 * MIB);
    char* block = malloc(wanted);
    if (block) ++served, size += (double)wanted / MIB / 1024, block[0] = 1;
  }
  char line[512];
  for (FILE* maps = fopen("/proc/self/maps", "r"); fgets(line, sizeof line, maps);) ++mappings;
  return verdict(served == 30000 && mappings < 6000 && mib() < 1024,
                 "%.0f GiB, %d mappings, %.0f MiB", size, mappings, mib());
}
