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

#include "base/inspection_access.hpp"
#include "standard/misuse.hpp"

namespace spanalloc::standard {

/// Only its thread uses it, and of the free target only `free_list`. The child of a fork finds in a
/// vanished thread's loan blocks that count as out and that nobody has. For it `span` is written
/// before the list, and the list is emptied before the blocks go back.
struct Loan : FreeTarget {
  Atomic<SpanNumber> span;  ///< the lender's; its life lasts as long as one of its blocks is here

  /// How many blocks it began with: others can tell no more of how many are left. For statistics,
  /// relaxed. (In the count of frees, which a loan takes none of.)
  void note_blocks(std::uint32_t count) { left_.store_relaxed(count); }
  std::uint32_t blocks() const { return left_.load_relaxed(); }
};

/// Of one cache record, at most one loan a class; `thread`, its thread cache, is the only one who
/// calls. Zero-initialisable.
template <class Config>
class Loans {
  using Classes = SizeClasses<Config>;

 public:
  bool are_none() const {
    for (const Atomic<std::uint64_t>& classes : classes_) {
      if (classes.load_relaxed() != 0) return false;
    }
    return true;
  }

  /// Borrows blocks for a class that has no current span and an empty list. A thread borrows its
  /// first blocks of a class where it can, so that a thread which needs only some does not own a
  /// span for them; later ones only before it would ask for memory that the pool does not have.
  /// False: no span has enough.
  [[gnu::noinline]] bool borrow(auto& thread, ClassId c) {
    SPANALLOC_ASSERT(!thread.current_span(c) && thread.list_of(c).is_empty());
    if (SPANALLOC_UNLIKELY(thread.exited) || !thread.heap->may_have_lenders()) return false;
    if (thread.cache->owned.has_had(c) &&
        (!thread.heap->pool().looks_empty(Classes::info(c).pool_row, thread.shard()) ||
         leaves_out_search())) {
      return false;
    }
    const auto at_least =
        static_cast<std::uint32_t>(min_of(Classes::info(c).enough_free, Config::kLeastLoan));
    const auto borrowed = thread.heap->borrow(c, *thread.cache, at_least);
    searched(static_cast<bool>(borrowed));
    if (!borrowed) return false;
    Block* const list = thread.pages->block_at_offset(borrowed.span, borrowed.first);
    thread.current[index_of(c)] = &begin(c, borrowed.span.number, list, borrowed.count);
    return true;
  }

  /// Gives back the blocks of loans that are left. False: there was none.
  SPANALLOC_COLD bool return_all(auto& thread) {
    SPANALLOC_ASSERT(thread.has_nothing_in_hand());
    bool any = false;
    for_each([&](ClassId c, Loan& loan) {
      if (loan.free_list().is_empty()) return;
      Block* const list = loan.free_list().first();
      const ClassInfo& info = Classes::info(c);
      const auto retire = [&] { loan.free_list().clear(); };
      const ListLength length = Misuse<Config>::length_of_own_list(list, info, info.blocks, retire);
      retire();  // before anybody else has the blocks
      const SpanRef span = thread.pages->span(loan.span.load_relaxed());
      thread.free_to_span(span, list, length.last, length.blocks);
      any = true;
    });
    return any;
  }
  /// Ends all loans: the record's next thread may borrow, too, and this one may still allocate
  /// after its end.
  [[gnu::noinline]] void end_all(auto& thread) {
    return_all(thread);
    for_each([&](ClassId c, Loan& loan) {
      if (thread.current[index_of(c)] == &loan) thread.current[index_of(c)] = &kNoTarget;
    });
    forget();
  }

  std::uint32_t next_lender = 0;  ///< number of the record to ask for a loan next

  /// Whether the block is on the list of a loan from this span.
  SPANALLOC_COLD bool has(SpanRef span, const Block* block) {
    bool found = false;
    for_each([&](ClassId c, Loan& loan) {
      if (loan.span.load_relaxed() != span.number) return;
      const ClassInfo& info = Classes::info(c);
      found = found || list_has(loan.free_list().first(), block, info.virtual_span, info.blocks);
    });
    return found;
  }
  /// Empties the loan from this span, if there is one: its list is damaged.
  SPANALLOC_COLD void retire(SpanRef span) {
    for_each([&](ClassId, Loan& loan) {
      if (loan.span.load_relaxed() == span.number) loan.free_list().clear();
    });
  }

  /// f(ClassId, Loan&) for each that may hold blocks. Also called for a vanished thread's; and, for
  /// statistics, by others.
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
  /// No loan may hold a block, or the blocks are lost.
  void forget() {
    for (Atomic<std::uint64_t>& classes : classes_) classes.store_relaxed(0);
    left_out_ = fruitless_ = 0;
  }

 private:
  friend struct spanalloc::InspectionAccess;

  static constexpr unsigned kWords = (Classes::kSmallClasses + 63) / 64;

  // The class has no loan, or has used it up.
  Loan& begin(ClassId c, SpanNumber span, Block* list, std::uint32_t count) {
    Loan& loan = loans_[index_of(c)];
    // Both with release: a fork's child that finds the class finds its list empty at least, where
    // it was null before; and if it finds the list, it finds the rest.
    loan.free_list().clear();
    loan.span.store_relaxed(span);
    loan.note_blocks(count);
    Atomic<std::uint64_t>& classes = classes_[index_of(c) / 64];
    classes.store_release(classes.load_relaxed() | std::uint64_t{1} << index_of(c) % 64);
    loan.free_list().set(list);
    return loan;
  }

  // After a search that has found no lender, of whatever class, the next 1, 3, 7, 15 are left out.
  bool leaves_out_search() {
    if (left_out_ == 0) return false;
    --left_out_;
    return true;
  }
  void searched(bool found) {
    fruitless_ =
        found ? 0 : static_cast<std::uint8_t>((fruitless_ * 2 + 1) & Config::kMostSearchesLeftOut);
    left_out_ = fruitless_;
  }

  std::uint8_t left_out_ = 0;              // searches to leave out from now on
  std::uint8_t fruitless_ = 0;             // what left_out_ began with
  Atomic<std::uint64_t> classes_[kWords];  // bit c: class c may have one
  Loan loans_[Classes::kSmallClasses];
};

}  // namespace spanalloc::standard
