// Walks over all span records of a heap: statistics (any time, an estimate) and the census (at rest, exact).
#pragma once

#include <cstdint>

#include "engines/engine.hpp"
#include "engines/standard/engine.hpp"
#include "engines/standard/span_census.hpp"

namespace spanalloc::standard {

/// Of one heap; free memory is the page layer's, and shown by each of its heaps.
template <class Config>
class Census {
  using Heap = standard::Heap<Config>;
  using Lab = standard::Lab<Config>;
  using Classes = SizeClasses<Config>;

 public:
  explicit Census(Heap& heap) : heap_(heap), pages_(heap.pages()) {}

  EngineStatistics statistics() {
    EngineStatistics out;
    out.live_labs = heap_.live_labs.load_relaxed();
    out.spans_lost_to_fork = heap_.lost_to_fork.load_relaxed();
    if (!pages_.is_started()) return out;
    pages_.arena.walk([&](std::uint32_t number, std::size_t granules, bool free) {
      // A range that is just being taken: its record is not its own yet, or says free.
      if (!free && number + granules > index_of(pages_.end_of_spans())) return;
      const SpanRef span = pages_.span(SpanNumber{number});
      const std::size_t bytes = granules << Config::kGranuleBits;
      if (free || SpanWord{span->word.load_acquire()}.state() == SpanState::kFree) {
        out.pooled_bytes += bytes;
        return;
      }
      if (!heap_.has(span)) return;
      // After the word, which says that the life with this class has begun. That may be another life than
      // that of the range which the walk has seen: no more than this range is counted for it.
      const ClassId c{span->shown_class.load_relaxed()};
      if (c == Classes::kLarge) {
        out.large_bytes += bytes;
        ++out.large_objects;
      } else {
        out.small_bytes_carved += min_of(Classes::info(c).real_span, bytes);
      }
    });
    const LargeObjectStatistics mine = pages_.outside.statistics_of(index_of(heap_.number()));
    out.large_bytes += mine.bytes;
    out.large_objects += mine.objects;
    const ArenaStatistics arena = pages_.arena.statistics();
    const std::size_t outside = pages_.outside.statistics().bytes;
    out.reserved_bytes = arena.reserved_bytes + outside;
    out.opened_bytes = arena.opened_bytes + outside;
    return out;
  }

  /// `mine`: the calling thread's frontend of the heap.
  SpanCensus take(Frontend<Config>& mine) {
    SpanCensus out;
    if (!heap_.is_started()) return out;
    mark_pooled(out);
    mark_spares();
    mark_listed(out);
    pages_.arena.walk([&](std::uint32_t number, std::size_t, bool free) {
      const SpanRef span = pages_.span(SpanNumber{number});
      if (free || !heap_.has(span)) return;
      ++out.carved;
      count(span, mine, out);
      span->mark = 0;
    });
    return out;
  }

 private:
  // span.mark: how many places of each kind hold the span.
  static constexpr std::uint8_t kMarkPooled = 1;
  static constexpr std::uint8_t kMarkListed = 16;

  void mark_pooled(SpanCensus& out) {
    for (unsigned stack = 0; stack < Classes::kPoolStacks; ++stack) {
      const unsigned row = Classes::row_of_stack(stack);
      for (unsigned core = 0; core < heap_.pool().cores(); ++core) {
        const SpanNumber first = heap_.pool().take_all(stack, core);
        SpanNumber last = SpanNumber::kNone;
        for (SpanNumber number = first; number != SpanNumber::kNone;
             number = Heap::Pool::next_of(number, pages_.pool_links())) {
          const SpanRef span = pages_.span(number);
          span->mark = static_cast<std::uint8_t>(span->mark + kMarkPooled);
          const ClassInfo& info = Classes::info(span->class_id());
          const bool fits = info.pool_row == row && pages_.granules_of(span).count == info.granules;
          if (!fits || !heap_.has(span)) ++out.broken;
          last = number;
        }
        if (first != SpanNumber::kNone) heap_.pool().put_chain(stack, core, first, last, pages_.pool_links());
      }
    }
  }

  void mark_spares() {
    // Another heap's would keep the mark: take() clears those of this heap.
    pages_.for_each_lab([&](Lab& lab) {
      if (lab.heap.load_relaxed() != heap_.number()) return;
      lab.spares.for_each([](Span& span) { span.mark = static_cast<std::uint8_t>(span.mark + kMarkPooled); });
    });
  }

  template <class List>
  void mark_list(const List& list, ListId id, LabNumber owner, SpanCensus& out) {
    for (SpanNumber number = list.first(); number != SpanNumber::kNone;) {
      const SpanRef span = pages_.span(number);
      number = span->next;
      span->mark = static_cast<std::uint8_t>(span->mark + kMarkListed);
      if (span->list != id || span->load_word().owner() != owner || !heap_.has(span)) ++out.broken;
    }
  }

  void mark_listed(SpanCensus& out) {
    pages_.for_each_lab([&](Lab& lab) {
      if (lab.heap.load_relaxed() != heap_.number()) return;
      LockGuard guard(lab.lock);
      mark_list(lab.attention, ListId::kAttention, lab.number, out);
      mark_list(lab.full, ListId::kFull, lab.number, out);
      for (unsigned c = 0; c < Classes::kListed; ++c) {
        mark_list(lab.floating[c], ListId::kFloating, lab.number, out);
        mark_list(lab.reusable[c], ListId::kReusable, lab.number, out);
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

  void count(SpanRef span, Frontend<Config>& mine, SpanCensus& out) {
    const SpanWord word = span->load_word();
    const ClassId c = span->class_id();
    switch (word.state()) {
      case SpanState::kFree:
        ++(span->mark == kMarkPooled ? out.in_pool : out.broken);
        return;
      case SpanState::kHot: {
        Lab& lab = pages_.lab_at(word.owner());
        const bool known =
            lab.thread.load_relaxed() != 0 && span->mark == 0 && lab.has_as_hot(span.number, c);
        if (!known) {
          ++out.broken;
        } else if (&lab == mine.lab && is_empty(span, word)) {
          ++out.hot_empty;
        } else {
          ++out.hot;
        }
        return;
      }
      case SpanState::kParked:
        if (Classes::is_single(c)) {
          ++(span->mark == 0 ? out.single : out.broken);
        } else if (span->mark == 0 && span->lost) {
          ++out.lost;
        } else if (span->mark == kMarkListed && span->uncounted && is_empty(span, word)) {
          ++out.hot_empty;  // as good as hot with the thread that will adopt it
        } else if (span->mark != kMarkListed || word.outstanding() <= span->unpublished()) {
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
};

}  // namespace spanalloc::standard
