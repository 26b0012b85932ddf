// A heap in a fork's child: what vanished threads were in the middle of is put right.
#pragma once

#include "engines/scalloc/frontend.hpp"
#include "engines/scalloc/frontend_thread.hpp"
#include "engines/scalloc/thread_frontends.hpp"

namespace spanalloc::scalloc {

// First of all: puts the heap right, or leaves that to the end of the call that the fork has interrupted. A
// fork takes no lock (sync/spin_lock.hpp).
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
  heap.recovery_is_due_.store_relaxed(1);
  if (beginning_in.load_relaxed() == &heap) return;  // at the end of begin_thread() then
  Thread* self = heap.find_thread_(heap);
  Thread none(heap);  // for a thread that has nothing in this heap
  if (self == nullptr) self = &none;
  if (!self->is_inside()) heap.recover_in_child(*self);
}

// The calling thread is alone, and in no call.
template <class Config>
void Heap<Config>::recover_in_child(Thread& self) {
  // A signal handler that forks meanwhile leaves its child's recovery to this one, which goes on in that
  // child: there was no second thread to lose.
  while (recovery_is_due_.load_relaxed() != 0) {
    const bool outer = self.inside.enter();
    recovery_is_due_.store_relaxed(0);
    put_right(self);
    self.inside.leave(outer);
  }
}

// The other threads' LABs terminate; the spans in which they were allocating keep an unknown number of free
// blocks and never become empty: lost, and counted.
template <class Config>
void Heap<Config>::put_right(Thread& self) {
  if (start_lock_.owner_died()) start_lock_.reset();
  threads_.recover_in_child([&](FrontendRecord<Config>& record) {
    if (&record == &self) return false;
    record.inside.leave(false);
    return true;
  });
  if (started_.load_relaxed() == 0) return;
  backend_.recover_in_child();
  labs_.for_each([&](Lab& lab) {
    if (&lab == self.own_lab) return;
    if (lab.shared) {
      if (lab.lock.owner_died()) typename Thread::LabScope repaired(*this, static_cast<SharedLab&>(lab));
      return;
    }
    if (lab.owner.load_relaxed() != kTerminated) bury_hot_spans(lab);
    for (const ClassId c : kAllClasses) {
      if (lab.set(c).owner.load_relaxed() != kTerminated) protocol_.close(lab, c, self.self_in_exit());
    }
    lab.hot = nullptr;
    lab.owner.store_release(kTerminated);
  });
  labs_.recover_in_child([&](const Lab& lab) { return !lab.shared && &lab != self.own_lab; });
}

// The lists of a LAB whose user vanished may be half changed. (They stand in thread-local memory, which a
// fork's child still has, or in the heap's.)
template <class Config>
void Heap<Config>::bury_hot_spans(Lab& lab) {
  if (lab.hot == nullptr) return;
  for (const ClassId c : kAllClasses) {
    Span* span = lab.hot->hot[c];
    lab.hot->hot[c] = nullptr;
    lab.hot->list[c] = nullptr;
    if (span == nullptr || span->owner.load_relaxed() != lab.owner_word()) continue;
    SpanWord seen = span->load_word();
    if (seen.state() != State::kHot) continue;
    span->local_list = nullptr;
    span->carved.store_relaxed(span->blocks);
    span->local_free.store_relaxed(0);
    span->try_mark_floating(seen, false);  // nobody else runs: cannot fail
    lost_to_fork_.fetch_add_relaxed(1);
  }
}

}  // namespace spanalloc::scalloc
