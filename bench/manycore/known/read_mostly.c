/* Thread 0 writes a line once in 4000 cycles or more, `operations` times; all others read it all
 * the time. A write is one invalidation, the first read after it one transfer; every other reader
 * fetches the line from the shared cache once, and all further reads are hits. */
#include "known.h"
static _Alignas(LINE) volatile long shared;
static void body(int number) {
  if (number == 0) {
    for (long i = 1; i <= operations; i++) {
      compute(2000);
      shared = i;
    }
  } else {
    while (shared != operations) compute(10);
  }
}
