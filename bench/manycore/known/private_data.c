/* Nothing is shared: every thread counts on a line of its own. No transfers; n threads take as long
 * as one.
 */
#include "known.h"
static struct {
  _Alignas(LINE) volatile long n;
} counters[MOST_THREADS];
static void body(int number) {
  for (long i = 0; i < operations; i++) counters[number].n++;
}
