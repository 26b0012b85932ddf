// Huge objects: whole chunks, in ranges of a power of two of them (section 6). What lies behind the
// object in its range is address space only. A freed range gives its pages back to the kernel and
// waits for the next object of its size; it is never unmapped. The lists of free ranges go through
// the chunk table, so that nothing of a range need be in memory.
//
// Each whole 2 MiB of an object may be one huge page, the rest is of small ones, with
// SPANALLOC_THP=auto or always. A freed range is like all other memory of the arena again, which
// has no huge pages: so the kernel has one mapping of them, and two more at most for each object.
//
// Beyond the paper: a range that is larger than needed is halved, so that one that is needed for
// its alignment, or is all that is left, does not stay whole.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "base/poison.hpp"
#include "os/os.hpp"
#include "pages/huge_page_advice.hpp"
#include "papers/supermalloc/engine/bins.hpp"
#include "papers/supermalloc/engine/chunk_table.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc::supermalloc {

/// What is handed out without folios.
struct BigObject {
  void* bytes = nullptr;
  bool is_zero = false;
};

/// Thread-safe; zero-initialisable; usable once started.
class HugeHeap {
 public:
  explicit constexpr HugeHeap(ChunkTable& chunks) : chunks_(chunks) {}

  static constexpr std::size_t kLargest = kChunk << ChunkTable::kMaxOrder;
  static constexpr std::size_t kNever = SIZE_MAX;

  /// Reads SPANALLOC_THP, once: the environment is the program's, which may be changing it later.
  /// Under the lock of the heap's start, before there is an object.
  void start() {
    if (is_started_) return;
    const HugePageUse use = huge_page_use();
    if (use == HugePageUse::kAlways) advised_from_ = 0;
    if (use == HugePageUse::kAuto) advised_from_ = PagesConfig::kLeastAdvised;
    is_started_ = true;
  }

  /// An object of n bytes at a multiple of `alignment` (a power of two); both at most kLargest.
  /// None when memory or address space is out.
  BigObject allocate(std::size_t n, std::size_t alignment) {
    SPANALLOC_ASSERT(n <= kLargest && alignment <= kLargest);
    const std::size_t pages = pages_for(n);
    const unsigned order = order_of(pages);
    const unsigned aligned_order =
        static_cast<unsigned>(log2_ceil(max_of(alignment, kChunk) / kChunk));
    Range range = take(order, aligned_order > order ? aligned_order : order);
    if (range.first == 0) return {};
    void* start = pointer_to(chunks_.address(range.first));
    unpoison(start, pages * kPage);
    advise(start, pages);
    const Guard guard(*this);
    chunks_.set(range.first, ChunkEntry::of_huge(static_cast<std::uint32_t>(pages)));
    count(pages, 1);
    return {start, !range.is_dirty};
  }

  /// Frees the object at p. False: there is none; nothing has changed.
  bool free(void* p) {
    const ChunkNumber first = chunks_.number_of(p);
    std::size_t pages = 0;
    {
      const Guard guard(*this);
      pages = pages_at(p);
      if (pages == 0) return false;
      chunks_.set(first, ChunkEntry::nothing());  // nobody's while its pages go
      count(pages, std::size_t{0} - 1);
    }
    poison(p, pages * kPage);
    // All of its range: behind the object there may be what an earlier one has left
    // that could not be purged.
    const unsigned order = order_of(pages);
    const bool is_dirty = !purge(p, kChunk << order);
    // (It may have been longer when it was advised.)
    if (may_advise()) os::forbid_huge_pages(p, kChunk << order);
    const Guard guard(*this);
    push(order, first, is_dirty);
    return true;
  }

  /// Offers the kernel again what it would not take when it was freed. Bytes that it has taken now.
  std::size_t purge_again() {
    std::size_t bytes = 0;
    for (unsigned order = 0; order <= ChunkTable::kMaxOrder && kept_bytes() != 0; ++order) {
      for (ChunkNumber next = unlink_kept(order); next != 0;) {
        const ChunkNumber first = next;
        next = chunks_.entry(first).next();
        const bool is_dirty = !purge(pointer_to(chunks_.address(first)), kChunk << order);
        if (!is_dirty) bytes += kChunk << order;
        const Guard guard(*this);
        chunks_.set(first, ChunkEntry::nothing());
        push(order, first, is_dirty);
      }
    }
    return bytes;
  }

  /// Bytes of the object at p; 0: there is none.
  std::size_t usable_size(const void* p) {
    const Guard guard(*this);
    return pages_at(p) * kPage;
  }

  /// Makes the object at p n bytes large, where it is. False: its range is too small, or half of it
  /// would do; or there is no such object.
  bool resize(void* p, std::size_t n) {
    if (n > kLargest) return false;
    const std::size_t pages = pages_for(n);
    std::size_t before = 0;
    {
      const Guard guard(*this);
      before = pages_at(p);
      if (before == 0 || order_of(pages) != order_of(before)) return false;
      if (pages >= before) {
        chunks_.set(chunks_.number_of(p), ChunkEntry::of_huge(static_cast<std::uint32_t>(pages)));
        count(pages - before, 0);
      }
    }
    if (pages >= before) {
      unpoison(p, pages * kPage);
      advise(p, pages);
      return true;
    }
    // What is cut off reads as zero when the object grows again, or the object keeps it.
    char* end = static_cast<char*>(p) + pages * kPage;
    if (!purge(end, (before - pages) * kPage)) return true;
    const std::uintptr_t cut = align_down(address_of(end), kChunk);
    if (may_advise()) os::forbid_huge_pages(pointer_to(cut), address_of(p) + before * kPage - cut);
    poison(end, (before - pages) * kPage);
    const Guard guard(*this);
    chunks_.set(chunks_.number_of(p), ChunkEntry::of_huge(static_cast<std::uint32_t>(pages)));
    count(pages - before, 0);
    return true;
  }

  std::size_t bytes() const { return pages_.load_relaxed() * kPage; }
  std::size_t objects() const { return objects_.load_relaxed(); }
  /// Of free ranges that the kernel did not take back, all of each: at most so much is in memory.
  std::size_t kept_bytes() const { return kept_.load_relaxed() * kChunk; }

  void repair() { const Guard guard(*this); }
  /// In a fork's child, first of all.
  void enter_child() { lock_.abandon_if_owner_died(); }

  // --- For the census ----------------------------------------------------------------------------

  static unsigned order_of(std::size_t pages) {
    return static_cast<unsigned>(log2_ceil((pages + kPagesInChunk - 1) / kPagesInChunk));
  }
  ChunkNumber first_free(unsigned order) const { return free_[order]; }

 private:
  struct Range {
    ChunkNumber first = 0;
    bool is_dirty = false;
  };

  class [[nodiscard]] Guard {
   public:
    explicit Guard(HugeHeap& heap) : guard_(heap.lock_) {
      if (SPANALLOC_UNLIKELY(guard_.owner_died())) heap.rebuild();
    }

   private:
    LockGuard<WakingLock> guard_;
  };

  static std::size_t pages_for(std::size_t n) { return max_of((n + kPage - 1) / kPage, 1); }

  std::size_t pages_at(const void* p) const {
    SPANALLOC_ASSERT(lock_.is_mine());
    if (address_of(p) % kChunk != 0) return 0;
    const ChunkEntry entry = chunks_.at(p);
    return entry.is_huge() ? entry.pages() : 0;
  }

  // A range of 2^order chunks that begins at a multiple of 2^aligned_order of
  // them: in nobody's books.
  Range take(unsigned order, unsigned aligned_order) {
    {
      const Guard guard(*this);
      if (const ChunkNumber first = free_[aligned_order]; first != 0)
        return cut(aligned_order, order, first);
    }
    if (const ChunkNumber first = chunks_.carve(aligned_order); first != 0) {
      const Guard guard(*this);
      halve(aligned_order, order, first, false);
      return {first, false};
    }
    const Guard guard(*this);
    for (unsigned larger = aligned_order; larger <= ChunkTable::kMaxOrder; ++larger) {
      if (const ChunkNumber first = free_[larger]; first != 0) return cut(larger, order, first);
    }
    return {};
  }
  // The first one of a list, of which the front is used.
  Range cut(unsigned from, unsigned to, ChunkNumber first) {
    const ChunkEntry entry = chunks_.entry(first);
    SPANALLOC_ASSERT(entry.is_free());
    free_[from] = entry.next();
    chunks_.set(first, ChunkEntry::nothing());
    if (entry.is_dirty()) kept_.store_relaxed(kept_.load_relaxed() - (std::size_t{1} << from));
    halve(from, to, first, entry.is_dirty());
    return {first, entry.is_dirty()};
  }
  void halve(unsigned from, unsigned to, ChunkNumber first, bool is_dirty) {
    while (from > to) {
      --from;
      push(from, first + (ChunkNumber{1} << from), is_dirty);
    }
  }
  void push(unsigned order, ChunkNumber first, bool is_dirty) {
    SPANALLOC_ASSERT(lock_.is_mine() && chunks_.entry(first).word() == 0);
    chunks_.set(first, ChunkEntry::of_free(free_[order], is_dirty));
    free_[order] = first;
    if (is_dirty) kept_.store_relaxed(kept_.load_relaxed() + (std::size_t{1} << order));
  }
  // Those of a list that the kernel did not take back: chained by their entries, and in no list.
  ChunkNumber unlink_kept(unsigned order) {
    const Guard guard(*this);
    ChunkNumber unlinked = 0;
    ChunkNumber before = 0;
    for (ChunkNumber next = free_[order]; next != 0;) {
      const ChunkNumber first = next;
      const ChunkEntry entry = chunks_.entry(first);
      next = entry.next();
      if (!entry.is_dirty()) {
        before = first;
        continue;
      }
      if (before == 0) {
        free_[order] = next;
      } else {
        chunks_.set(before, ChunkEntry::of_free(next, false));
      }
      chunks_.set(first, ChunkEntry::of_free(unlinked, true));
      unlinked = first;
      kept_.store_relaxed(kept_.load_relaxed() - (std::size_t{1} << order));
    }
    return unlinked;
  }

  static bool purge(void* start, std::size_t bytes) {
    const std::uintptr_t first = align_up(address_of(start), os::page_size());
    const std::uintptr_t end = align_up(address_of(start) + bytes, os::page_size());
    return first == address_of(start) &&
           (end == first || os::purge(pointer_to(first), end - first));
  }

  // What is open never becomes less: who was advised is told, too, when that ends.
  bool may_advise() const {
    return advised_from_ != kNever && chunks_.statistics().opened_bytes >= advised_from_;
  }
  void advise(void* start, std::size_t pages) const {
    const std::size_t whole = align_down(pages * kPage, kChunk);
    if (whole != 0 && may_advise()) os::prefer_huge_pages(start, whole);
  }

  void count(std::size_t pages, std::size_t objects) {
    pages_.store_relaxed(pages_.load_relaxed() +
                         (objects == std::size_t{0} - 1 ? 0 - pages : pages));
    objects_.store_relaxed(objects_.load_relaxed() + objects);
  }

  // In a fork's child whose parent had a thread in here: a list may have lost what was being pushed
  // or cut, and what is behind it. Ranges that no list leads to stay unused; all is counted anew.
  SPANALLOC_COLD void rebuild() {
    std::size_t kept = 0;
    for (unsigned order = 0; order <= ChunkTable::kMaxOrder; ++order) {
      if (free_[order] != 0 && !chunks_.entry(free_[order]).is_free()) free_[order] = 0;
      for (ChunkNumber first = free_[order]; first != 0; first = chunks_.entry(first).next()) {
        if (chunks_.entry(first).is_dirty()) kept += std::size_t{1} << order;
      }
    }
    kept_.store_relaxed(kept);
    std::size_t pages = 0;
    std::size_t objects = 0;
    for (ChunkNumber number = 1; number < chunks_.limit(); ++number) {
      const ChunkEntry entry = chunks_.entry(number);
      if (!entry.is_huge()) continue;
      pages += entry.pages();
      ++objects;
    }
    pages_.store_relaxed(pages);
    objects_.store_relaxed(objects);
  }

  ChunkTable& chunks_;
  bool is_started_ = false;  // constant once the heap is, with the next one
  // Bytes that are open when objects may be in huge pages; kNever: they may not.
  std::size_t advised_from_ = kNever;
  // The lock has a line of its own, on which others spin, and what it guards the next two.
  alignas(kCacheLine) WakingLock lock_;
  alignas(kCacheLine) ChunkNumber free_[ChunkTable::kMaxOrder + 1] = {};
  Atomic<std::size_t> pages_{0};
  Atomic<std::size_t> objects_{0};
  Atomic<std::size_t> kept_{0};  // chunks
};
static_assert(sizeof(HugeHeap) == 4 * kCacheLine);

}  // namespace spanalloc::supermalloc
