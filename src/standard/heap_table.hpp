// The heaps of a page layer, by the numbers by which span records name them.
#pragma once

#include <cstdint>

#include "pages/growing_table.hpp"
#include "standard/heap_storage.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc::standard {

/// Thread-safe, but for destroy().
template <class Config>
class HeapTable {
  using Heap = standard::Heap<Config>;

 public:
  constexpr explicit HeapTable(PageLayer<Config>& pages) : pages_(pages) {}
  void destroy() {
    storages_.destroy();
    end_.store_relaxed(0);
  }

  /// Gives the heap a number; one that it has stays. False: there are kMostHeaps heaps, or no
  /// memory.
  bool enter(Heap* heap) {
    LockGuard guard(pages_.tables_lock);
    bool has_number = false;
    for_each([&](Heap& other) { has_number = has_number || &other == heap; });
    if (has_number) return true;
    if (!storages_.start(Config::kMostHeaps, pages_.arena.table_region())) return false;
    for (std::uint16_t n = 0; n < Config::kMostHeaps; ++n) {
      const TableReach reach = pages_.reach_place(storages_, n);
      if (reach.end == n) {
        if (reach.next == n) return false;
        continue;  // a foreign mapping is in the way: this number is nobody's
      }
      HeapStorage<Config>& storage = storages_[n];
      if (storage.heap.load_relaxed() != nullptr) continue;
      heap->take_place(HeapNumber{n}, storage);
      // Release: the table is open so far. Before the heap is in its place: a fork's child looks
      // below it.
      if (n >= end_.load_relaxed()) end_.store_release(n + 1u);
      // Release: a thread that finds the heap finds it constructed, with its number
      storage.heap.store_release(heap);
      return true;
    }
    return false;
  }
  /// None of the heap's spans is in its pool any more, or they are lost.
  void leave(HeapNumber number) {
    storages_[index_of(number)].forget();  // for the next heap of this number
    storages_[index_of(number)].heap.store_release(nullptr);
  }
  Heap& operator[](HeapNumber number) { return *storages_[index_of(number)].heap.load_relaxed(); }
  /// For a number that may be nobody's by now.
  Heap* find(HeapNumber number) { return storages_[index_of(number)].heap.load_acquire(); }
  template <class F>
  void for_each(F f) {
    for (std::uint32_t n = 0; n < end_.load_acquire(); ++n) {
      Heap* heap = storages_.has(n) ? find(HeapNumber{static_cast<std::uint16_t>(n)}) : nullptr;
      if (heap != nullptr) f(*heap);
    }
  }

 private:
  PageLayer<Config>& pages_;
  FrontedTable<HeapStorage<Config>, 1> storages_;  // grown under tables_lock
  Atomic<std::uint32_t> end_{0};
};

}  // namespace spanalloc::standard
