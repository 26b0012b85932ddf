// served_at_map_count WHEN MAPPINGS: uses up the process's mappings (vm.max_map_count,
// MAPPINGS) at some moment of its heap's life, and then counts how many of kAsked requests are
// served. A program in C, which calls malloc before main only as libc does; map_count.cpp runs
// it with the library and without.
#include <malloc.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kAsked = 20000, kAskedBytes = 3000, kBlocks = 20000, kOfThread = 200 };

static void* blocks[kBlocks];
static size_t mappings;

static void fail(const char* what) {
  perror(what);
  _exit(1);
}

// From here on no mapping can be cut in two; if it joins another one it can still be made.
static void use_up_mappings(void) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  const size_t pages = 2 * mappings + 64;
  char* range =
      mmap(NULL, pages * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) fail("mmap");
  for (size_t i = 1; i < pages; i += 2) {
    if (mprotect(range + i * page, page, PROT_READ) != 0) return;
  }
  fputs("the kernel allows more mappings than it says\n", stderr);
  _exit(1);
}

static void allocate(int count, size_t size) {
  for (int i = 0; i < count; ++i) {
    blocks[i] = malloc(size);
    if (blocks[i] == NULL) fail("malloc");
    memset(blocks[i], 1, size);
  }
}
static void free_blocks(int count) {
  for (int i = 0; i < count; ++i) {
    free(blocks[i]);
    blocks[i] = NULL;
  }
}
static int served(void) {
  int count = 0;
  for (int i = 0; i < kAsked; ++i) {
    char* p = malloc(kAskedBytes);
    if (p == NULL) continue;
    p[0] = p[kAskedBytes - 1] = 1;
    ++count;
  }
  return count;
}

static int at_start(void) {
  use_up_mappings();
  return served();
}
static int at_first_free(void) {
  allocate(kBlocks, 1000);
  use_up_mappings();
  free_blocks(1000);
  return served();
}
static int in_growth(void) {
  allocate(kBlocks, kAskedBytes);
  use_up_mappings();
  return served();
}
// Whole spans become empty, and parts of others.
static int in_purge(void) {
  allocate(kBlocks, kAskedBytes);
  use_up_mappings();
  for (int i = 0; i < kBlocks; ++i) {
    if (i % 64 < 48) free(blocks[i]);
  }
  malloc_trim(0);
  return served();
}

static pthread_barrier_t step;
static void* free_for_the_first_time(void* result) {
  void* own[kOfThread];
  for (int i = 0; i < kOfThread; ++i) own[i] = malloc(1000);
  pthread_barrier_wait(&step);
  pthread_barrier_wait(&step);
  for (int i = 0; i < kOfThread; ++i) free(own[i]);
  free_blocks(1000);
  *(int*)result = served();
  return NULL;
}
static int at_threads_first_free(void) {
  allocate(kBlocks, 1000);
  pthread_barrier_init(&step, NULL, 2);
  pthread_t thread;
  int result = 0;
  if (pthread_create(&thread, NULL, &free_for_the_first_time, &result) != 0) fail("pthread_create");
  pthread_barrier_wait(&step);
  use_up_mappings();
  pthread_barrier_wait(&step);
  pthread_join(thread, NULL);
  return result;
}

// To it no old mapping can be made longer: the kernel does not join what both processes share.
static int in_child(void) {
  allocate(kBlocks, 1000);
  use_up_mappings();
  int ends[2];
  if (pipe(ends) != 0) fail("pipe");
  const pid_t child = fork();
  if (child < 0) fail("fork");
  int count = 0;
  if (child == 0) {
    free_blocks(1000);
    count = served();
    _exit(write(ends[1], &count, sizeof count) == sizeof count ? 0 : 1);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) fail("the child");
  if (read(ends[0], &count, sizeof count) != sizeof count) fail("read");
  return count;
}

int main(int argc, char** argv) {
  static const struct {
    const char* name;
    int (*run)(void);
  } kWhen[] = {{"start", &at_start},
               {"first_free", &at_first_free},
               {"threads_first_free", &at_threads_first_free},
               {"growth", &in_growth},
               {"purge", &in_purge},
               {"child", &in_child}};
  if (argc != 3) return 2;
  mappings = strtoul(argv[2], NULL, 10);
  for (size_t i = 0; i < sizeof kWhen / sizeof kWhen[0]; ++i) {
    if (strcmp(argv[1], kWhen[i].name) != 0) continue;
    // Not with printf, which allocates.
    char line[32];
    const int length = snprintf(line, sizeof line, "%d\n", kWhen[i].run());
    return write(1, line, (size_t)length) == length ? 0 : 1;
  }
  return 2;
}
