// What threads do to a span that others may be freeing into: push, settle, list, claim, adopt.
//
// `settle` is the heart. It is stateless: it looks at a span, and if the span is idle and empty
// makes it free, or if it ought to be in its owner's set links it there. Each of its effects is one
// compare-and-swap on the word it looked at, so it may be called by anybody, at any time, for a
// span that has long moved on: then it does right by the span's new life, or nothing. Every free
// outside a hot span ends with a look like it.
//
// Why no empty span is lost. Every free ends with a look at B - count - L.
//  - Not mixed: L == 0, count alone decides, and it is in the word: the last push sees it.
//  - Mixed: owner and remote freers write different words, and a last local free and a last remote
//    free can each miss the other (store buffering). So a remote freer that finds the span mixed
//    and unlisted lists it, empty or not. Listed spans are found by the owner's next search of that
//    class, by its exit, by trim, and by any thread that is about to report out of memory; all of
//    these look again.
//  - Unlisted, mixed, and no remote push since `mixed` was set: the owner set it by a
//    read-modify-write on the word, so it has seen every push before, there were none after: its
//    own count is exact.
//
// Which word a transition may expect. A span's class, its owner and whether it is listed hold for
// one life of it, and another thread's last free may end that life at any moment. So what was
// learned of a span is used in one of two ways only:
//  - It was read after a word, and the transition expects that very word. Epochs do not come back:
//    if the word is still the same, what was read is of its epoch. Else the thread looks afresh.
//  - The caller keeps the span from its next life, so a word that is loaded anew is of this life.
//    It holds a block of the span, or owns it while it is hot, or has made it free, or has found it
//    linked in the set whose lock it holds: whoever makes a listed span free takes that lock before
//    the span is pooled.
#pragma once

#include <cstdint>

#include "base/assert.hpp"
#include "base/compiler.hpp"
#include "os/os.hpp"
#include "papers/scalloc/engine/backend.hpp"
#include "papers/scalloc/engine/config.hpp"
#include "papers/scalloc/engine/lab.hpp"
#include "papers/scalloc/engine/span.hpp"

namespace spanalloc::scalloc {

/// More than the threshold's share of the blocks free (section 3.4: "more free
/// blocks than specified").
template <class Config>
constexpr bool is_reusable(std::uint32_t blocks, std::uint32_t live) {
  return live < blocks &&
         std::uint64_t{blocks - live} * 100 > std::uint64_t{blocks} * Config::kReusabilityPercent;
}

/// Who acts: the owner word of a LAB with open sets that cannot terminate during the call, in case
/// an orphan is found, and the caller's core index.
struct Identity {
  OwnerWord adopter;
  unsigned core;
};

/// Spans in the caller's hands alone, chained through their unused set links; and the last damage
/// that was found as they were gathered.
class SpanChain {
 public:
  Damage damage;

  bool is_empty() const { return first_ == nullptr; }
  void push(Span* span) {
    SPANALLOC_ASSERT(span->set_list == SetList::kNone);  // O6
    span->set_next = first_;
    first_ = span;
  }
  Span* pop() {
    Span* span = first_;
    if (span != nullptr) first_ = span->set_next;
    return span;
  }

 private:
  Span* first_ = nullptr;
};

/// A span that was idle and is hot now; its remote list is the caller's.
struct TakenSpan {
  Span* span = nullptr;  ///< nullptr: there was none
  FreeBlock* list = nullptr;
};

template <class Config>
class SpanProtocol {
 public:
  constexpr explicit SpanProtocol(Backend<Config>& backend) : backend_(backend) {}

  /// Remote free: links the block into the remote list. Until this returns the block keeps the span
  /// alive; afterwards the span may belong to anybody.
  void push_remote(Span* span, void* p) {
    auto* block = static_cast<FreeBlock*>(p);
    const std::uint32_t offset = span->offset_of(p);
    SpanWord seen = span->load_word();
    do {
      if (SPANALLOC_UNLIKELY(seen.head_offset() == offset))
        freed_twice(span, block, Begins::kRemoteList);
      if (SPANALLOC_UNLIKELY(seen.count() >= span->blocks))
        os::fatal("more frees than blocks, last of", p);
      block->link_to(span->block_at(seen.head_offset()));
    } while (!span->try_change(seen, seen.pushed(offset)));
    Config::at(Step::kAfterRemotePush, span);
  }

  /// Local free into a span that is not hot. The caller acts as the span's owner.
  void push_local(Span* span, void* p) {
    auto* block = static_cast<FreeBlock*>(p);
    if (SPANALLOC_UNLIKELY(span->local_list == block)) freed_twice(span, block, Begins::kLocalList);
    const std::uint32_t freed = span->local_free.load_relaxed();  // written by the owner alone
    SPANALLOC_ASSERT(freed < span->blocks || span->load_word().state() == State::kLost);  // O1
    if (freed == 0) announce_local_frees(span);
    block->link_to(span->local_list);
    span->local_list = block;
    // Release, and the last access as the owner: whoever counts this block may take the span over.
    span->local_free.store_release(freed + 1);
  }

  /// Cheap test whether settle() could have something to do after a local free.
  static bool wants_settling(const Span* span, std::uint32_t blocks) {
    const SpanWord word = span->load_word();
    const std::uint32_t free = word.count() + span->local_free.load_relaxed();
    return free >= blocks || (!word.listed() && is_reusable<Config>(blocks, blocks - free));
  }

  /// See the top of this file. The caller tells what it finds damaged, and holds nothing then.
  [[nodiscard]] Damage settle(Span* span, const Identity& self) {
    for (;;) {
      SpanWord seen = span->load_word();
      if (!seen.is_idle()) return {};
      // Acquire, after the word: from the same epoch or a later one, and then
      // the compare-and-swap fails.
      const std::uint32_t freed = span->local_free.load_acquire();
      const ClassId size_class = span->size_class.load_acquire();
      const OwnerWord owner = span->owner.load_acquire();
      if (!is_class(size_class)) continue;  // moved on between two loads
      const std::uint32_t blocks = info(size_class).blocks;
      const std::uint32_t free = seen.count() + freed;
      if (free > blocks) {  // O1
        if (span->load_word().bits() != seen.bits() || !lose(span, seen, owner, size_class))
          continue;
        return {"more frees than blocks in the span at", span};
      }
      if (free == blocks && Config::kEagerReturn) {
        Config::at(Step::kBeforeClaim, span);
        Damage damage;
        if (claim(span, seen, owner, size_class, self, damage)) return damage;
        continue;
      }
      if (seen.listed()) return {};
      const bool reusable = free == blocks || is_reusable<Config>(blocks, blocks - free);
      if (!reusable && !(seen.mixed() && seen.count() > 0)) return {};
      Config::at(Step::kBeforeListing, span);
      if (list(span, seen, owner, size_class, reusable ? SetList::kReusable : SetList::kSuspects))
        return {};
      // Refused because the span changed, or because its owner is gone: then it becomes ours.
      adopt(span, owner, size_class, self.adopter);
    }
  }

  /// Makes an idle span free on the word `seen` in which it was found empty, and pools it. False:
  /// it changed. `owner` was read between `seen` and now: if the span is listed, it is so in that
  /// owner's set, because a listed span does not change hands. A damaged one is lost instead.
  bool claim(Span* span, SpanWord seen, OwnerWord owner, ClassId size_class, const Identity& self,
             Damage& damage) {
    const bool listed = seen.listed();
    if (!span->try_mark_free(seen)) return false;
    Config::at(Step::kAfterClaim, span);
    if (listed) {
      SetGuard set(*this, *lab_of(owner), size_class);
      set->unlink(span);  // false: the owner has taken it out already and found it free
    }
    damage = lose_if_damaged(span, seen);
    if (SPANALLOC_LIKELY(damage.what == nullptr)) backend_.put(span, self.core);
    return true;
  }

  /// Takes an idle span out of use for ever, on the word `seen`. False: it changed.
  SPANALLOC_COLD bool lose(Span* span, SpanWord seen, OwnerWord owner, ClassId size_class) {
    const bool listed = seen.listed();
    if (!span->try_mark_lost(seen)) return false;
    if (listed) {
      SetGuard set(*this, *lab_of(owner), size_class);
      set->unlink(span);
    }
    return true;
  }

  /// The same of a span that stands in no set, by its owner if it is hot, or by
  /// who has just made it free.
  SPANALLOC_COLD static void lose(Span* span) {
    SPANALLOC_ASSERT(span->set_list == SetList::kNone);
    SpanWord seen = span->load_word();
    while (!span->try_mark_lost(seen)) {  // other threads free into it
    }
  }

  /// If the span's owner has terminated, makes `adopter` its owner. True if it is so now. The
  /// lock keeps the owner's LAB from starting a new life meanwhile, which might carry the same
  /// 16-bit generation again.
  bool adopt(Span* span, OwnerWord owner, ClassId size_class, OwnerWord adopter) {
    SPANALLOC_ASSERT(adopter != kTerminated);
    if (owner == kTerminated) return false;
    Lab& former = *lab_of(owner);
    // Lives; not worth the lock
    if (former.set(size_class).owner.load_relaxed() == owner) return false;
    SetGuard set(*this, former, size_class);
    if (set->owner.load_relaxed() == owner) return false;
    // A LAB that terminates closes its sets one by one, each after it gave that class's hot span
    // up: only this class's spans are orphans for sure. It takes no spans any more, so this
    // class is of the life adopted.
    if (span->size_class.load_acquire() != size_class) return false;
    OwnerWord expected = owner;
    return span->owner.compare_exchange_strong_acq_rel(expected, adopter);
  }

  /// Empties one class's suspects: each becomes free, reusable, or floating again. For the owner
  /// alone, whose local_free is exact.
  void examine_suspects(Lab& lab, ClassId size_class, const Identity& self) {
    // A missed one waits for the next search
    if (lab.set(size_class).first_suspect() == nullptr) return;
    SpanChain empty;
    {
      SetGuard set(*this, lab, size_class);
      SPANALLOC_ASSERT(set->owner.load_relaxed() == lab.owner_word());  // the owner's own, and open
      while (Span* span = set->first_suspect()) {
        set->unlink(span);
        settle_unlinked(span, size_class, &*set, empty);
      }
    }
    put_chain(empty, self);
  }

  /// Makes every span free that is listed in the set and empty. For any thread: it changes nothing
  /// else. True if there was one.
  bool reclaim_listed(Lab& lab, ClassId size_class, const Identity& self) {
    SpanChain empty;
    {
      SetGuard set(*this, lab, size_class);
      collect_empty(*set, set->first_suspect(), size_class, empty);
      collect_empty(*set, set->first_reusable(), size_class, empty);
    }
    const bool any = !empty.is_empty();
    put_chain(empty, self);
    return any;
  }

  /// reusable -> hot: takes a span out of the set, if there is one.
  TakenSpan take_reusable(Lab& lab, ClassId size_class) {
    SetGuard set(*this, lab, size_class);
    while (Span* span = set->first_reusable()) {
      set->unlink(span);
      if (const TakenSpan taken = mark_hot(span); taken.span != nullptr) return taken;
    }
    return {};
  }

  /// The same for a span in no set: it must be of the class, idle with a free block, and the LAB's,
  /// or an orphan, which becomes the LAB's first. None: it is not. Nothing keeps the span
  /// meanwhile, so each round decides on one word.
  TakenSpan take_idle(Lab& lab, Span* span, ClassId size_class, const Identity& self) {
    for (;;) {
      SpanWord seen = span->load_word();
      if (!seen.is_idle()) return {};
      // Acquire, after the word: from the same epoch or a later one, and then the compare-and-swap
      // fails.
      const std::uint32_t freed = span->local_free.load_acquire();
      const ClassId its_class = span->size_class.load_acquire();
      const OwnerWord owner = span->owner.load_acquire();
      if (its_class != size_class || seen.count() + freed == 0) return {};
      if (owner != lab.owner_word()) {
        if (!adopt(span, owner, size_class, lab.owner_word())) return {};
        continue;
      }
      // The LAB's sets are open, so nobody adopts the span: it stays the LAB's until its life ends,
      // and that changes the word.
      if (seen.listed()) {
        // Another thread has listed it since the LAB's last search. It leaves the set by the set's
        // list, under the lock: by the span alone it might be another life's set.
        examine_suspects(lab, size_class, self);
        if (const TakenSpan taken = take_reusable(lab, size_class); taken.span != nullptr)
          return taken;
        continue;
      }
      Config::at(Step::kBeforeTaking, span);
      FreeBlock* list = span->block_at(seen.head_offset());
      if (span->try_mark_hot(seen)) return {span, list};
    }
  }

  /// Closes a set for good (thread termination): what it held floats on as orphans. The caller
  /// tells what was found damaged.
  [[nodiscard]] Damage close(Lab& lab, ClassId size_class, const Identity& self) {
    SpanChain empty;
    {
      SetGuard set(*this, lab, size_class);
      // Release: an adopter that sees this sees all that the owner wrote into its spans.
      set->owner.store_release(kTerminated);
      while (Span* span = set->first()) {
        set->unlink(span);
        settle_unlinked(span, size_class, nullptr, empty);
      }
    }
    return put_whole(empty, self);
  }

  /// Holds the lock of a LAB's set; its lists are whole.
  class [[nodiscard]] SetGuard {
   public:
    SetGuard(SpanProtocol& protocol, Lab& lab, ClassId size_class)
        : set_(lab.set(size_class)), guard_(set_.lock) {
      if (SPANALLOC_UNLIKELY(guard_.owner_died())) protocol.repair(lab, size_class);
    }
    ReusableSet& operator*() const { return set_; }
    ReusableSet* operator->() const { return &set_; }

   private:
    ReusableSet& set_;
    LockGuard<SpinLock> guard_;
  };

 private:
  enum class Begins : std::uint8_t { kRemoteList, kLocalList };

  // The block begins one of the span's lists, which is damaged if something has written to the
  // block since. Of a hot span, which is another thread's, it is the remote one alone: that ends as
  // with a refill, and its blocks stay out for ever. An idle one goes out of use. (Unless the
  // span's owner has taken the list since: then the block is in its hands, or in the program's, and
  // what is listed now is sound.)
  SPANALLOC_COLD [[noreturn]] void freed_twice(Span* span, const FreeBlock* block, Begins begins) {
    const std::uint32_t offset = span->offset_of(block);
    for (SpanWord seen = span->load_word(); !block->has_link(); seen = span->load_word()) {
      if (begins == Begins::kRemoteList && seen.head_offset() != offset) break;
      if (seen.state() == State::kHot) {
        if (span->try_mark_hot(seen)) break;
        continue;
      }
      if (!seen.is_idle()) break;  // free or lost: nobody uses the list
      const ClassId size_class = span->size_class.load_acquire();
      const OwnerWord owner = span->owner.load_acquire();
      if (is_class(size_class) && lose(span, seen, owner, size_class)) break;
    }
    os::fatal("double free of", block);
  }

  // Of a span that the caller has made free, by the word `before`, and taken out of its set. What
  // was freed twice counts twice: where that is suspected the blocks themselves are counted, which
  // are this thread's alone by now. Where they are not all free the span is lost, and the blocks
  // that are out can be freed.
  static Damage lose_if_damaged(Span* span, SpanWord before) {
    if (SPANALLOC_LIKELY(span->suspected.load_relaxed() == 0)) return {};
    const ListedBlocks listed = count_listed(span, span->block_at(before.head_offset()));
    if (listed.damaged == nullptr && listed.count == span->carved.load_relaxed()) return {};
    lose(span);
    if (listed.damaged != nullptr) {
      return {"free list corrupted (freed twice, or written after free) at", listed.damaged};
    }
    return {"more frees than blocks (double free) in the span at", span};
  }
  static void chain_if_sound(SpanChain& chain, Span* span, SpanWord before) {
    const Damage damage = lose_if_damaged(span, before);
    if (SPANALLOC_LIKELY(damage.what == nullptr)) return chain.push(span);
    chain.damage = damage;
  }

  // In a fork's child, with the lock of a set whose last holder vanished: its lists are made anew
  // from the words. `listed` and the linking are one critical section, so a span with that bit
  // belongs in its owner's set, whether it had come there or not. The child has one thread yet: no
  // span moves on between these looks (heap_fork.hpp). If the set's thread was closing it, it is
  // open again until the burial: a listed span is no orphan.
  void repair(Lab& lab, ClassId size_class) {
    ReusableSet& set = lab.set(size_class);
    set.forget();
    backend_.directory().for_each_span([&](Span* span, Mark mark) {
      if (mark != Mark::of_class(size_class) || lab_of(span->owner.load_relaxed()) != &lab) return;
      span->set_list = SetList::kNone;
      const SpanWord word = span->load_word();
      if (!word.is_idle() || !word.listed()) return;
      set.link(span, word.state() == State::kReusable ? SetList::kReusable : SetList::kSuspects);
    });
    if (set.first() != nullptr) set.owner.store_release(lab.owner_word());
  }

  // What becomes of an idle span that its owner, under its set's lock, has unlinked: free, and on
  // the chain; reusable and linked again, if it is given its set; or floating. Or nothing: another
  // thread's last free has made it free.
  static void settle_unlinked(Span* span, ClassId size_class, ReusableSet* set, SpanChain& empty) {
    SPANALLOC_ASSERT(span->set_list == SetList::kNone);
    const std::uint32_t blocks = info(size_class).blocks;
    SpanWord seen = span->load_word();
    while (seen.is_idle()) {
      const std::uint32_t free = seen.count() + span->local_free.load_relaxed();
      SPANALLOC_ASSERT(free <= blocks);  // O1
      if (free == blocks) {
        if (!span->try_mark_free(seen)) continue;
        return chain_if_sound(empty, span, seen);
      } else if (set != nullptr && is_reusable<Config>(blocks, blocks - free)) {
        if (!span->try_mark_reusable(seen)) continue;
        return set->link(span, SetList::kReusable);
      } else if (span->try_mark_floating(seen, seen.mixed())) {
        return;
      }
    }
  }

  // The owner's first local free of an epoch: from here on remote freers know that
  // count is not everything.
  static void announce_local_frees(Span* span) {
    SpanWord seen = span->load_word();
    while (!span->try_change(seen, seen.with_mixed())) {
    }
  }

  // idle -> hot, for a span that the caller has taken out of the set whose lock it holds. None:
  // another thread's last free has made it free, and will find it unlinked.
  static TakenSpan mark_hot(Span* span) {
    SPANALLOC_ASSERT(span->set_list == SetList::kNone);  // O6
    SpanWord seen = span->load_word();
    while (seen.is_idle()) {
      FreeBlock* list = span->block_at(seen.head_offset());
      if (span->try_mark_hot(seen)) return {span, list};
    }
    return {};
  }

  // Links the span into its owner's set if the word is still `seen` and the owner still lives.
  bool list(Span* span, SpanWord seen, OwnerWord owner, ClassId size_class, SetList where) {
    if (owner == kTerminated) return false;
    SetGuard set(*this, *lab_of(owner), size_class);
    // The set being this owner's, the owner has not terminated, so the span
    // cannot be adopted either.
    if (set->owner.load_relaxed() != owner || span->owner.load_relaxed() != owner) return false;
    const bool done =
        where == SetList::kReusable ? span->try_mark_reusable(seen) : span->try_mark_suspect(seen);
    if (done) set->link(span, where);
    return done;
  }

  // Of the spans of a list from `span` on.
  static void collect_empty(ReusableSet& set, Span* span, ClassId size_class, SpanChain& empty) {
    while (span != nullptr) {
      Span* next = span->set_next;
      SpanWord seen = span->load_word();
      const std::uint32_t freed = span->local_free.load_acquire();  // after the word, as in settle
      if (seen.is_idle() && seen.count() + freed == info(size_class).blocks &&
          span->try_mark_free(seen)) {
        set.unlink(span);
        chain_if_sound(empty, span, seen);
      }
      span = next;
    }
  }

  // Pools spans that were made free under a set's lock.
  Damage put_whole(SpanChain& spans, const Identity& self) {
    while (Span* span = spans.pop()) backend_.put(span, self.core);
    return spans.damage;
  }
  void put_chain(SpanChain& spans, const Identity& self) { put_whole(spans, self).report_if_any(); }

  Backend<Config>& backend_;
};

}  // namespace spanalloc::scalloc
