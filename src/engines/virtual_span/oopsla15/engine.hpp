// The engine of scalloc (M. Aigner, C. M. Kirsch, M. Lippautz, A. Sokolova, OOPSLA 2015), paper-faithful.
// DESIGN.md beside this file tells how it works and where it deviates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/poison.hpp"
#include "engines/engine.hpp"
#include "engines/virtual_span/oopsla15/census.hpp"
#include "engines/virtual_span/oopsla15/config.hpp"
#include "engines/virtual_span/oopsla15/frontend.hpp"
#include "os/os.hpp"
#include "thread/lifecycle.hpp"

namespace spanalloc {

template <class Config = Oopsla15>
class Oopsla15Engine {
  using Frontend = oopsla15::Frontend<Config>;
  using Span = oopsla15::Span;
  using FreeBlock = oopsla15::FreeBlock;

 public:
  static constexpr const char* kName = Config::kName;

  template <OutOfMemory Policy = ReturnNull>
  SPANALLOC_INLINE static void* allocate(std::size_t size) {
    if (SPANALLOC_LIKELY(size <= oopsla15::kSmallMax))
      return take<Policy>((size + 15) / 16, oopsla15::kMadviseThreshold);
    if (SPANALLOC_LIKELY(size <= oopsla15::kSpanMax)) return take_medium<Policy>(oopsla15::class_of(size));
    return allocate_huge<Policy>(size);
  }

  SPANALLOC_INLINE static void deallocate(void* p) {
    const oopsla15::DirectoryView& view = Frontend::thread.view;
    const std::uintptr_t address = address_of(p);
    const std::size_t granule = view.granule_of(address);
    // Refuses null and foreign addresses: below the base the difference wraps to a huge number.
    if (SPANALLOC_UNLIKELY(granule >= view.limit)) return deallocate_outside(p);
    const std::size_t mark = view.mark(granule);
    auto* span = pointer_to<Span>(align_down(address, oopsla15::kVirtualSpan));
    if (span == nullptr) __builtin_unreachable();  // null lies in no granule
    // Only this thread's own hot span of the class matches; marks that are no class index a null.
    if (SPANALLOC_LIKELY(Frontend::thread.spans.hot[mark] == span && span->is_carved(p))) {
      FreeBlock* list = Frontend::thread.spans.list[mark];
      if (SPANALLOC_UNLIKELY(list == p)) return double_free(p);
      auto* block = static_cast<FreeBlock*>(p);
      block->next = list;
      Frontend::thread.spans.list[mark] = block;
      Frontend::poison_free(block, mark);
      return;
    }
    Frontend::deallocate_elsewhere(span, p, mark);
  }

  static void* allocate_zeroed(std::size_t size) {
    if (size > oopsla15::kSpanMax) return allocate_large(size, 1);  // fresh from the kernel
    const unsigned size_class = size == 0 ? 1 : oopsla15::class_of(size);
    bool zero = false;
    void* p = Frontend::thread.spans.list[size_class] == nullptr ? Frontend::allocate_slow(size_class, &zero)
                                                                 : take_medium<ReturnNull>(size_class);
    if (p != nullptr && !zero) std::memset(p, 0, size);
    return p;
  }

  static void* allocate_aligned(std::size_t size, std::size_t alignment) {
    if (alignment <= 16) return allocate(size);
    if (size == 0) size = 1;
    if (alignment <= Frontend::kNaturalMax) {
      // A multiple of the alignment that is a class by 16 bytes has that alignment; classes by doubling have
      // their own size's.
      if (size <= oopsla15::kSmallMax) size = align_up(size, alignment);
      return allocate(max_of(size, alignment));
    }
    if (alignment > oopsla15::kSpanMax || size > oopsla15::kSpanMax - alignment) {
      return allocate_large(size, alignment);
    }
    // Blocks of these classes start at multiples of 4 KiB: this leaves room for the next multiple.
    void* block = allocate(size + alignment - Frontend::kNaturalMax);
    if (block == nullptr) return nullptr;
    const std::uintptr_t aligned = align_up(address_of(block), alignment);
    if (aligned != address_of(block)) span_of(block)->shifted.store_relaxed(1);
    return pointer_to(aligned);
  }

  static void* allocate_copy(std::size_t size, const void* from, std::size_t bytes) {
    void* p = allocate(size);
    return p == nullptr ? nullptr : std::memcpy(p, from, bytes);
  }

  static std::size_t usable_size(const void* p) {
    if (p == nullptr) return 0;
    const std::size_t mark = mark_of(p);
    if (mark == 0) {
      const std::size_t size = large_.usable_size(p);
      if (size == 0) os::fatal("size asked of a pointer that is not an object's", p);
      return size;
    }
    if (mark == oopsla15::kFreeClass) os::fatal("size asked of memory that is free", p);
    const Span* span = span_of(p);
    const std::size_t size = oopsla15::kSizeClasses[mark].block_size;
    if (SPANALLOC_LIKELY(span->is_carved(p))) {
      if (SPANALLOC_UNLIKELY(Frontend::is_newest_free(span, p, mark))) {
        os::fatal("size asked of memory that is free", p);
      }
      return size;
    }
    return size - (address_of(p) - address_of(Frontend::snap_to_block(span, p)));
  }

  static void* resize(void* p, std::size_t size) {
    if (mark_of(p) == 0) {
      if (large_.usable_size(p) == 0) os::fatal("resize of a pointer that is not an object's", p);
      return size <= oopsla15::kSpanMax ? nullptr : large_.resize(p, size);
    }
    const std::size_t usable = usable_size(p);
    // In place unless it would keep more than half of the block idle.
    return size <= usable && (size > usable / 2 || usable == 16) ? p : nullptr;
  }

  static bool owns(const void* p) {
    const std::size_t mark = mark_of(p);
    return mark == 0 ? large_.usable_size(p) != 0 : mark != oopsla15::kFreeClass;
  }

  static bool trim() { return Frontend::trim(); }

  static EngineStatistics statistics() {
    EngineStatistics result;
    const ArenaStatistics arena = Frontend::backend.arena_statistics();
    result.reserved_bytes = arena.reserved_bytes;
    result.opened_bytes = arena.opened_bytes;
    const oopsla15::Directory& directory = Frontend::backend.directory();
    const std::size_t limit = directory.limit.load_acquire();
    for (std::size_t granule = 0; granule < limit; ++granule) {
      const std::size_t mark = directory.mark(granule);
      if (mark == oopsla15::kFreeClass) {
        // The class of its last life; none yet: no byte was used.
        const std::uint32_t last = directory.span(granule)->size_class.load_relaxed();
        result.pooled_bytes += oopsla15::kSizeClasses[last].real_span;
      } else {
        result.small_bytes_carved += oopsla15::kSizeClasses[mark].real_span;
      }
    }
    const LargeObjectStatistics large = large_.statistics();
    result.large_bytes = large.bytes;
    result.large_objects = large.objects;
    result.live_labs = Frontend::living_labs();
    result.spans_lost_to_fork = Frontend::spans_lost_to_fork();
    return result;
  }

  /// Where every span is; exact while no other thread uses the heap.
  static oopsla15::Census census() { return oopsla15::take_census<Config>(); }

  /// Registers the fork handler, once: with the first slow path or from the library's constructor.
  static void process_start() {
    if (registered_.exchange_acq_rel(1) != 0) return;
    Frontend::prepare_thread_exits();
    thread::watch_forks(fork_watch_);
  }

 private:
  friend struct Oopsla15TestAccess;

  static void enter_child(thread::ForkWatch*) {
    large_.enter_child();
    Frontend::enter_child();
  }

  template <class Policy>
  SPANALLOC_INLINE static void* take(std::size_t size_class, std::size_t real_span) {
    FreeBlock* block = Frontend::thread.spans.list[size_class];
    if (SPANALLOC_UNLIKELY(block == nullptr)) return allocate_slow<Policy>(size_class);
    FreeBlock* next = block->next;
    // The link must lie in the same real span; null (the list's end) does not, and goes the slow way too.
    const std::uintptr_t span = align_down(address_of(block), oopsla15::kVirtualSpan);
    if (SPANALLOC_UNLIKELY(address_of(next) - span >= real_span)) return allocate_slow<Policy>(size_class);
    Frontend::thread.spans.list[size_class] = next;
    unpoison(block, oopsla15::kSizeClasses[size_class].block_size);
    return block;
  }
  template <class Policy>
  SPANALLOC_INLINE static void* take_medium(std::size_t size_class) {
    return take<Policy>(size_class, oopsla15::kRealSpans[size_class]);
  }

  template <class Policy>
  SPANALLOC_COLD static void* allocate_slow(std::size_t size_class) {
    if (SPANALLOC_UNLIKELY(registered_.load_relaxed() == 0)) process_start();
    const unsigned c = size_class == 0 ? 1 : static_cast<unsigned>(size_class);
    void* p = Frontend::allocate_slow(c, nullptr);
    return SPANALLOC_LIKELY(p != nullptr) ? p : Policy::out_of_memory(oopsla15::kSizeClasses[c].block_size);
  }
  template <class Policy>
  SPANALLOC_COLD static void* allocate_huge(std::size_t size) {
    void* p = size > kMaxRequest ? nullptr : allocate_large(size, 1);
    return SPANALLOC_LIKELY(p != nullptr) ? p : Policy::out_of_memory(size);
  }
  SPANALLOC_COLD static void* allocate_large(std::size_t size, std::size_t alignment) {
    void* p = large_.allocate(size, alignment);
    if (p == nullptr && Frontend::give_address_space_back()) p = large_.allocate(size, alignment);
    return p;
  }
  SPANALLOC_COLD static void deallocate_outside(void* p) {
    if (p == nullptr) return;
    Frontend::refresh_view();  // the arena may have grown, or this thread may never have looked
    const std::size_t mark = mark_of(p);
    if (mark != 0) return Frontend::deallocate_elsewhere(span_of(p), p, mark);
    if (!large_.free(p)) os::fatal("free of a pointer that is not an object's", p);
  }
  SPANALLOC_COLD static void double_free(void* p) { os::fatal("double free of", p); }

  static Span* span_of(const void* p) {
    return pointer_to<Span>(align_down(address_of(p), oopsla15::kVirtualSpan));
  }
  // 0 for everything outside carved spans.
  static std::size_t mark_of(const void* p) {
    const oopsla15::Directory& directory = Frontend::backend.directory();
    const std::size_t granule = directory.granule_of(address_of(p));
    return granule < directory.limit.load_relaxed() ? directory.mark(granule) : 0;
  }

  static inline constinit oopsla15::LargeSource large_{};
  static inline constinit thread::ForkWatch fork_watch_{&enter_child};
  static inline constinit Atomic<std::uint32_t> registered_{0};  // the fork watch
};

}  // namespace spanalloc
