/* What spanalloc.h tells compilers of its functions: sizes they know at compile time, and no more
 * than is so. The exit code is 0 when nothing fails. */
#include <spanalloc/spanalloc.h>
#include <stdio.h>

static int failures;

#define KNOWN(call, bytes)                                     \
  do {                                                         \
    void* block = call;                                        \
    if (__builtin_object_size(block, 0) != (bytes)) {          \
      ++failures;                                              \
      fprintf(stderr, "attributes.c: no size of %s\n", #call); \
    }                                                          \
    sp_free(block);                                            \
  } while (0)

static void add_up(void* block, size_t size, void* sum) {
  (void)size;
  *(int*)sum += *(int*)block;
}

int main(void) {
  sp_heap* heap = sp_heap_create(NULL, 0);
  if (heap == NULL) return 2;
#ifndef SPANALLOC_PLAIN_DECLARATIONS
  KNOWN(sp_malloc(40), 40);
  KNOWN(sp_calloc(3, 40), 120);
  KNOWN(sp_realloc(NULL, 50), 50);
  KNOWN(sp_aligned_alloc(64, 70), 70);
  KNOWN(sp_heap_malloc(heap, 40), 40);
  KNOWN(sp_heap_calloc(heap, 3, 40), 120);
  KNOWN(sp_heap_realloc(heap, NULL, 50), 50);
  KNOWN(sp_heap_aligned_alloc(heap, 64, 70), 70);
#endif
  /* Nobody but the heap has the block: what was written there is seen all the same. */
  int* number = sp_heap_malloc(heap, sizeof *number);
  if (number == NULL) return 2;
  *number = 4711;
  int sum = 0;
  sp_heap_visit(heap, add_up, &sum);
  if (sum != 4711) {
    ++failures;
    fprintf(stderr, "attributes.c: a visit sees %d\n", sum);
  }
  sp_heap_destroy(heap);
  return failures == 0 ? 0 : 1;
}
