// The global heap: what no thread's heap has. Empty superblocks and freed large objects are one and the same
// here, runs of superblock-sized free pieces of the arena, which serve whoever comes next.
//
// The arena is cut into pieces; each has a record (Superblock) in a table beside it. A run of pieces is
// described by the record of its first one, and when it is free by that of its last one, too: so a run that
// becomes free finds its neighbours.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/poison.hpp"
#include "engines/a2alloc/block.hpp"
#include "engines/a2alloc/config.hpp"
#include "engines/a2alloc/heap.hpp"
#include "engines/a2alloc/piece_counts.hpp"
#include "engines/a2alloc/superblock.hpp"
#include "os/os.hpp"
#include "pages/bump_arena.hpp"
#include "pages/growing_table.hpp"
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
///   (G3) counts_ says what there is of each kind: it adds up to the pieces that are known.
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
    if (!arena_.start() || !table_.start(arena_.capacity())) return false;
    draw_secret();
    base_.store_release(arena_.base());  // release: who sees the address sees the rest
    return true;
  }
  bool is_started() const { return base_.load_acquire() != 0; }

  /// The record of the piece that p lies in; nullptr when that is none of ours.
  Piece* piece_of(const void* p) {
    // Relaxed: whoever has a pointer into a piece got it from someone who saw the limit that covers it.
    // Without an arena the limit is 0.
    const std::size_t number = (address_of(p) - base_.load_relaxed()) >> Config::kSuperblockBits;
    return SPANALLOC_LIKELY(number < limit_.load_relaxed()) ? &table_[number] : nullptr;
  }

  /// A run of pieces, the first of them at a multiple of `alignment` (a power of two). First fit. None when
  /// memory is out.
  Run<Config> take(Kind kind, std::size_t count, std::size_t alignment = kPiece) {
    SPANALLOC_ASSERT(is_in_use(kind) && count != 0);
    Guard guard(*this);
    const std::size_t slack = alignment > kPiece ? alignment / kPiece - 1 : 0;
    if (count > arena_.capacity() || slack > arena_.capacity()) return {};
    Piece* run = find(count + slack);
    if (run == nullptr) return {};
    remove_free(run);
    const std::size_t in_front = (align_up(run->start, max_of(alignment, kPiece)) - run->start) / kPiece;
    Piece* taken = run + in_front;
    const std::size_t behind = run->count - in_front - count;
    const bool is_zero = run->zero;
    if (in_front != 0) add_free(run, in_front, is_zero);
    if (behind != 0) add_free(taken + count, behind, is_zero);
    SPANALLOC_ASSERT(taken->kind.load_relaxed() == Kind::kInside && taken->heap.load_relaxed() == nullptr);
    taken->count = static_cast<std::uint32_t>(count);
    taken->kind.store_relaxed(kind);
    counts_.of(kind) += count;
    counts_.large_objects += kind == Kind::kLarge;
    return {taken, is_zero};
  }

  /// Takes a run back, memory written to. Nobody refers to it any more.
  void put(Piece* run) {
    Guard guard(*this);
    put_locked(run);
  }

  /// Frees the large object at p. False if there is none: then nothing has changed.
  bool free_large(Piece* run, const void* p) {
    Guard guard(*this);
    if (!is_large_at(run, p)) return false;
    poison(p, run->count * kPiece);
    put_locked(run);
    return true;
  }

  /// Bytes of the large object at p; 0 if there is none.
  std::size_t large_size(Piece* run, const void* p) {
    Guard guard(*this);
    return is_large_at(run, p) ? run->count * kPiece : 0;
  }

  /// Makes the large object at p `count` pieces long, where it is. False if that cannot be done.
  bool resize_large(Piece* run, const void* p, std::size_t count) {
    Guard guard(*this);
    if (!is_large_at(run, p)) return false;
    if (count <= run->count) {
      const std::size_t rest = run->count - count;
      if (rest == 0) return true;
      poison(pointer_to(run->start + count * kPiece), rest * kPiece);
      run->count = static_cast<std::uint32_t>(count);
      counts_.large -= rest;
      add_free(run + count, rest, false);
      return true;
    }
    Piece* next = run + run->count;
    const std::size_t wanted = count - run->count;
    if (!is_known(next) || next->kind.load_relaxed() != Kind::kFree || next->count < wanted) return false;
    remove_free(next);
    if (next->count > wanted) add_free(next + wanted, next->count - wanted, next->zero);
    run->count = static_cast<std::uint32_t>(count);
    counts_.large += wanted;
    unpoison(p, count * kPiece);
    return true;
  }

  /// Gives the pages of free pieces back to the kernel; true if there were any.
  bool purge() {
    Guard guard(*this);
    bool any = false;
    for (Piece* run = free_.first(); run != nullptr; run = run->next) {
      if (run->zero || !os::purge(pointer_to(run->start), run->count * kPiece)) continue;
      run->zero = any = true;
    }
    return any;
  }

  PieceCounts counts() {
    Guard guard(*this);
    return counts_;
  }
  ArenaStatistics arena_statistics() { return arena_.statistics(); }

  /// Calls f(Piece*) for the first piece of every run, by address, and for pieces lost to foreign mappings;
  /// f(piece) says by its count how far the run goes. While no other thread uses the heap.
  template <class F>
  void for_each_run(F&& f) {
    for (std::size_t number = 1; number < limit_.load_relaxed();) {
      Piece* run = &table_[number];
      f(run);
      number += run->kind.load_relaxed() == Kind::kInside ? 1 : run->count;
    }
  }
  /// Calls f(Piece*) for every superblock that says it is this heap's.
  template <class F>
  void for_each_superblock_of(const Heap<Config>& heap, F&& f) {
    for (std::size_t number = 1; number < limit_.load_acquire(); ++number) {
      Piece& piece = table_[number];
      if (piece.kind.load_relaxed() == Kind::kSuperblock && piece.heap.load_relaxed() == &heap) f(&piece);
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
    arena_.enter_child();
  }

 private:
  /// Holds the lock; the books are whole, at its end too.
  class [[nodiscard]] Guard {
   public:
    explicit Guard(GlobalHeap& heap) : guard_(heap.lock_), heap_(heap) {
      if (SPANALLOC_UNLIKELY(guard_.owner_died())) heap.repair();
    }
    ~Guard() { SPANALLOC_ASSERT(heap_.counts_.add_up()); }  // G3
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    LockGuard<WakingLock> guard_;
    [[maybe_unused]] GlobalHeap& heap_;
  };

  // In a fork's child whose parent had another thread in here: what is in use says so by its kind, written
  // last, and its count; all else is free. (A superblock that is in no heap was in the hands of that thread,
  // or is in those of this one: it stays what it is.)
  void repair() {
    SPANALLOC_ASSERT(lock_.is_mine());
    free_.forget();
    const std::size_t end = limit_.load_relaxed();
    counts_ = {};
    counts_.known = end == 0 ? 0 : end - 1;
    if (spare_ < end) spare_ = 0;  // it has been made known already
    std::size_t first_free = 1;
    for (std::size_t number = 1; number < end;) {
      Piece& piece = table_[number];
      const Kind kind = piece.kind.load_relaxed();
      const bool lives = is_in_use(kind);
      const std::size_t count = lives ? max_of(piece.count, 1) : 1;
      if (lives) {
        for (std::size_t i = 1; i < count; ++i) table_[number + i].kind.store_relaxed(Kind::kInside);
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
  }
  void free_again(std::size_t first, std::size_t end) {
    if (first < end) add_free(&table_[first], end - first, false);
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
    add_free(run, run->count, false);
  }

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

  // Whether the kernel would grant what the free run at the arena's end lacks of `count` pieces. The arena
  // gives nothing back: a run that is refused half-way would keep that half from the rest of the process.
  bool may_grow_to(std::size_t count) {
    if (count == 1) return true;
    const ArenaStatistics arena = arena_.statistics();
    const std::size_t open = (arena.opened_bytes + arena.lost_bytes) / kPiece;  // numbers below this one
    const std::size_t known = max_of(limit_.load_relaxed(), std::size_t{1});
    std::size_t ready = open - known;
    if (known > 1) {
      const Piece& last = table_[known - 1];
      if (is_free_end(last)) ready += last.count;
    }
    return count <= ready || os::would_grant((count - ready) * kPiece);
  }

  // One piece more from the arena: the free run that it now belongs to. What was taken stays when a later one
  // is refused.
  Piece* extend() {
    // The arena takes nothing back: a piece whose record cannot be had waits for the next call.
    if (spare_ == 0) spare_ = arena_.allocate(0);
    if (spare_ == 0 || !table_.ensure(spare_ + std::size_t{1})) return nullptr;
    Piece* piece = &table_[spare_];
    piece->start = arena_.base() + std::size_t{spare_} * kPiece;
    // Release: whoever sees the limit may read the records below it. (Foreign mappings that the arena stepped
    // over leave records of zeroes.)
    const std::size_t known = max_of(limit_.load_relaxed(), std::size_t{1});
    SPANALLOC_ASSERT(spare_ >= known && piece->kind.load_relaxed() == Kind::kInside);
    limit_.store_release(spare_ + std::size_t{1});
    counts_.known += spare_ + 1 - known;
    counts_.lost += spare_ - known;
    spare_ = 0;
    return add_free(piece, 1, true);
  }

  // Merges a free run with its free neighbours and lists it; returns the run that comes of it.
  Piece* add_free(Piece* run, std::size_t count, bool zero) {
    SPANALLOC_ASSERT(lock_.is_mine() && !is_free_end(*run));
    counts_.free += count;
    run->kind.store_relaxed(Kind::kInside);
    Piece* right = run + count;
    if (is_known(right) && right->kind.load_relaxed() == Kind::kFree) {
      zero = zero && right->zero;
      count += right->count;
      unlist(right);
    }
    // Record 0 is nobody's, so there is always one to the left.
    Piece* left = run - 1;
    if (is_free_end(*left)) {
      run = run - left->count;
      zero = zero && run->zero;
      count += run->count;
      unlist(run);
    }
    run->count = static_cast<std::uint32_t>(count);
    run->zero = zero;
    run->kind.store_relaxed(Kind::kFree);
    if (count > 1) {
      run[count - 1].count = static_cast<std::uint32_t>(count);
      run[count - 1].kind.store_relaxed(Kind::kFreeTail);
    }
    SPANALLOC_ASSERT(!is_free_end(*(run - 1)));                                // G1
    SPANALLOC_ASSERT(!is_known(run + count) || !is_free_end(*(run + count)));  // G1
    free_.push_front(run, kSuperblockLinks<Config>);
    return run;
  }

  // Takes a free run out of the books; count and zero stay readable.
  void remove_free(Piece* run) {
    SPANALLOC_ASSERT(counts_.free >= run->count);  // G3
    counts_.free -= run->count;
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
  PieceCounts counts_;
};

}  // namespace spanalloc::a2alloc
