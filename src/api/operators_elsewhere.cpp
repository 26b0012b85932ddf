// See operators_elsewhere.hpp. An object of its own: calls from here go to the functions that the
// process calls by these names, whatever a compiler knows of ours.
#include "api/operators_elsewhere.hpp"

#include "api/new_handler.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"

namespace spanalloc {

namespace {

template <class Allocate>
void* until_handler_gives_up(Allocate&& allocate) {
  for (;;) {
    if (void* p = allocate(); p != nullptr) return p;
    call_new_handler_or_throw();
  }
}

}  // namespace

// Of 0 bytes another malloc may return nullptr.
SPANALLOC_COLD void* new_by_malloc(std::size_t n) {
  return until_handler_gives_up([n] { return ::malloc(max_of(n, 1)); });
}

// C11 wants a multiple of the alignment.
SPANALLOC_COLD void* new_by_aligned_alloc(std::size_t n, std::size_t alignment) {
  const std::size_t multiple = align_up(max_of(n, 1), alignment);
  if (multiple < n) n = SIZE_MAX;  // nobody has as much, and a product of it is not asked for
  return until_handler_gives_up([=] { return ::aligned_alloc(alignment, max_of(n, multiple)); });
}

SPANALLOC_COLD void delete_by_free(void* p) noexcept {
  ::free(p);
}

}  // namespace spanalloc
