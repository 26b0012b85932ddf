/* What the programs with a known answer share: threads that start together, and the marks around
 * the measured part.
 *
 * Every program is a body; one that says more than its counts has a main of its own, and defines
 * OWN_MAIN. All take the number of threads and of operations a thread. Their answers follow from
 * the model's rules alone; tests/bench/test_manycore.py states them. */
#ifndef SPANALLOC_BENCH_MANYCORE_KNOWN_H
#define SPANALLOC_BENCH_MANYCORE_KNOWN_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { LINE = 64, PAGE = 4096, MOST_THREADS = 128 };

static int threads;
static long operations;
static pthread_barrier_t start_line;
static _Alignas(LINE) atomic_int arrived;
static _Alignas(LINE) atomic_int go;

/* The simulated machine counts from the last call of the first to the last call of the second. */
__attribute__((noinline)) void measured_part_starts(void) {
  __asm__ volatile("");
}
__attribute__((noinline)) void measured_part_ends(void) {
  __asm__ volatile("");
}

static void body(int number);

static void* thread_main(void* number) {
  /* They start within a few hundred cycles: nobody sleeps. */
  atomic_fetch_add(&arrived, 1);
  if ((intptr_t)number == 0) {
    while (atomic_load(&arrived) < threads) __asm__ volatile("pause");
    measured_part_starts();
    atomic_store(&go, 1);
  }
  while (!atomic_load_explicit(&go, memory_order_relaxed)) __asm__ volatile("pause");
  body((int)(intptr_t)number);
  measured_part_ends();
  return NULL;
}

static inline void* fresh_pages(size_t pages) {
  void* p = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    perror("mmap");
    exit(1);
  }
  return p;
}

/* Work without memory: 4 instructions a step, thus 2 cycles at 2 instructions a cycle. */
static inline void compute(long steps) {
  for (; steps > 0; steps--) __asm__ volatile("nop\n\tnop");
}

static void run(int argc, char** argv) {
  threads = argc > 1 ? atoi(argv[1]) : 4;
  operations = argc > 2 ? atol(argv[2]) : 1000;
  if (threads < 1 || threads > MOST_THREADS || operations < 1) {
    fprintf(stderr, "usage: %s THREADS OPERATIONS\n", argv[0]);
    exit(2);
  }
  pthread_t all[MOST_THREADS];
  pthread_barrier_init(&start_line, NULL, (unsigned)threads);
  for (intptr_t i = 0; i < threads; i++)
    if (pthread_create(&all[i], NULL, thread_main, (void*)i) != 0) exit(1);
  for (int i = 0; i < threads; i++) pthread_join(all[i], NULL);
}

#ifndef OWN_MAIN
int main(int argc, char** argv) {
  run(argc, argv);
}
#endif

#endif
