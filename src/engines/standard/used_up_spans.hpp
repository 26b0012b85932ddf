// A thread's used-up spans, which it goes on owning for a while. Other threads' frees do not put
// them on a list, and no lock, list or compare-and-swap stands between a block's free and its next
// use. A program that goes through a few spans of a class again and again stays among them.
//
// They are a bounded number of bytes, because other threads can use what becomes free in
// an owned span by loans only. When a span joins for which there is no room, the oldest
// ones leave and are shared.
#pragma once

#include "engines/standard/size_classes.hpp"

namespace spanalloc::standard {

/// Of one cache record; only its owner uses it. Zero-initialisable. The child of a fork finds each
/// owned span of a vanished thread at least once, here or among the current spans, whatever step
/// the thread was at: a span joins before it leaves its other place, and leaves after it has got
/// another. (If it stands in both, its word tells when it has been dealt with.)
template <class Config>
class UsedUpSpans {
  static constexpr unsigned kMostSlices = Config::kUsedUpBytes >> Config::kSliceBits;

 public:
  /// One more than can stay: a span joins before another one leaves.
  static constexpr unsigned kPlaces = kMostSlices + 1;
  static constexpr unsigned kNoPlace = kPlaces;
  static_assert(kPlaces < 32);

  bool is_empty() const { return used_ == 0; }
  SpanNumber span(unsigned i) const { return spans_[i].load_relaxed(); }
  ClassId class_of(unsigned i) const { return ClassId{classes_[i]}; }
  /// The span's place; kNoPlace: it is not here. Other threads may ask for a vanished thread's.
  unsigned place_of(SpanNumber number) const {
    for (unsigned i = 0; i < kPlaces; ++i) {
      if (span(i) == number) return i;
    }
    return kNoPlace;
  }
  /// f(place); the span there may leave.
  template <class F>
  void for_each(F&& f) const {
    for (std::uint32_t places = used_; places != 0; places &= places - 1) f(first_of(places));
  }

  static bool fits_at_all(ClassId c) { return slices(c) <= kMostSlices; }
  bool fits(ClassId c) const { return slices_ + slices(c) <= kMostSlices; }
  void join(SpanNumber number, ClassId c) {
    const unsigned i = next_in(~used_ & kAll);
    SPANALLOC_ASSERT(i < kPlaces && place_of(number) == kNoPlace);
    next_ = (i + 1) % kPlaces;
    spans_[i].store_release(number);
    classes_[i] = static_cast<std::uint8_t>(index_of(c));
    slices_ += slices(c);
    used_ |= 1u << i;
  }
  void leave(unsigned i) {
    SPANALLOC_ASSERT((used_ >> i & 1) != 0 && slices(class_of(i)) <= slices_);
    spans_[i].store_release(SpanNumber::kNone);
    slices_ -= slices(class_of(i));
    used_ &= ~(1u << i);
    ready_ &= ~(1u << i);
  }
  /// Enough blocks of the span at this place are free again.
  void mark_ready(unsigned i) { ready_ |= 1u << i; }
  bool has_ready() const { return ready_ != 0; }

  /// The place of about the span that joined first; there must be one. (Joining spans take the next
  /// free place, going round, also one that became free on the way.)
  unsigned oldest() const {
    SPANALLOC_ASSERT(used_ != 0);
    return next_in(used_);
  }
  /// The place of a span of the class: of any, or of one that is marked ready.
  unsigned any(ClassId c) const { return first_of_class(used_, c); }
  unsigned any_ready(ClassId c) const { return first_of_class(ready_, c); }

  void forget() {
    for (Atomic<SpanNumber>& span : spans_) span.store_relaxed(SpanNumber::kNone);
    used_ = ready_ = slices_ = 0;
  }

 private:
  static unsigned slices(ClassId c) { return SizeClasses<Config>::info(c).slices; }
  static unsigned first_of(std::uint32_t places) {
    return static_cast<unsigned>(std::countr_zero(places));
  }

  // The next one of some places, going round; there must be one.
  unsigned next_in(std::uint32_t places) const {
    const std::uint32_t ahead = places >> next_ << next_;
    return first_of(ahead != 0 ? ahead : places);
  }
  unsigned first_of_class(std::uint32_t places, ClassId c) const {
    for (; places != 0; places &= places - 1) {
      if (class_of(first_of(places)) == c) return first_of(places);
    }
    return kNoPlace;
  }

  static constexpr std::uint32_t kAll = (1u << kPlaces) - 1;

  std::uint32_t used_ = 0;   // bit i: a span stands at place i
  std::uint32_t ready_ = 0;  // bit i: and it is marked ready
  std::uint32_t slices_ = 0;
  std::uint32_t next_ = 0;
  Atomic<SpanNumber> spans_[kPlaces];
  std::uint8_t classes_[kPlaces] = {};
};

}  // namespace spanalloc::standard
