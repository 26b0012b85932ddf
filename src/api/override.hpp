// The C library's allocation symbols over spanalloc::LibraryEngine. Included once per library,
// after that name is declared. What each function does and promises stands in malloc_api.hpp; what
// is defined by another one of them in malloc_forwards.cpp.
#pragma once

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

#include "api/dlopen.hpp"
#include "api/malloc_api.hpp"
#include "api/operators_elsewhere.hpp"
#include "engine/operators.hpp"

namespace spanalloc {
using LibraryMalloc = MallocApi<LibraryEngine>;

bool library_owns(const void* address) noexcept {
  return LibraryEngine::owns(address);
}

// Behind start_library_engine(). A heap that has been asked once grows where it stands, and
// takes no mapping more: so a program that uses up its mappings (vm.max_map_count) before its
// first malloc is served, too.
[[gnu::constructor(102)]] static void take_first_mappings() {
  LibraryEngine::deallocate(LibraryEngine::allocate(1));
}
}  // namespace spanalloc

// default: the rest of the library is hidden. The version script repeats the list.
#define SPANALLOC_SYMBOL extern "C" [[gnu::visibility("default")]]
// GCC warns when an alias does not say all that the C library's header says of its target.
#if __has_cpp_attribute(gnu::copy)
#define SPANALLOC_COPY(target) , gnu::copy(target)
#else
#define SPANALLOC_COPY(target)
#endif
#define SPANALLOC_ALIAS(target) \
  extern "C"[[ gnu::visibility("default"), gnu::alias(#target) SPANALLOC_COPY(target) ]]

SPANALLOC_SYMBOL void* malloc(size_t n) noexcept {
  return spanalloc::LibraryMalloc::malloc(n);
}
SPANALLOC_SYMBOL void free(void* p) noexcept {
  spanalloc::LibraryMalloc::free(p);
}
SPANALLOC_SYMBOL void* calloc(size_t count, size_t size) noexcept {
  return spanalloc::LibraryMalloc::calloc(count, size);
}
SPANALLOC_SYMBOL void* realloc(void* p, size_t n) noexcept {
  return spanalloc::LibraryMalloc::realloc(p, n);
}
SPANALLOC_SYMBOL int posix_memalign(void** out, size_t alignment, size_t n) noexcept {
  return spanalloc::LibraryMalloc::posix_memalign(out, alignment, n);
}
SPANALLOC_SYMBOL void* aligned_alloc(size_t alignment, size_t n) noexcept {
  return spanalloc::LibraryMalloc::aligned_alloc(alignment, n);
}
SPANALLOC_SYMBOL void* memalign(size_t alignment, size_t n) noexcept {
  return spanalloc::LibraryMalloc::memalign(alignment, n);
}
SPANALLOC_SYMBOL void* valloc(size_t n) noexcept {
  return spanalloc::LibraryMalloc::valloc(n);
}
SPANALLOC_SYMBOL void* pvalloc(size_t n) noexcept {
  return spanalloc::LibraryMalloc::pvalloc(n);
}
SPANALLOC_SYMBOL size_t malloc_usable_size(void* p) noexcept {
  return spanalloc::LibraryMalloc::malloc_usable_size(p);
}
SPANALLOC_SYMBOL int malloc_trim(size_t padding) noexcept {
  return spanalloc::LibraryMalloc::malloc_trim(padding);
}
SPANALLOC_SYMBOL int mallopt(int parameter, int value) noexcept {
  return spanalloc::LibraryMalloc::mallopt(parameter, value);
}
SPANALLOC_SYMBOL struct mallinfo mallinfo() noexcept {
  return spanalloc::LibraryMalloc::mallinfo();
}
SPANALLOC_SYMBOL struct mallinfo2 mallinfo2() noexcept {
  return spanalloc::LibraryMalloc::mallinfo2();
}
SPANALLOC_SYMBOL int malloc_info(int options, FILE* stream) noexcept {
  return spanalloc::LibraryMalloc::malloc_info(options, stream);
}
SPANALLOC_SYMBOL void malloc_stats() noexcept {
  spanalloc::LibraryMalloc::malloc_stats();
}

// Parts of the C library, old debugging tools, and a program's own malloc call
// the names with underscores.
SPANALLOC_ALIAS(malloc) void* __libc_malloc(size_t n) noexcept;
SPANALLOC_ALIAS(calloc) void* __libc_calloc(size_t count, size_t size) noexcept;
SPANALLOC_ALIAS(realloc) void* __libc_realloc(void* p, size_t n) noexcept;
SPANALLOC_ALIAS(free) void __libc_free(void* p) noexcept;
SPANALLOC_ALIAS(memalign) void* __libc_memalign(size_t alignment, size_t n) noexcept;
SPANALLOC_ALIAS(valloc) void* __libc_valloc(size_t n) noexcept;
SPANALLOC_ALIAS(pvalloc) void* __libc_pvalloc(size_t n) noexcept;
SPANALLOC_ALIAS(posix_memalign)
int __posix_memalign(void** out, size_t alignment, size_t n) noexcept;

namespace spanalloc {
namespace {
// Ours, whoever's the process calls by these names.
[[gnu::alias("malloc") SPANALLOC_COPY(malloc)]] void* own_malloc(size_t n) noexcept;
[[gnu::alias("free") SPANALLOC_COPY(free)]] void own_free(void* p) noexcept;
[[gnu::alias("aligned_alloc") SPANALLOC_COPY(aligned_alloc)]] void* own_aligned_alloc(
    size_t alignment, size_t n) noexcept;
}  // namespace

// opaque(): else a compiler takes two names of a function that is defined beside this for one.
bool ask_whether_operators_leave() noexcept {
  return opaque(&::malloc) != opaque(&own_malloc) || opaque(&::free) != opaque(&own_free);
}
bool aligned_operators_leave() noexcept {
  return operators_leave.read() && opaque(&::aligned_alloc) != opaque(&own_aligned_alloc);
}
}  // namespace spanalloc

#undef SPANALLOC_SYMBOL
#undef SPANALLOC_ALIAS
#undef SPANALLOC_COPY
