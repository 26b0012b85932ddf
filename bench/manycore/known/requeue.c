/* Asks for a futex operation that moves waiters from one word to another: the simulated machine
 * cannot follow it and says so. */
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "known.h"
static atomic_int from, to;
static void body(int number) {
  if (number == 0) syscall(SYS_futex, &from, FUTEX_CMP_REQUEUE_PRIVATE, 1, 1, &to, 0);
}
