// The spans that a LAB allocates from, one a class, and the lists of free blocks in them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "base/poison.hpp"
#include "os/os.hpp"
#include "papers/scalloc/engine/directory.hpp"
#include "papers/scalloc/engine/numbers.hpp"
#include "papers/scalloc/engine/size_classes.hpp"
#include "papers/scalloc/engine/span.hpp"

namespace spanalloc::scalloc {

/// Before others may get at the block: its link stays accessible.
inline void poison_free(void* block, ClassId size_class) {
  poison(static_cast<FreeBlock*>(block) + 1, info(size_class).block_size - sizeof(FreeBlock));
}

inline bool links_within(const Span* span, const FreeBlock* next) {
  return (address_of(next) ^ span->address()) < kVirtualSpan && span->is_block(next);
}

/// What is wrong with a span's blocks, which are out of use for it. It is told when nothing is in
/// the caller's hands any more, for a handler of SIGABRT may jump out.
struct Damage {
  const char* what = nullptr;  ///< nullptr: nothing
  const void* at = nullptr;

  void report_if_any() const {
    if (SPANALLOC_UNLIKELY(what != nullptr)) os::fatal(what, at);
  }
  /// The first one stays: one is told.
  void add(const Damage& other) {
    if (what == nullptr) *this = other;
  }
};

/// A list of free blocks of one span, walked to its end.
struct WalkedList {
  std::uint32_t count = 0;
  FreeBlock* last = nullptr;
};

/// Checks each block. A list that something has written to is lost: its blocks are nobody's any
/// more.
template <class List>
WalkedList walk(const Span* span, List& list, Damage& damage) {
  WalkedList result;
  for (FreeBlock* block = list; block != nullptr; block = block->next()) {
    if (!links_within(span, block) || ++result.count > span->blocks) {
      list = nullptr;
      damage.add({"free list corrupted (written after free, or freed twice) in the span at", span});
      return {};
    }
    result.last = block;
  }
  return result;
}

/// Whether `wanted` is on a list that somebody may be changing.
inline bool list_has(const Span* span, const FreeBlock* block, const FreeBlock* wanted) {
  for (std::uint32_t seen = 0; seen < span->blocks && block != nullptr;
       ++seen, block = block->next()) {
    if (block == wanted) return true;
    if (!links_within(span, block) || !block->has_link()) return false;
  }
  return false;
}

/// What count_listed() has found.
struct ListedBlocks {
  std::uint32_t count = 0;
  /// Has no link, or is there twice; then the count means nothing
  const FreeBlock* damaged = nullptr;
};

/// For who has the span's local list and its remote one, which began with `head`, alone.
inline ListedBlocks count_listed(const Span* span, const FreeBlock* head) {
  std::uint64_t known[kMostBlocks / 64 + 1] = {};
  ListedBlocks listed;
  for (const FreeBlock* block : {head, static_cast<const FreeBlock*>(span->local_list)}) {
    for (; block != nullptr; block = block->next(), ++listed.count) {
      const std::uint32_t index = links_within(span, block) ? span->index_of(block) : kMostBlocks;
      const std::uint64_t bit = std::uint64_t{1} << index % 64;
      if (index == kMostBlocks || !block->has_link() || (known[index / 64] & bit) != 0) {
        listed.damaged = block;
        return listed;
      }
      known[index / 64] |= bit;
    }
  }
  return listed;
}

/// Free blocks that the owner of a hot span knows of, but for its LAB's list; for the owner,
/// or while it stands still.
inline std::uint32_t free_beside_list(Span* span, Damage& damage) {
  return walk(span, span->local_list, damage).count + (span->blocks - span->carved.load_relaxed());
}
/// With that list; what is damaged is told at once.
inline std::uint32_t owned_free(Span* span, FreeBlock*& list) {
  Damage damage;
  const std::uint32_t free = walk(span, list, damage).count + free_beside_list(span, damage);
  damage.report_if_any();
  return free;
}

/// A pointer for each mark; those of marks that are no class stay null, so that
/// no such mark ever matches.
template <class T>
struct PerMark {
  T* entries[kClassEntries];

  T*& operator[](Mark mark) { return entries[mark.index()]; }
  T*& operator[](ClassId c) { return entries[index_of(c)]; }
  T* operator[](ClassId c) const { return entries[index_of(c)]; }

  bool are_null() const {
    for (const T* entry : entries) {
      if (entry != nullptr) return false;
    }
    return true;
  }
};

/// What the fast paths touch.
///
/// Invariant O7: list[c] is a chain of free blocks of hot[c]; hot[c] is a span of class c, in state
/// hot, whose owner is the LAB that these spans are of; it is no other LAB's hot span.
struct HotSpans {
  PerMark<FreeBlock> list;
  PerMark<Span> hot;

  void* pop(ClassId size_class) {
    FreeBlock* block = list[size_class];
    SPANALLOC_ASSERT(hot[size_class] != nullptr && links_within(hot[size_class], block));  // O7
    FreeBlock* next = block->next();
    if (SPANALLOC_UNLIKELY(next != nullptr && !links_within(hot[size_class], next))) {
      list[size_class] = nullptr;  // its blocks are nobody's any more
      os::fatal("free list corrupted (written after free, or freed twice) at", block);
    }
    list[size_class] = next;
    block->clear_link();
    unpoison(block, info(size_class).block_size);
    return block;
  }

  void push(ClassId size_class, void* p) {
    auto* block = static_cast<FreeBlock*>(p);
    if (SPANALLOC_UNLIKELY(list[size_class] == block)) freed_twice(size_class);
    SPANALLOC_ASSERT(links_within(hot[size_class], block));  // O7
    block->link_to(list[size_class]);
    list[size_class] = block;
  }

  /// The first block of the list; if something has written to it since its free the list is lost.
  SPANALLOC_COLD [[noreturn]] void freed_twice(ClassId size_class) {
    const FreeBlock* const block = list[size_class];
    if (!block->has_link()) list[size_class] = nullptr;
    os::fatal("double free of", block);
  }

  /// Whether allocating from the class's hot span needs no other span.
  bool has_blocks(ClassId size_class) const {
    const Span* span = hot[size_class];
    return list[size_class] != nullptr ||
           (span != nullptr &&
            (span->local_list != nullptr || span->carved.load_relaxed() != span->blocks));
  }

  bool are_none() const { return hot.are_null() && list.are_null(); }
};

}  // namespace spanalloc::scalloc
