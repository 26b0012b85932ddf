// The lives of LABs: what a thread takes with its first allocation and gives back at its end.
#pragma once

#include "papers/scalloc/engine/frontend.hpp"

namespace spanalloc::scalloc {

/// The LAB that a thread acts for, while it does: its own, made with its first use; or
/// one that is shared under a lock, for core-local buffers, for a thread past its exit,
/// and when no LAB can be had.
template <class Config>
class [[nodiscard]] Frontend<Config>::LabScope {
 public:
  explicit LabScope(Frontend& thread) {
    if constexpr (!Config::kCoreLocal) {
      if (SPANALLOC_LIKELY(thread.own_lab != nullptr) || thread.acquire_lab()) {
        lab_ = thread.own_lab;
        SPANALLOC_ASSERT(lab_->owner_word() == thread.owner && lab_->hot == &thread.spans);  // O7
        return;
      }
    }
    lock(*thread.heap_, thread.shared_lab());
  }
  LabScope(Heap<Config>& heap, SharedLab& lab) { lock(heap, lab); }
  ~LabScope() {
    if (locked_) lab_->lock.unlock();
  }
  LabScope(const LabScope&) = delete;
  LabScope& operator=(const LabScope&) = delete;
  Lab* operator->() const { return lab_; }
  Lab& operator*() const { return *lab_; }

 private:
  void lock(Heap<Config>& heap, Lab& lab) {
    SPANALLOC_ASSERT(lab.shared);
    lab_ = &lab;
    locked_ = true;
    // Its lists may be half changed, as a vanished thread's own are.
    if (lab.lock.lock() == Locked::kOwnerDied) heap.bury_hot_spans(lab);
  }

  Lab* lab_ = nullptr;
  bool locked_ = false;
};

template <class Config>
bool Frontend<Config>::acquire_lab() {
  SPANALLOC_ASSERT(own_lab == nullptr && owner == kTerminated);
  if (without_lab) return false;
  Lab* taken = heap_->take_lab();
  if (taken == nullptr) return false;
  heap_->open(*taken, spans, heap_->backend_.shard_of(thread_number()));
  refresh_view();
  own_lab = taken;
  owner = taken->owner_word();
  // Last: it may allocate.
  if (heap_->exit_key_.watch_this_thread(this, &Heap<Config>::on_thread_exit)) return true;
  without_lab = true;
  terminate().report_if_any();
  return false;
}

// Nothing is told in the middle: with some sets closed the thread's word owns
// spans that others may adopt.
template <class Config>
Damage Frontend<Config>::terminate() {
  Lab& ending = *own_lab;
  SPANALLOC_ASSERT(without_lab && !ending.shared && ending.owner_word() == owner);
  // First of all: whatever this thread does from here on it does as one without a LAB.
  // It adopts nothing in the name of sets that are closing, and frees into its own spans
  // as into another thread's.
  own_lab = nullptr;
  owner = kTerminated;
  Damage damage;
  for (const ClassId c : kAllClasses) {
    // First the hot span, while the set is open: a thread that finds the set closed may adopt.
    damage.add(give_up_hot(ending, c));
    damage.add(heap_->protocol_.close(ending, c, self()));
  }
  SPANALLOC_ASSERT(spans.are_none());  // O7
  ending.hot = nullptr;
  ending.owner.store_release(kTerminated);
  heap_->labs_.give_back(&ending);
  return damage;
}

template <class Config>
Damage Frontend<Config>::leave() {
  const Inside within(*this);
  without_lab = true;
  return own_lab != nullptr ? terminate() : Damage{};
}

// --- Giving up -----------------------------------------------------------------------------------

// hot -> floating, and on to free or reusable if that is what it is. A damaged list
// is lost with its blocks.
template <class Config>
Damage Frontend<Config>::give_up_hot(Lab& lab, ClassId size_class) {
  HotSpans& hot = *lab.hot;
  Span* span = hot.hot[size_class];
  if (span == nullptr) return {};
  SPANALLOC_ASSERT(span->owner.load_relaxed() == lab.owner_word());  // O7
  SPANALLOC_ASSERT(span->size_class.load_relaxed() == size_class);   // O7
  FreeBlock*& list = hot.list[size_class];
  Damage damage;
  const WalkedList own = walk(span, list, damage);
  const std::uint32_t free = own.count + free_beside_list(span, damage);
  if (own.last != nullptr) {
    own.last->link_to(span->local_list);
    span->local_list = list;
  }
  list = nullptr;
  hot.hot[size_class] = nullptr;
  span->local_free.store_relaxed(free);  // published by the transition
  SpanWord seen = span->load_word();
  SPANALLOC_ASSERT(seen.state() == State::kHot);  // O7
  while (!span->try_mark_floating(seen, free > 0)) {
  }
  damage.add(heap_->protocol_.settle(span, self()));
  return damage;
}

// For the LAB's owner: lets go of its empty hot spans and of what its sets hide.
template <class Config>
bool Frontend<Config>::give_up_empty(Lab& lab) {
  SPANALLOC_ASSERT(lab.shared ? lab.lock.is_mine() : &lab == own_lab);
  bool any = false;
  for (const ClassId c : kAllClasses) {
    heap_->protocol_.examine_suspects(lab, c, self());
    Span* span = lab.hot->hot[c];
    if (span == nullptr) continue;
    if (owned_free(span, lab.hot->list[c]) + span->load_word().count() != span->blocks) continue;
    give_up_hot(lab, c).report_if_any();
    any = true;
  }
  return any;
}

template <class Config>
bool Frontend<Config>::trim() {
  if (!heap_->is_started()) return false;
  const Inside within(*this);
  bool any = false;
  if (own_lab != nullptr) any |= give_up_empty(*own_lab);
  for (unsigned i = 0; i < heap_->shared_labs(); ++i) {
    const LabScope shared(*heap_, heap_->shared_lab(i));
    any |= give_up_empty(*shared);
  }
  any |= heap_->reclaim_everywhere(self());
  return heap_->backend_.purge_pooled() || any;
}

// Makes room for objects outside spans; true if that may have helped. Every object that is refused
// comes here: the walk over all sets, for what two last freers have missed, is not made again for
// a while if it was no use.
template <class Config>
bool Frontend<Config>::give_address_space_back() {
  constexpr std::uint64_t kNoReclaimMs = 100;
  if (!heap_->is_started()) return false;
  const Inside within(*this);
  const std::uint64_t now = os::now_ms();
  // Relaxed: a hint; who misses it walks, or is refused until the time has passed.
  if (now >= heap_->next_reclaim_.load_relaxed() && !heap_->reclaim_everywhere(self()))
    heap_->next_reclaim_.store_relaxed(now + kNoReclaimMs);
  return heap_->backend_.close_pooled();
}

}  // namespace spanalloc::scalloc
