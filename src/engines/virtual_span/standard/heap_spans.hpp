// A heap's slow paths: where spans come from, where they go, and when free memory is purged; see heap.hpp.
#pragma once

#include "engines/virtual_span/standard/heap.hpp"

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
  SpanNumber number = pool().get_local(row, core, pages_.pool_links());
  if (number == SpanNumber::kNone) number = pool().get_from_other_core(row, core, pages_.pool_links());
  if (number == SpanNumber::kNone) return {};
  FreshSpan fresh{pages_.span(number)};
  fresh.has_blocks = fresh.span->class_id() == c && !Classes::is_single(c);
  if (!fresh.has_blocks) forget_blocks(fresh.span);
  return fresh;
}

// A span that was emptied leaves its class. (Of a span of one block nothing is ever carved; of one carved
// block it is clear that it is back.)
template <class Config>
inline void Heap<Config>::forget_blocks(SpanRef span) {
  if (span->carved.load_relaxed() > 1) check_all_free(span);
  if constexpr (kPoisons) {
    poison(pages_.address(span.number), pages_.granules_of(span).count << Config::kGranuleBits);
  }
}

template <class Config>
inline FreshSpan Heap<Config>::take_open(ClassId c, Reuse reuse) {
  return as_fresh(pages_, pages_.arena.take(Classes::info(c).granules, alignment_of(c), reuse));
}

template <class Config>
inline FreshSpan Heap<Config>::take_warm_or_open(ClassId c, unsigned core) {
  if (const FreshSpan fresh = take_open(c, Reuse::kDirtyOnly)) return fresh;
  // Before memory is touched that was not: what the pool keeps for other rows.
  if (drain_core(core, Classes::info(c).granules)) {
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
    const FreshSpan fresh = as_fresh(pages_, pages_.arena.take(granules.count, alignment, reuse));
    if (fresh) return fresh;
  }
  return take_anyhow(granules, alignment);
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

template <class Config>
inline void Heap<Config>::begin_life(const FreshSpan& fresh, ClassId c, SpanWord word) {
  const ClassInfo& info = Classes::info(c);
  const SpanRef span = fresh.span;
  SPANALLOC_ASSERT(span && span.number < pages_.end_of_spans());
  SPANALLOC_ASSERT(span->load_word().state() == SpanState::kFree);
  SPANALLOC_ASSERT(index_of(span.number) % alignment_of(c) == 0);
  for (std::uint32_t i = 0; i < (1u << info.order); ++i) {
    pages_.span(SpanNumber{index_of(span.number) + i})->order = info.order;
  }
  const bool single = info.blocks <= 1;
  span->blocks.set(address_of(pages_.address(span.number)), single ? 1 : info.magic, single ? 1 : 0);
  span->shown.set(span->blocks);
  change_class(span, c);
  span->heap.store_relaxed(number_);
  span->zero = fresh.zero;
  span->carved.store_relaxed(0);
  span->free_list.store_relaxed(no_block());
  span->rest.store_relaxed(no_block());
  span->uncounted = false;
  span->expect_frees_while_hot();
  span->list = ListId::kNone;
  // Release: a stale freer of an earlier life may look at the record under a lock.
  span->word.store_release(word.bits);
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
  return {fresh.span, was.head()};
}

template <class Config>
SPANALLOC_COLD inline SpanRef Heap<Config>::move_large(SpanRef span, GranuleCount old,
                                                       GranuleCount granules) {
  Arena& arena = pages_.arena;
  // Where warm memory waits, copying into it costs less than many fresh pages behind the moved ones.
  if (granules.count > old.count + old.count / 4) {
    if (const auto warm = arena.take(granules.count, 1, Reuse::kDirtyOnly); warm.first != 0) {
      arena.give(warm.first);
      return {};
    }
  }
  // Room behind the target lets the next growth stay in place, where there is some.
  FreshSpan target;
  const auto roomy = arena.take(granules.count + granules.count / 4, 1, Reuse::kCleanFirst);
  if (roomy.first != 0) {
    arena.give_tail(roomy.first, granules.count, roomy.zero);
    target = as_fresh(pages_, roomy);
  } else {
    target = take_large(granules, 1, Reuse::kCleanFirst);
  }
  if (!target || !arena.move(index_of(span.number), index_of(target.span.number), old.count)) return {};
  target.zero = false;
  begin_single_life(target, Classes::kLarge);
  span->word.store_release(SpanWord::make(kNobody, SpanState::kFree, 0).bits);
  pages_.give(span, true);
  return target.span;
}

// --- Returning spans ---------------------------------------------------------------------------------------

template <class Config>
[[gnu::noinline]] inline void Heap<Config>::put_in_pool(SpanRef span, unsigned core) {
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
      !pool().put_bounded(info.pool_row, core, span.number, info.pool_most, pages_.pool_links())) {
    forget_blocks(span);
    pages_.give(span);
  }
  purge_by_decay(os::now_ms());
}

// Of a span that counts as empty. A block that was freed twice, unnoticed because its link had been
// overwritten or because it was freed into two lists, was counted twice: then another block may still be out,
// which has no link.
template <class Config>
[[gnu::noinline]] inline void Heap<Config>::check_all_free(SpanRef span) {
  const std::size_t size = Classes::info(span->class_id()).block_size;
  const char* block = pages_.address(span.number);
  const std::size_t span_bytes = Classes::info(span->class_id()).virtual_span;
  const auto link_at = [](const char* at) { return link_of(reinterpret_cast<const Block*>(at)); };
  std::uint32_t left = span->carved.load_relaxed();
  // Most blocks are right: one test for four.
  for (; left != 0; --left, block += size) {
    for (; left >= 4; left -= 4, block += 4 * size) {
      const std::uint64_t all =
          link_at(block) | link_at(block + size) | link_at(block + 2 * size) | link_at(block + 3 * size);
      if (SPANALLOC_UNLIKELY(!leads_to_block(all, span_bytes))) break;
    }
    if (left == 0) return;
    const auto* at = reinterpret_cast<const Block*>(block);
    if (SPANALLOC_LIKELY(is_link(at, link_of(at), span_bytes))) continue;
    os::fatal("a span was given back with a block in use (double free of another), or written to after free:",
              block);
  }
}

template <class Config>
SPANALLOC_COLD inline void Heap<Config>::give_pool_back() {
  for (unsigned row = 0; row < Classes::kPoolRows; ++row) {
    for (unsigned core = 0; core < pool().cores(); ++core) give_stack_back(row, core);
  }
}
template <class Config>
inline void Heap<Config>::give_stack_back(unsigned row, unsigned core) {
  if (pool().looks_empty(row, core)) return;  // what this thread knows to be in the pool it sees
  std::uint32_t count = 0;
  for (SpanNumber number = pool().take_all(row, core); number != SpanNumber::kNone; ++count) {
    const SpanNumber next = Pool::next_of(number, pages_.pool_links());  // ours: taken with acquire
    forget_blocks(pages_.span(number));
    pages_.arena.give(index_of(number));
    number = next;
  }
  if (count != 0) pool().taken(row, core, count);
}

// A bounded part of one stack, of at most `spans`, which counts down. Returns what it has cost: a look at 64
// blocks, or a call of the arena, is one.
template <class Config>
inline std::size_t Heap<Config>::give_some_back(unsigned row, unsigned core, std::size_t at_most,
                                                std::size_t& spans) {
  std::size_t cost = 0;
  while (cost < at_most && spans != 0) {
    const SpanNumber number = pool().get_local(row, core, pages_.pool_links());
    if (number == SpanNumber::kNone) break;
    const SpanRef span = pages_.span(number);
    cost += 1 + span->carved.load_relaxed() / 64;
    --spans;
    forget_blocks(span);
    pages_.arena.give(index_of(number));
  }
  return cost;
}
template <class Config>
SPANALLOC_COLD inline std::size_t Heap<Config>::give_some_back(std::size_t at_most, std::size_t& spans) {
  if (!is_started()) return 0;
  std::size_t cost = 0;
  for (unsigned row = 0; row < Classes::kPoolRows; ++row) {
    for (unsigned core = 0; core < pool().cores() && cost < at_most; ++core) {
      cost += give_some_back(row, core, at_most - cost, spans);
    }
  }
  return cost;
}
template <class Config>
SPANALLOC_COLD inline std::size_t Heap<Config>::pooled_spans() {
  std::size_t count = 0;
  if (!is_started()) return count;
  for (unsigned row = 0; row < Classes::kPoolRows; ++row) {
    for (unsigned core = 0; core < pool().cores(); ++core) count += pool().count_hint(row, core);
  }
  return count;
}

// Some of the stacks of a core whose spans may be large together: those of several blocks. (More of it where
// several granules in a row are wanted.) False: they have little.
template <class Config>
SPANALLOC_COLD inline bool Heap<Config>::drain_core(unsigned core, unsigned wanted) {
  std::size_t granules = 0;
  for (unsigned row = 0; row <= Config::kMaxOrder; ++row) granules += pool().count_hint(row, core) << row;
  if (granules << Config::kGranuleBits < kWorthDraining) return false;
  std::size_t left = kDrainedAMiss * wanted;
  std::size_t any_number = SIZE_MAX;
  for (unsigned row = 0; row <= Config::kMaxOrder && left != 0; ++row) {
    left -= min_of(give_some_back(row, core, left, any_number), left);
  }
  return true;
}

template <class Config>
SPANALLOC_COLD inline std::size_t Heap<Config>::purge_all_free() {
  LockGuard guard(pages_.purge_lock);
  drain_all_pools();
  const std::size_t purged = pages_.arena.purge(false);
  pages_.arena.look_at_limit();
  return purged;
}

// A tick every half decay time: what the pools hold goes down to the arena, what was free there at the last
// tick and still is is purged, and what is free now will be old at the next tick. So dirty memory that nobody
// wants is purged after half the decay time at least and the whole of it at most, if somebody passes by; a
// bounded part of it at a call. A tick that is not done with one call goes on with the next; it is done for
// certain, because it gives down no more spans than there were when it began, however many come meanwhile.
template <class Config>
SPANALLOC_COLD inline void Heap<Config>::purge_now(std::uint64_t now) {
  if (!pages_.purge_lock.try_lock()) return;  // somebody is at it: another free will see to the rest
  if (now >= pages_.next_purge.load_relaxed()) {
    if (!pages_.in_tick) {
      pages_.in_tick = true;
      pages_.left_to_drain = 0;
      pages_.for_each_heap([&](Heap& heap) {
        heap.take_all_spares(0, kEmptiedATick);
        pages_.left_to_drain += heap.pooled_spans();
        if (heap.has_uncounted_orphans()) heap.count_orphans_due.store_relaxed(1);
      });
      pages_.arena.look_at_limit();
    }
    std::size_t cost = 0;
    pages_.for_each_heap([&](Heap& heap) {
      cost += heap.give_some_back(kDrainedATick - min_of(cost, kDrainedATick), pages_.left_to_drain);
    });
    const bool drained = cost < kDrainedATick || pages_.left_to_drain == 0;
    const bool purged = pages_.arena.purge(pages_.decay_ms != 0, kPurgedARound) < kPurgedARound;
    if (drained && purged) {
      pages_.arena.age();
      pages_.in_tick = false;
    }
    // With more to do the next one who comes here goes on.
    pages_.next_purge.store_relaxed(pages_.in_tick ? now : now + pages_.decay_ms / 2 + 1);
  }
  pages_.purge_lock.unlock();
}

template <class Config>
SPANALLOC_COLD inline void Heap<Config>::take_all_spares(unsigned core, std::uint32_t at_most) {
  if (!is_started()) return;
  const std::size_t count = index_of(pages_.end_of_labs());
  const std::size_t steps = min_of(count, at_most);
  std::uint32_t next = next_victim_.fetch_add_relaxed(static_cast<std::uint32_t>(steps));
  for (std::size_t i = 0; i < steps; ++i, ++next) {
    const LabNumber number{static_cast<std::uint32_t>(next % count)};
    if (pages_.has_lab(number)) take_spares(pages_.lab_at(number), core);
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

}  // namespace spanalloc::standard
