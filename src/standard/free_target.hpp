// All that a free must know of the span or batch that takes the block: one address
// test, one list, one count.
#pragma once

#include <cstdint>

#include "base/atomic.hpp"
#include "base/compiler.hpp"
#include "base/inspection_access.hpp"
#include "standard/free_list.hpp"

namespace spanalloc::standard {

/// Tells the starts of a span's blocks from all other addresses: (a - base) * magic < limit, modulo
/// 2^64. The test is exact for every address (multiple_limit): it also tells whether `a` lies in
/// the span at all. Zero-initialised, it accepts no address.
struct BlockTest {
  /// Where the span's first block begins (in Span::shown_ for a span of one block)
  OwnersWord base;
  OwnersWord magic;  ///< divisibility_magic of the block size; 1 for a span of one block
  OwnersWord limit;  ///< multiple_limit of the blocks that were ever handed out, or are about to be

  SPANALLOC_INLINE bool is_block(std::uintptr_t a) const {
    return (a - base.load_relaxed()) * magic.load_relaxed() < limit.load_relaxed();
  }
  void set(std::uint64_t new_base, std::uint64_t new_magic, std::uint64_t new_limit) {
    base.store_relaxed(new_base);
    magic.store_relaxed(new_magic);
    limit.store_relaxed(new_limit);
  }
  void set(const BlockTest& other) {
    set(other.base.load_relaxed(), other.magic.load_relaxed(), other.limit.load_relaxed());
  }
};

/// What an own span's list can go on with when it ends. Other threads read whether it is kAway: it
/// says whether they may claim the span (span_protocol.hpp, I2).
enum class Stock : std::uint8_t {
  kMore,    ///< perhaps blocks that were never carved, or are purged
  kNone,    ///< nothing: all that is free is on the list
  kBatch,   ///< nothing: the list is no span's, but a batch's (remote_batches.hpp)
  kUsedUp,  ///< nothing, and the list is empty: the next free is an event
  kAway,    ///< the same, and the span is not the current one of its class (owned_spans.hpp)
};

/// Takes in freed blocks of one span, from one thread at a time. `Pointer`: to a FreeTarget.
class FreeTarget {
 public:
  constexpr FreeTarget() = default;
  constexpr explicit FreeTarget(Block* first) : free_list_(first), stock_{Stock::kAway} {}

  FreeList& free_list() { return free_list_; }
  const FreeList& free_list() const { return free_list_; }

  /// What a list that ends can go on with, and whether the next free is the first since then. Asked
  /// and set by the owner.
  Stock stock() const { return stock_.load_relaxed(); }
  void set_stock(Stock stock) { stock_.store_relaxed(stock); }
  SPANALLOC_INLINE bool is_used_up() const { return stock() >= Stock::kUsedUp; }
  /// Others may claim the span from here on, if none of its blocks is out. Release: they see it as
  /// its owner has left it.
  SPANALLOC_INLINE void set_away() { stock_.store_release(Stock::kAway); }
  /// For others, who then claim the span.
  bool is_away() const { return stock_.load_acquire() == Stock::kAway; }
  /// The last block has been taken off the list of the class's current span, which has no other.
  SPANALLOC_INLINE void use_up() {
    left_.store_relaxed(1);
    set_stock(Stock::kUsedUp);
  }
  /// Of an own span: constant while it is one.
  SPANALLOC_INLINE ClassId own_class() const { return ClassId{own_class_}; }

  /// Asked by the thread that frees: whether a block of the span begins at `a`.
  template <class Pointer>
  SPANALLOC_INLINE static bool accepts(Pointer& target, std::uintptr_t a) {
    return (a - target->blocks_.base.read_own()) * target->blocks_.magic.read_own() <
           target->blocks_.limit.read_own();
  }
  /// The owner frees `block`, a block of the span that is out; `link` leads to the list as it is.
  /// No lock, no read-modify-write. True: an event, for the caller to look at.
  template <class Pointer>
  SPANALLOC_INLINE static bool push(Pointer& target, Block* block, std::uint64_t link) {
    target->free_list().push(block, link);
    // Release: a fork's child that finds the count finds the list.
    return target->left_.count_down_release();
  }

 protected:
  friend struct spanalloc::InspectionAccess;

  BlockTest blocks_;
  FreeList free_list_;          // the freed blocks
  Atomic<std::uint32_t> left_;  // the free that brings it to 0 is an event
  Atomic<std::uint32_t> quota_{0};
  Atomic<Stock> stock_{Stock::kMore};  // 0: maps are in memory that is zero
  std::uint8_t own_class_ = 0;
};

/// Stands for the current span where a class has none: it has no block. Never written.
inline constinit FreeTarget kNoTarget{no_block()};

}  // namespace spanalloc::standard
