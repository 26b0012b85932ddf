// What a thread asks about a block that is out: its size, and to make it larger or smaller.
#pragma once

#include "standard/large_blocks.hpp"
#include "standard/location.hpp"

namespace spanalloc::standard {

/// `thread` is the thread cache of the calling thread.
template <class Config>
struct Resize {
  using Classes = SizeClasses<Config>;
  using Large = LargeBlocks<Config>;
  using Heap = standard::Heap<Config>;
  using Pages = PageLayer<Config>;

  // --- At once: of a live block of a span of this thread, or of a large one ----------------------

  /// 0: it is elsewhere, or may be free.
  SPANALLOC_INLINE static std::size_t usable_size_at_once(auto& thread, const void* p) {
    const Span* const own = own_of_live(thread, p);
    if (SPANALLOC_LIKELY(own != nullptr)) return Classes::info(own->shown_class()).block_size;
    return look_by_record(thread, p).usable;
  }
  /// No `usable`: it is elsewhere, or may be free, or is to be looked at once more.
  template <LeavesAlone Policy>
  SPANALLOC_INLINE static Resized resize_at_once(auto& thread, void* p, std::size_t n) {
    const Span* const own = own_of_live(thread, p);
    if (SPANALLOC_LIKELY(own != nullptr)) return resize_small<Policy>(p, n, own->shown_class());
    const Known at = look_by_record(thread, p);
    if (at.usable != 0 && at.c < Classes::kFirstLarge) return resize_small<Policy>(p, n, at.c);
    return Policy::leaves_alone(n, at.usable) ? Resized{p, at.usable} : Resized{};
  }

  // --- Of any block ------------------------------------------------------------------------------

  static std::size_t usable_size(auto& thread, const void* p) {
    if (p == nullptr) return 0;
    std::size_t outside = 0;
    const Location at = locate_live(thread, p, outside);
    if (SPANALLOC_UNLIKELY(!at.is_block)) return outside;
    return Large::block_bytes(*thread.pages, at.size_class(), at.span);
  }

  static bool owns(auto& thread, const void* p) {
    const Location at = Location::of(p, *thread.pages);
    return at.in_span || thread.pages->outside.usable_size(p) != 0;
  }

  template <LeavesAlone Policy>
  static Resized resize(auto& thread, void* p, std::size_t n) {
    Pages& pages = *thread.pages;
    std::size_t usable = 0;
    const Location at = locate_live(thread, p, usable);
    if (SPANALLOC_UNLIKELY(!at.is_block)) {
      if (Policy::leaves_alone(n, usable)) return {p, usable};
      if (SPANALLOC_LIKELY(n <= usable || n > kMaxRequest ||
                           !pages.arena.shortage().is_watched())) {
        return resize_outside(pages, p, usable, n);
      }
      const auto inside = thread.enter();
      pages.memory_return.before_taking(Large::slices_for(n - usable));
      const Resized resized = resize_outside(pages, p, usable, n);
      pages.memory_return.after_taking();
      return resized;
    }
    const ClassId c = at.size_class();
    if (!Classes::has_one_block(c)) return resize_small<Policy>(p, n, c);
    usable = Large::block_bytes(pages, c, at.span);
    if (Policy::leaves_alone(n, usable)) return {p, usable};
    if (n > kMaxRequest || n <= Config::kMaxSmall) return {nullptr, usable};
    const auto inside = thread.enter();
    return {resize_large(thread, at.span, n, Large::slices_of(pages, c, at.span)), usable};
  }

 private:
  template <LeavesAlone Policy>
  SPANALLOC_INLINE static Resized resize_small(void* p, std::size_t n, ClassId c) {
    const std::size_t usable = Classes::info(c).block_size;
    const bool stays =
        Policy::leaves_alone(n, usable) || (n <= Config::kMaxSmall && Classes::of(n) == c);
    return {stays ? p : nullptr, usable};
  }
  struct Known {
    std::size_t usable = 0;
    ClassId c = ClassId::kNone;
  };
  // The looks at once: with no call, no lock and no other thread's line but the second one of the
  // span's record.

  // The span of this thread that has the block; nullptr: the map does not show it, or the block may
  // be free.
  SPANALLOC_INLINE static const Span* own_of_live(auto& thread, const void* p) {
    const std::uintptr_t a = address_of(p);
    FreeTargetPointer target(*thread.map, a);
    if (SPANALLOC_UNLIKELY(!FreeTarget::accepts(target, a))) return nullptr;
    // Else a remote batch, of a span that another thread may have
    if (SPANALLOC_UNLIKELY(!thread.pages->is_record(target.get()))) return nullptr;
    const auto* const span = static_cast<const Span*>(target.get());
    return may_be_free(*span, p) ? nullptr : span;
  }
  // Asked of a block in a span of this thread.
  SPANALLOC_INLINE static bool may_be_free(const Span& span, const void* p) {
    const auto* const block = static_cast<const Block*>(p);
    // (Lists count from where the span begins: its first block begins in its first slice.)
    const std::size_t offset = address_of(p) - align_down(span.first_block(), Classes::kSlice);
    return SPANALLOC_UNLIKELY(standard::Misuse<Config>::looks_free(block) ||
                              span.free_list().first() == block ||
                              span.load_word().head() == as_block_offset(offset));
  }
  // Of a large block, or an own one of a thread that gets no map. (Others locate_live() shows.)
  SPANALLOC_INLINE static Known look_by_record(auto& thread, const void* p) {
    Pages& pages = *thread.pages;
    const std::uintptr_t a = address_of(p);
    const std::size_t number = pages.slice_of(a);
    if (SPANALLOC_UNLIKELY(!pages.has_plain_slice(number))) return {};
    const SpanRef slice = pages.span(SpanNumber{static_cast<std::uint32_t>(number)});
    if (slice->load_word() == kLargeInUse) {
      const ClassId c = slice->shown_class();
      // (A huge one's size is the arena's to tell.)
      if (c == Classes::kHuge || !slice->begins_at(a)) return {};
      return {min_of(std::size_t{slice->room()}, std::size_t{Classes::info(c).block_size}), c};
    }
    const SpanRef span = pages.span_of(slice);
    const ClassId c = span->shown_class();
    const bool is_known = thread.is_mine(span->load_word()) && thread.has_no_map_for_good() &&
                          span->is_block(a) && !may_be_free(*span.record, p);
    return is_known ? Known{Classes::info(c).block_size, c} : Known{};
  }
  // The place of a live block. If that says "no block", the block is outside the arena, and
  // `outside` is set to its usable bytes.
  SPANALLOC_INLINE static Location locate_live(auto& thread, const void* p, std::size_t& outside) {
    using Misuse = standard::Misuse<Config>;
    // The span stays as it is because the caller's block is out
    const Location at = Location::of(p, *thread.pages);
    if (SPANALLOC_UNLIKELY(!at.is_block)) {
      outside = thread.pages->outside.usable_size(p);
      if (outside != 0) return {};
      if (at.has_record())
        os::fatal("size asked of a pointer that is not the start of a live block:", p);
      os::fatal("size asked of a pointer that this allocator did not return:", p);
    }
    const auto* block = static_cast<const Block*>(p);
    const bool suspect = at.size_class() < Classes::kFirstLarge && Misuse::looks_free(block);
    if (SPANALLOC_UNLIKELY((suspect && Misuse::is_on_list(thread, at.span, block)) ||
                           Misuse::is_newest_free(thread, at.span, at.word, p))) {
      os::fatal("size asked of memory that is free:", p);
    }
    if (thread.is_mine(at.word)) thread.miss_map(at.span, *at.span.record);
    return at;
  }

  // Resizes a block outside the arena. It keeps the room that it got for growing, or has because it
  // was larger, as long as that is less than about a third of it, and at most 32 MiB. (Otherwise a
  // size that goes back and forth would cost two system calls each time, and the page faults.) A
  // block that grows after it was made smaller comes back into the arena, where the memory that it
  // gives and takes stays dirty.
  SPANALLOC_COLD static Resized resize_outside(Pages& pages, void* p, std::size_t usable,
                                               std::size_t n) {
    if (n > kMaxRequest || n <= Config::kMaxBlock) return {nullptr, usable};
    if (n <= usable && n >= usable / 16 * 11 && usable - n <= Config::kMostKeptOutside)
      return {p, usable};
    if (n > usable && n <= Config::kMostThatComesBack && pages.outside.was_larger(p)) {
      pages.outside.comes_back(n);
      return {nullptr, usable};
    }
    void* resized = pages.outside.resize(
        p, n <= usable ? n : pages.outside.with_room(n, pages.arena.is_short()));
    if (resized == nullptr && n > usable) resized = pages.outside.resize(p, n);
    return {resized, usable};
  }

  // Resizes the block of a span of one block, of `old` slices: by slices behind it, or its pages
  // move out of the arena.
  static void* resize_large(auto& thread, SpanRef span, std::size_t n, SliceCount old) {
    Pages& pages = *thread.pages;
    Heap& heap = *thread.heap;
    const std::size_t offset = Large::Place::offset_of(span->first_block());
    const SliceCount slices = Large::slices_for(offset + n);
    // If the block begins late in its first slice, the class that has as many slices.
    ClassId c = n > Config::kMaxBlock ? Classes::kHuge : Classes::of(n);
    if (c != Classes::kHuge && Classes::info(c).slices != slices.count) {
      c = offset + n > Config::kMaxBlock ? Classes::kHuge : Classes::of(offset + n);
    }
    const bool may_move = slices > old && n > Config::kMoveAtLeast &&
                          old.count << Config::kSliceBits >= Config::kMoveAtLeast;
    if (keeps_its_room(span, slices, old)) {
      span->asked = static_cast<std::uint32_t>(max_of(slices.count, span->asked));
    } else {
      if (!resize_where_it_stands(pages, heap, span, c, slices, old)) {
        return may_move ? heap.move_out(span, old, n) : nullptr;
      }
      const std::size_t gone =
          pages.memory_return.purge_slack(span, pages.address(span.number) + offset, n, true);
      // (A block that grows mostly grows again, and keeps its room.)
      if (SPANALLOC_UNLIKELY(gone != 0) && slices < old)
        pages.memory_return.limit_room(span, n, gone);
      span->asked = static_cast<std::uint32_t>(slices.count);
    }
    char* block = pages.address(span.number) + offset;
    unpoison(block, Large::block_bytes(pages, span->class_id(), span));
    return block;
  }

  // Whether a block that was resized keeps its room: it does if it shrinks by no more than an
  // eighth (or a slice) of the most that was asked for. Else a size that goes back and forth
  // would move it each time.
  static bool keeps_its_room(SpanRef span, SliceCount slices, SliceCount old) {
    if (span->class_id() != Classes::kHuge || span->asked == 0 || slices > old) return false;
    return slices.count + max_of(span->asked / 8, 1) >= span->asked;
  }

  static bool resize_where_it_stands(Pages& pages, Heap& heap, SpanRef span, ClassId c,
                                     SliceCount slices, SliceCount old) {
    // In this order, because a fork's child may find the span in between: its class
    // then says less than it has.
    const ClassId before = span->class_id();
    if (slices < old) change_class(pages, span, c);
    const bool fits = slices == old || heap.resize_in_place(span, old, slices);
    // (If it could not grow, it is as it was.)
    if (fits || slices < old) change_class(pages, span, fits ? c : before);
    return fits;
  }
  static void change_class(Pages& pages, SpanRef span, ClassId c) {
    if (SPANALLOC_UNLIKELY(span->gone != 0)) pages.memory_return.forget_gone(*span.record);
    span->change_class(c, Classes::info(c));
  }
};

}  // namespace spanalloc::standard
