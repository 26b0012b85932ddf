// The paper's manager under the checker (coalescing_region.hpp), over its tree or over a plain array of
// slots.
#pragma once

#include "coalescing_region.hpp"
#include "pages/coalescing/ismm19/paper_manager.hpp"

namespace spanalloc::model {

/// The paper's three controller operations over an array: each takes effect in one compare-and-swap, so what
/// goes wrong above it is the manager's doing. `kTorn`: takes a block by a load and a store, which is wrong.
template <bool kTorn>
class SlotController {
 public:
  bool start() { return true; }
  bool add(Block block) {
    for (Atomic<std::uint64_t>& slot : slots_) {
      std::uint64_t empty = 0;
      if (slot.compare_exchange_strong_seq_cst(empty, word_of(block))) return true;
    }
    return false;
  }
  bool remove(Block block) {
    if (!block) return false;
    for (Atomic<std::uint64_t>& slot : slots_) {
      std::uint64_t word = word_of(block);
      if (slot.compare_exchange_strong_seq_cst(word, 0)) return true;
    }
    return false;
  }
  Block take(std::size_t size) {
    for (;;) {
      Atomic<std::uint64_t>* best = nullptr;
      std::uint64_t least = UINT64_MAX;
      for (Atomic<std::uint64_t>& slot : slots_) {
        const std::uint64_t word = slot.load_seq_cst();
        if (block_of(word).size < size || word >= least) continue;
        best = &slot;
        least = word;
      }
      if (best == nullptr) return {};
      if (kTorn) {
        best->store_seq_cst(0);
        return block_of(least);
      }
      if (best->compare_exchange_strong_seq_cst(least, 0)) return block_of(least);
    }
  }
  template <class Visit>
  void for_each(Visit visit) {
    for (Atomic<std::uint64_t>& slot : slots_) {
      if (slot.load_seq_cst() != 0) visit(block_of(slot.load_seq_cst()));
    }
  }

 private:
  // Ordered as the paper orders blocks: by size, then address.
  static std::uint64_t word_of(Block block) { return std::uint64_t{block.size} << 32 | block.first; }
  static Block block_of(std::uint64_t word) { return {word & UINT32_MAX, word >> 32}; }

  Atomic<std::uint64_t> slots_[kUnits];
};

/// A region of the paper's manager, for scenarios that only allocate and free. `kMayMiss`: its open problems,
/// blocks refused that others hold and neighbours that miss each other, are no failures.
template <class Controller, bool kRecursive, bool kMayMissSome>
class PaperRegion {
 public:
  static constexpr bool kMayMiss = kMayMissSome;
  PaperRegion() { MODEL_CHECK(manager_.attach(metadata_, kUnits)); }
  Books& books() { return books_; }
  std::size_t limit() const { return manager_.limit(); }

  Allocation allocate(std::size_t size, std::size_t) { return {manager_.allocate(size), false}; }
  bool free(std::size_t first) { return manager_.free(first); }
  bool extend(std::size_t size) { return manager_.extend(size); }
  struct Grown {
    bool done = false;
    bool zero = false;
  };
  Grown grow(std::size_t, std::size_t) { return {}; }
  bool shrink(std::size_t, std::size_t) { return false; }
  void purge(bool) {}

  // What is not in the controller is handed out: at rest.
  template <class Visit>
  void walk(Visit visit) {
    Block free[kUnits + 1] = {};
    manager_.for_each_free([&](Block block) { free[block.first] = block; });
    for (std::size_t unit = 0; unit < limit();) {
      const Block block = free[unit] ? free[unit] : Block{unit, 1};
      visit(block, free[unit] ? BlockState::kFree : BlockState::kUsed);
      unit = block.end();
    }
  }

 private:
  Books books_;
  alignas(8) unsigned char metadata_[kUnits * 8] = {};
  coalescing::PaperManager<Controller, kRecursive> manager_;
};

}  // namespace spanalloc::model
