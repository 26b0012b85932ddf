// A superblock: 64 KiB of the arena, tiled by blocks of any size. Everything here is done by
// whoever holds the lock of the heap that has the superblock.
//
// Its record stands in a table beside the arena, where no overflow reaches it. The same record
// describes what else superblock-sized pieces of the arena may be: see Kind and global_heap.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "base/intrusive_list.hpp"
#include "base/poison.hpp"
#include "os/os.hpp"
#include "papers/a2alloc/engine/block.hpp"
#include "papers/a2alloc/engine/config.hpp"
#include "papers/a2alloc/engine/size_classes.hpp"

namespace spanalloc::a2alloc {

template <class Config>
class Heap;

/// What begins at a piece of the arena.
enum class Kind : std::uint8_t {
  kInside,       // nothing: it is part of what begins further left, or was never handed out
  kSuperblock,   // a superblock of a heap
  kLarge,        // a large object
  kHeapRecords,  // records of heaps
  kFree,         // free pieces, at the first of them
  kFreeTail,     // the last of two or more free pieces
  kPurging,      // free pieces that are out of reach, while the kernel takes their pages back
  kLost          // a superblock that a vanished thread was changing when a fork left it behind
};

/// Whether a run of pieces begins there that is not free.
constexpr bool is_in_use(Kind kind) {
  return kind == Kind::kSuperblock || kind == Kind::kLarge || kind == Kind::kHeapRecords ||
         kind == Kind::kLost;
}

/// Invariants of a superblock in a heap:
///   (S1) its blocks tile [start, start + size): each one's right neighbour begins where it ends,
///   and knows
///        its size;
///   (S2) the free blocks are those in the free list; no two of them are neighbours, unless the
///   superblock is
///        of a size class;
///   (S3) used is the sum of the sizes, and live the number, of the blocks that are not free;
///   (S4) no free block is larger than bound.
template <class Config>
struct alignas(kCacheLine) Superblock {
  static constexpr std::size_t kSize = kSuperblockBytes<Config>;

  // Written under the global heap's lock; read without it, as a hint, by
  // whoever is handed a pointer.
  Atomic<Kind> kind{Kind::kInside};
  // Under the heap's lock.
  SizeClass size_class;
  std::uint8_t group = 0;  // which of the heap's lists it is in
  // Under the global heap's lock: of a free piece, whether it reads as zero; how many pieces (at
  // the first; when free at the last, too).
  bool zero = false;
  std::uint32_t count = 0;
  // The heap that has it; constant while a block is live. Null in the global heap.
  Atomic<Heap<Config>*> heap{nullptr};
  // The heap's list, or the global heap's of free pieces.
  Superblock* next = nullptr;
  Superblock* previous = nullptr;
  // Under the heap's lock.
  FreeBlock* free_blocks = nullptr;
  std::uint32_t used = 0;
  std::uint32_t live = 0;
  std::uint32_t bound = 0;
  // Under the global heap's lock, of the first of free pieces: how many of
  // them do not read as zero.
  std::uint32_t dirty = 0;
  std::uintptr_t start = 0;  // constant

  /// Empty: one free block. For a superblock that is in no heap yet.
  void format(SizeClass new_class) {
    SPANALLOC_ASSERT(kind.load_relaxed() == Kind::kSuperblock && is_guarded());
    size_class = new_class;
    used = live = bound = 0;
    free_blocks = list_end();
    make_free(first(), kSize, 0);
    SPANALLOC_ASSERT(is_empty() && bound == kSize);
  }

  bool is_empty() const { return live == 0; }
  /// Whether free neighbours become one block.
  bool merges() const { return size_class.is_any_size(); }
  /// Whether the calling thread may change it: by the heap's lock, or because no heap has it.
  bool is_guarded() const {
    const Heap<Config>* has_it = heap.load_relaxed();
    return has_it == nullptr || has_it->lock.is_mine();
  }

  /// The first free block of at least `size` bytes; nullptr if there is none.
  FreeBlock* find(std::size_t size) {
    SPANALLOC_ASSERT(is_guarded());
    std::size_t largest = 0;
    for (FreeBlock* block = checked_link(free_blocks, nullptr); block != list_end();
         block = checked_link(block->next, block)) {
      Config::Observer::looks_at_free_block();
      if (block->size() >= size) return block;
      largest = max_of(largest, block->size());
    }
    bound = static_cast<std::uint32_t>(largest);
    return nullptr;
  }

  /// Takes a free block out of the list and cuts off what `size` bytes leave over.
  Block* take(FreeBlock* block, std::size_t size) {
    SPANALLOC_ASSERT(block->is_free() && size <= block->size());
    unlink(block);
    const std::size_t whole = block->size();
    unpoison(block, whole);
    // What is left over must serve somebody: in a size class only another
    // block of the same size does.
    const std::size_t least = merges() ? kLeastBlock : size;
    const std::size_t own = whole - size >= least ? size : whole;
    block->write(own, block->left_size, false);
    if (own != whole) {
      make_free(block->right(), whole - own, own);
      tell_right_neighbour(block->right());
    }
    used += static_cast<std::uint32_t>(own);
    ++live;
    SPANALLOC_ASSERT(!block->is_free() && books_may_be_right());
    return block;
  }

  /// Makes a live block free and merges it with its free neighbours.
  void put(Block* block) {
    std::size_t size = block->size();
    std::size_t left_size = block->left_size;
    SPANALLOC_ASSERT(is_guarded() && !block->is_free());
    SPANALLOC_ASSERT(live != 0 && used >= size);  // S3
    used -= static_cast<std::uint32_t>(size);
    --live;
    SPANALLOC_ASSERT(books_may_be_right());
    block->write(size, left_size, true);
    if (!merges()) {
      // All free blocks serve equally well as they are; an empty superblock starts afresh.
      if (live == 0) return format(size_class);
      return make_free(block, size, left_size);
    }
    if (Block* right = block->right(); address_of(right) != end()) {
      demand_intact(right);
      SPANALLOC_ASSERT(right->left_size == size);  // S1
      if (right->is_free()) {
        size += right->size();
        unlink(static_cast<FreeBlock*>(right));
      }
    }
    if (left_size != 0) {
      Block* left = block->left();
      demand_intact(left);
      SPANALLOC_ASSERT(left->size() == left_size);  // S1
      if (left->is_free()) {
        size += left->size();
        left_size = left->left_size;
        unlink(static_cast<FreeBlock*>(left));
        block = left;
      }
    }
    make_free(block, size, left_size);
    tell_right_neighbour(block);
    SPANALLOC_ASSERT(address_of(block->right()) == end() || !block->right()->is_free());  // S2
  }

  /// The live block whose bytes begin at p. Ends the process with one line if there is none.
  Block* demand_live(const void* p) {
    SPANALLOC_ASSERT(is_guarded());
    Block* block = Block::of(p);
    if (SPANALLOC_UNLIKELY(address_of(p) % 16 != 0 || address_of(p) < start + sizeof(Block))) {
      name_bad_pointer(p);
    }
    unpoison(block, sizeof(Block));  // it may be no header at all
    if (SPANALLOC_UNLIKELY(!block->is_sealed() || block->is_free())) name_bad_pointer(p);
    return block;
  }

  /// Makes a live block at least `size` bytes large, if the free block behind it allows it.
  bool grow(Block* block, std::size_t size) {
    SPANALLOC_ASSERT(is_guarded() && !block->is_free());
    Block* right = block->right();
    if (!merges() || address_of(right) == end()) return false;
    demand_intact(right);
    SPANALLOC_ASSERT(right->left_size == block->size());  // S1
    const std::size_t whole = block->size() + right->size();
    if (!right->is_free() || whole < size) return false;
    unlink(static_cast<FreeBlock*>(right));
    unpoison(right, right->size());
    used += static_cast<std::uint32_t>(whole - block->size());
    block->write(whole, block->left_size, false);
    tell_right_neighbour(block);
    shrink(block, size);
    return true;
  }

  /// Gives back what a live block has beyond `size` bytes, if that is enough for a block.
  void shrink(Block* block, std::size_t size) {
    SPANALLOC_ASSERT(size <= block->size());
    if (!merges() || block->size() - size < kLeastBlock) return;
    put(cut(block, size));
  }

  /// Gives back the front of a live block, so that what remains holds bytes at a multiple of
  /// `alignment`, a power of two. The block is large enough for that.
  Block* shift(Block* block, std::size_t alignment) {
    std::uintptr_t aligned = align_up(address_of(block->bytes()), alignment);
    std::size_t gap = aligned - address_of(block->bytes());
    if (gap == 0) return block;
    if (gap < kLeastBlock) gap += alignment;
    Block* rest = cut(block, gap);
    put(block);
    SPANALLOC_ASSERT(address_of(rest->bytes()) % alignment == 0);
    return rest;
  }

  /// In a fork's child, where a vanished thread may have left it in the middle of a
  /// change: counts anew what is in it. False: blocks or free list are not whole; nothing
  /// can be done with it any more.
  bool recount() {
    SPANALLOC_ASSERT(is_guarded());
    std::size_t left_size = 0, free = 0, largest = 0;
    bool left_is_free = false;
    used = live = 0;
    for (Block* block = first(); address_of(block) != end(); block = block->right()) {
      if (!block->is_sealed() || block->left_size != left_size || block->size() < kLeastBlock ||
          block->size() > end() - address_of(block)) {
        return false;
      }
      left_size = block->size();
      if (!block->is_free()) {
        ++live;
        used += static_cast<std::uint32_t>(left_size);
      } else if (left_is_free && merges()) {
        return false;
      } else {
        ++free;
        largest = max_of(largest, left_size);
      }
      left_is_free = block->is_free();
    }
    FreeBlock* before = nullptr;
    for (FreeBlock* block = free_blocks; block != list_end();
         before = block, block = block->next, --free) {
      if (free == 0 || !is_place(block) || !block->is_sealed() || !block->is_free() ||
          block->previous != before) {
        return false;
      }
    }
    bound = static_cast<std::uint32_t>(largest);
    return free == 0 && (live != 0 || merges() || largest == kSize);
  }

  /// Whether a block may begin there.
  bool is_place(const Block* block) const {
    return address_of(block) - start <= kSize - kLeastBlock && address_of(block) % 16 == 0;
  }
  Block* first() const { return pointer_to<Block>(start); }
  std::uintptr_t end() const { return start + kSize; }
  /// The link of the last free block. Not null: zeros, the likeliest thing to be written to freed
  /// memory, are no link. Nor a place in a superblock.
  static FreeBlock* list_end() { return pointer_to<FreeBlock>(1); }

 private:
  // S3 as far as it can be told without a walk.
  bool books_may_be_right() const {
    return used <= kSize && used >= std::size_t{live} * kLeastBlock && (used == 0) == (live == 0);
  }

  // Divides a live block in two; returns the second one.
  Block* cut(Block* block, std::size_t size) {
    const std::size_t rest = block->size() - size;
    SPANALLOC_ASSERT(!block->is_free() && size >= kLeastBlock && rest >= kLeastBlock &&
                     size + rest <= kSize);
    block->write(size, block->left_size, false);
    block->right()->write(rest, size, false);
    tell_right_neighbour(block->right());
    ++live;
    return block->right();
  }

  // Writes a free block and puts it at the front of the list.
  void make_free(Block* place, std::size_t size, std::size_t left_size) {
    auto* block = static_cast<FreeBlock*>(place);
    // S1
    SPANALLOC_ASSERT(is_place(block) && size >= kLeastBlock && size <= end() - address_of(block));
    unpoison(block, sizeof(FreeBlock));
    block->write(size, left_size, true);
    block->previous = nullptr;
    block->next = free_blocks;
    if (free_blocks != list_end()) free_blocks->previous = block;
    free_blocks = block;
    if (size > bound) bound = static_cast<std::uint32_t>(size);
    poison(block + 1, size - sizeof(FreeBlock));
  }

  void unlink(FreeBlock* block) {
    SPANALLOC_ASSERT(block->size() <= bound);  // S4
    FreeBlock* after = checked_link(block->next, block);
    FreeBlock* before = block->previous;
    if (before == nullptr ? free_blocks != block : !is_place(before) || before->next != block) {
      name_bad_links(block);
    }
    (before != nullptr ? before->next : free_blocks) = after;
    if (after != list_end()) after->previous = before;
  }

  // Follows a link of the free list: what it leads to must be a free block of ours
  // whose way back is `from`.
  FreeBlock* checked_link(FreeBlock* to, FreeBlock* from) {
    if (to == list_end()) return to;
    if (SPANALLOC_UNLIKELY(!is_place(to) || to->previous != from)) name_bad_links(from);
    demand_intact(to);
    if (SPANALLOC_UNLIKELY(!to->is_free())) name_bad_links(from);
    return to;
  }

  void tell_right_neighbour(Block* block) {
    Block* right = block->right();
    if (address_of(right) == end()) return;
    demand_intact(right);
    right->write(right->size(), block->size(), right->is_free());
  }

  void demand_intact(Block* block) {
    if (SPANALLOC_UNLIKELY(!block->is_sealed())) name_overwritten(block);
  }

  // --- Naming what is wrong. None of these returns.

  [[noreturn]] SPANALLOC_COLD static void name_overwritten(Block* block) {
    os::fatal("header overwritten (somebody wrote past the end of an object) in front of",
              block->bytes());
  }
  [[noreturn]] SPANALLOC_COLD void name_bad_links(FreeBlock* block) {
    os::fatal("free list corrupted (somebody wrote to freed memory) at",
              block != nullptr ? block->bytes() : pointer_to(start));
  }
  // Walks the blocks to the one that p lies in.
  [[noreturn]] SPANALLOC_COLD void name_bad_pointer(const void* p) {
    for (Block* block = first(); address_of(block) < end(); block = block->right()) {
      if (!block->is_sealed()) name_overwritten(block);
      if (address_of(p) >= address_of(block->right())) continue;
      if (block->is_free())
        os::fatal("memory is free already (double free, or use after free):", p);
      break;
    }
    os::fatal("pointer is not the start of an object:", p);
  }
};
static_assert(sizeof(Superblock<A2allocReport>) == kCacheLine);

/// A list of superblocks, or of runs of free pieces, through their next and previous.
template <class Config>
using SuperblockList = IntrusiveList<Superblock<Config>*>;
template <class Config>
inline constexpr MemberLinks<Superblock<Config>, &Superblock<Config>::next,
                             &Superblock<Config>::previous>
    kSuperblockLinks{};

}  // namespace spanalloc::a2alloc
