// Every heap that threads have had: a registry of records (thread/record_registry.hpp) and the room
// they are made in. A thread's end leaves its heap, with what is live in it, to the next thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/poison.hpp"
#include "papers/a2alloc/engine/global_heap.hpp"
#include "papers/a2alloc/engine/heap.hpp"
#include "thread/record_registry.hpp"

namespace spanalloc::a2alloc {

template <class Config>
class HeapRegistry {
 public:
  /// A heap without a thread. nullptr when memory is out.
  Heap<Config>* take(ThreadHeaps<Config>& owner, GlobalHeap<Config>& global) {
    // Whether a vanished thread was making one does not matter: see room_.
    Heap<Config>* heap = records_.take([&](bool) { return make(owner, global); });
    SPANALLOC_ASSERT(heap == nullptr || (!heap->has_thread && &heap->owner() == &owner));
    return heap;
  }

  void give_back(Heap<Config>* heap) {
    SPANALLOC_ASSERT(!heap->has_thread);
    records_.give_back(heap);
  }

  /// Calls f(Heap&) for every heap, idle ones too; heaps made meanwhile may be missed.
  template <class F>
  void for_each(F&& f) const {
    records_.for_each(f);
  }

  /// In a fork's child, the calling thread in no call of this class: every heap but its own is
  /// idle. That also finds those which vanished threads were just taking or giving back.
  void keep_only(const Heap<Config>* own) {
    records_.recover_in_child([&](Heap<Config>& heap) {
      if (&heap == own) return false;
      if (heap.has_thread) heap.has_thread = false;
      return true;
    });
  }

  /// In a fork's child, first of all.
  void enter_child() {
    records_.enter_child();
    for_each([](Heap<Config>& heap) { heap.lock.abandon_if_owner_died(); });
  }

 private:
  // The first page of the superblock stays unused: an object to its left that is written past its
  // end does not reach the records.
  static constexpr std::size_t kClearance = 4096;
  static_assert(sizeof(Heap<Config>) + kClearance <= kSuperblockBytes<Config>);

  // With the registry's lock.
  Heap<Config>* make(ThreadHeaps<Config>& owner, GlobalHeap<Config>& global) {
    std::uintptr_t place = room_.load_relaxed();
    if (place == 0) {
      const Superblock<Config>* piece = global.take(Kind::kHeapRecords, 1).first;
      if (piece == nullptr) return nullptr;
      unpoison(pointer_to(piece->start), kSuperblockBytes<Config>);
      place = piece->start + kClearance;
    }
    SPANALLOC_ASSERT(place % alignof(Heap<Config>) == 0);
    const std::uintptr_t next = place + sizeof(Heap<Config>);
    const std::uintptr_t end =
        align_down(place, kSuperblockBytes<Config>) + kSuperblockBytes<Config>;
    const bool has_room = Config::kShareHeapRecords && end - next >= sizeof(Heap<Config>);
    room_.store_relaxed(has_room ? next : 0);
    return new (pointer_to(place)) Heap<Config>(owner);
  }

  // Its lock is taken before a heap's and the global heap's
  thread::RecordRegistry<Heap<Config>> records_;
  // Where the next record goes; 0: into a superblock of its own or a new one. Under the
  // registry's lock. One word, written before the record is published: in a fork's child it
  // says what is free at every step of a vanished thread, which at most has left a record's
  // room, or a superblock, unused.
  Atomic<std::uintptr_t> room_{0};
};

}  // namespace spanalloc::a2alloc
