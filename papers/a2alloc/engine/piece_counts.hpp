// How many pieces of the arena there are of each kind: the global heap's books.
#pragma once

#include <cstddef>

#include "base/assert.hpp"
#include "papers/a2alloc/engine/superblock.hpp"

namespace spanalloc::a2alloc {

/// Pieces by what they are, all from one instant.
struct PieceCounts {
  std::size_t known = 0;
  std::size_t free = 0;
  std::size_t dirty = 0;    // of the free ones: may be in memory
  std::size_t purging = 0;  // out of reach, while the kernel takes their pages back
  std::size_t superblocks = 0;
  std::size_t large = 0;
  std::size_t heap_records = 0;
  std::size_t lost = 0;  // to foreign mappings, which the arena has stepped over
  std::size_t lost_to_fork = 0;
  std::size_t large_objects = 0;

  std::size_t& of(Kind kind) {
    SPANALLOC_ASSERT(is_in_use(kind));
    switch (kind) {
      case Kind::kSuperblock:
        return superblocks;
      case Kind::kLarge:
        return large;
      case Kind::kLost:
        return lost_to_fork;
      default:
        return heap_records;
    }
  }
  bool add_up() const {
    return known == free + purging + superblocks + large + heap_records + lost + lost_to_fork &&
           dirty <= free && large_objects <= large;
  }
};

}  // namespace spanalloc::a2alloc
