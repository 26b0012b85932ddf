// Where spans that their threads have left are found by class: stacks of hints.
//
// A span that nobody owns is claimed by its word alone, and any thread's free may empty it. So it
// cannot be on a list that must be true. It is on a stack of its class, by a link that nothing else
// uses, and may stay there through whatever becomes of it: the thread that takes it off looks at
// its word, and drops what is of no use. A mark in the link says that the span is on a
// stack, so it is on one at most.
//
// Nothing is lost with a hint. The next free into a span that is on no stack shows it again, and
// with its last block the span becomes free all the same. A span that has begun another life in
// another class may be on the stack of the former one still: a search that finds nothing in its own
// class puts one hint of any class, in turn, where it belongs.
#pragma once

#include <bit>
#include <cstdint>
#include <iterator>

#include "os/os.hpp"
#include "standard/span.hpp"
#include "standard/span_pool.hpp"

namespace spanalloc::standard {

/// Thread-safe and lock-free. `Pages`: as in span_protocol.hpp. Orders are relaxed but for the
/// stacks' own and take()'s: what is shown is a hint, and what a span is, its word says.
template <class Pages, unsigned kClassCount>
class AbandonedSpans {
  static constexpr unsigned kOfALine = 4;

 public:
  /// A heap's, zero-initialised: of each class several, so that threads seldom meet at one.
  using Stacks = SpanPool<SpanNumber, align_up(kClassCount, kOfALine), 64, false, kOfALine>;

  constexpr explicit AbandonedSpans(Pages& pages) : pages_(pages) {}
  /// Before anybody finds the heap.
  void start(Stacks& stacks) {
    stacks_ = &stacks;
    stacks.set_shards(os::cpu_count());
  }

  /// Shows a span that nobody owns and that has a free block. (It may be any by now, also a large
  /// block's.) False: it is on a stack, maybe of another class, already.
  bool show(SpanRef span) {
    const unsigned c = index_of(span->shown_class());
    if (c >= kClassCount) return true;
    if ((span->abandoned_link.load_relaxed() & kShown) != 0 ||
        (span->abandoned_link.fetch_or_relaxed(kShown) & kShown) != 0) {
      return false;
    }
    stacks_->put(c, stacks_->shard_of(index_of(span.number)), span.number, links());
    if ((word_of(c).load_relaxed() & bit_of(c)) == 0) word_of(c).fetch_or_relaxed(bit_of(c));
    return true;
  }

  bool are_none() const {
    std::uint64_t any = 0;
    for (const Atomic<std::uint64_t>& classes : classes_) any |= classes.load_relaxed();
    return any == 0;
  }
  /// A span that was shown in this class; none: there is none. It is any thread's still. `near`:
  /// any number, whose stack is the first that is looked at.
  SpanRef take(ClassId of, std::uint32_t near) {
    const unsigned c = index_of(of);
    if ((word_of(c).load_relaxed() & bit_of(c)) == 0) return {};
    if (const SpanRef span = take_from_any(c, near); span) return span;
    // One that is shown meanwhile is found here, or sets the bit again: the bit is cleared before
    // the stacks are looked at (seq_cst), and who shows looks at it after its put. (Where that look
    // may come before the put, which is not so on x86-64, the span may wait for the next one of its
    // class that is shown.)
    word_of(c).fetch_and_seq_cst(~bit_of(c));
    const SpanRef span = take_from_any(c, near);
    if (span) word_of(c).fetch_or_relaxed(bit_of(c));
    return span;
  }
  /// The same of any class, in turn.
  SpanRef take_any() {
    const std::uint32_t turn = turn_.load_relaxed() + 1;
    turn_.store_relaxed(turn);
    for (unsigned i = 0; i < std::size(classes_); ++i) {
      std::uint64_t bits = std::rotr(classes_[i].load_relaxed(), static_cast<int>(turn % 64));
      for (; bits != 0; bits &= bits - 1) {
        const unsigned c = (static_cast<unsigned>(std::countr_zero(bits)) + turn) % 64;
        if (const SpanRef span = take(ClassId{i * 64 + c}, turn); span) return span;
      }
    }
    return {};
  }

  /// In a fork's child, while it has one thread: no span is on a stack. (Its caller forgets the
  /// spans' marks, and shows again what is to be found.)
  SPANALLOC_COLD void forget_all() { stacks_->forget_all(); }
  SPANALLOC_COLD static void forget(SpanRef span) { span->abandoned_link.store_relaxed(0); }

 private:
  static constexpr std::uint32_t kShown = std::uint32_t{1} << 31;  // no span has such a number

  // A link with its mark.
  struct Link {
    Atomic<std::uint32_t>& word;
    std::uint32_t load_relaxed() const { return word.load_relaxed() & ~kShown; }
    void store_relaxed(std::uint32_t next) { word.store_relaxed(next | kShown); }
  };
  auto links() {
    return [this](SpanNumber number) { return Link{pages_.span(number)->abandoned_link}; };
  }
  static std::uint64_t bit_of(unsigned c) { return std::uint64_t{1} << c % 64; }
  Atomic<std::uint64_t>& word_of(unsigned c) { return classes_[c / 64]; }
  SpanRef take_from_any(unsigned c, std::uint32_t near) {
    const unsigned shard = stacks_->shard_of(near);
    SpanNumber number = stacks_->get_local(c, shard, links());
    if (number == SpanNumber::kNone) number = stacks_->get_from_other_shard(c, shard, links());
    if (number == SpanNumber::kNone) return {};
    const SpanRef span = pages_.span(number);
    forget(span);
    return span;
  }

  Pages& pages_;
  Stacks* stacks_ = nullptr;                                // constant after start()
  Atomic<std::uint64_t> classes_[(kClassCount + 63) / 64];  // bit c: class c may have one
  alignas(kCacheLine) Atomic<std::uint32_t> turn_{0};
};

}  // namespace spanalloc::standard
