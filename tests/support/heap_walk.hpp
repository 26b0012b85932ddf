// Walks over all spans of a standard heap and looks for each in all the places that a span may be
// in: the proof that none was lost, and that the heap's books agree with each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <unordered_map>

#include "owned_heap.hpp"
#include "standard/engine.hpp"
#include "standard/heap_call.hpp"

namespace spanalloc::test {

/// Every span by where it is. Taken while no other thread runs in the heap; exact then.
struct HeapWalk {
  /// Spans that the arena has handed out and not taken back: the sum of all below
  std::size_t carved = 0;
  std::size_t in_pool = 0;  ///< free, and found in the pool exactly once
  /// No block out: owned by a living thread, or left so by one that has ended
  std::size_t owned_empty = 0;
  /// Owned by a living thread, blocks out (or another thread's, not looked into)
  std::size_t owned = 0;
  std::size_t abandoned = 0;  ///< nobody's, blocks out
  std::size_t single = 0;     ///< the one block of the span is out
  std::size_t lost = 0;       ///< withdrawn: owned spans of vanished threads, and damaged ones
  std::size_t broken = 0;     ///< anything else: in no place, or in two

  /// Nothing is out: each span is in the pool or owned by a living thread.
  bool all_returned() const { return carved == in_pool + owned_empty; }
  bool consistent() const {
    return broken == 0 && carved == in_pool + owned_empty + owned + abandoned + single + lost;
  }
};

}  // namespace spanalloc::test

namespace spanalloc::standard {

/// Makes one walk: notes who holds which span, then asks each span's record whether that agrees.
template <class Config>
class HeapWalker {
  using Heap = standard::Heap<Config>;
  using CacheRecord = standard::CacheRecord<Config>;
  using Classes = standard::SizeClasses<Config>;

 public:
  explicit HeapWalker(PageLayer<Config>& pages) : heap_(pages.heap), pages_(pages) {}

  test::HeapWalk walk() {
    test::HeapWalk out;
    if (!pages_.is_started()) return out;
    take_over_from_vanished_threads();
    note_pooled(out);
    note_cached();
    pages_.arena.walk([&](std::uint32_t number, std::size_t, bool free) {
      const SpanRef span = pages_.span(SpanNumber{number});
      if (free) return;
      ++out.carved;
      count(span, out);
    });
    return out;
  }

 private:
  // How many places of each kind hold a span.
  static constexpr unsigned kPooled = 1;

  // In a fork's child whose vanished threads rested, their spans are as they left them until a
  // decay epoch goes through all records.
  void take_over_from_vanished_threads() {
    bool any_vanished = false;
    pages_.caches.for_each([&](CacheRecord& cache) {
      any_vanished = any_vanished || pages_.caches.has_vanished(cache);
    });
    if (!any_vanished || pages_.recovery_is_due.load_relaxed() == PageLayer<Config>::kRecoveryIsDue)
      return;
    CacheRecord* const none = nullptr;
    const HeapCall<Config> call(none, pages_);
    pages_.memory_return.take_all_over();
  }

  void note_pooled(test::HeapWalk& out) {
    for (unsigned stack = 0; stack < Classes::kPoolStacks; ++stack) {
      const unsigned row = Classes::row_of_stack(stack);
      for (unsigned shard = 0; shard < heap_.pool().shards(); ++shard) {
        const SpanNumber first = heap_.pool().stacks().take_all(stack, shard);
        SpanNumber last = SpanNumber::kNone;
        for (SpanNumber number = first; number != SpanNumber::kNone;
             number = Heap::Pool::Stacks::next_of(number, pages_.pool_links())) {
          const SpanRef span = pages_.span(number);
          places_[span.record] += kPooled;
          const ClassInfo& info = Classes::info(span->class_id());
          const bool fits = info.pool_row == row && pages_.slices_of(span).count == info.slices;
          if (!fits) ++out.broken;
          last = number;
        }
        if (first != SpanNumber::kNone)
          heap_.pool().stacks().put_chain(stack, shard, first, last, pages_.pool_links());
      }
    }
  }

  void note_cached() {
    pages_.caches.for_each([&](CacheRecord& cache) {
      cache.large_spans.for_each_once([&](Span& span) { places_[&span] += kPooled; });
    });
  }

  bool is_empty(SpanRef span, SpanWord word) {
    const ClassInfo& info = Classes::info(span->class_id());
    std::uint32_t free = span->count_unlisted(info);
    // Of an owned span the word counts what others have freed, and no other frees.
    free += info.blocks - word.outstanding();
    free += length_of(span->free_list().first(), info.virtual_span, info.blocks).blocks;
    return free == info.blocks;
  }

  // Of an abandoned span, whose word says how many blocks are out: the others are free. (In a
  // fork's child its thread may have vanished between a block's push and its count.)
  bool counts_exactly(SpanRef span, SpanWord word) {
    const ClassInfo& info = Classes::info(span->class_id());
    std::uint32_t free = span->count_unlisted(info);
    free += pages_.list_length(span, span->free_list().first());
    if (word.head() != BlockOffset::kNone)
      free += pages_.list_length(span, pages_.block_at_offset(span, word.head()));
    const bool counted = SpinLock::generation() == 0 ? free + word.outstanding() == info.blocks
                                                     : free + word.outstanding() >= info.blocks;
    return word.outstanding() != 0 && free <= info.blocks && counted;
  }

  void count(SpanRef span, test::HeapWalk& out) {
    const std::size_t broken = out.broken;
    place(span, out);
    if (out.broken == broken) return;
    const SpanWord word = span->load_word();
    std::fprintf(stderr, "heap walk: span %u of class %u, in %u places, stock %u: word %#llx\n",
                 index_of(span.number), index_of(span->class_id()), places_[span.record],
                 static_cast<unsigned>(span->stock()), static_cast<unsigned long long>(word.bits));
  }

  void place(SpanRef span, test::HeapWalk& out) {
    const unsigned found = places_[span.record];
    const SpanWord word = span->load_word();
    const ClassId c = span->class_id();
    switch (word.state()) {
      case SpanState::kFree:
        ++(found == kPooled ? out.in_pool : out.broken);
        return;
      case SpanState::kOwned: {
        CacheRecord& cache = pages_.caches[word.owner()];
        const bool known = cache.thread.load_relaxed() != 0 && found == 0;
        if (!known) {
          ++out.broken;
        } else if (pages_.caches.is_mine(cache) && is_empty(span, word)) {
          ++out.owned_empty;
        } else {
          ++out.owned;
        }
        return;
      }
      case SpanState::kHeld:  // at rest nobody holds it
        if (found != 0 || !word.is_uncounted()) break;
        ++(is_empty(span, word) ? out.owned_empty : out.abandoned);
        return;
      case SpanState::kNobodys:
        if (Classes::has_one_block(c)) {
          ++(found == 0 ? out.single : out.broken);
        } else if (found == 0 && span->is_withdrawn()) {
          ++out.lost;
        } else {
          ++(found == 0 && word.is_abandoned() && counts_exactly(span, word) ? out.abandoned
                                                                             : out.broken);
        }
        return;
    }
    ++out.broken;
  }

  Heap& heap_;
  PageLayer<Config>& pages_;
  std::unordered_map<const Span*, unsigned> places_;
};

}  // namespace spanalloc::standard

namespace spanalloc::test {

/// Of an engine's default heap, and of a test's own.
template <class Config>
HeapWalk walk_heap(StandardEngineOf<Config>& engine) {
  return standard::HeapWalker<Config>(engine.pages).walk();
}
template <class Config>
HeapWalk walk_heap(OwnedHeap<Config>& owned) {
  return standard::HeapWalker<Config>(owned.pages).walk();
}
template <class E>
HeapWalk walk_heap() {
  E engine;
  return walk_heap(engine);
}

}  // namespace spanalloc::test
