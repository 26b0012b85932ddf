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
// allocate() reports "out of memory" only if at some instant during the call no free block was large enough,
// counting as free what others hold in the middle of an operation: it reads the registry of holds, searches
// every block, and reads the registry again. Between two equal readings without holds no block was claimed,
// and each one that was free at the beginning was found and seen to be too small. Two free neighbours may
// have stood unmerged at that beginning only because the one who published the second had not looked again
// yet; its call was still in flight, and counts as coming after. So at that beginning there was no room.
// While the readings differ, some operation has made progress or is being waited for; every round searches
// again, so that a call never waits while there is memory that it can have.
#pragma once

#include <cstddef>

#include "base/assert.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "pages/coalescing/controller.hpp"
#include "pages/coalescing/hold_registry.hpp"
#include "pages/coalescing/mapper.hpp"
#include "pages/coalescing/metadata_tables.hpp"
#include "pages/coalescing/static_controller.hpp"
#include "pages/coalescing/unit_set.hpp"

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
  // Called between two looks for memory that others hold. False: they will never let go of it, because this
  // is a fork's child, which they have not come along to, and it has not been put right yet.
  { environment.pause() } -> std::same_as<bool>;
  // Makes units read as zero and gives their memory back; false: they keep their bytes.
  { environment.purge(block) } -> std::same_as<bool>;
};

/// Thread-safe throughout; never destroyed. Its own memory is given to attach(). `kExtraSets`: sets of units
/// that the owner keeps beside the manager's, see extra_set().
template <ManagerEnvironment Environment, unsigned kShards = 16, unsigned kFanBits = 6,
          unsigned kExtraSets = 0>
class CoalescingManager {
 public:
  using Registry = HoldRegistry<kShards>;
  using Index = FreeIndex<kFanBits>;
  static constexpr unsigned kSets = 2 + kExtraSets;

  constexpr explicit CoalescingManager(Environment& environment)
      : environment_(environment), controller_(mapper_) {}

  // --- Metadata --------------------------------------------------------------------------------------------
  //
  // A few tables, each growing with the range; which they are: MetadataTables.

  using Tables = MetadataTables<Index, kSets>;

  /// Bytes of metadata for a range of at most `capacity` units.
  static constexpr std::size_t metadata_bytes(std::size_t capacity) {
    std::size_t bytes = 0;
    for (unsigned t = 0; t < Tables::kCount; ++t) bytes += Tables::bytes(t, capacity, capacity);
    return bytes;
  }

  /// `metadata`: zeroed, metadata_bytes(capacity) bytes, aligned to 8. The range is empty at first.
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
  /// The same with each table in a place of its own.
  void attach_tables(void* const (&tables)[Tables::kCount], std::size_t capacity, std::size_t origin) {
    controller_.attach(capacity, origin);
    for (unsigned level = 0; level < Index::levels_for(capacity); ++level) {
      controller_.index().attach_level(level, tables[Tables::table_of_level(level)],
                                       Tables::place_of_level(level, capacity));
    }
    void* rows = tables[Tables::kRows];
    dirty_.attach(rows, Tables::kRowWords, 0);
    aged_.attach(rows, Tables::kRowWords, 1);
    for (unsigned s = 0; s < kExtraSets; ++s) extra_[s].attach(rows, Tables::kRowWords, 2 + s);
    mapper_.attach(rows, 0, Tables::kBeforeMapper, Tables::kRowWords);
    capacity_ = capacity;
  }

  std::size_t limit() const { return mapper_.limit(); }
  std::size_t capacity() const { return capacity_; }
  /// The first unit at or behind `unit` at a multiple of `alignment` (a power of two).
  std::size_t aligned(std::size_t unit, std::size_t alignment) const {
    return controller_.aligned(unit, alignment);
  }

  /// A set of units for the owner's use; the manager itself never looks at it.
  UnitSet& extra_set(unsigned which) { return extra_[which]; }
  const UnitSet& extra_set(unsigned which) const { return extra_[which]; }

  // --- The range -------------------------------------------------------------------------------------------

  /// Adds `units` free units behind the last one. One caller at a time; false beyond the capacity.
  SPANALLOC_COLD bool extend(std::size_t units, bool zero) {
    if (units == 0) return true;
    const Block fresh{mapper_.limit(), units};
    if (!add_units(fresh, BlockState::kBusy)) return false;
    if (!zero) dirty_.insert(fresh);
    Guard hold(registry_);
    publish(fresh, !zero, hold);
    return true;
  }
  /// Adds units that are in use, as one block. Otherwise as extend().
  SPANALLOC_COLD bool extend_used(std::size_t units) {
    return units == 0 || add_units({mapper_.limit(), units}, BlockState::kUsed);
  }

  /// Units of the free block at the range's end. A hint.
  std::size_t free_tail() const {
    const Block last = mapper_.block_before(mapper_.limit());
    return is_free(last) ? last.size : 0;
  }

  /// Units of all free blocks. A hint; costs a look at every block.
  std::size_t free_units() const {
    std::size_t units = 0;
    walk([&](Block block, BlockState state, bool) { units += state == BlockState::kFree ? block.size : 0; });
    return units;
  }

  /// `block`, made longer by the blocks before and behind it that are free just now. A hint.
  Block with_free_neighbours(Block block) const {
    if (const Block before = mapper_.block_before(block.first); is_free(before)) {
      block = {before.first, before.size + block.size};
    }
    if (const Block behind = mapper_.block_at(block.end()); is_free(behind)) block.size += behind.size;
    return block;
  }

  // --- Blocks ----------------------------------------------------------------------------------------------

  /// `size` units at a multiple of `alignment` units (a power of two). No block only when at some instant
  /// during the call there was no room.
  Allocation allocate(std::size_t size, std::size_t alignment = 1, Reuse reuse = Reuse::kDirtyFirst) {
    if (!is_possible(size, alignment)) return {};
    Guard hold(registry_);
    Claimed taken = controller_.take(size, alignment, Search::kQuick, hold, reuse);
    if (!taken && reuse != Reuse::kDirtyOnly) taken = take_or_prove_absence(size, alignment, hold);
    return taken ? carve(taken, size, alignment, reuse, hold) : Allocation{};
  }
  /// The same for who has other memory to ask for: no block also when others hold it just now, or when a
  /// quick look finds none. Never waits.
  Allocation try_allocate(std::size_t size, std::size_t alignment, Reuse reuse,
                          Search search = Search::kQuick) {
    if (!is_possible(size, alignment)) return {};
    Guard hold(registry_);
    const Claimed taken = controller_.take(size, alignment, search, hold, reuse);
    return taken ? carve(taken, size, alignment, reuse, hold) : Allocation{};
  }

  /// The same from the free block at the range's end, if that is large enough: what extend() has just added.
  Allocation try_allocate_last(std::size_t size, std::size_t alignment) {
    if (!is_possible(size, alignment)) return {};
    Guard hold(registry_);
    const Block last = mapper_.block_before(mapper_.limit());
    const std::size_t start = controller_.aligned(last.first, alignment);
    if (!is_free(last) || start >= last.end() || last.end() - start < size) return {};
    const Claimed taken = controller_.remove(last, hold);
    return taken ? carve(taken, size, alignment, Reuse::kDirtyFirst, hold) : Allocation{};
  }

  /// Units of a block just handed out that were dirty.
  std::size_t dirty_units(Block block) const { return dirty_.count(block); }

  /// Units of the block handed out at `first`; 0 when there is none.
  std::size_t size_of(std::size_t first) const {
    if (first >= mapper_.limit()) return 0;
    const BlockWord word = mapper_.load(first);
    return word.is(BlockState::kUsed) ? word.size() : 0;
  }

  /// Gives back the block handed out at `first`; `zero`: every byte of it is known to be zero. False when
  /// there is no such block; then nothing has changed.
  bool free(std::size_t first, bool zero = false) {
    if (first >= mapper_.limit()) return false;
    BlockWord word = mapper_.load(first);
    if (!word.is(BlockState::kUsed)) return false;
    // Of two calls for one block (an error of the caller) one fails.
    if (!mapper_.exchange_if(first, word, word.with_state(BlockState::kBusy))) return false;
    const Block block{first, word.size()};
    note_contents(block, !zero);
    Guard hold(registry_);
    const Claimed merged = absorb_neighbours({block, !zero}, hold);
    publish(merged.block, merged.dirty, hold);
    return true;
  }

  /// Makes the block handed out at `first` `size` units large where it stands. False when its neighbour is
  /// not free or too small; then nothing has changed.
  struct Grown {
    bool done = false;
    bool zero = true;  ///< every byte of what it has gained is known to be zero
    explicit operator bool() const { return done; }
  };
  Grown grow(std::size_t first, std::size_t size) {
    const std::size_t old = size_of(first);
    if (old == 0 || size > capacity_) return {};
    if (size <= old) return {shrink(first, size)};
    Guard hold(registry_);
    const Block next = mapper_.block_at(first + old);
    if (next.size < size - old) return {};
    const Claimed claimed = controller_.remove(next, hold);
    if (!claimed) return {};
    const Block added{next.first, size - old};
    const Block rest{added.end(), next.size - added.size};
    SPANALLOC_ASSERT(claimed.block == next && added.size + rest.size == next.size);
    const bool zero = !claimed.dirty || !dirty_.any(added);
    if (rest) mapper_.store(rest.first, BlockWord::header(BlockState::kBusy, rest.size));
    mapper_.store(first, BlockWord::header(BlockState::kUsed, size));
    if (rest) publish(rest, claimed.dirty && may_be_dirty(rest), hold);
    return {true, zero};
  }

  /// Gives back what the block at `first` has beyond `size` units; `zero`: every byte of that is known to be
  /// zero. False when there is no such block or it is smaller.
  bool shrink(std::size_t first, std::size_t size, bool zero = false) {
    const std::size_t old = size_of(first);
    if (size == 0 || old < size) return false;
    if (size == old) return true;
    const Block tail{first + size, old - size};
    SPANALLOC_ASSERT(size + tail.size == old);
    note_contents(tail, !zero);
    mapper_.store(tail.first, BlockWord::header(BlockState::kBusy, tail.size));
    mapper_.store(first, BlockWord::header(BlockState::kUsed, size));
    Guard hold(registry_);
    publish(tail, !zero, hold);
    return true;
  }

  /// Makes two blocks in use of the one handed out at `first`: its first `size` units, and the rest. False
  /// when there is no such block, or it is not larger.
  bool split(std::size_t first, std::size_t size) {
    const std::size_t old = size_of(first);
    if (size == 0 || old <= size) return false;
    mapper_.store(first + size, BlockWord::header(BlockState::kUsed, old - size));
    mapper_.store(first, BlockWord::header(BlockState::kUsed, size));
    return true;
  }

  /// Purges dirty free units, at most `at_most` of them; with `only_aged` only those that
  /// have been free since before the last age(). Returns the units that became clean.
  std::size_t purge(bool only_aged, std::size_t at_most = SIZE_MAX) {
    std::size_t purged = 0;
    for_dirty_blocks([&](Block block) {
      purged += purge_block(block, only_aged, at_most - purged);
      return purged < at_most;
    });
    return purged;
  }
  /// The same with the largest blocks first, whatever their age.
  std::size_t purge_largest(std::size_t at_most) {
    std::size_t purged = 0;
    const unsigned smallest = Index::list_of(1, true);
    for (unsigned list = Index::list_of(SIZE_MAX, true) + 1; list-- > smallest && purged < at_most;) {
      if (controller_.index().next_list(list, list + 1) != list) continue;
      for_dirty_blocks(list, [&](Block block) {
        purged += purge_block(block, false, at_most - purged);
        return purged < at_most;
      });
    }
    return purged;
  }
  /// A tick of the decay clock. Returns how many units are dirty and free, about.
  std::size_t age() {
    std::size_t dirty = 0;
    for_dirty_blocks([&](Block block) {
      // Not exact if somebody claims the block meanwhile: then some units are purged a tick too early.
      for (Block run = dirty_.next_run(block, block.first); run; run = dirty_.next_run(block, run.end())) {
        aged_.insert(run);
        dirty += run.size;
      }
      return true;
    });
    return dirty;
  }

  /// Takes every free block that it can find and gives it to visit(block), which says whether it keeps it; if
  /// so the block is in use. For taking memory out of the range for a while.
  template <class Visit>
  SPANALLOC_COLD void take_all(Visit visit) {
    Index& index = controller_.index();
    for (unsigned list = 0; (list = index.next_list(list, Index::kLists)) < Index::kLists; ++list) {
      Guard hold(registry_);
      for (std::size_t unit = index.find(list, 0, hold); unit != Index::kNone;
           unit = index.find(list, unit + 1, hold)) {
        const Claimed claimed = controller_.remove({unit, mapper_.load(unit).size()}, hold);
        if (!claimed) continue;
        if (visit(claimed.block)) {
          mapper_.store(unit, BlockWord::header(BlockState::kUsed, claimed.block.size));
        } else {
          publish(claimed.block, claimed.dirty, hold);
        }
        hold.end();
      }
    }
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

  /// Whether some thread has claimed a block, or hidden one, and not yet let it go. In a fork's child that is
  /// not in a call of its own: whether recover_after_fork() has anything to do.
  bool someone_holds() const { return registry_.read().held; }

  /// Who has held free blocks until now: a quick look between two equal readings has missed no block that it
  /// would have looked at.
  typename Registry::Reading holds() const { return registry_.read(); }

  /// In a fork's child, where no other thread is, and the calling one in no call: what vanished threads had
  /// claimed, whatever they were about to do with it, becomes free and counts as dirty; what the index knows
  /// of the free blocks can be found again. `keep(block)`, for a block that a vanished thread had claimed: it
  /// is in use.
  template <class Keep>
  SPANALLOC_COLD void recover_after_fork(Keep keep) {
    registry_.reset();
    Guard hold(registry_);
    for (std::size_t unit = 0; unit < mapper_.limit();) {
      const BlockWord word = mapper_.load(unit);
      if (word.is(BlockState::kUsed)) {
        unit += word.size();
      } else if (word.is(BlockState::kFree) && !is_unused(unit + word.size())) {
        // At rest, and so is its bit (free_index.hpp, rule (1)); who vanished may have hidden it.
        controller_.index().show(Index::list_of(word.size(), word.dirty()), unit);
        unit += word.size();
      } else {
        unit = free_unused_run(unit, keep, hold);
      }
    }
  }
  void recover_after_fork() {
    recover_after_fork([](Block) { return false; });
  }

 private:
  using Guard = Hold<Registry>;
  using Controller = StaticController<WordMapper, Index>;
  static_assert(BlockController<Controller, Guard>);
  // Units whose dirt is looked at where it need not be known, only better is.
  static constexpr std::size_t kWorthLooking = 64 * 64;

  bool is_possible(std::size_t size, std::size_t alignment) const {
    return size != 0 && size <= capacity_ && is_power_of_two(alignment);
  }

  SPANALLOC_COLD bool add_units(Block fresh, BlockState state) {
    if (fresh.size > capacity_ - fresh.first) return false;
    controller_.index().set_limit(fresh.end());
    mapper_.store(fresh.first, BlockWord::header(state, fresh.size));
    mapper_.set_limit(fresh.end());
    return true;
  }

  bool is_unused(std::size_t unit) const {
    return unit < mapper_.limit() && !mapper_.load(unit).is(BlockState::kUsed);
  }

  // In a fork's child: makes one free block of all from `unit` up to the next block in use, or to be kept.
  // Were they published one by one, each would merge with what is free behind it, and the words there would
  // no longer be headers. Returns where to go on.
  template <class Keep>
  SPANALLOC_COLD std::size_t free_unused_run(std::size_t unit, Keep keep, Guard& hold) {
    Block whole{unit, 0};
    Block kept{};
    while (!kept && is_unused(whole.end())) {
      const bool was_free = mapper_.load(whole.end()).is(BlockState::kFree);
      const Block block = forget_block(whole.end());
      if (!was_free && keep(block)) {
        mapper_.store(block.first, BlockWord::header(BlockState::kUsed, block.size));
        kept = block;
      } else {
        whole.size += block.size;
      }
    }
    // Its header comes from the first of them; the sizes of the others are inside now.
    if (whole) publish(whole, dirty_.any(whole), hold);
    return kept ? kept.end() : whole.end();
  }

  // Takes the block at `unit`, which is not in use, from wherever it is.
  Block forget_block(std::size_t unit) {
    const BlockWord word = mapper_.load(unit);
    // A footer where a header belongs: the last unit of a merge that was under way (see the mapper).
    const Block block{unit, word.is(BlockState::kFooter) ? 1 : word.size()};
    if (word.is(BlockState::kFree)) {
      controller_.index().erase(Index::list_of(block.size, word.dirty()), unit);
    } else {
      // Whoever held it may have been about to say that its units are dirty, and in whatever list it was.
      note_contents(block, true);
      controller_.index().forget(unit);
    }
    mapper_.store(unit, BlockWord::header(BlockState::kBusy, block.size));
    return block;
  }

  // By the owner of a block that it is about to publish: what its units hold, and that they are young.
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
      // The first search itself may have tidied the index up under a hold: not a reason to wait.
      if (attempt >= 2 && !environment_.pause()) return {};
      hold.end();
      const typename Registry::Reading before = registry_.read();
      const Claimed taken = controller_.take(size, alignment, Search::kExhaustive, hold);
      if (taken) return taken;
      if (Registry::quiet_between(before, registry_.read())) return {};
    }
  }

  // Of the owner's block; of a very large one it is not worth finding out.
  bool may_be_dirty(Block block) const { return block.size > kWorthLooking || dirty_.any(block); }

  // Cuts the wanted units out of a claimed block and publishes what is before and behind them. The new
  // headers are there before the old one is made shorter (mapper.hpp, (3)).
  Allocation carve(Claimed taken, std::size_t size, std::size_t alignment, Reuse reuse, Guard& hold) {
    const Block mine{place_in(taken, size, alignment, reuse), size};
    const Block front{taken.block.first, mine.first - taken.block.first};
    const Block rest{mine.end(), taken.block.end() - mine.end()};
    SPANALLOC_ASSERT(mine.first >= taken.block.first && mine.end() <= taken.block.end());
    SPANALLOC_ASSERT(front.size + mine.size + rest.size == taken.block.size);  // mapper.hpp, (3)
    SPANALLOC_ASSERT(controller_.aligned(mine.first, alignment) == mine.first);
    const bool zero = !taken.dirty || !dirty_.any(mine);
    if (rest) mapper_.store(rest.first, BlockWord::header(BlockState::kBusy, rest.size));
    if (front) {
      mapper_.store(mine.first, BlockWord::header(BlockState::kBusy, mine.size));
      mapper_.store(front.first, BlockWord::header(BlockState::kBusy, front.size));
    }
    mapper_.store(mine.first, BlockWord::header(BlockState::kUsed, mine.size));
    if (front) publish(front, taken.dirty && may_be_dirty(front), hold);
    if (rest) publish(rest, taken.dirty && may_be_dirty(rest), hold);
    return {mine, zero};
  }

  // Where in a claimed block the wanted units are cut out: at its first fitting unit, but if the block is
  // clean and dirty by turns and warm memory is wanted, where its first dirty units are, if these are not too
  // far away to look for (a word holds 64 units).
  std::size_t place_in(Claimed taken, std::size_t size, std::size_t alignment, Reuse reuse) const {
    const std::size_t lowest = controller_.aligned(taken.block.first, alignment);
    if (!taken.dirty || reuse == Reuse::kCleanFirst) return lowest;
    const Block near{lowest, min_of(taken.block.end() - lowest, kWorthLooking)};
    const std::size_t warm = dirty_.next_unit(near, lowest);
    if (warm == near.end()) return lowest;
    const std::size_t highest = lowest + align_down(taken.block.end() - size - lowest, alignment);
    const std::size_t place = lowest + align_down(warm - lowest, alignment);
    return min_of(place + size <= warm ? place + alignment : place, highest);
  }

  // The paper's coalescing: claims the neighbours that are free now. Only saves publishing twice.
  Claimed absorb_neighbours(Claimed own, Guard& hold) {
    if (const Claimed before = controller_.remove(mapper_.block_before(own.block.first), hold)) {
      SPANALLOC_ASSERT(before.block.end() == own.block.first);
      own.block = {before.block.first, before.block.size + own.block.size};
      own.dirty = own.dirty || before.dirty;
    }
    if (const Claimed behind = controller_.remove(mapper_.block_at(own.block.end()), hold)) {
      SPANALLOC_ASSERT(behind.block.first == own.block.end());
      own.block.size += behind.block.size;
      own.dirty = own.dirty || behind.dirty;
    }
    return own;
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
    const Claimed low = controller_.remove(lower, hold);
    if (!low) return first;
    const Claimed up = controller_.remove(upper, hold);
    if (!up) {
      controller_.add(lower, low.dirty);
      return lower.first;
    }
    SPANALLOC_ASSERT(lower.end() == upper.first);
    controller_.add({lower.first, lower.size + upper.size}, low.dirty || up.dirty);
    return lower.first;
  }

  // visit(block) until it returns false, for every dirty free block that stays so during the call.
  template <class Visit>
  void for_dirty_blocks(Visit visit) {
    Index& index = controller_.index();
    const unsigned end = Index::list_of(SIZE_MAX, true) + 1;
    for (unsigned list = Index::list_of(1, true); (list = index.next_list(list, end)) < end; ++list) {
      if (!for_dirty_blocks(list, visit)) return;
    }
  }
  // The same for those of one list. False: it was ended.
  template <class Visit>
  bool for_dirty_blocks(unsigned list, Visit&& visit) {
    Index& index = controller_.index();
    Guard hold(registry_);
    for (std::size_t unit = index.find(list, 0, hold); unit != Index::kNone;
         unit = index.find(list, unit + 1, hold)) {
      hold.end();
      const BlockWord word = mapper_.load(unit);
      if (word.is(BlockState::kFree) && word.dirty() && !visit(Block{unit, word.size()})) return false;
    }
    return true;
  }

  std::size_t purge_block(Block block, bool only_aged, std::size_t at_most) {
    if (only_aged && !aged_.any(block)) return 0;
    Guard hold(registry_);
    if (!controller_.remove(block, hold)) return 0;
    std::size_t purged = 0;
    for (Block run = next_to_purge(block, block.first, only_aged); run && purged < at_most;
         run = next_to_purge(block, run.end(), only_aged)) {
      run.size = min_of(run.size, at_most - purged);
      aged_.erase(run);  // what is refused is asked for again after another tick, not at each call
      if (!environment_.purge(run)) continue;
      dirty_.erase(run);
      purged += run.size;
    }
    publish(block, dirty_.any(block), hold);
    return purged;
  }
  Block next_to_purge(Block block, std::size_t from, bool only_aged) const {
    for (Block run = dirty_.next_run(block, from); run; run = dirty_.next_run(block, run.end())) {
      if (!only_aged) return run;
      const Block old = aged_.next_run(run, run.first);
      if (old) return old;
    }
    return {};
  }

  Environment& environment_;
  WordMapper mapper_;
  Controller controller_;
  UnitSet dirty_;  // may hold other bytes than zero; exact for the units of free blocks
  UnitSet aged_;   // dirty and free since before the last age(); a hint
  UnitSet extra_[max_of(kExtraSets, 1)];
  Registry registry_;
  std::size_t capacity_ = 0;  // constant after attach()
};

}  // namespace spanalloc::coalescing
