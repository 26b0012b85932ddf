// The arena, cut into chunks of 2 MiB, and the flat table that says of each
// what it holds (section 2).
//
// The paper's table spans the address space: 2^27 entries for 2^48 bytes. Here it spans the arena,
// which is at most 2^45 bytes (SPANALLOC_ARENA_BITS; less under a limit on address space): at most
// 2^24 entries of 4 bytes, 64 MiB, of which what is used is mapped. A pointer's entry is found by a
// subtraction and a shift; a pointer from elsewhere has none.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "base/poison.hpp"
#include "pages/growing_table.hpp"
#include "papers/shared/bump_arena.hpp"
#include "papers/supermalloc/engine/bins.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc::supermalloc {

using ChunkNumber = std::uint32_t;  // from 1 on; 0: none

/// What a chunk holds, in one word of 4 bytes: in its lowest byte the tag, in the others a number.
///
///   tag                number
///   0                   0        nothing: not handed out, lost to a foreign mapping, or inside a
///                                huge range
///   1 + bin             0        objects of that bin
///   kHuge               pages    the first chunk of a huge object of so many pages
///   kFree, kFreeDirty   next     the first chunk of a free huge range; `next` is the one behind it
///                                in its
///   list
///
/// So the short path of free has the tag by a load of one byte, and may take it for an index as it
/// is (Bins::inverses_by_tag).
class ChunkEntry {
 public:
  static constexpr std::uint32_t kHuge = 64;
  static constexpr std::uint32_t kFree = 128;
  static constexpr std::uint32_t kFreeDirty = 129;
  static constexpr unsigned kTagBits = 8;
  /// Numbers are below this: pages of huge objects, and chunks.
  static constexpr std::uint32_t kNumbers = std::uint32_t{1} << (32 - kTagBits);

  static constexpr ChunkEntry nothing() { return ChunkEntry(0); }
  static constexpr ChunkEntry of_bin(BinNumber b) { return ChunkEntry(1 + b); }
  static constexpr ChunkEntry of_huge(std::uint32_t pages) {
    return ChunkEntry(kHuge | pages << kTagBits);
  }
  static constexpr ChunkEntry of_free(ChunkNumber next, bool dirty) {
    return ChunkEntry((dirty ? kFreeDirty : kFree) | next << kTagBits);
  }
  constexpr explicit ChunkEntry(std::uint32_t word) : word_(word) {}

  constexpr std::uint32_t word() const { return word_; }
  constexpr std::uint32_t tag() const { return word_ % (1 << kTagBits); }
  /// The bin, if it is one: else a number that is none.
  constexpr BinNumber bin() const { return word_ - 1; }
  constexpr bool is_bin() const { return word_ - 1 < kHuge - 1; }
  constexpr bool is_huge() const { return tag() == kHuge; }
  constexpr std::uint32_t pages() const { return word_ >> kTagBits; }
  constexpr bool is_free() const { return tag() >= kFree; }
  constexpr bool is_dirty() const { return tag() == kFreeDirty; }
  constexpr ChunkNumber next() const { return word_ >> kTagBits; }

 private:
  std::uint32_t word_;
};

/// Thread-safe; zero-initialisable; given back by destroy() only.
class ChunkTable {
 public:
  /// Huge ranges of up to 2^12 chunks, 8 GiB: the arena's base is aligned to this.
  static constexpr unsigned kMaxOrder = 12;
  // No huge pages but where huge objects ask for them: a folio that is empty goes back by itself.
  using Arena = BumpArena<kChunkBits, kMaxOrder, HugePages::kForbid>;
  static_assert(kMaxOrder + kChunkBits < 45);
  static_assert((std::uint64_t{1} << (45 - kChunkBits)) <= ChunkEntry::kNumbers);
  static_assert((std::uint64_t{1} << kMaxOrder) * kPagesInChunk < ChunkEntry::kNumbers);

  /// False when not even a small arena can be had; may be called again then.
  bool start() {
    LockGuard guard(lock_);
    if (is_started()) return true;
    TableRegion region;
    region.choose<PageCalls>();
    if (!arena_.start() || !entries_.start(arena_.capacity(), &region)) return false;
    base_.set(arena_.base());
    started_.store_release(1);  // release: who sees it sees the rest
    return true;
  }
  bool is_started() const { return started_.load_acquire() != 0; }

  /// What the chunk that p lies in holds: nothing, where that is none of ours.
  SPANALLOC_INLINE ChunkEntry at(const void* p) const {
    // Neither is ordered: whoever has a pointer into a chunk got it from someone who saw the base,
    // and a limit that covers it. Without an arena the limit is 0.
    const std::size_t number = (address_of(p) - base_.read()) >> kChunkBits;
    if (SPANALLOC_UNLIKELY(number >= limit_.read_own())) return ChunkEntry::nothing();
    return ChunkEntry(entries_[number].load_relaxed());
  }
  /// at(p).tag(), in fewer instructions.
  SPANALLOC_INLINE std::size_t tag_at(const void* p) const {
    const std::size_t number = (address_of(p) - base_.read()) >> kChunkBits;
    if (SPANALLOC_UNLIKELY(number >= limit_.read_own())) return 0;
    return entries_[number].load_low_byte_relaxed();
  }
  ChunkEntry entry(ChunkNumber number) const { return ChunkEntry(entries_[number].load_relaxed()); }
  /// By whoever has the chunk: its bin's lock or the huge objects' gives access. Release: what was
  /// written into the chunk before is seen by who follows the entry.
  void set(ChunkNumber number, ChunkEntry entry) { entries_[number].store_release(entry.word()); }

  ChunkNumber number_of(const void* p) const {
    return static_cast<ChunkNumber>((address_of(p) - base_.read()) >> kChunkBits);
  }
  std::uintptr_t address(ChunkNumber number) const {
    return base_.read() + (std::size_t{number} << kChunkBits);
  }
  /// Numbers below this one have entries.
  ChunkNumber limit() const { return static_cast<ChunkNumber>(limit_.load_relaxed()); }

  /// 2^order chunks, aligned to their size, zero, their entries 0; the first one's number. 0:
  /// memory or address space is out.
  ChunkNumber carve(unsigned order) {
    LockGuard guard(lock_);
    // (A fork's child whose parent had a thread in here has lost what that thread was carving.)
    if (order == 0 && spare_ != 0) return hand_out(spare_, 1);
    const ChunkNumber first = arena_.allocate(order);
    if (first == 0) return 0;
    const ChunkNumber done = hand_out(first, std::size_t{1} << order);
    // The arena takes nothing back: a chunk that can have no entry waits for the next call. (Of a
    // larger range address space is lost.)
    if (done == 0 && order == 0) spare_ = first;
    return done;
  }

  ArenaStatistics statistics() { return arena_.statistics(); }
  std::size_t capacity() const { return arena_.capacity(); }
  /// See BumpArena.
  template <class F>
  auto ask_within_limits(F f) {
    return arena_.ask_within_limits(f);
  }

  /// The object is used up.
  void destroy() {
    arena_.destroy();
    entries_.destroy();
  }
  /// In a fork's child, first of all.
  void enter_child() {
    lock_.abandon_if_owner_died();
    arena_.enter_child();
  }

 private:
  ChunkNumber hand_out(ChunkNumber first, std::size_t count) {
    SPANALLOC_ASSERT(lock_.is_mine());
    const std::size_t end = first + count;
    if (!arena_.ask_within_limits([=, this] { return entries_.ensure(end); })) return 0;
    unpoison(pointer_to(address(first)),
             count << kChunkBits);  // a heap that was destroyed may have been here
    if (first == spare_) spare_ = 0;
    if (limit_.load_relaxed() < first + count) limit_.store_relaxed(first + count);
    return first;
  }

  SetOnce base_;                                 // constant once started
  OwnersWord limit_;                             // written under the lock, read by every free
  GrowingTable<Atomic<std::uint32_t>> entries_;  // constant once started, but for what it holds
  WakingLock lock_;                              // the last one to be taken, but for the arena's
  Arena arena_;
  ChunkNumber spare_ = 0;
  Atomic<std::uint32_t> started_{0};
};

}  // namespace spanalloc::supermalloc
