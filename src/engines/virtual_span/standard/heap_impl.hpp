// Slow paths of Heap; see heap.hpp.
#pragma once

#include "engines/virtual_span/standard/heap.hpp"

namespace spanalloc::standard {

// --- Start ------------------------------------------------------------------------------------------------

SPANALLOC_COLD inline bool Heap::start_slow() {
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

inline std::uint32_t Heap::take_from(Pool& pool, unsigned order, unsigned core) {
  std::uint32_t number = pool.get_local(order, core, links());
  if (number == 0) number = pool.get_from_other_core(order, core, links());
  for (unsigned larger = order + 1; number == 0 && larger <= kMaxOrder; ++larger) {
    number = pool.get_local(larger, core, links());
    if (number == 0) number = pool.get_from_other_core(larger, core, links());
    if (number != 0) split(pool, number, larger, order, core);
  }
  return number;
}

// Halves a span until its first part has the order wanted; the other halves go to the pool.
inline void Heap::split(Pool& pool, std::uint32_t number, unsigned from, unsigned to, unsigned core) {
  const bool zero = spans_[number].zero;
  const std::uint64_t freed_at = spans_[number].freed_at;
  while (from > to) {
    --from;
    const std::uint32_t upper = number + (1u << from);
    set_order(upper, from);
    spans_[upper].zero = zero;
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
  if (const std::uint32_t number = take_from(dirty_, order, core)) return number;
  if (const std::uint32_t number = take_from(zero_, order, core)) return number;
  if (steal_from_sleeping_labs(kVictimsAMiss) != 0) {
    if (const std::uint32_t number = take_from(dirty_, order, core)) return number;
  }
  const auto from_pools = [&] {
    const std::uint32_t number = take_from(dirty_, order, core);
    return number != 0 ? number : take_from(zero_, order, core);
  };
  if (merge_free_spans(false)) {
    if (const std::uint32_t number = from_pools()) return number;
  }
  if (const std::uint32_t number = take_fresh(order)) return number;
  steal_from_sleeping_labs(UINT32_MAX);
  merge_free_spans(true);
  return from_pools();
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
                      spans_[buddy].mark == kMarkHeld && spans_[buddy].order == order;
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

// True if any two spans became one.
SPANALLOC_COLD inline bool Heap::merge_free_spans(bool at_any_cost) {
  if (!at_any_cost && fresh_since_merge_.load_relaxed() < merge_pays_after_.load_relaxed()) return false;
  LockGuard guard(merge_lock_);
  std::uint32_t held[kOrders] = {};
  std::size_t granules = 0;
  for (unsigned order = 0; order < kOrders; ++order) {
    for (unsigned core = 0; core < dirty_.cores(); ++core) {
      for (Pool* pool : {&dirty_, &zero_}) {
        for (std::uint32_t number = pool->take_all(order, core); number != 0;
             number = spans_[number].pool_link.load_relaxed()) {
          Span& s = spans_[number];
          s.mark = kMarkHeld;
          ((order & 1) != 0 ? s.next : s.prev) = held[order];
          held[order] = number;
          granules += std::size_t{1} << order;
        }
      }
    }
  }
  bool any = false;
  std::uint32_t kept = 0;
  std::uint32_t merged = 0;
  for (unsigned order = 0; order < kOrders; ++order) {
    // What was merged into this order joins what was of this order.
    while (merged != 0) {
      std::uint32_t& link = (order & 1) != 0 ? spans_[merged].next : spans_[merged].prev;
      const std::uint32_t next = link;
      link = held[order];
      held[order] = merged;
      merged = next;
      any = true;
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
  return any;
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

// Takes one stack apart; young spans go back in their order, old ones are purged.
inline std::size_t Heap::purge_stack(unsigned order, unsigned core, std::uint64_t deadline) {
  if (dirty_.looks_empty(order, core)) return 0;
  std::size_t bytes = 0;
  std::uint32_t first_kept = 0;
  std::uint32_t last_kept = 0;
  for (std::uint32_t number = dirty_.take_all(order, core); number != 0;) {
    const std::uint32_t next = spans_[number].pool_link.load_relaxed();  // ours: taken with acquire
    if (spans_[number].freed_at < deadline && purge_span(number)) {
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

inline std::size_t Heap::purge_free_before(std::uint64_t deadline) {
  std::size_t bytes = 0;
  for (unsigned order = 0; order < kOrders; ++order) {
    for (unsigned core = 0; core < dirty_.cores(); ++core) bytes += purge_stack(order, core, deadline);
  }
  return bytes;
}

inline void Heap::purge_by_decay(std::uint64_t now) {
  std::uint64_t due = next_purge_.load_relaxed();
  if (SPANALLOC_LIKELY(now < due)) return;
  // One thread wins the round; a loser's failure means that somebody else is at it.
  if (!next_purge_.compare_exchange_strong_acq_rel(due, now + decay_ms_ / 2 + 1)) return;
  if (due != 0 && now >= decay_ms_) purge_free_before(now - decay_ms_);
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

// Order: merging, registry, LABs by number, orphanage, arena, large objects: the order in which anyone nests
// them.
inline void Heap::lock_for_fork() {
  merge_lock_.lock();
  registry_lock_.lock();
  for (std::uint32_t number = 1; number <= labs_used_; ++number) labs_[number].lock.lock();
  if (started()) labs_[kOrphanage].lock.lock();
  arena_.lock_for_fork();
  large_.lock_for_fork();
}

inline void Heap::unlock_in_parent() {
  large_.unlock_after_fork_in_parent();
  arena_.unlock_after_fork();
  if (started()) labs_[kOrphanage].lock.unlock();
  for (std::uint32_t number = 1; number <= labs_used_; ++number) labs_[number].lock.unlock();
  registry_lock_.unlock();
  merge_lock_.unlock();
}

inline void Heap::recover_in_child(std::uint32_t survivor) {
  large_.reset_after_fork_in_child();
  arena_.unlock_after_fork();
  if (started()) labs_[kOrphanage].lock.unlock();
  for (std::uint32_t number = 1; number <= labs_used_; ++number) labs_[number].lock.unlock();
  registry_lock_.unlock();
  merge_lock_.unlock();
  const std::uint32_t labs = lab_count();
  if (live_labs() == (survivor != 0 ? 1u : 0u)) return;  // no other thread was in the heap
  // Whoever claimed a span and waited for a lock to unlink it is gone.
  for (std::uint32_t number = 0; number <= labs; ++number) Protocol::claimed_to_pool(number, kClasses);
  // Hot spans of the vanished: their lists were in their threads' own memory, in whatever state. What is on
  // them is lost, so these spans never become empty. Frees into them still work: the orphanage owns them, on
  // no list. All records are walked: a span may be hot by its word and not yet, or no more, by its LAB.
  for (std::size_t number = 1; number < known_granules(); ++number) {
    Span& s = spans_[number];
    const SpanWord word{s.word.load_relaxed()};  // this is the only thread
    if (word.state() != SpanState::kHot || word.owner() == survivor) continue;
    s.word.store_relaxed(word.with_state(SpanState::kParked).with_owner(kOrphanage).bits);
    s.list = ListId::kNone;
    lost_to_fork_.fetch_add_relaxed(1);
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
