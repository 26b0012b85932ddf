// A heap in a fork's child: what vanished threads were in the middle of is put right.
//
// A set whose lock's owner died is made anew while the child has one thread. Beyond that their LABs
// stay as they are, as those of threads that sleep, wherever these were: what others do with a span
// they do by its word. They are terminated by the first call that comes into a slow path, of
// whatever thread. A child that executes another program, or ends, does without: each page that it
// writes to is one that the kernel must copy. So nothing else is written to these LABs; the calling
// thread's own says that its thread has come along (Lab::forks).
#pragma once

#include "papers/scalloc/engine/frontend.hpp"
#include "papers/scalloc/engine/frontend_thread.hpp"
#include "papers/scalloc/engine/thread_frontends.hpp"

namespace spanalloc::scalloc {

// First of all: puts the heap right, or leaves that to the end of the call that the fork has
// interrupted. A fork takes no lock (sync/spin_lock.hpp).
template <class Config>
void Heap<Config>::in_forked_child(thread::ForkWatch* watch) {
  Heap& heap = *static_cast<Watch*>(watch)->heap;
  heap.large_.enter_child();
  heap.backend_.enter_child();
  heap.labs_.enter_child();
  heap.threads_.enter_child();
  heap.labs_.for_each([](Lab& lab) {
    lab.lock.abandon_if_owner_died();
    for (ReusableSet& set : lab.sets) set.lock.abandon_if_owner_died();
  });
  // Shared LABs that a vanished thread was opening are not among these yet. Their sets are empty.
  const bool is_half_started = !heap.is_started() && heap.room_ != nullptr;
  for (unsigned core = 0; is_half_started && core < heap.shared_labs(); ++core) {
    for (ReusableSet& set : heap.shared_lab(core).sets) {
      if (set.lock.owner_died()) set.lock.reset();
    }
  }
  heap.recovery_is_due_.store_relaxed(kRecoveryIsDue);
  if (beginning_in.load_relaxed() == &heap) return;  // at the end of begin_thread() then
  Thread* self = heap.find_thread_(heap);
  Thread none(heap);  // for a thread that has nothing in this heap
  if (self == nullptr) self = &none;
  if (!self->is_inside()) heap.recover_in_child(*self);
}

// Before a misuse is reported: wherever the calling thread is, it is outside then. It is found
// where what locks guard is whole.
template <class Config>
void Heap<Config>::leave_all(thread::ForkWatch* watch) {
  Heap& heap = *static_cast<Watch*>(watch)->heap;
  if (beginning_in.load_relaxed() == &heap) beginning_in.store_relaxed(nullptr);
  heap.labs_.for_each([](Lab& lab) {
    lab.lock.unlock_if_mine();
    for (ReusableSet& set : lab.sets) set.lock.unlock_if_mine();
  });
  if (Thread* self = heap.find_thread_(heap); self != nullptr) self->inside.leave(false);
  if (!heap.burial_lock_.is_mine()) return;
  // The burial is cut short: somebody else makes an end of it.
  heap.burial_lock_.unlock();
  std::uint32_t nothing = 0;
  heap.recovery_is_due_.compare_exchange_strong_acq_rel(nothing, kBurialIsDue);
}

// For the line that reports a misuse. The header of a free span may not be in memory.
template <class Config>
SPANALLOC_COLD bool Heap<Config>::describe(thread::ForkWatch* watch, const void* p,
                                           os::AddressFacts& out) {
  constexpr const char* kStates[] = {"expected", "free", "hot", "floating", "reusable", "lost"};
  const Directory& directory = static_cast<Watch*>(watch)->heap->backend_.directory();
  const Mark mark = directory.mark_of(p);
  if (mark.is_nothing()) return false;
  const Span* const span = span_at(p);
  out.range = "span";
  out.range_number = index_of(directory.number_of(span));
  out.range_at = span->address();
  out.state = mark.is_free() ? "free" : nullptr;
  if (!mark.is_class()) return true;
  const SizeClass& its_class = kSizeClasses[index_of(mark.size_class())];
  const auto state = static_cast<std::size_t>(span->load_word().state());
  if (state < sizeof kStates / sizeof *kStates) out.state = kStates[state];
  const std::size_t offset = span->offset_of(p) - std::size_t{span->first_block};
  if (offset >= std::size_t{its_class.block_size} * its_class.blocks) return true;
  out.block = address_of(p) - offset % its_class.block_size;
  out.block_bytes = its_class.block_size;
  return true;
}

// The calling thread is alone, and in no call.
template <class Config>
void Heap<Config>::recover_in_child(Thread& self) {
  // A signal handler that forks meanwhile leaves its child's recovery to this one, which goes on in
  // that child: there was no second thread to lose.
  while (recovery_is_due_.load_relaxed() == kRecoveryIsDue) {
    const bool outer = self.inside.enter();
    recovery_is_due_.store_relaxed(0);
    put_right(self);
    self.inside.leave(outer);
  }
}

// At the end of a slow path, the outermost one.
template <class Config>
void Heap<Config>::after_fork(Thread& self) {
  if (recovery_is_due_.load_relaxed() == kBurialIsDue) {
    const bool outer = self.inside.enter();
    bury_vanished_threads();
    self.inside.leave(outer);
  }
  recover_in_child(self);
}

template <class Config>
void Heap<Config>::put_right(Thread& self) {
  for (SpinLock* lock : {static_cast<SpinLock*>(&start_lock_), &burial_lock_}) {
    if (lock->owner_died()) lock->reset();
  }
  threads_.recover_in_child([&](FrontendRecord<Config>& record) {
    if (&record == &self) return false;
    if (record.is_inside()) record.inside.leave(false);
    return true;
  });
  backend_.recover_in_child();  // a vanished thread may have held its lock to start it
  if (started_.load_relaxed() == 0) return;
  if (self.own_lab != nullptr) self.own_lab->forks.store_relaxed(forks_ + 1);
  ++forks_;
  bool any_left = false;
  labs_.for_each([&](Lab& lab) {
    any_left = any_left || has_vanished(lab);
    for (const ClassId c : kAllClasses) {
      // At once: which spans belong in the set is known while no other thread can move them on.
      if (!lab.set(c).lock.owner_died()) continue;
      const typename Protocol::SetGuard repaired(protocol_, lab, c);
    }
    if (lab.shared && lab.lock.owner_died()) {
      typename Thread::LabScope repaired(*this, static_cast<SharedLab&>(lab));
    }
  });
  labs_.recover_in_child(
      [&](const Lab& lab) { return !lab.shared && &lab != self.own_lab && !has_begun(lab); });
  // Unless a signal handler has forked meanwhile: then all of this is done once more.
  std::uint32_t nothing = 0;
  if (any_left) recovery_is_due_.compare_exchange_strong_acq_rel(nothing, kBurialIsDue);
}

// Whether a life of the LAB has begun, perhaps not in all sets, and has not ended in all. Acquire:
// `forks` of whoever has begun it.
template <class Config>
bool Heap<Config>::has_begun(const Lab& lab) {
  if (lab.owner.load_acquire() != kTerminated) return true;
  for (const ReusableSet& set : lab.sets) {
    if (set.owner.load_acquire() != kTerminated) return true;
  }
  return false;
}

// A fork has left its thread behind, and nobody has terminated it yet.
template <class Config>
bool Heap<Config>::has_vanished(const Lab& lab) const {
  return !lab.shared && has_begun(lab) && lab.forks.load_relaxed() != forks_;
}

// The vanished threads' LABs terminate, as if their threads ended now. The spans in which they
// were allocating keep an unknown number of free blocks and never become empty: lost, and counted.
// The caller is inside, in no lock; who comes meanwhile does not wait, and a fork's child begins
// again with what is left.
template <class Config>
void Heap<Config>::bury_vanished_threads() {
  std::uint32_t due = kBurialIsDue;  // one at a time
  if (!recovery_is_due_.compare_exchange_strong_acq_rel(due, 0)) return;
  const LockGuard guard(burial_lock_);
  // Whom the hot spans belong to their own words say. (Of a LAB that had begun a life in some
  // sets only none names it.)
  backend_.directory().for_each_span([&](Span* span, Mark mark) {
    if (!mark.is_class() || span->load_word().state() != State::kHot) return;
    const OwnerWord owner = span->owner.load_relaxed();
    if (owner == kTerminated) return;
    const Lab& lab = *lab_of(owner);
    if (lab.owner.load_relaxed() == owner && has_vanished(lab)) lose_hot_span(*span);
  });
  const Identity self{shared_lab(0).owner_word(), backend_.shard_of(0)};
  labs_.for_each([&](Lab& lab) {
    if (!has_vanished(lab)) return;
    lab.hot = nullptr;  // it stood in the thread's memory
    for (const ClassId c : kAllClasses) {
      if (lab.set(c).owner.load_relaxed() != kTerminated)
        protocol_.close(lab, c, self).report_if_any();
    }
    lab.owner.store_release(kTerminated);
    labs_.give_back(&lab);
  });
}

// For who counts what there is, and may have no frontend.
template <class Config>
void Heap<Config>::bury_before_counting() {
  Thread* self = find_thread_(*this);
  Thread none(*this);
  // A signal handler that forks meanwhile finds this thread at its beginning, or inside.
  const void* outer = beginning_in.load_relaxed();
  if (self == nullptr) beginning_in.store_release(this);
  {
    const typename Thread::Inside within(self != nullptr ? *self : none);
  }
  beginning_in.store_release(outer);
}

// The lists of a shared LAB whose user was lost at fork may be half changed, and name fewer spans
// than are hot: those are known by their words. (The caller holds the LAB's lock: no other thread
// makes a span of the LAB hot meanwhile.)
template <class Config>
void Heap<Config>::bury_hot_spans(Lab& lab) {
  if (lab.hot == nullptr) return;
  *lab.hot = HotSpans{};
  backend_.directory().for_each_span([&](Span* span, Mark mark) {
    if (!mark.is_class() || span->load_word().state() != State::kHot) return;
    if (span->owner.load_relaxed() == lab.owner_word()) lose_hot_span(*span);
  });
}

// Nobody owns it: others may free into it.
template <class Config>
void Heap<Config>::lose_hot_span(Span& span) {
  SpanWord seen = span.load_word();
  if (seen.state() != State::kHot) return;
  span.local_list = nullptr;
  span.carved.store_relaxed(span.blocks);
  span.local_free.store_relaxed(0);
  span.lost_to_fork.store_relaxed(1);  // published by the transition
  while (!span.try_mark_floating(seen, false)) {
  }
  lost_to_fork_.fetch_add_relaxed(1);
}

}  // namespace spanalloc::scalloc
