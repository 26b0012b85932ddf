/* Atomic additions on a line that nobody else touches: no transfers, but the instruction itself
 * takes its time. */
#include "known.h"
static struct {
  _Alignas(LINE) atomic_long n;
} counters[MOST_THREADS];
static void body(int number) {
  for (long i = 0; i < operations; i++)
    atomic_fetch_add_explicit(&counters[number].n, 1, memory_order_relaxed);
}
