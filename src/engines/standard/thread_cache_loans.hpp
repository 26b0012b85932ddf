// Loans: blocks of other threads' current spans that this thread allocates from; see loans.hpp.
#pragma once

#include "engines/standard/engine.hpp"

namespace spanalloc::standard {

// The class has no current span, and its list is empty. A thread's first blocks of a class are borrowed where
// that is possible, so that one which needs only some does not hold a span; later ones only before memory is
// asked for that the pool does not have. False: nobody has enough.
template <class Config>
[[gnu::noinline]] inline bool ThreadCache<Config>::borrow(ClassId c) {
  SPANALLOC_ASSERT(!current_span(c) && is_end(list_of(c).load_relaxed()));
  if (SPANALLOC_UNLIKELY(exited) || !heap->may_have_lenders()) return false;
  const bool has_had_spans = (cache->current_classes[index_of(c) / 64] >> index_of(c) % 64 & 1) != 0;
  if (has_had_spans && (!heap->looks_out_of_spans(c, shard()) || cache->loans.rest())) return false;
  const auto at_least = static_cast<std::uint32_t>(min_of(Classes::info(c).refill_remotes, kLeastLoan));
  const auto borrowed = heap->borrow(c, *cache, at_least);
  cache->loans.searched(static_cast<bool>(borrowed));
  if (!borrowed) return false;
  Block* const list = pages->block_at_offset(borrowed.span, borrowed.first);
  current[index_of(c)] = &cache->loans.begin(c, borrowed.span.number, list);
  return true;
}

// What is left of them goes back. False: nothing was.
template <class Config>
SPANALLOC_COLD inline bool ThreadCache<Config>::return_loans() {
  bool any = false;
  cache->loans.for_each([&](ClassId c, Loan& loan) {
    Block* const list = loan.free_list.load_relaxed();
    if (is_end(list)) return;
    const ClassInfo& info = Classes::info(c);
    const auto lose = [&] { loan.free_list.store_release(no_block()); };
    const ListLength length = length_of_own_list(list, info, info.blocks, lose);
    loan.free_list.store_release(no_block());  // before the blocks are anybody else's
    free_to_span(pages->span(loan.span.load_relaxed()), list, length.last, length.blocks);
    any = true;
  });
  return any;
}

// The thread cache is another thread's soon, which may borrow, too; and this one may allocate past its end.
template <class Config>
[[gnu::noinline]] inline void ThreadCache<Config>::end_loans() {
  return_loans();
  cache->loans.for_each([&](ClassId c, Loan& loan) {
    if (current[index_of(c)] == &loan) current[index_of(c)] = &kNoTarget;
  });
  cache->loans.forget();
}

// Whether the block waits in this thread's loan.
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
