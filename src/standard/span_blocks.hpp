// Where a span that the thread owns has its blocks from: carved ones, purged ones that are linked
// up again, and what other threads have freed. Each refills the span's one list, which malloc takes
// from and free pushes on.
#pragma once

#include "standard/misuse.hpp"

namespace spanalloc::standard {

/// What an empty list was refilled with. kZeroBlocks: they are zero but for their links.
enum class Refilled { kNothing, kBlocks, kZeroBlocks };

/// Blocks of one span that are linked up; the last one leads to no block.
struct BlockChain {
  Block* first = nullptr;
  Block* last = nullptr;
  std::uint32_t count = 0;
};

/// Only the owner calls these, or for take_held() the holder; `thread` is its thread cache.
template <class Config>
struct SpanBlocks {
  using Classes = SizeClasses<Config>;
  using Misuse = standard::Misuse<Config>;

  /// Takes the first block off a list that is not empty.
  SPANALLOC_INLINE static Block* pop(FreeList& list, const ClassInfo& info) {
    Block* block = list.pop(info.virtual_span);
    if (SPANALLOC_UNLIKELY(block == nullptr)) Misuse::retire_list(list);
    unpoison(block, info.block_size);
    return block;
  }

  /// Whether a current span has nothing that its free_list could go on with.
  static bool is_all_on_list(SpanRef span) {
    return span->carved() == Classes::info(span->class_id()).blocks && span->purged() == 0;
  }

  /// Refills the span's empty list: with purged blocks, or the next untouched ones.
  [[gnu::noinline]] static Refilled refill_from_span(auto& thread, SpanRef span) {
    SPANALLOC_ASSERT(span->free_list().is_empty() && has_alone(thread, span));
    const ClassInfo& info = Classes::info(span->class_id());
    if (SPANALLOC_UNLIKELY(span->purged() != 0)) {
      span->free_list().set(take_purged(thread, span, info));
      return Refilled::kBlocks;
    }
    if (span->carved() == info.blocks) return Refilled::kNothing;
    span->free_list().set(carve(thread, span, info));
    return span->is_zero() ? Refilled::kZeroBlocks : Refilled::kBlocks;
  }

  /// Carves the next block; nullptr: there is none.
  SPANALLOC_INLINE static Block* carve_one(SpanRef span, const ClassInfo& info) {
    if (span->carved() == info.blocks) return nullptr;
    Block* block = span->next_to_carve(info);
    count_carved(span, info, 1);
    unpoison(block, info.block_size);
    block->clear_link();
    return block;
  }

  /// Refills the span's empty list with what other threads have freed of it, if that is enough.
  SPANALLOC_INLINE static bool take_remotes(auto& thread, SpanRef span, std::uint32_t at_least) {
    // (An away span may be claimed meanwhile, and live another life. Then nothing is taken.)
    const ClassInfo& info = Classes::info(span->shown_class());
    // An old value only delays the choice.
    if (info.blocks - span->load_word().outstanding() < at_least) return false;
    const RemoteList remotes = span->word.take_remotes(thread.cache->number, info.blocks);
    // Another thread has claimed the span since that look.
    if (SPANALLOC_UNLIKELY(remotes.first == BlockOffset::kNone)) return false;
    SPANALLOC_ASSERT(span->free_list().is_empty());
    Block* const list = thread.pages->block_at_offset(span, remotes.first);
    // span_word.hpp's equation: of an owned span the word counts no other frees. (Only the
    // assertion counts the list, because that is a walk over blocks in another CPU's cache. pop()
    // finds a block that is here a second time: it has no link.)
    SPANALLOC_ASSERT(length_of(list, info.virtual_span, info.blocks).blocks == remotes.count);
    span->free_list().set(list);
    return true;
  }

  /// Takes up to `most` free blocks off a span that the thread holds, linked up. None: the links
  /// of its lists are damaged; its other blocks may serve still.
  [[gnu::noinline]] static BlockChain take_held(auto& thread, SpanRef span, std::uint32_t most) {
    const ClassInfo& info = Classes::info(span->class_id());
    if (span->free_list().is_empty()) {
      const BlockOffset remotes = thread.pages->cut_lists(span, span->word.take_held_remotes());
      if (remotes != BlockOffset::kNone)
        span->free_list().set(thread.pages->block_at_offset(span, remotes));
    }
    if (span->free_list().is_empty()) {
      const auto untouched = static_cast<std::uint32_t>(min_of(info.blocks - span->carved(), most));
      if (span->purged() == 0 && untouched != 0) {
        Block* const first = carve(thread, span, info, untouched);
        auto* const last = pointer_to<Block>(address_of(first) + (untouched - 1) * info.block_size);
        return {first, last, untouched};
      }
      refill_from_span(thread, span);
    }
    BlockChain chain{span->free_list().first()};
    Block* next = chain.first;
    for (; chain.count != most && !next->is_end(); next = chain.last->next()) {
      if (SPANALLOC_UNLIKELY(!next->has_link(info.virtual_span))) return {};
      chain.last = next;
      ++chain.count;
    }
    // In this order a fork's child finds blocks that are on no list, which count as out.
    span->free_list().set(next);
    if (chain.count != 0) chain.last->link_to(no_block());
    return chain;
  }

  /// Adds the remote list of a span that has become owned.
  static void add_remotes(auto& thread, SpanRef span, BlockOffset remotes) {
    if (remotes == BlockOffset::kNone) return;
    Block* const list = thread.pages->block_at_offset(span, remotes);
    if (span->free_list().is_empty()) return span->free_list().set(list);
    const ClassInfo& info = Classes::info(span->class_id());
    const auto retire = [&] { Misuse::retire_lists(thread, span); };
    Block* const last = Misuse::length_of_own_list(list, info, info.blocks, retire).last;
    span->free_list().prepend(list, last);
  }

  /// Counts what is free in a span, but for what other threads have freed.
  static std::uint32_t count_free(auto& thread, SpanRef span) {
    const ClassInfo& info = Classes::info(span->class_id());
    const std::uint32_t unlisted = span->count_unlisted(info);
    Block* const list = span->free_list().first();
    const auto retire = [&] { Misuse::retire_lists(thread, span); };
    const ListLength own =
        list->is_end() ? ListLength{}
                       : Misuse::length_of_own_list(list, info, info.blocks - unlisted, retire);
    // A block that was freed once into each of two lists has joined them: from there on they are
    // one. Others may go on freeing: the list behind the head that is read here stays as it is.
    const SpanWord word = span->word.load_acquire();
    if (SPANALLOC_UNLIKELY(word.head() != BlockOffset::kNone) &&
        own.last == Misuse::check_length(thread, span, thread.pages->first_of(span, word.head()),
                                         info.blocks - word.outstanding())) {
      Misuse::retire_lists(thread, span);
      Misuse::freed_twice(own.last);
    }
    return unlisted + own.blocks;
  }

 private:
  // Carves the blocks that start in the next page (at least one), in address order, and links them
  // up. Of larger blocks it carves some more where the memory was used before: most of their pages
  // are there.
  static Block* carve(auto& thread, SpanRef span, const ClassInfo& info) {
    const std::uint32_t carved = span->carved();
    SPANALLOC_ASSERT(carved < info.blocks && thread.is_owned_here(span->load_word()));
    const std::size_t offset = info.offset_of(carved);
    const std::size_t page_end = align_down(offset, kSmallPage) + kSmallPage;
    auto count =
        static_cast<std::uint32_t>((page_end - offset + info.block_size - 1) / info.block_size);
    if (count == 1 && !span->is_zero()) count = Config::kCarvedWhereUsed;
    count = static_cast<std::uint32_t>(min_of(count, info.blocks - carved));
    return carve(thread, span, info, count);
  }
  static Block* carve(auto& thread, SpanRef span, const ClassInfo& info, std::uint32_t count) {
    char* const at = thread.pages->address(span.number) + info.offset_of(span->carved());
    Block* const first = link_up(at, info.block_size, count);
    count_carved(span, info, count);
    return first;
  }
  static bool has_alone(auto& thread, SpanRef span) {
    return thread.is_owned_here(span->load_word()) || span->load_word().is_held();
  }
  SPANALLOC_INLINE static void count_carved(SpanRef span, const ClassInfo& info,
                                            std::uint32_t count) {
    const std::uint32_t before = span->carved();
    span->carve(info, count);
    expect_emptying(span, info, before == 0 ? 1 : before);
  }

  // Links up the purged blocks of the next purged page, or pages, if a block touches several: at
  // least one.
  SPANALLOC_COLD static Block* take_purged(auto& thread, SpanRef span, const ClassInfo& info) {
    std::uint64_t purged = span->purged();
    SPANALLOC_ASSERT(purged != 0 && has_alone(thread, span));
    Block* first = no_block();
    Block* last = nullptr;
    do {
      const std::uint64_t page = purged & -purged;
      purged &= ~page;
      for_each_purged(page, info, span->carved(), [&](std::uint32_t i) {
        if ((PageMask::of_block(i, info) & purged) != 0) return;
        auto* block =
            reinterpret_cast<Block*>(thread.pages->address(span.number) + info.offset_of(i));
        unpoison(block, sizeof(Block));
        // It has no link, unless it was freed a second time.
        if (SPANALLOC_UNLIKELY(block->has_link(info.virtual_span))) {
          span->set_purged(0);  // they are lost
          Misuse::freed_twice(block);
        }
        if (last != nullptr) {
          last->link_to(block);
        } else {
          first = block;
        }
        last = block;
      });
    } while (last == nullptr);
    last->link_to(no_block());
    // Before they are on a list: a fork's child takes them as out.
    const std::size_t gone = PageMask::pages(span->purged());
    span->set_purged(purged);
    thread.pages->memory_return.count_gone(gone, PageMask::pages(purged));
    expect_emptying(span, info, span->carved());
    return first;
  }

  // The list of a current span has just ended, so `out` of its blocks may be out. When three
  // quarters of these are free again, the owner looks whether it is giving the span up
  // (OwnedSpans). This is set each time the list goes on with blocks that were not on it before: a
  // program that goes on in the span pays nothing. It is not set for a span that has carved little:
  // giving it up costs a busy thread more than it gains.
  SPANALLOC_INLINE static void expect_emptying(SpanRef span, const ClassInfo& info,
                                               std::uint32_t out) {
    span->set_stock(Stock::kMore);
    if (span->carved() * info.block_size <= Config::kLittleForCurrent) return;
    const std::uint32_t own = span->own_out(out);
    span->expect_emptying(own - own / 4, 0);
  }
};

}  // namespace spanalloc::standard
