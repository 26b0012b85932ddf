// How a heap's lock is taken. A fork takes no lock (sync/spin_lock.hpp): in the child, whoever is
// the first to take a lock that a vanished thread held repairs what it guards. The same of a lock
// that a thread has left where it found a misuse; what is repaired is all under that lock, so that
// others may be at work meanwhile.
#pragma once

#include "base/assert.hpp"
#include "base/compiler.hpp"
#include "papers/a2alloc/engine/global_heap.hpp"
#include "papers/a2alloc/engine/heap.hpp"
#include "papers/a2alloc/engine/superblock.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc::a2alloc {

/// Holds a heap's lock; its superblocks are whole.
template <class Config>
class [[nodiscard]] HeapGuard {
 public:
  HeapGuard(Heap<Config>& heap, GlobalHeap<Config>& global) : guard_(heap.lock) {
    if (SPANALLOC_UNLIKELY(guard_.owner_died())) repair(heap, global);
  }

 private:
  // A thread was changing the heap that vanished, or found it damaged: it has the superblocks
  // that say so and are whole.
  SPANALLOC_COLD static void repair(Heap<Config>& heap, GlobalHeap<Config>& global) {
    heap.forget_all();
    global.for_each_piece_of(heap, [&](Superblock<Config>* piece) {
      if (piece->kind.load_relaxed() == Kind::kSuperblock) {
        if (piece->recount()) return heap.take_back(piece);
        // Before it leaves the heap: who still finds that waits for its lock, and then sees that
        // the piece is lost.
        global.lose(piece);
      }
      piece->heap.store_release(nullptr);
    });
  }

  LockGuard<SpinLock> guard_;
};

}  // namespace spanalloc::a2alloc
