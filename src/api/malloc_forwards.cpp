// What glibc and C23 define by another public function of the malloc family. It is called by its
// exported name: a program that has malloc, free, calloc and realloc of its own, and none of these,
// is served by its own through them.
//
// glibc defines no more of the family so: its calloc, aligned_alloc, valloc and the like
// call no other one. The names with underscores (override.hpp) stay ours: a program's own
// malloc may be made of them.
//
// Compiled with -fno-plt: such a call is one jump. An object of its own, because it needs no heap
// of ours: a program with a malloc of its own takes this member of the archive, and not that with
// ours. Weak: it may have any of these, too.
#include <errno.h>
#include <stdlib.h>

#include <cstddef>

#include "base/compiler.hpp"

#define SPANALLOC_FORWARD extern "C" [[gnu::weak, gnu::visibility("default")]]

/// realloc(p, count * size); nullptr with ENOMEM, `p` as it was, when the product overflows.
SPANALLOC_FORWARD void* reallocarray(void* p, std::size_t count, std::size_t size) noexcept {
  std::size_t bytes = 0;
  if (SPANALLOC_UNLIKELY(__builtin_mul_overflow(count, size, &bytes))) {
    errno = ENOMEM;
    return nullptr;
  }
  return realloc(p, bytes);
}

// Sizes and alignments are ignored: free knows them.
SPANALLOC_FORWARD void free_sized(void* p, std::size_t /*n*/) noexcept {
  free(p);
}
SPANALLOC_FORWARD void free_aligned_sized(void* p, std::size_t /*alignment*/,
                                          std::size_t /*n*/) noexcept {
  free(p);
}
/// Of old programs.
SPANALLOC_FORWARD void cfree(void* p) noexcept {
  free(p);
}
