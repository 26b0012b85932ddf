// See operators_elsewhere.hpp. An object of its own: calls from here go to the functions that the
// process calls by these names, whatever a compiler knows of ours.
#include "api/operators_elsewhere.hpp"

#include <stdlib.h>

#include <cstdint>

#include "api/new_handler.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"

namespace spanalloc {

namespace {

// Of 0 bytes another malloc may return nullptr.
void* by_malloc(std::size_t n) {
  return ::malloc(max_of(n, 1));
}
// C11 wants a multiple of the alignment.
void* by_aligned_alloc(std::size_t n, std::size_t alignment) {
  const std::size_t multiple = align_up(max_of(n, 1), alignment);
  if (multiple < n) n = SIZE_MAX;  // nobody has as much, and a product of it is not asked for
  return ::aligned_alloc(alignment, max_of(n, multiple));
}

}  // namespace

SPANALLOC_COLD void* new_by_malloc(std::size_t n) {
  for (;;) {
    if (void* p = by_malloc(n); p != nullptr) return p;
    call_new_handler_or_throw();
  }
}
SPANALLOC_COLD void* new_by_malloc_nothrow(std::size_t n) noexcept {
  for (;;) {
    if (void* p = by_malloc(n); p != nullptr || !call_new_handler_nothrow()) return p;
  }
}

SPANALLOC_COLD void* new_by_aligned_alloc(std::size_t n, std::size_t alignment) {
  for (;;) {
    if (void* p = by_aligned_alloc(n, alignment); p != nullptr) return p;
    call_new_handler_or_throw();
  }
}
SPANALLOC_COLD void* new_by_aligned_alloc_nothrow(std::size_t n, std::size_t alignment) noexcept {
  for (;;) {
    if (void* p = by_aligned_alloc(n, alignment); p != nullptr || !call_new_handler_nothrow())
      return p;
  }
}

SPANALLOC_COLD void delete_by_free(void* p) noexcept {
  ::free(p);
}

}  // namespace spanalloc
