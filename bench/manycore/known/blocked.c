/* Thread 0 sleeps in a futex until thread 1 has computed `operations` steps and wakes it; then it
 * computes as many. All other threads compute a twentieth of it and are long gone. The sleeper
 * neither advances nor holds anybody back, and it wakes at the waker's time: two shares after one
 * another. */
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "known.h"
static _Alignas(LINE) atomic_int gate;
static void body(int number) {
  if (number == 0) {
    while (atomic_load(&gate) == 0) syscall(SYS_futex, &gate, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
    compute(operations);
  } else if (number == 1) {
    compute(operations);
    atomic_store(&gate, 1);
    syscall(SYS_futex, &gate, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
  } else {
    compute(operations / 20);
  }
}
