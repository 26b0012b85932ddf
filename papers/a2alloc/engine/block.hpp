// A memory block: a header of 16 bytes and, behind it, the bytes that malloc returns. Blocks lie
// side by side and fill a superblock from its first byte to its last.
//
//   | size, free | left neighbour's size | seal || what the caller may use ... | next header ...
//
// While a block is free, the links of the superblock's free list lie where the caller's bytes were.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "os/os.hpp"

namespace spanalloc::a2alloc {

/// Mixed into every header of the process. Drawn once, before the first header is written. One for
/// all heaps: what is sealed is found by its address, which is one heap's only, and a header's
/// check then needs nothing but the header.
inline constinit Atomic<std::uint64_t> secret{0};

inline void draw_secret() {
  std::uint64_t none = 0;
  // Whoever is second keeps the first one's: headers may have been written under it.
  (void)secret.compare_exchange_strong_acq_rel(none, os::random_bits() | 1);
}

/// All fields: under the lock of the heap that has the superblock.
struct [[gnu::may_alias]] Block {
  static constexpr std::uint32_t kFree = 1;

  std::uint32_t size_and_free;  // bytes from this header to the next one, a multiple of 16; kFree
  std::uint32_t left_size;      // size of the block in front of this one; 0: there is none
  std::uint64_t seal;           // of the fields above, this address and the secret

  std::size_t size() const { return size_and_free & ~kFree; }
  bool is_free() const { return (size_and_free & kFree) != 0; }
  /// Whether this is a header that we wrote, here, and nobody has changed since. (A block
  /// that was merged into its neighbour keeps a sealed header that says "free": so a second
  /// free of it is recognised.)
  bool is_sealed() const { return seal == expected_seal(); }

  void write(std::size_t size, std::size_t left, bool free) {
    SPANALLOC_ASSERT(size % 16 == 0 && left % 16 == 0);
    size_and_free = static_cast<std::uint32_t>(size) | (free ? kFree : 0);
    left_size = static_cast<std::uint32_t>(left);
    seal = expected_seal();
  }

  void* bytes() { return this + 1; }
  Block* right() { return pointer_to<Block>(address_of(this) + size()); }
  Block* left() { return pointer_to<Block>(address_of(this) - left_size); }
  static Block* of(const void* bytes) {
    return pointer_to<Block>(address_of(bytes) - sizeof(Block));
  }

 private:
  std::uint64_t expected_seal() const {
    // The product spreads a change of any field over the word, so that equal damage to fields and
    // seal does not cancel out. Relaxed: drawn before the first superblock was made.
    SPANALLOC_ASSERT(secret.load_relaxed() != 0);
    const std::uint64_t fields = std::uint64_t{left_size} << 32 | size_and_free;
    return (fields ^ secret.load_relaxed()) * 0x9E3779B97F4A7C15u ^ address_of(this);
  }
};
static_assert(sizeof(Block) == 16);

struct [[gnu::may_alias]] FreeBlock : Block {
  FreeBlock* next;
  FreeBlock* previous;
};

/// The smallest block: it must have room for the links once it is free.
inline constexpr std::size_t kLeastBlock = sizeof(FreeBlock);

/// Size of a block for n bytes.
constexpr std::size_t block_size_for(std::size_t n) {
  return max_of(align_up(n + sizeof(Block), 16), kLeastBlock);
}

}  // namespace spanalloc::a2alloc
