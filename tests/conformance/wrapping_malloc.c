/* A library to be preloaded before ours: malloc, free and aligned_alloc that call the next ones, as
 * tracers have them. With WRAP_NO_ALIGNED it leaves aligned_alloc alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

long wrapped_calls;

static void* next(const char* name, void** known) {
  if (*known == NULL) *known = dlsym(RTLD_NEXT, name);
  __atomic_add_fetch(&wrapped_calls, 1, __ATOMIC_RELAXED);
  return *known;
}

void* malloc(size_t n) {
  static void* known;
  return ((void* (*)(size_t))next("malloc", &known))(n);
}
void free(void* p) {
  static void* known;
  ((void (*)(void*))next("free", &known))(p);
}
#ifndef WRAP_NO_ALIGNED
void* aligned_alloc(size_t alignment, size_t n) {
  static void* known;
  return ((void* (*)(size_t, size_t))next("aligned_alloc", &known))(alignment, n);
}
#endif
