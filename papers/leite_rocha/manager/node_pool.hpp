// Equal-sized nodes for a structure inside an allocator, which cannot call one: the "secondary
// memory allocator" that Leite & Rocha's tree needs (ISMM'19, section 4.4).
//
// Nodes are numbered from 1 and lie in chunks that a directory lists; a chunk is mapped when the
// first node of it is asked for and never goes away, so a number always leads to readable memory.
// Free nodes are in a Treiber stack; retired ones in the limbo lists of an epoch scheme
// (papers/leite_rocha/manager/epochs.hpp) until nobody can stand on them.
//
// Lock-free: two threads that need a new chunk at once both map one, and the one that comes
// second gives its own back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "papers/leite_rocha/manager/epochs.hpp"
#include "sync/treiber_stack.hpp"

namespace spanalloc::coalescing {

/// Chunks: `void* map(bytes)` (zeroed; nullptr when refused) and `void unmap(void*,
/// bytes)`. Node needs a member `Atomic<std::uint32_t> link` that is the pool's while the
/// node is free or retired.
template <class Node, class Chunks, std::size_t kChunkNodes = 1024, std::size_t kMaxChunks = 4096,
          unsigned kEpochSlots = 128>
class NodePool {
 public:
  using Epoch = Epochs<kEpochSlots>;
  using Guard = typename Epoch::Guard;

  Epoch& epochs() { return epochs_; }
  Node& operator[](std::uint32_t number) {
    return directory_[(number - 1) / kChunkNodes].load_acquire()[(number - 1) % kChunkNodes];
  }

  /// A node for the caller alone; 0 when memory is out.
  std::uint32_t take() {
    if (const std::uint32_t number = free_.pop(links())) return number;
    reclaim();
    if (const std::uint32_t number = free_.pop(links())) return number;
    return take_fresh();
  }
  /// Gives back a node that nobody else has ever been able to reach.
  void give_back(std::uint32_t number) { free_.push(number, links()); }
  /// Gives back a node that the caller, inside a Guard, has unlinked: others may still stand on it.
  void retire(std::uint32_t number) { limbo_[epochs_.list_to_retire_into()].push(number, links()); }

  /// Gives all nodes' memory back. Nothing may use the pool or a node any more.
  void release() {
    for (Atomic<Node*>& chunk : directory_) {
      Node* const nodes = chunk.load_acquire();
      if (nodes == nullptr) return;  // chunks are filled in order
      Chunks::unmap(nodes, kChunkNodes * sizeof(Node));
      chunk.store_relaxed(nullptr);
    }
  }

  /// Nodes that memory was taken for.
  std::size_t nodes() const { return min_of(next_.load_relaxed(), kChunkNodes * kMaxChunks); }

 private:
  auto links() {
    return [this](std::uint32_t number) -> Atomic<std::uint32_t>& { return (*this)[number].link; };
  }

  // Inside the caller's Guard.
  void reclaim() {
    const unsigned list = epochs_.try_advance();
    if (list == Epoch::kLists) return;
    const std::uint32_t first = limbo_[list].take_all();
    if (first == 0) return;
    std::uint32_t last = first;
    for (std::uint32_t next = (*this)[last].link.load_relaxed(); next != 0;
         next = (*this)[last].link.load_relaxed()) {
      last = next;
    }
    free_.push_chain(first, last, links());
  }

  std::uint32_t take_fresh() {
    // A number is used up also when its chunk is refused; 2^22 refusals are not worth a thought.
    const std::size_t index = next_.load_relaxed();
    if (index >= kChunkNodes * kMaxChunks) return 0;
    if (!ensure_chunk(index / kChunkNodes)) return 0;
    const std::size_t mine = next_.fetch_add_relaxed(1);
    if (mine >= kChunkNodes * kMaxChunks || !ensure_chunk(mine / kChunkNodes)) return 0;
    return static_cast<std::uint32_t>(mine + 1);
  }
  bool ensure_chunk(std::size_t chunk) {
    if (directory_[chunk].load_acquire() != nullptr) return true;
    void* fresh = Chunks::map(kChunkNodes * sizeof(Node));
    if (fresh == nullptr) return false;
    Node* none = nullptr;
    // Release half: whoever finds the chunk finds it zeroed.
    if (!directory_[chunk].compare_exchange_strong_acq_rel(none, static_cast<Node*>(fresh))) {
      Chunks::unmap(fresh, kChunkNodes * sizeof(Node));
    }
    return true;
  }

  Epoch epochs_;
  TreiberStack free_;
  TreiberStack limbo_[Epoch::kLists];
  Atomic<std::size_t> next_{0};          // shared: nodes ever numbered
  Atomic<Node*> directory_[kMaxChunks];  // shared: null, then constant
};

}  // namespace spanalloc::coalescing
