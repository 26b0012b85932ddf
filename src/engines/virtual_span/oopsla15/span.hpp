// A real span's header and the word that decides over it.
//
// The paper keeps three words that a free may change: the epoch {state, ABA counter}, the remote free list
// {top, count}, and the owner. Emptiness and state then cannot be decided together, and most of the known
// failures of that scheme are the gap between the two. Here the epoch and the remote list are ONE word, so
// "this free was the last" and "the span is free now" are one compare-and-swap. Names are the paper's.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "engines/virtual_span/oopsla15/size_classes.hpp"

namespace spanalloc::oopsla15 {

/// Figure 3. expected: never used; free: in the pool or on its way there; the rest: in the frontend.
enum class State : std::uint64_t { kExpected = 0, kFree = 1, kHot = 2, kFloating = 3, kReusable = 4 };

/// A value of the span word:
///
///   bits  0..16  head: offset / 16 of the newest block of the remote free list, 0 when it is empty
///   bits 17..28  count: blocks in the remote free list
///   bit  29      mixed: the owner holds free blocks that count does not show (local_free may be > 0)
///   bit  30      listed: the span is linked into its owner's set
///   bits 31..33  state
///   bits 34..63  epoch: the ABA counter, advanced by every transition and never set back
///
/// Within one epoch the count only grows, so an equal value means that nothing has happened in between.
/// Invariants, per span (B blocks, L = local_free):
///   (1) live == B - count - L for states floating and reusable;  live == B - count - |lists| for hot.
///   (2) L > 0 implies mixed.
///   (3) reusable implies listed; hot and free imply neither listed nor mixed.
///   (4) floating, mixed and not listed: every thread that pushed to the remote list since `mixed` was set is
///       on its way to list it, or there is none; in the latter case the owner's view of count is exact.
class SpanWord {
 public:
  constexpr SpanWord() = default;
  constexpr explicit SpanWord(std::uint64_t bits) : bits_(bits) {}
  constexpr std::uint64_t bits() const { return bits_; }

  constexpr std::uint32_t head_offset() const { return static_cast<std::uint32_t>(bits_ & kHeadMask) * 16; }
  constexpr std::uint32_t count() const { return static_cast<std::uint32_t>(bits_ >> 17) & 0xfff; }
  constexpr bool mixed() const { return (bits_ & kMixed) != 0; }
  constexpr bool listed() const { return (bits_ & kListed) != 0; }
  constexpr State state() const { return static_cast<State>((bits_ >> 31) & 7); }
  constexpr bool is_idle() const { return state() == State::kFloating || state() == State::kReusable; }

  constexpr SpanWord pushed(std::uint32_t offset) const {
    return SpanWord(((bits_ & ~kHeadMask) | offset / 16) + kOneBlock);
  }
  constexpr SpanWord with_mixed() const { return SpanWord(bits_ | kMixed); }
  /// The remote list emptied, all flags down.
  constexpr SpanWord taken(State state) const { return SpanWord(next_epoch() | state_bits(state)); }
  /// The remote list kept.
  constexpr SpanWord moved(State state, bool mixed, bool listed) const {
    return SpanWord(next_epoch() | state_bits(state) | (bits_ & kListMask) | (mixed ? kMixed : 0) |
                    (listed ? kListed : 0));
  }

 private:
  static constexpr std::uint64_t kHeadMask = (1u << 17) - 1;
  static constexpr std::uint64_t kOneBlock = 1u << 17;
  static constexpr std::uint64_t kListMask = (1u << 29) - 1;
  static constexpr std::uint64_t kMixed = 1u << 29;
  static constexpr std::uint64_t kListed = 1u << 30;
  static constexpr std::uint64_t state_bits(State state) { return static_cast<std::uint64_t>(state) << 31; }
  constexpr std::uint64_t next_epoch() const { return ((bits_ >> 34) + 1) << 34; }

  std::uint64_t bits_ = 0;
};

/// A free block. The link is the only thing ever written into one.
struct [[gnu::may_alias]] FreeBlock {
  FreeBlock* next;
};

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
  // Shared, a mark of size_classes.hpp: any thread may read it; the span word tells whether it still holds.
  Atomic<std::uint32_t> size_class{0};
  // Shared: {generation : 16, address of the LAB : 48}. Written by whoever takes the span from the pool, and
  // by an adopter under the lock of the former owner's set.
  Atomic<std::uint64_t> owner{0};
  // Owner-only. For a hot span what is left besides the allocation list of the thread.
  Plain<FreeBlock*> local_list{nullptr};
  // Written by the owner, read by anybody: blocks the owner (or a former one) freed and still knows of,
  // including those never carved. Last write of a local free: from then on the span may change hands.
  Atomic<std::uint32_t> local_free{0};
  // Written by the owner: blocks below this index have been handed out, or listed. Who holds a block sees
  // that its own has been.
  Atomic<std::uint32_t> carved{0};
  // Shared: some block may be referred to by a pointer beyond its start (large alignments).
  Atomic<std::uint32_t> shifted{0};

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
  Plain<bool> in_reusable{false};
  Plain<bool> in_suspects{false};

  std::uintptr_t address() const { return address_of(this); }
  FreeBlock* block_at(std::uint32_t offset) const {
    return offset == 0 ? nullptr : pointer_to<FreeBlock>(address() + offset);
  }
  std::uint32_t offset_of(const void* p) const {
    return static_cast<std::uint32_t>(address_of(p) - address());
  }
  /// Index of the block that starts at p; at least `blocks` when none does.
  std::uint32_t index_of(const void* p) const {
    return std::rotr(offset_of(p) * inverse + bias, int{shift});  // block_index of offset - first_block
  }
  bool is_block(const void* p) const { return index_of(p) < blocks; }
  /// Of those that were ever carved.
  bool is_carved(const void* p) const { return index_of(p) < carved.load_relaxed(); }

  SpanWord load_word() const {
    // Acquire: pairs with the release of the transition that made this word, so that owner, class and
    // local_free are read from this epoch or a later one.
    return SpanWord(word.load_acquire());
  }
  /// One attempt; `seen` becomes what was found instead. Release publishes the caller's writes with the
  /// transition, acquire makes it see those of everyone whose change it builds on.
  bool try_change(SpanWord& seen, SpanWord wanted) {
    std::uint64_t bits = seen.bits();
    const bool done = word.compare_exchange_strong_acq_rel(bits, wanted.bits());
    seen = SpanWord(bits);
    return done;
  }
  // Listing 2's names for the transitions that keep the remote list. False: the span has moved on.
  bool try_mark_floating(SpanWord& old, bool mixed) {
    return try_change(old, old.moved(State::kFloating, mixed, false));
  }
  bool try_mark_reusable(SpanWord& old) {
    return try_change(old, old.moved(State::kReusable, old.mixed(), true));
  }
  bool try_mark_suspect(SpanWord& old) {
    return try_change(old, old.moved(State::kFloating, old.mixed(), true));
  }
  // And for those that end the span's lists.
  bool try_mark_free(SpanWord& old) { return try_change(old, old.taken(State::kFree)); }
  bool try_mark_hot(SpanWord& old) { return try_change(old, old.taken(State::kHot)); }
};
static_assert(sizeof(Span) <= kHeaderBytes);

}  // namespace spanalloc::oopsla15
