// A thread's queues of the spans that it has away: by class, the one first that was put there
// first.
//
// Another thread may claim an away span (span_protocol.hpp), and its record may live any life by
// the time that the queue comes to it. So what is in a queue is a hint, by a link that nothing else
// uses; a mark in it says that the record is in a queue, whichever thread's it is. Who takes an
// entry off looks at the span's word.
#pragma once

#include "base/assert.hpp"
#include "standard/span.hpp"

namespace spanalloc::standard {

/// Of one cache record; only its thread uses it. Zero-initialisable. `pages` has the records.
template <unsigned kClassCount>
class AwaySpans {
 public:
  /// Puts a span of the thread's own, which is in no queue, behind the others of its class.
  void push(auto& pages, unsigned c, SpanRef span, CacheNumber me) {
    SPANALLOC_ASSERT(span->away_link.load_relaxed() == 0);
    span->set_queuer(me);
    put_last(pages, c, span);
  }
  /// The first entry of the class stays.
  SpanRef first(auto& pages, unsigned c) const {
    return first_[c] == SpanNumber::kNone ? SpanRef{} : pages.span(first_[c]);
  }
  /// The first entry of the class; none: there is none. It is to be put back, or dropped.
  SpanRef take_first(auto& pages, unsigned c) {
    const SpanNumber number = first_[c];
    if (number == SpanNumber::kNone) return {};
    const SpanRef span = pages.span(number);
    first_[c] = SpanNumber{span->away_link.load_relaxed() & ~kQueued};
    return span;
  }
  void put_back(auto& pages, unsigned c, SpanRef span) { put_last(pages, c, span); }
  /// From here on the span may be put into a queue again. Relaxed: the mark is all there is to it.
  /// (It may be another thread's by now.)
  static void drop(SpanRef span) {
    span->set_queued(false);
    span->away_link.store_relaxed(0);
  }

  void forget() {
    for (SpanNumber& first : first_) first = SpanNumber::kNone;
  }

 private:
  static constexpr std::uint32_t kQueued = std::uint32_t{1} << 31;  // no span has such a number

  void put_last(auto& pages, unsigned c, SpanRef span) {
    span->away_link.store_relaxed(kQueued);
    if (first_[c] == SpanNumber::kNone) {
      first_[c] = span.number;
    } else {
      pages.span(last_[c])->away_link.store_relaxed(kQueued | index_of(span.number));
    }
    last_[c] = span.number;
  }

  SpanNumber first_[kClassCount] = {};
  SpanNumber last_[kClassCount] = {};
};

}  // namespace spanalloc::standard
