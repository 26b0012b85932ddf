// The forms of operator new and delete that C++ defines by another form ([new.delete.single],
// [new.delete.array]): arrays by single objects, what gets a size or std::nothrow by what gets
// none. The other form is called by its exported name, so that a program's own one is reached.
// (new_delete.hpp has the base forms, and the nothrow ones of operator new.)
//
// Compiled with -fno-plt: each is one jump. Weak, as the base forms are: in a static link a
// program's own take their place, one by one, wherever the archive stands; libstdc++'s do, too,
// where its archive comes first.
//
// (A sized aligned one is two instructions: its third argument is the other form's second. It
// could be one only by a pointer that is set at the start to our own form, which needs no
// alignment, if that is the one that the process calls: a pointer to code in memory that can be
// written to, which is worth more.)
#include "api/operator_forwards.hpp"

#include <cstddef>
#include <new>

#if defined(__GNUC__) && !defined(__clang__)
// operator delete(void*) is defined elsewhere, and by whom is the point. An alias cannot name the
// attributes of one form of an operator.
#pragma GCC diagnostic ignored "-Wsized-deallocation"
#pragma GCC diagnostic ignored "-Wmissing-attributes"
#endif

#define SPANALLOC_FORWARD [[gnu::weak, gnu::visibility("default")]]

SPANALLOC_FORWARD void* operator new[](std::size_t n) {
  return ::operator new(n);
}
SPANALLOC_FORWARD void* operator new[](std::size_t n, std::align_val_t a) {
  return ::operator new(n, a);
}

SPANALLOC_FORWARD void operator delete[](void* p) noexcept {
  ::operator delete(p);
}
SPANALLOC_FORWARD void operator delete[](void* p, std::align_val_t a) noexcept {
  ::operator delete(p, a);
}

SPANALLOC_FORWARD void operator delete(void* p, std::size_t) noexcept {
  ::operator delete(p);
}
SPANALLOC_FORWARD void operator delete[](void* p, std::size_t) noexcept {
  ::operator delete[](p);
}
SPANALLOC_FORWARD void operator delete(void* p, std::size_t, std::align_val_t a) noexcept {
  ::operator delete(p, a);
}
SPANALLOC_FORWARD void operator delete[](void* p, std::size_t, std::align_val_t a) noexcept {
  ::operator delete[](p, a);
}

// Called where a constructor throws behind a nothrow operator new.
SPANALLOC_FORWARD void operator delete(void* p, const std::nothrow_t&) noexcept {
  ::operator delete(p);
}
SPANALLOC_FORWARD void operator delete[](void* p, const std::nothrow_t&) noexcept {
  ::operator delete[](p);
}
SPANALLOC_FORWARD void operator delete(void* p, std::align_val_t a,
                                       const std::nothrow_t&) noexcept {
  ::operator delete(p, a);
}
SPANALLOC_FORWARD void operator delete[](void* p, std::align_val_t a,
                                         const std::nothrow_t&) noexcept {
  ::operator delete[](p, a);
}

namespace spanalloc {

namespace {

// The array forms above, whoever's the process calls by their names.
[[gnu::alias("_Znam")]] void* own_array_new(std::size_t n);
[[gnu::alias("_ZnamSt11align_val_t")]] void* own_aligned_array_new(std::size_t n,
                                                                   std::align_val_t a);

}  // namespace

bool throwing_news_are_ours(PlainNew* plain, AlignedNew* aligned) noexcept {
  // Volatile: else a compiler may take a function and its alias for one.
  PlainNew* volatile called = &::operator new;
  PlainNew* volatile called_array = &::operator new[];
  AlignedNew* volatile called_aligned = &::operator new;
  AlignedNew* volatile called_aligned_array = &::operator new[];
  return called == plain && called_aligned == aligned && called_array == &own_array_new &&
         called_aligned_array == &own_aligned_array_new;
}

}  // namespace spanalloc
