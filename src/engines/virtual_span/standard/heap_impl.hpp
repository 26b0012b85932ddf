// Slow paths of Heap; see heap.hpp.
#pragma once

#include "engines/virtual_span/standard/heap.hpp"

namespace spanalloc::standard {

// --- Start ------------------------------------------------------------------------------------------------

SPANALLOC_COLD inline bool Heap::start_slow() {
  if (!start_locked()) return false;
  // With the first allocation: a library without the constructor's help (static, or an engine in a test)
  // forks too.
  static constinit Atomic<std::uint32_t> registered{0};
  if (registered.exchange_acq_rel(1) == 0) {
    thread::register_fork_handlers(
        [] { lock_for_fork(); }, [] { unlock_in_parent(); },
        [] { recover_in_child(thread_state.lab == nullptr ? 0 : thread_state.lab->number); });
  }
  return true;
}

inline bool Heap::start_locked() {
  LockGuard guard(registry_lock_);
  if (started_.load_relaxed() != 0) return true;
  if (!arena_.start() || !spans_.start(arena_.capacity())) return false;
  // One LAB a living thread. Under a limit, tables may take 1/256 of it.
  const std::size_t left = os::address_space_left();
  std::size_t labs = 1u << 18;
  if (left != SIZE_MAX) labs = max_of(min_of(labs, left / 256 / sizeof(Lab)), 128);
  if (!labs_.start(labs) || !labs_.ensure(1) || !spans_.ensure(1)) return false;
  lab_capacity_ = static_cast<std::uint32_t>(labs);
  const unsigned cores = os::cpu_count();
  dirty_.set_cores(cores);
  zero_.set_cores(cores);
  decay_ms_ = os::option_number("DECAY_MS", 0, 3600 * 1000, 500);
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
    if (labs_used_ + 1 >= lab_capacity_ || !labs_.ensure(labs_used_ + 2)) return nullptr;
    number = ++labs_used_;
    labs_[number].number = number;
    for (Block*& head : labs_[number].head) head = no_block();
  }
  labs_[number].alive.store_relaxed(1);
  live_labs_.fetch_add_relaxed(1);
  return &labs_[number];
}

SPANALLOC_COLD inline void Heap::return_lab(Lab* lab) {
  LockGuard guard(registry_lock_);
  lab->alive.store_relaxed(0);
  lab->next_free = free_lab_;
  free_lab_ = lab->number;
  live_labs_.fetch_sub_relaxed(1);
}

// --- Pool -------------------------------------------------------------------------------------------------

inline std::uint32_t Heap::take_exact(Pool& pool, unsigned order, unsigned core) {
  const std::uint32_t number = pool.get_local(order, core, links());
  return number != 0 ? number : pool.get_from_other_core(order, core, links());
}

// Under walk_lock_: the smallest larger span there is, split.
inline std::uint32_t Heap::take_larger(Pool& pool, unsigned order, unsigned core) {
  for (unsigned larger = order + 1; larger <= kMaxOrder; ++larger) {
    const std::uint32_t number = take_exact(pool, larger, core);
    if (number == 0) continue;
    split(pool, number, larger, order, core);
    return number;
  }
  return 0;
}

inline bool Heap::may_hold_larger(const Pool& pool, unsigned order) {
  for (unsigned larger = order + 1; larger <= kMaxOrder; ++larger) {
    for (unsigned core = 0; core < pool.cores(); ++core) {
      if (!pool.looks_empty(larger, core)) return true;
    }
  }
  return false;
}

// What was closed is opened again; 0, the span back in the pool, when that is refused.
inline std::uint32_t Heap::reopened(std::uint32_t number, unsigned order, unsigned core) {
  if (number == 0 || SPANALLOC_LIKELY(!spans_[number].closed)) return number;
  if (arena_.reopen(number, order)) {
    spans_[number].closed = false;
    return number;
  }
  zero_.put(order, core, number, links());
  return 0;
}

inline std::uint32_t Heap::take_pooled(unsigned order, unsigned core) {
  if (const std::uint32_t number = take_exact(dirty_, order, core)) return number;
  if (may_hold_larger(dirty_, order)) {
    LockGuard guard(walk_lock_);
    if (const std::uint32_t number = take_larger(dirty_, order, core)) return number;
  }
  if (const std::uint32_t number = take_exact(zero_, order, core)) return reopened(number, order, core);
  if (may_hold_larger(zero_, order)) {
    LockGuard guard(walk_lock_);
    if (const std::uint32_t number = take_larger(zero_, order, core)) return reopened(number, order, core);
  }
  return 0;
}

// Merges at any price and takes its span before another walk can hide it.
inline std::uint32_t Heap::take_merged(unsigned order, unsigned core) {
  LockGuard guard(walk_lock_);
  merge_free_spans();
  for (Pool* pool : {&dirty_, &zero_}) {
    std::uint32_t number = take_exact(*pool, order, core);
    if (number == 0) number = take_larger(*pool, order, core);
    if (number != 0) return reopened(number, order, core);
  }
  return 0;
}

// Under walk_lock_: halves a span until its first part has the order wanted; the other halves go to the pool.
inline void Heap::split(Pool& pool, std::uint32_t number, unsigned from, unsigned to, unsigned core) {
  const bool zero = spans_[number].zero;
  const std::uint64_t freed_at = spans_[number].freed_at;
  while (from > to) {
    --from;
    const std::uint32_t upper = number + (1u << from);
    set_order(upper, from);
    spans_[upper].zero = zero;
    spans_[upper].closed = spans_[number].closed;
    spans_[upper].freed_at = freed_at;
    pool.put(from, core, upper, links());
  }
  set_order(number, to);
}

inline void Heap::set_order(std::uint32_t number, unsigned order) {
  for (std::uint32_t i = 0; i < (1u << order); ++i) {
    spans_[number + i].order = static_cast<std::uint8_t>(order);
    spans_[number + i].exists = true;
    // A granule inside a span must not pass for the start of the small span it once was.
    spans_[number + i].start_magic = spans_[number + i].start_limit = 0;
  }
}

SPANALLOC_COLD inline std::uint32_t Heap::take_fresh(unsigned order) {
  const std::size_t count = std::size_t{1} << order;
  LockGuard guard(registry_lock_);
  // Records first: a range without records would be lost. Alignment skips less than `count` granules.
  if (!spans_.ensure(min_of(arena_.limit() + 2 * count, arena_.capacity()))) return 0;
  const std::uint32_t number = arena_.allocate(order);
  if (number == 0) return 0;
  const std::size_t end = number + count;
  // Further on only behind a foreign mapping (see BumpArena). Without memory for its records the range is
  // lost.
  if (!spans_.ensure(end)) return 0;
  if (end > known_end_.load_relaxed()) known_end_.store_release(end);  // release: the table is open so far
  set_order(number, order);
  spans_[number].zero = true;
  fresh_since_merge_.fetch_add_relaxed(count);
  return number;
}

inline std::uint32_t Heap::take_span(unsigned order, unsigned core) {
  if (const std::uint32_t number = take_pooled(order, core)) return number;
  if (steal_from_sleeping_labs(kVictimsAMiss) != 0) {
    if (const std::uint32_t number = take_pooled(order, core)) return number;
  }
  if (fresh_since_merge_.load_relaxed() >= merge_pays_after_.load_relaxed()) {
    if (const std::uint32_t number = take_merged(order, core)) return number;
  }
  if (const std::uint32_t number = take_fresh(order)) return number;
  steal_from_sleeping_labs(UINT32_MAX);
  if (const std::uint32_t number = take_merged(order, core)) return number;
  close_free_spans();  // or another thread has, just now: either way there may be room
  return take_fresh(order);
}

SPANALLOC_COLD inline void Heap::close_free_spans() {
  if (!started()) return;
  LockGuard guard(walk_lock_);
  for_each_stack([&](Pool& pool, unsigned order, unsigned core) {
    for (std::uint32_t number = pool.take_all(order, core); number != 0;) {
      Span& s = spans_[number];
      const std::uint32_t next = s.pool_link.load_relaxed();  // ours: taken with acquire
      if (!s.closed && arena_.close(number, order)) s.closed = s.zero = true;
      (s.zero ? zero_ : dirty_).put(order, core, number, links());
      number = next;
    }
  });
}

// --- Merging ----------------------------------------------------------------------------------------------

// Buddies among the free spans of one order become spans of the next: returned as a list (through next or
// prev, by the parity of their order); what finds no buddy goes to `kept` (through pool_link). The caller
// holds them all: their mark says so, and no other thread writes the mark.
inline std::uint32_t Heap::merge_buddies(std::uint32_t list, unsigned order, std::uint32_t& kept) {
  std::uint32_t merged = 0;
  while (list != 0) {
    const std::uint32_t number = list;
    Span& s = spans_[number];
    list = (order & 1) != 0 ? s.next : s.prev;
    if (s.mark != kMarkHeld || s.order != order) continue;  // merged already, as somebody's buddy
    const std::uint32_t buddy = number ^ (1u << order);
    const bool both = order < kMaxOrder && buddy < known_end_.load_relaxed() &&
                      spans_[buddy].mark == kMarkHeld && spans_[buddy].order == order &&
                      spans_[buddy].closed == s.closed;
    if (!both) {
      s.pool_link.store_relaxed(kept);
      kept = number;
      continue;
    }
    const std::uint32_t lower = number & ~(1u << order);
    const std::uint32_t upper = number | (1u << order);
    spans_[lower].zero = spans_[lower].zero && spans_[upper].zero;
    spans_[lower].freed_at = max_of(spans_[lower].freed_at, spans_[upper].freed_at);
    spans_[upper].mark = 0;
    set_order(lower, order + 1);
    ((order & 1) != 0 ? spans_[lower].prev : spans_[lower].next) = merged;
    merged = lower;
  }
  return merged;
}

// Under walk_lock_.
SPANALLOC_COLD inline void Heap::merge_free_spans() {
  std::uint32_t held[kOrders] = {};
  std::size_t granules = 0;
  for_each_stack([&](Pool& pool, unsigned order, unsigned core) {
    for (std::uint32_t number = pool.take_all(order, core); number != 0;
         number = spans_[number].pool_link.load_relaxed()) {
      Span& s = spans_[number];
      s.mark = kMarkHeld;
      ((order & 1) != 0 ? s.next : s.prev) = held[order];
      held[order] = number;
      granules += std::size_t{1} << order;
    }
  });
  std::uint32_t kept = 0;
  std::uint32_t merged = 0;
  for (unsigned order = 0; order < kOrders; ++order) {
    // What was merged into this order joins what was of this order.
    while (merged != 0) {
      Span& s = spans_[merged];
      const std::uint32_t next = (order & 1) != 0 ? s.next : s.prev;
      ((order & 1) != 0 ? s.next : s.prev) = held[order];
      held[order] = merged;
      merged = next;
    }
    merged = merge_buddies(held[order], order, kept);
  }
  while (kept != 0) {
    Span& s = spans_[kept];
    const std::uint32_t next = s.pool_link.load_relaxed();
    s.mark = 0;
    // What cannot grow further goes down to the page source, if it takes ranges back.
    if (s.order == kMaxOrder && arena_.free(kept, kMaxOrder, s.zero)) {
      for (std::uint32_t i = 0; i < (1u << kMaxOrder); ++i) spans_[kept + i].exists = false;
    } else {
      (s.zero ? zero_ : dirty_).put(s.order, kept % dirty_.cores(), kept, links());
    }
    kept = next;
  }
  fresh_since_merge_.store_relaxed(0);
  merge_pays_after_.store_relaxed(max_of(std::size_t{1} << kMaxOrder, granules / 4));
}

inline void Heap::put_in_pool(std::uint32_t number) {
  Span& s = spans_[number];
  const std::uint64_t now = os::now_ms();
  s.zero = false;
  s.freed_at = now;
  poison(address(number), kGranule << s.order);
  const Lab* lab = thread_state.lab;
  dirty_.put(s.order, core_of(lab == nullptr ? 0 : lab->number), number, links());
  purge_by_decay(now);
}

inline bool Heap::purge_span(std::uint32_t number) {
  Span& s = spans_[number];
  if (!os::purge(address(number), kGranule << s.order)) return false;
  s.zero = true;
  return true;
}

// Under walk_lock_: takes one stack apart; young spans go back in their order, old ones are purged, `budget`
// of them at most.
inline std::size_t Heap::purge_stack(unsigned order, unsigned core, std::uint64_t deadline,
                                     std::size_t& budget) {
  std::size_t bytes = 0;
  std::uint32_t first_kept = 0;
  std::uint32_t last_kept = 0;
  for (std::uint32_t number = dirty_.take_all(order, core); number != 0;) {
    const std::uint32_t next = spans_[number].pool_link.load_relaxed();  // ours: taken with acquire
    if (budget > 0 && spans_[number].freed_at < deadline && purge_span(number)) {
      --budget;
      zero_.put(order, core, number, links());
      bytes += kGranule << order;
    } else {
      if (first_kept == 0) {
        first_kept = number;
      } else {
        spans_[last_kept].pool_link.store_relaxed(number);
      }
      last_kept = number;
    }
    number = next;
  }
  if (first_kept != 0) dirty_.put_chain(order, core, first_kept, last_kept, links());
  return bytes;
}

// Under walk_lock_.
inline std::size_t Heap::purge_free_before(std::uint64_t deadline, std::size_t& budget) {
  std::size_t bytes = 0;
  for (unsigned order = 0; order < kOrders; ++order) {
    for (unsigned core = 0; core < dirty_.cores() && budget > 0; ++core) {
      if (!dirty_.looks_empty(order, core)) bytes += purge_stack(order, core, deadline, budget);
    }
  }
  return bytes;
}

inline std::size_t Heap::purge_all_free() {
  LockGuard guard(walk_lock_);
  std::size_t budget = SIZE_MAX;
  return purge_free_before(UINT64_MAX, budget);
}

inline void Heap::purge_by_decay(std::uint64_t now) {
  if (SPANALLOC_LIKELY(now < next_purge_.load_relaxed())) return;
  if (!walk_lock_.try_lock()) return;  // somebody is at the pools: another free will see to it
  const std::uint64_t due = next_purge_.load_relaxed();
  if (now >= due) {
    std::size_t budget = kPurgesARound;
    if (due != 0 && now >= decay_ms_) purge_free_before(now - decay_ms_, budget);
    // With the budget spent there is more to do: the next free goes on.
    next_purge_.store_relaxed(budget == 0 ? now : now + decay_ms_ / 2 + 1);
  }
  walk_lock_.unlock();
}

SPANALLOC_COLD inline std::uint32_t Heap::steal_from_sleeping_labs(std::uint32_t at_most) {
  const std::uint32_t count = lab_count();
  std::uint32_t stolen = 0;
  for (std::uint32_t i = 0; i < count && i < at_most; ++i) {
    stolen += Protocol::steal_hidden_empties(next_victim_.fetch_add_relaxed(1) % count + 1);
  }
  return stolen;
}

// --- Fork -------------------------------------------------------------------------------------------------

// Order: walks, registry, LABs by number, orphanage, arena, large objects: the order in which anyone nests
// them.
inline void Heap::lock_for_fork() {
  single_threaded_at_fork_ = thread::process_is_single_threaded();
  walk_lock_.lock();
  registry_lock_.lock();
  for (std::uint32_t number = 1; number <= labs_used_; ++number) labs_[number].lock.lock();
  if (started()) labs_[kOrphanage].lock.lock();
  arena_.lock_for_fork();
  large_.lock_for_fork();
  SpinLock::begin_fork();
}

inline void Heap::unlock_in_parent() {
  SpinLock::end_fork();
  large_.unlock_after_fork_in_parent();
  arena_.unlock_after_fork();
  if (started()) labs_[kOrphanage].lock.unlock();
  for (std::uint32_t number = 1; number <= labs_used_; ++number) labs_[number].lock.unlock();
  registry_lock_.unlock();
  walk_lock_.unlock();
}

inline void Heap::recover_in_child(std::uint32_t survivor) {
  SpinLock::end_fork();
  large_.reset_after_fork_in_child();
  arena_.unlock_after_fork();
  if (started()) labs_[kOrphanage].lock.unlock();
  for (std::uint32_t number = 1; number <= labs_used_; ++number) labs_[number].lock.unlock();
  registry_lock_.unlock();
  walk_lock_.unlock();
  if (single_threaded_at_fork_) return;
  const std::uint32_t labs = lab_count();
  // Whoever claimed a span and waited for a lock to unlink it is gone.
  for (std::uint32_t number = 0; number <= labs; ++number) Protocol::unlink_claimed(number, kClasses);
  // Spans that vanished threads had in their hands are in no stack: the pools are filled anew from the
  // records.
  for_each_stack([](Pool& pool, unsigned order, unsigned core) { pool.take_all(order, core); });
  for (std::size_t n = 1; n < known_granules();) {
    Span& s = spans_[n];
    const auto number = static_cast<std::uint32_t>(n);
    n += s.exists ? std::size_t{1} << s.order : 1;
    if (!s.exists) continue;
    const SpanWord word{s.word.load_relaxed()};  // this is the only thread
    if (word.state() == SpanState::kFree) {
      (s.zero ? zero_ : dirty_).put(s.order, number % dirty_.cores(), number, links());
    } else if (word.state() == SpanState::kHot && word.owner() != survivor) {
      // Its lists were in its thread's own memory, in whatever state: what is on them is lost, so the span
      // never becomes empty. Frees into it still work: the orphanage owns it, on no list.
      s.word.store_relaxed(word.with_state(SpanState::kParked).with_owner(kOrphanage).bits);
      s.list = ListId::kNone;
      lost_to_fork_.fetch_add_relaxed(1);
    }
  }
  for (std::uint32_t number = 1; number <= labs; ++number) {
    Lab& gone = labs_[number];
    if (number == survivor || gone.alive.load_relaxed() == 0) continue;
    for (Atomic<std::uint32_t>& hot : gone.hot) hot.store_relaxed(0);
    for (Block*& head : gone.head) head = no_block();
    Protocol::orphan_all(number, kClasses);
    return_lab(&gone);
  }
}

}  // namespace spanalloc::standard
