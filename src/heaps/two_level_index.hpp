// The free blocks of a shard by size: two-level segregated fit, all in constant time.
//
// Source: M. Masmano, I. Ripoll, A. Crespo, J. Real, "TLSF: a New Dynamic Memory Allocator for
// Real-Time Systems", ECRTS 2004. A list for each sixteenth of a doubling (below 256 bytes: for
// each multiple of 16), a bit for each list and one for each doubling say which are not empty.
// What is found is the first block of the smallest list in which every block fits; or before that
// the first one of the list of the wanted size itself, if it happens to be large enough.
//
// A list's head is valid only while its bit is set, so that nothing but the bits is cleared when a
// heap is made. Links are checked before they are followed or changed (remove()): the program may
// have written to free memory.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "base/assert.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "heaps/block.hpp"

namespace spanalloc::heaps {

/// Zero-initialised. The owner's lock gives access. `Memory::may_have(p)`: whether a word at p,
/// which may be anything, can be read.
template <class Memory>
class TwoLevelIndex {
 public:
  static constexpr std::size_t kMostBytes = kMiB;  // of a block

  bool is_empty() const { return levels_ == 0; }
  void forget() {
    levels_ = 0;
    for (auto& steps : steps_) steps = 0;
  }

  void insert(Key key, Block* block, std::size_t size) {
    const Place place = place_of(size);
    Block* const second = head(place);
    block->set_previous(key, nullptr);
    block->set_next(key, second);
    if (second != nullptr) second->set_previous(key, block);
    set_head(place, block);
  }

  /// A block of at least `size` bytes, which stays; nullptr: none is known. Of a block that the
  /// program has written to the size may be anything.
  Block* find(Key key, std::size_t size) const {
    if (levels_ == 0) return nullptr;
    Place place = place_of(size);
    if (Block* const first = head(place);
        first != nullptr && (place.level == 0 || first->tag(key).size() >= size))
      return first;
    unsigned steps = steps_[place.level] & (~1u << place.step);
    if (steps == 0) {
      const unsigned levels = levels_ & (~1u << place.level);
      if (levels == 0) return nullptr;
      place.level = static_cast<unsigned>(std::countr_zero(levels));
      steps = steps_[place.level];
    }
    return heads_[place.level][std::countr_zero(steps)];
  }

  /// False: its links are not those of a free block that is listed here; nothing has changed.
  [[nodiscard]] bool remove(Key key, Block* block, std::size_t size) {
    const Place place = place_of(size);
    Block* const next = block->next(key);
    Block* const previous = block->previous(key);
    if (previous == nullptr ? head(place) != block
                            : !is_listed(key, previous) || previous->next(key) != block)
      return false;
    if (next != nullptr && (!is_listed(key, next) || next->previous(key) != block)) return false;
    if (next != nullptr) next->set_previous(key, previous);
    if (previous != nullptr) {
      previous->set_next(key, next);
    } else {
      set_head(place, next);
    }
    block->clear_links();
    return true;
  }

  /// Forgets the list that begins with this block, whatever it says.
  void drop_list_of(const Block* first) {
    for (Place place{0, 0}; place.level < kLevels; ++place.level) {
      for (place.step = 0; place.step < kSteps; ++place.step) {
        if (head(place) == first) return set_head(place, nullptr);
      }
    }
  }

 private:
  static constexpr unsigned kStepBits = 4;
  static constexpr unsigned kSteps = 1u << kStepBits;
  // The first level is linear: up to kSteps granules.
  static constexpr unsigned kLinearBits = kStepBits + log2_floor(kGranule);
  static constexpr unsigned kLevels = log2_floor(kMostBytes) - kLinearBits + 2;
  struct Place {
    unsigned level;
    unsigned step;
  };

  static Place place_of(std::size_t size) {
    SPANALLOC_ASSERT(size >= kLeastBlock && size <= kMostBytes);
    if (size >> kLinearBits == 0) return {0, static_cast<unsigned>(size / kGranule)};
    const unsigned bits = log2_floor(size);
    return {bits - kLinearBits + 1, static_cast<unsigned>(size >> (bits - kStepBits)) - kSteps};
  }

  static bool is_listed(Key key, const Block* block) {
    return Block::may_be_at(block) && Memory::may_have(block) && block->tag(key).is_free();
  }
  Block* head(Place place) const {
    return (steps_[place.level] >> place.step & 1) != 0 ? heads_[place.level][place.step] : nullptr;
  }
  void set_head(Place place, Block* block) {
    const unsigned step = 1u << place.step;
    unsigned steps = steps_[place.level] & ~step;
    if (block != nullptr) {
      heads_[place.level][place.step] = block;
      steps |= step;
    }
    steps_[place.level] = static_cast<std::uint16_t>(steps);
    const unsigned level = 1u << place.level;
    levels_ = steps == 0 ? levels_ & ~level : levels_ | level;
  }

  // levels_ has a bit for each level of which steps_ is not 0.
  std::uint32_t levels_ = 0;
  std::uint16_t steps_[kLevels] = {};
  Block* heads_[kLevels][kSteps];
};

}  // namespace spanalloc::heaps
