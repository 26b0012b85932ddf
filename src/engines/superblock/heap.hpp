// A heap: the superblocks that one thread allocates from. Other threads free into it, hence its lock.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bits.hpp"
#include "engines/superblock/block.hpp"
#include "engines/superblock/config.hpp"
#include "engines/superblock/size_classes.hpp"
#include "engines/superblock/superblock.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc::superblock {

/// A list of superblocks through their next and previous.
template <class Config>
class SuperblockList {
 public:
  using Piece = Superblock<Config>;

  Piece* first() const { return first_; }
  void forget() { first_ = nullptr; }
  void push_front(Piece* piece) {
    piece->previous = nullptr;
    piece->next = first_;
    if (first_ != nullptr) first_->previous = piece;
    first_ = piece;
  }
  void remove(Piece* piece) {
    (piece->previous != nullptr ? piece->previous->next : first_) = piece->next;
    if (piece->next != nullptr) piece->next->previous = piece->previous;
  }

 private:
  Piece* first_ = nullptr;
};

/// A block and the superblock it lies in.
template <class Config>
struct Found {
  Superblock<Config>* superblock = nullptr;
  Block* block = nullptr;
};

/// Never destroyed. All functions: with `lock` held. Invariants:
///   used() is the sum of its superblocks' used, superblocks() their number; each is in the list of its class
///   and group, and says that this is its heap.
template <class Config>
class alignas(kCacheLine) Heap {
 public:
  using Piece = Superblock<Config>;

  explicit constexpr Heap(bool used_by_thread = false) : has_thread(used_by_thread) {}

  SpinLock lock;
  // Under the registry's lock.
  Heap* next_idle = nullptr;
  // Constant once the heap is in the registry's list of all.
  Heap* next_of_all = nullptr;
  // Under `lock`: whether a thread allocates from it. An idle heap keeps what is live, for the next thread.
  bool has_thread;

  /// A block of `size` bytes from a superblock of the class; no block if none has room.
  Found<Config> take(std::size_t size, unsigned size_class) {
    for (unsigned group = kSearched; group-- > 0;) {
      for (Piece* piece = lists_[size_class][group].first(); piece != nullptr; piece = piece->next) {
        Config::Observer::looks_at_superblock();
        if (piece->bound < size) continue;
        FreeBlock* fit = piece->find(size);
        if (fit == nullptr) continue;
        Block* block = piece->take(fit, size);
        used_ += block->size();
        if (Config::kMoveToFront && piece != lists_[size_class][group].first()) {
          lists_[size_class][group].remove(piece);
          lists_[size_class][group].push_front(piece);
        }
        regroup(piece);
        return {piece, block};
      }
    }
    return {};
  }

  /// Takes in a superblock from the global heap.
  void add(Piece* piece, unsigned size_class) {
    piece->format(size_class);
    piece->group = group_of(*piece);
    lists_[size_class][piece->group].push_front(piece);
    piece->heap.store_release(this);  // release: the record is made up for whoever finds the superblock
    ++superblocks_;
    Config::Observer::adds_superblock();
  }

  /// Frees a block. True if its superblock is now to be evicted.
  bool put(Piece* piece, Block* block) {
    used_ -= block->size();
    piece->put(block);
    regroup(piece);
    return piece->is_empty() && (!has_thread || wastes_memory());
  }

  /// Lets go of an empty superblock; the caller brings it to the global heap.
  void evict(Piece* piece) {
    lists_[piece->size_class][piece->group].remove(piece);
    piece->heap.store_relaxed(nullptr);
    --superblocks_;
    Config::Observer::evicts_superblock();
  }

  /// Evicts all empty superblocks, give(Piece*) each; true if there were any.
  template <class Give>
  bool evict_empty(Give&& give) {
    bool any = false;
    for (auto& of_class : lists_) {
      for (auto& list : of_class) {
        for (Piece *piece = list.first(), *next = nullptr; piece != nullptr; piece = next) {
          next = piece->next;
          if (!piece->is_empty()) continue;
          evict(piece);
          give(piece);
          any = true;
        }
      }
    }
    return any;
  }

  /// In a fork's child: it has no superblocks, until it is given those back that say they are its own.
  void forget_all() {
    for (auto& of_class : lists_) {
      for (auto& list : of_class) list.forget();
    }
    used_ = superblocks_ = 0;
  }
  void take_back(Piece* piece) {
    piece->group = group_of(*piece);
    lists_[piece->size_class][piece->group].push_front(piece);
    used_ += piece->used;
    ++superblocks_;
  }

  /// For what changes how much of a superblock is used, by work(Piece*).
  template <class Work>
  auto change(Piece* piece, Work&& work) {
    const std::size_t before = piece->used;
    auto result = work(piece);
    used_ = used_ - before + piece->used;
    regroup(piece);
    return result;
  }

  /// Calls f(Piece*, class, group) for every superblock in the list of that class and group.
  template <class F>
  void for_each(F&& f) const {
    for (unsigned size_class = 0; size_class < kClassCount<Config>; ++size_class) {
      for (unsigned group = 0; group < kLists; ++group) {
        Piece* piece = lists_[size_class][group].first();
        for (; piece != nullptr; piece = piece->next) f(piece, size_class, group);
      }
    }
  }

  /// The list that a superblock belongs in.
  static std::uint8_t group_of(const Piece& piece) {
    if (kSearched == 1) return 0;
    if (piece.free_blocks == Piece::list_end()) return kSearched;
    return static_cast<std::uint8_t>(std::size_t{piece.used} * kSearched / kSuperblockBytes<Config>);
  }

  std::size_t used() const { return used_; }
  std::size_t superblocks() const { return superblocks_; }

 private:
  // With groups there is one list more, of superblocks without a free block, which no search visits.
  static constexpr unsigned kSearched = Config::kFullnessGroups;
  static constexpr unsigned kLists = kSearched == 1 ? 1 : kSearched + 1;

  // The second and the third condition for eviction: more than K superblocks, and used space over free space
  // below F.
  bool wastes_memory() const {
    const std::size_t free = superblocks_ * kSuperblockBytes<Config> - used_;
    return superblocks_ > Config::kKeep && used_ * 100 < free * Config::kUsedOverFreePercent;
  }

  // After a change of what is used in it.
  void regroup(Piece* piece) {
    if constexpr (kSearched > 1) {
      const std::uint8_t group = group_of(*piece);
      if (group == piece->group) return;
      lists_[piece->size_class][piece->group].remove(piece);
      piece->group = group;
      lists_[piece->size_class][group].push_front(piece);
    }
  }

  SuperblockList<Config> lists_[kClassCount<Config>][kLists];
  std::size_t used_ = 0;  // bytes in live blocks, headers included
  std::size_t superblocks_ = 0;
};

}  // namespace spanalloc::superblock
