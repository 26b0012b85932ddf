// Blocks with a span of their own: large ones, of a class, and huge ones, of any size and
// alignment. No thread owns such a span.
#pragma once

#include "engine/engine.hpp"
#include "standard/fill.hpp"
#include "standard/large_block_place.hpp"
#include "standard/refill.hpp"

namespace spanalloc::standard {

/// `thread` is the thread cache of the calling thread.
template <class Config>
struct LargeBlocks {
  using Classes = SizeClasses<Config>;
  using Place = LargeBlockPlace<Config>;
  using Heap = standard::Heap<Config>;
  static constexpr std::size_t kSlice = Classes::kSlice;

  // --- From cached large spans -------------------------------------------------------------------

  /// The block of a cached large span, which is in use again.
  SPANALLOC_INLINE static void* block_of(const Span& large, ClassId c) {
    void* p = pointer_to(large.first_block());
    unpoison(p, min_of(std::size_t{large.room()}, std::size_t{Classes::info(c).block_size}));
    return p;
  }

  /// The same for a request that may be aligned.
  static void* block_for(auto& thread, Span* large, ClassId c, Request request) {
    const bool fits =
        request.bytes <= large->room() && Place::is_aligned(large->first_block(), request);
    return fits ? block_of(*large, c) : fit_cached(request.bytes, thread, large, request.alignment);
  }

  /// Moves the block of a cached large span, which is in use again: the request would not fit
  /// behind its beginning, or would not be aligned there. (No other thread looks at that, because
  /// no block of the span is out. It still begins in its first slice.)
  [[gnu::noinline]] static void* fit_cached(std::size_t n, auto& thread, Span* large,
                                            std::size_t alignment) {
    const ClassId c = large->shown_class();
    const std::uintptr_t first = align_down(large->first_block(), kSlice);
    const SpanRef span{large,
                       SpanNumber{static_cast<std::uint32_t>(thread.pages->slice_of(first))}};
    const std::size_t offset =
        Place::offset(span.number, Classes::info(c).virtual_span, {n, alignment});
    if (SPANALLOC_UNLIKELY(large->gone != 0)) thread.pages->memory_return.forget_gone(*large);
    large->move_block(first + offset, Classes::info(c));
    return block_of(*large, c);
  }

  // --- From the pool and the arena ---------------------------------------------------------------

  /// A large block. nullptr: memory is out.
  static void* take(auto& thread, ClassId c, Request request, const Fill& fill) {
    if (void* p = take_cached(thread, c, request); p != nullptr) {
      fill.write(p, false);
      return p;
    }
    FreshSpan fresh;
    if (SPANALLOC_LIKELY(thread.cache != nullptr))
      fresh = thread.heap->take_pooled_large(c, *thread.cache, thread.shard());
    if (!fresh) fresh = Refill<Config>::take_span(thread, c);
    return fresh ? hand_out(thread, fresh, c, request, fill) : nullptr;
  }

  /// A huge block, or one of any size and alignment. nullptr: memory is out, or there never is so
  /// much.
  SPANALLOC_COLD static void* take_own_span(auto& thread, Request request, const Fill& fill) {
    Heap& heap = *thread.heap;
    if (request.bytes > kMaxRequest || request.alignment > kMaxRequest || !thread.pages->start()) {
      return nullptr;
    }
    const SliceCount slices = slices_for(max_of(request.bytes, 1));
    const std::size_t multiple = slices_for(request.alignment).count;
    const auto take = [&] {
      return heap.take_own_span(slices, multiple, Heap::Reuse::kDirtyFirst);
    };
    FreshSpan fresh = take();
    if (SPANALLOC_UNLIKELY(!fresh) && Refill<Config>::give_back_unused(thread)) fresh = take();
    if (!fresh) return nullptr;
    if (fill.is_zero() && !fresh.zero)
      fresh.zero = thread.pages->memory_return.zero_by_purging(fresh.span, slices);
    return hand_out(thread, fresh, Classes::kHuge, request, fill);
  }

  // --- How large they are ------------------------------------------------------------------------

  static SliceCount slices_for(std::size_t bytes) {
    return {(bytes + kSlice - 1) >> Config::kSliceBits};
  }
  static SliceCount slices_of(auto& pages, ClassId c, SpanRef span) {
    return c == Classes::kHuge ? pages.slices_of(span) : SliceCount{Classes::info(c).slices};
  }
  /// How many bytes of a block of that class, of any, in that span the program may use.
  static std::size_t block_bytes(auto& pages, ClassId c, SpanRef span) {
    if (!Classes::has_one_block(c)) return Classes::info(c).block_size;
    if (c != Classes::kHuge)
      return min_of(std::size_t{span->room()}, std::size_t{Classes::info(c).block_size});
    return Place::bytes(span->first_block(), c, pages.slices_of(span).count * kSlice);
  }

 private:
  // A block from any of the thread's cached large spans of the class; nullptr: there is none.
  [[gnu::noinline]] static void* take_cached(auto& thread, ClassId c, Request request) {
    if (SPANALLOC_UNLIKELY(thread.cache == nullptr)) return nullptr;
    Span* large = thread.cache->large_spans.take(c, [](const Span& span) {
      return unsigned{Classes::kTable[index_of(span.shown_class())].slices};
    });
    return large != nullptr ? block_for(thread, large, c, request) : nullptr;
  }

  // The span's record says "in use" last of all: until then a fork's child finds the memory free.
  static void* hand_out(auto& thread, const FreshSpan& fresh, ClassId c, Request request,
                        const Fill& fill) {
    Heap& heap = *thread.heap;
    const SpanRef span = fresh.span;
    const std::uintptr_t last = span->first_block();
    if (fresh.same_class && request.bytes <= span->room() && Place::is_aligned(last, request)) {
      void* p = block_of(*span.record, c);
      fill.write(p, fresh.zero);
      heap.begin_same_life(span);
      return p;
    }
    const std::size_t span_bytes = slices_of(*thread.pages, c, span).count * kSlice;
    SPANALLOC_ASSERT(span_bytes == thread.pages->slices_of(span).count * kSlice);
    // In used memory the block begins where the last one did, if that will do:
    // those pages are in memory.
    const bool stays = !fresh.zero && Classes::has_one_block(span->shown_class()) &&
                       Place::fits(last, span_bytes, request);
    const std::size_t offset =
        stays ? Place::offset_of(last) : Place::offset(span.number, span_bytes, request);
    SPANALLOC_ASSERT(request.bytes <= span_bytes - offset);
    char* p = thread.pages->address(span.number) + offset;
    unpoison(p, Place::bytes(address_of(p), c, span_bytes));
    auto& bound = thread.pages->memory_return;
    std::size_t gone = 0;
    if (!fresh.same_class) {
      if (!fresh.zero || bound.soft_limit.limit() != 0)
        gone = bound.purge_slack(span, p, request.bytes, fresh.is_pooled);
    } else if (span->gone != 0) {
      bound.forget_gone(*span.record);
    }
    fill.write(p, fresh.zero);
    heap.begin_single_life(fresh, c, offset);
    if (SPANALLOC_UNLIKELY(gone != 0)) bound.limit_room(span, request.bytes, gone);
    return p;
  }
};

}  // namespace spanalloc::standard
