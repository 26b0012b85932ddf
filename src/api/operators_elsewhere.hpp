// operator new and delete by the process's malloc and free, where these are not ours: those of a
// tracer that is preloaded before this library, or a program's own. (engine/operators.hpp: what
// that costs.)
//
// Whose a function is, is told by where the loader has bound its name. If malloc or free is another
// library's, both operators go through the process's. (In a program that is not position
// independent and takes the address of malloc or free, that address is one of a jump to it,
// whoever's it is. Then the operators go through the jump.)
#pragma once

#include <cstddef>
#include <new>

namespace spanalloc {

/// Whether the aligned operators go through the process's aligned_alloc and free. Not where it is
/// still ours: the free of another malloc would get our blocks.
bool aligned_operators_leave() noexcept;

/// As C++ libraries do it, with the new handler.
void* new_by_malloc(std::size_t n);
void* new_by_malloc_nothrow(std::size_t n) noexcept;
/// `alignment`: a power of two.
void* new_by_aligned_alloc(std::size_t n, std::size_t alignment);
void* new_by_aligned_alloc_nothrow(std::size_t n, std::size_t alignment) noexcept;
void delete_by_free(void* p) noexcept;

}  // namespace spanalloc
