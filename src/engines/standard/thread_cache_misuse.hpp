// Reports of misuse: of pointers that are no block's, of blocks freed twice, and of damaged lists.
#pragma once

#include "engines/standard/thread_cache.hpp"

namespace spanalloc::standard {

template <class Config>
SPANALLOC_COLD inline void ThreadCache<Config>::deallocate_outside_spans(void* p, ThreadCache& self,
                                                                         bool has_record) {
  // (The kernel may have placed a mapping of others between ours.)
  if (p == nullptr || self.pages->free_outside(p) || NestedBlocks::free(p)) return;
  if (has_record) free_of_no_block(p);
  os::fatal("free of a pointer that this allocator did not return:", p);
}

// Whether the block is the first of a list of free blocks. (Only a search tells it of the others.)
template <class Config>
inline bool ThreadCache<Config>::is_newest_free(const void* p, const Location& at) {
  if (at.word.head() == as_block_offset(offset_in(at.span, p))) return true;
  if (cache != nullptr) {
    const RemoteBatch& batch = cache->batches.of(at.span.number);
    if (batch.holds(at.span.number) && batch.free_list.load_relaxed() == p) return true;
  }
  return is_mine(at.word) && at.span->free_list.load_relaxed() == p;
}

// Whether the block is on the span's own lists or remote list, or in this thread's batch or loan.
// Other threads may be using the span's lists: a search then ends early, where a block has lost its
// link. A block that is out is on none of these.
template <class Config>
SPANALLOC_COLD inline bool ThreadCache<Config>::is_on_list(SpanRef span, const Block* block) {
  const ClassId c = span->class_id();
  const ClassInfo& info = Classes::info(c);
  const auto has = [&](Block* list) {
    return list_has(list, block, info.virtual_span, info.blocks);
  };
  const SpanWord word{span->word.load_acquire()};  // acquire: the links behind its head
  if (word.head() != BlockOffset::kNone && has(pages->block_at_offset(span, word.head())))
    return true;
  if (cache != nullptr) {
    const RemoteBatch& batch = cache->batches.of(span.number);
    if (batch.holds(span.number) && has(batch.free_list.load_relaxed())) return true;
  }
  // Acquire: pairs with push_freed().
  return is_borrowed(span, block) || has(span->free_list.load_acquire()) ||
         has(span->rest.load_acquire());
}

// Reports a block that looks free if it is on a list that this thread may read. Else the
// program has copied a link into it, or another thread's batch has it: it is freed like any
// other, without the link.
template <class Config>
SPANALLOC_COLD inline void ThreadCache<Config>::deallocate_suspect(void* p, ThreadCache& self,
                                                                   SpanRef span) {
  Block* block = static_cast<Block*>(p);
  if (self.is_on_list(span, block)) self.retire_and_report(span, block);
  clear_link(block);
  deallocate_by_record(p, self);
}

// Reports a block on a list without a good link: it was written to since its free, or freed
// twice and handed out since.
template <class Config>
SPANALLOC_COLD [[noreturn]] inline void ThreadCache<Config>::broken_list(const Block* block) {
  os::fatal("free list overwritten (write after free, or double free) at", block);
}

// Empties a damaged list, whose blocks stay out for ever, and reports it. What is
// damaged goes out of use before the report: a handler of SIGABRT may allocate, and the
// program may go on from there.
template <class Config>
SPANALLOC_COLD [[noreturn]] inline void ThreadCache<Config>::retire_list(Atomic<Block*>& list) {
  const Block* const first = list.load_relaxed();
  list.store_release(no_block());
  broken_list(first);
}
// Empties all lists of an owned span of this thread; its untouched blocks stay. If the span is in
// no place, because it was just being counted, it goes out of use.
template <class Config>
SPANALLOC_COLD inline void ThreadCache<Config>::retire_lists(SpanRef span) {
  span->free_list.store_release(no_block());
  span->rest.store_release(no_block());
  span->purged.store_release(0);
  (void)take_remotes(span->word, Classes::info(span->class_id()).blocks);
  if (cache->has_as_owned(span.number, span->class_id())) return;
  // The report lets go of it
  if (!cache->lock.is_mine()) heap->protocol().lock_cache(cache->number);
  heap->protocol().retire(*cache, span);
}

// A block is freed a second time. If it was written to in between, the list that it begins is
// damaged. Then this thread's batch and loan of the span, and the span if it is this
// thread's, go out of use.
template <class Config>
SPANALLOC_COLD inline void ThreadCache<Config>::retire_if_first(SpanRef span, Block* block) {
  if (cache == nullptr ||
      is_link(block, link_of(block), Classes::info(span->class_id()).virtual_span))
    return;
  const Inside inside(*this);
  if (RemoteBatch& batch = cache->batches.of(span.number); batch.holds(span.number)) {
    cache->batches.end(batch, Classes::info(span->class_id()).block_size);
    pages->hide_in_map(*map, span, batch);
  }
  cache->loans.for_each([&](ClassId, Loan& loan) {
    if (loan.span.load_relaxed() == span.number) loan.free_list.store_release(no_block());
  });
  const typename Heap::Protocol::CacheGuard guard(heap->protocol(), cache->number);
  if (const SpanWord word = span->load_word(); word.state() != SpanState::kFree && is_mine(word)) {
    // If the span becomes free just now, it is the block that is reported
    link_to(block, no_block());
    heap->protocol().take_out_of_use(pages->cache(cache->number), span);
  }
}
template <class Config>
SPANALLOC_COLD [[noreturn]] inline void ThreadCache<Config>::retire_and_report(SpanRef span,
                                                                               Block* block) {
  retire_if_first(span, block);
  freed_twice(block);
}

// Reports a block of another thread's span that is the newest of those that
// others have freed already.
template <class Config>
SPANALLOC_COLD [[noreturn]] inline void ThreadCache<Config>::remotely_freed_twice(SpanRef span,
                                                                                  Block* block) {
  if (!is_link(block, link_of(block), Classes::info(span->class_id()).virtual_span)) {
    const Inside inside(*this);
    heap->protocol().discard_remotes(span, as_block_offset(offset_in(span, block)));
  }
  freed_twice(block);
}

template <class Config>
SPANALLOC_COLD [[noreturn]] inline void ThreadCache<Config>::miscounted(const Block* list) {
  os::fatal("more free blocks than were freed, or fewer (double free) in the list at", list);
}

// The length of a list of this thread's, not empty, for up to `most` blocks. Damaged:
// retire(), then a report.
template <class Config>
template <class Retire>
[[gnu::noinline]] inline ListLength ThreadCache<Config>::length_of_own_list(Block* list,
                                                                            const ClassInfo& info,
                                                                            std::uint32_t most,
                                                                            Retire&& retire) {
  const ListLength length = length_of(list, info.virtual_span, most);
  if (SPANALLOC_LIKELY(length.whole)) return length;
  retire();
  if (length.blocks < most) broken_list(length.last);
  os::fatal("more free blocks than the span has (double free) at", length.last);
}

// Checks that a list, which nobody changes, of this thread's owned span has so many
// blocks. Returns the last.
template <class Config>
inline Block* ThreadCache<Config>::check_length(SpanRef span, Block* list, const ClassInfo& info,
                                                std::uint32_t expected) {
  const ListLength length = length_of(list, info.virtual_span, info.blocks);
  if (SPANALLOC_LIKELY(length.whole && length.blocks == expected)) return length.last;
  retire_lists(span);
  if (!length.whole && length.blocks < info.blocks) broken_list(length.last);
  miscounted(list);
}

}  // namespace spanalloc::standard
