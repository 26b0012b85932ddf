// A heap: arena and pool, every LAB, the objects outside spans, and how threads and forks find it.
//
// What a thread does with a heap it does through its Frontend (frontend.hpp). Of the default heap
// that is a thread-local variable (engine.hpp). Every other heap has one for each thread that uses
// it, in memory of its own, which a thread finds by the heap's exit key; thread_frontends.hpp.
//
// Invariant O9: a heap is destroyed only while no thread is in one of its functions, and the
// default heap is never destroyed: it serves until the process has ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "engine/engine.hpp"
#include "os/os.hpp"
#include "papers/scalloc/engine/backend.hpp"
#include "papers/scalloc/engine/census.hpp"
#include "papers/scalloc/engine/config.hpp"
#include "papers/scalloc/engine/lab.hpp"
#include "papers/scalloc/engine/page_layer.hpp"
#include "papers/scalloc/engine/span_protocol.hpp"
#include "sync/spin_lock.hpp"
#include "thread/lifecycle.hpp"
#include "thread/record_chunks.hpp"
#include "thread/record_registry.hpp"

namespace spanalloc::scalloc {

template <class Config>
class Frontend;
template <class Config>
struct FrontendRecord;

template <class Config>
class Heap {
 public:
  using Thread = Frontend<Config>;
  using Protocol = SpanProtocol<Config>;

  static constexpr unsigned kMaxSharedLabs = Config::kCoreLocal ? 256 : 1;
  /// What is large, and all zero at first: in .bss, or fresh from the kernel.
  struct Room {
    typename Backend<Config>::Pool pool;
    SharedLab shared_labs[kMaxSharedLabs];
  };
  /// The calling thread's frontend; nullptr: it has none.
  using FindThread = Thread* (*)(const Heap&);

  /// The default heap: its threads' frontends are where find_thread finds them.
  constexpr Heap(Room& room, FindThread find_thread)
      : find_thread_(find_thread),
        room_(&room),
        backend_(&room.pool),
        protocol_(backend_),
        fork_watch_(*this) {}
  /// Every other heap. Its memory comes from the kernel with the first use and
  /// goes back with destroy().
  constexpr Heap() : backend_(nullptr), protocol_(backend_), fork_watch_(*this) {}
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  // --- What an engine offers (engine/engine.hpp), for heaps beside the default one --------------
  void* allocate(std::size_t size);
  void deallocate(void* p);
  void* allocate_zeroed(std::size_t size);
  void* allocate_aligned(std::size_t size, std::size_t alignment);
  void* allocate_copy(std::size_t size, const void* from, std::size_t bytes);
  std::size_t usable_size(const void* p);
  template <LeavesAlone Policy = TakeAllBack>
  Resized resize(void* p, std::size_t size);
  bool trim();

  // --- For every heap ----------------------------------------------------------------------------
  bool owns(const void* p) {
    const Mark mark = backend_.directory().mark_of(p);
    return mark.is_nothing() ? large_.usable_size(p) != 0 : mark.is_class();
  }
  /// What there is by class, and in all: read from the spans' headers. Unsure are blocks on the
  /// lists of hot spans, which only their threads know, and those of lost spans, also of such that
  /// a fork has lost.
  struct Figures {
    EngineStatistics totals;
    ClassFigures classes[kClasses];

    template <class F>
    void for_each_class(F&& f) const {
      for (const ClassFigures& figures : classes) {
        if (figures.spans != 0) f(figures);
      }
    }
  };
  SPANALLOC_COLD Figures take_inventory();
  EngineStatistics statistics() { return take_inventory().totals; }
  /// Where every span is; exact while no other thread uses the heap.
  Census census() {
    bury_from_outside();
    Census census = count_spans(backend_.directory());
    labs_.for_each([&](const Lab& lab) {
      if (!has_vanished(lab)) census.count_hot_spans(lab);
    });
    backend_.for_each_pooled([&](Span*) { ++census.pooled; });
    return census.completed();
  }
  /// Registers the fork handler, once: with a thread's first slow path or from
  /// the library's constructor.
  void process_start() {
    if (SPANALLOC_LIKELY(watched_.load_relaxed() != 0) || watched_.exchange_acq_rel(1) != 0) return;
    exit_key_.prepare(&on_thread_exit);
    thread::watch_forks(fork_watch_);
  }
  /// Gives everything back to the kernel, and forgets the threads that used the heap; O9. No
  /// thread that has used it is just ending, and no fork is in progress. What remains is a heap
  /// that nobody has used yet.
  void destroy();

  Backend<Config>& backend() { return backend_; }
  template <class F>
  void for_each_lab(F&& f) const {
    labs_.for_each(f);
  }

 private:
  SPANALLOC_COLD static void count_blocks(const Span& span, const SizeClass& its_class,
                                          ClassFigures& out);
  friend class Frontend<Config>;
  friend struct FrontendRecord<Config>;
  friend struct spanalloc::ScallocTestAccess;

  struct Watch : thread::ForkWatch {
    constexpr explicit Watch(Heap& h)
        : thread::ForkWatch{&in_forked_child, &leave_all, &Heap::describe}, heap(&h) {}
    Heap* heap;
  };

  // --- Starting ----------------------------------------------------------------------------------
  // Reserves the arena with the first use. False: no memory; the next call tries again.
  bool ensure_started() { return SPANALLOC_LIKELY(is_started()) || start(); }
  // Acquire: sees all that start() wrote.
  bool is_started() const { return started_.load_acquire() != 0; }
  SPANALLOC_COLD bool start();

  // --- LABs --------------------------------------------------------------------------------------
  // Without a life; the caller opens it. nullptr when memory is out.
  Lab* take_lab() {
    return labs_.take([this](bool) { return lab_chunks_.make(); });
  }
  void open(Lab& lab, HotSpans& spans, unsigned core);
  SharedLab& shared_lab(std::uint32_t number) { return room_->shared_labs[number]; }
  unsigned shared_labs() const { return shared_count_.load_relaxed(); }  // constant once started
  bool reclaim_everywhere(const Identity& self) {
    bool any = false;
    labs_.for_each([&](Lab& lab) {
      for (const ClassId c : kAllClasses) any |= protocol_.reclaim_listed(lab, c, self);
    });
    return any;
  }

  // --- Threads (thread_frontends.hpp) ------------------------------------------------------------
  bool is_default() const { return find_thread_ != &find_by_key; }
  static Thread* find_by_key(const Heap& heap);
  // f(the calling thread's frontend), for heaps beside the default one.
  template <class F>
  auto with_thread(F&& f);
  SPANALLOC_COLD Thread* begin_thread();
  Thread* take_record();
  static void on_thread_exit(void* kept);

  // --- Fork (heap_fork.hpp) ----------------------------------------------------------------------
  static void in_forked_child(thread::ForkWatch* watch);
  static void leave_all(thread::ForkWatch* watch);
  static bool describe(thread::ForkWatch* watch, const void* p, os::AddressFacts& out);
  SPANALLOC_COLD void recover_in_child(Thread& self);
  SPANALLOC_COLD void after_fork(Thread& self);
  void put_right(Thread& self);
  static bool has_begun(const Lab& lab);
  bool has_vanished(const Lab& lab) const;
  SPANALLOC_COLD void bury_vanished_threads();
  void bury_from_outside() {
    if (SPANALLOC_UNLIKELY(recovery_is_due_.load_relaxed() == kBurialIsDue)) bury_before_counting();
  }
  SPANALLOC_COLD void bury_before_counting();
  void bury_hot_spans(Lab& lab);
  void lose_hot_span(Span& span);

  FindThread find_thread_ = &find_by_key;
  Room* room_ = nullptr;  // constant once started
  Backend<Config> backend_;
  Protocol protocol_;
  LargeSource large_;
  thread::RecordRegistry<Lab> labs_;
  thread::RecordChunks<Lab> lab_chunks_;  // under the registry's lock
  thread::RecordRegistry<FrontendRecord<Config>> threads_;
  thread::RecordChunks<FrontendRecord<Config>> thread_chunks_;  // under the registry's lock
  thread::ExitKey exit_key_;
  Watch fork_watch_;
  Atomic<std::uint32_t> watched_{0};  // the fork watch is registered
  WakingLock start_lock_;
  // Of who terminates the vanished threads' LABs: a report there is told by it
  SpinLock burial_lock_;
  Atomic<std::uint32_t> started_{0};
  Atomic<std::uint32_t> shared_count_{1};
  Atomic<std::uint32_t> next_number_{0};  // of threads
  Atomic<std::size_t> lost_to_fork_{0};
  Atomic<std::uint64_t> next_reclaim_{0};  // give_address_space_back() walks the sets no earlier
  // Read by every slow path, written in a fork's child only.
  Atomic<std::uint32_t> recovery_is_due_{0};
  // Between the first process and this one; written while there is one thread
  std::uint32_t forks_ = 0;
  static constexpr std::uint32_t kRecoveryIsDue = 1;  // while the child has one thread
  static constexpr std::uint32_t kBurialIsDue = 2;    // at any time
};

template <class Config>
bool Heap<Config>::start() {
  LockGuard guard(start_lock_);
  if (started_.load_relaxed() != 0) return true;
  if (link_key.read() == 0) link_key.choose(os::random_bits());
  if (room_ == nullptr) {
    room_ = static_cast<Room*>(os::map(align_up(sizeof(Room), os::page_size()), os::page_size()));
    if (room_ == nullptr) return false;
  }
  if (!backend_.start(room_->pool)) return false;
  if constexpr (Config::kCoreLocal) {
    shared_count_.store_relaxed(
        static_cast<std::uint32_t>(min_of(os::cpu_count(), kMaxSharedLabs)));
  }
  for (unsigned core = 0; core < shared_labs(); ++core) {
    SharedLab& lab = shared_lab(core);
    lab.shared = true;
    open(lab, lab.own_hot, backend_.shard_of(core));
    labs_.publish(&lab);
  }
  started_.store_release(1);
  return true;
}

template <class Config>
void Heap<Config>::open(Lab& lab, HotSpans& spans, unsigned core) {
  // A shared LAB may be opened again, by the child of a fork that came while the heap was started.
  SPANALLOC_ASSERT(lab.shared || lab.owner.load_relaxed() == kTerminated);
  SPANALLOC_ASSERT(spans.are_none());  // O7
  const OwnerWord owner = make_owner(&lab, ++lab.generation);
  lab.forks.store_relaxed(forks_);
  lab.hot = &spans;
  lab.core = core;
  for (const ClassId c : kAllClasses) {
    typename Protocol::SetGuard set(protocol_, lab, c);
    SPANALLOC_ASSERT(lab.shared || set->owner.load_relaxed() == kTerminated);
    set->owner.store_release(owner);
  }
  lab.owner.store_release(owner);
}

template <class Config>
auto Heap<Config>::take_inventory() -> Figures {
  bury_from_outside();
  Figures figures;
  EngineStatistics& result = figures.totals;
  const ArenaStatistics arena = backend_.arena_statistics();
  result.reserved_bytes = arena.reserved_bytes;
  result.opened_bytes = arena.opened_bytes;
  backend_.directory().for_each_span([&](const Span* span, Mark mark) {
    // Of a free one the class of its last life; none yet: no byte was used.
    if (mark.is_free()) result.pooled_bytes += info(span->size_class.load_relaxed()).real_span;
    if (!mark.is_class()) return;
    const SizeClass& its_class = info(mark.size_class());
    result.small_bytes_carved += its_class.real_span;
    count_blocks(*span, its_class, figures.classes[index_of(mark.size_class())]);
  });
  result.live_bytes = result.live_blocks = result.free_bytes = result.free_blocks =
      result.unsure_bytes = result.unsure_blocks = 0;
  for (const ClassFigures& one : figures.classes) {
    result.live_blocks += one.live_blocks;
    result.live_bytes += one.live_blocks * one.block_bytes;
    result.free_blocks += one.free_blocks;
    result.free_bytes += one.free_blocks * one.block_bytes;
    result.unsure_blocks += one.unsure_blocks;
    result.unsure_bytes += one.unsure_blocks * one.block_bytes;
  }
  const LargeObjectStatistics large = large_.statistics();
  result.large_bytes = large.bytes;
  result.large_objects = large.objects;
  labs_.for_each([&](const Lab& lab) {
    result.live_threads += !lab.shared && lab.owner.load_relaxed() != kTerminated;
  });
  result.spans_lost_to_fork = lost_to_fork_.load_relaxed();
  return figures;
}

// Of a span in use, by O1.
template <class Config>
void Heap<Config>::count_blocks(const Span& span, const SizeClass& its_class, ClassFigures& out) {
  const SpanWord word = span.load_word();
  const std::size_t blocks = its_class.blocks;
  const std::size_t free = word.state() == State::kLost
                               ? 0
                               : min_of(word.count() + span.local_free.load_relaxed(), blocks);
  const std::size_t rest = blocks - free;
  out.block_bytes = its_class.block_size;
  out.span_bytes = kVirtualSpan;
  ++out.spans;
  out.blocks += blocks;
  out.carved_blocks += min_of(span.carved.load_relaxed(), blocks);
  out.free_blocks += free;
  // What a vanished thread had on its list counts as out, and may be most of the span.
  const bool is_sure = word.is_idle() && span.lost_to_fork.load_relaxed() == 0;
  (is_sure ? out.live_blocks : out.unsure_blocks) += rest;
}

template <class Config>
void Heap<Config>::destroy() {
  SPANALLOC_ASSERT(!is_default());  // O9
  threads_.for_each([](const FrontendRecord<Config>& record) {
    SPANALLOC_ASSERT(!record.is_inside());  // O9
    (void)record;
  });
  thread::unwatch_forks(fork_watch_);
  exit_key_.remove();
  large_.destroy();
  backend_.destroy();
  lab_chunks_.destroy();
  thread_chunks_.destroy();
  if (room_ != nullptr) os::release(room_, align_up(sizeof(Room), os::page_size()));
  new (this) Heap;
}

}  // namespace spanalloc::scalloc
