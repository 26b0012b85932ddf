// One word a span: who owns it, its state, how many of its blocks are out, and where the list of
// blocks freed by other threads begins. Each change of these is one compare-and-swap of the word,
// so the last free of a shared span and the span's becoming free are one atomic step.
//
//   bits 63..40  owner: number of a cache record or abandoned list; kNobody: a span of one block
//   bits 39..38  state
//   bit  37      always 0
//   bit  36      delayed: another thread has freed since the owner last collected (in a cached
//                large span's word: below)
//   bits 35..16  remote head: BlockOffset of the block that another thread freed last; kNone: none
//   bits 15..0   outstanding: blocks that count as out
//
// Words that are not of an owned or shared span of several blocks:
//
//   all bits 0                         never used, or its heap was destroyed
//   a cache's, free                    emptied while it was that cache's; the remote list stays
//   nobody's, shared, 1 outstanding    a span of one block, whose block is out (kSingleInUse)
//   nobody's, free                     such a span, freed: its taker's, in a pool, or the arena's;
//                                      also what a fork's child makes of one that it finds free
//                                      (kCachedTaken)
//   a cache's, free, delayed, no head  such a span, freed: a cached large span (cached_of)
//
// cached_large_spans.hpp defines the last three. (An emptied span may have the delayed bit, too;
// then it has a head, because the thread that sets the bit frees a block.)
//
// Equation, for a span that is not free: capacity = outstanding + length(remote list) +
// collected, where `collected` are the blocks that the owner has freed and counted into
// the word. The program holds
//   shared span:  outstanding - uncollected (the owner's frees that the word does not count yet);
//                 of an abandoned span that is `uncounted` less the blocks on its lists and those
//                 never carved
//   owned span:   outstanding - blocks on the owner's lists - blocks never carved
//
// There is no ABA problem: every change is a function of the word alone. Other changes may
// overtake a push and bring back the word that it began with; then its link leads to the right
// head block all the same.
#pragma once

#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/compiler.hpp"
#include "engines/standard/numbers.hpp"

namespace spanalloc::standard {

enum class SpanState : std::uint64_t {
  /// Never used, the arena's, in a pool, a cached large span, or on its way to one of these
  kFree = 0,
  kOwned = 1,   ///< the owner takes blocks from it, or has just used it up
  kShared = 2,  ///< on one of the owner's lists; if nobody owns it, its one block is out
};

struct SpanWord {
  std::uint64_t bits = 0;

  static constexpr unsigned kHeadShift = 16;
  static constexpr unsigned kIdentityShift = 38;
  static constexpr unsigned kOwnerShift = 40;
  static constexpr std::uint64_t kDelayedBit = std::uint64_t{1} << 36;
  static constexpr std::uint64_t kHeadMask = 0xfffff;
  static constexpr CacheNumber kMaxOwner{(1u << 24) - 2};  // all ones is no cache record's number

  static constexpr SpanWord make(CacheNumber owner, SpanState state, std::uint64_t outstanding) {
    return {std::uint64_t{index_of(owner)} << kOwnerShift |
            static_cast<std::uint64_t>(state) << kIdentityShift | outstanding};
  }

  constexpr std::uint32_t outstanding() const { return static_cast<std::uint32_t>(bits & 0xffff); }
  constexpr BlockOffset head() const {
    return BlockOffset{static_cast<std::uint32_t>(bits >> kHeadShift & kHeadMask)};
  }
  constexpr bool is_delayed() const { return (bits & kDelayedBit) != 0; }
  constexpr SpanState state() const { return static_cast<SpanState>(bits >> kIdentityShift & 3); }
  constexpr CacheNumber owner() const {
    return CacheNumber{static_cast<std::uint32_t>(bits >> kOwnerShift)};
  }
  /// Owner and state together: one comparison answers "is it shared, and mine?".
  constexpr std::uint64_t identity() const { return bits >> kIdentityShift; }
  constexpr bool is(CacheNumber owner, SpanState state) const {
    return identity() == identity_of(owner, state);
  }
  static constexpr std::uint64_t identity_of(CacheNumber owner, SpanState state) {
    return make(owner, state, 0).identity();
  }

  constexpr SpanWord with_outstanding(std::uint64_t n) const {
    SPANALLOC_ASSERT(n <= 0xffff);
    return {(bits & ~std::uint64_t{0xffff}) | n};
  }
  constexpr SpanWord with_head(BlockOffset block) const {
    SPANALLOC_ASSERT(index_of(block) <= kHeadMask);
    return {(bits & ~(kHeadMask << kHeadShift)) | std::uint64_t{index_of(block)} << kHeadShift};
  }
  constexpr SpanWord with_delayed(bool on) const {
    return {on ? bits | kDelayedBit : bits & ~kDelayedBit};
  }
  constexpr SpanWord with_state(SpanState state) const {
    return {(bits & ~(std::uint64_t{3} << kIdentityShift)) | static_cast<std::uint64_t>(state)
                                                                 << kIdentityShift};
  }
  constexpr SpanWord with_owner(CacheNumber owner) const {
    SPANALLOC_ASSERT(owner <= kMaxOwner);
    return {(bits & ((std::uint64_t{1} << kOwnerShift) - 1)) | std::uint64_t{index_of(owner)}
                                                                   << kOwnerShift};
  }
  friend constexpr bool operator==(SpanWord, SpanWord) = default;
};

/// Owner of spans of one block: no cache. They are on no list, and become free without a lock.
inline constexpr CacheNumber kNobody = SpanWord::kMaxOwner;

/// What the caller must do after a remote free.
enum class RemoteFree {
  kDone,  ///< nothing, as far as the word tells
  /// Shared -> free: the caller has claimed the span; it unlinks it and puts it into the pool
  kEmptied,
  kDelayed,  ///< first one since the owner collected: the caller puts the span on its delayed list
  /// Nothing was freed: the span is free, or has fewer blocks out: some block was freed before
  kBadFree,
};

struct RemotelyFreed {
  RemoteFree result;
  SpanWord after;
};

/// A thread that does not own the span frees a batch of `count` of its blocks. They are linked from
/// the newest, with the mark `newest`, to the oldest. `link(head)` makes the oldest one lead to the
/// block marked `head`; that happens before the batch is published.
template <class Link>
SPANALLOC_INLINE RemotelyFreed free_remotely(Atomic<std::uint64_t>& cell, BlockOffset newest,
                                             std::uint32_t count, Link&& link) {
  SpanWord before{cell.load_relaxed()};  // a guess; the compare-and-swap decides
  SpanWord after{};
  RemoteFree result{};
  do {
    if (before.state() == SpanState::kFree || before.outstanding() < count) {
      return {RemoteFree::kBadFree, before};
    }
    SPANALLOC_ASSERT(count != 0 && newest != BlockOffset::kNone &&
                     index_of(newest) <= SpanWord::kHeadMask);
    link(before.head());
    after = SpanWord{before.bits - count}.with_head(newest);  // `outstanding` is in the lowest bits
    result = RemoteFree::kDone;
    if (before.state() == SpanState::kShared) {
      if (after.outstanding() == 0) {
        after = after.with_state(SpanState::kFree);
        result = RemoteFree::kEmptied;
      } else if (!before.is_delayed()) {
        after = after.with_delayed(true);
        result = RemoteFree::kDelayed;
      }
    }
    // Release: a thread that takes the list or the span sees the links and the program's last
    // writes to the blocks. Acquire: a thread that claims the span passes its memory on, after all
    // that earlier freers did.
  } while (!cell.compare_exchange_weak_acq_rel(before.bits, after.bits));
  return {result, after};
}

/// free_remotely() of one block of a span that is owned according to `word`; the owner sees to what
/// follows. False: the word has changed meanwhile; nothing was freed.
template <class Link>
SPANALLOC_INLINE bool free_into_owned(Atomic<std::uint64_t>& cell, SpanWord word, BlockOffset block,
                                      Link&& link) {
  SPANALLOC_ASSERT(word.state() == SpanState::kOwned);
  if (SPANALLOC_UNLIKELY(word.outstanding() == 0)) return false;
  link(word.head());
  const SpanWord after = SpanWord{word.bits - 1}.with_head(block);
  return cell.compare_exchange_strong_acq_rel(word.bits, after.bits);  // as in free_remotely()
}

/// A span's remote list; first == kNone: there is none.
struct RemoteList {
  BlockOffset first = BlockOffset::kNone;
  std::uint32_t count = 0;
};

/// Takes the whole remote list of an owned span: the owner, or a borrower
/// that holds the owner's lock.
inline RemoteList take_remotes(Atomic<std::uint64_t>& cell, std::uint32_t capacity) {
  SpanWord before{cell.load_relaxed()};
  SpanWord after{};
  do {
    SPANALLOC_ASSERT(before.state() == SpanState::kOwned && before.outstanding() <= capacity);
    const std::uint32_t count = capacity - before.outstanding();
    SPANALLOC_ASSERT((count == 0) == (before.head() == BlockOffset::kNone));
    if (count == 0) return {};
    after = before.with_outstanding(capacity).with_head(BlockOffset::kNone);
    // Acquire: the links and contents of the blocks. Release is not needed for our own
    // writes, since the word only loses its list, but it keeps the freers' release sequence
    // whole for a later claimer.
  } while (!cell.compare_exchange_weak_acq_rel(before.bits, after.bits));
  return {before.head(), capacity - before.outstanding()};
}

}  // namespace spanalloc::standard
