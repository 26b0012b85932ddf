/* Threads hand a turn around in a ring by one word; every one spins on it. With two threads a
 * hand-over is one invalidation (the store, as the other one has a copy) and one transfer (its
 * read): 240 cycles at 120 each. */
#include "known.h"
static _Alignas(LINE) atomic_long turn;
static void body(int number) {
  for (long i = 0; i < operations; i++) {
    while (atomic_load_explicit(&turn, memory_order_relaxed) % threads != number) {
    }
    atomic_store_explicit(&turn, i * threads + number + 1, memory_order_relaxed);
  }
}
