// The lists of shared spans: on which list of its owner a span is, and how it gets there and off
// again.
//
//   delayed       another thread has freed a block: the owner must collect
//   nearly full   few of its blocks are free
//   partial       enough are free; on an abandoned list: any is
//   full          none is, and memory was out when its owner last looked
//
// Everything here happens under the lock of the owner, a cache or an abandoned list.
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

/// Makes the lists of a cache record an abandoned list of a heap: one without a thread, which owns
/// spans of ended threads. Each such list has a number, and a bit in the heap's words of classes.
class AbandonedList {
 public:
  static constexpr unsigned kMost = 64;

  /// `of_class`: AbandonedLists::of_class.
  void begin(std::uint32_t number, Atomic<std::uint64_t>* of_class) {
    of_class_ = of_class;
    place_ = number + 1;
  }
  void end() { place_ = 0; }
  bool is_one() const { return place_ != 0u; }
  unsigned number() const { return place_ - 1; }

  /// Whether threads see that the list may have a partial span of class c.
  bool is_shown(ClassId c) const { return (of_class_[index_of(c)].load_relaxed() & bit()) != 0; }
  /// Looks first: mostly the bit is set, and the cache line stays shared. Relaxed, here and where
  /// it is cleared: the bit only says where to look, and the lock orders it with the list (I5).
  void show(ClassId c) const {
    if (!is_shown(c)) of_class_[index_of(c)].fetch_or_relaxed(bit());
  }
  void hide(ClassId c) const { of_class_[index_of(c)].fetch_and_relaxed(~bit()); }

 private:
  std::uint64_t bit() const { return std::uint64_t{1} << number(); }

  Plain<std::uint32_t> place_{0};  // its number and one; 0: these are a thread's lists
  Plain<Atomic<std::uint64_t>*> of_class_{nullptr};
};

/// A heap's abandoned lists. There are as many as threads can end at once on this machine.
struct AbandonedLists {
  CacheNumber numbers[AbandonedList::kMost] = {};  ///< constant once the heap has a cache
  /// Constant once the heap has a cache: the number of lists, 2^n, less one
  std::uint32_t mask = 0;
  /// By class; bit n: abandoned list numbers[n] may have a partial span. Apart from the members
  /// above, which are read all the time.
  Atomic<std::uint64_t>* of_class = nullptr;

  /// Where a cache leaves its spans when its thread ends.
  CacheNumber home_of(CacheNumber cache) const { return numbers[index_of(cache) & mask]; }
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
  /// Any thread may read it: it is constant while a heap has the record.
  AbandonedList abandoned;
  /// In an abandoned list: how many of its spans are `uncounted`. Any thread may read it: a hint.
  Atomic<std::uint32_t> uncounted{0};
  List delayed;
  List full;
  List nearly_full[kClassCount];
  SharedList partial[kClassCount];
  /// Bit c: class c may have nearly full or partial spans; so a thread's end need not look at all
  /// classes. The owner reads it without the lock, because nobody else sets a bit of its record.
  static constexpr unsigned kWords = (kClassCount + 63) / 64;
  Plain<std::uint64_t> classes[kWords];

  bool is_abandoned_list() const { return abandoned.is_one(); }
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
    uncounted.store_relaxed(0);
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
    const bool is_abandoned = cache.is_abandoned_list();
    // An abandoned span serves any thread that needs a block: one free block makes it partial.
    const std::uint32_t limit = is_abandoned ? capacity - 1 : pages_.partial_outstanding(c);
    if (word.outstanding() <= limit || span->is_uncounted()) {
      span->expect_frees(word.outstanding());
      push(cache, span, ListId::kPartial);
      if (is_abandoned) cache.abandoned.show(c);
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

  // I5, of an abandoned list whose lock the calling thread holds.
  bool abandoned_are_shown(const Lists& cache) const {
    if (!cache.is_abandoned_list()) return true;
    for (unsigned c = 0; c < std::size(cache.partial); ++c) {
      if (!cache.partial[c].is_empty() && !cache.abandoned.is_shown(ClassId{c})) return false;
    }
    return true;
  }

  Pages& pages_;
};

}  // namespace spanalloc::standard
