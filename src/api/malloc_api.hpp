// The malloc family, once for every engine: argument checks, errno, alignment,
// overflow, realloc, calloc.
//
// What holds for all of it (manual pages malloc(3) and posix_memalign(3), POSIX, C23; where they
// differ, glibc 2.36 decides):
// - Sizes and alignments are bytes. Blocks are aligned to 16 bytes, or to what was asked.
// - Every function may be called by any thread at any time, also before main and in a fork's child;
//   none may be called from a signal handler.
// - errno is untouched on success and by every function that frees. Failures set it as told at each
//   function.
// - Sizes above PTRDIFF_MAX and products that overflow are refused with ENOMEM.
// - A size of 0 gives a unique block that can be freed.
// - A pointer that is no living block of the engine ends the process with one line on stderr.
//
// Engines never touch errno, so nothing here has to save it.
#pragma once

#include <errno.h>
#include <malloc.h>
#include <string.h>

#include <cstddef>
#include <cstdint>

#include "api/introspection.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "engine/engine.hpp"
#include "os/os.hpp"

namespace spanalloc {

/// E::allocate_aligned with the sizes no engine need think about refused.
/// `alignment`: a power of two.
template <Engine E>
inline void* allocate_aligned_checked(std::size_t n, std::size_t alignment) {
  if (n > kMaxRequest || alignment > kMaxRequest - n) return nullptr;
  return E::allocate_aligned(n, alignment);
}

/// nullptr with ENOMEM.
struct SetErrno {
  SPANALLOC_COLD static void* out_of_memory(std::size_t) noexcept {
    errno = ENOMEM;
    return nullptr;
  }
};

template <Engine E>
struct MallocApi : Introspection<E> {
  // --- Allocation --------------------------------------------------------------------------------

  /// nullptr with ENOMEM when memory is out.
  SPANALLOC_INLINE static void* malloc(std::size_t n) noexcept {
    return E::template allocate<SetErrno>(n);
  }

  /// `count` * `size` zero bytes. nullptr with ENOMEM when memory is out or the product overflows.
  static void* calloc(std::size_t count, std::size_t size) noexcept {
    std::size_t bytes = 0;
    if (SPANALLOC_UNLIKELY(__builtin_mul_overflow(count, size, &bytes) || bytes > kMaxRequest)) {
      return out_of_memory();
    }
    void* p = E::allocate_zeroed(bytes);
    return SPANALLOC_LIKELY(p != nullptr) ? p : out_of_memory();
  }

  // --- Aligned allocation ------------------------------------------------------------------------

  /// 0 and the block in *out; EINVAL unless `alignment` is a power of two and a multiple of
  /// sizeof(void*); ENOMEM when memory is out, and in errno, too, as glibc's. EINVAL leaves
  /// errno alone; failure *out.
  static int posix_memalign(void** out, std::size_t alignment, std::size_t n) noexcept {
    if (!is_power_of_two(alignment) || alignment % sizeof(void*) != 0) return EINVAL;
    void* p = allocate_aligned_checked<E>(n, alignment);
    if (p == nullptr) {
      out_of_memory();
      return ENOMEM;
    }
    *out = p;
    return 0;
  }

  /// nullptr with EINVAL unless `alignment` is a power of two (`n` need not be a multiple of it),
  /// with ENOMEM when memory is out.
  static void* aligned_alloc(std::size_t alignment, std::size_t n) noexcept {
    if (!is_power_of_two(alignment)) return invalid_argument();
    void* p = allocate_aligned_checked<E>(n, alignment);
    return SPANALLOC_LIKELY(p != nullptr) ? p : out_of_memory();
  }

  /// As aligned_alloc, but `alignment` is rounded up to a power of two; EINVAL when there is none.
  static void* memalign(std::size_t alignment, std::size_t n) noexcept {
    if (alignment > SIZE_MAX / 2 + 1) return invalid_argument();
    return aligned_alloc(std::size_t{1} << log2_ceil(alignment), n);
  }

  /// Page-aligned. nullptr with ENOMEM when memory is out.
  static void* valloc(std::size_t n) noexcept { return aligned_alloc(os::page_size(), n); }

  /// Page-aligned, `n` rounded up to whole pages. nullptr with ENOMEM when memory is out.
  static void* pvalloc(std::size_t n) noexcept {
    const std::size_t page = os::page_size();
    if (n > kMaxRequest - page) return out_of_memory();
    return aligned_alloc(page, align_up(n, page));
  }

  // --- Resizing ----------------------------------------------------------------------------------

  /// Makes the block `n` bytes large, moving it when need be; the first min(old, new) bytes stay.
  /// nullptr `p`: malloc(n). n == 0: frees `p` and returns nullptr. nullptr with ENOMEM when memory
  /// is out: then `p` is as it was.
  static void* realloc(void* p, std::size_t n) noexcept {
    if (p == nullptr) return malloc(n);
    if (n == 0) {
      E::deallocate(p);
      return nullptr;
    }
    // Before the size check: a bad pointer is always named.
    const Resized resized = E::template resize<LeaveWhatFits>(p, n);
    if (resized.block != nullptr) return resized.block;
    if (n > kMaxRequest) return out_of_memory();
    return LeaveWhatFits::fits_well(n, resized.usable) ? p : move(p, resized.usable, n);
  }

  // --- Freeing -----------------------------------------------------------------------------------

  SPANALLOC_INLINE static void free(void* p) noexcept { E::deallocate(p); }

  // --- Questions and wishes ----------------------------------------------------------------------

  /// Bytes from `p` that the caller may use, at least what was asked for; 0 for nullptr.
  static std::size_t malloc_usable_size(const void* p) noexcept { return E::usable_size(p); }

  /// 1 if memory went back to the kernel, 0 otherwise. There is no top of a heap
  /// that could keep the padding.
  static int malloc_trim(std::size_t /*padding*/) noexcept { return E::trim() ? 1 : 0; }

  /// What glibc 2.36 answers: 1, for parameters that nobody knows, too; 0 for an M_MXFAST beyond
  /// glibc's. They describe glibc's heap, so that none has an effect.
  static int mallopt(int parameter, int value) noexcept {
    constexpr int kLargestFast = 80 * sizeof(std::size_t) / 4;
    return parameter == M_MXFAST && (value < 0 || value > kLargestFast) ? 0 : 1;
  }

 private:
  static void* out_of_memory() noexcept { return SetErrno::out_of_memory(0); }

  SPANALLOC_COLD static void* invalid_argument() noexcept {
    errno = EINVAL;
    return nullptr;
  }

  struct LeaveWhatFits {
    static constexpr bool leaves_alone(std::size_t n, std::size_t usable) {
      return fits_well(n, usable) && usable - n < kWorthReturning;
    }
    // Less than half of the block would lie idle, or so little that a smaller class hardly exists.
    static constexpr bool fits_well(std::size_t n, std::size_t usable) {
      constexpr std::size_t kNeverWorthMoving = 64;
      return n <= usable && usable - n < max_of(usable / 2, kNeverWorthMoving);
    }
    // What a large block has beyond its size is offered to the engine from this many bytes on.
    static constexpr std::size_t kWorthReturning = 64 * kKiB;
  };

  // A block that is made a little larger is likely to be made larger again: it gets room,
  // so that growth by small steps copies each byte a few times, and not once a step. Not
  // small blocks, where the room costs memory for certain (of larger ones it is mostly
  // pages that nobody touches); nor large ones, whose pages the engine moves, and whose
  // room could be missed under a limit.
  static constexpr std::size_t kLeastWithRoom = 4 * kKiB;
  static constexpr std::size_t kMostWithRoom = 1 * kMiB;
  static std::size_t with_room_to_grow(std::size_t usable, std::size_t n) {
    const std::size_t roomy = usable + usable / 4;
    return n > usable && n < roomy && n >= kLeastWithRoom && roomy <= kMostWithRoom ? roomy : n;
  }

  static void* move(void* p, std::size_t usable, std::size_t n) noexcept {
    const std::size_t roomy = with_room_to_grow(usable, n);
    void* fresh = E::allocate_copy(roomy, p, min_of(usable, n));
    if (fresh == nullptr && roomy != n) fresh = E::allocate_copy(n, p, min_of(usable, n));
    if (fresh == nullptr) {
      // A block can always be made smaller: at worst it stays where it is.
      return n <= usable ? p : out_of_memory();
    }
    E::deallocate(p);
    return fresh;
  }
};

}  // namespace spanalloc
