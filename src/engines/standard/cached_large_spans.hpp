// A thread's own few cached large spans of one block: what it frees of them it allocates again, without the
// pool, the clock, or a word of the block (whose first page may never have been touched).
//
// The span's word says whose spare it is, so that any thread may take one away that its thread cache has no
// use for:
//
//   in use --thread cache's thread, free--> spare of the thread cache     the place is written first, then
//   the word in use --any thread, free--> taken                  when it cannot be a spare; or as any remote
//   free of nobody, from the pool --thread cache's thread--> spare of the thread cache     several at a time
//   spare of the thread cache --its thread, malloc--> in use
//   spare of the thread cache --anybody--> taken                 to be put into the pool
//
// each by one compare-and-swap from exactly the former word (but from the pool by a store: nobody else has
// the span). A place is only a guess: it may name a span that was taken, and says nothing then. Only the
// thread cache's thread makes a span its spare, so what it reads of a record before its compare-and-swap is
// still so after it. A fork's child finds each spare at a place, or in the hands of a thread that was inside
// (HeapCall).
#pragma once

#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "engines/standard/span.hpp"
#include "engines/standard/span_word.hpp"

namespace spanalloc::standard {

/// A span of one block whose block is out.
inline constexpr SpanWord kSingleInUse = SpanWord::make(kNobody, SpanState::kShared, 1);
/// Free, and of whoever has taken it away.
inline constexpr SpanWord kCachedTaken = SpanWord::make(kNobody, SpanState::kFree, 0);
/// Free, and at a place of that thread cache. (No span in a pool or the arena has such a word.)
constexpr SpanWord cached_of(CacheNumber cache) {
  return SpanWord::make(cache, SpanState::kFree, 0).with_delayed(true);
}

/// Zero-initialisable.
template <unsigned kMostGranules>
class CachedLargeSpans {
 public:
  void start(CacheNumber cache) { cached_ = cached_of(cache); }

  // --- The thread cache's thread
  // ------------------------------------------------------------------------------------

  /// Keeps a span of one block, of `slices`, that is in use. False: there is no room, or it is not in use;
  /// nothing has changed.
  SPANALLOC_INLINE bool keep(Span& span, unsigned slices) {
    const std::uint32_t n = count_;
    const unsigned sum = sums_[n] + slices;
    if (SPANALLOC_UNLIKELY(sum > kMostGranules)) return false;
    places_[n].store_relaxed(&span);
    // Release: whoever takes it may hand its memory on, after all that the program did to it; and a fork's
    // child that finds the word finds the place.
    if (SPANALLOC_UNLIKELY(!change(span, kSingleInUse, cached_))) {
      places_[n].store_relaxed(nullptr);
      return false;
    }
    sums_[n + 1] = static_cast<std::uint8_t>(sum);
    count_ = n + 1;
    return true;
  }

  /// Keeps a span that is free and the calling thread's alone, who is inside the heap, for a fork's child.
  /// False: there is no room, nothing has changed.
  bool add(Span& span, unsigned slices) {
    const std::uint32_t n = count_;
    const unsigned sum = sums_[n] + slices;
    if (sum > kMostGranules) return false;
    SPANALLOC_ASSERT(span.load_word().state() == SpanState::kFree);
    places_[n].store_relaxed(&span);
    span.word.store_release(cached_.bits);  // release: as in keep()
    sums_[n + 1] = static_cast<std::uint8_t>(sum);
    count_ = n + 1;
    return true;
  }

  /// Whether half of the room and more is free.
  bool has_half() const { return sums_[count_] < kMostGranules / 2; }
  /// False: so large a span would be refused.
  bool has_room_for(unsigned slices) const { return sums_[count_] + slices <= kMostGranules; }
  /// Lets go of the older ones until half of the room is free, f(Span&) for each, which is the caller's then.
  /// Of those that others have taken nothing is left. `slices_of(span)`: as given to keep().
  template <class SlicesOf, class F>
  void let_go_of_older(SlicesOf&& slices_of, F&& f) {
    const std::uint32_t n = count_;
    std::uint32_t i = 0;
    for (; i<n&& unsigned{sums_[n]} - sums_[i]> kMostGranules / 2; ++i) {
      Span* span = places_[i].load_relaxed();
      if (change(*span, cached_, kCachedTaken)) f(*span);
    }
    std::uint32_t kept = 0;
    for (; i < n; ++i) {
      Span* span = places_[i].load_relaxed();
      if (span->load_word() == cached_) keep_place(kept, span, slices_of);
    }
    end_places(kept);
  }

  /// The youngest, in use again, if it is of class c.
  SPANALLOC_INLINE Span* take_youngest(ClassId c) {
    const std::uint32_t n = count_;
    if (n == 0) return nullptr;
    Span* span = places_[n - 1].load_relaxed();
    if (span->shown_class.load_relaxed() != index_of(c) || !change(*span, cached_, kSingleInUse))
      return nullptr;
    count_ = n - 1;
    places_[n - 1].store_relaxed(nullptr);
    if (span == nullptr) __builtin_unreachable();  // else the caller asks
    return span;
  }
  /// Any of class c. Those that others have taken make room again. `slices_of(span)`: as given to keep().
  template <class SlicesOf>
  Span* take(ClassId c, SlicesOf&& slices_of) {
    Span* found = nullptr;
    std::uint32_t kept = 0;
    const std::uint32_t n = count_;
    for (std::uint32_t i = 0; i < n; ++i) {
      Span* span = places_[i].load_relaxed();
      if (span->load_word() != cached_) continue;
      if (found == nullptr && span->shown_class.load_relaxed() == index_of(c) &&
          change(*span, cached_, kSingleInUse)) {
        found = span;
        continue;
      }
      keep_place(kept, span, slices_of);
    }
    end_places(kept);
    return found;
  }

  bool is_empty() const { return count_ == 0; }

  // --- Anybody ---------------------------------------------------------------------------------------------

  /// f(Span&) for each that may be here.
  template <class F>
  void for_each(F&& f) const {
    for (const Atomic<Span*>& place : places_) {
      Span* span = place.load_relaxed();
      if (span != nullptr && span->load_word() == cached_) f(*span);
    }
  }
  /// True: it is the caller's, who is inside the heap, for a fork's child.
  bool take_away(Span& span) { return change(span, cached_, kCachedTaken); }
  /// The same for one that is in use, whose block is freed.
  static bool give_up(Span& span) { return change(span, kSingleInUse, kCachedTaken); }

  // --- While nobody else uses the thread cache
  // ----------------------------------------------------------------------

  void forget() {
    for (Atomic<Span*>& place : places_) place.store_relaxed(nullptr);
    count_ = 0;
  }

 private:
  template <class SlicesOf>
  void keep_place(std::uint32_t& kept, Span* span, SlicesOf&& slices_of) {
    // Written there before it is cleared here. (Behind it others may see it twice.)
    places_[kept].store_release(span);
    // (It may have been taken since we looked, and be anything: it counts as one at least, and all together
    // as no more than there can be.)
    const unsigned sum = sums_[kept] + static_cast<unsigned>(max_of(slices_of(*span), 1));
    sums_[++kept] = static_cast<std::uint8_t>(min_of(sum, kMostGranules));
  }
  void end_places(std::uint32_t kept) {
    for (std::uint32_t i = kept; i < count_; ++i) places_[i].store_release(nullptr);
    count_ = kept;
  }
  static bool change(Span& span, SpanWord from, SpanWord to) {
    return span.word.compare_exchange_strong_acq_rel(from.bits, to.bits);
  }

  Atomic<Span*> places_[kMostGranules + 1];
  SpanWord cached_;  // constant: cached_of() the thread cache
  std::uint32_t count_ = 0;
  std::uint8_t sums_[kMostGranules + 2] = {};  // sums_[n]: slices of the first n
};

}  // namespace spanalloc::standard
