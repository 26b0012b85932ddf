// Where is decided that memory goes back to the kernel, for a page layer and its heap.
//
//   when                                             what goes
//   a decay epoch ends (purge_if_due)                what nobody has wanted through a whole epoch
//   the background thread wakes (wait_for_epoch)     the same, when no thread passes by
//   malloc_trim (trim)                               all that is free
//   a large block's span becomes the arena's         what exceeds the bound on dirty memory
//   (keep_dirty_bound)
//   a block of 8 MiB is freed (purge_if_sparse)      its pages, if little of it was ever touched
//   calloc of 8 MiB (zero_by_purging)                its pages, where that is cheaper than clearing
//   a large block is handed out or resized           what lies around it in its slices
//   (purge_slack)
//   memory is out (take_anyhow, make_room_for_table) all that is free, decommitted
//   what is held comes near the soft limit           what caches keep, and pages of spans in use on
//   (before_taking, purge_if_due)                    which no block is left
//   with what is free it exceeds it (after_taking)   of what is free, the excess
//
// Memory is *purged* here; decommitting, which a limit on address space asks for, is the arena's
// (CoalescingArena::look_at_limit and give), and so is what it does with memory that it has half
// taken. Blocks outside the arena go back when they are freed, by LargeObjects; the map of a thread
// that has vanished by MapTable::clear; what NestedBlocks keeps at malloc_trim. The heap is asked
// to let go of what it keeps: Heap::begin_epoch, drain_last_epochs, pool_all_unused, drain.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "os/cgroup.hpp"
#include "os/huge_pages.hpp"
#include "os/os.hpp"
#include "pages/arena/shortage.hpp"
#include "pages/dirty_bound.hpp"
#include "pages/huge_page_advice.hpp"
#include "pages/soft_limit.hpp"
#include "pages/soft_limit_callback.hpp"
#include "standard/large_habits.hpp"
#include "standard/purged_pages.hpp"
#include "standard/slack_bound.hpp"
#include "standard/span_protocol.hpp"
#include "sync/spin_lock.hpp"
#include "thread/background.hpp"

namespace spanalloc::standard {

template <class Config>
class ForkRecovery;

/// Thread-safe; constant-initialised. Callers have entered a heap (HeapCall), but for start(),
/// wait_for_epoch(), before_malloc(), want_soft_limit() and enter_child().
template <class Config>
class MemoryReturn {
  using Classes = SizeClasses<Config>;
  using Pages = PageLayer<Config>;
  using Habits = LargeHabits<Config>;
  using IdleBound = SlackBound<Config>;
  static constexpr std::size_t kSlice = Classes::kSlice;

 public:
  /// `background`: the body of the background thread, if there may be one.
  constexpr MemoryReturn(Pages& pages, void (*background)())
      : pages_(pages), background_body_(background) {}
  /// Under the page layer's start lock.
  void start() {
    decay_ms_ = os::option_number("DECAY_MS", 0, 3600 * 1000, 500);
    if (background_body_ != nullptr && os::option_switch("BACKGROUND", false))
      at_next_malloc_.fetch_or_seq_cst(kBackground);  // release: pairs with before_malloc()
    start_soft_limit();
    next_purge_.store_relaxed(os::now_ms() + decay_ms_ / 2 + 1);
  }

  // --- With time ---------------------------------------------------------------------------------

  /// Any thread that passes by calls it. True: the decay epoch has more to do.
  bool purge_if_due(std::uint64_t now) {
    if (SPANALLOC_LIKELY(now < next_purge_.load_relaxed())) return false;
    purge_for_epoch(now);
    return now >= next_purge_.load_relaxed();
  }
  /// All the work of a decay epoch that is due. False: there was nothing to give back.
  SPANALLOC_COLD bool finish_epoch() {
    const std::size_t before = given_back_.load_relaxed();
    // (Another thread may be doing it.)
    for (unsigned i = 0; purge_if_due(os::now_ms()) && i < Config::kMostPartsOfAnEpoch; ++i) {
    }
    return given_back_.load_relaxed() != before;
  }

  /// Called at the start of a slow malloc, before that has changed anything, and not in a kernel
  /// call: what is done here may call malloc. Starts the thread that passes decay epochs when no
  /// other thread does, if the user wants one, it does not run yet, and there is memory to give
  /// back. Calls the program's function, if what is held has come near the soft limit; not in a
  /// thread that has `exited`, whose thread-local objects are gone.
  void before_malloc(bool exited) {
    // Acquire: the arena, which is asked next.
    const std::uint32_t wanted = at_next_malloc_.load_acquire();
    if (SPANALLOC_UNLIKELY(wanted != 0)) do_before_malloc(wanted, exited);
  }
  /// The background thread waits for the next decay epoch; `idle` epochs before it had nothing to
  /// do. False: no thread of the program uses the heap any more. Then it ends, and a later
  /// before_malloc() starts another.
  SPANALLOC_COLD bool wait_for_epoch(unsigned idle) {
    const auto& live_caches = pages_.heap.live_caches;
    if (live_caches.load_relaxed() == 0) {
      background_.store_release(0);
      return false;
    }
    // The clock of the epochs is coarse. The second epoch that finds memory unused gives it back.
    const std::uint64_t epoch = decay_ms_ / 2 + 10;
    const std::uint64_t longer =
        idle < 3 ? epoch : min_of(epoch << min_of(idle - 2, 4), Config::kLongestWaitMs);
    // In parts, so that it ends soon after the program's last thread, however long an epoch is.
    for (std::uint64_t left = max_of(longer, epoch);
         left != 0 && live_caches.load_relaxed() != 0;) {
      const std::uint64_t part = min_of(left, Config::kLongestWaitMs);
      os::sleep_ms(part);
      left -= part;
    }
    return true;
  }
  /// In a fork's child, first of all: the thread has vanished.
  SPANALLOC_COLD void enter_child() {
    background_.store_relaxed(0);
    callback.enter_child();
    // A thread that has vanished may have noted what is wanted, or that memory is near, and have
    // gone no further: the next look adopts the limit anew.
    is_adopted_.store_relaxed(0);
    pages_.arena.shortage().set(Shortage::kSoftLimit, soft_limit.is_near());
    count_misses(soft_limit.is_near());
  }
  /// In a fork's child that has one thread: more threads have vanished.
  SPANALLOC_COLD void stop_taking_over() { takes_over_ = false; }
  /// In a fork's child: vanished threads' spans become nobody's while all records are gone through,
  /// from now on.
  SPANALLOC_COLD void begin_to_take_over() {
    const LockGuard guard(purge_lock);
    purge_cursor_ = 0;
    takes_over_ = true;
  }
  /// What is left of that.
  SPANALLOC_COLD void take_all_over() {
    const LockGuard guard(purge_lock);
    if (takes_over_) purge_abandoned(Which::kAll, SIZE_MAX);
  }

  // --- On request --------------------------------------------------------------------------------

  /// Purges all dirty free memory. False: there was none.
  SPANALLOC_COLD bool trim() {
    (void)purge_lock.lock();
    trims_.store_relaxed(trims_.load_relaxed() + 1);
    purge_cursor_ = 0;
    const std::size_t before = given_back_.load_relaxed();
    purge_abandoned(Which::kAll, SIZE_MAX);
    pages_.heap.drain();
    const bool purged = pages_.arena.purge(false) != 0 || given_back_.load_relaxed() != before;
    dirty_bound.dirty_is(0);
    pages_.arena.look_at_limit();
    note_held(held_bytes());
    let_go_of_purge_lock();
    return purged;
  }

  // --- Near the soft limit (soft_limit.hpp) ------------------------------------------------------

  /// What the user may want beside a number of bytes and 0, which is no limit: the limit of the
  /// control group that the process is in, read again as time passes.
  static constexpr std::size_t kLimitOfGroup = SIZE_MAX;
  /// Takes no lock. The next look goes by it.
  SPANALLOC_COLD void want_soft_limit(std::size_t wanted) {
    // (Here, and not where the limit is adopted: a fork's child does that, too, and may have
    // forbidden itself to open files.)
    if (wanted != 0)
      huge_pages_come_.store_relaxed(os::makes_huge_pages_unasked(group_root_) ? 1 : 0);
    wanted_limit_.store_relaxed(wanted);
    limit_was_wanted_.store_relaxed(1);
    pages_.arena.shortage().watch();
  }
  /// Bytes; 0: none.
  std::size_t soft_limit_now() const {
    const std::size_t wanted = wanted_limit_.load_relaxed();
    return wanted == kLimitOfGroup ? soft_limit.limit() : wanted;
  }
  /// What may be in memory: slices that are taken, but for pages that are known to be gone; blocks
  /// outside; and what is free and dirty.
  std::size_t kept_bytes() const {
    const std::size_t all = (pages_.arena.held() << Config::kSliceBits) + pages_.outside.bytes();
    const std::size_t gone = gone_.load_relaxed();
    return all - (static_cast<std::ptrdiff_t>(gone) < 0 ? 0 : min_of(gone * kGonePage, all));
  }
  /// What is held: of that, what is not the arena's to give back.
  std::size_t held_bytes() const {
    const std::size_t kept = kept_bytes();
    return kept - min_of(pages_.arena.dirty_free() << Config::kSliceBits, kept);
  }

  /// Before `more` slices are taken, or as much outside. The caller has nothing in its hands: this
  /// may end in a report.
  SPANALLOC_INLINE void before_taking(SliceCount more) {
    if (SPANALLOC_UNLIKELY(pages_.arena.shortage().is_watched())) look_at_soft_limit(more);
  }
  SPANALLOC_COLD void look_at_soft_limit(SliceCount more) {
    std::size_t coming = more.count << Config::kSliceBits;
    // What is in memory of a group's may grow while as much is held as before: where blocks fill
    // their slices better, or take what was free and clean.
    const std::size_t taken = taken_since_read_.fetch_add_relaxed(coming) + coming;
    const bool is_new = is_another_limit_wanted();
    const bool is_due = is_new || soft_limit.is_due(held_bytes() + coming);
    // (Another thread that purges may be doing this.)
    if (!is_due && taken < read_group_after_.load_relaxed()) return;
    if (!purge_lock.try_lock()) return;
    const std::uint64_t now = os::now_ms();
    const bool was_near = soft_limit.is_near();
    adopt_limit(now);
    // A request that no purge can make room for is most likely refused.
    if (coming > soft_limit.limit()) coming = 0;
    note_held(held_bytes() + coming);
    const bool is_near = soft_limit.is_near();
    // (The group is read more often than memory is gone through.)
    const bool look = is_near && (is_due || !was_near);
    if (look) {
      if (!was_near) in_epoch_ = false;  // one that has begun goes by age
      tell_after_ms_ = 0;
      pass_part_of_epoch(now, coming);
    }
    if (look || !is_near) soft_limit.looked(held_bytes() + min_of(coming, soft_limit.step()));
    purge_excess();
    let_go_of_purge_lock();
  }
  /// After slices were taken, or memory outside.
  SPANALLOC_INLINE void after_taking() {
    if (SPANALLOC_UNLIKELY(pages_.arena.shortage().is_watched())) look_at_excess();
  }
  /// After so many slices were given to the arena.
  void after_giving(SliceCount slices) {
    if (SPANALLOC_UNLIKELY(soft_limit.limit() != 0) &&
        soft_limit.note_free(slices.count << Config::kSliceBits)) {
      look_after_giving();
    }
  }
  /// Whether what is held is near the limit, or still is.
  SPANALLOC_COLD bool is_near_limit() {
    if (is_another_limit_wanted() || (soft_limit.is_near() && soft_limit.is_far(held_bytes())))
      look_after_giving();
    return soft_limit.is_near();
  }

  // --- Pages of spans in use that are gone -------------------------------------------------------

  static constexpr std::size_t kGonePage = PageMask::kBytes;
  /// Of a span so many pages were gone, and are now: the record first, as with count_idle().
  void count_gone(std::size_t before, std::size_t now) { gone_.fetch_add_relaxed(now - before); }
  /// Of a span of one block: none is gone any more.
  SPANALLOC_COLD void forget_gone(Span& span) {
    const std::size_t gone = span.gone;
    span.gone = 0;
    count_gone(gone, 0);
  }
  /// Of a span of several blocks that is about to be another's: no page is purged any more.
  SPANALLOC_COLD void forget_purged(Span& span) {
    const std::size_t gone = PageMask::pages(span.purged());
    span.set_purged(0);
    count_gone(gone, 0);
  }

  // --- When a large block is freed ---------------------------------------------------------------

  /// A span of one block is about to be nobody's: none of its pages are idle memory of a block.
  void note_idle_given(SpanRef span) { count_idle(span, 0); }
  /// When the arena has it. Twice as much can be purged, so that the bound is reached even while it
  /// sinks with the live memory; and one free takes no longer than the kernel would to take the
  /// block back. A free that meets another one's purge leaves its part to that one.
  void keep_dirty_bound(SliceCount slices) {
    if (SPANALLOC_LIKELY(dirty_bound.excess() == 0)) return;
    purge_for_bound(slices.count * 2 + Config::kPurgedPerFree / Classes::kSlice);
  }
  /// Of a span that is about to be given to the arena. True: it is purged.
  bool purge_if_sparse(SpanRef span, SliceCount slices) {
    return looks_sparse(span, slices) &&
           pages_.arena.purge_unused(index_of(span.number), slices.count);
  }

  // --- When a large block is handed out ----------------------------------------------------------

  /// From `first` on so many slices are a span of one block's.
  void note_taken(std::size_t first, SliceCount slices) {
    dirty_bound.taken(slices.count, pages_.arena.dirty_slices(first, slices.count));
  }
  /// For calloc: makes a span that was just taken read as zero without touching it, where that is
  /// cheaper: to clear pages that are not in memory would bring them there. False: clear it.
  SPANALLOC_COLD bool zero_by_purging(SpanRef span, SliceCount slices) {
    if (is_never_looked_at(slices)) return false;
    return (!habits_.wants_look_to_clear(slices.count) ||
            habits_.clears_by_purging(slices.count, used_of(span, slices))) &&
           pages_.arena.purge_taken(index_of(span.number), slices.count);
  }
  /// The memory around the `bytes` of a span's one block: if that is more than a quarter of them,
  /// it is counted as idle, or purged if much is counted already. The caller has the span.
  ///
  /// A span of 64 KiB slices may be almost twice as large as its block. In clean memory that costs
  /// nothing. In memory that others had used, the part around the block would stay for as long as
  /// the block. To purge it takes as long as to write to a page, and the next block of the span
  /// must do without those pages: so it happens only where there is much of it.
  /// Returns how many bytes around the block are known not to be in memory.
  [[gnu::noinline]] std::size_t purge_slack(SpanRef span, const char* block, std::size_t bytes,
                                            bool all_is_dirty) {
    auto& arena = pages_.arena;
    const std::uint32_t first = index_of(span.number);
    const std::size_t slices = pages_.slices_of(span).count;
    if (SPANALLOC_UNLIKELY(span->gone != 0)) forget_gone(*span.record);
    const std::uintptr_t begin = address_of(pages_.address(span.number));
    const std::uintptr_t end = begin + (slices << Config::kSliceBits);
    const std::uintptr_t head_end = align_down(address_of(block), os::page_size());
    const std::uintptr_t tail = align_up(address_of(block) + bytes, os::page_size());
    std::size_t before = head_end - begin;
    std::size_t behind = end - tail;
    std::size_t gone =
        soft_limit.limit() == 0 ? 0 : untouched_around(first, slices, before, behind, all_is_dirty);
    // What was never used, or is purged, is not in memory.
    if (!all_is_dirty && arena.dirty_slices(first, 1) == 0) before = 0;
    if (!all_is_dirty && arena.dirty_slices(first + slices - 1, 1) == 0) behind = 0;
    std::size_t idle = before + behind;
    const bool is_near = soft_limit.is_near() && idle >= Config::kSlackNearLimit;
    if (idle * 4 <= bytes && !is_near) {
      idle = 0;
    } else if (const std::size_t live = dirty_bound.live() << Config::kSliceBits;
               is_near ||
               (!slack_bound.has_room(live) && slack_bound.pays(idle, live, os::now_ms()))) {
      for (const auto& [at, size] : {std::pair{begin, before}, std::pair{tail, behind}}) {
        if (size == 0 || !arena.purge_part(first, slices, pointer_to(at), size)) continue;
        idle -= size;
        gone += size;
      }
    }
    count_idle(span, min_of(idle / IdleBound::kPage, IdleBound::kMostOfASpan));
    return gone;
  }
  /// A span's one block has been handed out for `bytes`, and of the memory around it `gone` bytes
  /// are not in memory. Under a soft limit they do not count as held; so a block of a class has no
  /// more than it was asked for, until it is placed anew or resized. (A huge one has exactly what
  /// it was asked for, but for less than a slice.) By the thread that has the block.
  SPANALLOC_COLD void limit_room(SpanRef span, std::size_t bytes, std::size_t gone) {
    if (soft_limit.limit() == 0 || span->class_id() == Classes::kHuge) return;
    const std::uintptr_t block = span->first_block();
    const std::size_t room = align_up(block + bytes, os::page_size()) - block;
    if constexpr (kPoisons) poison(pointer_to<char>(block) + room, span->room() - room);
    span->limit_room(static_cast<std::uint32_t>(room));
    span->gone = static_cast<std::uint8_t>(min_of(gone / kGonePage, IdleBound::kMostOfASpan));
    count_gone(0, span->gone);
  }
  /// From now on `pages` of the span's pages are idle. The caller has the span.
  void count_idle(SpanRef span, std::size_t pages) {
    if (SPANALLOC_LIKELY(span->idle == pages)) return;
    const std::size_t before = span->idle;
    // The record first: a fork's child that counts anew may count too much, but never below 0.
    span->idle = static_cast<std::uint8_t>(pages);
    slack_bound.changed(before, pages);
  }

  // --- When memory is out ------------------------------------------------------------------------

  /// For when the arena has no range of this size at hand. Drains the pool into it and takes more
  /// memory from the system; if that is refused, tries everything else. That second time no other
  /// thread may drain, purge or decommit: what it holds would be missing.
  SPANALLOC_COLD auto take_anyhow(SliceCount slices, std::size_t alignment) {
    auto& arena = pages_.arena;
    using Arena = typename Pages::Arena;
    typename Arena::Taken taken;
    if (!arena.was_refused(slices.count, alignment)) {
      if (purge_lock.try_lock()) {
        pages_.heap.drain();
        purge_lock.unlock();
      }
      taken =
          arena.take_growing(slices.count, alignment, pages_.records_reach(), Arena::Effort::kGrow);
    }
    if (taken.first == 0 && slices.count < arena.capacity() && alignment < arena.capacity()) {
      LockGuard guard(purge_lock);
      if (takes_over_) purge_abandoned(Which::kAll, SIZE_MAX);
      pages_.heap.pool_all_unused(0);
      pages_.heap.drain();
      taken = arena.take_growing(slices.count, alignment, pages_.records_reach(),
                                 Arena::Effort::kDecommit);
    }
    return taken;
  }
  /// For when the kernel refuses a table of the page layer its memory. False: there is nothing more
  /// to decommit.
  bool make_room_for_table() { return pages_.arena.decommit_free() != 0; }

  // --- Statistics --------------------------------------------------------------------------------

  /// Decay epochs that have ended, and requests to give everything back. Any thread.
  std::size_t epochs() const { return epochs_.load_relaxed(); }
  std::size_t trims() const { return trims_.load_relaxed(); }

  // --- Shared with others ------------------------------------------------------------------------

  DirtyBound<Classes::kSlice> dirty_bound;
  IdleBound slack_bound;
  SoftLimit soft_limit;  ///< written under purge_lock
  SoftLimitCallback callback;
  /// Held to purge or to age memory, and while a vanished thread's spans are abandoned.
  WakingLock purge_lock;

 private:
  friend struct MemoryReturnTestAccess;

  // Under the page layer's start lock. What the program has set already counts for more than the
  // option.
  SPANALLOC_COLD void start_soft_limit() {
    const std::uint64_t wanted = os::option_size("SOFT_LIMIT", "cgroup", 0,
                                                 "bytes, with K, M, G or T behind them, or cgroup");
    if (wanted == 0 || limit_was_wanted_.load_relaxed() != 0) return;
    if (os::MemoryGroup group; wanted == os::kSizeIsWord && !os::read_memory_group(group)) {
      static constexpr char kLine[] =
          "spanalloc: ignored SPANALLOC_SOFT_LIMIT=cgroup: no memory cgroup can be read\n";
      return (void)os::write_text(2, kLine, sizeof kLine - 1);
    }
    want_soft_limit(wanted == os::kSizeIsWord ? kLimitOfGroup : wanted);
  }
  bool is_another_limit_wanted() const {
    return adopted_limit_.load_relaxed() != wanted_limit_.load_relaxed() ||
           is_adopted_.load_relaxed() == 0;
  }
  // Under purge_lock. Takes over what the user wants, and what has become of the group.
  SPANALLOC_COLD void adopt_limit(std::uint64_t now) {
    const bool is_new = is_another_limit_wanted();
    const std::size_t wanted = wanted_limit_.load_relaxed();
    adopted_limit_.store_relaxed(wanted);
    is_adopted_.store_relaxed(1);
    if (is_new) soft_limit.forget_looks();
    if (is_new && wanted != 0) pages_.arena.count_dirty_free();
    if (wanted != kLimitOfGroup) {
      if (!is_new) return;
      const std::size_t margin = wanted / SoftLimit::kMarginPart;
      soft_limit.set(wanted, margin, margin / SoftLimit::kStepPart);
      read_group_after_.store_relaxed(SIZE_MAX);
    } else if (is_new || now >= next_group_read_ ||
               taken_since_read_.load_relaxed() >= read_group_after_.load_relaxed()) {
      // (What cannot be read now is as it was.)
      if (os::MemoryGroup group; os::read_memory_group(group, group_root_)) {
        const bool has_limit = group.limit != SIZE_MAX;
        soft_limit.set(has_limit ? max_of(kept_bytes() + group.room(), 1) : 0, group.margin(),
                       group.margin() / 2);
        // Halfway to where it is near, or a step further.
        const std::size_t left = group.room() - min_of(group.margin(), group.room());
        read_group_after_.store_relaxed(has_limit ? max_of(left / 2, soft_limit.step()) : SIZE_MAX);
      }
      taken_since_read_.store_relaxed(0);
      next_group_read_ =
          now + (soft_limit.is_near() ? Config::kReadGroupNearMs : Config::kReadGroupMs);
    }
  }
  // Under purge_lock. So much is held now, or about to be.
  void note_held(std::size_t held) {
    const SoftLimit::Came came = soft_limit.look(held);
    if (SPANALLOC_LIKELY(came == SoftLimit::Came::kNowhere)) return;
    const bool near = came == SoftLimit::Came::kNear;
    pages_.arena.shortage().set(Shortage::kSoftLimit, near);
    count_misses(near);
  }
  void count_misses(bool near) {
    if (near) {
      at_next_malloc_.fetch_or_seq_cst(kNearLimit);
    } else {
      at_next_malloc_.fetch_and_seq_cst(~kNearLimit);
    }
  }
  // Under purge_lock, when what could go has gone: tells the program if that did not help. After a
  // look at once, else once an epoch (if it is not a very short one).
  void tell_if_near(std::uint64_t now) {
    if (!soft_limit.is_near() || now < tell_after_ms_) return;
    tell_after_ms_ = now + Config::kLeastBetweenCallsMs;
    // (Relaxed would do: what the call needs is under the callback's lock.)
    if (callback.note_near()) at_next_malloc_.fetch_or_seq_cst(kCallback);
  }
  SPANALLOC_COLD void look_at_excess() {
    const std::size_t excess = this->excess();
    if (SPANALLOC_LIKELY(excess == 0)) return;
    // Another thread may be purging. (A step beyond the limit it is waited for: it may not run for
    // long, and as many threads would take more meanwhile.)
    if (excess >= soft_limit.step()) {
      (void)purge_lock.lock();
    } else if (!purge_lock.try_lock()) {
      return;
    }
    purge_excess();
    let_go_of_purge_lock();
  }
  // What is free and exceeds the limit.
  std::size_t excess() const { return soft_limit.excess(kept_bytes(), held_bytes()); }
  // Under purge_lock. Purges a part of that, the largest ranges first. (These are the fewest calls
  // of the kernel; and what is left fits most requests.)
  void purge_excess() {
    const std::size_t excess = this->excess();
    if (SPANALLOC_LIKELY(excess == 0)) return;
    const std::size_t most = max_of(Config::kPurgedPerCall, 2 * soft_limit.step());
    const std::size_t wanted = (min_of(excess, most) + kSlice - 1) / kSlice;
    const std::size_t slices = pages_.arena.purge_largest(wanted);
    given_back_.fetch_add_relaxed(slices << Config::kSliceBits);
    dirty_bound.purged(slices);
    if (slices == 0 && pages_.arena.dirty_free() >= wanted) {
      soft_limit.could_not_purge(kept_bytes());
    } else {
      soft_limit.may_purge();
    }
  }
  SPANALLOC_COLD void look_after_giving() {
    if (!purge_lock.try_lock()) return;
    adopt_limit(os::now_ms());
    note_held(held_bytes());
    purge_excess();
    let_go_of_purge_lock();
  }
  // Of the memory around a block, `before` and `behind` it, bytes that nobody has touched; 0 if
  // huge pages may bring them in all the same.
  std::size_t untouched_around(std::size_t first, std::size_t slices, std::size_t before,
                               std::size_t behind, bool all_is_dirty) {
    const HugePageUse use = pages_.arena.huge_page_use();
    const bool may_come = use == HugePageUse::kAlways ||
                          (use != HugePageUse::kNever && huge_pages_come_.load_relaxed() != 0);
    if (all_is_dirty || may_come) return 0;
    const auto untouched = [&](std::size_t from, std::size_t bytes) {
      const std::size_t count = (bytes + kSlice - 1) / kSlice;
      return pages_.arena.dirty_slices(from - count, count) == 0 ? bytes : 0;
    };
    return untouched(first + (before + kSlice - 1) / kSlice, before) +
           untouched(first + slices, behind);
  }

  // Passes a part of an epoch, if one is due.
  SPANALLOC_COLD void purge_for_epoch(std::uint64_t now) {
    // Another thread is at it: another free will see to the rest
    if (!purge_lock.try_lock()) return;
    if (now >= next_purge_.load_relaxed()) pass_part_of_epoch(now);
    let_go_of_purge_lock();
  }
  // One step of the decay clock, under purge_lock. An epoch is half the decay time. Each call does
  // a bounded part of the epoch, and the next call goes on. In an epoch
  //   - the pool's older spans go to the arena;
  //   - ranges that were free there in the last epoch, and still are, are purged (with a decay time
  //     of 0 all that are free);
  //   - pages without a live block are purged, of abandoned spans in which no block was freed since
  //     the last epoch.
  // At the epoch's end the ranges that are free become old. So dirty memory that no thread wants is
  // purged after half the decay time at least, and after all of it at most, if threads come by.
  //
  // Near the soft limit an epoch also takes from threads what they do not use. The pool's spans go
  // to the arena at any age. Abandoned spans are purged if a 16th of their blocks was freed since
  // the last purge. Free ranges still wait for their age, but for the excess over the limit: the
  // largest ranges go for that. `coming`: bytes that are about to be held, which count as held.
  SPANALLOC_COLD void pass_part_of_epoch(std::uint64_t now, std::size_t coming = 0) {
    if (!in_epoch_) {
      in_epoch_ = true;
      purge_cursor_ = 0;
      soft_limit.may_purge();
      if (pages_.arena.shortage().is_watched()) {
        adopt_limit(now);
        note_held(held_bytes() + coming);
      }
      if (soft_limit.is_near()) pages_.heap.pool_all_unused(0);
      pages_.heap.begin_epoch();
      pages_.arena.look_at_limit();
    }
    const bool all = soft_limit.is_near();
    const std::size_t most_drained = all ? Config::kDrainedNearLimit : Config::kDrainedPerCall;
    const std::size_t cost =
        all ? pages_.heap.drain(most_drained) : pages_.heap.drain_last_epochs(most_drained);
    constexpr std::size_t kMost = Config::kPurgedPerCall / Classes::kSlice;
    const std::size_t slices = pages_.arena.purge(decay_ms_ != 0, kMost);
    given_back_.fetch_add_relaxed(slices << Config::kSliceBits);
    dirty_bound.purged(slices);
    purge_excess();
    const bool purged_parts =
        purge_abandoned(all ? Which::kNear : Which::kAged, Config::kPartsPurgedPerCall);
    if (cost < most_drained && slices < kMost && purged_parts) {
      dirty_bound.pass_epoch(pages_.arena.age());
      pages_.outside.pass_epoch();
      in_epoch_ = false;
      epochs_.store_relaxed(epochs_.load_relaxed() + 1);
    }
    if (all) {
      note_held(held_bytes() + coming);
      if (!in_epoch_) tell_if_near(now);
    }
    // If there is more to do, the next thread that comes here goes on.
    next_purge_.store_relaxed(in_epoch_ ? now : now + decay_ms_ / 2 + 1);
  }

  // Purges pages of abandoned spans on which no block is out: of all of them, of those in which
  // nothing was freed since the last epoch, or of those in which much was. Goes on from the cursor
  // until the cost reaches `at_most`. True: it came to the end. Goes through all records, and
  // claims away spans that are empty on the way, and takes spans over. Under purge_lock.
  enum class Which { kAged, kNear, kAll };
  SPANALLOC_COLD bool purge_abandoned(Which which, std::size_t at_most) {
    const std::size_t end = index_of(pages_.end_of_spans());
    SpanProtocol<Pages> protocol(pages_);
    std::size_t cost = 0;
    for (std::size_t next = 0; purge_cursor_ < end; purge_cursor_ = next) {
      if (cost >= at_most) return false;
      cost += Config::kCostOfRecord;
      const SpanNumber number{static_cast<std::uint32_t>(purge_cursor_)};
      // A range in use is one span: its other slices' records do not matter. (Count 0: a free
      // range, which is gone through, or one that was just given back.)
      next = purge_cursor_ + max_of(pages_.arena.count_of(index_of(number)), 1);
      if (!pages_.has_record(number)) continue;
      const SpanRef span = pages_.span(number);
      if (SPANALLOC_UNLIKELY(takes_over_)) cost += ForkRecovery<Config>::take_over(pages_, span);
      const auto purge = [&](SpanWord word) {
        // The number of blocks out only falls while nobody owns the span.
        const std::uint32_t out = word.outstanding();
        if (which == Which::kNear ? span->wants_purge_near(out, Pages::capacity(span->class_id()))
                                  : span->wants_purge(out, which == Which::kAged)) {
          cost += purge_in_part(span, word);
        }
      };
      const Freed now =
          protocol.claim_if_away(span) ? Freed::kEmptied : protocol.with_abandoned(span, purge);
      if (now == Freed::kEmptied) pages_.heap.give_back(span);
      if (SPANALLOC_UNLIKELY(now == Freed::kRefused)) pages_.damaged(span);
    }
    if (SPANALLOC_UNLIKELY(takes_over_)) {
      takes_over_ = false;
      ForkRecovery<Config>::give_vanished_back(pages_);
    }
    return true;
  }

  // Purges what it can of the pages of a span that the thread holds. Returns the cost.
  SPANALLOC_COLD std::uint32_t purge_in_part(SpanRef span, SpanWord word) {
    Block* const remotes = pages_.first_of(span, word.head());
    const std::size_t before = PageMask::pages(span->purged());
    std::size_t refused = 0;
    const std::uint32_t cost = pages_.partial_purge_of(span).purge_pages(
        remotes, os::page_size(), [&](char* at, std::size_t bytes) {
          const bool purged = pages_.arena.purge_part(index_of(span.number),
                                                      std::size_t{1} << span->order(), at, bytes);
          if (purged) given_back_.fetch_add_relaxed(bytes);
          if (!purged) refused += bytes / PageMask::kBytes;
          return purged;
        });
    // What was refused will be taken off as if it were gone, or never was counted: from then on
    // rather too much is held than too little. (Where memory is locked nothing goes.)
    count_gone(before + refused, PageMask::pages(span->purged()));
    return cost;
  }

  // Of a large block that is freed or cleared: is little of it in memory? (A look takes some 2 us.)
  static bool is_never_looked_at(SliceCount slices) {
    return slices.count < Config::kLookAtLeast / Classes::kSlice;
  }
  bool looks_sparse(SpanRef span, SliceCount slices) {
    return !is_never_looked_at(slices) && habits_.wants_look(slices.count) &&
           habits_.gives_back(slices.count, used_of(span, slices));
  }
  std::size_t used_of(SpanRef span, SliceCount slices) {
    return pages_.arena.sample_used(index_of(span.number), slices.count, Habits::kUsed);
  }

  static constexpr std::uint32_t kBackground = 1;
  static constexpr std::uint32_t kCallback = 2;
  static constexpr std::uint32_t kNearLimit = 4;
  SPANALLOC_COLD void do_before_malloc(std::uint32_t wanted, bool exited) {
    if ((wanted & kBackground) != 0) start_background();
    if ((wanted & kNearLimit) != 0) soft_limit.note_miss();
    if ((wanted & kCallback) == 0 || exited) return;
    // The note first: one that is made meanwhile sets the bit again.
    at_next_malloc_.fetch_and_seq_cst(~kCallback);
    // (The program may have freed enough, or taken the limit away.)
    const std::size_t limit = soft_limit_now();
    if (limit == 0 || !soft_limit.is_near()) return;
    const os::ErrnoGuard keep;  // the program's function may change it, malloc may not
    if (!callback.call_if_due(held_bytes(), limit)) at_next_malloc_.fetch_or_seq_cst(kCallback);
  }
  // Starting a thread may call malloc, which comes here again.
  SPANALLOC_COLD void start_background() {
    if (background_.load_relaxed() != 0 ||
        pages_.arena.limit() << Config::kSliceBits < Config::kWorthBackground) {
      return;
    }
    std::uint32_t none = 0;
    if (!background_.compare_exchange_strong_acq_rel(none, 1)) return;
    // If no thread can be started, this stays so.
    thread::start_background(background_body_);
  }
  // Purges `part` of what exceeds the bound, and the parts of those that come meanwhile. Acquire
  // and release: who leaves a part has met the lock that is held, and its holder looks for parts
  // when it has let go.
  SPANALLOC_COLD void purge_for_bound(std::size_t part) {
    parts_left_.fetch_add_acq_rel(part);
    for (unsigned i = 0; i < Config::kMostPartsOfAFree && purge_lock.try_lock(); ++i) {
      const std::size_t counted = dirty_bound.dirty();
      const std::size_t left = parts_left_.exchange_acq_rel(0);
      const std::size_t due = min_of(dirty_bound.excess(), left);
      const std::size_t wanted = min_of(due, Config::kPurgedPerTurn / kSlice);
      if (wanted != 0) {
        const bool was_held = pages_.arena.someone_holds();
        const std::size_t purged = pages_.arena.purge_largest(wanted);
        dirty_bound.purged_for_bound(purged);
        // (What others hold or merge meanwhile it does not find: then there may be more.)
        const bool is_all = purged == 0 && !was_held && !pages_.arena.someone_holds();
        if (is_all) dirty_bound.found_all_of(counted);
        if (!is_all && purged < due) parts_left_.fetch_add_acq_rel(due - purged);
      }
      purge_lock.unlock();
      if (parts_left_.fetch_add_acq_rel(0) == 0) return;
    }
  }
  // For who held purge_lock for another reason: a free that met it held may have left its part.
  void let_go_of_purge_lock() {
    purge_lock.unlock();
    if (SPANALLOC_UNLIKELY(parts_left_.fetch_add_acq_rel(0) != 0)) purge_for_bound(0);
  }

  Pages& pages_;
  Habits habits_;
  // Pages of 4 KiB in spans in use that are not in memory: purged ones of a span of several blocks,
  // and those around a single block under a soft limit. A hint: a thread that vanishes at a fork
  // may leave its change of a record uncounted.
  Atomic<std::size_t> gone_{0};
  Atomic<std::uint64_t> next_purge_{0};  // milliseconds
  bool in_epoch_ = false;                // under purge_lock: an epoch has begun and is not done
  std::size_t purge_cursor_ = 0;         // under purge_lock: the next record to look at
  // Under purge_lock: threads that vanished own spans from the cursor on.
  bool takes_over_ = false;
  std::uint64_t decay_ms_ = 0;           // constant after start
  Atomic<std::size_t> wanted_limit_{0};  // bytes, 0 or kLimitOfGroup; relaxed: it stands for itself
  Atomic<std::uint32_t> limit_was_wanted_{0};
  Atomic<std::size_t> adopted_limit_{0};  // written under purge_lock: of these, what soft_limit has
  Atomic<std::uint32_t> is_adopted_{1};   // 0: in a fork's child, soft_limit may have another one
  // Bytes that were taken since the group was read, and with which it is read again.
  Atomic<std::size_t> taken_since_read_{0};
  Atomic<std::size_t> read_group_after_{SIZE_MAX};  // written under purge_lock
  std::uint64_t tell_after_ms_ = 0;                 // under purge_lock
  // Relaxed: what it decides is a count. 1: where the option leaves it to the kernel, memory that
  // nobody has touched may be in memory because of what is touched beside it.
  Atomic<std::uint32_t> huge_pages_come_{1};
  std::uint64_t next_group_read_ = 0;  // under purge_lock; milliseconds
  const char* group_root_ = "";        // where /proc and /sys are: changed by tests only
  Atomic<std::size_t> parts_left_{0};  // slices, of frees that met purge_lock held
  // Bytes that epochs have purged, and trims in abandoned spans only; written under purge_lock.
  Atomic<std::size_t> given_back_{0};
  // Written under purge_lock, for statistics only.
  Atomic<std::size_t> epochs_{0};
  Atomic<std::size_t> trims_{0};
  void (*const background_body_)();
  // What a slow malloc is to do first: kBackground, constant after start, if the user wants one;
  // kCallback, if a call is due; kNearLimit, to be counted.
  Atomic<std::uint32_t> at_next_malloc_{0};
  Atomic<std::uint32_t> background_{0};  // 1: there is a background thread, or can be none
};

}  // namespace spanalloc::standard
