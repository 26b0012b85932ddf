// Small and medium objects where they lie: chunks cut into folios, whole pages that objects of one
// size fill (section 4), and for each bin the folios in order of how full they are (section 3).
//
// A chunk's first pages are its bookkeeping, so that a folio whose objects are all free can be
// given back to the kernel whole:
//
//   ChunkHead                  whose it is, how many of its folios have been used
//   a bit for every object     1: it is out, in a program's hands or in a cache
//   FolioCell for each folio   its place in the lists, and how many of its objects are out
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "base/poison.hpp"
#include "os/os.hpp"
#include "papers/supermalloc/engine/bins.hpp"

namespace spanalloc::supermalloc {

/// The bin's lock gives access, but to what is constant.
struct ChunkHead {
  // The bin's chunk made before; constant once the chunk is in its bin
  ChunkHead* before = nullptr;
  std::uint32_t used_folios =
      0;              // number behind the last one used; those behind are untouched: the wilderness
  BinNumber bin = 0;  // constant
};
static_assert(sizeof(ChunkHead) <= kChunkHeadBytes);

enum class FolioState : std::uint8_t {
  kWild,      ///< never used
  kListed,    ///< in the list of its number of free objects
  kEmptying,  ///< empty, in no list: its pages are going back
};

struct FolioCell {
  FolioCell* next;
  FolioCell* previous;
  std::uint16_t out;  // objects whose bit is set
  FolioState state;
  bool is_committed;  // some of its pages may be in memory
};
static_assert(sizeof(FolioCell) == kFolioCellBytes);

/// A folio by its chunk and its number there.
struct Folio {
  std::uintptr_t chunk = 0;
  std::uint32_t number = 0;
};

/// Bits of objects of one chunk, in one of its words.
struct Claim {
  std::uintptr_t chunk = 0;
  std::uint32_t word = 0;
  std::uint64_t bits = 0;
};

/// A chunk of folios of the bin that `bin` describes: arithmetic, and its bookkeeping.
class FolioChunk {
 public:
  FolioChunk(std::uintptr_t chunk, const Bin& bin) : chunk_(chunk), bin_(bin) {}
  static FolioChunk of(const void* p, const Bin& bin) {
    return {align_down(address_of(p), kChunk), bin};
  }

  ChunkHead* head() const { return pointer_to<ChunkHead>(chunk_); }
  Atomic<std::uint64_t>& bits(std::uint32_t word) const {
    return pointer_to<Atomic<std::uint64_t>>(chunk_ + kChunkHeadBytes)[word];
  }
  FolioCell* cell(std::uint32_t folio) const {
    return pointer_to<FolioCell>(chunk_ + kChunkHeadBytes + bits_bytes()) + folio;
  }
  std::uint32_t folio_of(const FolioCell* cell_of_it) const {
    return static_cast<std::uint32_t>(cell_of_it - cell(0));
  }
  std::uint32_t folio_of(std::uint32_t object) const { return object >> bin_.folio_shift; }

  void* object(std::uint32_t number) const {
    return pointer_to(chunk_ + bin_.origin + std::size_t{number} * bin_.size);
  }
  /// Which object begins at p, which lies in the chunk; bin.objects: none does.
  std::uint32_t object_at(const void* p) const {
    const std::size_t place = address_of(p) - chunk_ - bin_.origin;
    if (place >= kChunk) return bin_.objects;  // in the bookkeeping
    const Quotient quotient = divide(place, bin_.inverse);
    const auto number = static_cast<std::uint32_t>(quotient.value);
    return quotient.exact && is_object(number) ? number : bin_.objects;
  }
  bool is_object(std::uint32_t number) const {
    return number >= bin_.first && number < bin_.objects;
  }
  /// Relaxed: who asks about an object of its own sees its bit; of others the answer may be old.
  bool is_out(std::uint32_t object) const {
    return (bits(object / 64).load_relaxed() >> (object % 64) & 1) != 0;
  }

  /// Without the lock: asks for what changes with the object's bit.
  void prefetch(std::uint32_t object, FolioCell* cell_of_it) const {
    prefetch_to_write(&bits(object / 64));
    prefetch_to_write(&cell_of_it->next);  // it may lie in two lines
    prefetch_to_write(&cell_of_it->is_committed);
  }

  void* folio_start(std::uint32_t folio) const {
    return pointer_to(chunk_ + std::size_t{folio} * bin_.folio_bytes);
  }
  /// Gives the pages of an empty folio in nobody's list back; false: some of them may be in memory.
  /// (Larger pages than ours may be its neighbours', too.)
  bool purge(std::uint32_t folio) const {
    const std::uintptr_t start = address_of(folio_start(folio));
    const std::uintptr_t first = align_up(start, os::page_size());
    const std::uintptr_t end = align_down(start + bin_.folio_bytes, os::page_size());
    poison(pointer_to(start), bin_.folio_bytes);
    return end > first && os::purge(pointer_to(first), end - first) &&
           end - first == bin_.folio_bytes;
  }

  std::uintptr_t address() const { return chunk_; }

  // --- With the bin's lock: only it writes bits --------------------------------------------------

  /// Takes up to `most` free objects of a folio, the lowest ones, told by claims; returns how many.
  /// `claims` has room for the words of a folio.
  std::uint32_t claim(std::uint32_t folio, std::uint32_t most, Claim*& claims) const {
    const std::uint32_t first = folio * bin_.folio_objects;
    const std::uint32_t words = (bin_.folio_objects + 63) / 64;
    std::uint32_t taken = 0;
    for (std::uint32_t i = 0; i < words && taken < most; ++i) {
      const std::uint32_t word = first / 64 + i;
      const std::uint64_t out = bits(word).load_relaxed();
      std::uint64_t mine = ~out & mask_of(first);
      if (mine == 0) continue;
      auto count = static_cast<std::uint32_t>(std::popcount(mine));
      if (count > most - taken) {
        count = most - taken;
        mine = lowest(mine, count);
      }
      taken += count;
      // Release, here and below: a fork's child that finds a bit changed finds what came before.
      bits(word).store_release(out | mine);
      *claims++ = {chunk_, word, mine};
    }
    return taken;
  }
  /// Its bit was set.
  void give_back(std::uint32_t object) const {
    Atomic<std::uint64_t>& word = bits(object / 64);
    word.store_release(word.load_relaxed() & ~(std::uint64_t{1} << (object % 64)));
  }
  /// How many of a folio's objects are out, by their bits.
  std::uint32_t count_out(std::uint32_t folio) const {
    const std::uint32_t first = folio * bin_.folio_objects;
    std::uint32_t out = 0;
    for (std::uint32_t i = 0; i < (bin_.folio_objects + 63) / 64; ++i) {
      out += static_cast<std::uint32_t>(
          std::popcount(bits(first / 64 + i).load_relaxed() & mask_of(first)));
    }
    return out;
  }

  /// A bit for each place where an object could begin, also in the bookkeeping and behind the last
  /// folio: so the number of any place in the chunk has one.
  std::size_t bits_bytes() const { return align_up(kChunk / bin_.size + 1, 64) / 8; }

 private:
  // Of the bits that are set the lowest ones; there are more.
  static std::uint64_t lowest(std::uint64_t bits, std::uint32_t count) {
    std::uint64_t others = bits;
    for (; count != 0; --count) others &= others - 1;
    return bits ^ others;
  }
  // Of a folio's bits in each of its words. Folios of fewer than 64 objects share a word.
  std::uint64_t mask_of(std::uint32_t first) const {
    if (bin_.folio_objects >= 64) return ~std::uint64_t{0};
    return ((std::uint64_t{1} << bin_.folio_objects) - 1) << (first % 64);
  }

  const std::uintptr_t chunk_;
  const Bin& bin_;
};

/// The folios of one bin by fullness: a list for each number of free objects, and a bit for each
/// list that is not empty. So the fullest folio that has one free is found, and a folio moves from
/// list to list, in constant time. Full folios are in list 0. The bin's lock gives access.
/// Zero-initialisable. `kMostObjects` a folio has at most.
template <std::uint32_t kMostObjects = 256>
class FullnessLists {
 public:
  /// The folio with the fewest free objects, but not none; nullptr: all are full.
  FolioCell* fullest(FolioCell* const* heads) const {
    for (std::uint32_t w = 0; w < kWords; ++w) {
      const std::uint64_t word = w == 0 ? nonempty_[0] & ~std::uint64_t{1} : nonempty_[w];
      if (word != 0) return heads[w * 64 + static_cast<std::uint32_t>(std::countr_zero(word))];
    }
    return nullptr;
  }
  void add(FolioCell** heads, FolioCell* cell, std::uint32_t free) {
    SPANALLOC_ASSERT(cell->state != FolioState::kListed);
    FolioCell* second = heads[free];
    cell->previous = nullptr;
    cell->next = second;
    if (second != nullptr) second->previous = cell;
    heads[free] = cell;
    cell->state = FolioState::kListed;
    nonempty_[free / 64] |= std::uint64_t{1} << (free % 64);
  }
  /// The same behind those at lower addresses, of a list that is in this order: a walk. (Cells are
  /// in the order of their folios.)
  void add_by_address(FolioCell** heads, FolioCell* cell, std::uint32_t free) {
    FolioCell* before = heads[free];
    if (before == nullptr || cell < before) return add(heads, cell, free);
    while (before->next != nullptr && before->next < cell) before = before->next;
    cell->previous = before;
    cell->next = before->next;
    if (cell->next != nullptr) cell->next->previous = cell;
    before->next = cell;
    cell->state = FolioState::kListed;
  }
  void remove(FolioCell** heads, FolioCell* cell, std::uint32_t free) {
    SPANALLOC_ASSERT(cell->state == FolioState::kListed);
    SPANALLOC_ASSERT(cell->previous == nullptr ? heads[free] == cell
                                               : cell->previous->next == cell);
    if (cell->next != nullptr) cell->next->previous = cell->previous;
    if (cell->previous != nullptr) {
      cell->previous->next = cell->next;
    } else {
      heads[free] = cell->next;
      if (cell->next == nullptr) nonempty_[free / 64] &= ~(std::uint64_t{1} << (free % 64));
    }
    cell->state = FolioState::kEmptying;
  }
  bool is_marked(std::uint32_t free) const {
    return (nonempty_[free / 64] >> (free % 64) & 1) != 0;
  }
  void forget() {
    for (std::uint64_t& word : nonempty_) word = 0;
  }

 private:
  static constexpr std::uint32_t kWords = kMostObjects / 64 + 1;
  std::uint64_t nonempty_[kWords] = {};
};

}  // namespace spanalloc::supermalloc
