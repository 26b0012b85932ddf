// A heap's slow paths: where spans come from, where they go, and when free memory is purged; see heap.hpp.
#pragma once

#include "engines/standard/heap.hpp"

namespace spanalloc::standard {

// --- Start -------------------------------------------------------------------------------------------------

template <class Config>
SPANALLOC_COLD inline bool Heap<Config>::start_slow() {
  if (!pages_.start()) return false;
  LockGuard guard(pages_.start_lock);
  if (started_.load_relaxed() != 0) return true;
  if (!pages_.enter(this)) return false;
  orphanages_.of_class = storage_->orphans;
  pool().set_cores(os::cpu_count());
  started_.store_release(1);  // release: pairs with is_started()
  return true;
}

// With the first LAB, not with the heap: a process that never allocates writes to no LAB.
template <class Config>
SPANALLOC_COLD inline bool Heap<Config>::make_orphanages() {
  LockGuard guard(pages_.start_lock);
  if (has_orphanages_.load_relaxed() != 0) return true;
  // As many as threads can end at once on this machine: they must not wait for each other. Those that a
  // refusal has left half made serve the next try.
  const std::uint32_t wanted =
      1u << min_of(log2_ceil(max_of(os::cpu_count(), 1)), log2_floor(Orphanages::kMost));
  for (; orphanages_made_ < wanted; ++orphanages_made_) {
    Lab* lab = pages_.take_lab(number_);
    if (lab == nullptr) return false;
    {
      LockGuard lab_guard(lab->lock);
      lab->orphans_of_class = storage_->orphans;
      lab->orphanage = orphanages_made_ + 1;
    }
    orphanages_.numbers[orphanages_made_] = lab->number;
  }
  orphanages_.mask = wanted - 1;
  has_orphanages_.store_release(1);  // release: pairs with begin_lab()
  return true;
}

// --- Taking spans ------------------------------------------------------------------------------------------

template <class Config>
inline FreshSpan Heap<Config>::take_pooled(ClassId c, unsigned core) {
  const unsigned row = Classes::info(c).pool_row;
  SpanNumber number = get_local(row, core);
  for (const unsigned stack : {young_stack(row), old_stack(row)}) {
    if (number != SpanNumber::kNone) break;
    number = pool().get_from_other_core(stack, core, pages_.pool_links());
  }
  if (number == SpanNumber::kNone) return {};
  return as_pooled(number, c);
}
// One that was just taken out of the pool for class c. A damaged one is lost and told first of all: it counts
// as what it was.
template <class Config>
inline FreshSpan Heap<Config>::as_pooled(SpanNumber number, ClassId c) {
  FreshSpan fresh{pages_.span(number)};
  fresh.is_pooled = true;
  const ClassId was = fresh.span->class_id();
  fresh.same_class = was == c;
  fresh.has_blocks = fresh.same_class && !Classes::is_single(c);
  if (!fresh.same_class) forget_blocks(fresh.span);
  if (SPANALLOC_UNLIKELY(Classes::is_single(was) != Classes::is_single(c))) {
    pages_.warm_bound.changed(Classes::info(c).granules, Classes::is_single(c));
  }
  return fresh;
}

template <class Config>
inline FreshSpan Heap<Config>::take_pooled_singles(ClassId c, Lab& lab, unsigned core) {
  const ClassInfo& info = Classes::info(c);
  SPANALLOC_ASSERT(Classes::is_single(c));
  FreshSpan first;
  do {
    const SpanNumber number = get_local(info.pool_row, core);
    if (number == SpanNumber::kNone) return first;
    const SpanRef span = pages_.span(number);
    if (!first) {
      first = as_pooled(number, c);
    } else if (span->class_id() != c || !lab.spares.add(*span.record, info.granules)) {
      // (No tick: that may end in a report, and `first` is in the caller's hands.)
      if (const InUse block = pool_or_lose(span, core); SPANALLOC_UNLIKELY(block != nullptr)) {
        pool_single(first.span, core);
        block_in_use(block);
      }
      return first;
    }
  } while (first.same_class && lab.spares.has_half());
  return first;
}

// A span that was emptied leaves its class. (Of a span of one block nothing is ever carved; of one carved
// block it is clear that it is back.)
template <class Config>
inline typename Heap<Config>::InUse Heap<Config>::forget_blocks_or_lose(SpanRef span) {
  if (span->carved.load_relaxed() > 1) {
    if (const InUse block = look_for_use(span); SPANALLOC_UNLIKELY(block != nullptr)) {
      lose(span);
      return block;
    }
  }
  if constexpr (kPoisons) {
    poison(pages_.address(span.number), pages_.granules_of(span).count << Config::kGranuleBits);
  }
  return nullptr;
}

template <class Config>
inline FreshSpan Heap<Config>::take_open(ClassId c, Reuse reuse) {
  return as_fresh(pages_, pages_.arena.take(Classes::info(c).granules, alignment_of(c), reuse));
}

template <class Config>
inline FreshSpan Heap<Config>::take_warm_or_open(ClassId c, unsigned core) {
  if (const FreshSpan fresh = take_open(c, Reuse::kDirtyOnly)) return fresh;
  // Before memory is touched that was not: what other threads keep that have freed such blocks, and may be
  // asleep; what the pool keeps for other rows.
  if (Classes::is_single(c)) {
    take_all_spares(core, kVictimsAMiss, os::thread_mark());
    if (const FreshSpan fresh = take_pooled(c, core)) return fresh;
  }
  if (const GranuleCount wanted{Classes::info(c).granules};
      drain_for(wanted, core, kDrainedAMiss * wanted.count)) {
    if (const FreshSpan fresh = take_open(c, Reuse::kDirtyOnly)) return fresh;
  }
  if (steal_from_sleeping_labs(kVictimsAMiss, core) != 0) {
    if (const FreshSpan fresh = take_pooled(c, core)) return fresh;
  }
  return take_open(c, Reuse::kDirtyFirst);
}

template <class Config>
inline FreshSpan Heap<Config>::take_span(ClassId c, unsigned core) {
  if (const FreshSpan fresh = take_pooled(c, core)) return fresh;
  const FreshSpan fresh = take_from_arena(c, core);
  return Classes::is_single(c) && !fresh.is_pooled ? counted(fresh, Classes::info(c).granules) : fresh;
}
template <class Config>
inline FreshSpan Heap<Config>::take_from_arena(ClassId c, unsigned core) {
  purge_by_decay(os::now_ms());
  const GranuleCount granules{Classes::info(c).granules};
  if (!pages_.arena.was_refused(granules.count, alignment_of(c))) {
    if (const FreshSpan fresh = take_warm_or_open(c, core)) return fresh;
  }
  return take_anyhow(granules, alignment_of(c));
}

template <class Config>
inline FreshSpan Heap<Config>::take_large(GranuleCount granules, std::size_t alignment, Reuse reuse) {
  purge_by_decay(os::now_ms());
  if (!pages_.arena.was_refused(granules.count, alignment)) {
    const auto take = [&](Reuse how) {
      return as_fresh(pages_, pages_.arena.take(granules.count, alignment, how));
    };
    if (reuse == Reuse::kDirtyFirst) {
      if (const FreshSpan fresh = take(Reuse::kDirtyOnly)) return counted(fresh, granules.count);
      // Before memory is touched that was not: what threads and the pool keep for other sizes.
      take_all_spares(0, kVictimsAMiss);
      if (drain_for(granules, 0, kDrainedForLarge * granules.count)) {
        if (const FreshSpan fresh = take(Reuse::kDirtyOnly)) return counted(fresh, granules.count);
      }
    }
    if (const FreshSpan fresh = take(reuse)) return counted(fresh, granules.count);
  }
  return counted(take_anyhow(granules, alignment), granules.count);
}

// The arena has no open range of this size: drains the pools into it, then opens more, at last at any price.
// The second time nobody else may be draining, purging or closing: what they hold would be missing.
template <class Config>
SPANALLOC_COLD inline FreshSpan Heap<Config>::take_anyhow(GranuleCount granules, std::size_t alignment) {
  Arena& arena = pages_.arena;
  typename Arena::Taken taken;
  if (!arena.was_refused(granules.count, alignment)) {
    if (pages_.purge_lock.try_lock()) {
      drain_all_pools();
      pages_.purge_lock.unlock();
    }
    taken = arena.take_growing(granules.count, alignment, pages_.records_reach(), Arena::Effort::kGrow);
  }
  if (taken.first == 0 && granules.count < arena.capacity() && alignment < arena.capacity()) {
    LockGuard guard(pages_.purge_lock);
    pages_.for_each_heap([](Heap& heap) {
      heap.steal_from_sleeping_labs(UINT32_MAX, 0);
      heap.take_all_spares(0);
      heap.drain_pool();
    });
    taken = arena.take_growing(granules.count, alignment, pages_.records_reach(), Arena::Effort::kClose);
  }
  return as_fresh(pages_, taken);
}

// To clear what is not in memory would bring it there.
template <class Config>
SPANALLOC_COLD inline bool Heap<Config>::zero_by_purging(const FreshSpan& fresh, GranuleCount granules) {
  if (granules.count < kLookAtLeast) return false;
  const std::uint32_t first = index_of(fresh.span.number);
  LargeHabits& habits = pages_.large_habits;
  if (!habits.wants_look_to_clear(granules.count)) return pages_.arena.purge_taken(first, granules.count);
  const std::size_t used = pages_.arena.sample_used(first, granules.count, LargeHabits::kUsed);
  return habits.clears_by_purging(granules.count, used) && pages_.arena.purge_taken(first, granules.count);
}

// A span of 64 KiB granules may be almost twice as large as its block. In clean memory that costs nothing; in
// memory that others had used, what no block covers would stay for as long as the block. To give it back
// takes as long as to write to a page, and whoever has the span next finds it gone: so it is done where there
// is much of it only.
template <class Config>
[[gnu::noinline]] inline void Heap<Config>::give_slack_back(SpanRef span, const char* block,
                                                            std::size_t bytes, bool all_is_dirty) {
  Arena& arena = pages_.arena;
  const std::uint32_t first = index_of(span.number);
  const std::size_t granules = pages_.granules_of(span).count;
  const std::uintptr_t begin = address_of(pages_.address(span.number));
  const std::uintptr_t end = begin + (granules << Config::kGranuleBits);
  const std::uintptr_t head_end = align_down(address_of(block), os::page_size());
  const std::uintptr_t tail = align_up(address_of(block) + bytes, os::page_size());
  std::size_t before = head_end - begin;
  std::size_t behind = end - tail;
  // In what was never used, or is purged, nothing is in memory.
  if (!all_is_dirty && arena.dirty_granules(first, 1) == 0) before = 0;
  if (!all_is_dirty && arena.dirty_granules(first + granules - 1, 1) == 0) behind = 0;
  std::size_t idle = before + behind;
  if (idle * 4 <= bytes) {
    idle = 0;
  } else if (const std::size_t live = pages_.warm_bound.live() << Config::kGranuleBits;
             !pages_.slack_bound.has_room(live) && pages_.slack_bound.pays(idle, live, os::now_ms())) {
    for (const auto& [at, size] : {std::pair{begin, before}, std::pair{tail, behind}}) {
      if (size != 0 && arena.purge_part(first, granules, pointer_to(at), size)) idle -= size;
    }
  }
  pages_.count_idle(span, min_of(idle / SlackBound::kPage, SlackBound::kMostOfASpan));
}

template <class Config>
inline void Heap<Config>::begin_life(const FreshSpan& fresh, ClassId c, SpanWord word, std::size_t offset) {
  const ClassInfo& info = Classes::info(c);
  const SpanRef span = fresh.span;
  SPANALLOC_ASSERT(span && span.number < pages_.end_of_spans());
  SPANALLOC_ASSERT(span->load_word().state() == SpanState::kFree);
  SPANALLOC_ASSERT(index_of(span.number) % alignment_of(c) == 0);
  for (std::uint32_t i = 0; i < (1u << info.order); ++i) {
    pages_.span(SpanNumber{index_of(span.number) + i})->order = info.order;
  }
  const bool single = info.blocks <= 1;
  SPANALLOC_ASSERT(offset == 0 || single);
  span->blocks.set(address_of(pages_.address(span.number)) + offset, single ? 1 : info.magic, single ? 1 : 0);
  span->shown.set(span->blocks);
  change_class(span, c);
  span->heap.store_relaxed(number_);
  span->zero = fresh.zero;
  if (!single) pages_.count_idle(span, 0);
  span->asked = 0;
  span->carved.store_relaxed(0);
  span->free_list.store_relaxed(no_block());
  span->rest.store_relaxed(no_block());
  span->dropped.store_relaxed(0);
  span->uncounted = false;
  span->lost = false;
  span->expect_frees_while_hot();
  span->list = ListId::kNone;
  // Release: a stale freer of an earlier life may look at the record under a lock.
  span->word.store_release(word.bits);
}

// Of the record of one that was of the same class nothing else changes: while the block is out only what a
// change of its class would write (change_class).
template <class Config>
inline void Heap<Config>::begin_single_life(const FreshSpan& fresh, ClassId c, std::size_t offset) {
  SPANALLOC_ASSERT(Classes::is_single(c));
  if (!fresh.same_class) return begin_life(fresh, c, kSingleInUse, offset);
  SPANALLOC_ASSERT(fresh.span->class_id() == c && fresh.span->list == ListId::kNone);
  fresh.span->shown.base.store_relaxed(address_of(pages_.address(fresh.span.number)) + offset);
  set_room(fresh.span, c);
  begin_same_life(fresh.span);
}

template <class Config>
inline HotSpan Heap<Config>::begin_hot_life(const FreshSpan& fresh, ClassId c, LabNumber owner) {
  const SpanWord hot = SpanWord::make(owner, SpanState::kHot, Classes::info(c).blocks);
  if (!fresh.has_blocks) {
    begin_life(fresh, c, hot);
    return {fresh.span};
  }
  SPANALLOC_ASSERT(has(fresh.span) && fresh.span->class_id() == c && fresh.span->list == ListId::kNone);
  const SpanWord was = fresh.span->load_word();
  SPANALLOC_ASSERT(was.state() == SpanState::kFree);
  fresh.span->expect_frees_while_hot();
  fresh.span->word.store_release(hot.bits);  // release: as in begin_life()
  return {fresh.span, pages_.cut_lists(fresh.span, was.head())};
}

// A block that grows by a quarter and more is copied a few times in all, whatever becomes of it. Into warm
// memory that costs less than the page faults behind moved pages. (Not a second time: each copy dirties as
// much as it leaves behind.) Nor does it pay to move it out where such a one has come back: what is outside
// goes back to the kernel when it is freed, and the next one would have all of its page faults again.
template <class Config>
inline bool Heap<Config>::is_better_copied(GranuleCount old, GranuleCount granules) {
  if (granules.count <= old.count + old.count / 4) return false;
  if (granules.count << Config::kGranuleBits <= pages_.came_back_from_outside()) return true;
  const auto warm = pages_.arena.take(granules.count, 1, Reuse::kDirtyOnly);
  if (warm.first == 0) return false;
  pages_.arena.give(warm.first);
  return true;
}

template <class Config>
SPANALLOC_COLD inline void* Heap<Config>::move_out(SpanRef span, GranuleCount old, std::size_t n) {
  const std::size_t offset = span->shown.base.load_relaxed() % Classes::kGranule;
  const std::size_t least = align_up(offset + n, os::page_size());
  if (is_better_copied(old, {least >> Config::kGranuleBits})) return nullptr;
  if (!pages_.outside.promise(kMostOutside)) return nullptr;
  const std::uint32_t first = index_of(span.number);
  std::size_t bytes = align_up(pages_.with_room(least), os::page_size());
  auto moved = pages_.arena.move_out(first, old.count, bytes);
  if (moved.to == nullptr && bytes != least) {
    bytes = least;
    moved = pages_.arena.move_out(first, old.count, bytes);
  }
  if (moved.to == nullptr) {
    pages_.outside.give_promise_back();
    return nullptr;
  }
  pages_.outside.fill(moved.to, bytes, offset, index_of(number_));
  poison(pages_.address(span.number), old.count << Config::kGranuleBits);
  span->word.store_release(SpanWord::make(kNobody, SpanState::kFree, 0).bits);
  if (moved.left_a_range) {
    pages_.give(span, true);
  } else {
    pages_.has_no_range(span, old);
  }
  return static_cast<char*>(moved.to) + offset;
}

// --- Returning spans ---------------------------------------------------------------------------------------

template <class Config>
[[gnu::noinline]] inline void Heap<Config>::put_in_pool(SpanRef span, unsigned core) {
  if (const InUse block = pool_or_lose(span, core); SPANALLOC_UNLIKELY(block != nullptr)) block_in_use(block);
  purge_by_decay(os::now_ms());
}
// A report may be left by a jump: it comes when nothing is in the caller's hands any more.
template <class Config>
inline void Heap<Config>::put_in_pool(SpanChain chain, unsigned core) {
  if (chain.has_nothing()) return;
  InUse in_use = nullptr;
  for (SpanNumber number = chain.first; number != SpanNumber::kNone;) {
    const SpanRef span = pages_.span(number);
    number = span->next;
    if (const InUse block = pool_or_lose(span, core); SPANALLOC_UNLIKELY(block != nullptr)) in_use = block;
  }
  if (SPANALLOC_UNLIKELY(in_use != nullptr)) block_in_use(in_use);
  if (SPANALLOC_UNLIKELY(chain.damaged != SpanNumber::kNone)) pages_.corrupted(pages_.span(chain.damaged));
  purge_by_decay(os::now_ms());
}

template <class Config>
inline typename Heap<Config>::InUse Heap<Config>::pool_or_lose(SpanRef span, unsigned core) {
  SPANALLOC_ASSERT(span->load_word().state() == SpanState::kFree && span->list == ListId::kNone);
  SPANALLOC_ASSERT(has(span) && core < pool().cores());  // no other stack is ever looked at
  const ClassId c = span->class_id();
  const ClassInfo& info = Classes::info(c);
  if (const LabNumber owner = span->load_word().owner(); owner != kNobody) {
    pages_.has_left(pages_.lab(owner), span);
  }
  // (Only of spans of one block: to ask for the size of others costs the common case 15 instructions.)
  const auto granules = [&] { return pages_.granules_of(span).count; };
  // Spans of kLarge have no row; nor has one that a thread was resizing when a fork left it behind.
  const bool odd = info.blocks == 1 && granules() != info.granules;
  if (odd || pages_.arena.is_tight() ||
      !pool().put_bounded(young_stack(info.pool_row), core, span.number, most_young(info, core),
                          pages_.pool_links())) {
    if (const InUse block = forget_blocks_or_lose(span); SPANALLOC_UNLIKELY(block != nullptr)) return block;
    if (c == Classes::kLarge) {
      give_large(span, pages_.granules_of(span));
    } else {
      pages_.give(span);
      if (info.blocks == 1) keep_warm_bound(info.granules);
    }
  }
  return nullptr;
}

// Those of one row in a row are put at once.
template <class Config>
[[gnu::noinline]] inline void Heap<Config>::pool_older_spares(Lab& lab, unsigned core) {
  SpanNumber first = SpanNumber::kNone;
  SpanNumber last = SpanNumber::kNone;
  std::uint32_t count = 0;
  const ClassInfo* of = nullptr;
  auto links = pages_.pool_links();
  const auto put_all = [&] {
    if (count == 0 || pool().put_chain_bounded(young_stack(of->pool_row), core, first, last, count,
                                               most_young(*of, core), links)) {
      count = 0;
      return;
    }
    for (; count != 0; --count) {
      const SpanNumber number = first;
      first = Pool::next_of(number, links);
      pool_single(pages_.span(number), core);
    }
  };
  const auto granules_of = [](const Span& span) {
    return unsigned{Classes::kTable[span.shown_class.load_relaxed()].granules};
  };
  lab.spares.let_go_of_older(granules_of, [&](Span& record) {
    const SpanRef span = spare_of_record(record);
    const ClassInfo& info = Classes::info(span->class_id());
    if (pages_.granules_of(span).count != info.granules) return pool_single(span, core);
    if (count != 0 && of->pool_row != info.pool_row) put_all();
    of = &info;
    if (count++ == 0) last = span.number;
    links(span.number).store_relaxed(count == 1 ? 0 : index_of(first));
    first = span.number;
  });
  put_all();
}

template <class Config>
SPANALLOC_COLD inline void Heap<Config>::give_large(SpanRef span, GranuleCount granules) {
  pages_.give(span, comes_back_sparse(span, granules) &&
                        pages_.arena.purge_taken(index_of(span.number), granules.count));
  keep_warm_bound(granules.count);
}

// True: it is to be given back as clean memory.
template <class Config>
inline bool Heap<Config>::comes_back_sparse(SpanRef span, GranuleCount granules) {
  if (granules.count < kLookAtLeast || !pages_.large_habits.wants_look(granules.count)) return false;
  const std::size_t used =
      pages_.arena.sample_used(index_of(span.number), granules.count, LargeHabits::kUsed);
  return pages_.large_habits.gives_back(granules.count, used);
}

// After a free of so many. Twice as much can be purged: the bound is reached, even as it sinks with what is
// live, and one free takes no longer than the kernel would to take its block back.
template <class Config>
inline void Heap<Config>::keep_warm_bound(std::size_t granules) {
  const std::size_t excess = pages_.warm_bound.excess();
  if (SPANALLOC_LIKELY(excess == 0) || !pages_.purge_lock.try_lock()) return;
  const std::size_t wanted = min_of(excess, granules * 2 + kPurgedAFree);
  const std::size_t purged = pages_.arena.purge_largest(wanted);
  pages_.warm_bound.purged_for_bound(purged);
  if (purged < wanted) pages_.warm_bound.dirty_is(0);  // there is no more
  pages_.purge_lock.unlock();
}

// Of a span that counts as empty. A block that was freed twice, unnoticed because its link had been
// overwritten or because it was freed into two lists, was counted twice: then another block may still be out,
// which has no link.
template <class Config>
[[gnu::noinline]] inline typename Heap<Config>::InUse Heap<Config>::look_for_use(SpanRef span) {
  const std::size_t size = Classes::info(span->class_id()).block_size;
  const char* block = pages_.address(span.number);
  const std::size_t span_bytes = Classes::info(span->class_id()).virtual_span;
  const auto link_at = [](const char* at) { return link_of(reinterpret_cast<const Block*>(at)); };
  std::uint32_t left = span->carved.load_relaxed();
  if (SPANALLOC_UNLIKELY(span->dropped.load_relaxed() != 0)) return look_for_use_but_dropped(span);
  // Most blocks are right: one test for four.
  for (; left != 0; --left, block += size) {
    for (; left >= 4; left -= 4, block += 4 * size) {
      const std::uint64_t all =
          link_at(block) | link_at(block + size) | link_at(block + 2 * size) | link_at(block + 3 * size);
      if (SPANALLOC_UNLIKELY(!leads_to_block(all, span_bytes))) break;
    }
    if (left == 0) break;
    const auto* at = reinterpret_cast<const Block*>(block);
    if (SPANALLOC_UNLIKELY(!is_link(at, link_of(at), span_bytes))) return block;
  }
  return nullptr;
}

// The same where some have no link: their pages are gone, and nobody can be using them but who has freed them
// once too often.
template <class Config>
SPANALLOC_COLD inline typename Heap<Config>::InUse Heap<Config>::look_for_use_but_dropped(SpanRef span) {
  const ClassInfo& info = Classes::info(span->class_id());
  const std::uint64_t dropped = span->dropped.load_relaxed();
  for (std::uint32_t i = 0; i < span->carved.load_relaxed(); ++i) {
    if ((PageMask::of_block(i, info.block_size) & dropped) != 0) continue;
    const char* at = pages_.address(span.number) + std::size_t{i} * info.block_size;
    const auto* block = reinterpret_cast<const Block*>(at);
    if (SPANALLOC_UNLIKELY(!is_link(block, link_of(block), info.virtual_span))) return at;
  }
  return nullptr;
}

// Whoever has the block may free it yet. So the span, which the caller has alone, is what a fork may leave
// behind, too: nobody allocates from it, an orphanage owns it, on no list, and it never becomes empty.
template <class Config>
SPANALLOC_COLD inline void Heap<Config>::lose(SpanRef span) {
  const SpanWord lost =
      SpanWord::make(orphanages_.numbers[0], SpanState::kParked, pages_.capacity(span->class_id()));
  span->free_list.store_relaxed(no_block());
  span->rest.store_relaxed(no_block());
  span->expect_frees(1);
  span->lost = true;
  span->word.store_release(lost.with_listed(true).bits);  // release: who frees into it finds it so
}
template <class Config>
SPANALLOC_COLD [[noreturn]] inline void Heap<Config>::block_in_use(InUse block) {
  os::fatal("a span was given back with a block in use (double free of another), or written to after free:",
            block);
}

template <class Config>
SPANALLOC_COLD inline void Heap<Config>::give_pool_back() {
  for (unsigned stack = 0; stack < Classes::kPoolStacks; ++stack) {
    for (unsigned core = 0; core < pool().cores(); ++core) give_stack_back(stack, core);
  }
}
template <class Config>
inline void Heap<Config>::give_stack_back(unsigned stack, unsigned core) {
  // (One at a time: a report is left by a jump, perhaps.) As many as it holds, or more: what others put there
  // meanwhile need not be waited for.
  for (std::uint32_t left = pool().count_hint(stack, core); left != 0; --left) {
    const SpanNumber number = pool().get_local(stack, core, pages_.pool_links());
    if (number == SpanNumber::kNone) return;
    forget_blocks(pages_.span(number));
    pages_.give(pages_.span(number));
  }
}

// A bounded part of one stack. Returns what it has cost: a look at 64 blocks, or a call of the arena, is one.
template <class Config>
inline std::size_t Heap<Config>::give_some_back(unsigned stack, unsigned core, std::size_t at_most) {
  std::size_t cost = 0;
  while (cost < at_most) {
    const SpanNumber number = pool().get_local(stack, core, pages_.pool_links());
    if (number == SpanNumber::kNone) break;
    const SpanRef span = pages_.span(number);
    cost += 1 + span->carved.load_relaxed() / 64;
    forget_blocks(span);
    pages_.give(span);
  }
  return cost;
}
// Of what was in the pool as this tick began.
template <class Config>
SPANALLOC_COLD inline std::size_t Heap<Config>::give_some_old_back(std::size_t at_most) {
  if (!is_started()) return 0;
  std::size_t cost = 0;
  for (unsigned row = 0; row < Classes::kPoolRows; ++row) {
    for (unsigned core = 0; core < pool().cores() && cost < at_most; ++core) {
      cost += give_some_back(old_stack(row), core, at_most - cost);
    }
  }
  return cost;
}

// Some of the stacks of the first core, from `core` on, that has much. (More of it where several granules in
// a row are wanted.) False: none has, or not as much as is wanted.
template <class Config>
SPANALLOC_COLD inline bool Heap<Config>::drain_for(GranuleCount wanted, unsigned core, std::size_t units) {
  if (!is_started()) return false;
  const unsigned cores = pool().cores();
  const unsigned looked_at = static_cast<unsigned>(min_of(cores, kCoresAMiss));
  for (unsigned i = 0; i < looked_at; ++i, core = core + 1 == cores ? 0 : core + 1) {
    std::size_t granules = 0;
    for (unsigned stack = 0; stack < Classes::kPoolStacks; ++stack) {
      granules += pool().count_hint(stack, core) * Classes::granules_of_row(Classes::row_of_stack(stack));
    }
    if (granules << Config::kGranuleBits < kWorthDraining || granules < wanted.count) continue;
    std::size_t left = units;
    for (const auto stack_of : {&Heap::old_stack, &Heap::young_stack}) {
      for (unsigned row = 0; row < Classes::kPoolRows && left != 0; ++row) {
        left -= min_of(give_some_back((this->*stack_of)(row), core, left), left);
      }
    }
    return true;
  }
  return false;
}

template <class Config>
SPANALLOC_COLD inline bool Heap<Config>::purge_all_free() {
  LockGuard guard(pages_.purge_lock);
  pages_.thin_cursor = 0;
  const std::size_t before = pages_.given_back.load_relaxed();
  thin_parked(Thin::kAll, SIZE_MAX);
  drain_all_pools();
  const bool purged = pages_.arena.purge(false) != 0 || pages_.given_back.load_relaxed() != before;
  pages_.warm_bound.dirty_is(0);
  pages_.arena.look_at_limit();
  return purged;
}

// A tick every half decay time: what the pools hold goes down to the arena, what was free there at the last
// tick and still is is purged, and what is free now will be old at the next tick. So dirty memory that nobody
// wants is purged after half the decay time at least and the whole of it at most, if somebody passes by; a
// bounded part of it at a call. A tick that is not done with one call goes on with the next; it is done for
// certain, because what comes into the pools meanwhile goes onto other stacks, which are the next tick's.
// (But for what a thread was just about to put onto the old ones.)
template <class Config>
SPANALLOC_COLD inline void Heap<Config>::purge_now(std::uint64_t now) {
  if (!pages_.purge_lock.try_lock()) return;  // somebody is at it: another free will see to the rest
  if (now >= pages_.next_purge.load_relaxed()) {
    if (!pages_.in_tick) {
      pages_.in_tick = true;
      pages_.thin_cursor = 0;
      pages_.for_each_heap([&](Heap& heap) {
        heap.take_all_spares(0, kEmptiedATick);
        if (heap.has_uncounted_orphans()) heap.count_orphans_due.store_relaxed(1);
      });
      pages_.arena.look_at_limit();
      // What is in the pools now is old from here on.
      pages_.pool_tick.store_relaxed(pages_.pool_tick.load_relaxed() ^ 1);
    }
    std::size_t cost = 0;
    pages_.for_each_heap(
        [&](Heap& heap) { cost += heap.give_some_old_back(kDrainedATick - min_of(cost, kDrainedATick)); });
    const bool drained = cost < kDrainedATick;
    const std::size_t granules = pages_.arena.purge(pages_.decay_ms != 0, kPurgedARound);
    pages_.given_back.fetch_add_relaxed(granules << Config::kGranuleBits);
    pages_.warm_bound.purged(granules);
    const bool purged = granules < kPurgedARound;
    const bool thinned = thin_parked(Thin::kAged, kThinnedATick);
    if (drained && purged && thinned) {
      pages_.warm_bound.tick(pages_.arena.age());
      pages_.forget_some_that_came_back();
      pages_.in_tick = false;
    }
    // With more to do the next one who comes here goes on.
    pages_.next_purge.store_relaxed(pages_.in_tick ? now : now + pages_.decay_ms / 2 + 1);
  }
  pages_.purge_lock.unlock();
}

// Gives back the pages of parked spans in which no block is out: of all of them, or of those in which nothing
// was freed since the last tick, as far as `at_most` of cost reaches, from the cursor on. True: that is at
// the end. Of all heaps: the records are gone through, because lists change while nobody holds their lock.
//
// Under purge_lock: so no heap's destroy() begins meanwhile, and one that has begun shows the heap as not
// started. A record says who owns its span, which is asked again under that LAB's lock.
template <class Config>
SPANALLOC_COLD inline bool Heap<Config>::thin_parked(Thin which, std::size_t at_most) {
  const std::size_t end = index_of(pages_.end_of_spans());
  std::size_t cost = 0;
  for (std::size_t next = 0; pages_.thin_cursor < end; pages_.thin_cursor = next) {
    if (cost >= at_most) return false;
    cost += kCostOfRecord;
    const SpanNumber number{static_cast<std::uint32_t>(pages_.thin_cursor)};
    // A range in use is one span: nothing is to be thought of its other granules. (Of none: a free range,
    // which is gone through, or one that was just given back.)
    next = pages_.thin_cursor + max_of(pages_.arena.count_of(index_of(number)), 1);
    if (!pages_.has_record(number)) continue;
    const SpanRef span = pages_.span(number);
    protocol_.with_parked(span, which == Thin::kAll, [&](auto& lab, SpanWord word) {
      const Heap* owner = pages_.heap_or_none(span->heap.load_relaxed());
      if (owner == nullptr || !owner->is_started()) return;
      // What is out only becomes less while the span is parked. (Of what is not counted nothing is known but
      // what others have freed.)
      const std::uint32_t out = word.outstanding() - span->unpublished();
      const std::uint32_t seen = Watch::seen(out);
      const bool thinned = span->watched == Watch::thinned(out);
      if (which == Thin::kAged && span->watched != seen) {
        if (!thinned) span->watched = seen;
        return;
      }
      if (thinned) return;
      span->watched = Watch::thinned(out);
      cost += pages_.thin(span, lab, word);
    });
  }
  return true;
}

template <class Config>
SPANALLOC_COLD inline void Heap<Config>::take_all_spares(unsigned core, std::uint32_t at_most,
                                                         const void* but_of) {
  if (!is_started()) return;
  const std::size_t count = index_of(pages_.end_of_labs());
  const std::size_t steps = min_of(count, at_most);
  std::uint32_t next = next_victim_.fetch_add_relaxed(static_cast<std::uint32_t>(steps));
  for (std::size_t i = 0; i < steps; ++i, ++next) {
    const LabNumber number{static_cast<std::uint32_t>(next % count)};
    if (!pages_.has_lab(number)) continue;
    Lab& lab = pages_.lab_at(number);
    if (but_of == nullptr || lab.thread.load_relaxed() != address_of(but_of)) take_spares(lab, core);
  }
}

// Orphanages and other heaps' LABs are passed by, a bounded number of them.
template <class Config>
SPANALLOC_COLD inline std::uint32_t Heap<Config>::steal_from_sleeping_labs(std::uint32_t at_most,
                                                                           unsigned core) {
  if (!is_started()) return 0;
  const std::size_t count = index_of(pages_.end_of_labs());
  const std::size_t steps = min_of(count, std::size_t{at_most} + Orphanages::kMost);
  std::uint32_t victim = next_victim_.fetch_add_relaxed(static_cast<std::uint32_t>(min_of(count, at_most)));
  std::uint32_t stolen = 0;
  std::uint32_t looked_at = 0;
  for (std::size_t i = 0; i < steps && looked_at < at_most; ++i, ++victim) {
    const LabNumber number{static_cast<std::uint32_t>(victim % count)};
    if (!pages_.has_lab(number)) continue;
    Lab& sleeping = pages_.lab_at(number);
    // Orphanages are nobody's.
    if (sleeping.heap.load_relaxed() != number_ || sleeping.thread.load_relaxed() == 0) continue;
    ++looked_at;
    const SpanChain chain = protocol_.steal_hidden_empties(
        sleeping.number, [&] { return sleeping.heap.load_relaxed() == number_; });
    put_in_pool(chain, core);
    stolen += chain.count;
  }
  return stolen;
}

template <class Config>
[[gnu::noinline]] inline typename Heap<Config>::Borrowed Heap<Config>::borrow(ClassId c, Lab& borrower,
                                                                              std::uint32_t at_least) {
  const std::size_t count = index_of(pages_.end_of_labs());
  const std::size_t steps = min_of(count, std::size_t{kLendersAMiss} + Orphanages::kMost);
  std::uint32_t looked_at = 0;
  for (std::size_t i = 0; i < steps && looked_at < kLendersAMiss; ++i) {
    const LabNumber number{static_cast<std::uint32_t>(borrower.next_lender++ % count)};
    if (!pages_.has_lab(number)) continue;
    Lab& lender = pages_.lab_at(number);
    if (lender.heap.load_relaxed() != number_ || lender.thread.load_relaxed() == 0 || &lender == &borrower) {
      continue;
    }
    ++looked_at;
    // Which spans are hot there may have changed since: the protocol looks again.
    const auto borrowed_from = [&](SpanNumber hot) -> Borrowed {
      if (hot == SpanNumber::kNone) return {};
      const SpanRef span = pages_.span(hot);
      if (span->shown_class.load_relaxed() != index_of(c)) return {};
      const RemoteList list = protocol_.borrow(span, number, c, at_least, [&] { return has(span); });
      return list.first == BlockMark::kNone ? Borrowed{} : Borrowed{span, list.first};
    };
    if (const Borrowed got = borrowed_from(lender.hot[index_of(c)].load_relaxed())) return got;
    for (unsigned place = 0; place < lender.warm.kPlaces; ++place) {
      if (const Borrowed got = borrowed_from(lender.warm.span(place))) return got;
    }
  }
  return {};
}

}  // namespace spanalloc::standard
