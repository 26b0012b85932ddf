// A program for a debugger, whose heap has a block of each kind. It prints where each is, stands in
// stands(), and ends.
//
//   debugged_heap [damage]
//
// With `damage` it has written to a block after freeing that.
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

enum {
  kBlocks = 100,
  kSize = 333,
  kBefore = 7 << 20,
  kOutside = 8 << 20,
  kWall = 100 << 10,
  kMostWalls = 500
};

// Words that stand nowhere else.
static const uint64_t kHeld = 0x0123456789abcdef, kFreed = 0x0fedcba987654321;

void* kept;         // live
void* newest;       // freed last: it leads to `before`
void* before;       // freed before that: it leads to no block
void* remote;       // freed by another thread
void* others;       // live, of a thread that goes on
void* ended;        // live, of a thread that has ended
void* large;        // live, alone in its span
void* freed_large;  // its span is free
void* outside;      // live, with a mapping of its own, if the library has such

static pthread_barrier_t standing, leaving;

__attribute__((noinline)) void stands(void) {
  __asm__ volatile("");
}

static void* other(void* unused) {
  prctl(PR_SET_NAME, "other");
  others = malloc(kSize);
  free(remote);
  pthread_barrier_wait(&standing);
  pthread_barrier_wait(&leaving);
  return unused;
}

static void* ends(void* unused) {
  char* const blocks[] = {malloc(700), malloc(700), malloc(700)};
  ended = blocks[1];
  return unused;
}

static void show(const char* name, const void* p) {
  printf("%s %p\n", name, p);
}

int main(int argc, char** argv) {
  (void)argv;
  setvbuf(stdout, NULL, _IONBF, 0);
  char* blocks[kBlocks];
  for (int i = 0; i < kBlocks; ++i) {
    blocks[i] = malloc(kSize);
    memset(blocks[i], 0, kSize);
  }
  kept = blocks[10], before = blocks[20], newest = blocks[30], remote = blocks[40];
  memcpy((char*)kept + 32, &kHeld, sizeof kHeld);
  memcpy((char*)newest + 40, &kFreed, sizeof kFreed);
  pthread_t thread;
  if (pthread_create(&thread, NULL, ends, NULL) != 0) return 1;
  pthread_join(thread, NULL);
  pthread_barrier_init(&standing, NULL, 2);
  pthread_barrier_init(&leaving, NULL, 2);
  if (pthread_create(&thread, NULL, other, NULL) != 0) return 1;
  pthread_barrier_wait(&standing);
  large = malloc(200000);
  memcpy((char*)large + 100000, &kHeld, sizeof kHeld);
  // One that cannot grow where it is leaves the arena. The walls are never freed.
  char* const grows = malloc(kBefore);
  char* volatile wall = NULL;  // (A compiler may leave out a malloc of which nobody has the block.)
  for (int i = 0; i < kMostWalls && (wall < grows + kBefore || wall >= grows + kOutside); ++i)
    wall = malloc(kWall);
  outside = realloc(grows, kOutside);
  memcpy((char*)outside + 4096, &kHeld, sizeof kHeld);
  freed_large = malloc(300000);
  free(freed_large);
  free(before);
  free(newest);
  char* volatile const damaged = newest;
  if (argc > 1) strcpy(damaged, "written after its free");
  show("kept", kept), show("newest", newest), show("before", before), show("remote", remote);
  show("others", others), show("ended", ended), show("large", large), show("outside", outside);
  show("freed_large", freed_large);
  stands();
  pthread_barrier_wait(&leaving);
  pthread_join(thread, NULL);
  return 0;
}
