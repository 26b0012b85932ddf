// Blocks of another thread's current span that a thread allocates from: what others had freed into that span,
// and its owner, who may be asleep, has not fetched.
//
// A current span is its owner's alone, but for its remote list, which is in its word: who takes that list by
// a compare-and-swap has blocks that count as out. They are handed out by the short path like those of a hot
// span of one's own, and freed like any block of another thread's span. So a thread that is handed on what
// another one has allocated need not touch fresh memory for its own, while the spans of the other one wait.
#pragma once

#include <bit>
#include <cstdint>

#include "base/atomic.hpp"
#include "engines/standard/block.hpp"
#include "engines/standard/free_target.hpp"
#include "engines/standard/numbers.hpp"

namespace spanalloc::standard {

/// Its thread's alone; only `free_list` of the target is used. A fork's child finds in a vanished thread's
/// loan blocks that count as out, and are in nobody's hands: `span` is written before the list, and the list
/// is emptied before the blocks go back.
struct Loan : FreeTarget {
  Atomic<SpanNumber> span;  ///< whose blocks they are; its life lasts as long as there is one
};

/// One a class at most. Zero-initialisable.
template <unsigned kClassCount>
class Loans {
 public:
  bool are_none() const {
    for (const Atomic<std::uint64_t>& classes : classes_) {
      if (classes.load_relaxed() != 0) return false;
    }
    return true;
  }
  /// The class has none, or has used it up.
  Loan& begin(ClassId c, SpanNumber span, Block* list) {
    Loan& loan = loans_[index_of(c)];
    // The list last, with release: a fork's child that finds it finds the rest. (Of none it is an end.)
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
      for (std::uint64_t classes = classes_[word].load_relaxed(); classes != 0; classes &= classes - 1) {
        const ClassId c{word * 64 + static_cast<unsigned>(std::countr_zero(classes))};
        f(c, loans_[index_of(c)]);
      }
    }
  }
  /// A search that finds no lender, of whatever class, makes the next 1, 3, 7, 15 unlikely to: true, it is
  /// not worth one yet.
  bool rest() {
    if (rests_ == 0) return false;
    --rests_;
    return true;
  }
  void searched(bool found) {
    fruitless_ = found ? 0 : static_cast<std::uint8_t>((fruitless_ * 2 + 1) & kMostRests);
    rests_ = fruitless_;
  }
  /// None may hold a block, or they are lost.
  void forget() {
    for (Atomic<std::uint64_t>& classes : classes_) classes.store_relaxed(0);
    rests_ = fruitless_ = 0;
  }

 private:
  static constexpr unsigned kWords = (kClassCount + 63) / 64;
  static constexpr unsigned kMostRests = 15;

  std::uint8_t rests_ = 0;                 // searches that are left out from now on
  std::uint8_t fruitless_ = 0;             // as many as the last fruitless one was worth
  Atomic<std::uint64_t> classes_[kWords];  // bit c: class c may have one
  Loan loans_[kClassCount];
};

}  // namespace spanalloc::standard
