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
    const auto large = Heap::large_.statistics();
    out.large_bytes = large.bytes;
    out.large_objects = large.objects;
    out.live_labs = Heap::live_labs();
    out.spans_lost_to_fork = Heap::spans_lost_to_fork();
    if (!Heap::started()) return out;
    // Spans are neither split, merged nor handed out for the first time meanwhile. What they are used for
    // changes.
    LockGuard walk(Heap::walk_lock_);
    LockGuard registry(Heap::registry_lock_);
    for_each_span([&](std::uint32_t, Span& span) {
      if (SpanWord{span.word.load_acquire()}.state() == SpanState::kFree) {
        out.pooled_bytes += kGranule << span.order;
      } else {
        out.small_bytes_carved += kClassTable[span.shown_class.load_relaxed()].real_span;
      }
    });
    const PageSourceStatistics arena = Heap::arena_.statistics();
    out.reserved_bytes = arena.reserved_bytes;
    out.opened_bytes = arena.opened_bytes;
    return out;
  }

  static SpanCensus take() {
    SpanCensus out;
    if (!Heap::started()) return out;
    mark_pooled(Heap::dirty_, out);
    mark_pooled(Heap::zero_, out);
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
    if (!Heap::started()) return;
    const std::size_t end = Heap::known_granules();
    for (std::size_t number = 1; number < end;) {
      Span& span = Heap::spans_[number];
      if (!span.exists) {  // skipped for alignment, or being handed out right now
        ++number;
        continue;
      }
      visit(static_cast<std::uint32_t>(number), span);
      number += std::size_t{1} << span.order;
    }
  }

  static void mark_pooled(Heap::Pool& pool, SpanCensus& out) {
    for (unsigned order = 0; order < kOrders; ++order) {
      for (unsigned core = 0; core < pool.cores(); ++core) {
        const std::uint32_t first = pool.take_all(order, core);
        std::uint32_t last = 0;
        for (std::uint32_t number = first; number != 0;
             number = Heap::spans_[number].pool_link.load_relaxed()) {
          Span& span = Heap::spans_[number];
          span.mark = static_cast<std::uint8_t>(span.mark + kMarkPooled);
          if (span.order != order) ++out.broken;
          last = number;
        }
        if (first != 0) pool.put_chain(order, core, first, last, Heap::links());
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
    const std::uint32_t count = Heap::lab_count();
    for (std::uint32_t n = 0; n <= count; ++n) {
      Lab& lab = Heap::labs_[n];
      LockGuard guard(lab.lock);
      mark_list(lab.floating, ListId::kFloating, n, out);
      mark_list(lab.attention, ListId::kAttention, n, out);
      for (auto& head : lab.reusable) mark_list(head.load_relaxed(), ListId::kReusable, n, out);
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
        } else if (span.mark == 0 && word.owner() == kOrphanage) {
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
