// Every form of C++ operator new and delete over spanalloc::LibraryEngine. Included once per library, after
// that name is declared.
//
// The library needs no C++ runtime, but when the program has one, operator new behaves as that runtime's:
// it calls the new handler until memory appears and throws std::bad_alloc when there is none. Both are
// reached through weak references, or through the loader when the runtime came later, with a plug-in. Without
// a C++ runtime nobody could catch: then it prints and aborts.
#pragma once

#include <cstddef>
#include <new>

#include "api/malloc_api.hpp"
#include "api/new_handler.hpp"
#include "os/os.hpp"

namespace spanalloc {

/// Until the new handler gives up by throwing, or frees memory.
template <Engine E>
struct CallNewHandler {
  SPANALLOC_COLD static void* out_of_memory(std::size_t n) {
    for (;;) {
      call_new_handler_or_throw();
      if (void* p = E::template allocate<ReturnNull>(n); p != nullptr) return p;
    }
  }
};
/// The same for callers that want nullptr in the end.
template <Engine E>
struct CallNewHandlerNothrow {
  SPANALLOC_COLD static void* out_of_memory(std::size_t n) noexcept {
    while (call_new_handler_nothrow()) {
      if (void* p = E::template allocate<ReturnNull>(n); p != nullptr) return p;
    }
    return nullptr;
  }
};

template <Engine E>
struct NewApi {
  SPANALLOC_INLINE static void* allocate(std::size_t n) { return E::template allocate<CallNewHandler<E>>(n); }
  SPANALLOC_INLINE static void* allocate_nothrow(std::size_t n) noexcept {
    return E::template allocate<CallNewHandlerNothrow<E>>(n);
  }

  // An alignment that is no power of two is no matter for the new handler.
  static void* allocate_aligned(std::size_t n, std::align_val_t alignment) {
    const auto a = static_cast<std::size_t>(alignment);
    if (!is_power_of_two(a)) throw_bad_alloc();
    for (;;) {
      if (void* p = allocate_aligned_checked<E>(n, a); p != nullptr) return p;
      call_new_handler_or_throw();
    }
  }
  static void* allocate_aligned_nothrow(std::size_t n, std::align_val_t alignment) noexcept {
    const auto a = static_cast<std::size_t>(alignment);
    if (!is_power_of_two(a)) return nullptr;
    for (;;) {
      if (void* p = allocate_aligned_checked<E>(n, a); p != nullptr) return p;
      if (!call_new_handler_nothrow()) return nullptr;
    }
  }
};

using LibraryNew = NewApi<LibraryEngine>;

}  // namespace spanalloc

#define SPANALLOC_OPERATOR [[gnu::visibility("default")]]

SPANALLOC_OPERATOR void* operator new(std::size_t n) {
  return spanalloc::LibraryNew::allocate(n);
}
SPANALLOC_OPERATOR void* operator new[](std::size_t n) {
  return spanalloc::LibraryNew::allocate(n);
}
SPANALLOC_OPERATOR void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  return spanalloc::LibraryNew::allocate_nothrow(n);
}
SPANALLOC_OPERATOR void* operator new[](std::size_t n, const std::nothrow_t&) noexcept {
  return spanalloc::LibraryNew::allocate_nothrow(n);
}
SPANALLOC_OPERATOR void* operator new(std::size_t n, std::align_val_t a) {
  return spanalloc::LibraryNew::allocate_aligned(n, a);
}
SPANALLOC_OPERATOR void* operator new[](std::size_t n, std::align_val_t a) {
  return spanalloc::LibraryNew::allocate_aligned(n, a);
}
SPANALLOC_OPERATOR void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return spanalloc::LibraryNew::allocate_aligned_nothrow(n, a);
}
SPANALLOC_OPERATOR void* operator new[](std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return spanalloc::LibraryNew::allocate_aligned_nothrow(n, a);
}

// Sizes and alignments are ignored: the block's span knows them.
SPANALLOC_OPERATOR void operator delete(void* p) noexcept {
  spanalloc::LibraryEngine::deallocate(p);
}
SPANALLOC_OPERATOR void operator delete[](void* p) noexcept {
  spanalloc::LibraryEngine::deallocate(p);
}
SPANALLOC_OPERATOR void operator delete(void* p, std::size_t) noexcept {
  spanalloc::LibraryEngine::deallocate(p);
}
SPANALLOC_OPERATOR void operator delete[](void* p, std::size_t) noexcept {
  spanalloc::LibraryEngine::deallocate(p);
}
SPANALLOC_OPERATOR void operator delete(void* p, const std::nothrow_t&) noexcept {
  spanalloc::LibraryEngine::deallocate(p);
}
SPANALLOC_OPERATOR void operator delete[](void* p, const std::nothrow_t&) noexcept {
  spanalloc::LibraryEngine::deallocate(p);
}
SPANALLOC_OPERATOR void operator delete(void* p, std::align_val_t) noexcept {
  spanalloc::LibraryEngine::deallocate(p);
}
SPANALLOC_OPERATOR void operator delete[](void* p, std::align_val_t) noexcept {
  spanalloc::LibraryEngine::deallocate(p);
}
SPANALLOC_OPERATOR void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  spanalloc::LibraryEngine::deallocate(p);
}
SPANALLOC_OPERATOR void operator delete[](void* p, std::size_t, std::align_val_t) noexcept {
  spanalloc::LibraryEngine::deallocate(p);
}
SPANALLOC_OPERATOR void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept {
  spanalloc::LibraryEngine::deallocate(p);
}
SPANALLOC_OPERATOR void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept {
  spanalloc::LibraryEngine::deallocate(p);
}

#undef SPANALLOC_OPERATOR
