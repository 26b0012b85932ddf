// A real span's header.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "papers/scalloc/engine/free_block.hpp"
#include "papers/scalloc/engine/numbers.hpp"
#include "papers/scalloc/engine/size_classes.hpp"
#include "papers/scalloc/engine/span_word.hpp"

namespace spanalloc::scalloc {

/// Which list of its owner's set a span is linked into.
enum class SetList : std::uint8_t { kNone, kReusable, kSuspects };

/// The header (Figure 4), at the start of the real span and so of the virtual span.
struct alignas(kCacheLine) Span {
  // --- First line: what a local free reads and writes.
  // Constant while the span is in a frontend; read only by threads that hold a block of it.
  Plain<std::uint32_t> inverse{0};  // exact division by the block size, see block_index
  Plain<std::uint32_t> bias{0};     // the first block's offset, times -inverse
  Plain<std::uint32_t> blocks{0};
  Plain<std::uint8_t> shift{0};
  Plain<std::uint8_t> real_span_index{0};
  Plain<std::uint16_t> first_block{0};
  // Shared; a free span's is that of its last life. Any thread may read it; the span word
  // tells whether it still holds.
  Atomic<ClassId> size_class{ClassId::kNone};
  // Shared: {generation : 16, address of the LAB : 48}. Written by whoever takes the span from the
  // pool, and by an adopter under the lock of the former owner's set.
  Atomic<std::uint64_t> owner{0};
  // Owner-only. For a hot span what is left besides the allocation list of the thread.
  Plain<FreeBlock*> local_list{nullptr};
  // Written by the owner, read by anybody: blocks the owner (or a former one) freed and
  // still knows of, including those never carved. Last write of a local free: from then on
  // the span may change hands.
  Atomic<std::uint32_t> local_free{0};
  // Written by the owner: blocks below this index have been handed out, or listed. Who holds a
  // block sees that its own has been.
  Atomic<std::uint32_t> carved{0};
  // Shared: some block may be referred to by a pointer beyond its start (large alignments).
  Atomic<std::uint32_t> shifted{0};
  // Shared: a block was freed that looked free already, and was not found on a
  // list. Set before that free.
  Atomic<std::uint32_t> suspected{0};
  // Shared: a fork has left the thread behind that allocated from it. For the rest of this life
  // more of its blocks are free than anybody knows: O1 says how many are live at most.
  Atomic<std::uint32_t> lost_to_fork{0};

  // --- Second line: what remote frees write.
  alignas(kCacheLine) Atomic<std::uint64_t> word{0};

  // --- Third line: links and what the backend remembers.
  alignas(kCacheLine) Atomic<std::uint32_t> pool_link{0};  // the pool's alone, readable for ever
  // Written by whoever holds the span alone: bytes below this offset may be other than zero.
  Plain<std::uint32_t> dirty_to{0};
  Plain<std::uint32_t> open_to{0};  // bytes below this offset are mapped; at least the real span
  // Under the lock of the owner's set.
  Plain<Span*> set_next{nullptr};
  Plain<Span*> set_previous{nullptr};
  Plain<SetList> set_list{SetList::kNone};

  std::uintptr_t address() const { return address_of(this); }
  FreeBlock* block_at(std::uint32_t offset) const {
    return offset == 0 ? nullptr : pointer_to<FreeBlock>(address() + offset);
  }
  std::uint32_t offset_of(const void* p) const {
    return static_cast<std::uint32_t>(address_of(p) - address());
  }
  /// Index of the block that starts at p; at least `blocks` when none does.
  std::uint32_t index_of(const void* p) const {
    // block_index of offset - first_block
    return std::rotr(offset_of(p) * inverse + bias, int{shift});
  }
  bool is_block(const void* p) const { return index_of(p) < blocks; }
  /// Of those that were ever carved.
  bool is_carved(const void* p) const { return index_of(p) < carved.load_relaxed(); }

  SpanWord load_word() const {
    // Acquire: pairs with the release of the transition that made this word, so that owner, class
    // and local_free are read from this epoch or a later one.
    const SpanWord seen(word.load_acquire());
    SPANALLOC_ASSERT(seen.is_sound());
    return seen;
  }
  /// One attempt; `seen` becomes what was found instead. Release publishes the caller's writes with
  /// the transition, acquire makes it see those of everyone whose change it builds on.
  bool try_change(SpanWord& seen, SpanWord wanted) {
    std::uint64_t bits = seen.bits();
    const bool done = word.compare_exchange_strong_acq_rel(bits, wanted.bits());
    seen = SpanWord(bits);
    return done;
  }
  // Listing 2's names for the transitions (O5) that keep the remote list.
  // False: the span has moved on.
  /// The caller acts as the owner.
  bool try_mark_floating(SpanWord& old, bool mixed) {
    SPANALLOC_ASSERT(old.is_idle() || old.state() == State::kHot);
    SPANALLOC_ASSERT(mixed || local_free.load_relaxed() == 0);  // O2
    return try_change(old, old.moved(State::kFloating, mixed, false));
  }
  bool try_mark_reusable(SpanWord& old) {
    SPANALLOC_ASSERT(old.is_idle());
    return try_change(old, old.moved(State::kReusable, old.mixed(), true));
  }
  bool try_mark_suspect(SpanWord& old) {
    SPANALLOC_ASSERT(old.state() == State::kFloating && old.mixed() && !old.listed());
    return try_change(old, old.moved(State::kFloating, old.mixed(), true));
  }
  // And for those that end the span's lists.
  bool try_mark_free(SpanWord& old) {
    SPANALLOC_ASSERT(old.is_idle());
    return try_change(old, old.taken(State::kFree));
  }
  bool try_mark_hot(SpanWord& old) {
    SPANALLOC_ASSERT(old.is_idle() || old.state() == State::kHot);
    return try_change(old, old.taken(State::kHot));
  }
  bool try_mark_lost(SpanWord& old) {
    SPANALLOC_ASSERT(old.state() != State::kExpected && old.state() != State::kLost);
    return try_change(old, old.taken(State::kLost));
  }
  /// For who has taken the span from the pool, and so has it alone: words of earlier epochs that
  /// others still hold do not match, hence a plain store. Release: publishes the new life's header.
  void mark_taken_hot() {
    const SpanWord old = load_word();
    SPANALLOC_ASSERT(old.state() == State::kFree || old.state() == State::kExpected);
    word.store_release(old.taken(State::kHot).bits());
  }
};
static_assert(sizeof(Span) <= kHeaderBytes);

}  // namespace spanalloc::scalloc
