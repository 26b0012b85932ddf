/* What things cost on the simulated machine, in cycles; each can be set as a plugin argument of the
 * same name.
 *
 * Orders of magnitude of one-socket x86-64 servers around 3 GHz, without a hypervisor. They weigh
 * one against another what an allocator can choose between: nothing here predicts nanoseconds. */
#ifndef SPANALLOC_BENCH_MANYCORE_COSTS_H
#define SPANALLOC_BENCH_MANYCORE_COSTS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* clang-format off */
/* name, its default, its least value, what it is */
#define EACH_COST(X) \
  /* Instructions and memory. */ \
  X(hit, 1, 0)            /* own cache, on top of the instruction's half cycle */ \
  X(llc, 40, 0)           /* from the shared cache */ \
  X(xfer, 120, 0)         /* from another core's cache, or taking a line away from others */ \
  X(locked, 18, 0)        /* a locked instruction, beyond its access, also on an owned line */ \
  X(fence, 30, 0)         /* mfence */ \
  X(pause, 40, 0)         /* the spin-loop hint */ \
  /* The kernel. */ \
  X(syscall, 400, 0)      /* into the kernel and back */ \
  X(vdso, 70, 0)          /* the time or the CPU: no call into the kernel on a real machine */ \
  X(fault, 1500, 0)       /* first touch of a page: trap, allocation, zeroing */ \
  X(map, 1200, 0)         /* mmap, munmap, mprotect, mremap, brk: on top; one thread at a time */ \
  X(page, 100, 0)         /* each page that such a call or madvise takes away */ \
  X(shootdown, 1500, 0)   /* telling other cores to forget a mapping: the caller */ \
  X(interrupt, 600, 0)    /* ... each core told; as much again per 10 cores for the caller */ \
  X(wait, 1200, 0)        /* going to sleep in a futex */ \
  X(wake, 1500, 0)        /* waking one thread: the caller */ \
  X(wakeup, 6000, 0)      /* from the waker's call to the sleeper's first instruction */ \
  X(clone, 15000, 0)      /* starting a thread: the caller */ \
  X(slice, 9000000, 0)    /* how long a new thread waits for a core at most, while all are busy */ \
  /* The simulation. */ \
  X(window, 2000, 0)      /* how far a core may run ahead of the others */ \
  X(exact, 60, 0)         /* the same before it touches lines that have moved lately */ \
  X(ghz, 3, 1)            /* cycles in a nanosecond of the program's clock */ \
  X(cpus, 0, 0)           /* CPUs that the machine has and the program is told of; 0: the real \
                             machine's number is told, and every thread has a core */ \
  X(pin, -1, -1)          /* the real CPU that the simulation keeps to; -1: any */ \
  X(from_thread, 0, 0)    /* the measured part begins as this thread starts (main: 1); 0: mark */ \
  X(seed, 0, 0)           /* threads start and wake up to a quarter later, each by another time, \
                             and so meet in another order for each seed; 0: none does */
/* clang-format on */
static struct {
#define X(name, standard, least) int64_t name;
  EACH_COST(X)
#undef X
} cost = {
#define X(name, standard, least) .name = standard,
    EACH_COST(X)
#undef X
};

static const struct {
  const char* name;
  int64_t* value;
  int64_t least;
} cost_options[] = {
#define X(name, standard, least) {#name, &cost.name, least},
    EACH_COST(X)
#undef X
};

/* By how much what happens to a core at an instant comes later than without a seed: by less than a
 * quarter of `cycles`, which follows from the seed, the core and the instant alone. */
static int64_t late(int64_t cycles, int core, int64_t instant) {
  if (cost.seed == 0 || cycles < 4) return 0;
  uint64_t z = ((uint64_t)cost.seed << 48) + ((uint64_t)core << 32) + (uint64_t)instant;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u; /* splitmix64 */
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return (int64_t)((z ^ (z >> 31)) % (uint64_t)(cycles / 4));
}

/* Takes "name=value"; false for what is not such an option. */
static bool set_cost(const char* text) {
  const char* equals = strchr(text, '=');
  if (!equals) return false;
  for (size_t i = 0; i < sizeof cost_options / sizeof *cost_options; i++) {
    const char* name = cost_options[i].name;
    if (strlen(name) != (size_t)(equals - text) || strncmp(text, name, strlen(name)) != 0) continue;
    char* end;
    *cost_options[i].value = strtoll(equals + 1, &end, 10);
    return end != equals + 1 && *end == 0 && *cost_options[i].value >= cost_options[i].least;
  }
  return false;
}

#endif
