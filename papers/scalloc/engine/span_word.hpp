// The word that decides over a span.
//
// The paper keeps three words that a free may change: the epoch {state, ABA counter}, the remote
// free list {top, count}, and the owner. Emptiness and state then cannot be decided together, and
// most of the known failures of that scheme are the gap between the two. Here the epoch and the
// remote list are ONE word, so "this free was the last" and "the span is free now" are one
// compare-and-swap. Names are the paper's.
#pragma once

#include <cstdint>

#include "base/assert.hpp"

namespace spanalloc::scalloc {

/// Figure 3. expected: never used; free: in the pool or on its way there; the rest: in
/// the frontend. And lost: out of use for ever, for misuse was found in it; what is
/// still out of it may be freed.
enum class State : std::uint64_t {
  kExpected = 0,
  kFree = 1,
  kHot = 2,
  kFloating = 3,
  kReusable = 4,
  kLost = 5
};

/// A value of the span word:
///
///   bits  0..16  head: offset / 16 of the newest block of the remote free list, 0 when it is empty
///   bits 17..28  count: blocks in the remote free list
///   bit  29      mixed: the owner holds free blocks that count does not show (local_free may be >
///                0)
///   bit  30      listed: the span is linked into its owner's set
///   bits 31..33  state
///   bits 34..63  epoch: the ABA counter, advanced by every transition and never set back
///
/// Within one epoch the count only grows, so an equal value means that nothing has happened in
/// between. Invariants, per span (B blocks, L = local_free):
///   O1  live == B - count - L for states floating and reusable;  live == B - count - |lists| for
///                                                                hot. Hence
///       count + L <= B.
///   O2  L > 0 implies mixed, in states floating and reusable.
///   O3  reusable implies listed; hot and free imply neither listed nor mixed; lost implies not
///       listed.
///   O4  floating, mixed and not listed: every thread that pushed to the remote list since `mixed`
///       was set is on its way to list it, or there is none; in the latter case the owner's view of
///       count is exact.
///   O5  the state changes as in Figure 3 only: hot -> hot (a refill from the remote list), hot ->
///       floating, floating <-> reusable, idle -> hot, idle -> free, and by who has taken a span
///       from the pool, free -> hot. Beside it: idle -> lost, hot -> lost by the owner, and free ->
///       lost by who has just made it free. Nothing leads out of lost, and O1 does not hold there.
/// O6 stands in lab.hpp, O7 in hot_spans.hpp, O8 in backend.hpp, O9 in heap.hpp.
class SpanWord {
 public:
  constexpr SpanWord() = default;
  constexpr explicit SpanWord(std::uint64_t bits) : bits_(bits) {}
  constexpr std::uint64_t bits() const { return bits_; }

  constexpr std::uint32_t head_offset() const {
    return static_cast<std::uint32_t>(bits_ & kHeadMask) * 16;
  }
  constexpr std::uint32_t count() const {
    return static_cast<std::uint32_t>(bits_ >> 17) & kMaxCount;
  }
  constexpr bool mixed() const { return (bits_ & kMixed) != 0; }
  constexpr bool listed() const { return (bits_ & kListed) != 0; }
  constexpr State state() const { return static_cast<State>((bits_ >> 31) & 7); }
  constexpr bool is_idle() const {
    return state() == State::kFloating || state() == State::kReusable;
  }

  /// O3, for words that stand in a span.
  constexpr bool is_sound() const {
    if (is_idle()) return state() != State::kReusable || listed();
    if (state() == State::kLost) return !listed();
    return state() <= State::kHot && !listed() && !mixed();
  }

  constexpr SpanWord pushed(std::uint32_t offset) const {
    SPANALLOC_ASSERT(offset != 0 && offset % 16 == 0 && offset / 16 <= kHeadMask);
    SPANALLOC_ASSERT(count() < kMaxCount);
    return SpanWord(((bits_ & ~kHeadMask) | offset / 16) + kOneBlock);
  }
  constexpr SpanWord with_mixed() const {
    SPANALLOC_ASSERT(is_idle() || state() == State::kLost);  // O3
    return SpanWord(bits_ | kMixed);
  }
  /// The remote list emptied, all flags down.
  constexpr SpanWord taken(State state) const {
    SPANALLOC_ASSERT(state == State::kHot || state == State::kFree || state == State::kLost);
    return SpanWord(next_epoch() | state_bits(state));
  }
  /// The remote list kept.
  constexpr SpanWord moved(State state, bool mixed, bool listed) const {
    SPANALLOC_ASSERT(state == State::kFloating || (state == State::kReusable && listed));  // O3
    return SpanWord(next_epoch() | state_bits(state) | (bits_ & kListMask) | (mixed ? kMixed : 0) |
                    (listed ? kListed : 0));
  }

 private:
  static constexpr std::uint32_t kMaxCount = 0xfff;
  static constexpr std::uint64_t kHeadMask = (1u << 17) - 1;
  static constexpr std::uint64_t kOneBlock = 1u << 17;
  static constexpr std::uint64_t kListMask = (1u << 29) - 1;
  static constexpr std::uint64_t kMixed = 1u << 29;
  static constexpr std::uint64_t kListed = 1u << 30;
  static constexpr std::uint64_t state_bits(State state) {
    return static_cast<std::uint64_t>(state) << 31;
  }
  constexpr std::uint64_t next_epoch() const { return ((bits_ >> 34) + 1) << 34; }

  std::uint64_t bits_ = 0;
};

}  // namespace spanalloc::scalloc
