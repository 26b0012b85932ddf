// Large objects where they lie: from 16 KiB to half a chunk, in chunks of one bin each, without
// folios, for the pages of each go back to the kernel by themselves (section 5). It does not
// matter which of them serves, so the free ones of a bin are a plain list, threaded through cells
// in their chunks' first pages.
//
// An object that no alignment is asked of begins at a random cache line of its first page, so that
// equal places of many objects are not in the same sets of the caches. Its cell knows that line: a
// pointer is good only if it is what was handed out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "base/poison.hpp"
#include "os/os.hpp"
#include "papers/supermalloc/engine/bins.hpp"
#include "papers/supermalloc/engine/chunk_table.hpp"
#include "papers/supermalloc/engine/folios.hpp"
#include "papers/supermalloc/engine/object_list.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc::supermalloc {

/// What a chunk knows of a large object; its bit says whether it is out.
struct ObjectCell {
  std::uint32_t next = 0;  // of the list of free ones: a chunk's number and an object's, plus one
  std::uint8_t line = 0;   // where what was handed out begins
  bool is_dirty = false;   // free: it does not read as zero
};
static_assert(sizeof(ObjectCell) == kObjectCellBytes);

struct LargeObject {
  std::uintptr_t start = 0;  // 0: none
  bool is_zero = false;
};

/// Thread-safe; zero-initialisable. A lock a bin. Under it:
///   (L1) an object whose bit is not set, and that has been used, is in the list of free ones or is
///   being purged.
template <class Config>
class LargeHeap {
  using TheBins = Bins<Config>;
  static constexpr BinNumber kFirst = TheBins::kFirstLarge;
  static constexpr BinNumber kBins = TheBins::kCount - kFirst;

 public:
  explicit constexpr LargeHeap(ChunkTable& chunks) : chunks_(chunks) {}

  LargeObject take(BinNumber b) {
    const Bin& bin = TheBins::of(b);
    BinState& state = bins_[b - kFirst];
    if (Config::kPrefetch) prefetch_next(state, bin);
    const Guard guard(*this, b);
    if (const std::uint32_t free = state.free.load_relaxed(); free != 0) {
      const FolioChunk chunk = chunk_of(free, bin);
      const std::uint32_t object = object_of(free);
      ObjectCell& found = cell(chunk, object);
      state.free.store_relaxed(found.next);
      const bool is_dirty = found.is_dirty;
      if (is_dirty) state.kept.store_relaxed(state.kept.load_relaxed() - 1);
      take_out(state, chunk, object);
      return {address_of(chunk.object(object)), !is_dirty};
    }
    ChunkHead* head = state.newest.load_relaxed();
    if (head == nullptr || head->used_folios == bin.objects) {
      const ChunkNumber number = chunks_.carve(0);
      if (number == 0) return {};
      head = new (pointer_to(chunks_.address(number))) ChunkHead{head, 0, b};
      // Release: a fork's child finds it made. What the table says of it may be missing there.
      state.newest.store_release(head);
      chunks_.set(number, ChunkEntry::of_bin(b));
    }
    const FolioChunk chunk = FolioChunk::of(head, bin);
    const std::uint32_t object = head->used_folios++;
    take_out(state, chunk, object);
    return {address_of(chunk.object(object)), true};
  }

  /// Takes back a free object that has waited in a cache, or in none: its pages go to the kernel.
  /// Ends the process if it was written to since, or is here already: a program that writes over
  /// the seal can free it once more, and two threads that free it at once may both find no room in
  /// a cache. Bytes that the kernel has taken.
  std::size_t put(BinNumber b, const FreeObject* free, Secret secret) {
    (void)next_of(free, secret);
    return give_back(b, free);
  }

  /// Offers the kernel again what it would not take when it was freed. Bytes that it has taken now.
  std::size_t purge_again(BinNumber b) {
    const Bin& bin = TheBins::of(b);
    BinState& state = bins_[b - kFirst];
    if (kept(b) == 0 || (bin.size | bin.origin) % os::page_size() != 0) return 0;
    std::uint32_t taken = 0;
    {
      // They are out meanwhile, as those are that are put back for the first time.
      const Guard guard(*this, b);
      std::uint32_t next = state.free.load_relaxed();
      std::uint32_t clean = 0;
      while (next != 0) {
        const FolioChunk chunk = chunk_of(next, bin);
        ObjectCell& found = cell(chunk, object_of(next));
        const std::uint32_t place = next;
        next = found.next;
        if (!found.is_dirty) {
          found.next = clean;
          clean = place;
          continue;
        }
        take_out(state, chunk, object_of(place));
        found.next = taken;
        taken = place;
      }
      state.free.store_relaxed(clean);
      state.kept.store_relaxed(0);
    }
    std::size_t bytes = 0;
    while (taken != 0) {
      const FolioChunk chunk = chunk_of(taken, bin);
      const std::uint32_t object = object_of(taken);
      taken = cell(chunk, object).next;
      bytes += give_back(b, chunk.object(object));
    }
    return bytes;
  }

  /// The cell of the object that p lies in; nullptr: p lies in none of the bin's.
  static ObjectCell* cell_at(BinNumber b, const void* p) {
    const Bin& bin = TheBins::of(b);
    const FolioChunk chunk = FolioChunk::of(p, bin);
    const std::size_t place = address_of(p) - chunk.address() - bin.origin;
    if (place >= kChunk) return nullptr;
    const auto object = static_cast<std::uint32_t>(divide(place, bin.inverse).value);
    return object < bin.objects && chunk.is_out(object) ? &cell(chunk, object) : nullptr;
  }
  /// Where the object begins that p lies in.
  static std::uintptr_t start_of(BinNumber b, const void* p) {
    const Bin& bin = TheBins::of(b);
    const FolioChunk chunk = FolioChunk::of(p, bin);
    const Quotient object = divide(address_of(p) - chunk.address() - bin.origin, bin.inverse);
    return address_of(chunk.object(static_cast<std::uint32_t>(object.value)));
  }

  /// Objects that are out, in a program's hands or in caches. Any time.
  std::size_t out(BinNumber b) const { return bins_[b - kFirst].out.load_relaxed(); }

  /// Free objects whose pages the kernel did not take back. Any time.
  std::size_t kept(BinNumber b) const { return bins_[b - kFirst].kept.load_relaxed(); }

  void repair(BinNumber b) { const Guard guard(*this, b); }
  /// In a fork's child, first of all.
  void enter_child() {
    for (BinState& bin : bins_) bin.lock.abandon_if_owner_died();
  }

  // --- For the census, while no other thread uses the heap ---------------------------------------

  /// Of a free one.
  static bool is_kept(const FolioChunk& chunk, std::uint32_t object) {
    return cell(chunk, object).is_dirty;
  }

  template <class F>
  void for_each_chunk(BinNumber b, F&& f) const {
    for (ChunkHead* head = bins_[b - kFirst].newest.load_relaxed(); head != nullptr;
         head = head->before)
      f(head);
  }
  /// f(chunk, object) for each object in the list of free ones; false ends it.
  template <class F>
  void for_each_free(BinNumber b, F&& f) const {
    const Bin& bin = TheBins::of(b);
    for (std::uint32_t next = bins_[b - kFirst].free.load_relaxed(); next != 0;) {
      const FolioChunk chunk = chunk_of(next, bin);
      const std::uint32_t object = object_of(next);
      if (!f(chunk, object)) return;
      next = cell(chunk, object).next;
    }
  }

 private:
  // By whoever has taken it out: its pages go to the kernel, it is free. Bytes that this took.
  std::size_t give_back(BinNumber b, const void* free) {
    const Bin& bin = TheBins::of(b);
    const std::uintptr_t start = address_of(free);
    const FolioChunk chunk = FolioChunk::of(free, bin);
    const std::uint32_t object = chunk.object_at(free);
    SPANALLOC_ASSERT(object < bin.objects);
    poison(free, bin.size);
    const bool is_dirty = bin.size % os::page_size() != 0 || start % os::page_size() != 0 ||
                          !os::purge(pointer_to(start), bin.size);
    BinState& state = bins_[b - kFirst];
    if (Config::kPrefetch) prefetch(state, chunk, object);
    if (SPANALLOC_UNLIKELY(!note_free(b, chunk, object, is_dirty))) name_free_already(free);
    return is_dirty ? 0 : bin.size;
  }
  // False: it is free already.
  bool note_free(BinNumber b, const FolioChunk& chunk, std::uint32_t object, bool is_dirty) {
    BinState& state = bins_[b - kFirst];
    const Guard guard(*this, b);
    if (SPANALLOC_UNLIKELY(!chunk.is_out(object))) return false;
    cell(chunk, object) = {state.free.load_relaxed(), 0, is_dirty};
    chunk.give_back(object);
    state.free.store_relaxed(place_of(chunk, object));
    state.out.store_relaxed(state.out.load_relaxed() - 1);
    if (is_dirty) state.kept.store_relaxed(state.kept.load_relaxed() + 1);
    return true;
  }

  static constexpr unsigned kObjectBits = 7;
  static constexpr std::uint32_t kObjectMask = (1u << kObjectBits) - 1;
  static_assert(TheBins::kTable[kFirst].objects <= kObjectMask);

  // A line of its own for the lock, which others spin on. All else is written under it.
  struct alignas(kCacheLine) BinState {
    SpinLock lock;
    // The place of the first free object. Read without the lock it is a guess.
    alignas(kCacheLine) Atomic<std::uint32_t> free{0};
    // Its used_folios counts objects; atomic for a fork's child
    Atomic<ChunkHead*> newest{nullptr};
    Atomic<std::size_t> out{0};
    Atomic<std::size_t> kept{0};
  };
  static_assert(sizeof(BinState) == 2 * kCacheLine);

  class [[nodiscard]] Guard {
   public:
    Guard(LargeHeap& heap, BinNumber b) : guard_(heap.bins_[b - kFirst].lock) {
      if (SPANALLOC_UNLIKELY(guard_.owner_died())) heap.rebuild(b);
    }

   private:
    LockGuard<SpinLock> guard_;
  };

  // As lists have it.
  std::uint32_t place_of(const FolioChunk& chunk, std::uint32_t object) const {
    return (chunks_.number_of(pointer_to(chunk.address())) << kObjectBits | object) + 1;
  }
  FolioChunk chunk_of(std::uint32_t place, const Bin& bin) const {
    return {chunks_.address((place - 1) >> kObjectBits), bin};
  }
  static std::uint32_t object_of(std::uint32_t place) { return (place - 1) & kObjectMask; }

  // Before the lock is taken: asks for what will be touched under it.
  static void prefetch(BinState& state, const FolioChunk& chunk, std::uint32_t object) {
    prefetch_to_write(&state.free);
    prefetch_to_write(&chunk.bits(object / 64));
    prefetch_to_write(&cell(chunk, object));
  }
  // The same where the next object will come from, if nobody comes first. (Of the wilderness's
  // which one it is only the lock lets one know.)
  void prefetch_next(BinState& state, const Bin& bin) const {
    if (const std::uint32_t free = state.free.load_relaxed(); free != 0) {
      return prefetch(state, chunk_of(free, bin), object_of(free));
    }
    prefetch_to_write(&state.free);
    if (ChunkHead* head = state.newest.load_relaxed(); head != nullptr) prefetch_to_write(head);
  }

  static ObjectCell& cell(const FolioChunk& chunk, std::uint32_t object) {
    return pointer_to<ObjectCell>(chunk.address() + kChunkHeadBytes + chunk.bits_bytes())[object];
  }
  static void take_out(BinState& state, const FolioChunk& chunk, std::uint32_t object) {
    cell(chunk, object) = {};
    Atomic<std::uint64_t>& word = chunk.bits(object / 64);
    // Release: as in claim()
    word.store_release(word.load_relaxed() | std::uint64_t{1} << (object % 64));
    state.out.store_relaxed(state.out.load_relaxed() + 1);
  }

  // In a fork's child whose parent had a thread in here: what is not out is free.
  SPANALLOC_COLD void rebuild(BinNumber b) {
    const Bin& bin = TheBins::of(b);
    BinState& state = bins_[b - kFirst];
    state.free.store_relaxed(0);
    std::size_t out = 0;
    std::size_t kept = 0;
    for_each_chunk(b, [&](ChunkHead* head) {
      chunks_.set(chunks_.number_of(head), ChunkEntry::of_bin(b));
      const FolioChunk chunk = FolioChunk::of(head, bin);
      for (std::uint32_t object = 0; object < head->used_folios; ++object) {
        if (chunk.is_out(object)) {
          ++out;
          continue;
        }
        cell(chunk, object) = {state.free.load_relaxed(), 0, true};
        state.free.store_relaxed(place_of(chunk, object));
        ++kept;
      }
    });
    state.out.store_relaxed(out);
    state.kept.store_relaxed(kept);
  }

  ChunkTable& chunks_;
  BinState bins_[kBins];
};

}  // namespace spanalloc::supermalloc
