// Sizes above what the machine has, RAM and swap. Where overcommit is heuristic, the kernel's
// default, a program is to see NULL. Memory that is mapped without a charge (MAP_NORESERVE) is
// granted, and the program that fills it is killed.
#include <sys/sysinfo.h>
#include "report.h"
static int granted;
static void* from(void* block, size_t size) {  // grown to that; or refused, and freed
  void* volatile grown = realloc(block, size);
  granted += grown != NULL;
  return grown != NULL ? grown : block;
}
int main(void) {
  char mode = '0';
  const int file = open("/proc/sys/vm/overcommit_memory", O_RDONLY);
  if (read(file, &mode, 1) == 1 && mode == '1') return verdict(1, "this kernel grants anything");
  struct sysinfo machine;
  sysinfo(&machine);
  const double all = (double)(machine.totalram + machine.totalswap) * machine.mem_unit;
  const double times[] = {1.5, 2, 4, 16};
  for (int i = 0; i < 4; ++i) {
    const size_t size = (size_t)(all * times[i]);
    void* volatile plain = malloc(size);
    void* volatile zeroed = calloc(size, 1);
    void* aligned = NULL;
    granted += (plain != NULL) + (zeroed != NULL) + (posix_memalign(&aligned, 4096, size) == 0);
    free(plain), free(zeroed), free(aligned);
    free(from(malloc(2 * MIB), size));
    free(from(realloc(malloc(2 * MIB), 64 * MIB), size));
  }
  return verdict(granted == 0, "%d of 20 granted", granted);
}
