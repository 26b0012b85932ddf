// What a thread asks about a block that is out: its size, its heap, and to make it larger or
// smaller.
#pragma once

#include "engines/standard/large_blocks.hpp"
#include "engines/standard/location.hpp"

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
    return look_at_once(thread, p).usable;
  }
  /// No `usable`: it is elsewhere, or may be free, or is to be looked at once more.
  template <LeavesAlone Policy>
  SPANALLOC_INLINE static Resized resize_at_once(auto& thread, void* p, std::size_t n) {
    const Known at = look_at_once(thread, p);
    if (SPANALLOC_LIKELY(at.c < Classes::kFirstLarge && at.usable != 0))
      return resize_small<Policy>(p, n, at.c);
    return Policy::leaves_alone(n, at.usable) ? Resized{p, at.usable} : Resized{};
  }

  // --- Of any block ------------------------------------------------------------------------------

  static std::size_t usable_size(auto& thread, const void* p) {
    if (p == nullptr) return 0;
    const Location at = locate_live(thread, p);
    if (SPANALLOC_UNLIKELY(!at.is_block)) return thread.pages->outside.usable_size(p);
    return Large::block_bytes(*thread.pages, at.size_class(), at.span);
  }

  static bool owns(auto& thread, const void* p) {
    const Location at = Location::of(p, *thread.pages);
    return at.in_span ? thread.heap->has(at.span)
                      : thread.pages->outside.has(p, index_of(thread.heap->number()));
  }

  template <LeavesAlone Policy>
  static Resized resize(auto& thread, void* p, std::size_t n) {
    Pages& pages = *thread.pages;
    const Location at = locate_live(thread, p);
    if (SPANALLOC_UNLIKELY(!at.is_block)) {
      const std::size_t usable = pages.outside.usable_size(p);
      if (Policy::leaves_alone(n, usable)) return {p, usable};
      if (SPANALLOC_UNLIKELY(n > usable && n <= kMaxRequest &&
                             pages.arena.shortage().is_watched())) {
        const auto inside = thread.enter();
        pages.memory_return.before_taking(Large::slices_for(n - usable));
      }
      return resize_outside(pages, p, usable, n);
    }
    const ClassId c = at.size_class();
    if (!Classes::has_one_block(c)) return resize_small<Policy>(p, n, c);
    const std::size_t usable = Large::block_bytes(pages, c, at.span);
    if (Policy::leaves_alone(n, usable)) return {p, usable};
    if (n > kMaxRequest || n <= Config::kMaxSmall) return {nullptr, usable};
    const auto inside = thread.enter();
    return {resize_large(pages, at.span, n, Large::slices_of(pages, c, at.span)), usable};
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
  // With no call, no lock and no other thread's line but the second one of the span's record.
  SPANALLOC_INLINE static Known look_at_once(auto& thread, const void* p) {
    Pages& pages = *thread.pages;
    const std::size_t number = pages.slice_of(address_of(p));
    if (SPANALLOC_UNLIKELY(!pages.has_plain_slice(number))) return {};
    const SpanRef span = pages.span_of(pages.span(SpanNumber{static_cast<std::uint32_t>(number)}));
    const SpanWord word = span->load_word();
    const ClassId c = span->shown_class();
    const std::size_t size = Classes::info(c).block_size;
    if (SPANALLOC_LIKELY(thread.is_mine(word))) {
      const auto* const block = static_cast<const Block*>(p);
      const bool is_live =
          span->is_block(address_of(p)) && !standard::Misuse<Config>::looks_free(block) &&
          span->free_list().first() != block && word.head() != pages.offset_of(span, p);
      return SPANALLOC_LIKELY(is_live) ? Known{size, c} : Known{};
    }
    // (A huge one's size is the arena's to tell.)
    if (word != kLargeInUse || c == Classes::kHuge || !span->begins_at(address_of(p))) return {};
    return {min_of(std::size_t{span->room()}, size), c};
  }
  // The place of a live block. If that says "no block", the block is outside the arena.
  SPANALLOC_INLINE static Location locate_live(auto& thread, const void* p) {
    using Misuse = standard::Misuse<Config>;
    // The span stays as it is because the caller's block is out
    const Location at = Location::of(p, *thread.pages);
    if (SPANALLOC_UNLIKELY(!at.is_block)) {
      if (thread.pages->outside.usable_size(p) != 0) return {};
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
  static void* resize_large(Pages& pages, SpanRef span, std::size_t n, SliceCount old) {
    Heap& home = pages.heap_of(span);
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
      if (!resize_where_it_stands(home, span, c, slices, old)) {
        return may_move ? home.move_out(span, old, n) : nullptr;
      }
      pages.memory_return.purge_slack(span, pages.address(span.number) + offset, n, true);
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

  static bool resize_where_it_stands(Heap& home, SpanRef span, ClassId c, SliceCount slices,
                                     SliceCount old) {
    // In this order, because a fork's child may find the span in between: its class
    // then says less than it has.
    const ClassId before = span->class_id();
    if (slices < old) span->change_class(c, Classes::info(c));
    const bool fits = slices == old || home.resize_in_place(span, old, slices);
    const ClassId now = fits ? c : before;
    span->change_class(now, Classes::info(now));
    return fits;
  }
};

}  // namespace spanalloc::standard
