// Calls the malloc family once in every way and checks what must hold of any allocator; for
// test_bump.py. Prints what fails; exit code 1 then. `allocate exhaust` allocates until it
// is refused, and goes on.
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;

static void expect(int good, const char* what) {
  if (good) return;
  printf("not so: %s\n", what);
  failures++;
}

static int aligned(const void* p, size_t alignment) {
  return p != NULL && ((uintptr_t)p & (alignment - 1)) == 0;
}

enum { kBlocks = 4000 };

// Many blocks of all sizes at once, each filled with its own byte: no two may overlap.
static void* fill(void* argument) {
  unsigned seed = (unsigned)(uintptr_t)argument;
  static _Thread_local unsigned char* blocks[kBlocks];
  static _Thread_local size_t sizes[kBlocks];
  size_t wrong = 0;
  for (size_t i = 0; i < kBlocks; i++) {
    const unsigned shift = (unsigned)rand_r(&seed) % 14;
    sizes[i] = (size_t)rand_r(&seed) % ((size_t)1 << shift);
    blocks[i] = i % 64 == 0 ? malloc(sizes[i] + 300000) : malloc(sizes[i]);
    if (!aligned(blocks[i], 16) || malloc_usable_size(blocks[i]) < sizes[i]) wrong++;
    memset(blocks[i], (int)(i % 251), sizes[i]);
  }
  for (size_t i = 0; i < kBlocks; i++) {
    for (size_t j = 0; j < sizes[i]; j++) wrong += blocks[i][j] != i % 251;
    free(blocks[i]);
  }
  return (void*)(uintptr_t)wrong;
}

static void check_calls(void) {
  expect(aligned(malloc(0), 16), "malloc(0) gives a block");
  expect(malloc(0) != malloc(0), "malloc(0) gives different blocks");
  for (size_t alignment = 16; alignment <= (size_t)4 << 20; alignment *= 2) {
    void* p = NULL;
    expect(aligned(aligned_alloc(alignment, 3 * alignment), alignment), "aligned_alloc aligns");
    expect(aligned(memalign(alignment, 1), alignment), "memalign aligns");
    expect(posix_memalign(&p, alignment, 100) == 0 && aligned(p, alignment),
           "posix_memalign aligns");
  }
  void* p = NULL;
  expect(posix_memalign(&p, 24, 8) == EINVAL, "posix_memalign refuses 24");
  expect(aligned(valloc(1), 4096) && aligned(pvalloc(5000), 4096), "valloc and pvalloc align");
  expect(malloc_usable_size(pvalloc(5000)) >= 8192, "pvalloc rounds up");
  errno = 0;
  const volatile size_t huge = SIZE_MAX;
  expect(malloc(huge) == NULL && errno == ENOMEM, "malloc refuses SIZE_MAX");
  expect(malloc(huge - 7) == NULL && malloc(huge - 40) == NULL, "malloc refuses what wraps");
  expect(calloc(huge / 2, 3) == NULL, "calloc refuses an overflow");
  expect(reallocarray(NULL, huge / 2, 3) == NULL, "reallocarray refuses an overflow");
  for (size_t n = 1; n <= (size_t)1 << 22; n *= 2) {
    unsigned char* zero = calloc(n, 1);
    size_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += zero[i];
    expect(sum == 0, "calloc gives zeros");
  }
  unsigned char* growing = realloc(NULL, 1);
  growing[0] = 77;
  for (size_t n = 2; n < 3000000; n = n * 3 / 2 + 1) {
    growing = realloc(growing, n);
    expect(growing[0] == 77 && growing[n / 3] == 77, "realloc keeps the contents");
    memset(growing, 77, n);
  }
  expect(realloc(growing, 0) == NULL, "realloc to 0 frees");
}

static void check_fork(void) {
  const pid_t child = fork();
  if (child == 0) _exit(fill((void*)9) == NULL ? 0 : 1);
  int status = -1;
  expect(waitpid(child, &status, 0) == child && status == 0, "a forked child allocates");
}

static void exhaust(void) {
  size_t total = 0;
  while (malloc(100000) != NULL) total += 100000;
  expect(errno == ENOMEM, "the last malloc says ENOMEM");
  size_t small = 0;
  while (malloc(100) != NULL) small++;
  expect(malloc(1) == NULL || small > 0, "small blocks are refused too");
  free(NULL);
  printf("%zu\n", total >> 20);
}

int main(int argc, char** argv) {
  if (argc > 1 && strcmp(argv[1], "exhaust") == 0) {
    exhaust();
    return failures != 0;
  }
  check_calls();
  pthread_t threads[4];
  for (uintptr_t i = 0; i < 4; i++) pthread_create(&threads[i], NULL, fill, (void*)(i + 1));
  check_fork();
  for (size_t i = 0; i < 4; i++) {
    void* wrong;
    pthread_join(threads[i], &wrong);
    expect(wrong == NULL, "blocks keep their contents");
  }
  return failures != 0;
}
