// The coalescing manager: allocates by splitting blocks and frees by merging them, both lock-free.
// (A block here is a run of units, see mapper.hpp.)
//
//   allocate   claims a block from the controller, cuts off what is not needed, publishes the rest
//   free       merges the block with free neighbours, publishes it, then looks at the neighbours
//              again
//   grow       claims the next block, publishes what is not needed of it
//   shrink     publishes the tail
//
// The paper's deallocation (Leite & Rocha, ISMM'19, Listings 3 to 6) merges first and publishes
// then; two neighbours freed at the same time can miss each other for good (its section 4.4). Here
// every publication is followed by another look at both neighbours (merge_again()):
//
//   At rest no two neighbouring blocks are free. Proof: let X and Y be free neighbours, and no
//   operation in flight. Each was published by a store of its header, and then its publisher read
//   the other's words. All these accesses are sequentially consistent, so the publisher whose store
//   came second saw the other block free, and tried to merge. X and Y are not one block, so one of
//   its claims failed, because another thread held X or Y. A thread that holds a block either hands
//   it out (then it is not free) or publishes it again and looks again. After the last such
//   publication of X or Y nobody else holds either, and that look merges them, which contradicts
//   the assumption.
//
//   Merging is lock-free: a merge claims the lower block first. Of all threads that hold a block
//   and want the next one, only an allocation can stop the one at the highest address, and an
//   allocation is progress. When that thread gives its block back it looks again, as every thread
//   below it does.
//
// allocate() reports "out of memory" only if at some instant during the call no free block was
// large enough. Blocks that others hold in the middle of an operation count as free: allocate()
// reads the registry of holds, searches every block, and reads the registry again. If both readings
// are equal and without holds, no block was claimed between them; each block that was free at the
// beginning was found, and was too small. Two free neighbours can have stood unmerged at the
// beginning only if the publisher of the second had not looked again yet; its call was still in
// flight, and counts as coming after. So at the beginning there was no room. If the readings
// differ, some operation has made progress or is being waited for. Every round searches again, so a
// call never waits while there is memory that it can have.
#pragma once

#include <cstddef>

#include "base/assert.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "base/inspection_access.hpp"
#include "pages/coalescing/controller.hpp"
#include "pages/coalescing/hold_registry.hpp"
#include "pages/coalescing/mapper.hpp"
#include "pages/coalescing/metadata_tables.hpp"
#include "pages/coalescing/static_controller.hpp"
#include "pages/coalescing/unit_set.hpp"
#include "pages/config.hpp"

namespace spanalloc::coalescing {

/// Units handed out. `zero`: every byte of them is known to be zero.
struct Allocation {
  Block block;
  bool zero = false;
  explicit operator bool() const { return static_cast<bool>(block); }
};

/// Thread-safe throughout; never destroyed. attach() gives it its metadata. `kExtraSets`: sets of
/// units that the owner keeps beside the manager's, see extra_set(). `Environment`, its owner, has
///   bool pause()             called between two searches for memory that others hold. False: they
///                            will never let go of it, for this is a fork's child, in which they do
///                            not exist, and which has not recovered yet
///   bool purge(Block block)  purges units: their bytes are zero then. False: they may keep them
/// and may have, to keep count of the units that are held, that is in use, or free and dirty:
///   void now_held(units)     so many more are: before anybody can use them
///   void now_clean(units)    so many are free and clean now, or about to be: before anybody can
///                            take them
///   void held_is(units)      counted anew, in a fork's child
/// and, to keep count of the units that are free and dirty:
///   void dirty_is_free(units)   so many more are, or about to be: before anybody can take them
///   void dirty_has_left(units)  so many were taken or purged
/// both by a thread that holds (holds(), below),
///   void dirty_free_is(units)   counted anew, in a fork's child
template <class Environment, unsigned kShards = 16, unsigned kFanBits = 6, unsigned kExtraSets = 0>
class CoalescingManager {
  using enum BlockState;

 public:
  using Registry = HoldRegistry<kShards>;
  using Index = FreeIndex<kFanBits>;
  static constexpr unsigned kOwnSets = 2;
  static constexpr unsigned kSets = kOwnSets + kExtraSets;

  constexpr explicit CoalescingManager(Environment& environment)
      : environment_(environment), controller_(mapper_) {}

  // --- Metadata ----------------------------------------------------------------------------------
  //
  // A few tables, each growing with the range: see MetadataTables.

  using Tables = MetadataTables<Index, kSets>;

  /// Bytes of metadata for a range of at most `capacity` units.
  static constexpr std::size_t metadata_bytes(std::size_t capacity) {
    std::size_t bytes = 0;
    for (unsigned t = 0; t < Tables::kCount; ++t) bytes += Tables::bytes(t, capacity, capacity);
    return bytes;
  }

  /// `metadata`: metadata_bytes(capacity) bytes, zeroed, aligned to 8. The range is empty at first.
  /// Alignments count from `origin` units before its first unit.
  void attach(void* metadata, std::size_t capacity, std::size_t origin = 0) {
    void* tables[Tables::kCount];
    char* next = static_cast<char*>(metadata);
    for (unsigned t = 0; t < Tables::kCount; ++t) {
      tables[t] = next;
      next += Tables::bytes(t, capacity, capacity);
    }
    attach_tables(tables, capacity, origin);
  }
  /// Like attach(), with each table in a place of its own.
  void attach_tables(void* const (&tables)[Tables::kCount], std::size_t capacity,
                     std::size_t origin) {
    controller_.attach(capacity, origin);
    for (unsigned level = 0; level < Index::levels_for(capacity); ++level) {
      controller_.index().attach_level(level, tables[Tables::table_of_level(level)],
                                       Tables::place_of_level(level, capacity));
    }
    void* rows = tables[Tables::kRows];
    dirty_.attach(rows, Tables::kRowWords, 0);
    aged_.attach(rows, Tables::kRowWords, 1);
    for (unsigned s = 0; s < kExtraSets; ++s)
      extra_[s].attach(rows, Tables::kRowWords, kOwnSets + s);
    mapper_.attach(rows, 0, Tables::kBeforeMapper, Tables::kRowWords);
    capacity_ = capacity;
  }

  std::size_t limit() const { return mapper_.limit(); }
  std::size_t capacity() const { return capacity_; }
  /// The first unit at or behind `unit` at a multiple of `alignment` (a power of two).
  std::size_t aligned(std::size_t unit, std::size_t alignment) const {
    return controller_.aligned(unit, alignment);
  }
  /// Whether a block has room for `size` units at a multiple of `alignment`.
  bool fits(Block block, std::size_t size, std::size_t alignment) const {
    return controller_.fits(block, size, alignment);
  }

  /// A set of units for the owner. The manager itself never looks at it.
  UnitSet& extra_set(unsigned which) { return extra_[which]; }
  const UnitSet& extra_set(unsigned which) const { return extra_[which]; }

  // --- The range ---------------------------------------------------------------------------------

  /// Adds `units` free units behind the last one. One caller at a time. False: beyond the capacity.
  SPANALLOC_COLD bool extend(std::size_t units, bool zero) {
    if (units == 0) return true;
    const Block fresh{mapper_.limit(), units};
    if (!add_units(fresh, kBusy)) return false;
    Guard hold(registry_);
    if (!zero) {
      dirty_.insert(fresh);
      note_held(units);
      note_dirty_free(units);
    }
    publish(fresh, !zero, hold);
    return true;
  }
  /// Like extend(), with the units in use, as one block.
  SPANALLOC_COLD bool extend_used(std::size_t units) {
    if (units != 0 && !add_units({mapper_.limit(), units}, kUsed)) return false;
    note_held(units);
    return true;
  }

  /// Units of the free block at the range's end. A hint.
  std::size_t free_tail() const {
    const Block last = mapper_.block_before(mapper_.limit());
    return is_free(last) ? last.size : 0;
  }

  /// Units of all free blocks. A hint; costs a look at every block.
  std::size_t free_units() const {
    std::size_t units = 0;
    walk([&](Block block, BlockState state, bool) { units += state == kFree ? block.size : 0; });
    return units;
  }

  /// `block` together with the blocks before and behind it, if these are free now. A hint.
  Block with_free_neighbours(Block block) const {
    if (const Block before = mapper_.block_before(block.first); is_free(before)) {
      block = {before.first, before.size + block.size};
    }
    if (const Block behind = mapper_.block_at(block.end()); is_free(behind))
      block.size += behind.size;
    return block;
  }

  // --- Blocks ------------------------------------------------------------------------------------

  /// Allocates `size` units at a multiple of `alignment` units (a power of two). No block: at some
  /// instant during the call there was no room.
  Allocation allocate(std::size_t size, std::size_t alignment = 1,
                      Reuse reuse = Reuse::kDirtyFirst) {
    if (!is_possible(size, alignment)) return {};
    Guard hold(registry_);
    Claimed taken = controller_.take(size, alignment, Search::kQuick, hold, reuse);
    if (!taken && reuse != Reuse::kDirtyOnly) taken = take_or_prove_absence(size, alignment, hold);
    return taken ? cut_out(taken, size, alignment, reuse, hold) : Allocation{};
  }
  /// For a caller that can get memory elsewhere. No block: there is none, or others hold it, or the
  /// search has not gone far enough. Never waits.
  Allocation try_allocate(std::size_t size, std::size_t alignment, Reuse reuse,
                          Search search = Search::kQuick) {
    if (!is_possible(size, alignment)) return {};
    Guard hold(registry_);
    const Claimed taken = controller_.take(size, alignment, search, hold, reuse);
    return taken ? cut_out(taken, size, alignment, reuse, hold) : Allocation{};
  }

  /// Like try_allocate(), from the free block at the range's end, if large enough: what
  /// extend() has just added.
  Allocation try_allocate_last(std::size_t size, std::size_t alignment) {
    if (!is_possible(size, alignment)) return {};
    Guard hold(registry_);
    const Block last = mapper_.block_before(mapper_.limit());
    const Claimed taken = fits(last, size, alignment) ? controller_.remove(last, hold) : Claimed{};
    return taken ? cut_out(taken, size, alignment, Reuse::kDirtyFirst, hold) : Allocation{};
  }

  /// How many units of a block just handed out were dirty.
  std::size_t dirty_units(Block block) const { return dirty_.count(block); }

  /// Units of the block handed out at `first`; 0: there is none.
  std::size_t size_of(std::size_t first) const {
    if (first >= mapper_.limit()) return 0;
    const BlockWord word = mapper_.load(first);
    return word.is(kUsed) ? word.size() : 0;
  }

  /// Frees the block handed out at `first`. `zero`: every byte of it is known to be zero. False:
  /// there is no such block, and nothing has changed.
  bool free(std::size_t first, bool zero = false) {
    if (first >= mapper_.limit()) return false;
    BlockWord word = mapper_.load(first);
    if (!word.is(kUsed)) return false;
    // If two calls free one block (the caller's error), one of them fails.
    if (!mapper_.exchange_if(first, word, word.with_state(kBusy))) return false;
    const Block block{first, word.size()};
    note_contents(block, !zero);
    Guard hold(registry_);
    if (zero) {
      note_clean(block.size);
    } else {
      note_dirty_free(block.size);
    }
    const Claimed merged = absorb_neighbours({block, !zero}, hold);
    publish(merged.block, merged.dirty, hold);
    return true;
  }

  /// Makes the block handed out at `first` `size` units large where it stands. `zero`: every byte
  /// that it has gained is known to be zero. No block: its neighbour is not free or too small, and
  /// nothing has changed.
  Allocation grow(std::size_t first, std::size_t size) {
    const std::size_t old = size_of(first);
    if (old == 0 || size > capacity_) return {};
    if (size <= old) return {{first, shrink(first, size) ? size : 0}, true};
    Guard hold(registry_);
    const Block next = mapper_.block_at(first + old);
    if (next.size < size - old) return {};
    const Claimed claimed = controller_.remove(next, hold);
    if (!claimed) return {};
    const Block added{next.first, size - old};
    const Block rest{added.end(), next.size - added.size};
    SPANALLOC_ASSERT(claimed.block == next && added.size + rest.size == next.size);
    const bool zero = note_taken(added, claimed.dirty);
    const Block grown{first, size};
    if (rest) mapper_.mark(rest, kBusy);
    mapper_.mark(grown, kUsed);
    if (rest) publish(rest, claimed.dirty && may_be_dirty(rest), hold);
    return {grown, zero};
  }

  /// Frees what the block at `first` has beyond `size` units. `zero`: every byte of that is known
  /// to be zero. False: there is no such block, or it is smaller.
  bool shrink(std::size_t first, std::size_t size, bool zero = false) {
    const std::size_t old = size_of(first);
    if (size == 0 || old < size) return false;
    if (size == old) return true;
    const Block tail{first + size, old - size};
    SPANALLOC_ASSERT(size + tail.size == old);
    note_contents(tail, !zero);
    Guard hold(registry_);
    if (zero) {
      note_clean(tail.size);
    } else {
      note_dirty_free(tail.size);
    }
    mapper_.mark(tail, kBusy);
    mapper_.mark({first, size}, kUsed);
    publish(tail, !zero, hold);
    return true;
  }

  /// Makes two blocks in use of the one handed out at `first`: its first `size` units, and the
  /// rest. False: there is no such block, or it is not larger.
  bool split(std::size_t first, std::size_t size) {
    const std::size_t old = size_of(first);
    if (size == 0 || old <= size) return false;
    mapper_.mark({first + size, old - size}, kUsed);
    mapper_.mark({first, size}, kUsed);
    return true;
  }

  /// Purges dirty free units, at most `at_most`; with `only_aged` only those that have been free
  /// since before the last age(). Returns how many units became clean.
  std::size_t purge(bool only_aged, std::size_t at_most = SIZE_MAX) {
    return purge_lists(0, Index::kDirtyLists, only_aged, at_most);
  }
  /// Like purge(), with the largest blocks first, whatever their age.
  std::size_t purge_largest(std::size_t at_most) {
    std::size_t purged = 0;
    for (unsigned list = Index::kDirtyLists; list-- > 0 && purged < at_most;)
      purged += purge_lists(list, list + 1, false, at_most - purged);
    return purged;
  }
  /// Begins a decay epoch. Returns about how many units are dirty and free.
  std::size_t age() {
    std::size_t dirty = 0;
    for_free_blocks(0, Index::kDirtyLists, [&](Block block, Guard&) {
      // If somebody claims the block meanwhile, some units are purged an epoch too early.
      for (Block run = dirty_.next_run(block, block.first); run;
           run = dirty_.next_run(block, run.end())) {
        aged_.insert(run);
        dirty += run.size;
      }
      return true;
    });
    return dirty;
  }

  /// Claims every free block that it can find, and calls visit(block). True: the block is in use
  /// from then on. False: it is published again. For taking memory out of the range for a while.
  template <class Visit>
  SPANALLOC_COLD void take_all(Visit visit) {
    for_free_blocks(0, Index::kLists, [&](Block block, Guard& hold) {
      const Claimed claimed = controller_.remove(block, hold);
      if (claimed && visit(block)) {
        note_taken(block, claimed.dirty);
        mapper_.mark(block, kUsed);
      } else if (claimed) {
        publish(block, claimed.dirty, hold);
      }
      return true;
    });
  }

  /// Calls visit(block, state, dirty) for blocks in address order: not a snapshot. Visits each
  /// block once that stands unchanged throughout the call. A block that comes, goes, is split or
  /// merged meanwhile may be seen in any of its states, in part, or not at all.
  template <class Visit>
  void walk(Visit visit) const {
    for (std::size_t unit = 0; unit < mapper_.limit();) {
      const BlockWord word = mapper_.load(unit);
      // A footer or an untouched word: the block that began here was merged just now.
      if (word.is(kFooter) || word.is(kNone) || word.size() == 0) {
        ++unit;
        continue;
      }
      visit(Block{unit, word.size()}, word.state(), word.dirty());
      unit += word.size();
    }
  }

  /// How many units are held, by a look at every block: what an environment that counts has
  /// counted, while no call is under way.
  SPANALLOC_COLD std::size_t held_units() const {
    std::size_t held = 0;
    walk([&](Block block, BlockState state, bool) {
      held += state == kFree ? dirty_.count(block) : block.size;
    });
    return held;
  }
  /// The same of the units that are free and dirty.
  SPANALLOC_COLD std::size_t dirty_free_units() const {
    std::size_t dirty = 0;
    walk([&](Block block, BlockState state, bool) {
      if (state == kFree) dirty += dirty_.count(block);
    });
    return dirty;
  }

  /// Whether some thread has claimed or hidden a block, and not let it go yet. In a fork's child,
  /// outside of calls: whether recover_after_fork() has anything to do.
  bool someone_holds() const { return registry_.read().held; }

  /// The holds up to now. A quick search between two equal readings has missed no
  /// block because of a hold.
  typename Registry::Reading holds() const { return registry_.read(); }

  /// In a fork's child, whose only thread is in no other call. Frees every block that vanished
  /// threads had claimed, whatever they were about to do with it; it counts as dirty. Makes
  /// free blocks findable again that the index has hidden. keep(block), true for such a
  /// claimed block: it is in use.
  template <class Keep>
  SPANALLOC_COLD void recover_after_fork(Keep keep) {
    registry_.reset();
    Guard hold(registry_);
    for (std::size_t unit = 0; unit < mapper_.limit();) {
      const BlockWord word = mapper_.load(unit);
      if (word.is(kUsed)) {
        unit += word.size();
      } else if (word.is(kFree) && !is_unused(unit + word.size())) {
        // At rest, and its bit is exact (free_index.hpp, (1)), but a vanished
        // thread may have hidden it.
        controller_.index().show(Index::list_of(word.size(), word.dirty()), unit);
        unit += word.size();
      } else {
        unit = free_unused_run(unit, keep, hold);
      }
    }
    if constexpr (requires { environment_.held_is(std::size_t{}); })
      environment_.held_is(held_units());
    if constexpr (requires { environment_.dirty_free_is(std::size_t{}); })
      environment_.dirty_free_is(dirty_free_units());
  }
  void recover_after_fork() {
    recover_after_fork([](Block) { return false; });
  }

 private:
  friend struct spanalloc::InspectionAccess;

  using Guard = Hold<Registry>;
  using Controller = StaticController<WordMapper, Index>;

  bool is_possible(std::size_t size, std::size_t alignment) const {
    return size != 0 && size <= capacity_ && is_power_of_two(alignment);
  }

  void note_held(std::size_t units) {
    if constexpr (requires { environment_.now_held(units); }) {
      if (units != 0) environment_.now_held(units);
    }
  }
  void note_clean(std::size_t units) {
    if constexpr (requires { environment_.now_clean(units); }) environment_.now_clean(units);
  }
  void note_dirty_free(std::size_t units) {
    if constexpr (requires { environment_.dirty_is_free(units); })
      environment_.dirty_is_free(units);
  }
  void note_dirty_left(std::size_t units) {
    if constexpr (requires { environment_.dirty_has_left(units); })
      environment_.dirty_has_left(units);
  }
  // By a block's owner, who is about to hand it out. `dirty`: some of it may be. True: none is.
  SPANALLOC_INLINE bool note_taken(Block block, bool dirty) {
    if constexpr (requires { environment_.now_held(block.size); }) {
      const std::size_t clean = dirty ? dirty_.count_missing(block) : block.size;
      note_held(clean);
      if (clean != block.size) note_dirty_left(block.size - clean);
      return clean == block.size;
    }
    return !dirty || !dirty_.any(block);
  }

  SPANALLOC_COLD bool add_units(Block fresh, BlockState state) {
    if (fresh.size > capacity_ - fresh.first) return false;
    controller_.index().set_limit(fresh.end());
    mapper_.mark(fresh, state);
    mapper_.set_limit(fresh.end());
    return true;
  }

  bool is_unused(std::size_t unit) const {
    return unit < mapper_.limit() && !mapper_.load(unit).is(kUsed);
  }

  // In a fork's child: makes one free block of all from `unit` up to the next block in use, or to
  // be kept. If they were published one by one, each would merge with the free ones behind it, and
  // the words there would no longer be headers. Returns where to continue.
  template <class Keep>
  SPANALLOC_COLD std::size_t free_unused_run(std::size_t unit, Keep keep, Guard& hold) {
    Block whole{unit, 0};
    Block kept{};
    while (!kept && is_unused(whole.end())) {
      const bool was_free = mapper_.load(whole.end()).is(kFree);
      const Block block = forget_block(whole.end());
      if (!was_free && keep(block)) {
        mapper_.mark(block, kUsed);
        kept = block;
      } else {
        whole.size += block.size;
      }
    }
    // The words of all but the first block now lie inside.
    if (whole) publish(whole, dirty_.any(whole), hold);
    return kept ? kept.end() : whole.end();
  }

  // Takes the block at `unit`, which is not in use, out of the index, and claims it.
  Block forget_block(std::size_t unit) {
    const BlockWord word = mapper_.load(unit);
    // A footer where a header belongs is the last unit of a merge that was
    // under way (see the mapper).
    const Block block{unit, word.is(kFooter) ? 1 : word.size()};
    if (word.is(kFree)) {
      controller_.index().erase(Index::list_of(block.size, word.dirty()), unit);
    } else {
      // Its holder may have been about to mark its units dirty, and to put it into any list.
      note_contents(block, true);
      controller_.index().forget(unit);
    }
    mapper_.mark(block, kBusy);
    return block;
  }

  // By the owner of a block, before it publishes that: notes whether units are
  // dirty, and that none has aged.
  void note_contents(Block block, bool dirty) {
    if (dirty) {
      dirty_.insert(block);
    } else {
      dirty_.erase(block);
    }
    aged_.erase(block);
  }

  Claimed take_or_prove_absence(std::size_t size, std::size_t alignment, Guard& hold) {
    for (unsigned attempt = 0;; ++attempt) {
      // The first search itself may have cleared summaries under a hold: that is no reason to wait.
      if (attempt >= 2 && !environment_.pause()) return {};
      hold.end();
      const typename Registry::Reading before = registry_.read();
      const Claimed taken = controller_.take(size, alignment, Search::kExhaustive, hold);
      if (taken) return taken;
      if (Registry::quiet_between(before, registry_.read())) return {};
    }
  }

  // By the block's owner. A very large block counts as dirty unseen: the
  // search would not be worth it.
  bool may_be_dirty(Block block) const {
    return block.size > PagesConfig::kWorthLooking || dirty_.any(block);
  }

  // Cuts the wanted units out of a claimed block, and publishes what is before and behind them.
  // Writes the new headers before it makes the old block shorter (mapper.hpp, (3)).
  Allocation cut_out(Claimed taken, std::size_t size, std::size_t alignment, Reuse reuse,
                     Guard& hold) {
    const Block mine{place_in(taken, size, alignment, reuse), size};
    const Block front{taken.block.first, mine.first - taken.block.first};
    const Block rest{mine.end(), taken.block.end() - mine.end()};
    SPANALLOC_ASSERT(mine.first >= taken.block.first && mine.end() <= taken.block.end());
    SPANALLOC_ASSERT(front.size + mine.size + rest.size == taken.block.size);  // mapper.hpp, (3)
    SPANALLOC_ASSERT(controller_.aligned(mine.first, alignment) == mine.first);
    const bool zero = note_taken(mine, taken.dirty);
    if (rest) mapper_.mark(rest, kBusy);
    if (front) {
      mapper_.mark(mine, kBusy);
      mapper_.mark(front, kBusy);
    }
    mapper_.mark(mine, kUsed);
    if (front) publish(front, taken.dirty && may_be_dirty(front), hold);
    if (rest) publish(rest, taken.dirty && may_be_dirty(rest), hold);
    return {mine, zero};
  }

  // Where cut_out() cuts the wanted units out: at the first fitting unit. But if the block has
  // clean and dirty units and dirty memory is wanted: at its first dirty units, if these are near
  // enough to look for (64 units a word).
  std::size_t place_in(Claimed taken, std::size_t size, std::size_t alignment, Reuse reuse) const {
    const std::size_t lowest = controller_.aligned(taken.block.first, alignment);
    if (!taken.dirty || reuse == Reuse::kCleanFirst) return lowest;
    const Block near{lowest, min_of(taken.block.end() - lowest, PagesConfig::kWorthLooking)};
    const std::size_t first_dirty = dirty_.next_unit(near, lowest);
    if (first_dirty == near.end()) return lowest;
    const std::size_t highest = lowest + align_down(taken.block.end() - size - lowest, alignment);
    const std::size_t place = lowest + align_down(first_dirty - lowest, alignment);
    return min_of(place + size <= first_dirty ? place + alignment : place, highest);
  }

  // The paper's coalescing: claims the neighbours that are free now. It only
  // saves a second publication.
  Claimed absorb_neighbours(Claimed own, Guard& hold) {
    const Block before = mapper_.block_before(own.block.first);
    own = absorb(own, before, before.first, hold);
    return absorb(own, mapper_.block_at(own.block.end()), own.block.first, hold);
  }
  // What the thread has claimed, together with a neighbour of it, if that can be claimed: one block
  // from `first` on.
  SPANALLOC_INLINE Claimed absorb(Claimed own, Block neighbour, std::size_t first, Guard& hold) {
    const Claimed other = controller_.remove(neighbour, hold);
    if (!other) return own;
    SPANALLOC_ASSERT(neighbour.end() == own.block.first || own.block.end() == neighbour.first);
    return {{first, own.block.size + neighbour.size}, own.dirty || other.dirty};
  }

  // Frees a block that the caller owns, and merges until no free neighbour is in sight.
  void publish(Block block, bool dirty, Guard& hold) {
    controller_.add(block, dirty);
    merge_again(block.first, hold);
  }

  // The look after a publication. Ends when the block at `first` has no free neighbour, or has been
  // claimed: then the claimant hands it out, or looks again itself.
  void merge_again(std::size_t first, Guard& hold) {
    for (;;) {
      const BlockWord word = mapper_.load(first);
      if (!word.is(kFree)) return;
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
    return word.is(kFree) && word.size() == block.size;
  }

  // Merges two neighbours if both can be claimed, the lower one first. Returns where to look
  // next: at the merged block; at the lower one if it was claimed in vain (its neighbours may
  // rely on us); or at `first`.
  std::size_t merge(Block lower, Block upper, Guard& hold, std::size_t first) {
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

  // Calls visit(block, hold) for every block of lists [list, end) that stays free during the call,
  // until it returns false. The hold has not begun; what a visit has begun ends with it.
  template <class Visit>
  void for_free_blocks(unsigned list, unsigned end, Visit visit) {
    Index& index = controller_.index();
    for (; (list = index.next_list(list, end)) < end; ++list) {
      Guard hold(registry_);
      for (std::size_t unit = index.find(list, 0, hold); unit != Index::kNone;
           unit = index.find(list, unit + 1, hold)) {
        hold.end();
        const BlockWord word = mapper_.load(unit);
        // Another block may begin there since the bit was read: not a clean one among the dirty.
        if (word.is(kFree) && (word.dirty() || list >= Index::kDirtyLists) &&
            !visit(Block{unit, word.size()}, hold))
          return;
        hold.end();
      }
    }
  }

  std::size_t purge_lists(unsigned list, unsigned end, bool only_aged, std::size_t at_most) {
    std::size_t purged = 0;
    for_free_blocks(list, end, [&](Block block, Guard& hold) {
      purged += purge_block(block, only_aged, at_most - purged, hold);
      return purged < at_most;
    });
    return purged;
  }
  std::size_t purge_block(Block block, bool only_aged, std::size_t at_most, Guard& hold) {
    if (only_aged && !aged_.any(block)) return 0;
    if (!controller_.remove(block, hold)) return 0;
    std::size_t purged = 0;
    for (Block run = dirty_.next_run(block, block.first); run && purged < at_most;
         run = dirty_.next_run(block, run.end())) {
      const Block wanted = only_aged ? aged_.next_run(run, run.first) : run;
      if (!wanted) continue;
      run = {wanted.first, min_of(wanted.size, at_most - purged)};
      aged_.erase(run);  // if refused, it is tried again an epoch later, not at each call
      if (!environment_.purge(run)) continue;
      dirty_.erase(run);
      note_clean(run.size);
      note_dirty_left(run.size);
      purged += run.size;
    }
    publish(block, dirty_.any(block), hold);
    return purged;
  }

  Environment& environment_;
  WordMapper mapper_;
  Controller controller_;
  UnitSet dirty_;  // may hold other bytes than zero; exact for the units of free blocks
  UnitSet aged_;   // if dirty: free since before the last age(). A hint; others may be in it
  UnitSet extra_[max_of(kExtraSets, 1)];
  Registry registry_;
  std::size_t capacity_ = 0;  // constant after attach()
};

}  // namespace spanalloc::coalescing
