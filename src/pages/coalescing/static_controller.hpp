// The controller without nodes: a block is in it while its header says kFree.
//
// The paper's controller (Leite & Rocha, ISMM'19, Listing 1) is a search tree of nodes, which must
// be allocated and reclaimed. Here the mapper's header words decide what is free, and bitmaps over
// the units (free_index.hpp) say where to look. Nothing is allocated or reclaimed, and a claim has
// no ABA problem (mapper.hpp, (2)).
//
// Fit: of the lists that may hold a large enough block, the one with the smallest sizes; in it the
// lowest address; dirty memory before clean, unless the caller wants it otherwise. In the first
// list, where sizes differ by less than a quarter, a few blocks are looked at before larger sizes
// are. What is not used of a block is split off, so a poor fit wastes nothing.
#pragma once

#include <cstddef>

#include "base/assert.hpp"
#include "base/bits.hpp"
#include "pages/coalescing/controller.hpp"
#include "pages/coalescing/free_index.hpp"
#include "pages/coalescing/mapper.hpp"
#include "pages/config.hpp"

namespace spanalloc::coalescing {

/// Lock-free: a compare-and-swap fails only if another operation has claimed or published a block.
template <class Mapper, class Index = FreeIndex<>>
class StaticController {
  using enum BlockState;

 public:
  constexpr explicit StaticController(Mapper& mapper) : mapper_(mapper) {}

  /// For at most `capacity` units. Alignments count from `origin` units before the first one.
  void attach(std::size_t capacity, std::size_t origin) {
    index_.attach(capacity);
    origin_ = origin;
  }
  /// The first unit at or behind `unit` at a multiple of `alignment` (a power of two).
  std::size_t aligned(std::size_t unit, std::size_t alignment) const {
    return align_up(origin_ + unit, alignment) - origin_;
  }

  /// Whether the block has room for `size` units at a multiple of `alignment`.
  bool fits(Block block, std::size_t size, std::size_t alignment) const {
    const std::size_t start = aligned(block.first, alignment);
    return start < block.end() && block.end() - start >= size;
  }

  Index& index() { return index_; }

  /// Frees `block`, which the caller owns and must not use any more: the next
  /// owner may be another thread.
  void add(Block block, bool dirty) {
    SPANALLOC_ASSERT(block.size != 0 && block.end() <= mapper_.limit());
    index_.insert(Index::list_of(block.size, dirty), block.first);
    if (block.size > 1) mapper_.store(block.end() - 1, BlockWord::footer(block.size));
    mapper_.mark(block, kFree, dirty);
  }

  /// Claims exactly `block` if it is free now.
  template <class Hold>
  Claimed remove(Block block, Hold& hold) {
    if (!block) return {};
    BlockWord word = mapper_.load(block.first);
    while (word.is(kFree) && word.size() == block.size) {
      if (claim(block.first, word, hold)) return {block, word.dirty()};
    }
    return {};
  }

  /// Claims a free block with room for `size` units at a multiple of `alignment` (a power of two).
  template <class Hold>
  Claimed take(std::size_t size, std::size_t alignment, Search search, Hold& hold,
               Reuse reuse = Reuse::kDirtyFirst) {
    for (const bool first : {true, false}) {
      if (!first && reuse == Reuse::kDirtyOnly) break;
      const bool dirty = first == (reuse != Reuse::kCleanFirst);
      const unsigned end = Index::list_of(SIZE_MAX, dirty) + 1;
      unsigned list = index_.next_list(Index::list_of(size, dirty), end);
      for (; list < end; list = index_.next_list(list + 1, end)) {
        if (const Claimed found = take_from(list, size, alignment, search, hold)) return found;
      }
    }
    return {};
  }

 private:
  template <class Hold>
  Claimed take_from(unsigned list, std::size_t size, std::size_t alignment, Search search,
                    Hold& hold) {
    std::size_t unit = index_.find(list, 0, hold);
    if (unit == Index::kNone) index_.clear_list(list, hold);
    // In all lists but the first every block is large enough.
    const unsigned most =
        search == Search::kQuick ? PagesConfig::kQuickTries : PagesConfig::kThoroughTries;
    for (unsigned tries = 0; unit != Index::kNone; unit = index_.find(list, unit + 1, hold)) {
      BlockWord word = mapper_.load(unit);
      while (word.is(kFree) && fits({unit, word.size()}, size, alignment)) {
        if (claim(unit, word, hold)) return {{unit, word.size()}, word.dirty()};
      }
      if (search != Search::kExhaustive && ++tries == most) break;
    }
    return {};
  }

  // On failure `word` is the header as it is now. The hold comes first: from the claim on the free
  // blocks lack this one, and the hold says that what is cut off it will come back.
  template <class Hold>
  bool claim(std::size_t unit, BlockWord& word, Hold& hold) {
    hold.begin();
    if (!mapper_.exchange_if(unit, word, word.with_state(kBusy))) return false;
    index_.erase(Index::list_of(word.size(), word.dirty()), unit);
    return true;
  }

  Mapper& mapper_;
  std::size_t origin_ = 0;  // constant after attach()
  Index index_;
};

}  // namespace spanalloc::coalescing
