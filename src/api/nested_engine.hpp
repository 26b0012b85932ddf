// An engine as a library has it: what is asked of blocks of calls within kernel calls
// (pages/nested_blocks.hpp) and of heaps of the program's own (pages/program_heaps.hpp), and asked
// within such a call. Allocating and freeing there is the engine's own affair, on its slow paths,
// so that the short ones need not ask.
#pragma once

#include <cstddef>

#include "base/compiler.hpp"
#include "engine/engine.hpp"
#include "os/os.hpp"
#include "pages/nested_blocks.hpp"

namespace spanalloc {

/// An engine that would take a lock to tell a block's size may tell it without, of a
/// block that must be live.
template <class E>
concept TellsSizeWithoutLock = requires(const void* p) {
  { E::size_without_lock(p) } -> std::same_as<std::size_t>;
};

/// An engine may tell the size of some live blocks, and leave them where they are, without a call;
/// 0 and no `usable`: not of this one. (In a kernel call: of none.)
template <class E>
concept AnswersAtOnce = requires(void* p, std::size_t n) {
  { E::usable_size_at_once(p) } -> std::same_as<std::size_t>;
  { E::template resize_at_once<TakeAllBack>(p, n) } -> std::same_as<Resized>;
};

template <class E>
struct NestedEngine : E {
  SPANALLOC_INLINE static std::size_t usable_size(const void* p) {
    if constexpr (AnswersAtOnce<E>) {
      if (const std::size_t usable = E::usable_size_at_once(p); SPANALLOC_LIKELY(usable != 0))
        return usable;
    }
    return usable_size_of_any(p);
  }
  [[gnu::noinline]] static std::size_t usable_size_of_any(const void* p) {
    const std::size_t nested = NestedBlocks::usable_size(p);
    return SPANALLOC_LIKELY(nested == 0) ? size_of(p) : nested;
  }

  template <LeavesAlone Policy = TakeAllBack>
  SPANALLOC_INLINE static Resized resize(void* p, std::size_t n) {
    if constexpr (AnswersAtOnce<E>) {
      const Resized own = E::template resize_at_once<Policy>(p, n);
      if (SPANALLOC_LIKELY(own.usable != 0)) return own;
    }
    return resize_any<Policy>(p, n);
  }
  template <LeavesAlone Policy>
  [[gnu::noinline]] static Resized resize_any(void* p, std::size_t n) {
    if (const std::size_t nested = NestedBlocks::usable_size(p); SPANALLOC_UNLIKELY(nested != 0)) {
      if (!os::in_kernel_call()) {
        // A heap's block stays its heap's, as long as that has room.
        if (void* const moved = ProgramHeaps::resize(p, n)) return {moved, nested};
      }
      return {Policy::leaves_alone(n, nested) ? p : nullptr, nested};
    }
    // In a kernel call a block is copied.
    if (SPANALLOC_UNLIKELY(os::in_kernel_call())) return {nullptr, size_of(p)};
    return E::template resize<Policy>(p, n);
  }

  static bool owns(const void* p) {
    // Records first: a block's header may go while it is read, for a block that is just freed.
    return ProgramHeaps::owns(p) || NestedBlocks::usable_size(p) != 0 || E::owns(p);
  }

  static bool trim() {
    if (os::in_kernel_call()) return false;
    NestedBlocks::free_all_put_off(&free_one);
    bool any = NestedBlocks::give_back_kept();
    any = ProgramHeaps::trim() || any;
    return E::trim() || any;
  }

  static EngineStatistics statistics() {
    return os::in_kernel_call() ? EngineStatistics{} : E::statistics();
  }
  // (Not asked there: E's take_inventory(), resident_bytes() and describe().)

 private:
  static void free_one(void* p) { E::deallocate(p); }
  static std::size_t size_of(const void* p) {
    if constexpr (TellsSizeWithoutLock<E>) {
      if (SPANALLOC_UNLIKELY(os::in_kernel_call()))
        return p == nullptr ? 0 : E::size_without_lock(p);
    }
    return E::usable_size(p);
  }
};

}  // namespace spanalloc
