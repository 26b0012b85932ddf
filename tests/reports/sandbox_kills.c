// A program sets itself a filter that kills for each system call which it does not need, and goes
// on to need more memory. It needs those that glibc's malloc makes.
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include "report.h"
int main(void) {
  static const int allowed[] = {SYS_write,    SYS_exit_group, SYS_brk,     SYS_mmap, SYS_munmap,
                                SYS_mprotect, SYS_mremap,     SYS_madvise, SYS_futex};
  enum { N = sizeof allowed / sizeof *allowed };
  char* block[500] = {0};
  struct sock_filter filter[2 * N + 2] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
  for (int i = 0; i < N; ++i) {
    filter[2 * i + 1] =
        (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)allowed[i], 0, 1);
    filter[2 * i + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  }
  filter[2 * N + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
  struct sock_fprog program = {2 * N + 2, filter};
  setvbuf(stdout, malloc(KIB), _IOFBF, KIB);  // so that it does not look at the file
  free(malloc(100));
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    return verdict(0, "no filter: errno %d", errno);
  for (int i = 0; i < 20000; ++i) {
    char** some = &block[chance(500)];
    const unsigned size = chance(i % 50 == 0 ? 4 * MIB : 20 * KIB) + 1;
    if (i % 3 == 0) *some = realloc(*some, size), memset(*some, 1, size);
    if (i % 3 == 1) free(*some), *some = calloc(1, size);
    if (i % 3 == 2) free(*some), *some = written(size);
  }
  malloc_trim(0);
  return verdict(1, "lives");
}
