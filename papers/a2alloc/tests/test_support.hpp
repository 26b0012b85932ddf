// What the tests of the a2alloc engine share: a heap of a test's own, in a small arena, and
// the walker after each step.
#pragma once

#include <gtest/gtest.h>

#include "base/bits.hpp"
#include "environment.hpp"
#include "owned.hpp"
#include "papers/a2alloc/engine/allocator.hpp"

namespace spanalloc::test {

inline constexpr std::size_t kPiece = a2alloc::kSuperblockBytes<A2allocReport>;
// Two such objects fill a superblock to the last byte.
inline constexpr std::size_t kHalf = kPiece / 2 - sizeof(a2alloc::Block);

/// A heap, which gives back what it has at its end.
template <class Config>
using OwnHeap = Owned<a2alloc::Allocator<Config>>;

/// The walker's findings; a failure unless every invariant holds.
template <class Config>
a2alloc::Census checked(OwnHeap<Config>& heap) {
  const a2alloc::Census census = heap->census();
  EXPECT_TRUE(census.consistent()) << census.first_problem << " at " << std::hex << census.at;
  return census;
}

/// Superblocks that are in heaps.
template <class Config>
std::size_t superblocks_kept(OwnHeap<Config>& heap) {
  const a2alloc::Census census = checked(heap);
  return census.superblocks + census.empty_superblocks;
}

inline std::uintptr_t superblock_of(const void* p) {
  return align_down(address_of(p), kPiece);
}

/// Many heaps in one process: small arenas.
class SmallArenas : public ::testing::Test {
  Variable bits_{"SPANALLOC_ARENA_BITS", "32"};
};

}  // namespace spanalloc::test
