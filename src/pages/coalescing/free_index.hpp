// Tells where free blocks of each size class begin: bitmaps over units, 64 to a
// word, with summaries above.
//
// Level 0 has a bit for every unit and list (a list is a size class, of dirty or of clean blocks).
// A bit of level l + 1 says that a word of level l may have bits set. The words of all lists for
// the same 64 units lie side by side, so that a small range touches few pages even with many lists.
// `lists_` says which lists may have bits.
//
// Rules:
//   (1) A level-0 bit is set and cleared only by the owner of the block that begins there (its
//       header is kBusy). So a bit of a block at rest is exact: set if and only if the header says
//       kFree.
//   (2) insert() sets bits of the summaries from below to above, each where it reads 0. A search
//       that found the word below empty clears them. Insert writes below and then reads above; a
//       clearing writes above, then reads below and repairs. These accesses are sequentially
//       consistent, so one of the two sees the other, and in the end the bit is set. Between a
//       clearing and its repair a block may be impossible to find though insert() has returned. So
//       a clearing takes place under a hold (hold_registry.hpp), and a thread waits for its end
//       before it reports "out of memory".
// So without holds a search from the top finds every free block.
#pragma once

#include <cstddef>
#include <cstdint>

#include <bit>

#include "base/atomic.hpp"
#include "pages/coalescing/size_classes.hpp"

namespace spanalloc::coalescing {

/// kFanBits: log2 of the bits that are used of each word. Fewer than 6 make many levels
/// of few units: for models.
template <unsigned kFanBits = 6>
class FreeIndex {
 public:
  static constexpr unsigned kDirtyLists = BlockClasses::kCount;  // the first ones
  static constexpr unsigned kLists = 2 * kDirtyLists;
  static constexpr std::size_t kNone = SIZE_MAX;
  static constexpr std::size_t kFan = std::size_t{1} << kFanBits;

  /// Dirty blocks have lists of their own, because dirty memory is reused first.
  static constexpr unsigned list_of(std::size_t size, bool dirty) {
    return BlockClasses::of(size) + (dirty ? 0 : kDirtyLists);
  }

  static constexpr unsigned kMaxLevels = 8;

  /// Levels that `units` need.
  static constexpr unsigned levels_for(std::size_t units) {
    unsigned levels = 1;
    for (std::size_t words = words_over(units); words > 1; words = words_over(words)) ++levels;
    return levels;
  }
  /// Bytes of level `level` for units [0, units), its entries side by side.
  static constexpr std::size_t level_bytes(unsigned level, std::size_t units) {
    for (unsigned l = 0; l <= level; ++l) units = words_over(units);
    return units * kLists * sizeof(Word);
  }

  /// Where a level's entries stand. An entry is the words of all lists for kFan units of the level.
  /// From `offset` bytes on, 2^`entry_bits` entries at a time stand side by side; each such group
  /// begins `block_words` words behind the one before.
  struct LevelPlace {
    std::size_t offset = 0;
    std::size_t block_words = kLists;
    unsigned entry_bits = 0;
  };

  /// For at most `capacity` units, none at first. attach_level() gives the memory of its
  /// levels_for(capacity) levels: zeroed, aligned to 8. Entries of units at or behind
  /// the limit are not touched.
  void attach(std::size_t capacity) { top_ = levels_for(capacity) - 1; }
  void attach_level(unsigned level, void* memory, LevelPlace place = {}) {
    levels_[level] = {reinterpret_cast<Word*>(static_cast<char*>(memory) + place.offset), place};
  }

  /// Called by the thread that extends the range, before it inserts a new unit.
  void set_limit(std::size_t units) { limit_.store_seq_cst(units); }

  /// By the owner of the block, before its header says kFree.
  void insert(unsigned list, std::size_t unit) {
    word(0, list, unit).fetch_or_seq_cst(bit(unit));
    show(list, unit);
  }

  /// Makes a block that has been inserted findable again, if a search that was
  /// cut short has hidden it.
  void show(unsigned list, std::size_t unit) { announce(1, list, unit >> kFanBits); }

  /// By the owner of the block, after it was claimed.
  void erase(unsigned list, std::size_t unit) { word(0, list, unit).fetch_and_seq_cst(~bit(unit)); }

  /// Erases every bit of a unit, in whatever list a vanished thread may have left it.
  void forget(std::size_t unit) {
    for (unsigned list = 0; list < kLists; ++list) erase(list, unit);
  }

  /// The lowest unit from `from` on at which a block of `list` may begin, or kNone.
  /// Clearings take `hold`. Reads only words of units in some list, or in the group of
  /// `from`: others may have none.
  template <class Hold>
  std::size_t find(unsigned list, std::size_t from, Hold& hold) {
    const std::size_t limit = limit_.load_seq_cst();
    const unsigned top = top_over(limit);
    unsigned level = 0;
    std::size_t position = from;
    // Behind a group's end: the level above knows whether the next group has words.
    const auto leave_group = [&] {
      while (position % kFan == 0 && level < top) {
        ++level;
        position /= kFan;
      }
    };
    leave_group();
    for (;;) {
      if (position << (level * kFanBits) >= limit) return kNone;
      const std::uint64_t rest = word(level, list, position).load_seq_cst() >> (position % kFan);
      if (rest == 0) {
        if (level == top) return kNone;
        ++level;
        position = position / kFan + 1;
        leave_group();
        continue;
      }
      position += static_cast<unsigned>(std::countr_zero(rest));
      if (level == 0) return position;
      if (word(level - 1, list, position * kFan).load_seq_cst() == 0) {
        clear_summary(level, list, position, hold);
        ++position;
        leave_group();
        continue;
      }
      --level;
      position *= kFan;
    }
  }

  /// The lowest list in [from, end) that may have blocks; `end`: there is none.
  unsigned next_list(unsigned from, unsigned end) const {
    while (from < end) {
      const std::uint64_t rest = lists_[from / 64].load_seq_cst() >> (from % 64);
      if (rest != 0) {
        const unsigned list = from + static_cast<unsigned>(std::countr_zero(rest));
        return list < end ? list : end;
      }
      from = (from / 64 + 1) * 64;
    }
    return end;
  }

  /// After a search from 0 has found nothing in `list`: others need not search it. (A thread that
  /// inserts behind the limit read here has set another limit before, and reads the list's bit
  /// after. So either it sees the bit cleared, or the new limit is seen here.)
  template <class Hold>
  void clear_list(unsigned list, Hold& hold) {
    const std::size_t limit = limit_.load_seq_cst();
    Word& top = word(top_over(limit), list, 0);
    if (top.load_seq_cst() != 0) return;
    hold.begin();
    lists_[list / 64].fetch_and_seq_cst(~list_bit(list));
    if (limit_.load_seq_cst() != limit || top.load_seq_cst() != 0) announce(top_ + 1, list, 0);
  }

 private:
  using Word = Atomic<std::uint64_t>;
  struct Level {
    Word* words = nullptr;
    LevelPlace place;
  };
  static constexpr std::size_t words_over(std::size_t bits) { return (bits + kFan - 1) / kFan; }
  static constexpr std::uint64_t bit(std::size_t position) {
    return std::uint64_t{1} << (position % kFan);
  }
  static constexpr std::uint64_t list_bit(unsigned list) { return std::uint64_t{1} << (list % 64); }

  Word& word(unsigned level, unsigned list, std::size_t position) const {
    const auto& [words, place] = levels_[level];
    const std::size_t entry = position / kFan;
    const std::size_t in_block = entry & ((std::size_t{1} << place.entry_bits) - 1);
    return words[(entry >> place.entry_bits) * place.block_words + in_block * kLists + list];
  }
  // The level of which one word stands for all units: a search begins there. Nothing looks at the
  // levels above, so their bits may say too much until the range reaches so far.
  unsigned top_over(std::size_t limit) const {
    unsigned level = 0;
    for (std::size_t words = words_over(limit); words > 1; words = words_over(words)) ++level;
    return level;
  }
  // Makes `position` of `level` findable from the top.
  void announce(unsigned level, unsigned list, std::size_t position) {
    for (; level <= top_; ++level) {
      set_if_clear(word(level, list, position), bit(position));
      position >>= kFanBits;
    }
    set_if_clear(lists_[list / 64], list_bit(list));
  }
  static void set_if_clear(Word& word, std::uint64_t mask) {
    if ((word.load_seq_cst() & mask) == 0) word.fetch_or_seq_cst(mask);
  }

  template <class Hold>
  void clear_summary(unsigned level, unsigned list, std::size_t position, Hold& hold) {
    hold.begin();
    word(level, list, position).fetch_and_seq_cst(~bit(position));
    if (word(level - 1, list, position * kFan).load_seq_cst() != 0) announce(level, list, position);
  }

  // Constant after attach().
  Level levels_[kMaxLevels] = {};
  unsigned top_ = 0;
  Atomic<std::size_t> limit_{0};  // shared; written by the thread that extends the range
  // Shared hints; exact at rest, by rule (2).
  Word lists_[(kLists + 63) / 64];
};

}  // namespace spanalloc::coalescing
