// The manager as published (Leite & Rocha, ISMM'19, Listings 3 to 6), over the tree
// controller: for comparison.
//
// It keeps the paper's open problems (section 4.4): neighbours freed at the same time may both
// stay; an allocation may be refused while others hold a block that they are about to split; the
// tree's nodes need a secondary allocator. With `kRecursive` coalescing goes on while there are
// free neighbours, so that neighbours missed once are merged when a block beside them is freed.
#pragma once

#include <cstddef>

#include "base/atomic.hpp"
#include "pages/coalescing/controller.hpp"
#include "pages/coalescing/mapper.hpp"
#include "papers/leite_rocha/manager/tree_controller.hpp"

namespace spanalloc::coalescing {

/// Thread-safe; lock-free while the tree's pool has nodes.
template <class Tree, bool kRecursive>
class PaperManager {
  static_assert(BlockController<Tree>);

 public:
  static constexpr std::size_t metadata_bytes(std::size_t units) {
    return WordMapper::bytes_for(units);
  }
  /// `metadata`: zeroed, metadata_bytes(capacity) bytes. False when there is no
  /// memory for the empty tree.
  bool attach(void* metadata, std::size_t capacity) {
    mapper_.attach(metadata, 0);
    capacity_ = capacity;
    return tree_.start();
  }
  std::size_t limit() const { return mapper_.limit(); }

  /// Adds `units` free units behind the last one. One caller at a time.
  bool extend(std::size_t units) {
    const Block fresh{mapper_.limit(), units};
    if (units == 0 || units > capacity_ - fresh.first) return units == 0;
    mapper_.set_limit(fresh.end());
    update(fresh, BlockState::kBusy);
    add(coalesce(fresh));
    return true;
  }

  /// Listing 3. No block when the controller has none that is large enough at this instant.
  Block allocate(std::size_t size) {
    if (size == 0) return {};
    const Block block = tree_.take(size);
    if (!block) return {};
    if (block.size > size) {
      update({block.first, size}, BlockState::kUsed);
      const Block rest{block.first + size, block.size - size};
      update(rest, BlockState::kBusy);
      add(rest);
    } else {
      update(block, BlockState::kUsed);
    }
    return {block.first, size};
  }

  /// Listing 4. False when no block was handed out at `first`.
  bool free(std::size_t first) {
    if (first >= mapper_.limit()) return false;
    BlockWord word = mapper_.load(first);
    if (!word.is(BlockState::kUsed)) return false;
    if (!mapper_.exchange_if(first, word, word.with_state(BlockState::kBusy))) return false;
    add(coalesce({first, word.size()}));
    return true;
  }

  /// Calls visit(Block) for the blocks in the controller; while nothing else runs.
  template <class Visit>
  void for_each_free(Visit visit) {
    tree_.for_each(visit);
  }
  std::size_t nodes() const { return tree_.nodes(); }
  /// Gives the tree's memory back. Nothing may use the manager any more.
  void release_nodes() { tree_.release(); }
  /// Units of blocks that the controller had no node for: in nobody's books any more.
  std::size_t lost_units() const { return lost_units_.load_relaxed(); }
  void reset_after_fork() { tree_.reset_after_fork(); }

 private:
  // MapperUpdate.
  void update(Block block, BlockState state) {
    if (block.size > 1) mapper_.store(block.end() - 1, BlockWord::footer(block.size));
    mapper_.store(block.first, BlockWord::header(state, block.size));
  }
  void add(Block block) {
    if (!tree_.add(block)) lost_units_.fetch_add_relaxed(block.size);
  }

  // Listings 5 and 6.
  Block coalesce(Block block) {
    for (bool again = true; again; again = again && kRecursive) {
      again = false;
      const Block before = mapper_.block_before(block.first);
      if (tree_.remove(before)) {
        block = {before.first, before.size + block.size};
        update(block, BlockState::kBusy);
        again = true;
      }
      const Block behind = mapper_.block_at(block.end());
      if (tree_.remove(behind)) {
        block.size += behind.size;
        update(block, BlockState::kBusy);
        again = true;
      }
    }
    return block;
  }

  WordMapper mapper_;
  Tree tree_;
  std::size_t capacity_ = 0;  // constant after attach()
  Atomic<std::size_t> lost_units_{0};
};

}  // namespace spanalloc::coalescing
