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

static struct {
  /* Instructions and memory. */
  int64_t hit;    /* own cache, on top of the instruction's half cycle */
  int64_t llc;    /* from the shared cache */
  int64_t xfer;   /* from another core's cache, or taking a line away from others */
  int64_t locked; /* a locked instruction, beyond its memory access, also on an owned line */
  int64_t fence;  /* mfence */
  int64_t pause;  /* the spin-loop hint */
  /* The kernel. */
  int64_t syscall; /* into the kernel and back */
  int64_t vdso;    /* asking for the time or the CPU: no call into the kernel on a real machine */
  int64_t fault;   /* first touch of a page: trap, allocation, zeroing */
  int64_t map;  /* mmap, munmap, mprotect, mremap, brk: on top; one thread of a process at a time */
  int64_t page; /* each page that such a call or madvise takes away */
  int64_t shootdown; /* telling other cores to forget a mapping: the caller */
  int64_t interrupt; /* ... each core that is told; as much again per 10 cores for the caller */
  int64_t wait;      /* going to sleep in a futex */
  int64_t wake;      /* waking one thread: the caller */
  int64_t wakeup;    /* from the waker's call to the sleeper's first instruction */
  int64_t clone;     /* starting a thread: the caller */
  int64_t slice;     /* how long a new thread waits for a core at most, while all are busy */
  /* The simulation. */
  int64_t window; /* how far a core may run ahead of the others */
  int64_t exact;  /* the same before it touches lines that have moved between caches lately */
  int64_t ghz;    /* cycles in a nanosecond of the program's clock */
  int64_t cpus;   /* number of CPUs that the machine has and the program is told of; 0: the real
                   * machine's   number is told, and every thread has a core */
  int64_t pin;    /* the real CPU that the simulation keeps to; -1: any */
  int64_t from_thread; /* the measured part begins as this thread starts, the main one being 1; 0:
                          by mark */
} cost = {.hit = 1,
          .llc = 40,
          .xfer = 120,
          .locked = 18,
          .fence = 30,
          .pause = 40,
          .syscall = 400,
          .vdso = 70,
          .fault = 1500,
          .map = 1200,
          .page = 100,
          .shootdown = 1500,
          .interrupt = 600,
          .wait = 1200,
          .wake = 1500,
          .wakeup = 6000,
          .clone = 15000,
          .slice = 9000000,
          .window = 2000,
          .exact = 60,
          .ghz = 3,
          .cpus = 0,
          .pin = -1,
          .from_thread = 0};

static const struct {
  const char* name;
  int64_t* value;
  int64_t least;
} cost_options[] = {
#define OPTION(name, least) {#name, &cost.name, least}
    OPTION(hit, 0),    OPTION(llc, 0),    OPTION(xfer, 0),      OPTION(locked, 0),
    OPTION(fence, 0),  OPTION(pause, 0),  OPTION(fault, 0),     OPTION(syscall, 0),
    OPTION(map, 0),    OPTION(page, 0),   OPTION(wait, 0),      OPTION(wake, 0),
    OPTION(clone, 0),  OPTION(wakeup, 0), OPTION(shootdown, 0), OPTION(interrupt, 0),
    OPTION(window, 0), OPTION(exact, 0),  OPTION(ghz, 1),       OPTION(cpus, 0),
    OPTION(pin, -1),   OPTION(vdso, 0),   OPTION(slice, 0),     OPTION(from_thread, 0),
#undef OPTION
};

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
