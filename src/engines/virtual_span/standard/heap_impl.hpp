// Slow paths of Heap; see heap.hpp.
#pragma once

#include "engines/virtual_span/standard/heap.hpp"

namespace spanalloc::standard {

// --- Start ------------------------------------------------------------------------------------------------

SPANALLOC_COLD inline bool Heap::start_slow() {
  // Before anything else: a fork may find another thread in the middle of it. With the first allocation: a
  // library without the constructor's help (static, or an engine in a test) forks too.
  static constinit thread::ForkWatch watch{[](thread::ForkWatch*) { enter_child(); }};
  thread::watch_forks(watch);
  return start_locked();
}

inline bool Heap::start_locked() {
  LockGuard guard(registry_lock_);
  if (started_.load_relaxed() != 0) return true;
  // As the spans of several blocks are aligned, so must the arena be, whatever the page size.
  if (!arena_.start(kGranule << kMaxOrder) || !spans_.start(arena_.capacity())) return false;
  // As many orphanages as threads can end at once on this machine: they must not wait for each other.
  const std::uint32_t orphanages = 1u << min_of(log2_ceil(max_of(os::cpu_count(), 1)), 6);
  // And one LAB a living thread. Under a limit, tables may take 1/256 of it.
  const std::size_t left = os::address_space_left();
  std::size_t labs = 1u << 18;
  if (left != SIZE_MAX) labs = max_of(min_of(labs, left / 256 / sizeof(Lab)), 128);
  labs += orphanages;
  if (!labs_.start(labs) || !labs_.ensure(orphanages) || !spans_.ensure(1)) return false;
  orphanages_ = orphanages;
  end_of_labs_.store_relaxed(orphanages);
  lab_capacity_ = static_cast<std::uint32_t>(labs);
  pool_.set_cores(os::cpu_count());
  decay_ms_ = os::option_number("DECAY_MS", 0, 3600 * 1000, 500);
  next_purge_.store_relaxed(os::now_ms() + decay_ms_ / 2 + 1);
  started_.store_release(1);  // release: pairs with start()
  return true;
}

// --- LABs -------------------------------------------------------------------------------------------------

SPANALLOC_COLD inline Lab* Heap::take_lab() {
  if (!start()) return nullptr;
  LockGuard guard(registry_lock_);
  std::uint32_t number = free_lab_;
  if (number != 0) {
    free_lab_ = labs_[number].next_free;
  } else {
    number = end_of_labs_.load_relaxed();
    if (number >= lab_capacity_ || !labs_.ensure(number + 1)) return nullptr;
    labs_[number].number = number;
    for (Block*& head : labs_[number].head) head = no_block();
    end_of_labs_.store_release(number + 1);  // release: pairs with end_of_labs()
  }
  SPANALLOC_ASSERT(labs_[number].alive.load_relaxed() == 0 && labs_[number].number == number);
  SPANALLOC_ASSERT(number >= orphanages_ && labs_[number].has_no_hot_span());
  labs_[number].alive.store_relaxed(1);
  live_labs_.fetch_add_relaxed(1);
  return &labs_[number];
}

SPANALLOC_COLD inline void Heap::return_lab(Lab* lab) {
  LockGuard guard(registry_lock_);
  SPANALLOC_ASSERT(lab->alive.load_relaxed() == 1 && lab->has_no_hot_span());
  lab->inside.store_relaxed(0);
  lab->alive.store_relaxed(0);
  lab->next_free = free_lab_;
  free_lab_ = lab->number;
  live_labs_.fetch_sub_relaxed(1);
}

// --- Taking spans -----------------------------------------------------------------------------------------

inline std::uint32_t Heap::take_pooled(unsigned c, unsigned core) {
  const unsigned row = kClassTable[c].pool_row;
  const std::uint32_t number = pool_.get_local(row, core, links());
  return number != 0 ? number : pool_.get_from_other_core(row, core, links());
}

inline std::uint32_t Heap::take_open(unsigned c, Reuse reuse) {
  const Arena::Taken taken = arena_.take(kClassTable[c].granules, alignment_of(c), reuse);
  return taken.first == 0 ? 0 : as_span(c, taken.first, taken.zero);
}

inline std::uint32_t Heap::take_warm_or_open(unsigned c, unsigned core) {
  if (const std::uint32_t number = take_open(c, Reuse::kDirtyOnly)) return number;
  if (steal_from_sleeping_labs(kVictimsAMiss) != 0) {
    if (const std::uint32_t number = take_pooled(c, core)) return number;
  }
  return take_open(c, Reuse::kDirtyFirst);
}

inline std::uint32_t Heap::take_span(unsigned c, unsigned core) {
  if (const std::uint32_t number = take_pooled(c, core)) return number;
  purge_by_decay(os::now_ms());
  if (!arena_.was_refused(kClassTable[c].granules, alignment_of(c))) {
    if (const std::uint32_t number = take_warm_or_open(c, core)) return number;
  }
  bool zero = false;
  const std::uint32_t number = take_anyhow(kClassTable[c].granules, alignment_of(c), zero);
  return number == 0 ? 0 : as_span(c, number, zero);
}

inline std::uint32_t Heap::take_large(std::size_t granules, std::size_t alignment, Reuse reuse) {
  purge_by_decay(os::now_ms());
  Arena::Taken taken;
  if (!arena_.was_refused(granules, alignment)) taken = arena_.take(granules, alignment, reuse);
  if (taken.first == 0) taken.first = take_anyhow(granules, alignment, taken.zero);
  return taken.first == 0 ? 0 : as_span(kLargeClass, taken.first, taken.zero);
}

// The arena has no open range of this size: drains the pool into it, then opens more, at last at any price.
// The second time nobody else may be draining, purging or closing: what they hold would be missing.
SPANALLOC_COLD inline std::uint32_t Heap::take_anyhow(std::size_t granules, std::size_t alignment,
                                                      bool& zero) {
  Arena::Taken taken;
  if (!arena_.was_refused(granules, alignment)) {
    if (purge_lock_.try_lock()) {
      drain_pool();
      purge_lock_.unlock();
    }
    taken = arena_.take_growing(granules, alignment, records_reach, Arena::Effort::kGrow);
  }
  if (taken.first == 0 && granules < arena_.capacity() && alignment < arena_.capacity()) {
    LockGuard guard(purge_lock_);
    steal_from_sleeping_labs(UINT32_MAX);
    drain_pool();
    taken = arena_.take_growing(granules, alignment, records_reach, Arena::Effort::kClose);
  }
  zero = taken.zero;
  return taken.first;
}

// Under the arena's lock, before granules below `end` are handed out.
inline bool Heap::records_reach(std::size_t end) {
  if (!spans_.ensure(end)) return false;
  known_end_.store_release(end);  // release: the table is open so far
  return true;
}

// Makes the records of a range from the arena those of a span for class c, its word still "free".
inline std::uint32_t Heap::as_span(unsigned c, std::uint32_t number, bool zero) {
  Span& span = spans_[number];
  SPANALLOC_ASSERT(number != 0 && number < known_granules());
  SPANALLOC_ASSERT(number % alignment_of(c) == 0);
  set_order(number, kClassTable[c].order);
  span.zero = zero;
  return number;
}

inline void Heap::make_single(std::uint32_t number, unsigned c) {
  Span& span = spans_[number];
  SPANALLOC_ASSERT(SpanWord{span.word.load_relaxed()}.state() == SpanState::kFree);
  SPANALLOC_ASSERT(kClassTable[c].blocks == 1);
  span.size_class = static_cast<std::uint8_t>(c);
  span.shown_class.store_relaxed(static_cast<std::uint8_t>(c));
  span.start_magic = 0;
  span.start_limit.store_relaxed(0);
  span.unpublished.store_relaxed(0);
  span.list = ListId::kNone;
  // Release: a stale freer of an earlier life may look at the record under a lock.
  span.word.store_release(SpanWord::make(kNobody, SpanState::kParked, 1).bits);
}

inline void Heap::set_order(std::uint32_t number, unsigned order) {
  for (std::uint32_t i = 0; i < (1u << order); ++i) {
    spans_[number + i].order = static_cast<std::uint8_t>(order);
    // A granule inside a span must not pass for the start of the small span it once was.
    spans_[number + i].start_magic = 0;
    spans_[number + i].start_limit.store_relaxed(0);
  }
}

inline std::uint32_t Heap::move_large(std::uint32_t number, std::size_t granules) {
  // Where warm memory waits, copying into it costs less than many fresh pages behind the moved ones.
  const std::size_t old_granules = granules_of(number);
  if (granules > old_granules + old_granules / 4) {
    if (const Arena::Taken warm = arena_.take(granules, 1, Reuse::kDirtyOnly); warm.first != 0) {
      arena_.give(warm.first);
      return 0;
    }
  }
  // Room behind the target lets the next growth stay in place, where there is some.
  std::uint32_t target = 0;
  if (const Arena::Taken roomy = arena_.take(granules + granules / 4, 1, Reuse::kCleanFirst);
      roomy.first != 0) {
    arena_.give_tail(roomy.first, granules, roomy.zero);
    target = as_span(kLargeClass, roomy.first, false);
  } else {
    target = take_large(granules, 1, Reuse::kCleanFirst);
  }
  if (target == 0 || !arena_.move(number, target, old_granules)) return 0;
  spans_[target].zero = false;
  make_single(target, kLargeClass);
  spans_[number].word.store_release(SpanWord::make(kNobody, SpanState::kFree, 0).bits);
  arena_.give(number, true);
  return target;
}

// --- Returning spans --------------------------------------------------------------------------------------

inline void Heap::put_in_pool(std::uint32_t number) {
  Span& s = spans_[number];
  SPANALLOC_ASSERT(SpanWord{s.word.load_relaxed()}.state() == SpanState::kFree && s.list == ListId::kNone);
  const ClassInfo& info = kClassTable[s.size_class];
  s.zero = false;
  poison(address(number),
         s.size_class == kLargeClass ? granules_of(number) << kGranuleBits : info.virtual_span);
  const Lab* lab = thread_state.lab;
  const unsigned core = core_of(lab == nullptr ? 0 : lab->number);
  // Spans of kLargeClass have no row; nor has one that a thread was resizing when a fork left it behind.
  const bool odd = info.blocks == 1 && granules_of(number) != info.granules;
  if (odd || !pool_.put_bounded(info.pool_row, core, number, info.pool_most, links())) {
    arena_.give(number);
  }
  purge_by_decay(os::now_ms());
}

inline void Heap::drain_pool() {
  for (unsigned row = 0; row < kPoolRows; ++row) {
    for (unsigned core = 0; core < pool_.cores(); ++core) {
      if (pool_.looks_empty(row, core)) continue;  // what this thread knows to be in the pool it sees
      std::uint32_t count = 0;
      for (std::uint32_t number = pool_.take_all(row, core); number != 0; ++count) {
        const std::uint32_t next = spans_[number].pool_link.load_relaxed();  // ours: taken with acquire
        arena_.give(number);
        number = next;
      }
      if (count != 0) pool_.taken(row, core, count);
    }
  }
}

inline std::size_t Heap::purge_all_free() {
  LockGuard guard(purge_lock_);
  drain_pool();
  return arena_.purge(false);
}

// A tick every half decay time: what the pool holds goes down to the arena, what was free there at the last
// tick and still is is purged, and what is free now will be old at the next tick. So dirty memory that nobody
// wants is purged after half the decay time at least and the whole of it at most, if somebody passes by.
inline void Heap::purge_by_decay(std::uint64_t now) {
  if (SPANALLOC_LIKELY(now < next_purge_.load_relaxed())) return;
  if (!purge_lock_.try_lock()) return;  // somebody is at it: another free will see to the rest
  if (now >= next_purge_.load_relaxed()) {
    drain_pool();
    const bool more = arena_.purge(decay_ms_ != 0, kPurgedARound) >= kPurgedARound;
    if (!more) arena_.age();
    // With more to do the next one who comes here goes on.
    next_purge_.store_relaxed(more ? now : now + decay_ms_ / 2 + 1);
  }
  purge_lock_.unlock();
}

SPANALLOC_COLD inline std::uint32_t Heap::steal_from_sleeping_labs(std::uint32_t at_most) {
  const std::uint32_t first = first_lab();
  const std::uint32_t count = end_of_labs() - first;
  const auto looked_at = static_cast<std::uint32_t>(min_of(count, at_most));
  std::uint32_t victim = victims_.next.fetch_add_relaxed(looked_at);
  std::uint32_t stolen = 0;
  for (std::uint32_t i = 0; i < looked_at; ++i)
    stolen += Protocol::steal_hidden_empties(first + victim++ % count);
  return stolen;
}

// --- Fork -------------------------------------------------------------------------------------------------

// The stores are made in this order, as far as a fork's child can tell: what follows the first two begins
// with a compare-and-swap that releases them, or with a lock or a hold that says the same; the last is a
// release.
InsideHeap::InsideHeap() : lab_(thread_state.lab), outer_(0) {
  if (SPANALLOC_LIKELY(lab_ != nullptr)) {
    outer_ = lab_->inside.load_relaxed();
    lab_->inside.store_relaxed(1);
  } else {
    outer_ = thread_state.inside_without_lab.load_relaxed();
    thread_state.inside_without_lab.store_relaxed(1);
    Heap::inside_without_lab_.fetch_add_acq_rel(1);
  }
}

InsideHeap::~InsideHeap() {
  if (SPANALLOC_LIKELY(lab_ != nullptr)) {
    // A LAB that was given back meanwhile may be somebody else's.
    if (SPANALLOC_LIKELY(lab_ == thread_state.lab)) lab_->inside.store_release(outer_);
  } else {
    Heap::inside_without_lab_.fetch_sub_acq_rel(1);
    thread_state.inside_without_lab.store_release(outer_);
  }
  if (SPANALLOC_UNLIKELY(Heap::recovery_is_due_.load_relaxed() != 0) && outer_ == 0 &&
      thread_state.inside_without_lab.load_relaxed() == 0) {
    Heap::recover_in_child();
  }
}

SPANALLOC_COLD inline void Heap::enter_child() {
  if (!started()) {
    registry_lock_.abandon_if_owner_died();
    return;
  }
  recovery_is_due_.store_relaxed(1);
  const Lab* lab = thread_state.lab;
  const bool interrupted = thread_state.inside_without_lab.load_relaxed() != 0 ||
                           (lab != nullptr && lab->inside.load_relaxed() != 0);
  if (!interrupted) recover_in_child();
}

// The calling thread is alone and in no call of its own. Costs what the vanished threads had: their LABs, and
// where one of them was inside a call, a walk over the records for what it had in its hands.
SPANALLOC_COLD inline void Heap::recover_in_child() {
  // A signal handler that forks meanwhile leaves its child's recovery to this one, which goes on in that
  // child: there was no second thread to lose.
  Atomic<std::uint32_t>& inside = thread_state.inside_without_lab;
  while (recovery_is_due_.load_relaxed() != 0) {
    inside.store_relaxed(1);
    recovery_is_due_.store_relaxed(0);
    put_right();
    inside.store_release(0);
  }
}

SPANALLOC_COLD inline void Heap::put_right() {
  const std::uint32_t survivor = thread_state.lab == nullptr ? 0 : thread_state.lab->number;
  const bool cut_short = vanished_threads_were_inside(survivor);
  // Nothing that these two guard can be half changed in a way that matters: the list of unused LABs is made
  // anew below, purging is the arena's affair.
  for (SpinLock* lock : {&registry_lock_, &purge_lock_}) {
    if (lock->owner_died()) lock->reset();
  }
  arena_.recover_lock();
  if (cut_short) find_what_vanished_threads_had(survivor);
  free_lab_ = 0;
  live_labs_.store_relaxed(survivor != 0 ? 1 : 0);
  for (std::uint32_t number = first_lab(); number < end_of_labs(); ++number) {
    if (number == survivor) continue;
    Lab& lab = labs_[number];
    if (lab.alive.load_relaxed() != 0) bury_vanished_thread(lab);
    lab.next_free = free_lab_;
    free_lab_ = number;
  }
  lists_repaired_ = false;
}

inline bool Heap::vanished_threads_were_inside(std::uint32_t survivor) {
  bool inside = lists_repaired_ || inside_without_lab_.load_relaxed() != 0 || arena_.someone_is_inside();
  inside_without_lab_.store_relaxed(0);
  for (std::uint32_t number = 0; number < end_of_labs(); ++number) {
    Lab& lab = labs_[number];
    inside = inside || lab.lock.owner_died() || (number != survivor && lab.inside.load_relaxed() != 0);
    lab.inside.store_relaxed(0);
  }
  return inside;
}

SPANALLOC_COLD inline void Heap::repair_lists(std::uint32_t owner) {
  // One pass over the records serves every LAB whose lock's owner vanished.
  for (std::uint32_t number = 0; number < end_of_labs(); ++number) {
    Lab& lab = labs_[number];
    lab.torn = number == owner || lab.lock.owner_died();
    if (lab.torn) lab.forget();
  }
  const std::size_t end = known_granules();
  for (std::size_t number = 1; number < end; ++number) {
    // Most records have never been used. Spans of one block have no LAB. Free ones still name the LAB that
    // they were in: whoever has claimed one and waits for this lock must not find it on the lists as they
    // were.
    const SpanWord word{spans_[number].word.load_relaxed()};
    if (word.bits == 0 || word.owner() == kNobody || !labs_[word.owner()].torn) continue;
    Protocol::relist(static_cast<std::uint32_t>(number));
  }
  for (std::uint32_t number = 0; number < end_of_labs(); ++number) {
    if (labs_[number].torn && number != owner) labs_[number].lock.reset();
  }
  lists_repaired_ = true;
}

// Claimed spans whose claimers vanished come off their lists. Spans that vanished threads had in their hands
// are in no stack of the pool: it is emptied, and every range whose record says "free" is the arena's again.
SPANALLOC_COLD inline void Heap::find_what_vanished_threads_had(std::uint32_t survivor) {
  for (std::uint32_t number = 0; number < end_of_labs(); ++number) Protocol::unlink_claimed(number);
  for (unsigned row = 0; row < kPoolRows; ++row) {
    for (unsigned core = 0; core < pool_.cores(); ++core) pool_.forget_all(row, core);
  }
  arena_.recover_in_child();
  arena_.walk([survivor](std::uint32_t number, std::size_t granules, bool free) {
    // Taken by a thread that vanished before the range got a record.
    if (free || number + granules > known_granules()) return;
    Span& s = spans_[number];
    const SpanWord word{s.word.load_relaxed()};
    if (word.state() == SpanState::kHot && word.owner() != survivor) {
      lose_hot_span(number);
      // What stands on no list is a span of one block, or lost by an earlier fork.
    } else if (word.state() == SpanState::kFree ||
               (word.listed() && s.list != ListId::kNone && Protocol::settle_listed(number))) {
      arena_.give(number);
    }
  });
}

// Its lists were in its thread's own memory, in whatever state: what is on them is lost, so the span never
// becomes empty. Frees into it still work: an orphanage owns it, on no list.
inline void Heap::lose_hot_span(std::uint32_t number) {
  Span& s = spans_[number];
  const SpanWord word{s.word.load_relaxed()};  // this is the only thread
  s.word.store_relaxed(word.with_state(SpanState::kParked).with_owner(kOrphanageOfForks).bits);
  s.list = ListId::kNone;
  lost_to_fork_.fetch_add_relaxed(1);
}

inline void Heap::bury_vanished_thread(Lab& lab) {
  for (Atomic<std::uint32_t>& hot : lab.hot) {
    const std::uint32_t number = hot.load_relaxed();
    hot.store_relaxed(0);
    // Not if it was found among what vanished threads had, or if its thread was just about to leave it.
    if (number == 0) continue;
    const SpanWord word{spans_[number].word.load_relaxed()};
    if (word.identity() == SpanWord::identity_of(lab.number, SpanState::kHot)) lose_hot_span(number);
  }
  for (std::uint64_t& classes : lab.hot_classes) classes = 0;
  for (Block*& head : lab.head) head = no_block();
  Protocol::orphan_all(lab.number);
  lab.alive.store_relaxed(0);
}

}  // namespace spanalloc::standard
