// The frontend's slow paths: finding a hot span, frees outside it, and the lives of LABs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/poison.hpp"
#include "engines/virtual_span/oopsla15/backend.hpp"
#include "engines/virtual_span/oopsla15/config.hpp"
#include "engines/virtual_span/oopsla15/lab.hpp"
#include "engines/virtual_span/oopsla15/span.hpp"
#include "engines/virtual_span/oopsla15/span_protocol.hpp"
#include "engines/virtual_span/oopsla15/thread_state.hpp"
#include "os/os.hpp"
#include "sync/spin_lock.hpp"
#include "thread/lifecycle.hpp"

namespace spanalloc {
struct Oopsla15TestAccess;  // defined by unit tests only
}

namespace spanalloc::oopsla15 {

/// One heap's frontend; all state is static. Two Configs are two heaps.
template <class Config>
class Frontend {
 public:
  SPANALLOC_TLS static inline constinit thread_local ThreadState thread{};
  static inline constinit Backend<Config> backend{};

  /// Reserves the arena with the first use. False: no memory; the next call tries again.
  static bool ensure_started() {
    return SPANALLOC_LIKELY(started_.load_acquire() != 0) || start();  // acquire: sees all that start() wrote
  }

  /// A block of a class when the thread's list of it is empty or ends. `*zero` (if given) becomes true when
  /// the block reads as zero. nullptr when memory is out.
  SPANALLOC_COLD static void* allocate_slow(unsigned size_class, bool* zero) {
    const Inside inside;
    if (!ensure_started()) return nullptr;
    LabScope lab;
    HotSpans& spans = *lab->hot;
    for (;;) {
      if (spans.list[size_class] != nullptr) return pop(spans, size_class);
      Span* span = spans.hot[size_class];
      if (span == nullptr) {
        span = find_span(*lab, size_class);
        if (span == nullptr) span = take_floating(*lab, size_class);
        if (span == nullptr) return take_larger(spans, size_class, zero);
        if (spans.list[size_class] != nullptr) continue;
      }
      if (void* block = refill(spans, size_class, span, zero)) return block;
    }
  }

  /// Frees what the fast path did not: a block outside the thread's hot span, or a bad pointer.
  [[gnu::noinline]] static void deallocate_elsewhere(Span* span, void* p, std::size_t mark) {
    if (SPANALLOC_UNLIKELY(mark == 0)) os::fatal("free of a pointer into memory that holds no objects", p);
    if (SPANALLOC_UNLIKELY(mark == kFreeClass))
      os::fatal("free of memory that is free already (double free)", p);
    if (SPANALLOC_UNLIKELY(!span->is_carved(p))) p = snap_to_block(span, p);
    const Inside inside;
    const auto size_class = static_cast<unsigned>(mark);
    poison_free(p, size_class);
    if (thread.spans.hot[size_class] == span) return push_hot(thread.spans, size_class, p);
    // Relaxed: only this thread can have written this thread's own owner word.
    if (SPANALLOC_LIKELY(span->owner.load_relaxed() == thread.owner && thread.owner != 0)) {
      const std::uint32_t blocks = span->blocks;
      Protocol::push_local(span, p);
      if (SPANALLOC_UNLIKELY(Protocol::wants_settling(span, blocks))) settle(span);
      return;
    }
    deallocate_foreign(span, p, size_class);
  }

  /// Before others may get at the block: its link stays accessible.
  static void poison_free(void* block, std::size_t size_class) {
    poison(static_cast<FreeBlock*>(block) + 1, kSizeClasses[size_class].block_size - sizeof(FreeBlock));
  }

  /// Whether the block is the first of a list of free ones. (Of the others it is not known without a search.)
  static bool is_newest_free(const Span* span, const void* p, std::size_t size_class) {
    if (span->load_word().head_offset() == span->offset_of(p)) return true;
    if (thread.spans.hot[size_class] == span && thread.spans.list[size_class] == p) return true;
    return thread.owner != 0 && span->owner.load_relaxed() == thread.owner && span->local_list == p;
  }

  /// Brings the thread's copy of the directory up to date.
  static void refresh_view() {
    const Directory& directory = backend.directory();
    DirectoryView& view = thread.view;
    view.limit = directory.limit.load_acquire();  // acquire: the marks below it are open, the rest is set
    view.base = directory.base.load_relaxed();
    view.marks = directory.marks.load_relaxed();
  }

  /// The start of the block that a pointer beyond it belongs to. Ends the process if none can be meant.
  static void* snap_to_block(const Span* span, const void* p) {
    if (span->is_block(p)) os::fatal("memory was never handed out:", p);
    const std::uint32_t offset = span->offset_of(p) - span->first_block;
    const std::uint32_t size =
        kSizeClasses[span->size_class.load_relaxed() % kClassEntries % kClasses].block_size;
    if (span->shifted.load_relaxed() != 0 && size != 0 && offset < span->blocks * size) {
      const std::uint32_t into = offset % size;
      const std::uintptr_t address = address_of(p);
      // Aligned blocks are handed out at the first multiple of some power of two above 4 KiB: nothing of that
      // alignment lies between the block's start and the pointer.
      const std::uintptr_t alignment = address & (0 - address);
      if (into < alignment && alignment > kNaturalMax && span->is_carved(pointer_to(address - into))) {
        return pointer_to(address - into);
      }
    }
    os::fatal("pointer is not the start of an object:", p);
  }
  /// Blocks of 4 KiB and more are aligned to this and not always further.
  static constexpr std::size_t kNaturalMax = 4096;

  /// Returns all that no living thread can still need; true if anything was.
  static bool trim() {
    if (started_.load_acquire() == 0) return false;
    const Inside inside;
    bool any = false;
    if (thread.lab != nullptr) any |= give_up_empty(*thread.lab);
    for (unsigned i = 0; i < shared_labs(); ++i) {
      SharedScope lab(shared_labs_[i]);
      any |= give_up_empty(*lab);
    }
    any |= reclaim_everywhere();
    return backend.purge_pooled() || any;
  }

  /// Makes room for objects outside spans; true if that may have helped. Every object that is refused comes
  /// here: the walk over all sets, for what two last freers have missed, is not made again for a while if it
  /// was no use.
  static bool give_address_space_back() {
    if (started_.load_acquire() == 0) return false;
    const Inside inside;
    const std::uint64_t now = os::now_ms();
    // Relaxed: a hint; who misses it walks, or is refused until the time has passed.
    if (now >= next_reclaim_.load_relaxed() && !reclaim_everywhere())
      next_reclaim_.store_relaxed(now + kNoReclaimMs);
    return backend.close_pooled();
  }

  static void prepare_thread_exits() { exit_key_.prepare(&on_thread_exit); }
  static void thread_exit() {
    const Inside inside;
    thread.without_lab = true;
    if (thread.lab != nullptr) terminate();
  }

  /// In a fork's child, first of all: puts the heap right, or leaves that to the end of the call that the
  /// fork has interrupted. A fork takes no lock (sync/spin_lock.hpp).
  static void enter_child() {
    backend.enter_child();
    labs_.for_each([](Lab& lab) {
      lab.lock.abandon_if_owner_died();
      for (ReusableSet& set : lab.sets) set.lock.abandon_if_owner_died();
    });
    recovery_is_due_.store_relaxed(1);
    if (!thread.inside.is_set()) recover_in_child();
  }

  /// Free blocks that the owner of a hot span knows of; for the owner, or while it stands still.
  static std::uint32_t owned_free(const Span* span, FreeBlock* list) {
    FreeBlock* last = nullptr;
    return walk(span, list, &last) + walk(span, span->local_list, &last) +
           (span->blocks - span->carved.load_relaxed());
  }

  static std::size_t living_labs() {
    std::size_t count = 0;
    labs_.for_each([&](Lab& lab) { count += !lab.shared && lab.owner.load_relaxed() != kTerminated; });
    return count;
  }
  static std::size_t spans_lost_to_fork() { return lost_to_fork_.load_relaxed(); }

  template <class F>
  static void for_each_lab(F&& f) {
    labs_.for_each(f);
  }

 private:
  friend struct spanalloc::Oopsla15TestAccess;
  using Protocol = SpanProtocol<Config>;

  static void on_thread_exit(void* state) {
    if (!exit_key_.comes_again(state, thread.exit_round)) thread_exit();
  }

  // While it lives the calling thread may hold a lock, or a span that stands nowhere else. If its signal
  // handler forks meanwhile, the child first comes out of it before anything is put right.
  class [[nodiscard]] Inside {
   public:
    Inside() : outer_(thread.inside.enter()) {}
    ~Inside() {
      thread.inside.leave(outer_);
      if (SPANALLOC_UNLIKELY(recovery_is_due_.load_relaxed() != 0) && !outer_) recover_in_child();
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    bool outer_;
  };

  // Holds the lock of a shared LAB.
  class [[nodiscard]] SharedScope {
   public:
    explicit SharedScope(Lab& lab) : lab_(&lab) {
      // Its lists may be half changed, as a vanished thread's own are.
      if (lab.lock.lock() == Locked::kOwnerDied) bury_hot_spans(lab);
    }
    ~SharedScope() { lab_->lock.unlock(); }
    SharedScope(const SharedScope&) = delete;
    SharedScope& operator=(const SharedScope&) = delete;
    Lab& operator*() const { return *lab_; }

   private:
    Lab* lab_;
  };

  // The LAB that the calling thread acts for: its own, made with its first use; or one that is shared under
  // a lock, for core-local buffers, for a thread past its exit, and when no LAB can be had.
  class LabScope {
   public:
    LabScope() {
      if constexpr (!Config::kCoreLocal) {
        if (SPANALLOC_LIKELY(thread.lab != nullptr) || acquire_lab()) {
          lab_ = thread.lab;
          return;
        }
      }
      lab_ = &shared_lab();
      shared_ = true;
      if (lab_->lock.lock() == Locked::kOwnerDied) bury_hot_spans(*lab_);
    }
    ~LabScope() {
      if (shared_) lab_->lock.unlock();
    }
    LabScope(const LabScope&) = delete;
    LabScope& operator=(const LabScope&) = delete;
    Lab* operator->() const { return lab_; }
    Lab& operator*() const { return *lab_; }

   private:
    Lab* lab_;
    bool shared_ = false;
  };

  // --- Identity.

  static std::uint32_t thread_number() {
    if (thread.number == 0) thread.number = next_number_.fetch_add_relaxed(1) + 1;
    return thread.number;
  }
  static SharedLab& shared_lab() {
    return shared_labs_[Config::kCoreLocal ? thread_number() % shared_labs() : 0];
  }
  static unsigned shared_labs() { return shared_count_.load_relaxed(); }  // constant once started
  static Identity self() {
    const OwnerWord own = thread.owner;
    return {own != 0 ? own : shared_lab().owner_word(), backend.core_of(thread_number())};
  }
  // For a thread whose own sets are closing: it must not adopt any more.
  static Identity self_in_exit() { return {shared_labs_[0].owner_word(), backend.core_of(thread_number())}; }

  SPANALLOC_COLD static void settle(Span* span) { protocol_.settle(span, self()); }

  // --- Starting, LABs' lives.

  SPANALLOC_COLD static bool start() {
    LockGuard guard(start_lock_);
    if (started_.load_relaxed() != 0) return true;
    if (!backend.start()) return false;
    if constexpr (Config::kCoreLocal) {
      shared_count_.store_relaxed(static_cast<std::uint32_t>(min_of(os::cpu_count(), kMaxSharedLabs)));
    }
    for (unsigned core = 0; core < shared_labs(); ++core) {
      SharedLab& lab = shared_labs_[core];
      lab.shared = true;
      open(lab, lab.own_hot, backend.core_of(core));
      labs_.publish(&lab);
    }
    started_.store_release(1);
    return true;
  }

  static void open(Lab& lab, HotSpans& spans, unsigned core) {
    const OwnerWord owner = make_owner(&lab, ++lab.generation);
    lab.hot = &spans;
    lab.core = core;
    for (unsigned c = 0; c < kClasses; ++c) {
      typename Protocol::SetGuard guard(protocol_, lab, c);
      lab.sets[c].owner.store_release(owner);
    }
    lab.owner.store_release(owner);
  }

  SPANALLOC_COLD static bool acquire_lab() {
    if (thread.without_lab) return false;
    Lab* lab = labs_.take();
    if (lab == nullptr) return false;
    open(*lab, thread.spans, backend.core_of(thread_number()));
    refresh_view();
    thread.lab = lab;
    thread.owner = lab->owner_word();
    // Last: it may allocate.
    if (exit_key_.watch_this_thread(&thread, &on_thread_exit)) return true;
    thread.without_lab = true;
    terminate();
    return false;
  }

  static void terminate() {
    Lab& lab = *thread.lab;
    for (unsigned c = 1; c < kClasses; ++c) {
      // First the hot span, while the set is open: a thread that finds the set closed may adopt.
      give_up_hot(lab, c, self_in_exit());
      protocol_.close(lab, c, self_in_exit());
    }
    thread.lab = nullptr;
    thread.owner = 0;
    lab.hot = nullptr;
    lab.owner.store_release(kTerminated);
    labs_.give_back(&lab);
  }

  // In a fork's child; the calling thread is alone, and in no call. The other threads' LABs terminate; the
  // spans in which they were allocating keep an unknown number of free blocks and never become empty: lost,
  // and counted.
  SPANALLOC_COLD static void recover_in_child() {
    // A signal handler that forks meanwhile leaves its child's recovery to this one, which goes on in that
    // child: there was no second thread to lose.
    while (recovery_is_due_.load_relaxed() != 0) {
      const bool outer = thread.inside.enter();
      recovery_is_due_.store_relaxed(0);
      put_right();
      thread.inside.leave(outer);
    }
  }
  static void put_right() {
    if (start_lock_.owner_died()) start_lock_.reset();
    if (started_.load_relaxed() == 0) return;
    backend.recover_in_child();
    labs_.for_each([](Lab& lab) {
      if (&lab == thread.lab) return;
      if (lab.shared) {
        if (lab.lock.owner_died()) SharedScope repaired(lab);
        return;
      }
      if (lab.owner.load_relaxed() != kTerminated) bury_hot_spans(lab);
      for (unsigned c = 1; c < kClasses; ++c) {
        if (lab.sets[c].owner.load_relaxed() != kTerminated) protocol_.close(lab, c, self_in_exit());
      }
      lab.hot = nullptr;
      lab.owner.store_release(kTerminated);
    });
    labs_.recover_in_child([](const Lab& lab) { return !lab.shared && &lab != thread.lab; });
  }

  // The lists of a LAB whose user vanished may be half changed. (They stand in thread-local memory, which a
  // fork's child still has.)
  static void bury_hot_spans(Lab& lab) {
    if (lab.hot == nullptr) return;
    for (unsigned c = 1; c < kClasses; ++c) {
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

  // --- Allocation.

  static void* pop(HotSpans& spans, unsigned size_class) {
    FreeBlock* block = spans.list[size_class];
    FreeBlock* next = block->next;
    if (SPANALLOC_UNLIKELY(next != nullptr && !links_within(spans.hot[size_class], next))) {
      os::fatal("free list corrupted (written after free) at", block);
    }
    spans.list[size_class] = next;
    unpoison(block, kSizeClasses[size_class].block_size);
    return block;
  }

  static bool links_within(const Span* span, const FreeBlock* next) {
    return (address_of(next) ^ span->address()) < kVirtualSpan && span->is_block(next);
  }

  // Finds blocks in the hot span whose list is empty, or makes it floating and returns nullptr.
  static void* refill(HotSpans& spans, unsigned size_class, Span* span, bool* zero) {
    if (span->local_list != nullptr) {
      spans.list[size_class] = span->local_list;
      span->local_list = nullptr;
      return pop(spans, size_class);
    }
    if (span->carved.load_relaxed() < span->blocks) return carve(spans, size_class, span, zero);
    SpanWord seen = span->load_word();
    for (;;) {
      const std::uint32_t remote = seen.count();
      if (remote == span->blocks || is_reusable<Config>(span->blocks, span->blocks - remote)) {
        FreeBlock* list = span->block_at(seen.head_offset());
        if (!span->try_mark_hot(seen)) continue;
        spans.list[size_class] = list;
        return pop(spans, size_class);
      }
      Config::at(Step::kBeforeFloating, span);
      spans.hot[size_class] = nullptr;
      // On the count just seen: a block freed meanwhile makes this fail.
      if (span->try_mark_floating(seen, false)) return nullptr;
      spans.hot[size_class] = span;
    }
  }

  // Hands out the first of a page's worth of blocks that were never handed out, and lists the others.
  static void* carve(HotSpans& spans, unsigned size_class, Span* span, bool* zero) {
    constexpr std::uint32_t kPiece = 4096;
    const std::uint32_t size = kSizeClasses[size_class].block_size;
    const std::uint32_t carved = span->carved.load_relaxed();
    const std::uint32_t offset = span->first_block + carved * size;
    const auto piece_end = static_cast<std::uint32_t>(align_up(offset + 1, kPiece));
    const std::size_t count =
        min_of(max_of((piece_end - offset) / size, 1), std::size_t{span->blocks} - carved);
    FreeBlock* list = nullptr;
    unpoison(pointer_to(span->address() + offset), count * size);
    for (std::size_t i = count - 1; i > 0; --i) {
      auto* block = pointer_to<FreeBlock>(span->address() + offset + i * size);
      block->next = list;
      list = block;
      poison_free(block, size_class);
    }
    spans.list[size_class] = list;
    span->carved.store_relaxed(carved + static_cast<std::uint32_t>(count));
    if (zero != nullptr) *zero = offset >= span->dirty_to;
    return pointer_to(span->address() + offset);
  }

  // Listing 3's get_span: makes some span the LAB's hot one; nullptr when memory is out.
  static Span* find_span(Lab& lab, unsigned size_class) {
    const Identity me = self();
    protocol_.examine_suspects(lab, size_class, me);
    if constexpr (!Config::kEagerReturn) protocol_.reclaim_listed(lab, size_class, me);
    if (Span* span = protocol_.take_reusable(lab, size_class, &lab.hot->list[size_class])) {
      make_hot(lab, span, size_class);
      return span;
    }
    Span* span = backend.get_pooled(size_class, lab.core);
    if (span == nullptr) {
      for (unsigned c = 1; c < kClasses; ++c) protocol_.examine_suspects(lab, c, me);
      span = backend.get_pooled(size_class, lab.core);
    }
    if (span == nullptr) span = backend.get_fresh(size_class);
    if (span == nullptr) {
      give_up_empty(lab);
      reclaim_everywhere();
      backend.close_pooled();
      span = backend.get_pooled(size_class, lab.core);
      if (span == nullptr) return nullptr;
    }
    span->owner.store_release(lab.owner_word());
    // A plain store: the span is ours alone, and words of earlier epochs that others still hold do not match.
    span->word.store_release(span->load_word().taken(State::kHot).bits());
    lab.hot->hot[size_class] = span;
    return span;
  }

  // Memory is out: any span of the class will do that has a free block and belongs to this LAB or to nobody.
  // The LAB has no references to floating spans, so this walks the arena.
  static Span* take_floating(Lab& lab, unsigned size_class) {
    const Directory& directory = backend.directory();
    const std::size_t limit = directory.limit.load_acquire();
    for (std::size_t g = 0; g < limit; ++g) {
      if (directory.mark(g) != size_class) continue;
      Span* span = directory.span(g);
      const SpanWord seen = span->load_word();
      if (!seen.is_idle() || seen.count() + span->local_free.load_acquire() == 0) continue;
      const OwnerWord owner = span->owner.load_acquire();
      if (owner != lab.owner_word() && !protocol_.adopt(span, owner, size_class, lab.owner_word())) continue;
      if (!protocol_.take_idle(lab, span, size_class, &lab.hot->list[size_class])) continue;
      make_hot(lab, span, size_class);
      return span;
    }
    return nullptr;
  }

  // And if there is none, a block of a larger class from a span that is hot already; nullptr without one. Of
  // a class as well aligned: who asked may have chosen the class for its alignment.
  static void* take_larger(HotSpans& spans, unsigned size_class, bool* zero) {
    for (unsigned c = size_class + 1; c < kClasses; ++c) {
      if (natural_alignment(c) < natural_alignment(size_class)) continue;
      if (spans.list[c] != nullptr) return pop(spans, c);
      Span* span = spans.hot[c];
      if (span == nullptr || (span->local_list == nullptr && span->carved.load_relaxed() == span->blocks))
        continue;
      return refill(spans, c, span, zero);
    }
    return nullptr;
  }

  // The span's remote list is already this thread's.
  static void make_hot(Lab& lab, Span* span, unsigned size_class) {
    span->local_free.store_relaxed(0);  // hot: nobody looks at it; published when the span floats
    lab.hot->hot[size_class] = span;
  }

  // --- Deallocation.

  static void push_hot(HotSpans& spans, unsigned size_class, void* p) {
    auto* block = static_cast<FreeBlock*>(p);
    if (SPANALLOC_UNLIKELY(spans.list[size_class] == block)) os::fatal("double free of", p);
    block->next = spans.list[size_class];
    spans.list[size_class] = block;
  }

  // The caller acts as the owner (under its lock, if the LAB is shared).
  static void free_owned(Lab& lab, Span* span, void* p, unsigned size_class) {
    if (lab.hot->hot[size_class] == span) return push_hot(*lab.hot, size_class, p);
    Protocol::push_local(span, p);
  }

  SPANALLOC_COLD static void deallocate_foreign(Span* span, void* p, unsigned size_class) {
    for (;;) {
      const OwnerWord owner = span->owner.load_acquire();
      if (owner == kTerminated) os::fatal("free of a pointer into memory that holds no objects", p);
      // Acquire: pairs with the closing of the set, so that an adopter sees what the owner left behind.
      if (lab_of(owner)->sets[size_class].owner.load_acquire() != owner) {
        Config::at(Step::kBeforeAdopting, span);
        LabScope lab;
        // The block keeps the span alive until it is freed.
        if (!protocol_.adopt(span, owner, size_class, lab->owner_word())) continue;
        free_owned(*lab, span, p, size_class);
        break;
      }
      if ((Config::kCoreLocal || thread.lab == nullptr) && shared_lab().owner_word() == owner) {
        LabScope lab;
        if (lab->owner_word() == owner) {
          free_owned(*lab, span, p, size_class);
          break;
        }
      }
      Protocol::push_remote(span, p);
      break;
    }
    settle(span);
  }

  // --- Giving up.

  // Blocks in the chain, each checked; *last becomes the last one.
  static std::uint32_t walk(const Span* span, FreeBlock* list, FreeBlock** last) {
    std::uint32_t count = 0;
    for (FreeBlock* block = list; block != nullptr; block = block->next) {
      if (!links_within(span, block) || ++count > span->blocks) {
        os::fatal("free list corrupted (written after free) in the span at", span);
      }
      *last = block;
    }
    return count;
  }

  // hot -> floating, and on to free or reusable if that is what it is.
  static void give_up_hot(Lab& lab, unsigned size_class, const Identity& me) {
    Span* span = lab.hot->hot[size_class];
    if (span == nullptr) return;
    FreeBlock* list = lab.hot->list[size_class];
    const std::uint32_t free = owned_free(span, list);
    if (list != nullptr) {
      FreeBlock* last = nullptr;
      walk(span, list, &last);
      last->next = span->local_list;
      span->local_list = list;
    }
    lab.hot->list[size_class] = nullptr;
    lab.hot->hot[size_class] = nullptr;
    span->local_free.store_relaxed(free);  // published by the transition
    SpanWord seen = span->load_word();
    while (!span->try_mark_floating(seen, free > 0)) {
    }
    protocol_.settle(span, me);
  }

  // For the LAB's owner: lets go of its empty hot spans and of what its sets hide.
  static bool give_up_empty(Lab& lab) {
    bool any = false;
    for (unsigned c = 1; c < kClasses; ++c) {
      protocol_.examine_suspects(lab, c, self());
      Span* span = lab.hot->hot[c];
      if (span == nullptr) continue;
      if (owned_free(span, lab.hot->list[c]) + span->load_word().count() != span->blocks) continue;
      give_up_hot(lab, c, self());
      any = true;
    }
    return any;
  }

  static bool reclaim_everywhere() {
    bool any = false;
    labs_.for_each([&](Lab& lab) {
      for (unsigned c = 1; c < kClasses; ++c) any |= protocol_.reclaim_listed(lab, c, self());
    });
    return any;
  }

  static constexpr unsigned kMaxSharedLabs = Config::kCoreLocal ? 256 : 1;

  static inline constinit SpanProtocol<Config> protocol_{backend};
  static inline constinit LabRegistry labs_{};
  static inline constinit SharedLab shared_labs_[kMaxSharedLabs]{};
  static inline constinit Atomic<std::uint32_t> shared_count_{1};
  static inline constinit thread::ExitKey exit_key_{};
  static inline constinit SpinLock start_lock_{};
  static inline constinit Atomic<std::uint32_t> started_{0};
  static inline constinit Atomic<std::uint32_t> next_number_{0};
  static inline constinit Atomic<std::size_t> lost_to_fork_{0};
  static constexpr std::uint64_t kNoReclaimMs = 100;
  static inline constinit Atomic<std::uint64_t> next_reclaim_{0};  // not before this time
  // Read by every slow path, written in a fork's child only.
  static inline constinit Atomic<std::uint32_t> recovery_is_due_{0};
};

}  // namespace spanalloc::oopsla15
