/* Thread 0 gives a page back `operations` times, while all others compute for longer than that:
 * every time, each of them is interrupted once. */
#include "known.h"
static atomic_int done;
static void body(int number) {
  if (number == 0) {
    char* page = fresh_pages(1);
    for (long i = 0; i < operations; i++) {
      *(volatile char*)page = 1;
      madvise(page, PAGE, MADV_DONTNEED);
    }
    atomic_store(&done, 1);
  } else {
    while (!atomic_load_explicit(&done, memory_order_relaxed)) compute(100);
  }
}
