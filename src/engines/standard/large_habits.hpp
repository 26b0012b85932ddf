// What a program makes of its large blocks, size by size: whether one that comes back stays in memory, and
// whether the next is cleared by giving its pages back.
//
// A look tells how much of a block is used, in 256ths, by a sample: which of its pages hold anything but
// zeroes, and so are in memory. One that comes back
//
//   with a quarter or more  was used, and stays: there is no telling what the next one is for.
//   with less (sparse)      may be followed by one whose program writes to the same places: then it pays for
//                           each page that is given back; or to others: then what all of them leave in
//                           memory adds up to the whole.
//
// So a sparse block stays once, and its look is remembered. As long as the next ones show as much, they stay,
// and only every 2nd, 4th, 8th ... 32nd is looked at. Once there is more, the pages go, and so do those of
// the next 1, 2, 4 ... 64 sparse ones, before one may stay again. Of huge blocks no sparse one stays, as
// what it has in memory may be much; but zeroes may have been written, too. Where nothing else was found
// eight times in a row, they stay, and every 64th is looked at: so who fills them with zeroes has the page
// faults of the first few only.
//
// Clearing brings all of a block to memory: whether the program needs more than a word of it, no look can
// tell afterwards. So the 64th clearing gives the pages back, whatever the look. Was that in vain, because so
// much comes back that clearing would have taken less time, the next try is 128, 256 ... 1024 later. (The
// page fault after a purge takes as long as to clear fifteen pages and more. Of huge blocks memory counts,
// not time: the 16th is tried, and less than a quarter is not in vain. And as each look takes the page faults
// of its sample where nothing is used, only every 64th is looked at once eight in a row held nothing; the
// others' pages go unseen, until one that is freed holds something.)
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"

namespace spanalloc::standard {

/// Thread-safe, zero-initialisable. Relaxed throughout, and of two threads that change a word at once one may
/// be lost: nothing follows but time and memory. Sizes are in slices; some share a word, as their blocks
/// may share their memory.
class LargeHabits {
 public:
  /// So much is a used block's.
  static constexpr std::size_t kUsed = 64;

  constexpr explicit LargeHabits(std::size_t huge) : huge_(huge) {}

  /// A block is freed. False: it stays, whatever a look would find.
  bool wants_look(std::size_t slices) {
    if (slices >= huge_) return zeroes_[place_of(slices)].wants_look();
    Word& word = freed_[place_of(slices)];
    Freed habit = Freed::from(word.load_relaxed());
    if (habit.unseen == 0) return true;
    --habit.unseen;
    word.store_relaxed(habit.bits());
    return false;
  }
  /// It was looked at. True: its pages are to go.
  bool gives_back(std::size_t slices, std::size_t look) {
    const bool sparse = look < kUsed;
    if (slices >= huge_) {
      if (look != 0) cleared_zeroes_[place_of(slices)].end();
      return sparse && !zeroes_[place_of(slices)].stay(look);
    }
    Word& word = freed_[place_of(slices)];
    Freed habit = Freed::from(word.load_relaxed());
    bool goes = false;
    if (sparse && habit.to_go != 0) {
      --habit.to_go;
      goes = true;
    } else if (habit.base == 0) {
      if (sparse) habit.base = static_cast<unsigned>(look) + 1;
    } else if (!sparse || look > 2 * (habit.base - 1) + kScatter) {
      habit = {.regrets = habit.regrets, .to_go = 1u << habit.regrets};
      if (habit.regrets != kMostRegrets) ++habit.regrets;
      goes = true;
    } else {
      if (habit.same != kMostSame) ++habit.same;
      if (habit.same == kMostSame) habit.regrets = 0;
      habit.unseen = (1u << habit.same) - 1;
    }
    word.store_relaxed(habit.bits());
    return goes;
  }

  /// A block is to read as zero. False: its pages are to go, whatever a look would find.
  bool wants_look_to_clear(std::size_t slices) {
    return slices < huge_ || cleared_zeroes_[place_of(slices)].wants_look();
  }
  /// So much of it is in memory. True: its pages are to go.
  bool clears_by_purging(std::size_t slices, std::size_t look) {
    if (slices >= huge_) (void)cleared_zeroes_[place_of(slices)].stay(look);
    Word& word = cleared_[place_of(slices)];
    Cleared habit = Cleared::from(word.load_relaxed());
    const bool huge = slices >= huge_;
    const bool in_vain = look >= (huge ? kUsed : kQuickerCleared);
    if (habit.tried && in_vain && habit.patience != kMostPatience) ++habit.patience;
    habit.tried = in_vain && ++habit.since >= (huge ? kHugeClearings : kClearings) << habit.patience;
    if (!in_vain) habit.patience = 0;
    if (!in_vain || habit.tried) habit.since = 0;
    word.store_relaxed(habit.bits());
    const bool purges = !in_vain || habit.tried;
    // What clearing brings to memory is not the program's.
    if (!purges && !huge) forget_sparse_one(slices);
    return purges;
  }

 private:
  using Word = Atomic<std::uint32_t>;
  static constexpr std::size_t kPlaces = 16;
  static constexpr std::size_t kScatter = 8;  // looks that differ by less may have found the same
  // In parts of memory, as looks: from there on clearing takes less time than the page faults after a purge.
  static constexpr std::size_t kQuickerCleared = 10;
  static constexpr unsigned kMostRegrets = 6;
  static constexpr unsigned kMostSame = 5;
  static constexpr unsigned kClearings = 64;
  static constexpr unsigned kHugeClearings = 16;
  static constexpr unsigned kMostPatience = 4;

  struct Freed {
    unsigned base = 0;     // the look at the one that stayed, + 1; 0: none did
    unsigned same = 0;     // looks since that found no more
    unsigned unseen = 0;   // blocks from now on that are not looked at
    unsigned regrets = 0;  // how often pages that stayed were too many
    unsigned to_go = 0;    // sparse ones from now on that do not stay

    static Freed from(std::uint32_t bits) {
      return {bits & 0xFF, bits >> 8 & 0xF, bits >> 12 & 0x3F, bits >> 18 & 0xF, bits >> 22 & 0x7F};
    }
    std::uint32_t bits() const { return base | same << 8 | unseen << 12 | regrets << 18 | to_go << 22; }
  };
  static_assert(kUsed <= 0xFF && kMostSame <= 0xF && (1u << kMostSame) - 1 <= 0x3F && kMostRegrets <= 0xF &&
                1u << kMostRegrets <= 0x7F);

  // Of huge blocks in which looks find nothing but zeroes.
  class Zeroes {
   public:
    bool wants_look() {
      const std::uint32_t unseen = word_.load_relaxed();
      if (unseen <= kInARow) return true;
      word_.store_relaxed(unseen - 1);
      return false;
    }
    bool stay(std::size_t look) {
      const std::uint32_t in_a_row = look == 0 ? word_.load_relaxed() + 1 : 0;
      word_.store_relaxed(in_a_row > kInARow ? kInARow + kUnseen : in_a_row);
      return in_a_row > kInARow;
    }

    /// Something was found: the next one is looked at.
    void end() {
      if (word_.load_relaxed() != 0) word_.store_relaxed(0);
    }

   private:
    static constexpr std::uint32_t kInARow = 8;
    static constexpr std::uint32_t kUnseen = 63;
    Word word_{0};  // looks in a row; above kInARow: as many blocks less are not looked at
  };

  struct Cleared {
    unsigned since;     // blocks since one was cleared by giving its pages back
    unsigned patience;  // how often that was in vain
    bool tried;         // the last one's pages were given back though it was used

    static Cleared from(std::uint32_t bits) { return {bits & 0xFFFF, bits >> 16 & 0xF, bits >> 20 != 0}; }
    std::uint32_t bits() const { return since | patience << 16 | (tried ? 1u << 20 : 0); }
  };
  static_assert(kClearings << kMostPatience <= 0xFFFF && kMostPatience <= 0xF);

  void forget_sparse_one(std::size_t slices) {
    Word& word = freed_[place_of(slices)];
    Freed habit = Freed::from(word.load_relaxed());
    habit.base = habit.same = habit.unseen = 0;
    word.store_relaxed(habit.bits());
  }

  static std::size_t place_of(std::size_t slices) {
    return static_cast<std::uint32_t>(slices * 0x9E3779B1u) >> 28;
  }
  static_assert(kPlaces == 1u << (32 - 28));

  std::size_t huge_;
  Word freed_[kPlaces] = {};
  Word cleared_[kPlaces] = {};
  Zeroes zeroes_[kPlaces] = {};
  Zeroes cleared_zeroes_[kPlaces] = {};
};

}  // namespace spanalloc::standard
