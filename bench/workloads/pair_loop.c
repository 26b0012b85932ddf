// The loops behind the instruction counts. forward, reverse: ROUNDS times 100 blocks are allocated,
// one byte of each is written, and all are freed, in the order of allocation or in reverse.
// last-round: ROUNDS times 100 blocks, each freed before the next one, in the last round of a
// thread's specific destructors, where an allocator's own state of the thread may be gone. Compiled
// with -fno-builtin, so that every call is made. The loops and the procedure linkage table take 14
// instructions a pair on x86-64.
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "still_clock.h"

enum { kBlocks = 100 };

static char* blocks[kBlocks];
static size_t size;
static long rounds;
static pthread_key_t key;
static int destructor_round;

static void destructor(void* value) {
  if (++destructor_round < PTHREAD_DESTRUCTOR_ITERATIONS) {
    pthread_setspecific(key, value);
    return;
  }
  for (long i = 0; i < rounds * kBlocks; i++) {
    char* block = malloc(size);
    *block = 1;
    free(block);
  }
}

static void* thread(void* value) {
  free(malloc(size));
  pthread_setspecific(key, value);
  return NULL;
}

int main(int argc, char** argv) {
  const char* order = argc == 4 ? argv[2] : "";
  const int reverse = strcmp(order, "reverse") == 0;
  const int last_round = strcmp(order, "last-round") == 0;
  if (!reverse && !last_round && strcmp(order, "forward") != 0) {
    fprintf(stderr, "usage: pair_loop SIZE forward|reverse|last-round ROUNDS\n");
    return 2;
  }
  size = strtoul(argv[1], NULL, 10);
  rounds = strtol(argv[3], NULL, 10);
  if (last_round) {
    pthread_t one;
    if (pthread_key_create(&key, destructor) != 0 || pthread_create(&one, NULL, thread, &key) != 0)
      return 1;
    return pthread_join(one, NULL) == 0 && destructor_round == PTHREAD_DESTRUCTOR_ITERATIONS ? 0
                                                                                             : 1;
  }
  for (long round = 0; round < rounds; round++) {
    for (int i = 0; i < kBlocks; i++) {
      blocks[i] = malloc(size);
      *blocks[i] = 1;
    }
    if (reverse) {
      for (char** at = blocks + kBlocks; at != blocks;) free(*--at);
    } else {
      for (int i = 0; i < kBlocks; i++) free(blocks[i]);
    }
  }
  return 0;
}
