// A set of units, one bit a unit: such as those that may hold other bytes than
// zero, or are free for long.
//
// Where a set must be exact, only the owner of a block writes the bits of its units. Neighbours
// share words: so the writes are atomic read-modify-writes. A thread that claims a block has
// acquired what its last owner wrote (the header's compare-and-swap), so relaxed accesses would do
// for the bits of its own units. The read-modify-writes are sequentially consistent only because
// base/atomic.hpp has no weaker ones.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/inspection_access.hpp"
#include "pages/coalescing/mapper.hpp"

namespace spanalloc::coalescing {

class UnitSet {
 public:
  /// `memory`: zeroed, so no unit is in the set. Units [64 n, 64 n + 64) have
  /// word n * `stride` + `which`.
  void attach(void* memory, std::size_t stride, unsigned which) {
    words_ = static_cast<Word*>(memory) + which;
    stride_ = stride;
  }

  void insert(Block block) {
    for_words(block, [](Word& word, std::uint64_t mask) {
      if ((word.load_relaxed() & mask) != mask) word.fetch_or_seq_cst(mask);
      return true;
    });
  }
  void erase(Block block) {
    for_words(block, [](Word& word, std::uint64_t mask) {
      if ((word.load_relaxed() & mask) != 0) word.fetch_and_seq_cst(~mask);
      return true;
    });
  }
  std::size_t count(Block block) const {
    std::size_t units = 0;
    for_words(block, [&](Word& word, std::uint64_t mask) {
      units += static_cast<std::size_t>(std::popcount(word.load_relaxed() & mask));
      return true;
    });
    return units;
  }
  /// Units of the block that are not in the set. (Mostly all are: no bits are counted then.)
  std::size_t count_missing(Block block) const {
    std::size_t units = 0;
    for_words(block, [&](Word& word, std::uint64_t mask) {
      const std::uint64_t missing = ~word.load_relaxed() & mask;
      if (missing != 0) units += static_cast<std::size_t>(std::popcount(missing));
      return true;
    });
    return units;
  }
  bool any(Block block) const {
    return !for_words(
        block, [](Word& word, std::uint64_t mask) { return (word.load_relaxed() & mask) == 0; });
  }

  /// The next unit of the set in `block` at or behind `from`; the block's end: there is none.
  std::size_t next_unit(Block block, std::size_t from) const {
    while (from < block.end() && !is_set(from)) from = skip(from, block.end(), false);
    return from;
  }
  /// The next run of units of the set in `block` at or behind `from`; no block: there is none.
  Block next_run(Block block, std::size_t from) const {
    const std::size_t first = next_unit(block, from);
    std::size_t end = first;
    while (end < block.end() && is_set(end)) end = skip(end, block.end(), true);
    return {first, end - first};
  }

 private:
  friend struct spanalloc::InspectionAccess;

  using Word = Atomic<std::uint64_t>;

  Word& word(std::size_t unit) const { return words_[unit / 64 * stride_]; }
  bool is_set(std::size_t unit) const {
    return ((word(unit).load_relaxed() >> (unit % 64)) & 1) != 0;
  }
  // The first unit behind `unit` whose bit differs from `value`, but at most
  // `end`, or the end of the word.
  std::size_t skip(std::size_t unit, std::size_t end, bool value) const {
    std::uint64_t rest = word(unit).load_relaxed() >> (unit % 64);
    if (value) rest = ~rest;
    const std::size_t left = 64 - unit % 64;
    const std::size_t run = min_of(static_cast<std::size_t>(std::countr_zero(rest)), left);
    return min_of(unit + max_of(run, 1), end);
  }
  // Calls visit(word, mask of the block's units in it) until it returns false. True: it never did.
  template <class Visit>
  bool for_words(Block block, Visit visit) const {
    for (std::size_t unit = block.first; unit < block.end();) {
      const std::size_t in_word = min_of(64 - unit % 64, block.end() - unit);
      const std::uint64_t ones = ~std::uint64_t{0} >> ((64 - in_word) % 64);  // in_word of them
      if (!visit(word(unit), ones << (unit % 64))) return false;
      unit += in_word;
    }
    return true;
  }

  // Constant after attach().
  Word* words_ = nullptr;
  std::size_t stride_ = 0;
};

}  // namespace spanalloc::coalescing
