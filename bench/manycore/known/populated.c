/* Two ways to have pages before they are touched: `operations` pages a thread come from
 * MAP_POPULATE before the measured part, as many from MAP_POPULATE in it. Every thread touches all
 * of its own. The pages of the second kind are paid by the call that maps them; no touch is a
 * fault. */
#define OWN_MAIN
#include "known.h"
static char* before;
static long mapped_ns[MOST_THREADS], touched_ns[MOST_THREADS];
static long now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (long)t.tv_sec * 1000000000 + t.tv_nsec;
}
static char* populated_pages(size_t pages) {
  char* p = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (p == MAP_FAILED) exit(1);
  return p;
}
static void body(int number) {
  char* own = before + (size_t)number * (size_t)operations * PAGE;
  for (long i = 0; i < operations; i++) *(volatile char*)(own + i * PAGE) = 1;
  const long start = now();
  char* more = populated_pages((size_t)operations);
  const long middle = now();
  for (long i = 0; i < operations; i++) *(volatile char*)(more + i * PAGE) = 1;
  mapped_ns[number] = middle - start;
  touched_ns[number] = now() - middle;
}
int main(int argc, char** argv) {
  if (argc != 3) return 2;
  before = populated_pages((size_t)atoi(argv[1]) * (size_t)atol(argv[2]));
  run(argc, argv);
  long mapped = 0, touched = 0;
  for (int i = 0; i < threads; i++) {
    if (mapped_ns[i] > mapped) mapped = mapped_ns[i];
    if (touched_ns[i] > touched) touched = touched_ns[i];
  }
  printf("{\"mapped_ns\": %ld, \"touched_ns\": %ld}\n", mapped, touched);
}
