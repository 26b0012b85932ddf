// The top of a shard: what was never handed out of its newest run, or has come back beside it.
//
// It has no header and is in no index: blocks are cut off its beginning, and a block that borders
// on it and is freed becomes part of it again, both by one store. It has room for a block, or none:
// what would be too small to be one goes with the last.
//
// A fork's child finds the top as it was at one moment, or between two runs (run() == 0): each word
// is stored after all that it leads to.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "heaps/block.hpp"
#include "heaps/runs.hpp"

namespace spanalloc::heaps {

/// Zero-initialised. The shard's lock gives access.
class Top {
 public:
  /// The run that it is part of; 0: there is none.
  Slice run() const { return run_.load_relaxed(); }
  Block* begin() const { return begin_.load_relaxed(); }
  Block* end() const { return end_.load_relaxed(); }
  std::size_t bytes() const { return address_of(end()) - address_of(begin()); }

  /// The old one is retired. `zero`: from behind the first header on all is zero.
  void set(Slice run, Block* begin, Block* end, bool zero) {
    end_.store_release(end);
    zero_from_.store_release(zero ? begin : end);
    begin_.store_release(begin);
    run_.store_release(run);  // last: without it a fork's child does not look at the rest
  }
  /// There is none from here on; begin() stays until set().
  void retire() { run_.store_release(0); }
  /// Nobody takes from it, or borders on it.
  void forget() { set(0, nullptr, nullptr, false); }

  struct Cut {
    Block* block;  ///< nullptr: no room
    std::size_t bytes;
    bool zero;  ///< its payload is
  };
  /// A block of at least `bytes` off its beginning, in use.
  SPANALLOC_INLINE Cut cut(Key key, std::size_t bytes) {
    Block* const block = begin();
    const std::size_t left = this->bytes();
    if (SPANALLOC_UNLIKELY(left < bytes)) return {nullptr, 0, false};
    bytes = with_rest(bytes, left);
    block->set_tag(key, Tag::of(bytes));
    const bool zero = block >= zero_from_.load_relaxed();
    move_up(block->at(bytes));
    return {block, bytes, zero};
  }
  /// What a block before it grows by, if it grows by `more`, which there is room for.
  static std::size_t with_rest(std::size_t more, std::size_t left) {
    return SPANALLOC_UNLIKELY(left - more < kLeastBlock) ? left : more;
  }
  /// Behind a block that has been cut off it, or has grown into it.
  void move_up(Block* to) {
    begin_.store_release(to);
    // (If a fork comes between the two, the block is nobody's in the child, and stays so.)
    if (zero_from_.load_relaxed() < to) zero_from_.store_release(to);
  }
  /// To a block before it, which is free.
  void move_down(Block* to) { begin_.store_release(to); }

 private:
  Atomic<Slice> run_{0};
  Atomic<Block*> begin_{nullptr};
  Atomic<Block*> end_{nullptr};
  Atomic<Block*> zero_from_{nullptr};  // all is zero behind a header at this place
};

}  // namespace spanalloc::heaps
