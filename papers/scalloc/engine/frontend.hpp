// What one thread does with one heap: the two fast paths, and what stands around
// them. The slow paths are in frontend_allocate.hpp and frontend_free.hpp, the lives
// of LABs in frontend_thread.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/assert.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "base/poison.hpp"
#include "engine/engine.hpp"
#include "os/os.hpp"
#include "pages/nested_blocks.hpp"
#include "papers/scalloc/engine/config.hpp"
#include "papers/scalloc/engine/heap.hpp"
#include "papers/scalloc/engine/thread_state.hpp"

namespace spanalloc::scalloc {

/// A block, and whether it reads as zero.
struct Allocated {
  void* block = nullptr;
  bool zero = false;
};

/// Used by its thread alone; a fork's child uses those of vanished threads, too. Never destroyed.
template <class Config>
class Frontend : public ThreadState {
 public:
  constexpr explicit Frontend(Heap<Config>& heap) : heap_(&heap) {}

  Heap<Config>& heap() const { return *heap_; }

  // --- What an engine offers (engine/engine.hpp) ------------------------------------------------
  template <OutOfMemory Policy = ReturnNull>
  SPANALLOC_INLINE void* allocate(std::size_t size) {
    if (SPANALLOC_LIKELY(size <= kSmallMax))
      return take<Policy>(Mark::of_small(size), no_link_bits(kMadviseThreshold), size);
    if (SPANALLOC_LIKELY(size <= kSpanMax)) return take_medium<Policy>(class_of(size), size);
    return allocate_huge<Policy>(size);
  }

  template <class Caller = NoOperator>
  SPANALLOC_INLINE void deallocate(void* p) {
    const std::uintptr_t address = address_of(p);
    const std::size_t slice = view.slice_of(address);
    // Refuses null and foreign addresses: below the base the difference wraps to a huge number.
    if (SPANALLOC_UNLIKELY(slice >= view.template limit_for<Caller>())) {
      if constexpr (OperatorDelete<Caller>) return leave_or_deallocate<Caller>(p, *this);
      return deallocate_outside(p, *this);
    }
    const Mark mark = view.mark(slice);
    Span* span = span_at(p);
    if (span == nullptr) __builtin_unreachable();  // null lies in no slice
    // Only this thread's own hot span of the class matches; marks that are no class index a null.
    if (SPANALLOC_LIKELY(spans.hot[mark] == span && span->is_carved(p))) {
      auto* block = static_cast<FreeBlock*>(p);
      const Difference link = difference(address_of(spans.list[mark]), address);
      if (SPANALLOC_UNLIKELY(link.none)) return double_free(p);  // it is the list's first
      block->set_link(link.bits);
      spans.list[mark] = block;
      poison_free(block, mark.size_class());
      return;
    }
    deallocate_elsewhere(p, *this, span, mark);
  }

  void* allocate_zeroed(std::size_t size) {
    if (size > kSpanMax) return allocate_large(size, 1);  // fresh from the kernel
    const ClassId size_class = size == 0 ? kSmallestClass : class_of(size);
    const Allocated made = spans.list[size_class] == nullptr
                               ? allocate_slow(size_class)
                               : Allocated{take_medium<ReturnNull>(size_class, size), false};
    if (made.block != nullptr && !made.zero) std::memset(made.block, 0, size);
    return made.block;
  }

  void* allocate_aligned(std::size_t size, std::size_t alignment) {
    if (alignment <= 16) return allocate(size);
    if (size == 0) size = 1;
    if (alignment <= kNaturalMax) {
      // A multiple of the alignment that is a class by 16 bytes has that alignment; classes by
      // doubling have their own size's.
      if (size <= kSmallMax) size = align_up(size, alignment);
      return allocate(max_of(size, alignment));
    }
    if (alignment > kSpanMax || size > kSpanMax - alignment || os::in_kernel_call())
      return allocate_large(size, alignment);
    // Blocks of these classes start at multiples of 4 KiB: this leaves room for the next multiple.
    void* block = allocate(size + alignment - kNaturalMax);
    if (block == nullptr) return nullptr;
    const std::uintptr_t aligned = align_up(address_of(block), alignment);
    if (aligned != address_of(block)) span_at(block)->shifted.store_relaxed(1);
    return pointer_to(aligned);
  }

  void* allocate_copy(std::size_t size, const void* from, std::size_t bytes) {
    void* p = allocate(size);
    return p == nullptr ? nullptr : std::memcpy(p, from, bytes);
  }

  std::size_t usable_size(const void* p) const;
  template <LeavesAlone Policy = TakeAllBack>
  Resized resize(void* p, std::size_t size);
  /// Returns all that no living thread can still need; true if anything was.
  bool trim();

  // --- The thread's end, and forks ---------------------------------------------------------------
  /// The LAB ends; what the thread still does with the heap it does without one. What was found
  /// damaged the caller tells last of all: a handler of SIGABRT may use the heap, or never return.
  [[nodiscard]] Damage leave();
  bool is_inside() const { return inside.is_set(); }

  /// While it lives the calling thread may hold a lock, or a span that stands nowhere else. If its
  /// signal handler forks meanwhile, the child first comes out of it before anything is put right.
  class [[nodiscard]] Inside {
   public:
    explicit Inside(Frontend& thread) : thread_(thread), outer_(thread.inside.enter()) {}
    ~Inside() {
      thread_.inside.leave(outer_);
      Heap<Config>& heap = *thread_.heap_;
      if (SPANALLOC_UNLIKELY(heap.recovery_is_due_.load_relaxed() != 0) && !outer_) {
        heap.after_fork(thread_);
      }
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    Frontend& thread_;
    bool outer_;
  };

 private:
  friend class Heap<Config>;
  friend struct spanalloc::ScallocTestAccess;
  using Protocol = SpanProtocol<Config>;
  class LabScope;  // frontend_thread.hpp

  /// Blocks of 4 KiB and more are aligned to this and not always further.
  static constexpr std::size_t kNaturalMax = 4096;

  // --- Allocation --------------------------------------------------------------------------------
  template <class Policy>
  SPANALLOC_INLINE void* take(Mark mark, std::uint64_t no_link, std::size_t size) {
    FreeBlock* block = spans.list[mark];
    if (SPANALLOC_UNLIKELY(block == nullptr)) return leave_list<Policy>(size, *this, mark);
    // The link must lead to a block of the same real span. Null (the list's end) is none, nor is
    // what a block has that was handed out already; these go the slow way too.
    const std::uint64_t link = block->template link<Policy>();
    keep_in_result_register(block);
    if (SPANALLOC_UNLIKELY((link & no_link) != 0)) return leave_list<Policy>(size, *this, mark);
    spans.list[mark] = block->block_behind(link);
    block->clear_link();
    unpoison(block, info(mark.size_class()).block_size);
    return block;
  }
  template <class Policy>
  SPANALLOC_INLINE void* take_medium(ClassId size_class, std::size_t size) {
    return take<Policy>(Mark::of_class(size_class), kNoLinkBits[index_of(size_class)], size);
  }

  template <class Policy>
  SPANALLOC_INLINE static void* leave_list(std::size_t size, Frontend& thread, Mark mark) {
    if constexpr (OperatorNew<Policy>) return leave_or_allocate<Policy>(size, thread, mark);
    return thread.template allocate_small<Policy>(mark);
  }
  // (The size stays in the register in which operator new got it.)
  template <OperatorNew Policy>
  SPANALLOC_COLD static void* leave_or_allocate(std::size_t size, Frontend& thread, Mark mark) {
    if (Policy::leaves()) return Policy::allocate_elsewhere(size);
    return thread.template allocate_small<Policy>(mark);
  }
  template <class Policy>
  SPANALLOC_COLD void* allocate_small(Mark mark) {
    heap_->process_start();
    const ClassId c = mark.is_nothing() ? kSmallestClass : mark.size_class();
    void* p = allocate_slow(c).block;
    return SPANALLOC_LIKELY(p != nullptr) ? p : Policy::out_of_memory(info(c).block_size);
  }
  template <class Policy>
  SPANALLOC_COLD void* allocate_huge(std::size_t size) {
    if constexpr (OperatorNew<Policy>) {
      if (Policy::leaves()) return Policy::allocate_elsewhere(size);
    }
    void* p = size > kMaxRequest ? nullptr : allocate_large(size, 1);
    return SPANALLOC_LIKELY(p != nullptr) ? p : Policy::out_of_memory(size);
  }
  SPANALLOC_COLD void* allocate_large(std::size_t size, std::size_t alignment) {
    if (os::in_kernel_call()) return allocate_nested(size, alignment);
    NestedBlocks::free_put_off([this](void* put_off) { deallocate(put_off); });
    void* p = heap_->large_.allocate(size, alignment);
    if (p == nullptr && give_address_space_back()) p = heap_->large_.allocate(size, alignment);
    return p;
  }

  // In a kernel call. What an engine has fresh from the kernel is zero, and so is this.
  static void* allocate_nested(std::size_t size, std::size_t alignment) {
    void* p = NestedBlocks::allocate(size, alignment);
    return p == nullptr ? nullptr : std::memset(p, 0, size);
  }

  // A block of a class when the thread's list of it is empty or ends. nullptr when memory is out.
  SPANALLOC_COLD Allocated allocate_slow(ClassId size_class);
  static Allocated refill(HotSpans& hot, ClassId size_class);
  static Allocated carve(HotSpans& hot, ClassId size_class);
  static Allocated take_larger(HotSpans& hot, ClassId size_class);
  bool find_span(Lab& lab, ClassId size_class);
  Span* find_pooled(Lab& lab, ClassId size_class);
  bool take_floating(Lab& lab, ClassId size_class);
  static void make_hot(Lab& lab, const TakenSpan& taken, ClassId size_class);

  // --- Deallocation ------------------------------------------------------------------------------
  // Frees what the fast path did not: a block outside the thread's hot span, or a bad pointer. (No
  // members of the thread's: the pointer stays in the register in which free got it.)
  [[gnu::noinline]] static void deallocate_elsewhere(void* p, Frontend& thread, Span* span,
                                                     Mark mark);
  SPANALLOC_COLD static void deallocate_outside(void* p, Frontend& thread);
  template <OperatorDelete Caller>
  SPANALLOC_COLD static void leave_or_deallocate(void* p, Frontend& thread) {
    if (Caller::leaves()) return Caller::free_elsewhere(p);
    deallocate_outside(p, thread);
  }
  // A block that was written to in between begins a list that is damaged: out of use with it.
  SPANALLOC_COLD void double_free(void* p) {
    for (FreeBlock*& first : spans.list.entries) {
      if (first == p && !first->has_link()) first = nullptr;
    }
    os::fatal("double free of", p);
  }
  SPANALLOC_COLD void deallocate_foreign(Span* span, void* p, ClassId size_class);
  void free_owned(Lab& lab, Span* span, void* p, ClassId size_class);
  SPANALLOC_COLD static void deallocate_suspect(void* p, Frontend& thread, Span* span, Mark mark);
  SPANALLOC_COLD void settle(Span* span) { heap_->protocol_.settle(span, self()).report_if_any(); }
  bool is_newest_free(const Span* span, const void* p, ClassId size_class) const;
  SPANALLOC_COLD bool is_listed(const Span* span, const FreeBlock* block, ClassId size_class) const;
  void refresh_view();

  // --- Giving up ---------------------------------------------------------------------------------
  [[nodiscard]] Damage give_up_hot(Lab& lab, ClassId size_class);
  bool give_up_empty(Lab& lab);
  bool give_address_space_back();

  // --- The thread (frontend_thread.hpp) ----------------------------------------------------------
  SPANALLOC_INLINE std::uint32_t thread_number() {
    if (number == 0) number = heap_->next_number_.fetch_add_relaxed(1) + 1;
    return number;
  }
  SharedLab& shared_lab() {
    return heap_->shared_lab(Config::kCoreLocal ? thread_number() % heap_->shared_labs() : 0);
  }
  // Without a LAB, or while its sets close, the thread adopts in a shared one's name.
  SPANALLOC_INLINE Identity self() {
    return {owner != kTerminated ? owner : shared_lab().owner_word(),
            heap_->backend_.shard_of(thread_number())};
  }
  SPANALLOC_COLD bool acquire_lab();
  [[nodiscard]] Damage terminate();

  Heap<Config>* heap_;  // constant
};

}  // namespace spanalloc::scalloc
