// The short paths of malloc and free: what one thread does in one heap.
//
//   allocate                  hit: pops the list of the class's current span, or of its loan
//     allocate_larger         the same above 1,152 B; above 32 KiB a cached large span
//     allocate_missed         else:
//       allocate_last         hands out the list's last block, and refills the list with what the
//                             span has, or with a ready used-up span
//       allocate_class        no block: refill() takes what the span has, its remote list, or a
//                             used-up span. Else the span becomes used up, and find_span() finds
//                             another: a partial one of the thread's own (delayed ones are collected
//                             if there is none, and with each 8th search), an abandoned one, a loan,
//                             what Heap::take_span() has, at last a nearly full one
//
//   deallocate                hit: the map shows an own span or a remote batch: pushes, and counts
//     look_after              the count is at its end: collect_own(), or the batch is flushed
//     deallocate_missed       else: caches a span of one block
//       deallocate_single     no room: older cached large spans go to the pool, or the span does
//       deallocate_others     another thread's span: the first free goes to it at once; the second
//                             begins a remote batch (RemoteBatches); the next ones are short
//         deallocate_by_record   all else (of no span's block: deallocate_outside_spans())
//           deallocate_own       the thread's own span, which the map did not show
//           deallocate_remote    another heap's span, one of one block, a thread without a record
//
// A span has one list of free blocks, in its record: malloc pops the list of the class's current
// span, free pushes on the list of the thread's span that the block lies in. So a free asks
// neither for a block's class nor whether its span is current: the map (thread_map.hpp) leads from
// the address to the span's record, where one multiplication tells whether this is a block of the
// span that was handed out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "base/poison.hpp"
#include "engines/engine.hpp"
#include "engines/standard/config.hpp"
#include "engines/standard/fork_recovery.hpp"
#include "engines/standard/heap.hpp"
#include "engines/standard/large_block_place.hpp"
#include "engines/standard/misuse.hpp"
#include "engines/standard/purged_pages.hpp"
#include "engines/standard/thread_map.hpp"
#include "engines/standard/thread_state.hpp"
#include "os/os.hpp"
#include "pages/nested_blocks.hpp"

namespace spanalloc::standard {

/// What one thread does in one heap. Only that thread calls it.
template <class Config>
class ThreadCache : public ThreadState<Config> {
  using State = ThreadState<Config>;
  using Classes = SizeClasses<Config>;
  using Pages = PageLayer<Config>;
  using Heap = standard::Heap<Config>;
  using CacheRecord = standard::CacheRecord<Config>;
  using Inside = HeapCall<Config>;
  using Misuse = standard::Misuse<Config>;
  using Singles = LargeBlockPlace<Config>;
  using Reuse = typename Heap::Reuse;
  static constexpr std::size_t kSlice = Classes::kSlice;
  // Of a current span that has carved no more a thread does not look whether it is giving it up.
  static constexpr std::size_t kLittleForCurrent = 28 * kKiB;
  // How often look_at_current() looks at a span again that its thread may be giving up.
  static constexpr std::uint32_t kLooksAtCurrent = 2;
  // A thread that has not read the clock for so long reads it again soon.
  static constexpr std::uint64_t kSeldomMs = 64;
  // So many misses come between two looks for current spans that have rested; so
  // many spans a look takes.
  static constexpr std::uint32_t kMissesALook = 16;
  static constexpr unsigned kCurrentSpansALook = 8;
  // Abandoned spans that one miss counts when that is due: a bound on its time.
  static constexpr std::uint32_t kCountedAMiss = 2;
  // Blocks of a page and more that are carved at a time where that costs no page fault.
  static constexpr std::uint32_t kCarvedWhereUsed = 4;
  static constexpr std::uint32_t kSearchesACollection =
      // Each 8th search for a span collects delayed ones
      8;
  static constexpr std::uint32_t kLookedAtAMiss = 64;  // abandoned spans of each class and list

 public:
  using State::exited, State::exit_round, State::heap, State::current, State::owned_identity,
      State::is_owned_here, State::is_mine, State::cache, State::lone_frees, State::misses,
      State::map, State::pages;
  using State::State;

  // --- Short paths -------------------------------------------------------------------------------

  /// Any n.
  template <OutOfMemory Policy = ReturnNull>
  SPANALLOC_INLINE void* allocate(std::size_t n) {
    if (SPANALLOC_UNLIKELY(n > kMaxSmallest<Config>)) return allocate_larger<Policy>(n, *this);
    const std::size_t c = kClassOf<Config>[n];  // of 0: class 0, which never has a block
    FreeTarget& target = *current[c];
    Block* block = target.free_list.pop_if_not_last(no_link_bits(kSlice));
    if (SPANALLOC_UNLIKELY(block == nullptr)) return allocate_missed<Policy>(n, *this);
    unpoison(block, Classes::kTable[c].block_size);
    return block;
  }

  SPANALLOC_INLINE void deallocate(void* p) {
    const std::uintptr_t a = address_of(p);
    FreeTargetPointer target(*map, a);
    if (SPANALLOC_UNLIKELY((a - target->blocks.base.read_own()) * target->blocks.magic.read_own() >=
                           target->blocks.limit.read_own())) {
      // Of no span of the thread's, or its entry is overwritten
      return deallocate_missed(p, *this);
    }
    const Difference link = difference(address_of(target->free_list.first()), a);
    if (SPANALLOC_UNLIKELY(link.none)) return deallocate_missed(p, *this);  // freed twice
    auto* block = static_cast<Block*>(p);
    if constexpr (kPoisons) poison(block + 1, block_bytes_of(p) - sizeof(Block));
    if (SPANALLOC_UNLIKELY(push_freed(target, block, link.bits))) return look_after(p, *this);
  }

  // --- What else an engine offers; see engines/engine.hpp ----------------------------------------

  void* allocate_aligned(std::size_t n, std::size_t alignment);
  void* allocate_larger_aligned(std::size_t n, std::size_t alignment);
  void* allocate_by_alignment(std::size_t n, std::size_t alignment);
  void* allocate_zeroed(std::size_t n);
  void* allocate_copy(std::size_t n, const void* from, std::size_t bytes);
  std::size_t usable_size(const void* p);
  template <LeavesAlone Policy = TakeAllBack>
  Resized resize(void* p, std::size_t n);
  bool owns(const void* p);
  /// Gives back what this thread and the pools hold without need.
  bool trim();
  /// Does all the work of a decay epoch that is due. False: there was nothing to give back.
  bool pass_epochs();

  // --- The thread's beginning and end ------------------------------------------------------------

  /// Takes a cache record. False: there is none, or no memory for it.
  bool attach();
  /// Begins with a cache record that was taken already. False: the thread's end cannot be watched.
  bool adopt(CacheRecord* fresh);
  void detach();
  void thread_exit();
  /// The thread's end calls it (thread::ExitKey); `state` is a ThreadCache.
  static void on_thread_exit(void* state);

  // --- For the parts of the cache record, which are given their thread's cache ---------------------

  /// While it lives, the thread is in a call in which it may have a span that is in no place.
  Inside enter() { return Inside(*this); }
  /// The lock of the cache record's lists.
  auto lock_lists() { return typename Heap::Protocol::CacheGuard(heap->protocol(), cache->number); }
  unsigned shard() const { return heap->shard_of(cache); }
  /// No span: the class has none.
  SpanRef current_span(ClassId c) {
    const SpanNumber number = cache->current[index_of(c)].load_relaxed();
    return number == SpanNumber::kNone ? SpanRef{} : pages->span(number);
  }
  FreeList& list_of(ClassId c) { return current[index_of(c)]->free_list; }
  bool has_had_spans(ClassId c) const {
    return (cache->current_classes[index_of(c) / 64] >> index_of(c) % 64 & 1) != 0;
  }
  void free_to_span(SpanRef span, Block* newest, Block* oldest, std::uint32_t count);
  /// The caller's free would have taken the short path if the thread had a map.
  void miss_map() {
    if (SPANALLOC_LIKELY(map != &kNoMap) || misses == State::kMissesForMap) return;
    ++misses;
    if (misses == State::kMissesForMap) map = &pages->maps.make(*cache);
  }

 private:
  // Where a miss goes. The argument comes first: it is in that register
  // already, so no path moves it.
  template <class Policy>
  [[gnu::noinline]] static void* allocate_larger(std::size_t n, ThreadCache& self);
  template <class Policy>
  [[gnu::noinline]] static void* allocate_single_or_large(std::size_t n, ThreadCache& self);
  template <class Policy>
  [[gnu::noinline]] static void* allocate_missed(std::size_t n, ThreadCache& self);
  void set_current(ClassId c, SpanRef span);
  /// Pops the last block of the current span's list, which the short path
  /// leaves, and refills the list.
  Block* allocate_last(ClassId c);
  /// A block of class c, the request's class. nullptr: memory is out.
  void* allocate_class(ClassId c, Request request);

  [[gnu::noinline]] static void deallocate_missed(void* p, ThreadCache& self);
  static void deallocate_others(void* p, ThreadCache& self, SpanRef slice);
  static void deallocate_single(void* p, ThreadCache& self, SpanRef span);
  static void deallocate_by_record(void* p, ThreadCache& self);
  void* take_cached(ClassId c, Request request);
  [[gnu::noinline]] static void* fit_cached(std::size_t n, ThreadCache& self, Span* large,
                                            std::size_t alignment);
  static void* as_block(const Span& large, ClassId c);
  void free_into_others(SpanRef span, SpanWord word, Block* block);
  static void deallocate_own(void* p, ThreadCache& self, SpanRef span);
  static void look_after(void* p, ThreadCache& self);
  void collect_own(SpanRef span);
  void look_at_current(SpanRef span);
  void collect_used_up(SpanRef span, unsigned place);
  void deallocate_remote(SpanRef span, SpanWord word, void* p);
  void flush_one_batch() {
    if (cache != nullptr) cache->batches.flush_one(*this);
  }
  static void deallocate_suspect(void* p, ThreadCache& self, SpanRef span);

  /// Where an address lies: the look-up of all but the short paths. Relaxed: the class, and whether
  /// this thread is the owner, do not change as long as the caller's block is out.
  struct Location {
    SpanRef span;           ///< the span of the slice that the address lies in
    SpanWord word{};        ///< the span's, if there is a span
    bool in_span = false;   ///< whether it lies in a slice of a span in use
    bool is_block = false;  ///< whether it is the start of a carved block of that span
    bool has_record() const { return span.record != nullptr; }  ///< of the slice there
    ClassId size_class() const { return span->class_id(); }
  };
  Location locate(const void* p);

  // This thread's cache record, taken if it has none; nullptr: there is none to be had.
  CacheRecord* record_of_thread() {
    return SPANALLOC_LIKELY(cache != nullptr) || attach() ? cache : nullptr;
  }
  void detach_if_exited() {
    if (SPANALLOC_UNLIKELY(exited) && cache != nullptr) detach();
  }
  static unsigned slices_of_cached(const Span& span) {
    return Classes::kTable[span.shown_class.load_relaxed()].slices;
  }

  static SliceCount slices_for(std::size_t bytes) {
    return {(bytes + kSlice - 1) >> Config::kSliceBits};
  }
  // How many bytes of a block of that class in that span the program may use.
  std::size_t block_bytes(ClassId c, SpanRef span) {
    if (!Classes::has_one_block(c)) return Classes::info(c).block_size;
    return Singles::bytes(span->shown.base.load_relaxed(), c,
                          slices_of_single(c, span).count * kSlice);
  }
  SliceCount slices_of_single(ClassId c, SpanRef span) const {
    return c == Classes::kHuge ? pages->slices_of(span) : SliceCount{Classes::info(c).slices};
  }
  // For builds that poison.
  std::size_t block_bytes_of(const void* p) {
    const SpanRef span = pages->span_of(pages->any_slice_at(address_of(p)));
    return block_bytes(span->class_id(), span);
  }

  /// What a block begins with: a copy of `bytes` bytes, or as many zeros if
  /// there is nothing to copy.
  struct Fill {
    const void* from = nullptr;
    std::size_t bytes = 0;
    bool is_zero() const { return from == nullptr && bytes != 0; }
    /// `zero`: the block at p reads as zero already.
    SPANALLOC_INLINE void write(void* p, bool zero) const {
      if (from != nullptr) {
        std::memcpy(p, from, bytes);
      } else if (!zero && bytes != 0) {
        std::memset(p, 0, bytes);
      }
    }
  };
  static void clear(void* p, std::size_t bytes);
  static void* allocate_nested(Request request, ClassId c);
  static void* allocate_nested(Request request, const Fill& fill);
  void* allocate_larger_filled(std::size_t n, const Fill& fill);
  void* allocate_large(Request request, const Fill& fill);
  void* allocate_single(ClassId c, Request request, const Fill& fill);
  void* hand_out(const FreshSpan& fresh, ClassId c, Request request, const Fill& fill);
  void* resize_single(SpanRef span, std::size_t n, SliceCount old);
  static bool keeps_its_room(SpanRef span, SliceCount slices, SliceCount old);
  static bool resize_where_it_stands(Heap& home, SpanRef span, ClassId c, SliceCount slices,
                                     SliceCount old);
  /// The place of a live block. If that says "no block", the block is outside the arena.
  Location locate_live(const void* p);
  Resized resize_outside(void* p, std::size_t usable, std::size_t n);
  void* allocate_small(ClassId c);
  /// A block, and whether it reads as zero.
  struct MaybeZero {
    void* block;
    bool zero;
  };
  MaybeZero allocate_small_page(ClassId c);
  enum class Refilled { kNothing, kBlocks, kZeroBlocks };
  Refilled refill(ClassId c);
  Refilled take_own_blocks(ClassId c, SpanRef span);
  bool take_remote_blocks(SpanRef span, std::uint32_t at_least);
  bool take_ready(ClassId c);
  bool take_remotely_ready(ClassId c);
  bool take_any_used_up(ClassId c);
  bool take_used_up(ClassId c, unsigned place);
  bool share_empty_used_up();
  bool give_back_unused();
  FreshSpan take_span(ClassId c);
  Block* carve_one(ClassId c);
  static void count_carved(SpanRef span, const ClassInfo& info, std::uint32_t count);
  static void expect_emptying(SpanRef span, const ClassInfo& info, std::uint32_t out);
  void add_list(SpanRef span, BlockOffset remotes);
  void join_used_up(ClassId c, SpanRef span);
  /// A thread that needs neither pool nor arena reads the clock now and then: others'
  /// free memory must be purged.
  void pass_by_clock(CacheRecord& mine) {
    if (SPANALLOC_UNLIKELY(++mine.events % 64 == 0)) read_clock();
  }
  /// True: read it soon again, because there is more to do or the thread reads it seldom. The
  /// current span of class `busy` stays.
  bool read_clock();
  bool read_clock(ClassId busy);
  void share_unused(std::uint64_t now, ClassId busy);
  void current_to_used_up(ClassId c, SpanRef span);
  void share_used_up(unsigned i);
  Block* carve(SpanRef span, ClassId c);
  Block* take_purged(SpanRef span, ClassId c);
  /// Whether a current span has nothing that its free_list could go on with.
  static bool is_all_on_list(SpanRef span, const ClassInfo& info) {
    return span->carved.load_relaxed() == info.blocks && span->rest.is_empty() &&
           span->purged.load_relaxed() == 0;
  }
  OwnedSpan find_span(ClassId c);
  void make_current(ClassId c, SpanRef span);
  template <class F>
  void for_each_current_class(F f);
  bool is_used_up(ClassId c);
  void leave_current_and_share(ClassId c);
  void abandon_current(ClassId c, CacheNumber new_owner);
  bool count_abandoned(std::uint32_t at_most, std::uint32_t look_at);
  void count_abandoned_if_due() {
    if (SPANALLOC_UNLIKELY(heap->count_abandoned_due.load_relaxed() != 0)) {
      count_abandoned(kCountedAMiss, kLookedAtAMiss);
    }
  }
  std::uint32_t merge_lists(SpanRef span);
  void leave_current(ClassId c);
  void share(SpanRef span, std::uint32_t free_blocks);
  Freed owned_to_shared(SpanRef span, std::uint32_t free_blocks);
  void pool_or_tell(SpanRef span, Freed collected);
  void share_current(ClassId c);
  static Block* pop(FreeList& list, const ClassInfo& info);
};

}  // namespace spanalloc::standard

#include "engines/standard/thread_cache_allocate.hpp"
#include "engines/standard/thread_cache_free.hpp"
#include "engines/standard/thread_cache_resize.hpp"
#include "engines/standard/thread_cache_thread.hpp"
