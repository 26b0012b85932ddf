// The global data structures of small and medium objects: for each bin its chunks, and its folios
// by fullness. What no cache holds comes from here and goes back to here, a list at a time; a folio
// that becomes empty gives its pages back to the kernel at once (section 4).
//
// A lock a bin. Under it bits and lists change, and nothing else is touched: the objects themselves
// are linked, and folios emptied, without it. Invariants, under the lock:
//   (F1) a folio's cell counts the bits of its objects that are set;
//   (F2) a folio that has been used is in the list of its number of free objects (list_of()), or is
//   being emptied; (F3) a list is marked as not empty exactly if it is.
// An empty folio that the kernel did not take back counts as committed, not as in use.
//
// Before the lock is taken what will be touched under it is asked for, but for what only the lock
// lets one know: a folio's neighbours in its list.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "base/poison.hpp"
#include "papers/supermalloc/engine/bins.hpp"
#include "papers/supermalloc/engine/chunk_table.hpp"
#include "papers/supermalloc/engine/folios.hpp"
#include "papers/supermalloc/engine/object_list.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc::supermalloc {

/// Thread-safe; zero-initialisable.
template <class Config>
class FolioHeap {
  using TheBins = Bins<Config>;
  static constexpr BinNumber kBins = TheBins::kFirstLarge;

 public:
  explicit constexpr FolioHeap(ChunkTable& chunks) : chunks_(chunks) {}

  /// Up to `most` free objects of the bin, as a list; an empty one when memory is out.
  ObjectList take(BinNumber b, std::uint32_t most, Secret secret) {
    const Bin& bin = TheBins::of(b);
    Claim claims[kMostClaims + TheBins::kMostFolioObjects / 64];
    Claim* end = claims;
    if (Config::kPrefetch) prefetch_next(b, bin);
    {
      const Guard guard(*this, b);
      std::uint32_t taken = 0;
      while (taken < most && end < claims + kMostClaims) {
        FolioCell* cell = lists(b).fullest(heads(b));
        // One that was used before costs no more memory than a fresh one, and is nearer;
        // only an empty one grows.
        if (cell == nullptr && taken == 0) cell = fresh_folio(b, bin);
        if (cell == nullptr) break;
        taken += claim(b, bin, cell, most - taken, end);
      }
      bins_[b].serves_next.store_relaxed(lists(b).fullest(heads(b)));
    }
    return link(bin, claims, end, secret);
  }

  /// Takes a list of the bin's objects back. Bytes that went to the kernel for it. An object that
  /// was written to since it was freed, or is here already, ends the list: where an object is
  /// twice, the rest may be a ring, or another cache's list. It is reported when those before it
  /// are back, because a handler of SIGABRT may use the heap, or never return.
  std::size_t put(BinNumber b, ObjectList list, Secret secret) {
    const Bin& bin = TheBins::of(b);
    std::size_t bytes = 0;
    FreeObject* next = list.first;
    const FreeObject* broken = nullptr;
    while (!is_end(next)) {
      // Their links are read before the lock is taken, for that touches the objects.
      Returned batch[kBatch];
      std::uint32_t count = 0;
      for (; !is_end(next) && count < kBatch; ++count) {
        batch[count] = find(bin, next);
        if (SPANALLOC_UNLIKELY(batch[count].cell == nullptr || !next->is_sealed(secret))) {
          broken = next;
          next = &end_of_list;
          break;
        }
        next = next->next;
      }
      bytes += put_batch(b, bin, batch, count, broken);
      if (SPANALLOC_UNLIKELY(broken != nullptr)) break;
    }
    if (SPANALLOC_UNLIKELY(broken != nullptr)) broken_object(broken);
    return bytes;
  }

  /// Offers the kernel again what it would not take when it became empty.
  /// Bytes that it has taken now.
  std::size_t purge_again(BinNumber b) {
    const Bin& bin = TheBins::of(b);
    if (committed_bytes(b) == bytes_in_use(b)) return 0;  // mostly
    if (bin.folio_bytes % os::page_size() != 0) return 0;
    FolioCell* emptied = nullptr;
    {
      const Guard guard(*this, b);
      for (FolioCell* cell = heads(b)[bin.folio_objects]; cell != nullptr;) {
        FolioCell* const next = cell->next;
        if (cell->is_committed) {
          lists(b).remove(heads(b), cell, bin.folio_objects);
          cell->next = emptied;
          emptied = cell;
          ++bins_[b].emptying;
        }
        cell = next;
      }
    }
    return purge_all(b, bin, emptied);
  }

  /// Whether p is the start of an object of the bin that is out: in use, or in a cache.
  static bool is_out(BinNumber b, const void* p) {
    const Bin& bin = TheBins::of(b);
    const FolioChunk chunk = FolioChunk::of(p, bin);
    const std::uint32_t object = chunk.object_at(p);
    return SPANALLOC_LIKELY(object < bin.objects) && chunk.is_out(object);
  }

  /// The same by the tag of its chunk, any at all: of what has no folios it is false.
  /// The short path's form of it: numbers of places where no object begins have bits,
  /// too, which are never set.
  SPANALLOC_INLINE static bool is_out_by_tag(std::size_t tag, const void* p) {
    const Quotient object = divide_by(address_of(p) % kChunk, TheBins::inverses_by_tag(), tag);
    if (SPANALLOC_UNLIKELY(!object.exact)) return false;
    const auto* bits = pointer_to<Atomic<std::uint64_t>>(align_down(opaque(address_of(p)), kChunk) +
                                                         kChunkHeadBytes);
    return (bits[object.value / 64].load_relaxed() >> (object.value % 64) & 1) != 0;
  }

  /// Folios of the bin of which pages may be in memory, in bytes. Any time.
  std::size_t committed_bytes(BinNumber b) const {
    return bins_[b].committed.load_relaxed() * std::size_t{TheBins::of(b).folio_bytes};
  }
  /// Folios of the bin that objects are out of, in bytes. Any time.
  std::size_t bytes_in_use(BinNumber b) const {
    return bins_[b].in_use.load_relaxed() * std::size_t{TheBins::of(b).folio_bytes};
  }
  /// f(free objects, folios) for each number that folios of the bin have free, as
  /// they were at one moment.
  template <class F>
  SPANALLOC_COLD void for_each_fullness(BinNumber b, F&& f) {
    const std::uint32_t lists = TheBins::of(b).folio_objects + 1;
    std::size_t folios[TheBins::kMostFolioObjects + 1] = {};
    {
      const Guard guard(*this, b);
      for (std::uint32_t list = 0; list < lists; ++list) {
        for (const FolioCell* cell = heads(b)[list]; cell != nullptr; cell = cell->next) {
          ++folios[TheBins::of(b).folio_objects - cell->out];
        }
      }
    }
    // Without the lock: who writes this down may allocate.
    for (std::uint32_t free = 0; free < lists; ++free) {
      if (folios[free] != 0) f(free, folios[free]);
    }
  }

  /// Has the lock, so that what a vanished thread left half done in the bin is repaired.
  void repair(BinNumber b) { const Guard guard(*this, b); }
  /// In a fork's child, first of all.
  void enter_child() {
    for (BinState& bin : bins_) {
      bin.lock.abandon_if_owner_died();
      bin.is_to_be_rebuilt = bin.emptying != 0;
    }
  }

  /// Which list of its bin a folio is in of which so many objects are out: that of its number of
  /// free ones. Where the fullest one is not looked for, all that are neither full nor empty are in
  /// one. That one, and that of the empty ones, are in the order of their addresses then.
  static constexpr std::uint32_t list_of(const Bin& bin, std::uint32_t out) {
    const std::uint32_t free = bin.folio_objects - out;
    return Config::kFullestFit || free == 0 || out == 0 ? free : 1;
  }

  // --- For the census, while no other thread uses the heap ---------------------------------------

  template <class F>
  void for_each_chunk(BinNumber b, F&& f) const {
    for (ChunkHead* head = bins_[b].newest.load_relaxed(); head != nullptr; head = head->before)
      f(head);
  }
  FolioCell* head_of(BinNumber b, std::uint32_t list) const { return heads_[kFirstHead[b] + list]; }
  FullnessLists<TheBins::kMostFolioObjects>& lists(BinNumber b) { return bins_[b].lists; }

 private:
  /// A request is served from so many words of bits at most: its critical section is short.
  static constexpr std::uint32_t kMostClaims = 16;
  /// Objects that go back with one taking of the lock.
  static constexpr std::uint32_t kBatch = 32;

  // What a critical section works on lies on another line than the lock, on which others spin.
  struct alignas(kCacheLine) BinState {
    SpinLock lock;
    std::uint32_t emptying = 0;  // folios that are in no list while their pages go
    // In a fork's child: vanished threads were emptying some
    bool is_to_be_rebuilt = false;
    Atomic<FolioCell*> serves_next{nullptr};  // written under the lock, read without: a guess
    alignas(kCacheLine) FullnessLists<TheBins::kMostFolioObjects> lists;
    Atomic<ChunkHead*> newest{nullptr};  // under the lock; atomic for a fork's child
    Atomic<std::size_t> committed{0};    // folios; written under the lock
    Atomic<std::size_t> in_use{0};       // "
  };
  static_assert(sizeof(BinState) == 2 * kCacheLine || TheBins::kMostFolioObjects > 256);

  // Each bin has as many lists as a folio's objects can be free, and one.
  static constexpr std::array<std::uint32_t, kBins + 1> kFirstHead = [] {
    std::array<std::uint32_t, kBins + 1> first{};
    for (BinNumber b = 0; b < kBins; ++b)
      first[b + 1] = first[b] + TheBins::kTable[b].folio_objects + 1;
    return first;
  }();

  class [[nodiscard]] Guard {
   public:
    SPANALLOC_INLINE Guard(FolioHeap& heap, BinNumber b) : guard_(prefetched(heap, b).lock) {
      if (SPANALLOC_UNLIKELY(guard_.owner_died() || heap.bins_[b].is_to_be_rebuilt))
        heap.rebuild(b);
    }

   private:
    static BinState& prefetched(FolioHeap& heap, BinNumber b) {
      BinState& state = heap.bins_[b];
      if (Config::kPrefetch) prefetch_to_write(&state.lists);
      return state;
    }
    LockGuard<SpinLock> guard_;
  };

  // An object on its way back.
  struct Returned {
    FreeObject* object;
    std::uint32_t number;  // in its chunk
    FolioCell* cell;       // its folio's; nullptr: no object begins there
  };
  // By arithmetic alone.
  static Returned find(const Bin& bin, FreeObject* object) {
    const FolioChunk chunk = FolioChunk::of(object, bin);
    const std::uint32_t number = chunk.object_at(object);
    if (SPANALLOC_UNLIKELY(number == bin.objects)) return {object, number, nullptr};
    FolioCell* cell = chunk.cell(chunk.folio_of(number));
    if (Config::kPrefetch) chunk.prefetch(number, cell);
    return {object, number, cell};
  }
  // Of the folio that will serve, if nobody comes first. (Cells stay where they are.)
  void prefetch_next(BinNumber b, const Bin& bin) {
    FolioCell* cell = bins_[b].serves_next.load_relaxed();
    if (cell == nullptr) return;
    const FolioChunk chunk = chunk_of(cell, bin);
    chunk.prefetch(chunk.folio_of(cell) * bin.folio_objects, cell);
  }

  FolioCell** heads(BinNumber b) { return heads_ + kFirstHead[b]; }

  static FolioChunk chunk_of(const FolioCell* cell, const Bin& bin) {
    return FolioChunk::of(cell, bin);
  }

  std::uint32_t claim(BinNumber b, const Bin& bin, FolioCell* cell, std::uint32_t most,
                      Claim*& end) {
    SPANALLOC_ASSERT(bins_[b].lock.is_mine());
    const FolioChunk chunk = chunk_of(cell, bin);
    const std::uint32_t folio = chunk.folio_of(cell);
    SPANALLOC_ASSERT(cell->out != bin.folio_objects && cell->out == chunk.count_out(folio));  // F1
    if (cell->out == 0) adjust(bins_[b].in_use, true);
    const std::uint32_t out_before = cell->out;
    const std::uint32_t taken = chunk.claim(folio, most, end);
    cell->out = static_cast<std::uint16_t>(out_before + taken);
    set_committed(b, cell, true);
    relist(b, bin, cell, out_before);
    return taken;
  }

  // Of which so many objects were out before: to the list of how many are now.
  SPANALLOC_INLINE void relist(BinNumber b, const Bin& bin, FolioCell* cell,
                               std::uint32_t out_before) {
    const std::uint32_t from = list_of(bin, out_before);
    const std::uint32_t to = list_of(bin, cell->out);
    if (!Config::kFullestFit && from == to) return;
    lists(b).remove(heads(b), cell, from);
    enlist(b, cell, to);
  }
  // (Nothing is looked for among the full ones.)
  SPANALLOC_INLINE void enlist(BinNumber b, FolioCell* cell, std::uint32_t list) {
    if (Config::kFullestFit || list == 0) return lists(b).add(heads(b), cell, list);
    lists(b).add_by_address(heads(b), cell, list);
  }

  void set_committed(BinNumber b, FolioCell* cell, bool is_committed) {
    if (cell->is_committed == is_committed) return;
    cell->is_committed = is_committed;
    adjust(bins_[b].committed, is_committed);
  }
  static void adjust(Atomic<std::size_t>& folios, bool up) {
    folios.store_relaxed(folios.load_relaxed() + (up ? 1 : std::size_t{0} - 1));
  }

  // The next one of the wilderness, listed as empty; nullptr when memory is out.
  FolioCell* fresh_folio(BinNumber b, const Bin& bin) {
    ChunkHead* head = bins_[b].newest.load_relaxed();
    if (head == nullptr || head->used_folios == bin.folios) {
      const ChunkNumber number = chunks_.carve(0);
      if (number == 0) return nullptr;
      head = new (pointer_to(chunks_.address(number))) ChunkHead{head, bin.first_folio, b};
      // Release: a fork's child finds it made. What the table says of it may be missing there.
      bins_[b].newest.store_release(head);
      chunks_.set(number, ChunkEntry::of_bin(b));
    }
    const FolioChunk chunk = FolioChunk::of(head, bin);
    FolioCell* cell = chunk.cell(head->used_folios);
    SPANALLOC_ASSERT(cell->state == FolioState::kWild && cell->out == 0);
    ++head->used_folios;
    lists(b).add(heads(b), cell, bin.folio_objects);
    return cell;
  }

  // Objects of the claims as a list, in order of their addresses.
  static ObjectList link(const Bin& bin, const Claim* claims, const Claim* end, Secret secret) {
    ObjectList list;
    while (end != claims) {
      --end;
      const FolioChunk chunk(end->chunk, bin);
      for (std::uint64_t bits = end->bits; bits != 0;) {
        const auto bit = 63 - static_cast<std::uint32_t>(std::countl_zero(bits));
        bits &= ~(std::uint64_t{1} << bit);
        auto* object = static_cast<FreeObject*>(chunk.object(end->word * 64 + bit));
        unpoison(object, sizeof(FreeObject));
        object->push_on(list.first, secret);
        list.first = object;
        ++list.count;
      }
    }
    return list;
  }

  // `broken` becomes one that is no object in use: to be told without the lock.
  std::size_t put_batch(BinNumber b, const Bin& bin, const Returned* batch, std::uint32_t count,
                        const FreeObject*& broken) {
    FolioCell* emptied = nullptr;
    FolioCell** last = &emptied;
    {
      const Guard guard(*this, b);
      for (std::uint32_t i = 0; i < count; ++i) {
        const auto [object, number, cell] = batch[i];
        const FolioChunk chunk = FolioChunk::of(object, bin);
        if (SPANALLOC_UNLIKELY(!chunk.is_out(number))) {
          broken = object;
          break;
        }
        const std::uint32_t out_before = cell->out;
        chunk.give_back(number);
        --cell->out;
        if (cell->out != 0) {
          relist(b, bin, cell, out_before);
        } else {
          lists(b).remove(heads(b), cell, list_of(bin, out_before));
          cell->next = nullptr;
          *last = cell;
          last = &cell->next;
          adjust(bins_[b].in_use, false);
          ++bins_[b].emptying;
        }
      }
    }
    return purge_all(b, bin, emptied);
  }

  // Empty folios that are in no list, chained: their pages go back, then they are listed. Bytes
  // that the kernel has taken.
  std::size_t purge_all(BinNumber b, const Bin& bin, FolioCell* emptied) {
    std::size_t bytes = 0;
    while (emptied != nullptr) {
      FolioCell* const cell = emptied;
      // In a fork's child that a signal handler has made meanwhile all are listed as soon as the
      // lock is taken: this may be it.
      if (cell->state != FolioState::kEmptying) break;
      emptied = cell->next;
      const FolioChunk chunk = chunk_of(cell, bin);
      const bool is_purged = chunk.purge(chunk.folio_of(cell));
      const Guard guard(*this, b);
      if (cell->state != FolioState::kEmptying) break;
      --bins_[b].emptying;
      if (is_purged) {
        set_committed(b, cell, false);
        bytes += bin.folio_bytes;
      }
      enlist(b, cell, list_of(bin, 0));
    }
    return bytes;
  }

  // In a fork's child whose parent had a thread in here: bits are right at each instant,
  // all else is made of them.
  SPANALLOC_COLD void rebuild(BinNumber b) {
    const Bin& bin = TheBins::of(b);
    for (std::uint32_t free = 0; free <= bin.folio_objects; ++free) heads(b)[free] = nullptr;
    lists(b).forget();
    std::size_t committed = 0;
    std::size_t in_use = 0;
    for_each_chunk(b, [&](ChunkHead* head) {
      chunks_.set(chunks_.number_of(head), ChunkEntry::of_bin(b));
      const FolioChunk chunk = FolioChunk::of(head, bin);
      for (std::uint32_t folio = bin.first_folio; folio < head->used_folios; ++folio) {
        FolioCell* cell = chunk.cell(folio);
        cell->state = FolioState::kWild;
        cell->out = static_cast<std::uint16_t>(chunk.count_out(folio));
        cell->is_committed = cell->is_committed || cell->out != 0;
        committed += cell->is_committed;
        in_use += cell->out != 0;
        enlist(b, cell, list_of(bin, cell->out));
      }
    });
    bins_[b].committed.store_relaxed(committed);
    bins_[b].in_use.store_relaxed(in_use);
    bins_[b].emptying = 0;
    bins_[b].is_to_be_rebuilt = false;
  }

  ChunkTable& chunks_;
  BinState bins_[kBins];
  FolioCell* heads_[kFirstHead[kBins]] = {};
};

}  // namespace spanalloc::supermalloc
