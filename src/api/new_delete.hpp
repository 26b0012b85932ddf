// The forms of C++ operator new and delete that end in spanalloc::LibraryEngine: the base
// forms, by which C++ defines all others, and the nothrow ones of new, which reach a
// program's own base forms. The rest is operator_forwards.cpp's. Included once per library,
// after that name is declared.
//
// The library needs no C++ runtime, but when the program has one, operator new behaves as that
// runtime's: it calls the new handler until memory appears and throws std::bad_alloc when there is
// none. Both are reached through weak references, or through the loader when the runtime came
// later, with a plug-in. Without a C++ runtime nobody could catch: then it prints and aborts.
// errno is ENOMEM then, as behind that runtime's, which malloc has set.
//
// Where malloc or free are another library's, operators go through them: operators_elsewhere.hpp.
#pragma once

#include <errno.h>

#include <cstddef>
#include <new>

#include "api/malloc_api.hpp"
#include "api/new_handler.hpp"
#include "api/operator_forwards.hpp"
#include "api/operators_elsewhere.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "engine/operators.hpp"

namespace spanalloc {

/// Until the new handler gives up by throwing, or frees memory.
template <Engine E>
struct CallNewHandler {
  SPANALLOC_INLINE static bool leaves() { return operators_leave.read(); }
  static void* allocate_elsewhere(std::size_t n) { return new_by_malloc(n); }

  SPANALLOC_COLD static void* out_of_memory(std::size_t n) {
    for (;;) {
      errno = ENOMEM;
      call_new_handler_or_throw();
      if (void* p = E::template allocate<ReturnNull>(n); p != nullptr) return p;
    }
  }
};
/// The same for callers that want nullptr in the end, and are known not to leave.
template <Engine E>
struct CallNewHandlerNothrow {
  SPANALLOC_COLD static void* out_of_memory(std::size_t n) noexcept {
    for (;;) {
      errno = ENOMEM;
      if (!call_new_handler_nothrow()) return nullptr;
      if (void* p = E::template allocate<ReturnNull>(n); p != nullptr) return p;
    }
  }
};

struct Delete {
  SPANALLOC_INLINE static bool leaves() { return operators_leave.read(); }
  static void free_elsewhere(void* p) { delete_by_free(p); }
};
struct AlignedDelete {
  SPANALLOC_INLINE static bool leaves() { return aligned_operators_leave(); }
  static void free_elsewhere(void* p) { delete_by_free(p); }
};
static_assert(OperatorDelete<Delete> && OperatorDelete<AlignedDelete>);

template <Engine E>
struct NewApi {
  SPANALLOC_INLINE static void* allocate(std::size_t n) {
    return E::template allocate<CallNewHandler<E>>(n);
  }
  SPANALLOC_INLINE static void* allocate_nothrow(std::size_t n) noexcept {
    return E::template allocate<CallNewHandlerNothrow<E>>(n);
  }

  // (One test tells of an alignment of 0, too.)
  static void* allocate_aligned(std::size_t n, std::align_val_t alignment) {
    const auto a = static_cast<std::size_t>(alignment);
    if (SPANALLOC_UNLIKELY((a & alignments_here_.read()) == 0 || (a & (a - 1)) != 0))
      return ask_and_allocate(n, a);
    void* p = allocate_aligned_checked<E>(n, a);
    return SPANALLOC_LIKELY(p != nullptr) ? p : allocate_again(n, a);
  }
  static void* allocate_aligned_nothrow(std::size_t n, std::align_val_t alignment) noexcept {
    const auto a = static_cast<std::size_t>(alignment);
    if (!is_power_of_two(a)) return nullptr;
    for (;;) {
      if (void* p = allocate_aligned_checked<E>(n, a); p != nullptr) return p;
      errno = ENOMEM;
      if (!call_new_handler_nothrow()) return nullptr;
    }
  }

 private:
  // Once memory is out.
  SPANALLOC_COLD static void* allocate_again(std::size_t n, std::size_t a) {
    for (;;) {
      errno = ENOMEM;
      call_new_handler_or_throw();
      if (void* p = allocate_aligned_checked<E>(n, a); p != nullptr) return p;
    }
  }
  // An alignment that is no power of two is no matter for the new handler.
  SPANALLOC_COLD static void* ask_and_allocate(std::size_t n, std::size_t a) {
    if (!is_power_of_two(a)) throw_bad_alloc();
    if (aligned_operators_leave()) return new_by_aligned_alloc(n, a);
    alignments_here_.set(SIZE_MAX);
    return allocate_aligned(n, std::align_val_t{a});
  }

  // The bits that an alignment may have which is served here; 0: nobody has asked yet whether any
  // is, or none is.
  static inline constinit SetOnce alignments_here_{};
};

using LibraryNew = NewApi<LibraryEngine>;

}  // namespace spanalloc

#if defined(__GNUC__) && !defined(__clang__)
// The sized form of operator delete is defined elsewhere. An alias cannot name the attributes of
// one form of an operator.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsized-deallocation"
#pragma GCC diagnostic ignored "-Wmissing-attributes"
#endif

// Weak: operator_forwards.cpp says why.
#define SPANALLOC_OPERATOR [[gnu::weak, gnu::visibility("default")]]

SPANALLOC_OPERATOR void* operator new(std::size_t n) {
  return spanalloc::LibraryNew::allocate(n);
}
SPANALLOC_OPERATOR void* operator new(std::size_t n, std::align_val_t a) {
  return spanalloc::LibraryNew::allocate_aligned(n, a);
}

SPANALLOC_OPERATOR void operator delete(void* p) noexcept {
  spanalloc::LibraryEngine::deallocate<spanalloc::Delete>(p);
}
// The alignment is ignored: the block's span knows it.
SPANALLOC_OPERATOR void operator delete(void* p, std::align_val_t) noexcept {
  spanalloc::LibraryEngine::deallocate<spanalloc::AlignedDelete>(p);
}

namespace spanalloc {
namespace {

// The two above, whoever's the process calls by their names.
[[gnu::alias("_Znwm")]] void* own_new(std::size_t n);
[[gnu::alias("_ZnwmSt11align_val_t")]] void* own_aligned_new(std::size_t n, std::align_val_t a);

// By the standard each nothrow form calls the form that throws, and catches. Where all of those are
// ours that is what LibraryNew does without a throw. True once that is known, and that operators
// stay here; it never changes.
// (Relaxed: nothing else is behind it, and who does not see it yet asks again.)
Atomic<bool> news_stay{false};

// A first call, and every one where operators leave, or the program has a form of its own, which
// `call` calls.
SPANALLOC_COLD void* ask_and_allocate(std::size_t n, void* (*call)(std::size_t) noexcept) noexcept {
  if (!throwing_news_are_ours(&own_new, &own_aligned_new)) return call(n);
  if (operators_leave.read()) return new_by_malloc_nothrow(n);
  news_stay.store_relaxed(true);
  return LibraryNew::allocate_nothrow(n);
}
SPANALLOC_COLD void* ask_and_allocate(std::size_t n, std::align_val_t a,
                                      void* (*call)(std::size_t,
                                                    std::align_val_t) noexcept) noexcept {
  if (!throwing_news_are_ours(&own_new, &own_aligned_new)) return call(n, a);
  const auto alignment = static_cast<std::size_t>(a);
  if (!operators_leave.read()) news_stay.store_relaxed(true);
  if (!aligned_operators_leave()) return LibraryNew::allocate_aligned_nothrow(n, a);
  return is_power_of_two(alignment) ? new_by_aligned_alloc_nothrow(n, alignment) : nullptr;
}

}  // namespace
}  // namespace spanalloc

SPANALLOC_OPERATOR void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  if (SPANALLOC_LIKELY(spanalloc::news_stay.load_relaxed()))
    return spanalloc::LibraryNew::allocate_nothrow(n);
  return spanalloc::ask_and_allocate(n, spanalloc::call_new_nothrow);
}
SPANALLOC_OPERATOR void* operator new[](std::size_t n, const std::nothrow_t&) noexcept {
  if (SPANALLOC_LIKELY(spanalloc::news_stay.load_relaxed()))
    return spanalloc::LibraryNew::allocate_nothrow(n);
  return spanalloc::ask_and_allocate(n, spanalloc::call_array_new_nothrow);
}
SPANALLOC_OPERATOR void* operator new(std::size_t n, std::align_val_t a,
                                      const std::nothrow_t&) noexcept {
  if (SPANALLOC_LIKELY(spanalloc::news_stay.load_relaxed())) {
    return spanalloc::LibraryNew::allocate_aligned_nothrow(n, a);
  }
  return spanalloc::ask_and_allocate(n, a, spanalloc::call_new_nothrow);
}
SPANALLOC_OPERATOR void* operator new[](std::size_t n, std::align_val_t a,
                                        const std::nothrow_t&) noexcept {
  if (SPANALLOC_LIKELY(spanalloc::news_stay.load_relaxed())) {
    return spanalloc::LibraryNew::allocate_aligned_nothrow(n, a);
  }
  return spanalloc::ask_and_allocate(n, a, spanalloc::call_array_new_nothrow);
}

#undef SPANALLOC_OPERATOR
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
