// A dense heap of 256 MiB loses all but one block in each 2 MiB. Then khugepaged comes: it fills
// each huge page again of which one small page is there, wherever the heap has not said no, or
// (sysfs: `madvise`) has said yes.
#include <sys/mman.h>
#include "report.h"
enum { N = 65536, KEPT = 512, COLLAPSE = 25, NO_DUMP = 16 };
static char* block[N];
static void khugepaged(const char* wanted, const char* refused) {
  static char line[512];
  unsigned long from = 0, to = 0;
  FILE* maps = fopen("/proc/self/smaps", "r");
  while (fgets(line, sizeof line, maps)) {
    char mode[8] = "";
    unsigned long a, b, inode = 1;
    if (sscanf(line, "%lx-%lx %7s %*s %*s %lu", &a, &b, mode, &inode) == 4)
      from = a, to = inode || mode[1] != 'w' ? a : b;
    if (strncmp(line, "VmFlags:", 8) || (wanted && !strstr(line, wanted)) || strstr(line, refused))
      continue;
    for (unsigned long at = (from + 2 * MIB - 1) & -(2ul * MIB); at + 2 * MIB <= to;
         at += 2 * MIB) {
      unsigned char there[512];
      if (mincore((void*)at, 2 * MIB, there) == 0 && memchr(there, 1, sizeof there))
        madvise((void*)at, 2 * MIB, COLLAPSE);
    }
  }
  fclose(maps);
}
int main(void) {
  for (int i = 0; i < N; ++i) block[i] = written(4096);
  for (int i = 0; i < N; ++i)
    if (i % KEPT) free(block[i]);
  const double before = mib();
  khugepaged(" hg", " nh");
  const double madvised = mib();
  khugepaged(NULL, " nh");
  return verdict(madvised < 64, "%.0f MiB, madvise %.0f, always %.0f", before, madvised, mib());
}
