// What a thread does about misuse: tells it from correct use, takes what is damaged out of use, and
// reports it: pointers that are no block's, blocks freed twice, and damaged lists.
//
// What is damaged goes out of use before the report: a handler of SIGABRT may allocate, and the
// program may go on from there. `thread` is the thread cache of the calling thread.
#pragma once

#include "pages/nested_blocks.hpp"
#include "standard/span.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc::standard {

template <class Config>
struct Misuse {
  using Classes = SizeClasses<Config>;

  // --- Sentences ---------------------------------------------------------------------------------

  SPANALLOC_COLD [[noreturn]] static void freed_twice(const void* p) {
    os::fatal("double free of", p);
  }
  /// The address lies in the arena, inside a block, in free memory or in memory that was never
  /// handed out. The records cannot tell which: that of a slice inside a span of one block says
  /// what was there before.
  SPANALLOC_COLD [[noreturn]] static void free_of_no_block(const void* p) {
    os::fatal("free of a pointer that is not the start of a live block:", p);
  }
  /// A block on a list has no good link: it was written to since its free, or freed twice and
  /// handed out since.
  SPANALLOC_COLD [[noreturn]] static void broken_list(const Block* block) {
    os::fatal("free list overwritten (write after free, or double free) at", block);
  }
  SPANALLOC_COLD [[noreturn]] static void miscounted(const Block* list) {
    os::fatal("more free blocks than were freed, or fewer (double free) in the list at", list);
  }

  // --- A pointer that is freed -------------------------------------------------------------------

  /// The block to be freed has a link where the program's first word is: almost surely it is on a
  /// list.
  SPANALLOC_INLINE static bool looks_free(const Block* block) {
    return SPANALLOC_UNLIKELY(block->has_link(kMostSpan));
  }

  /// Frees null, or a block whose pages have left the arena; reports a pointer that is none of
  /// ours. `has_record`: p lies in a slice that has a record.
  SPANALLOC_COLD static void free_unknown(void* p, auto& thread, bool has_record) {
    // (The kernel may have placed a mapping of others between ours.)
    if (p == nullptr || thread.pages->outside.free_block(p) || NestedBlocks::free(p)) return;
    if (has_record) free_of_no_block(p);
    os::fatal("free of a pointer that this allocator did not return:", p);
  }

  /// Whether the block is the first of a list of free blocks. (Only a search tells it of the
  /// others.)
  static bool is_newest_free(auto& thread, SpanRef span, SpanWord word, const void* p) {
    return word.head() == thread.pages->offset_of(span, p) ||
           (thread.cache != nullptr && thread.cache->batches.newest(span) == p) ||
           (thread.is_mine(word) && span->free_list().first() == p);
  }

  /// Whether the block is on the span's own lists or remote list, or in this thread's batch. Other
  /// threads may be using the span's lists: a search then ends early, where a block has lost its
  /// link. A block that is out is on none of these.
  SPANALLOC_COLD static bool is_on_list(auto& thread, SpanRef span, const Block* block) {
    const ClassInfo& info = Classes::info(span->class_id());
    const auto has = [&](Block* list) {
      return list_has(list, block, info.virtual_span, info.blocks);
    };
    const SpanWord word = span->word.load_acquire();  // acquire: the links behind its head
    if (word.head() != BlockOffset::kNone && has(thread.pages->block_at_offset(span, word.head())))
      return true;
    if (thread.cache != nullptr && has(thread.cache->batches.newest(span))) return true;
    // Acquire: pairs with FreeTarget::push().
    return has(span->free_list().first_acquire());
  }

  /// Reports a block that looks free if it is on a list that this thread may read. Else the
  /// program has copied a link into it, or another thread's batch has it: it is to be freed like
  /// any other, without the link.
  SPANALLOC_COLD static void clear_suspect(auto& thread, SpanRef span, Block* block) {
    if (is_on_list(thread, span, block)) retire_and_report(thread, span, block);
    block->clear_link();
  }

  // --- Damaged lists -----------------------------------------------------------------------------

  /// Empties a damaged list, whose blocks stay out for ever, and reports it.
  SPANALLOC_COLD [[noreturn]] static void retire_list(FreeList& list) {
    const Block* const first = list.first();
    list.clear();
    broken_list(first);
  }
  /// Empties all lists of an owned span of this thread; its untouched blocks stay. If the span is
  /// in no place, because it was just being counted, it goes out of use.
  SPANALLOC_COLD static void retire_lists(auto& thread, SpanRef span) {
    span->lose_free_blocks();
    (void)span->word.take_remotes(thread.cache->number, Classes::info(span->class_id()).blocks);
    auto& cache = *thread.cache;
    if (cache.owned.has(thread, span)) return;
    thread.heap->protocol().withdraw(span);
  }

  /// The length of a list of this thread's, not empty, for up to `most` blocks. Damaged: retire(),
  /// then a report.
  template <class Retire>
  [[gnu::noinline]] static ListLength length_of_own_list(Block* list, const ClassInfo& info,
                                                         std::uint32_t most, Retire&& retire) {
    const ListLength length = length_of(list, info.virtual_span, most);
    if (SPANALLOC_LIKELY(length.whole)) return length;
    retire();
    if (length.blocks < most) broken_list(length.last);
    os::fatal("more free blocks than the span has (double free) at", length.last);
  }
  /// Checks that a list, which nobody changes, of this thread's owned span has so many blocks.
  /// Returns the last.
  static Block* check_length(auto& thread, SpanRef span, Block* list, std::uint32_t expected) {
    const ClassInfo& info = Classes::info(span->class_id());
    const ListLength length = length_of(list, info.virtual_span, info.blocks);
    if (SPANALLOC_LIKELY(length.whole && length.blocks == expected)) return length.last;
    retire_lists(thread, span);
    if (!length.whole && length.blocks < info.blocks) broken_list(length.last);
    miscounted(list);
  }

  // --- A block that is freed twice ---------------------------------------------------------------

  /// If the block was written to since its first free, the list that it begins is damaged. Then
  /// this thread's batch of the span, and the span if it is this thread's, go out of use.
  SPANALLOC_COLD [[noreturn]] static void retire_and_report(auto& thread, SpanRef span,
                                                            Block* block) {
    if (thread.cache != nullptr && !is_good(span, block)) {
      const auto inside = thread.enter();
      thread.cache->batches.retire(thread, span);
      const SpanWord word = span->load_word();
      if (word.state() != SpanState::kFree && thread.is_mine(word)) {
        // If the span becomes free just now, it is the block that is reported
        block->link_to(no_block());
        thread.heap->protocol().take_out_of_use(span);
      }
    }
    freed_twice(block);
  }
  /// Reports a block of another thread's span that is the newest of those that others have freed
  /// already.
  SPANALLOC_COLD [[noreturn]] static void remotely_freed_twice(auto& thread, SpanRef span,
                                                               Block* block) {
    if (!is_good(span, block)) {
      const auto inside = thread.enter();
      thread.heap->protocol().discard_remotes(span, thread.pages->offset_of(span, block));
    }
    freed_twice(block);
  }

 private:
  static bool is_good(SpanRef span, const Block* block) {
    return block->has_link(Classes::info(span->class_id()).virtual_span);
  }
};

}  // namespace spanalloc::standard
