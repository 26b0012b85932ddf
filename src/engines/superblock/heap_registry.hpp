// Every heap there ever was. Heaps are never given back: a thread's end leaves its heap, with what is live in
// it, to the next thread. So a million threads, one after another, use one heap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "engines/superblock/global_heap.hpp"
#include "engines/superblock/heap.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc::superblock {

template <class Config>
class HeapRegistry {
 public:
  explicit constexpr HeapRegistry(GlobalHeap<Config>& global) : global_(global) {}

  /// A heap without a thread. nullptr when memory is out.
  Heap<Config>* take() {
    LockGuard guard(lock_);
    // A vanished thread may have been making room: what there was is left alone. The list of idle heaps is
    // made anew in every child.
    if (SPANALLOC_UNLIKELY(guard.owner_died())) room_ = room_end_ = 0;
    Heap<Config>* heap = idle_;
    if (heap != nullptr) {
      idle_ = heap->next_idle;
      return heap;
    }
    if (room_end_ - room_ < sizeof(Heap<Config>) && !make_room()) return nullptr;
    heap = new (pointer_to(room_)) Heap<Config>;
    room_ += sizeof(Heap<Config>);
    if (!Config::kShareHeapRecords) room_ = room_end_;
    heap->next_of_all = all_.load_relaxed();
    all_.store_release(heap);  // release: walkers find a constructed heap
    return heap;
  }

  void give_back(Heap<Config>* heap) {
    LockGuard guard(lock_);
    if (SPANALLOC_UNLIKELY(guard.owner_died())) room_ = room_end_ = 0;
    heap->next_idle = idle_;
    idle_ = heap;
  }

  /// Calls f(Heap&) for every heap, idle ones too; heaps made meanwhile may be missed.
  template <class F>
  void for_each(F&& f) const {
    for (Heap<Config>* heap = all_.load_acquire(); heap != nullptr; heap = heap->next_of_all) f(*heap);
  }

  /// In a fork's child, the calling thread in no call of this class: every heap but its own is idle. That
  /// also finds those which vanished threads were just taking or giving back.
  void keep_only(Heap<Config>* own) {
    idle_ = nullptr;
    for_each([&](Heap<Config>& heap) {
      if (&heap == own) return;
      heap.has_thread = false;
      heap.next_idle = idle_;
      idle_ = &heap;
    });
  }

  /// In a fork's child, first of all.
  void enter_child() {
    lock_.abandon_if_owner_died();
    for_each([](Heap<Config>& heap) { heap.lock.abandon_if_owner_died(); });
  }

 private:
  // The first page of the superblock stays unused: an object to its left that is written past its end does
  // not reach the records.
  static constexpr std::size_t kClearance = 4096;
  static_assert(sizeof(Heap<Config>) + kClearance <= kSuperblockBytes<Config>);

  bool make_room() {
    auto* piece = global_.take(Kind::kHeapRecords, 1);
    if (piece == nullptr) return false;
    unpoison(pointer_to(piece->start), kSuperblockBytes<Config>);
    room_ = piece->start + kClearance;
    room_end_ = piece->end();
    return true;
  }

  GlobalHeap<Config>& global_;
  SpinLock lock_;  // guards everything below; taken before a heap's
  Heap<Config>* idle_ = nullptr;
  std::uintptr_t room_ = 0;  // for the next record
  std::uintptr_t room_end_ = 0;
  Atomic<Heap<Config>*> all_{nullptr};  // read without the lock: heaps are only added
};

}  // namespace spanalloc::superblock
