// malloc's slow path: finding a span to allocate from (Listing 3's get_span), and its free blocks.
#pragma once

#include "papers/scalloc/engine/frontend.hpp"
#include "papers/scalloc/engine/frontend_thread.hpp"

namespace spanalloc::scalloc {

template <class Config>
Allocated Frontend<Config>::allocate_slow(ClassId size_class) {
  // Of 4 KiB and more a class is aligned to that, of less to its size, if that is a power of two.
  if (os::in_kernel_call()) return {allocate_nested(info(size_class).block_size, 1), true};
  NestedBlocks::free_put_off([this](void* put_off) { deallocate(put_off); });
  const Inside within(*this);
  if (!heap_->ensure_started()) return {};
  const LabScope lab(*this);
  HotSpans& hot = *lab->hot;
  for (;;) {
    if (hot.list[size_class] != nullptr) return {hot.pop(size_class)};
    if (hot.hot[size_class] == nullptr) {
      if (!find_span(*lab, size_class) && !take_floating(*lab, size_class)) {
        return take_larger(hot, size_class);
      }
      continue;
    }
    if (const Allocated made = refill(hot, size_class); made.block != nullptr) return made;
  }
}

// Finds blocks in the hot span whose list is empty, or makes it floating and returns none.
template <class Config>
Allocated Frontend<Config>::refill(HotSpans& hot, ClassId size_class) {
  Span* span = hot.hot[size_class];
  SPANALLOC_ASSERT(hot.list[size_class] == nullptr);
  if (span->local_list != nullptr) {
    hot.list[size_class] = span->local_list;
    span->local_list = nullptr;
    return {hot.pop(size_class)};
  }
  if (span->carved.load_relaxed() < span->blocks) return carve(hot, size_class);
  SpanWord seen = span->load_word();
  for (;;) {
    SPANALLOC_ASSERT(seen.state() == State::kHot);  // O7
    const std::uint32_t remote = seen.count();
    if (SPANALLOC_UNLIKELY(span->suspected.load_relaxed() != 0)) {
      const FreeBlock* damaged = count_listed(span, span->block_at(seen.head_offset())).damaged;
      if (damaged != nullptr) {
        hot.hot[size_class] = nullptr;
        Protocol::lose(span);
        os::fatal("free list corrupted (freed twice, or written after free) at", damaged);
      }
    }
    if (remote == span->blocks || is_reusable<Config>(span->blocks, span->blocks - remote)) {
      FreeBlock* list = span->block_at(seen.head_offset());
      if (!span->try_mark_hot(seen)) continue;
      hot.list[size_class] = list;
      return {hot.pop(size_class)};
    }
    hot.hot[size_class] = nullptr;
    Config::at(Step::kBeforeFloating, span);
    // On the count just seen: a block freed meanwhile makes this fail.
    if (span->try_mark_floating(seen, false)) return {};
    hot.hot[size_class] = span;
  }
}

// Hands out the first of a page's worth of blocks that were never handed out, and lists the others.
template <class Config>
Allocated Frontend<Config>::carve(HotSpans& hot, ClassId size_class) {
  constexpr std::uint32_t kPiece = 4096;
  Span* span = hot.hot[size_class];
  const std::uint32_t size = info(size_class).block_size;
  const std::uint32_t carved = span->carved.load_relaxed();
  const std::uint32_t offset = span->first_block + carved * size;
  const auto piece_end = static_cast<std::uint32_t>(align_up(offset + 1, kPiece));
  const std::size_t count =
      min_of(max_of((piece_end - offset) / size, 1), std::size_t{span->blocks} - carved);
  SPANALLOC_ASSERT(count >= 1 && offset + count * size <= info(size_class).real_span);
  FreeBlock* list = nullptr;
  unpoison(pointer_to(span->address() + offset), count * size);
  for (std::size_t i = count - 1; i > 0; --i) {
    auto* block = pointer_to<FreeBlock>(span->address() + offset + i * size);
    block->link_to(list);
    list = block;
    poison_free(block, size_class);
  }
  hot.list[size_class] = list;
  span->carved.store_relaxed(carved + static_cast<std::uint32_t>(count));
  auto* first = pointer_to<FreeBlock>(span->address() + offset);
  const bool zero = offset >= span->dirty_to;
  if (!zero) first->clear_link();  // of an earlier life
  return {first, zero};
}

// Listing 3's get_span: makes some span the LAB's hot one; false when memory is out.
template <class Config>
bool Frontend<Config>::find_span(Lab& lab, ClassId size_class) {
  Protocol& protocol = heap_->protocol_;
  const Identity me = self();
  SPANALLOC_ASSERT(lab.hot->hot[size_class] == nullptr && lab.hot->list[size_class] == nullptr);
  protocol.examine_suspects(lab, size_class, me);
  if constexpr (!Config::kEagerReturn) protocol.reclaim_listed(lab, size_class, me);
  if (const TakenSpan taken = protocol.take_reusable(lab, size_class); taken.span != nullptr) {
    make_hot(lab, taken, size_class);
    return true;
  }
  Span* span = find_pooled(lab, size_class);
  if (span == nullptr) return false;
  span->owner.store_release(lab.owner_word());
  span->mark_taken_hot();
  lab.hot->hot[size_class] = span;
  return true;
}

// From the pool or the arena, and if there is none, after giving up what is empty.
template <class Config>
Span* Frontend<Config>::find_pooled(Lab& lab, ClassId size_class) {
  Backend<Config>& backend = heap_->backend_;
  if (Span* span = backend.get_pooled(size_class, lab.core)) return span;
  for (const ClassId c : kAllClasses) heap_->protocol_.examine_suspects(lab, c, self());
  if (Span* span = backend.get_pooled(size_class, lab.core)) return span;
  if (Span* span = backend.get_fresh(size_class)) return span;
  give_up_empty(lab);
  heap_->reclaim_everywhere(self());
  backend.close_pooled();
  return backend.get_pooled(size_class, lab.core);
}

// Memory is out: any span of the class will do that has a free block and belongs to this LAB or to
// nobody. The LAB has no references to floating spans, so this walks the arena.
template <class Config>
bool Frontend<Config>::take_floating(Lab& lab, ClassId size_class) {
  Protocol& protocol = heap_->protocol_;
  const Directory& directory = heap_->backend_.directory();
  const std::size_t limit = directory.limit.load_acquire();
  for (std::size_t g = 0; g < limit; ++g) {
    const SliceNumber slice = known_slice(g);
    // A hint: the span may have moved on.
    if (directory.mark(slice) != Mark::of_class(size_class)) continue;
    const TakenSpan taken = protocol.take_idle(lab, directory.span(slice), size_class, self());
    if (taken.span == nullptr) continue;
    make_hot(lab, taken, size_class);
    return true;
  }
  return false;
}

// And if there is none, a block of a larger class from a span that is hot already; none without
// one. Of a class as well aligned: who asked may have chosen the class for its alignment.
template <class Config>
Allocated Frontend<Config>::take_larger(HotSpans& hot, ClassId size_class) {
  for (const ClassId c : kAllClasses) {
    if (c <= size_class || natural_alignment(c) < natural_alignment(size_class)) continue;
    if (!hot.has_blocks(c)) continue;
    if (hot.list[c] != nullptr) return {hot.pop(c)};
    return refill(hot, c);
  }
  return {};
}

template <class Config>
void Frontend<Config>::make_hot(Lab& lab, const TakenSpan& taken, ClassId size_class) {
  SPANALLOC_ASSERT(lab.hot->hot[size_class] == nullptr && lab.hot->list[size_class] == nullptr);
  SPANALLOC_ASSERT(taken.span->owner.load_relaxed() == lab.owner_word());  // O7
  // Hot: nobody looks at it; published when the span floats
  taken.span->local_free.store_relaxed(0);
  lab.hot->list[size_class] = taken.list;
  lab.hot->hot[size_class] = taken.span;
}

}  // namespace spanalloc::scalloc
