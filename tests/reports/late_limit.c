// A process limits itself to 200 MiB of address space, or of data, after its first malloc. It gets
// small blocks up to about that, and no more; and a large one. (What is reserved would count.)
#include <sys/wait.h>
#include "report.h"
enum { LIMIT = 200 };
static unsigned served(int resource, size_t size) {
  if (fork() == 0) {
    const struct rlimit limit = {LIMIT * MIB, LIMIT * MIB};
    unsigned blocks = 0;
    setrlimit(resource, &limit);
    while (blocks <= 250 * (size_t)MIB / size && malloc(size)) ++blocks;
    _exit((int)(blocks * size / MIB));
  }
  int status = 0;
  wait(&status);
  return WIFEXITED(status) ? (unsigned)WEXITSTATUS(status) : 0;
}
int main(void) {
  if (written(100) == NULL) return 1;
  unsigned mib[4];
  int good = 1;
  for (int i = 0; i < 4; ++i) {
    mib[i] = served(i < 2 ? RLIMIT_AS : RLIMIT_DATA, i % 2 ? 150 * MIB : 48);
    good &= mib[i] > LIMIT / 2 && mib[i] <= LIMIT;
  }
  return verdict(good, "%u and %u MiB of addresses, %u and %u of data", mib[0], mib[1], mib[2],
                 mib[3]);
}
