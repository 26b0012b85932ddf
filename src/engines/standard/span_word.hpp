// One word a span, which decides what two threads could disagree about: who owns the span, in which state it
// is, how many of its blocks are out, and the list of blocks freed by other threads. Every transition is one
// compare-and-swap on it, so "the last free" and "the span is free now" are the same atomic step.
//
//   bits 63..40  owner: number of the thread cache, a thread's or an abandoned list; kNobody of spans of one
//   block bits 39..38  state bit  37      always 0 bit  36      listed: a remote free has happened since the
//   owner last settled the span, that is, counted
//                its own frees into the word
//   bits 35..16  remote head: the mark of the block that another thread freed last (none: there is no list)
//   bits 15..0   outstanding: blocks that count as out
//
// What a word says that is not of a hot or parked span of several blocks:
//
//   all bits 0                        never used, or its heap was destroyed
//   of a thread cache, free                    emptied: the thread cache that it was in; the remote list
//   stays with it of nobody, parked, 1 outstanding  a span of one block, whose block is out (kSingleInUse) of
//   nobody, free                   the same, freed: of whoever has taken it, in a pool, or the arena's;
//                                     and what a fork's child finds free (kCachedTaken)
//   of a thread cache, free, listed, no head   the same, freed: a spare of that thread cache (cached_of)
//
// spare_spans.hpp has the last three. (An emptied span may be listed, too. Then it has a head: whoever sets
// that bit frees a block.)
//
// Equation, for a span that is not free:
//   capacity = outstanding + length(remote list) + published
// where `published` are the blocks that the owner has freed and folded in. In the hands of the program are
//   outstanding - uncollected            (parked; `uncollected`: owner's frees not folded in yet; of an
//                                        `uncounted` orphan less what is on its lists or never carved)
//   outstanding - blocks on the owner's lists - blocks never carved     (hot)
//
// No ABA: every transition is a function of the word alone. A push that is overtaken by changes which bring
// the same word back links to the same head block in the same span, and is right again.
#pragma once

#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/compiler.hpp"
#include "engines/standard/numbers.hpp"

namespace spanalloc::standard {

enum class SpanState : std::uint64_t {
  kFree = 0,    ///< never used, with the arena, in a pool, a spare, or on its way to one of these
  kOwned = 1,   ///< the owner allocates from it, or has just used it up (warm)
  kShared = 2,  ///< on one of the owner's lists; of nobody: its one block is out
};

struct SpanWord {
  std::uint64_t bits = 0;

  static constexpr unsigned kHeadShift = 16;
  static constexpr unsigned kIdentityShift = 38;
  static constexpr unsigned kOwnerShift = 40;
  static constexpr std::uint64_t kDelayedBit = std::uint64_t{1} << 36;
  static constexpr std::uint64_t kHeadMask = 0xfffff;
  static constexpr CacheNumber kMaxOwner{(1u << 24) - 2};  // all ones is no thread cache's number

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
  constexpr CacheNumber owner() const { return CacheNumber{static_cast<std::uint32_t>(bits >> kOwnerShift)}; }
  /// Owner and state together: one comparison tells "parked, and mine".
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
  constexpr SpanWord with_delayed(bool on) const { return {on ? bits | kDelayedBit : bits & ~kDelayedBit}; }
  constexpr SpanWord with_state(SpanState state) const {
    return {(bits & ~(std::uint64_t{3} << kIdentityShift)) | static_cast<std::uint64_t>(state)
                                                                 << kIdentityShift};
  }
  constexpr SpanWord with_owner(CacheNumber owner) const {
    SPANALLOC_ASSERT(owner <= kMaxOwner);
    return {(bits & ((std::uint64_t{1} << kOwnerShift) - 1)) | std::uint64_t{index_of(owner)} << kOwnerShift};
  }
  friend constexpr bool operator==(SpanWord, SpanWord) = default;
};

/// Owner of spans of one block: no thread cache. They stand on no list and leave without a lock.
inline constexpr CacheNumber kNobody = SpanWord::kMaxOwner;

/// What a remote free leaves to do.
enum class RemoteFree {
  kDone,     ///< nothing, as far as the word tells
  kEmptied,  ///< parked -> free: the caller claimed the span; it unlinks it and gives it to the pool
  kDelayed,  ///< first one since the owner settled: the caller puts the span on the owner's delayed list
  kBadFree,  ///< the span is free, or all its blocks are: the pointer was freed before
};

struct RemotelyFreed {
  RemoteFree result;
  SpanWord after;
};

/// Any thread that does not own the span frees a run of `count` blocks of it, linked up from the one marked
/// `newest`. `link(head)` writes the oldest one's link to the block marked `head` before the run is
/// published.
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
    SPANALLOC_ASSERT(count != 0 && newest != BlockOffset::kNone && index_of(newest) <= SpanWord::kHeadMask);
    link(before.head());
    after = SpanWord{before.bits - count}.with_head(newest);  // outstanding are the lowest bits
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
    // Release: whoever takes the list or the span sees the links and the program's last writes to the blocks.
    // Acquire: who claims the span hands its memory on, after everything that earlier freers did.
  } while (!cell.compare_exchange_weak_acq_rel(before.bits, after.bits));
  return {result, after};
}

/// The same for one block of a span that `word` says is hot, whose owner sees to what follows. False: the
/// word has changed meanwhile, and nothing else.
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

/// Owner, span hot: takes the whole remote list.
inline RemoteList take_remotes(Atomic<std::uint64_t>& cell, std::uint32_t capacity) {
  SpanWord before{cell.load_relaxed()};
  SpanWord after{};
  do {
    SPANALLOC_ASSERT(before.state() == SpanState::kOwned && before.outstanding() <= capacity);
    const std::uint32_t count = capacity - before.outstanding();
    SPANALLOC_ASSERT((count == 0) == (before.head() == BlockOffset::kNone));
    if (count == 0) return {};
    after = before.with_outstanding(capacity).with_head(BlockOffset::kNone);
    // Acquire: the links and contents of the blocks. Nothing to release: the word only loses its list, but
    // the release half keeps the freers' release sequence intact for a later claimer.
  } while (!cell.compare_exchange_weak_acq_rel(before.bits, after.bits));
  return {before.head(), capacity - before.outstanding()};
}

}  // namespace spanalloc::standard
