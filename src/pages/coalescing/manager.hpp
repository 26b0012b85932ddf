// The coalescing manager: allocation by splitting, deallocation by merging, both lock-free.
//
//   allocate   take a block from the controller, cut off what is not needed, publish the rest
//   free       merge with the neighbours that are free, publish, then look again
//   grow       claim the next block, publish what is not needed of it
//   shrink     publish the tail
//
// The paper's deallocation (Leite & Rocha, ISMM'19, Listings 3 to 6) merges first and publishes then; two
// neighbours freed at the same time can miss each other for good (its section 4.4). Here every publication is
// followed by another look at both neighbours (settle()):
//
//   At rest no two neighbouring blocks are free. Let X and Y be neighbours, both free, and no operation in
//   flight. Each was published by a store of its header, and each publisher then read the other's words. The
//   accesses are sequentially consistent, so the publisher whose store came second saw the other block free
//   and tried to merge. It did not succeed, or X and Y were one block; so one of the claims failed, for
//   another thread held X or Y. Whoever holds a block either hands it out (then it is not free) or publishes
//   again and looks again: after the last such publication of X or Y nobody else holds either, and that look
//   succeeds.
//
//   Merging is lock-free: a merge claims the lower block first. Of all threads that hold a block and want the
//   next one, the one at the highest address can be stopped only by an allocation, which is progress; when it
//   gives its block back it looks again, as does everyone below it.
//
// "Out of memory" is reported only if at some instant during the call no free block was large enough,
// counting as free what others hold in the middle of an operation: allocate() reads the registry of holds,
// searches every block, and reads the registry again. Between two equal readings without holds no block of
// the levels concerned was claimed, and each one that was free at the beginning was found and seen to be too
// small; so at that beginning there was none. While the readings differ, some operation has made progress or
// is being waited for; every round searches again, so that a call never waits while there is memory that it
// can have.
#pragma once

#include <cstddef>

#include "base/bits.hpp"
#include "pages/coalescing/dirty_units.hpp"
#include "pages/coalescing/hold_registry.hpp"
#include "pages/coalescing/mapper.hpp"
#include "pages/coalescing/static_controller.hpp"

namespace spanalloc::coalescing {

/// Units handed out; `zero` when every byte of them is known to be zero.
struct Allocation {
  Block block;
  bool zero = false;
  explicit operator bool() const { return static_cast<bool>(block); }
};

/// What a manager takes from its surroundings.
template <class E>
concept ManagerEnvironment = requires(E& environment, Block block) {
  // Called between two looks for memory that others hold.
  environment.pause();
  // Makes units read as zero and gives their memory back; false: they keep their bytes.
  { environment.purge(block) } -> std::same_as<bool>;
};

/// Thread-safe throughout; never destroyed. Its own memory is given to attach().
template <ManagerEnvironment Environment, unsigned kShards = 16, unsigned kLevels = 48, unsigned kFanBits = 6>
class CoalescingManager {
 public:
  using Registry = HoldRegistry<kShards, kLevels>;
  using Index = FreeIndex<kFanBits>;

  explicit CoalescingManager(Environment& environment) : environment_(environment), controller_(mapper_) {}

  /// Bytes of metadata for a range of at most `units` units.
  static constexpr std::size_t metadata_bytes(std::size_t units) {
    return WordMapper::bytes_for(units) + Index::bytes_for(units) + DirtyUnits::bytes_for(units);
  }
  /// `metadata`: zeroed, metadata_bytes(capacity) bytes, aligned to 8. The range is empty at first.
  void attach(void* metadata, std::size_t capacity) {
    char* next = static_cast<char*>(metadata);
    mapper_.attach(next, 0);
    next += WordMapper::bytes_for(capacity);
    controller_.index().attach(next, capacity);
    next += Index::bytes_for(capacity);
    dirty_.attach(next);
    capacity_ = capacity;
  }

  std::size_t limit() const { return mapper_.limit(); }
  std::size_t capacity() const { return capacity_; }

  /// Adds `units` free units behind the last one. One caller at a time; false beyond the capacity.
  bool extend(std::size_t units, bool zero) {
    const Block fresh{mapper_.limit(), units};
    if (units == 0 || units > capacity_ - fresh.first) return units == 0;
    if (!zero) dirty_.mark(fresh);
    mapper_.set_limit(fresh.end());
    Guard hold(registry_);
    publish(fresh, !zero, hold);
    return true;
  }

  /// `size` units at a multiple of `alignment` units (a power of two). No block when there is no room.
  Allocation allocate(std::size_t size, std::size_t alignment = 1) {
    if (size == 0 || size > capacity_ || !is_power_of_two(alignment)) return {};
    Guard hold(registry_);
    Claimed taken = controller_.take(size, alignment, Search::kQuick, hold);
    if (!taken) taken = take_or_prove_absence(size, alignment, hold);
    return taken ? carve(taken, size, alignment, hold) : Allocation{};
  }

  /// Units of the block handed out at `first`; 0 when there is none.
  std::size_t size_of(std::size_t first) const {
    if (first >= mapper_.limit()) return 0;
    const BlockWord word = mapper_.load(first);
    return word.is(BlockState::kUsed) ? word.size() : 0;
  }

  /// Gives back the block handed out at `first`. False when there is none; then nothing has changed.
  bool free(std::size_t first) {
    if (first >= mapper_.limit()) return false;
    BlockWord word = mapper_.load(first);
    if (!word.is(BlockState::kUsed)) return false;
    // Of two calls for one block (an error of the caller) one fails.
    if (!mapper_.exchange_if(first, word, word.with_state(BlockState::kBusy))) return false;
    const Block block{first, word.size()};
    dirty_.mark(block);
    Guard hold(registry_);
    publish(absorb_neighbours(block, hold), true, hold);
    return true;
  }

  /// Makes the block handed out at `first` `size` units large where it stands. False when its neighbour is
  /// not free or too small; then nothing has changed. `zero` tells of the new units.
  bool grow(std::size_t first, std::size_t size, bool* zero = nullptr) {
    const std::size_t old = size_of(first);
    if (old == 0 || size > capacity_) return false;
    if (size <= old) return shrink(first, size);
    Guard hold(registry_);
    const Block next = mapper_.block_at(first + old);
    if (next.size < size - old) return false;
    const Claimed claimed = controller_.remove(next, hold);
    if (!claimed) return false;
    const Block added{next.first, size - old};
    if (zero != nullptr) *zero = !claimed.dirty || !dirty_.any(added);
    mapper_.store(first, BlockWord::header(BlockState::kUsed, size));
    publish_rest({added.end(), next.size - added.size}, claimed.dirty, hold);
    return true;
  }

  /// Gives back what the block at `first` has beyond `size` units. False when there is no such block or it is
  /// smaller.
  bool shrink(std::size_t first, std::size_t size) {
    const std::size_t old = size_of(first);
    if (size == 0 || old < size) return false;
    if (size == old) return true;
    const Block tail{first + size, old - size};
    mapper_.store(first, BlockWord::header(BlockState::kUsed, size));
    dirty_.mark(tail);
    Guard hold(registry_);
    publish(tail, true, hold);
    return true;
  }

  /// Purges the dirty free blocks; with `only_aged` those that lay unused since the last but one call of it,
  /// and marks the others. Returns the units that became clean.
  std::size_t purge(bool only_aged) {
    std::size_t purged = 0;
    Index& index = controller_.index();
    const unsigned end = Index::list_of(SIZE_MAX, true) + 1;
    for (unsigned list = Index::list_of(1, true); (list = index.next_list(list, end)) < end; ++list) {
      Guard hold(registry_);
      for (std::size_t unit = index.find(list, 0, hold); unit != Index::kNone;
           unit = index.find(list, unit + 1, hold)) {
        purged += purge_block(unit, only_aged);
        hold.end();
      }
    }
    return purged;
  }

  /// Calls visit(block, state) for blocks in address order: not a snapshot. Every block that stands unchanged
  /// throughout the call is visited once; one that comes, goes, is split or merged meanwhile may be seen in
  /// any of its states, in part, or not at all.
  template <class Visit>
  void walk(Visit visit) const {
    for (std::size_t unit = 0; unit < mapper_.limit();) {
      const BlockWord word = mapper_.load(unit);
      // A footer or an untouched word here: the block that began here was merged while we came.
      if (word.is(BlockState::kFooter) || word.is(BlockState::kNone) || word.size() == 0) {
        ++unit;
        continue;
      }
      visit(Block{unit, word.size()}, word.state(), word.dirty());
      unit += word.size();
    }
  }

  /// In a fork's child, where no other thread is: what the others held stays lost.
  void reset_after_fork() { registry_.reset(); }

 private:
  using Guard = Hold<Registry>;

  Claimed take_or_prove_absence(std::size_t size, std::size_t alignment, Guard& hold) {
    const unsigned level = log2_floor(size);
    for (unsigned attempt = 0;; ++attempt) {
      // The first search itself may have held levels of the index, to tidy them up: not a reason to wait.
      if (attempt >= 2) environment_.pause();
      hold.end();
      const typename Registry::Reading before = registry_.read(level);
      const Claimed taken = controller_.take(size, alignment, Search::kExhaustive, hold);
      if (taken) return taken;
      if (Registry::quiet_between(before, registry_.read(level))) return {};
    }
  }

  // Cuts the wanted units out of a claimed block and publishes what is before and behind them.
  Allocation carve(Claimed taken, std::size_t size, std::size_t alignment, Guard& hold) {
    const Block mine{align_up(taken.block.first, alignment), size};
    const bool zero = !taken.dirty || !dirty_.any(mine);
    mapper_.store(mine.first, BlockWord::header(BlockState::kUsed, size));
    publish_rest({taken.block.first, mine.first - taken.block.first}, taken.dirty, hold);
    publish_rest({mine.end(), taken.block.end() - mine.end()}, taken.dirty, hold);
    return {mine, zero};
  }
  void publish_rest(Block rest, bool dirty, Guard& hold) {
    if (rest) publish(rest, dirty, hold);
  }

  // The paper's coalescing: claims the neighbours that are free now. Only saves publishing twice.
  Block absorb_neighbours(Block block, Guard& hold) {
    if (const Claimed before = controller_.remove(mapper_.block_before(block.first), hold)) {
      block = {before.block.first, before.block.size + block.size};
    }
    if (const Claimed behind = controller_.remove(mapper_.block_at(block.end()), hold)) {
      block.size += behind.block.size;
    }
    return block;
  }

  // Makes a block that the caller owns free, and merges until no free neighbour is in sight.
  void publish(Block block, bool dirty, Guard& hold) {
    controller_.add(block, dirty);
    settle(block.first, hold);
  }

  // The second look. Ends when the block at `first` has no free neighbours, or has been claimed: then the
  // claimant hands it out or looks again itself.
  void settle(std::size_t first, Guard& hold) {
    for (;;) {
      const BlockWord word = mapper_.load(first);
      if (!word.is(BlockState::kFree)) return;
      const Block block{first, word.size()};
      const Block before = mapper_.block_before(first);
      const Block behind = mapper_.block_at(block.end());
      if (is_free(before)) {
        first = merge(before, block, hold, first);
      } else if (is_free(behind)) {
        first = merge(block, behind, hold, first);
      } else {
        return;
      }
    }
  }
  bool is_free(Block block) const {
    if (!block) return false;
    const BlockWord word = mapper_.load(block.first);
    return word.is(BlockState::kFree) && word.size() == block.size;
  }

  // Merges two neighbours if both can be claimed, the lower one first. Returns where to look next: at the
  // merged block, at the lower one if it was held in vain (its neighbours may have left it to us), or where
  // the caller was.
  std::size_t merge(Block lower, Block upper, Guard& hold, std::size_t first) {
    hold.cover(lower.size + upper.size);
    const Claimed low = controller_.remove(lower, hold);
    if (!low) return first;
    const Claimed up = controller_.remove(upper, hold);
    if (!up) {
      controller_.add(lower, low.dirty);
      return lower.first;
    }
    controller_.add({lower.first, lower.size + upper.size}, low.dirty || up.dirty);
    return lower.first;
  }

  std::size_t purge_block(std::size_t unit, bool only_aged) {
    BlockWord word = mapper_.load(unit);
    if (!word.is(BlockState::kFree) || !word.dirty()) return 0;
    if (only_aged && !word.aged()) {
      mapper_.exchange_if(unit, word,
                          word.made_aged());  // a failure means that the block is in use: not aged
      return 0;
    }
    Guard hold(registry_);
    const Claimed claimed = controller_.remove({unit, word.size()}, hold);
    if (!claimed) return 0;
    std::size_t purged = 0;
    bool clean = true;
    for (Block run = dirty_.next_run(claimed.block, unit); run;
         run = dirty_.next_run(claimed.block, run.end())) {
      if (environment_.purge(run)) {
        dirty_.clear(run);
        purged += run.size;
      } else {
        clean = false;
      }
    }
    publish(claimed.block, !clean, hold);
    return purged;
  }

  Environment& environment_;
  WordMapper mapper_;
  StaticController<WordMapper, Index> controller_;
  DirtyUnits dirty_;
  Registry registry_;
  std::size_t capacity_ = 0;  // constant after attach()
};

}  // namespace spanalloc::coalescing
