// Magazines: free blocks that a thread holds back from their spans, to hand them out next.
//
// Above 1,152 bytes a span has few blocks. A program that frees such blocks at random and
// allocates as many anew would use a span up and find another one every few calls: each brings
// only the few of its blocks that are free. With a magazine (Bonwick and Adams, "Magazines and
// Vmem", USENIX 2001, where a CPU has them) such a block goes from free to malloc, and its span
// stays as it is: for the span it is out.
//
// A class has a magazine as long as the spans that it goes on with are nearly full. Who frees and
// allocates by the batch finds whole spans free, where a list costs less than a magazine. While it
// has one, the thread's map shows the class's current span only: frees into the others miss, and
// find the magazine (FreeMiss::keep_own).
#pragma once

#include "base/inspection_access.hpp"
#include "standard/misuse.hpp"

namespace spanalloc::standard {

/// Of one cache record; `thread`, its thread cache, is the only one who calls. Zero-initialisable.
/// A block in a magazine is marked: so each thread sees that it is free, and a write to it shows.
/// The child of a fork finds each block of a vanished thread here once, or nowhere: it counts as
/// out, and nobody has it.
template <class Config>
class Magazines {
  using Classes = SizeClasses<Config>;

 public:
  static constexpr ClassId kFirst{index_of(Classes::of(Config::kMostWithoutBin)) + 1};
  static constexpr unsigned kCount = Classes::kSmallClasses - index_of(kFirst);

  /// Whether any class has a magazine, or had one when unused blocks were last given back.
  bool are_open() const { return used_; }
  bool is_open(ClassId c) const {
    return SPANALLOC_UNLIKELY(used_) && c >= kFirst && of(c).most != 0;
  }

  // Of kFirst <= c < kFirstLarge:
  bool has_room(ClassId c) const { return of(c).count.load_relaxed() < of(c).most; }
  /// Keeps a block that is out and that the program frees; there is room.
  SPANALLOC_INLINE void keep(ClassId c, Block* block) {
    SPANALLOC_ASSERT(c >= kFirst && c < Classes::kFirstLarge && has_room(c));
    block->mark_kept();
    const std::uint8_t count = of(c).count.load_relaxed();
    slot(c, count).store_relaxed(block);
    // Release: a fork's child that counts the block finds it, and its mark.
    of(c).count.store_release(static_cast<std::uint8_t>(count + 1));
  }
  /// The block that was kept last; nullptr: there is none.
  SPANALLOC_INLINE Block* take(ClassId c) {
    std::uint8_t count = of(c).count.load_relaxed();
    if (count == 0) return nullptr;
    of(c).count.store_relaxed(--count);
    if (count < of(c).least) of(c).least = count;
    Block* const block = slot(c, count).load_relaxed();
    if (SPANALLOC_UNLIKELY(!block->is_kept())) Misuse<Config>::broken_list(block);
    // Clears the mark, with release: a fork's child that finds none does not count the block.
    block->release_link();
    unpoison(block, Classes::info(c).block_size);
    return block;
  }

  /// The class, of several blocks a span, goes on with another span. `nearly_full`: half or more
  /// of its blocks were out.
  SPANALLOC_INLINE void note_refill(auto& thread, ClassId c, bool nearly_full) {
    if (c < kFirst) return;
    if (SPANALLOC_UNLIKELY(nearly_full || of(c).refills != 0)) count_refill(thread, c, nearly_full);
  }

  /// How many blocks that of a class has. Any thread, for statistics.
  std::uint32_t count(ClassId c) const {
    return c >= kFirst && c < Classes::kFirstLarge ? of(c).count.load_relaxed() : 0;
  }
  /// Whether the magazine of the span's class has the block.
  SPANALLOC_COLD bool has(SpanRef span, const Block* block) {
    const ClassId c = span->class_id();
    if (!used_ || c < kFirst || c >= Classes::kFirstLarge) return false;
    for (unsigned i = 0; i < of(c).count.load_relaxed(); ++i) {
      if (slot(c, i).load_relaxed() == block) return true;
    }
    return false;
  }
  // --- Work on the thread's own spans, because each free is an event of one (timed_work.hpp) ---

  /// Gives back what the classes have not needed since the call before.
  [[gnu::noinline]] void give_back_unused(auto& thread) {
    if (SPANALLOC_LIKELY(!used_)) return;
    const auto working = thread.begin_work();
    std::uint8_t unused[kCount];
    for (unsigned i = 0; i < kCount; ++i) {
      unused[i] = magazines_[i].least;
      magazines_[i].least = 0;
    }
    for_each([&](ClassId c, Magazine& magazine) {
      for (unsigned n = unused[index_of(c) - index_of(kFirst)]; n != 0; --n)
        give_back_one(thread, c);
      magazine.least = magazine.count.load_relaxed();
    });
    // Who has none any more frees as who never had one.
    bool any = false;
    for_each([&](ClassId, const Magazine& magazine) {
      any = any || magazine.most != 0 || magazine.count.load_relaxed() != 0;
    });
    used_ = any;
  }
  /// False: there was nothing.
  bool give_all_back(auto& thread) {
    const auto working = thread.begin_work();
    bool any = false;
    for_each([&](ClassId c, Magazine& magazine) {
      for (; magazine.count.load_relaxed() != 0; any = true) give_back_one(thread, c);
    });
    return any;
  }
  /// (Closed first: what a wrapper of a kernel call frees meanwhile is not kept.)
  [[gnu::noinline]] void end(auto& thread) {
    for_each([](ClassId, Magazine& magazine) { magazine.most = 0; });
    give_all_back(thread);
    forget();
  }
  /// f(Block*) for what a vanished thread had here.
  template <class F>
  SPANALLOC_COLD void take_each_of_vanished(F&& f) {
    for_each([&](ClassId c, Magazine& magazine) {
      while (magazine.count.load_relaxed() != 0) {
        const auto count = static_cast<std::uint8_t>(magazine.count.load_relaxed() - 1);
        // First: after a fork from here the child must not find the block twice.
        magazine.count.store_release(count);
        if (Block* const block = slot(c, count).load_relaxed(); block->is_kept()) f(block);
      }
    });
  }
  /// The blocks that are left are lost.
  void forget() {
    for_each([](ClassId, Magazine& magazine) {
      magazine.count.store_relaxed(0);
      magazine.most = magazine.least = magazine.refills = 0;
    });
    used_ = false;
  }

 private:
  friend struct spanalloc::InspectionAccess;

  // How many blocks that of a class has,
  struct Magazine {
    Atomic<std::uint8_t> count;
    std::uint8_t most;     // may have (0: the class has none),
    std::uint8_t least;    // and had at any time since the last look
    std::uint8_t refills;  // by spans that were nearly full, less those that were not
  };

  [[gnu::noinline]] void count_refill(auto& thread, ClassId c, bool nearly_full) {
    Magazine& magazine = of(c);
    if (!nearly_full) {
      magazine.refills /= 2;
      if (magazine.refills == 0) magazine.most = 0;
    } else if (magazine.refills != Config::kRefillsToKeep) {
      ++magazine.refills;
    } else {
      // The more threads there are, the less each may hold, because each may then wait for long.
      // Where memory is short others need what the blocks pin.
      const std::size_t threads = max_of(thread.heap->live_caches.load_relaxed(), 1);
      const std::size_t part = Config::kAllMagazinesBytes / kCount / threads;
      const bool may_open = thread.pages->may_open_magazines && !thread.pages->arena.is_short();
      const std::size_t blocks = min_of(Config::kMagazineBytes, part) / Classes::info(c).block_size;
      // One at least: it serves who frees and allocates in turn, and is little beside the class's
      // current span, which each thread has as well.
      const std::size_t most = max_of(min_of(blocks, Config::kMagazineBlocks), 1);
      magazine.most = static_cast<std::uint8_t>(may_open ? most : 0);
      used_ = used_ || may_open;
    }
  }
  template <class F>
  void for_each(F&& f) {
    if (SPANALLOC_LIKELY(!used_)) return;
    for (unsigned i = 0; i < kCount; ++i) f(ClassId{index_of(kFirst) + i}, magazines_[i]);
  }
  const Magazine& of(ClassId c) const { return magazines_[index_of(c) - index_of(kFirst)]; }
  Magazine& of(ClassId c) { return magazines_[index_of(c) - index_of(kFirst)]; }
  Atomic<Block*>& slot(ClassId c, unsigned i) { return blocks_[index_of(c) - index_of(kFirst)][i]; }
  // First out of the magazine: the free may end in a report.
  void give_back_one(auto& thread, ClassId c) {
    if (Block* const block = take(c); block != nullptr) thread.free_kept(block);
  }

  bool used_ = false;
  Magazine magazines_[kCount];
  // Apart from the counts: most threads never touch it.
  Atomic<Block*> blocks_[kCount][Config::kMagazineBlocks];
};

}  // namespace spanalloc::standard
