// Walks over all span records: statistics (any time, an estimate) and the census (at rest, exact).
#pragma once

#include <cstdint>

#include "engines/engine.hpp"
#include "engines/virtual_span/span_census.hpp"
#include "engines/virtual_span/standard/frontend.hpp"
#include "engines/virtual_span/standard/heap.hpp"

namespace spanalloc::standard {

struct Census {
  static EngineStatistics statistics() {
    EngineStatistics out;
    out.live_labs = Heap::live_labs();
    out.spans_lost_to_fork = Heap::spans_lost_to_fork();
    if (!Heap::started()) return out;
    Heap::arena_.walk([&](std::uint32_t number, std::size_t granules, bool free) {
      // A range that is just being taken: its record is not its own yet, or says free.
      if (!free && number + granules > Heap::known_granules()) return;
      Span& span = Heap::spans_[number];
      const unsigned c = span.shown_class.load_relaxed();
      if (free || SpanWord{span.word.load_acquire()}.state() == SpanState::kFree) {
        out.pooled_bytes += granules << kGranuleBits;
      } else if (c == kLargeClass) {
        out.large_bytes += granules << kGranuleBits;
        ++out.large_objects;
      } else {
        out.small_bytes_carved += kClassTable[c].real_span;
      }
    });
    const ArenaStatistics arena = Heap::arena_.statistics();
    out.reserved_bytes = arena.reserved_bytes;
    out.opened_bytes = arena.opened_bytes;
    return out;
  }

  static SpanCensus take() {
    SpanCensus out;
    if (!Heap::started()) return out;
    mark_pooled(out);
    mark_listed(out);
    for_each_span([&](std::uint32_t number, Span& span) {
      ++out.carved;
      count(number, span, out);
      span.mark = 0;
    });
    return out;
  }

 private:
  // span.mark: how many places of each kind hold the span.
  static constexpr std::uint8_t kMarkPooled = 1;
  static constexpr std::uint8_t kMarkListed = 16;

  template <class Visit>
  static void for_each_span(Visit&& visit) {
    Heap::arena_.walk([&](std::uint32_t number, std::size_t, bool free) {
      if (!free) visit(number, Heap::spans_[number]);
    });
  }

  static void mark_pooled(SpanCensus& out) {
    for (unsigned row = 0; row < kPoolRows; ++row) {
      for (unsigned core = 0; core < Heap::pool_.cores(); ++core) {
        const std::uint32_t first = Heap::pool_.take_all(row, core);
        std::uint32_t last = 0;
        for (std::uint32_t number = first; number != 0;
             number = Heap::spans_[number].pool_link.load_relaxed()) {
          Span& span = Heap::spans_[number];
          span.mark = static_cast<std::uint8_t>(span.mark + kMarkPooled);
          const ClassInfo& info = kClassTable[span.size_class];
          if (info.pool_row != row || Heap::granules_of(number) != info.granules) ++out.broken;
          last = number;
        }
        if (first != 0) Heap::pool_.put_chain(row, core, first, last, Heap::links());
      }
    }
  }

  static void mark_list(std::uint32_t number, ListId list, std::uint32_t owner, SpanCensus& out) {
    for (; number != 0; number = Heap::spans_[number].next) {
      Span& span = Heap::spans_[number];
      span.mark = static_cast<std::uint8_t>(span.mark + kMarkListed);
      if (span.list != list || SpanWord{span.word.load_relaxed()}.owner() != owner) ++out.broken;
    }
  }

  static void mark_listed(SpanCensus& out) {
    for (std::uint32_t n = 0; n < Heap::end_of_labs(); ++n) {
      Lab& lab = Heap::labs_[n];
      LockGuard guard(lab.lock);
      mark_list(lab.attention, ListId::kAttention, n, out);
      mark_list(lab.full, ListId::kFull, n, out);
      for (unsigned c = 0; c < kClasses; ++c) {
        mark_list(lab.floating[c], ListId::kFloating, n, out);
        const std::uint32_t head = lab.reusable[c].load_relaxed();
        mark_list(head, ListId::kReusable, n, out);
        const bool shown = !Heap::is_orphanage(n) || (Heap::orphans(c).load_relaxed() >> n & 1) != 0;
        if (head != 0 && !shown) ++out.broken;  // nobody from elsewhere would find it
      }
    }
  }

  static void count(std::uint32_t number, Span& span, SpanCensus& out) {
    const SpanWord word{span.word.load_relaxed()};
    switch (word.state()) {
      case SpanState::kFree:
        ++(span.mark == kMarkPooled ? out.in_pool : out.broken);
        return;
      case SpanState::kHot: {
        Lab& lab = Heap::labs_[word.owner()];
        const bool known = lab.alive.load_relaxed() != 0 && span.mark == 0 &&
                           lab.hot[span.size_class].load_relaxed() == number;
        if (!known) {
          ++out.broken;
        } else if (&lab == thread_state.lab &&
                   Frontend::gather_free_blocks(&lab, span.size_class, span) == word.outstanding()) {
          ++out.hot_empty;
        } else {
          ++out.hot;
        }
        return;
      }
      case SpanState::kParked:
        if (kClassTable[span.size_class].blocks == 1) {
          ++(span.mark == 0 ? out.single : out.broken);
        } else if (span.mark == 0 && word.owner() == Heap::kOrphanageOfForks) {
          ++out.lost_to_fork;
        } else if (span.mark != kMarkListed || word.outstanding() <= span.unpublished.load_relaxed()) {
          ++out.broken;
        } else {
          ++(span.list == ListId::kReusable ? out.reusable : out.floating);
        }
        return;
    }
    ++out.broken;
  }
};

}  // namespace spanalloc::standard
