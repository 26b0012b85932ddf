// How a span moves between its LAB's lists, its owners and the pool. The words in span_word.hpp decide; this
// file adds the lists, which are guarded by the owning LAB's lock.
//
// Invariants (checked by the models, argued in docs/concurrency.md):
//  I1  word.state == parked and capacity > 1: the span stands on exactly one list of LAB word.owner, or the
//      thread that is moving it holds that LAB's lock. The change hot -> parked and the linking are one
//      critical section, and so are unlinking and parked -> hot.
//  I2  parked -> free happens once: by the compare-and-swap that brings `outstanding` to 0, or, under the
//  LAB's
//      lock, by one that finds outstanding == unpublished. Whoever succeeded claims the span: it takes the
//      lock, unlinks the span if somebody had it linked, and gives it to the pool. Others leave a free span
//      on a list alone: its claimer is on the way.
//  I3  The owner of a parked span changes only under the locks of both LABs (old before orphanage).
//  I4  A parked span that is empty but unclaimed (outstanding == unpublished > 0, both last freers looked too
//      early) has been listed since its owner last settled it, so it stands on the attention list, or the
//      freer that set the listed bit is about to put it there. The owner's next slow path settles that list.
//  I5  Whoever leaves an orphanage's lock leaves its bit in orphans(class) set, if it has a reusable span of
//      that class.
//
// World supplies what surrounds the protocol, so that models can run it with three spans:
//   static Span& span(number); static LabLists& lab(number); static void put_in_pool(number);
//   static uint32_t capacity(size_class); static uint32_t reuse_outstanding(size_class);
//   static [[noreturn]] void corrupted(number)
//   static bool is_orphanage(lab_number): LABs that own what nobody owns; their numbers are below 64
//   static uint32_t orphanage_of(lab_number): the orphanage for what that LAB leaves behind
//   static Atomic<uint64_t>& orphans(size_class): bit n: orphanage n may have a reusable span
//   static Block* block_of_mark(number, mark)
//   static bool is_mine(lab_number): of the calling thread, in a fork's child
//   static void repair_lists(lab_number): forget(), then relist() for every span of that LAB, and of all
//   others whose lock's owner vanished; these locks it lets go of
//   type Inside: a scope in which the calling thread may have a span that stands nowhere else
//
// Forks (docs/concurrency.md): a child finds every thread but one vanished at any step of this file. Words
// are the truth about spans; a list is only believed while its lock's owner lives, and is made anew from the
// words by the next one who takes the lock of a dead one.
#pragma once

#include <bit>
#include <cstdint>

#include "base/assert.hpp"
#include "engines/virtual_span/standard/span.hpp"
#include "engines/virtual_span/standard/span_word.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc::standard {

// Owner of spans of one block: no LAB. They stand on no list and leave without a lock.
inline constexpr std::uint32_t kNobody = static_cast<std::uint32_t>(SpanWord::kMaxOwner);

/// The lists of one LAB; all fields but the flag are guarded by the lock. Zero-initialisable, never freed.
template <unsigned kClassCount>
struct LabLists {
  SpinLock lock;
  Atomic<std::uint32_t> attention_waiting{0};  ///< shared: 1 when the attention list may hold something
  Plain<std::uint32_t> attention{0};
  Plain<std::uint32_t> full{0};
  Plain<std::uint32_t> floating[kClassCount];
  Atomic<std::uint32_t> reusable[kClassCount];  ///< changed under the lock; a look without it is a hint
  /// Bit c: class c may have spans that are floating or reusable. So that a thread's end need not look at all
  /// of them.
  static constexpr unsigned kWords = (kClassCount + 63) / 64;
  Plain<std::uint64_t> classes[kWords];

  void forget() {
    attention_waiting.store_relaxed(0);
    attention = full = 0;
    for (Plain<std::uint32_t>& head : floating) head = 0;
    for (Atomic<std::uint32_t>& head : reusable) head.store_relaxed(0);
    for (Plain<std::uint64_t>& word : classes) word = 0;
  }
};

template <class World>
class SpanProtocol {
  using Lists = typename World::Lists;

  /// Holds a LAB's lock; its lists are whole.
  class [[nodiscard]] LabGuard {
   public:
    explicit LabGuard(std::uint32_t number) : lock_(World::lab(number).lock) { lock_lab(number); }
    ~LabGuard() { lock_.unlock(); }
    LabGuard(const LabGuard&) = delete;
    LabGuard& operator=(const LabGuard&) = delete;

   private:
    SpinLock& lock_;
  };

 public:
  /// A thread that does not own the span frees a run of `count` blocks, linked up from the one marked
  /// `newest`; link(head) writes the oldest one's link. Returns false, with nothing changed, if the span says
  /// that they cannot all be out.
  template <class Link>
  SPANALLOC_INLINE static bool free_remote(std::uint32_t number, std::uint32_t newest, Link&& link,
                                           std::uint32_t count = 1) {
    const typename World::Inside inside;  // from before the span can be claimed
    Span& span = World::span(number);
    SpanWord after{};
    switch (free_remotely(span.word, newest, count, after, link)) {
      case RemoteFree::kBadFree:
        return false;
      case RemoteFree::kEmptied:
        parked_to_pool(number, after.owner());
        return true;
      case RemoteFree::kListed:
        raise_attention(number, after.owner());
        return true;
      case RemoteFree::kDone:
        // Acquire: with the owner's release store; a hint, confirmed under the lock. After our free the span
        // may be anything already: the record stays readable.
        if (after.state() == SpanState::kParked && after.outstanding() == span.unpublished.load_acquire()) {
          raise_attention(number, after.owner());
        }
        return true;
    }
    return true;
  }

  /// The owner frees `block` into its parked span; `word` is the span's word as it was read while the block
  /// was still out. No lock and no read-modify-write unless the free brings the span to its floor.
  SPANALLOC_INLINE static void free_parked(Span& span, std::uint32_t number, SpanWord word, Block* block) {
    SPANALLOC_ASSERT(word.state() == SpanState::kParked && word.outstanding() != 0);
    const std::uint32_t floor = span.floor;
    const std::uint32_t unpublished = span.unpublished.load_relaxed() + 1;
    link_to(block, span.free_list.load_relaxed());
    // Release: a fork's child that counts the list finds the link.
    span.free_list.store_release(block);
    // Release: who finds the span empty by this count hands its memory on, after all that we did to it. From
    // here on the span may be claimed by another thread and belongs to us only if the protocol says so.
    span.unpublished.store_release(unpublished);
    if (static_cast<std::int32_t>(word.outstanding() - unpublished) <= static_cast<std::int32_t>(floor)) {
      settle_after_local_free(number, word.owner());
    }
  }

  /// Owner, after a local free into a parked span that reached the span's floor.
  [[gnu::noinline]] static void settle_after_local_free(std::uint32_t number, std::uint32_t me) {
    const typename World::Inside inside;
    Lists& lab = World::lab(me);
    {
      LabGuard guard(me);
      // Our own free may have let another thread claim the span: then it is no longer ours to look at.
      const SpanWord now{World::span(number).word.load_acquire()};
      if (now.identity() != SpanWord::identity_of(me, SpanState::kParked)) return;
      if (!fold_and_place(lab, number)) return;
    }
    World::put_in_pool(number);
  }

  /// Owner's slow path: settles every span that other threads pointed out. Cheap when there is none.
  static void settle_attention(std::uint32_t me) {
    Lists& lab = World::lab(me);
    if (lab.attention_waiting.load_relaxed() == 0) return;  // a later slow path will see it
    std::uint32_t emptied = 0;
    {
      LabGuard guard(me);
      lab.attention_waiting.store_relaxed(0);  // set again only under the lock
      for (std::uint32_t number = lab.attention; number != 0;) {
        const std::uint32_t next = World::span(number).next;
        if (fold_and_place(lab, number)) chain(emptied, number);
        number = next;
      }
    }
    put_chain_in_pool(emptied);
  }

  /// Any thread, on a pool miss or trim: claims the spans on a LAB's attention list that are empty already.
  /// Their owner may be asleep. Does not wait for a busy lock. Returns how many it put into the pool.
  static std::uint32_t steal_hidden_empties(std::uint32_t owner) {
    Lists& lab = World::lab(owner);
    if (lab.attention_waiting.load_relaxed() == 0 || !lab.lock.try_lock()) return 0;
    std::uint32_t emptied = 0;
    std::uint32_t count = 0;
    for (std::uint32_t number = lab.attention; number != 0;) {
      const std::uint32_t next = World::span(number).next;
      if (claim_if_hidden_empty(number)) {
        unlink(lab, number);
        chain(emptied, number);
        ++count;
      }
      number = next;
    }
    lab.lock.unlock();
    put_chain_in_pool(emptied);
    return count;
  }

  /// Owner: hot -> parked (or free). `free_blocks` of the span are on the owner's list or were never carved.
  static void hot_to_parked(std::uint32_t number, std::uint32_t me, std::uint32_t free_blocks) {
    Span& span = World::span(number);
    Lists& lab = World::lab(me);
    {
      LabGuard guard(me);
      SPANALLOC_ASSERT(word_of(number).identity() == SpanWord::identity_of(me, SpanState::kHot));
      SPANALLOC_ASSERT(free_blocks <= World::capacity(span.size_class));
      span.unpublished.store_relaxed(free_blocks);  // nobody reads it before the word says parked
      span.list = ListId::kNone;
      if (!fold_and_place(lab, number)) return;
    }
    World::put_in_pool(number);
  }

  /// Takes a reusable span of a class off the owner's list and makes it hot for it. Returns 0 if there is
  /// none; otherwise `remote_head` is the first block of the remote list that came with it. The blocks on
  /// span.free_list and those never carved are the caller's as well.
  static std::uint32_t reusable_to_hot(unsigned size_class, std::uint32_t me, std::uint32_t& remote_head) {
    Lists& lab = World::lab(me);
    if (lab.reusable[size_class].load_relaxed() == 0) return 0;  // our own: nobody else puts one there
    LabGuard guard(me);
    return take_reusable(lab, size_class, me, remote_head);
  }

  /// The same from the orphanages: adoption. Threads that begin and end all the time keep to the orphanage of
  /// their own, and to a busy one of the others they come back when they need it (`wait`): nobody waits there
  /// for a span that the pool may have. What becomes an orphan meanwhile serves the next call.
  static std::uint32_t orphan_to_hot(unsigned size_class, std::uint32_t me, std::uint32_t& remote_head,
                                     bool wait = false) {
    const std::uint32_t home = World::orphanage_of(me);
    if (World::lab(home).reusable[size_class].load_relaxed() != 0) {
      LabGuard guard(home);
      const std::uint32_t number = take_reusable(World::lab(home), size_class, me, remote_head);
      if (number != 0) return number;
    }
    // The home's own bit is left to the others: the next thread to end here would only set it again.
    std::uint64_t holders = World::orphans(size_class).load_relaxed();
    if (!wait) holders &= ~(std::uint64_t{1} << home);
    for (holders = std::rotr(holders, static_cast<int>(home)); holders != 0; holders &= holders - 1) {
      const std::uint32_t from = (home + static_cast<std::uint32_t>(std::countr_zero(holders))) % 64;
      Lists& orphanage = World::lab(from);
      if (wait) {
        lock_lab(from);
      } else if (!orphanage.lock.try_lock()) {
        continue;
      }
      const std::uint32_t number = take_reusable(orphanage, size_class, me, remote_head);
      if (orphanage.reusable[size_class].load_relaxed() == 0) {
        // Relaxed: the bit says nothing but where to look, and the lock orders it with the list (I5).
        World::orphans(size_class).fetch_and_relaxed(~(std::uint64_t{1} << from));
      }
      orphanage.lock.unlock();
      if (number != 0) return number;
    }
    return 0;
  }

  /// The same when memory is out: any span of the owner's with a free block, however few. Those without step
  /// aside, so that the next search does not meet them again: the first block that is freed into one brings
  /// it back, freed by the owner at the floor that is set here, by another thread over the attention list.
  static std::uint32_t floating_to_hot(unsigned size_class, std::uint32_t me, std::uint32_t& remote_head) {
    Lists& lab = World::lab(me);
    LabGuard guard(me);
    const std::uint32_t capacity = World::capacity(size_class);
    for (std::uint32_t number = lab.floating[size_class]; number != 0;) {
      Span& span = World::span(number);
      const std::uint32_t next = span.next;
      const SpanWord word{span.word.load_relaxed()};
      if (word.outstanding() - span.unpublished.load_relaxed() >= capacity) {
        unlink(lab, number);
        span.floor = capacity - 1;
        push(lab, number, ListId::kFull);
      } else if (parked_to_hot(lab, number, size_class, me, remote_head)) {
        return number;
      }
      number = next;
    }
    return 0;
  }

  /// Owner's end: gives every parked span of LAB `me` to its orphanage; empty ones go to the pool.
  static void orphan_all(std::uint32_t me) {
    Lists& lab = World::lab(me);
    const std::uint32_t heir = World::orphanage_of(me);
    SPANALLOC_ASSERT(!World::is_orphanage(me) && World::is_orphanage(heir));
    std::uint32_t emptied = 0;
    {
      LabGuard guard(me);
      LabGuard orphan_guard(heir);
      lab.attention_waiting.store_relaxed(0);
      orphan_list(lab, heir, lab.attention, emptied);
      orphan_list(lab, heir, lab.full, emptied);
      for (unsigned word = 0; word < Lists::kWords; ++word) {
        for (std::uint64_t bits = lab.classes[word]; bits != 0; bits &= bits - 1) {
          const unsigned c = word * 64 + static_cast<unsigned>(std::countr_zero(bits));
          orphan_list(lab, heir, lab.floating[c], emptied);
          orphan_list(lab, heir, lab.reusable[c].load_relaxed(), emptied);
        }
        lab.classes[word] = 0;
      }
      SPANALLOC_ASSERT(only_claimed_are_left(lab));
    }
    put_chain_in_pool(emptied);
  }

  // --- In a fork's child ----------------------------------------------------------------------------------
  // The calling thread is alone, and none of its own calls is in the middle of the LAB concerned.

  /// Takes every span that is free off LAB `owner`'s lists: their claimers did not come along.
  static void unlink_claimed(std::uint32_t owner) {
    Lists& lab = World::lab(owner);
    const auto collect = [&](std::uint32_t number) {
      while (number != 0) {
        Span& span = World::span(number);
        const std::uint32_t next = span.next;
        if (SpanWord{span.word.load_acquire()}.state() == SpanState::kFree) unlink(lab, number);
        number = next;
      }
    };
    LabGuard guard(owner);
    collect(lab.attention);
    collect(lab.full);
    for (const Plain<std::uint32_t>& head : lab.floating) collect(head);
    for (const Atomic<std::uint32_t>& head : lab.reusable) collect(head.load_relaxed());
  }

  /// A span on a list, with the `listed` bit, whose freer may not have come as far as the attention list
  /// (I4). True: it was empty; it is free now, on no list, and the caller's. One of the calling thread's own
  /// is only pointed out to it: it may be in the middle of free_parked(), which nobody else's steps may come
  /// between.
  static bool settle_listed(std::uint32_t number) {
    const std::uint32_t owner = SpanWord{World::span(number).word.load_relaxed()}.owner();
    Lists& lab = World::lab(owner);
    LabGuard guard(owner);
    if (!World::is_mine(owner)) return fold_and_place(lab, number);
    unlink(lab, number);
    push_attention(lab, number);
    return false;
  }

  /// For every span of a LAB whose lists were forgotten, the free ones too: links it up if it belongs there.
  /// What is free in it is counted from its lists: if its owner vanished with the lock, a fold that was cut
  /// short has changed the word and left `unpublished`, or neither. An empty one becomes free, on no list. Of
  /// the calling thread's own spans word and count are right, as it was somebody else who had the lock.
  static void relist(std::uint32_t number) {
    Span& span = World::span(number);
    const SpanWord word{span.word.load_relaxed()};
    const std::uint32_t owner = word.owner();
    span.list = ListId::kNone;
    if (word.state() != SpanState::kParked) return;
    if (World::is_mine(owner)) {
      if (word.listed()) return push_attention(World::lab(owner), number);
      return place(number, word);
    }
    const std::uint32_t capacity = World::capacity(span.size_class);
    std::uint32_t free =
        capacity - span.carved.load_relaxed() + length_of(span.free_list.load_relaxed(), capacity);
    if (word.head() != 0) free += length_of(World::block_of_mark(number, word.head()), capacity);
    if (free > capacity) World::corrupted(number);
    SpanWord after = word.with_outstanding(capacity - free).with_listed(false);
    if (after.outstanding() == 0) after = after.with_state(SpanState::kFree);
    span.word.store_relaxed(after.bits);
    span.unpublished.store_relaxed(0);
    if (after.state() != SpanState::kFree) place(number, after);
  }

  /// Who claimed the span (I2) takes it off its last owner's lists and gives it to the pool.
  [[gnu::noinline]] static void parked_to_pool(std::uint32_t number, std::uint32_t owner) {
    SPANALLOC_ASSERT(word_of(number).state() == SpanState::kFree);  // I2: nobody else may claim it
    // A span of one block is never on a list. The class is still ours to read: the span is claimed.
    if (World::capacity(World::span(number).size_class) > 1) {
      Lists& lab = World::lab(owner);
      LabGuard guard(owner);
      if (World::span(number).list != ListId::kNone) unlink(lab, number);
    }
    World::put_in_pool(number);
  }

 private:
  static void lock_lab(std::uint32_t number) {
    if (World::lab(number).lock.lock() == Locked::kOwnerDied) World::repair_lists(number);
  }
  static SpanWord word_of(std::uint32_t number) { return SpanWord{World::span(number).word.load_relaxed()}; }
  // Lists are changed under their LAB's lock; in a fork's child also for one whose lock's owner vanished.
  static bool may_change(const Lists& lab) { return lab.lock.is_mine() || lab.lock.owner_died(); }
  // Of what an ended LAB had only spans that wait for their claimers are still on its lists (I2).
  static bool only_claimed_are_left(const Lists& lab) {
    const auto claimed = [](std::uint32_t number) {
      while (number != 0 && word_of(number).state() == SpanState::kFree) number = World::span(number).next;
      return number == 0;
    };
    bool all = claimed(lab.attention) && claimed(lab.full);
    for (const Plain<std::uint32_t>& head : lab.floating) all = all && claimed(head);
    for (const Atomic<std::uint32_t>& head : lab.reusable) all = all && claimed(head.load_relaxed());
    return all;
  }

  // Blocks of a list; more than `most` are as good as `most` + 1.
  static std::uint32_t length_of(Block* block, std::uint32_t most) {
    std::uint32_t length = 0;
    for (; block != no_block() && length <= most; block = next_of(block)) ++length;
    return length;
  }

  // Puts a span that a remote free was first to touch before its owner's eyes; or claims it, if it is empty.
  [[gnu::noinline]] static void raise_attention(std::uint32_t number, std::uint32_t owner) {
    Lists& lab = World::lab(owner);
    {
      LabGuard guard(owner);
      Span& span = World::span(number);
      // We no longer hold a block of it: it may have gone anywhere. If it says that it is parked with this
      // LAB then, under this LAB's lock, it is on its lists (I1), in this life or another: both are served.
      const SpanWord now{span.word.load_acquire()};
      if (now.state() != SpanState::kParked || now.owner() != owner || span.list == ListId::kNone) return;
      if (World::is_orphanage(owner)) {
        unlink(lab, number);
        place(number, now);
        return;
      }
      if (!claim_if_hidden_empty(number)) {
        if (span.list != ListId::kAttention) unlink(lab, number);
        push_attention(lab, number);
        return;
      }
      unlink(lab, number);
    }
    World::put_in_pool(number);
  }

  // Under the LAB's lock; unless the span is there already it is on no list.
  static void push_attention(Lists& lab, std::uint32_t number) {
    if (World::span(number).list != ListId::kAttention) push(lab, number, ListId::kAttention);
    lab.attention_waiting.store_relaxed(1);  // the lock orders it
  }

  // Under the owner's lock: outstanding == unpublished means that no block is out, and that stays so: only
  // frees of blocks that are out, and owner's steps under this lock, change either.
  static bool claim_if_hidden_empty(std::uint32_t number) {
    Span& span = World::span(number);
    SPANALLOC_ASSERT(span.list != ListId::kNone);
    SpanWord now{span.word.load_acquire()};
    while (now.state() == SpanState::kParked && now.outstanding() != 0 &&
           now.outstanding() == span.unpublished.load_acquire()) {  // acquire: after the owner's last free
      const SpanWord after = now.with_outstanding(0).with_state(SpanState::kFree);
      if (span.word.compare_exchange_weak_acq_rel(now.bits, after.bits)) return true;
    }
    return false;
  }

  // Under the LAB's lock.
  static std::uint32_t take_reusable(Lists& lab, unsigned size_class, std::uint32_t me,
                                     std::uint32_t& remote_head) {
    for (std::uint32_t number = lab.reusable[size_class].load_relaxed(); number != 0;
         number = World::span(number).next) {
      if (parked_to_hot(lab, number, size_class, me, remote_head)) return number;
    }
    return 0;
  }

  // Under the lock of the LAB on whose lists the span stands. False: it is claimed already.
  static bool parked_to_hot(Lists& lab, std::uint32_t number, unsigned size_class, std::uint32_t me,
                            std::uint32_t& remote_head) {
    Span& span = World::span(number);
    SpanWord before{span.word.load_relaxed()};
    const SpanWord after = SpanWord::make(me, SpanState::kHot, World::capacity(size_class));
    bool taken = false;
    while (before.state() != SpanState::kFree && !taken) {
      // Acquire: links and contents of remotely freed blocks, and what a former owner did to the record.
      taken = span.word.compare_exchange_weak_acq_rel(before.bits, after.bits);
    }
    if (!taken) return false;  // its claimer waits for this lock to unlink it (I2)
    SPANALLOC_ASSERT(before.state() == SpanState::kParked && span.size_class == size_class);  // I1
    unlink(lab, number);
    span.unpublished.store_relaxed(0);  // meaningless while hot
    remote_head = before.head();
    return true;
  }

  // Owner, under its lock: folds its unpublished frees into the word; hot becomes parked on the way. Then the
  // span goes onto the list that its fill asks for. True: it was empty and is claimed and unlinked.
  static bool fold_and_place(Lists& lab, std::uint32_t number) {
    Span& span = World::span(number);
    const std::uint32_t unpublished = span.unpublished.load_relaxed();  // our own
    SpanWord before{span.word.load_relaxed()};
    SpanWord after{};
    do {
      if (before.state() == SpanState::kFree) return false;  // claimed; its claimer waits for this lock
      if (unpublished > before.outstanding()) World::corrupted(number);
      SPANALLOC_ASSERT(before.state() == SpanState::kHot || span.list != ListId::kNone);  // I1
      after = before.with_outstanding(before.outstanding() - unpublished).with_state(SpanState::kParked);
      after = after.with_listed(false);
      if (after.outstanding() == 0) after = after.with_state(SpanState::kFree);
      // Release: a later claimer or adopter sees our lists and record. Acquire: we may be that claimer.
    } while (!span.word.compare_exchange_weak_acq_rel(before.bits, after.bits));
    span.unpublished.store_relaxed(0);  // read by others for decisions only under this lock
    if (span.list != ListId::kNone) unlink(lab, number);
    if (after.state() == SpanState::kFree) return true;
    place(number, after);
    return false;
  }

  // Under the lock of word.owner().
  static void place(std::uint32_t number, SpanWord word) {
    Span& span = World::span(number);
    Lists& lab = World::lab(word.owner());
    const unsigned c = span.size_class;
    SPANALLOC_ASSERT(word.state() == SpanState::kParked && word.outstanding() != 0);
    SPANALLOC_ASSERT(word.outstanding() <= World::capacity(c) && World::capacity(c) > 1);
    const bool orphan = World::is_orphanage(word.owner());
    // Orphans serve whoever needs a block: any free block makes them reusable.
    const std::uint32_t limit = orphan ? World::capacity(c) - 1 : World::reuse_outstanding(c);
    if (word.outstanding() <= limit) {
      span.floor = 0;
      push(lab, number, ListId::kReusable);
      const std::uint64_t bit = std::uint64_t{1} << word.owner() % 64;
      // The look first: most of the time the bit is set, and the line stays shared. Relaxed: as where it is
      // cleared.
      if (orphan && (World::orphans(c).load_relaxed() & bit) == 0) World::orphans(c).fetch_or_relaxed(bit);
    } else {
      span.floor = limit;
      push(lab, number, ListId::kFloating);
    }
  }

  static void orphan_list(Lists& lab, std::uint32_t heir, std::uint32_t head, std::uint32_t& emptied) {
    for (std::uint32_t number = head; number != 0;) {
      Span& span = World::span(number);
      const std::uint32_t next = span.next;
      const std::uint32_t unpublished = span.unpublished.load_relaxed();
      SpanWord before{span.word.load_relaxed()};
      SpanWord after{};
      bool moved = false;
      while (before.state() != SpanState::kFree && !moved) {
        if (unpublished > before.outstanding()) World::corrupted(number);
        after = before.with_outstanding(before.outstanding() - unpublished).with_owner(heir);
        after = after.with_listed(false);
        if (after.outstanding() == 0) after = after.with_state(SpanState::kFree);
        moved = span.word.compare_exchange_weak_acq_rel(before.bits, after.bits);
      }
      if (moved) {  // else: its claimer will unlink it from this LAB's list
        unlink(lab, number);
        span.unpublished.store_relaxed(0);
        if (after.state() == SpanState::kFree) {
          chain(emptied, number);
        } else {
          place(number, after);
        }
      }
      number = next;
    }
  }

  static std::uint32_t head_of(const Lists& lab, ListId list, unsigned size_class) {
    switch (list) {
      case ListId::kReusable:
        return lab.reusable[size_class].load_relaxed();
      case ListId::kFloating:
        return lab.floating[size_class];
      case ListId::kFull:
        return lab.full;
      default:
        return lab.attention;
    }
  }
  static void set_head(Lists& lab, ListId list, unsigned size_class, std::uint32_t number) {
    switch (list) {
      case ListId::kReusable:
        lab.reusable[size_class].store_relaxed(number);
        return note_class(lab, size_class, number);
      case ListId::kFloating:
        lab.floating[size_class] = number;
        return note_class(lab, size_class, number);
      case ListId::kFull:
        lab.full = number;
        return;
      default:
        lab.attention = number;
    }
  }
  static void note_class(Lists& lab, unsigned size_class, std::uint32_t number) {
    Plain<std::uint64_t>& classes = lab.classes[size_class / 64];
    if (number != 0) classes = classes | std::uint64_t{1} << size_class % 64;
  }

  static void push(Lists& lab, std::uint32_t number, ListId list) {
    Span& span = World::span(number);
    const std::uint32_t head = head_of(lab, list, span.size_class);
    SPANALLOC_ASSERT(may_change(lab) && number != 0 && number != head);
    SPANALLOC_ASSERT(span.list == ListId::kNone);  // I1: on one list at most
    span.list = list;
    span.prev = 0;
    span.next = head;
    if (head != 0) World::span(head).prev = number;
    set_head(lab, list, span.size_class, number);
  }

  static void unlink(Lists& lab, std::uint32_t number) {
    Span& span = World::span(number);
    SPANALLOC_ASSERT(may_change(lab) && span.list != ListId::kNone);
    SPANALLOC_ASSERT(span.next == 0 || World::span(span.next).prev == number);
    SPANALLOC_ASSERT(span.prev == 0 ? head_of(lab, span.list, span.size_class) == number
                                    : World::span(span.prev).next == number);
    if (span.next != 0) World::span(span.next).prev = span.prev;
    if (span.prev != 0) {
      World::span(span.prev).next = span.next;
    } else {
      set_head(lab, span.list, span.size_class, span.next);
    }
    span.list = ListId::kNone;
  }

  // Claimed spans collected under a lock, linked through `next`, to be put into the pool after it.
  static void chain(std::uint32_t& first, std::uint32_t number) {
    SPANALLOC_ASSERT(World::span(number).list == ListId::kNone &&
                     word_of(number).state() == SpanState::kFree);
    World::span(number).next = first;
    first = number;
  }
  static void put_chain_in_pool(std::uint32_t number) {
    while (number != 0) {
      const std::uint32_t next = World::span(number).next;
      World::put_in_pool(number);
      number = next;
    }
  }
};

}  // namespace spanalloc::standard
