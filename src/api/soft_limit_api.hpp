// The functions of spanalloc.h for a soft limit, over an engine that may have none.
#pragma once

#include <errno.h>
#include <spanalloc/spanalloc.h>

#include <cstddef>

#include "engine/engine.hpp"
#include "os/cgroup.hpp"

namespace spanalloc {

/// A template, so that an engine without a limit need not have the functions.
template <class E>
struct SoftLimitApi {
  static int set(std::size_t bytes) noexcept {
    if constexpr (HasSoftLimit<E>) {
      static_assert(SP_SOFT_LIMIT_CGROUP == E::kLimitOfGroup);
      if (os::MemoryGroup group; bytes != SP_SOFT_LIMIT_CGROUP || os::read_memory_group(group)) {
        E::set_soft_limit(bytes);
        return 0;
      }
      errno = ENOENT;
    } else {
      errno = ENOTSUP;
    }
    return -1;
  }
  static std::size_t get() noexcept {
    if constexpr (HasSoftLimit<E>) return E::soft_limit();
    return 0;
  }
  static bool is_near() noexcept {
    if constexpr (HasSoftLimit<E>) return E::is_near_soft_limit();
    return false;
  }
  static int call(void (*callback)(void*, std::size_t, std::size_t), void* context) noexcept {
    if constexpr (HasSoftLimit<E>) {
      E::on_soft_limit(callback, context);
      return 0;
    }
    errno = ENOTSUP;
    return -1;
  }
};

}  // namespace spanalloc
