// The lists of shared spans: on which list of its owner a span is, and how it gets there and off
// again.
//
//   delayed       another thread has freed a block: the owner must collect
//   nearly full   few of its blocks are free
//   partial       enough are free
//   full          none is, and memory was out when its owner last looked
//
// Everything here happens under the lock of the owner. A span that nobody owns is on no list.
#pragma once

#include <cstdint>
#include <iterator>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/intrusive_list.hpp"
#include "standard/span.hpp"
#include "standard/span_word.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc::standard {

/// Free spans of their finder alone, linked through `next`: for the pool, when
/// the finder holds no lock.
struct SpanChain {
  SpanNumber first = SpanNumber::kNone;
  std::uint32_t count = 0;
  /// The last span retired on the way; reported at the end
  SpanNumber damaged = SpanNumber::kNone;

  bool has_nothing() const { return first == SpanNumber::kNone && damaged == SpanNumber::kNone; }
};

/// The lists of shared spans: changed under the lock only; where a field says so also read
/// without it. Zero-initialisable.
template <unsigned kClassCount>
struct SpanLists {
  using List = IntrusiveList<SpanNumber>;
  // Any thread may ask without the lock whether it is empty: a hint.
  using SharedList = IntrusiveList<SpanNumber, Atomic<SpanNumber>>;

  WakingLock lock;
  /// 1 when the delayed list may hold something. Any thread may read it: a hint.
  Atomic<std::uint32_t> has_delayed{0};
  List delayed;
  List full;
  List nearly_full[kClassCount];
  SharedList partial[kClassCount];
  /// Bit c: class c may have nearly full or partial spans; so a thread's end need not look at all
  /// classes. The owner reads it without the lock, because nobody else sets a bit of its record.
  static constexpr unsigned kWords = (kClassCount + 63) / 64;
  Plain<std::uint64_t> classes[kWords];

  /// Calls f(list) for the list of that name.
  template <class F>
  void with_list(ListId list, ClassId c, F&& f) {
    switch (list) {
      case ListId::kPartial:
        return f(partial[index_of(c)]);
      case ListId::kNearlyFull:
        return f(nearly_full[index_of(c)]);
      case ListId::kFull:
        return f(full);
      default:
        return f(delayed);
    }
  }
  template <class F>
  void for_each_list(F&& f) {
    f(delayed);
    f(full);
    for (List& list : nearly_full) f(list);
    for (SharedList& list : partial) f(list);
  }
  void note_class(ClassId c) {
    Plain<std::uint64_t>& word = classes[index_of(c) / 64];
    word = word | std::uint64_t{1} << index_of(c) % 64;
  }
  void forget() {
    has_delayed.store_relaxed(0);
    for_each_list([](auto& list) { list.forget(); });
    for (Plain<std::uint64_t>& word : classes) word = 0;
  }
};

/// What `Pages` must offer (page_layer.hpp; in models a few spans):
///   SpanRef span(SpanNumber), Lists& cache(CacheNumber)  their records
///   std::uint32_t capacity(ClassId)                      blocks of a span of that class
///   BlockOffset cut_lists(SpanRef, BlockOffset)          PartialPurge::cut_lists()
///   std::uint32_t partial_outstanding(ClassId)           how many blocks of a partial span may be
///                                                        out
template <class Pages>
class SpanPlacement {
 public:
  using Lists = typename Pages::Lists;

  constexpr explicit SpanPlacement(Pages& pages) : pages_(pages) {}

  /// Puts a shared span with this word, on no list, on the right one. Under
  /// the lock of word.owner().
  void place(SpanRef span, SpanWord word) {
    Lists& cache = pages_.cache(word.owner());
    const ClassId c = span->class_id();
    const std::uint32_t capacity = pages_.capacity(c);
    SPANALLOC_ASSERT(word.state() == SpanState::kShared && word.outstanding() != 0);
    SPANALLOC_ASSERT(word.outstanding() <= capacity && capacity > 1);
    const std::uint32_t limit = pages_.partial_outstanding(c);
    if (word.outstanding() <= limit) {
      span->expect_frees(word.outstanding());
      push(cache, span, ListId::kPartial);
    } else {
      span->expect_frees(word.outstanding() - limit);
      push(cache, span, ListId::kNearlyFull);
    }
  }

  /// The span is on the delayed list already, or on none.
  void push_delayed(Lists& cache, SpanRef span) {
    if (span->list() != ListId::kDelayed) push(cache, span, ListId::kDelayed);
    cache.has_delayed.store_relaxed(1);  // the lock orders it
  }

  void push(Lists& cache, SpanRef span, ListId list) {
    SPANALLOC_ASSERT(may_change(cache) && span);
    SPANALLOC_ASSERT(span->list() == ListId::kNone);  // I1: on one list at most
    span->list_ = list;
    const ClassId c = span->class_id();
    cache.with_list(list, c, [&](auto& the_list) { the_list.push_front(span.number, links()); });
    if (list == ListId::kPartial || list == ListId::kNearlyFull) cache.note_class(c);
  }

  void unlink(Lists& cache, SpanRef span) {
    SPANALLOC_ASSERT(may_change(cache) && span->list() != ListId::kNone);
    cache.with_list(span->list(), span->class_id(),
                    [&](auto& the_list) { the_list.remove(span.number, links()); });
    span->list_ = ListId::kNone;
  }

  /// Calls f(SpanRef) for every span on a list. f may unlink the span or chain it up.
  template <class List, class F>
  void for_each_on(const List& list, F f) {
    for (SpanNumber number = list.first(); number != SpanNumber::kNone;) {
      const SpanRef span = pages_.span(number);
      number = span->next();
      f(span);
    }
  }

  template <class F>
  void for_each_listed(Lists& cache, F f) {
    cache.for_each_list([&](auto& list) { for_each_on(list, f); });
  }

  void chain(SpanChain& chain, SpanRef span) {
    SPANALLOC_ASSERT(span->list() == ListId::kNone &&
                     span->load_word().state() == SpanState::kFree);
    span->next_ = chain.first;
    chain.first = span.number;
    ++chain.count;
  }

 protected:
  struct Links {
    Pages& pages;
    auto& next(SpanNumber number) const { return pages.span(number)->next_; }
    auto& previous(SpanNumber number) const { return pages.span(number)->prev_; }
  };
  Links links() const { return {pages_}; }

  // Lists change under their owner's lock; in a fork's child also when the lock's holder vanished.
  static bool may_change(const Lists& cache) {
    return cache.lock.is_mine() || cache.lock.owner_died();
  }

  Pages& pages_;
};

}  // namespace spanalloc::standard
