// What the tests of the superblock engine share: heaps of their own, in small arenas, and the walker after
// each step.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/bits.hpp"
#include "engines/superblock/engine.hpp"

namespace spanalloc::test {

inline constexpr std::size_t kPiece = superblock::kSuperblockBytes<SuperblockReport>;
// Two such objects fill a superblock to the last byte.
inline constexpr std::size_t kHalf = kPiece / 2 - sizeof(superblock::Block);

/// The walker's findings; a failure unless every invariant holds.
template <class E>
superblock::Census checked() {
  const superblock::Census census = E::census();
  EXPECT_TRUE(census.consistent()) << census.first_problem << " at " << std::hex << census.at;
  return census;
}

/// Superblocks that are in heaps.
template <class E>
std::size_t superblocks_kept() {
  const superblock::Census census = checked<E>();
  return census.superblocks + census.empty_superblocks;
}

inline std::uintptr_t superblock_of(const void* p) {
  return align_down(address_of(p), kPiece);
}

// Each test has heaps of its own: a config that is one type. SPANALLOC_OWN_HEAP(Tiling, SuperblockReport)
// makes the engine TilingEngine.
template <class Base, class Tag>
struct Own : Base {};
#define SPANALLOC_OWN_HEAP(Name, Base) \
  struct Name {};                      \
  using Name##Engine = SuperblockEngine<test::Own<Base, Name>>

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
