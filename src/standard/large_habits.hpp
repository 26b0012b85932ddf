// Learns, size by size, what a program does with its large blocks. Two questions: does a freed
// block stay in memory, and is the next one cleared by purging?
//
// A look tells by a sample how much of a block is used, in 256ths: which of its pages hold anything
// but zeroes, and so are in memory. A freed block with
//
//   a quarter or more in use    stays: it was used, and nobody can tell what the next one is for
//   less in use (sparse)        may be followed by a block whose program writes to the same places:
//                               it pays for each page purged. Or by blocks used in other places:
//                               then what all of them leave in memory adds up to the whole
//
// So one sparse block stays, and its look is remembered. While the next ones show no more, they
// stay, and only every 2nd, 4th, 8th ... 32nd is looked at. Once a look shows more, that block's
// pages are purged, and those of the next 1, 2, 4 ... 64 sparse blocks, before one may stay again.
// No giant sparse block (32 MiB and more) stays, because it may have much in memory; but the
// program may have written zeroes. If looks found only zeroes eight times in a row, giant blocks
// stay, and every 64th is looked at: so a program that fills them with zeroes has page faults for
// the first few only.
//
// Clearing brings a whole block into memory; no later look can tell whether the program needs more
// than a word of it. So the 64th clearing purges, whatever the look says. That is in vain if so
// much comes back that clearing would have taken less time; then the next try is 128, 256 ... 1024
// clearings later. (A page fault after a purge takes as long as clearing fifteen pages or more. For
// giant blocks memory counts, not time: every 16th clearing tries, and it is in vain only if a
// quarter or more comes back. There each look takes the page faults of its sample where nothing is
// used. So once eight in a row held nothing, only every 64th is looked at; the others are purged
// unseen, until a freed block holds something.)
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"

namespace spanalloc::standard {

/// Thread-safe, zero-initialisable. Relaxed throughout; of two changes at once one may be
/// lost: only time and memory depend on it. Sizes are in slices; some share a word, as their
/// blocks may share memory.
template <class Config>
class LargeHabits {
 public:
  /// The look at which a block counts as used.
  static constexpr std::size_t kUsed = 64;

  /// Before a block is freed. False: it stays, whatever a look would find.
  bool wants_look(std::size_t slices) {
    if (slices >= kGiant) return zeroes_[place_of(slices)].wants_look();
    Word& word = freed_[place_of(slices)];
    Freed habit = Freed::from(word.load_relaxed());
    if (habit.unseen == 0) return true;
    --habit.unseen;
    word.store_relaxed(habit.bits());
    return false;
  }
  /// After that look. True: purge the block's pages.
  bool gives_back(std::size_t slices, std::size_t look) {
    const bool sparse = look < kUsed;
    if (slices >= kGiant) {
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
    } else if (!sparse || look > 2 * (habit.base - 1) + Config::kScatter) {
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

  /// Before a block is cleared. False: purge it, whatever a look would find.
  bool wants_look_to_clear(std::size_t slices) {
    return slices < kGiant || cleared_zeroes_[place_of(slices)].wants_look();
  }
  /// After that look. True: purge the block's pages.
  bool clears_by_purging(std::size_t slices, std::size_t look) {
    if (slices >= kGiant) (void)cleared_zeroes_[place_of(slices)].stay(look);
    Word& word = cleared_[place_of(slices)];
    Cleared habit = Cleared::from(word.load_relaxed());
    const bool giant = slices >= kGiant;
    const bool in_vain = look >= (giant ? kUsed : Config::kQuickerCleared);
    if (habit.tried && in_vain && habit.patience != kMostPatience) ++habit.patience;
    habit.tried = in_vain && ++habit.since >= (giant ? Config::kGiantClearings : Config::kClearings)
                                                  << habit.patience;
    if (!in_vain) habit.patience = 0;
    if (!in_vain || habit.tried) habit.since = 0;
    word.store_relaxed(habit.bits());
    const bool purges = !in_vain || habit.tried;
    // What clearing brings into memory is not the program's use.
    if (!purges && !giant) forget_sparse_one(slices);
    return purges;
  }

 private:
  using Word = Atomic<std::uint32_t>;
  static constexpr std::size_t kGiant = Config::kGiant >> Config::kSliceBits;
  static constexpr std::size_t kPlaces = 16;
  static constexpr unsigned kMostRegrets = 6;
  static constexpr unsigned kMostSame = 5;
  static constexpr unsigned kMostPatience = 4;

  struct Freed {
    unsigned base = 0;     // the look at the block that stayed, + 1; 0: none stayed
    unsigned same = 0;     // looks since then that found no more
    unsigned unseen = 0;   // the next so many blocks are not looked at
    unsigned regrets = 0;  // how often blocks that stayed were followed by fuller ones
    unsigned to_go = 0;    // the next so many sparse blocks do not stay

    static Freed from(std::uint32_t bits) {
      return {bits & 0xFF, bits >> 8 & 0xF, bits >> 12 & 0x3F, bits >> 18 & 0xF, bits >> 22 & 0x7F};
    }
    std::uint32_t bits() const {
      return base | same << 8 | unseen << 12 | regrets << 18 | to_go << 22;
    }
  };
  static_assert(kUsed <= 0xFF && kMostSame <= 0xF && (1u << kMostSame) - 1 <= 0x3F &&
                kMostRegrets <= 0xF && 1u << kMostRegrets <= 0x7F);

  // For giant blocks in which looks find nothing but zeroes.
  class Zeroes {
   public:
    bool wants_look() {
      const std::uint32_t unseen = word_.load_relaxed();
      if (unseen <= Config::kZeroesInARow) return true;
      word_.store_relaxed(unseen - 1);
      return false;
    }
    bool stay(std::size_t look) {
      const std::uint32_t in_a_row = look == 0 ? word_.load_relaxed() + 1 : 0;
      word_.store_relaxed(in_a_row > Config::kZeroesInARow
                              ? Config::kZeroesInARow + Config::kZeroesUnseen
                              : in_a_row);
      return in_a_row > Config::kZeroesInARow;
    }

    /// Something was found: the next one is looked at.
    void end() {
      if (word_.load_relaxed() != 0) word_.store_relaxed(0);
    }

   private:
    // Looks in a row; above kZeroesInARow: the excess is how many blocks are not looked at
    Word word_{0};
  };

  struct Cleared {
    unsigned since;     // clearings since one was done by purging
    unsigned patience;  // how often that was in vain
    bool tried;         // the last block was purged though it was used

    static Cleared from(std::uint32_t bits) {
      return {bits & 0xFFFF, bits >> 16 & 0xF, bits >> 20 != 0};
    }
    std::uint32_t bits() const { return since | patience << 16 | (tried ? 1u << 20 : 0); }
  };
  static_assert(Config::kClearings << kMostPatience <= 0xFFFF && kMostPatience <= 0xF);

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

  Word freed_[kPlaces] = {};
  Word cleared_[kPlaces] = {};
  Zeroes zeroes_[kPlaces] = {};
  Zeroes cleared_zeroes_[kPlaces] = {};
};

}  // namespace spanalloc::standard
