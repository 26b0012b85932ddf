// Which heap a thread allocates from: one of its own, taken with its first use and left to the next
// thread at its end; or the common one, which serves threads that can have none of their own, and
// in a config with one heap all of them.
//
// A thread finds its heap in the allocator that a library has by a thread_local variable, in any
// other one by a key of the process's (thread::ExitKey), whose destructor tells either of the
// thread's end. What it keeps there is the heap itself.
#pragma once

#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/compiler.hpp"
#include "engine/operators.hpp"
#include "papers/a2alloc/engine/global_heap.hpp"
#include "papers/a2alloc/engine/heap.hpp"
#include "papers/a2alloc/engine/heap_guard.hpp"
#include "papers/a2alloc/engine/heap_registry.hpp"
#include "thread/lifecycle.hpp"

namespace spanalloc::a2alloc {

template <class Config>
class Allocator;

template <class Config>
class ThreadHeaps {
  using TheHeap = Heap<Config>;
  using Guard = HeapGuard<Config>;

 public:
  explicit constexpr ThreadHeaps(GlobalHeap<Config>& global)
      : global_(global), common_(*this, !Config::kHeapPerThread) {}

  /// The calling thread's heap if that is known already, else nullptr. Of an operator new that
  /// leaves (engine/operators.hpp): nullptr.
  template <class Caller = NoOperator>
  TheHeap* known() {
    if constexpr (!Config::kHeapPerThread) {
      if constexpr (OperatorNew<Caller>) {
        if (Caller::leaves()) return nullptr;
      }
      return global_.is_started() ? &common_ : nullptr;
    }
    if (OperatorNew<Caller> && is_default()) return my_heap_of_new_;
    return is_default() ? my_heap_ : static_cast<TheHeap*>(exit_key_.find());
  }

  /// The calling thread's heap, taken now. The global heap has been started.
  SPANALLOC_COLD TheHeap* find() {
    if constexpr (!Config::kHeapPerThread) return &common_;
    // A thread past its end would not be told of another one. And libc may call malloc to note the
    // heap: if this is its malloc it comes back to here.
    if (has_ended_ || is_visited()) return &common_;
    const Visit visit(*this);
    TheHeap* heap = registry_.take(*this, global_);
    if (heap == nullptr) return &common_;
    {
      const Guard guard(*heap, global_);
      heap->has_thread = true;
      heap->exit_round = 0;
    }
    if (note(heap)) return heap;
    leave(*heap);
    return &common_;
  }

  /// Takes the process's key already, where a library is started.
  void prepare() {
    if constexpr (Config::kHeapPerThread) exit_key_.prepare(&on_thread_exit);
  }

  /// Every empty superblock of all heaps goes to the global heap. The calling thread holds no
  /// heap's lock.
  SPANALLOC_COLD void evict_everywhere() {
    for_each([&](TheHeap& heap) {
      SPANALLOC_ASSERT(!heap.lock.is_mine());
      const Guard guard(heap, global_);
      evict_empty(heap);
    });
  }

  /// Heaps that have a thread.
  std::size_t live() {
    std::size_t count = 0;
    registry_.for_each([&](TheHeap& heap) {
      const Guard guard(heap, global_);
      count += heap.has_thread;
    });
    return count;
  }

  /// Bytes of blocks that are out, with their headers, in all heaps.
  SPANALLOC_COLD std::size_t used_bytes() {
    std::size_t bytes = 0;
    for_each([&](TheHeap& heap) {
      const Guard guard(heap, global_);
      bytes += heap.used();
    });
    return bytes;
  }

  /// In a fork's child: what vanished threads left half changed is repaired.
  void repair_all() {
    for_each([&](TheHeap& heap) { const Guard guard(heap, global_); });
  }

  /// Calls f(Heap&) for every heap, idle ones and the common one too.
  template <class F>
  void for_each(F&& f) {
    registry_.for_each(f);
    f(common_);
  }

  /// In a fork's child, first of all.
  void enter_child() {
    registry_.enter_child();
    common_.lock.abandon_if_owner_died();
    recovery_is_due_.store_relaxed(1);
    if (!is_visited()) recover_in_child();
  }

  /// The calling thread is in none of them any more: before a misuse is reported.
  SPANALLOC_COLD void leave_all() {
    innermost_ = nullptr;
    for_each([](TheHeap& heap) { heap.lock.abandon_if_mine(); });
  }

  /// No thread's end is told any more. While nobody uses the heaps; the object is used up.
  void destroy() {
    // What threads of a library keep in their variables would outlive it.
    SPANALLOC_ASSERT(!is_default());
    SPANALLOC_ASSERT(!is_visited());
    exit_key_.remove();
  }

 private:
  // While it lives, the calling thread is at the list of idle heaps. If its signal handler forks
  // meanwhile, the child first comes out of it before that list is made anew. A thread may visit
  // several allocators, one in the other: whoever notes a heap may call malloc.
  class [[nodiscard]] Visit {
   public:
    explicit Visit(ThreadHeaps& heaps) : heaps_(heaps), outer_(innermost_) {
      barrier();
      innermost_ = this;
      barrier();
    }
    ~Visit() {
      barrier();
      innermost_ = outer_;
      if (SPANALLOC_UNLIKELY(heaps_.recovery_is_due_.load_relaxed() != 0) && !heaps_.is_visited()) {
        heaps_.recover_in_child();
      }
    }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;

    bool is_of(const ThreadHeaps& heaps) const { return &heaps_ == &heaps; }
    const Visit* outer() const { return outer_; }

   private:
    // For this thread's signal handlers: the processor shows a thread its own stores in order.
    static void barrier() { asm volatile("" ::: "memory"); }

    ThreadHeaps& heaps_;
    Visit* const outer_;
  };

  bool is_visited() const {
    for (const Visit* visit = innermost_; visit != nullptr; visit = visit->outer()) {
      if (visit->is_of(*this)) return true;
    }
    return false;
  }

  void recover_in_child() {
    // A handler that forks meanwhile leaves its child's recovery to this visit's end.
    const Visit visit(*this);
    recovery_is_due_.store_relaxed(0);
    registry_.keep_only(known());
  }

  // The one that a library has. Its address is constant, so that this costs nothing there.
  bool is_default() const { return this == &Allocator<Config>::default_instance.thread_heaps(); }

  // The calling thread has `heap` from now on. False: its end would not be told.
  bool note(TheHeap* heap) {
    if (is_default()) set_my_heap(heap);  // before the key, which may call malloc
    return exit_key_.watch_this_thread(heap, &on_thread_exit);
  }

  static void on_thread_exit(void* state) {
    TheHeap& heap = *static_cast<TheHeap*>(state);
    ThreadHeaps& heaps = heap.owner();
    if (heaps.exit_key_.comes_again(&heap, heap.exit_round)) return;
    has_ended_ = true;
    heaps.leave(heap);
  }
  // The calling thread has none of its own any more. (Where there is no key, each of its requests
  // to another allocator than the default one asks for a heap again, in vain: slow, and correct.)
  void leave(TheHeap& heap) {
    SPANALLOC_ASSERT(&heap != &common_ && &heap.owner() == this);
    const Visit visit(*this);
    if (is_default()) set_my_heap(&common_);
    std::size_t before = 0;
    std::size_t after = 0;
    {
      const Guard guard(heap, global_);
      SPANALLOC_ASSERT(heap.has_thread);
      heap.has_thread = false;
      before = heap.superblocks();
      evict_empty(heap);
      after = heap.superblocks();
    }
    registry_.give_back(&heap);
    global_.settle(before - after);
  }

  void evict_empty(TheHeap& heap) {
    heap.evict_empty([&](Superblock<Config>* piece) { global_.put(piece); });
  }

  static void set_my_heap(TheHeap* heap) {
    my_heap_ = heap;
    my_heap_of_new_ = operators_leave.read() ? nullptr : heap;
  }

  // In the default allocator
  SPANALLOC_TLS static inline constinit thread_local TheHeap* my_heap_ = nullptr;
  SPANALLOC_TLS static inline constinit thread_local TheHeap* my_heap_of_new_ = nullptr;
  // Of the calling thread, whatever allocators it uses: the last round of its destructors that
  // leaves heaps to others has come; and where it is now.
  SPANALLOC_TLS static inline constinit thread_local bool has_ended_ = false;
  SPANALLOC_TLS static inline constinit thread_local Visit* volatile innermost_ = nullptr;

  GlobalHeap<Config>& global_;
  HeapRegistry<Config> registry_;
  TheHeap common_;
  thread::ExitKey exit_key_;
  Atomic<std::uint32_t> recovery_is_due_{0};  // in a fork's child
};

}  // namespace spanalloc::a2alloc
