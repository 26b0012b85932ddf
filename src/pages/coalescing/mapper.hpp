// The mapper: the physical layout of memory in blocks, one word a unit (Leite &
// Rocha, ISMM'19, section 4.1).
//
// A block is a run of units. The word of its first unit is its header, the word of its last unit
// its footer. So a block finds the blocks before and behind it without touching the memory
// itself. A block of one unit has a header only: a thread that looks for a footer there reads the
// header, and its size of 1.
//
// States of a header, and who may write the words of the block's units:
//   kUsed   handed out. Its owner, in a call of the manager
//   kFree   at rest in the controller. Nobody; but anybody may claim it by turning this word into
//           kBusy
//   kBusy   claimed, or not yet given to the controller. Only the thread that made it so, until it
//           writes kUsed or kFree
//
// Invariants. Two managers use the mapper: (2) to (4) hold for the one that ships (manager.hpp).
// The paper's (papers/leite_rocha/manager/paper_manager.hpp) leaves its free blocks kBusy, in the
// tree, and makes a block shorter before it writes the rest's header.
//   (1) The word of a unit inside a block is never kFree or kUsed: a block becomes part of a larger
//       one only after it was claimed (its header says kBusy), and a part cut off a block gets a
//       header of its own before anybody else can learn of it.
//   (2) So a word equal to header(kFree, s) at unit u says that at this instant [u, u + s) is a
//       free block. A claim is a compare-and-swap that expects exactly this word. It has no ABA
//       problem: the claimant needs nothing to be true but what it checks.
//   (3) Read from the first unit on, each header telling where the next one stands, the words tile
//       the range at every instant. A thread that cuts a block writes the new headers inside it
//       before it makes the first one shorter; a thread that merges writes only the first one,
//       longer. (A walk and a fork's child need this.)
//   (4) A free block's footer was written before its header said kFree. A footer that is not the
//       last word of a free block may be stale. It is believed only if the header that it leads to
//       says kFree with the footer's size; by (2) that block then ends where the footer stands.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/inspection_access.hpp"

namespace spanalloc::coalescing {

/// A run of units. Unit numbers and sizes are in units of the manager; size 0 is "no block".
struct Block {
  std::size_t first = 0;
  std::size_t size = 0;

  std::size_t end() const { return first + size; }
  explicit operator bool() const { return size != 0; }
  bool operator==(const Block&) const = default;
};

enum class BlockState : std::uint8_t { kNone = 0, kUsed = 1, kFree = 2, kBusy = 3, kFooter = 4 };

/// One word of the mapper: {size:56, state:3, dirty:1}; the flag means something in headers only.
class BlockWord {
 public:
  constexpr BlockWord() = default;
  static constexpr BlockWord from_bits(std::uint64_t bits) { return BlockWord(bits); }
  static constexpr BlockWord header(BlockState state, std::size_t size, bool dirty = false) {
    return BlockWord(size << kSizeShift | (dirty ? kDirty : 0) | static_cast<std::uint64_t>(state));
  }
  static constexpr BlockWord footer(std::size_t size) {
    return BlockWord(size << kSizeShift | static_cast<std::uint64_t>(BlockState::kFooter));
  }

  constexpr std::uint64_t bits() const { return bits_; }
  constexpr BlockState state() const { return static_cast<BlockState>(bits_ & kStateMask); }
  constexpr std::size_t size() const { return bits_ >> kSizeShift; }
  /// Some unit of the block may hold other bytes than zero.
  constexpr bool dirty() const { return (bits_ & kDirty) != 0; }
  constexpr bool is(BlockState state) const { return this->state() == state; }
  constexpr BlockWord with_state(BlockState state) const {
    return BlockWord((bits_ & ~kStateMask) | static_cast<std::uint64_t>(state));
  }
  constexpr bool operator==(const BlockWord&) const = default;

 private:
  friend struct spanalloc::InspectionAccess;

  static constexpr std::uint64_t kStateMask = 7;
  static constexpr std::uint64_t kDirty = 8;
  static constexpr unsigned kSizeShift = 8;
  constexpr explicit BlockWord(std::uint64_t bits) : bits_(bits) {}

  std::uint64_t bits_ = 0;
};

/// A mapper over an array of words, one a unit; touches words only where blocks begin and end.
///
/// Every access is sequentially consistent. Two neighbours that are freed at the same time each
/// write their own words and then read the other's ("publish, then look"). At least one must see
/// the other, which acquire and release alone do not ensure (store buffering). Footers take part:
/// the later neighbour finds the earlier by one.
class WordMapper {
 public:
  static constexpr std::size_t bytes_for(std::size_t units) { return units * sizeof(Word); }

  /// `words`: zeroed memory for bytes_for(capacity) bytes. `limit` units exist at once. If
  /// the words share their memory with others, each row of `row_words` has `before` others,
  /// then 64 of the mapper's.
  void attach(void* words, std::size_t limit, std::size_t before = 0, std::size_t row_words = 64) {
    words_ = static_cast<Word*>(words) + before;
    beside_ = row_words - 64;
    limit_.store_seq_cst(limit);
  }

  /// How many units there are now; never shrinks.
  std::size_t limit() const { return limit_.load_seq_cst(); }
  /// Called by the thread that extends the range, before it publishes the new units' first header.
  void set_limit(std::size_t limit) { limit_.store_seq_cst(limit); }

  BlockWord load(std::size_t unit) const { return BlockWord::from_bits(word(unit).load_seq_cst()); }
  void store(std::size_t unit, BlockWord word) { this->word(unit).store_seq_cst(word.bits()); }
  /// Writes the header of `block`.
  void mark(Block block, BlockState state, bool dirty = false) {
    store(block.first, BlockWord::header(state, block.size, dirty));
  }
  /// Replaces header `expected` by `desired`; on failure `expected` is what was found.
  bool exchange_if(std::size_t unit, BlockWord& expected, BlockWord desired) {
    std::uint64_t bits = expected.bits();
    if (word(unit).compare_exchange_strong_seq_cst(bits, desired.bits())) return true;
    expected = BlockWord::from_bits(bits);
    return false;
  }

  // Guesses at the block that ends before a unit, and the one that begins at it; none at the
  // range's ends.
  Block block_before(std::size_t unit) const {
    if (unit == 0) return {};
    const BlockWord last = load(unit - 1);
    const std::size_t size = last.is(BlockState::kFooter) ? last.size() : 1;
    return size <= unit ? Block{unit - size, size} : Block{};
  }
  Block block_at(std::size_t unit) const {
    return unit < limit() ? Block{unit, load(unit).size()} : Block{};
  }

 private:
  friend struct spanalloc::InspectionAccess;

  using Word = Atomic<std::uint64_t>;
  static_assert(sizeof(Word) == 8);

  Word& word(std::size_t unit) const { return words_[unit + unit / 64 * beside_]; }

  Word* words_ = nullptr;                 // constant after attach()
  std::size_t beside_ = 0;                // constant after attach()
  mutable Atomic<std::size_t> limit_{0};  // shared; written by the thread that extends the range
};

}  // namespace spanalloc::coalescing
