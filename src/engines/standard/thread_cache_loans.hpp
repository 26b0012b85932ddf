// How a thread borrows blocks of other threads' owned spans and allocates from them; see loans.hpp.
#pragma once

#include "engines/standard/thread_cache.hpp"

namespace spanalloc::standard {

// Borrows blocks for a class that has no current span and an empty list. A thread borrows its
// first blocks of a class where it can, so that a thread which needs only some does not own a
// span for them; later ones only before it would ask for memory that the pool does not have.
// False: no span has enough.
template <class Config>
[[gnu::noinline]] inline bool ThreadCache<Config>::borrow(ClassId c) {
  SPANALLOC_ASSERT(!current_span(c) && is_end(list_of(c).load_relaxed()));
  if (SPANALLOC_UNLIKELY(exited) || !heap->may_have_lenders()) return false;
  const bool has_had_spans =
      (cache->current_classes[index_of(c) / 64] >> index_of(c) % 64 & 1) != 0;
  if (has_had_spans && (!heap->looks_out_of_spans(c, shard()) || cache->loans.rest())) return false;
  const auto at_least =
      static_cast<std::uint32_t>(min_of(Classes::info(c).refill_remotes, kLeastLoan));
  const auto borrowed = heap->borrow(c, *cache, at_least);
  cache->loans.searched(static_cast<bool>(borrowed));
  if (!borrowed) return false;
  Block* const list = pages->block_at_offset(borrowed.span, borrowed.first);
  current[index_of(c)] = &cache->loans.begin(c, borrowed.span.number, list);
  return true;
}

// Gives back the blocks of loans that are left. False: there was none.
template <class Config>
SPANALLOC_COLD inline bool ThreadCache<Config>::return_loans() {
  bool any = false;
  cache->loans.for_each([&](ClassId c, Loan& loan) {
    Block* const list = loan.free_list.load_relaxed();
    if (is_end(list)) return;
    const ClassInfo& info = Classes::info(c);
    const auto retire = [&] { loan.free_list.store_release(no_block()); };
    const ListLength length = length_of_own_list(list, info, info.blocks, retire);
    loan.free_list.store_release(no_block());  // before anybody else has the blocks
    free_to_span(pages->span(loan.span.load_relaxed()), list, length.last, length.blocks);
    any = true;
  });
  return any;
}

// Ends all loans: the record's next thread may borrow, too, and this one may
// still allocate after its end.
template <class Config>
[[gnu::noinline]] inline void ThreadCache<Config>::end_loans() {
  return_loans();
  cache->loans.for_each([&](ClassId c, Loan& loan) {
    if (current[index_of(c)] == &loan) current[index_of(c)] = &kNoTarget;
  });
  cache->loans.forget();
}

// Whether the block is on the list of a loan of this thread.
template <class Config>
SPANALLOC_COLD inline bool ThreadCache<Config>::is_borrowed(SpanRef span, const Block* block) {
  bool found = false;
  if (cache == nullptr) return found;
  cache->loans.for_each([&](ClassId c, Loan& loan) {
    if (loan.span.load_relaxed() != span.number) return;
    const ClassInfo& info = Classes::info(c);
    found = found || list_has(loan.free_list.load_relaxed(), block, info.virtual_span, info.blocks);
  });
  return found;
}

}  // namespace spanalloc::standard
