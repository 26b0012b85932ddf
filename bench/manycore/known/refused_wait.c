/* Thread 0 asks `operations` times to sleep in a futex whose word has changed, which the kernel
 * refuses: it pays a system call each, not a sleep. Every other of these calls has a limit of 1 ms.
 * The others compute for longer. */
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "known.h"
static _Alignas(LINE) atomic_int word = 1;
static _Alignas(LINE) atomic_int done;
static void body(int number) {
  if (number == 0) {
    const struct timespec limit = {0, 1000000};
    for (long i = 0; i < operations; i++)
      syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, i % 2 ? &limit : NULL, NULL, 0);
    atomic_store(&done, 1);
  } else {
    while (!atomic_load_explicit(&done, memory_order_relaxed)) compute(100);
  }
}
