// Walks everything the engine has and checks every invariant: the proof that blocks tile their
// superblocks and that nothing is lost. Exact while no other thread uses the heap.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bits.hpp"
#include "papers/a2alloc/engine/global_heap.hpp"
#include "papers/a2alloc/engine/heap.hpp"
#include "papers/a2alloc/engine/superblock.hpp"
#include "papers/a2alloc/engine/thread_heaps.hpp"

namespace spanalloc::a2alloc {

struct Census {
  // Pieces of the arena: known is the sum of the seven below it.
  std::size_t known = 0;
  std::size_t free = 0;
  std::size_t superblocks = 0;        // in heaps, blocks out
  std::size_t empty_superblocks = 0;  // in heaps, no block out
  std::size_t large = 0;
  std::size_t heap_records = 0;
  std::size_t lost = 0;  // to foreign mappings, without a reservation
  std::size_t lost_to_fork = 0;
  std::size_t live_blocks = 0;
  std::size_t broken = 0;               // violated invariants
  const char* first_problem = nullptr;  // the first of them, and where
  std::uintptr_t at = 0;

  bool consistent() const {
    return broken == 0 && known == free + superblocks + empty_superblocks + large + heap_records +
                                       lost + lost_to_fork;
  }
  /// Nothing is out, and the heaps keep nothing.
  bool all_returned() const { return known == free + heap_records + lost + lost_to_fork; }
};

template <class Config>
class Walker {
 public:
  using Piece = Superblock<Config>;

  static Census walk(GlobalHeap<Config>& global, ThreadHeaps<Config>& heaps) {
    Walker walker;
    heaps.for_each([&](const Heap<Config>& heap) { walker.walk_heap(heap); });
    walker.walk_global(global);
    return walker.census_;
  }

 private:
  void demand(bool holds, const char* what, std::uintptr_t at) {
    if (holds) return;
    if (census_.broken++ == 0) {
      census_.first_problem = what;
      census_.at = at;
    }
  }

  void walk_heap(const Heap<Config>& heap) {
    std::size_t used = 0;
    std::size_t count = 0;
    const Piece* previous = nullptr;
    SizeClass last_class;
    unsigned last_group = 0;
    heap.for_each([&](Piece* piece, SizeClass size_class, unsigned group) {
      if (size_class != last_class || group != last_group) previous = nullptr;  // another list
      last_class = size_class;
      last_group = group;
      demand(piece->kind.load_relaxed() == Kind::kSuperblock, "a heap lists what is no superblock",
             piece->start);
      demand(piece->heap.load_relaxed() == &heap, "a superblock names another heap", piece->start);
      demand(piece->size_class == size_class && piece->group == group &&
                 group == heap.group_of(*piece),
             "a superblock is in the wrong list", piece->start);
      demand(piece->previous == previous, "a list's links disagree", piece->start);
      previous = piece;
      walk_blocks(*piece);
      used += piece->used;
      ++count;
      ++(piece->is_empty() ? census_.empty_superblocks : census_.superblocks);
    });
    demand(used == heap.used(), "a heap's used space is not its superblocks'", address_of(&heap));
    demand(count == heap.superblocks(), "a heap's count of superblocks is wrong",
           address_of(&heap));
  }

  void walk_blocks(const Piece& piece) {
    const bool coalesces = piece.merges();
    const std::size_t least = coalesces ? kLeastBlock : block_size_for(piece.size_class.bytes());
    std::size_t used = 0;
    std::size_t live = 0;
    std::size_t free = 0;
    std::size_t left_size = 0;
    bool left_is_free = false;
    std::uintptr_t at = piece.start;
    while (at < piece.end()) {
      Block* block = pointer_to<Block>(at);
      demand(block->is_sealed(), "a header is overwritten", at);
      demand(block->left_size == left_size, "a block does not know its left neighbour's size", at);
      if (!block->is_sealed() || block->size() < kLeastBlock || block->size() > piece.end() - at) {
        return demand(false, "blocks do not tile their superblock", at);
      }
      demand(block->size() >= least, "a block is smaller than its class", at);
      if (block->is_free()) {
        ++free;
        demand(!coalesces || !left_is_free, "two free blocks are neighbours", at);
        demand(block->size() <= piece.bound, "a free block is larger than the bound", at);
      } else {
        ++live;
        used += block->size();
      }
      left_is_free = block->is_free();
      left_size = block->size();
      at += left_size;
    }
    demand(used == piece.used && live == piece.live, "a superblock's accounting is wrong",
           piece.start);
    demand(coalesces || live != 0 || free == 1, "an empty superblock was not made afresh",
           piece.start);
    for (FreeBlock *block = piece.free_blocks, *previous = nullptr; block != Piece::list_end();
         block = block->next) {
      if (!piece.is_place(block) || !block->is_sealed() || !block->is_free() ||
          block->previous != previous || free == 0) {
        return demand(false, "the free list is broken", address_of(block));
      }
      previous = block;
      --free;
    }
    demand(free == 0, "a free block is not in the list", piece.start);
    census_.live_blocks += live;
  }

  void walk_global(GlobalHeap<Config>& global) {
    bool left_is_free = false;
    std::size_t superblocks = 0;
    std::size_t strays = 0;
    std::size_t free_runs = 0;
    global.for_each_run([&](Piece* run) {
      const Kind kind = run->kind.load_relaxed();
      const std::size_t count = kind == Kind::kInside ? 1 : run->count;
      demand(count != 0 && kind != Kind::kFreeTail, "runs do not tile the arena", run->start);
      demand(kind != Kind::kFree || !left_is_free, "two free runs are neighbours", run->start);
      demand(kind == Kind::kSuperblock || run->heap.load_relaxed() == nullptr,
             "what is no superblock is in a heap", run->start);
      left_is_free = kind == Kind::kFree;
      // A vanished thread had one in its hands.
      const bool stray = kind == Kind::kSuperblock && run->heap.load_relaxed() == nullptr;
      strays += stray;
      census_.lost_to_fork += kind == Kind::kLost || stray ? count : 0;
      superblocks += kind == Kind::kSuperblock ? count : 0;
      free_runs += kind == Kind::kFree;
      census_.known += count;
      census_.free += kind == Kind::kFree ? count : 0;
      census_.large += kind == Kind::kLarge ? count : 0;
      census_.heap_records += kind == Kind::kHeapRecords ? count : 0;
      census_.lost += kind == Kind::kInside ? count : 0;
      for (std::size_t i = 1; i < count; ++i) {
        const bool is_tail = kind == Kind::kFree && i == count - 1;
        demand(run[i].kind.load_relaxed() == (is_tail ? Kind::kFreeTail : Kind::kInside) &&
                   (!is_tail || run[i].count == count),
               "a piece in a run is not marked as one", run[i].start);
      }
    });
    std::size_t dirty = 0;
    global.for_each_free([&](Piece* run) {
      demand(run->kind.load_relaxed() == Kind::kFree, "what is not free is listed as free",
             run->start);
      std::size_t in_run = 0;
      for (std::size_t i = 0; i < run->count; ++i) in_run += !run[i].zero;
      demand(in_run == run->dirty, "a free run's count of dirty pieces is wrong", run->start);
      dirty += in_run;
      --free_runs;
    });
    demand(free_runs == 0, "a free run is not in the list", 0);
    demand(superblocks == census_.superblocks + census_.empty_superblocks + strays,
           "a superblock is in no heap's list", 0);
    const PieceCounts counts = global.counts();
    demand(counts.known == census_.known && counts.free == census_.free && counts.dirty == dirty &&
               counts.superblocks == superblocks && counts.large == census_.large &&
               counts.heap_records == census_.heap_records && counts.lost == census_.lost &&
               counts.lost_to_fork + strays == census_.lost_to_fork && counts.add_up(),
           "the global heap's accounting is wrong", 0);
  }

  Census census_;
};

}  // namespace spanalloc::a2alloc
