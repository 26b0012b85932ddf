// One word a span: who owns it, its state, how many of its blocks are out, and where the list of
// blocks freed by other threads begins. Each change of these is one compare-and-swap of the word,
// so the last free of a span that nobody owns and the span's becoming free are one atomic step.
//
//   bits 63..40  owner: number of a cache record; kNobody: a span of one block, or one that its
//                thread has abandoned
//   bits 39..38  state
//   bit  37      always 0
//   bit  36      mark: below
//   bits 35..16  remote head: BlockOffset of the block that another thread freed last; kNone: none
//   bits 15..0   outstanding: blocks that count as out
//
// A span that nobody owns counts exactly: `outstanding` are its live blocks. So the free that
// brings that to 0 makes it free, without a lock. A span of one block is nobody's from its
// allocation to its free. One of several blocks is abandoned, and nobody's, from when its owner
// gives it up, or ends, until another thread adopts it; its mark tells it from the other kind. A
// thread may hold an abandoned span: then it has it alone, but for frees. One that its thread has
// left as it was has free blocks that nobody has counted, and which count as out: with the first
// free into it it is held and counted, if it is not adopted before.
//
// Words that are not of an owned span:
//
//   all bits 0                        never used, or its heap was destroyed
//   a cache's, free                   emptied while it was that cache's; the remote list stays
//   nobody's, 1 outstanding           a span of one block, whose block is out (kLargeInUse)
//   nobody's, mark                    an abandoned span
//   held                              an abandoned span that nobody has counted
//   held, mark                        either of them while a thread holds it
//   nobody's, free                    emptied: its taker's, in a pool, or the arena's; also what a
//                                     fork's child makes of one that it finds free (kLargeFree)
//   a cache's, free, mark, no head    such a span, freed: a cached large span (cached_of)
//
// (An emptied span may have the mark, too; then it has a head.)
//
// An owned span's word has the mark while another thread is about to claim the span, of which none
// is out then; or, with some out for ever, where the program has damaged it (retire()).
//
// Equation, for a span that is not free: capacity = outstanding + length(remote list) +
// collected, where `collected` are the blocks that an owner has freed, and that were counted when
// the span became nobody's. The program holds
//   nobody's span:  outstanding
//   owned span:     outstanding - blocks on the owner's lists - blocks never carved
//
// There is no ABA problem: every change is a function of the word alone, but for a claim. Other
// changes may overtake a push and bring back the word that it began with; then its link leads to
// the right head block all the same. A claim depends on a byte of the record, too (Stock::kAway),
// so it sets the mark first, and reads the byte while nobody else changes the word.
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
  kOwned = 1,    ///< the owner takes blocks from it, or has used it up
  kNobodys = 2,  ///< nobody's: some of its blocks are out, and `outstanding` says how many
  /// Nobody's, and what its word counts as out may be free. With the mark a thread holds it;
  /// without, it is as its thread has left it, and nobody has counted it.
  kHeld = 3,
};

struct SpanWord {
  std::uint64_t bits = 0;

  static constexpr unsigned kHeadShift = 16;
  static constexpr unsigned kIdentityShift = 38;
  static constexpr unsigned kOwnerShift = 40;
  static constexpr std::uint64_t kMarkBit = std::uint64_t{1} << 36;
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
  constexpr bool is_marked() const { return (bits & kMarkBit) != 0; }
  constexpr SpanState state() const { return static_cast<SpanState>(bits >> kIdentityShift & 3); }
  constexpr CacheNumber owner() const {
    return CacheNumber{static_cast<std::uint32_t>(bits >> kOwnerShift)};
  }
  /// Of several blocks, and nobody's: not held either.
  constexpr bool is_abandoned() const;
  constexpr bool is_uncounted() const;  ///< abandoned, and nobody has counted its free blocks
  constexpr bool is_held() const;       ///< a thread holds it
  constexpr bool is_single() const;     ///< of one block, which is out
  /// Owned, and another thread is about to claim it: only that one changes the word.
  constexpr bool is_being_claimed() const {
    return state() == SpanState::kOwned && is_marked() && outstanding() == 0;
  }
  /// Owner and state together: one comparison answers "is it owned, and by me?".
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
  constexpr SpanWord with_mark(bool on) const { return {on ? bits | kMarkBit : bits & ~kMarkBit}; }
  constexpr SpanWord with_state(SpanState state) const {
    return {(bits & ~(std::uint64_t{3} << kIdentityShift)) | static_cast<std::uint64_t>(state)
                                                                 << kIdentityShift};
  }
  constexpr SpanWord with_owner(CacheNumber owner) const {
    SPANALLOC_ASSERT(owner <= kMaxOwner);
    return {(bits & ((std::uint64_t{1} << kOwnerShift) - 1)) | std::uint64_t{index_of(owner)}
                                                                   << kOwnerShift};
  }
  /// By what is out. (A free word without a head must have no mark: it would seem to be that of a
  /// cached large span.)
  constexpr SpanWord nobodys_or_free() const {
    return outstanding() != 0 ? with_state(SpanState::kNobodys)
                              : with_state(SpanState::kFree).with_mark(false);
  }
  friend constexpr bool operator==(SpanWord, SpanWord) = default;
};

/// Owner of spans of one block, and of those that their thread has abandoned: no cache.
inline constexpr CacheNumber kNobody = SpanWord::kMaxOwner;

constexpr bool SpanWord::is_abandoned() const {
  return owner() == kNobody && is_marked() == (state() == SpanState::kNobodys) &&
         state() != SpanState::kFree;
}
constexpr bool SpanWord::is_uncounted() const {
  return is(kNobody, SpanState::kHeld) && !is_marked();
}
constexpr bool SpanWord::is_held() const {
  return is(kNobody, SpanState::kHeld) && is_marked();
}
constexpr bool SpanWord::is_single() const {
  return is(kNobody, SpanState::kNobodys) && !is_marked();
}

/// The word of a span of one block whose block is out.
inline constexpr SpanWord kLargeInUse = SpanWord::make(kNobody, SpanState::kNobodys, 1);
/// The word of a span of several blocks that begins its life as nobody's, and held by the thread
/// that took it: none of its blocks is out.
inline constexpr SpanWord kNewHeld = SpanWord::make(kNobody, SpanState::kHeld, 0).with_mark(true);
/// The word of a free span that only the thread has which took it.
inline constexpr SpanWord kLargeFree = SpanWord::make(kNobody, SpanState::kFree, 0);
/// The word of a free span that is cached in that record. (No span in a pool or
/// the arena has such a word.)
constexpr SpanWord cached_of(CacheNumber cache) {
  return SpanWord::make(cache, SpanState::kFree, 0).with_mark(true);
}

/// What became of blocks that were freed, or of a span that was given up, or let go.
enum class Freed : std::uint8_t {
  kDone,
  kEmptied,    ///< done, and the span is free and the caller's, who must put it into the pool
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
  /// kEmptied: the span is free, and the caller's.
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
      if (before.state() == SpanState::kNobodys) {
        if (after.outstanding() == 0) {
          after = after.with_state(SpanState::kFree);
          freed = Freed::kEmptied;
        }
      }
      return true;
    });
    if (!change.done) return {Freed::kRefused, change.before};
    return {freed, change.after};
  }
  /// free_batch() of one block of a span that by `word` has an owner, who sees to what follows, or
  /// is nobody's and shown. False: this may be its last block, nobody has counted or somebody holds
  /// it, or the word has changed meanwhile; nothing was freed.
  template <class Link>
  SPANALLOC_INLINE bool free_into_used(SpanWord word, BlockOffset block, Link&& link) {
    const bool is_used = word.state() == SpanState::kOwned || word.state() == SpanState::kNobodys;
    if (SPANALLOC_UNLIKELY(!is_used || word.outstanding() <= 1)) return false;
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
      after = before.with_state(SpanState::kHeld).with_mark(true);
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
  /// Takes the remote list of a held span, whose blocks stay free for the word.
  BlockOffset take_held_remotes() {
    const Change change = change_by([&](SpanWord before, SpanWord& after) {
      SPANALLOC_ASSERT(before.is_held());
      after = before.with_head(BlockOffset::kNone);
      return before.head() != BlockOffset::kNone;
    });
    return change.done ? change.before.head() : BlockOffset::kNone;
  }
  /// Held -> abandoned, by a holder that knows it as counted. `lent`: how many of its free blocks
  /// the holder has taken, which are out from here on. kEmptied: no block is out, and the span is
  /// the caller's.
  Freed let_go(std::uint32_t lent) {
    const Change change = change_by([&](SpanWord before, SpanWord& after) {
      SPANALLOC_ASSERT(before.is_held());
      after = before.with_outstanding(before.outstanding() + lent).nobodys_or_free();
      return true;
    });
    return change.after.state() == SpanState::kFree ? Freed::kEmptied : Freed::kDone;
  }

  // --- By a thread that claims an owned span -----------------------------------------------------

  /// `word`: of an owned span without a block out. False: it has changed, or has the mark. True:
  /// until end_claim() nobody else changes it. (The owner has no block there to free, and leaves a
  /// span that is being claimed as it is.)
  bool begin_claim(SpanWord word) {
    SPANALLOC_ASSERT(word.state() == SpanState::kOwned && word.outstanding() == 0);
    return !word.is_marked() && replace(word, word.with_mark(true));
  }
  /// The span is free, or as it was. False: the program has damaged it meanwhile.
  bool end_claim(SpanWord word, bool claims) {
    return replace(word.with_mark(true), claims ? word.with_state(SpanState::kFree) : word);
  }
  /// In a fork's child: the claimer has vanished.
  SPANALLOC_COLD void forget_claim() {
    if (const SpanWord word = load_relaxed(); word.is_being_claimed()) set(word.with_mark(false));
  }

  // --- By the owner -----------------------------------------------------------

  /// Takes the whole remote list of a span that `owner` owns. None: nobody has freed into it, or it
  /// was claimed, or is being claimed.
  RemoteList take_remotes(CacheNumber owner, std::uint32_t capacity) {
    const Change change = change_by([&](SpanWord before, SpanWord& after) {
      SPANALLOC_ASSERT(!before.is(owner, SpanState::kOwned) || before.outstanding() != capacity ||
                       before.head() == BlockOffset::kNone);
      after = before.with_outstanding(capacity).with_head(BlockOffset::kNone);
      return before.is(owner, SpanState::kOwned) && before.outstanding() != capacity &&
             !before.is_being_claimed();
    });
    if (!change.done) return {};
    return {change.before.head(), capacity - change.before.outstanding()};
  }
  /// Owned -> nobody's, or free if no block is out: counts `count` blocks that the owner has freed,
  /// or never handed out. kRefused: more than are out, or the span is being claimed.
  Outcome count_and_leave(std::uint32_t count) {
    const SpanWord nobodys = SpanWord::make(kNobody, SpanState::kNobodys, 0).with_mark(true);
    const Change change = change_by([&](SpanWord before, SpanWord& after) {
      SPANALLOC_ASSERT(before.state() == SpanState::kOwned);
      if (count > before.outstanding() || before.is_being_claimed()) return false;
      after = SpanWord{nobodys.bits | (before.outstanding() - count)}.with_head(before.head());
      after = after.nobodys_or_free();
      return true;
    });
    if (!change.done) return {Freed::kRefused, change.before};
    const bool emptied = change.after.state() == SpanState::kFree;
    return {emptied ? Freed::kEmptied : Freed::kDone, change.after};
  }
  /// The same of a span that `owner` has away, all of whose blocks but those on the remote list are
  /// out. kRefused: another thread has claimed it, or is about to.
  Outcome leave_away(CacheNumber owner) {
    const Change change = change_by([&](SpanWord before, SpanWord& after) {
      after = before.with_owner(kNobody).with_mark(true).nobodys_or_free();
      return before.is(owner, SpanState::kOwned) && !before.is_being_claimed();
    });
    if (!change.done) return {Freed::kRefused, change.before};
    const bool emptied = change.after.state() == SpanState::kFree;
    return {emptied ? Freed::kEmptied : Freed::kDone, change.after};
  }
  /// Held -> owned: all `capacity` blocks count as out; the remote list is the caller's.
  Change own(CacheNumber owner, std::uint32_t capacity) {
    return change_by([&](SpanWord before, SpanWord& after) {
      after = SpanWord::make(owner, SpanState::kOwned, capacity);
      return before.state() != SpanState::kFree;
    });
  }
  /// Forgets the remote list, if the span is not free and the list begins with `newest`: its
  /// blocks, and all others, count as out. `capacity`: asked for after the word was read, because
  /// the span may live another life meanwhile (acquire: sees the class of that life).
  template <class Capacity>
  Change drop_remotes(BlockOffset newest, Capacity&& capacity) {
    return change_by(
        [&](SpanWord before, SpanWord& after) {
          if (before.state() == SpanState::kFree || before.head() != newest) return false;
          after = before.with_outstanding(capacity()).with_head(BlockOffset::kNone);
          return true;
        },
        bits_.load_acquire());
  }
  /// Owned -> abandoned, with all that is free counted as out, but what others have freed. False:
  /// the span is being claimed.
  bool leave_uncounted() {
    return change_by([&](SpanWord before, SpanWord& after) {
             SPANALLOC_ASSERT(before.state() == SpanState::kOwned);
             // (The bit is set where the program has damaged the span: retire().)
             after = before.with_state(SpanState::kHeld).with_owner(kNobody).with_mark(false);
             return !before.is_being_claimed();
           })
        .done;
  }
  /// Owned -> nobody's, whatever its lists hold.
  void hand_over() {
    change_by([&](SpanWord before, SpanWord& after) {
      after = before.with_state(SpanState::kNobodys).with_owner(kNobody).with_mark(true);
      return true;
    });
  }
  /// Makes `owner` have the span, in this state and without a remote list, with all blocks counted
  /// as out. False: the span is free.
  bool retire(CacheNumber owner, SpanState state, std::uint32_t capacity) {
    return change_by([&](SpanWord before, SpanWord& after) {
             after = SpanWord::make(owner, state, capacity).with_mark(true);
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
