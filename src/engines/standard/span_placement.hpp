// On which list of its owner a shared span is, and how it gets there and off again.
//
//   delayed       another thread has freed a block: the owner must collect
//   nearly full   few of its blocks are free
//   partial       enough are free; on an abandoned list: any is
//   full          none is, and memory was out when its owner last looked
//
// Everything here happens under the lock of the owner, a cache or an abandoned list.
#pragma once

#include <cstdint>

#include "base/assert.hpp"
#include "engines/standard/cache_record.hpp"
#include "engines/standard/span.hpp"
#include "engines/standard/span_word.hpp"

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

/// A heap's abandoned lists: cache records without a thread, which own the spans of ended threads.
/// There are as many as threads can end at once on this machine, at most 64.
struct AbandonedLists {
  static constexpr unsigned kMost = 64;

  CacheNumber numbers[kMost] = {};  ///< constant once the heap has a cache
  /// Constant once the heap has a cache: the number of lists, 2^n, less one
  std::uint32_t mask = 0;
  /// By class; bit n: abandoned list numbers[n] may have a partial span. Apart from the members
  /// above, which are read all the time.
  Atomic<std::uint64_t>* of_class = nullptr;

  /// Where a cache leaves its spans when its thread ends.
  CacheNumber home_of(CacheNumber cache) const { return numbers[index_of(cache) & mask]; }
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
    const bool is_abandoned = cache.is_abandoned_list();
    // An abandoned span serves any thread that needs a block: one free block makes it partial.
    const std::uint32_t limit = is_abandoned ? capacity - 1 : pages_.partial_outstanding(c);
    if (word.outstanding() <= limit || span->uncounted) {
      span->expect_frees(word.outstanding());
      push(cache, span, ListId::kPartial);
      if (is_abandoned) show_abandoned(cache, c);
    } else {
      span->expect_frees(word.outstanding() - limit);
      push(cache, span, ListId::kNearlyFull);
    }
  }

  /// The span is on the delayed list already, or on none.
  void push_delayed(Lists& cache, SpanRef span) {
    if (span->list != ListId::kDelayed) push(cache, span, ListId::kDelayed);
    cache.has_delayed.store_relaxed(1);  // the lock orders it
  }

  void push(Lists& cache, SpanRef span, ListId list) {
    SPANALLOC_ASSERT(may_change(cache) && span);
    SPANALLOC_ASSERT(span->list == ListId::kNone);  // I1: on one list at most
    span->list = list;
    const ClassId c = span->class_id();
    with_list(cache, list, c, [&](auto& the_list) { the_list.push_front(span.number, links()); });
    if (list == ListId::kPartial || list == ListId::kNearlyFull) cache.note_class(c);
  }

  void unlink(Lists& cache, SpanRef span) {
    SPANALLOC_ASSERT(may_change(cache) && span->list != ListId::kNone);
    with_list(cache, span->list, span->class_id(),
              [&](auto& the_list) { the_list.remove(span.number, links()); });
    span->list = ListId::kNone;
  }

  /// Calls f(SpanRef) for every span on a list. f may unlink the span or chain it up.
  template <class List, class F>
  void for_each_on(const List& list, F f) {
    for (SpanNumber number = list.first(); number != SpanNumber::kNone;) {
      const SpanRef span = pages_.span(number);
      number = span->next;
      f(span);
    }
  }

  void chain(SpanChain& chain, SpanRef span) {
    SPANALLOC_ASSERT(span->list == ListId::kNone && span->load_word().state() == SpanState::kFree);
    span->next = chain.first;
    chain.first = span.number;
    ++chain.count;
  }

 protected:
  struct Links {
    Pages& pages;
    auto& next(SpanNumber number) const { return pages.span(number)->next; }
    auto& previous(SpanNumber number) const { return pages.span(number)->prev; }
  };
  Links links() const { return {pages_}; }

  // Lists change under their owner's lock; in a fork's child also when the lock's holder vanished.
  static bool may_change(const Lists& cache) {
    return cache.lock.is_mine() || cache.lock.owner_died();
  }

  // Looks first: mostly the bit is set, and the cache line stays shared. Relaxed: the bit only says
  // where to look, and the lock orders it with the list (I5).
  void show_abandoned(const Lists& cache, ClassId c) {
    const std::uint64_t bit = std::uint64_t{1} << (cache.abandoned_list - 1);
    Atomic<std::uint64_t>& abandoned = cache.abandoned_of_class[index_of(c)];
    if ((abandoned.load_relaxed() & bit) == 0) abandoned.fetch_or_relaxed(bit);
  }
  // I5, of an abandoned list whose lock the calling thread holds.
  bool abandoned_are_shown(const Lists& cache) const {
    if (!cache.is_abandoned_list()) return true;
    unsigned c = 0;
    for (const auto& list : cache.partial) {
      const bool shown =
          list.is_empty() ||
          (cache.abandoned_of_class[c].load_relaxed() >> (cache.abandoned_list - 1) & 1) != 0;
      if (!shown) return false;
      ++c;
    }
    return true;
  }

  Pages& pages_;

 private:
  template <class F>
  static void with_list(Lists& cache, ListId list, ClassId c, F f) {
    switch (list) {
      case ListId::kPartial:
        return f(cache.partial[index_of(c)]);
      case ListId::kNearlyFull:
        return f(cache.nearly_full[index_of(c)]);
      case ListId::kFull:
        return f(cache.full);
      default:
        return f(cache.delayed);
    }
  }
};

}  // namespace spanalloc::standard
