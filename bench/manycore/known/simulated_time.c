/* The clock that the program reads is the simulated one: prints the nanoseconds that `operations`
 * steps of 2 cycles and a sleep of 1 ms take, what one reading of the clock takes, and whether all
 * threads agree on the machine's CPUs: as many as it was told, each on its own. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

#define OWN_MAIN
#include "known.h"
static int cpu_of[MOST_THREADS];
static long long computing, sleeping, reading;
static long long now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}
static void body(int number) {
  cpu_of[number] = sched_getcpu();
  if (number == 0) {
    const long long start = now();
    compute(operations);
    const long long middle = now();
    nanosleep(&(struct timespec){0, 1000000}, NULL);
    computing = middle - start;
    const long long end = now();
    sleeping = end - middle;
    for (int i = 0; i < 999; i++) now();
    reading = now() - end;
  }
  pthread_barrier_wait(&start_line);
}
int main(int argc, char** argv) {
  run(argc, argv);
  int apart = 1;
  for (int i = 0; i < threads; i++)
    for (int k = 0; k < i; k++) apart &= cpu_of[i] != cpu_of[k];
  cpu_set_t set;
  sched_getaffinity(0, sizeof set, &set);
  printf(
      "{\"computing_ns\": %lld, \"sleeping_ns\": %lld, \"1000_readings_ns\": %lld, \"apart\": %d, "
      "\"online\": %ld, \"configured\": %ld, "
      "\"affinity\": %d}\n",
      computing, sleeping, reading, apart, sysconf(_SC_NPROCESSORS_ONLN),
      sysconf(_SC_NPROCESSORS_CONF), CPU_COUNT(&set));
}
