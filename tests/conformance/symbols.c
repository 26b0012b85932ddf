/* The C library's allocation symbols as a plain C program meets them: linked with libspanalloc.so,
 * linked statically, or with the library preloaded. Prints what fails; the exit code is 0 when
 * nothing did.
 *
 * The first argument, when given, is the engine whose library must be behind malloc. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Younger than this C library's headers, or never declared. */
void free_sized(void* p, size_t size);
void free_aligned_sized(void* p, size_t alignment, size_t size);
void cfree(void* p);
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void __libc_free(void*);
void* __libc_memalign(size_t, size_t);
void* __libc_valloc(size_t);
void* __libc_pvalloc(size_t);
int __posix_memalign(void**, size_t, size_t);

/* Weak: only a process that has our library has them. */
__attribute__((weak)) const char* sp_engine_name(void);
__attribute__((weak)) int sp_owns(const void* p);
/* Missing from the C library for newly linked programs: one that is linked without us reaches them
 * weakly. */
#pragma weak free_sized
#pragma weak free_aligned_sized
#pragma weak cfree
#pragma weak __posix_memalign

static int failures;
static int checks;

#define CHECK(condition)                                               \
  do {                                                                 \
    ++checks;                                                          \
    if (!(condition)) {                                                \
      ++failures;                                                      \
      fprintf(stderr, "symbols.c:%d: not %s\n", __LINE__, #condition); \
    }                                                                  \
  } while (0)

static int ours(const void* p, size_t alignment) {
  return p != NULL && sp_owns(p) == 1 && (uintptr_t)p % alignment == 0;
}

static void check_plain(void) {
  for (size_t n = 0; n <= 300000; n += n / 7 + 1) {
    char* p = malloc(n);
    CHECK(ours(p, 16) && malloc_usable_size(p) >= n);
    memset(p, 0x77, n);
    p = realloc(p, n + n / 2 + 1);
    CHECK(ours(p, 16) && (n == 0 || (p[0] == 0x77 && p[n - 1] == 0x77)));
    p = reallocarray(p, n / 2 + 1, 3);
    CHECK(ours(p, 16));
    free(p);
    char* z = calloc(n + 1, 3);
    CHECK(ours(z, 16) && z[0] == 0 && z[3 * n + 2] == 0);
    memset(z, 0x77, 3 * n + 3);
    free_sized(z, 3 * n + 3);
  }
  errno = 4711;
  cfree(malloc(10));
  free(NULL);
  free_sized(NULL, 0);
  free_sized(malloc(100), 100);
  free_aligned_sized(NULL, 16, 0);
  free_aligned_sized(aligned_alloc(4096, 100), 4096, 100);
  CHECK(reallocarray(malloc(10), 0, 5) == NULL && errno == 4711);
  CHECK(realloc(malloc(10), 0) == NULL);
}

static void check_aligned(void) {
  void* p = NULL;
  CHECK(posix_memalign(&p, 256, 1000) == 0 && ours(p, 256));
  free(p);
  CHECK(posix_memalign(&p, 24, 1000) == EINVAL);
  p = aligned_alloc(4096, 100);
  CHECK(ours(p, 4096));
  free_aligned_sized(p, 4096, 100);
  volatile size_t odd = 100; /* volatile: or the compiler objects */
  p = memalign(odd, 100);
  CHECK(ours(p, 128));
  free(p);
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  p = valloc(10);
  CHECK(ours(p, page));
  free(p);
  p = pvalloc(page + 1);
  CHECK(ours(p, page) && malloc_usable_size(p) >= 2 * page);
  free(p);
}

static void check_underscored(void) {
  void* p = __libc_malloc(100);
  CHECK(ours(p, 16));
  p = __libc_realloc(p, 5000);
  CHECK(ours(p, 16));
  __libc_free(p);
  p = __libc_calloc(10, 10);
  CHECK(ours(p, 16));
  free(p);
  p = __libc_memalign(512, 10);
  CHECK(ours(p, 512));
  free(p);
  p = __libc_valloc(10);
  CHECK(ours(p, 4096));
  __libc_free(p);
  p = __libc_pvalloc(10);
  CHECK(ours(p, 4096));
  __libc_free(p);
  CHECK(__posix_memalign(&p, 64, 10) == 0 && ours(p, 64));
  __libc_free(p);
}

static void check_errors(void) {
  volatile size_t huge = SIZE_MAX / 2 + 1; /* volatile: or the compiler objects and folds */
  volatile size_t odd = 48;
  errno = 0;
  CHECK(malloc(huge) == NULL && errno == ENOMEM);
  errno = 0;
  CHECK(calloc(huge, 2) == NULL && errno == ENOMEM);
  errno = 0;
  CHECK(reallocarray(NULL, huge, 2) == NULL && errno == ENOMEM);
  char* kept = malloc(100);
  memset(kept, 0x77, 100);
  void* volatile same = kept; /* volatile: or the compiler takes it for freed */
  static const size_t products[][2] = {{(size_t)1 << 32, (size_t)1 << 32},
                                       {SIZE_MAX, 2},
                                       {2, SIZE_MAX},
                                       {SIZE_MAX / 2 + 1, 2},
                                       {SIZE_MAX / 16 + 1, 16},
                                       {SIZE_MAX, SIZE_MAX}};
  for (size_t i = 0; i < sizeof products / sizeof products[0]; ++i) {
    errno = 0;
    CHECK(reallocarray(same, products[i][0], products[i][1]) == NULL && errno == ENOMEM);
  }
  CHECK(kept[0] == 0x77 && kept[99] == 0x77);
  free(kept);
  errno = 0;
  CHECK(aligned_alloc(odd, 48) == NULL && errno == EINVAL);
  void* p = NULL;
  errno = 0;
  CHECK(posix_memalign(&p, odd, 48) == EINVAL && errno == 0 && p == NULL);
  CHECK(posix_memalign(&p, 64, huge) == ENOMEM && errno == ENOMEM && p == NULL);
  errno = 4711;
  free(malloc(100));
  free(malloc(3000000));
  CHECK(errno == 4711);
}

static void check_introspection(void) {
  CHECK(mallopt(M_MMAP_THRESHOLD, 4096) == 1);
  CHECK(mallopt(M_MXFAST, -1) == 0);
  malloc_trim(0);
  void* p = malloc(3000000);
  CHECK(mallinfo2().hblks >= 1 && mallinfo2().hblkhd >= 3000000);
  free(p);
  char text[4096] = "";
  FILE* stream = fmemopen(text, sizeof text, "w");
  CHECK(stream != NULL && malloc_info(0, stream) == 0);
  if (stream != NULL) fclose(stream);
  CHECK(strncmp(text, "<malloc ", 8) == 0 && strstr(text, "</malloc>") != NULL);
  FILE* no_terminal = freopen("/dev/null", "w", stderr);
  malloc_stats();
  (void)no_terminal;
}

/* What the C library allocates for us comes from the same heap. */
static void check_c_library(void) {
  char* copy = strdup("a string");
  CHECK(ours(copy, 16));
  free(copy);
  char* line = NULL;
  CHECK(asprintf(&line, "%0500d", 1) == 500 && ours(line, 16));
  free(line);
  char* cwd = getcwd(NULL, 0);
  CHECK(ours(cwd, 16));
  free(cwd);
}

int main(int argc, char** argv) {
  if (sp_engine_name == NULL) {
    fprintf(stderr, "symbols: malloc is not spanalloc's\n");
    return 2;
  }
  if (argc > 1 && strcmp(argv[1], sp_engine_name()) != 0) {
    fprintf(stderr, "symbols: engine is %s, want %s\n", sp_engine_name(), argv[1]);
    return 2;
  }
  check_plain();
  check_aligned();
  check_underscored();
  check_errors();
  check_c_library();
  fflush(stderr);
  const int before_introspection = failures;
  check_introspection(); /* last: it sends stderr away */
  printf("%s: %d checks, %d failed%s\n", sp_engine_name(), checks, failures,
         failures > before_introspection ? " (of introspection)" : "");
  return failures == 0 ? 0 : 1;
}
