// The slow paths of malloc, calloc and aligned requests.
//
//   allocate                  hit: pops the list of the class's current span, or of a batch
//     allocate_larger         the same above 1,152 B
//     allocate_large          above 32 KiB: the cached large span that was freed last
//     allocate_last           the list's last block, of a span that has no other
//     allocate_beyond         the list is empty: a ready span has a block
//     allocate_missed         else:
//       Refill::take_last     hands out the list's last block, and refills the list with what the
//                             span has
//       allocate_class        no block: Refill::refill() takes what the span has, its remote list,
//                             a ready span, or an away one of which others have freed enough. Else
//                             find_span() finds one that is nobody's, or what Heap::take_span()
//                             has. A thread that has allocated little in the class is lent some
//                             blocks of such a span instead
//       allocate_huge         above 1 MiB: LargeBlocks::take_own_span()
#pragma once

#include "standard/class_lookup.hpp"
#include "standard/large_blocks.hpp"
#include "standard/thread_life.hpp"

namespace spanalloc::standard {

/// `thread` is the thread cache of the calling thread.
template <class Config>
struct MallocMiss {
  using Classes = SizeClasses<Config>;
  using Large = LargeBlocks<Config>;

  /// Any n.
  template <class Policy>
  [[gnu::noinline]] static void* allocate_missed(std::size_t n, auto& thread) {
    if constexpr (OperatorNew<Policy>) {
      if (SPANALLOC_UNLIKELY(Policy::leaves())) return Policy::allocate_elsewhere(n);
    }
    void* p = nullptr;
    if (SPANALLOC_UNLIKELY(n > Config::kMaxBlock)) {
      p = allocate_huge(thread, {n}, Fill{});
    } else {
      const ClassId c = Classes::of(n == 0 ? 1 : n);
      if (SPANALLOC_LIKELY(c < Classes::kFirstLarge)) {
        Block* last = Refill<Config>::take_last(thread, c);
        if (SPANALLOC_LIKELY(last != nullptr)) return last;
      }
      p = allocate_class(thread, c, {n});
    }
    return SPANALLOC_LIKELY(p != nullptr) ? p : Policy::out_of_memory(n);
  }

  /// The short path has met the list of `target`, the class's current span, whose first block has
  /// this link: no block is behind it, or the list is empty, or damaged. The last block of a span
  /// without another one leaves the span used up.
  template <class Policy>
  [[gnu::noinline]] static void* allocate_last(std::size_t n, auto& thread, FreeTarget* target,
                                               std::uint64_t link) {
    Block* const block = target->free_list().first();
    const bool is_last = link == (address_of(block) ^ address_of(no_block()));
    if (SPANALLOC_UNLIKELY(!is_last || target->stock() != Stock::kNone))
      return allocate_beyond<Policy>(n, thread, target);
    target->free_list().take_off(block, link);
    target->use_up();
    unpoison(block, Classes::info(target->own_class()).block_size);
    return block;
  }

  template <class Policy>
  [[gnu::noinline]] static void* allocate_beyond(std::size_t n, auto& thread, FreeTarget* target) {
    const ClassId c = target->own_class();
    // (Class 0 is that of no span: of a class that the thread has not had.)
    if (target->is_used_up() && index_of(c) != 0 && thread.cache->owned.take_ready(thread, c)) {
      FreeTarget* const next = thread.current[index_of(c)];
      Block* const block = next->free_list().first();
      const std::uint64_t link = block->template link<Policy>();
      const ClassInfo& info = Classes::info(c);
      if (SPANALLOC_LIKELY(leads_to_block(link, info.virtual_span))) {
        next->free_list().take_off(block, link);
        unpoison(block, info.block_size);
        return block;
      }
      return allocate_last<Policy>(n, thread, next, link);
    }
    return allocate_missed<Policy>(n, thread);
  }
  /// A block with a span of its own: the cached large span that the thread has freed last, if its
  /// class fits.
  template <class Policy>
  [[gnu::noinline]] static void* allocate_large(std::size_t n, auto& thread) {
    auto* const cache = thread.template cache_for<Policy>();
    if (SPANALLOC_UNLIKELY(n > Config::kMaxBlock || cache == nullptr))
      return allocate_missed<Policy>(n, thread);
    const ClassId c = ClassLookup<Config>::large[n];
    Span* large = cache->large_spans.take_youngest(c);
    if (SPANALLOC_UNLIKELY(large == nullptr)) return allocate_missed<Policy>(n, thread);
    if (SPANALLOC_UNLIKELY(static_cast<std::uint32_t>(n) > large->room()))
      return Large::fit_cached(n, thread, large, kQuantum);
    return Large::block_of(*large, c);
  }

  /// Of more bytes than the classes that are looked up by the byte have, or of none.
  [[gnu::noinline]] static void* allocate_larger_aligned(auto& thread, std::size_t n,
                                                         std::size_t alignment) {
    const std::size_t multiple = align_up(n, alignment);
    if (SPANALLOC_UNLIKELY(multiple - 1 >= Config::kMaxSmall))
      return allocate_by_alignment(thread, n, alignment);
    return thread.template allocate_larger<ReturnNull>(multiple, thread);
  }

  /// The same with what it begins with.
  [[gnu::noinline]] static void* allocate_filled(auto& thread, std::size_t n, const Fill& fill) {
    if (n > Config::kMaxBlock) return allocate_huge(thread, {n}, fill);
    const ClassId c = Classes::of(n);
    if (c >= Classes::kFirstLarge) {
      if (SPANALLOC_UNLIKELY(os::in_kernel_call())) return allocate_nested({n}, fill);
      free_put_off(thread);
      const auto inside = thread.enter_miss();
      return thread.pages->start() ? Large::take(thread, c, {n}, fill) : nullptr;
    }
    void* p = nullptr;
    Refilled refilled = Refilled::kBlocks;
    if (n < kSmallPage || thread.cache == nullptr) {
      p = thread.allocate(n);
    } else {
      // Such a block is carved alone: into an empty list refill() brings just that one.
      if (thread.list_of(c).is_empty()) {
        const auto inside = thread.enter_miss();
        thread.cache->timed_work.count_miss(thread);
        refilled = Refill<Config>::refill(thread, c);
        if (refilled == Refilled::kNothing) return nullptr;
      }
      p = Refill<Config>::take(thread, c);
    }
    if (p != nullptr) fill.write(p, refilled == Refilled::kZeroBlocks);
    return p;
  }

 private:
  [[gnu::noinline]] static void* allocate_by_alignment(auto& thread, std::size_t n,
                                                       std::size_t alignment) {
    if (SPANALLOC_UNLIKELY(n == 0)) return thread.allocate_aligned(1, alignment);
    const ClassId c = Classes::of_aligned(n, alignment);
    if (c == ClassId::kNone) return allocate_huge(thread, {n, alignment}, Fill{});
    if (c >= Classes::kFirstLarge && thread.cache != nullptr) {
      if (Span* const large = thread.cache->large_spans.take_youngest(c); large != nullptr)
        return Large::block_for(thread, large, c, {n, alignment});
    }
    return allocate_class(thread, c, {n, alignment});
  }

  // A block of class c, the request's class. nullptr: memory is out.
  static void* allocate_class(auto& thread, ClassId c, Request request) {
    if (SPANALLOC_UNLIKELY(os::in_kernel_call())) {
      // Small blocks are aligned as their size is: the request does not tell more.
      return allocate_nested(c < Classes::kFirstLarge ? as_small(c) : request, Fill{});
    }
    free_put_off(thread);
    const auto inside = thread.enter_miss();
    // There is no cache record left (there is room for 262,144 living threads), or no memory for
    // one, or the thread has ended.
    if (SPANALLOC_UNLIKELY(thread.cache == nullptr && !ThreadLife<Config>::attach(thread))) {
      if (c >= Classes::kFirstLarge) return Large::take_own_span(thread, request, Fill{});
      return thread.pages->start() ? Refill<Config>::take_alone(thread, c) : nullptr;
    }
    thread.cache->timed_work.count_miss(thread);
    return c < Classes::kFirstLarge ? static_cast<void*>(Refill<Config>::take(thread, c))
                                    : Large::take(thread, c, request, Fill{});
  }
  static Request as_small(ClassId c) {
    const std::size_t bytes = Classes::info(c).block_size;
    return {bytes, bytes & (0 - bytes)};
  }

  SPANALLOC_COLD static void* allocate_huge(auto& thread, Request request, const Fill& fill) {
    if (SPANALLOC_UNLIKELY(os::in_kernel_call())) return allocate_nested(request, fill);
    free_put_off(thread);
    const auto inside = thread.enter_miss();
    return Large::take_own_span(thread, request, fill);
  }

  // Within a kernel call.
  SPANALLOC_COLD static void* allocate_nested(Request request, const Fill& fill) {
    if (request.bytes > kMaxRequest || request.alignment > kMaxRequest) return nullptr;
    void* p = NestedBlocks::allocate(request.bytes, request.alignment);
    if (p != nullptr) fill.write(p, false);
    return p;
  }
  static void free_put_off(auto& thread) {
    SPANALLOC_ASSERT(thread.has_nothing_in_hand());  // the program's function may come next
    NestedBlocks::free_put_off([&](void* p) { thread.deallocate(p); });
    thread.pages->memory_return.before_malloc(thread.exited);
  }
};

}  // namespace spanalloc::standard
