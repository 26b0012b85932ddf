// The span-pool: where empty spans wait for any thread that needs one (OOPSLA'15, section 3.3).
//
// It is an array of Treiber stacks in two dimensions: a row for each size index (a real-span size,
// say), and in each row a stack for each shard. A thread has a shard by its number, never by its
// CPU. It puts spans on its own shard's stack and gets them from there, which keeps threads apart
// and returns to a thread what it put last; a miss looks at other shards. The engine chooses the
// rows, and when to ask the page source.
//
// Spans are numbers of the engine's own type, of which kNone is no span. A span's link is the
// caller's: every call takes `links`, and `links(n)` returns an `Atomic<uint32_t>&`, or what loads
// and stores one, that stays readable for ever and serves nothing but this pool. In particular no
// other list may use it: a pop may read the link of a span that another thread has just popped and
// put to use.
//
// No span is lost or invented. A get that returns kNone found each stack empty at some instant,
// but not all of them at one instant. All functions are lock-free and may be called by any
// thread, except `set_shards`.
//
// The array is zero-initialised and belongs where pages are zero until they are written, in .bss or
// a mapping: a stack that nothing was put into costs no memory, because only its top is read.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/number.hpp"
#include "sync/treiber_stack.hpp"

namespace spanalloc {

/// `Number`: a scoped enumeration of 32 bits whose kNone is 0 (base/number.hpp).
/// kBounded: put_bounded() and the counts that it needs. kOfALine: so many sizes' stacks
/// of a shard share a cache line.
template <class Number, std::size_t kSizeIndexes, unsigned kMaxShards = 256, bool kBounded = false,
          unsigned kOfALine = 1>
class SpanPool {
  static_assert(kSizeIndexes > 0 && kMaxShards > 0 && kSizeIndexes % kOfALine == 0);
  static_assert(sizeof(Number) == sizeof(std::uint32_t) && index_of(Number::kNone) == 0);

 public:
  static constexpr std::size_t kSizes = kSizeIndexes;

  /// Called once, before the first span is put. At most kMaxShards are made; 0 counts as 1.
  void set_shards(unsigned shards) noexcept {
    const std::size_t wanted = max_of(shards, 1);
    more_shards_.store_relaxed(static_cast<std::uint32_t>(min_of(wanted, kMaxShards) - 1));
  }
  unsigned shards() const noexcept { return more_shards_.load_relaxed() + 1; }

  /// The shard of a thread (the paper's "thread identifier modulo number of cores").
  unsigned shard_of(std::uint32_t thread_number) const noexcept { return thread_number % shards(); }

  /// The caller has `span` alone, and has written all that the next owner must see.
  template <class Links>
  void put(std::size_t size, unsigned shard, Number span, Links&& links) noexcept {
    stack_of(size, shard).top.push(index_of(span), by_index(links));
  }

  /// put(), unless the stack holds `at_most` spans. False: the span is still the caller's. Threads
  /// that put at the same time may exceed the bound by one each.
  template <class Links>
  bool put_bounded(std::size_t size, unsigned shard, Number span, std::uint32_t at_most,
                   Links&& links) noexcept {
    static_assert(kBounded);
    Stack& stack = stack_of(size, shard);
    if (stack.count.load_relaxed() >= at_most) return false;
    // Before the push: a get that finds the span counts it out, so the count never falls below
    // zero.
    stack.count.fetch_add_relaxed(1);
    stack.top.push(index_of(span), by_index(links));
    return true;
  }

  /// put_bounded() for a chain of `count` spans, linked from `first` to
  /// `last`: all of it or nothing.
  template <class Links>
  bool put_chain_bounded(std::size_t size, unsigned shard, Number first, Number last,
                         std::uint32_t count, std::uint32_t at_most, Links&& links) noexcept {
    static_assert(kBounded);
    Stack& stack = stack_of(size, shard);
    if (stack.count.load_relaxed() + count > at_most) return false;
    stack.count.fetch_add_relaxed(count);  // before the push, as in put_bounded()
    stack.top.push_chain(index_of(first), index_of(last), by_index(links));
    return true;
  }

  /// put() for a chain linked from `first` to `last`.
  template <class Links>
  void put_chain(std::size_t size, unsigned shard, Number first, Number last,
                 Links&& links) noexcept {
    stack_of(size, shard).top.push_chain(index_of(first), index_of(last), by_index(links));
  }

  /// A span from the stack of this shard; kNone when it was empty.
  template <class Links>
  Number get_local(std::size_t size, unsigned shard, Links&& links) noexcept {
    return pop(stack_of(size, shard), links);
  }

  /// A span from the other shards' stacks of this size, the next shard first;
  /// kNone when each was empty.
  template <class Links>
  Number get_from_other_shard(std::size_t size, unsigned shard, Links&& links) noexcept {
    const unsigned count = shards();
    for (unsigned step = 1; step < count; ++step) {
      unsigned other = shard + step;
      if (other >= count) other -= count;
      if (const Number span = pop(stack_of(size, other), links); span != Number::kNone) return span;
    }
    return Number::kNone;
  }

  /// Takes one stack's whole chain and returns its first span (kNone: empty); the caller then has
  /// every span of it. A bounded pool goes on counting them, for a caller that puts them back.
  Number take_all(std::size_t size, unsigned shard) noexcept {
    return Number{stack_of(size, shard).top.take_all()};
  }
  /// The next span in a chain of the caller's; kNone at its end.
  template <class Links>
  static Number next_of(Number span, Links&& links) noexcept {
    return Number{links(span).load_relaxed()};
  }

  /// In a fork's child, or while nobody uses the pool: empties it, whatever counts its users have
  /// left behind. False: no span was in it.
  bool forget_all() noexcept {
    bool any = false;
    for (std::size_t size = 0; size < kSizes; ++size) {
      for (unsigned shard = 0; shard < shards(); ++shard) {
        any = stack_of(size, shard).top.take_all() != 0 || any;
        stack_of(size, shard).count.store_relaxed(0);
      }
    }
    return any;
  }

  /// How many spans are in a stack, or about to be.
  std::uint32_t count_hint(std::size_t size, unsigned shard) const noexcept {
    static_assert(kBounded);
    return stack_of(size, shard).count.load_relaxed();
  }

 private:
  struct Stack {
    TreiberStack top;
    Atomic<std::uint32_t> count{0};  // shared; spans in the stack or about to be; kept if kBounded
  };
  struct alignas(kCacheLine) Line {
    Stack stacks[kOfALine];
  };
  static_assert(sizeof(Line) == kCacheLine);
  Stack& stack_of(std::size_t size, unsigned shard) noexcept {
    return lines_[shard][size / kOfALine].stacks[size % kOfALine];
  }
  const Stack& stack_of(std::size_t size, unsigned shard) const noexcept {
    return lines_[shard][size / kOfALine].stacks[size % kOfALine];
  }

  // Spans are counted in before they are pushed.
  static void count_out(Stack& stack, std::uint32_t spans) noexcept {
    const std::uint32_t before = stack.count.fetch_sub_relaxed(spans);
    SPANALLOC_ASSERT(before >= spans);
  }

  // The stack knows numbers of one kind only.
  template <class Links>
  static auto by_index(Links& links) noexcept {
    return [&links](std::uint32_t n) -> decltype(auto) { return links(Number{n}); };
  }

  template <class Links>
  static Number pop(Stack& stack, Links& links) noexcept {
    const Number span{stack.top.pop(by_index(links))};
    if constexpr (kBounded) {
      if (span != Number::kNone) count_out(stack, 1);
    }
    return span;
  }

  Atomic<std::uint32_t> more_shards_{
      0};  // shards - 1; constant after set_shards, which comes before every other call
  // The shards in use come first, and so lie on few pages.
  Line lines_[kMaxShards][kSizeIndexes / kOfALine];
};

}  // namespace spanalloc
