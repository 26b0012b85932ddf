// Purges the pages of a span that nobody owns on which no block is out, while other blocks of the
// span are.
//
// The purging thread holds the span. So nobody takes a block from it, and its own lists are the
// holder's. Other threads may only free blocks that are out, onto the remote list: each reads where
// the list begins, writes to the freed block, and makes that the new beginning. So everything
// behind the first block of that list is the purging thread's to change, but where the list begins
// is not.
//
// If the first block of the remote list is purged it stays the first, without a link; the blocks
// behind it go onto the span's own list. Blocks that are pushed later lead to the purged block,
// where the list is at its end: cut_lists() ends it there before blocks are taken off it again.
//
// The order of steps serves a fork's child that finds the span's holder vanished: first the mask is
// written, then the blocks that it covers leave the lists, then their pages go. So a purged block
// with a link, on a list in a child, is one that should have left already (unlink_purged); one
// without a link is an end.
#pragma once

#include <cstdint>

#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "base/poison.hpp"
#include "standard/free_list.hpp"
#include "standard/purged_pages.hpp"
#include "standard/size_classes.hpp"
#include "standard/span.hpp"

namespace spanalloc::standard {

/// One span, as the purging thread sees it. `base`: where the span begins. `remotes`: the first
/// block of its remote list, or no_block().
class PartialPurge {
 public:
  PartialPurge(Span& span, char* base, const SizeClass& info)
      : span_(span), base_(base), info_(info), carved_(span.carved()) {}

  /// purge(first byte, bytes) returns false if the old bytes stay. Returns the cost, in some 7 ns:
  /// 1 for a block that was looked at, 16 for a page purged, 100 for a call.
  template <class Purge>
  std::uint32_t purge_pages(Block* remotes, std::size_t page_size, Purge&& purge) {
    const std::uint64_t old = purged();
    Block* const first = span_.free_list().first();
    // Damaged lists are left alone: who takes blocks from them reports them.
    if (!count_list(first) || !count_list(remotes)) return cost_;
    for_each_purged(old, info_, carved_, [&](std::uint32_t i) { count_block(i); });
    const Pages pages = pages_to_give(old, page_size);
    if (pages.fresh != 0) {
      span_.set_purged(old | pages.fresh);
      unlink(first, &span_.free_list());
      unlink(remotes, nullptr);
      set_aside(remotes);
      clear_links(pages.fresh, old | pages.fresh);
    }
    PageMask::for_each_run(
        pages.fresh | pages.untouched, [&](std::uint32_t from, std::uint32_t to) {
          cost_ += 100 + 16 * (to - from);
          const bool purged = purge(base_ + (std::size_t{from} << PageMask::kBits),
                                    std::size_t{to - from + 1} << PageMask::kBits);
          // A purged block has no link.
          if (!purged) clear_links(pages.fresh & PageMask::range(from, to), 0);
        });
    return cost_;
  }

  /// Called by who takes blocks from the span next, and has its remote list.
  /// Ends them where they lead to purged blocks. Returns the first block of the remote
  /// list, as purge_pages() takes it.
  Block* cut_lists(Block* remotes) {
    if (SPANALLOC_LIKELY(purged() == 0)) return remotes;
    cut(span_.free_list().first(), &span_.free_list());
    if (!remotes->is_end() && is_purged(remotes)) return no_block();
    cut(remotes, nullptr);
    return remotes;
  }

  /// In a fork's child: takes the purged blocks off the lists, from where a vanished
  /// thread had got to, and clears the links of those whose pages it had not purged yet.
  /// (Purged pages are only read.)
  SPANALLOC_COLD void unlink_purged(Block* remotes) {
    if (purged() == 0) return;
    unlink(span_.free_list().first(), &span_.free_list());
    unlink(remotes, nullptr);
    set_aside(remotes);
    clear_links_of_purged();
  }
  /// In a fork's child, where a vanished owner was about to take back purged
  /// blocks, not on a list yet.
  SPANALLOC_COLD void clear_links_of_purged() {
    for_each_purged(purged(), info_, carved_, [&](std::uint32_t i) {
      unpoison(block_at(i), sizeof(Block));
      if (has_link(block_at(i))) block_at(i)->release_link();
    });
  }

  /// How many blocks a list has before its end or a purged block; more than
  /// `most`: the list is damaged.
  std::uint32_t length(Block* block, std::uint32_t most) const {
    std::uint32_t count = 0;
    for (; !block->is_end() && !is_purged(block); block = block->next()) {
      if (!has_link(block) || count++ == most) return most + 1;
    }
    return count;
  }

 private:
  static constexpr std::uint32_t kPages = kMostSpan >> PageMask::kBits;

  struct Pages {
    std::uint64_t fresh = 0;      ///< to be purged, with the blocks on them
    std::uint64_t untouched = 0;  ///< without a block that was carved
  };

  std::uint64_t purged() const { return span_.purged(); }
  std::uint32_t index_of_block(const Block* block) const {
    return info_.index_at(static_cast<std::uint32_t>(address_of(block) - address_of(base_)));
  }
  Block* block_at(std::uint32_t i) const {
    return reinterpret_cast<Block*>(base_ + info_.offset_of(i));
  }
  bool is_purged(const Block* block) const {
    return (PageMask::of_block(index_of_block(block), info_) & purged()) != 0;
  }
  bool has_link(const Block* block) const { return block->has_link(info_.virtual_span); }

  void count_block(std::uint32_t i) {
    std::uint32_t at = info_.offset_of(i);
    const std::uint32_t end = at + info_.block_size;
    while (at < end) {
      const std::uint32_t page = at >> PageMask::kBits;
      const std::uint32_t behind = (page + 1) << PageMask::kBits;
      const std::uint32_t next = end < behind ? end : behind;
      free_bytes_[page] += next - at;
      at = next;
    }
    ++cost_;
  }
  bool count_list(Block* block) {
    for (; !block->is_end() && !is_purged(block); block = block->next()) {
      if (!has_link(block) || counted_++ == carved_) return false;
      count_block(index_of_block(block));
    }
    return true;
  }

  Pages pages_to_give(std::uint64_t old, std::size_t page_size) const {
    Pages pages;
    const std::uint32_t end_of_carved = carved_ == 0 ? 0 : info_.offset_of(carved_);
    const bool all_carved = carved_ == info_.blocks;
    for (std::uint32_t page = 0; page << PageMask::kBits < info_.real_span; ++page) {
      const std::uint32_t begin = page << PageMask::kBits;
      const std::uint32_t behind = begin + PageMask::kBytes;
      const std::uint64_t bit = std::uint64_t{1} << page;
      if ((old & bit) != 0) continue;
      if (begin >= end_of_carved) {
        if (!span_.is_zero()) pages.untouched |= bit;
        continue;
      }
      const bool is_whole = behind <= end_of_carved;
      const std::uint32_t first = begin == 0 ? info_.lead : begin;  // byte of a block
      const std::uint32_t blocks = (is_whole ? behind : end_of_carved) - first;
      if ((is_whole || all_carved) && free_bytes_[page] == blocks) pages.fresh |= bit;
    }
    if (page_size > PageMask::kBytes) {
      const auto together = static_cast<std::uint32_t>(page_size >> PageMask::kBits);
      for (std::uint32_t page = 0; page < kPages; page += together) {
        const std::uint64_t group = PageMask::range(page, page + together - 1);
        if (((old | pages.fresh | pages.untouched) & group) == group) continue;
        pages.fresh &= ~group;
        pages.untouched &= ~group;
      }
    }
    return pages;
  }

  // Takes the purged blocks off a list. `head`: where it begins; nullptr: its first block stays.
  void unlink(Block* block, FreeList* head) {
    if (block->is_end()) return;
    Block* kept = nullptr;  // the last one that stays
    if (head == nullptr) {
      if (is_purged(block) && !has_link(block)) return;
      kept = block;
      block = block->next();
    }
    Block* behind_kept = block;  // where that one leads now
    while (!block->is_end()) {
      if (is_purged(block)) {
        if (!has_link(block)) break;
        block = block->next();
        continue;
      }
      if (block != behind_kept) lead(kept, block, head);
      kept = block;
      block = behind_kept = block->next();
    }
    if (block != behind_kept) lead(kept, block, head);  // to where the list ends
  }
  static void lead(Block* from, Block* to, FreeList* head) {
    if (from != nullptr) {
      from->link_to(to);
    } else {
      head->set(to);
    }
  }
  // For the first block of a list on which others push. If it is purged, the blocks behind it go
  // onto the span's own list. (In between they count as out, for a fork's child.)
  void set_aside(Block* first) {
    if (first->is_end() || !is_purged(first) || !has_link(first)) return;
    Block* const behind = first->next();
    first->release_link();
    if (behind->is_end() || is_purged(behind)) return;
    Block* last = behind;
    while (!last->next()->is_end() && !is_purged(last->next())) last = last->next();
    span_.free_list().prepend(behind, last);
  }
  void cut(Block* block, FreeList* head) {
    Block* last = nullptr;
    // (A block freed twice may have closed the list to a circle.)
    for (std::uint32_t left = info_.blocks; left != 0 && !block->is_end(); --left) {
      if (is_purged(block)) return lead(last, no_block(), head);
      last = block;
      block = block->next();
    }
  }
  // Of the blocks that touch `pages`, clears the links that do not go with a page of `gone`.
  void clear_links(std::uint64_t pages, std::uint64_t gone) {
    for_each_purged(pages, info_, carved_, [&](std::uint32_t i) {
      const std::uint64_t first = std::uint64_t{1} << (info_.offset_of(i) >> PageMask::kBits);
      // After the mask and the lists: a fork's child finds a link, or the mask that explains it.
      if ((first & gone) == 0) block_at(i)->release_link();
    });
  }

  Span& span_;
  char* const base_;
  const SizeClass& info_;
  const std::uint32_t carved_;
  std::uint32_t counted_ = 0;
  std::uint32_t cost_ = 1;
  std::uint32_t free_bytes_[kPages] = {};
};

}  // namespace spanalloc::standard
