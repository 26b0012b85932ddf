// What threads do to a span that others may be freeing into: push, settle, list, claim, adopt.
//
// `settle` is the heart. It is stateless: it looks at a span, and if the span is idle and empty makes it
// free, or if it ought to be in its owner's set links it there. Each of its effects is one compare-and-swap
// on the word it looked at, so it may be called by anybody, at any time, for a span that has long moved on:
// then it does right by the span's new life, or nothing. Every free outside a hot span ends with a look like
// it.
//
// Why no empty span is lost. Every free ends with a look at B - count - L.
//  - Not mixed: L == 0, count alone decides, and it is in the word: the last push sees it.
//  - Mixed: owner and remote freers write different words, and a last local free and a last remote free can
//    each miss the other (store buffering). So a remote freer that finds the span mixed and unlisted lists
//    it, empty or not. Listed spans are found by the owner's next search of that class, by its exit, by trim,
//    and by any thread that is about to report out of memory; all of these look again.
//  - Unlisted, mixed, and no remote push since `mixed` was set: the owner set it by a read-modify-write on
//  the
//    word, so it has seen every push before, there were none after: its own count is exact.
#pragma once

#include <cstdint>

#include "engines/virtual_span/oopsla15/backend.hpp"
#include "engines/virtual_span/oopsla15/config.hpp"
#include "engines/virtual_span/oopsla15/lab.hpp"
#include "engines/virtual_span/oopsla15/span.hpp"
#include "os/os.hpp"

namespace spanalloc::oopsla15 {

/// More than the threshold's share of the blocks free (section 3.4: "more free blocks than specified").
template <class Config>
constexpr bool is_reusable(std::uint32_t blocks, std::uint32_t live) {
  return live < blocks &&
         std::uint64_t{blocks - live} * 100 > std::uint64_t{blocks} * Config::kReusabilityPercent;
}

/// Who acts: the owner word of a LAB with open sets that cannot terminate during the call, in case an orphan
/// is found, and the caller's core index.
struct Identity {
  OwnerWord adopter;
  unsigned core;
};

template <class Config>
class SpanProtocol {
 public:
  constexpr explicit SpanProtocol(Backend<Config>& backend) : backend_(backend) {}

  /// Remote free: links the block into the remote list. Until this returns the block keeps the span alive;
  /// afterwards the span may belong to anybody.
  static void push_remote(Span* span, void* p) {
    auto* block = static_cast<FreeBlock*>(p);
    const std::uint32_t offset = span->offset_of(p);
    SpanWord seen = span->load_word();
    do {
      if (SPANALLOC_UNLIKELY(seen.head_offset() == offset)) os::fatal("double free of", p);
      if (SPANALLOC_UNLIKELY(seen.count() >= span->blocks)) os::fatal("more frees than blocks, last of", p);
      block->next = span->block_at(seen.head_offset());
    } while (!span->try_change(seen, seen.pushed(offset)));
    Config::at(Step::kAfterRemotePush, span);
  }

  /// Local free into a span that is not hot. The caller acts as the span's owner.
  static void push_local(Span* span, void* p) {
    auto* block = static_cast<FreeBlock*>(p);
    if (SPANALLOC_UNLIKELY(span->local_list == block)) os::fatal("double free of", p);
    const std::uint32_t freed = span->local_free.load_relaxed();  // written by the owner alone
    if (freed == 0) announce_local_frees(span);
    block->next = span->local_list;
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

  /// See the top of this file.
  void settle(Span* span, const Identity& self) {
    for (;;) {
      SpanWord seen = span->load_word();
      if (!seen.is_idle()) return;
      // Acquire, after the word: from the same epoch or a later one, and then the compare-and-swap fails.
      const std::uint32_t freed = span->local_free.load_acquire();
      const std::uint32_t mark = span->size_class.load_acquire();
      const OwnerWord owner = span->owner.load_acquire();
      if (mark == 0 || mark >= kClasses) continue;  // moved on between two loads
      const std::uint32_t blocks = kSizeClasses[mark].blocks;
      const std::uint32_t free = seen.count() + freed;
      if (free > blocks) {
        if (span->load_word().bits() != seen.bits()) continue;
        os::fatal("more frees than blocks in the span at", span);
      }
      if (free == blocks && Config::kEagerReturn) {
        Config::at(Step::kBeforeClaim, span);
        if (claim(span, seen, owner, mark, self)) return;
        continue;
      }
      if (seen.listed()) return;
      const bool reusable = free == blocks || is_reusable<Config>(blocks, blocks - free);
      if (!reusable && !(seen.mixed() && seen.count() > 0)) return;
      Config::at(Step::kBeforeListing, span);
      if (list(span, seen, owner, mark, reusable)) return;
      // Refused because the span changed, or because its owner is gone: then it becomes ours.
      adopt(span, owner, mark, self.adopter);
    }
  }

  /// Makes an idle span free on the word `seen` in which it was found empty, and pools it. False: it changed.
  /// `owner` was read between `seen` and now: if the span is listed, it is so in that owner's set, because a
  /// listed span does not change hands.
  bool claim(Span* span, SpanWord& seen, OwnerWord owner, unsigned size_class, const Identity& self) {
    const bool listed = seen.listed();
    if (!span->try_mark_free(seen)) return false;
    Config::at(Step::kAfterClaim, span);
    if (listed) {
      ReusableSet& set = lab_of(owner)->sets[size_class];
      SetGuard guard(*this, *lab_of(owner), size_class);
      set.unlink(span);  // false: the owner has taken it out already and found it free
    }
    backend_.put(span, self.core);
    return true;
  }

  /// If the span's owner has terminated, makes `adopter` its owner. True if it is so now. The lock keeps the
  /// owner's LAB from starting a new life meanwhile, which might carry the same 16-bit generation again.
  bool adopt(Span* span, OwnerWord owner, unsigned size_class, OwnerWord adopter) {
    if (owner == kTerminated) return false;
    ReusableSet& set = lab_of(owner)->sets[size_class];
    if (set.owner.load_relaxed() == owner) return false;  // lives; not worth the lock
    SetGuard guard(*this, *lab_of(owner), size_class);
    if (set.owner.load_relaxed() == owner) return false;
    // A LAB that terminates closes its sets one by one, each after it gave that class's hot span up: only
    // this class's spans are orphans for sure. It takes no spans any more, so this class is of the life
    // adopted.
    if (span->size_class.load_acquire() != size_class) return false;
    OwnerWord expected = owner;
    return span->owner.compare_exchange_strong_acq_rel(expected, adopter);
  }

  /// Empties one class's suspects: each becomes free, reusable, or floating again. For the owner alone, whose
  /// local_free is exact.
  void examine_suspects(Lab& lab, unsigned size_class, const Identity& self) {
    ReusableSet& set = lab.sets[size_class];
    if (set.has_suspects.load_relaxed() == 0) return;  // a missed one waits for the next search
    const std::uint32_t blocks = kSizeClasses[size_class].blocks;
    Span* empty = nullptr;
    {
      SetGuard guard(*this, lab, size_class);
      while (Span* span = set.suspects.first()) {
        set.unlink(span);
        SpanWord seen = span->load_word();
        while (seen.is_idle()) {
          const std::uint32_t free = seen.count() + span->local_free.load_relaxed();
          if (free == blocks) {
            if (!span->try_mark_free(seen)) continue;
            span->set_next = empty;
            empty = span;
          } else if (is_reusable<Config>(blocks, blocks - free)) {
            if (!span->try_mark_reusable(seen)) continue;
            set.link(span, false);
          } else if (!span->try_mark_floating(seen, seen.mixed())) {
            continue;
          }
          break;
        }
      }
    }
    put_chain(empty, self);
  }

  /// Makes every span free that is listed in the set and empty. For any thread: it changes nothing else.
  bool reclaim_listed(Lab& lab, unsigned size_class, const Identity& self) {
    ReusableSet& set = lab.sets[size_class];
    Span* empty = nullptr;
    {
      SetGuard guard(*this, lab, size_class);
      collect_empty(set, set.suspects.first(), kSizeClasses[size_class].blocks, empty);
      collect_empty(set, set.reusable.first(), kSizeClasses[size_class].blocks, empty);
    }
    put_chain(empty, self);
    return empty != nullptr;
  }

  /// reusable -> hot: takes a span out of the set; its remote list goes to *list. nullptr: none there.
  Span* take_reusable(Lab& lab, unsigned size_class, FreeBlock** list) {
    ReusableSet& set = lab.sets[size_class];
    SetGuard guard(*this, lab, size_class);
    while (Span* span = set.reusable.first()) {
      set.unlink(span);
      if (mark_hot(span, list)) return span;
    }
    return nullptr;
  }

  /// The same for an idle span of the LAB that may be in no set. False: it is free by now.
  bool take_idle(Lab& lab, Span* span, unsigned size_class, FreeBlock** list) {
    ReusableSet& set = lab.sets[size_class];
    SetGuard guard(*this, lab, size_class);  // whoever would list the span is kept out until it is hot
    set.unlink(span);
    return mark_hot(span, list);
  }

  /// Closes a set for good (thread termination): what it held floats on as orphans.
  void close(Lab& lab, unsigned size_class, const Identity& self) {
    ReusableSet& set = lab.sets[size_class];
    const std::uint32_t blocks = kSizeClasses[size_class].blocks;
    Span* empty = nullptr;
    {
      SetGuard guard(*this, lab, size_class);
      // Release: an adopter that sees this sees all that the owner wrote into its spans.
      set.owner.store_release(kTerminated);
      for (Span* span; (span = next_listed(set)) != nullptr;) {
        set.unlink(span);
        SpanWord seen = span->load_word();
        while (seen.is_idle()) {
          if (seen.count() + span->local_free.load_relaxed() == blocks) {
            if (!span->try_mark_free(seen)) continue;
            span->set_next = empty;
            empty = span;
          } else if (!span->try_mark_floating(seen, seen.mixed())) {
            continue;
          }
          break;
        }
      }
    }
    put_chain(empty, self);
  }

  /// Holds the lock of a LAB's set; its lists are whole.
  class [[nodiscard]] SetGuard {
   public:
    SetGuard(SpanProtocol& protocol, Lab& lab, unsigned size_class) : guard_(lab.sets[size_class].lock) {
      if (SPANALLOC_UNLIKELY(guard_.owner_died())) protocol.repair(lab, size_class);
    }

   private:
    LockGuard guard_;
  };

 private:
  // In a fork's child, with the lock of a set whose last holder vanished: its lists are made anew from the
  // words. `listed` and the linking are one critical section, so a span with that bit belongs in its owner's
  // set, whether it had come there or not.
  void repair(Lab& lab, unsigned size_class) {
    ReusableSet& set = lab.sets[size_class];
    set.forget();
    const Directory& directory = backend_.directory();
    const std::size_t limit = directory.limit.load_acquire();
    for (std::size_t granule = 0; granule < limit; ++granule) {
      if (directory.mark(granule) != size_class) continue;
      Span* span = directory.span(granule);
      if (lab_of(span->owner.load_relaxed()) != &lab) continue;
      span->in_reusable = span->in_suspects = false;
      const SpanWord word = span->load_word();
      if (word.is_idle() && word.listed()) set.link(span, word.state() != State::kReusable);
    }
  }

  static Span* next_listed(const ReusableSet& set) {
    return set.suspects.first() != nullptr ? set.suspects.first() : set.reusable.first();
  }

  // The owner's first local free of an epoch: from here on remote freers know that count is not everything.
  static void announce_local_frees(Span* span) {
    SpanWord seen = span->load_word();
    while (!span->try_change(seen, seen.with_mixed())) {
    }
  }

  // idle -> hot, under the set's lock and with the span unlinked. False: another thread's last free has made
  // it free, and will find it unlinked.
  static bool mark_hot(Span* span, FreeBlock** list) {
    SpanWord seen = span->load_word();
    while (seen.is_idle()) {
      const std::uint32_t head = seen.head_offset();
      if (!span->try_mark_hot(seen)) continue;
      *list = span->block_at(head);
      return true;
    }
    return false;
  }

  // Links the span into its owner's set if the word is still `seen` and the owner still lives.
  bool list(Span* span, SpanWord& seen, OwnerWord owner, unsigned size_class, bool reusable) {
    if (owner == kTerminated) return false;
    ReusableSet& set = lab_of(owner)->sets[size_class];
    SetGuard guard(*this, *lab_of(owner), size_class);
    // The set being this owner's, the owner has not terminated, so the span cannot be adopted either.
    if (set.owner.load_relaxed() != owner || span->owner.load_relaxed() != owner) return false;
    if (!(reusable ? span->try_mark_reusable(seen) : span->try_mark_suspect(seen))) return false;
    set.link(span, !reusable);
    return true;
  }

  static void collect_empty(ReusableSet& set, Span* span, std::uint32_t blocks, Span*& empty) {
    while (span != nullptr) {
      Span* next = span->set_next;
      SpanWord seen = span->load_word();
      const std::uint32_t freed = span->local_free.load_acquire();  // after the word, as in settle
      if (seen.is_idle() && seen.count() + freed == blocks && span->try_mark_free(seen)) {
        set.unlink(span);
        span->set_next = empty;
        empty = span;
      }
      span = next;
    }
  }

  // Pools spans that were made free under a set's lock, chained through their now unused set links.
  void put_chain(Span* span, const Identity& self) {
    while (span != nullptr) {
      Span* next = span->set_next;
      backend_.put(span, self.core);
      span = next;
    }
  }

  Backend<Config>& backend_;
};

}  // namespace spanalloc::oopsla15
