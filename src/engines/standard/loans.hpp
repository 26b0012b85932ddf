// Loans: blocks that a thread takes from another thread's owned span and allocates from.
// They are blocks that others had freed into that span and that its owner, which may be
// waiting, has not taken yet.
//
// Only its owner uses an owned span, but for the remote list, which is in the span's word. A thread
// that takes this list by a compare-and-swap has blocks that count as out. The short path hands
// them out like those of the thread's own current span, and they are freed like any block of
// another thread's span. So a thread that frees what another one allocates need not touch fresh
// memory while that lies idle.
#pragma once

#include <bit>
#include <cstdint>

#include "base/atomic.hpp"
#include "engines/standard/block.hpp"
#include "engines/standard/free_target.hpp"
#include "engines/standard/numbers.hpp"

namespace spanalloc::standard {

/// Only its thread uses it, and only `free_list` of the free target. The child of a fork finds in a
/// vanished thread's loan blocks that count as out and that nobody has. For it `span` is written
/// before the list, and the list is emptied before the blocks go back.
struct Loan : FreeTarget {
  Atomic<SpanNumber> span;  ///< the lender's; its life lasts as long as one of its blocks is here
};

/// At most one loan a class. Zero-initialisable.
template <unsigned kClassCount>
class Loans {
 public:
  bool are_none() const {
    for (const Atomic<std::uint64_t>& classes : classes_) {
      if (classes.load_relaxed() != 0) return false;
    }
    return true;
  }
  /// The class has no loan, or has used it up.
  Loan& begin(ClassId c, SpanNumber span, Block* list) {
    Loan& loan = loans_[index_of(c)];
    // The list last, with release: a fork's child that finds it finds the rest.
    // (Until then it is empty.)
    loan.free_list.store_relaxed(no_block());
    loan.span.store_relaxed(span);
    Atomic<std::uint64_t>& classes = classes_[index_of(c) / 64];
    classes.store_relaxed(classes.load_relaxed() | std::uint64_t{1} << index_of(c) % 64);
    loan.free_list.store_release(list);
    return loan;
  }
  /// f(ClassId, Loan&) for each that may hold blocks.
  template <class F>
  void for_each(F&& f) {
    for (unsigned word = 0; word < kWords; ++word) {
      for (std::uint64_t classes = classes_[word].load_relaxed(); classes != 0;
           classes &= classes - 1) {
        const ClassId c{word * 64 + static_cast<unsigned>(std::countr_zero(classes))};
        f(c, loans_[index_of(c)]);
      }
    }
  }
  /// After a search that has found no lender, of whatever class, the next 1, 3, 7, 15 are left out.
  /// True: leave this one out.
  bool rest() {
    if (rests_ == 0) return false;
    --rests_;
    return true;
  }
  void searched(bool found) {
    fruitless_ = found ? 0 : static_cast<std::uint8_t>((fruitless_ * 2 + 1) & kMostRests);
    rests_ = fruitless_;
  }
  /// No loan may hold a block, or the blocks are lost.
  void forget() {
    for (Atomic<std::uint64_t>& classes : classes_) classes.store_relaxed(0);
    rests_ = fruitless_ = 0;
  }

 private:
  static constexpr unsigned kWords = (kClassCount + 63) / 64;
  static constexpr unsigned kMostRests = 15;

  std::uint8_t rests_ = 0;                 // searches to leave out from now on
  std::uint8_t fruitless_ = 0;             // what rests_ began with
  Atomic<std::uint64_t> classes_[kWords];  // bit c: class c may have one
  Loan loans_[kClassCount];
};

}  // namespace spanalloc::standard
