// The global heap: what no thread's heap has. Empty superblocks and freed large objects are one and
// the same here, runs of superblock-sized free pieces of the arena, which serve whoever comes next.
//
// The arena is cut into pieces; each has a record (Superblock) in a table beside it. A run of
// pieces is described by the record of its first one, and when it is free by that of its last one,
// too: so a run that becomes free finds its neighbours.
//
// A free piece is dirty, as far as is known in memory, or reads as zero. Where the config bounds
// what is dirty, settle() gives back what exceeds the bound, and what nobody has wanted for a decay
// time. A run, or the end of one, is out of everybody's reach while the kernel takes its pages
// back: no lock is held over that.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "base/poison.hpp"
#include "os/os.hpp"
#include "pages/dirty_bound.hpp"
#include "pages/growing_table.hpp"
#include "papers/a2alloc/engine/block.hpp"
#include "papers/a2alloc/engine/config.hpp"
#include "papers/a2alloc/engine/heap.hpp"
#include "papers/a2alloc/engine/piece_counts.hpp"
#include "papers/a2alloc/engine/superblock.hpp"
#include "papers/shared/bump_arena.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc::a2alloc {

/// What the global heap hands out.
template <class Config>
struct Run {
  Superblock<Config>* first = nullptr;  ///< nullptr: memory is out
  bool is_zero = false;                 ///< it reads as zero
};

/// Thread-safe; zero-initialisable; never destroyed but by destroy(). Invariants, under the lock:
///   (G1) no two free runs are neighbours;
///   (G2) each of them is in the list of free runs, and nothing else is;
///   (G3) counts_ says what there is of each kind: it adds up to the pieces that are known;
///   (G4) a run's `dirty` is the number of its pieces that are not marked as zero, and
///   counts_.dirty the sum.
template <class Config>
class GlobalHeap {
 public:
  using Piece = Superblock<Config>;
  using Arena = BumpArena<Config::kSuperblockBits, 0, HugePages::kKernelDefault>;
  static constexpr std::size_t kPiece = kSuperblockBytes<Config>;

  /// Reserves the arena. False when not even a small one can be had; may be called again then.
  bool start() {
    Guard guard(*this);
    if (base_.load_relaxed() != 0) return true;
    TableRegion region;
    region.choose<PageCalls>();
    if (!arena_.start() || !table_.start(arena_.capacity(), &region)) return false;
    draw_secret();
    if (Config::kBoundsWhatIsFree) decay_ms_ = os::option_number("DECAY_MS", 0, 3600 * 1000, 500);
    base_.store_release(arena_.base());  // release: who sees the address sees the rest
    return true;
  }
  bool is_started() const { return base_.load_acquire() != 0; }

  /// False: somebody else's mapping stands in the way of the table, which has no gaps: what is
  /// known of the arena is all that there will be.
  bool can_grow() const { return table_.is_without_gaps(); }

  /// The record of the piece that p lies in; nullptr when that is none of ours.
  Piece* piece_of(const void* p) {
    // Relaxed: whoever has a pointer into a piece got it from someone who saw the limit that covers
    // it. Without an arena the limit is 0.
    const std::size_t number = (address_of(p) - base_.load_relaxed()) >> Config::kSuperblockBits;
    return SPANALLOC_LIKELY(number < limit_.load_relaxed()) ? &table_[number] : nullptr;
  }

  /// A run of pieces, the first of them at a multiple of `alignment` (a power of two). First fit.
  /// None when memory is out.
  Run<Config> take(Kind kind, std::size_t count, std::size_t alignment = kPiece) {
    SPANALLOC_ASSERT(is_in_use(kind) && count != 0);
    for (unsigned waits = 0;; ++waits) {
      {
        Guard guard(*this);
        if (const Run<Config> run = take_locked(kind, count, alignment); run.first != nullptr)
          return run;
        if (counts_.purging == 0 || waits == kMostWaits) return {};
      }
      // What is being purged comes back soon, and may do. Who purges it waits for no lock but
      // this one. A fork's child that knows that it is one finds it free; in one that nobody has
      // told it never comes back.
      os::yield();
      SpinLock::look_for_fork();
    }
  }

  /// Takes a run back, memory written to. Nobody refers to it any more.
  void put(Piece* run) {
    Guard guard(*this);
    put_locked(run);
  }

  /// Frees the large object at p. False if there is none: then nothing has changed.
  bool free_large(Piece* run, const void* p) {
    std::size_t count = 0;
    {
      Guard guard(*this);
      if (!is_large_at(run, p)) return false;
      count = run->count;
      poison(p, count * kPiece);
      put_locked(run);
    }
    settle(count);
    return true;
  }

  /// Bytes of the large object at p; 0 if there is none.
  std::size_t large_size(Piece* run, const void* p) {
    Guard guard(*this);
    return is_large_at(run, p) ? run->count * kPiece : 0;
  }

  /// Makes the large object at p `count` pieces long, where it is. False if that cannot be done.
  bool resize_large(Piece* run, const void* p, std::size_t count) {
    std::size_t rest = 0;
    {
      Guard guard(*this);
      if (!is_large_at(run, p)) return false;
      if (count > run->count) return grow_large(run, count);
      rest = run->count - count;
      if (rest == 0) return true;
      poison(pointer_to(run->start + count * kPiece), rest * kPiece);
      run->count = static_cast<std::uint32_t>(count);
      counts_.large -= rest;
      add_written(run + count, rest);
    }
    settle(rest);
    return true;
  }

  /// Gives the pages of free pieces back to the kernel; true if there were any.
  bool purge() {
    Guard guard(*this);
    arena_.begin_purging();
    bool any = false;
    for (Piece* run = free_.first(); run != nullptr; run = run->next) {
      if (run->dirty == 0 || !purge_pieces(run, run->count)) continue;
      mark(run, run->count, true);
      counts_.dirty -= run->dirty;
      run->dirty = 0;
      any = true;
    }
    dirty_bound_.dirty_is(counts_.dirty);
    lowest_dirty_ = counts_.dirty;
    unwanted_.store_relaxed(0);
    return any;
  }

  /// After `count` pieces have become free, or where the caller passes by: gives back a part of
  /// what exceeds the bound, and of what nobody has wanted for a decay time; enough to keep up.
  /// With no lock held: it may take as long as the kernel does.
  void settle(std::size_t count) {
    if constexpr (Config::kBoundsWhatIsFree) {
      if (const std::uint64_t now = os::now_ms(); now >= next_tick_.load_relaxed()) tick(now);
      const std::size_t excess = dirty_bound_.excess();
      const bool for_bound = excess >= kLeastPurged;
      const std::size_t wanted = for_bound ? excess : unwanted_.load_relaxed();
      if (SPANALLOC_LIKELY(wanted == 0)) return;
      give_back(min_of(wanted, 2 * count + kPurgedBesides), for_bound);
    }
  }

  PieceCounts counts() {
    Guard guard(*this);
    return counts_;
  }
  ArenaStatistics arena_statistics() { return arena_.statistics(); }
  /// See BumpArena.
  template <class F>
  auto ask_within_limits(F f) {
    return arena_.ask_within_limits(f);
  }

  /// Calls f(Piece*) for the first piece of every run, by address, and for pieces lost
  /// to foreign mappings; f(piece) says by its count how far the run goes. While no
  /// other thread uses the heap.
  template <class F>
  void for_each_run(F&& f) {
    for (std::size_t number = 1; number < limit_.load_relaxed();) {
      Piece* run = &table_[number];
      f(run);
      number += run->kind.load_relaxed() == Kind::kInside ? 1 : run->count;
    }
  }
  /// Calls f(Piece*) for every piece that says it is this heap's: superblocks, and what vanished
  /// threads were about to take out of it.
  template <class F>
  void for_each_piece_of(const Heap<Config>& heap, F&& f) {
    for (std::size_t number = 1; number < limit_.load_acquire(); ++number) {
      Piece& piece = table_[number];
      if (piece.heap.load_relaxed() == &heap) f(&piece);
    }
  }
  /// The same for the list of free runs.
  template <class F>
  void for_each_free(F&& f) {
    for (Piece* run = free_.first(); run != nullptr; run = run->next) f(run);
  }

  /// A superblock that is in no heap any more, and is not whole.
  void lose(Piece* piece) {
    Guard guard(*this);
    SPANALLOC_ASSERT(piece->kind.load_relaxed() == Kind::kSuperblock && counts_.superblocks != 0);
    piece->kind.store_relaxed(Kind::kLost);
    --counts_.superblocks;
    ++counts_.lost_to_fork;
  }

  /// Gives all address space back, while nobody uses anything in it. The object is used up.
  void destroy() {
    arena_.destroy();
    table_.destroy();
  }

  /// In a fork's child, first of all.
  void enter_child() {
    lock_.abandon_if_owner_died();
    // Who was purging without the lock may be this thread or a vanished one: what
    // was out of reach is free.
    repair_is_due_ = repair_is_due_ || counts_.purging != 0;
    arena_.enter_child();
  }

 private:
  friend struct GlobalHeapTestAccess;  // defined by unit tests only

  /// Holds the lock; the books are whole, at its end too.
  class [[nodiscard]] Guard {
   public:
    explicit Guard(GlobalHeap& heap) : guard_(heap.lock_), heap_(heap) {
      if (SPANALLOC_UNLIKELY(guard_.owner_died() || heap.repair_is_due_)) heap.repair();
    }
    ~Guard() { SPANALLOC_ASSERT(heap_.counts_.add_up()); }  // G3
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    LockGuard<WakingLock> guard_;
    [[maybe_unused]] GlobalHeap& heap_;
  };

  // In a fork's child whose parent had another thread in here: what is in use says so by its kind,
  // written last, and its count; all else is free. (A superblock that is in no heap was in the
  // hands of that thread, or is in those of this one: it stays what it is.)
  void repair() {
    SPANALLOC_ASSERT(lock_.is_mine());
    repair_is_due_ = false;
    ++repairs_;
    free_.forget();
    // Number 0 is nobody's, and the limit is 0 until the first piece is known.
    const std::size_t end = max_of(limit_.load_relaxed(), std::size_t{1});
    counts_ = {};
    counts_.known = end - 1;
    if (spare_ < end) spare_ = 0;  // it has been made known already
    std::size_t first_free = 1;
    for (std::size_t number = 1; number < end;) {
      Piece& piece = table_[number];
      const Kind kind = piece.kind.load_relaxed();
      const bool lives = is_in_use(kind);
      const std::size_t count = lives ? max_of(piece.count, 1) : 1;
      if (lives) {
        for (std::size_t i = 1; i < count; ++i)
          table_[number + i].kind.store_relaxed(Kind::kInside);
        counts_.of(kind) += count;
        counts_.large_objects += kind == Kind::kLarge;
      } else {
        piece.kind.store_relaxed(Kind::kInside);
        counts_.lost += piece.start == 0;
      }
      // A record without an address is a foreign mapping's.
      if (lives || piece.start == 0) {
        free_again(first_free, number);
        first_free = number + count;
      }
      number += count;
    }
    free_again(first_free, end);
    dirty_bound_.live_is(counts_.superblocks + counts_.large + counts_.heap_records);
    dirty_bound_.dirty_is(counts_.dirty);
    lowest_dirty_ = 0;
  }
  // What of it was clean is not known any more: it may have been handed out already.
  void free_again(std::size_t first, std::size_t end) {
    if (first == end) return;
    mark(&table_[first], end - first, false);
    add_free(&table_[first], end - first, end - first);
  }

  static bool is_free_end(const Piece& piece) {
    const Kind kind = piece.kind.load_relaxed();
    return kind == Kind::kFree || kind == Kind::kFreeTail;
  }
  bool is_known(const Piece* piece) { return table_.number_of(piece) < limit_.load_relaxed(); }
  static bool is_large_at(const Piece* run, const void* p) {
    return run->kind.load_relaxed() == Kind::kLarge && run->start == address_of(p);
  }

  void put_locked(Piece* run) {
    const Kind kind = run->kind.load_relaxed();
    SPANALLOC_ASSERT(kind == Kind::kSuperblock || kind == Kind::kLarge);
    SPANALLOC_ASSERT(run->heap.load_relaxed() == nullptr);
    SPANALLOC_ASSERT(counts_.of(kind) >= run->count);  // G3
    counts_.of(kind) -= run->count;
    counts_.large_objects -= kind == Kind::kLarge;
    add_written(run, run->count);
  }

  Run<Config> take_locked(Kind kind, std::size_t count, std::size_t alignment) {
    const std::size_t slack = alignment > kPiece ? alignment / kPiece - 1 : 0;
    if (count > arena_.capacity() || slack > arena_.capacity()) return {};
    Piece* run = find(count + slack);
    if (run == nullptr) return {};
    remove_free(run);
    const std::size_t in_front =
        (align_up(run->start, max_of(alignment, kPiece)) - run->start) / kPiece;
    Piece* taken = run + in_front;
    const std::size_t behind = run->count - in_front - count;
    const std::size_t dirty_in_front = dirty_in(run, run, in_front);
    const std::size_t dirty = dirty_in(run, taken, count);
    const std::size_t dirty_behind = run->dirty - dirty_in_front - dirty;
    if (in_front != 0) add_free(run, in_front, dirty_in_front);
    if (behind != 0) add_free(taken + count, behind, dirty_behind);
    dirty_bound_.taken(count, dirty);
    note_lowest();
    SPANALLOC_ASSERT(taken->kind.load_relaxed() == Kind::kInside &&
                     taken->heap.load_relaxed() == nullptr);
    taken->count = static_cast<std::uint32_t>(count);
    // Release: a fork's child that finds it in use finds its count (repair).
    taken->kind.store_release(kind);
    counts_.of(kind) += count;
    counts_.large_objects += kind == Kind::kLarge;
    return {taken, dirty == 0};
  }

  // Of a large object.
  bool grow_large(Piece* run, std::size_t count) {
    Piece* next = run + run->count;
    const std::size_t wanted = count - run->count;
    if (!is_known(next) || next->kind.load_relaxed() != Kind::kFree || next->count < wanted)
      return false;
    remove_free(next);
    const std::size_t dirty = dirty_in(next, next, wanted);
    if (next->count > wanted) add_free(next + wanted, next->count - wanted, next->dirty - dirty);
    dirty_bound_.taken(wanted, dirty);
    note_lowest();
    run->count = static_cast<std::uint32_t>(count);
    counts_.large += wanted;
    unpoison(pointer_to(run->start), count * kPiece);
    return true;
  }

  // --- What is dirty -----------------------------------------------------------------------------

  // Less is given back for the bound only together with more, and a run with so much is given back
  // rather than smaller ones: each costs a call of the kernel.
  static constexpr std::size_t kLeastPurged = 1 * kMiB / kPiece;
  // Beside twice what has become free: so what is too much, or unwanted, comes to an end.
  static constexpr std::size_t kPurgedBesides = 4 * kMiB / kPiece;
  // Waits for what is being purged, of some 50 us: more than the kernel takes for gigabytes.
  static constexpr unsigned kMostWaits = 20'000;

  static void mark(Piece* run, std::size_t count, bool zero) {
    for (std::size_t i = 0; i < count; ++i) run[i].zero = zero;
  }
  // How many of `count` pieces of a run that was free are dirty.
  static std::size_t dirty_in(const Piece* run, const Piece* first, std::size_t count) {
    if (run->dirty == 0 || run->dirty == run->count) return run->dirty == 0 ? 0 : count;
    std::size_t dirty = 0;
    for (std::size_t i = 0; i < count; ++i) dirty += !first[i].zero;
    return dirty;
  }
  // From the first dirty piece of a run to the last one; there are some. False: the kernel refuses.
  bool purge_pieces(const Piece* run, std::size_t count) {
    while (run->zero) ++run, --count;
    while (run[count - 1].zero) --count;
    return arena_.purge_unused(pointer_to(run->start), count * kPiece);
  }

  void note_lowest() { lowest_dirty_ = min_of(lowest_dirty_, counts_.dirty); }

  // What has been dirty ever since the last tick somebody could have had all that time.
  SPANALLOC_COLD void tick(std::uint64_t now) {
    Guard guard(*this);
    if (now < next_tick_.load_relaxed()) return;
    next_tick_.store_relaxed(now + decay_ms_ / 2 + 1);
    unwanted_.store_relaxed(lowest_dirty_);
    lowest_dirty_ = counts_.dirty;
    dirty_bound_.pass_epoch(counts_.dirty);
  }

  // Pieces that are out of reach, in which process they were taken out, and how many repairs there
  // had been then: the next one frees them.
  struct OutOfReach {
    Piece* first = nullptr;
    std::size_t count = 0;
    std::size_t dirty = 0;
    std::uint16_t generation = 0;
    std::uint32_t repairs = 0;
  };

  SPANALLOC_COLD void give_back(std::size_t wanted, bool for_bound) {
    arena_.begin_purging();
    while (wanted != 0) {
      const OutOfReach part = take_out(wanted, for_bound);
      if (part.first == nullptr) return;
      Config::Observer::purges();
      // Where a signal handler has forked, and this is the child, they may be free there, and in
      // use by now.
      const bool asked = part.generation == SpinLock::generation();
      const bool purged = asked && purge_pieces(part.first, part.count);
      put_back(part, purged, asked);
      if (!purged) return;
      wanted -= part.dirty;
    }
  }

  // At most so many dirty pieces: the end of a run, because first fit takes its beginning.
  OutOfReach take_out(std::size_t most, bool for_bound) {
    Guard guard(*this);
    const std::uint16_t generation = SpinLock::generation();
    Piece* run = find_dirty();
    if (run == nullptr) {
      dirty_bound_.dirty_is(counts_.dirty);
      unwanted_.store_relaxed(0);
      return {};
    }
    const std::size_t dirty = min_of(most, std::size_t{run->dirty});
    std::size_t stays = run->count;
    for (std::size_t found = 0; found < dirty; found += !run[stays].zero) --stays;
    Piece* first = run + stays;
    const std::size_t count = run->count - stays;
    if (stays == 0) {
      remove_free(run);
    } else {
      cut_end(run, stays, dirty);
    }
    first->count = static_cast<std::uint32_t>(count);
    first->kind.store_relaxed(Kind::kPurging);
    counts_.purging += count;
    Config::Observer::books_out_of_reach();
    if (for_bound) {
      dirty_bound_.purged_for_bound(dirty);
    } else {
      dirty_bound_.purged(dirty);
    }
    unwanted_.store_relaxed(unwanted_.load_relaxed() - min_of(unwanted_.load_relaxed(), dirty));
    note_lowest();
    return {first, count, dirty, generation, repairs_};
  }

  void put_back(const OutOfReach& part, bool purged, bool asked) {
    Guard guard(*this);
    // This is a fork's child, of a signal handler's, that has found something out of reach: all of
    // that is free already. (Not if the handler came before these pieces were booked as such: the
    // child that then found nothing has repaired nothing. So another generation alone does not
    // tell.)
    if (SPANALLOC_UNLIKELY(part.repairs != repairs_)) return;
    SPANALLOC_ASSERT(part.first->kind.load_relaxed() == Kind::kPurging);
    SPANALLOC_ASSERT(counts_.purging >= part.count);  // G3
    counts_.purging -= part.count;
    if (purged) {
      mark(part.first, part.count, true);
    } else if (asked) {
      // It would be refused again: not before as much more has become free.
      dirty_bound_.dirty_is(0);
      unwanted_.store_relaxed(0);
    }
    add_free(part.first, part.count, purged ? 0 : part.dirty, Place::kBack);
  }

  // The last run of the list, which first fit finds last, with so much that a call pays;
  // or the one that has most.
  Piece* find_dirty() {
    Piece* found = nullptr;
    for (Piece* run = free_.first(); run != nullptr; run = run->next) {
      const std::size_t most =
          found == nullptr ? 0 : min_of(std::size_t{found->dirty}, kLeastPurged - 1);
      if (run->dirty > most) found = run;
    }
    return found;
  }

  // --- Runs --------------------------------------------------------------------------------------

  Piece* find(std::size_t count) {
    SPANALLOC_ASSERT(lock_.is_mine());
    for (Piece* run = free_.first(); run != nullptr; run = run->next) {
      SPANALLOC_ASSERT(run->kind.load_relaxed() == Kind::kFree);  // G2
      if (run->count >= count) return run;
    }
    if (!may_grow_to(count)) return nullptr;
    for (;;) {
      Piece* grown = extend();
      if (grown == nullptr || grown->count >= count) return grown;
    }
  }

  // Whether the kernel would grant what the free run at the arena's end lacks of `count`
  // pieces. The arena gives nothing back: a run that is refused half-way would keep that half
  // from the rest of the process.
  bool may_grow_to(std::size_t count) {
    if (count == 1) return true;
    const ArenaStatistics arena = arena_.statistics();
    // Numbers below this one
    const std::size_t open = (arena.opened_bytes + arena.lost_bytes) / kPiece;
    const std::size_t known = max_of(limit_.load_relaxed(), std::size_t{1});
    std::size_t ready = open - known;
    if (known > 1) {
      const Piece& last = table_[known - 1];
      if (is_free_end(last)) ready += last.count;
    }
    return count <= ready ||
           arena_.ask_within_limits([=] { return os::would_grant((count - ready) * kPiece); });
  }

  // One piece more from the arena: the free run that it now belongs to. What was taken stays
  // when a later one is refused.
  Piece* extend() {
    // The arena takes nothing back: a piece whose record cannot be had waits for the next call.
    if (spare_ == 0) spare_ = arena_.allocate(0);
    if (spare_ == 0) return nullptr;
    const std::size_t end = spare_ + std::size_t{1};
    if (!arena_.ask_within_limits([=, this] { return table_.ensure(end); })) return nullptr;
    Piece* piece = &table_[spare_];
    piece->start = arena_.base() + std::size_t{spare_} * kPiece;
    // Release: whoever sees the limit may read the records below it. (Foreign mappings that the
    // arena stepped over leave records of zeroes.)
    const std::size_t known = max_of(limit_.load_relaxed(), std::size_t{1});
    SPANALLOC_ASSERT(spare_ >= known && piece->kind.load_relaxed() == Kind::kInside);
    limit_.store_release(spare_ + std::size_t{1});
    counts_.known += spare_ + 1 - known;
    counts_.lost += spare_ - known;
    spare_ = 0;
    piece->zero = true;
    return add_free(piece, 1, 0);
  }

  // Pieces that their user has written to become free.
  void add_written(Piece* run, std::size_t count) {
    mark(run, count, false);
    dirty_bound_.given(count, false);
    add_free(run, count, count);
  }

  // Where in the list a run goes that becomes free: first fit finds the one in front first. In the
  // back, what joins a run stays where that run is.
  enum class Place : std::uint8_t { kFront, kBack };

  // Merges a free run, so many of whose pieces are dirty, with its free neighbours and lists it;
  // returns the run that comes of it.
  Piece* add_free(Piece* run, std::size_t count, std::size_t dirty, Place place = Place::kFront) {
    SPANALLOC_ASSERT(lock_.is_mine() && !is_free_end(*run) && dirty <= count);
    counts_.free += count;
    counts_.dirty += dirty;
    // Release: a fork's child that finds it free finds it in no heap (Heap::evict).
    run->kind.store_release(Kind::kInside);
    Piece* right = run + count;
    if (is_known(right) && right->kind.load_relaxed() == Kind::kFree) {
      dirty += right->dirty;
      count += right->count;
      unlist(right);
    }
    // Record 0 is nobody's, so there is always one to the left.
    Piece* left = run - 1;
    bool is_listed = false;
    if (is_free_end(*left)) {
      run = run - left->count;
      dirty += run->dirty;
      count += run->count;
      is_listed = place == Place::kBack;
      if (is_listed) {
        left->kind.store_relaxed(Kind::kInside);
      } else {
        unlist(run);
      }
    }
    set_free(run, count, dirty);
    SPANALLOC_ASSERT(!is_free_end(*(run - 1)));                                // G1
    SPANALLOC_ASSERT(!is_known(run + count) || !is_free_end(*(run + count)));  // G1
    if (is_listed) return run;
    Piece* last = place == Place::kBack ? free_.first() : nullptr;
    if (last == nullptr) {
      free_.push_front(run, kSuperblockLinks<Config>);
      return run;
    }
    while (last->next != nullptr) last = last->next;
    free_.insert_behind(last, run, kSuperblockLinks<Config>);
    return run;
  }
  void set_free(Piece* run, std::size_t count, std::size_t dirty) {
    run->count = static_cast<std::uint32_t>(count);
    run->dirty = static_cast<std::uint32_t>(dirty);
    run->kind.store_relaxed(Kind::kFree);
    if (count == 1) return;
    run[count - 1].count = static_cast<std::uint32_t>(count);
    run[count - 1].kind.store_relaxed(Kind::kFreeTail);
  }

  // Takes what is behind the first `stays` pieces of a free run out of the books;
  // of it so many are dirty.
  void cut_end(Piece* run, std::size_t stays, std::size_t dirty) {
    // G2
    SPANALLOC_ASSERT(run->kind.load_relaxed() == Kind::kFree && stays != 0 && stays < run->count);
    counts_.free -= run->count - stays;
    counts_.dirty -= dirty;
    run[run->count - 1].kind.store_relaxed(Kind::kInside);
    set_free(run, stays, run->dirty - dirty);
  }

  // Takes a free run out of the books; count and dirty stay readable.
  void remove_free(Piece* run) {
    SPANALLOC_ASSERT(counts_.free >= run->count && counts_.dirty >= run->dirty);  // G3, G4
    counts_.free -= run->count;
    counts_.dirty -= run->dirty;
    unlist(run);
  }
  void unlist(Piece* run) {
    SPANALLOC_ASSERT(run->kind.load_relaxed() == Kind::kFree);  // G2
    SPANALLOC_ASSERT(run->count == 1 || run[run->count - 1].kind.load_relaxed() == Kind::kFreeTail);
    run[run->count - 1].kind.store_relaxed(Kind::kInside);
    run->kind.store_relaxed(Kind::kInside);
    free_.remove(run, kSuperblockLinks<Config>);
  }

  Atomic<std::uintptr_t> base_{0};  // constant once started
  Atomic<std::size_t> limit_{0};    // written under the lock, read by every free
  GrowingTable<Piece> table_;       // constant once started, but for what it holds
  WakingLock lock_;                 // guards everything below; taken after a heap's
  Arena arena_;
  SuperblockList<Config> free_;
  std::uint32_t spare_ = 0;
  bool repair_is_due_ = false;  // in a fork's child
  std::uint32_t repairs_ = 0;   // done
  PieceCounts counts_;
  std::size_t lowest_dirty_ = 0;  // since the last tick
  // What follows others read without the lock, as hints.
  DirtyBound<kPiece> dirty_bound_;
  Atomic<std::size_t> unwanted_{0};     // dirty pieces that go back
  Atomic<std::uint64_t> next_tick_{0};  // milliseconds
  std::uint64_t decay_ms_ = 0;          // constant once started
};

}  // namespace spanalloc::a2alloc
