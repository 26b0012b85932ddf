/* Thread 0 waits in a futex with a limit of 1 ms: `operations` times thread 1 wakes it after 20000
 * cycles, then once nobody does. Waking and giving up happen in simulated time: 20000 cycles and
 * the way there and back, and 3,000,000. */
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OWN_MAIN
#include "known.h"
static _Alignas(LINE) atomic_int word;
static int gave_up;
static void body(int number) {
  const struct timespec limit = {0, 1000000};
  for (long i = 0; i < operations; i++) {
    if (number == 0) {
      while (atomic_load(&word) != 1)
        if (syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &limit, NULL, 0) != 0 &&
            errno == ETIMEDOUT)
          gave_up++;
      atomic_store(&word, 0);
    } else if (number == 1) {
      compute(10000);
      atomic_store(&word, 1);
      syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
      while (atomic_load(&word) != 0) compute(100);
    }
  }
  /* Whose time is up returns as timed out or, as may always happen, for no reason. */
  if (number == 0) syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &limit, NULL, 0);
}
int main(int argc, char** argv) {
  run(argc, argv);
  printf("{\"gave_up\": %d}\n", gave_up);
}
