// A heap: the superblocks that one thread allocates from. Other threads free
// into it, hence its lock.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/bits.hpp"
#include "papers/a2alloc/engine/block.hpp"
#include "papers/a2alloc/engine/config.hpp"
#include "papers/a2alloc/engine/size_classes.hpp"
#include "papers/a2alloc/engine/superblock.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc::a2alloc {

template <class Config>
class ThreadHeaps;

/// A block and the superblock it lies in.
template <class Config>
struct Found {
  Superblock<Config>* superblock = nullptr;
  Block* block = nullptr;
};

/// Never destroyed. All functions: with `lock` held. Invariants:
///   (H1) used() is the sum of its superblocks' used;
///   (H2) superblocks() is their number;
///   (H3) each is in the list of its class and group;
///   (H4) each says that this is its heap.
template <class Config>
class alignas(kCacheLine) Heap {
 public:
  using Piece = Superblock<Config>;

  explicit constexpr Heap(ThreadHeaps<Config>& owner, bool used_by_thread = false)
      : has_thread(used_by_thread), owner_(owner) {}

  SpinLock lock;
  // Under the registry's lock.
  Heap* next_idle = nullptr;
  // Constant once the heap is in the registry's list of all.
  Heap* next_of_all = nullptr;
  // Under `lock`: whether a thread allocates from it. An idle heap keeps what is
  // live, for the next thread.
  bool has_thread;
  // The thread's that has it: thread::ExitKey's count of its destructor's rounds.
  std::uint8_t exit_round = 0;

  /// Whose it is: a thread's end knows its heap only.
  ThreadHeaps<Config>& owner() const { return owner_; }

  /// A block of `size` bytes from a superblock of the class; no block if none has room.
  Found<Config> take(std::size_t size, SizeClass size_class) {
    SPANALLOC_ASSERT(lock.is_mine());
    for (unsigned group = kSearched; group-- > 0;) {
      List& list = lists_[size_class.number][group];
      for (Piece* piece = list.first(); piece != nullptr; piece = piece->next) {
        Config::Observer::looks_at_superblock();
        if (piece->bound < size) continue;
        FreeBlock* fit = piece->find(size);
        if (fit == nullptr) continue;
        Block* block = piece->take(fit, size);
        used_ += block->size();
        SPANALLOC_ASSERT(books_may_be_right(*piece));
        if (Config::kMoveToFront && piece != list.first()) {
          list.remove(piece, kLinks);
          list.push_front(piece, kLinks);
        }
        regroup(piece);
        return {piece, block};
      }
    }
    return {};
  }

  /// Takes in a superblock from the global heap.
  void add(Piece* piece, SizeClass size_class) {
    SPANALLOC_ASSERT(lock.is_mine());
    SPANALLOC_ASSERT(piece->kind.load_relaxed() == Kind::kSuperblock &&
                     piece->heap.load_relaxed() == nullptr);
    piece->format(size_class);
    enlist(piece);
    // Release: the record is made up for whoever finds the superblock
    piece->heap.store_release(this);
    ++superblocks_;
    SPANALLOC_ASSERT(books_may_be_right(*piece));
    Config::Observer::adds_superblock();
  }

  /// Frees a block. True if its superblock is now to be evicted.
  bool put(Piece* piece, Block* block) {
    SPANALLOC_ASSERT(is_mine(*piece));
    SPANALLOC_ASSERT(used_ >= block->size());  // H1
    used_ -= block->size();
    piece->put(block);
    SPANALLOC_ASSERT(books_may_be_right(*piece));
    regroup(piece);
    return piece->is_empty() && (!has_thread || wastes_memory());
  }

  /// Lets go of an empty superblock; the caller brings it to the global heap.
  void evict(Piece* piece) {
    SPANALLOC_ASSERT(is_mine(*piece) && piece->is_empty());
    SPANALLOC_ASSERT(superblocks_ != 0);  // H2
    list_of(*piece).remove(piece, kLinks);
    piece->heap.store_relaxed(nullptr);
    --superblocks_;
    SPANALLOC_ASSERT(superblocks_ != 0 || used_ == 0);  // H1
    Config::Observer::evicts_superblock();
  }

  /// Evicts all empty superblocks, give(Piece*) each.
  template <class Give>
  void evict_empty(Give&& give) {
    SPANALLOC_ASSERT(lock.is_mine());
    for (auto& of_class : lists_) {
      for (auto& list : of_class) {
        for (Piece *piece = list.first(), *next = nullptr; piece != nullptr; piece = next) {
          next = piece->next;
          if (!piece->is_empty()) continue;
          evict(piece);
          give(piece);
        }
      }
    }
  }

  /// In a fork's child: it has no superblocks, until it is given those back
  /// that say they are its own.
  void forget_all() {
    SPANALLOC_ASSERT(lock.is_mine());
    for (auto& of_class : lists_) {
      for (auto& list : of_class) list.forget();
    }
    used_ = superblocks_ = 0;
  }
  void take_back(Piece* piece) {
    SPANALLOC_ASSERT(lock.is_mine() && piece->heap.load_relaxed() == this);  // H4
    enlist(piece);
    used_ += piece->used;
    ++superblocks_;
    SPANALLOC_ASSERT(books_may_be_right(*piece));
  }

  /// For what changes how much of a superblock is used, by work(Piece*).
  template <class Work>
  auto change(Piece* piece, Work&& work) {
    SPANALLOC_ASSERT(is_mine(*piece));
    const std::size_t before = piece->used;
    auto result = work(piece);
    used_ = used_ - before + piece->used;
    SPANALLOC_ASSERT(books_may_be_right(*piece));
    regroup(piece);
    return result;
  }

  /// Calls f(Piece*, SizeClass, group) for every superblock in the list of that class and group.
  template <class F>
  void for_each(F&& f) const {
    for (unsigned number = 0; number < kClassCount<Config>; ++number) {
      const SizeClass size_class{static_cast<std::uint8_t>(number)};
      for (unsigned group = 0; group < kLists; ++group) {
        Piece* piece = lists_[number][group].first();
        for (; piece != nullptr; piece = piece->next) f(piece, size_class, group);
      }
    }
  }

  /// The list that a superblock belongs in.
  static std::uint8_t group_of(const Piece& piece) {
    if (kSearched == 1) return 0;
    if (piece.free_blocks == Piece::list_end()) return kSearched;
    return static_cast<std::uint8_t>(std::size_t{piece.used} * kSearched /
                                     kSuperblockBytes<Config>);
  }

  std::size_t used() const { return used_; }
  std::size_t superblocks() const { return superblocks_; }

 private:
  using List = SuperblockList<Config>;
  static constexpr auto& kLinks = kSuperblockLinks<Config>;

  // With groups there is one list more, of superblocks without a free block, which no search
  // visits.
  static constexpr unsigned kSearched = Config::kFullnessGroups;
  static constexpr unsigned kLists = kSearched == 1 ? 1 : kSearched + 1;

  List& list_of(const Piece& piece) { return lists_[piece.size_class.number][piece.group]; }
  void enlist(Piece* piece) {
    piece->group = group_of(*piece);
    list_of(*piece).push_front(piece, kLinks);
  }

  // Ours to change: the lock is held, the superblock is here (H4) and in its list (H3).
  bool is_mine(const Piece& piece) const {
    return lock.is_mine() && piece.heap.load_relaxed() == this && piece.group == group_of(piece);
  }
  // H1 and H2 as far as they can be told from one of the superblocks.
  bool books_may_be_right(const Piece& piece) const {
    return superblocks_ != 0 && used_ >= piece.used &&
           used_ <= superblocks_ * kSuperblockBytes<Config>;
  }

  // The second and the third condition for eviction: more than K superblocks, and used space
  // over free space below F.
  bool wastes_memory() const {
    const std::size_t free = superblocks_ * kSuperblockBytes<Config> - used_;
    return superblocks_ > Config::kKeep && used_ * 100 < free * Config::kUsedOverFreePercent;
  }

  // After a change of what is used in it.
  void regroup(Piece* piece) {
    if constexpr (kSearched > 1) {
      const std::uint8_t group = group_of(*piece);
      if (group == piece->group) return;
      list_of(*piece).remove(piece, kLinks);
      piece->group = group;
      list_of(*piece).push_front(piece, kLinks);
    }
  }

  ThreadHeaps<Config>& owner_;
  List lists_[kClassCount<Config>][kLists];
  std::size_t used_ = 0;  // bytes in live blocks, headers included
  std::size_t superblocks_ = 0;
};

}  // namespace spanalloc::a2alloc
