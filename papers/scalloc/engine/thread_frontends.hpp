// How the threads of a heap beside the default one have their frontends: each in a record of
// the heap's own, made with the thread's first use, found by the heap's exit key, and left to
// the next thread at its end.
//
// The key keeps, for a thread: nothing yet; its frontend; or once it has left the heap, ExitKey's
// mark of that. Such a thread, and one for which no frontend can be had, uses the heap without a
// LAB, through a frontend that lives as long as the call.
#pragma once

#include "base/compiler.hpp"
#include "papers/scalloc/engine/frontend.hpp"

namespace spanalloc::scalloc {

template <class Config>
struct FrontendRecord : Frontend<Config> {
  using Frontend<Config>::Frontend;

  // thread::RecordRegistry's.
  FrontendRecord* next_idle = nullptr;
  FrontendRecord* next_of_all = nullptr;
};

template <class Config>
Frontend<Config>* Heap<Config>::find_by_key(const Heap& heap) {
  void* kept = heap.exit_key_.find();
  return thread::ExitKey::has_left(kept) ? nullptr : static_cast<Thread*>(kept);
}

template <class Config>
template <class F>
auto Heap<Config>::with_thread(F&& f) {
  void* kept = exit_key_.find();
  if (SPANALLOC_LIKELY(kept != nullptr && !thread::ExitKey::has_left(kept)))
    return f(*static_cast<Thread*>(kept));
  if (kept == nullptr) {
    if (Thread* thread = begin_thread()) return f(*thread);
  }
  Thread passing(*this);
  passing.without_lab = true;
  // The key finds it meanwhile: a signal handler's fork must know whether this thread is inside.
  struct Found {
    Found(thread::ExitKey& k, void* old, Thread* now) : key(k), before(old) {
      key.watch_this_thread(now, &on_thread_exit);
    }
    ~Found() { key.watch_this_thread(before, &on_thread_exit); }
    thread::ExitKey& key;
    void* before;
  };
  const Found found(exit_key_, kept, &passing);
  return f(passing);
}

template <class Config>
Frontend<Config>* Heap<Config>::begin_thread() {
  process_start();
  // A signal handler's fork must not take the record for one that nobody has. Release, twice: what
  // is done between stays between, as the handler, in this very thread, sees it.
  const void* outer = beginning_in.load_relaxed();
  beginning_in.store_release(this);
  Thread* begun = take_record();
  beginning_in.store_release(outer);
  if (SPANALLOC_UNLIKELY(recovery_is_due_.load_relaxed() != 0) && outer != this) {
    Thread none(*this);
    recover_in_child(begun != nullptr ? *begun : none);
  }
  return begun;
}

template <class Config>
Frontend<Config>* Heap<Config>::take_record() {
  auto* record = threads_.take([this](bool) { return thread_chunks_.make(*this); });
  if (record == nullptr) return nullptr;
  // Whatever the last thread, or a fork, has left there
  static_cast<ThreadState&>(*record) = ThreadState{};
  if (exit_key_.watch_this_thread(static_cast<Thread*>(record), &on_thread_exit)) return record;
  threads_.give_back(record);
  return nullptr;
}

template <class Config>
void Heap<Config>::on_thread_exit(void* kept) {
  if (thread::ExitKey::has_left(kept)) return thread::ExitKey::stay_away(kept);
  auto& thread = *static_cast<Thread*>(kept);
  Heap& heap = thread.heap();
  if (heap.exit_key_.comes_again(kept, thread.exit_round)) return;
  if (heap.is_default()) return thread.leave().report_if_any();
  heap.exit_key_.watch_this_thread(kept, &on_thread_exit);  // found while it leaves
  const Damage damage = thread.leave();
  heap.exit_key_.leave();
  heap.threads_.give_back(static_cast<FrontendRecord<Config>*>(&thread));
  damage.report_if_any();
}

// --- What a heap offers --------------------------------------------------------------------------

template <class Config>
void* Heap<Config>::allocate(std::size_t size) {
  return with_thread([=](Thread& thread) { return thread.allocate(size); });
}
template <class Config>
void Heap<Config>::deallocate(void* p) {
  with_thread([=](Thread& thread) { thread.deallocate(p); });
}
template <class Config>
void* Heap<Config>::allocate_zeroed(std::size_t size) {
  return with_thread([=](Thread& thread) { return thread.allocate_zeroed(size); });
}
template <class Config>
void* Heap<Config>::allocate_aligned(std::size_t size, std::size_t alignment) {
  return with_thread([=](Thread& thread) { return thread.allocate_aligned(size, alignment); });
}
template <class Config>
void* Heap<Config>::allocate_copy(std::size_t size, const void* from, std::size_t bytes) {
  return with_thread([=](Thread& thread) { return thread.allocate_copy(size, from, bytes); });
}
template <class Config>
std::size_t Heap<Config>::usable_size(const void* p) {
  return with_thread([=](Thread& thread) { return thread.usable_size(p); });
}
template <class Config>
template <LeavesAlone Policy>
Resized Heap<Config>::resize(void* p, std::size_t size) {
  return with_thread([=](Thread& thread) { return thread.template resize<Policy>(p, size); });
}
template <class Config>
bool Heap<Config>::trim() {
  return with_thread([](Thread& thread) { return thread.trim(); });
}

}  // namespace spanalloc::scalloc
