// free's slow paths: blocks outside the thread's hot span, other threads' blocks,
// and pointers that are none.
#pragma once

#include "papers/scalloc/engine/frontend.hpp"
#include "papers/scalloc/engine/frontend_thread.hpp"

namespace spanalloc::scalloc {

/// The start of the block that a pointer beyond it belongs to (see Frontend::allocate_aligned).
/// Ends the process if none can be meant. `natural`: what blocks are aligned to without asking.
inline void* snap_to_block(const Span* span, const void* p, std::size_t natural) {
  if (span->is_block(p)) os::fatal("memory was never handed out:", p);
  const std::uint32_t offset = span->offset_of(p) - span->first_block;
  const std::uint32_t size =
      kSizeClasses[index_of(span->size_class.load_relaxed()) % kClassEntries % kClasses].block_size;
  if (span->shifted.load_relaxed() != 0 && size != 0 && offset < span->blocks * size) {
    const std::uint32_t into = offset % size;
    const std::uintptr_t address = address_of(p);
    // Aligned blocks are handed out at the first multiple of some power of two above 4 KiB: nothing
    // of that alignment lies between the block's start and the pointer.
    const std::uintptr_t alignment = address & (0 - address);
    if (into < alignment && alignment > natural && span->is_carved(pointer_to(address - into))) {
      return pointer_to(address - into);
    }
  }
  os::fatal("pointer is not the start of an object:", p);
}

template <class Config>
void Frontend<Config>::deallocate_elsewhere(void* p, Frontend& thread, Span* span, Mark mark) {
  if (SPANALLOC_UNLIKELY(mark.is_nothing())) {
    os::fatal("free of a pointer into memory that holds no objects", p);
  }
  if (SPANALLOC_UNLIKELY(mark.is_free()))
    os::fatal("free of memory that is free already (double free)", p);
  if (SPANALLOC_UNLIKELY(!span->is_carved(p))) p = snap_to_block(span, p, kNaturalMax);
  if (SPANALLOC_UNLIKELY(static_cast<FreeBlock*>(p)->has_link())) {
    return deallocate_suspect(p, thread, span, mark);
  }
  const Inside within(thread);
  const ClassId size_class = mark.size_class();
  poison_free(p, size_class);
  if (thread.spans.hot[size_class] == span) return thread.spans.push(size_class, p);
  // Relaxed: only this thread can have written this thread's own owner word.
  if (SPANALLOC_LIKELY(span->owner.load_relaxed() == thread.owner && thread.owner != kTerminated)) {
    const std::uint32_t blocks = span->blocks;
    thread.heap_->protocol_.push_local(span, p);
    if (SPANALLOC_UNLIKELY(Protocol::wants_settling(span, blocks))) thread.settle(span);
    return;
  }
  thread.deallocate_foreign(span, p, size_class);
}

// A block that looks free. If it is on no list that this thread may read, another thread's hot span
// has it, or the program has copied a link into it: it is freed like any other, and the span's
// lists are counted before the count is relied on.
template <class Config>
void Frontend<Config>::deallocate_suspect(void* p, Frontend& thread, Span* span, Mark mark) {
  auto* block = static_cast<FreeBlock*>(p);
  if (thread.is_listed(span, block, mark.size_class())) thread.double_free(p);
  block->clear_link();
  span->suspected.store_relaxed(1);  // published by the free
  deallocate_elsewhere(p, thread, span, mark);
}

template <class Config>
void Frontend<Config>::deallocate_outside(void* p, Frontend& thread) {
  if (p == nullptr) return;
  if (SPANALLOC_UNLIKELY(os::in_kernel_call())) return NestedBlocks::put_off(p);
  thread.refresh_view();  // the arena may have grown, or this thread may never have looked
  const Mark mark = thread.heap_->backend_.directory().mark_of(p);
  if (!mark.is_nothing()) return deallocate_elsewhere(p, thread, span_at(p), mark);
  if (!thread.heap_->large_.free(p) && !NestedBlocks::free(p))
    os::fatal("free of a pointer that is not an object's", p);
}

template <class Config>
void Frontend<Config>::deallocate_foreign(Span* span, void* p, ClassId size_class) {
  for (;;) {
    const OwnerWord theirs = span->owner.load_acquire();
    if (theirs == kTerminated) os::fatal("free of a pointer into memory that holds no objects", p);
    // Acquire: pairs with the closing of the set, so that an adopter sees what the owner left
    // behind.
    if (lab_of(theirs)->set(size_class).owner.load_acquire() != theirs) {
      Config::at(Step::kBeforeAdopting, span);
      const LabScope adopter(*this);
      // The block keeps the span alive until it is freed.
      if (!heap_->protocol_.adopt(span, theirs, size_class, adopter->owner_word())) continue;
      free_owned(*adopter, span, p, size_class);
      break;
    }
    if ((Config::kCoreLocal || own_lab == nullptr) && shared_lab().owner_word() == theirs) {
      const LabScope shared(*this);
      if (shared->owner_word() == theirs) {
        free_owned(*shared, span, p, size_class);
        break;
      }
    }
    heap_->protocol_.push_remote(span, p);
    break;
  }
  settle(span);
}

// The caller acts as the owner (under its lock, if the LAB is shared).
template <class Config>
void Frontend<Config>::free_owned(Lab& lab, Span* span, void* p, ClassId size_class) {
  SPANALLOC_ASSERT(!lab.shared || lab.lock.is_mine());
  SPANALLOC_ASSERT(span->owner.load_relaxed() == lab.owner_word());
  if (lab.hot->hot[size_class] == span) return lab.hot->push(size_class, p);
  heap_->protocol_.push_local(span, p);
}

// Brings the thread's copy of the directory up to date.
template <class Config>
void Frontend<Config>::refresh_view() {
  const Directory& directory = heap_->backend_.directory();
  // Acquire: what is below it is open and set
  const std::size_t limit = directory.limit.load_acquire();
  SPANALLOC_ASSERT(view.limit <= limit);
  view.set_limit(limit);
  view.base = directory.base.load_relaxed();
  view.marks = directory.marks.load_relaxed();
}

// Whether the block is the first of a list of free ones. (Of the others it is not
// known without a search.)
template <class Config>
bool Frontend<Config>::is_newest_free(const Span* span, const void* p, ClassId size_class) const {
  if (span->load_word().head_offset() == span->offset_of(p)) return true;
  if (spans.hot[size_class] == span && spans.list[size_class] == p) return true;
  return owner != kTerminated && span->owner.load_relaxed() == owner && span->local_list == p;
}

// Whether it is on a list that this thread may read. Others may be using the first of these
// meanwhile: then a search ends early, where a block has lost its link.
template <class Config>
bool Frontend<Config>::is_listed(const Span* span, const FreeBlock* block,
                                 ClassId size_class) const {
  if (list_has(span, span->block_at(span->load_word().head_offset()), block)) return true;
  if (spans.hot[size_class] == span && list_has(span, spans.list[size_class], block)) return true;
  return owner != kTerminated && span->owner.load_relaxed() == owner &&
         list_has(span, span->local_list, block);
}

template <class Config>
std::size_t Frontend<Config>::usable_size(const void* p) const {
  if (p == nullptr) return 0;
  const Mark mark = heap_->backend_.directory().mark_of(p);
  if (mark.is_nothing()) {
    const std::size_t size = heap_->large_.usable_size(p);
    if (size == 0) os::fatal("size asked of a pointer that is not an object's", p);
    return size;
  }
  if (mark.is_free()) os::fatal("size asked of memory that is free", p);
  const Span* span = span_at(p);
  const std::size_t size = info(mark.size_class()).block_size;
  if (SPANALLOC_LIKELY(span->is_carved(p))) {
    const auto* block = static_cast<const FreeBlock*>(p);
    if (SPANALLOC_UNLIKELY(is_newest_free(span, p, mark.size_class()) ||
                           (block->has_link() && is_listed(span, block, mark.size_class())))) {
      os::fatal("size asked of memory that is free", p);
    }
    return size;
  }
  return size - (address_of(p) - address_of(snap_to_block(span, p, kNaturalMax)));
}

template <class Config>
template <LeavesAlone Policy>
Resized Frontend<Config>::resize(void* p, std::size_t size) {
  const std::size_t usable = usable_size(p);
  if (Policy::leaves_alone(size, usable)) return {p, usable};
  if (size > kMaxRequest) return {nullptr, usable};
  if (heap_->backend_.directory().mark_of(p).is_nothing()) {
    return {size <= kSpanMax ? nullptr : heap_->large_.resize(p, size), usable};
  }
  // In place unless it would keep more than half of the block idle.
  return {size <= usable && (size > usable / 2 || usable == 16) ? p : nullptr, usable};
}

}  // namespace spanalloc::scalloc
