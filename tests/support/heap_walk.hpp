// Walks over all spans of a standard heap and looks for each in all the places that a span may be in: the
// proof that none was lost, and that the heap's books agree with each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "engines/standard/engine.hpp"
#include "engines/standard/own_heap.hpp"

namespace spanalloc::test {

/// Every span by where it is. Taken while no other thread runs in the heap; exact then.
struct HeapWalk {
  std::size_t carved = 0;   ///< spans that the arena has handed out and not taken back: the sum of all below
  std::size_t in_pool = 0;  ///< free, and found in the pool exactly once
  std::size_t hot_empty = 0;  ///< hot span of a living LAB, no block out
  std::size_t hot = 0;        ///< hot span of a living LAB, blocks out (or another thread's, not looked into)
  std::size_t floating = 0;   ///< on a LAB's list, below the reusability threshold
  std::size_t reusable = 0;   ///< on a LAB's list, above it
  std::size_t single = 0;     ///< the one block of the span is out
  std::size_t lost = 0;       ///< out of use: hot spans of threads that a fork left behind, and damaged ones
  std::size_t broken = 0;     ///< anything else: in no place, or in two

  /// Nothing is out: each span is in the pool or an empty hot span of a living LAB.
  bool all_returned() const { return carved == in_pool + hot_empty; }
  bool consistent() const {
    return broken == 0 && carved == in_pool + hot_empty + hot + floating + reusable + single + lost;
  }
};

}  // namespace spanalloc::test

namespace spanalloc::standard {

/// Makes one walk: notes who holds which span, then asks each span's record whether that agrees.
template <class Config>
class HeapWalker {
  using Heap = standard::Heap<Config>;
  using Lab = standard::Lab<Config>;
  using Classes = standard::SizeClasses<Config>;

 public:
  explicit HeapWalker(Heap& heap) : heap_(heap), pages_(heap.pages()) {}

  test::HeapWalk walk() {
    test::HeapWalk out;
    if (!heap_.is_started()) return out;
    note_pooled(out);
    note_spares();
    note_listed(out);
    pages_.arena.walk([&](std::uint32_t number, std::size_t, bool free) {
      const SpanRef span = pages_.span(SpanNumber{number});
      if (free || !heap_.has(span)) return;
      ++out.carved;
      count(span, out);
    });
    return out;
  }

 private:
  // How many places of each kind hold a span.
  static constexpr unsigned kPooled = 1;
  static constexpr unsigned kListed = 1 << 16;

  void note_pooled(test::HeapWalk& out) {
    for (unsigned stack = 0; stack < Classes::kPoolStacks; ++stack) {
      const unsigned row = Classes::row_of_stack(stack);
      for (unsigned core = 0; core < heap_.pool().cores(); ++core) {
        const SpanNumber first = heap_.pool().take_all(stack, core);
        SpanNumber last = SpanNumber::kNone;
        for (SpanNumber number = first; number != SpanNumber::kNone;
             number = Heap::Pool::next_of(number, pages_.pool_links())) {
          const SpanRef span = pages_.span(number);
          places_[span.record] += kPooled;
          const ClassInfo& info = Classes::info(span->class_id());
          const bool fits = info.pool_row == row && pages_.granules_of(span).count == info.granules;
          if (!fits || !heap_.has(span)) ++out.broken;
          last = number;
        }
        if (first != SpanNumber::kNone) heap_.pool().put_chain(stack, core, first, last, pages_.pool_links());
      }
    }
  }

  void note_spares() {
    pages_.for_each_lab([&](Lab& lab) {
      if (lab.heap.load_relaxed() != heap_.number()) return;
      lab.spares.for_each([&](Span& span) { places_[&span] += kPooled; });
    });
  }

  template <class List>
  void note_list(const List& list, ListId id, LabNumber owner, test::HeapWalk& out) {
    for (SpanNumber number = list.first(); number != SpanNumber::kNone;) {
      const SpanRef span = pages_.span(number);
      places_[span.record] += kListed;
      number = span->next;
      if (span->list != id || span->load_word().owner() != owner || !heap_.has(span)) ++out.broken;
    }
  }

  void note_listed(test::HeapWalk& out) {
    pages_.for_each_lab([&](Lab& lab) {
      if (lab.heap.load_relaxed() != heap_.number()) return;
      LockGuard guard(lab.lock);
      note_list(lab.attention, ListId::kAttention, lab.number, out);
      note_list(lab.full, ListId::kFull, lab.number, out);
      for (unsigned c = 0; c < Classes::kListed; ++c) {
        note_list(lab.floating[c], ListId::kFloating, lab.number, out);
        note_list(lab.reusable[c], ListId::kReusable, lab.number, out);
        if (!lab.is_orphanage() || lab.reusable[c].is_empty()) continue;
        const std::uint64_t shown = heap_.orphanages().of_class[c].load_relaxed();
        if ((shown >> (lab.orphanage - 1) & 1) == 0) ++out.broken;  // nobody from elsewhere would find it
      }
    });
  }

  bool is_empty(SpanRef span, SpanWord word) {
    const ClassInfo& info = Classes::info(span->class_id());
    // What others have freed `word` knows, as of a hot span no other frees are in there.
    const std::uint32_t carved = span->carved.load_relaxed();
    std::uint32_t free = info.blocks - carved + info.blocks - word.outstanding() +
                         count_dropped(span->dropped.load_relaxed(), info.block_size, carved);
    for (Block* list : {span->free_list.load_relaxed(), span->rest.load_relaxed()}) {
      free += length_of(list, info.virtual_span, info.blocks).blocks;
    }
    return free == info.blocks;
  }

  void count(SpanRef span, test::HeapWalk& out) {
    const unsigned found = places_[span.record];
    const SpanWord word = span->load_word();
    const ClassId c = span->class_id();
    switch (word.state()) {
      case SpanState::kFree:
        ++(found == kPooled ? out.in_pool : out.broken);
        return;
      case SpanState::kHot: {
        Lab& lab = pages_.lab_at(word.owner());
        const bool known = lab.thread.load_relaxed() != 0 && found == 0 && lab.has_as_hot(span.number, c);
        if (!known) {
          ++out.broken;
        } else if (pages_.is_mine(lab.number) && is_empty(span, word)) {
          ++out.hot_empty;
        } else {
          ++out.hot;
        }
        return;
      }
      case SpanState::kParked:
        if (Classes::is_single(c)) {
          ++(found == 0 ? out.single : out.broken);
        } else if (found == 0 && span->lost) {
          ++out.lost;
        } else if (found == kListed && span->uncounted && is_empty(span, word)) {
          ++out.hot_empty;  // as good as hot with the thread that will adopt it
        } else if (found != kListed || word.outstanding() <= span->unpublished()) {
          ++out.broken;
        } else {
          ++(span->list == ListId::kReusable ? out.reusable : out.floating);
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

/// Of an engine's default heap, and of a heap of one's own.
template <class Config>
HeapWalk walk_heap(StandardEngineOf<Config>& engine) {
  return standard::HeapWalker<Config>(engine.heap).walk();
}
template <class Config>
HeapWalk walk_heap(standard::OwnHeap<Config>& heap) {
  return standard::HeapWalker<Config>(heap.heap()).walk();
}
template <class E>
HeapWalk walk_heap() {
  E engine;
  return walk_heap(engine);
}

}  // namespace spanalloc::test
