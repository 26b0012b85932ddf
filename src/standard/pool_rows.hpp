// The pool of a heap, whose memory is dirty: empty spans in rows by size, where any thread finds
// them.
//
// A row has two stacks for each shard. What comes in during a decay epoch goes on one of them. The
// other holds what was there when the epoch began, and the epoch empties it into the arena; so an
// epoch ends for certain, whatever comes in meanwhile. A bound on the spans of both stacks together
// sends what exceeds it past the pool.
#pragma once

#include <cstddef>
#include <cstdint>

#include "standard/heap_storage.hpp"
#include "standard/span.hpp"

namespace spanalloc::standard {

/// Thread-safe. A caller that puts a span has it alone; one that is given a span has it alone from
/// then on. `give`, where a function has it, takes the spans that leave for the arena.
template <class Config>
class PoolRows {
  using Classes = SizeClasses<Config>;
  using Pages = PageLayer<Config>;

 public:
  using Stacks = typename HeapStorage<Config>::Pool;

  constexpr explicit PoolRows(Pages& pages) : pages_(pages) {}
  /// Before anybody finds the heap.
  void start(Stacks& stacks) { stacks_ = &stacks; }

  Stacks& stacks() const { return *stacks_; }
  unsigned shards() const { return stacks_->shards(); }

  /// What the pool holds belongs to the last epoch from here on. One thread at a time.
  void begin_epoch() { epoch_.store_relaxed(epoch_.load_relaxed() ^ 1); }

  /// kNone: the stacks of that row looked empty.
  SpanNumber take(unsigned row, unsigned shard) {
    SpanNumber number = take_local(row, shard);
    for (const unsigned stack : {this_epochs(row), last_epochs(row)}) {
      if (number != SpanNumber::kNone) break;
      number = stacks_->get_from_other_shard(stack, shard, pages_.pool_links());
    }
    return number;
  }
  /// take(), from the shard's own stacks.
  SpanNumber take_local(unsigned row, unsigned shard) {
    const SpanNumber number = stacks_->get_local(this_epochs(row), shard, pages_.pool_links());
    if (number != SpanNumber::kNone) return number;
    return stacks_->get_local(last_epochs(row), shard, pages_.pool_links());
  }
  /// False: the bound is reached, or spans of this class are not pooled; the span is still the
  /// caller's.
  bool put(SpanNumber span, const ClassInfo& info, unsigned shard) {
    return stacks_->put_bounded(this_epochs(info.pool_row), shard, span, room(info, shard),
                                pages_.pool_links());
  }
  /// put() for a chain, all of it or nothing.
  bool put_chain(SpanNumber first, SpanNumber last, std::uint32_t count, const ClassInfo& info,
                 unsigned shard) {
    return stacks_->put_chain_bounded(this_epochs(info.pool_row), shard, first, last, count,
                                      room(info, shard), pages_.pool_links());
  }

  /// Returns the cost (drain_last_epochs).
  template <class Give>
  SPANALLOC_COLD std::size_t drain(Give give, std::size_t at_most = SIZE_MAX) {
    std::size_t cost = 0;
    for (unsigned stack = 0; stack < Classes::kPoolStacks; ++stack) {
      for (unsigned shard = 0; shard < shards() && cost < at_most; ++shard) {
        // As many as the stack holds, or more; spans that others put there meanwhile need not be
        // waited for.
        cost += drain_stack(stack, shard, stacks_->count_hint(stack, shard), at_most - cost, give);
      }
    }
    return cost;
  }
  /// Drains a part of what was there when this epoch began. Returns the cost: 1 for 64 blocks
  /// looked at or a call of the arena, some 250 instructions.
  template <class Give>
  SPANALLOC_COLD std::size_t drain_last_epochs(std::size_t at_most, Give give) {
    std::size_t cost = 0;
    for (unsigned row = 0; row < Classes::kPoolRows; ++row) {
      for (unsigned shard = 0; shard < shards() && cost < at_most; ++shard) {
        cost += drain_stack(last_epochs(row), shard, SIZE_MAX, at_most - cost, give);
      }
    }
    return cost;
  }
  /// Drains at a cost of `at_most` the first shard, from `shard` on, that holds what is wanted, and
  /// enough to be worth it. False: none does.
  template <class Give>
  SPANALLOC_COLD bool drain_for(SliceCount wanted, unsigned shard, std::size_t at_most, Give give) {
    const auto looked_at = static_cast<unsigned>(min_of(shards(), Config::kShardsPerMiss));
    for (unsigned i = 0; i < looked_at; ++i, shard = shard + 1 == shards() ? 0 : shard + 1) {
      std::size_t slices = 0;
      for (unsigned stack = 0; stack < Classes::kPoolStacks; ++stack) {
        slices += stacks_->count_hint(stack, shard) *
                  Classes::slices_of_row(Classes::row_of_stack(stack));
      }
      if (slices << Config::kSliceBits < Config::kWorthDraining || slices < wanted.count) continue;
      for (const auto stack_of : {&PoolRows::last_epochs, &PoolRows::this_epochs}) {
        for (unsigned row = 0; row < Classes::kPoolRows && at_most != 0; ++row) {
          at_most -=
              min_of(drain_stack((this->*stack_of)(row), shard, SIZE_MAX, at_most, give), at_most);
        }
      }
      return true;
    }
    return false;
  }

 private:
  unsigned this_epochs(unsigned row) const { return 2 * row + epoch_.load_relaxed(); }
  unsigned last_epochs(unsigned row) const { return 2 * row + (epoch_.load_relaxed() ^ 1); }
  // The room that both stacks together have under the bound. (A hint, as the counts are.)
  std::uint32_t room(const ClassInfo& info, unsigned shard) const {
    const std::uint32_t old = stacks_->count_hint(last_epochs(info.pool_row), shard);
    return old < info.pool_most ? info.pool_most - old : 0;
  }
  // One span at a time: a handler may leave a report by a jump. Returns the cost.
  template <class Give>
  std::size_t drain_stack(unsigned stack, unsigned shard, std::size_t spans, std::size_t at_most,
                          Give give) {
    std::size_t cost = 0;
    for (; spans != 0 && cost < at_most; --spans) {
      const SpanNumber number = stacks_->get_local(stack, shard, pages_.pool_links());
      if (number == SpanNumber::kNone) break;
      const SpanRef span = pages_.span(number);
      cost += 1 + span->carved() / 64;
      give(span);
    }
    return cost;
  }

  Pages& pages_;
  Stacks* stacks_ = nullptr;  // constant after start()
  /// 0 or 1: which stack of each pair takes what comes in. Relaxed: a hint, spans may be in either.
  Atomic<std::uint32_t> epoch_{0};
};

}  // namespace spanalloc::standard
