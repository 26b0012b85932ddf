// operator new and delete by the process's malloc and free, where these are not ours: those of a
// tracer that is preloaded before this library, or a program's own. (engines/operators.hpp: what
// that costs.)
//
// Whose a function is, is told by where the loader has bound its name. It is another library's if
// it is neither ours nor the C library's: where this library comes after the C library in the order
// of look-up (opened by dlopen, say), both of the process's names lead to the C library's, and
// operators stay ours, as nobody has put anything between. (In a program that is not position
// independent and takes malloc's address, that address is one of a jump to malloc, wherever that
// is. Then the operators go through the jump.)
#pragma once

#include <malloc.h>
#include <stdlib.h>

#include <cstddef>
#include <new>

#include "base/compiler.hpp"

extern "C" {
void* __libc_malloc(size_t n) noexcept;
void __libc_free(void* p) noexcept;
}

namespace spanalloc {

// opaque(): else a compiler takes two names of a function that is defined beside this for one.

SPANALLOC_INLINE bool malloc_is_replaced() noexcept {
  return opaque(&::malloc) != opaque(&::__libc_malloc);
}
SPANALLOC_INLINE bool free_is_replaced() noexcept {
  return opaque(&::free) != opaque(&::__libc_free);
}
/// Together with malloc. (Whose malloc has none beside it would be given blocks of our
/// aligned_alloc to free: then aligned operators stay ours, both.)
bool aligned_alloc_is_replaced() noexcept;

/// As C++ libraries do it, with the new handler.
void* new_by_malloc(std::size_t n);
/// `alignment`: a power of two.
void* new_by_aligned_alloc(std::size_t n, std::size_t alignment);
void delete_by_free(void* p) noexcept;

}  // namespace spanalloc
