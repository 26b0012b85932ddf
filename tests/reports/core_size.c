// 256 MiB, of which a sixteenth is live when the program crashes. The kernel writes each anonymous
// mapping that was touched, as long as it is, into the core file.
#include "report.h"
int main(void) {
  static char* block[60000];
  for (int i = 0; i < 60000; ++i) block[i] = written(100 + chance(8 * KIB));
  for (int i = 0; i < 60000; ++i)
    if (i % 16) free(block[i]);
  static char line[512];
  double whole = 0, size = 0, rss = 0, core = 0;
  FILE* maps = fopen("/proc/self/smaps", "r");
  while (fgets(line, sizeof line, maps)) {
    sscanf(line, "Size: %lf", &size), sscanf(line, "Anonymous: %lf", &rss);
    if (strncmp(line, "VmFlags:", 8) == 0 && rss > 0 && !strstr(line, " dd"))
      core += size / KIB, whole += rss / KIB;
  }
  return verdict(core < 384, "%.0f MiB, %.0f of them in memory", core, whole);
}
