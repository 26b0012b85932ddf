// One word a span: who owns it, its state, how many of its blocks are out, and where the list of
// blocks freed by other threads begins. Each change of these is one compare-and-swap of the word,
// so the last free of a shared span and the span's becoming free are one atomic step.
//
//   bits 63..40  owner: number of a cache record; kNobody: a span of one block, or one that its
//                thread has abandoned
//   bits 39..38  state
//   bit  37      always 0
//   bit  36      delayed: another thread has freed since the owner last collected (in the words of
//                abandoned and of cached large spans: below)
//   bits 35..16  remote head: BlockOffset of the block that another thread freed last; kNone: none
//   bits 15..0   outstanding: blocks that count as out
//
// A span that nobody owns is on no list and counts exactly: `outstanding` are its live blocks. So
// the free that brings that to 0 makes it free, without a lock. A span of one block is nobody's
// from its allocation to its free. One of several blocks is abandoned, and nobody's, from its
// thread's end until another thread adopts it; its delayed bit tells it from the other kind.
// A thread may hold an abandoned span: then it has it alone, but for frees. One that its thread has
// left as it was has free blocks that nobody has counted, and which count as out: with the first
// free into it it is held and counted, if it is not adopted before.
//
// Words that are not of an owned or shared span of several blocks:
//
//   all bits 0                         never used, or its heap was destroyed
//   a cache's, free                    emptied while it was that cache's; the remote list stays
//   nobody's, shared, 1 outstanding    a span of one block, whose block is out (kLargeInUse)
//   nobody's, shared, delayed          an abandoned span
//   nobody's, held                     an abandoned span that nobody has counted
//   nobody's, held, delayed            either of them while a thread holds it
//   nobody's, free                     emptied: its taker's, in a pool, or the arena's; also what a
//                                      fork's child makes of one that it finds free (kLargeFree)
//   a cache's, free, delayed, no head  such a span, freed: a cached large span (cached_of)
//
// (An emptied span may have the delayed bit, too;
// then it has a head, because the thread that sets the bit frees a block.)
//
// Equation, for a span that is not free: capacity = outstanding + length(remote list) +
// collected, where `collected` are the blocks that the owner has freed and counted into
// the word. The program holds
//   shared span:  outstanding - uncollected (the owner's frees that the word does not count yet);
//                 there are none of a span that nobody owns
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
#include "standard/numbers.hpp"

namespace spanalloc::standard {

enum class SpanState : std::uint64_t {
  /// Never used, the arena's, in a pool, a cached large span, or on its way to one of these
  kFree = 0,
  kOwned = 1,   ///< the owner takes blocks from it, or has just used it up
  kShared = 2,  ///< on one of the owner's lists; if nobody owns it, some of its blocks are out
  kHeld = 3,    ///< nobody's, and what its word counts as out may be free: see above
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
  /// Of several blocks, and nobody's: not held either.
  constexpr bool is_abandoned() const;
  constexpr bool is_uncounted() const;  ///< abandoned, and nobody has counted its free blocks
  constexpr bool is_held() const;       ///< a thread holds it
  constexpr bool is_single() const;     ///< of one block, which is out
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
  /// By what is out. (A free word without a head must have no delayed bit: it would seem to be that
  /// of a cached large span.)
  constexpr SpanWord shared_or_free() const {
    return outstanding() != 0 ? with_state(SpanState::kShared)
                              : with_state(SpanState::kFree).with_delayed(false);
  }
  friend constexpr bool operator==(SpanWord, SpanWord) = default;
};

/// Owner of spans of one block, and of those that their thread has abandoned: no cache.
inline constexpr CacheNumber kNobody = SpanWord::kMaxOwner;

constexpr bool SpanWord::is_abandoned() const {
  return owner() == kNobody && is_delayed() == (state() == SpanState::kShared) &&
         state() != SpanState::kFree;
}
constexpr bool SpanWord::is_uncounted() const {
  return is(kNobody, SpanState::kHeld) && !is_delayed();
}
constexpr bool SpanWord::is_held() const {
  return is(kNobody, SpanState::kHeld) && is_delayed();
}
constexpr bool SpanWord::is_single() const {
  return is(kNobody, SpanState::kShared) && !is_delayed();
}

/// The word of a span of one block whose block is out.
inline constexpr SpanWord kLargeInUse = SpanWord::make(kNobody, SpanState::kShared, 1);
/// The word of a free span that only the thread has which took it.
inline constexpr SpanWord kLargeFree = SpanWord::make(kNobody, SpanState::kFree, 0);
/// The word of a free span that is cached in that record. (No span in a pool or
/// the arena has such a word.)
constexpr SpanWord cached_of(CacheNumber cache) {
  return SpanWord::make(cache, SpanState::kFree, 0).with_delayed(true);
}

/// What became of blocks that were freed, or of a span whose owner has collected.
enum class Freed : std::uint8_t {
  kDone,
  kEmptied,    ///< done, and the span is free and the caller's, who must put it into the pool
  kDelayed,    ///< done, by another thread for the first time since the owner collected
  kUncounted,  ///< done, and the caller counts the span, which is abandoned, if it still is
  /// Nothing has changed: by the word the blocks cannot all be out. Some block was freed before.
  kRefused,
};

/// A span's remote list; first == kNone: there is none.
struct RemoteList {
  BlockOffset first = BlockOffset::kNone;
  std::uint32_t count = 0;
};

/// The word in a span's record, and all its transitions. Each is a loop around one
/// compare-and-swap, which decides: what is loaded before is a guess.
///
/// All of these release and acquire. Release: a thread that takes the remote list or the span finds
/// the links, the owner's lists and the record, and the program's last writes to the blocks.
/// Acquire: a thread that claims, adopts or empties the span uses or passes on what earlier freers
/// and owners left. A transition that only takes something releases nothing of its own, but keeps
/// the freers' release sequence whole for a later claimer.
class AtomicSpanWord {
 public:
  constexpr AtomicSpanWord() = default;
  constexpr explicit AtomicSpanWord(SpanWord word) : bits_(word.bits) {}

  SpanWord load_relaxed() const { return {bits_.load_relaxed()}; }
  SpanWord load_acquire() const { return {bits_.load_acquire()}; }

  /// By a thread that has the span alone. Release: a late freer of an earlier life may look at the
  /// record under a lock, and a fork's child goes by what the word says.
  void set(SpanWord word) { bits_.store_release(word.bits); }
  /// False: the word is not `from`.
  SPANALLOC_INLINE bool replace(SpanWord from, SpanWord to) {
    return bits_.compare_exchange_strong_acq_rel(from.bits, to.bits);
  }

  // --- By threads that do not own the span -------------------------------------------------------

  struct Outcome {
    Freed freed;
    SpanWord word;  ///< after it; kRefused: that refused
  };
  /// Frees a batch of `count` blocks. They are linked from the newest, `newest`, to the oldest.
  /// `link(head)` makes the oldest one lead to block `head`, before the batch is published.
  /// kEmptied: the caller has claimed the span, and unlinks it. kDelayed: the caller puts the span
  /// on its delayed list.
  template <class Link>
  SPANALLOC_INLINE Outcome free_batch(BlockOffset newest, std::uint32_t count, Link&& link) {
    Freed freed{};
    const Change change = change_by([&](SpanWord before, SpanWord& after) {
      if (before.state() == SpanState::kFree || before.outstanding() < count) return false;
      SPANALLOC_ASSERT(count != 0 && newest != BlockOffset::kNone &&
                       index_of(newest) <= SpanWord::kHeadMask);
      link(before.head());
      after = SpanWord{before.bits - count}.with_head(newest);  // outstanding: the lowest bits
      freed = before.is_uncounted() ? Freed::kUncounted : Freed::kDone;
      if (before.state() == SpanState::kShared) {
        if (after.outstanding() == 0) {
          after = after.with_state(SpanState::kFree);
          freed = Freed::kEmptied;
        } else if (!before.is_delayed() && before.owner() != kNobody) {
          after = after.with_delayed(true);
          freed = Freed::kDelayed;
        }
      }
      return true;
    });
    if (!change.done) return {Freed::kRefused, change.before};
    return {freed, change.after};
  }
  /// free_batch() of one block of a span that is owned according to `word`; the owner sees to what
  /// follows. False: the word has changed meanwhile; nothing was freed.
  template <class Link>
  SPANALLOC_INLINE bool free_into_owned(SpanWord word, BlockOffset block, Link&& link) {
    SPANALLOC_ASSERT(word.state() == SpanState::kOwned);
    if (SPANALLOC_UNLIKELY(word.outstanding() == 0)) return false;
    link(word.head());
    return replace(word, SpanWord{word.bits - 1}.with_head(block));
  }

  struct Change {
    SpanWord before;
    SpanWord after;
    bool done = false;
  };

  // --- By a thread that holds an abandoned span, or would ----------------------------------------

  /// Abandoned -> held. Acquire: what its last owner and those who freed have left. Not done: it is
  /// not there to be held.
  Change hold() {
    return change_by([&](SpanWord before, SpanWord& after) {
      after = before.with_state(SpanState::kHeld).with_delayed(true);
      return before.is_abandoned();
    });
  }
  /// Counts `count` blocks of a held span, which its last owner has freed. False: more than are
  /// out.
  bool count_held(std::uint32_t count) {
    return change_by([&](SpanWord before, SpanWord& after) {
             SPANALLOC_ASSERT(before.is_held());
             if (count > before.outstanding()) return false;
             after = before.with_outstanding(before.outstanding() - count);
             return true;
           })
        .done;
  }
  /// Held -> abandoned, by a holder that knows it as counted. kEmptied: no block is out, and the
  /// span is the caller's.
  Freed let_go() {
    const Change change = change_by([&](SpanWord before, SpanWord& after) {
      SPANALLOC_ASSERT(before.is_held());
      after = before.shared_or_free();
      return true;
    });
    return change.after.state() == SpanState::kFree ? Freed::kEmptied : Freed::kDone;
  }

  // --- By the owner, or under its lock -----------------------------------------------------------

  /// Takes the whole remote list of an owned span: the owner, or a borrower that holds the owner's
  /// lock.
  RemoteList take_remotes(std::uint32_t capacity) {
    const Change change = change_by([&](SpanWord before, SpanWord& after) {
      SPANALLOC_ASSERT(before.state() == SpanState::kOwned && before.outstanding() <= capacity);
      SPANALLOC_ASSERT((before.outstanding() == capacity) == (before.head() == BlockOffset::kNone));
      after = before.with_outstanding(capacity).with_head(BlockOffset::kNone);
      return before.outstanding() != capacity;
    });
    if (!change.done) return {};
    return {change.before.head(), capacity - change.before.outstanding()};
  }
  /// Counts `count` blocks that the owner has freed. The span is shared from here on, by `owner`
  /// (kNobody: abandoned), or free if no block is out. kRefused: more than were out. (The word says
  /// "free" and kDone: another thread has claimed the span, and waits for the lock.)
  SPANALLOC_INLINE Outcome collect(std::uint32_t count, CacheNumber owner) {
    const SpanWord shared =
        SpanWord::make(owner, SpanState::kShared, 0).with_delayed(owner == kNobody);
    const Change change = change_by([&](SpanWord before, SpanWord& after) {
      if (before.state() == SpanState::kFree || count > before.outstanding()) return false;
      after = SpanWord{shared.bits | (before.outstanding() - count)}.with_head(before.head());
      if (after.outstanding() == 0) after = after.shared_or_free();
      return true;
    });
    if (change.done) {
      const bool emptied = change.after.state() == SpanState::kFree;
      return {emptied ? Freed::kEmptied : Freed::kDone, change.after};
    }
    const bool claimed = change.before.state() == SpanState::kFree;
    return {claimed ? Freed::kDone : Freed::kRefused, change.before};
  }
  /// Shared -> free, if as many blocks are out as uncollected() says that the owner has freed.
  template <class Uncollected>
  bool claim_if_empty(Uncollected&& uncollected) {
    return change_by([&](SpanWord before, SpanWord& after) {
             after = before.with_outstanding(0).with_state(SpanState::kFree);
             return before.state() == SpanState::kShared && before.outstanding() != 0 &&
                    before.outstanding() == uncollected();
           })
        .done;
  }
  /// Shared -> owned: all `capacity` blocks count as out; the remote list is the caller's. Not
  /// done: another thread has claimed the span.
  Change own(CacheNumber owner, std::uint32_t capacity) {
    return change_by([&](SpanWord before, SpanWord& after) {
      after = SpanWord::make(owner, SpanState::kOwned, capacity);
      return before.state() != SpanState::kFree;
    });
  }
  /// Forgets the remote list, if `owner` has the span and the list begins with `newest`: its
  /// blocks, and all others, count as out. `capacity`: asked for after the word was read, because
  /// the span may live another life meanwhile (acquire: sees the class of that life).
  template <class Capacity>
  Change drop_remotes(CacheNumber owner, BlockOffset newest, Capacity&& capacity) {
    return change_by(
        [&](SpanWord before, SpanWord& after) {
          if (before.state() == SpanState::kFree || before.owner() != owner ||
              before.head() != newest) {
            return false;
          }
          after = before.with_outstanding(capacity()).with_head(BlockOffset::kNone);
          return true;
        },
        bits_.load_acquire());
  }
  /// Owned -> abandoned, with all that is free counted as out, but what others have freed.
  void leave_uncounted() {
    change_by([&](SpanWord before, SpanWord& after) {
      SPANALLOC_ASSERT(before.state() == SpanState::kOwned);
      // (The bit is set where the program has damaged the span: retire().)
      after = before.with_state(SpanState::kHeld).with_owner(kNobody).with_delayed(false);
      return true;
    });
  }
  /// Owned -> shared by `owner`, whatever its lists hold; delayed, as retire() has it.
  void hand_over(CacheNumber owner) {
    change_by([&](SpanWord before, SpanWord& after) {
      after = before.with_state(SpanState::kShared).with_owner(owner).with_delayed(true);
      return true;
    });
  }
  /// Makes `owner` have the span, in this state and without a remote list, with all blocks counted
  /// as out; delayed, so that nobody puts it on the delayed list. False: the span is free.
  bool retire(CacheNumber owner, SpanState state, std::uint32_t capacity) {
    return change_by([&](SpanWord before, SpanWord& after) {
             after = SpanWord::make(owner, state, capacity).with_delayed(true);
             return before.state() != SpanState::kFree;
           })
        .done;
  }

 private:
  // f(before, after) says what the word becomes; false: it stays as it is.
  template <class F>
  SPANALLOC_INLINE Change change_by(F&& f) {
    return change_by(f, bits_.load_relaxed());
  }
  template <class F>
  SPANALLOC_INLINE Change change_by(F&& f, std::uint64_t bits) {
    SpanWord after{};
    do {
      if (!f(SpanWord{bits}, after)) return {{bits}, {}, false};
    } while (!bits_.compare_exchange_weak_acq_rel(bits, after.bits));
    return {{bits}, after, true};
  }

  Atomic<std::uint64_t> bits_;
};

}  // namespace spanalloc::standard
