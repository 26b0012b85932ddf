/* One atomic counter: with two threads or more each operation moves the line once, and moves follow
 * one another. */
#define OWN_MAIN
#include "known.h"
static _Alignas(LINE) atomic_long counter;
static void body(int number) {
  (void)number;
  for (long i = 0; i < operations; i++)
    atomic_fetch_add_explicit(&counter, 1, memory_order_relaxed);
}
int main(int argc, char** argv) {
  run(argc, argv);
  return atomic_load(&counter) == threads * operations ? 0 : 1;
}
