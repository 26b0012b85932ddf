// What the tests of the superblock engine share: a heap of a test's own, in a small arena, and the walker
// after each step.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/bits.hpp"
#include "engines/superblock/allocator.hpp"

namespace spanalloc::test {

inline constexpr std::size_t kPiece = superblock::kSuperblockBytes<SuperblockReport>;
// Two such objects fill a superblock to the last byte.
inline constexpr std::size_t kHalf = kPiece / 2 - sizeof(superblock::Block);

/// A heap, which gives back what it has at its end.
template <class Config>
class OwnHeap {
 public:
  OwnHeap() = default;
  ~OwnHeap() { heap_.destroy(); }
  OwnHeap(const OwnHeap&) = delete;
  OwnHeap& operator=(const OwnHeap&) = delete;

  superblock::Allocator<Config>* operator->() { return &heap_; }

 private:
  superblock::Allocator<Config> heap_;
};

/// The walker's findings; a failure unless every invariant holds.
template <class Config>
superblock::Census checked(OwnHeap<Config>& heap) {
  const superblock::Census census = heap->census();
  EXPECT_TRUE(census.consistent()) << census.first_problem << " at " << std::hex << census.at;
  return census;
}

/// Superblocks that are in heaps.
template <class Config>
std::size_t superblocks_kept(OwnHeap<Config>& heap) {
  const superblock::Census census = checked(heap);
  return census.superblocks + census.empty_superblocks;
}

inline std::uintptr_t superblock_of(const void* p) {
  return align_down(address_of(p), kPiece);
}

/// Many heaps in one process: small arenas.
class SmallArenas : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* set = getenv(kOption);
    before_ = set == nullptr ? "" : set;
    setenv(kOption, "32", 1);
  }
  void TearDown() override {
    if (before_.empty()) {
      unsetenv(kOption);
    } else {
      setenv(kOption, before_.c_str(), 1);
    }
  }

 private:
  static constexpr const char* kOption = "SPANALLOC_ARENA_BITS";
  std::string before_;
};

}  // namespace spanalloc::test
