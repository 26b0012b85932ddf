// What MemoryReturn opens to tests.
#pragma once

#include <cstdint>

#include "base/atomic.hpp"
#include "standard/memory_return.hpp"

namespace spanalloc::standard {

struct MemoryReturnTestAccess {
  /// When a thread that passes by goes on with a decay epoch, or begins one.
  template <class Config>
  static Atomic<std::uint64_t>& next_purge(MemoryReturn<Config>& memory_return) {
    return memory_return.next_purge_;
  }
  /// Of the limits that were wanted, the one that the heap goes by.
  template <class Config>
  static Atomic<std::size_t>& adopted_limit(MemoryReturn<Config>& memory_return) {
    return memory_return.adopted_limit_;
  }
  /// Where the control group's files are.
  template <class Config>
  static const char*& group_root(MemoryReturn<Config>& memory_return) {
    return memory_return.group_root_;
  }
  /// Pages of spans in use that do not count as held.
  template <class Config>
  static std::size_t gone(MemoryReturn<Config>& memory_return) {
    return memory_return.gone_.load_relaxed();
  }
};

}  // namespace spanalloc::standard
