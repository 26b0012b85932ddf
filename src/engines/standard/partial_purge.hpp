// Gives back the pages of a parked span in which no block is out, while others are.
//
// Who does it has the lock of the thread cache that the span is parked with. So nobody pops a block of the
// span, and what others may do meanwhile is to free one that is out: its owner pushes it on `free_list`,
// anybody else on the remote list. Either reads where the list begins, writes to the block that is freed, and
// makes that the new beginning. Hence what stands behind the first block of a list is this thread's to
// change; where the list begins is not. (But on `free_list` nobody pushes if the thread cache is the calling
// thread's, or an abandoned list.)
//
// If the first block of such a list is dropped it stays the first, without a link; what stood behind it goes
// to `rest`, which nobody uses meanwhile. What is pushed from then on leads to the dropped block, where the
// list is therefore at its end: cut_lists() makes it end there when the span becomes hot again.
//
// Steps, for a fork's child, which finds a lock whose owner vanished: the mask is written; the blocks that it
// covers leave the lists; their pages go. So on a list of a child a dropped block with a link is one that
// should have left already (unlink_purged), and one without a link is an end.
#pragma once

#include <cstdint>

#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "base/poison.hpp"
#include "engines/standard/block.hpp"
#include "engines/standard/purged_pages.hpp"
#include "engines/standard/size_classes.hpp"
#include "engines/standard/span.hpp"

namespace spanalloc::standard {

/// One span as its thinner sees it; `base`: where it begins. `remotes`: the first block of its remote list,
/// or no_block(). `still`: nobody pushes on free_list.
class PartialPurge {
 public:
  PartialPurge(Span& span, char* base, const SizeClass& info)
      : span_(span), base_(base), info_(info), carved_(span.carved.load_relaxed()) {}

  /// purge(first byte, bytes): false if the old bytes stay. Returns what it has cost, in some 7 ns: a block
  /// that was looked at is 1, a page given back 16, a call 100.
  template <class Purge>
  std::uint32_t thin(Block* remotes, bool still, std::size_t page_size, Purge&& purge) {
    const std::uint64_t old = purged();
    // Acquire: with push_freed(), the links behind it.
    Block* const first = span_.free_list.load_acquire();
    // Damaged lists are left alone: the owner will say so.
    if (!count_list(first) || !count_list(span_.rest.load_relaxed()) || !count_list(remotes)) return cost_;
    for_each_purged(old, info_.block_size, carved_, [&](std::uint32_t i) { count_block(i); });
    const Pages pages = pages_to_give(old, page_size);
    if (pages.fresh != 0) {
      span_.purged.store_release(old | pages.fresh);
      unlink(span_.rest.load_relaxed(), &span_.rest);
      unlink(first, still ? &span_.free_list : nullptr);
      if (!still) set_aside(first);
      unlink(remotes, nullptr);
      set_aside(remotes);
      clear_links(pages.fresh, old | pages.fresh);
    }
    PageMask::for_each_run(pages.fresh | pages.untouched, [&](std::uint32_t from, std::uint32_t to) {
      cost_ += 100 + 16 * (to - from);
      const bool purged = purge(base_ + (std::size_t{from} << PageMask::kBits),
                                std::size_t{to - from + 1} << PageMask::kBits);
      // A dropped block has no link.
      if (!purged) clear_links(pages.fresh & PageMask::range(from, to), 0);
    });
    return cost_;
  }

  /// The span has become hot, or is about to: nobody frees into its lists as they were. They end where they
  /// lead to dropped blocks. Returns the first block of the remote list, as thin().
  Block* cut_lists(Block* remotes) {
    if (SPANALLOC_LIKELY(purged() == 0)) return remotes;
    cut(span_.free_list.load_relaxed(), &span_.free_list);
    if (!is_end(remotes) && is_purged(remotes)) return no_block();
    cut(remotes, nullptr);
    return remotes;
  }

  /// In a fork's child: takes the dropped blocks off the lists, from where a vanished thread had got to, and
  /// the links from those whose pages it had not given back yet. (Whose page is gone is only read: it has
  /// none.)
  SPANALLOC_COLD void unlink_purged(Block* remotes, bool still) {
    if (purged() == 0) return;
    Block* const first = span_.free_list.load_relaxed();
    unlink(span_.rest.load_relaxed(), &span_.rest);
    unlink(first, still ? &span_.free_list : nullptr);
    if (!still) set_aside(first);
    unlink(remotes, nullptr);
    if (!is_end(remotes)) set_aside(remotes);
    clear_links_of_purged();
  }
  /// The same where a vanished owner was about to take dropped blocks back, which are on no list yet.
  SPANALLOC_COLD void clear_links_of_purged() {
    for_each_purged(purged(), info_.block_size, carved_, [&](std::uint32_t i) {
      unpoison(block_at(i), sizeof(Block));
      if (has_link(block_at(i))) clear_link(block_at(i));
    });
  }

  /// How many blocks a list has that ends where it leads to a dropped one; more than `most`: it is damaged.
  std::uint32_t length(Block* block, std::uint32_t most) const {
    std::uint32_t count = 0;
    for (; !is_end(block) && !is_purged(block); block = next_of(block)) {
      if (!has_link(block) || count++ == most) return most + 1;
    }
    return count;
  }

 private:
  static constexpr std::uint32_t kPages = kMostSpan >> PageMask::kBits;

  struct Pages {
    std::uint64_t fresh = 0;      ///< to be dropped
    std::uint64_t untouched = 0;  ///< without a block that was carved
  };

  std::uint64_t purged() const { return span_.purged.load_relaxed(); }
  std::uint32_t index_of_block(const Block* block) const {
    return static_cast<std::uint32_t>(address_of(block) - address_of(base_)) / info_.block_size;
  }
  Block* block_at(std::uint32_t i) const {
    return reinterpret_cast<Block*>(base_ + std::size_t{i} * info_.block_size);
  }
  bool is_purged(const Block* block) const {
    return (PageMask::of_block(index_of_block(block), info_.block_size) & purged()) != 0;
  }
  bool has_link(const Block* block) const { return is_link(block, link_of(block), info_.virtual_span); }

  void count_block(std::uint32_t i) {
    std::uint32_t at = i * info_.block_size;
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
    for (; !is_end(block) && !is_purged(block); block = next_of(block)) {
      if (!has_link(block) || counted_++ == carved_) return false;
      count_block(index_of_block(block));
    }
    return true;
  }

  Pages pages_to_give(std::uint64_t old, std::size_t page_size) const {
    Pages pages;
    const std::uint32_t end_of_carved = carved_ * info_.block_size;
    const bool all_carved = carved_ == info_.blocks;
    for (std::uint32_t page = 0; page << PageMask::kBits < info_.real_span; ++page) {
      const std::uint32_t begin = page << PageMask::kBits;
      const std::uint32_t behind = begin + PageMask::kBytes;
      const std::uint64_t bit = std::uint64_t{1} << page;
      if ((old & bit) != 0) continue;
      if (begin >= end_of_carved) {
        if (!span_.zero) pages.untouched |= bit;
        continue;
      }
      const bool is_whole = behind <= end_of_carved;
      const std::uint32_t blocks = (is_whole ? behind : end_of_carved) - begin;
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

  // Takes the dropped blocks off a list. `head`: where it begins; nullptr: the first block stays.
  void unlink(Block* block, Atomic<Block*>* head) {
    if (is_end(block)) return;
    Block* kept = nullptr;  // the last one that stays
    if (head == nullptr) {
      if (is_purged(block) && !has_link(block)) return;
      kept = block;
      block = next_of(block);
    }
    Block* behind_kept = block;  // where it leads as it is
    while (!is_end(block)) {
      if (is_purged(block)) {
        if (!has_link(block)) break;
        block = next_of(block);
        continue;
      }
      if (block != behind_kept) lead(kept, block, head);
      kept = block;
      block = behind_kept = next_of(block);
    }
    if (block != behind_kept) lead(kept, block, head);  // to where the list ends
  }
  static void lead(Block* from, Block* to, Atomic<Block*>* head) {
    if (from != nullptr) {
      link_to(from, to);
    } else {
      head->store_release(to);  // release: for a fork's child, as in push_freed()
    }
  }
  // The first block of a list where others push. If it is dropped, what is behind it goes to `rest`. (To a
  // fork's child that is out in between.)
  void set_aside(Block* first) {
    if (is_end(first) || !is_purged(first) || !has_link(first)) return;
    Block* const behind = next_of(first);
    release_link(first);
    if (is_end(behind) || is_purged(behind)) return;
    Block* last = behind;
    while (!is_end(next_of(last)) && !is_purged(next_of(last))) last = next_of(last);
    link_to(last, span_.rest.load_relaxed());
    span_.rest.store_release(behind);
  }
  void cut(Block* block, Atomic<Block*>* head) {
    Block* last = nullptr;
    for (; !is_end(block); last = block, block = next_of(block)) {
      if (is_purged(block)) return lead(last, no_block(), head);
    }
  }
  // Of the blocks that touch `pages` those whose links do not go with a page of `gone`.
  void clear_links(std::uint64_t pages, std::uint64_t gone) {
    for_each_purged(pages, info_.block_size, carved_, [&](std::uint32_t i) {
      const std::uint64_t first = std::uint64_t{1} << (i * info_.block_size >> PageMask::kBits);
      if ((first & gone) == 0) clear_link(block_at(i));
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
