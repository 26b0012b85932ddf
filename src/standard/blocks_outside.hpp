// Blocks whose pages have left the arena, because they grew: each is a mapping of its own.
#pragma once

#include <cstddef>

#include "pages/large_objects.hpp"

namespace spanalloc::standard {

template <class Config>
class BlocksOutside : public LargeObjects<> {
 public:
  /// How many bytes a block gets that needs `bytes`: more, because a block that grows will grow
  /// again. The room takes no memory before it is used. Where memory is short others need it.
  static std::size_t with_room(std::size_t bytes, bool is_short) {
    return is_short ? bytes : bytes + bytes / 4;
  }
  /// False: p is no such block, and nothing has changed.
  SPANALLOC_COLD bool free_block(void* p) {
    const std::size_t bytes = free(p);
    if (bytes != 0) comes_back(bytes);
    return bytes != 0;
  }
  /// Notes, for a few decay epochs, that the program frees blocks outside of this size. Relaxed: a
  /// hint; a lower value may win.
  void comes_back(std::size_t bytes) {
    const std::size_t most = min_of(bytes, Config::kMostThatComesBack);
    if (most > came_back_.load_relaxed()) came_back_.store_relaxed(most);
  }
  std::size_t came_back() const { return came_back_.load_relaxed(); }
  void pass_epoch() {
    if (came_back() != 0) came_back_.store_relaxed(came_back() / 2);
  }

 private:
  Atomic<std::size_t> came_back_{0};  // bytes
};

}  // namespace spanalloc::standard
