// A thread's used-up spans, which it goes on owning for a while. Other threads' frees do not put
// them on a list, and no lock, list or compare-and-swap stands between a block's free and its next
// use. A program that goes through a few spans of a class again and again stays among them.
//
// They are a bounded number of bytes, because other threads can use what becomes free in
// an owned span by loans only. When a span joins for which there is no room, the oldest
// ones leave and are shared. A program that replaces small blocks at random finds each of its spans
// again, nearly full, a few frees after it was shared: for it there is more room.
#pragma once

#include "standard/span.hpp"

namespace spanalloc::standard {

/// Of one cache record; only its owner uses it. Zero-initialisable. The child of a fork finds each
/// owned span of a vanished thread at least once, here or among the current spans, whatever step
/// the thread was at: a span joins before it leaves its other place, and leaves after it has got
/// another. (If it stands in both, its word tells when it has been dealt with.)
template <class Config>
class UsedUpSpans {
  static constexpr unsigned kSlices = Config::kUsedUpBytes >> Config::kSliceBits;
  static constexpr unsigned kMostSlices =
      (Config::kUsedUpBytes + Config::kMoreUsedUpBytes) >> Config::kSliceBits;

 public:
  /// One more than can stay: a span joins before another one leaves.
  static constexpr unsigned kPlaces = kMostSlices + 1;
  static constexpr unsigned kNoPlace = kPlaces;
  static_assert(kPlaces < 64);

  bool is_empty() const { return used_ == 0; }
  SpanNumber span(unsigned i) const { return spans_[i].load_relaxed(); }
  ClassId class_of(unsigned i) const { return ClassId{classes_[i]}; }
  /// The span's place; kNoPlace: it is not here.
  unsigned place_of(SpanRef span) const {
    const unsigned place = span->place();  // of whatever thread it was used up last
    return place < kPlaces && this->span(place) == span.number ? place : kNoPlace;
  }
  /// Other threads may ask for a vanished thread's.
  bool has(SpanNumber number) const {
    for (const Atomic<SpanNumber>& span : spans_) {
      if (span.load_relaxed() == number) return true;
    }
    return false;
  }
  /// f(place); the span there may leave.
  template <class F>
  void for_each(F&& f) const {
    for (std::uint64_t places = used_; places != 0; places &= places - 1) f(first_of(places));
  }

  static bool fits_at_all(ClassId c) { return slices(c) <= kSlices; }
  bool fits(ClassId c) const { return slices_ + slices(c) <= kSlices + more_; }
  std::size_t room() const { return (kSlices + more_) << Config::kSliceBits; }
  /// Whether there are more than fit without that.
  bool is_among_more() const { return slices_ > kSlices; }
  bool is_beyond_room() const { return slices_ > kSlices + more_; }
  /// Search number `search` of the thread has found a span of the class of which half or more is
  /// out. From the ninth of these on, if half of the searches find such ones, there is room for it
  /// beside what was there, but not for more than `at_most` bytes beyond what there always is.
  SPANALLOC_COLD void make_room(ClassId c, std::size_t at_most, std::uint32_t search) {
    if (nearly_full_ == 0 || search - first_search_ > 2 * Config::kRefillsToKeep) {
      nearly_full_ = 1;
      first_search_ = search;
    } else if (nearly_full_ < Config::kRefillsToKeep) {
      ++nearly_full_;
    } else {
      const std::size_t most = min_of(at_most, Config::kMoreUsedUpBytes) >> Config::kSliceBits;
      more_ = min_of(more_ + slices(c), most);
    }
  }
  /// A round ends: of the room that it has made an eighth goes. A program that needs it makes it
  /// anew.
  void lose_room() { more_ -= (more_ + 7) / 8; }
  void lose_all_room() {
    more_ = 0;
    nearly_full_ = 0;
  }
  void join(SpanRef span, ClassId c) {
    const unsigned i = next_in(~used_ & kAll);
    SPANALLOC_ASSERT(i < kPlaces && place_of(span) == kNoPlace);
    next_ = (i + 1) % kPlaces;
    span->set_place(static_cast<std::uint8_t>(i));
    spans_[i].store_release(span.number);
    classes_[i] = static_cast<std::uint8_t>(index_of(c));
    slices_ += slices(c);
    used_ |= bit(i);
    of_class_[index_of(c)] |= bit(i);
  }
  void leave(unsigned i) {
    SPANALLOC_ASSERT((used_ >> i & 1) != 0 && slices(class_of(i)) <= slices_);
    spans_[i].store_release(SpanNumber::kNone);
    slices_ -= slices(class_of(i));
    used_ &= ~bit(i);
    ready_ &= ~bit(i);
    of_class_[classes_[i]] &= ~bit(i);
  }
  /// Enough blocks of the span at this place are free again.
  void mark_ready(unsigned i) { ready_ |= bit(i); }
  bool has_ready() const { return ready_ != 0; }

  /// The place of about the span that joined first; there must be one. (Joining spans take the next
  /// free place, going round, also one that became free on the way.)
  unsigned oldest() const {
    SPANALLOC_ASSERT(used_ != 0);
    return next_in(used_);
  }
  /// The place of a span of the class: of about the one that joined first, or of one that is marked
  /// ready.
  unsigned oldest_of(ClassId c) const { return next_in(of_class_[index_of(c)]); }
  unsigned any_ready(ClassId c) const { return first_of(of_class_[index_of(c)] & ready_); }

  void forget() {
    for (Atomic<SpanNumber>& span : spans_) span.store_relaxed(SpanNumber::kNone);
    for (std::uint64_t& places : of_class_) places = 0;
    used_ = ready_ = slices_ = 0;
    lose_all_room();
  }

 private:
  static std::size_t slices(ClassId c) { return SizeClasses<Config>::info(c).slices; }
  static std::uint64_t bit(unsigned i) { return std::uint64_t{1} << i; }
  // kNoPlace: of none.
  static unsigned first_of(std::uint64_t places) {
    return places == 0 ? kNoPlace : static_cast<unsigned>(std::countr_zero(places));
  }

  // The next one of some places, going round; kNoPlace: of none.
  unsigned next_in(std::uint64_t places) const {
    const std::uint64_t ahead = places >> next_ << next_;
    return first_of(ahead != 0 ? ahead : places);
  }

  static constexpr std::uint64_t kAll = (std::uint64_t{1} << kPlaces) - 1;

  std::uint64_t used_ = 0;   // bit i: a span stands at place i
  std::uint64_t ready_ = 0;  // bit i: and it is marked ready
  std::uint64_t of_class_[SizeClasses<Config>::kSmallClasses] = {};  // bit i: and is of the class
  std::size_t slices_ = 0;
  std::size_t more_ = 0;  // slices for which there is room, beyond kSlices
  unsigned next_ = 0;
  std::uint8_t nearly_full_ = 0;  // spans that were so since first_search_
  std::uint32_t first_search_ = 0;
  Atomic<SpanNumber> spans_[kPlaces];
  std::uint8_t classes_[kPlaces] = {};
};

}  // namespace spanalloc::standard
