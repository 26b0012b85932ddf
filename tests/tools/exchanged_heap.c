// Four threads that replace blocks of several sizes in one table, and so free each other's. They
// rest then, and the program tells what stands in the table: a line with the bytes of a block and
// the number of such blocks for each size, then "ready". It ends when its standard input does.
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { kThreads = 4, kPlaces = 20000, kTurns = 100000, kLargest = 1 << 17 };

static _Atomic(char*) places[kPlaces];
static int counts[kLargest];
static pthread_barrier_t standing, leaving;

static uint32_t draw(uint32_t* state) {
  *state = *state * 1664525 + 1013904223;
  return *state >> 8;
}

static void* exchange(void* number) {
  static const size_t sizes[] = {24, 60, 130, 500, 900, 1500, 3000, 6000, 12000, 30000, 50000};
  uint32_t state = (uint32_t)(uintptr_t)number * 7919 + 1;
  for (int turn = 0; turn < kTurns; ++turn) {
    _Atomic(char*)* const place = &places[draw(&state) % kPlaces];
    char* fresh = NULL;
    if (draw(&state) % 3 != 0) {
      fresh = malloc(sizes[draw(&state) % (sizeof sizes / sizeof *sizes)]);
      if (fresh == NULL) _exit(1);
      *fresh = 1;
    }
    free(atomic_exchange(place, fresh));
  }
  pthread_barrier_wait(&standing);
  pthread_barrier_wait(&leaving);
  return NULL;
}

int main(void) {
  pthread_barrier_init(&standing, NULL, kThreads + 1);
  pthread_barrier_init(&leaving, NULL, kThreads + 1);
  for (uintptr_t i = 0; i < kThreads; ++i) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, exchange, (void*)i) != 0) return 1;
    pthread_detach(thread);
  }
  pthread_barrier_wait(&standing);
  for (int i = 0; i < kPlaces; ++i) {
    if (places[i] != NULL) ++counts[malloc_usable_size(places[i]) % kLargest];
  }
  // (dprintf allocates nothing of these sizes. Its buffer is freed after the line is written, so
  // the last one, from which on nothing may change, is no line of its.)
  for (int bytes = 0; bytes < kLargest; ++bytes) {
    if (counts[bytes] != 0) dprintf(1, "%d %d\n", bytes, counts[bytes]);
  }
  if (write(1, "ready\n", 6) != 6) return 1;
  char end;
  while (read(0, &end, 1) > 0) {
  }
  return 0;
}
