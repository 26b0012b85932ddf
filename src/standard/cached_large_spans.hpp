// A thread's cached large spans: a few spans of one block each that it has freed. It
// allocates them again without the pool, the clock, or a look at the block (whose first page
// may never have been touched).
//
// The span's word names the cache record where the span is cached. So any thread may take a cached
// span away. The word changes by one compare-and-swap from exactly the former word:
//
//   in use -> cached   the record's thread, in a free; it writes the place first, then the word
//   in use -> taken    any thread, in a free for which the span cannot be cached; or by
//                      AtomicSpanWord::free_batch()
//   pooled -> cached   the record's thread, several at a time; nobody else has the span
//   cached -> in use   the record's thread, in a malloc
//   cached -> taken    any thread, which puts the span into the pool
//
// A place is only a guess: if its span was taken, it says nothing. Only the record's thread makes a
// span its cached one, so what it reads of the span before its compare-and-swap still holds
// afterwards. The child of a fork finds each cached span at a place, or in the hands of a thread
// that was inside (HeapCall).
#pragma once

#include <iterator>

#include "standard/span.hpp"

namespace spanalloc::standard {

/// Of one cache record. Zero-initialisable.
template <unsigned kMostSlices>
class CachedLargeSpans {
 public:
  void start(CacheNumber cache) { cached_ = cached_of(cache); }

  // --- The record's thread -----------------------------------------------------------------------

  /// Caches a span of one block, of `slices`, whose word is `from`: in use. False: there is no
  /// room, or it has another word; then nothing has changed.
  SPANALLOC_INLINE bool keep(Span& span, unsigned slices, SpanWord from = kLargeInUse) {
    const std::uint32_t n = count_;
    const unsigned sum = sums_[n] + slices;
    if (SPANALLOC_UNLIKELY(sum > kMostSlices)) return false;
    places_[n].store_relaxed(&span);
    // Release: a thread that takes the span may hand its memory on, after all that the program did
    // to it; and a fork's child that finds the word finds the place.
    if (SPANALLOC_UNLIKELY(!change(span, from, cached_))) {
      places_[n].store_relaxed(nullptr);
      return false;
    }
    sums_[n + 1] = static_cast<std::uint8_t>(sum);
    count_ = n + 1;
    return true;
  }
  /// Caches a free span that the calling thread has alone. The thread is inside the heap, for a
  /// fork's child. False: there is no room; then nothing has changed.
  bool add(Span& span, unsigned slices) {
    SPANALLOC_ASSERT(span.load_word().state() == SpanState::kFree);
    return keep(span, slices, span.load_word());
  }

  /// Whether more than half of the room is free.
  bool has_half() const { return sums_[count_] < kMostSlices / 2; }
  /// False: keep() would refuse a span of so many slices.
  bool has_room_for(unsigned slices) const { return sums_[count_] + slices <= kMostSlices; }
  /// Takes the older spans out until half of the room is free, and calls f(Span&) for each,
  /// which the caller then has. Forgets those that others have taken. `slices_of(span)`:
  /// what was given to keep().
  template <class SlicesOf, class F>
  void let_go_of_older(SlicesOf&& slices_of, F&& f) {
    const std::uint32_t n = count_;
    std::uint32_t i = 0;
    for (; i < n; ++i) {
      if (const unsigned newer = unsigned{sums_[n]} - sums_[i]; newer <= kMostSlices / 2) break;
      Span* span = places_[i].load_relaxed();
      if (change(*span, cached_, kLargeFree)) f(*span);
    }
    std::uint32_t kept = 0;
    for (; i < n; ++i) {
      Span* span = places_[i].load_relaxed();
      if (span->load_word() == cached_) keep_place(kept, span, slices_of);
    }
    end_places(kept);
  }

  /// The youngest span, in use again, if it is of class c; else nullptr.
  SPANALLOC_INLINE Span* take_youngest(ClassId c) {
    const std::uint32_t n = count_;
    if (n == 0) return nullptr;
    Span* span = places_[n - 1].load_relaxed();
    if (span == nullptr) __builtin_unreachable();  // else the caller would test it again
    if (span->shown_class() != c || !change(*span, cached_, kLargeInUse)) return nullptr;
    count_ = n - 1;
    places_[n - 1].store_relaxed(nullptr);
    return span;
  }
  /// Any span of class c, in use again, or nullptr: the youngest, or after a look at all, in which
  /// those that others have taken make room.
  /// `slices_of(span)`: what was given to keep().
  template <class SlicesOf>
  Span* take(ClassId c, SlicesOf&& slices_of) {
    if (Span* const youngest = take_youngest(c)) return youngest;
    Span* found = nullptr;
    std::uint32_t kept = 0;
    const std::uint32_t n = count_;
    for (std::uint32_t i = 0; i < n; ++i) {
      Span* span = places_[i].load_relaxed();
      if (span->load_word() != cached_) continue;
      if (found == nullptr && span->shown_class() == c && change(*span, cached_, kLargeInUse)) {
        found = span;
        continue;
      }
      keep_place(kept, span, slices_of);
    }
    end_places(kept);
    return found;
  }

  bool is_empty() const { return count_ == 0; }

  // --- Any thread --------------------------------------------------------------------------------

  /// f(Span&) for each span that may be cached here. Twice for one that others have taken and that
  /// has come back: its former place may name it still.
  template <class F>
  void for_each(F&& f) const {
    for (const Atomic<Span*>& place : places_) {
      Span* span = place.load_relaxed();
      if (span != nullptr && span->load_word() == cached_) f(*span);
    }
  }
  /// The same, once for each span.
  template <class F>
  SPANALLOC_COLD void for_each_once(F&& f) const {
    for (const Atomic<Span*>* place = places_; place != std::end(places_); ++place) {
      Span* const span = place->load_relaxed();
      if (span == nullptr || span->load_word() != cached_) continue;
      const Atomic<Span*>* first = places_;
      while (first != place && first->load_relaxed() != span) ++first;
      if (first == place) f(*span);
    }
  }
  /// True: the caller has the span now. The caller is inside the heap, for a fork's child.
  bool take_away(Span& span) { return change(span, cached_, kLargeFree); }
  /// Takes a span that is in use and whose block is freed. The result is that of take_away().
  static bool claim_in_use(Span& span) { return change(span, kLargeInUse, kLargeFree); }

  // --- While nobody else uses the record ---------------------------------------------------------

  void forget() {
    for (Atomic<Span*>& place : places_) place.store_relaxed(nullptr);
    count_ = 0;
  }

 private:
  template <class SlicesOf>
  void keep_place(std::uint32_t& kept, Span* span, SlicesOf&& slices_of) {
    // It is written here before its former place is cleared. (Until then others may see it twice.)
    places_[kept].store_release(span);
    // (The span may have been taken since we looked, and be anything: it counts as at least one
    // slice, and all spans together as no more than there is room for.)
    const unsigned sum = sums_[kept] + static_cast<unsigned>(max_of(slices_of(*span), 1));
    sums_[++kept] = static_cast<std::uint8_t>(min_of(sum, kMostSlices));
  }
  void end_places(std::uint32_t kept) {
    for (std::uint32_t i = kept; i < count_; ++i) places_[i].store_release(nullptr);
    count_ = kept;
  }
  SPANALLOC_INLINE static bool change(Span& span, SpanWord from, SpanWord to) {
    return span.word.replace(from, to);
  }

  Atomic<Span*> places_[kMostSlices + 1];
  SpanWord cached_;  // constant: cached_of(the record's number)
  std::uint32_t count_ = 0;
  std::uint8_t sums_[kMostSlices + 2] = {};  // sums_[n]: slices of the first n spans
};

}  // namespace spanalloc::standard
