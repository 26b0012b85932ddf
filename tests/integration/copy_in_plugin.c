/* A plug-in with a copy of libspanalloc_sp.a of its own. */
#include <spanalloc/spanalloc.h>

void* copy_take(size_t n) {
  return sp_malloc(n);
}
int copy_owns(const void* p) {
  return sp_owns(p);
}
void copy_give(void* p) {
  sp_free(p);
}
