/* A program whose first-class heaps are known. It says "ready" when they stand, and ends when its
 * standard input does.
 *
 *   own_heaps [NAME=SIZE,COUNT[,LIMIT]]... [many=COUNT] [churn=THREADS] [fork]
 *
 * A heap of that name with COUNT blocks of SIZE bytes; NAME may be empty. `many`: so many heaps
 * with a block of 100 bytes each, by the names "heap 0" and so on. `churn`: threads that make and
 * destroy heaps called "short" all the time. With `fork` it then makes a child, which rests beside
 * it. Before "ready" comes a line with the child's number, then, if there is one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <spanalloc/spanalloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static void fail(const char* what) {
  fprintf(stderr, "own_heaps: %s\n", what);
  _exit(1);
}

/* Of the library that is preloaded. */
static __typeof__(&sp_heap_create) create;
static __typeof__(&sp_heap_malloc) allocate;
static __typeof__(&sp_heap_destroy) destroy;
static atomic_uint churned;

static sp_heap* make(const char* name, size_t size, size_t count, size_t limit) {
  struct sp_heap_options options = {.limit_bytes = limit, .name = name};
  sp_heap* const heap = create(&options, sizeof options);
  if (heap == NULL) fail("no heap");
  for (size_t i = 0; i < count; ++i) {
    void* const block = allocate(heap, size);
    if (block == NULL) fail("no memory");
    memset(block, 1, size);
  }
  return heap;
}

static void* churn(void* unused) {
  for (size_t i = 0;; ++i) {
    destroy(make("short", i * 37 % 100000, 3, 0));
    atomic_fetch_add(&churned, 1);
  }
  return unused;
}

int main(int argc, char** argv) {
  void* const found[3] = {dlsym(RTLD_DEFAULT, "sp_heap_create"),
                          dlsym(RTLD_DEFAULT, "sp_heap_malloc"),
                          dlsym(RTLD_DEFAULT, "sp_heap_destroy")};
  memcpy(&create, &found[0], sizeof create);
  memcpy(&allocate, &found[1], sizeof allocate);
  memcpy(&destroy, &found[2], sizeof destroy);
  if (create == NULL) fail("no library");
  int forks = 0;
  for (int i = 1; i < argc; ++i) {
    char* const value = strchr(argv[i], '=');
    if (value == NULL) {
      forks = 1;
      continue;
    }
    *value = 0;
    char* end;
    const unsigned long first = strtoul(value + 1, &end, 10);
    if (strcmp(argv[i], "many") == 0) {
      for (unsigned long n = 0; n < first; ++n) {
        char name[32];
        snprintf(name, sizeof name, "heap %lu", n);
        make(name, 100, 1, 0);
      }
    } else if (strcmp(argv[i], "churn") == 0) {
      for (unsigned long n = 0; n < first; ++n) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, churn, NULL) != 0) fail("no thread");
      }
      while (atomic_load(&churned) < 100) {
      }
    } else {
      const unsigned long count = *end == ',' ? strtoul(end + 1, &end, 10) : 0;
      const unsigned long limit = *end == ',' ? strtoul(end + 1, &end, 10) : 0;
      make(argv[i], first, count, limit);
    }
  }
  if (forks) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (;;) pause();
    }
    printf("%d\n", (int)child);
  }
  puts("ready");
  fflush(stdout);
  while (getchar() != EOF) {
  }
  _exit(0);
}
