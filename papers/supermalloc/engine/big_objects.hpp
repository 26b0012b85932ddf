// Objects without folios: large ones, from bins; huge ones, from ranges of chunks; and what is
// too large for a range, or has found no address space for one, in a mapping of its own. A
// free large object waits in its CPU's cache or the global one as a list of itself; threads'
// caches are too small for it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bits.hpp"
#include "base/poison.hpp"
#include "os/os.hpp"
#include "pages/large_objects.hpp"
#include "papers/supermalloc/engine/bins.hpp"
#include "papers/supermalloc/engine/chunk_table.hpp"
#include "papers/supermalloc/engine/cpu_caches.hpp"
#include "papers/supermalloc/engine/huge_heap.hpp"
#include "papers/supermalloc/engine/large_heap.hpp"
#include "papers/supermalloc/engine/object_list.hpp"

namespace spanalloc::supermalloc {

/// Thread-safe; zero-initialisable but for the references. The allocator has been started.
template <class Config>
class BigObjects {
  using TheBins = Bins<Config>;
  using Large = LargeHeap<Config>;

 public:
  constexpr BigObjects(ChunkTable& chunks, CpuCaches<Config>& cpus, const SetOnce& secret)
      : chunks_(chunks), cpus_(cpus), secret_(secret), large_(chunks), huge_(chunks) {}

  /// With the allocator's start, under its lock.
  void start() { huge_.start(); }

  /// n bytes (at most those of the largest bin) from the given cache line of the
  /// object's first page on, or an earlier one where that is too late. find_memory() may
  /// free some when memory is out.
  template <class FindMemory>
  BigObject allocate_large(std::size_t n, std::uint32_t line, FindMemory&& find_memory) {
    const std::size_t latest = (TheBins::kLargest - n) / kCacheLine;
    if (line > latest) line = static_cast<std::uint32_t>(latest);
    const std::size_t offset = line * kCacheLine;
    const BinNumber b = TheBins::for_size(max_of(n + offset, TheBins::kLargestWithFolios + 1));
    LargeObject object;
    if (const ObjectList list = cpus_.take(b); !list.is_empty()) {
      (void)next_of(list.first, secret_.read());
      object.start = address_of(list.first);
    } else {
      object = large_.take(b);
      if (object.start == 0) {
        find_memory();
        object = large_.take(b);
      }
      if (object.start == 0) return {};
    }
    auto* start = pointer_to<FreeObject>(object.start);
    unpoison(start, TheBins::of(b).size);
    start->seal = 0;
    if (!object.is_zero) start->next = nullptr;
    Large::cell_at(b, start)->line = static_cast<std::uint8_t>(line);
    return {pointer_to(object.start + offset), object.is_zero};
  }

  /// n bytes at a multiple of `alignment`, a power of two. (What caches hold would not help
  /// where there are none: the kernel refuses a mapping for its size, and what goes back are
  /// pages, of mappings that stay.)
  BigObject allocate_huge(std::size_t n, std::size_t alignment) {
    if (n <= HugeHeap::kLargest && alignment <= HugeHeap::kLargest) {
      const BigObject object = huge_.allocate(n, alignment);
      if (object.bytes != nullptr) return object;
    }
    return {chunks_.ask_within_limits([=, this] { return outside_.allocate(n, alignment); }), true};
  }

  /// False: p is no object of these, and nothing has changed.
  bool free(void* p) {
    const ChunkEntry entry = chunks_.at(p);
    if (!entry.is_bin()) return huge_.free(p) || outside_.free(p);
    const BinNumber b = entry.bin();
    const std::uintptr_t start = start_of(b, p);
    if (start == 0) return false;
    auto* object = pointer_to<FreeObject>(start);
    object->push_on(&end_of_list, secret_.read());
    if constexpr (kPoisons) poison(object + 1, TheBins::of(b).size - sizeof(FreeObject));
    if (!cpus_.put(b, {object, 1})) large_.put(b, object, secret_.read());
    return true;
  }

  /// 0: p is no object of these.
  std::size_t usable_size(const void* p) {
    const ChunkEntry entry = chunks_.at(p);
    if (entry.is_bin()) {
      const std::uintptr_t start = start_of(entry.bin(), p);
      return start == 0 ? 0 : TheBins::of(entry.bin()).size - (address_of(p) - start);
    }
    const std::size_t size = huge_.usable_size(p);
    return size != 0 ? size : outside_.usable_size(p);
  }

  /// Where the object at p, which has `usable` bytes, is when it has n;
  /// nullptr: it would be a copy.
  void* resize(void* p, std::size_t usable, std::size_t n) {
    const ChunkEntry entry = chunks_.at(p);
    const bool stays = n <= usable && n > usable / 2;
    if (entry.is_bin())
      return stays || (n <= usable && is_large_here(entry.bin(), p, n)) ? p : nullptr;
    // What a bin would serve with half of the memory moves there. (It may have been full.)
    if (n <= TheBins::kLargest && !stays) return nullptr;
    if (entry.is_huge()) return huge_.resize(p, n) ? p : nullptr;
    return chunks_.ask_within_limits([=, this] { return outside_.resize(p, n); });
  }

  void repair() {
    for (BinNumber b = TheBins::kFirstLarge; b < TheBins::kCount; ++b) large_.repair(b);
    huge_.repair();
  }
  /// In a fork's child, first of all.
  void enter_child() {
    large_.enter_child();
    huge_.enter_child();
    outside_.enter_child();
  }
  /// What lies in the arena goes with that.
  void destroy() { outside_.destroy(); }

  constexpr Large& large() { return large_; }
  constexpr HugeHeap& huge() { return huge_; }
  LargeObjects<>& outside() { return outside_; }

 private:
  // Where the large object begins that was handed out as p; 0: p lies in none. Ends the process if
  // p is in one, but not what was handed out.
  std::uintptr_t start_of(BinNumber b, const void* p) const {
    if (b < TheBins::kFirstLarge) return 0;
    const ObjectCell* cell = Large::cell_at(b, p);
    if (cell == nullptr) return 0;
    const std::uintptr_t start = Large::start_of(b, p);
    if (address_of(p) != start + cell->line * kCacheLine)
      os::fatal("pointer is not the start of an object:", p);
    if (pointer_to<FreeObject>(start)->is_sealed(secret_.read())) name_free_already(p);
    return start;
  }

  // Whether a request for n bytes that began where p does would take a large object of this bin.
  // (Where its first line was late in the page that has no more than half of it.)
  static bool is_large_here(BinNumber b, const void* p, std::size_t n) {
    if (n <= TheBins::kLargestWithFolios) return false;
    return TheBins::for_size(n + (address_of(p) - Large::start_of(b, p))) == b;
  }

  ChunkTable& chunks_;
  CpuCaches<Config>& cpus_;
  const SetOnce& secret_;
  Large large_;
  HugeHeap huge_;
  LargeObjects<> outside_;
};

}  // namespace spanalloc::supermalloc
