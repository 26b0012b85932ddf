// A program whose heap is known: what it is told to allocate, and nothing else. It says "ready"
// when that stands, and ends when its standard input does.
//
//   known_heap [THREADS:]SIZE,COUNT,FREED... [fork]
//
// COUNT blocks of SIZE bytes, of which FREED, spread over them, are freed again. With THREADS so
// many threads do that, each called `holder`, and live on. With `fork` it then makes a child, which
// allocates a block and rests beside it. Before "ready" comes a line for each argument with the
// bytes that a block has, and one with the child's number.
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { kMostBlocks = 1 << 20, kMostArguments = 64 };

struct holding {
  unsigned long size, count, freed, usable;
};

static struct holding holdings[kMostArguments];
static int held;
static pthread_barrier_t standing, leaving;

static void fail(const char* what) {
  ssize_t ignored = write(2, what, __builtin_strlen(what));
  (void)ignored;
  _exit(1);
}

// (The table of the blocks is no memory of the heap's.)
static void hold(struct holding* what) {
  if (what->count > kMostBlocks || what->freed > what->count) fail("known_heap: too many\n");
  char** blocks = __builtin_alloca((what->count > 4096 ? 0 : what->count) * sizeof *blocks + 1);
  static char* many[kMostBlocks];
  if (what->count > 4096) blocks = many;  // one thread only
  for (unsigned long i = 0; i < what->count; ++i) {
    blocks[i] = malloc(what->size);
    if (blocks[i] == NULL) fail("known_heap: no memory\n");
    for (unsigned long at = 0; at < what->size; at += 4096) blocks[i][at] = 1;
  }
  if (what->count != 0) what->usable = malloc_usable_size(blocks[0]);
  for (unsigned long i = 0; i < what->freed; ++i) free(blocks[i * what->count / what->freed]);
}

static void* holder(void* unused) {
  prctl(PR_SET_NAME, "holder");
  for (int i = 0; i < held; ++i) hold(&holdings[i]);
  pthread_barrier_wait(&standing);
  pthread_barrier_wait(&leaving);
  return unused;
}

int main(int argc, char** argv) {
  unsigned threads = 0;
  const int forks = __builtin_strcmp(argv[argc - 1], "fork") == 0;
  argc -= forks;
  for (int i = 1; i < argc && held < kMostArguments; ++i) {
    char* text = argv[i];
    char* end;
    unsigned long number = strtoul(text, &end, 10);
    if (*end == ':') {
      threads = (unsigned)number;
      number = strtoul(end + 1, &end, 10);
    }
    struct holding* const to = &holdings[held++];
    to->size = number;
    if (*end == ',') to->count = strtoul(end + 1, &end, 10);
    if (*end == ',') to->freed = strtoul(end + 1, &end, 10);
    if (*end != 0) fail("known_heap: SIZE,COUNT,FREED\n");
  }
  if (threads == 0) {
    for (int i = 0; i < held; ++i) hold(&holdings[i]);
  } else {
    pthread_barrier_init(&standing, NULL, threads + 1);
    pthread_barrier_init(&leaving, NULL, threads + 1);
    for (unsigned i = 0; i < threads; ++i) {
      pthread_t thread;
      if (pthread_create(&thread, NULL, holder, NULL) != 0) fail("known_heap: no thread\n");
      pthread_detach(thread);
    }
    pthread_barrier_wait(&standing);
  }
  char line[64];
  pid_t child = 0;
  line[0] = 0;
  if (forks) {
    int ends[2];
    if (pipe(ends) != 0) fail("known_heap: no pipe\n");
    child = fork();
    if (child == 0) {
      free(malloc(50));
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (write(ends[1], line, 1) != 1) _exit(1);
      for (;;) pause();
    }
    if (read(ends[0], line, 1) != 1) fail("known_heap: no child\n");
  }
  for (int i = 0; i < held; ++i) {
    const int length = snprintf(line, sizeof line, "%lu\n", holdings[i].usable);
    if (write(1, line, (size_t)length) != length) return 1;
  }
  if (forks && dprintf(1, "%d\n", (int)child) < 0) return 1;
  if (write(1, "ready\n", 6) != 6) return 1;
  while (read(0, line, sizeof line) > 0) {
  }
  return 0;
}
