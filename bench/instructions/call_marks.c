/* Preloaded before an allocator: marks where each call of its malloc and free begins and ends, for
 * calls.c. What the loader and libc allocate before this library's constructor has run is not
 * marked. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

#include "marks.h"

#define PUBLIC __attribute__((visibility("default")))

static void* (*real_malloc)(size_t);
static void (*real_free)(void*);

__attribute__((constructor)) static void find_real(void) {
  void (*free_function)(void*) = (void (*)(void*))dlsym(RTLD_NEXT, "free");
  real_malloc = (void* (*)(size_t))dlsym(RTLD_NEXT, "malloc");
  real_free = free_function;
}

PUBLIC void* malloc(size_t size) {
  if (real_malloc == NULL) return ((void* (*)(size_t))dlsym(RTLD_NEXT, "malloc"))(size);
  MARK(MARK_MALLOC_BEGINS);
  void* block = real_malloc(size);
  MARK(MARK_MALLOC_ENDS);
  return block;
}

PUBLIC void free(void* block) {
  if (real_free == NULL) {
    ((void (*)(void*))dlsym(RTLD_NEXT, "free"))(block);
    return;
  }
  MARK(MARK_FREE_BEGINS);
  real_free(block);
  MARK(MARK_FREE_ENDS);
}
