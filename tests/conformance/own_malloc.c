/* A program with a malloc, free, calloc and realloc of its own, and nothing else of the family, as
 * Rust's programs may be: what the C library and C23 define by these is served by them, whichever
 * library is there too. Prints what is not so.
 *
 * Linked with an archive it refers to all of these functions; else the library may be preloaded,
 * and some are weak. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void free_sized(void* p, size_t size);
void free_aligned_sized(void* p, size_t alignment, size_t size);
void cfree(void* p);
#ifndef ARCHIVE
#pragma weak free_sized
#pragma weak free_aligned_sized
#pragma weak cfree
#endif

static _Alignas(16) char pool[1 << 20];
static size_t used;
static volatile int reallocs,
    frees; /* volatile: headers say that the C library's functions call nothing from here */

void* malloc(size_t n) {
  char* p = pool + used;
  used += (n + 15) & ~(size_t)15;
  if (used > sizeof pool) abort();
  return p;
}
void free(void* p) {
  if (p != NULL && ((char*)p < pool || (char*)p >= pool + sizeof pool)) abort();
  ++frees;
}
void* calloc(size_t count, size_t size) {
  return malloc(count * size); /* the pool is used once */
}
void* realloc(void* p, size_t n) {
  ++reallocs;
  void* fresh = malloc(n);
  return p != NULL ? memcpy(fresh, p, n)
                   : fresh; /* as far as the pool goes, which is this program's */
}

static int failures;
static void expect(int condition, const char* what) {
  if (condition) return;
  ++failures;
  fprintf(stderr, "own_malloc: %s\n", what);
}

int main(void) {
#ifndef ARCHIVE
  if (free_sized == NULL) {
    fprintf(stderr, "own_malloc: there is no free_sized\n");
    return 2;
  }
#endif
  char* volatile p = malloc(10);
  strcpy(p, "a text");
  reallocs = 0;
  p = reallocarray(p, 10, 10);
  expect(reallocs == 1 && p >= pool && p < pool + sizeof pool && strcmp(p, "a text") == 0,
         "reallocarray does not call the program's realloc");
  volatile size_t huge = SIZE_MAX / 2;
  errno = 0;
  expect(reallocarray(p, huge, 3) == NULL && errno == ENOMEM && reallocs == 1,
         "reallocarray takes any product");
  frees = 0;
  free_sized(p, 100);
  expect(frees == 1, "free_sized does not call the program's free");
  free_aligned_sized(malloc(10), 16, 10);
  expect(frees == 2, "free_aligned_sized does not call the program's free");
  cfree(malloc(10));
  expect(frees == 3, "cfree does not call the program's free");
  return failures == 0 ? 0 : 1;
}
